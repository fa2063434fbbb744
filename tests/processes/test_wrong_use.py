"""Acceptance 7: wrong use and damaged folders: one sentence, the documented exit code, no traceback, nothing lost."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from runs import Home, Run, a_place, living, load, until

NOBODY = 65534


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Home]:
    yield from a_place(tmp_path)


def sentence(said: subprocess.CompletedProcess[str], code: int = 2) -> str:
    """Assert that a command ended with ``code`` and one sentence on stderr, and return it."""
    assert said.returncode == code, said.stderr + said.stdout
    assert "Traceback" not in said.stderr + said.stdout
    lines = said.stderr.strip().splitlines()
    assert len(lines) == 1, said.stderr
    assert lines[0].startswith("overnight"), lines[0]
    return lines[0]


def refused(place: Home, *words: str, code: int = 2, env: dict[str, str] | None = None, runs: int = 0) -> str:
    """Assert that ``overnight WORDS`` is refused with one sentence and leaves no run behind."""
    text = sentence(place.call(*words, env=env), code)
    there = sorted(os.listdir(place.path / "runs")) if (place.path / "runs").exists() else []
    assert len(there) == runs, there
    assert place.processes() == [] or runs
    return text


# -- what is asked -----------------------------------------------------------------------------------------------------


def test_no_command(place: Home) -> None:
    assert "no command" in refused(place, "run", "--")
    refused(place, "run")
    assert "`--`" in refused(place, "run", "python", "train.py")
    assert "`--`" in refused(place, "run", "--name", "x", "python", "train.py")


def test_command_not_found(place: Home) -> None:
    assert "no-such-program" in refused(place, "run", "--", "no-such-program", "x")
    assert "missing.sh" in refused(place, "run", "--", "./missing.sh")
    refused(place, "run", "--", "")


def test_command_not_executable(place: Home) -> None:
    script = place.work / "train.sh"
    script.write_text("echo hi\n")
    assert "train.sh" in refused(place, "run", "--", "./train.sh")
    assert str(place.work) in refused(place, "run", "--", str(place.work))


def test_command_without_an_interpreter_line(place: Home) -> None:
    """The kernel cannot execute it; that is only known when it is tried. It is no crash of the training."""
    script = place.work / "train.sh"
    script.write_text("echo hi\n")
    script.chmod(0o755)
    said = place.call("run", "--name", "x", "--", "./train.sh")
    assert said.returncode in (2, 100), said.stderr
    assert "#!/bin/sh" in said.stderr + said.stdout
    assert "Traceback" not in said.stderr


def test_a_mistyped_script(place: Home) -> None:
    """The name of what is left of it was made up by us, unless it was asked for: only then anybody wants it back."""
    for flags, hint in (((), "removes what is left of it"), (("--name", "mine"), "then the name is free again")):
        said = place.call("run", *flags, "--", sys.executable, "trian.py")
        assert said.returncode == 100, said.stderr
        (line,) = [line for line in said.stderr.splitlines() if "overnight clean" in line]
        assert line.endswith(f"# {hint}")


@pytest.mark.parametrize("name", ["../x", "a/b", "-x", "--", ".hidden", "", "a b", "ä", "x" * 65, "x\n", "..", "x/"])
def test_names_that_are_none(place: Home, name: str) -> None:
    refused(place, "run", f"--name={name}", "--", "true")
    assert not (place.path / "x").exists()
    assert not (place.path.parent / "x").exists()


def test_name_of_a_live_run(place: Home) -> None:
    run = place.toy("mine", "--steps", "100000", "--dt", "0.02")
    child, before = run.child(), (run.path / "run.json").read_bytes()
    for _ in range(2):
        text = refused(place, "run", "--name", "mine", "--", "true", runs=1)
        assert "mine" in text
    run.until(lambda seen: (seen.get("records") or 0) > 10, "it goes on")
    assert run.child() == child
    assert living(child)
    assert (run.path / "run.json").read_bytes() == before


def test_name_of_an_ended_run(place: Home) -> None:
    run = place.toy("mine", "--steps", "5")
    assert run.wait() == 0
    run.gone()
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    assert "overnight clean mine" in refused(place, "run", "--name", "mine", "--", "true", runs=1)
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


def test_one_of_two_at_the_same_time_wins(place: Home) -> None:
    for n in range(3):
        words = [sys.executable, "-m", "overnight", "run", "--name", f"x{n}", "--settle", "0.01s", "--", "sleep", "100"]
        both = [
            subprocess.Popen(
                words, env=place.env, cwd=place.work, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            for _ in range(2)
        ]
        said = [(one.communicate(timeout=30), one.returncode) for one in both]
        assert sorted(code for _, code in said) == [0, 2], said
        ((_, error),) = [texts for texts, code in said if code == 2]
        assert len(error.strip().splitlines()) == 1
        run = Run(place, f"x{n}")
        until(run.child, "the one that won")
        assert living(run.child())
        sleeping = [pid for pid in place.processes() if Path(f"/proc/{pid}/comm").read_text() == "sleep\n"]
        assert sleeping == [run.child()]
        os.kill(run.child(), signal.SIGKILL)
        assert run.wait() == 100


@pytest.mark.parametrize(
    "flags",
    [
        ["--no-such-flag"], ["--nam", "x"], ["--grace"], ["--params", "-5"], ["--params", "0"], ["--params", "many"],
        ["--params", "nan"], ["--tokens-per-step", "0"], ["--tokens-per-step", "-1"], ["--peak-tflops", "0"],
        ["--peak-tflops", "inf"], ["--devices", "0"], ["--devices", "-2"], ["--devices", "1.5"], ["--window", "0"],
        ["--steps", "0"], ["--steps", "-3"], ["--grace", "-5s"], ["--grace", "soon"], ["--max-hours", "0"],
        ["--max-hours", "-1"], ["--max-loss", "nan"], ["--action", "nonfinite"], ["--action", "nonfinite=explode"],
        ["--action", "nosuchrule=stop"], ["--stop-signal", "hup"], ["--pattern", "("], ["--pattern", "loss (.*)"],
        ["--pattern", "(?P<foo>.*)"],
        ["--layers", "0"], ["--foreground", "--follow"], ["--log", "/dev/null"], ["--log", "/"],
        ["--log", "/nonexistent/x.log"],
        ["--checkpoints", ""],
    ],
    ids=lambda flags: " ".join(flags) if isinstance(flags, list) else None,
)  # fmt: skip
def test_flags_that_are_none(place: Home, flags: list[str]) -> None:
    refused(place, "run", *flags, "--", "sleep", "100")


@pytest.mark.parametrize("way", ["flag", "variable", "file", "explain"])
def test_a_pattern_that_no_reader_could_use(place: Home, way: str) -> None:
    """Settings and reader ask the same function: what is taken here can never keep a supervisor from living."""
    bad = r"(?P<foo>\d+)"
    flags = ["--pattern", bad] if way in ("flag", "explain") else []
    if way == "explain":
        flags.append("--explain")
    if way == "file":
        (place.work / "overnight.toml").write_text(f"pattern = '{bad}'\n")
    text = refused(place, "run", *flags, "--", "true", env={"OVERNIGHT_PATTERN": bad} if way == "variable" else None)
    assert f"pattern '{bad}'" in text
    assert "names neither step nor loss" in text


def test_unknown_keys_of_a_file(place: Home) -> None:
    file = place.work / "overnight.toml"
    for text in (
        "grase = '5s'\n",
        "[rules.nonfinite]\nacton = 'stop'\n",
        "grace = \n",
        "grace = -1\n",
        "[run]\nname = 'x'\n",
    ):
        file.write_text(text)
        assert "overnight.toml" in refused(place, "run", "--", "sleep", "100")
    file.write_bytes(b"grace = '5s' # \xff\n")
    refused(place, "run", "--", "sleep", "100")


def test_unknown_variables_only_warn(place: Home) -> None:
    said = place.call("run", "--name", "x", "--settle", "0.01s", "--", "sleep", "100", env={"OVERNIGHT_GRASE": "5s"})
    assert said.returncode == 0, said.stderr
    assert len(said.stderr.splitlines()) == 1
    assert "OVERNIGHT_GRASE" in said.stderr
    assert "Traceback" not in said.stderr


def test_wrong_values_of_variables(place: Home) -> None:
    assert "OVERNIGHT_GRACE" in refused(place, "run", "--", "sleep", "100", env={"OVERNIGHT_GRACE": "-5s"})


@pytest.mark.parametrize("verb", ["status", "logs", "wait", "stop", "attach", "clean"])
def test_runs_that_are_none(place: Home, verb: str) -> None:
    assert "nothere" in refused(place, verb, "nothere", code=102)
    refused(place, verb, "../../etc", code=102)


def test_unknown_verbs_and_flags_of_verbs(place: Home) -> None:
    refused(place, "fly")
    refused(place, "--fly")
    refused(place, "wait", "--timeout", "soon")
    refused(place, "wait", "--timeout", "-5s")
    refused(place, "status", "a", "b")
    refused(place, "clean")


# -- the home ----------------------------------------------------------------------------------------------------------


def unprivileged(place: Home) -> tuple[str, ...]:
    """Return what runs a command as somebody who may not write everywhere."""
    if os.geteuid() != 0:
        return ()
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is needed to stop being root")
    found = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    probe = subprocess.run(
        [*found, sys.executable, "-c", "import overnight.cli"], cwd="/", capture_output=True, text=True, check=False
    )
    if probe.returncode:
        pytest.skip(f"another user cannot run this python: {probe.stderr.strip().splitlines()[-1]}")
    return found


def test_home_that_may_not_be_written(place: Home, tmp_path: Path) -> None:
    before = unprivileged(place)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and "pytest" in str(folder):
            folder.chmod(folder.stat().st_mode | 0o055)
    home = tmp_path / "locked"
    home.mkdir(mode=0o555)
    sentence(
        place.call(
            "run", "--", "sleep", "100", env={"OVERNIGHT_HOME": str(home / "deeper")}, before=before, cwd=Path("/")
        )
    )
    sentence(place.call("run", "--", "sleep", "100", env={"OVERNIGHT_HOME": str(home)}, before=before, cwd=Path("/")))
    assert place.call("ls", env={"OVERNIGHT_HOME": str(home)}, before=before, cwd=Path("/")).returncode == 0
    assert list(home.iterdir()) == []


def mounted(path: Path, options: str) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    path.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "overnight-test", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"nothing can be mounted here: {made.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    yield from mounted(tmp_path / "readonly", "ro")


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    yield from mounted(tmp_path / "tiny", "size=64k")


def test_read_only_home(place: Home, read_only: Path) -> None:
    text = sentence(place.call("run", "--", "sleep", "100", env={"OVERNIGHT_HOME": str(read_only)}))
    assert str(read_only) in text
    assert place.call("ls", env={"OVERNIGHT_HOME": str(read_only)}).returncode == 0


def test_full_home(place: Home, tiny: Path) -> None:
    with (tiny / "filler").open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while stream.write(b"x"):
            pass
    text = sentence(place.call("run", "--name", "x", "--", "sleep", "100", env={"OVERNIGHT_HOME": str(tiny)}))
    assert str(tiny) in text
    assert list(tiny.rglob("run.json")) == []


def test_home_that_is_a_file(place: Home) -> None:
    place.path.write_text("not a folder")
    for words in (("run", "--", "true"), ("ls",), ("status",), ("wait", "x"), ("stop",)):
        said = place.call(*words)
        assert said.returncode in (1, 2, 102), said.stderr
        assert len(said.stderr.strip().splitlines()) == 1, said.stderr
    assert place.path.read_text() == "not a folder"


# -- a folder edited by hand -------------------------------------------------------------------------------------------


def garble(path: Path) -> None:
    path.write_bytes(b"\xff{ not what it was" + b"\0" * 5000)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def wrong_shape(path: Path) -> None:
    path.write_text('["a", "list"]\n')


def remove(path: Path) -> None:
    path.unlink()


def nest(path: Path) -> None:
    path.write_text("[" * 100_000 + "\n")


DAMAGES = [garble, empty, wrong_shape, remove, nest]
FILES = ["run.json", "status.json", "journal.jsonl", "metrics.db"]
LOOKS = [
    ("ls",),
    ("ls", "--json"),
    ("status", "hurt"),
    ("status", "hurt", "--json"),
    ("logs", "hurt"),
    ("wait", "hurt", "--timeout", "0.3s"),
]


def look_everywhere(run: Run) -> None:
    """Assert that nobody who looks gets more than one sentence and a documented code."""
    for words in LOOKS:
        said = run.home.call(*words)
        assert said.returncode in (0, 1, 100, 101, 103), f"{words}: {said.returncode}: {said.stderr}"
        assert "Traceback" not in said.stderr + said.stdout, said.stderr
        assert len(said.stderr.strip().splitlines()) <= 1, said.stderr


EDITS = [(file, damage) for file in FILES for damage in DAMAGES]


@pytest.mark.parametrize(
    ("file", "damage"),
    # Each takes its seven seconds of waiting: every file once in each run of the tests, each with another damage, and
    # all of them in the long one.
    [pytest.param(*edit, marks=[] if at % 6 == 0 else pytest.mark.long) for at, edit in enumerate(EDITS)],
    ids=[f"{file}-{damage.__name__}" for file, damage in EDITS],
)
def test_live_run_whose_file_was_edited(place: Home, file: str, damage: Callable[[Path], None]) -> None:
    """The training does not notice, and neither what it logs nor how it ends is lost; the supervisor comes and goes."""
    switches = ["--steps", "700", "--rate", "100", "--nan-at", "150", "--exit-at", "700", "--exit-code", "7"]
    run = place.toy("hurt", *switches, options=("--action", "nonfinite=alert"))
    run.until(lambda seen: (seen.get("records") or 0) > 30, "records")
    good = (run.path / "run.json").read_bytes()
    child = run.child()
    damage(run.path / file)
    look_everywhere(run)
    assert living(child)
    until(lambda: "step: 200," in run_log(run), "step 200")
    if run.pid("supervisor"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(run.pid("supervisor"), signal.SIGKILL)  # the next one has only the files to go by
    look_everywhere(run)
    if file == "run.json":
        until(lambda: "run.json" in (run.path / "supervisor.log").read_text(), "it says what is wrong")
        (run.path / "run.json").write_bytes(good)  # its owner mends it, as the sentence asks
    assert run.wait() == 100
    assert run.child() == child
    status = run.status()
    assert (status["state"], status["cause"], status["exit_code"], status["step"]) == ("failed", "crash", 7, 700)
    assert [(one["rule"], one["step"]) for one in status["verdicts"]] == [("nonfinite", 150)]
    run.gone()
    assert run.steps() == list(range(1, 701))
    assert [fact["step"] for fact in journal(run) if fact["fact"] == "verdict"] == [150]
    assert [fact["cause"] for fact in journal(run) if fact["fact"] == "ended"] == ["crash"]
    run.clean_logs()


def run_log(run: Run) -> str:
    return (run.path / "output.log").read_text(errors="replace")


def journal(run: Run) -> list[dict[str, object]]:
    from overnight.folder import read_journal

    return list(read_journal(run.path / "journal.jsonl"))


@pytest.mark.parametrize(
    ("file", "damage"),
    # A dozen programs are started for each: here every file and every damage at least once, other pairs than above.
    [pytest.param(*edit, marks=[] if at % 6 in (1, 4) else pytest.mark.long) for at, edit in enumerate(EDITS)],
    ids=[f"{file}-{damage.__name__}" for file, damage in EDITS],
)
def test_ended_run_whose_file_was_edited(place: Home, file: str, damage: Callable[[Path], None]) -> None:
    run = place.toy("hurt", "--steps", "20", "--rate", "200", "--exit-at", "20", "--exit-code", "7")
    assert run.wait() == 100
    run.gone()
    damage(run.path / file)
    look_everywhere(run)
    said = place.call("wait", "hurt", "--timeout", "10s")
    assert said.returncode == 100, said.stderr
    assert load(run.path / "status.json")["exit_code"] == 7
    assert run_log(run).count("step:") == 20
    run.clean_logs()
    until(lambda: not [pid for pid in place.processes() if living(pid)], "whoever came to settle it leaves")
    cleaned = place.call("clean", "hurt")
    assert cleaned.returncode == 0, cleaned.stderr
    assert not run.path.exists()


def test_run_folder_removed_under_a_live_run(place: Home) -> None:
    """Nothing can be written down any more: the training goes on to its end, and then nobody of ours stays behind."""
    log = place.work / "train.log"
    run = place.toy("hurt", "--steps", "100", "--rate", "50", options=("--log", str(log)))
    run.until(lambda seen: seen.get("records"), "records")
    shutil.rmtree(run.path)
    sentence(place.call("status", "hurt"), 102)
    until(lambda: "longest step" in log.read_text(), "the training reaches its end")
    until(lambda: not [pid for pid in place.processes() if living(pid)], "nobody stays", limit_s=40)


# -- a run that no supervisor can keep ---------------------------------------------------------------------------------


def hopeless(place: Home, name: str) -> Run:
    """Return a live run that lost its supervisor and, with a run.json in which nothing is known, gets no other."""
    run = place.toy(name, "--steps", "100000", "--dt", "0.02", "--ignore-int", "--ignore-term", "--spawn", "2")
    run.until(lambda seen: (seen.get("records") or 0) > 3, "records")
    (run.path / "run.json").write_text("{ not what it was")
    os.kill(run.pid("supervisor"), signal.SIGKILL)
    return run


@pytest.mark.timeout(90)
def test_stop_now_ends_runs_that_no_supervisor_can_keep(place: Home) -> None:
    """One whose supervisors never live, and one whose next comes only after 30 s: both at once, for both take long."""
    run, slow = hopeless(place, "lost"), unguarded(place, "slow")
    good = place.toy("good", "--steps", "100000", "--dt", "0.02")
    stopping = place.begin("stop", "lost", "--now")
    ends_at_once(slow)
    _, error = stopping.communicate(timeout=60)
    assert stopping.returncode == 1, error
    assert "Traceback" not in error
    assert "no supervisor of lost can live" in error
    last = error.strip().splitlines()[-1]
    assert last.startswith("overnight: every process of lost has been killed, but its end cannot be written down")
    assert str(run.path / "run.json") in last
    assert [pid for pid in place.processes() if f"{run.path}".encode() in environ_and_words(pid)] == []
    assert living(good.child())
    refused(place, "clean", "lost", runs=3)
    assert place.call("clean", "lost", "--force").returncode == 0
    assert not run.path.exists()


def environ_and_words(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes() + Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def unguarded(place: Home, name: str) -> Run:
    """Return a live run that lost its supervisor and, for as long as run.json is aside, gets no other."""
    run = place.toy(name, "--steps", "100000", "--dt", "0.02", "--ignore-int", "--ignore-term", "--spawn", "2")
    run.until(lambda seen: (seen.get("records") or 0) > 3, "records")
    (run.path / "run.json").rename(run.path / "aside")
    os.kill(run.pid("supervisor"), signal.SIGKILL)
    return run


def ends_at_once(run: Run) -> None:
    """Assert that `stop --now` does not wait for a supervisor that comes back only every 30 s."""
    until(lambda: load(run.path / "shim.json")["unguarded"], "five deaths", limit_s=30.0)
    (run.path / "aside").rename(run.path / "run.json")
    said = run.home.call("stop", run.name, "--now", timeout=60)
    assert said.returncode == 0, said.stderr
    assert "ending its processes from here" in said.stderr
    status = run.status()
    assert status["state"] in ("stopped", "failed")
    assert status["signal"] == "SIGKILL"
    run.gone()

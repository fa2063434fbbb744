"""`overnight check` passes for a run that lives, grows and survives a logout, for no other, and leaves nothing behind.

The runs are real, and so are the terminals, the logins and, where it is installed, the sshd.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from looking import PYTHON, Run, Runs, Terminal, alive, all_processes, read, toy, until
from test_detach import remote, ssh  # noqa: F401 - a fixture

pytestmark = pytest.mark.timeout(90)

Start = Callable[..., Run]
NAMES = ["processes", "terminal", "steps", "disconnect", "hours"]
QUICK_S = 20.0  # for what is known at once, on a loaded machine; the interval asked for is always longer


def checked(runs: Runs, name: str, *flags: object) -> tuple[int, dict[str, Any]]:
    """Return (exit code, what --json printed)."""
    done = runs.overnight("check", name, "--json", *flags)
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return done.returncode, found


def by_name(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the checks of a result by their names."""
    return {one["name"]: one for one in found["checks"]}


def failed(found: dict[str, Any]) -> set[str]:
    """Return the names of the checks that do not hold."""
    return {one["name"] for one in found["checks"] if not one["ok"]}


def kept(run: Run) -> list[Path]:
    """Return the folders of evidence that checks have left."""
    return sorted((run.folder / "evidence").glob("check-*"))


def left_by(pid: int) -> list[tuple[int, tuple[str, ...]]]:
    """Return the living processes that the check with this pid has started."""
    mark = f"_OVERNIGHT_CHECK={pid}-"
    return [(one.pid, one.words) for one in all_processes() if any(word.startswith(mark) for word in one.environ)]


def pids_in(lines: list[str]) -> list[int]:
    """Return the pids that process lines name."""
    return [int(word.removeprefix("pid=")) for line in lines for word in line.split() if word.startswith("pid=")]


@pytest.fixture
def start_files(runs: Runs, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Return a function that writes the start files of this test's login shells."""
    folder = tmp_path / "login"
    folder.mkdir()
    runs.env["HOME"] = str(folder)

    def write(text: str, *names: str) -> None:
        for name in names or (".profile", ".bash_profile", ".zprofile"):
            (folder / name).write_text(text)

    return write


# -- it holds ----------------------------------------------------------------------------------------------------------


def test_a_run_whose_ssh_connection_broke_passes_from_a_new_login(runs: Runs, ssh: list[str]) -> None:  # noqa: F811
    words = ["run", "--name", "night", "--follow", "--", *toy("--steps", 3000)]
    terminal = Terminal([*ssh, remote(runs, words) + "; sleep 600"], env=runs.env, cwd=runs.work)
    try:
        run = runs.run("night")
        until(lambda: b"step: 10," in run.log, f"step 10; the terminal shows {terminal.shown!r}", 20.0)
        terminal.process.kill()
        terminal.process.wait()
    finally:
        terminal.close()
    viewer = [one.pid for one in all_processes() if "--follow" in one.words and "night" in one.words]
    until(lambda: not [pid for pid in viewer if alive(pid)], "the old login has ended")
    out = runs.work / "check.json"
    again = [*ssh, remote(runs, ["check", "night", "--interval", "2", "--json", f"> {out}"])]
    done = subprocess.run(again, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    found = json.loads(out.read_bytes())
    assert (done.returncode, failed(found)) == (0, set()), found
    assert found["ok"] is True
    assert run.status["state"] == "running"


def test_a_passing_check_says_and_keeps_what_it_saw(start: Start, runs: Runs) -> None:
    run = start("night", "sh", "-c", f"{' '.join(toy('--steps', 3000))}; true", log="step: 5,")
    before = sorted(path for path in run.folder.rglob("*") if path.is_file())
    code, found = checked(runs, "night", "--interval", "2")
    assert (code, failed(found)) == (0, set()), found
    assert set(found) == {"name", "ok", "checks", "evidence", "hours"}
    assert [one["name"] for one in found["checks"]] == NAMES
    assert all(set(one) == {"name", "ok", "text", "facts"} and one["text"] for one in found["checks"])
    assert 0 < found["hours"] < 0.1
    checks = by_name(found)

    roles = {one["role"]: one["identity"]["pid"] for one in checks["processes"]["facts"]["processes"]}
    assert set(roles) == {"guard", "shim", "supervisor", "command", "training"}
    assert roles["command"] == run.command
    assert roles["training"] != run.command, "the shell above it is not the training"
    assert {role: run.pid(role) for role in ("guard", "shim", "supervisor")}.items() <= roles.items()

    steps = checks["steps"]["facts"]
    first, last = steps["looks"]
    assert last["step"] > first["step"] >= 5
    assert last["told"] > (first["told"] or 0)
    assert steps["seconds"] >= 2
    assert steps["bytes"] == last["size"] - first["size"] > 0
    assert f"step {first['step']} -> {last['step']} in" in checks["steps"]["text"]

    away = checks["disconnect"]["facts"]
    assert away["step_after"] > away["step_at_hangup"] >= last["step"]
    assert len(away["logins"]) == 1
    login = away["logins"][0]
    assert login["watched"]
    assert login["terminal"].startswith("/dev/pts/")
    assert len(login["members"]) == 2
    assert all(f"tty={login['terminal']} " in line for line in login["members"]), "they had that terminal"
    assert not [pid for pid in pids_in(login["members"]) if alive(pid)]
    assert login["killed_later"] == login["left"] == []
    assert sorted(pids_in(away["after"])) == sorted(roles.values())

    folder = Path(found["evidence"])
    assert kept(run) == [folder]
    assert json.loads((folder / "facts.json").read_bytes()) == found
    one, two = (read(folder / f"tail-{number}.log") for number in (1, 2))
    assert one.endswith(f"step: {first['step']},".encode() + one.rpartition(f"step: {first['step']},".encode())[2])
    assert two[: len(one)] == one
    assert len(two) - len(one) == steps["bytes"]
    assert f"step: {last['step']},".encode() in two
    lines = [read(folder / f"processes-{when}.txt").decode().splitlines() for when in ("before", "after")]
    assert lines == [away["before"], away["after"]]
    stable = [[word for line in part for word in line.split() if not word.startswith("state=")] for part in lines]
    assert stable[0] == stable[1]
    assert all(" tty=- " in line for line in lines[0])
    assert b"step: " in read(folder / "terminal.txt")
    after = sorted(path for path in run.folder.rglob("*") if path.is_file() and folder not in path.parents)
    assert [path for path in after if path not in before and path.name != "metrics.db-journal"] == []


def test_the_lines_for_people_and_nothing_left(start: Start, runs: Runs) -> None:
    start("night", *toy("--steps", 3000), log="step: 5,")
    words = ["overnight", "check", "night", "--interval", "1"]
    check = subprocess.Popen(words, env=runs.env, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    said = check.communicate(timeout=60)[0].splitlines()
    assert check.returncode == 0, said
    assert [line.split()[:2] for line in said[:-1]] == [["ok", name] for name in NAMES]
    assert "lives, grows and survives a logout; evidence in /" in said[-1]
    assert left_by(check.pid) == []


def test_start_files_that_leave_something_in_the_background(
    start: Start, runs: Runs, start_files: Callable[..., None]
) -> None:
    start_files("setsid sleep 1000 > /dev/null 2>&1 < /dev/null &\n")
    start("night", *toy("--steps", 3000), log="step: 5,")
    words = ["overnight", "check", "night", "--interval", "1", "--json"]
    check = subprocess.Popen(words, env=runs.env, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    found = json.loads(check.communicate(timeout=60)[0])
    assert check.returncode == 0, found
    assert len(by_name(found)["disconnect"]["facts"]["logins"][0]["killed_later"]) == 1
    assert left_by(check.pid) == []


def test_a_shell_of_the_user_that_shows_nothing(start: Start, runs: Runs, start_files: Callable[..., None]) -> None:
    if Path(pwd.getpwuid(os.geteuid()).pw_shell).name != "bash":
        pytest.skip("the login shell of this user is not bash")
    start_files("exit 3\n", ".bash_profile")
    start("night", *toy("--steps", 3000), log="step: 5,")
    code, found = checked(runs, "night", "--interval", "1")
    assert code == 0, found
    logins = by_name(found)["disconnect"]["facts"]["logins"]
    assert [(Path(one["shell"]).name, one["watched"]) for one in logins] == [("bash", False), ("sh", True)]


# -- it does not hold --------------------------------------------------------------------------------------------------


def test_a_stopped_run_fails_at_once(start: Start, runs: Runs) -> None:
    run = start("night", *toy("--steps", 3000, "--handle", "int"), log="step: 5,")
    assert run.stop().returncode == 0
    began = time.monotonic()
    code, found = checked(runs, "night")
    assert time.monotonic() - began < QUICK_S
    assert (code, failed(found)) == (1, {*NAMES} - {"hours"})
    assert "it has ended: stopped (user)" in by_name(found)["processes"]["text"]
    assert all("not tried" in by_name(found)[name]["text"] for name in NAMES[1:4])
    assert json.loads((kept(run)[0] / "facts.json").read_bytes()) == found


NOT_NOW = {"backoff": "to be started again", "stopping": "being stopped", "starting": "not been started"}


def test_a_run_that_is_not_training_now(start: Start, runs: Runs) -> None:
    """A folder whose status says so: the states themselves are short."""
    run = start("old", *toy("--steps", 1))
    assert run.wait() == 0
    until(lambda: not run.left(), "the keepers leave")
    told = json.loads(read(run.folder / "status.json"))
    copy = runs.run("now")
    for state, words in NOT_NOW.items():
        shutil.copytree(run.folder, copy.folder)
        (copy.folder / "status.json").write_text(json.dumps({**told, "name": "now", "state": state}))
        began = time.monotonic()
        code, found = checked(runs, "now")
        shutil.rmtree(copy.folder)
        assert time.monotonic() - began < QUICK_S
        assert code == 1
        assert words in by_name(found)["processes"]["text"]


def test_a_stalled_run_fails_by_its_steps(start: Start, runs: Runs) -> None:
    start("night", *toy("--steps", 3000, "--hang-at", 6), log="step: 5,")
    code, found = checked(runs, "night", "--interval", "1")
    assert (code, failed(found)) == (1, {"steps", "disconnect"})
    assert "no new step within 1" in by_name(found)["steps"]["text"]
    assert "step 5 both times" in by_name(found)["steps"]["text"]
    assert "survived a hang-up" in by_name(found)["disconnect"]["text"]


def test_steps_slower_than_the_interval_are_named(start: Start, runs: Runs) -> None:
    run = start("night", *toy("--steps", 100, "--dt", 8), log="step: 1,")
    until(lambda: run.status["step"] == 1, "the supervisor has read it")
    code, found = checked(runs, "night", "--interval", "0.5s")
    assert (code, failed(found)) == (1, {"steps", "disconnect"})
    assert "printed about every 8 s, so check with --interval 16" in by_name(found)["steps"]["text"]


def test_a_log_without_steps_grows_but_is_no_proof(start: Start, runs: Runs) -> None:
    source = "import time\nfor n in range(10**6): print('busy', flush=True); time.sleep(0.05)"
    start("night", PYTHON, "-c", source, log="busy")
    code, found = checked(runs, "night", "--interval", "1")
    assert (code, failed(found)) == (1, {"steps", "disconnect"})
    text = by_name(found)["steps"]["text"]
    assert "no step was understood" in text
    assert "--pattern" in text
    assert by_name(found)["steps"]["facts"]["bytes"] > 0


def test_a_run_that_ends_while_it_is_checked(start: Start, runs: Runs) -> None:
    start("night", *toy("--steps", 60), log="step: 5,")
    began = time.monotonic()
    code, found = checked(runs, "night", "--interval", "40")
    assert time.monotonic() - began < 30
    assert (code, failed(found)) == (1, {"steps", "disconnect"})
    assert "it has ended: finished (completed)" in by_name(found)["steps"]["text"]


@pytest.mark.parametrize("tie", ["session", "output"])
def test_a_training_tied_to_a_terminal(start: Start, runs: Runs, work: Path, tie: str) -> None:
    """A run whose files name a training that was started by hand in a terminal, as those of a watched one do."""
    run = start("night", *toy("--steps", 3000), log="step: 3,")
    words = toy("--steps", 3000, "--signals", work / "signals")
    command = f"{' '.join(words)} > /dev/null; true" if tie == "session" else f"setsid {' '.join(words)} & wait"
    terminal = Terminal(["bash", "-c", command], env=runs.env, cwd=work)
    runs.terminals.append(terminal)
    pid = until(lambda: next((one.pid for one in all_processes() if one.words == tuple(words)), 0), "the other")
    ticks = int(read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[19])
    path = run.folder / "attempts/001/started.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "pid": pid, "start_ticks": ticks}))
    code, found = checked(runs, "night", "--interval", "1")
    assert (code, failed(found)) == (1, {"terminal"})
    text = by_name(found)["terminal"]["text"]
    assert ("its controlling terminal is /dev/pts/" if tie == "session" else "its output goes to /dev/pts/") in text
    assert "it stands below bash (pid" in text
    assert "overnight run -- COMMAND" in text
    assert f"the command (pid {pid})" in text
    assert "guard" not in text, "only the training is tied"


def test_a_starter_that_is_still_open_on_its_terminal(runs: Runs) -> None:
    """`run --follow` is the parent of the guard for as long as it is watched, and left with Ctrl-C."""
    view = runs.on_terminal("run", "--name", "night", "--follow", "--", *toy("--steps", 3000))
    runs.run("night").wrote("step: 5,")
    code, found = checked(runs, "night", "--interval", "1")
    assert (code, failed(found)) == (1, {"terminal"})
    assert "An open `overnight run` can be left with Ctrl-C" in by_name(found)["terminal"]["text"]
    view.type(b"\x03")
    view.wait()
    code, found = checked(runs, "night", "--interval", "1")
    assert (code, failed(found)) == (0, set()), found


def test_a_login_that_hurts_the_run(start: Start, runs: Runs, start_files: Callable[..., None]) -> None:
    """The disconnect check is able to fail: here the start files of the login shell kill the supervisor."""
    run = start("night", *toy("--steps", 3000), log="step: 5,")
    pid = run.pid("supervisor")
    start_files(f"kill -9 {pid}\n")
    code, found = checked(runs, "night", "--interval", "1")
    assert (code, failed(found)) == (1, {"disconnect"})
    assert f"supervisor (pid {pid}) did not live on as before" in by_name(found)["disconnect"]["text"]


@pytest.mark.parametrize("forged", [False, True])
def test_it_never_takes_another_process_for_the_run(start: Start, runs: Runs, work: Path, forged: bool) -> None:
    """All of the run is dead, a process with its command line and its environment lives (``forged``: with its pid)."""
    words = toy("--steps", 3000, "--signals", work / "signals")
    run = start("night", *words, log="step: 5,")
    environ = dict(
        word.partition("=")[::2] for word in next(one for one in run.left() if one.words == tuple(words)).environ
    )
    for role in ("guard", "shim", "supervisor"):
        os.kill(run.pid(role), signal.SIGKILL)
    os.kill(run.command, signal.SIGKILL)
    until(lambda: not run.left(), "all of it is dead")
    with (run.folder / "output.log").open("ab") as log:
        twin = subprocess.Popen(words, env=environ, stdout=log, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        until(lambda: run.log.count(b"step: 1,") == 2, "the twin prints into the log of the run")
        if forged:
            path = run.folder / "attempts/001/started.json"
            path.write_text(json.dumps({**json.loads(path.read_bytes()), "pid": twin.pid}))
        code, found = checked(runs, "night")
        assert alive(twin.pid)
    finally:
        twin.kill()
        twin.wait()
    assert code == 1
    checks = by_name(found)
    assert not checks["processes"]["ok"]
    assert "the command is not alive" in checks["processes"]["text"]
    assert checks["processes"]["facts"]["processes"] == []


def test_a_run_without_keepers_fails(start: Start, runs: Runs) -> None:
    run = start("night", *toy("--steps", 3000), log="step: 5,")
    for role in ("guard", "shim", "supervisor"):
        os.kill(run.pid(role), signal.SIGKILL)
    code, found = checked(runs, "night")
    assert code == 1
    assert "guard and shim are gone" in by_name(found)["processes"]["text"]
    assert alive(run.command)


# -- wrong use, and leaving --------------------------------------------------------------------------------------------


def test_an_interval_that_is_none(start: Start, runs: Runs) -> None:
    run = start("night", *toy("--steps", 3000), log="step: 1,")
    for interval in ("0", "-3", "nan", "soon", ""):
        done = runs.overnight("check", "night", f"--interval={interval}")
        assert (done.returncode, done.stdout) == (2, ""), interval
        assert "--interval cannot be" in done.stderr, interval
        assert not kept(run)


def test_no_such_run(runs: Runs) -> None:
    done = runs.overnight("check", "night")
    assert (done.returncode, done.stdout) == (102, "")
    assert runs.overnight("check", "--hurry").returncode == 2


@pytest.mark.parametrize("when", ["waiting", "logged in"])
def test_leaving_with_control_c(start: Start, runs: Runs, start_files: Callable[..., None], when: str) -> None:
    run = start("night", *toy("--steps", 3000), log="step: 5,")
    start_files("sleep 1000\n")  # as a login shell this never comes to show anything
    interval = "60" if when == "waiting" else "0.2"
    words = [sys.executable, "-m", "overnight", "check", "night", "--interval", interval]
    check = subprocess.Popen(words, env=runs.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert check.stdout is not None
    until(lambda: check.stdout is not None and "terminal" in check.stdout.readline(), "the first checks")
    if when == "logged in":
        until(lambda: any(words[0] == "sleep" for _, words in left_by(check.pid)), "the login")
    check.send_signal(signal.SIGINT)
    said = check.communicate(timeout=30)
    assert (check.returncode, said[1]) == (130, "")
    assert left_by(check.pid) == []
    assert not kept(run)
    assert run.status["state"] == "running"


def test_a_hang_up_that_check_itself_ignores_ends_its_login(start: Start, runs: Runs) -> None:
    """`nohup overnight check`: an ignored SIGHUP is inherited, and the login that is rehearsed must not have that."""
    start("night", *toy("--steps", 3000), log="step: 5,")
    ignoring = (
        "import signal, os, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); os.execvp(sys.argv[1], sys.argv[1:])"
    )
    words = [PYTHON, "-c", ignoring, "overnight", "check", "night", "--interval", "1", "--json"]
    done = subprocess.run(words, env=runs.env, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    found = json.loads(done.stdout)
    assert done.returncode == 0, found
    login = by_name(found)["disconnect"]["facts"]["logins"][0]
    assert (login["shell_exit"], login["killed_later"]) == (-signal.SIGHUP, [])

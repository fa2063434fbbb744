"""Acceptance 6 and rows A4-01, A4-04, A4-06 through real runs: messy logs and full disks.

Logs are truncated, replaced, torn, glued, endless or full of rubbish, and disks fill up. No crash, bounded memory, the
right records, and the training lives.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from runs import Home, Run, a_place, load, rebuild, rss_kib, until

SUPERVISOR_KIB = 100 * 1024

PIECES = """
import os, random, sys, time
random.seed(int(sys.argv[2]))
data = open(sys.argv[1], "rb").read()
at = 0
while at < len(data):
    n = random.choice((1, 2, 3, 7, 20, 100, 1000, max(1, len(data) // 20)))
    os.write(1, data[at : at + n])
    at += n
    time.sleep(0.001)
"""

REOPENING = """
import os, sys, time
# Writes by name, opening the log anew for each line, as logging's WatchedFileHandler does.
for step in range(1, 100001):
    handle = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(handle, b"step: %d, loss: 3.5, dt: 0.005\\n" % step)
    os.close(handle)
    time.sleep(0.005)
"""

UNFLUSHED = """
import sys, time
for step in range(1, 1000):
    print(f"step: {step}, loss: 3.5, dt: 1.0")
    time.sleep(1)
"""

ENDLESS = """
import os, sys, time
print("step: 1, loss: 3.5, dt: 0.1", flush=True)
left = int(sys.argv[1])
while left > 0:
    left -= os.write(1, b"x" * min(left, 1 << 20))
os.write(1, b"\\nstep: 2, loss: 3.4, dt: 0.1\\n")
time.sleep(1.5)
os.write(1, b"step: 3, loss: 3.3, dt: 0.1\\n")
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Home]:
    yield from a_place(tmp_path)


@contextlib.contextmanager
def small_disk(path: Path, megabytes: int) -> Iterator[Path]:
    """Mount a small tmpfs for a while."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "overnight-test", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(path: Path) -> None:
    """Write until the disk is full to the last byte."""
    with path.open("wb", buffering=0) as stream:
        for size in (1 << 20, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    stream.write(b"f" * size)


def printed(place: Home, data: bytes, *, seed: int = 1) -> Run:
    """Return an ended run whose training printed ``data`` in pieces of random sizes."""
    source = place.work / "said.bin"
    source.write_bytes(data)
    run = place.script("said", PIECES, str(source), str(seed))
    assert run.wait() == 0
    run.gone()
    run.clean_logs()
    assert (run.path / "output.log").read_bytes() == data
    return run


def pairs(run: Run) -> list[tuple[object, object]]:
    return [(one["step"], one["loss"]) for one in run.records()]


# -- what a line may look like -----------------------------------------------------------------------------------------

MESSY = {
    "crlf": (b"step: 1, loss: 3.5, dt: 0.1\r\nstep: 2, loss: 3.25, dt: 0.1\r\n", [(1, 3.5), (2, 3.25)]),
    "bars": (
        b"".join(b"\r%3d%%|#### | %d/20\r" % (5 * n, n) for n in range(20))
        + b"step: 1, loss: 3.5, dt: 0.1\n\r50%|##\rstep: 2, loss: 3.25, dt: 0.1",
        [(1, 3.5), (2, 3.25)],
    ),
    "ansi": (
        (
            b"\x1b[1mstep:\x1b[0m 1, \x1b[32mloss: 3.5\x1b[0m, dt: 0.1\n"
            b"\x1b]0;title\x07step: 2, loss: 3.25, dt: 0.1\x1b[K\n"
        ),
        [(1, 3.5), (2, 3.25)],
    ),
    "backspaces": (b"loading |\x08/\x08-\x08\\\x08\nstep: 1, loss: 3.5, dt: 0.1\n", [(1, 3.5)]),
    "invalid utf-8": (
        b"\xff\xfe caf\xe9\nstep: 1, loss: 3.5, dt: 0.1\n\xc3\nstep: 2, loss: 3.25, dt: 0.1\n",
        [(1, 3.5), (2, 3.25)],
    ),
    "nul bytes": (b"\0\0\0step: 1, loss: 3.5, dt: 0.1\n\0\nstep: 2, lo\0ss: 3.25, dt: 0.1\n", [(1, 3.5), (2, 3.25)]),
    "not numbers": (
        (
            b"step: 1, loss: abc, dt: 0.1\nstep: 2, loss: 3.25, dt: 0\n"
            b"step: 3, loss: 3.0, dt: 1e\nstep: 4, loss: 2.5, dt: 0.1\n"
        ),
        None,
    ),
}


@pytest.mark.parametrize("kind", MESSY)
def test_messy_lines_torn_anywhere(place: Home, kind: str) -> None:
    data, expected = MESSY[kind]
    found = pairs(printed(place, data))
    if expected is None:
        assert found[-1] == (4, 2.5)
    else:
        assert found == expected


def test_torn_lines_are_whole_records(place: Home, tmp_path: Path) -> None:
    """Pieces of 1 to 1,000 bytes: some 2,000 lines are torn at every place there is."""
    data = b"".join(b"step: %d, loss: %.4f, dt: 0.01, lr: 3e-4\n" % (n, 4 - n / 1000) for n in range(1, 2001))
    run = printed(place, data, seed=7)
    assert run.steps() == list(range(1, 2001))
    assert run.records() == rebuild(run, tmp_path)[0]


def test_glued_lines_give_records_and_no_action(place: Home) -> None:
    """Two unflushed writers glue lines together; a number that touches another record ends no run."""
    data = b"".join(b"step: %d, loss: 3.5, dt: 0.1\n" % n for n in range(1, 8))
    data += b"step: 8, loss: 3.5, dt: 0.1step: 9, loss: 3.5, dt: 0.1\n\n"
    data += b"step: 10, loss: 3step: 11, loss: 3.5, dt: 0.1\n"
    run = printed(place, data)
    steps = run.steps()
    assert steps[:7] == list(range(1, 8))
    assert {8, 9, 11} <= set(steps)
    assert [one for one in run.status()["verdicts"] if one["action"] in ("stop", "terminate")] == []


def test_two_writers_glue_and_nothing_crashes(place: Home) -> None:
    """PYTHONUNBUFFERED writes text and newline separately; two ranks on one log glue some of their lines."""
    toy = f"{sys.executable} {Path(__file__).parents[1] / 'toy.py'} --steps 400 --rate 200 --two-writes"
    run = place.start("ranks", "bash", "-c", f"{toy} --rank 0 & {toy} --rank 1; wait")
    assert run.wait() == 0
    run.gone()
    run.clean_logs()
    seen = {(one["rank"], one["step"]) for one in run.records()}
    assert len(seen) > 750  # some may be glued beyond reading
    assert [one for one in run.status()["verdicts"] if one["action"] != "note"] == []


# -- what a file may do ------------------------------------------------------------------------------------------------


def test_copytruncate_while_running(place: Home) -> None:
    run = place.toy("cut", "--steps", "2200", "--rate", "200", "--two-writes")
    log = run.path / "output.log"
    at = 0
    for _ in range(3):
        at = run.until(lambda seen, at=at: (seen.get("records") or 0) >= at + 50, "records")["records"]
        with log.open("r+b") as stream:
            stream.truncate(0)
    assert run.wait() == 0
    run.gone()
    steps = run.steps()
    assert len(steps) == len(set(steps))
    # What stood between the last read and the truncation is gone for everybody: a few lines each time, no more.
    assert len(steps) >= 2160, f"{len(steps)} of 2200"
    assert steps[-1] == 2200
    assert len({one["source"] for one in run.records()}) == 4
    run.clean_logs()


def test_truncated_and_grown_again_while_nobody_looks(place: Home) -> None:
    """The log is longer than before when the next supervisor comes: only the bytes tell that it is another."""
    log = place.work / "own.log"
    run = place.script("own", REOPENING, str(log), options=("--log", str(log)))
    run.until(lambda seen: (seen.get("records") or 0) >= 50, "records")
    supervisor = run.pid("supervisor")
    os.kill(supervisor, 9)
    with log.open("r+b") as stream:
        size = stream.seek(0, 2)
        stream.truncate(0)
        stream.write(b"".join(b"step: %d, loss: 1.5, dt: 0.005\n" % n for n in range(500000, 500000 + size // 10)))
    new = list(range(500000, 500000 + size // 10))
    until(lambda: new[-1] in run.steps(), "the new content", every_s=0.1)
    assert run.stop("--now").returncode == 0
    run.gone()
    steps = run.steps()
    assert [step for step in steps if step in set(new)] == new
    assert len(steps) == len(set(steps))
    run.clean_logs()


@pytest.mark.parametrize(
    "how",
    # What was deleted is followed by the same code, and with less to be lost: test_logfile.py has it in small.
    ["rename", pytest.param("unlink", marks=pytest.mark.long)],
)
def test_rename_or_unlink_and_create(place: Home, how: str) -> None:
    log = place.work / "turned.log"
    run = place.script("turned", REOPENING, str(log), options=("--log", str(log)))
    at = 0
    for n in range(3):
        at = run.until(lambda seen, at=at: (seen.get("step") or 0) >= at + 60, "records")["step"]
        until(log.exists, "the log is made anew", every_s=0.001)
        if how == "rename":
            log.rename(log.with_suffix(f".{n}"))
        else:
            log.unlink()
    run.until(lambda seen: (seen.get("step") or 0) >= at + 60, "records of the last file")
    assert run.stop("--now").returncode == 0
    run.gone()
    steps = [int(str(step)) for step in run.steps()]
    assert steps == sorted(set(steps))
    missing = set(range(1, steps[-1] + 1)) - set(steps)
    assert len(missing) <= (0 if how == "rename" else 6), missing
    assert len({one["source"] for one in run.records()}) >= 4
    run.clean_logs()


def test_renamed_log_is_drained_while_its_writer_goes_on(place: Home) -> None:
    """The training holds its descriptor: after a rename it writes on into the old file, and nothing of that is lost."""
    run = place.toy("drained", "--steps", "1200", "--rate", "200")
    log = run.path / "output.log"
    run.until(lambda seen: (seen.get("records") or 0) >= 60, "records")
    log.rename(run.path / "output.log.1")
    log.write_bytes(b"a stranger's line\n")
    run.until(lambda seen: (seen.get("records") or 0) >= 200, "records of the renamed file")
    supervisor = run.pid("supervisor")
    os.kill(supervisor, 9)  # and the next one finds it again, and is woken by it
    run.until(lambda seen: (seen.get("records") or 0) >= 300, "records after that", limit_s=10.0)
    assert run.wait() == 0
    run.gone()
    assert run.steps() == list(range(1, 1201))
    run.clean_logs()


def test_log_that_exists_is_appended_to_and_not_judged(place: Home) -> None:
    log = place.work / "train.log"
    old = b"".join(b"step: %d, loss: nan, dt: 0.1\n" % n for n in range(1, 50)) + b"half a li"
    log.write_bytes(old)
    run = place.toy("more", "--steps", "30", "--rate", "200", options=("--log", str(log)))
    assert run.wait() == 0
    run.gone()
    data = log.read_bytes()
    assert data.startswith(old)
    assert data.count(b"\n") > old.count(b"\n") + 29
    status = run.status()
    assert status["verdicts"] == []
    assert run.steps()[-29:] == list(range(2, 31))
    assert not (run.path / "output.log").exists()
    assert place.call("clean", "more").returncode == 0
    assert log.read_bytes() == data


# -- what is seen of it ------------------------------------------------------------------------------------------------


def test_a4_01_unflushed_line_is_seen_within_three_seconds(place: Home) -> None:
    began = time.monotonic()
    run = place.script("quiet", UNFLUSHED)
    until(
        lambda: "step: 1," in place.call("logs", "quiet").stdout,
        "the first line",
        limit_s=3.0 - (time.monotonic() - began),
    )
    seen = run.until(lambda seen: (seen.get("step") or 0) >= 3, "steps are read")
    assert seen["verdicts"] == []


def test_a4_04_frames_without_newline_move_the_step(place: Home) -> None:
    run = place.toy("bars", "--steps", "100000", "--rate", "20", "--cr", "--bars", "5")
    seen = run.until(lambda seen: (seen.get("step") or 0) >= 25, "step 25")
    run.until(lambda now: now["step"] > seen["step"], "it moves")
    assert b"\n" not in (run.path / "output.log").read_bytes()
    assert run.status()["verdicts"] == []


def test_a4_06_raw_log_is_byte_identical_and_views_do_not_crash(place: Home) -> None:
    data = (
        b"\rbar 1\rbar 2\n\x1b[31mred\x1b[0m\n\xff\xfe not unicode\n\0\n"
        + b"x" * (1 << 20)
        + b"\nstep: 1, loss: 3.5, dt: 0.1\n"
    )
    data += b"no end"
    run = printed(place, data * 2)
    raw = subprocess.run(
        [sys.executable, "-m", "overnight", "logs", run.name, "--raw"],
        env=place.env,
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert raw.returncode == 0, raw.stderr
    assert raw.stdout == data * 2
    shown = place.call("logs", run.name)
    assert shown.returncode == 0
    assert "Traceback" not in shown.stderr
    assert "\x1b" not in shown.stdout
    assert "\0" not in shown.stdout
    assert "red\n" in shown.stdout
    for form in (["status", run.name], ["ls"], ["status", run.name, "--json"]):
        assert place.call(*form).returncode == 0


def endless(place: Home, megabytes: int) -> None:
    run = place.script("endless", ENDLESS, str(megabytes << 20))
    supervisor = until(lambda: run.pid("supervisor"), "a supervisor")
    run.until(lambda seen: seen.get("step") == 2, "what comes behind it is read", limit_s=120.0)
    highest = rss_kib(supervisor, "VmHWM")
    assert run.wait() == 0
    assert highest < SUPERVISOR_KIB, f"{highest} KiB"
    assert pairs(run) == [(1, 3.5), (2, 3.4), (3, 3.3)]
    assert run.pid("supervisor") in (0, supervisor)
    run.clean_logs()


def test_a_line_of_20_megabytes(place: Home) -> None:
    endless(place, 20)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_line_of_200_megabytes(place: Home) -> None:
    endless(place, 200)


# -- full disks --------------------------------------------------------------------------------------------------------


def test_full_log_disk_leaves_the_training_alive(place: Home, tmp_path: Path) -> None:
    """The space that is kept ahead of the log carries the training over; status says what is wrong."""
    with small_disk(tmp_path / "small", 40) as disk:
        run = place.toy(
            "full", "--steps", "2600", "--rate", "200", "--two-writes", options=("--log", str(disk / "train.log"))
        )
        run.until(lambda seen: (seen.get("records") or 0) > 100, "records")
        fill(disk / "filler")
        at = run.snapshot()["records"]
        seen = run.until(lambda seen: seen["verdicts"], "an alert")
        (alert,) = seen["verdicts"]
        assert (alert["rule"], alert["severity"], alert["action"]) == ("disk_space", "warn", "alert")
        assert str(disk) in alert["text"]
        run.until(lambda seen: seen["records"] > at + 400, "it goes on")
        assert run.status()["state"] == "running"
        (disk / "filler").unlink()
        assert run.wait() == 0
        run.gone()
        assert run.steps() == list(range(1, 2601))
        assert run.records() == rebuild(run, tmp_path)[0]
        run.clean_logs()
        place.stop_all()


def test_full_home_disk_loses_no_record_and_no_end(tmp_path: Path) -> None:
    """The home is full for a while: the training ends meanwhile, and everything is written down when there is room."""
    with small_disk(tmp_path / "small", 48) as disk:
        log = tmp_path / "train.log"
        with contextlib.contextmanager(a_place)(disk) as place:
            steps = ["--steps", "100000", "--rate", "200", "--nan-at", "700", "--exit-at", "800", "--exit-code", "7"]
            options = ("--log", str(log), "--action", "nonfinite=alert")
            run = place.toy("full", *steps, options=options)
            run.until(lambda seen: (seen.get("records") or 0) > 100, "records")
            fill(disk / "filler")
            until(lambda: "longest step" in log.read_text(), "the training ends all the same")
            time.sleep(1.0)
            (disk / "filler").unlink()
            assert run.wait() == 100
            status = run.status()
            assert (status["cause"], status["exit_code"], status["step"]) == ("crash", 7, 800)
            assert [one["rule"] for one in status["verdicts"]] == ["nonfinite"]
            assert [one["step"] for one in run.facts("verdict")] == [700]
            run.gone()
            assert run.steps() == list(range(1, 801))
            run.clean_logs()
            assert load(run.path / "attempts/001/exit.json")["exit_code"] == 7


def test_full_home_disk_does_not_delay_a_stop(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", 48) as disk:
        log, signals = tmp_path / "train.log", tmp_path / "signals"
        with contextlib.contextmanager(a_place)(disk) as place:
            steps = [
                "--steps",
                "100000",
                "--rate",
                "100",
                "--nan-at",
                "400",
                "--handle",
                "term",
                "--signals",
                str(signals),
            ]
            run = place.toy("full", *steps, options=("--log", str(log)))
            run.until(lambda seen: (seen.get("records") or 0) > 50, "records")
            fill(disk / "filler")
            until(lambda: "longest step" in log.read_text(), "the NaN ends it")
            (disk / "filler").unlink()
            assert run.wait() == 104
            assert [line.split()[0] for line in signals.read_text().splitlines()] == ["SIGTERM"]
            assert run.status()["cause"] == "nonfinite"
            run.clean_logs()

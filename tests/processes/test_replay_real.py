"""A replay of real runs finds what their supervisors found: ended, live, killed, watched, with a changed log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from runs import TOY, Home, Run, a_place, until

pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Home]:
    yield from a_place(tmp_path)


def replay(run: Run, *words: str) -> dict[str, Any]:
    """Return what `overnight replay NAME --json` prints."""
    said = run.home.call("replay", run.name, "--json", *words)
    assert said.returncode == 0, said.stderr
    found: dict[str, Any] = json.loads(said.stdout)
    return found


def told_then(run: Run) -> list[tuple[object, ...]]:
    """Return the verdicts of the journal on records, in their order."""
    names = ("attempt", "source", "offset", "part", "rule", "severity", "action", "step", "text")
    return [tuple(one[name] for name in names) for one in run.facts("verdict") if one["offset"] >= 0]


def told_now(found: dict[str, Any]) -> list[tuple[object, ...]]:
    """Return the verdicts of a replay on records, in their order."""
    names = ("attempt", "source", "offset", "part", "rule", "severity", "action", "step", "text")
    return [tuple(one[name] for name in names) for one in found["verdicts"] if one["offset"] >= 0]


def hows(found: dict[str, Any]) -> list[str]:
    return [one["night"]["how"] for one in found["verdicts"]] + [one["how"] for one in found["night"]["missing"]]


def test_a_run_that_a_rule_ended(place: Home) -> None:
    run = place.toy("sick", "--steps", "200", "--dt", "0.02", "--nan-at", "30", "--handle", "int")
    assert run.wait() == 104
    found = replay(run)
    assert told_now(found) == told_then(run) != []
    assert hows(found) == ["same"]
    assert (found["outcome"]["state"], found["outcome"]["cause"]) == ("stopped", "nonfinite")
    assert found["end"]["step"] == 30
    assert found["changed"] == {}
    said = place.call("replay", "sick").stdout
    assert "sick: nonfinite would have ended it at step 30" in said
    assert "told that night, too" in " ".join(said.split())


def test_attempts_and_a_supervisor_that_was_killed(place: Home) -> None:
    switches = ("--steps", "100", "--dt", "0.04", "--kill-self", "HUP", "--kill-self-at", "40")
    run = place.toy(
        "again", *switches, "--diverge-at", "20",
        options=("--restarts", "1", "--backoff", "0.2s", "--max-loss", "20", "--action", "divergence=alert"),
    )  # fmt: skip
    until(lambda: "step: 10," in run.log(), "some steps")
    run.kill("supervisor")
    assert run.wait() == 106
    found = replay(run)
    assert told_now(found) == told_then(run)
    assert [one["attempt"] for one in found["verdicts"]] == [1, 2]
    assert hows(found) == ["same", "same"]
    assert found["end"] is None
    assert found["read"]["steps"] == 78
    # under other rules, each attempt is judged for itself, and the first one would have been the end
    ended = replay(run, "--action", "divergence=terminate", "--max-loss", "30")
    assert [one["ends"] for one in ended["verdicts"]] == [True, True]
    assert [one["after_end"] for one in ended["verdicts"]] == [False, True]
    assert ended["changed"]["max_loss"] == [20.0, 30.0]
    assert ended["end"]["attempt"] == 1
    assert ended["end"]["saved"]["steps"] == 78 - ended["end"]["step"]


def test_a_hang_is_judged_by_the_clock_of_the_journal(place: Home) -> None:
    run = place.toy("hangs", "--steps", "100", "--dt", "0.05", "--hang-at", "30",
                    options=("--stall", "12s", "--grace", "1s"))  # fmt: skip
    assert run.wait(60) == 104
    then = [(one["rule"], one["action"], one["part"]) for one in run.facts("verdict")]
    found = replay(run)
    assert [(one["rule"], one["action"], one["part"]) for one in found["verdicts"]] == then != []
    assert set(hows(found)) == {"same"}
    assert found["end"]["rule"] == "stall"
    assert not found["end"]["again"]
    assert replay(run, "--stall", "10m")["end"] is None


def test_a_run_that_goes_on_is_judged_as_far_as_it_has_come(place: Home) -> None:
    run = place.script(
        "live",
        "import time\nfor n in range(30): print(f'step: {n}, loss: {2 - n / 100:.2f}, dt: 0.01', flush=True)\n"
        "print('step: 30, loss: 1', end='', flush=True)\ntime.sleep(60)\n",
    )
    until(lambda: run.log().endswith("loss: 1"), "half a line")
    found = replay(run)
    assert found["live"]
    assert found["outcome"] is None
    assert found["read"]["step"] == 29  # the half line may be the begin of 1.7
    assert found["end"] is None
    assert "not over yet" in place.call("replay", "live").stdout
    assert run.stop("--now").returncode == 0


def test_changes_made_on_the_way_are_in_force(place: Home) -> None:
    run = place.toy("changed", "--steps", "60", "--dt", "0.05", "--handle", "int")
    until(lambda: "step: 5," in run.log(), "some steps")
    assert place.call("set", "changed", "--max-steps", "30").returncode == 0
    assert run.wait() == 105
    found = replay(run)
    assert found["rules"]["max_steps"] == 30
    assert hows(found) == ["same"]
    assert replay(run, "--max-steps", "20")["verdicts"][0]["night"]["how"] == "earlier"
    later = replay(run, "--max-steps", "1000")
    assert hows(later) == ["gone"]


@pytest.mark.parametrize("how", ["emptied", "removed", "rotated", "replaced"])
def test_a_log_that_is_not_what_it_was(place: Home, how: str) -> None:
    run = place.toy("sick", "--steps", "200", "--dt", "0.02", "--nan-at", "30", "--handle", "int")
    assert run.wait() == 104
    log = run.path / "output.log"
    if how == "removed":
        log.unlink()
        said = place.call("replay", "sick")
        assert said.returncode == 1
        assert f"the log of sick, {log}, is gone" in said.stderr
        return
    if how == "replaced":  # by a longer one: only its bytes tell
        log.write_text("".join(f"step: {n}, loss: 2, dt: 0.1\n" for n in range(5000)))
    elif how == "rotated":
        log.rename(log.with_suffix(".log.1"))
        log.write_text("step: 1, loss: 2, dt: 0.1\n")
    else:
        os.truncate(log, 0)
    found = replay(run)
    assert found["end"] is None
    assert hows(found) == ["elsewhere"]
    assert "stall" in found["unjudged"]
    assert "time marks" in found["unjudged"]["stall"]
    said = " ".join(place.call("replay", "sick").stdout.split())
    assert "in a part of the log that is not here any more" in said
    if how == "emptied":
        assert "as it is now, which is empty" in said
    else:  # the answer is not that it would have gone on
        assert said.startswith("sick: nothing that is kept ends it; that night nonfinite did")
    assert "no rule would have ended it" not in said
    loose = place.call("replay", "sick", "--action", "nonfinite=note").stdout
    assert "that night nonfinite did" not in loose


def test_a_log_that_was_rotated_while_the_run_went_on(place: Home) -> None:
    run = place.script(
        "rotates",
        "import os, sys, time\n"
        "for n in range(60):\n"
        "    if n == 30:\n"
        "        os.rename(sys.argv[1], sys.argv[1] + '.1')\n"
        "        handle = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n"
        "        os.dup2(handle, 1)\n"
        "    loss = 'nan' if n in (20, 50) else '2'\n"
        "    print(f'step: {n}, loss: {loss}, dt: 0.05', flush=True)\n"
        "    time.sleep(0.05)\n",
        str(place.work / "train.log"),
        options=("--log", str(place.work / "train.log"), "--action", "nonfinite=alert"),
    )
    assert run.wait() == 0
    found = replay(run)
    assert found["read"]["records"] == 30
    first = found["verdicts"][0]
    # The rule tells once a stretch, and what came before the rotation is gone: now it is step 50 that is told.
    assert (first["step"], first["night"]["how"]) == (50, "new")
    assert [(one["step"], one["how"]) for one in found["night"]["missing"]] == [(20, "elsewhere")]


def test_a_watched_run(place: Home) -> None:
    log = place.work / "train.log"
    with log.open("ab") as stream:
        stream.write(b"step: 0, loss: nan, dt: 1\n")
        stream.flush()
        words = [sys.executable, str(TOY), "--steps", "40", "--dt", "0.05", "--nan-at", "30", "--handle", "int"]
        process = subprocess.Popen(words, stdout=stream, stderr=stream, stdin=subprocess.DEVNULL, env=place.env)
    try:
        until(lambda: b"step: 2," in log.read_bytes(), "a step")
        assert place.call("watch", "--pid", str(process.pid), "--name", "w").returncode == 0
        process.wait(30)
        run = Run(place, "w")
        run.until(lambda one: one["state"] == "stopped", "its end")
        found = replay(run)
        assert told_now(found) == told_then(run) != []
        assert set(hows(found)) == {"same"}
        assert found["log"]["from_byte"] >= 0
    finally:
        process.kill()
        process.wait()


def test_a_folder_or_the_begin_of_a_name_will_do(place: Home) -> None:
    run = place.toy("a-long-name", "--steps", "5", "--dt", "0.01")
    assert run.wait() == 0
    for what in ("a-lo", str(run.path)):
        said = place.call("replay", what, "--json")
        assert said.returncode == 0, said.stderr
        assert json.loads(said.stdout)["kind"] == "run"
    (place.work / "a-long-name").write_text("step: 1, loss: nan\n")
    assert replay(run)["kind"] == "run"  # a run of just that name comes first
    assert json.loads(place.call("replay", "./a-long-name", "--json").stdout)["kind"] == "log"
    damaged = run.path / "run.json"
    damaged.unlink()
    said = place.call("replay", "a-long-name")
    assert said.returncode == 1
    assert "run.json is gone" in said.stderr
    assert "Traceback" not in said.stderr


def test_a_reader_that_leaves_ends_it_quietly(place: Home) -> None:
    run = place.toy("quiet", "--steps", "5", "--dt", "0.01")
    assert run.wait() == 0
    words = [sys.executable, "-m", "overnight", "replay", "quiet", "--json"]
    with subprocess.Popen(words, env=place.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        time.sleep(0)
        assert process.wait(30) in (0, 141, -signal.SIGPIPE)
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()


PEAK = """
import re, sys
from overnight.cli import main
main(["replay", sys.argv[1], "--json"])
print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""


def test_memory_does_not_grow_with_the_log(place: Home) -> None:
    peaks = []
    for lines in (20_000, 600_000):
        log = place.work / f"{lines}.log"
        with log.open("w") as stream:
            for n in range(lines):
                loss = (
                    "nan" if n % 50 == 49 else f"{2 + n % 97 / 100:.2f}"
                )  # a verdict for each stretch of rising steps
                stream.write(f"step: {n % 50}, loss: {loss}, dt: 0.1\n")
        said = subprocess.run(
            [sys.executable, "-c", PEAK, str(log)], env=place.env, cwd=place.work, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        document, peak = said.stdout.splitlines()
        found = json.loads(document)
        assert found["read"]["records"] == lines
        assert sum(one["verdicts"] for one in found["counts"]) >= lines // 50
        assert len(found["verdicts"]) <= 501
        peaks.append(int(peak))
    assert peaks[1] < peaks[0] + 12_000  # KiB

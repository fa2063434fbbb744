"""D1-03, D1-01: a script with one file, or two in rotation, would save its NaN over the last healthy one at the signal.

Without a word to the script nothing can keep it from that but its end; a save that goes on is left to end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from looking import Run, until

pytestmark = pytest.mark.timeout(60)

Start = Callable[..., Run]
BACK = ("--action", "nonfinite=rollback", "--rollback-steps", 1, "--backoff", "0.2", "--checkpoints", "ckpt")

WRITE = """
import json, struct
def write(path, step, value):
    head = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
                       "__metadata__": {"step": str(step)}}).encode()
    with open(path, "wb") as stream:
        stream.write(struct.pack("<Q", len(head)) + head + struct.pack("<4f", *[value] * 4))
"""

TRAINER = (
    WRITE
    + """
import json, os, struct, sys, time
keep, nan_at, last, patient = int(sys.argv[1]), int(sys.argv[2]), 60, sys.argv[3:] == []
given, first = os.environ.get("OVERNIGHT_CHECKPOINT"), os.environ["OVERNIGHT_ATTEMPT"] == "1"
def save(step, value):
    write("ckpt/model.safetensors" if keep == 1 else f"ckpt/model-{step}.safetensors", step, value)
    for name in sorted(os.listdir("ckpt"), key=lambda one: os.stat(f"ckpt/{one}").st_mtime)[:-keep]:
        os.unlink(f"ckpt/{name}")
def told(step):  # as the journal has it
    while True:
        with open(os.environ["OVERNIGHT_RUN_DIR"] + "/journal.jsonl") as stream:
            facts = [json.loads(line) for line in stream if line.endswith("\\n")]
        if any(one.get("fact") == "saved" and one.get("path") and one["step"] == step for one in facts):
            return
        time.sleep(0.02)
def read():
    with open(given, "rb") as stream:
        size, = struct.unpack("<Q", stream.read(8))
        return int(json.loads(stream.read(size))["__metadata__"]["step"])
os.makedirs("ckpt", exist_ok=True)
step = read() if given else 0
bad = False
try:
    while step < last:
        step += 1
        bad = first and step >= nan_at
        print(f"step: {step}, loss: {'nan' if bad else 4 * 0.99 ** step}", flush=True)
        if step % 10 == 0:
            save(step, float("nan") if bad else 1.0)
            if first and patient and not bad:
                told(step)
        time.sleep(0.05)
except KeyboardInterrupt:
    save(step, float("nan") if bad else 1.0)
"""
)


@pytest.mark.parametrize(("keep", "nan_at", "step"), [(1, 25, 20), (2, 40, 30)], ids=["one file", "two in rotation"])
def test_the_last_healthy_save_survives_the_end_of_the_attempt(
    start: Start, work: Path, keep: int, nan_at: int, step: int
) -> None:
    (work / "train.py").write_text(TRAINER)
    run = start("only", sys.executable, "train.py", keep, nan_at, flags=BACK)
    assert run.wait() == 0
    (resume,) = run.facts("resume")
    assert (resume["step"], resume["rollback"]) == (step, "nonfinite")
    assert any("the last healthy one" in one["text"] for one in run.facts("note"))


def test_the_first_save_is_protected_from_its_end_on(start: Start, work: Path) -> None:
    """Nobody has yet waited to see whether more belongs to it."""
    (work / "train.py").write_text(TRAINER.replace("% 10", "% 20"))
    run = start("first", sys.executable, "train.py", 1, 28, "hasty", flags=BACK)
    assert run.wait() == 0
    (resume,) = run.facts("resume")
    assert (os.path.basename(resume["path"]), resume["rollback"]) == ("model.safetensors", "nonfinite")
    assert any("the last healthy one" in one["text"] for one in run.facts("note"))


@pytest.mark.parametrize("how", [pytest.param("--nonfinite-signal", marks=pytest.mark.long), "--stop-signal", "asks"])
def test_who_has_chosen_a_signal_or_asks_before_it_saves_gets_it(start: Start, work: Path, how: str) -> None:
    (work / "train.py").write_text(TRAINER + (ASKS if how == "asks" else ""))
    flags = BACK if how == "asks" else (*BACK, how, "int")
    run = start("chosen", sys.executable, "train.py", 1, 25, flags=flags)
    assert run.wait() == 104
    assert "no healthy save" in run.status["cause_text"]


ASKS = """
def asked():
    with open(os.environ["OVERNIGHT_RUN_DIR"] + "/attempts/001/stop.json") as stream:
        return json.load(stream)["save"]
"""


def test_who_only_speaks_of_it_is_ended_at_once(start: Start, work: Path) -> None:
    (work / "train.py").write_text(TRAINER + "# not stop.json, but\nhistory = 'early_stop.json'\n")
    run = start("speaks", sys.executable, "train.py", 1, 25, flags=BACK)
    assert run.wait() == 0
    assert any("the last healthy one" in one["text"] for one in run.facts("note"))


WAITS = (
    WRITE
    + """
import os, time
os.makedirs("ckpt", exist_ok=True)
for step in range(1, 26):
    print(f"step: {step}, loss: {4 * 0.99 ** step}", flush=True)
    if step == 20:
        write("ckpt/model.safetensors", step, 1.0)
    time.sleep(0.03)
while not os.path.exists("go"):
    print("step: 25, loss: 3.1", flush=True)
    time.sleep(0.2)
raise SystemExit(7)
"""
)


def write_unseen(work: Path, place: Path) -> None:
    """Write NaN into the only save so that nobody is told: through another name for the file, in another folder."""
    other = place / "other"
    os.link(work / "ckpt/model.safetensors", other)
    made: dict[str, Callable[[Path, int, float], None]] = {}
    exec(WRITE, made)
    made["write"](other, 24, float("nan"))
    other.unlink()


def checked(run: Run) -> list[bool]:
    """Return what was told of the content of saves, in order."""
    return [one["valid"] for one in run.facts("checked")]


def test_what_the_search_finds_to_be_bad_is_not_offered_any_more(start: Start, work: Path, tmp_path: Path) -> None:
    (work / "train.py").write_text(WAITS)
    run = start(
        "unseen", sys.executable, "train.py", flags=("--restarts", 1, "--backoff", 0.2, "--checkpoints", "ckpt")
    )
    until(lambda: checked(run) == [True], "the save is looked at")
    write_unseen(work, tmp_path)
    (work / "go").touch()
    assert run.wait() == 100
    seen = run.status
    assert "no save is left" in seen["cause_text"]
    assert seen["checkpoint"] is None
    assert [(one["rule"], one["action"]) for one in seen["verdicts"]] == [("checkpoint", "alert")]
    assert "NaN" in seen["verdicts"][0]["text"]


def test_what_was_written_while_no_supervisor_lived_is_looked_at_anew(start: Start, work: Path, tmp_path: Path) -> None:
    (work / "train.py").write_text(WAITS)
    run = start("unseen", sys.executable, "train.py", flags=("--checkpoints", "ckpt"))
    until(lambda: checked(run) == [True], "the save is looked at")
    write_unseen(work, tmp_path)
    path = work / "ckpt/model.safetensors"
    os.utime(path, (path.stat().st_mtime + 60,) * 2)  # as if a minute had passed since
    with contextlib.suppress(ProcessLookupError):
        os.kill(run.pid("supervisor"), signal.SIGKILL)
    until(lambda: checked(run) == [True, False], "it is looked at again")
    assert run.facts("saved")[-1]["step"] is None
    assert run.status["checkpoint"] is None
    run.stop("--now")

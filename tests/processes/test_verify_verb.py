"""The verb ``verify-resume``: what it runs, tells, refuses and leaves. What a proof concludes is tested elsewhere.

The trainings here are of the standard library and numpy, and take milliseconds a step: a proof starts six of them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from overnight.processes import all_pids, environ
from overnight.resumeproof.minding import LOCK, Minder

LIMIT_S = 170.0

SCRIPT = """\
import argparse, os, signal, time
import numpy as np

p = argparse.ArgumentParser()
p.add_argument("--steps", type=int, default=100000)
p.add_argument("--every", type=int, default=5)
p.add_argument("--out", default="out")
p.add_argument("--resume")
p.add_argument("--dt", type=float, default=0.02)
p.add_argument("--deaf", action="store_true")
p.add_argument("--forget", action="store_true")
p.add_argument("--crash-at", type=int)
p.add_argument("--nan-at", type=int)
p.add_argument("--scribble")
o = p.parse_args()
w, step = np.ones(4), 0
if o.resume:
    found = np.load(o.resume)
    w, step = found["w"], int(found["step"])
    if o.forget:
        w = w * 1.5
asked = []
if not o.deaf:
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))


def save():
    os.makedirs(o.out, exist_ok=True)
    np.savez(f"{o.out}/.tmp.npz", w=w, step=step)
    os.replace(f"{o.out}/.tmp.npz", f"{o.out}/ckpt_{step:05d}.npz")


while step < o.steps:
    step += 1
    if step == o.crash_at:
        raise RuntimeError("broken on purpose")
    if step == 3 and o.scribble:
        open(o.scribble, "w").write("over")
    loss = float("nan") if step == o.nan_at else float((w**2).sum())
    print(f"step {step} loss {loss!r}", flush=True)
    w = w - 0.01 * w * np.cos(step)
    if step % o.every == 0 or asked:
        save()
    if asked:
        break
    time.sleep(o.dt)
save()
"""
RESUME = ("--resume-args", "--resume {checkpoint}")


class Verb:
    """The verb in a folder with a training script, and a home beside it."""

    def __init__(self, root: Path) -> None:
        self.here, self.home, self.tmp = root / "project", root / "home", root / "t"
        for folder in (self.here, self.tmp):
            folder.mkdir()
        (self.here / "train.py").write_text(SCRIPT)
        self.environ = {**os.environ, "OVERNIGHT_HOME": str(self.home), "TMPDIR": str(self.tmp)}

    def words(self, *words: str, script: tuple[str, ...] = ()) -> list[str]:
        """Return a command line of the verb."""
        command = (sys.executable, "train.py", *script)
        return [sys.executable, "-m", "overnight", "verify-resume", *words, "--", *command]

    def call(self, *words: str, script: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        return subprocess.run(
            self.words(*words, script=script), cwd=self.here, env=self.environ, capture_output=True, text=True,
            timeout=LIMIT_S, check=False,
        )  # fmt: skip

    def prove(self, *words: str, script: tuple[str, ...] = ()) -> tuple[int, dict[str, Any], str]:
        """Run it with --json; return exit code, document and stderr, and see that nothing is left behind."""
        done = self.call("--json", *words, script=script)
        assert done.stdout, done.stderr
        assert "\nTraceback" not in f"\n{done.stderr}"  # that of a training stands behind a bar
        self.nothing_left()
        return done.returncode, json.loads(done.stdout), done.stderr

    def nothing_left(self) -> None:
        """Assert that no process of any part lives and that no working copy is there."""
        mark = str(self.home)
        living = [pid for pid in all_pids() if (environ(pid) or {}).get("OVERNIGHT_RUN_DIR", "").startswith(mark)]
        assert not living
        assert not list(self.tmp.glob("ov-*"))


@pytest.fixture
def verb(tmp_path: Path) -> Verb:
    return Verb(tmp_path)


def variant(document: dict[str, Any], how: str) -> dict[str, Any]:
    """Return one variant of a proof."""
    (found,) = [one for one in document["variants"] if one["how"] == how]
    return dict(found)


def test_an_exact_resume_passes_and_all_of_it_is_kept(verb: Verb) -> None:
    saved = verb.here / "mine" / "ckpt_00001.npz"
    saved.parent.mkdir()
    saved.write_bytes(b"the user's own")
    code, told, stderr = verb.prove("--stop-at", "12", "--until", "20", *RESUME)
    assert code == 0, (told, stderr)
    assert told["passed"] is True
    assert told["refused"] is None
    assert told["untouched"] is True
    assert (told["stop_at"], told["until"]) == (12, 20)
    names = ["unbroken-1", "unbroken-2", "stopped", "stopped-resumed", "killed", "killed-resumed"]
    assert [part["name"] for part in told["parts"]] == names
    graceful, killed = variant(told, "graceful"), variant(told, "kill")
    regular = graceful["resumed_from"]["step"] % 5 == 0  # a slow machine's signal may come as late as that
    assert graceful["saved_on_signal"] is (None if regular else True)
    assert graceful["exact"] is False
    assert graceful["resumed_from"]["step"] == graceful["stopped_at"] >= 12
    assert killed["resumed_from"]["step"] in (10, 15)
    assert killed["saved_on_signal"] is None
    for one in (graceful, killed):
        assert one["compared"] == one["equal"] > 0
    assert any(state["equal"] for state in killed["states"])
    evidence = Path(told["evidence"])
    assert evidence.parent == verb.home / "proofs"
    assert json.loads((evidence / "proof.json").read_text()) == told
    assert (evidence / "proof.txt").read_text().startswith("PASS")
    assert "step" in (evidence / "series" / "killed.csv").read_text().splitlines()[0]
    assert not (verb.here / "out").exists()
    assert saved.read_bytes() == b"the user's own"
    for name in names:
        assert f"{name}:" in stderr
    status = subprocess.run(
        [sys.executable, "-m", "overnight", "status", "killed-resumed", "--json"], capture_output=True, text=True,
        env={**verb.environ, "OVERNIGHT_HOME": str(evidence)}, check=True,
    )  # fmt: skip
    assert json.loads(status.stdout)["step"] >= 20


def test_a_wrong_resume_fails_with_the_first_difference(verb: Verb) -> None:
    done = verb.call("--quiet", "--stop-at", "12", "--until", "18", *RESUME, script=("--forget",))
    assert done.returncode == 1
    assert not done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("FAIL")
    assert max(map(len, lines)) <= 80
    (evidence,) = (verb.home / "proofs").iterdir()
    told = json.loads((evidence / "proof.json").read_text())
    killed = variant(told, "kill")
    assert killed["passed"] is False
    assert killed["metric"] == "loss"
    assert killed["step"] == killed["resumed_from"]["step"] + 1
    assert killed["unbroken"] != killed["resumed"]
    verb.nothing_left()


def test_a_script_that_is_deaf_to_signals_is_told_so_and_one_that_saves_late_is_waited_for(verb: Verb) -> None:
    code, told, _ = verb.prove("--stop-at", "10", "--until", "16", *RESUME, script=("--deaf", "--every", "10"))
    graceful, killed = variant(told, "graceful"), variant(told, "kill")
    assert graceful["saved_on_signal"] is False
    assert killed["resumed_from"]["step"] == 10  # its first save was not over when step 10 was seen
    assert killed["passed"] is True
    assert code == 0


def test_a_kill_before_the_first_save_says_when_there_is_one(verb: Verb) -> None:
    code, told, _ = verb.prove("--stop-at", "5", "--until", "14", *RESUME, script=("--every", "10"))
    assert code == 1
    assert told["passed"] is False
    killed = variant(told, "kill")
    assert killed["cause"] == "nothing_saved"
    assert killed["resumed_from"] is None
    assert "--stop-at 11" in killed["text"] or "--stop-at 12" in killed["text"]
    assert variant(told, "graceful")["passed"] is True  # what happened is told all the same


def test_a_short_script_sets_the_steps_itself_unless_they_were_asked_for(verb: Verb) -> None:
    code, told, _ = verb.prove(*RESUME, script=("--steps", "12", "--every", "2"))
    assert code == 0, told
    assert (told["stop_at"], told["until"]) == (8, 12)
    assert any("ends at step 12" in note for note in told["notes"])
    code, told, stderr = verb.prove("--until", "40", *RESUME, script=("--steps", "12"))
    assert code == 2
    assert told["passed"] is None
    assert "--until 12" in told["refused"]
    assert told["refused"] in stderr


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        (("--crash-at", "4"), 1, "broken on purpose"),
        (("--scribble", "/etc/overnight-was-here"), 2, "{workdir}"),
    ],
)
def test_a_run_that_fails_by_itself_ends_the_proof_with_the_reason(
    verb: Verb, script: tuple[str, ...], code: int, said: str
) -> None:
    got, told, stderr = verb.prove("--stop-at", "6", "--until", "9", *RESUME, script=script)
    assert got == code, stderr
    assert told["passed"] is None
    assert said in told["refused"]
    assert not Path("/etc/overnight-was-here").exists()


def test_what_prints_no_steps_is_refused_with_the_way_to_teach_it(verb: Verb) -> None:
    (verb.here / "train.py").write_text("print('hello')\n")
    code, told, stderr = verb.prove()
    assert code == 2
    assert "overnight read unbroken-1" in told["refused"]
    assert "--pattern" in told["refused"]
    assert "| hello" in stderr


@pytest.mark.long  # a proof of six runs for one note
def test_a_loss_that_is_nan_without_any_stop_is_said(verb: Verb) -> None:
    _, told, _ = verb.prove("--stop-at", "8", "--until", "12", *RESUME, script=("--nan-at", "6"))
    assert any("unbroken" in note and "NaN" in note for note in told["notes"])


def test_a_second_start_that_fails_is_a_failure_and_no_refusal(verb: Verb) -> None:
    words = ("--stop-at", "8", "--until", "12", "--resume-args", "--resume {checkpoint} --wrong")
    code, told, _ = verb.prove(*words)
    assert code == 1
    assert told["refused"] is None
    assert {one["cause"] for one in told["variants"]} == {"load_failure"}
    assert "--wrong" in variant(told, "kill")["text"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_break_ends_the_part_and_removes_the_copies(verb: Verb, number: signal.Signals) -> None:
    words = verb.words("--stop-at", "90000", "--until", "99000", *RESUME)
    running = subprocess.Popen(words, cwd=verb.here, env=verb.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    log, end = None, time.monotonic() + 60
    while time.monotonic() < end and b"step 3 " not in (log.read_bytes() if log else b""):
        log = next(verb.home.glob("proofs/*/runs/unbroken-1/output.log"), None)
        time.sleep(0.02)
    assert list(verb.tmp.glob("ov-*"))
    running.send_signal(number)
    out, error = running.communicate(timeout=60)
    assert running.returncode == 130, error
    assert b"Traceback" not in error
    assert b"broken off" in error
    assert not out
    verb.nothing_left()
    (evidence,) = (verb.home / "proofs").iterdir()
    assert str(evidence).encode() in error
    told = json.loads((evidence / "proof.json").read_text())
    assert (told["passed"], told["refused"], told["untouched"]) == (None, "broken off by Ctrl-C", True)
    (part,) = told["parts"]
    assert part["ended"] == f"broken off at step {part['last_step']}"
    assert part["last_step"] >= 3
    assert len((evidence / "series" / "unbroken-1.csv").read_text().splitlines()) > 3
    assert (evidence / "proof.txt").read_text().startswith("REFUSED  broken off by Ctrl-C")


def test_a_proof_that_is_killed_leaves_no_run_and_no_copy(verb: Verb) -> None:
    words = verb.words("--stop-at", "90000", "--until", "99000", *RESUME)
    with subprocess.Popen(words, cwd=verb.here, env=verb.environ, stdout=subprocess.DEVNULL) as running:
        end = time.monotonic() + 60
        while time.monotonic() < end and not list(verb.home.glob("proofs/*/runs/unbroken-1/attempts/001/started.json")):
            time.sleep(0.02)
        running.kill()
    end = time.monotonic() + 30
    while time.monotonic() < end and list(verb.tmp.glob("ov-*")):
        time.sleep(0.05)
    verb.nothing_left()


def test_the_next_proof_clears_up_after_a_dead_one_and_leaves_a_live_ones_alone(tmp_path: Path) -> None:
    roots = [tmp_path / name for name in ("ov-mine", "ov-live", "ov-dead", "ov-kept")]
    for root in roots:
        (root / "1").mkdir(parents=True)
    mine, live, dead, kept = roots
    (dead / LOCK).write_text(str(tmp_path / "home"))
    with Minder(str(tmp_path / "home"), [str(live)], keep=False), Minder(str(tmp_path / "h"), [str(mine)], keep=False):
        assert [root.exists() for root in roots] == [True, True, False, True]
    assert (live / "1").is_dir()
    assert (kept / "1").is_dir()


def test_what_changed_during_a_proof_that_is_refused_is_said(verb: Verb) -> None:
    mine = verb.here / "notes.txt"
    script = ("--crash-at", "4", "--scribble", "notes.txt", "--out", "{workdir}/out")
    code, told, stderr = verb.prove("--stop-at", "6", "--until", "9", "--allow", ".", *RESUME, script=script)
    assert code == 1
    assert told["passed"] is None
    assert told["changed"] == [f"{mine} is new"]
    assert f"changed during the proof: {mine} is new" in stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--stop-at", "20", "--until", "20"), "must lie behind"),
        (("--tolerance", "lots"), "auto, exact"),
        (("--stop-at", "0"), "whole number"),
        (("--checkpoints", "/tmp/x"), "relative"),
        (("--max-copy", "10"), "--max-copy"),
        (("--timeout", "soon"), "10m"),
        (("--evidence", "taken"), "holds proof.json"),
    ],
)
def test_wrong_use_is_refused_before_anything_runs(verb: Verb, words: tuple[str, ...], said: str) -> None:
    (verb.here / "taken").mkdir()
    (verb.here / "taken" / "proof.json").write_text("{}")
    done = verb.call(*words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(verb.home.glob("proofs/*/runs"))

"""The stages of ``overnight demo``: each does one thing to a real training and says what that has proved.

A stage takes the ``Place``, returns its sentences with the figures seen, or raises ``FailedError``. How commands are
run and logs are read is in ``place.py``; what is trained in ``train.py``.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import signal
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from overnight.checkpoint import CheckpointError, newest
from overnight.checkpoint.listing import entries
from overnight.demo import model
from overnight.demo.place import SHAPE, FailedError, Place, expect

WIDTH = 80
SLOW_MS = 20
NAN_AT = 60
AGAIN = 10


def detached(place: Place) -> Iterator[str]:
    """Stage 1: the launch returns, and what it launched belongs to nobody's terminal."""
    began = time.monotonic()
    place.start("first", "--steps", "4000", "--slow", str(SLOW_MS), checkpoints="first")
    took_s = time.monotonic() - began
    status = place.until("a first step", lambda: seen if (seen := place.status("first"))["step"] else None)
    pid = int(status["pid"])
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    expect(os.getsid(pid) != os.getsid(0), "the training to have a session of its own", f"session {os.getsid(pid)}")
    expect(parent != os.getpid(), "the training to have another parent than this process", f"parent {parent}")
    expect(status["state"] == "running", "the run to be running", status["state"])
    yield f"`overnight run` returned after {took_s:.1f} s and training goes on: process {pid}, step {status['step']}."
    yield (
        f"Its session is {os.getsid(pid)}, ours is {os.getsid(0)}; its parent is {parent}, we are {os.getpid()}: "
        "closing this terminal ends nothing."
    )


def live(place: Place) -> Iterator[str]:
    """Stage 2: loss, tokens/s and MFU while it trains, and they add up."""
    before = place.until("ten steps", lambda: seen if (seen := place.status("first"))["step"] >= 10 else None)
    after = place.until(
        "steps to rise", lambda: seen if (seen := place.status("first"))["step"] >= before["step"] + 30 else None
    )
    tokens_s, mfu = after["tokens_per_second"], after["mfu"]
    expect(bool(tokens_s) and bool(mfu), "tokens_per_second and mfu in status --json", f"{tokens_s} and {mfu}")
    by_hand = 6 * SHAPE.matmul_parameters * tokens_s / (place.peak_tflops * 1e12)
    expect(abs(mfu / by_hand - 1) < 1e-3, f"mfu = 6 N tokens/s / peak = {by_hand:.6f}", mfu)
    yield (
        f"Step {before['step']} -> {after['step']}, loss {before['loss']:.3f} -> {after['loss']:.3f}, "
        f"{tokens_s:,.0f} tokens/s."
    )
    yield (
        f"MFU {mfu:.1%} of the {place.peak_tflops * 1000:.0f} GFLOP/s that one core of this machine reaches in a plain "
        f"matrix product (each step rests {SLOW_MS} ms so that you can follow)."
    )


def killed_supervisor(place: Place) -> Iterator[str]:
    """Stage 3: the process that watches is killed; training does not notice."""
    before = place.status("first")
    old = before["supervisor"]["pid"]
    expect(isinstance(old, int), "the pid of the supervisor in status --json", old)
    os.kill(old, signal.SIGKILL)
    killed = time.monotonic()
    step = place.steps("first")[-1][0]

    def back() -> dict[str, object] | None:
        status = place.status("first")
        now = status["supervisor"]
        return status if now["alive"] and now["pid"] not in (None, old) else None

    status = place.until("a new supervisor", back)
    back_s = time.monotonic() - killed
    during = [(at, dt) for at, _, dt in place.steps("first") if at > step]
    # Had training waited for the supervisor, it would have done no more than the step it was in.
    expect(len(during) > 1, f"steps after {step} while there was no supervisor", f"{len(during)} in {back_s:.1f} s")
    expect(status["pid"] == before["pid"], f"the same training process {before['pid']}", status["pid"])
    place.until("the new supervisor to read on", lambda: (place.status("first")["step"] or 0) > step or None)
    slowest_s = max(dt for _, dt in during)
    yield f"Supervisor {old} got SIGKILL; {back_s:.1f} s later its successor was seen at work."
    yield (
        f"Training (still process {status['pid']}) went on from step {step} to {during[-1][0]} meanwhile; "
        f"the slowest of these steps took {slowest_s * 1000:.0f} ms."
    )


def graceful_stop(place: Place) -> Iterator[str]:
    """Stage 4: a stop lets the script finish its step and save; nothing was lost on the way."""
    place.overnight("stop", "first")
    place.overnight("wait", "first", codes=(103,))
    status = place.status("first")
    seen = f"{status['state']} ({status['cause']})"
    expect((status["state"], status["cause"]) == ("stopped", "user"), "the run to be stopped (user)", seen)
    steps = [step for step, _, _ in place.steps("first")]
    last = place.newest("first")
    expect(last == steps[-1], f"a checkpoint of the last step, {steps[-1]}", f"newest is of step {last}")
    expect(steps == list(range(1, last + 1)), f"each step from 1 to {last} once in the log", f"{len(steps)} lines")
    expect(status["step"] == last, f"status to end at step {last}", status["step"])
    yield (
        f"`overnight stop` waited for the save: the last step is {last}, the newest checkpoint is of step {last}, "
        "`wait` exits 103."
    )
    yield f"The log has each step from 1 to {last} exactly once."


def digests(place: Place, checkpoints: str, step: int) -> dict[str, str]:
    """Return the SHA-256 of each part of the checkpoint that a training would go on from; it must be of ``step``."""
    found = place.saved(checkpoints)
    expect(found.step == step, f"the newest checkpoint in {checkpoints} to be of step {step}", f"step {found.step}")
    state, optimizer = found.parts, found.parts["optimizer"]
    arrays = {"model": state["model"], "m": optimizer["m"], "v": optimizer["v"]}
    random = json.dumps(state["rng"]["own"]["dropout"], sort_keys=True)
    sums = {name: model.digest(one) for name, one in arrays.items()}
    return {**sums, "dropout": hashlib.sha256(random.encode()).hexdigest()}


def exact_resume(place: Place) -> Iterator[str]:
    """Stage 5: stopped and resumed equals never stopped, bit for bit."""
    cut = place.newest("first")
    end = cut + AGAIN
    place.start("unbroken", "--steps", str(end), checkpoints="unbroken")
    place.start("resumed", "--steps", str(end), checkpoints="first")
    for name in ("resumed", "unbroken"):
        place.overnight("wait", name, codes=(0,))
    expect(f": step {cut} is done" in place.log("resumed"), f"a resume at step {cut}", "none")
    first, resumed, unbroken = (
        {step: loss for step, loss, _ in place.steps(name)} for name in ("first", "resumed", "unbroken")
    )
    expect(list(resumed) == list(range(cut + 1, end + 1)), f"steps {cut + 1} to {end} after the resume", list(resumed))
    for step, loss in (first | resumed).items():
        expect(loss == unbroken.get(step), f"loss {unbroken.get(step)} at step {step} as in the unbroken run", loss)
    ends = [digests(place, name, end) for name in ("first", "unbroken")]
    for part, theirs in ends[1].items():
        expect(ends[0].get(part) == theirs, f"{part} with SHA-256 {theirs[:16]} at step {end}", ends[0].get(part))
    yield (
        f"Resumed at step {cut}; its next {AGAIN} losses equal those of a run that was never stopped, in every digit: "
        f"step {cut + 1} {resumed[cut + 1]} = {unbroken[cut + 1]}, step {end} {resumed[end]} = {unbroken[end]}."
    )
    yield (
        f"So do all weights, both moments of AdamW and the dropout's random numbers at step {end}: "
        f"SHA-256 {ends[0]['model'][:16]}... twice."
    )


def started_again(place: Place) -> Iterator[str]:
    """Stage 6: the training itself is killed; it is started again and ends as if nothing had happened."""
    end = place.newest("unbroken")
    flags = ("--steps", str(end), "--restarts", "3", "--backoff", "0.3s", "--on-end", "cat > told.json",
             "--on-end-guard", "off")  # fmt: skip
    place.start("killed", "--steps", str(end), "--slow", str(SLOW_MS), checkpoints="killed", flags=flags)
    place.until("a first checkpoint", lambda: newest(place.folder / "killed"))
    pid = int(place.status("killed")["pid"])
    os.kill(pid, signal.SIGKILL)
    place.overnight("wait", "killed", codes=(0,))
    status = place.status("killed")
    first, second = status["attempts"]
    expect(first["signal"] == "SIGKILL", "the first attempt to be ended by SIGKILL", first["signal"])
    ours, theirs = (digests(place, name, end) for name in ("killed", "unbroken"))
    expect(ours == theirs, f"a state with SHA-256 {theirs} at step {end}", ours)
    told = json.loads((place.folder / "told.json").read_text())
    expect(told["state"] == "finished", "the hook to hear of a finished run", told["state"])
    yield (
        f"Training process {pid} got SIGKILL at step {first['last_step']}. It was started again by itself, went on at "
        f"step {second['first_step']} from its checkpoint, and finished: `wait` exits 0."
    )
    yield f"Its weights at step {end} equal those of the run that was never killed: SHA-256 {ours['model'][:16]}..."
    yield f"`--on-end` told once how it ended: {told['state']} after {told['restarts_used']} restart."


def poisoned(place: Place) -> Iterator[str]:
    """Stage 7: a loss that is no number ends the run on its line, and no bad weights are saved."""
    place.start(
        "poisoned", "--steps", "4000", "--seed", "2", "--slow", str(SLOW_MS), "--nan-at", str(NAN_AT),
        checkpoints="poisoned", codes=(104,),
    )  # fmt: skip
    place.overnight("wait", "poisoned", codes=(104,))
    status = place.status("poisoned")
    seen = f"{status['state']} ({status['cause']})"
    expect(status["cause"] == "nonfinite", "the run to be stopped (nonfinite)", seen)
    found = [verdict["step"] for verdict in status["verdicts"] if verdict["rule"] == "nonfinite"]
    expect(NAN_AT in found[:1], f"the verdict at step {NAN_AT}", found or "none")
    last = place.steps("poisoned")[-1][0]
    saved = place.saved("poisoned")
    # Not only passed over: not one is there, finite or not, because stop.json said that no save was wanted.
    there = [one.manifest.step if one.manifest else one.path.name for one in entries(place.folder / "poisoned")]
    expect(there == [saved.step] and saved.step < NAN_AT, f"one checkpoint, from before step {NAN_AT}", there)
    expect("not saving: the order to stop says" in place.log("poisoned"), "the script to say that it does not save", "")
    weights = saved.parts["model"]
    expect(all(np.isfinite(array).all() for array in weights.values()), "finite weights in the checkpoint", "others")
    place.until("every process of the demo to be gone", lambda: None if place.left_behind() else True)
    yield (
        f"One weight became NaN at step {NAN_AT}: the verdict names step {NAN_AT}, the last step printed is {last}, "
        "`wait` exits 104."
    )
    yield f"The newest checkpoint is the healthy one of step {saved.step}: the script was told not to save its NaN."
    yield "No process of any of these runs is left."


def morning(place: Place) -> Iterator[str]:
    """Stage 8: the morning after: one value per step, what was lost, and whether the rules would find it again."""
    first, second = place.status("killed")["attempts"]
    report = json.loads(place.overnight("report", "killed", "--json"))
    goodput, redone = report["goodput"], first["last_step"] - second["first_step"] + 1
    expect(goodput["redone_steps"] == redone, f"{redone} steps done again", goodput["redone_steps"])
    rows = place.overnight("export", "killed", "--to", "csv").splitlines()[1:]
    found, wanted = [int(row.split(",")[1]) for row in rows], list(range(1, second["last_step"] + 1))
    expect(found == wanted, f"one row for each step from 1 to {wanted[-1]}", f"{len(rows)} rows")
    page = place.home / "runs" / "killed" / "report.html"
    expect(page.is_file(), f"a report in {page}", "none")
    end = json.loads(place.overnight("replay", "poisoned", "--json"))["end"]
    again = (end["rule"], end["step"]) if end else None
    expect(again == ("nonfinite", NAN_AT), f"the replay to end the run at step {NAN_AT}", again)
    yield (
        f"The killed run's report: {goodput['goodput']:.0%} of its time was training, {redone} steps were done twice. "
        f"`export` has one row for each of {len(rows)} steps, of the attempt that counts."
    )
    yield f"`report.html` was there when it ended: one page of {page.stat().st_size // 1024} KiB that needs no network."
    yield f"`overnight replay` finds the NaN in the finished log again, at step {NAN_AT}, as that night."


Stage = Callable[[Place], Iterator[str]]
STAGES: tuple[tuple[str, Stage], ...] = (
    ("a training that needs no terminal", detached),
    ("what it does, while it does it", live),
    ("the supervisor is killed with -9", killed_supervisor),
    ("a stop with its final checkpoint", graceful_stop),
    ("a resume that equals an unbroken run, bit for bit", exact_resume),
    ("the training itself is killed with -9", started_again),
    ("a loss that is no number", poisoned),
    ("the morning after", morning),
)


def core_tflops(seconds: float = 0.3) -> float:
    """Return what one core reaches in a float32 matrix product, in TFLOP/s: the peak for the demo's MFU."""
    side = 512
    a = np.random.default_rng(0).standard_normal((side, side), np.float32)
    best_s, until = np.inf, time.perf_counter() + seconds
    while (began := time.perf_counter()) < until:
        a @ a
        best_s = min(best_s, time.perf_counter() - began)
    return float(2 * side**3 / best_s / 1e12)


def say(text: str, indent: str = "   ") -> None:
    """Print a paragraph within the width, at once."""
    lines = textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    print(*lines, sep="\n", flush=True)


def farewell(place: Place, *, keep: bool) -> None:
    """Where to look next: the last thing that is printed."""
    if keep:
        say("The runs are kept. Type this once, then look around:")
        commands = [
            f"export OVERNIGHT_HOME={shlex.quote(str(place.home))}",
            "overnight ls",
            "overnight status poisoned",
            "overnight report killed",
        ]
        commands += [
            "overnight logs resumed",
            f"rm -r {shlex.quote(str(place.folder))}      # when you have seen enough",
        ]
    else:
        say("This folder goes away now; `overnight demo --keep` leaves it for you. With your own training:")
        commands = ["overnight run --name night -- python train.py", "overnight status night", "overnight report night"]
    for command in commands:
        print(f"     {command}", flush=True)


def failed(folder: Path, expected: str, seen: str) -> int:
    """Say what was wrong; return the demo's exit code."""
    say(f"FAILED: expected {expected}; seen: {seen}")
    say(f"The folder is kept: {folder}")
    return 1


def play(folder: Path, *, keep: bool, stages: Sequence[tuple[str, Stage]] = STAGES) -> int:
    """Run all stages in ``folder``; return 0, 1 if one failed, 130 if interrupted. Nothing that was started is left."""
    place = Place(folder)
    # End as Ctrl-C does, so that nothing stays behind.
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        return perform(place, stages, keep=keep)
    except FailedError as failure:
        return failed(folder, failure.expected, failure.seen)
    except (OSError, LookupError, TypeError, ValueError, CheckpointError) as error:
        # What a stage looks at can be missing in any way when what it shows does not work.
        return failed(folder, "to find the run's facts in their places", f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:
        say("interrupted; ending what was started")
        return 130
    finally:
        place.clear()
        for number, handler in before.items():
            signal.signal(number, handler)


def perform(place: Place, stages: Sequence[tuple[str, Stage]], *, keep: bool) -> int:
    """Run the stages one after the other, each sentence printed as it is proved."""
    began = time.monotonic()
    say(f"Real training on this CPU, in {place.folder}. It takes less than a minute.", indent="")
    place.peak_tflops = core_tflops()
    for number, (title, stage) in enumerate(stages, 1):
        print(f"\n{number}. {title}", flush=True)
        for sentence in stage(place):
            say(sentence)
    print(f"\n{len(stages) + 1}. where to look next", flush=True)
    farewell(place, keep=keep)
    print(f"\nAll {len(stages)} stages held, in {time.monotonic() - began:.0f} s.", flush=True)
    return 0

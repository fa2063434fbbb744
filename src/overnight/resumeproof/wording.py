"""The sentences of a judgement: what was found, what it probably comes from, what to look at.

Nothing is decided here. No clock, no file, no process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from overnight.resumeproof.comparing import Comparison, Difference
from overnight.resumeproof.vocabulary import shown
from overnight.resumeproof.words import Cause, Resumed

WHAT: Final[dict[Cause, str]] = {
    "rng": "the state of the random numbers is not restored, or too early",
    "data_order": "the order of the data, or the position in it, is not restored",
    "optimizer": "the optimizer's state (momentum) is not restored",
    "scheduler": "the learning rate schedule is not restored where it was",
    "off_by_one": "the step count is off against the state",
    "not_resumed": "it did not resume",
    "weights": "the weights are not restored, or only partly",
    "ema_or_buffers": "averaged weights (EMA) or buffers are not restored",
    "load_failure": "the checkpoint cannot be loaded",
    "nothing_saved": "there is nothing to resume from",
    "unknown": "unknown",
}
LOOK: Final[dict[Cause, str]] = {
    "rng": "save and restore the states of random, numpy and torch (CUDA too), after iter(dataloader) was called",
    "data_order": "save the sampler's permutation, epoch and position, or a loader's state_dict(), and restore them",
    "optimizer": "save and load optimizer.state_dict() (and the GradScaler's, where there is one)",
    "scheduler": "save and load scheduler.state_dict(), and do not step it again on loading",
    "off_by_one": "save the number of finished steps, and begin the loop with the one after it",
    "not_resumed": "does the command, by itself or with --resume-args, load the newest checkpoint and its step?",
    "weights": "is model.load_state_dict() called, before the first step, with every key (strict)?",
    "ema_or_buffers": "save and load the averaged model too, and the whole model.state_dict() with its buffers",
    "load_failure": "try to load it by hand; overnight checkpoints says which ones are intact",
    "nothing_saved": "save on the signal or each so many steps, and choose --stop-at after the first save",
    "unknown": "compare what is saved with what the script sets up at its start",
}


def advice(cause: Cause) -> str:
    """Return a cause and what to look at, as one sentence."""
    return f"{WHAT[cause]}: {LOOK[cause]}"


def difference(one: Difference, start: int, *, noisy: bool) -> str:
    """Say where and how two values differ."""
    values = f"{one.metric} is {shown(one.unbroken)} unbroken and {shown(one.resumed)} resumed"
    if one.upto is not None:
        return f"On average over steps {one.step}-{one.upto} {values}, beyond the noise of the unbroken runs"
    first = ", the first one after resuming" if one.step == start else ""
    beyond = ", beyond the noise of the unbroken runs" if noisy else ""
    return f"The first difference is at step {one.step}{first}: {values}{beyond}"


def failure(cause: Cause, also: Sequence[Cause], *, lead: str, why: str) -> str:
    """Put the sentences of a failure together: what is seen, why, the probable cause, what to look at."""
    reason = f" ({why})" if why else ""
    if cause == "unknown":
        return f"{lead}{reason}. Its cause is not told by the pattern: {LOOK[cause]}."
    if cause == "nothing_saved":
        return f"{lead}{reason}: {LOOK[cause]}."
    other = f" It may also be that {' or that '.join(WHAT[one] for one in also)}." if also else ""
    return f"{lead}{reason}. Probably {advice(cause)}.{other}".replace("?.", "?")


def equality(seen: Comparison) -> str:
    """Say what passed: how much was equal, or how far the unbroken runs leave room."""
    span = f"{len(seen.steps)} step{'s' if len(seen.steps) != 1 else ''}"
    if seen.steps:
        span += f" ({seen.steps[0]}-{seen.steps[-1]})" if len(seen.steps) > 1 else f" ({seen.steps[0]})"
    if not seen.metrics:
        return f"All {span} that were expected were made; they print no value that can be compared."
    names = f"{len(seen.metrics)} metric{'s' if len(seen.metrics) != 1 else ''} ({', '.join(seen.metrics[:6])}"
    names += ", ...)" if len(seen.metrics) > 6 else ")"
    if not any(seen.floor.values()):
        return f"Equal in every printed digit: {span}, {names}, {seen.compared} values."
    wide = [name for name in seen.metrics if seen.floor[name] > 0.0]
    if seen.noise:
        rooms = "; ".join(_room(name, seen) for name in wide)
        return f"Within the noise of the two unbroken runs, which differ too: {span}, {names}. The floor: {rooms}."
    rooms = "; ".join(f"{name} {seen.floor[name]:.2g}" for name in wide)
    return f"Within the tolerance: {span}, {names}, {seen.compared} values. It allows, at first: {rooms}."


def _room(name: str, seen: Comparison) -> str:
    """Say how far a metric may lie off: at a step, and on average over some, each of which is a test of its own."""
    single, noise = f"a single step's {name} may lie {seen.floor[name]:.2g} off", seen.noise.get(name)
    if noise is None:
        return single
    begin, end = noise.mean_steps
    over = f"over steps {begin}-{end}" if end > begin else f"of step {begin}"
    return f"{single}, and the average {over} {noise.mean_floor:.2g}, which is tested by itself"


def ended(resumed: Resumed) -> str:
    """Say how the resumed run ended, if that is known."""
    return f" ({resumed.after.ended})" if resumed.after.ended else ""

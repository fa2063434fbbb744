"""What a run has done of all the time that has passed: each step counts once, everything else is waiting.

Pure arithmetic on the sums of ``pace`` and ``advance``; the time is an argument.
"""

from __future__ import annotations

import msgspec

from overnight.crosscheck import APART
from overnight.meter import Meter
from overnight.pacing.arrivals import more_than_passed
from overnight.yardsticks.needs import needs


class Whole(msgspec.Struct, frozen=True, kw_only=True):
    """Goodput and tokens per second over all time; ``unknown`` says what would make the rest known."""

    goodput: float | None = None
    tokens_per_second: float | None = None
    unknown: str | None = None


def whole(meter: Meter, elapsed_s: float) -> Whole:
    """Return what the run has done of ``elapsed_s``, the seconds since its launch."""
    seconds, tokens, timed, counted = meter.pace.done()
    steps = meter.advance.steps_done
    if not meter.advance.known:
        return Whole(unknown="its steps count anew in each epoch and it was started again; the report tells")
    if elapsed_s <= 0 or not timed or not steps:
        return Whole(unknown=needs("dt_s", {"dt_s": None}, meter) or "wait for the second progress line")
    stepped_s = seconds * (steps / timed)
    if more_than_passed(stepped_s, elapsed_s):
        # More time is printed than has passed. Where the lines come faster than they say, the times are wrong and the
        # steps are not; else the step numbers have jumped, and nobody knows how many were done.
        latest = meter.arrivals.latest
        if latest is None or latest[1] * APART > latest[0]:
            return Whole(unknown="more time is printed than has passed: its steps have jumped, or the times are wrong")
        goodput = None
    else:
        goodput = min(1.0, stepped_s / elapsed_s)
    if not counted:
        return Whole(goodput=goodput, unknown=needs("tokens_per_second", {"tokens_per_second": None}, meter))
    return Whole(goodput=goodput, tokens_per_second=tokens * (steps / counted) / elapsed_s)

"""Goodput: which seconds of a run were training that still counts, over all the time that passed.

Pure arithmetic on what ``stepping`` finds in the records. No clock, no file. What cannot be known is None, with what
would make it known; nothing stands in for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from overnight.pacing.arrivals import more_than_passed
from overnight.pacing.attemptsums import USUAL, AttemptSums
from overnight.pacing.stepping import SERIES, Records, Stepping

__all__ = ["SERIES", "Goodput", "Part", "Times", "measure"]


ARRIVALS = "arrival times of lines"


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """When an attempt ran, in seconds since the epoch; None while unknown, or going on."""

    attempt: int
    started: float | None = None
    ended: float | None = None


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What one attempt did: the steps it printed first and last, the seconds of those that count, and what was lost."""

    attempt: int
    first_step: int | None
    last_step: int | None
    productive_s: float | None
    lost_steps: int | None
    lost_s: float | None


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """``goodput`` is a fraction of ``wall_s``. ``lost_s`` are the seconds of steps that were done again later.

    ``unfinished_s``, at least, passed between the last step of an attempt that was followed by another and its end;
    ``restart_s`` from there to the begin of that one's first step. ``printed_s`` are the times of all steps as
    they are printed, with what else lies in them. ``told`` says how the times were known, ``unknown`` what is not known
    and why; None if all of it is known.
    """

    goodput: float | None = None
    productive_s: float | None = None
    productive_steps: int | None = None
    wall_s: float | None = None
    stepping_tokens_per_s: float | None = None
    overall_tokens_per_s: float | None = None
    redone_steps: int | None = None
    lost_s: float | None = None
    lost_cost: float | None = None
    unfinished_s: float | None = None
    restart_s: float | None = None
    printed_s: float | None = None
    told: str = ""
    unknown: str | None = None
    parts: tuple[Part, ...] = ()


def measure(
    stretches: Iterable[Records],
    *,
    wall_s: float | None,
    attempts: Sequence[Times] = (),
    tokens_per_step: float | None = None,
    devices: int = 1,
    accumulate: int = 1,
    price: float | None = None,
    no_wall: str = "nobody knows when it began and ended",
    live_step_s: float | None = None,
    coarse_s: float = 0.0,
    arrivals: str = ARRIVALS,
) -> Goodput:
    """Return the goodput of a run from all its training records, in the order of the log.

    ``wall_s`` is the time from beginning to end and ``no_wall`` says why it is None; ``price`` is per hour. The tokens
    of a step are those printed, else ``tokens_per_step`` (all devices), else what a printed count or rate tells; rates
    are multiplied with the number of ``devices`` where they are of one device; ``accumulate`` lines of one step are
    those of its micro-steps. ``live_step_s``: seconds of a step by arrivals that were seen when they came, which stands
    in where no time is printed. Lines arrived up to
    ``coarse_s`` seconds later than their records say; ``arrivals`` says how it is known when they did.
    """
    stepping = Stepping(tokens_per_step, devices, accumulate)
    for stretch in stretches:
        stepping.add(stretch)
    stepping.close()
    found = stepping.attempts
    unfinished_s, restart_s = _between(attempts, found, coarse_s)
    known = Goodput(wall_s=wall_s, unfinished_s=unfinished_s, restart_s=restart_s)
    steps = sum(one.kept.steps for one in found.values())
    if not steps:
        why = "its lines print no step" if stepping.no_steps else "no progress line was read"
        return msgspec.structs.replace(known, unknown=f"goodput is unknown: {why}")
    times, told = _times(found, arrivals, live_step_s, odd=stepping.odd_steps > 0)
    known = msgspec.structs.replace(
        known,
        productive_steps=round(steps),
        redone_steps=round(sum(one.lost.steps for one in found.values())),
        parts=tuple(_part(number, one, times) for number, one in sorted(found.items())),
        told=told,
    )
    if times is None:
        return msgspec.structs.replace(known, unknown=f"goodput is unknown: {told}; print the time of a step (dt)")
    productive_s, lost_s = (math.fsum(one[at] for one in times.values()) for at in (0, 1))
    known = msgspec.structs.replace(
        known,
        productive_s=productive_s,
        lost_s=lost_s,
        lost_cost=None if price is None else price * lost_s / 3600.0,
        printed_s=productive_s
        + lost_s
        + stepping.odd_s
        - stepping.odd_steps * (productive_s + lost_s) / (steps + (known.redone_steps or 0)),
        stepping_tokens_per_s=_speed(found.values(), productive_s, steps),
    )
    return _over_wall(known, no_wall)


def _part(number: int, one: AttemptSums, times: Mapping[int, tuple[float, float]] | None) -> Part:
    return Part(
        attempt=number,
        first_step=one.first_step,
        last_step=one.last_step,
        productive_s=None if times is None else times[number][0],
        lost_steps=round(one.lost.steps),
        lost_s=None if times is None else times[number][1],
    )


def _times(
    found: Mapping[int, AttemptSums], arrivals: str, live_step_s: float | None, *, odd: bool
) -> tuple[dict[int, tuple[float, float]] | None, str]:
    """Return (productive, lost) seconds of each attempt, and how they were known; None if they are not."""
    sums = [one for attempt in found.values() for one in (attempt.kept, attempt.lost)]
    steps, timed = sum(one.steps for one in sums), sum(one.timed for one in sums)
    if timed > 0 and timed >= steps / 2:
        mean_s = math.fsum(one.seconds for one in sums) / timed
        left = round(steps - timed)
        lacks = "without one or with far more than a usual one" if odd else "without one"
        without = f"1 step {lacks} counts" if left == 1 else f"{left:,} steps {lacks} count"
        rest = f"; {without} as the mean of the others" if left else ""
        return {
            number: (
                one.kept.seconds + (one.kept.steps - one.kept.timed) * mean_s,
                one.lost.seconds + (one.lost.steps - one.lost.timed) * mean_s,
            )
            for number, one in found.items()
        }, f"step times as printed{rest}"
    if live_step_s is not None:
        each = {number: (one.kept.steps * live_step_s, one.lost.steps * live_step_s) for number, one in found.items()}
        return each, (
            f"{ARRIVALS} as they came, since no step time is printed; "
            f"where a step took more than {USUAL:g} usual ones, a usual one counts"
        )
    usual = {number: one.usual_s() for number, one in found.items()}
    known = sorted(one for one in usual.values() if one is not None)
    if not known:
        return None, "no step time is printed, and nobody knows when the lines arrived"
    middle = known[len(known) // 2]  # for an attempt too short to tell its own
    return {
        number: (one.kept.arrived_s(usual[number] or middle), one.lost.arrived_s(usual[number] or middle))
        for number, one in found.items()
    }, (
        f"{arrivals}, which are coarse, since no step time is printed; "
        f"where a step took more than {USUAL:g} usual ones, a usual one counts"
    )


def _over_wall(known: Goodput, no_wall: str) -> Goodput:
    """Add what is divided by the time that passed."""
    wall_s, productive_s = known.wall_s, known.productive_s
    if wall_s is None or productive_s is None:
        return msgspec.structs.replace(known, unknown=f"goodput is unknown: {no_wall}")
    stepped_s = productive_s + (known.lost_s or 0.0)
    between_s = (known.unfinished_s or 0.0) + (known.restart_s or 0.0)
    if wall_s <= 0 or more_than_passed(stepped_s + between_s, wall_s):
        beside = f", {between_s:,.0f} s more lay between attempts" if between_s >= 1.0 else ""
        text = (
            f"goodput is unknown: the times of the steps add up to {stepped_s:,.0f} s{beside}, and only "
            f"{wall_s:,.0f} s passed; check the unit of the printed step time"
        )
        return msgspec.structs.replace(known, unknown=text)
    speed = known.stepping_tokens_per_s
    return msgspec.structs.replace(
        known,
        goodput=min(1.0, productive_s / wall_s),
        overall_tokens_per_s=None if speed is None else min(speed, speed * productive_s / wall_s),
    )


def _speed(found: Iterable[AttemptSums], productive_s: float, steps: float) -> float | None:
    """Return tokens per second while stepping, over the steps that count; None if their tokens are not known."""
    kept = [one.kept for one in found]
    counted = sum(one.counted for one in kept)
    if counted < steps / 2 or productive_s <= 0:
        return None
    return math.fsum(one.tokens for one in kept) * (steps / counted) / productive_s


def _between(
    attempts: Sequence[Times], seen: Mapping[int, AttemptSums], coarse_s: float
) -> tuple[float | None, float | None]:
    """Return (unfinished, restart) seconds, as in ``Goodput``: 0 for one attempt, None where a moment is not known.

    Both are the least that it can have been.
    """
    unfinished: list[float | None] = []
    restart: list[float | None] = []
    for one, after in pairwise(attempts):
        if one.attempt in seen and seen[one.attempt].last_at:
            last = max(seen[one.attempt].last_at, one.started or 0.0)
            unfinished.append(_from_to(last + coarse_s, one.ended))
        else:
            unfinished.append(None if one.attempt in seen else _from_to(one.started, one.ended))
        first = seen[after.attempt].begun_at() if after.attempt in seen else 0.0
        restart.append(_from_to(one.ended, max(first, after.started or 0.0)))
    return _total(unfinished), _total(restart)


def _from_to(begin: float | None, end: float | None) -> float | None:
    return max(0.0, end - begin) if begin and end else None


def _total(seconds: Sequence[float | None]) -> float | None:
    known = [one for one in seconds if one is not None]
    return math.fsum(known) if len(known) == len(seconds) else None

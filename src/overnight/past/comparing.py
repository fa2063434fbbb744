"""The verdicts of a replay beside those that a night really had: the same, earlier, later, new, gone.

Pure: two lists in, one out.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Sequence

import msgspec

from overnight.events import Verdict

SAME_S = 15.0
"""Verdicts on time so close together are the same: what is known of a night's time is no finer than ten seconds."""

LIVE_ONLY = frozenset({"checkpoint", "resume", "save_time"})
"""Rules that judge the saves or a resume as they are at that moment, which no log tells."""

FULL = "disk_space"
"""Beside the forecast from samples, told at a place of the log, live only, when a disk has no room left."""

SENSED = "; GPU"
"""What stands behind it in the text of a slowdown is a sensor's."""


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict of the replay, of the night, or both.

    ``how``: "same", "changed" (same place, but another action, severity or text), "earlier", "later" (by ``by_s``
    seconds if both times are known), "new" (only now), "gone" (only then), "elsewhere" (in a part of the log that is
    not there any more), "live only" (nothing in a log tells), "not asked" (the rule had
    nothing to judge by now).
    """

    now: Verdict | None = None
    then: Verdict | None = None
    how: str
    by_s: float | None = None


def compared(
    now: Sequence[Verdict], then: Sequence[Verdict], *, source: int, unasked: Collection[str] = ()
) -> list[Pair]:
    """Return each verdict of ``now`` with what the night had for it, then what only the night had.

    ``source`` is the life of the log that was replayed, ``unasked`` are rules that could not be asked: no samples, no
    times. First those at the same place are paired, then the others of
    the same rule and attempt in their order.
    """
    places = {one.key: one for one in then}
    waiting: dict[tuple[str, int], deque[Verdict]] = defaultdict(deque)
    taken = {one.key for one in now}
    for one in then:
        if one.key not in taken and one.source == source:
            waiting[one.rule, one.attempt].append(one)
    pairs, used = [], set()
    for one in now:
        other = places.get(one.key)
        if other is None and waiting[one.rule, one.attempt]:
            other = waiting[one.rule, one.attempt].popleft()
        if other is None:
            pairs.append(Pair(now=one, how="new"))
        else:
            used.add(other.key)
            pairs.append(_pair(one, other, sensed="throttle" not in unasked))
    return pairs + [Pair(then=one, how=_alone(one, source, unasked)) for one in then if one.key not in used]


def _alone(then: Verdict, source: int, unasked: Collection[str]) -> str:
    """Return why the replay does not have a verdict of the night."""
    if then.rule in LIVE_ONLY or (then.rule == FULL and then.offset >= 0):
        return "live only"
    if then.rule in unasked:
        return "not asked"
    return "gone" if then.source == source else "elsewhere"


def _pair(now: Verdict, then: Verdict, *, sensed: bool) -> Pair:
    by_s = None if now.at is None or then.at is None else now.at - then.at
    if now.offset != then.offset or (now.offset < 0 and by_s is not None and abs(by_s) > SAME_S):
        sooner = now.offset < then.offset if now.offset >= 0 and then.offset >= 0 else (by_s or 0.0) < 0
        return Pair(now=now, then=then, how="earlier" if sooner else "later", by_s=by_s)
    alike = now.action == then.action and now.severity == then.severity
    if now.offset >= 0:  # the sentence of a verdict on time names seconds
        texts = [one.text if sensed else one.text.partition(SENSED)[0] for one in (now, then)]
        alike = alike and texts[0] == texts[1]
    return Pair(now=now, then=then, how="same" if alike else "changed")

"""What cannot fit: a save that takes longer than the time that is left for it. Pure.

A stop needs the step that is going on, the save from its beginning until it is known to be whole, and the end of the
process. The save that was measured is multiplied: the next one may be slower.
"""

from __future__ import annotations

from collections.abc import Iterator

from overnight.rules import lead_of, span
from overnight.spec import HOUR_S, RunSpec

SHARE = 0.5
"""No limit is begun earlier than when half of its time is over, however slow the save is."""


def unfit(spec: RunSpec, *, save_s: float | None, step_s: float | None) -> Iterator[tuple[int, str, str]]:
    """Yield (part, action, sentence) for each thing that cannot fit, as far as a save was measured."""
    if save_s is None:
        return
    need_s = lead_of(save_s, step_s)
    begin = f"a save takes {span(save_s)} until it is known to be whole, so a stop needs about {span(need_s)}"
    if need_s > spec.grace_max_s:
        yield (
            0,
            "alert",
            (
                f"{begin}, and --grace-max ends it after {span(spec.grace_max_s)}: "
                f"`overnight set {spec.name} --grace-max {round(1.2 * need_s)}s` gives it the time"
            ),
        )
    elif need_s > spec.grace_s:
        yield (
            1,
            "note",
            (
                f"{begin}, and --grace is {span(spec.grace_s)}: it is given longer only while a file of it is seen to "
                f"grow, and a scheduler gives nothing; "
                f"`overnight set {spec.name} --grace {round(1.2 * need_s)}s` is safer"
            ),
        )
    if spec.max_hours is not None and need_s > SHARE * spec.max_hours * HOUR_S:
        yield 2, "alert", f"{begin}, which does not fit into the wall-clock limit of {span(spec.max_hours * HOUR_S)}"
    if spec.max_cost is not None and spec.price and need_s > SHARE * spec.max_cost / spec.price * HOUR_S:
        yield 3, "alert", f"{begin}, which does not fit into what --max-cost buys"

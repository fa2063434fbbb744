"""What saved states tell of an optimizer and a scheduler: which of the two was restored, by what each of them counts.

Moments drift with the weights whatever was forgotten, so they say nothing here; counts of steps do not. No clock, no
file, no process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from overnight.resumeproof.clues import Evidence, Finding
from overnight.resumeproof.vocabulary import held_by, is_rate
from overnight.resumeproof.words import Cause, PartDifference

COUNTS: Final = frozenset(("step", "steps", "num_steps", "state_step"))
"""Last names of what an optimizer counts its steps by."""
_WITH_COUNT: Final = frozenset(("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf"))
"""Moments of optimizers that count steps beside them."""


def kinds(rows: Sequence[PartDifference], part: str) -> frozenset[str]:
    """Return the last words of the names that differ in a part of the states."""
    own = [row for row in rows if part in (row.part, held_by(row.part))]
    return frozenset(name.partition(" (")[0].rpartition(".")[2] for row in own for name in row.names)


def follows(rows: Sequence[PartDifference]) -> bool:
    """Say whether a scheduler differs in its learning rate alone, which it takes from the optimizer."""
    scheduler = kinds(rows, "scheduler")
    return bool(scheduler) and all(map(is_rate, scheduler))


def by_counts(seen: Evidence) -> Finding | None:
    """The optimizer's or the scheduler's count of steps is another one in a state that the resumed run saved."""
    if seen.state is None:
        return None
    rows, where = seen.state.differences, f"in the states saved at step {seen.state.step}"
    optimizer, scheduler = kinds(rows, "optimizer"), kinds(rows, "scheduler")
    counts = sorted(optimizer & COUNTS)
    counter = sorted(name for name in scheduler if not is_rate(name))
    rate = any(map(is_rate, optimizer))
    also: tuple[Cause, ...] = ("off_by_one",) if seen.cadence > 1 else ()
    if counts and counter:
        return None  # both, or the steps themselves: the values tell
    if counts:
        why = f"{where} the optimizer's own count ({counts[0]}) differs"
        if follows(rows):
            why += ", the scheduler's does not: its learning rate is that of the optimizer's param_groups"
        return Finding(cause="optimizer", why=why, also=also)
    if counter:
        why = f"{where} the scheduler's own count ({counter[0]}) differs"
        counted = optimizer & _WITH_COUNT
        return Finding(cause="scheduler", why=why + (", the optimizer's does not" if counted else ""), also=also)
    if not rate:
        return None
    if optimizer & _WITH_COUNT:
        why = f"{where} the optimizer's learning rate differs, and its count of steps does not"
        return Finding(cause="scheduler", why=why, also=also)
    if follows(rows):
        why = f"{where} the scheduler's count is equal, and the learning rate in the optimizer's param_groups is not"
        return Finding(cause="optimizer", why=why, also=("scheduler", *also))
    return None


def doubtful(seen: Evidence) -> bool:
    """Say whether the optimizer's state may be lost together with the schedule: no state says that it is not."""
    if seen.state is None:
        return "optimizer" not in seen.equal_in
    return bool(kinds(seen.state.differences, "optimizer") & COUNTS)

"""Which part of a training a value in a checkpoint belongs to, told by what lies beside it: whatever its key is called.

An optimizer's state has ``param_groups``, a scheduler's its counts and learning rates. Names that say the same by
themselves are in ``vocabulary``. No clock, no file, no process.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final, Literal

Part = Literal["optimizer", "scheduler", "scaler", "ema", "rng"]

_ALONE: Final[dict[str, Part]] = {
    **dict.fromkeys(("param_groups", "exp_avg", "exp_avg_sq", "momentum_buffer", "square_avg"), "optimizer"),
    **dict.fromkeys(
        ("_last_lr", "base_lrs", "_step_count", "lr_lambdas", "_get_lr_called_within_step", "num_bad_epochs"),
        "scheduler",
    ),
    **dict.fromkeys(("growth_factor", "backoff_factor"), "scaler"),
    **dict.fromkeys(("n_averaged", "shadow_params"), "ema"),
    **dict.fromkeys(("bit_generator", "has_uint32", "has_gauss"), "rng"),
}
"""Names that only one kind of state has in it."""
_COUNT: Final = "last_epoch"
_OF_SCHEDULE: Final = frozenset("T_max T_0 T_cur eta_min step_size gamma milestones total_steps warmup_steps".split())
"""What makes a scheduler of a state that counts as one does."""
_ALGORITHM: Final = "MT19937"
_GENERATORS: Final = ((5056,), (16,))
"""Shapes of the bytes in which torch keeps a generator: of the CPU, and of an accelerator."""


class Groups:
    """All names of a checkpoint, from which the part of each can be asked once all are known."""

    def __init__(self) -> None:
        self._seen: defaultdict[str, set[str]] = defaultdict(set)
        self._generators: set[str] = set()

    def note(
        self, name: str, plain: object = None, *, dtype: str | None = None, shape: tuple[int, ...] | None = None
    ) -> None:
        """Take in one value: its dotted name; itself if a number or words; its dtype (``U8``) and shape if a tensor."""
        levels = name.split(".")
        for at, level in enumerate(levels[1:], 1):
            if level in _ALONE or level == _COUNT or level in _OF_SCHEDULE:
                self._seen[".".join(levels[:at])].add(level)
        if plain == _ALGORITHM and len(levels) > 1:
            self._seen[".".join(levels[:-1])].add("has_gauss")
        if dtype == "U8" and shape in _GENERATORS:
            self._generators.add(name)

    def of(self, name: str) -> Part | None:
        """Return the part that a value lies in, the innermost one; None if nothing beside it says one."""
        if name in self._generators:
            return "rng"
        levels = name.split(".")
        for at in range(len(levels) - 1, 0, -1):
            marks = self._seen.get(".".join(levels[:at]))
            found = None if marks is None else _told(marks)
            if found is not None:
                return found
        return None


def _told(marks: set[str]) -> Part | None:
    found = {part for mark in marks if (part := _ALONE.get(mark))}
    if len(found) == 1:
        return found.pop()
    return "scheduler" if not found and _COUNT in marks and len(marks) > 1 else None

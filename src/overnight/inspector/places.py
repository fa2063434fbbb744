"""Where in a checkpoint something lies, and what its name says: whether a number there that is not finite matters.

Parameters, buffers and an optimizer's state must be finite, whatever the part is called that holds them. What may well
be infinite: a best score so far, a record of losses, and masks. Nothing is read here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

DEEPEST = 12  # parts of a path that are put into words
LONGEST_KEY = 200  # characters of a key that are kept

_RECORD = re.compile(
    r"([a-z0-9]+_)*(loss|losses|metrics?|scores?|history|histories|logs?|perplexity|ppl|acc|accuracy|rewards?)"
    r"|best(_(?!model|state|weight|param)[a-z0-9]+)*|(min|max)_vals?|kth_value|[a-z_]*cached_gaussian"
)
"""Names of single numbers, and rows of them, that are records and no parameters; observers begin at infinity."""
_ROWS = re.compile(r"([a-z0-9]+_)*(metrics|losses|history|histories|logs)")
_SINGLE = re.compile(
    r"callbacks?|loops|best_k_models|best_scores?|args|([a-z]+_)*config|cfg|hparams|hyper_?parameters"
    r"|([a-z]+_)?stopping"
)
"""Parts that keep records: of rows of numbers, and of single numbers only."""
_TRAINED = re.compile(
    r".*(weight|bias|scale|kernel|embedding|gamma|beta|exp_avg|momentum|running_[a-z]+)s?(_[a-z0-9]+)*|.*lora_.*"
)
"""Names that only parameters, buffers and an optimizer's state have."""
_MASK = re.compile(r"([a-z0-9]+_)*(masks?|causal|masked_bias|tril|triu|alibi)(_[a-z0-9]+)*")
_OPTIMIZER = re.compile(r".*optim.*|.*exp_avg.*|.*momentum.*|square_avg|acc_delta|.*grads?|master_.*")


@dataclass(eq=False, slots=True)
class Place:
    """Where something lies: the key in the place above. ``record``: 1 below what keeps single numbers, 2 rows too."""

    above: Place | None = None
    key: Any = None
    depth: int = 0
    record: int = 0
    optimizer: bool = False

    def below(self, key: Any) -> Place:
        """Return the place of what lies here under a key; a very long one is cut, what is no word nor number is ?."""
        if type(key) is str:
            key = key if len(key) <= LONGEST_KEY else key[:LONGEST_KEY]
            record, optimizer = _kinds(key)
            return Place(self, key, self.depth + 1, max(self.record, record), self.optimizer or optimizer)
        if type(key) is not int:
            key = "?"
        return Place(self, key, self.depth + 1, self.record, self.optimizer)

    def path(self, name: str) -> Place:
        """Return the place of ``name``, whose parts are set apart by points."""
        place = self
        for part in name[: LONGEST_KEY * DEEPEST].split(".", DEEPEST - 1):
            place = place.below(part)
        return place

    def parts(self) -> tuple[Any, ...]:
        """Return the keys from the top on; of a deep place the lowest ones only."""
        found: list[Any] = []
        at: Place | None = self
        while at is not None and at.above is not None and len(found) < DEEPEST:
            found.append(at.key)
            at = at.above
        return tuple(reversed(found))

    def words(self) -> str:
        """Return it for a sentence: ``optimizer.state.0.exp_avg``."""
        return ".".join(str(one)[:80] for one in self.parts()) or "it"

    def named(self) -> str:
        """Return the last name, in small letters: that of the list, for what lies in one."""
        at: Place | None = self
        for _ in range(3):
            if at is None or type(at.key) is str:
                break
            at = at.above
        return _last(at.key) if at is not None and type(at.key) is str else ""

    def watches(self, shape: Sequence[int]) -> bool:
        """Say whether numbers here must be finite: all but those of records, which are single or in one row."""
        if self.optimizer or (len(shape) > 1 and len(shape) - list(shape).count(1) > 1):
            return True
        name = self.named()
        if _said(_TRAINED, name):
            return True
        single = all(one == 1 for one in shape)
        return not (_said(_RECORD, name) or self.record + single >= 2)

    def mask(self) -> bool | None:
        """Say whether its name is that of a mask; None where no mask can be: in the state of an optimizer."""
        return None if self.optimizer else _said(_MASK, self.named())


def _last(key: str) -> str:
    return key.rpartition(".")[2].lower()


@lru_cache(1 << 14)
def _kinds(key: str) -> tuple[int, bool]:
    """Whether a key is that of records, of which kind, and whether it is an optimizer's."""
    if "." not in key:
        return _kind(key)
    found = [_kind(one) for one in key.split(".")]
    return max(one[0] for one in found), any(one[1] for one in found)


@lru_cache(1 << 12)
def _kind(part: str) -> tuple[int, bool]:
    name = part.lower()
    record = 2 if _ROWS.fullmatch(name) else int(_SINGLE.fullmatch(name) is not None)
    return record, _OPTIMIZER.fullmatch(name) is not None


@lru_cache(1 << 12)
def _said(pattern: re.Pattern[str], name: str) -> bool:
    return pattern.fullmatch(name) is not None

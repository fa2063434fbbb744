"""The tokens that a program itself calls useful, beside all that it has processed. No clock, no file, no process."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, Final

USEFUL: Final = (
    "non_pad", "non_pad_tokens", "nonpad_tokens", "num_non_pad_tokens", "non_padding_tokens", "useful_tokens",
    "real_tokens", "num_real_tokens", "effective_tokens", "num_effective_tokens", "loss_tokens", "num_loss_tokens",
)  # fmt: skip
"""How programs call the tokens of a step that are no padding, or that have a loss."""


class Useful:
    """The part of a step's tokens that the program itself calls useful, over the window."""

    __slots__ = ("_key", "_window")

    def __init__(self, window: int) -> None:
        self._key: str | None = None
        self._window: deque[tuple[float, float]] = deque(maxlen=window)

    def take(self, extra: Mapping[str, float | str], tokens: float | None, given: float | None) -> None:
        """Take in what one record says beside the known numbers; ``tokens`` of the step as printed, or as given."""
        key = self._find(extra)
        value, whole = (None if key is None else extra.get(key)), (given if tokens is None else tokens)
        if isinstance(value, (int, float)) and whole is not None and 0 <= value <= whole < inf:
            self._window.append((float(value), float(whole)))

    def take_many(
        self, extra: Mapping[str, Sequence[float] | Sequence[str]], tokens: Sequence[float] | None, given: float | None
    ) -> None:
        """Take in many records; ``extra`` and ``tokens`` have one value for each."""
        key = self._find(extra)
        kept = self._window.maxlen or 0
        values = () if key is None else extra.get(key, ())
        wholes: Sequence[float | None] = [given] * len(values) if tokens is None else tokens
        for value, whole in list(zip(values, wholes, strict=False))[-kept:]:
            if isinstance(value, (int, float)):
                self.take({key or "": value}, whole, None)

    def _find(self, extra: Mapping[str, Any]) -> str | None:
        if self._key is None or self._key not in extra:
            found = next((key for key in extra if key.lower() in USEFUL), None)
            self._key = found if found is not None else self._key
        return self._key

    def share(self) -> float | None:
        """Return useful tokens over all tokens, in the window; None where nobody says."""
        whole = sum(all_of for _, all_of in self._window)
        return sum(useful for useful, _ in self._window) / whole if whole > 0 else None

    def part(self) -> None:
        """The steps do not go on from here."""
        self._window.clear()

    def snapshot(self) -> list[Any]:
        """Return all of it as builtins."""
        return [self._key, [list(one) for one in self._window]]

    def restore(self, state: list[Any] | None) -> None:
        """Go on where ``snapshot`` was taken."""
        if state is not None:
            self._key = state[0]
            self._window.extend((useful, whole) for useful, whole in state[1])

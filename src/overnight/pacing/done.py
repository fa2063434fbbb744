"""Seconds and tokens of the steps that a run has done, each step once, as its lines come.

A line stands for so many steps; what took far longer than a usual step has no known time and counts as the others do.
No clock, no file, no process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from overnight.pacing.attemptsums import USUAL
from overnight.pacing.sums import plus_products
from overnight.pacing.usual import ODD, Recent

_SUMS: Final = ("seconds", "timed", "tokens", "counted")


class Done:
    """``timed`` steps of known ``seconds``, ``counted`` ones of known ``tokens``; ``recent`` are the latest times.

    The first few times of a stretch wait until it is known what is usual there.
    """

    __slots__ = (*_SUMS, "_before", "_early", "_held", "_last", "recent")

    def __init__(self) -> None:
        self.seconds = self.tokens = 0.0
        self.timed = self.counted = 0
        self.recent = Recent()
        self._early: list[tuple[float, int, float]] = []  # (seconds a step, steps, usual ones that it may be)
        self._before: float | None = None  # the usual step time before the steps last went back
        self._held: tuple[float | None, float | None, float] | None = None  # (dt, tokens, factor) of the first line
        self._last: tuple[Any, ...] | None = None  # the sums, and what was early, before the latest line

    def add(self, dt: float | None, tokens: float | None, gain: int, *, printed: bool) -> None:
        """Add ``gain`` steps of so many seconds and tokens each; None: unknown, or something else lies in it."""
        self._last = (self.seconds, self.timed, self.tokens, self.counted, list(self._early))
        self._do(dt, tokens, gain, ODD if printed else USUAL)

    def _do(self, dt: float | None, tokens: float | None, gain: int, factor: float) -> None:
        if dt is not None:
            if self.recent.few:
                self._early.append((dt, gain, factor))
            else:
                self.timed += gain
                self.seconds += dt * gain
        if tokens is not None:
            self.counted += gain
            self.tokens += tokens * gain

    def note(self, dt: float | None) -> None:
        """Take in the known time of a line, whether its steps are new or not."""
        if dt is not None:
            self.recent.take(dt)
            if self._early and not self.recent.few:
                self._settle(self.recent.usual())

    def _settle(self, usual: float | None) -> None:
        early, self._early = self._early, []
        for dt, gain, factor in early:
            if usual is None or dt <= factor * usual:
                self.timed += gain
                self.seconds += dt * gain

    def add_many(self, times: Sequence[float], tokens: Sequence[float] | None, gains: Sequence[int]) -> None:
        """Add the steps of many lines, none of which is odd; ``recent`` knows what is usual."""
        before, rest = sum(gains) - gains[-1], gains[:-1]
        seconds = plus_products(self.seconds, times[:-1], rest)
        counted, summed = self.counted, self.tokens
        if tokens is not None:
            counted, summed = counted + before, plus_products(summed, tokens[:-1], rest)
        self._last = (seconds, self.timed + before, summed, counted, [])
        self.seconds, self.timed = plus_products(seconds, times[-1:], gains[-1:]), self.timed + before + gains[-1]
        if tokens is not None:
            self.counted = counted + gains[-1]
            self.tokens = plus_products(summed, tokens[-1:], gains[-1:])
        self.recent.take_many(times)

    def take_back(self) -> None:
        """The latest line was none of a step that was made: leave it out."""
        if self._last is not None:
            self.seconds, self.timed, self.tokens, self.counted, early = self._last
            self._early, self._last = [(dt, gain, factor) for dt, gain, factor in early], None
            self._settle(self._before)

    def hold(self, dt: float | None, tokens: float | None, *, again: bool, printed: bool) -> None:
        """Take in a line that has moved on nothing: the first of all, or, ``again``, one more of the same step."""
        if not again:
            self._held = (dt, tokens, ODD if printed else USUAL)
        elif dt is not None and self._held is None:
            self.seconds += dt
            self.tokens += tokens or 0.0

    def open(self, steps: int, share: int, given: float | None) -> None:
        """The run's first line is now known to have stood for ``steps`` steps, as one of ``share`` micro-steps."""
        held, self._held = self._held, None
        if held is not None:
            dt, tokens, factor = held
            printed = tokens is not None and tokens != given
            whole = tokens * share if tokens and printed else tokens
            self._do(None if dt is None else dt * share, whole, steps, factor * share)

    def forget_tokens(self) -> None:
        """What was summed as tokens was wrong."""
        self.tokens, self.counted = 0.0, 0
        self._last = None
        if self._held is not None:
            self._held = (self._held[0], None, self._held[2])

    def part(self) -> None:
        """The steps do not go on from here."""
        usual = self.recent.usual()
        self._before = self._before if usual is None else usual
        if self._early:
            self._settle(self._before)
        self.recent.clear()

    def sums(self) -> tuple[float, float, int, int]:
        """Return (seconds, tokens, timed, counted); what is not settled yet counts as it stands."""
        seconds, timed = self.seconds, self.timed
        for dt, gain, factor in self._early:
            if self._before is None or dt <= factor * self._before:
                seconds, timed = seconds + dt * gain, timed + gain
        return seconds, self.tokens, timed, self.counted

    def snapshot(self) -> dict[str, Any]:
        """Return all of it as builtins."""
        state: dict[str, Any] = {name: getattr(self, name) for name in _SUMS}
        state["recent"] = self.recent.snapshot()
        state["early"] = [list(one) for one in self._early]
        state["before"] = self._before
        state["held"] = None if self._held is None else list(self._held)
        last = self._last
        state["last"] = None if last is None else [*last[:-1], [list(one) for one in last[-1]]]
        return state

    @classmethod
    def restore(cls, state: dict[str, Any] | None, older: dict[str, Any]) -> Done:
        """Go on where ``snapshot`` was taken; ``older`` is that of a version which kept the sums there."""
        found = cls()
        if state is None:
            for name, was in zip(_SUMS, ("_done_s", "_done_timed", "_done_tokens", "_done_counted"), strict=True):
                setattr(found, name, older.get(was, 0))
            held = older.get("held")
            found._held = None if held is None else (held[0], held[1], ODD)
            return found
        for name in _SUMS:
            setattr(found, name, state[name])
        found.recent = Recent(state["recent"])
        found._early = [(dt, gain, factor) for dt, gain, factor in state["early"]]
        found._before = state["before"]
        held, last = state["held"], state["last"]
        found._held = None if held is None else (held[0], held[1], held[2])
        found._last = None if last is None else tuple(last)
        return found

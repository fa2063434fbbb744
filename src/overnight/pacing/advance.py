"""What each record has moved on: how many steps, whether they were done before, whether its time is that of training.

Only steps and interruptions; no times, no tokens. No clock, no file, no process. Many records at once give exactly what
they give one by one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import sub
from typing import Any, Final, NamedTuple

WARM_UP_STEPS: Final = 10
"""After each start of the command: compiling, caches, the first batches. They count for the time, not as clean ones."""

_SCALARS: Final = (
    "high", "folds", "known", "opening", "interrupted", "lines", "share", "steps_done", "_redone", "_since_start",
    "_lone", "_late", "_clean", "_undo",
)  # fmt: skip

STRAY: Final = 20
"""Times as far as the log goes on from the step before it, a step that is gone back from has jumped."""

_GAINS: Final = 21
"""Enough steps to outvote a log that prints its first ten steps one by one, or one odd last line."""


class Gains:
    """Steps from one line to the next, of late."""

    __slots__ = ("_common", "_latest")

    def __init__(self, latest: Iterable[int] = ()) -> None:
        self._latest: deque[int] = deque(latest, maxlen=_GAINS)
        self._common: int | None = None

    def take(self, gain: int) -> None:
        """Take in one more."""
        self._latest.append(gain)
        if gain != self._common:  # one more of the most common leaves it so, whatever falls out for it
            self._common = None

    def take_many(self, steps: Sequence[int]) -> None:
        """Take in the gains between rising steps."""
        some = steps[-_GAINS - 1 :]
        self._latest.extend(map(sub, some[1:], some))
        self._common = None

    def common(self) -> int:
        """Return the most common one, the smallest of several; 1 while there is none."""
        if self._common is None:
            latest = self._latest
            if not latest:
                return 1
            self._common = max(set(latest), key=lambda gain: (latest.count(gain), -gain))
        return self._common

    def snapshot(self) -> list[int]:
        """Return them as builtins."""
        return list(self._latest)


class Moved(NamedTuple):
    """What one record stands for.

    ``gain``: steps since the record before, or since the highest step of the run; 0 for a line that moved on nothing.
    ``redone``: an earlier attempt had come as far. ``interrupted``: something was announced, evaluated or saved since
    the record before. ``clean``: neither that nor a step of the warm-up in it. ``part``: the part of an optimizer
    step's tokens that is this line's.
    """

    gain: int
    redone: bool
    clean: bool
    part: float
    interrupted: bool = False


class Advance:
    """The steps of one run over all its attempts.

    ``high`` is the highest step done so far; where a program counts anew in each epoch it is that of the epoch
    (``folds``). ``known`` is false where nobody can say which steps were done again: such a program was started anew.
    ``share`` lines stand for one step, where each of ``accumulate`` micro-steps prints one.
    ``steps_done`` counts each step once.
    """

    __slots__ = (*_SCALARS, "accumulate")

    def __init__(self, accumulate: int = 1) -> None:
        """``accumulate``: micro-steps per optimizer step, by the settings."""
        self.accumulate = accumulate
        self.high: int | None = None
        self.folds = False
        self.known = True
        self.opening: int | None = None  # the run's first step, until it is known how many steps its line stood for
        self.interrupted = False
        self.lines = 0
        self.share = 1
        self.steps_done = 0
        self._since_start = 0  # steps that this start of the command has done, as far as lines tell
        self._lone = False  # only the first line of this start was seen: nobody knows how many steps it stood for
        self._late = False  # the run's first line came when several steps were done, and so will that of each start
        self._clean = False  # the latest step was
        self._redone = False
        self._undo: Sequence[int] | None = None  # the step before a far one, then high, steps_done, _since_start there

    def interrupt(self) -> None:
        """Something else than training was done (or began) since the last record: an evaluation, a save, a compile."""
        self.interrupted = True

    def begin_attempt(self) -> None:
        """The command starts anew."""
        self.known = self.known and not self.folds
        self._since_start = 0
        self._lone = False
        self.interrupted = False
        self.lines, self.share = 0, 1

    def follows(self, step: int) -> bool:
        """Say whether a record of this step can be taken with others at once: each one new, each one a step's."""
        alone = self.share == 1 and self.lines <= 1 and not self.interrupted
        return alone and self.high is not None and step > self.high

    def fall(self, step: int, stray: int, *, anew: bool, interval: int) -> bool:
        """The step fell within an attempt; ``anew``: the program counts from the beginning again.

        True if the program goes on as if the step ``stray`` that it fell from was not there: it was never made, and is
        taken back.
        """
        undo, self._undo = self._undo, None
        if undo is not None and is_stray(undo[0], stray, step):
            self.high, self.steps_done, self._since_start = undo[1:]
            return True
        if anew:
            self.folds = True
            self.high = step - min(interval, max(1, step))
        return False

    def take(self, step: int | None, previous: int | None, interval: int) -> Moved:
        """Take in a record; ``previous`` is the step before in the segment (None: its first record)."""
        interrupted = self.interrupted
        if step is not None and step == previous:
            self.lines += 1
            part = 1 / self.share if self.lines <= self.share else 1.0
            if self._lone and self.accumulate > 1:
                part = 0.0  # nobody knows yet whether it is of a micro-step: its time counts, and no more tokens
            return Moved(0, self._redone, self._clean and not interrupted, part, interrupted)
        self._undo, since = None, self._count(step, previous, interval)
        self._clean = since >= WARM_UP_STEPS and not interrupted
        self.interrupted = False
        if step is None:
            return Moved(0, redone=False, clean=self._clean, part=1.0, interrupted=interrupted)
        # As many lines as there are micro-steps: each is of one, and a step of fewer is a short one. Otherwise several
        # ranks say the same.
        if not 1 < self.lines < self.share:
            self.share = self.lines if self.lines == self.accumulate else 1
        self.lines = 1
        high = self.high
        self._redone = high is not None and step <= high
        if high is None:
            self.high, self.opening = step, step
            gain = 0
        elif step <= high:
            gain = interval if previous is None else step - previous
        else:
            gain = step - high
            if previous is not None and step - previous >= STRAY:
                self._undo = (previous, high, self.steps_done, since)
            self.high = step
            self.steps_done += gain
        return Moved(gain, self._redone, self._clean, 1 / self.share, interrupted)

    def _count(self, step: int | None, previous: int | None, interval: int) -> int:
        """Count the steps of a line; return how many this start of the command had done before them."""
        if step is None:
            gain = 1
        elif previous is None:
            self._lone = self._since_start == 0
            gain = 1 if self._lone else interval
        else:
            gain = step - previous
            self._settle(previous, gain)
        before = self._since_start
        self._since_start += gain
        return before

    def _settle(self, first: int, gain: int) -> None:
        """Count the steps that the first line of a start stood for, once the second has come ``gain`` behind it.

        Where it may have been printed for one step, as many programs print theirs at once, it was.
        """
        if self._lone:
            self._lone = False
            if self._late or first <= gain:
                self._since_start += _stood_for(first, gain) - 1

    def opened(self, gain: int) -> int | None:
        """Return how many steps the run's first line stood for, once the second has come ``gain`` steps behind it."""
        first = self.opening
        if first is None or gain <= 0:
            return None
        self.opening = None
        steps = _stood_for(first, gain)
        self._late = 1 < steps == gain
        self.steps_done += steps
        if self._undo is not None:
            before, high, done, since = self._undo
            self._undo = (before, high, done + steps, since)
        return steps

    def take_many(self, steps: Sequence[int], previous: int) -> tuple[list[int], int]:
        """Take in rising steps of which the first one ``follows``; return the gains, and how many are not clean."""
        if steps[-1] - steps[0] == len(steps) - 1:  # they rise, so by one each
            gains = [1] * len(steps)
            gains[0] = steps[0] - (self.high or 0)
        else:
            gains = [steps[0] - (self.high or 0), *map(sub, steps[1:], steps)]
        self._settle(previous, steps[0] - previous)
        short = WARM_UP_STEPS - self._since_start
        unclean = 0 if short <= 0 else 1 + bisect_left(steps, previous + short, 0, len(steps) - 1)
        before = steps[-2] if len(steps) > 1 else previous
        high = steps[-2] if len(steps) > 1 else self.high or 0
        far = steps[-1] - before >= STRAY
        since, count = self._since_start + before - previous, self.steps_done + high - (self.high or 0)
        self._undo = (before, high, count, since) if far else None
        self._since_start += steps[-1] - previous
        self._clean = unclean < len(steps)
        self.lines, self._redone = 1, False
        self.steps_done += steps[-1] - (self.high or 0)
        self.high = steps[-1]
        return gains, unclean

    def snapshot(self) -> dict[str, Any]:
        """Return all of it as builtins."""
        state = {name: getattr(self, name) for name in _SCALARS}
        return {**state, "_undo": None if self._undo is None else list(self._undo)}

    @classmethod
    def restore(cls, state: dict[str, Any] | None, highest: int | None, accumulate: int) -> Advance:
        """Go on where ``snapshot`` was taken; an older version knew only the highest step."""
        found = cls(accumulate)
        if state is None:
            found.high, found.known = highest, highest is None
            return found
        for name in _SCALARS:
            setattr(found, name, state.get(name, getattr(found, name)))
        return found


def is_stray(before: float, step: float, after: float) -> bool:
    """Say whether ``step`` was never made: far off ``before``, behind which the log goes on with ``after``."""
    return 0 < (after - before) * STRAY <= step - before


def _stood_for(first: int, gain: int) -> int:
    """Return the steps that a first line at step ``first`` stood for, where ``gain`` lie between two lines.

    Steps that count from 0 have done one more: every tenth line is of step 9, 19, 29.
    """
    return gain if first == gain - 1 else min(gain, max(1, first))


def share_of(gains: Sequence[float], accumulate: int) -> int | None:
    """Return how many lines stand for one step, by the gains of many lines; None where no step is whole among them."""
    begins = [place for place, gain in enumerate(gains) if gain > 0]
    lines = [after - before for before, after in pairwise(begins)]
    return None if not lines else accumulate if lines.count(accumulate) * 2 > len(lines) else 1


def parted(gains: Sequence[float], share: int, before: float) -> tuple[list[float], float]:
    """Return the gains of lines of which ``share`` stand for one step, each line with its part of it.

    ``before``: the gain of the step that the first lines belong to; that of the last ones is returned too.
    """
    found = []
    for gain in gains:
        before = gain if gain > 0 else before
        found.append(before / share)
    return found, before

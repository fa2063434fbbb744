"""The silences of a log around saves: a program may be busy long before it opens a file. Pure: times are arguments."""

from __future__ import annotations

from collections import deque

from overnight.saves.seen import Save

LEAST_SILENCE_S = 0.2


class Silences:
    """The long gaps between the steps of a log, and the saves that lie in them. Times are of the boot clock.

    A save is known only some time after it was over, a gap only with the step behind it: whichever comes last matches.
    """

    def __init__(self) -> None:
        self.step: int | None = None
        self.at: float | None = None
        self.gaps: deque[tuple[float, float, float]] = deque(maxlen=16)
        self.saves: list[Save] = []

    def stepped(self, step: int | None, now: float, step_s: float | None) -> None:
        """Take in that the log has come to ``step``; calling it again for the same step changes nothing."""
        if step == self.step:
            return
        if self.at is not None:
            steps = 1 if step is None or self.step is None else step - self.step
            found_s = silence_s(gap_s=now - self.at, steps=steps, step_s=step_s)
            if found_s >= LEAST_SILENCE_S:
                self.gaps.append((self.at, now, found_s))
        self.at, self.step = now, step

    def pause(self) -> None:
        """Take in that no step is made for now: the way to the next one is no gap between two."""
        self.at = self.step = None

    def saved(self, save: Save) -> None:
        """Take in a save."""
        self.saves.append(save)

    def around_saves(self) -> list[float]:
        """Return the seconds of every silence that a save lies in, each once."""
        known = [save for save in self.saves if self.at is not None and save.ended <= self.at]
        self.saves = [save for save in self.saves if save not in known]
        found = [gap for gap in self.gaps if any(gap[0] <= save.ended <= gap[1] for save in known)]
        for gap in found:
            self.gaps.remove(gap)
        return [gap[2] for gap in found]


def silence_s(*, gap_s: float, steps: int, step_s: float | None) -> float:
    """Return how much of a gap between two records was not spent stepping."""
    return max(0.0, gap_s - steps * (step_s or 0.0))

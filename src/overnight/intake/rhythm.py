"""How often the log grows: so that what is nearly due is done along with a line, and not in a turn of its own.

A turn costs the most by being one: everything that it touches has to come back into the processor's caches. No clock in
here: times are seconds on the boot clock, given by whoever asks.
"""

from __future__ import annotations

from collections import deque

REMEMBERED = 4
"""Programs print two or three lines together; the longest of so many gaps is that between two groups of them."""

LATE_S = 0.05
"""A line that comes later than this has not kept time."""

PATIENCE_S = 0.1
"""So much later what is to be done every few seconds may be done, if a line is expected until then."""


class Rhythm:
    """The gaps between the last turns in which something was read."""

    def __init__(self) -> None:
        self.at: float | None = None
        self.gaps: deque[float] = deque(maxlen=REMEMBERED)

    def heard(self, grew_at: float | None) -> None:
        """Take in when the log was seen to grow last; the same time again changes nothing."""
        if grew_at is None or grew_at == self.at:
            return
        if self.at is not None:
            self.gaps.append(grew_at - self.at)
        self.at = grew_at

    @property
    def gap_s(self) -> float:
        """Return the seconds within which another line follows upon one; 0 as long as nobody knows."""
        return max(self.gaps, default=0.0)

    def put_off(self, due_at: float, latest_at: float, now: float) -> float:
        """Return when to do what is due at ``due_at``: along with the next line, if that comes up to ``latest_at``."""
        if self.at is None or not self.gaps:
            return due_at
        line_at = self.at + self.gap_s + LATE_S
        return line_at if now < line_at and due_at < line_at <= latest_at else due_at


def now_rather_than_later(ago_s: float, every_s: float, gap_s: float) -> bool:
    """Say whether what is done every ``every_s``, and was done ``ago_s`` ago, is to be done now that a line has come.

    Earlier than it is due if the next line, ``gap_s`` later, comes too late for it; never before half of the time.
    """
    return ago_s >= every_s or ago_s + min(gap_s, every_s / 2) > every_s + PATIENCE_S

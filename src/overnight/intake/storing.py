"""When what was read and judged is committed, and whether the disk still has room for it.

Every commit costs; what a kill leaves uncommitted is read again. So there is one now and then, and one at once for what
could not be had again.
"""

from __future__ import annotations

from overnight.events import Verdict
from overnight.facts import Facts
from overnight.intake.reading import Intake
from overnight.intake.rhythm import now_rather_than_later

COMMIT_EVERY_S = 5.0
"""A commit is much of what a line a second costs at rest."""

COMMIT_RECORDS = 5000
DISK_EVERY_S = 10.0


class Storing:
    """The commits of one run. Times are seconds on the boot clock."""

    def __init__(self, intake: Intake, facts: Facts) -> None:
        self.intake = intake
        self.facts = facts
        self.committed_at = 0.0
        self.disk_at = 0.0

    def at_once(self) -> None:
        """Commit in this turn: the state holds something that no line of the log would bring back."""
        self.intake.dirty, self.committed_at = True, 0.0

    def turn(self, now: float, *, gap_s: float) -> bool:
        """Commit if it is time for it, lines coming ``gap_s`` apart; True if anything was new since the last commit."""
        moved = self.intake.dirty
        if moved and (not self.calm() or now_rather_than_later(now - self.committed_at, COMMIT_EVERY_S, gap_s)):
            self.committed_at = now
            self.intake.commit()
            self.facts.sync()
        return moved

    def calm(self) -> bool:
        """Say whether neither a verdict nor much waits to be stored, nor anything at once."""
        return not self.intake.judged and self.intake.waiting < COMMIT_RECORDS and self.committed_at > 0.0

    def next_turn_s(self, now: float) -> float | None:
        """Return when ``turn`` wants to be called though nothing happens; None if it does not."""
        return max(0.0, self.committed_at + COMMIT_EVERY_S - now) if self.intake.dirty else None

    def disk_trouble(self, now: float) -> Verdict | None:
        """Keep space ahead of the log, now and then; a verdict when there is none any more."""
        # Not before the log is there, or the first look finds nothing to keep space for and the next is long to come.
        if now - self.disk_at < DISK_EVERY_S or self.intake.log.handle() is None:
            return None
        self.disk_at = now
        return self.intake.disk_trouble()

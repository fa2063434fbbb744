"""The runs of a proof, one after the other: each started in its place, followed, ended, and told.

What is common to all of them; which run follows which, and what is compared, is decided elsewhere.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from overnight.errors import OvernightError, UsageError
from overnight.resumeproof import searching
from overnight.resumeproof.breaks import Breaks
from overnight.resumeproof.epochs import Bases
from overnight.resumeproof.evidence import Part
from overnight.resumeproof.following import Saved
from overnight.resumeproof.trial import STOP_AT, Asked, LateError, PartError, Ran, Told, Trial
from overnight.resumeproof.workcopy import Place, Workplace


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be proved: steps that were asked for (None: not), words for the second start, what may differ.

    ``tolerance`` is relative; None: the unbroken runs tell.
    """

    asked: Asked
    until: int | None = None
    stop_at: int | None = None
    resume_args: tuple[str, ...] = ()
    tolerance: float | None = None


class Unbroken(msgspec.Struct, frozen=True, kw_only=True):
    """One unbroken run, its place, and the checkpoints that it left there."""

    ran: Ran
    place: Place
    left: tuple[searching.Left, ...]
    library: bool

    @property
    def reached(self) -> int:
        """The last step it made: printed, or (the library's) saved; not every step may be printed."""
        saved = [one.step or 0 for one in self.left if one.maker == "overnight"]
        return max([self.ran.course.last_step or 0, *saved])


class Parts:
    """The parts of one proof. ``told``, ``notes`` and ``lines`` hold what is known when it breaks off.

    ``stop_at`` and ``until`` are the steps in force; ``lines`` the last ones of a part that failed.
    """

    def __init__(
        self,
        question: Question,
        workplace: Workplace,
        breaks: Breaks,
        tell: Callable[[Told], None],
        *,
        stop_at: int,
        until: int,
    ) -> None:
        self.question, self.workplace, self.breaks, self.tell = question, workplace, breaks, tell
        self.stop_at, self.until = stop_at, until
        self.told: list[Part] = []
        self.notes: list[str] = []
        self.lines: tuple[str, ...] = ()
        self.saves_at_end: bool | None = None  # whether a save is made at ``until``; None: no run has come there yet

    @contextmanager
    def part(
        self,
        name: str,
        place: Place,
        *,
        goal: int,
        stop_at: int,
        words: Sequence[str] = (),
        bases: Bases | None = None,
        **environ: str,
    ) -> Iterator[Trial]:
        """Start a part, and see to its end whatever happens; one that is broken off is told, too."""
        environ[STOP_AT] = str(stop_at)
        trial = Trial(
            name, self.workplace, place, self.question.asked,
            tell=self.tell, breaks=self.breaks, words=words, environ=environ, goal=goal,
            bases=bases,
        )  # fmt: skip
        whole = False
        try:
            trial.start()
            yield trial
            whole = True
        finally:
            trial.close()
            if not whole:
                with suppress(OvernightError, sqlite3.Error, OSError):  # it may not even have been placed
                    self.note_part(trial.broken_off())

    def to_the_end(self, trial: Trial) -> None:
        """Let a part run until it has made step ``until``: the library stops there by itself, others are ended.

        A save that is made at that step is waited for, so that there is one of each run. The first unbroken run tells
        whether there is one: it goes on until its next line, or until a save is over.
        """
        reached = trial.seen(self.until)
        if reached and (trial.follower.library or searching.signed(Path(trial.place.workdir), since=trial.began)):
            reached = trial.seen(self.until + 1)  # then it does not stop there
        elif reached and (self.saves_at_end is not False or trial.follower.saves.busy):
            reached = trial.seen(sys.maxsize, until=Saved(trial.follower, self.until, trial.patience_s))
        if self.saves_at_end is None:
            self.saves_at_end = any(step >= self.until for step in trial.follower.saves.steps)
        if reached:
            trial.stop(now=True)
        trial.end()

    def note_part(self, ran: Ran) -> None:
        """Add a part to those that are told."""
        known = ran.course
        self.told.append(
            Part(
                name=ran.name, run=ran.name, state=ran.state, first_step=known.first_step, last_step=known.last_step,
                seconds=ran.seconds, ended=known.ended,
            )
        )  # fmt: skip

    def unbroken(self, number: int) -> Unbroken:
        """Do one of the two unbroken runs, up to the last step that is compared."""
        name = f"unbroken-{number}"
        place = self.workplace.fresh(name)
        with self.part(name, place, goal=self.until, stop_at=self.until) as trial:
            try:
                self.to_the_end(trial)
            except LateError as error:
                trial.stop(now=True)
                trial.end()
                self.lines = trial.ran().lines
                if trial.follower.step is None:
                    raise UsageError(self._unread(name, str(error))) from None
                raise
            ran = trial.ran()
        self.note_part(ran)
        self.check(ran, place)
        root = Path(place.workdir)
        left = tuple(searching.left(root, since=ran.began))
        library = any(one.maker == "overnight" for one in left) or ran.library
        refused = self.workplace.refused(place, ran.lines) if number == 1 else None
        if refused is not None:
            self.notes.append(f"a write was refused, and the script went on: {refused}")
        if ran.sick is not None:
            self.notes.append(f"the unbroken run itself is ill: {ran.sick}")
        return Unbroken(ran=ran, place=place, left=left, library=library)

    def check(self, ran: Ran, place: Place) -> None:
        """Raise for a part that failed by itself, or of which no step could be read; with what to do about it."""
        if ran.crashed:
            self.lines = ran.lines
            refused = self.workplace.refused(place, ran.lines)
            if refused is not None:
                raise UsageError(refused)
            at = f"after step {ran.course.last_step}" if ran.course.last_step is not None else "before its first step"
            raise PartError(f"{ran.name} failed {at}: {ran.cause_text or ran.state}")
        if ran.course.first_step is None:
            self.lines = ran.lines
            raise UsageError(self._unread(ran.name, f"of what {ran.name} printed no step could be read"))

    def _unread(self, name: str, what: str) -> str:
        return (
            f"{what}, so there is nothing to compare; `OVERNIGHT_HOME={self.question.asked.home} overnight read {name}`"
            f" tells why, and --pattern teaches to read other lines"
        )

"""The whole proof: two unbroken runs, one that is stopped and one that is killed, both started again, and compared.

The order of things, and what is said where one of them did not happen. How a part runs is in ``trial``, how its place
is made in ``workcopy``, what a difference means in ``diagnosis``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from overnight.errors import UsageError
from overnight.folder import RunFolder
from overnight.resumeproof.breaks import Breaks
from overnight.resumeproof.evidence import Variant
from overnight.resumeproof.minding import Minder
from overnight.resumeproof.parts import Parts, Question, Unbroken
from overnight.resumeproof.printed import begins_again
from overnight.resumeproof.trial import PartError, Told
from overnight.resumeproof.variants import Variants
from overnight.resumeproof.workcopy import Workplace

STOP_STEP, BEYOND = 100, 10
"""Where the runs are stopped if nobody says, and how many steps later the comparison ends."""


class Proving:
    """One proof. ``parts`` and ``variants`` fill as it goes on, and hold what is known when it breaks off."""

    def __init__(self, question: Question, workplace: Workplace, breaks: Breaks, tell: Callable[[Told], None]) -> None:
        stop_at, until = steps_of(question.stop_at, question.until)
        self.question = question
        self.parts = Parts(question, workplace, breaks, tell, stop_at=stop_at, until=until)
        self.variants: list[Variant] = []

    def prove(self) -> bool:
        """Carry the proof out; say whether the resume is exact. UsageError or PartError if that cannot be told."""
        workplace = self.parts.workplace
        with Minder(self.question.asked.home, (workplace.root, workplace.tmp_root), keep=workplace.keep):
            return self._prove()

    def _prove(self) -> bool:
        first = self.parts.unbroken(1)
        self._settle_steps(first)
        second = self.parts.unbroken(2)
        self._whole(second)
        variants = Variants(self.parts, first, second)
        self.variants.append(variants.of("graceful"))
        self.variants.append(variants.of("kill"))
        return all(one.passed is not False for one in self.variants) and any(one.passed for one in self.variants)

    # -- which steps -------------------------------------------------------------------------------------------------

    def _settle_steps(self, first: Unbroken) -> None:
        """Fit the steps to what the first unbroken run did; UsageError if that cannot be, or was asked otherwise."""
        parts, course, asked = self.parts, first.ran.course, self.question
        begin, last = course.first_step or 0, course.last_step or 0
        again = begins_again(RunFolder(Path(asked.asked.home) / "runs" / first.ran.name))
        if again is not None:
            raise UsageError(
                f"the steps begin anew after step {again}, and no line says which epoch it is, so nobody knows where a "
                f"resumed run goes on: print the step of the whole run, or the epoch, or give --stop-at and --until "
                f"below {again}"
            )
        if begin > parts.stop_at:
            raise UsageError(
                f"the unbroken run begins at step {begin}, behind the stop step {parts.stop_at}: it goes on from what "
                f"it finds in its working copy; leave that out (--leave-out GLOB), or give a later --stop-at"
            )
        if first.reached < parts.until:
            if asked.until is not None or asked.stop_at is not None:
                raise UsageError(
                    f"the unbroken run ended by itself at step {last}, before --until {parts.until}: "
                    f"give --until {last} --stop-at {max(1, last * 2 // 3)}, or let the script do more steps"
                )
            self._use(max(begin, 1, last * 2 // 3), last, f"the script ends at step {last}")
        if any(parts.stop_at < step <= parts.until for step in course.series):
            return
        if last <= parts.stop_at or first.library or asked.until is not None:
            raise UsageError(
                f"the script prints no step from {parts.stop_at + 1} to {parts.until}, so there would be nothing to "
                f"compare: give a larger --until"
            )
        self._use(parts.stop_at, last, f"the next step that is printed after {parts.stop_at} is {last}")

    def _use(self, stop_at: int, until: int, why: str) -> None:
        self.parts.stop_at, self.parts.until = stop_at, until
        self.parts.notes.append(f"{why}: stopped at step {stop_at}, compared up to step {until}")

    def _whole(self, second: Unbroken) -> None:
        if second.reached < self.parts.until:
            raise PartError(
                f"{second.ran.name} ended by itself at step {second.ran.course.last_step}, the first unbroken run came "
                f"to {self.parts.until}: the two cannot be compared"
            )


def steps_of(stop_at: int | None, until: int | None) -> tuple[int, int]:
    """Return the stop step and the last one. UsageError if they cannot be compared."""
    if stop_at is None:
        stop_at = STOP_STEP if until is None or until > STOP_STEP else max(1, until * 2 // 3)
    if until is None:
        until = stop_at + BEYOND
    if not stop_at < until:
        raise UsageError(f"--until {until} must lie behind --stop-at {stop_at}: what comes after the stop is compared")
    return stop_at, until


def evidence_home(path: str) -> str:
    """Make the folder of a proof and return its absolute path; UsageError if it holds another proof or cannot be."""
    full = os.path.abspath(os.path.expanduser(path))
    try:
        os.makedirs(full, mode=0o700, exist_ok=True)
        taken = sorted(set(os.listdir(full)) & {"runs", "proof.json", "proof.txt"})
    except OSError as error:
        raise UsageError(f"--evidence {full} cannot be made: {error.strerror}; give another folder") from error
    if taken:
        raise UsageError(f"--evidence {full} holds {taken[0]} already; give a new folder, or remove that one")
    return full

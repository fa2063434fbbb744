"""One way to stop a training and to go on: the run before, what it has left, the run after, and what is different.

A stop that did not happen as it was meant is tried again, or said; never is anything judged that was not seen.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from overnight.errors import OvernightError, UsageError
from overnight.resumeproof import searching
from overnight.resumeproof.diagnosis import judge
from overnight.resumeproof.evidence import From, Variant, unseen
from overnight.resumeproof.parts import Parts, Unbroken
from overnight.resumeproof.searching import Left
from overnight.resumeproof.states import compare, keys
from overnight.resumeproof.trial import LateError, PartError, Ran, Trial, forget
from overnight.resumeproof.words import How, Judgement, Resumed, StateComparison
from overnight.resumeproof.workcopy import Place
from overnight.resumption.point import Point

TRIES = 3
UNSEEN = (
    "Nothing that the resumed run saved was compared: weights, an average of them (EMA) and buffers were not seen but "
    "by what is printed"
)
NAMES: Mapping[How, str] = {"graceful": "stopped", "kill": "killed"}
DEADLY = frozenset({"SIGINT", "SIGTERM", "SIGKILL"})
NEAR = 1
"""A save is noticed at the step that it is of, or one later: the training goes on meanwhile."""


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was stopped or killed in its place, and the checkpoint that it would go on from."""

    ran: Ran
    place: Place
    chosen: Left | None
    exact: bool

    @property
    def last(self) -> int:
        """The last step before the end: printed, or saved where the library stopped; 0 if there was none."""
        saved = self.chosen.step if self.exact and self.chosen is not None else None
        return max(self.ran.course.last_step or 0, saved or 0)


class Variants:
    """Both ways, beside the same two unbroken runs."""

    def __init__(self, parts: Parts, first: Unbroken, second: Unbroken) -> None:
        self.parts, self.first, self.second = parts, first, second
        self.library = first.library
        self.on_signal = False  # whether the run that was stopped has saved because of it

    def of(self, how: How) -> Variant:
        """Try one way. PartError if a run did not come to its stop step by itself."""
        found = self._stopped(how)
        if isinstance(found, Variant):
            return found
        compared = [] if found.chosen is None else self._compared([found.chosen], found.place)
        after, load_error = self._after(how, found)
        if load_error is None:
            left = searching.left(Path(found.place.workdir), since=after.began)
            compared += self._compared([one for one in left if _within(one, found, self.parts.until)], found.place)
        saved = self._saved_on_signal(found) if how == "graceful" else None
        self.on_signal = saved is True or self.on_signal
        resumed = Resumed(
            how=how,
            before=found.ran.course,
            after=after.course,
            stopped_at=found.last,
            exact=self.library and how == "graceful",
            checkpoint=None if found.chosen is None else found.chosen.path,
            checkpoint_step=None if found.chosen is None else found.chosen.step,
            checkpoint_keys=self._keys(found.chosen),
            saved_on_signal=saved,
            sent=found.ran.sent,
            load_error=load_error,
        )
        question, first, second = self.parts.question, self.first.ran.course, self.second.ran.course
        judged = judge(
            first, second, resumed, until=self.parts.until, tolerance=question.tolerance, states=tuple(compared)
        )
        return self._told(resumed, found, judged, compared)

    # -- the stop ----------------------------------------------------------------------------------------------------

    def _stopped(self, how: How) -> Stopped | Variant:
        """Return the run that was stopped while there was something left to do; a variant that says why there is none.

        A fast script does some steps before a signal reaches it: it is sent earlier then.
        """
        aim = self.parts.stop_at
        for left in reversed(range(TRIES)):
            found = self._stop_once(how, aim)
            known = None if found.chosen is None else found.chosen.step
            if min(found.last, self.parts.until if known is None else known) < self.parts.until:
                self.parts.note_part(found.ran)
                if found.last > self.parts.stop_at and not (self.library and how == "graceful"):
                    signal = "SIGKILL" if how == "kill" else "the signal"
                    asked = found.ran.asked_step
                    said = f"{found.ran.name}: {signal} went at step {asked}, the last step was {found.last}"
                    self.parts.notes.append(said)
                return found
            earlier = max(1, min(aim - 1, self.parts.stop_at - (found.last - aim)))
            if not left or earlier >= aim:
                break
            self.parts.notes.append(
                f"{found.ran.name}: asked at step {aim}, it went on to step {found.last}, beyond --until "
                f"{self.parts.until}; tried again with step {earlier}"
            )
            forget(self.parts.question.asked, found.ran.name)
            self.parts.workplace.remove(found.place)
            aim = earlier
        self.parts.note_part(found.ran)
        what = "SIGKILL" if how == "kill" else "the signal"
        text = (
            f"not proved: the script is too fast. It went on from step {aim} to step {found.last} before {what} had "
            f"any effect, so no step up to {self.parts.until} was left to do; give --until "
            f"{self.parts.until + 2 * (found.last - aim) + 10} or more"
        )
        return Variant(how=how, passed=False, cause=None, also=(), text=text, stopped_at=found.last)

    def _stop_once(self, how: How, aim: int) -> Stopped:
        name, exact = NAMES[how], self.library and how == "graceful"
        place = self.parts.workplace.fresh(name)
        limit = self.parts.stop_at if exact else self.parts.until
        with self.parts.part(name, place, goal=aim, stop_at=limit) as trial:
            if trial.seen(aim) and not exact:
                if how == "kill":
                    self._await_first_save(trial, aim)
                    trial.kill()
                else:
                    trial.stop()
            elif exact and trial.seen(aim + 1):
                trial.stop()
            trial.end()
            ran = trial.ran()
        if ran.crashed or ran.course.last_step is None:
            self.parts.note_part(ran)
            self.parts.check(ran, place)
        if ran.by_itself and (ran.course.last_step or 0) < min(aim, self.parts.stop_at) and not exact:
            raise PartError(f"{name} ended by itself at step {ran.course.last_step}, before the stop step {aim}")
        chosen = searching.choose(Path(place.workdir), since=ran.began, seen=ran.saves)
        refused = self.parts.workplace.refused(place, ran.lines) if chosen is None else None
        if chosen is None and refused is None and not (self.first.left or self.first.ran.save_steps):
            refused = self.parts.workplace.astray()
        if refused is not None:  # the script went on without its save, and so nothing is known of it
            self.parts.note_part(ran)
            self.parts.lines = ran.lines
            raise UsageError(refused)
        return Stopped(ran=ran, place=place, chosen=chosen, exact=exact)

    def _await_first_save(self, trial: Trial, aim: int) -> None:
        """Wait for the first save of all where it is due, but not over: nothing could be proved without it."""
        known = self.first.ran.save_steps
        if known and known[0] <= aim + NEAR and not trial.follower.saves.steps:
            trial.seen(self.parts.until, until=lambda: bool(trial.follower.saves.steps))

    def _saved_on_signal(self, found: Stopped) -> bool | None:
        """Say whether a save was made because the signal came; None if that cannot be told from a regular one."""
        ran, chosen = found.ran, found.chosen
        if chosen is None:
            return False
        if self.library:
            return chosen.step == found.last
        if ran.asked_at is None or chosen.at < ran.asked_at:
            return False
        if not self._regular(found.last if chosen.step is None else chosen.step, exact=chosen.step is not None):
            return True
        return False if ran.signal in DEADLY else None

    def _regular(self, step: int, *, exact: bool) -> bool:
        """Say whether the unbroken runs saved at a step, too, or may have: all that is known of many is about when.

        Those that are kept say of which step they are: where all are, one between two of these is not regular.
        """
        for run in (self.first, self.second):
            kept = [one.step for one in run.left if one.step is not None]
            if step in kept:
                return True
            if exact and len(kept) >= len(run.ran.save_steps) and kept and min(kept) < step < max(kept):
                return False
        return any(abs(one - step) <= NEAR for one in self.first.ran.save_steps)

    # -- the second start --------------------------------------------------------------------------------------------

    def _after(self, how: How, found: Stopped) -> tuple[Ran, str | None]:
        """Start the run again as the supervisor would; return it, and why it ended if it made no step."""
        asked, place = self.parts.question, found.place
        point = Point() if found.chosen is None else Point(path=found.chosen.path, step=found.chosen.step)
        words = point.words(self.parts.workplace.words(place, asked.resume_args))
        environ = {**point.environment(), "OVERNIGHT_ATTEMPT": "2"}
        name = f"{NAMES[how]}-resumed"
        late: str | None = None
        last = self.parts.until
        with self.parts.part(
            name, place, goal=last, stop_at=last, words=words, bases=self.first.ran.bases, **environ
        ) as trial:
            try:
                self.parts.to_the_end(trial)
            except LateError as error:
                late = str(error)
                trial.stop(now=True)
                trial.end()
            ran = trial.ran()
        if late is not None:
            ran = msgspec.structs.replace(ran, course=msgspec.structs.replace(ran.course, ended=late))
        self.parts.note_part(ran)
        if ran.course.first_step is not None:
            return ran, None
        if ran.crashed or late is not None:
            self.parts.lines = ran.lines
        said = next((line.strip() for line in reversed(ran.lines) if line.strip()), None)
        hangs = None if late is None else f"{late}: it hangs, or takes longer to begin"
        nothing = "it exited 0, as if nothing were left to do" if ran.exit_code == 0 else None
        why = hangs or nothing or ran.cause_text or "it ended without a step"
        known = said is None or (said.partition(": ")[2] or said) in why
        return ran, why if known else f"{why}: {said}"

    # -- states ------------------------------------------------------------------------------------------------------

    def _compared(self, some: Sequence[Left], place: Place) -> list[StateComparison]:
        """Compare checkpoints with those of the same step of the unbroken runs, where these have them."""
        done = []
        for one in some:
            reference = _same(one, place, self.first)
            if reference is None:
                continue
            second = _same(one, place, self.second)
            try:
                found = compare(Path(reference.path), Path(one.path), None if second is None else Path(second.path))
            except (OvernightError, OSError) as error:
                self.parts.notes.append(f"{os.path.basename(one.path)} was not compared: {error}")
                continue
            done.append(msgspec.structs.replace(found, step=one.step or found.step))
        return done

    def _keys(self, chosen: Left | None) -> tuple[str, ...]:
        if chosen is None:
            return ()
        try:
            return tuple(keys(Path(chosen.path)))
        except (OvernightError, OSError):
            return ()

    # -- the words ---------------------------------------------------------------------------------------------------

    def _told(
        self, resumed: Resumed, found: Stopped, judged: Judgement, compared: Sequence[StateComparison]
    ) -> Variant:
        chosen, passed, cause, text = found.chosen, judged.passed, judged.cause, judged.text
        if passed and self._anew(resumed):  # equal to the unbroken run, as it must be, and no resume
            passed, cause = False, "nothing_saved" if chosen is None else "not_resumed"
            text = f"started again, it began anew at step {resumed.after.first_step}"
        elif passed and not judged.compared:
            passed, text = False, "not proved: no value of the resumed run could be compared"
        origin = None if chosen is None else From(path=chosen.path, step=chosen.step, maker=chosen.maker)
        blind: list[str] = []
        if passed and unseen(origin, compared):
            text, blind = f"{text.rstrip('. ')}. {UNSEEN}.", [self._blind()]
        told: bool | None = passed
        if chosen is None and not passed:
            if resumed.how == "graceful":  # a night would go on from the save before, which the run killed shows
                told = None
            text = f"{text.rstrip('. ')}; {self._advice(resumed.how)}"
        return Variant(
            how=resumed.how, passed=told, cause=cause, also=judged.also, text=text,
            step=judged.step, metric=judged.metric, unbroken=judged.unbroken, resumed=judged.resumed,
            compared=judged.compared, equal=judged.equal,
            resumed_from=origin,
            stopped_at=resumed.stopped_at, exact=resumed.exact, saved_on_signal=resumed.saved_on_signal,
            states=tuple(compared), floor=judged.floor, left_out=judged.left_out,
            notes=tuple(f"{NAMES[resumed.how]}: {_small(note)}" for note in (*judged.notes, *blind)),
        )  # fmt: skip

    def _anew(self, resumed: Resumed) -> bool:
        """Say whether the second start did what the first one did, from the first step on."""
        first, again = self.first.ran.course.first_step, resumed.after.first_step
        return first is not None and again is not None and again <= first < resumed.stopped_at

    def _blind(self) -> str:
        """Say why no state was compared, and what would show one."""
        if self.parts.saves_at_end:
            return (
                f"what no printed value shows (an average of the weights, buffers) is not proved: the save of step "
                f"{self.parts.until} could not be compared, for it was not whole, its step is not told, "
                f"or it lies at a place that is not known here (--checkpoints)"
            )
        known = self.first.ran.save_steps[:2]
        such = "" if len(known) < 2 else f", as it does after steps {known[0]} and {known[1]}"
        return (
            f"what no printed value shows (an average of the weights, buffers) is not proved: give an --until at which "
            f"the script saves{such}"
        )

    def _advice(self, how: How) -> str:
        known = self.first.ran.save_steps
        if how == "graceful":
            return "it saved nothing on the signal and had saved nothing before, so this is left to the run killed"
        if known:
            return f"the unbroken run saved first at step {known[0]}: give --stop-at {known[0] + 1} or later"
        if self.on_signal:
            return "it saves only when it is asked to stop: a kill, a crash or a power cut loses everything"
        return (
            f"no save was seen up to step {self.parts.until}: give a --stop-at behind the first save, or --checkpoints,"
            f" or {{workdir}} in the command if it saves to another place and goes on when that is refused"
        )


def _small(sentence: str) -> str:
    """Return a sentence as it stands behind a colon."""
    return sentence[:1].lower() + sentence[1:]


def _within(one: Left, found: Stopped, until: int) -> bool:
    begun = 0 if found.chosen is None or found.chosen.step is None else found.chosen.step
    return one.step is not None and begun < one.step <= until


def _same(one: Left, place: Place, unbroken: Unbroken) -> Left | None:
    """Return the unbroken run's checkpoint of the same step: at the same place, else the only one of that maker."""
    there = os.path.join(unbroken.place.workdir, os.path.relpath(one.path, place.workdir))
    alike = [other for other in unbroken.left if other.step is not None and other.step == one.step]
    exactly = [other for other in alike if other.path == there]
    makers = [other for other in alike if other.maker == one.maker]
    return exactly[0] if exactly else makers[0] if len(makers) == 1 else None

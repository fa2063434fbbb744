"""One part of a proof: a real run of Overnight in a home of its own, followed from beginning to end.

What a part is ended by, and at which step, is the caller's word; nothing is compared or judged here. Whatever happens,
``close`` leaves no process of the part behind.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from overnight import client, launch, processes, targets
from overnight.errors import OvernightError
from overnight.folder import RunFolder
from overnight.options import RULES
from overnight.patience import Patience
from overnight.places import find_executable
from overnight.resumeproof import endings
from overnight.resumeproof.breaks import Breaks
from overnight.resumeproof.epochs import Bases
from overnight.resumeproof.following import Follower
from overnight.resumeproof.printed import bases_of, last_lines, saves_of, series_of
from overnight.resumeproof.words import Course
from overnight.resumeproof.workcopy import Place, Workplace
from overnight.spec import HOUR_S, RunSpec, StopSignal

POLL_S, SETTLE_S = 0.003, 0.03
UNREAD_S, UNREAD_LINES = 30.0, 200
"""After so much time and so many lines without a step it is said that none is read."""
LOOK_S = 0.1
ENDED_WITHIN_S = 60.0
VERIFIED_WITHIN_S, LEFT_WITHIN_S = 90.0, 10.0
"""How long the supervisor of an ended run may look at its last saves; and how long it has where nobody waits."""

STOP_AT, CHECKPOINT, SKIP_STEPS = "OVERNIGHT_STOP_AT", "OVERNIGHT_CHECKPOINT", "OVERNIGHT_SKIP_STEPS"
OWN = (STOP_AT, CHECKPOINT, SKIP_STEPS)

KILLED = endings.Ending(
    state="stopped", cause_text="killed: it had not ended in time", exit_code=None, signal="SIGKILL", seconds=None
)
"""How a part has ended that nothing but SIGKILL for all of its keepers could end, so that nobody wrote it down."""


class PartError(OvernightError):
    """A part of the proof did not do what it has to do for a proof (exit code 1)."""


class LateError(PartError):
    """A part took longer than ``--timeout``."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of every part, each of which has ``timeout_s``.

    ``home`` is where their run folders lie, ``checkpoints`` the folder that a script saves to, relative to its place.
    """

    home: str
    checkpoints: str | None = None
    pattern: str | None = None
    line_buffered: bool = False
    stop_signal: StopSignal = "auto"
    grace_s: float = 60.0
    grace_max_s: float = 1800.0
    timeout_s: float = 3600.0


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown while a part goes on: its name, how far it is and how far it has to go; ``over``: its last word.

    ``hint``: a sentence about what does not go as it should.
    """

    name: str
    step: int | None = None
    goal: int | None = None
    over: str | None = None
    hint: str | None = None


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """A part that has ended. ``began`` and ``asked_at`` (of the stop or kill) in seconds since the epoch.

    ``asked_step`` is the step that was seen when it was asked to end; ``by_itself``: nobody had asked. ``saves``: the
    paths that the run's journal names, oldest first; ``save_steps`` the steps at which saves were seen to end; ``sent``
    is the first signal of its stop; ``bases`` are those of its epochs, where it counts anew in each.
    """

    name: str
    state: str
    cause_text: str | None
    exit_code: int | None
    signal: str | None
    seconds: float
    course: Course
    began: float
    asked_at: float | None
    asked_step: int | None
    by_itself: bool
    library: bool
    sick: str | None
    saves: tuple[str, ...]
    save_steps: tuple[int, ...]
    sent: str | None
    bases: Bases
    lines: tuple[str, ...]

    @property
    def crashed(self) -> bool:
        """Whether it ended by itself, and badly."""
        return self.by_itself and self.state != "finished"


class Trial:
    """One part. ``words`` are appended to the command, ``environ`` are variables of this part alone.

    ``tell`` is given what to show, and ``goal`` is the step shown as the one to come to; ``bases`` are those of the
    epochs of an unbroken run, for one that goes on. Begin with ``start``; at the
    end ``close``, whatever has happened.
    """

    def __init__(
        self,
        name: str,
        workplace: Workplace,
        place: Place,
        asked: Asked,
        *,
        tell: Callable[[Told], None],
        breaks: Breaks,
        words: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        goal: int | None = None,
        bases: Bases | None = None,
    ) -> None:
        self.bases = bases
        self.name, self.asked, self.tell, self.breaks, self.goal = name, asked, tell, breaks, goal
        self.folder = RunFolder(Path(asked.home) / "runs" / name)
        command = workplace.command(place, [*place.argv, *words], log=log_of(asked, name))
        self.place, self.stop_at = place, (environ or {}).get(STOP_AT)
        self.spec = spec_of(name, place, asked, command, environ or {})
        self.follower = Follower(self.spec, saves_in=Path(self.spec.checkpoints or place.workdir), bases=bases)
        self.files = self.folder.attempt(1)
        self.began = time.time()
        self.asked_at: float | None = None
        self.asked_step: int | None = None
        self.how = "ended by itself"
        self._deadline = time.monotonic() + asked.timeout_s
        self._told_at = 0.0
        self._hint_at: float | None = time.monotonic() + UNREAD_S
        self._placed = self._over = self._late = False

    def start(self) -> None:
        """Place the run. UsageError or LaunchError if that cannot be done."""
        self.tell(Told(name=self.name, goal=self.goal))
        with self.breaks.held():  # half a launch could not be taken back
            self._placed = True
            self.began = time.time()
            launch.start(self.spec, {}, home=Path(self.asked.home), settle_s=0.0)

    # -- following ---------------------------------------------------------------------------------------------------

    def seen(self, step: int, *, until: Callable[[], bool] | None = None) -> bool:
        """Wait until the log has come to ``step``, or ``until`` says that it is enough; False if it has ended first."""
        while True:
            ended = self.files.exit_json.exists()  # before the look: what was printed last is then read, too
            now = self.follower.look(time.time())
            self._show(now)
            if now is not None and now >= step:
                return True
            if until is not None and until():
                return True
            if ended or self._never_began():
                return False
            self._mind_time()
            time.sleep(POLL_S)

    def end(self) -> None:
        """Wait until the run has ended and nobody keeps it any more; one that was late already is ended for good."""
        while not (self.files.exit_json.exists() or self._never_began()):
            self._show(self.follower.look(time.time()))
            if self._late and time.monotonic() >= self._deadline:
                launch.revoke(self.folder)
                self._over = True
                break
            self._mind_time()
            time.sleep(POLL_S)
        if not self._over:
            self._settle(ENDED_WITHIN_S + self.asked.grace_s, VERIFIED_WITHIN_S)
        self._show(self.follower.look(time.time()))

    def _never_began(self) -> bool:
        if self.files.started_json.exists():
            return False
        return client.status(self.folder)["state"] in client.ENDED

    def _settle(self, within_s: float, left_within_s: float) -> None:
        """Wait until the end is written down, and then until nobody keeps the run: each for so long at most."""
        patience, until = Patience(lambda: launch.adopt(self.folder)), time.monotonic() + within_s
        one = client.status(self.folder)
        while not endings.known(self.folder, one):
            if time.monotonic() >= until:
                return
            patience.done(one)
            time.sleep(SETTLE_S)
            one = client.status(self.folder)
        until = time.monotonic() + left_within_s
        while one["supervisor"]["alive"] or one["shim"]["alive"]:
            if time.monotonic() >= until:
                return
            time.sleep(SETTLE_S)
            one = client.status(self.folder)
        self._over = True

    def _mind_time(self) -> None:
        if self._late or time.monotonic() < self._deadline:
            return
        step, limit = self.follower.step, f"--timeout {self.asked.timeout_s:g}s"
        self._late, self._deadline = True, time.monotonic() + self.asked.grace_s + ENDED_WITHIN_S  # for its end
        if step is None:
            raise LateError(f"{self.name} had printed no step that could be read when {limit} was over")
        raise LateError(f"{self.name} had come to step {step} only when {limit} was over; give it more time")

    def _show(self, step: int | None) -> None:
        now = time.monotonic()
        if now - self._told_at >= LOOK_S:
            self._told_at = now
            self.tell(Told(name=self.name, step=step, goal=self.goal, hint=self._hint(now, step)))

    def _hint(self, now: float, step: int | None) -> str | None:
        """Say once that nothing is read of what is printed: else one would wait for --timeout to hear it."""
        if self._hint_at is None or now < self._hint_at or (step is None and self.follower.lines < UNREAD_LINES):
            return None
        self._hint_at = None
        if step is not None:
            return None
        return (
            f"no step was read in {self.follower.lines:,} lines so far; `overnight read {self.spec.log}` tells why, "
            f"Ctrl-C breaks off"
        )

    @property
    def patience_s(self) -> float:
        """How long it is waited for what may not come: as long as all took so far, and never beyond ``--timeout``."""
        return max(0.0, min(time.time() - self.began, self._deadline - time.monotonic() - 1.0))

    # -- ending ------------------------------------------------------------------------------------------------------

    def stop(self, *, now: bool = False) -> None:
        """Ask for the end as ``overnight stop`` does: gracefully, or at once with ``now``."""
        self._asking("ended" if now else "stopped")
        client.request_stop(self.folder, now=now)

    def kill(self) -> None:
        """Send SIGKILL to the training itself and then to all the rest of its tree, from here and at once."""
        self._asking("killed")
        command = processes.identify(int((client.read_object(str(self.files.started_json)) or {"pid": 0})["pid"]))
        if command is None:
            return
        found = targets.find_targets(command.pid, sample=False)
        victims = [one for pid in found.pids if (one := processes.identify(pid)) is not None]
        for one in victims:
            processes.send(one.pid, one.start_ticks, signal.SIGKILL)
        for pid in [*processes.descendants(command.pid), command.pid]:
            known = processes.identify(pid)
            if known is not None:
                processes.send(pid, known.start_ticks, signal.SIGKILL)

    def _asking(self, how: str) -> None:
        self.asked_at, self.asked_step, self.how = time.time(), self.follower.step, how

    def close(self) -> None:
        """End what still runs, its whole tree, and let the files go."""
        with self.breaks.held():
            self.follower.close()
            self._end_all()

    def _end_all(self) -> None:
        if not self._placed or self._over or not self.folder.path.is_dir():
            return
        with contextlib.suppress(OvernightError, OSError):  # damaged, or a full disk: it is ended all the same
            if not endings.known(self.folder, client.status(self.folder)):
                client.request_stop(self.folder, now=True)
            self._settle(LEFT_WITHIN_S, LEFT_WITHIN_S)
        if not self._over:
            launch.revoke(self.folder)

    # -- what it was -------------------------------------------------------------------------------------------------

    def ran(self) -> Ran:
        """Return what the part was, once it has ended. PartError if nobody has written all of that down."""
        by_itself = self.asked_at is None
        how = endings.ending_of(self.folder, asked=not by_itself) or KILLED
        series = series_of(self.folder, self.bases)
        steps = list(series)
        last = max(steps, default=None)
        if by_itself and (self.follower.step or 0) > (last or 0) and endings.told(self.folder) is None:
            raise PartError(
                f"{self.name} has ended, but its supervisor has not stored what it printed last; "
                f"{self.folder.supervisor_log} may say why"
            )
        ended = how.cause_text or "exited 0"
        if not by_itself:
            ended = f"{self.how} at step {last}" if last is not None else f"{self.how} before its first step"
        elif how.state == "finished":
            asked = self.follower.library and str(last) == self.stop_at
            ended = f"stopped at step {last}, as asked" if asked else f"ended by itself at step {last}"
        self.tell(Told(name=self.name, step=last, goal=self.goal, over=ended))
        return Ran(
            name=self.name,
            state=how.state,
            cause_text=how.cause_text,
            exit_code=how.exit_code,
            signal=how.signal,
            seconds=round(time.time() - self.began if how.seconds is None else float(how.seconds), 3),
            course=Course(series=series, first_step=min(steps, default=None), last_step=last, ended=ended),
            began=self.began,
            asked_at=self.asked_at,
            asked_step=self.asked_step,
            by_itself=by_itself,
            library=self.follower.library,
            sick=self.follower.sick,
            saves=saves_of(self.folder),
            save_steps=tuple(self.follower.saves.steps),
            sent=None if by_itself else endings.sent(self.folder),
            bases=bases_of(self.folder),
            lines=tuple(last_lines(Path(self.spec.log))),
        )

    def broken_off(self) -> Ran:
        """Return what the part was when the proof broke off: after ``close``. OvernightError if nothing tells."""
        if self.asked_at is None:
            self._asking("broken off")
        return self.ran()


# -- what a part is made of --------------------------------------------------------------------------------------------


def log_of(asked: Asked, name: str) -> str:
    """Return where a part's output goes."""
    return str(Path(asked.home) / "runs" / name / "output.log")


def spec_of(name: str, place: Place, asked: Asked, command: Sequence[str], environ: Mapping[str, str]) -> RunSpec:
    """Return what a part's run is asked: no rule but the stall acts, no hook, no report of its own.

    The variables are set by ``env`` in front of the command, which becomes it.
    """
    own = {**place.environ, **environ}
    unset = dict.fromkeys((*place.unset, *(key for key in OWN if key not in own)))
    words = [word for key in unset for word in ("-u", key)]
    return RunSpec(
        name=name,
        argv=("env", *words, *(f"{key}={value}" for key, value in sorted(own.items())), *command),
        executable=find_executable("env", launch.user_environment().get("PATH"), place.cwd),
        cwd=place.cwd,
        log=log_of(asked, name),
        stop_signal=asked.stop_signal,
        grace_s=asked.grace_s,
        grace_max_s=max(asked.grace_s, asked.grace_max_s),
        pattern=asked.pattern,
        line_buffered=asked.line_buffered,
        actions={rule: "note" for rule in RULES if rule not in ("stall", "wall_clock")},
        checkpoints=os.path.join(place.workdir, asked.checkpoints or ""),
        max_hours=2.0 * (asked.timeout_s + asked.grace_s) / HOUR_S,  # should nobody be left who minds --timeout
        report="never",
    )


def forget(asked: Asked, name: str) -> None:
    """Remove the run folder of a part that has ended and does not count."""
    shutil.rmtree(Path(asked.home) / "runs" / name, ignore_errors=True)

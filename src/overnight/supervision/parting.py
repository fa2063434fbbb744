"""The last turns of a run: its last save is looked at, its report is made, its hooks run; requests are taken.

The report comes first, because a hook may send it, or turn the machine off. A side process makes it, so that neither a
million lines nor a broken file can hold up the supervisor: it is waited for up to ``REPORT_S``, and made again by the
next supervisor if this one is killed.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from overnight.clocks import boot_clock
from overnight.events import Exit
from overnight.facts import Facts
from overnight.folder import RunFolder, read_json
from overnight.hooks.starting import Hooks
from overnight.intake.reading import Intake
from overnight.snapshot import verdict_line
from overnight.supervision.comeback import Comeback
from overnight.supervision.gauges import Gauges
from overnight.supervision.publishing import Publisher
from overnight.supervision.waking import Wake, Woke

if TYPE_CHECKING:
    import subprocess  # imported where the report is begun: 2.4 MB that no night needs

REPORT_S = 60.0
"""Longer than the 50 s that the side process gives itself, so that it can say why and leave nothing behind."""

TRIES = 2
LOOK_S = 0.1
AGAIN_S = 2.0
VERIFY_S, LITTLE_S = 60.0, 5.0
"""So long the last saves are waited for; less where whoever asked for the end will not wait either."""
UNWRITTEN_S = 1800.0
"""How long an end that a full disk lets nobody see is offered to it again."""

HINDERED_S = 15.0
"""The same where the disk has room: a folder in the place of metrics.db, a lock, rights. Nobody mends that by waiting.
"""

LONGEST_SLEEP_S = 20.0
GONE_S = 1.0
"""So often the run's folder is looked for while nothing else is to be done."""

NOBODY = Woke(log=False, names=frozenset(), exits=frozenset(), signals=())


class Parting:
    """Sees one ended run out. ``obey`` takes the requests that have come."""

    def __init__(
        self,
        folder: RunFolder,
        facts: Facts,
        *,
        intake: Intake,
        hooks: Hooks,
        publisher: Publisher,
        gauges: Gauges,
        wake: Wake,
        obey: Callable[[Woke], None],
        comeback: Comeback,
    ) -> None:
        self.folder = folder
        self.facts = facts
        self.intake = intake
        self.hooks = hooks
        self.publisher = publisher
        self.gauges = gauges
        self.wake = wake
        self.obey = obey
        self.comeback = comeback
        self.place = _place(folder)

    def see_out(self, how: Exit | None) -> None:
        """Return when nothing is left to do; ``how`` the last attempt ended, if there was one."""
        ended_at = None if how is None else how.at
        # It gives back the space that it kept ahead of the log, too: report and hooks may need it.
        stored = self.intake.close()
        self._verify()
        self.facts.sync()  # a hook may turn the machine off
        self.hooks.end()  # what is published says already which hooks are waited for
        self._publish()
        self._report(ended_at)
        woke, began = NOBODY, boot_clock()
        while not self._removed():  # removed or moved away: nobody will ever see, or stop, what is waited for
            self.hooks.turn(boot_clock())
            self.obey(woke)
            stored = stored or self._store(ended_at)
            until = began + (UNWRITTEN_S if self.folder.is_full() else HINDERED_S)
            told = (self._publish() and stored) or boot_clock() >= until
            if told and not self.hooks.busy():
                break
            waits = [self.hooks.next_look_s(boot_clock()), None if told else AGAIN_S]
            woke = self._sleep(min([LONGEST_SLEEP_S, *(wait_s for wait_s in waits if wait_s is not None)]))
        if not stored:
            self.intake.give_up()
            self._publish()  # with the note that says what to do
        self.facts.sync()
        self.folder.drop_ballast()

    def _removed(self) -> bool:
        """Say whether the folder is no longer where it was; another one of its name is none of ours."""
        try:
            return _place(self.folder) != self.place
        except OSError:
            return False  # a disk that does not answer for now

    def _sleep(self, wait_s: float) -> Woke:
        """Sleep until something happens, the time is over, or the folder is gone, which nothing else would tell."""
        until = boot_clock() + wait_s
        while True:
            woke = self.wake.sleep(max(0.0, min(GONE_S, until - boot_clock())))
            if not woke.by_timer or boot_clock() >= until or self._removed():
                return woke

    def _verify(self) -> None:
        """Let the last saves be looked at to the end: somebody may wait to hear that the final one is whole."""
        self.comeback.vetting.hurry = True
        orders = [self.folder.attempt(number).stop_json for number in self.folder.attempt_numbers()[-1:]]
        order = read_json(orders[0]) if orders else None
        hurried = order is not None and (order.get("now") is True or order.get("by") in ("scheduler", "shutdown"))
        until = boot_clock() + (LITTLE_S if hurried else VERIFY_S)
        while self.comeback.busy() and boot_clock() < until:
            self._tell_bad()
            self.obey(self.wake.sleep(LOOK_S))
        self._tell_bad()
        self.comeback.close()

    def _tell_bad(self) -> None:
        for verdict in self.comeback.bad_saves(0):
            if self.facts.judge(verdict):
                self.hooks.tell("verdict", boot_clock(), verdict=verdict_line(verdict))

    def _store(self, ended_at: float | None) -> bool:
        """Try once more to store the last records (a full disk, a lock); then the report is made anew, of all."""
        stored = self.intake.close()
        if stored:
            with contextlib.suppress(OSError):
                self.folder.report_html.unlink()
            self._report(ended_at)
        return stored

    def _publish(self) -> bool:
        self.publisher.urgent = True
        return not self._removed() and self.publisher.publish(self.gauges.now())

    def _report(self, ended_at: float | None) -> None:
        """Let the report be made and wait for it; that there is none never changes how a run has ended."""
        if self.publisher.spec.report == "never" or self._made(ended_at):
            return
        said = None
        for _ in range(TRIES):  # once more if somebody has killed the one that makes it
            said = self._make()
            if said is None:
                return
        self.facts.note(f"the report could not be made: {said}; `overnight report {self.folder.name}` makes it")

    def _make(self) -> str | None:
        """Make the report; a sentence if it could not be."""
        process, said = _begin(self.folder)
        if process is None:
            return said
        until = boot_clock() + REPORT_S
        while process.poll() is None:
            if boot_clock() >= until:
                process.kill()
                process.wait()
                return f"it took longer than {REPORT_S:g} s"
            self.obey(self.wake.sleep(LOOK_S))
        if process.returncode == 0:
            return None
        return f"it ended with {process.returncode}; {self.folder.supervisor_log} says why"

    def _made(self, ended_at: float | None) -> bool:
        """Say whether an earlier supervisor has made it already."""
        with contextlib.suppress(OSError):
            return ended_at is not None and self.folder.report_html.stat().st_mtime > ended_at
        return False


def _place(folder: RunFolder) -> tuple[int, int] | None:
    """Return which folder of owners lies at the run's path; None for none.

    Not the run's own folder: ``rm -rf`` leaves that behind if a file is written meanwhile, but this is not made again.
    """
    try:
        found = os.stat(folder.owner)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def _begin(folder: RunFolder) -> tuple[subprocess.Popen[bytes] | None, str | None]:
    """Start the process that makes the report; or say why it cannot be started."""
    import subprocess

    words = [sys.executable, "-I", "-m", "overnight.report.making", str(folder.path)]
    environ = {**os.environ, "OVERNIGHT_ROLE": "report"}  # so that it is not taken for a part of the training
    try:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, cwd="/", env=environ, start_new_session=True)
    except (OSError, ValueError) as error:  # no process to be had
        return None, str(error)
    return process, None

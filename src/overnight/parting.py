"""The last turns of a run: its report is made, then its hooks run, and what still comes into the inbox is taken.

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
from overnight.facts import Facts
from overnight.folder import RunFolder
from overnight.gauges import Gauges
from overnight.hooks import Hooks
from overnight.intake import Intake
from overnight.publishing import Publisher
from overnight.waking import Wake, Woke

if TYPE_CHECKING:
    import subprocess  # imported where the report is begun: 2.4 MB that no night needs

REPORT_S = 60.0
LOOK_S = 0.1
LONGEST_SLEEP_S = 20.0

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
    ) -> None:
        self.folder = folder
        self.facts = facts
        self.intake = intake
        self.hooks = hooks
        self.publisher = publisher
        self.gauges = gauges
        self.wake = wake
        self.obey = obey

    def see_out(self, ended_at: float | None) -> None:
        """Return when nothing is left to do; ``ended_at`` (seconds since the epoch) is when the last attempt ended."""
        self.intake.close()  # and gives back the space that it kept ahead of the log: report and hooks may need it
        self.facts.sync()  # a hook may turn the machine off
        self.hooks.end()  # what is published says already which hooks are waited for
        self._publish()
        self._report(ended_at)
        woke = NOBODY
        while True:
            self.hooks.turn(boot_clock())
            self.obey(woke)
            self._publish()
            if not self.hooks.busy():
                break
            wait_s = self.hooks.next_look_s(boot_clock())
            woke = self.wake.sleep(LONGEST_SLEEP_S if wait_s is None else min(LONGEST_SLEEP_S, wait_s))
        self.facts.sync()
        self.folder.drop_ballast()

    def _publish(self) -> None:
        self.publisher.urgent = True
        self.publisher.publish(self.gauges.now())

    def _report(self, ended_at: float | None) -> None:
        """Let the report be made and wait for it; that there is none never changes how a run has ended."""
        if self.publisher.spec.report == "never" or self._made(ended_at):
            return
        process, said = _begin(self.folder)
        until = boot_clock() + REPORT_S
        while process is not None and process.poll() is None:
            if boot_clock() >= until:
                process.kill()
                said = f"it took longer than {REPORT_S:g} s"
                break
            self.obey(self.wake.sleep(LOOK_S))
        if process is not None and process.poll():
            said = said or f"it ended with {process.returncode}; {self.folder.supervisor_log} says why"
        if said is not None:
            self.facts.note(f"the report could not be made: {said}; `overnight report {self.folder.name}` makes it")

    def _made(self, ended_at: float | None) -> bool:
        """Say whether an earlier supervisor has made it already."""
        with contextlib.suppress(OSError):
            return ended_at is not None and self.folder.report_html.stat().st_mtime > ended_at
        return False


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

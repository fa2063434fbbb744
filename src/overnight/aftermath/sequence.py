"""What follows the end of a command before anything else may begin: nothing of it is left, and its GPUs are free.

Three things at the same time: what it left behind is ended (``remains.py``), who holds the devices is told and ended
(``releasing.py``), and after a bad end the GPUs are looked at once more (``lastlook.py``). What the end means is
decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from overnight.aftermath.lastlook import LastLook, worth_a_look
from overnight.aftermath.releasing import Release, Say
from overnight.aftermath.remains import Remains
from overnight.exits.causes import Finding
from overnight.sensors import GpuSample
from overnight.sensors.gpulook import GpuLook

CLEARING_LOOK_S = 0.05


class Aftermath:
    """The time between the end of one attempt's command and the moment when it is over altogether.

    ``files``: the GPUs' device files, if there are any. ``bad``: the end was one that another start may follow.
    """

    def __init__(
        self,
        run_dir: Path,
        attempt: int,
        *,
        remains: Remains,
        look: GpuLook,
        files: Sequence[str | Path],
        bad: bool,
        say: Say,
    ) -> None:
        self.remains = remains
        self.say = say
        self.cleared = self.over = False
        self.release = Release(run_dir, attempt, files=files, say=say, note=self._note)
        self.release.begin()
        self.last_look = LastLook(run_dir, look, wanted=bad and worth_a_look(run_dir))

    def _note(self, text: str) -> None:
        self.say("note", text=text)

    def turn(self, now: float) -> bool:
        """Take the next step; True once nothing is left that could be done."""
        if self.over:
            return True
        self.cleared = self.cleared or self.remains.turn(now)
        free = self.release.turn(now, cleared=self.cleared)
        looked = self.last_look.turn(now)
        self.over = self.cleared and free and looked
        if self.over and self.last_look.trouble is not None:
            self._note(f"the GPUs were looked at after the end: {self.last_look.trouble}")
        return self.over

    def next_look_s(self, now: float) -> float | None:
        """Return when ``turn`` wants to be called though nothing happens; None if it does not."""
        if self.over:
            return None
        waits = [self.release.next_look_s(), self.last_look.next_look_s(now)]
        waits.append(None if self.cleared else CLEARING_LOOK_S)
        return min((wait for wait in waits if wait is not None), default=0.0)

    def samples(self) -> Sequence[GpuSample] | None:
        """Return what the GPUs said after a bad end, empty if they did not answer; None where nobody asked."""
        return self.last_look.samples if self.last_look.wanted else None

    def stuck(self) -> Finding | None:
        """Return why another start would be in vain, if something of this one could not be ended."""
        if self.release.hung:
            text = self.release.hung[0].text
        elif self.remains.hung:
            text = f"process {self.remains.hung[0].pid} ({self.remains.hung[0].name}) hangs in the kernel"
        else:
            return None
        return Finding(cause="hardware", text=f"{text}, and it cannot be killed", restartable=False)

    def close(self) -> None:
        """Leave everything as it is."""
        self.release.close()
        self.last_look.close()

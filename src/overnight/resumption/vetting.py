"""Looks into each save soon after it has appeared: one side process at a time, the newest first, nothing twice.

What is removed meanwhile is forgotten, what is written to is looked at again, and a look that fails is tried once more
before nothing can be told. The supervisor waits for none of it; no content is read in its own process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from overnight.resumption.child import Child, reap
from overnight.resumption.known import GONE, KnownSave, SavesBook, whole

LIMIT_S = 1800.0
"""A look that takes longer is broken off: its disk hangs, or the machine has no time for it."""
AGAIN_S = 2.0
LONGEST_WAIT_S = 60.0
TRIES = 2
LOOK_S, LATER_LOOK_S = 0.1, 1.0
"""Between two looks at whether the process has said something: at first, and once it has taken some seconds."""
OTHERS = 8
"""Saves that are known to be good, of which each look sees whether they are still there."""
MODULE = "overnight.resumption.looking"


class Bad(NamedTuple):
    """A save that was found to be bad, and why."""

    path: str
    step: int | None
    text: str


class _Wait(NamedTuple):
    """When a save may be looked at again, how long was waited last, and how many looks at it have failed."""

    due: float
    wait_s: float
    failed: int


class Vetting:
    """The looks at one run's saves. ``now`` is always a time of the boot clock.

    ``say`` writes a ``checked`` fact down and has the book recall it. ``handle`` is a pipe to be watched while it is
    not None; another one with each look. ``hurry``: nothing else needs the machine, large saves are read at once.
    """

    def __init__(self, book: SavesBook, *, say: Callable[..., None], limit_s: float = LIMIT_S) -> None:
        self.book = book
        self.say = say
        self.limit_s = limit_s
        self.hurry = False
        self._child: Child | None = None
        self._looked: KnownSave | None = None
        self._began = 0.0
        self._answer: dict[str, Any] | None = None
        self._waits: dict[str, _Wait] = {}
        self._done: dict[str, float] = {}
        self._closed = False

    @property
    def handle(self) -> int | None:
        """The pipe of the look that is under way."""
        return None if self._child is None else self._child.handle

    def saw(self, path: str) -> None:
        """Take in that a save was seen, which the book knows by now."""
        self._waits.pop(whole(path), None)

    def turn(self, now: float) -> list[Bad]:
        """Take in what has come, start what is due, and return what was found to be bad since the last turn."""
        reap()
        bad: list[Bad] = []
        if self._child is not None:
            ended = self._child.ended()  # first: what it says between two looks must not be lost
            self._answer = next(filter(None, map(_answer, self._child.lines())), self._answer)
            late = now - self._began > self.limit_s
            if late:
                self._child.kill()
                ended = ended or self._child.ended()
            if self._answer is not None or ended:
                bad = self._finish(now, late=late)
        if self._child is None and not self._closed:
            self._start(now)
        return bad

    def next_look_s(self, now: float) -> float | None:
        """Return when ``turn`` wants to be called though nothing happens; None if it does not."""
        if self._child is not None:
            return LOOK_S if now - self._began < 20 * LOOK_S else LATER_LOOK_S
        return min((max(0.01, self._due(save) - now) for save in self._open()), default=None)

    def busy(self) -> bool:
        """Say whether a save is being looked at, or waits for it."""
        return self._child is not None or (not self._closed and bool(self._open()))

    def close(self) -> None:
        """End the process; nothing is looked at any more."""
        self._closed = True
        if self._child is not None:
            self._child.close()
            self._child = None

    def _open(self) -> list[KnownSave]:
        return [one for one in self.book.unchecked() if self._done.get(one.path) != one.at]

    def _due(self, save: KnownSave) -> float:
        return self._waits[save.path].due if save.path in self._waits else 0.0

    def _start(self, now: float) -> None:
        save = next((one for one in self._open() if self._due(one) <= now), None)
        if save is None:
            return
        fellow = self.book.fellow(save.path)
        named = None if fellow is None else os.path.basename(fellow.path)
        others = [one.path for one in self.book.saves if one.path != save.path and self.book.usable(one)][-OTHERS:]
        asked = {"parent": os.getpid(), "path": save.path, "fellow": named, "idle": not self.hurry, "others": others}
        self._looked, self._began, self._answer = save, now, None
        try:
            self._child = Child(MODULE, json.dumps(asked).encode())
        except OSError as error:  # no process, no memory or no handle to be had
            self._failed(save, now, f"no process could be started for it: {error.strerror}")

    def _finish(self, now: float, *, late: bool) -> list[Bad]:
        child, save, answer = self._child, self._looked, self._answer
        assert child is not None
        assert save is not None
        ended = child.code
        child.close()
        self._child = None
        for path in () if answer is None else answer["gone"]:
            self._gone(path)
        known = self.book.of(save.path)
        if known is None or known.at != save.at:
            return []  # another one lies there by now, and waits for a look of its own
        if answer is None:
            said = f"it took longer than {self.limit_s:g} s" if late else f"the process ended with {ended}"
            self._failed(save, now, said)
            return []
        if answer["again"]:
            before = self._waits.get(save.path)
            wait_s = AGAIN_S if before is None else min(2.0 * before.wait_s, LONGEST_WAIT_S)
            self._waits[save.path] = _Wait(now + wait_s, wait_s, 0 if before is None else before.failed)
            return []
        self._tell(save, **{name: answer[name] for name in ("valid", "finite", "problem", "maker", "check_s")})
        if answer["valid"] is not False:
            return []
        return [Bad(save.path, save.step, str(answer["problem"]))]

    def _gone(self, path: str) -> None:
        """Take in that a save is not there any more: a script keeps only its last ones."""
        save = self.book.of(path)
        if save is not None and self.book.usable(save):
            self._tell(save, valid=save.valid, finite=save.finite, problem=GONE, maker=save.maker, check_s=save.check_s)

    def _failed(self, save: KnownSave, now: float, why: str) -> None:
        before = self._waits.get(save.path)
        failed = 1 if before is None else before.failed + 1
        if failed < TRIES:
            self._waits[save.path] = _Wait(now + AGAIN_S, AGAIN_S, failed)
            return
        self._tell(save, valid=None, finite=None, problem=f"it could not be looked at: {why}", maker=None, check_s=None)

    def _tell(self, save: KnownSave, **found: Any) -> None:
        self._waits.pop(save.path, None)
        known = {one.path for one in self.book.saves}
        self._done = {path: at for path, at in self._done.items() if path in known}
        self._done[save.path] = save.at
        self.say("checked", path=save.path, step=save.step, attempt=save.attempt, **found)


def _answer(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
        needed = ("path", "valid", "finite", "problem", "maker", "check_s", "again", "gone")
        return found if all(name in found for name in needed) else None
    except (ValueError, TypeError):  # it was killed within a line
        return None

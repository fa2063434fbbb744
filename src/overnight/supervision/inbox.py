"""The requests that clients drop into a run's inbox, one small file each, in the order of their arrival.

A file stays until what it asks for has been done: a supervisor killed before that leaves it to the next one, which
finds in the journal whether it has been obeyed. What a request leads to is decided elsewhere.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from overnight.events import Request
from overnight.facts import Facts
from overnight.folder import RunFolder, read_regular
from overnight.supervision.waking import Woke

AGAIN_S = 0.5
"""So soon what was left for a later turn is looked at again, though nothing happens."""


class Inbox:
    """One run's inbox. ``postponed`` says that a request is left in it for a later turn."""

    def __init__(self, folder: RunFolder, facts: Facts, *, leave: tuple[str, ...] = ()) -> None:
        """``leave`` are kinds of requests that are left for another supervisor."""
        self.path = folder.inbox
        self.leave = tuple(f"-{kind}.json" for kind in leave)
        self.facts = facts
        self.postponed = True

    def requests(self, woke: Woke) -> Iterator[tuple[str, Request, bool]]:
        """Yield (file, request, whether it is new) and remove each after the caller has dealt with it and comes back.

        One that the caller postpones stays. Looks only if something may be there; what is no request is noted, removed.
        """
        if not woke.names and not woke.to_all and not self.postponed:
            return
        self.postponed = False
        try:
            names = sorted(name for name in os.listdir(self.path) if name.endswith(".json"))
        except OSError:
            return
        names = [name for name in names if not name.endswith(self.leave)]
        for name in names:
            path = self.path / name
            try:
                data = read_regular(path)
            except PermissionError:
                data = b""  # a pipe, a folder: nothing that a client of ours has dropped
            except OSError:
                self.postponed = True  # no descriptors left, or a disk that fails: a stop must not be lost for that
                continue
            request = self._decode(name, data)
            if request is not None:
                others, self.postponed = self.postponed, False
                yield name, request, self.facts.fresh_request(name, request)
                left, self.postponed = self.postponed, self.postponed or others
                if left:
                    continue
            _remove(path)

    def holds(self, kind: str) -> bool:
        """Say whether there is a request of this kind."""
        try:
            return any(name.endswith(f"-{kind}.json") for name in os.listdir(self.path))
        except OSError:
            return False

    def postpone(self) -> None:
        """Leave the requests where they are, or the one that was just yielded: nothing can be done about it yet."""
        self.postponed = True

    def next_look_s(self, _now: float) -> float | None:
        """Return when it is to be looked into though nothing happens, in seconds; None if it is not."""
        return AGAIN_S if self.postponed else None

    def _decode(self, name: str, data: bytes) -> Request | None:
        try:
            return msgspec.json.decode(data, type=Request)
        except (msgspec.MsgspecError, ValueError) as error:
            self.facts.note(f"the request {name} cannot be understood and is dropped: {error}")
            return None


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()

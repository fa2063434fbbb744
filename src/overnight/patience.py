"""How long a looker waits for a run, and what wakes it: the end, its hooks, a file of the folder that is published.

Statuses are values here, as ``client`` returns them; nothing is read but the kernel's notices of a run folder.
"""

from __future__ import annotations

import os
import time

from overnight.errors import FolderError
from overnight.kept import ENDED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Self

    from overnight.folder import RunFolder

    Status = dict[str, Any]

STALE_EVERY_S = 5.0
POLL_S = 0.25
LONGEST_S = 86400.0

HOOKS_UNKEPT_S = 5.0
"""Nobody runs the hooks of an ended run that has had no supervisor for this long."""


def kept(one: Status) -> bool:
    """Say whether anybody of the run's keepers lives."""
    return any(isinstance(one[role], dict) and one[role].get("alive") is True for role in ("supervisor", "shim"))


def hooks_left(one: Status) -> int:
    """Return how many hooks have not been done with yet."""
    return _hooks(one, "pending")


def hooks_failed(one: Status) -> int:
    """Return how many hooks have failed."""
    return _hooks(one, "failed")


def hooks_held(one: Status) -> str | None:
    """Return what the hooks of an ended run wait for before they may start; None if nothing holds them back."""
    hooks = one.get("hooks") if one["state"] in ENDED else None
    text = hooks.get("held") if isinstance(hooks, dict) else None
    return text if isinstance(text, str) and hooks_left(one) else None


def _hooks(one: Status, key: str) -> int:
    hooks = one.get("hooks")
    if not hooks:  # of a thousand runs in a list hardly any has one
        return 0
    count = hooks.get(key) if isinstance(hooks, dict) else None
    return count if type(count) is int else 0


def over(one: Status) -> bool:
    """Say whether there is nothing more to wait for: the run has ended, and so have its hooks or who would run them.

    A supervisor that has hooks to run says first that the run has ended, and stays until the last of them has. Those
    that are held back because of other work are not waited for: the work may be what waits, and it may take a night.
    """
    if one["state"] not in ENDED:
        return False
    if os.environ.get("OVERNIGHT_ROLE") == "hook" and os.environ.get("OVERNIGHT_RUN_ID") == one["name"]:
        return True  # asked by one of its hooks, which would wait for itself
    if hooks_held(one) is not None:
        return True
    busy = one.get("hooks") is not None and one["supervisor"]["alive"]
    return not busy and not (hooks_left(one) and kept(one))


class Patience:
    """Tells when a run that is looked at again and again has to be waited for no longer, and when it needs help.

    ``on_stale`` is called at most every 5 s while nobody keeps the run.
    """

    def __init__(self, on_stale: Callable[[], None] | None = None) -> None:
        self.on_stale = on_stale
        self.stale_at: float | None = None
        self.unkept_at: float | None = None

    def done(self, seen: Status) -> bool:
        """Say whether ``seen`` is the last there is to wait for; FolderError for a run that nobody could mend."""
        now = time.monotonic()
        if seen["state"] in ENDED:
            alone = not seen["supervisor"]["alive"]
            self.unkept_at = (self.unkept_at or now) if alone else None
            unkept = self.unkept_at is not None and now - self.unkept_at >= HOOKS_UNKEPT_S
            if unkept or (over(seen) and not (seen["stale"] and self.on_stale is not None)):
                return True
        if seen["stale"] and (self.stale_at is None or now - self.stale_at >= STALE_EVERY_S):
            if seen["state"] == "damaged" and (self.stale_at is not None or self.on_stale is None):
                raise FolderError(str(seen["cause_text"]))  # an adopting supervisor could not mend it
            self.stale_at = now
            if self.on_stale is not None:
                self.on_stale()
        return False


class FolderWatch:
    """Sleeps until a file of a run folder is published. Where inotify is refused (limits, odd disks) it polls."""

    def __init__(self, *folders: RunFolder) -> None:
        from inotify_simple import INotify, flags

        self._inotify: INotify | None = None
        try:
            self._inotify = INotify()
            for folder in folders:
                self._inotify.add_watch(folder.path, flags.MOVED_TO | flags.DELETE_SELF)
        except OSError:
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self, most_s: float, bell: int | None = None) -> None:
        """Return at the next publication, when ``bell`` can be read, after ``most_s`` seconds at the latest."""
        import select

        handles = [handle for handle in (self._inotify, bell) if handle is not None]
        most_s = most_s if self._inotify is not None else min(most_s, POLL_S)
        if (
            self._inotify in select.select(handles, (), (), min(max(0.001, most_s), LONGEST_S))[0]
            and self._inotify is not None
        ):
            list(self._inotify.read(timeout=0))

    def close(self) -> None:
        """Let the watch go."""
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None

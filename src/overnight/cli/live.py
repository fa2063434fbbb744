"""Shows something again and again until it is over: redrawn in place on a terminal, appended anywhere else.

What is shown comes in as callables; no run folder is read here. A signal handler only rings a bell in a pipe.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self
from unicodedata import combining, east_asian_width

from overnight.cli.terminal import drawable, size
from overnight.kept import MOVING

_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")


@dataclass(frozen=True, kw_only=True)
class View:
    """What is shown: ``look`` finds it, ``text`` makes text of it for a width, ``document`` what --json prints.

    ``sleep`` waits so many seconds at most, and wakes when the handle it is given can be read. ``newest_last`` says
    which end is shown where not all of it fits.
    """

    look: Callable[[], Any]
    text: Callable[[Any, int], str]
    document: Callable[[Any], str]
    over: Callable[[Any], bool]
    sleep: Callable[[float, int], None]
    newest_last: bool = False


def watch(view: View, *, interval_s: float, as_json: bool) -> int:
    """Show a view until it is over or the viewer leaves with Ctrl-C; return 0."""
    out: _Out = _Documents(view) if as_json else _Screen(view) if drawable() else _Snapshots(view)
    try:
        with Bell() as bell:
            while True:
                seen = view.look()
                out.show(seen)
                if view.over(seen):
                    out.last(seen)
                    return 0
                view.sleep(interval_s, bell.handle)
                bell.hush()
                _check_reader()
    except KeyboardInterrupt:
        out.left()
        return 0


class Bell:
    """A pipe that can be read once a signal has come: a sleep ends at once when the terminal gets another size."""

    def __enter__(self) -> Self:
        self.handle, self._far = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before = signal.signal(signal.SIGWINCH, lambda *_: None)
        signal.set_wakeup_fd(self._far, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGWINCH, self._before)
        os.close(self.handle)
        os.close(self._far)

    def hush(self) -> None:
        """Take the rings out of the pipe."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.handle, 4096)


def sleep(seconds: float, bell: int) -> None:
    """Sleep, until the bell rings at most."""
    select.select([bell], (), (), min(seconds, 86400.0))


def _check_reader() -> None:
    """Raise BrokenPipeError if nobody reads a pipe any more: without a change to print, it would never be noticed."""
    if sys.stdout is None:
        raise BrokenPipeError
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):  # a file of another kind, or no file at all
        return
    if any(event & select.POLLERR for _, event in poll.poll(0)):
        raise BrokenPipeError


class _Out:
    """Where a view is shown."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.known: object = None

    def changed(self, seen: Any) -> bool:
        """Say whether there is more new in it than the time."""
        now = [_bare(one) for one in (seen if isinstance(seen, list) else [seen])]
        new = now != self.known
        self.known = now
        return new

    def show(self, seen: Any) -> None:
        """Show what is there now."""
        raise NotImplementedError

    def last(self, seen: Any) -> None:
        """Show what is there at the end, when it has been shown already."""

    def left(self) -> None:
        """Leave the place in order."""


def _bare(one: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in one.items() if key not in MOVING}


class _Documents(_Out):
    """One line of JSON for each change."""

    def show(self, seen: Any) -> None:
        if self.changed(seen):
            print(self.view.document(seen), flush=True)


class _Snapshots(_Out):
    """A file or a pipe: whole texts one after the other, each for a change and below a line with the time."""

    def show(self, seen: Any) -> None:
        if self.changed(seen):
            at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            print(f"--- {at} ---\n{self.view.text(seen, 80)}", flush=True)


class _Screen(_Out):
    """A terminal: each text is written over the one before, in one write, and nothing if it is the same."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self.drawn = ""
        self.size = (0, 0)

    def show(self, seen: Any) -> None:
        now = size()
        # The last column stays free: what is cleared behind a full line would be its last sign.
        width, height = now[0] - 1, now[1]
        lines = fitted(self.view.text(seen, width).splitlines(), width, height, newest_last=self.view.newest_last)
        frame = framed(lines)
        if (frame, now) == (self.drawn, self.size):
            return
        clear = "" if now == self.size else "\x1b[2J"  # what a wider or higher terminal showed is not ours to keep
        self.drawn, self.size = frame, now
        sys.stdout.write(clear + frame)
        sys.stdout.flush()

    def last(self, seen: Any) -> None:
        sys.stdout.write(f"\x1b[H\x1b[J{self.view.text(seen, self.size[0] - 1)}\n")
        sys.stdout.flush()

    def left(self) -> None:
        sys.stdout.write("\n")


def fitted(lines: list[str], columns: int, height: int, *, newest_last: bool = False) -> list[str]:
    """Return at most ``height`` lines of at most ``columns`` columns; one of them says how many are not shown.

    With ``newest_last`` the first line (a head) and the last ones are kept, else the first ones.
    """
    if len(lines) > height:
        left = len(lines) - (height - 1)
        said = f"... {left} more line{'s' if left > 1 else ''}"
        last = len(lines) - (height - 2)
        lines = [lines[0], said, *lines[last:]] if newest_last else [*lines[: height - 1], said]
    return [clipped(line, columns) for line in lines]


def clipped(line: str, columns: int) -> str:
    """Return what of a line fits into so many columns; colours take none, a wide sign takes two."""
    parts, room = [], columns
    for part in _COLOUR.split(line):
        if part.startswith("\x1b"):
            parts.append(part)
            continue
        for sign in part:
            wide = 0 if combining(sign) else 2 if east_asian_width(sign) in "WF" else 1
            if wide > room:
                room = 0
                break
            parts.append(sign)
            room -= wide
    return "".join(parts)


def framed(lines: list[str]) -> str:
    """Return what draws lines over whatever is on the terminal: from the first place on, no line longer than itself."""
    return "\x1b[H" + "\r\n".join(f"{line}\x1b[K" for line in lines) + "\x1b[J"

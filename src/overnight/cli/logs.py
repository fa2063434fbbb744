"""The verbs that show what the training wrote: ``logs`` and ``attach``. Viewers only: leaving never disturbs a run.

``attach --pane`` is what stands in a tmux pane. There Ctrl-C asks the run to stop, as it would end a command of one's
own; nothing else that can happen to a pane does anything but end the view.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Self

from overnight import client
from overnight.cli.flags import lines_asked
from overnight.cli.follow import Follower, exists, offset_of_last, offset_of_last_shown
from overnight.cli.live import clipped
from overnight.cli.look import settle
from overnight.cli.notice import StopNews, farewell, own_start
from overnight.cli.parser import INTERRUPTED, new_parser
from overnight.cli.render import live_line
from overnight.cli.terminal import drawable
from overnight.errors import FolderError
from overnight.folder import RunFolder
from overnight.screen import Lines, Shown

LOGS_EXAMPLES = """\
  overnight logs                  all the latest run wrote, each bar once
  overnight logs quiet -n 20      its last 20 lines
  overnight logs -f               its last 10 lines, and on until the run ends
  overnight logs --raw > run.log  byte for byte
"""

ATTACH_EXAMPLES = """\
  overnight attach                watch the latest run; Ctrl-C leaves it running
"""

FOLLOWED_LINES = 10
PANE_LINES = 1000
GOES_ON_WITHIN_S = 10.0
"""How long the keepers of a run that had ended may take to say that it goes on (``recover``), in a viewer's eyes."""
STATUS_EVERY_S = 1.0
BARS_EVERY_S = 1.0
"""How often the state of a bar is a line of its own for whoever follows a log through a pipe."""
DRAWN_EVERY_S = 0.1
"""How often the line below is drawn at most, unless lines came that wiped it."""


def logs(words: list[str]) -> int:
    """Print a run's log."""
    parser = new_parser("logs", LOGS_EXAMPLES)
    parser.add_argument("name", nargs="?", metavar="NAME", help="a run, or the beginning of its name (default: latest)")
    parser.add_argument("-n", "--lines", metavar="N", help="only the last N lines (default: all; with -f: 10)")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run has ended")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--raw", action="store_true", help="byte for byte, as the training wrote it")
    form.add_argument("--json", action="store_true", help="one object per line: {offset, text}")
    args, strange = parser.parse_known_args(words)
    if strange:
        hint = "; did you mean -n?" if strange[0].partition("=")[0] in ("--tail", "--last", "--head") else ""
        parser.error(f"unrecognized arguments: {' '.join(strange)}{hint}")
    count = lines_asked(args.lines) if args.lines is not None else FOLLOWED_LINES if args.follow else None
    folder = client.find(client.find_home(), args.name)
    path = log_path(folder)
    if not args.follow and not exists(path):
        raise FolderError(f"{folder.name} has no log yet: {path} does not exist")
    last = offset_of_last if args.raw else offset_of_last_shown
    start = 0 if count is None else last(path, count)
    over = _over(folder, follow=args.follow)
    with Follower(path, start, also=str(folder.path)) as follower:
        if args.raw:
            out = sys.stdout.buffer
            for data in stream(follower, over):
                out.write(data)
                out.flush()
        elif args.follow and not args.json and drawable():
            _scroll(follower, Lines(start), over)
        else:
            write = _print_json if args.json else _print_plain
            for line in shown_lines(follower, Lines(start), over, live=args.follow):
                write(line)
    return 0


def _scroll(follower: Follower, lines: Lines, over: Callable[[], bool]) -> None:
    """Show lines on a terminal as they come, and below them the bar that is being drawn."""
    view = View(bar=True)
    try:
        while True:
            grew = _show(follower, lines, view)
            view.draw(lines.pending())
            if not grew:
                if over():
                    break
                follower.wait()
        _show(follower, lines, view)
        view.lines(lines.flush())
    finally:
        view.clear()
        sys.stdout.flush()


def log_path(folder: RunFolder) -> str:
    """Return where the run's log is; the usual place if nothing says otherwise."""
    one = client.status(folder)
    return one["log"] or str(folder.output_log)


def _print_plain(line: Shown) -> None:
    print(line.text)


def _print_json(line: Shown) -> None:
    print(json.dumps({"offset": line.offset, "text": line.text}))


def _over(folder: RunFolder, *, follow: bool) -> Callable[[], bool]:
    """Return what says that no more of the log will come: at once, or when the run has ended."""
    if not follow:
        return lambda: True

    def over() -> bool:
        sys.stdout.flush()
        return client.status(folder)["state"] in client.ENDED

    return over


def stream(follower: Follower, over: Callable[[], bool]) -> Iterator[bytes]:
    """Yield the log's bytes until ``over``, and what was still written up to then."""
    while True:
        data = follower.read()
        if data:
            yield data
            continue
        if over():
            while data := follower.read():
                yield data
            return
        follower.wait()


def shown_lines(follower: Follower, lines: Lines, over: Callable[[], bool], *, live: bool = False) -> Iterator[Shown]:
    """Yield the log's lines until ``over``, the unfinished one at the end included.

    While it is ``live``, what a bar shows is a line now and then too, and its last state is not told twice.
    """
    told_at = time.monotonic()
    while True:
        data = follower.read()
        if follower.restarted:
            yield from lines.restart()
        yield from lines.feed(data)
        if live and time.monotonic() - told_at >= BARS_EVERY_S:
            told_at = time.monotonic()
            yield from lines.standing()
        if data:
            continue
        if over():
            break
        follower.wait()
    while data := follower.read():
        if follower.restarted:
            yield from lines.restart()
        yield from lines.feed(data)
    yield from lines.flush()


# -- attach ----------------------------------------------------------------------------------------------------------


def attach(words: list[str]) -> int:
    """Watch a run live until it ends or the viewer leaves."""
    parser = new_parser("attach", ATTACH_EXAMPLES)
    parser.add_argument("name", nargs="?", metavar="NAME", help="a run, or the beginning of its name (default: latest)")
    # A whole folder and not a name: a pane has the environment of the tmux server, where OVERNIGHT_HOME may be another.
    parser.add_argument("--pane", metavar="FOLDER", help=argparse.SUPPRESS)
    args = parser.parse_args(words)
    if args.pane is not None:
        return _attach_pane(RunFolder(Path(args.pane)))
    folder = client.find(client.find_home(), args.name)
    one = client.status(folder)
    if one["stale"]:
        settle(folder)
    _hint(folder)
    path = one["log"] or str(folder.output_log)
    return watch(folder, path, offset_of_last_shown(path, FOLLOWED_LINES), bar=True) or 0


def _hint(folder: RunFolder) -> None:
    """Name the engine's own way to see the run, if there is one and somebody sits at a terminal."""
    if not sys.stdout.isatty():
        return
    with contextlib.suppress(FolderError):
        placed = client.read_object(str(folder.engine_json)) or {}
        if placed.get("engine") in (None, "local"):
            return
        from overnight import launch

        if (words := launch.attach_words(folder)) is not None:
            print(f"also in: {shlex.join(words)}")


def _attach_pane(folder: RunFolder) -> int:
    """Be the viewer in a pane: exit as ``wait`` does at the run's end, 130 when the view ends before it."""
    from overnight.cli.end import ended_code
    from overnight.engines.tmux import await_viewer

    with Pane(folder) as pane:
        one = _as_it_goes_on(folder)
        path = one["log"] or str(folder.output_log)
        offset = max(own_start(folder, path), offset_of_last_shown(path, PANE_LINES))
        left = watch(folder, path, offset, bar=True, pane=pane)
    await_viewer(os.environ)
    return left if left is not None else ended_code(client.status(folder), own=False)


def _as_it_goes_on(folder: RunFolder) -> client.Status:
    """Return the status of a run that has just been placed; what an earlier life of it has left is waited out."""
    until = time.monotonic() + GOES_ON_WITHIN_S
    while True:
        one = client.status(folder)
        coming = one["supervisor"]["alive"] or one["shim"]["alive"] or one["cause"] == "host_rebooted"
        if one["state"] not in client.ENDED or not coming or time.monotonic() > until:
            return one
        time.sleep(0.05)


def watch(folder: RunFolder, path: str, offset: int, *, bar: bool, pane: Pane | None = None) -> int | None:
    """Show the log until the run has ended (None) or the viewer leaves (0); ``bar`` keeps a status line below it.

    In a ``pane`` it is left for other reasons, and 130 is returned then.
    """
    view = View(bar=bar and sys.stdout.isatty())
    stale_at = 0.0
    try:
        with Follower(path, offset, also=str(folder.path)) as follower:
            lines = Lines(offset)
            while True:
                grew = _show(follower, lines, view)
                one = client.status(folder)
                if pane is not None and not pane.turn(view):
                    view.clear()
                    print(_left(folder))
                    return INTERRUPTED
                view.below(one, lines.pending())
                if one["state"] in client.ENDED:
                    if not grew:
                        break
                    continue
                if one["stale"] and time.monotonic() - stale_at > client.STALE_EVERY_S:
                    stale_at = time.monotonic()
                    settle(folder)
                follower.wait(STATUS_EVERY_S, bell=None if pane is None else pane.bell)
            view.lines(lines.flush())
    except KeyboardInterrupt:
        view.clear()
        print(_left(folder))
        return 0
    view.clear()
    print(farewell(folder, one))
    return None


def _left(folder: RunFolder) -> str:
    return f"left; {folder.name} goes on (overnight attach {folder.name} comes back)"


def _show(follower: Follower, lines: Lines, view: View) -> bool:
    grew = False
    while data := follower.read():
        grew = True
        if follower.restarted:
            view.lines(lines.restart())
        view.lines(lines.feed(data))
    return grew


class Pane:
    """What can happen to a viewer in a pane: Ctrl-C asks the run to stop; a signal or the end of input only leaves.

    The signal handlers leave notes, which ``turn`` carries out. A hang-up (the server was killed) needs no handler:
    nobody is left to be told anything.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._notes: list[int] = []
        self._before: dict[int, Any] = {}
        self._pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._news = StopNews(folder)
        self._asked = False
        self.bell = self._pipe[0]

    def __enter__(self) -> Self:
        # Python resumes an interrupted poll (PEP 475): only a byte in a pipe makes the loop look at its notes at once.
        signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
            self._before[number] = signal.signal(number, self._note)
        self._before[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_DFL)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        for handle in self._pipe:
            os.close(handle)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._notes.append(number)

    def turn(self, view: View) -> bool:
        """Carry out the notes and tell what a stop has done so far; False when the view is to be left."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.bell, 4096)
        while self._notes:
            if self._notes.pop(0) != signal.SIGINT:
                return False
            self._ask(view)
        found = self._news.look() if self._asked else None
        if found is not None:
            done, again = found
            view.say(f"{done}; Ctrl-C again: {again}" if again else done)
        return not _input_ended()

    def _ask(self, view: View) -> None:
        if client.status(self._folder)["state"] in client.ENDED:
            return
        client.request_stop(self._folder)
        again = "asked to stop again; a save that has begun is waited for"
        view.say(f"{self._folder.name} is {again if self._asked else 'asked to stop'}")
        self._asked = True


def _input_ended() -> bool:
    """Read away what was typed, and say whether the input has ended: Ctrl-D, or a terminal that is gone."""
    try:
        while select.select([0], [], [], 0.0)[0]:
            if not os.read(0, 4096):
                return True
    except OSError:
        return True
    return False


class View:
    """Lines scroll; on a terminal one line below them shows state and figures, and the bar that is being drawn."""

    def __init__(self, *, bar: bool) -> None:
        self._bar = bar
        self._drawn = False
        self._drawn_at = float("-inf")

    def lines(self, found: Iterator[Shown]) -> None:
        """Write finished lines."""
        for line in found:
            self.clear()
            sys.stdout.write(line.text + "\n")
        sys.stdout.flush()

    def say(self, text: str) -> None:
        """Write a line of our own."""
        self.clear()
        sys.stdout.write(f"overnight: {text}\n")
        sys.stdout.flush()

    def below(self, one: dict[str, Any], pending: str) -> None:
        """Draw the line below: how the run is doing, and the bar."""
        if self._bar:
            self.draw(live_line(one) + (f" | {pending}" if pending else ""))

    def draw(self, text: str) -> None:
        """Draw ``text`` as the line below; a bar that moves faster than anybody can look is not drawn each time."""
        now = time.monotonic()
        if self._drawn and now - self._drawn_at < DRAWN_EVERY_S:
            return
        try:
            width = os.get_terminal_size(sys.stdout.fileno()).columns or 80  # 0 where nobody has set a size
        except OSError:
            width = 80
        sys.stdout.write(f"\r\x1b[K{clipped(text, max(1, width - 1))}")
        sys.stdout.flush()
        self._drawn, self._drawn_at = True, now

    def clear(self) -> None:
        """Wipe the line below."""
        if self._drawn:
            sys.stdout.write("\r\x1b[K")
            self._drawn = False

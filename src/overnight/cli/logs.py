"""The verbs that show what the training wrote: ``logs`` and ``attach``. Viewers only: leaving never disturbs a run."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from overnight import client
from overnight.cli.follow import Follower, Lines, Shown, offset_of_last
from overnight.cli.look import settle
from overnight.cli.notice import farewell
from overnight.cli.parser import new_parser
from overnight.cli.render import live_line
from overnight.errors import FolderError, UsageError
from overnight.folder import RunFolder

LOGS_EXAMPLES = """\
  overnight logs                  all the latest run wrote, made harmless
  overnight logs quiet -n 20      its last 20 lines
  overnight logs -f               its last 10 lines, and on until the run ends
  overnight logs --raw > run.log  byte for byte
"""

ATTACH_EXAMPLES = """\
  overnight attach                watch the latest run; Ctrl-C leaves it running
"""

FOLLOWED_LINES = 10
STATUS_EVERY_S = 1.0


def logs(words: list[str]) -> int:
    """Print a run's log."""
    parser = new_parser("logs", LOGS_EXAMPLES)
    parser.add_argument("name", nargs="?", metavar="NAME", help="a run, or the beginning of its name (default: latest)")
    parser.add_argument("-n", "--lines", metavar="N", help="only the last N lines (default: all; with -f: 10)")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run has ended")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--raw", action="store_true", help="byte for byte, as the training wrote it")
    form.add_argument("--json", action="store_true", help="one object per line: {offset, text}")
    args = parser.parse_args(words)
    if args.lines is not None and not (args.lines.isascii() and args.lines.isdigit() and len(args.lines) < 16):
        raise UsageError(f"--lines cannot be {args.lines!r}: give a whole number such as 20")
    count = int(args.lines) if args.lines is not None else FOLLOWED_LINES if args.follow else None
    folder = client.find(client.find_home(), args.name)
    path = log_path(folder)
    if not args.follow and not os.path.exists(path):
        raise FolderError(f"{folder.name} has no log yet: {path} does not exist")
    start = 0 if count is None else offset_of_last(path, count)
    with Follower(path, start, also=str(folder.path)) as follower:
        if args.raw:
            out = sys.stdout.buffer
            for data in stream(follower, over=_over(folder, follow=args.follow)):
                out.write(data)
                out.flush()
            return 0
        write = _print_json if args.json else _print_plain
        for line in shown_lines(follower, Lines(start), over=_over(folder, follow=args.follow)):
            write(line)
    return 0


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


def shown_lines(follower: Follower, lines: Lines, over: Callable[[], bool]) -> Iterator[Shown]:
    """Yield the log's lines until ``over``, the unfinished one at the end included."""
    for data in stream(follower, over):
        if follower.restarted:
            yield from lines.restart()
        yield from lines.feed(data)
    yield from lines.flush()


# -- attach ----------------------------------------------------------------------------------------------------------


def attach(words: list[str]) -> int:
    """Watch a run live until it ends or the viewer leaves."""
    parser = new_parser("attach", ATTACH_EXAMPLES)
    parser.add_argument("name", nargs="?", metavar="NAME", help="a run, or the beginning of its name (default: latest)")
    args = parser.parse_args(words)
    folder = client.find(client.find_home(), args.name)
    one = client.status(folder)
    if one["stale"]:
        settle(folder)
    path = one["log"] or str(folder.output_log)
    return watch(folder, path, offset_of_last(path, FOLLOWED_LINES), bar=True) or 0


def watch(folder: RunFolder, path: str, offset: int, *, bar: bool) -> int | None:
    """Show the log until the run has ended (None) or the viewer leaves (0); ``bar`` keeps a status line below it."""
    view = View(bar=bar and sys.stdout.isatty())
    stale_at = 0.0
    try:
        with Follower(path, offset, also=str(folder.path)) as follower:
            lines = Lines(offset)
            while True:
                grew = _show(follower, lines, view)
                one = client.status(folder)
                view.below(one, lines.pending())
                if one["state"] in client.ENDED:
                    if not grew:
                        break
                    continue
                if one["stale"] and time.monotonic() - stale_at > client.STALE_EVERY_S:
                    stale_at = time.monotonic()
                    settle(folder)
                follower.wait(STATUS_EVERY_S)
            view.lines(lines.flush())
    except KeyboardInterrupt:
        view.clear()
        print(f"left; {folder.name} goes on (overnight attach {folder.name} comes back)")
        return 0
    view.clear()
    print(farewell(folder, one))
    return None


def _show(follower: Follower, lines: Lines, view: View) -> bool:
    grew = False
    while data := follower.read():
        grew = True
        if follower.restarted:
            view.lines(lines.restart())
        view.lines(lines.feed(data))
    return grew


class View:
    """Lines scroll; on a terminal one line below them shows state and figures, and the bar that is being drawn."""

    def __init__(self, *, bar: bool) -> None:
        self._bar = bar
        self._drawn = False

    def lines(self, found: Iterator[Shown]) -> None:
        """Write finished lines."""
        for line in found:
            self.clear()
            sys.stdout.write(line.text + "\n")
        sys.stdout.flush()

    def below(self, one: dict[str, Any], pending: str) -> None:
        """Draw the line below."""
        if not self._bar:
            return
        text = live_line(one) + (f" | {pending}" if pending else "")
        try:
            width = os.get_terminal_size(sys.stdout.fileno()).columns or 80  # 0 where nobody has set a size
        except OSError:
            width = 80
        sys.stdout.write(f"\r\x1b[K{text[: max(1, width - 1)]}")
        sys.stdout.flush()
        self._drawn = True

    def clear(self) -> None:
        """Wipe the line below."""
        if self._drawn:
            sys.stdout.write("\r\x1b[K")
            self._drawn = False

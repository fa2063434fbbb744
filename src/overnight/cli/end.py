"""The verbs around a run's end: ``stop`` and ``wait``."""

from __future__ import annotations

import contextlib
import errno
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from overnight import client
from overnight.cli import lastsave
from overnight.cli.look import as_json
from overnight.cli.notice import StopNews, asked_spec, farewell, supervisor_words
from overnight.cli.parser import HOOK_FAILED, INTERRUPTED, new_parser
from overnight.cli.terminal import colours
from overnight.errors import FolderError, UsageError
from overnight.folder import RunFolder
from overnight.quantities import wait_s
from overnight.states import exit_code

STOP_EXAMPLES = """\
  overnight stop              the only live run: signal, grace, final save
  overnight stop quiet        the run whose name begins with "quiet"
  overnight stop quiet        once more: climb one rung of the ladder
  overnight stop quiet --now  kill at once, nothing is saved
"""

WAIT_EXAMPLES = """\
  overnight wait                            the latest run
  overnight wait quiet --timeout 2h || ...  101 when the time is up
  overnight wait small large                both; the first code that is not 0
  overnight wait --any                      the first live run that ends
"""

LAST_RESORT_S = 10.0
"""``stop --now`` ends the run by itself if no supervisor has lived to do it for this long."""

GIVEN_UP_S, LOOK_S = 10.0, 0.2

SILENT_S = 1.0
"""Nothing is said about what is wrong with a run before one has waited this long for it."""

ADOPTED_S = 6.0
"""A run that nobody has kept for this long could not be adopted either."""


REPORT_S, SUCCEEDED_S = 75.0, 3.0
"""So long the page of an ended run is waited for while somebody may still make it: its maker has a minute; and so long
for a killed supervisor's successor.
"""


def adopter(folder: RunFolder) -> Callable[[], None]:
    """Return what starts a supervisor for a run that nobody keeps."""

    def adopt() -> None:
        from overnight import launch

        one = client.status(folder)
        if one["state"] in client.ENDED or not one["supervisor"]["alive"]:  # one that lives would not let go of it
            launch.adopt(folder)

    return adopt


def stop(words: list[str]) -> int:
    """End a run and, unless told otherwise, wait for its end."""
    parser = new_parser("stop", STOP_EXAMPLES)
    parser.add_argument("name", nargs="?", metavar="NAME", help="a run (default: the live one, if there is only one)")
    parser.add_argument(
        "--now",
        action="store_true",
        help="kill at once, save nothing; of an ended run: do without an --on-end that waits",
    )
    parser.add_argument("--no-wait", action="store_true", help="return once the request is written")
    parser.add_argument("--json", action="store_true", help="print the status at the end")
    args = parser.parse_args(words)
    folder = client.find(client.find_home(), args.name, for_stop=True)
    one = client.status(folder)
    if args.now and client.hooks_held(one):
        one = _give_up(folder, one)
    if one["state"] not in client.ENDED:
        _ask(folder, now=args.now)
        from overnight import launch

        launch.help_stop(folder)
        if args.no_wait:
            if one["stale"]:
                adopter(folder)()
            print(as_json(client.status(folder)) if args.json else f"{folder.name} is asked to stop")
            return 0
        try:
            one = _stopped(folder, now=args.now)
        except KeyboardInterrupt:
            print(f"left; {folder.name} goes on stopping (overnight wait {folder.name})", file=sys.stderr)
            return INTERRUPTED
    code = 0
    try:
        one = lastsave.await_check(folder, one, tell=_tell)
    except KeyboardInterrupt:
        _tell(f"left before the save was verified; `overnight status {folder.name}` tells later")
        code = INTERRUPTED
    if args.json:
        print(as_json({**one, **lastsave.judge(one, lastsave.asked_of(folder)).facts()}))
    else:
        print(farewell(folder, one, colours=colours()))
    return code


def _give_up(folder: RunFolder, one: client.Status) -> client.Status:
    """Let an ended run do without what its --on-end commands still wait for; return its last status."""
    _ask(folder, now=True)
    if one["stale"]:
        adopter(folder)()
    until = time.monotonic() + GIVEN_UP_S
    with client.FolderWatch(folder) as watch:
        while client.hooks_held(one) is not None and time.monotonic() < until:
            watch.wait(LOOK_S)
            one = client.status(folder)
    if client.hooks_held(one) is None:
        _tell(f"the --on-end commands of {folder.name} that waited are given up")
    return one


def _ask(folder: RunFolder, *, now: bool) -> None:
    """Ask for the stop; where the disk has no room for the request, by a signal to whoever would have read it."""
    try:
        client.request_stop(folder, now=now)
    except OSError as error:
        from overnight import processes
        from overnight.cli import lastresort

        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise
        if now:
            lastresort.end(folder)
            return
        who: Any = (client.read_object(str(folder.shim_json)) or {}).get("supervisor")
        if not client.alive(who) or not processes.send(who["pid"], who["start_ticks"], signal.SIGTERM):
            raise
        print(f"overnight: {error.strerror}: its supervisor is told by a signal instead", file=sys.stderr)


def _stopped(folder: RunFolder, *, now: bool) -> dict[str, Any]:
    """Wait for the end of a run that was asked to stop; with ``now`` see to it if nobody else does."""
    watch = Watch(folder, stopping=True, now=now)
    try:
        one = client.wait(folder, on_stale=adopter(folder), until=watch)
    except FolderError:  # nobody can be made to keep it
        if not now:
            raise
        one = client.status(folder)
    if one["state"] in client.ENDED or one["foreign"]:
        return one
    from overnight.cli import lastresort

    _tell(f"no supervisor of {folder.name} lives; ending its processes from here")
    return lastresort.end(folder)


class Watch:
    """Looks on while a run is waited for, and says on stderr, once each, what goes on and what is wrong."""

    def __init__(self, folder: RunFolder, *, stopping: bool = False, now: bool = False) -> None:
        self.folder = folder
        self.news = StopNews(folder) if stopping else None
        self.stopping = stopping
        self.now = now
        self.began = time.monotonic()
        self.kept_at = self.began
        self.complained = False
        self.closing_at: float | None = None

    def __call__(self, seen: dict[str, Any]) -> bool:
        """Return True when waiting has become useless and ``now`` was asked for."""
        if self.news is not None and (news := self.news.look()) is not None:
            self.news = None
            if news[1]:
                _tell(f"{news[0]}; Ctrl-C leaves, the stop goes on; `overnight stop --now` kills at once")
        now = time.monotonic()
        self._tell_closing(now)
        kept = seen["supervisor"]["alive"] and not seen["unguarded"]
        if kept:
            self.kept_at = now
        lost = seen["unguarded"] or now - self.kept_at >= ADOPTED_S
        if lost and not self.complained and not kept and now - self.began >= SILENT_S:
            self._complain(seen)
        return self.now and now - self.began >= LAST_RESORT_S and lost and not kept and not seen["foreign"]

    def _tell_closing(self, now: float) -> None:
        """Say once that a stop is over but for the look at its last save, if that takes longer than a moment."""
        if not self.stopping or not lastsave.closing(self.folder):
            return
        self.closing_at = now if self.closing_at is None else self.closing_at
        if now - self.closing_at >= lastsave.TOLD_AFTER_S:
            self.stopping = False
            _tell(lastsave.VERIFYING)

    def _complain(self, seen: dict[str, Any]) -> None:
        said = supervisor_words(self.folder, seen)
        if said is None:
            return
        self.complained = True
        way_out = "" if self.now else f" (`overnight stop {self.folder.name} --now` ends it)"
        _tell(f"no supervisor of {self.folder.name} can live, so nothing is judged or stopped{way_out}: {said}")


def _tell(text: str) -> None:
    with contextlib.suppress(OSError):
        print(f"overnight: {text}", file=sys.stderr, flush=True)


def wait(words: list[str]) -> int:
    """Wait for the end of one run or several and say by the exit code how it ended."""
    parser = new_parser("wait", WAIT_EXAMPLES)
    parser.add_argument("names", nargs="*", metavar="NAME", help="runs, or beginnings of names (default: the latest)")
    parser.add_argument(
        "--any", action="store_true", help="return when the first has ended (default: of all live ones)"
    )
    parser.add_argument("--timeout", metavar="TIME", help="give up after 90s, 10m, 2h; 0 only looks: exit code 101")
    parser.add_argument("--json", action="store_true", help="print the status at the end, one line for each run")
    parser.add_argument("--pass-exit-code", action="store_true", help="exit as the command itself did")
    args = parser.parse_args(words)
    timeout_s = None
    if args.timeout is not None:
        try:
            timeout_s = wait_s(args.timeout)
        except (ValueError, OverflowError):
            raise UsageError(f"--timeout cannot be {args.timeout!r}: give a time such as 90s, 10m or 2h") from None
    home = client.find_home()
    if args.any and not args.names:
        folders = client.live_runs(home)
    else:
        folders = list(
            {found.name: found for found in (client.find(home, name) for name in args.names or [None])}.values()
        )
    codes = []
    until = None if timeout_s is None else time.monotonic() + timeout_s
    for folder, one in _ended(folders, timeout_s, first=args.any):
        _await_report(folder, one, until)
        print(as_json(one) if args.json else farewell(folder, one, colours=colours()), flush=True)
        codes.append(ended_code(one, own=args.pass_exit_code))
    return next((code for code in codes if code), 0)


def _ended(
    folders: list[RunFolder], timeout_s: float | None, *, first: bool
) -> Iterator[tuple[RunFolder, dict[str, Any]]]:
    """Yield the runs as they have ended: one after the other in the order given, or only the ``first`` that ends."""
    if first:
        on_stale = {folder.name: adopter(folder) for folder in folders}
        until = {folder.name: Watch(folder) for folder in folders}
        yield client.wait_any(folders, timeout_s, on_stale=on_stale, until=until)
        return
    began = time.monotonic()
    for folder in folders:
        yield folder, client.wait(folder, timeout_s, on_stale=adopter(folder), until=Watch(folder), since=began)


def _await_report(folder: RunFolder, one: client.Status, until: float | None) -> None:
    """Wait until the page of an ended run is there, or nobody is there any more who would make it.

    A supervisor that was killed meanwhile has a successor; and a hook that asks has the page, as it is made before.
    """
    if one["state"] not in client.ENDED or asked_spec(folder).get("report") == "never":
        return
    kept_at = time.monotonic()
    last = kept_at + REPORT_S if until is None else min(kept_at + REPORT_S, until)
    while not folder.report_html.exists() and (now := time.monotonic()) < last:
        kept_at = now if one["supervisor"]["alive"] else kept_at
        nobody = not one["supervisor"]["alive"] and (not one["shim"]["alive"] or now - kept_at >= SUCCEEDED_S)
        if nobody or client.hooks_held(one) is not None:
            return
        time.sleep(client.LEAVING_S)
        one = client.status(folder)


def ended_code(one: dict[str, Any], *, own: bool) -> int:
    """Return the exit code for an ended run: by the table, or with ``own`` the command's, 128 + N for signal N.

    A run that finished, but whose hook failed, is not 0: a script that goes on after it relies on both.
    """
    if own and one["exit_code"] is not None:
        return int(one["exit_code"])
    if own and one["signal"]:
        import signal

        number = getattr(signal, one["signal"], None)
        if number is not None:
            return 128 + int(number)
    code = exit_code(one["state"], one["cause"])
    return HOOK_FAILED if code == 0 and client.hooks_failed(one) else code

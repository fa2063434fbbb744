"""The verbs that only look: ``ls`` and ``status``."""

from __future__ import annotations

import json
import sys
import time

from overnight import client
from overnight.cli.parser import new_parser
from overnight.cli.terminal import colours

TYPE_CHECKING = False
if TYPE_CHECKING:
    from overnight.cli.parser import Parser
    from overnight.folder import RunFolder

LS_EXAMPLES = """\
  overnight ls               one line per run, the oldest first
  overnight ls --watch       again and again, until Ctrl-C
  overnight ls --json        an array of what `overnight status --json` prints
"""

STATUS_EXAMPLES = """\
  overnight status           the latest run
  overnight status quiet     the only run whose name begins with "quiet"
  overnight status --watch   until the run has ended
  overnight status --json | jq .loss
"""

SHOWN_LINES = 5
WATCH_S, LEAST_S = 2.0, 0.1

SETTLED_AT_ONCE = 5
"""So many supervisors does one `ls` start at most for runs that were killed with all that kept them."""
ATTACH_EVERY_S = 10.0


def ls(words: list[str]) -> int:
    """List all runs."""
    parser = new_parser("ls", LS_EXAMPLES)
    parser.add_argument("--json", action="store_true", help="print an array of statuses, full precision")
    _add_watch(parser, "until Ctrl-C")
    args = parser.parse_args(words)
    interval_s = _interval_s(parser, args.interval, watch=args.watch)
    home = client.find_home()
    if args.watch:
        return _watch_all(home, interval_s, json_lines=args.json)
    runs = client.list_runs(home, full=args.json)
    unkept = [one["name"] for one in runs if one["stale"] and one["state"] in client.STATES - client.ENDED]
    for name in unkept[:SETTLED_AT_ONCE]:  # everything of it was killed: this look has it written down
        settle(client.find(home, name, whole=True))
    print(as_json(runs) if args.json else _list(home, runs))
    return 0


def _list(home: str, runs: list[client.Status], width: int = 80) -> str:
    if not runs:
        return f"no runs in {home} yet; `overnight run -- COMMAND` starts one"
    from overnight.cli.render import table

    return table(runs, now=time.time(), colours=colours(), width=width)


def _add_watch(parser: Parser, how_long: str) -> None:
    parser.add_argument("--watch", action="store_true", help=f"go on showing it {how_long}")
    about = f"with --watch: look at least this often (default: {WATCH_S:g}s)"
    parser.add_argument("--interval", metavar="TIME", help=about)


def _interval_s(parser: Parser, asked: str | None, *, watch: bool) -> float:
    if asked is None:
        return WATCH_S
    if not watch:
        parser.error("--interval goes with --watch only")
    from overnight.errors import UsageError
    from overnight.quantities import duration_s

    try:
        return max(LEAST_S, duration_s(asked))
    except (ValueError, OverflowError):
        raise UsageError(f"--interval cannot be {asked!r}: give a time such as 2s or 1m") from None


def _watch_all(home: str, interval_s: float, *, json_lines: bool) -> int:
    from overnight.cli import live

    view = live.View(
        look=client.Listing(home, full=json_lines).look,
        text=lambda runs, width: _list(home, runs, width),
        document=as_json,
        over=lambda _: False,
        sleep=live.sleep,
        newest_last=True,
    )
    return live.watch(view, interval_s=interval_s, as_json=json_lines)


def status(words: list[str]) -> int:
    """Show one run."""
    parser = new_parser("status", STATUS_EXAMPLES)
    parser.add_argument("name", nargs="?", metavar="NAME", help="a run, or the beginning of its name (default: latest)")
    parser.add_argument("--json", action="store_true", help="print one object, full precision, null for unknown")
    _add_watch(parser, "until the run has ended")
    args = parser.parse_args(words)
    interval_s = _interval_s(parser, args.interval, watch=args.watch)
    folder = client.find(client.find_home(), args.name)
    if args.watch:
        return _watch_one(folder, interval_s, json_lines=args.json)
    one = client.status(folder)
    if one["stale"]:
        settle(folder)
    print(as_json(one) if args.json else _page(folder, one, attach=Attach(folder).words(one)))
    return 0


def _watch_one(folder: RunFolder, interval_s: float, *, json_lines: bool) -> int:
    from overnight.cli import live

    attach, stale_at = Attach(folder), -client.STALE_EVERY_S

    def look() -> client.Status:
        nonlocal stale_at
        one = client.status(folder)
        if one["stale"] and time.monotonic() - stale_at >= client.STALE_EVERY_S:
            stale_at = time.monotonic()
            settle(folder)
        return one

    with client.FolderWatch(folder) as watched:
        view = live.View(
            look=look,
            text=lambda one, width: _page(folder, one, attach=attach.words(one), width=width),
            document=as_json,
            over=client.over,
            sleep=watched.wait,
        )
        return live.watch(view, interval_s=interval_s, as_json=json_lines)


class Attach:
    """The engine's own command to see a run live; asked for seldom, because programs are run for it."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.at: float | None = None
        self.known: str | None = None

    def words(self, one: client.Status) -> str | None:
        """Return the command line, None if the engine has none or it cannot be attached to now."""
        if (one.get("engine") or "local") == "local":
            return None
        if self.at is None or time.monotonic() - self.at >= ATTACH_EVERY_S:
            import shlex

            from overnight import launch

            self.at = time.monotonic()
            words = launch.attach_words(self.folder)
            self.known = shlex.join(words) if words else None
        return self.known


def _page(folder: RunFolder, one: client.Status, *, attach: str | None, width: int = 80) -> str:
    from overnight.cli import notice
    from overnight.cli.page import status_text

    supervisor = notice.supervisor_words(folder, one)
    last = []
    if one["state"] in ("failed", "gave_up") and one["log"]:
        last = notice.last_lines(one["log"], SHOWN_LINES, notice.own_start(folder, one["log"]))
    return status_text(
        one,
        now=time.time(),
        colours=colours(),
        width=width,
        remarks=[*([supervisor] if supervisor else ()), *notice.remarks(folder, one)],
        last_lines=last,
        max_hours=notice.asked_spec(folder).get("max_hours"),
        attach=attach,
        report=str(folder.report_html) if one["state"] in client.ENDED and folder.report_html.exists() else None,
    )


def settle(folder: RunFolder) -> None:
    """Start an adopting supervisor for a run that nobody keeps; a failure is told, and never hides what was asked."""
    from overnight import launch
    from overnight.errors import OvernightError

    try:
        if not client.status(folder)["supervisor"]["alive"]:  # one that lives and is silent would not let go of it
            launch.adopt(folder)
    except (OvernightError, OSError) as error:
        print(f"overnight: no new supervisor could be started for {folder.name}: {error}", file=sys.stderr)


def as_json(value: object) -> str:
    """Return JSON in which non-finite numbers are words, whatever a hand wrote into a status."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        from overnight.events import jsonable

        return json.dumps(jsonable(value), allow_nan=False)

"""The verbs that only look: ``ls`` and ``status``."""

from __future__ import annotations

import json
import os
import sys
import time

from overnight import client
from overnight.cli.parser import new_parser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from overnight.folder import RunFolder

LS_EXAMPLES = """\
  overnight ls               one line per run, the oldest first
  overnight ls --json        an array of what `overnight status --json` prints
"""

STATUS_EXAMPLES = """\
  overnight status           the latest run
  overnight status quiet     the only run whose name begins with "quiet"
  overnight status --json | jq .loss
"""


SHOWN_LINES = 5


def ls(words: list[str]) -> int:
    """List all runs."""
    parser = new_parser("ls", LS_EXAMPLES)
    parser.add_argument("--json", action="store_true", help="print an array of statuses, full precision")
    args = parser.parse_args(words)
    home = client.find_home()
    runs = client.list_runs(home, full=args.json)
    if args.json:
        print(as_json(runs))
    elif runs:
        from overnight.cli.render import table

        print(table(runs, now=time.time(), colours=colours()))
    else:
        print(f"no runs in {home} yet; `overnight run -- COMMAND` starts one")
    return 0


def status(words: list[str]) -> int:
    """Show one run."""
    parser = new_parser("status", STATUS_EXAMPLES)
    parser.add_argument("name", nargs="?", metavar="NAME", help="a run, or the beginning of its name (default: latest)")
    parser.add_argument("--json", action="store_true", help="print one object, full precision, null for unknown")
    args = parser.parse_args(words)
    folder = client.find(client.find_home(), args.name)
    one = client.status(folder)
    if one["stale"]:
        settle(folder)
    if args.json:
        print(as_json(one))
    else:
        print(_page(folder, one))
    return 0


def _page(folder: RunFolder, one: client.Status) -> str:
    from overnight.cli import notice
    from overnight.cli.render import status_text

    supervisor = notice.supervisor_words(folder, one)
    last = []
    if one["state"] in ("failed", "gave_up") and one["log"]:
        last = notice.last_lines(one["log"], SHOWN_LINES, notice.own_start(folder, one["log"]))
    return status_text(
        one,
        now=time.time(),
        colours=colours(),
        remarks=[*([supervisor] if supervisor else ()), *notice.remarks(folder, one)],
        last_lines=last,
        max_hours=notice.asked_spec(folder).get("max_hours"),
    )


def settle(folder: RunFolder) -> None:
    """Start an adopting supervisor for a run that nobody keeps; a failure is told, and never hides what was asked."""
    from overnight import launch
    from overnight.errors import OvernightError

    try:
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


def colours() -> bool:
    """Say whether to colour: only on a terminal, and not against NO_COLOR or a dumb one."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return sys.stdout is not None and sys.stdout.isatty()

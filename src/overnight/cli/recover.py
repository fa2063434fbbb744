"""The verbs of a reboot: ``recover`` brings runs back after one, ``enable`` lets the machine do that by itself."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec

from overnight import client
from overnight.cli.parser import new_parser
from overnight.folder import RunFolder
from overnight.printable import harmless
from overnight.reboots import autostart, recovery

RECOVER_EXAMPLES = """\
  overnight run --recover --resume-args '--resume latest' -- python train.py
  overnight recover           after a reboot: all that went on then
  overnight recover pretrain  this one, or say why not
"""

ENABLE_EXAMPLES = """\
  overnight enable           run `overnight recover` whenever the machine starts
  overnight enable --print   show what would be installed
  overnight enable --remove  undo it
"""


def recover(words: list[str]) -> int:
    """Start the next attempt of runs that a reboot has interrupted and that were started with --recover."""
    parser = new_parser("recover", RECOVER_EXAMPLES)
    about = "runs, or the beginnings of their names (default: every one started with --recover)"
    parser.add_argument("names", nargs="*", metavar="NAME", help=about)
    parser.add_argument("--json", action="store_true", help="print a list with one object per run")
    args = parser.parse_args(words)
    home = client.find_home()
    if args.names:
        folders = list({folder.name: folder for folder in (client.find(home, name) for name in args.names)}.values())
    else:
        folders = [folder for folder in _all(home) if recovery.judge(folder).kind in ("bring", "blocked")]
    outcomes = []
    for folder in folders:
        outcomes.append(recovery.bring_back(folder))
        if not args.json:
            _say(outcomes[-1])
    if args.json:
        print(json.dumps([msgspec.structs.asdict(one) for one in outcomes]))
    elif not folders:
        print("nothing to bring back")
    return 1 if any(one.result == "failed" for one in outcomes) else 0


def _all(home: str) -> list[RunFolder]:
    """Return the folders of all runs; of one whose link leads nowhere it is said that it was passed over."""
    found = []
    for folder in (RunFolder(Path(home) / "runs" / name) for name in client.run_names(home)):
        if folder.path.is_dir():
            found.append(folder)
        else:
            print(f"overnight: {harmless(str(folder.path))} leads nowhere and is passed over", file=sys.stderr)
    return found


def _say(one: recovery.Outcome) -> None:
    stream = sys.stderr if one.result == "failed" else sys.stdout
    print(f"{harmless(one.name)}: {harmless(one.text)}", file=stream, flush=True)


def enable(words: list[str]) -> int:
    """Install what runs ``overnight recover`` when the machine starts, and say what that cannot do."""
    parser = new_parser("enable", ENABLE_EXAMPLES)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--print", action="store_true", help="print the unit and the crontab line; install nothing")
    what.add_argument("--remove", action="store_true", help="remove what an earlier `overnight enable` has installed")
    args = parser.parse_args(words)
    if args.print:
        _show_texts()
        return 0
    done = autostart.remove() if args.remove else autostart.install()
    for line in done.lines:
        print(line, file=sys.stderr if done.way is None else sys.stdout)
    if done.way is None:
        _show_texts()
        print("nothing was installed; let one of these two do it", file=sys.stderr)
    if done.limits:
        print("what it cannot do:")
    for limit in done.limits:
        print(f"  {limit}")
    return 1 if done.way is None else 0


def _show_texts() -> None:
    print(
        f"# {autostart.unit_path()}\n{autostart.unit_text()}\n# a line of `crontab -e`\n{autostart.cron_text()}", end=""
    )

"""The verb ``checkpoints``: what lies in a folder as checkpoints, which one to resume from, and which may go."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from overnight.cli.parser import new_parser
from overnight.errors import FolderError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from overnight.inspector.checking import Report
    from overnight.inspector.findings import Found
    from overnight.inspector.removing import Removal

EXAMPLES = """\
  overnight checkpoints out                 what is there, and how good it is
  overnight checkpoints out --newest        the path of the one to resume from
  overnight checkpoints out --verify --verify-max 500G
  overnight checkpoints out --prune --keep-last 3 --dry-run
  overnight checkpoints out --json | jq -r '.checkpoints[] | select(.problem)'

exits 1 if --verify finds damage or cannot look, if --newest finds
none, or if --prune cannot; --prune removes nothing where the order is in doubt;
nothing in a checkpoint is ever run or unpickled
"""

DEFAULT_MAX = "5G"


def checkpoints(words: list[str]) -> int:
    """List the checkpoints of a folder, of any maker."""
    args = _parsed(words)
    from overnight.inspector import checking, removing

    limit, removed, progress = _limit(args.verify_max), None, Progress()
    if args.prune and not args.dry_run and os.path.isdir(args.place):
        with removing.locked(Path(os.path.abspath(args.place))) as handle:  # from the look to the end nobody may write
            report = checking.look(args.place, limit=limit, say=progress)
            removed = _prune(report, args, handle)
    else:
        report = checking.look(args.place, limit=limit, enough=_newest_known if args.newest else None, say=progress)
        removed = _prune(report, args, None) if args.prune else None
    progress.end()
    _print(report, args, removed)
    if args.newest and report.newest is None:
        return 1
    if args.verify and (report.damaged or _unread(report, limit)):
        return 1
    return 1 if removed is not None and removed.failed else 0


def _unread(report: Report, limit: int) -> bool:
    """Say on stderr if content was not looked at; whether it should have been: the look was cut off.

    What lies beyond ``--verify-max`` was not asked for.
    """
    if report.cut_off or (limit and report.unchecked):
        way = "try again" if report.cut_off else "give a larger --verify-max"
        print(f"overnight: not all content was looked at, so this is no proof that all is good; {way}", file=sys.stderr)
    return report.cut_off


def _parsed(words: list[str]) -> argparse.Namespace:
    parser = new_parser("checkpoints", EXAMPLES)
    parser.add_argument("place", metavar="DIR", help="a folder of checkpoints, or a single one")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--newest", action="store_true", help="print only the path of the one to resume from")
    what.add_argument("--verify", action="store_true", help="exit with 1 if anything is incomplete or damaged")
    what.add_argument("--prune", action="store_true", help="remove good ones beyond the last K; see --keep-last")
    parser.add_argument("--keep-last", metavar="K", type=_keep, help="with --prune: how many are kept, at least 1")
    parser.add_argument("--dry-run", action="store_true", help="with --prune: only say what would be removed")
    about = f"read so many bytes of content at most, the newest first (default: {DEFAULT_MAX}; 0: none)"
    parser.add_argument("--verify-max", metavar="SIZE", help=about)
    parser.add_argument("--json", action="store_true", help="print one object, full precision, null for unknown")
    args = parser.parse_args(words)
    if not args.place:
        parser.error("DIR is empty; give a folder of checkpoints, or . for this one")
    if args.prune and args.keep_last is None:
        parser.error("--prune needs --keep-last K")
    if not args.prune and args.keep_last is not None:
        parser.error("--keep-last goes with --prune only")
    if not args.prune and args.dry_run:
        parser.error("--dry-run goes with --prune only")
    return args


def _keep(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} checkpoints cannot be kept; give a whole number from 1 on")
    return int(text)


def _limit(text: str | None) -> int:
    from overnight.quantities import quoted, whole

    asked = DEFAULT_MAX if text is None else text
    try:
        return whole(asked.strip().removesuffix("B") if len(asked) > 1 else asked)
    except ValueError:
        raise UsageError(f"--verify-max cannot be {quoted(asked)}: give a size such as 5G, 500M or 0") from None


def _newest_known(report: Report) -> bool:
    newest = report.newest
    return newest is not None and newest.path not in report.unchecked


class Progress:
    """A line on a terminal about what has been read, once that takes longer than a second; rubbed out at the end."""

    def __init__(self) -> None:
        self._shown = sys.stderr is not None and sys.stderr.isatty()
        self._began = time.monotonic()
        self._done = 0

    def __call__(self, path: str) -> None:
        """Say that the content of one more is known."""
        self._done += 1
        if self._shown and time.monotonic() - self._began > 1.0:
            from overnight.printable import harmless

            name = harmless(os.path.basename(path))[:50]
            print(f"\r\x1b[Kread {self._done}: {name}", end="\r", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Rub the line out."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _prune(report: Report, args: argparse.Namespace, handle: int | None) -> Removal:
    """Remove what may go; without a handle of the folder only say what would. FolderError where that is in doubt."""
    from overnight.inspector import pruning, removing

    links = report.pointed | pruning.pointed_to(Path(report.place))
    plan = pruning.plan(report.found, args.keep_last, pointed=links, names=report.names)
    if plan.refused is not None:
        raise FolderError(f"{report.place}: {plan.refused}")
    unread = [one for one in plan.kept if one.path in report.unchecked]
    if plan.going and unread:
        name = os.path.basename(unread[0].path)
        said = f"nothing is removed while {name}, which would be kept, is not known to be good"
        if report.cut_off:
            raise FolderError(f"{said}: the process that reads the content was ended; try again")
        raise UsageError(f"{said}: give a larger --verify-max than {args.verify_max or DEFAULT_MAX}")
    removed = removing.carry_out(plan, handle)
    if handle is not None:
        gone = set(removed.paths)
        report.found = [one for one in report.found if one.path not in gone]
    return removed


def _print(report: Report, args: argparse.Namespace, removed: Removal | None) -> None:
    if args.json:
        import json

        from overnight.events import jsonable

        print(json.dumps(jsonable(document(report, removed, dry=args.dry_run)), allow_nan=False))
        return
    if args.newest:
        from overnight.printable import harmless

        newest = report.newest
        if newest is None:
            print(f"overnight: {_none(report)}", file=sys.stderr)
        else:
            _path(newest.path)
            for note in report.notes:
                if note.startswith(os.path.basename(newest.path)):
                    print(f"overnight: {harmless(note)}", file=sys.stderr)
        return
    from overnight.cli import checkpointtable
    from overnight.cli.terminal import colours

    print(checkpointtable.table(report, now=time.time(), colours=colours()))
    if removed is not None:
        print(checkpointtable.removal(removed.paths, removed.failed, removed.kept, dry=args.dry_run))


def _path(path: str) -> None:
    """Print a path as it is, byte for byte: a program reads it."""
    out = getattr(sys.stdout, "buffer", None)
    if out is None:
        print(path)
        return
    sys.stdout.flush()
    out.write(os.fsencode(path) + b"\n")
    out.flush()


def _none(report: Report) -> str:
    from overnight.cli.checkpointtable import state
    from overnight.printable import harmless

    if not report.found:
        return harmless(f"there is no checkpoint in {report.place}")
    first = report.found[0]
    said = state(first, unchecked=first.path in report.unchecked)
    return harmless(f"none in {report.place} is good; {os.path.basename(first.path)}: {said}")


def document(report: Report, removed: Removal | None, *, dry: bool) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    newest = report.newest
    value: dict[str, Any] = {
        "newest": None if newest is None else newest.path,
        "checkpoints": [_one(one, checked=one.path not in report.unchecked) for one in report.found],
        "notes": report.notes,
    }
    if removed is not None:
        value["removed"], value["dry_run"] = removed.paths, dry
        value["kept"], value["failed"] = removed.kept, removed.failed
    return value


def _one(found: Found, *, checked: bool) -> dict[str, Any]:
    from overnight.folder import utc

    return {
        "path": found.path,
        "maker": found.maker,
        "step": found.step,
        "size_bytes": found.size_bytes,
        "saved_at": None if found.saved_at is None else utc(found.saved_at),
        "complete": found.complete,
        "intact": found.intact,
        "finite": found.finite,
        "own": found.own,
        "problem": found.problem,
        "healthy": found.healthy,
        "checked": checked,
        "run": found.values.get("run") if found.maker == "overnight" else None,
        "notes": list(found.notes),
    }

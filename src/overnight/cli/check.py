"""The verb ``check``: what a run has to show is in ``proof``, the logout that it has to survive in ``rehearsal``."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from overnight import client
from overnight.cli import ends
from overnight.cli.look import as_json
from overnight.cli.parser import new_parser
from overnight.errors import FolderError, UsageError
from overnight.folder import RunFolder
from overnight.printable import harmless
from overnight.proof import Check, prove
from overnight.quantities import duration_s
from overnight.rehearsal import Logout
from overnight.requests.asked import in_force

EXAMPLES = """\
  overnight check                      the latest run, two looks a minute apart
  overnight check quiet --interval 5m  a run with slow steps
  overnight check quiet && exit        log out only if it is safe
"""

INTERVAL_S = 60.0


def check(words: list[str]) -> int:
    """Prove that a run lives, grows and survives a logout; 1 if any of it does not hold."""
    parser = new_parser("check", EXAMPLES)
    parser.add_argument("name", nargs="?", metavar="NAME", help="a run, or the beginning of its name (default: latest)")
    parser.add_argument("--interval", metavar="TIME", help="between the two looks at its log (default: 60s)")
    parser.add_argument("--json", action="store_true", help="print the whole result as one object")
    args = parser.parse_args(words)
    interval_s = INTERVAL_S
    if args.interval is not None:
        try:
            interval_s = duration_s(args.interval)
        except (ValueError, OverflowError):
            raise UsageError(f"--interval cannot be {args.interval!r}: give a time such as 60s or 5m") from None
    folder = client.find(client.find_home(), args.name)
    name = harmless(folder.name)
    if not args.json and sys.stderr.isatty():
        print(f"checking {name}: two looks {interval_s:g} s apart and a logout; Ctrl-C leaves", file=sys.stderr)
    logout = Logout(folder, interval_s)
    proof = prove(folder, interval_s=interval_s, rehearse=logout, tell=_silent if args.json else _tell)
    at_ends = _at_ends(folder)
    if args.json:
        print(as_json({**msgspec.to_builtins(proof), **({"at_end": at_ends} if at_ends else {})}))
        return 0 if proof.ok else 1
    for line in ends.lines(at_ends):
        print(line)
    if proof.ok:
        print(f"{name} lives, grows and survives a logout; evidence in {proof.evidence}")
    else:
        failed = ", ".join(one.name for one in proof.checks if not one.ok)
        print(f"{name} is NOT proved ({failed}); evidence in {proof.evidence}")
    return 0 if proof.ok else 1


def _at_ends(folder: RunFolder) -> list[dict[str, Any]]:
    """Return what would happen at each end of the run; nothing of one whose run.json cannot be read."""
    try:
        spec = in_force(folder)
    except FolderError:
        return []
    return ends.at_ends(spec, folder, str(folder.path.parent.parent))


def _tell(found: Check) -> None:
    print(f"{'ok' if found.ok else 'FAILED':<6}  {found.name:<10}  {harmless(found.text)}", flush=True)


def _silent(_: Check) -> None:
    """Say nothing: the whole result is printed at the end."""

"""The verb ``doctor``: prints what the checks of this machine found."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from overnight import client
from overnight.cli.parser import new_parser
from overnight.cli.render import folded
from overnight.cli.terminal import colours
from overnight.doctor.checks import examine
from overnight.doctor.findings import Check
from overnight.machine import Machine

EXAMPLES = """\
  overnight doctor          a line for each check, with what mends it
  overnight doctor --json   an array of {check, level, text, fix}

exits 1 if there is a problem; a warning is none
"""

PAINT = {"ok": "32", "warning": "33", "problem": "31"}
INDENT = " " * 22


def doctor(words: list[str]) -> int:
    """Say what on this machine could end a run in the night."""
    parser = new_parser("doctor", EXAMPLES)
    parser.add_argument("--json", action="store_true", help="print an array of what was found")
    args = parser.parse_args(words)
    found = examine(Machine(home=Path(client.find_home())))
    if args.json:
        print(json.dumps([msgspec.structs.asdict(one) for one in found]))
    else:
        paint = colours()
        print("\n".join(line for one in found for line in lines(one, paint=paint)))
    return 1 if any(one.level == "problem" for one in found) else 0


def lines(one: Check, *, paint: bool) -> list[str]:
    """Return what was found as lines of at most 80 columns."""
    said = folded(one.text, INDENT, first=f"{one.level:<8} {one.check:<12} ")
    if paint:
        said[0] = f"\x1b[{PAINT[one.level]}m{one.level:<8}\x1b[0m{said[0][8:]}"
    return [*said, *(folded(one.fix, INDENT + "   ", first=f"{INDENT}-> ") if one.fix else ())]

"""The verb ``demo``: its options; the show itself lives in ``overnight/demo``."""

from __future__ import annotations

from overnight.cli.parser import new_parser

EXAMPLES = """\
  overnight demo             real training, in a temporary folder
  overnight demo --keep      leave the folder, to look around
"""


def demo(words: list[str]) -> int:
    """Run the demo; exit code 0 only if every stage proved what it says."""
    parser = new_parser("demo", EXAMPLES)
    parser.add_argument("--keep", action="store_true", help="do not remove the demo's folder")
    parser.add_argument("--dir", metavar="DIR", help="use DIR, new or empty, instead of a temporary folder")
    args = parser.parse_args(words)
    from pathlib import Path

    from overnight.demo.opening import run_demo

    return run_demo(Path(args.dir) if args.dir else None, keep=args.keep)

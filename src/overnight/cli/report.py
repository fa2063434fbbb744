"""The verb ``report``: what happened to a run, or in a log that Overnight never launched."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from overnight import client, options, settings
from overnight.cli.flags import add_settings, given
from overnight.cli.look import as_json, settle
from overnight.cli.parser import Parser, new_parser
from overnight.cli.subject import find_subject
from overnight.folder import RunFolder
from overnight.outfile import whole_file
from overnight.printable import harmless

EXAMPLES = """\
  overnight report                          the latest run, as text
  overnight report quiet --json             one object, full precision
  overnight report quiet --html night.html  one page with curves, no links
  overnight report ./old.log --tokens-per-step 524288 --params 124M
                                            any log, read as a run's is
"""

GROUPS = ("read", "measure", "judge")
_COMPLAIN = "overnight: {}"


def report(words: list[str]) -> int:
    """Show what happened."""
    parser = new_parser("report", EXAMPLES)
    parser.add_argument(
        "what",
        nargs="?",
        metavar="RUN|LOG",
        help="a run, or the beginning of its name; or a log's path (default: latest)",
    )
    parser.add_argument("--json", action="store_true", help="print one object, full precision, null for unknown")
    parser.add_argument("--html", metavar="FILE", help="write one self-contained page to FILE, - for stdout")
    add_settings(parser, GROUPS)
    args = parser.parse_args(words)
    if args.json and args.html == "-":
        parser.error("--json and --html - both go to stdout: give --html a file")
    asked = [f"--{name.replace('_', '-')}" for name in _names() if getattr(args, name, None) is not None]
    value = _value(parser, args.what, asked, given(args))
    if args.html is not None:
        _write_page(value, args.html)
    if args.json:
        print(as_json(value))
    elif args.html is None:
        _print_text(value)
    return 0


def _names() -> list[str]:
    return [*(one.name for one in options.SETTINGS if one.group in GROUPS), "action"]


def _value(parser: Parser, what: str | None, asked: Collection[str], flags: dict[str, object]) -> dict[str, Any]:
    """Return the report value of a run, or of a log if no run has that name."""
    subject = find_subject(what)
    if not isinstance(subject, RunFolder):
        return _of_log(subject, flags)
    if asked:
        parser.error(
            f"{', '.join(sorted(asked))}: only for a log; the run {subject.name} is reported by what it was "
            f"started with (its log is read anew by `overnight replay {subject.name}`)"
        )
    return _of_run(subject)


def _of_run(folder: RunFolder) -> dict[str, Any]:
    from overnight.report.gather import of_run

    if client.status(folder)["stale"]:
        settle(folder)  # everything of it was killed: a new supervisor finds out what became of it
    return of_run(folder, time.time())


def _of_log(path: Path, flags: dict[str, object]) -> dict[str, Any]:
    from overnight import wiring
    from overnight.report.bare import of_log

    resolved = settings.resolve(flags, (), home=client.find_home())
    for text in resolved.warnings:
        _say(text)
    monitor = wiring.make_monitor(resolved.spec, _say)
    monitor.begin_attempt(1)
    return of_log(path, resolved.spec, resolved.origins, monitor, time.time())


def _say(text: str) -> None:
    print(_COMPLAIN.format(text), file=sys.stderr)


def _write_page(value: dict[str, Any], target: str) -> None:
    from overnight.report.page import page

    made = page(value)
    if target == "-":
        print(made)
        return
    path = Path(os.path.expanduser(target))
    with whole_file(path, "--html") as stream:
        stream.write(made.encode("utf-8", "backslashreplace"))
    print(f"overnight: the report of {harmless(value['name'])} is in {path.absolute()}", file=sys.stderr)


def _print_text(value: dict[str, Any]) -> None:
    from overnight.report.text import columns, spelt, text

    terminal = shutil.get_terminal_size((0, 0)).columns if sys.stdout.isatty() else 0
    print(spelt(text(value, clean=harmless, width=columns(os.environ, terminal)), sys.stdout.encoding))

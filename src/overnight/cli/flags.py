"""What verbs have in common: settings as flags, a number of lines, and what those print that make a run.

Which settings there are stands in ``options``. Only flags are made here and read back raw; what a value may be is the
business of ``settings``.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from typing import Any

from overnight import options
from overnight.cli.parser import Parser
from overnight.errors import UsageError
from overnight.launch import Launched


def add_settings(
    parser: Parser, groups: Collection[str] = tuple(options.GROUPS), skip: Collection[str] = (), *, explain: bool = True
) -> None:
    """Add the flags of all settings in ``groups`` (keys of ``options.GROUPS``) but those named in ``skip``.

    ``explain=False`` leaves them out of --help: for flags that are known only to be refused with a sentence.
    """
    for key, title in options.GROUPS.items():
        if key not in groups:
            continue
        group = parser.add_argument_group(title) if explain else parser
        for setting in options.SETTINGS:
            # One flag for the actions of all rules: --action.
            if setting.group == key and setting.name not in skip and not setting.name.startswith("action_"):
                _add(group, setting, explain=explain)
        if key == "judge":
            about = f"what a rule asks for; rules {', '.join(options.RULES)}; actions {', '.join(options.ACTIONS)}"
            group.add_argument("--action", action="append", metavar="RULE=ACTION", help=about)


def given(args: argparse.Namespace) -> dict[str, object]:
    """Return the raw value of every setting and of ``action``, None where no flag was given, for ``resolve``."""
    found = {setting.name: getattr(args, setting.name, None) for setting in options.SETTINGS}
    return {**found, "action": getattr(args, "action", None)}


def _add(group: argparse._ActionsContainer, setting: options.Setting, *, explain: bool) -> None:
    about = setting.help
    if setting.default not in (None, False, (), 0):
        about += f" (default: {_default(setting)})"
    shown = about if explain else argparse.SUPPRESS
    if setting.many:
        group.add_argument(setting.flag, action="append", metavar=setting.metavar, help=shown)
    elif setting.default is False:
        group.add_argument(setting.flag, action="store_const", const=True, help=shown)
    else:
        group.add_argument(setting.flag, metavar=setting.metavar, help=shown)


def _default(setting: options.Setting) -> str:
    return f"{setting.default:g}s" if setting.metavar == "TIME" else str(setting.default)


def launched_facts(launched: Launched, one: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a launch prints with --json: where the run is, and ``one``, its first status, in short."""
    return {
        "name": launched.folder.name,
        "pid": launched.pid,
        "executable": launched.executable,
        "log": launched.log,
        "folder": str(launched.folder.path),
        **{name: one[name] for name in ("state", "cause", "cause_text")},
    }


MOST_DIGITS = 15
"""Of a number of lines: a log of so many lines is a million times as large as any disk."""


def lines_asked(written: str) -> int:
    """Return a number of lines, 0 included; UsageError for another word, and for more lines than a log can have."""
    if not (written.isascii() and written.isdigit()):
        raise UsageError(f"--lines cannot be {written!r}: give a whole number such as 20")
    digits = written.lstrip("0")
    if len(digits) > MOST_DIGITS:
        raise UsageError(f"--lines cannot be {written[:40]}: no log has so many lines; leave it out for all")
    return int(digits or "0")

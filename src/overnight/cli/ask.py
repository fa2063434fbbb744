"""The verbs that ask something of a run without ending it: ``note`` and ``set``.

What is asked is dropped into the run's inbox; its supervisor takes it, and says in the journal that it has.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from overnight import client, launch
from overnight.cli.page import local
from overnight.cli.parser import Parser, new_parser
from overnight.cli.render import figure, money, span
from overnight.errors import FolderError, UsageError
from overnight.folder import RunFolder
from overnight.options import ACTIONS, BY_NAME, CHANGEABLE, RULES, Setting
from overnight.printable import harmless
from overnight.quantities import RefusedError, epoch_of, quoted
from overnight.requests.asked import in_force
from overnight.requests.changes import changed
from overnight.settings import NOT_ASKED, rule_action
from overnight.spec import RunSpec

NOTE_EXAMPLES = """\
  overnight note quiet lr looks too high, watch the loss after step 4000
  overnight note quiet -- "-- begins with a dash"
"""

SET_EXAMPLES = """\
  overnight set quiet --max-hours 12          instead of 8, while it goes on
  overnight set quiet --until 07:30           the next half past seven
  overnight set quiet --max-cost none         lift the limit
  overnight set quiet --action stall=alert    only tell, do not end
"""

NOTE_SIGNS = 1000
TAKEN_WITHIN_S = 10.0
LIFTED = "none"


# -- note ------------------------------------------------------------------------------------------------------------


def note(words: list[str]) -> int:
    """Keep a sentence with a run, ended or not."""
    parser = new_parser("note", NOTE_EXAMPLES)
    parser.usage = "overnight note NAME TEXT..."
    parser.add_argument("name", metavar="NAME", help="a run, or the beginning of its name")
    about = f"what is to be kept: at most {NOTE_SIGNS} signs, one line"
    parser.add_argument("text", nargs=argparse.REMAINDER, metavar="TEXT", help=about)
    args = parser.parse_args(words)
    text = checked_note(" ".join(args.text[1:] if args.text[:1] == ["--"] else args.text))
    folder = client.find(client.find_home(), args.name)
    one = _readable(folder)
    client.request_note(folder, text)
    if one["state"] in client.ENDED or one["stale"]:
        launch.adopt(folder)
    print(f"{folder.name}: noted")
    return 0


def checked_note(text: str) -> str:
    """Return a note that may be kept and shown; UsageError for one that is empty, too long or more than text."""
    said = text.strip()
    if not said:
        raise UsageError("there is nothing to note; write it behind the name: overnight note NAME TEXT")
    if len(said) > NOTE_SIGNS:
        raise UsageError(f"a note may have {NOTE_SIGNS} signs, this one has {len(said)}; shorten it, or name a file")
    if harmless(said) != said or "\t" in said or any("\ud800" <= sign <= "\udfff" for sign in said):
        raise UsageError("a note is one line of text; this one holds control characters or bytes that are no text")
    return said


def _readable(folder: RunFolder) -> client.Status:
    one = client.status(folder)
    if one["state"] == "damaged":
        raise FolderError(str(one["cause_text"]))
    return one


# -- set -------------------------------------------------------------------------------------------------------------


def change(words: list[str]) -> int:
    """Change limits of a run that goes on; returns once its supervisor has taken the change."""
    args = _set_parser().parse_args(words)
    values = _values(args, time.time())
    if not values:
        raise UsageError("nothing is to be changed; say what: overnight set NAME --max-hours 12")
    folder = client.find(client.find_home(), args.name)
    one = _readable(folder)
    if one["state"] in client.ENDED and not (client.hooks_held(one) and [*values] == ["on_end_guard"]):
        raise UsageError(f"{folder.name} has ended ({one['state']}); nothing can be set any more")
    before = in_force(folder)
    _check(folder.name, before, values)
    start = _length(folder.journal)
    path = client.request_set(folder, values)
    if one["stale"]:
        launch.adopt(folder)
    _await_taken(folder, path, start, values)
    after = in_force(folder)
    print("\n".join(f"{folder.name}: {text}" for text in _differences(before, after, values)))
    return 0


set = change  # noqa: A001 - a verb's function has the verb's name


def _set_parser() -> Parser:
    parser = new_parser("set", SET_EXAMPLES)
    parser.usage = "overnight set NAME [options]"
    parser.add_argument("name", metavar="NAME", help="a run that goes on, or the beginning of its name")
    for name in CHANGEABLE:
        setting = BY_NAME[name]
        more = f"; {LIFTED} takes it back" if setting.default is None else ""
        parser.add_argument(setting.flag, metavar=setting.metavar, help=setting.help + more)
    about = f"what a rule asks for; rules {', '.join(RULES)}; actions {', '.join(ACTIONS)}"
    parser.add_argument("--action", action="append", metavar="RULE=ACTION", help=about)
    return parser


def _values(args: argparse.Namespace, now: float) -> dict[str, Any]:
    """Return {RunSpec field: new value} of the flags that were given."""
    found: dict[str, Any] = {}
    for name in CHANGEABLE:
        raw, setting = getattr(args, name), BY_NAME[name]
        if raw is not None:
            found[setting.field] = _parsed(setting, raw, now)
    actions = dict(rule_action(word, "flag --action") for word in args.action or ())
    return {**found, "actions": actions} if actions else found


def _parsed(setting: Setting, raw: str, now: float) -> Any:
    if setting.default is None and raw.strip().lower() == LIFTED:
        return None
    try:
        value = setting.parse(raw)
        return epoch_of(value, now) if setting.name == "until" else value
    except RefusedError as error:
        raise UsageError(f"{setting.label} {quoted(raw)} (flag {setting.flag}) {error}") from error
    except (ValueError, KeyError, OverflowError) as error:
        wants = setting.wants + (f", or {LIFTED}" if setting.default is None else "")
        raise UsageError(f"{setting.label} cannot be {quoted(raw)} (flag {setting.flag}): give {wants}") from error


def _check(name: str, before: RunSpec, values: Mapping[str, Any]) -> None:
    """Raise UsageError for a change that cannot be made, so that nothing is asked that would be refused."""
    try:
        changed(before, values)
    except ValueError as error:
        raise UsageError(f"{name} cannot be changed so: {error}; see `overnight set --help`") from error


def _length(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _facts_since(path: Path, start: int) -> Iterator[dict[str, Any]]:
    """Yield the whole facts that were written after the first ``start`` bytes of a journal."""
    try:
        with path.open("rb") as stream:
            stream.seek(start)
            lines = stream.read().splitlines(keepends=True)
    except OSError:
        return
    for line in lines:
        try:
            fact = json.loads(line) if line.endswith(b"\n") else None
        except (ValueError, RecursionError):
            continue
        if isinstance(fact, dict):
            yield fact


def _await_taken(folder: RunFolder, path: Path, start: int, values: Mapping[str, Any]) -> None:
    """Wait until the supervisor has written the change down; FolderError with the reason if it does not."""
    deadline = time.monotonic() + TAKEN_WITHIN_S
    with client.FolderWatch(folder) as watch:
        while True:
            left = time.monotonic() < deadline
            handled = not path.exists()  # before the journal is read: what was written before it went is seen then
            facts = list(_facts_since(folder.journal, start))
            if any(fact.get("fact") == "set" and fact.get("values") == values for fact in facts):
                return
            said = [str(fact.get("text")) for fact in facts if fact.get("fact") == "note"]
            why = [text for text in said if text.startswith("a change was refused") or path.name in text]
            if why:
                raise FolderError(f"{folder.name} was not changed: {why[-1]}")
            if handled or not left:
                raise FolderError(_untaken(folder, handled=handled))
            watch.wait(0.1)


def _untaken(folder: RunFolder, *, handled: bool) -> str:
    state = client.status(folder)["state"]
    if state in client.ENDED:
        return f"{folder.name} was not changed: it has ended ({state}) meanwhile"
    if handled:
        return f"{folder.name} was not changed: its supervisor took the request and did not say why; see its journal"
    return (
        f"the supervisor of {folder.name} has not taken the change within {TAKEN_WITHIN_S:g} s; "
        f"it lies in {folder.inbox} and is taken when one looks there (overnight status {folder.name})"
    )


# -- what has changed ------------------------------------------------------------------------------------------------


def _differences(before: RunSpec, after: RunSpec, values: Mapping[str, Any]) -> Iterator[str]:
    for name in CHANGEABLE:
        setting = BY_NAME[name]
        if setting.field in values:
            was, now = (shown(setting, getattr(spec, setting.field)) for spec in (before, after))
            yield f"{setting.label} {was} -> {now}" if was != now else f"{setting.label} {now}, as before"
    for rule in values.get("actions", ()):
        was, now = (spec.actions.get(rule, "the rule's own") for spec in (before, after))
        yield f"action {rule} {was} -> {now}" if was != now else f"action {rule} {now}, as before"


def shown(setting: Setting, value: Any) -> str:
    """Return the value of a setting as people write it."""
    if value is None:
        return NOT_ASKED.get(setting.name, LIFTED)
    if setting.name == "until":
        return local(value)
    if setting.name in ("price", "max_cost"):
        return f"{money(value)}/h" if setting.name == "price" else money(value)
    if setting.metavar == "TIME":
        return span(value) if value >= 1 and float(value).is_integer() else f"{value:g}s"
    return figure(value, 12)

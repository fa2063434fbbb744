"""The verb ``replay``: a finished run or log judged again, under any rules. Only prints; nothing is started."""

from __future__ import annotations

import os
import sys

from overnight.cli.parser import new_parser

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from pathlib import Path
    from typing import Any

    from overnight.cli.parser import Parser
    from overnight.folder import RunFolder
    from overnight.past.replay import Past, Replay
    from overnight.spec import RunSpec

EXAMPLES = """\
  overnight replay pretrain                      a run, under its own rules
  overnight replay pretrain --max-loss 8         would this have caught it?
  overnight replay pretrain --stall 10m --price 2.49/h
  overnight replay pretrain --action spike=rollback
  overnight replay train.log --vocab-size 50304  any log, never launched here
  overnight replay train.log --exit-code         1 if a rule would have ended it
"""

GROUPS = ("read", "measure", "judge", "limit")
ENDED_BY_A_RULE = NOTHING_READ = 1


def replay(words: list[str]) -> int:
    """Judge a finished run or log again."""
    args = _parser().parse_args(_refused(words))
    told = _replayed(args)
    if args.json:
        from overnight.cli.look import as_json

        print(as_json(told))
    else:
        from overnight.cli.replaypage import replay_text

        print(replay_text(told))
    return _code(told) if args.exit_code else 0


def _code(told: dict[str, Any]) -> int:
    """Return what --exit-code gives: a log of which nothing was judged has passed no rule."""
    if told["end"] is not None:
        return ENDED_BY_A_RULE
    if told["read"]["records"]:
        return 0
    print("overnight: no training record was read, so no rule has passed: exit code 1", file=sys.stderr)
    return NOTHING_READ


def replayed_words(words: list[str]) -> dict[str, Any]:
    """Return what ``overnight replay WORDS --json`` prints, before it is printed."""
    return _replayed(_parser().parse_args(_refused(words)))


def _refused(words: list[str]) -> list[str]:
    """Return the words; UsageError for a flag that says how a run is started again, which a replay never does."""
    from overnight.errors import UsageError
    from overnight.options import SETTINGS

    again = {f"--{one.name.replace('_', '-')}" for one in SETTINGS if one.group == "again"}
    for word in words:
        flag = word.partition("=")[0]
        if flag in again:
            message = (
                f"replay starts nothing again, so it takes no {flag}: of a run it says whether it would have been "
                "started again or rolled back by the run's own settings, and a log is one attempt"
            )
            raise UsageError(message)
    return words


def _parser() -> Parser:
    from overnight.cli.flags import add_settings

    parser = new_parser("replay", EXAMPLES)
    parser.add_argument("what", metavar="RUN|LOG", help="a run, or the path of any log")
    parser.add_argument("--json", action="store_true", help="print one object, full precision, null for unknown")
    about = "exit with 1 if a rule would have ended it, or if no training record was read"
    parser.add_argument("--exit-code", action="store_true", help=about)
    add_settings(parser, GROUPS, skip=("line_buffered",))
    return parser


def _replayed(args: argparse.Namespace) -> dict[str, Any]:
    """Return the replay of what was named, as one dict."""
    from overnight.cli.subject import find_subject
    from overnight.folder import RunFolder
    from overnight.past import replayed
    from overnight.past.replay import replay as judge

    subject = find_subject(args.what)
    remarks: list[str] = []
    more: dict[str, Any] = {}
    run = subject if isinstance(subject, RunFolder) else None
    if not isinstance(subject, RunFolder):
        past = replayed.past_of_log(subject)
        spec = _spec_of_log(args, subject, past, remarks)
    else:
        past, spec, more = _run(args, subject)
    remarks += replayed.remarks_on(past, spec)
    done = judge(past, spec, remarks.append)
    if run is None:
        _refuse_binary(past.path, done)
        return replayed.document(done, past, spec, name=None, night=None, remarks=remarks)
    night, left_out = replayed.night_of(run)
    more["night_left_out"] = left_out
    return replayed.document(done, past, spec, name=run.name, night=night, remarks=remarks, **more)


def _refuse_binary(path: Path, done: Replay) -> None:
    """Raise UsageError for a picture or an archive in the place of a log, as ``report`` does."""
    from overnight.errors import UsageError
    from overnight.report.loglines import is_text

    if not done.tally.records and not done.tally.evals and not done.found and not is_text(path):
        raise UsageError(f"{path} is not text, so there is nothing to replay; give a log, unpacked")


def _run(args: argparse.Namespace, folder: RunFolder) -> tuple[Past, RunSpec, dict[str, Any]]:
    """Return what is replayed of a run, the rules, and what else is told of it."""
    import time

    from overnight import client
    from overnight.errors import FolderError
    from overnight.past import replayed
    from overnight.requests.asked import in_force, read_asked

    status = client.status(folder)
    asked, own = read_asked(folder), in_force(folder)
    spec = _with_flags(args, own, asked.epoch, str(folder.path))
    if not os.path.isfile(spec.log):
        raise FolderError(f"the log of {folder.name}, {spec.log}, is gone; give the path of a copy")
    over = status["state"] in client.ENDED
    past = replayed.past_of_run(folder, spec, over=over, now=time.time())
    more = {"outcome": replayed.outcome_of(folder), "live": not over, "changed": _changes(own, spec)}
    return past, spec, more


def _changes(own: RunSpec, spec: RunSpec) -> dict[str, list[Any]]:
    """Return the settings in which the replay differs from the run: [the run's, the replay's]."""
    import msgspec

    from overnight.past.replayed import in_words

    before, after = msgspec.structs.asdict(own), msgspec.structs.asdict(spec)
    changed = [name for name in before if before[name] != after[name]]
    return {name: [in_words(name, before[name]), in_words(name, after[name])] for name in changed}


def _with_flags(args: argparse.Namespace, own: RunSpec, launched: float | None, nowhere: str) -> RunSpec:
    """Return a run's own spec with the flags over it; environment and files had their say when it was launched."""
    import msgspec

    from overnight.cli.flags import given
    from overnight.options import BY_NAME
    from overnight.settings import resolve

    flags: dict[str, object] = {**given(args), "name": own.name}
    asked = [name for name, raw in given(args).items() if raw is not None and name != "action"]
    if flags["price"] is None and own.price is not None:
        flags["price"] = f"{own.price!r}/h"
    if flags["steps"] is None and own.steps is not None:
        flags["steps"] = own.steps
    # Neither environment nor files: a place without any is looked at.
    empty = {"XDG_CONFIG_HOME": os.path.join(nowhere, "none")}
    found = resolve(flags, (), home=nowhere, environ=empty, cwd=nowhere, now=launched)
    _warn(found.warnings)
    fields = {BY_NAME[name].field: getattr(found.spec, BY_NAME[name].field) for name in asked}
    return msgspec.structs.replace(own, **fields, actions={**own.actions, **found.spec.actions})


def _spec_of_log(args: argparse.Namespace, path: Path, past: Past, remarks: list[str]) -> RunSpec:
    """Return what a run that is started here would be judged by: flags, environment and both files count."""
    import msgspec

    from overnight import client
    from overnight.cli.flags import given
    from overnight.settings import resolve

    # A log that a file names is another one; this one stands in for it where it could be a run's log at all.
    log = str(path) if _may_be_run_log(path) else None
    began = None if past.times is None else min(at for at, *_ in past.times.states)
    flags = {**given(args), "name": "replay", "log": log}
    found = resolve(flags, (), home=client.find_home(), now=began)
    _warn(found.warnings)
    used = sorted({origin for origin in found.origins.values() if not origin.startswith(("flag ", "default"))})
    used = [origin for origin in used if origin not in ("made up", "as long as grace")]
    if used:
        remarks.append(f"settings were also taken from {', '.join(used)}")
    return msgspec.structs.replace(found.spec, log=str(path))


def _may_be_run_log(path: Path) -> bool:
    """Say whether a run could have this log: a file to read and write, of a name that a run folder can hold."""
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError:
        return False
    return path.is_file() and os.access(path, os.R_OK | os.W_OK)


def _warn(warnings: tuple[str, ...]) -> None:
    for warning in warnings:
        print(f"overnight: {warning}", file=sys.stderr)

"""The verb ``watch``: takes over the watching of a training that was started by hand."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

from overnight import adoption, client, launch, options, settings
from overnight.adoption import Training
from overnight.cli.end import ended_code
from overnight.cli.flags import add_settings, given, launched_facts
from overnight.cli.notice import farewell
from overnight.cli.parser import Parser, new_parser
from overnight.errors import UsageError

EXAMPLES = """\
  overnight watch --pid 4711                     its output goes to a file
  overnight watch --pid 4711 --log train.log     it goes through `| tee`
  overnight watch --pid $(pgrep -f train.py) --name night --max-hours 8

what was printed before is not judged; the time it has run counts for limits
"""

GROUPS = ("place", "end", "read", "measure", "judge", "limit", "tell")

NOT_HERE = ("log", "settle", "line_buffered")
"""Settings of how a command is started: this one has been. Its log is only read, which --log says here."""

AGAIN = ("restarts", "resume_args", "recover", "backoff", "rollbacks", "rollback_steps", "strict")


def watch(words: list[str]) -> int:
    """Make a run of a process that is there already; returns once a supervisor watches it."""
    parser = _parser()
    args = parser.parse_args(words)
    again = [options.BY_NAME[name].flag for name in AGAIN if getattr(args, name) is not None]
    if again:
        parser.error(f"{again[0]} cannot be kept: what was started by hand cannot be started again")
    if any(str(word).endswith("=rollback") for word in args.action or ()):
        parser.error("--action ...=rollback cannot be kept: what was started by hand cannot be started again")
    home = client.find_home()
    training = adoption.look(_pid(args.pid), home=home)
    resolved = _resolve(args, training, home)
    hangs = adoption.hangs_on(training.identity.pid)
    _warn([*resolved.warnings, *([hangs] if hangs else [])])
    launched = adoption.start(training, resolved.spec, resolved.origins, home=Path(home))
    _warn(launched.notes)
    one = client.status(launched.folder)
    ended = one["state"] in client.ENDED
    if args.json:
        print(json.dumps(launched_facts(launched, one)))
    elif ended:
        print(farewell(launched.folder, one))
    else:
        _say_watched(launched)
    return ended_code(one, own=False) if ended else 0


def _parser() -> Parser:
    parser = new_parser("watch", EXAMPLES)
    parser.usage = "overnight watch --pid PID [options]"
    parser.add_argument("--pid", required=True, metavar="PID", help="the training's process, or that of its launcher")
    about = "the file its progress is written to (default: where its standard output or error goes)"
    parser.add_argument("--log", metavar="FILE", help=about)
    parser.add_argument("--json", action="store_true", help="print the launch as one object")
    add_settings(parser, GROUPS, NOT_HERE)
    add_settings(parser, ("again",), explain=False)
    return parser


def _pid(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < len(text) < 20 and int(text) > 0):
        raise UsageError(f"--pid cannot be {text!r}: give the number of a process, as `ps -eo pid,args` shows it")
    return int(text)


def _resolve(args: argparse.Namespace, training: Training, home: str) -> settings.Resolved:
    """Return the settings: paths in flags are of the caller's folder, project files of the training's."""
    flags = given(args)
    for name in ("log", "checkpoints"):
        path = flags[name]
        if isinstance(path, str) and path:
            flags[name] = os.path.join(os.getcwd(), os.path.expanduser(path))
    flags["log"] = flags["log"] or training.log
    found = settings.resolve(flags, (), home=home, environ=launch.user_environment(), cwd=training.cwd)
    origins, warnings = dict(found.origins), list(found.warnings)
    if args.log is None and training.log is not None:
        origins["log"] = training.output
    if origins["log"] == "default":
        raise UsageError(
            f"the output of process {training.identity.pid} goes to {training.output}, where nobody else can read it; "
            f"give the file that its progress is written to with --log FILE"
        )
    if not os.path.exists(found.spec.log):
        raise UsageError(f"log ({origins['log']}): {found.spec.log} does not exist; give the file it is written to")
    for name in AGAIN[:3]:
        if origins[name] != "default":
            label = options.BY_NAME[name].label
            warnings.append(f"{label} ({origins[name]}) is left out: what was started by hand cannot be started again")
            origins[name] = "default"
    spec = adoption.watched_spec(found.spec, training)
    return settings.Resolved(
        spec=spec, origins=origins, settle_s=found.settle_s, warnings=tuple(warnings), values=found.values
    )


def _warn(sentences: Iterable[str]) -> None:
    for text in sentences:
        print(f"overnight: {text}", file=sys.stderr)


def _say_watched(launched: launch.Launched) -> None:
    name = launched.folder.name
    following = [f"overnight {verb} {name}" for verb in ("attach", "status", "stop")]
    if launched.attach is not None:
        following.insert(0, shlex.join(launched.attach))
    print(f"{name}: watched, pid {launched.pid}")
    print(f"  executable  {launched.executable}\n  log         {launched.log}")
    print("  next        " + f"\n{'':<14}".join(following), flush=True)

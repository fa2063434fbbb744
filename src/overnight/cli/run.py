"""The verb ``run``: settings to a placed run, and the ways to stay with it: --foreground, --follow, --wait-step."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from overnight import client, launch, settings
from overnight.cli import ends
from overnight.cli.end import adopter, ended_code
from overnight.cli.flags import add_settings, given, launched_facts
from overnight.cli.follow import offset_of_last
from overnight.cli.foreground import Foreground
from overnight.cli.logs import watch
from overnight.cli.notice import farewell, last_lines
from overnight.cli.parser import Parser, new_parser
from overnight.cli.render import ending, state_words
from overnight.cli.terminal import silence
from overnight.doctor import checks as doctor
from overnight.errors import FolderError, OvernightError, UsageError, WaitTimeoutError
from overnight.folder import RunFolder
from overnight.machine import Machine
from overnight.spec import RunSpec

EXAMPLES = """\
  overnight run -- python train.py
  overnight run --name gpt2 --steps 19073 --params 124M --peak-tflops 312 \\
      --tokens-per-step 524288 --devices 8 -- torchrun train.py
  overnight run --max-hours 8 --action divergence=stop -- bash run.sh
  overnight run --foreground -- python train.py  # stay; Ctrl-C stops it
  overnight run --engine tmux --name gpt2 -- python train.py
                                                 # tmux attach -t gpt2
  overnight run --explain                        # every setting and its origin

settings come from flags, then OVERNIGHT_* (OVERNIGHT_GRACE=2m), then
./overnight.toml or [tool.overnight] in ./pyproject.toml, then
~/.config/overnight/config.toml
"""

LAST_LINES = 20
EXPLAIN_WIDTH = 32
TIDY_S = 15.0
"""How long a command that died at once may take to be tidied up after, before ``run`` stops waiting for the verdict."""


def run(words: list[str]) -> int:
    """Start a run; returns once it lives in its own session, unless asked to stay."""
    options_part, command = _split(words)
    parser = _parser()
    args, stray = parser.parse_known_args(options_part)
    if command is None and args.stray:
        parser.error(f"put `--` before the command: overnight run [options] -- {' '.join(args.stray)} ...")
    if stray or args.stray:
        parser.error(f"unrecognized arguments: {' '.join(stray or args.stray)}")
    if not command and not args.explain:
        parser.error("no command after `--`: write it there, as in `overnight run -- python train.py`")
    if args.json and (args.foreground or args.follow):
        parser.error("--json goes with neither --foreground nor --follow; ask `overnight status --json` from elsewhere")
    home = Path(client.find_home())
    environ = launch.user_environment()  # the command is found on the user's own PATH
    resolved = settings.resolve(given(args), command or (), home=home, environ=environ)
    _warn(resolved.warnings)
    if args.explain:
        return _explain(resolved, home, as_json=args.json)
    return _start(resolved, home, args)


def _warn(sentences: Iterable[str]) -> None:
    for text in sentences:
        print(f"overnight: {text}", file=sys.stderr)


def _split(words: list[str]) -> tuple[list[str], list[str] | None]:
    """Return the options and the command behind the first ``--``; None if there is no ``--``."""
    at = words.index("--") if "--" in words else len(words)
    options_part: list[str] = []
    for word in words[:at]:
        # argparse would take `--resume` behind it for a flag of ours
        if options_part and options_part[-1] == "--resume-args" and word.startswith("-"):
            options_part[-1] += f"={word}"
        else:
            options_part.append(word)
    return options_part, words[at + 1 :] if "--" in words else None


def _parser() -> Parser:
    parser = new_parser("run", EXAMPLES)
    parser.usage = "overnight run [options] -- COMMAND..."
    parser.add_argument("stray", nargs="*", help=argparse.SUPPRESS)
    stay = parser.add_mutually_exclusive_group()
    stay.add_argument("--foreground", action="store_true", help="stay and show the output; Ctrl-C stops it gracefully")
    stay.add_argument("--follow", action="store_true", help="show the output; Ctrl-C only leaves")
    stay.add_argument("--wait-step", action="store_true", help="return after the first progress line (or the end)")
    parser.add_argument("--pass-exit-code", action="store_true", help="exit as the command itself did")
    parser.add_argument("--json", action="store_true", help="print the launch as one object")
    parser.add_argument("--explain", action="store_true", help="print every setting with its origin; start nothing")
    add_settings(parser)
    return parser


def _explain(resolved: settings.Resolved, home: Path, *, as_json: bool) -> int:
    spec = resolved.spec
    at_ends = ends.at_ends(spec, RunFolder(home / "runs" / spec.name), str(home))
    rows = [*settings.explain(resolved), *ends.rows(at_ends)]
    if as_json:
        print(json.dumps([{"setting": name, "value": value, "origin": origin} for name, value, origin in rows]))
        return 0
    for name, value, origin in rows:
        between = f"\n{'':<{23 + EXPLAIN_WIDTH}}" if len(value) > EXPLAIN_WIDTH else ""  # the origin keeps its column
        print(f"{name:<22} {value:<{EXPLAIN_WIDTH}}{between} {origin}")
    return 0


def _start(resolved: settings.Resolved, home: Path, args: argparse.Namespace) -> int:
    spec = resolved.spec
    neighbours = _neighbours(spec, home)
    _warn(_carried_over(resolved, home))
    _warn(doctor.quick(Machine(home=home)))  # what would end it at logout, while something can be done about it
    offset = offset_of_last(spec.log, 0)  # an older log with --log: only what this run appends is shown
    if args.foreground:
        with Foreground() as stay:  # before the start: a Ctrl-C in the first moments must not be lost
            launched = launch.start(spec, resolved.origins, home=home, settle_s=0.0)
            with _started(launched.folder):
                _warn([*launched.notes, *neighbours])
                _say_started(launched, sys.stderr)
                one = stay.until_end(launched.folder, launched.log, offset)
        print(farewell(launched.folder, one), file=sys.stderr)
        return ended_code(one, own=args.pass_exit_code)
    launched = launch.start(spec, resolved.origins, home=home, settle_s=0.0 if args.follow else resolved.settle_s)
    with _started(launched.folder):
        _warn([*launched.notes, *neighbours])
        return _follow(launched, offset, args) if args.follow else _leave(launched, offset, args)


@contextlib.contextmanager
def _started(folder: RunFolder) -> Iterator[None]:
    """Say of what fails after the start that the run was started: a script that starts it again would have two.

    FolderError for an OSError; BrokenPipeError stays one, as its exit code does.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        silence()
        goes_on = "goes on"
        with contextlib.suppress(OSError, OvernightError):
            goes_on = "has ended" if client.status(folder)["state"] in client.ENDED else goes_on
        what = "cannot be printed" if error.filename is None else f"cannot be followed at {error.filename}"
        said = f"the run {folder.name} was started and {goes_on}, but that {what}: {error.strerror or error}"
        said += f"; `overnight status {folder.name}` shows it"
        if isinstance(error, BrokenPipeError):
            _warn([said])
            raise
        raise FolderError(said) from error


def _follow(launched: launch.Launched, offset: int, args: argparse.Namespace) -> int:
    _say_started(launched, sys.stdout)
    left = watch(launched.folder, launched.log, offset, bar=False)
    return left if left is not None else ended_code(client.status(launched.folder), own=args.pass_exit_code)


def _leave(launched: launch.Launched, offset: int, args: argparse.Namespace) -> int:
    """Say how it began, and leave it; of one that has ended already, how."""
    folder = launched.folder
    one = _first_look(folder)
    if args.wait_step and one["state"] not in client.ENDED:
        one = client.wait(folder, on_stale=adopter(folder), until=lambda seen: bool(seen.get("records")))
    ended = one["state"] in client.ENDED
    if args.json:
        print(json.dumps(launched_facts(launched, one)))
    elif not ended:
        _say_started(launched, sys.stdout)
        if _taken_up(one):
            why = one["cause_text"] or "its log says why"
            _warn([f"the first attempt has ended already ({why}); now {state_words(one, time.time())}"])
    return _early_end(launched, one, offset, args) if ended else 0


def _neighbours(spec: RunSpec, home: Path) -> list[str]:
    """Return a warning if another live run watches the same folder for its saves: nobody could tell whose is whose."""
    if spec.checkpoints is not None:
        return []
    live = (one for one in client.list_runs(str(home)) if one["state"] in client.STATES - client.ENDED)
    names = [one["name"] for one in live if one.get("cwd") == spec.cwd]
    if not names:
        return []
    return [f"{names[0]} watches {spec.cwd} for saves, too; give each of the two its own --checkpoints folder"]


def _carried_over(resolved: settings.Resolved, home: Path) -> list[str]:
    """Return what was asked otherwise of the run whose saves this one goes on from; with --strict a UsageError."""
    from overnight.resumption import carryover

    found = carryover.changes(resolved.spec, home, resolved.origins)
    if found and resolved.spec.strict:
        said = "; ".join(found)
        raise UsageError(f"strict ({resolved.origins['strict']}): {said}; start it as before, or without --strict")
    return found


def _first_look(folder: RunFolder) -> dict[str, Any]:
    """Return the status after the settle time; of a command that has died already, how that was taken."""
    if folder.attempt(1).exit_json.exists():
        with contextlib.suppress(WaitTimeoutError):
            return client.wait(folder, TIDY_S, on_stale=adopter(folder), until=_taken_up)
    return client.status(folder)


def _taken_up(one: dict[str, Any]) -> bool:
    """Say whether a command that died is to be started again, or has been."""
    return one["state"] == "backoff" or (one["attempt"] or 1) > 1


def _early_end(launched: launch.Launched, one: dict[str, Any], offset: int, args: argparse.Namespace) -> int:
    code = ended_code(one, own=args.pass_exit_code)
    stream = sys.stdout if code == 0 else sys.stderr
    if not args.json:
        print(farewell(launched.folder, one) if code == 0 else ending(one), file=stream)
        print(_places(launched), file=stream)
    if code != 0:
        for text in last_lines(launched.log, LAST_LINES, offset):
            print(text, file=sys.stderr)
        if one["cause"] in ("usage", "import_error") and not args.json:
            why = "removes what is left of it" if args.name is None else "then the name is free again"
            print(f"  next        overnight clean {launched.folder.name}   # {why}", file=sys.stderr)
    return code


def _places(launched: launch.Launched) -> str:
    return f"  executable  {launched.executable}\n  log         {launched.log}"


def _say_started(launched: launch.Launched, stream: Any) -> None:
    name = launched.folder.name
    pid = "its command could not be executed" if launched.pid is None else f"pid {launched.pid}"
    following = [f"overnight {verb} {name}" for verb in ("attach", "status", "stop")]
    if launched.attach is not None:
        following.insert(0, shlex.join(launched.attach))
    following[0] = f"  next        {following[0]}"
    print(
        f"{name}: started, {pid}", _places(launched), f"\n{'':<14}".join(following), sep="\n", file=stream, flush=True
    )

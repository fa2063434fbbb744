"""The door for people: finds the verb, loads its file, turns what goes wrong into one sentence and an exit code.

A thin shell over ``client`` and ``launch``: no run folder is read and no process started here. Each verb's file is only
imported when that verb is asked for; this file imports nothing costly, because ``ls`` must be quick.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys

from overnight.cli.parser import INTERRUPTED, OTHERWISE, VERBS, Parser, alike
from overnight.errors import OvernightError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

EPILOG = """\
overnight run -- python train.py     start it; the terminal may be closed
overnight status                     how the latest run is doing
overnight VERB --help                options and examples of one verb

exit codes of wait, run --foreground and an early death: 0 finished,
100 failed, 101 wait timed out, 102 no such run, 103 stopped by a person,
104 by a health rule, 105 by a limit, 106 gave up, 107 preempted,
108 finished, but a hook failed, 2 wrong use
"""

BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out one command line and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        # A file name or a log line may hold what the terminal's encoding has no sign for: never a traceback for that.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _guarded(words)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        _silence()
        return BROKEN_PIPE
    except OSError as error:  # the last flush: a full disk behind `> file`
        _silence()
        return _say(_sentence(error), 1)
    return code


def _guarded(words: list[str]) -> int:
    try:
        return _dispatch(words)
    except OvernightError as error:
        return _say(str(error), error.exit_code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        raise
    except OSError as error:
        return _say(_sentence(error), 1)
    except SystemExit as end:  # argparse: --help, --version and wrong use
        return end.code if isinstance(end.code, int) else 0


def _dispatch(words: list[str]) -> int:
    if not sys.platform.startswith("linux"):
        return _say(f"Overnight needs Linux (it lives on /proc, inotify and subreapers); this is {sys.platform}", 2)
    if words and words[0] in VERBS:
        verb, (module, _) = words[0], VERBS[words[0]]
        # One import per verb by name: a table of modules would have to import them all.
        entry: Callable[[list[str]], int] = getattr(
            __import__(f"overnight.cli.{module}", fromlist=[verb]), verb.replace("-", "_")
        )
        return entry(words[1:])
    verbs = "".join(f"\n  {verb:<13} {summary}" for verb, (_, summary) in VERBS.items())
    parser = Parser("overnight", f"Keeps a training run going overnight.\n\nverbs:{verbs}", EPILOG)
    parser.usage = "overnight VERB [options]"
    parser.add_argument("--version", action="store_true", help="print the version")
    parser.add_argument("verb", nargs="?", help=argparse.SUPPRESS)
    asked, _ = parser.parse_known_args(words)
    if asked.version:
        from overnight import __version__

        print(f"overnight {__version__}")
        return 0
    if asked.verb is not None:
        near = OTHERWISE.get(asked.verb) or alike(asked.verb, VERBS)
        hint = f"did you mean {near}?" if near else f"verbs are {', '.join(VERBS)}"
        parser.error(f"there is no verb {asked.verb!r}; {hint}")
    if words:
        parser.error(f"{words[0]!r} is no option of overnight itself; name a verb first")
    parser.print_help()
    return 2


def _sentence(error: OSError) -> str:
    names = {errno.ENOSPC: "the disk is full", errno.EROFS: "the disk is read-only", errno.EACCES: "permission denied"}
    what = names.get(error.errno or 0, error.strerror or str(error))
    place = "" if error.filename is None else f": {os.fsdecode(error.filename)}"
    printed = "what this is printed to, or " if error.filename is None else ""  # writing to an open file names none
    return f"{what}{place}; is {printed}OVERNIGHT_HOME (or ~/.local/state/overnight) on a disk you can write to?"


def _say(sentence: str, code: int) -> int:
    try:  # noqa: SIM105 - contextlib is not worth its import here
        print(f"overnight: {sentence}", file=sys.stderr, flush=True)
    except OSError:  # nobody listens: the exit code must do
        pass
    return code


def _silence() -> None:
    """Point stdout nowhere, so that the interpreter's own flush at exit does not complain a second time."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError, AttributeError):
        pass

"""What is behind the door: finds the verb, loads its file, turns what goes wrong into one sentence and an exit code.

A thin shell over ``client`` and ``launch``: no run folder is read and no process started here. Each verb's file is only
imported when that verb is asked for; this file imports nothing costly, because ``ls`` must be quick.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys

from overnight.cli import terminal
from overnight.cli.parser import Parser, alike
from overnight.cli.verbs import BROKEN_PIPE, EPILOG, INTERRUPTED, OTHERWISE, SHOWING, VERBS
from overnight.errors import OvernightError
from overnight.printable import harmless

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def enter(argv: Sequence[str] | None = None) -> int:
    """Carry out one command line and return its exit code; KeyboardInterrupt only from outside of any verb."""
    words = list(sys.argv[1:] if argv is None else argv)
    terminal.open_closed(showing=bool(words) and words[0] in SHOWING)
    for stream in (sys.stdout, sys.stderr):
        # A file name or a log line may hold what the terminal's encoding has no sign for: never a traceback for that.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _guarded(words)
        sys.stdout.flush()
    except BrokenPipeError:
        terminal.silence()
        return BROKEN_PIPE
    except OSError as error:  # the last flush: a full disk behind `> file`
        terminal.silence()
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
        if error.filename is None:  # it may have been the output, which then fails again at the last flush
            _flush_if_it_can()
        return _say(_sentence(error), 1)
    except SystemExit as end:  # argparse: --help, --version and wrong use
        return end.code if isinstance(end.code, int) else 0


def _flush_if_it_can() -> None:
    try:
        sys.stdout.flush()
    except OSError:
        terminal.silence()


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


WHY = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the disk is read-only",
    errno.EACCES: "permission denied",
}
OF_A_FILE = {
    errno.EACCES: "may not be read or written by this user; check who owns it and the folders above it",
    errno.EPERM: "may not be read or written by this user; check who owns it and the folders above it",
    errno.EISDIR: "is a folder, and a file is needed there; move it away",
    errno.ENOTDIR: "has a file where a folder is needed; check the path",
    errno.ELOOP: "is a link that leads back to itself, or lies behind one; remove that link",
    errno.ENAMETOOLONG: "is longer than a name can be",
}
"""What is wrong with the very thing that an error names."""

NAMELESS = {
    errno.ENOENT: "the folder that this was called in is gone; change to one that is there",  # of getcwd alone
    errno.EBADF: "nothing can be printed: standard output is closed",
}


def _sentence(error: OSError) -> str:
    number, what = error.errno or 0, WHY.get(error.errno or 0, error.strerror or str(error))
    home = "OVERNIGHT_HOME (or ~/.local/state/overnight) on a disk you can write to?"
    if error.filename is None:  # writing to an open file names none
        return NAMELESS.get(number) or f"{what}; is what this is printed to, or {home}"
    place = harmless(os.fsdecode(error.filename)) if not isinstance(error.filename, int) else f"file {error.filename}"
    return f"{place} {OF_A_FILE[number]}" if number in OF_A_FILE else f"{what}: {place}; is {home}"


def _say(sentence: str, code: int) -> int:
    try:  # noqa: SIM105 - contextlib is not worth its import here
        print(f"overnight: {sentence}", file=sys.stderr, flush=True)
    except OSError:  # nobody listens: the exit code must do
        pass
    return code

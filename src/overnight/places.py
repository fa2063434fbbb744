"""What has to exist on this machine before a run may start: a free name, a program that can run, a log to append to.

Only looked at, nothing is made; a refusal is one sentence with the setting, the path and the next step.
"""

from __future__ import annotations

import os
import random
import stat

from overnight.errors import UsageError


def made_up_name(home: str) -> str:
    """Return a name that no run in ``home`` has."""
    while True:
        words = random.choice(ADJECTIVES), random.choice(NOUNS)  # noqa: S311 - no secret
        name = f"{words[0]}-{words[1]}-{random.randrange(100):02d}"  # noqa: S311
        if not os.path.lexists(os.path.join(home, "runs", name)):
            return name


ADJECTIVES = (
    "amber bold brave brisk calm clear cool crisp dusky early fair gentle golden grand keen kind late lively lucky "
    "mellow mild neat noble pale patient plain proud quick quiet rapid ready serene sharp silent silver slow soft "
    "solid steady still sunny swift tidy vast warm wide wise young"
).split()
NOUNS = (
    "acorn badger beacon birch brook cedar cliff comet coral crane delta dune eagle ember falcon fern fjord glade "
    "grove harbor hawk heron hill island juniper lagoon lake lantern lark maple marsh meadow moon moss oak orchard "
    "otter owl pebble pine pond raven reef ridge river robin shore spruce star stone stream summit tern tide valley "
    "willow wren"
).split()


def find_executable(command: str, path: str | None, here: str) -> str:
    """Return the absolute path of ``command`` as a shell with this PATH would find it; UsageError if it cannot run."""
    blocked = None
    if "/" in command:
        places, looked = [os.path.join(here, command)], f"looked for {os.path.join(here, command)}"
    else:
        folders = (os.defpath if path is None else path).split(os.pathsep)
        places = [os.path.join(here, folder, command) for folder in folders] if command else []
        looked = "looked in PATH"
    for place in places:
        try:
            mode = os.stat(place).st_mode
        except (OSError, ValueError):
            continue
        if stat.S_ISREG(mode) and os.access(place, os.X_OK):
            return place
        if not stat.S_ISDIR(mode):
            blocked = blocked or place
        elif "/" in command:
            raise UsageError(f"not executable: {command} is a directory")
    if blocked is None:
        raise UsageError(f"command not found: {command} ({looked}){_shell_habit(command, here)}")
    raise UsageError(f"not executable: {command} (chmod +x {blocked}, or run it with its interpreter)")


def _shell_habit(command: str, here: str) -> str:
    """Return a hint for what a shell would have understood; "" where there is none."""
    name, equals, _ = command.partition("=")
    if equals and name.isidentifier():
        return f"; put variables in front: {command} overnight run ..."
    if command in ("source", ".", "cd", "export", "exec", "ulimit", "module", "conda"):
        return f"; {command} is a word of a shell: -- sh -c '{command} ... && exec python3 train.py'"
    if " " in command.strip():
        return "; this is one word: leave out the quotes, or write -- sh -c '...'"
    if "/" not in command and os.path.isfile(os.path.join(here, command)):
        how = f"python3 {command}" if command.endswith(".py") else f"./{command}"
        return f"; {command} lies here: -- {how}"
    return ""


def checked_log(path: str, origin: str) -> str:
    """Return ``path`` made plain if a log may be appended there; UsageError for anything but a regular file."""
    where = f"log ({origin}): {path}"
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        parent = os.path.dirname(os.path.realpath(path))
        if path.endswith("/") or not os.path.isdir(parent):
            raise UsageError(f"{where} cannot be made: {parent} is not a folder; make it first") from None
        if not os.access(parent, os.W_OK | os.X_OK):
            raise UsageError(f"{where} cannot be made: {parent} is not writable") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{where} cannot be used: {error}") from error
    else:
        if not stat.S_ISREG(mode):
            raise UsageError(f"{where} is not a regular file; a log must be one (or not exist yet)")
        if not os.access(path, os.R_OK | os.W_OK):  # appended to by the command, read by the supervisor
            raise UsageError(f"{where} may not be both read and written")
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


def check_text(word: str, position: int, words: int) -> None:
    """Refuse what a run folder cannot hold; the first ``words`` positions are those of the command."""
    what = f"word {position + 1} of the command" if position < words else "a path of the run"
    try:
        word.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{what} is not valid UTF-8 ({word!r}); rename it, the run folder could not hold it"
        ) from error
    if "\0" in word:
        raise UsageError(f"{what} holds a NUL byte")

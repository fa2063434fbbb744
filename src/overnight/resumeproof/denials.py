"""What a write looks like in a log that the fence has refused, and what its user is told then.

Text in, text out, but for a look at whether a named path is one that could have been read and written otherwise. Which
folders a run may write to is given; nothing is run here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

import msgspec

from overnight.resumeproof.fence import INTO, OPEN, inside

TAIL_LINES = 200

_REFUSED = re.compile(r"permission denied|permission_denied|invalid cross-device link|errno = 13\b", re.IGNORECASE)
_WORDLESS = re.compile(
    r"unable to open database file|attempt to write a readonly database|No usable temporary directory found"
)
_QUOTED = re.compile(  # straight quotes of Python, curly ones of GNU programs, brackets of C++
    r"'((?:[^'\\]|\\.)+)'|\"((?:[^\"\\]|\\.)+)\"|\u2018([^\u2019]+)\u2019|`([^'`]+)'|\[(/[^\]]+)\]"
)
_BARE = re.compile(r"(?:^|[\s=(])((?:~|\.{0,2})/[^\s:;,)\]'\"]+)")
_SHELL = re.compile(  # bash and sh each in their own way, and small programs such as tee
    r"^(?:(?P<shell>.*?\bline \d+: |[\w./-]+: \d+: )|[\w./-]+(?<!Error)(?<!Exception): )"
    r"(?:cannot (?:create|open) )?(?P<path>[^\s:][^:]*): permission denied$",
    re.IGNORECASE,
)
_LITERAL = re.compile(r"'(/[^']+)'|\"(/[^\"]+)\"")
_FRAME = re.compile(r"^\s*File \"[^\"]+\", line \d+")


class Denied(msgspec.Struct, frozen=True, kw_only=True):
    """A refused write: its absolute ``path``, None where the program does not tell it; the ``line`` that says so."""

    path: str | None
    line: str


def denied(log_tail: str | Iterable[str], *, allowed: Sequence[str], cwd: str) -> Denied | None:
    """Return the last write outside of ``allowed`` that the last lines of a log complain of; None if there is none.

    ``cwd`` is the folder that relative paths of the script lie in. What may not even be read, or could not be written
    without a fence either, is an ordinary lack of permissions and no matter of the fence.
    """
    lines = log_tail.splitlines() if isinstance(log_tail, str) else list(log_tail)
    lines = lines[-TAIL_LINES:]
    allowed = (*allowed, *INTO, *OPEN)
    for at in range(len(lines) - 1, -1, -1):
        line = lines[at].strip()
        wordless = _WORDLESS.search(line) is not None
        if not wordless and not _REFUSED.search(line):
            continue
        named = [] if wordless else _named(line)
        fenced_off = [path for path in (_absolute(one, cwd) for one in named) if _off(path, allowed)]
        if fenced_off:
            return Denied(path=fenced_off[-1], line=line)
        above = _from_frames(lines[:at], allowed, cwd)
        # What is removed with its folder is named without that, as if it lay in the working copy.
        if not named or (above is not None and not any(os.path.isabs(one) for one in named)):
            return Denied(path=above, line=line)
    return None


def _named(line: str) -> list[str]:
    """Return the paths that one complaint names, in order; of a rename the second is the new name."""
    said = line.split("Permission denied", 1)[-1] if "[Errno" in line else line
    quoted = [next(part for part in match.groups() if part) for match in _QUOTED.finditer(said)]
    found = [one.replace("\\'", "'") for one in quoted if "/" in one or "[Errno" in line or "cannot" in line]
    if found:
        return found
    shell = _SHELL.match(line)
    if shell and (shell["shell"] or " " not in shell["path"]):
        return [shell["path"]]
    return [match[1].rstrip(".") for match in _BARE.finditer(line)]


def _absolute(path: str, cwd: str) -> str:
    """Return where a path really leads: one that a link leads out of a copy by is the user's own."""
    return os.path.realpath(os.path.join(cwd, os.path.expanduser(path)))


def _off(path: str, allowed: Sequence[str]) -> bool:
    """Say whether it was the fence: outside of what is allowed, and writable but for it."""
    if inside(path, allowed):
        return False
    here = path
    if os.path.isfile(here) and not os.access(here, os.R_OK | os.W_OK):
        return False
    while not os.path.isdir(here):
        here = os.path.dirname(here)
    return os.access(here, os.W_OK | os.X_OK)


def _from_frames(lines: list[str], allowed: Sequence[str], cwd: str) -> str | None:
    """Return a path that the source lines of a traceback name, where the complaint names none."""
    for line in reversed(lines[-40:]):
        if _FRAME.match(line):
            continue
        paths = [_absolute(match[1] or match[2], cwd) for match in _LITERAL.finditer(line)]
        found = [path for path in paths if _off(path, allowed)]
        if found:
            return found[-1]
    return None


def advice(path: str | None, *, folder: str, suspects: Sequence[str] = ()) -> str:
    """Return the sentence for a script that writes outside of its working copy.

    ``folder`` is the user's own, which is never to be allowed as a whole; ``suspects`` are paths that the script's text
    names, for when the complaint named none.
    """
    where = path or (suspects[0] if suspects else None)
    if where is None:
        return (
            "the script writes to a place outside its working copy and does not say which: use {workdir} in the "
            "command for every folder that it writes to, or --allow DIR for one that every run may write to"
        )
    name = os.path.basename(where.rstrip("/")) or "out"
    place = where if os.path.isdir(where) or "." not in name else os.path.dirname(where)
    says = f"the script writes to {where}" if path else f"the script names {where} and seems to write there"
    allow = "" if inside(folder, [place]) else f", or --allow {place} if every run may write there"
    return f"{says}, outside its working copy: use {{workdir}} in the command, such as --out {{workdir}}/{name}{allow}"

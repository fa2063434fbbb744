"""Which files a command line leads to: scripts, modules behind ``-m``, what a shell script starts, what is imported.

Names are looked up and beginnings of files read, at most LARGEST bytes of each; nothing waits on a pipe, nothing is
run. What the text of a file means is for others.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence

LARGEST = 1 << 20
MOST_FILES = 20
MOST_WORDS = 1000
SHELLS = (".sh", ".bash")

_PIECE = re.compile(r"[^\s;&|()<>`\"']+")
_MODULE = re.compile(r"-[A-Za-z]*m")
_VARIABLE = re.compile(r"^(?:\$\{?\w+\}?|\.)/+")
_SHEBANG = re.compile(rb"#![^\n]*\b(?:ba|da|z|k)?sh\b")
_IMPORT = re.compile(
    r"^[ \t]*(?:import[ \t]+([\w., \t]+)|from[ \t]+(\.*[\w.]*)[ \t]+import[ \t]+\(?([\w, \t]*))", re.MULTILINE
)


def read(path: str) -> bytes | None:
    """Return the beginning of a plain file; None if it is no plain file or cannot be read. Never waits for a writer."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError):
        return None
    with open(handle, "rb") as stream:
        try:
            return stream.read(LARGEST) if stat.S_ISREG(os.fstat(handle).st_mode) else None
        except OSError:
            return None


def is_script(path: str) -> bool:
    """Say whether a plain file begins as a program does that another one reads."""
    return (read(path) or b"").startswith(b"#!")


def named(words: Sequence[str], *folders: str) -> list[str]:
    """Return the plain files that words name, each once and in order: as a word, behind ``=``, as a module behind -m.

    What has blanks in it is looked at in pieces, too (what is given to ``sh -c``). Names are relative to ``folders``,
    and to what the words change to with ``cd``; at most MOST_WORDS are looked up.
    """
    found: dict[str, None] = {}
    places = list(folders)
    for piece, before in _pieces(words):
        if before == "cd":
            places += [path for folder in folders if os.path.isdir(path := os.path.join(folder, piece))][:1]
        for folder in places[: len(folders) + 1]:
            for name in _names(piece, before):
                path = os.path.normpath(os.path.join(folder, name))
                if _is_plain(path):
                    found.setdefault(path)
    return list(found)


def _pieces(words: Sequence[str]) -> list[tuple[str, str]]:
    """Return (piece, the one before it) of all words, each pair once; a word with blanks also as a whole."""
    found: dict[tuple[str, str], None] = {}
    before = ""
    for word in words:
        if " " in word:
            found.setdefault((word, ""))
        for piece in _PIECE.findall(word):
            known = before if before == "cd" or _MODULE.fullmatch(before) else ""
            found.setdefault((piece, known))
            before = piece
        if len(found) >= MOST_WORDS:
            break
    return list(found)[:MOST_WORDS]


def _names(piece: str, flag: str) -> list[str]:
    """Return the names that a word may stand for, relative to a folder."""
    value = piece.partition("=")[2] if "=" in piece else piece
    bare = _VARIABLE.sub("", value)  # "$HERE/train.py"
    modules = _module(piece) if _MODULE.fullmatch(flag) else []
    return [one for one in dict.fromkeys((*modules, value, bare)) if one]


def _module(name: str) -> list[str]:
    stem = name.replace(".", "/")
    return [f"{stem}.py", f"{stem}/__main__.py"] if stem else []


def _is_plain(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def reached(words: Sequence[str], cwd: str) -> Iterator[tuple[str, bytes]]:
    """Yield (path, beginning) of the texts that a command runs or is given, at most MOST_FILES, each once.

    These are the files that its words name, what shell scripts among them name, and the modules that a Python file
    imports from its own folder or from ``cwd`` (one level: not what these import).
    """
    waiting = [(path, True) for path in named(words, cwd)]
    seen: set[str] = set()
    for path, follow in waiting:
        if len(seen) >= MOST_FILES:
            return
        real = os.path.realpath(path)
        data = None if real in seen else read(path)
        if data is None or b"\0" in data[:1024]:  # a program, or numbers
            continue
        seen.add(real)
        yield path, data
        if not follow:
            continue
        here, text = os.path.dirname(path), data.decode("utf-8", "replace")
        if path.endswith(SHELLS) or _SHEBANG.match(data):
            lines = [piece for line in uncommented(text) for piece in line.split(" ")]  # none names a file as a whole
            waiting += [(one, True) for one in named(lines, *dict.fromkeys((cwd, here)))]
        elif path.endswith(".py") or data.startswith(b"#!"):
            waiting += [(one, False) for one in _imported(text, here, cwd)]


def uncommented(text: str) -> list[str]:
    """Return the lines of a text that are no comments."""
    return [line for line in text.splitlines() if not line.lstrip().startswith("#")]


def _imported(text: str, here: str, cwd: str) -> list[str]:
    """Return the files below a script's folder, or the working folder, that its imports name."""
    found: dict[str, None] = {}
    for match in _IMPORT.finditer(text):
        plain, origin, more = match.groups()
        if plain is not None:
            names = [(one.split() or [""])[0] for one in plain.split(",")]
            dots = ""
        else:
            dots = origin[: len(origin) - len(origin.lstrip("."))]
            base = origin.lstrip(".")
            names = [base, *(f"{base}.{(one.split() or [''])[0]}".strip(".") for one in more.split(","))]
        above = os.path.join(here, *([os.pardir] * max(0, len(dots) - 1)))
        for folder in (above,) if dots else (here, cwd):
            for name in names:
                stem = os.path.join(folder, *name.split("."))
                for path in (f"{stem}.py", os.path.join(stem, "__init__.py")):
                    if name and _is_plain(path):
                        found.setdefault(os.path.normpath(path))
    return list(found)

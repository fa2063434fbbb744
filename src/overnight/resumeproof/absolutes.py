"""Absolute paths in a command and in the text of a script: which of them a run would read, and which it would write.

A run in a working copy must write nowhere else, and an absolute path leads elsewhere. Words are looked at, and what is
there now; nothing is run, and nothing of a script is understood beyond the paths that stand in it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence

import msgspec

from overnight.errors import UsageError
from overnight.resumeproof.fence import inside
from overnight.resumeproof.literals import texts_of
from overnight.saves.names import PLACE, looks_like_save
from overnight.scripts import is_script, named

WORKDIR = "{workdir}"
LARGEST_TEXT = 1 << 20
CONFIGS = (".py", ".sh", ".bash", ".yaml", ".yml", ".json", ".toml", ".cfg", ".ini", ".txt", ".conf")
SYSTEM = "/bin /sbin /lib /lib32 /lib64 /libx32 /usr /etc /boot /sys /run /snap /nix /proc /dev".split()
"""Nobody's results lie there; a name in a script is that of a program, a device or a setting."""
MOST_SEEN = 2000
STATE = re.compile(r"\.(pt|pth|ckpt|safetensors|distcp)$", re.IGNORECASE)
"""What nearly always is a checkpoint, or a part of one."""

_PATH = re.compile(r"(?:^|(?<=[\s'\"=,(\[<>;&|@:]))/(?!/)[^\s'\"`;|&<>()=,:$*?{}\[\]\\#]*")
_INPUT = re.compile(r"load|init|from|resume|pretrain|base|restore|finetune|data|config|input", re.IGNORECASE)
_OUTPUT = re.compile(r"out|save|dest|target|result|log", re.IGNORECASE)
_PERHAPS_OUTPUT = re.compile(rf"{_OUTPUT.pattern}|dir|work|run|ckpt|checkpoint", re.IGNORECASE)


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """Where a command stands: the user's ``folder`` (real path), and other ``names`` that it has (links to it).

    ``allowed`` are folders that every run may write to; ``copied``: a run is given a copy of the folder, in which
    ``linked`` are relative paths that only lead back to the user's. ``fenced``: a write to elsewhere will fail.
    """

    folder: str
    names: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    copied: bool = True
    fenced: bool = True
    linked: tuple[str, ...] = ()

    def relative(self, path: str) -> str | None:
        """Return a path relative to the folder (``.`` for itself), None if it does not lie there."""
        for name in (self.folder, *self.names):
            if path == name or path.startswith(name.rstrip("/") + "/"):
                return os.path.relpath(path, name)
        real = os.path.realpath(path)
        return os.path.relpath(real, self.folder) if inside(real, [self.folder]) else None

    def in_link(self, relative: str) -> bool:
        """Say whether a relative path leads through a folder that the copy has only a link for."""
        return any(relative == one or relative.startswith(one + "/") for one in self.linked)


def found_in(word: str) -> Iterator[tuple[int, int]]:
    """Yield where the absolute paths of a word begin and end; one that is a path as a whole may have blanks in it."""
    at = word.find("=/") + 1 if word.startswith("-") or re.match(r"[\w.+~-]+=/", word) else 0
    if word.startswith("/", at) and os.path.lexists(word[at:]):
        yield at, len(word)
        return
    for match in _PATH.finditer(word):
        end = match.end()
        if end < len(word) and word[end] in "$*?{[":  # only the folder of it is a name as it stands
            end = word.rfind("/", match.start(), end)
        text = word[match.start() : end]
        end -= len(text) - len(text.rstrip("/."))
        if end > match.start():
            yield match.start(), end


def mapped(word: str, ground: Ground, copy: str) -> str:
    """Return a word in which every path into the user's folder leads into its ``copy``."""
    done, at = "", 0
    for begin, end in found_in(word):
        path = word[begin:end]
        relative = ground.relative(path)
        if relative is None or ground.in_link(relative):
            continue
        done += word[at:begin] + (copy if relative == "." else os.path.join(copy, relative))
        done += "/" if path.endswith("/") else ""
        at = end
    return done + word[at:]


def check_command(words: Sequence[str], ground: Ground) -> None:
    """Refuse a command that names an absolute path which its runs would write to (UsageError with what to do).

    What is there and is no place of checkpoints is taken for an input. What is not there, below a folder that is, can
    only be an output.
    """
    for number, word in enumerate(words):
        for begin, end in found_in(word):
            path = word[begin:end]
            if WORKDIR in path or _system(path) or inside(path, ground.allowed):
                continue
            flag = _flag(word[:begin], words[number - 1] if number else "")
            if _could_be_made(path) if not os.path.lexists(path) else _keeps(path, flag, ground):
                raise UsageError(_refusal(path, flag, ground))


def _flag(before: str, word_before: str) -> str:
    """Return the flag or key that a path is given to, "" if it is given to none: what stands before it."""
    words = before.rstrip("'\"= ").split() or ([word_before] if word_before.startswith("-") else [])
    return words[-1] if words and (words[-1].startswith("-") or before.endswith("=")) else ""


def _keeps(path: str, flag: str, ground: Ground) -> bool:
    """Say whether a path that is there is a folder of checkpoints which a command seems to write to."""
    if not os.path.isdir(path) or ground.relative(path) == ".":
        return False
    writes = _OUTPUT.search(flag) is not None or not ground.fenced
    return writes and not _INPUT.search(flag) and _keeps_saves(path)


def _refusal(path: str, flag: str, ground: Ground) -> str:
    relative = ground.relative(path)
    word = f"{flag}=" if "=" not in flag and not flag.startswith("-") and flag else f"{flag or '--out'} "
    advice = f"use {{workdir}} in the command, such as {word}{{workdir}}/{os.path.basename(path)}"
    if relative is not None and ground.copied:
        advice = f"name it relative to the folder ({relative}), of which every run has a copy, or {advice}"
    elif relative is None:
        advice += f", or --allow {path} if every run may write there"
    return f"the command writes to {path}, outside the working copies of the runs: {advice}"


def _could_be_made(path: str) -> bool:
    """Say whether something may be meant to be made at a path: a folder above it, other than /, is there."""
    parts = path.split("/")
    return len(parts) > 2 and os.path.isdir("/" + parts[1])


def _system(path: str) -> bool:
    return any(path == one or path.startswith(one + "/") for one in SYSTEM) and not path.startswith("/dev/shm/")  # noqa: S108 - checkpoints are put there


def _keeps_saves(folder: str) -> bool:
    """Say whether a folder holds checkpoints or is named for them."""
    if PLACE.search(os.path.basename(folder)):
        return True
    try:
        with os.scandir(folder) as entries:
            for _, entry in zip(range(MOST_SEEN), entries, strict=False):
                if entry.is_dir(follow_symlinks=False):
                    if PLACE.search(entry.name) and re.search(r"\d", entry.name):
                        return True
                elif STATE.search(entry.name):
                    return True
    except OSError:
        return False
    return False


def for_output(words: Sequence[str], matches: Callable[[str], bool]) -> bool | None:
    """Say whether a path for which ``matches`` is true is named as an output; None if no word of a command names it."""
    named = None
    for number, word in enumerate(words):
        flag, equals, value = word.partition("=")
        flag, value = (flag, value) if equals else (words[number - 1] if number else "", word)
        if value and matches(value):
            named = bool(named) or (_PERHAPS_OUTPUT.search(flag) is not None and not _INPUT.search(flag))
    return named


# -- the text of a script, for machines without a fence --------------------------------------------------------------


def texts(words: Sequence[str], cwd: str) -> list[str]:
    """Return the scripts and configurations that a command names: files of text, and the module behind ``-m``."""
    return [path for path in named(words, cwd) if not _system(path) and (path.endswith(CONFIGS) or is_script(path))]


def written_by(path: str, ground: Ground) -> list[str]:
    """Return the absolute paths in a script's text that it may write to: in the folder, or writable and no input."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            text = stream.read(LARGEST_TEXT)
    except OSError:
        return []
    found = []
    for literal in texts_of(text) if path.endswith(".py") else text.splitlines():
        for begin, end in found_in(literal):
            one = literal[begin:end]
            if _system(one) or inside(one, ground.allowed) or WORKDIR in one:
                continue
            if ground.relative(one) is not None or _writable(one):
                found.append(one)
    return list(dict.fromkeys(found))


def outputs(paths: Sequence[str], ground: Ground) -> list[str]:
    """Return those of some paths that hardly are inputs: they are not there yet, or checkpoints lie in them."""
    return [
        path for path in paths if (_could_be_made(path) if not os.path.lexists(path) else _keeps(path, "--out", ground))
    ]


def _writable(path: str) -> bool:
    """Say whether a script could write to a path outside of the folder, and it is no plain input."""
    if os.path.isfile(path):
        return looks_like_save(path) and os.access(path, os.W_OK)
    if not _could_be_made(path):
        return False
    here = path
    while not os.path.isdir(here):
        here = os.path.dirname(here)
    return os.access(here, os.W_OK | os.X_OK)

"""A command line as settings, and which of two command lines differ in what shapes a schedule.

Words in, words out: whether a word is a file is asked of the caller. No run, no folder and no file is known here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from overnight.targets import LAUNCHER_MODULES, LAUNCHERS, PYTHON, SHELLS, TOOLS, python_program

DEPTH = 8
SHOWN_CHARS = 60

CONFIG = re.compile(r"\.(?:ya?ml|jsonc?|json5|toml|ini|cfg|conf|gin|hocon|libsonnet)$", re.IGNORECASE)
SOURCE = re.compile(r"\.(?:py|sh|bash|zsh)$", re.IGNORECASE)
NUMBER = re.compile(r"-?(?:\d[\d_]*\.?\d*|\.\d+)(?:e[+-]?\d+)?", re.IGNORECASE)
PAIR = re.compile(r"(\+{0,2}|~)([A-Za-z_][\w.\-/@]*)=(.*)", re.DOTALL)
FUSED = re.compile(r"-([A-Za-z])(\d.*)", re.DOTALL)  # -b32
DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")
CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

MODULAR = frozenset("torchrun accelerate accelerate-launch deepspeed ds colossalai composer uv uvx".split())
"""Launchers of which ``-m`` names a module, as Python's own does."""

RANKED = frozenset("mpirun mpiexec mpiexec.hydra orterun prterun srun horovodrun jsrun aprun flux".split())
"""Launchers of which ``-n`` and ``-np`` give the number of ranks."""

VERBS = frozenset({"run", "launch", "exec"})
ASIDE = TOOLS | frozenset(
    "source . export set unset echo printf ulimit module trap true eval pwd test umask wait".split()
)
"""What stands beside the training in the text of a shell."""

WORDS = frozenset(
    (
        "steps iter iters iterations niter niters epoch epochs nepochs max total warmup lr blr decay wd scheduler "
        "schedule batch bs microbatch micro mbs gbs accum accumulation seq seqlen block context ctx world nproc nnodes "
        "nodes devices gpus processes ranks ngpu ngpus optimizer optim opt beta beta1 beta2 betas momentum seed data "
        "dataset datasets tokens"
    ).split()
)
"""A key with one of these words in it shapes a schedule (or what is trained on), unless a word of ``OTHERWISE`` is."""

INSIDE = re.compile(
    r"warm_?up|learning_?rate|schedul|batch|accum|epochs?$|optimi[sz]er|dataset|weight_?decay|iters$|iterations|"
    r"max_?steps|train_?steps|total_?steps|total_?iters|seq_?len|block_?size|context|nproc|nnodes|world_?size"
)
OTHERWISE = frozenset(
    (
        "save saving saves eval evaluate evaluation val valid validation test testing log logging logger print report "
        "checkpoint checkpoints ckpt ckpts keep kept hours hour time timeout minutes seconds worker workers thread "
        "threads wandb tensorboard sample samples generate generation new cache resume resumed start from load init "
        "last restarts retries memory concurrency cost files queue prefetch prefetching port address rank display plot "
        "profile profiler verbose interval every freq frequency"
    ).split()
)
STRONG = frozenset({"lr", "warmup", "decay", "scheduler", "schedule"})
"""Words that tell more than most of ``OTHERWISE``: ``init_lr``, ``lr_decay_every``."""

SHOWS = frozenset("log logging logger print report save eval val test wandb tensorboard display plot verbose".split())
SECRET = re.compile(r"(?:^|[_.\-/])(?:token|key|apikey|passw(?:or)?d|passwd|pwd|secret|credentials?|auth)(?:$|[_.\-/])")
CONFIGURES = frozenset("config configs cfg conf hparams recipe deepspeed yaml".split())
USER_INFO = re.compile(r"(?<=://)[^/@\s]+@")
QUERY = re.compile(r"(://[^?\s]*)\?\S*")


class Flag(NamedTuple):
    """One setting of a command line as it was written; ``value`` is "" for a switch."""

    shown: str
    value: str


class Command(NamedTuple):
    """A command line: the program, the settings of what launches it, its own, and the words that belong to none."""

    program: tuple[str, str] | None
    launch: Mapping[str, Flag]
    flags: Mapping[str, Flag]
    plain: tuple[str, ...]


class Place(NamedTuple):
    """Where the words of a command line are looked at: a working folder, and whether a path is a file."""

    cwd: str
    is_file: Callable[[str], bool]

    def path(self, word: str) -> str:
        """Return a word as an absolute path without ``.`` and ``..``."""
        found: list[str] = []
        for part in (PurePosixPath(self.cwd) / word).parts[1:]:
            if part == "..":
                del found[-1:]
            else:
                found.append(part)
        return "/" + "/".join(found)

    def file(self, word: str) -> bool:
        """Say whether a word names a file."""
        return bool(word) and self.is_file(self.path(word))


# -- the program -----------------------------------------------------------------------------------------------------

Found = tuple[tuple[str, str] | None, list[str], list[str]]
"""The program, the words before it and the words behind it."""


def read_command(argv: Sequence[str], place: Place) -> Command:
    """Return what a command line runs, through launchers and shells, with its settings. ``program`` None: unknown."""
    program, launch, words = _find(list(argv), place, 0)
    flags, plain = flags_of(words)
    before, names = flags_of(launch, most=1)
    if not RANKED.intersection(PurePosixPath(name).name for name in names):
        before = {key: flag for key, flag in before.items() if key not in ("n", "np")}
    return Command(program, before, flags, plain)


def _find(words: list[str], place: Place, depth: int) -> Found:
    if not words or depth > DEPTH:
        return None, [], words
    name = PurePosixPath(words[0]).name.removeprefix("-")
    if PYTHON.fullmatch(name):
        return _python(words, place, depth)
    if name in SHELLS:
        return _shell(words, place, depth)
    if name in LAUNCHERS:
        return _launched(name, words[1:], place, depth)
    here = place.path(words[0])
    if "/" in words[0] and here.startswith(place.path(".").rstrip("/") + "/"):
        return ("script", here), [], words[1:]
    at = next((at for at, word in enumerate(words) if at and _names_program(words, at, place)), None)
    if at is None:
        return ("program", words[0]), [], words[1:]
    return ("script", place.path(words[at])), words[:at], words[at + 1 :]


def _names_program(words: Sequence[str], at: int, place: Place) -> bool:
    """Say whether a word is a file that may be a program: no option, no value of one, no configuration."""
    word = words[at]
    return not _is_flag(word) and not _after_flag(words, at) and not CONFIG.search(word) and place.file(word)


def _is_flag(word: str) -> bool:
    return len(word) > 1 and word[0] == "-" and not NUMBER.fullmatch(word)


def _after_flag(words: Sequence[str], at: int) -> bool:
    return at > 0 and _is_flag(words[at - 1]) and "=" not in words[at - 1]


def _python(words: list[str], place: Place, depth: int) -> Found:
    runs = python_program(tuple(words))
    if runs is None:
        return None, [], words[1:]
    text = runs.text
    at = next((at for at, word in enumerate(words) if at and (word == text or _holds(word, text))), len(words))
    rest = words[at + 1 :]
    if runs.kind == "script":
        name = PurePosixPath(text).name
        if name in LAUNCHERS:
            return _launched(name, rest, place, depth)
        return ("script", place.path(text)), [], rest
    if runs.kind == "module" and text in LAUNCHER_MODULES:
        return _launched(text, rest, place, depth)
    return (runs.kind, text), [], rest


def _holds(word: str, text: str) -> bool:
    return bool(text) and word[0:1] == "-" and word.endswith(text)


def _shell(words: list[str], place: Place, depth: int) -> Found:
    for at, word in enumerate(words):
        if at and word[0:1] == "-" and word[1:2] != "-" and word.endswith("c"):
            return _text(words[at + 1] if at + 1 < len(words) else "", place, depth)
        if at and word[0:1] not in ("-", "+"):
            return ("script", place.path(word)), [], words[at + 1 :]
    return None, [], []


def _text(text: str, place: Place, depth: int) -> Found:
    """Find the training in the text of ``sh -c``: the first of its commands that is not one of a shell."""
    lexer = shlex.shlex(text.replace("\n", " ; "), posix=True, punctuation_chars=";&|<>()")
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError:  # a quote without an end
        return None, [], []
    commands: list[list[str]] = [[]]
    passed_on = False  # the word behind > or < is a file that the command does not see
    for word in words:
        if passed_on:
            passed_on = False
        elif word and not word.strip(";&|<>()"):
            passed_on = "<" in word or ">" in word
            if not passed_on:
                commands.append([])
            elif commands[-1] and commands[-1][-1] in ("1", "2"):  # as in 2>&1
                commands[-1].pop()
        else:
            commands[-1].append(word)
    for one in commands:
        given = [word for word in one if word != "exec"]
        count = next((at for at, word in enumerate(given) if not PAIR.fullmatch(word)), len(given))
        values, rest = given[:count], given[count:]
        if len(rest) == 2 and rest[0] == "cd":
            place = place._replace(cwd=place.path(rest[1]))
        elif rest and PurePosixPath(rest[0]).name not in ASIDE and rest[0] != "cd":
            program, launch, behind = _find(rest, place, depth + 1)
            return program, [*values, *launch], behind
    return None, [], []


def _launched(launcher: str, words: list[str], place: Place, depth: int) -> Found:
    """Find the program behind a launcher, whose own options nobody knows all of."""
    modular = launcher in MODULAR or launcher in LAUNCHER_MODULES
    doubtful: int | None = None
    for at, word in enumerate(words):
        name, after = PurePosixPath(word).name, _after_flag(words, at)
        if modular and word in ("-m", "--module") and DOTTED.fullmatch("".join(words[at + 1 : at + 2])):
            return ("module", words[at + 1]), [launcher, *words[:at]], words[at + 2 :]
        leads_on = name in SHELLS or name in LAUNCHERS
        python = PYTHON.fullmatch(name) and not (after and words[at - 1] in ("--python", "-p"))
        if python or (leads_on and not after):
            program, launch, rest = _find(words[at:], place, depth + 1)
            return program, [launcher, *words[:at], *launch], rest
        if SOURCE.search(word) and not _is_flag(word) and not PAIR.fullmatch(word):
            if not (after and _parts(words[at - 1]) & (CONFIGURES | {"hostfile", "file"})):
                return ("script", place.path(word)), [launcher, *words[:at]], words[at + 1 :]
        elif doubtful is None and not (at == 0 and word in VERBS) and _names_program(words, at, place):
            doubtful = at
    if doubtful is not None:
        return ("script", place.path(words[doubtful])), [launcher, *words[:doubtful]], words[doubtful + 1 :]
    what = next((word for word in words if not _is_flag(word) and not PAIR.fullmatch(word) and word not in VERBS), "")
    return ("program", f"{launcher} {what}".rstrip()), [launcher], words


# -- settings --------------------------------------------------------------------------------------------------------


def flags_of(words: Iterable[str], *, most: int = 99) -> tuple[dict[str, Flag], tuple[str, ...]]:
    """Return the settings among words by their key, the last of each, and the words that are none.

    An option has ``most`` values at most.

    ``--key value``, ``--key=value``, ``-k 3``, ``-k3``, ``key=value``, ``+key=value``; keys differ neither in ``-`` and
    ``_`` nor in case. Where nothing tells a switch from an option, what follows is taken for its value.
    """
    found: dict[str, Flag] = {}
    plain: list[str] = []
    values: list[str] | None = None  # of the option that was read last
    shown = ""
    for word in words:
        pair, fused = PAIR.fullmatch(word), FUSED.fullmatch(word)
        if word == "--":
            values = None
        elif _is_flag(word) and fused:
            values = None
            found[fused[1]] = Flag(f"-{fused[1]}", fused[2])
        elif _is_flag(word):
            shown, equals, value = word.partition("=")
            values = None if equals else []
            found[key_of(shown)] = Flag(shown, value)
        elif pair:
            values = None
            found[key_of(pair[2])] = Flag(pair[2], pair[3])
        elif values is not None and len(values) < most and _more(values, word):
            values.append(word)
            found[key_of(shown)] = Flag(shown, " ".join(values))
        else:
            plain.append(word)
    return found, tuple(plain)


def _more(values: Sequence[str], word: str) -> bool:
    """Say whether a word may belong to an option's values so far: behind a number only another number does."""
    return not values or NUMBER.fullmatch(word) is not None or not NUMBER.fullmatch(values[0])


def key_of(shown: str) -> str:
    """Return the key by which a setting is known, however it was written: ``--Max-Steps`` is ``max_steps``."""
    bare = shown.lstrip("-+~")
    return bare if len(bare) == 1 else CAMEL.sub("_", bare).replace("-", "_").lower()


def _parts(shown: str) -> set[str]:
    return set(re.split(r"[_.\-/@]+", key_of(shown)))


def shapes(key: str, value: str = "") -> bool:
    """Say whether a setting shapes a schedule: how far it goes, what it steps by, what it is trained on."""
    if len(key) == 1:
        return key in "besn" and NUMBER.fullmatch(value) is not None
    if key == "cuda_visible_devices":
        return True
    parts = _parts(key)
    if parts & STRONG:
        return not parts & SHOWS
    return not parts & OTHERWISE and (bool(parts & WORDS) or key == "np" or INSIDE.search(key) is not None)


def same(key: str, before: str, after: str) -> bool:
    """Say whether two values mean the same: 3e-4 and 0.0003, True and true, ./data and data."""
    if key == "cuda_visible_devices":
        return before.count(",") == after.count(",")
    if before.lower() == after.lower() or PurePosixPath(before) == PurePosixPath(after):
        return True
    if not (NUMBER.fullmatch(before) and NUMBER.fullmatch(after)):
        return False
    try:
        numbers = [float(one.replace("_", "")) for one in (before, after)]
    except ValueError:
        return False
    return numbers[0] == numbers[1]


def shown_value(key: str, flag: Flag | None) -> str:
    """Return a value as it may be shown: no secret, not longer than a line; words for a switch and for nothing."""
    if flag is None:
        return "(not given)"
    if SECRET.search(key):
        return "(not shown)"
    value = QUERY.sub(r"\1?...", USER_INFO.sub("...@", flag.value))
    return (value if len(value) <= SHOWN_CHARS else value[: SHOWN_CHARS - 3] + "...") if value else "(set)"


def differences(before: Command, after: Command) -> dict[str, str]:
    """Return what shapes a schedule and differs between two command lines, by key: "--steps 1000 -> 2000"."""
    found: dict[str, str] = {}
    for old, new in ((before.launch, after.launch), (before.flags, after.flags)):
        for key in [*new, *(key for key in old if key not in new)]:
            was, now = old.get(key), new.get(key)
            written = [one for one in (was, now) if one is not None]
            if not all(shapes(key, one.value) for one in written):
                continue
            if was is None or now is None or not same(key, was.value, now.value):
                shown = (now or written[0]).shown
                found[key] = f"{shown} {shown_value(key, was)} -> {shown_value(key, now)}"
    return found


def configurations(command: Command) -> dict[str, str]:
    """Return the configuration files that a command line names, by the key of the flag or, without one, their place."""
    found = {
        key: flag.value
        for key, flag in command.flags.items()
        if CONFIG.search(flag.value) and (_parts(key) & CONFIGURES or key == "c")
    }
    named = [word for word in command.plain if CONFIG.search(word) or word.endswith(".py")]
    return {**found, **{str(at): word for at, word in enumerate(named)}}


def overrides(command: Command, words: Sequence[str]) -> list[str]:
    """Return where words that are appended later set what the command sets otherwise (or not at all)."""
    found = []
    for key, flag in flags_of(words)[0].items():
        first = command.flags.get(key)
        if not shapes(key, flag.value) or "{" in flag.value or (first and same(key, first.value, flag.value)):
            continue
        was = ", which the command does not set"
        if first is not None:
            was = f" where the command has {first.shown} {shown_value(key, first)}"
        found.append(f"--resume-args sets {flag.shown} {shown_value(key, flag)}{was}")
    return found

"""What a run that goes on from an earlier one's saves was asked otherwise: said before it starts.

A learning rate schedule is built anew from the command's settings when a script resumes, so that another number of
steps changes it from the first step on. Reads run folders and looks at files; starts and changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from overnight import client
from overnight.errors import FolderError
from overnight.moments import epoch_of
from overnight.printable import harmless
from overnight.resumption.shaping import Command, Place, configurations, differences, overrides, read_command, same
from overnight.spec import RunSpec

MOST_LOOKED_AT = 200
MOST_ENTRIES = 2000

OWN = ("steps", "tokens_per_step", "devices", "seq_len")
"""Settings of Overnight itself that describe the schedule of the command."""

NO = frozenset({"false", "0", "no", "none", "null", "never", "off", "scratch"})
AFRESH = frozenset({"no_resume", "from_scratch", "fresh", "scratch", "overwrite_output_dir", "no_restore"})
LEAST_NAME = 3


class Earlier(msgspec.Struct, frozen=True, kw_only=True):
    """An ended run whose saves are still there: ``step`` reached, ``began`` its last attempt (seconds since the epoch).

    ``command`` is that of its last attempt, ``own`` what Overnight itself was told, ``saves`` the paths.
    """

    name: str
    step: int | None
    began: float | None
    cwd: str
    command: Command
    own: dict[str, Any]
    saves: tuple[str, ...]


def changes(spec: RunSpec, home: str | Path, origins: Mapping[str, str] | None = None) -> list[str]:
    """Return a sentence for each way in which ``spec`` goes on otherwise than it was begun; none if it does not.

    Two at most: against the newest earlier run of the same program and folder whose saves it would go on from, and
    where its own --resume-args differ from its command. ``origins`` says where each setting of ``spec`` came from.
    """
    place = Place(spec.cwd, os.path.isfile)
    command = read_command(spec.argv, place)
    found = []
    earlier = find_earlier(spec, command, str(home))
    if earlier is not None and (changed := _changed(earlier, command, spec, origins or {})):
        at = "" if earlier.step is None else f" (last at step {earlier.step})"
        told = f'changed since run "{earlier.name}"{at}: {", ".join(changed)}'
        found.append(f"{told}; a schedule that depends on it goes on differently")
    if later := overrides(command, spec.resume_args):
        found.append(f"{', '.join(later)}; a schedule that depends on it goes on differently after a restart")
    return [harmless(text) for text in found]


def _changed(earlier: Earlier, command: Command, spec: RunSpec, origins: Mapping[str, str]) -> list[str]:
    found = differences(earlier.command, command)
    for name in OWN:
        was, now, flag = earlier.own.get(name), getattr(spec, name), f"--{name.replace('_', '-')}"
        if was is None or now is None or was == now or origins.get(name) == "default":
            continue
        text = f"{flag} {_figure(was)} -> {_figure(now)}"
        if found.get(name, "").partition(" ")[2] != text.partition(" ")[2]:  # the command's own flag says the same
            found[f"overnight {name}"] = f"Overnight's {text}"
    return [*found.values(), *_configured(earlier, command, spec.cwd)]


def _figure(value: object) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _configured(earlier: Earlier, command: Command, cwd: str) -> Iterator[str]:
    """Yield what became of the configuration files: another one is named, or the same was written to since."""
    before, after = configurations(earlier.command), configurations(command)
    here, there = Place(cwd, os.path.isfile), Place(earlier.cwd, os.path.isfile)
    for key, word in after.items():
        was = before.get(key)
        if was is None:
            continue
        now_path, was_path = here.path(word), there.path(was)
        if now_path != was_path and not _alike(now_path, was_path):
            yield f"{command.flags[key].shown + ' ' if key in command.flags else ''}{was} -> {word}"
        elif now_path == was_path and earlier.began is not None and (_changed_at(now_path) or 0.0) > earlier.began:
            yield f"{word} (written to since it had started)"


def _alike(one: str, other: str) -> bool:
    try:
        return Path(one).read_bytes() == Path(other).read_bytes()
    except OSError:
        return False


def _changed_at(path: str) -> float | None:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return None


# -- which earlier run -----------------------------------------------------------------------------------------------


def find_earlier(spec: RunSpec, command: Command, home: str) -> Earlier | None:
    """Return the newest ended run of the same program and folder from whose saves ``command`` would go on."""
    if command.program is None or _afresh(command):
        return None
    looked_at = 0
    for one in reversed(client.list_runs(home)):
        if not (one["state"] in client.ENDED or one["stale"]) or not _same_folder(one.get("cwd"), spec.cwd):
            continue
        looked_at += 1
        if looked_at > MOST_LOOKED_AT:
            break
        earlier = _earlier(one, os.path.join(home, "runs", one["name"]))
        if earlier is not None and earlier.command.program == command.program and _goes_on(earlier, command, spec):
            return earlier
    return None


def _same_folder(one: object, other: str) -> bool:
    return isinstance(one, str) and os.path.realpath(one) == os.path.realpath(other)


def _earlier(one: client.Status, path: str) -> Earlier | None:
    """Return what is known of an earlier run; None if none of its saves is left, or nobody can read it."""
    try:
        asked = client.read_object(path + "/run.json") or {}
    except FolderError:
        return None
    own = asked.get("spec")
    argv = one.get("argv")
    if not isinstance(own, dict) or not isinstance(argv, list) or not all(isinstance(word, str) for word in argv):
        return None
    saves = tuple(_saves(one, own.get("checkpoints")))
    if not saves:
        return None
    origins = asked.get("origins")
    unasked = [name for name in OWN if isinstance(origins, dict) and origins.get(name) == "default"]
    added = own.get("resume_args") if (one["attempt"] or 1) > 1 else None
    words = [*argv, *(str(word) for word in (added if isinstance(added, (list, tuple)) else ()))]
    return Earlier(
        name=one["name"],
        step=one["step"],
        began=epoch_of(one["started_at"] or one["created_at"]),
        cwd=one["cwd"],
        command=read_command(words, Place(one["cwd"], os.path.isfile)),
        own={name: one.get(name) or own.get(name) for name in OWN if name not in unasked},
        saves=saves,
    )


def _saves(one: client.Status, folder: object) -> Iterator[str]:
    """Yield the saves of a run that are still there: those that were seen, else the folder that was named for them."""
    seen = one.get("saves")
    entries = [*(seen if isinstance(seen, list) else ()), one["checkpoint"]]
    paths = [entry.get("path") for entry in entries if isinstance(entry, dict)]
    left = [path for path in dict.fromkeys(paths) if isinstance(path, str) and os.path.exists(path)]
    yield from left
    began = epoch_of(one["created_at"])
    if not left and isinstance(folder, str) and began is not None and _written_since(folder, began):
        yield folder


def _written_since(folder: str, began: float) -> bool:
    """Say whether a folder holds anything newer than ``began``: another run may have used it before."""
    looked_at = 0
    for path, folders, files in os.walk(folder):
        for name in (*folders, *files):
            looked_at += 1
            if (_changed_at(os.path.join(path, name)) or 0.0) >= began:
                return True
            if looked_at > MOST_ENTRIES:
                return False
    return False


# -- whether it goes on from there -----------------------------------------------------------------------------------


def _afresh(command: Command) -> bool:
    """Say whether a command says itself that it begins anew."""
    for key, flag in command.flags.items():
        if (key in AFRESH and flag.value.lower() not in NO) or (_resumes(key) and flag.value.lower() in NO):
            return True
    return False


def _resumes(key: str) -> bool:
    return "resume" in key or key in ("init_from", "ckpt_path", "load_checkpoint", "restore")


def _goes_on(earlier: Earlier, command: Command, spec: RunSpec) -> bool:
    """Say whether a command that names no other place goes on from the saves of an earlier run.

    Trials of a sweep run the same program in the same folder as well; they save elsewhere, each under its own name.
    """
    here = Place(spec.cwd, os.path.isfile)
    words = [flag.value for flag in command.flags.values() if flag.value] + list(command.plain)
    if any(_holds(here.path(word), save, spec.cwd) for word in words for save in earlier.saves):
        return True
    if spec.checkpoints is not None:
        return any(_below(save, spec.checkpoints) for save in earlier.saves)
    for key, flag in earlier.command.flags.items():
        now = command.flags.get(key)
        if _names(flag.value, earlier) and (now is None or not same(key, flag.value, now.value)):
            return False
    was, now_read = set(configurations(earlier.command).values()), set(configurations(command).values())
    return was == now_read or any(_resumes(key) for key in command.flags)


def _holds(path: str, save: str, cwd: str) -> bool:
    """Say whether a path that a command names is a save, lies in it or holds it, and is not simply where all is."""
    return (_below(save, path) and not _below(cwd, path)) or _below(path, save)


def _below(path: str, folder: str) -> bool:
    real, above = os.path.realpath(path), os.path.realpath(folder).rstrip("/")
    return real == above or real.startswith(above + "/")


def _names(value: str, earlier: Earlier) -> bool:
    """Say whether the saves lie in a place that has its name from a value: ``--out runs/a``, ``--name a``."""
    if len(value) < LEAST_NAME or value.lower() in NO:
        return False
    path = Place(earlier.cwd, os.path.isfile).path(value)
    for save in earlier.saves:
        folders = os.path.relpath(os.path.realpath(save), os.path.realpath(earlier.cwd)).split("/")[:-1]
        if _holds(path, save, earlier.cwd) or value in folders:
            return True
        if not value.isdigit() and "/" not in value and any(value in folder for folder in folders):
            return True
    return False

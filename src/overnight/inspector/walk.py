"""What lies in a folder that somebody calls his checkpoints: which entries are some, who made each, what else is there.

One level: step folders and files. A folder that is one checkpoint itself, and a single file, are looked at as such.
Links are followed only to look, entries that cannot be read are named, and what a killed save has left under a
temporary name is mentioned but never taken for a checkpoint.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from overnight.checkpoint import listing
from overnight.checkpoint import manifest as manifests
from overnight.errors import UsageError
from overnight.inspector import accelerate, files, folders, lightning, loading, naming, orbax, own, plain, trainer
from overnight.inspector.findings import Budget, Found
from overnight.inspector.folders import Folder, is_leftover, listed
from overnight.inspector.joining import NO_CHECKPOINT, NO_OPTIMIZER, ONLY_OPTIMIZER, lacking

BESIDE = frozenset(
    (
        "training_args.bin",
        "optimizer.pt",
        "scheduler.pt",
        "scaler.pt",
        "optimizer.bin",
        "scheduler.bin",
        "tokenizer.pkl",
    )
)
"""Parts of checkpoints, which are none by themselves."""
KEPT = frozenset(
    "run number generation ancestors saved reason keep metrics files best best_model_checkpoint epoch lag".split()
)
"""Values of a checkpoint that are still wanted when all of them are set beside each other."""
UNREAD = re.compile(r"(?:was|were) not looked at: it has [\d,]+ bytes$")
OPTIMIZER_STEP = re.compile(r"(?:.*\.)?state\..*\.step")
OPTIMIZER_KEYS = ({"state", "param_groups"}, {"state", "param_groups", "loss_scaler"})
MOST_OPENED = 200
"""Folders one level down that are opened at most to see whether checkpoints lie in them."""


Each = Callable[[Sequence[Path], Callable[[Path], Found | None]], list[Found | None]]


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What was found: checkpoints, in the order of names, and sentences about what else is there.

    ``pointed`` are paths that a link beside them leads to, ``names`` all that lies there.
    """

    found: list[Found]
    notes: list[str] = field(default_factory=list)
    pointed: frozenset[str] = frozenset()
    names: tuple[str, ...] = ()


def look(path: Path, budget: Budget) -> Found | None:
    """Return what one file or folder holds as a checkpoint; None if it is none. Never raises for what lies there."""
    try:
        kind = path.stat().st_mode
    except OSError as error:
        return _unseen(path, error)
    found = _folder(listed(path), budget) if stat.S_ISDIR(kind) else _file(path, budget)
    if found is None:
        return None
    # Whether all was read is told by the budget; the insides of ten thousand checkpoints would not fit into memory.
    return replace(
        found,
        tree=None,
        keys=(),
        globals=(),
        values=_kept(found),
        notes=tuple(note for note in found.notes if not UNREAD.search(note)),
    )


def _kept(found: Found) -> dict[str, Any]:
    values = {key: value for key, value in found.values.items() if key in KEPT}
    if found.maker in ("torch", "lightning"):
        steps = [folders.whole_number(value) for key, value in found.values.items() if OPTIMIZER_STEP.fullmatch(key)]
        values["counted"] = max((one for one in steps if one is not None), default=None)
    return values


def _unseen(path: Path, error: OSError) -> Found:
    if not path.is_symlink():
        said = f"{path.name} cannot be read: {error.strerror}"
        return Found(path=str(path), maker="unknown", problem=said)
    try:
        target = os.readlink(path)
    except OSError:
        target = "?"
    said = f"{path.name} is a link to what is not there: {target}"
    return Found(path=str(path), maker="unknown", complete=False, problem=said)


def _file(path: Path, budget: Budget) -> Found | None:
    found = files.look(path, budget)
    if path.name.endswith(plain.DOUBTFUL) and (found.maker == "unknown" or _only_archive(path, found)):
        return None
    if found.problem is None:
        found = replace(found, notes=(*found.notes, *loading.refused_by_weights_only([(path.name, found)])))
    if lightning.is_one(found):
        return lightning.of_file(found)
    if found.maker == "unknown" or found.problem is not None:
        return found
    notes = [*found.notes]
    if any(set(found.keys) == keys for keys in OPTIMIZER_KEYS):
        notes.append(ONLY_OPTIMIZER)
    elif not plain.trains(found) and found.complete is True:
        notes.append(NO_OPTIMIZER)
    if found.step is None and naming.words(path.name) & naming.ASIDE:
        notes.append(NO_CHECKPOINT)
    return replace(found, notes=tuple(dict.fromkeys(notes)))


def _only_archive(path: Path, found: Found) -> bool:
    """Say whether a tar archive is one of data, and not what torch once wrote under such a name."""
    return found.form == "torch tar" and not path.name.endswith((".pth.tar", ".pt.tar"))


def _folder(folder: Folder, budget: Budget) -> Found | None:
    if folder.unreadable is not None:
        return Found(path=str(folder.path), maker="unknown", problem=f"{folder.name} {folder.unreadable}")
    if own.claims(folder) or _killed_own(folder):
        return own.look(folder, budget, files.look)
    if orbax.claims(folder):
        return orbax.look(folder, budget)
    if lightning.claims(folder):
        return lightning.look(folder, budget, files.look)
    if accelerate.claims(folder):
        return accelerate.look(folder, budget, files.look)
    if trainer.claims(folder):
        return trainer.look(folder, budget, files.look)
    if ".metadata" in folder.files or any(name.endswith(".distcp") for name in folder.files):
        return files.look(folder.path, budget)
    return plain.look(folder, budget, files.look)


def _killed_own(folder: Folder) -> bool:
    """Say whether a folder has the name of one of ours, and no file that ours does not have."""
    ours = (manifests.NAME, "train_state.pt", "train_state.json")
    return bool(listing.NAMED.fullmatch(folder.name)) and all(
        name in ours or name.endswith(".safetensors") for name in folder.files
    )


# -- a folder of checkpoints -----------------------------------------------------------------------------------------


def survey(path: Path, budget: Budget, each: Each) -> Survey:
    """Return what lies at ``path``: a file, one checkpoint, or a folder of them.

    ``each`` looks at many paths in its own way, one after the other or side by side. UsageError if there is nothing.
    """
    try:
        kind = path.stat().st_mode
    except OSError as error:
        raise UsageError(
            f"{path} cannot be looked at: {error.strerror}; give a folder of checkpoints, or one"
        ) from None
    if not stat.S_ISDIR(kind):
        single = look(path, budget) or Found(path=str(path), maker="unknown", problem=f"{path.name} is no checkpoint")
        return Survey(found=_beside([single]))
    folder = listed(path)
    if folder.unreadable is not None:
        raise UsageError(f"{path} {folder.unreadable}; mend its permissions, or give another folder")
    inside = _inside(folder)
    if _is_one(folder, inside.paths):
        one = look(path, budget)
        return Survey(found=[] if one is None else _beside([one]), notes=inside.notes)
    seen = [one for one in each(inside.paths, lambda entry: look(entry, budget)) if one is not None]
    if not seen and not inside.dangling:
        one = plain.look(folder, budget, files.look) if naming.STEP_FOLDER.fullmatch(folder.name) else None
        if one is not None and one.complete is not False:
            return Survey(found=[one], notes=inside.notes)
        inside.notes.extend(_elsewhere(folder))
    found = _beside([*seen, *inside.dangling])
    return Survey(found=found, notes=[*inside.notes, *_two_runs(found)], pointed=frozenset(inside.pointed),
                  names=tuple(sorted((*folder.files, *folder.folders))))  # fmt: skip


def _is_one(folder: Folder, inside: Sequence[Path]) -> bool:
    """Say whether a folder is a checkpoint itself: Trainer keeps some files of one beside its checkpoints too."""
    if own.claims(folder) or orbax.claims(folder) or lightning.claims(folder) or ".metadata" in folder.files:
        return True
    if any(trainer.NAME.fullmatch(one.name) or accelerate.NAME.fullmatch(one.name) for one in inside):
        return False
    return accelerate.claims(folder) or trainer.claims(folder) or any(name.endswith(".distcp") for name in folder.files)


@dataclass(kw_only=True)
class _Inside:
    paths: list[Path] = field(default_factory=list)
    dangling: list[Found] = field(default_factory=list)
    pointed: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)


def _inside(folder: Folder) -> _Inside:
    """Sort the entries of a folder: what is to be looked at, what leads elsewhere, and what was left over."""
    inside, left = _Inside(), []
    names = sorted((*folder.files, *folder.folders, *folder.dangling, *folder.strange))
    for name in names:
        path = folder.path / name
        if is_leftover(name):
            left.append(name)
        elif path.is_symlink():
            _link(path, folder, inside)
        elif name in folder.folders:
            if not name.startswith("."):
                inside.paths.append(path)
        elif name in folder.strange:
            if name.endswith(naming.FILES):
                inside.notes.append(f"{name} is no file: a pipe, a socket or a device")
        elif name.endswith(naming.FILES) and name not in BESIDE and not plain.PART.fullmatch(name):
            inside.paths.append(path)
    if left:
        shown = ", ".join(left[:3]) + (f" and {len(left) - 3} more" if len(left) > 3 else "")
        inside.notes.append(f"no checkpoints, but what a save has under way or a killed one has left over: {shown}")
    return inside


def _link(path: Path, folder: Folder, inside: _Inside) -> None:
    """Say where a link leads: one that leads to a checkpoint beside it is a pointer, and no checkpoint of its own."""
    if path.name in folder.dangling:
        error = FileNotFoundError(2, "No such file or directory")
        inside.dangling.append(_unseen(path, error))
        return
    real, here = Path(os.path.realpath(path)), Path(os.path.realpath(folder.path))
    if real == here or real in here.parents:
        inside.notes.append(f"{path.name} is a link that leads back to {real}; it is not followed")
    elif here in real.parents:
        inside.pointed.add(str(folder.path / real.relative_to(here).parts[0]))
        inside.notes.append(f"{path.name} is a link to {real.relative_to(here)}")
    elif path.name.endswith(naming.FILES) or path.name in folder.folders:
        inside.notes.append(f"{path.name} is a link to {real}")
        inside.paths.append(path)


def _elsewhere(folder: Folder) -> list[str]:
    """Return where one level further down checkpoints may lie: ``checkpoints/`` of Lightning and Accelerate."""
    likely = []
    for name in sorted(folder.folders)[:MOST_OPENED]:
        named = "checkpoint" in name.lower() or "ckpt" in name.lower()
        if named or (not name.startswith(".") and _holds_some(folder.path / name)):
            likely.append(name)
    more = [f"and {len(likely) - 3} more such folders"] if len(likely) > 3 else []
    return [f"nothing here, but there is a folder {folder.path / name}" for name in likely[:3]] + more


def _holds_some(path: Path) -> bool:
    try:
        names = [entry.name for entry in os.scandir(path)]
    except OSError:
        return False
    return any(naming.STEP_FOLDER.fullmatch(one) for one in names) or plain.is_series(
        one for one in names if one.endswith(naming.FILES)
    )


def _beside(found: Sequence[Found]) -> list[Found]:
    """Return the findings, each of Accelerate's compared with those saved before it, and broken ones named after them.

    A killed save may have left so little that only its neighbours tell who made it: diffusers gives folders of
    Accelerate the names of Trainer's.
    """
    whole = [one for one in found if one.complete is True]
    accelerated = [one for one in whole if one.maker == "accelerate"]
    named_alike = any(trainer.NAME.fullmatch(Path(one.path).name) for one in accelerated)
    theirs = [one for one in whole if one.maker == "trainer"]
    alike = trainer.Neighbours(theirs)
    of_lightning = any(map(lightning.is_one, found))
    changed = []
    for one in found:
        if one.maker == "trainer" and one.complete is False and named_alike and not theirs:
            changed.append(accelerate.look(listed(Path(one.path)), Budget(0), files.look))
        elif one.maker == "trainer":
            changed.append(trainer.beside(one, alike))
        elif one.maker in ("torch", "unknown") and one.complete is False and one.path.endswith(lightning.SUFFIX):
            changed.append(replace(one, maker="lightning") if of_lightning else one)
        else:
            changed.append(one)
    return _lacking(changed)


def _lacking(found: list[Found]) -> list[Found]:
    """Return the findings, each with a problem that lacks a file which all those of its maker before it have."""
    common: dict[str, set[str]] = {}
    changed = {id(one): one for one in found}
    for one in sorted(found, key=_place):
        kinds = one.values.get("files")
        if one.complete is not True or not isinstance(kinds, tuple) or one.maker == "trainer":
            continue
        before = common.get(one.maker)
        if before is None:
            common[one.maker] = set(kinds)
            continue
        if one.maker == "accelerate":
            changed[id(one)] = accelerate.beside(one, before)
        else:
            changed[id(one)] = lacking(one, before)
        if changed[id(one)] is one:
            before &= set(kinds)
    return [changed[id(one)] for one in found]


def _place(found: Found) -> int:
    number = naming.read(Path(found.path).name).number if found.step is None else found.step
    return -1 if number is None else number


def _two_runs(found: Sequence[Found]) -> list[str]:
    """Return a note where steps and times disagree: an older run's checkpoints may lie beside a new one's."""
    known = [one for one in found if one.step is not None and one.saved_at is not None and one.maker != "overnight"]
    if len(known) < 2:
        return []
    highest = max(known, key=lambda one: one.step or 0)
    latest = max(known, key=lambda one: one.saved_at or 0.0)
    if highest.step == latest.step or (latest.saved_at or 0.0) - (highest.saved_at or 0.0) < 1.0:
        return []
    names = Path(latest.path).name, Path(highest.path).name
    return [f"{names[0]} was written after {names[1]}, whose step is higher: two runs may share this folder"]

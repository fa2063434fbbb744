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

from overnight.errors import UsageError
from overnight.inspector import accelerate, files, lightning, orbax, own, trainer
from overnight.inspector.findings import Budget, Found
from overnight.inspector.folders import Folder, is_leftover, listed
from overnight.inspector.joining import NO_OPTIMIZER, joined, refused_by_weights_only

FILES = (".pt", ".pth", ".ckpt", ".safetensors", ".bin", ".npz", ".zip", ".tar", ".pkl", ".pickle")
"""Names of files that are looked at; what proves to be no checkpoint under one of DOUBTFUL is passed over."""
DOUBTFUL = (".bin", ".npz", ".zip", ".tar", ".pkl", ".pickle")
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
PART = re.compile(r"rng_state(_\d+)?\.pth|.*-\d{5}-of-\d{5}\..*")
OWN_NAME = re.compile(r"step-\d{8,}(?:\.\d+)?")
KEPT = frozenset("run number generation ancestors reason files best_model_path best_model_checkpoint".split())
"""Values of a checkpoint that are still wanted when all of them are set beside each other."""
UNREAD = re.compile(r"(?:was|were) not looked at: it has [\d,]+ bytes$")
STEP_FOLDER = re.compile(r"(?:checkpoint|ckpt|step|global_step|iter|epoch)[-_=]?\d{1,18}", re.IGNORECASE)


Each = Callable[[Sequence[Path], Callable[[Path], Found | None]], list[Found | None]]


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What was found: checkpoints, in the order of names, and sentences about what else is there.

    ``pointed`` are paths that a link beside them leads to: they are not removed, so that no link leads to nowhere.
    ``elsewhere`` are folders one level down in which checkpoints may lie.
    """

    found: list[Found]
    notes: list[str] = field(default_factory=list)
    pointed: frozenset[str] = frozenset()


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
        values={key: value for key, value in found.values.items() if key.rpartition(".")[2] in KEPT},
        notes=tuple(note for note in found.notes if not UNREAD.search(note)),
    )


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
    if found.maker == "unknown" and path.suffix in DOUBTFUL:
        return None
    if found.problem is None:
        found = replace(found, notes=(*found.notes, *refused_by_weights_only([(path.name, found)])))
    if lightning.is_one(found):
        return lightning.of_file(found)
    if found.maker in ("torch", "safetensors") and found.problem is None and not _trains(found):
        return replace(found, notes=tuple(dict.fromkeys((*found.notes, NO_OPTIMIZER))))
    return found


def _trains(found: Found) -> bool:
    """Say whether there is a sign of an optimizer's state in a file."""
    words = [key.lower() for key in (*found.keys, *list(found.values)[:200])]
    return any("optim" in word or "exp_avg" in word or "momentum" in word for word in words)


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
    return _plain(folder, budget)


def _killed_own(folder: Folder) -> bool:
    """Say whether a folder has the name of one of ours, and no file that ours does not have."""
    ours = ("MANIFEST.json", "train_state.pt", "train_state.json")
    return bool(OWN_NAME.fullmatch(folder.name)) and all(
        name in ours or name.endswith(".safetensors") for name in folder.files
    )


def _plain(folder: Folder, budget: Budget) -> Found | None:
    """Return a folder of states that no known maker lays out so: ``model.pt`` and ``optim.pt``, or weights alone."""
    names = [name for name in sorted(folder.files) if name.endswith((*FILES, ".index.json")) and not is_leftover(name)]
    whole = any(name.endswith(".index.json") for name in names)
    names = [name for name in names if not (whole and PART.fullmatch(name))]
    parts = {name: files.look(folder.path / name, budget) for name in names}
    parts = {name: one for name, one in parts.items() if one.maker != "unknown" or not name.endswith(DOUBTFUL)}
    if not parts:
        empty = STEP_FOLDER.fullmatch(folder.name) and not folder.folders
        missing = ["nothing of a checkpoint in it"]
        return joined(folder, "unknown", [], step=None, missing=missing) if empty else None
    notes = [] if any("optim" in name.lower() or _trains(one) for name, one in parts.items()) else [NO_OPTIMIZER]
    makers = {one.maker for one in parts.values() if one.maker != "unknown"}
    maker = makers.pop() if len(makers) == 1 else "torch" if "torch" in makers else "unknown"
    steps = [one.step for one in parts.values() if one.step is not None]
    return joined(folder, maker, list(parts.values()), step=max(steps, default=None), notes=notes)


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
        return Survey(found=[single])
    folder = listed(path)
    if folder.unreadable is not None:
        raise UsageError(f"{path} {folder.unreadable}; mend its permissions, or give another folder")
    inside = _inside(folder)
    if _is_one(folder, inside.paths):
        one = look(path, budget)
        return Survey(found=[] if one is None else [one], notes=inside.notes)
    seen = [one for one in each(inside.paths, lambda entry: look(entry, budget)) if one is not None]
    if not seen and not inside.dangling:
        inside.notes.extend(_elsewhere(folder))
    found = _beside([*seen, *inside.dangling])
    return Survey(found=found, notes=[*inside.notes, *_two_runs(found)], pointed=frozenset(inside.pointed))


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
            if name.endswith(FILES):
                inside.notes.append(f"{name} is no file: a pipe, a socket or a device")
        elif name.endswith(FILES) and name not in BESIDE and not PART.fullmatch(name):
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
    real = Path(os.path.realpath(path))
    if real.parent == Path(os.path.realpath(folder.path)):
        inside.pointed.add(str(folder.path / real.name))
        inside.notes.append(f"{path.name} is a link to {real.name}")
    elif path.name.endswith(FILES) or path.name in folder.folders:
        inside.notes.append(f"{path.name} is a link to {real}")
        inside.paths.append(path)


def _elsewhere(folder: Folder) -> list[str]:
    """Return where one level further down checkpoints may lie: ``checkpoints/`` of Lightning and Accelerate."""
    likely = [name for name in sorted(folder.folders) if "checkpoint" in name.lower() or "ckpt" in name.lower()]
    return [f"nothing here, but there is a folder {folder.path / name}" for name in likely[:3]]


def _beside(found: Sequence[Found]) -> list[Found]:
    """Return the findings, each of Accelerate's compared with those saved before it, and broken ones named after them.

    A killed save may have left so little that only its neighbours tell who made it: diffusers gives folders of
    Accelerate the names of Trainer's.
    """
    neighbours = [one for one in found if one.maker == "accelerate" and one.complete is True]
    named_alike = any(trainer.NAME.fullmatch(Path(one.path).name) for one in neighbours)
    whole_trainer = any(one.maker == "trainer" and one.complete is True for one in found)
    changed = []
    for one in found:
        if one.maker == "trainer" and one.complete is False and named_alike and not whole_trainer:
            changed.append(accelerate.look(listed(Path(one.path)), Budget(0), files.look))
        elif one.maker in ("torch", "unknown") and one.complete is False and one.path.endswith(lightning.SUFFIX):
            changed.append(replace(one, maker="lightning") if any(map(lightning.is_one, found)) else one)
        elif one.maker == "accelerate":
            older = [other for other in neighbours if other is not one and _before(other, one)]
            changed.append(accelerate.beside(one, older))
        else:
            changed.append(one)
    return changed


def _before(one: Found, other: Found) -> bool:
    if one.step is not None and other.step is not None:
        return one.step <= other.step
    return _number(one) < _number(other)


def _number(found: Found) -> int:
    numbers = re.findall(r"\d{1,18}", Path(found.path).name)
    return int(numbers[-1]) if numbers else -1


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

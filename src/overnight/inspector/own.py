"""Overnight's own checkpoints: what their manifests say, and whether every file is as the manifest says.

The manifest is read by the library that writes it. Which run of a folder counts is said by ``choosing``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from overnight.checkpoint import manifest as manifests
from overnight.checkpoint.errors import DamagedError
from overnight.inspector.findings import Budget, Found
from overnight.inspector.folders import Folder
from overnight.moments import epoch_of

Read = Callable[[Path, Budget], Found]


def claims(folder: Folder) -> bool:
    """Say whether a folder calls itself a checkpoint of ours, or has the name of one."""
    return manifests.NAME in folder.files or manifests.NAME in folder.dangling


def look(folder: Folder, budget: Budget, read: Read) -> Found:
    """Return what a checkpoint of ours holds; ``values`` has what its manifest says of the run, and versions."""
    found, known = _look(folder, budget, read)
    if known is not None and found.intact is False and _replaced(folder, known):
        return _look(folder, budget, read)[0]  # by a training that saves the same step anew, just while it was read
    return found


def _replaced(folder: Folder, known: manifests.Manifest) -> bool:
    try:
        return manifests.read(folder.path) != known
    except DamagedError:
        return False


def _look(folder: Folder, budget: Budget, read: Read) -> tuple[Found, manifests.Manifest | None]:
    try:
        known = manifests.read(folder.path)
    except DamagedError as error:
        return _untrusted(folder, str(error)), None
    return _content(folder, known, budget, read), known


def _content(folder: Folder, known: manifests.Manifest, budget: Budget, read: Read) -> Found:
    try:
        manifests.check_sizes(folder.path, known)
    except DamagedError as error:
        return _found(folder, known, complete=False, intact=False, problem=str(error))
    if not budget.spend(known.size):
        return _found(folder, known, complete=True, intact=None)
    try:
        manifests.check_content(folder.path, known)
    except DamagedError as error:
        return _found(folder, known, complete=True, intact=False, problem=str(error))
    problem = None if known.finite else _where(folder, known, read)
    return _found(folder, known, complete=True, intact=True, problem=problem)


def _untrusted(folder: Folder, problem: str) -> Found:
    lost = manifests.NAME not in folder.files
    return Found(
        path=str(folder.path),
        maker="overnight",
        size_bytes=folder.size_bytes,
        saved_at=folder.saved_at,
        complete=False if lost else None,
        intact=None if lost else False,
        problem=f"{manifests.NAME} missing" if lost else problem,
    )


def _found(
    folder: Folder, known: manifests.Manifest, *, complete: bool, intact: bool | None, problem: str | None = None
) -> Found:
    if problem is None and not known.finite:
        problem = "NaN or infinity in it, says its manifest"
    if problem is None and not known.healthy:
        problem = "saved while the training was not healthy"
    about = {
        name: getattr(known, name, None)
        for name in ("run", "number", "generation", "ancestors", "reason", "keep", "metrics")
    }
    about["saved"] = known.saved_at
    return Found(
        path=str(folder.path),
        maker="overnight",
        step=known.step,
        size_bytes=folder.size_bytes,
        saved_at=_seconds(known.saved_at, folder.saved_at),
        complete=complete,
        intact=intact,
        finite=known.finite,
        healthy=known.healthy,
        order=known.order,
        problem=problem,
        values={**about, **{f"versions.{name}": one for name, one in known.versions.items()}},
        tensors=1,
    )


def _seconds(text: object, otherwise: float | None) -> float | None:
    found = epoch_of(text)
    return otherwise if found is None else found


def _where(folder: Folder, known: manifests.Manifest, read: Read) -> str | None:
    """Return in which tensor a value is not finite, None if no file of tensors says."""
    for name in sorted(known.files):
        if name.endswith((".safetensors", ".pt")):
            found = read(folder.path / name, Budget())
            if found.finite is False and found.problem:
                return found.problem
    return None

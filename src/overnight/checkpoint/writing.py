"""One save from bytes in memory to a checkpoint on the disk, and then what may be removed for it.

Runs in the trainer or in the writer process, whichever was asked for; the same either way. A save that fails leaves
nothing behind and is told in one sentence; nothing is ever removed on its account.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from overnight.checkpoint import leaves, listing, plain, publish, retention, tensorfile
from overnight.checkpoint import manifest as manifests
from overnight.checkpoint.direct import DirectFile
from overnight.checkpoint.errors import CheckpointError, DamagedError
from overnight.checkpoint.finite import all_finite
from overnight.checkpoint.jobs import FilePlan, Job, Keep, Leaf, Outcome
from overnight.checkpoint.manifest import FileFacts, Manifest

ROOM = 1.1
"""So many times its own size must be free before a save begins: a file system needs some for itself."""

ROOMY = 64 << 10
"""Mean bytes of a tensor from which on a gap of up to 4 KiB before each is nothing."""

Data = Sequence[memoryview]

_verified: dict[str, str] = {}
"""Checkpoints that this process has written or read whole: path -> what their manifest says of their files."""


def now() -> str:
    """Return the time in UTC, RFC 3339 with microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def perform(job: Job, data: Data = (), *, live: Sequence[Any] = ()) -> Outcome:
    """Write a checkpoint and return what became of it; a failed save is an Outcome with its reason, never raised.

    ``data`` are the bytes of the job's leaves, in their order; or ``live`` the tensors and arrays themselves.
    """
    began = time.monotonic()
    folder = Path(job.folder)
    temporary: Path | None = None
    opened: list[DirectFile] = []
    try:
        data = data or [leaves.buffer(one) for one in live]
        publish.sweep(folder)  # what a writer that was killed has left: it may be what the disk is full of
        _make_room(folder, job)
        temporary = publish.begin(folder, job.step)
        files = _Files(temporary, job, data, opened)
        for plan in job.files:
            files.write(plan)
        finite = _finite(job.leaves, data)
        made = _sealed(temporary, job, files.facts, finite=finite)
        if job.read_back:
            _read_back(temporary, made)
        path = publish.publish(temporary, folder, job.step, lambda there: _may_go_for(there, made))
        _verified[str(path)] = _facts(made)
    except Exception as error:  # noqa: BLE001 - whatever it is, a save that fails must never end a training
        if temporary is not None:
            _forget(temporary)
        reason = _reason(error, opened, folder)
        return Outcome(step=job.step, error=reason, seconds=time.monotonic() - began)
    took_s = time.monotonic() - began
    removed, notes = _retain(folder, made.run, job.keep)
    return Outcome(
        step=job.step, path=str(path), size=made.size, seconds=took_s, finite=finite, removed=removed, notes=notes
    )


def _make_room(folder: Path, job: Job) -> None:
    needed = int(ROOM * (sum(leaf.size for leaf in job.leaves) + (64 << 10)))
    free = publish.free_bytes(folder)
    if free < needed:  # killed between a save and what follows it, lives in a row may have left more than are kept
        _retain(folder, job.manifest["run"], job.keep)
        free = publish.free_bytes(folder)
    if free < needed:
        raise CheckpointError(
            f"{folder} has {publish.in_words(free)} free and a checkpoint needs {publish.in_words(needed)}; "
            f"free some space there (nothing older is removed to make room)"
        )


# -- files -----------------------------------------------------------------------------------------------------------


class _Files:
    """The files of one save, written one after the other into the folder that is not yet a checkpoint."""

    def __init__(self, folder: Path, job: Job, data: Data, opened: list[DirectFile]) -> None:
        self.folder = folder
        self.job = job
        self.data = data
        self.opened = opened
        self.facts: dict[str, FileFacts] = {}

    def write(self, plan: FilePlan) -> None:
        """Write what holds the tree of a plan: one file, or a file of JSON and the arrays beside it."""
        if plan.form == "safetensors":
            self._tensors(plan.name, list(plan.tree), [ref.leaf for ref in plan.tree.values()], plan.metadata)
        elif plan.form == "torch":
            self._torch(plan)
        else:
            self._json(plan)

    @contextlib.contextmanager
    def _file(self, name: str) -> Iterator[DirectFile]:
        out = DirectFile(self.folder / name, direct=self.job.direct)
        self.opened.append(out)
        try:
            yield out
            self.facts[name] = out.finish()
        except BaseException:
            out.abandon()
            raise

    def _tensors(self, name: str, names: Sequence[str], numbers: Sequence[int], metadata: Mapping[str, str]) -> None:
        known, data = [self.job.leaves[at] for at in numbers], [self.data[at] for at in numbers]
        with self._file(name) as out:
            tensorfile.write(out, names, known, data, metadata)

    def _json(self, plan: FilePlan) -> None:
        assert plan.arrays is not None
        numbers: list[int] = []

        def array(leaf: int) -> int:
            numbers.append(leaf)
            return len(numbers) - 1

        text = json.dumps(plain.encode(plan.tree, array), allow_nan=False).encode()
        with self._file(plan.name) as out:
            out.write(text)
        if numbers:
            self._tensors(plan.arrays, [str(at) for at in range(len(numbers))], numbers, {})

    def _torch(self, plan: FilePlan) -> None:
        import torch

        made: dict[int, Any] = {}

        def tensor(leaf: int) -> Any:
            if leaf not in made:
                made[leaf] = leaves.as_torch(self.job.leaves[leaf], self.data[leaf])
            return made[leaf]

        with warnings.catch_warnings():
            # A read-only array makes a read-only tensor, which is all that is asked of it here.
            warnings.filterwarnings("ignore", message="The given buffer is not writable", category=UserWarning)
            whole = leaves.together(plan.tree, tensor)
        with self._file(plan.name) as out, _aligned([self.job.leaves[at].size for at in made]):
            torch.save(whole, out)  # type: ignore[arg-type] # it asks for write() only


def _aligned(sizes: Sequence[int]) -> contextlib.AbstractContextManager[Any]:
    """Have torch lay tensors where O_DIRECT can write them from their own place; a torch that cannot costs a copy.

    Not where most are so small that the gaps would be more than a small part of the file.
    """
    if sum(sizes) < len(sizes) * ROOMY:
        return contextlib.nullcontext()
    try:
        from torch.utils.serialization import config

        patched: contextlib.AbstractContextManager[Any] = config.patch("save.storage_alignment", 4096)  # type: ignore[attr-defined]
    except (ImportError, AttributeError):
        return contextlib.nullcontext()
    return patched


def _finite(known: Sequence[Leaf], data: Data) -> bool:
    return all(leaf.exempt or all_finite(leaf.dtype, bytes_) for leaf, bytes_ in zip(known, data, strict=True))


def _sealed(temporary: Path, job: Job, files: Mapping[str, FileFacts], *, finite: bool) -> Manifest:
    """Write the manifest, last of all files, and return it."""
    made = Manifest(**{**job.manifest, "saved_at": now(), "files": files, "finite": finite})
    made = replace(made, healthy=made.healthy and finite)
    handle = os.open(temporary / manifests.NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    with open(handle, "wb") as stream:
        stream.write(manifests.dump(made))
        stream.flush()
        os.fsync(handle)
    return made


def _may_go_for(there: Path, made: Manifest) -> bool:
    """Say whether what lies under the name is this run's own, and may go for this one: no good one for a bad one."""
    try:
        old = manifests.read(there)
    except DamagedError:
        return False
    return old.run == made.run and (made.healthy or not old.healthy) and not there.is_symlink()


def _read_back(temporary: Path, made: Manifest) -> None:
    """Read what was just written, before it gets a name: what is not as it was written never replaces anything."""
    try:
        manifests.check_content(temporary, made)
    except DamagedError as error:
        raise DamagedError(f"{temporary.parent}: read back, {error}; look after that disk") from error


def _forget(temporary: Path) -> None:
    with contextlib.suppress(OSError):
        publish.discard(temporary)


def _reason(error: BaseException, opened: Sequence[DirectFile], folder: Path) -> str:
    """Return why a save failed, in a sentence with the path; what the disk said comes before what torch made of it."""
    failed = next((one.failed for one in opened if one.failed is not None), None)
    if failed is None and isinstance(error, OSError):
        failed = error
    if failed is not None:
        place = failed.filename or folder
        advice = {
            errno.ENOSPC: "free some space there",
            errno.EDQUOT: "your quota there is used up: `quota -s` shows it; remove something or ask for more",
            errno.EROFS: "it is mounted read-only",
            errno.EACCES: "mend its permissions",
            errno.EPERM: "mend its permissions",
            errno.EIO: "look after that disk",
        }.get(failed.errno or 0, "the next save is tried all the same")
        return f"{place}: {failed.strerror or failed} ({errno.errorcode.get(failed.errno or 0, '?')}); {advice}"
    if "inline_container" in str(error) or "PytorchStreamWriter" in str(error):
        free = "unknown"
        with contextlib.suppress(OSError):
            free = publish.in_words(publish.free_bytes(folder))
        return f"torch could not write its file, as when a disk is full: {folder}, free there: {free} ({error})"
    return str(error) or type(error).__name__


# -- what may go -----------------------------------------------------------------------------------------------------


def _facts(known: Manifest) -> str:
    return json.dumps({name: facts.xxh3_128 for name, facts in sorted(known.files.items())})


def _retain(folder: Path, run: str, keep: Keep) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Remove what need not be kept, as far as what is kept has been verified; return (names removed, notes)."""
    removed, notes = [], []
    try:
        mine = {
            one.path.name: one
            for one in listing.of_run(listing.entries(folder), run)
            # Whoever gave one another name, or copied it under one, wants to have it.
            if one.problem is None and listing.NAMED.fullmatch(one.path.name) and not one.path.is_symlink()
        }
        known = {name: one.manifest for name, one in mine.items() if one.manifest is not None}
        for _ in range(len(known)):
            gone = retention.removable(known, keep)
            if not gone:
                break
            # Whoever stays must be good: it is read once in each process, at the first time something is to go.
            bad = [name for name in known if name not in gone and not _verify(mine[name].path, known[name])]
            if not bad:
                break
            for name in bad:
                notes.append(f"{folder / name} is damaged: it is neither counted nor removed")
                del known[name]
        for name in retention.removable(known, keep):
            publish.discard(folder / name)
            _verified.pop(str(folder / name), None)
            removed.append(name)
    except Exception as error:  # noqa: BLE001 - the save has succeeded, and what is not removed now is removed later
        notes.append(f"older checkpoints in {folder} could not be removed: {error}")
    return tuple(removed), tuple(notes)


def _verify(path: Path, known: Manifest) -> bool:
    facts = _facts(known)
    if _verified.get(str(path)) == facts:
        return True
    try:
        manifests.check_content(path, known)
    except DamagedError:
        return False
    _verified[str(path)] = facts
    return True

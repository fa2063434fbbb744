"""What was asked of a run, read back from its folder: as it was written at the launch, and as it is in force now."""

from __future__ import annotations

import msgspec

from overnight.errors import FolderError
from overnight.folder import RunFolder, read_journal, read_json
from overnight.quantities import LARGEST
from overnight.requests.changes import applied
from overnight.spec import RunSpec

COUNTS = frozenset(
    "window steps params devices layers width heads head_size vocab_size seq_len batch accumulate".split()
)
"""Fields of a spec that are above zero wherever they are known."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What run.json says: the spec; when (seconds since the epoch), in which boot and on which machine it was asked.

    ``log_start`` is the length that the log had before.
    """

    spec: RunSpec
    epoch: float | None = None
    log_start: int = 0
    boot_id: str = ""
    machine_id: str | None = None
    host: str | None = None


def read_asked(folder: RunFolder) -> Asked:
    """Return what was asked; FolderError if run.json is gone or was edited into something else."""
    written = read_json(folder.run_json)
    if written is None:
        raise FolderError(f"{folder.run_json} is gone; restore it: without it nobody knows how the run is to be read")
    try:
        asked = msgspec.convert(written, Asked)
    except (msgspec.ValidationError, OverflowError) as error:
        raise FolderError(f"{folder.run_json} was edited ({error}): restore it") from error
    for name in asked.spec.__struct_fields__:
        value = getattr(asked.spec, name)
        least = 1 if name in COUNTS else 0
        if type(value) is int and not least <= value <= LARGEST:
            raise FolderError(f"{folder.run_json} was edited ({name} is not between {least} and {LARGEST}): restore it")
    return asked


def in_force(folder: RunFolder) -> RunSpec:
    """Return what a run goes by now: run.json and every change since, as its journal has them."""
    facts = (fact.get("values") for fact in read_journal(folder.journal) if fact["fact"] == "set")
    return applied(read_asked(folder).spec, [values for values in facts if isinstance(values, dict)])

"""What a look at one checkpoint, or one file of it, has found, and how many bytes may still be read for content.

Values only: nothing here opens a file. What cannot be told is None; True and False are said only of what was looked at.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


def _nothing() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class Found:
    """One checkpoint: a file, or a folder.

    ``maker``: overnight, torch, safetensors, trainer (Hugging Face), lightning, accelerate, dcp, orbax, numpy, unknown.
    ``step`` is what the content says, or the name where the maker writes it nowhere else. ``saved_at`` in seconds since
    the epoch. ``complete``: all that belongs to it is there. ``intact``: every byte was compared with a digest or CRC
    that lies in it. ``finite``: no parameter and no state of an optimizer holds NaN or infinity. ``own``: of this
    folder's run. ``problem``: one short clause that names the file. ``healthy`` and ``order`` are said by Overnight's
    own manifests only, and so is ``led``: False for what was left behind when a run was taken back to an older one.

    For those who judge what the files of a folder are together: ``form`` of the file ("torch zip", "torch legacy",
    "torch tar", "safetensors", "safetensors index", "torch index", "npz", "npy", "zip", "dcp", "pickle", "" where it
    is none of these); ``keys``, the names on the first level; ``values``, plain values by dotted path ("epoch",
    "optimizer.param_groups.0.lr"; at most 2,000); ``tensors``, how many there are; ``globals``, what loading it by
    pickle would import; ``tree``, the content with Tensor, Call and Symbol in the place of objects.
    """

    path: str
    maker: str
    step: int | None = None
    size_bytes: int = 0
    saved_at: float | None = None
    complete: bool | None = None
    intact: bool | None = None
    finite: bool | None = None
    own: bool | None = None
    problem: str | None = None
    healthy: bool | None = None
    order: tuple[int, int] | None = None
    led: bool = True
    notes: tuple[str, ...] = ()

    form: str = ""
    keys: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=_nothing, compare=False)
    tensors: int = 0
    globals: tuple[str, ...] = ()
    tree: Any = field(default=None, repr=False, compare=False)


LONGEST_CLAUSE = 400
"""Characters of what is said about a file: a name in it may have a million."""

UNFORESEEN = (
    ArithmeticError, AssertionError, AttributeError, BufferError, LookupError, MemoryError, OSError, RuntimeError,
    TypeError, ValueError, struct.error, zlib.error,
)  # fmt: skip
"""What a file may raise in who reads it, beyond what was thought of: no file ends the look at the others."""


class Damage(Exception):  # noqa: N818 - it is what was found, and becomes a Found; no error of ours
    """A file is not what it should be. The clause names the file; what it says is true of the bytes that were read."""

    def __init__(self, clause: str, *, complete: bool | None = None, intact: bool | None = False) -> None:
        clause = clause if len(clause) <= LONGEST_CLAUSE else clause[:LONGEST_CLAUSE] + "..."
        super().__init__(clause)
        self.clause = clause
        self.complete = complete
        self.intact = intact


def beyond(name: str, error: BaseException) -> Damage:
    """Return the Damage that one of UNFORESEEN is: nothing is known of the file then."""
    return Damage(f"{name} cannot be looked into ({type(error).__name__}): it is of no kind known here", intact=None)


class Budget:
    """Bytes that may still be read to look at content; None: as many as there are. Structure is always read."""

    def __init__(self, limit: int | None = None) -> None:
        self.left = limit
        self.refused = 0  # bytes that were not read for its sake

    def spend(self, size: int) -> bool:
        """Take ``size`` bytes from what is left; False, and nothing is taken, if there are not that many."""
        if self.left is not None and size > self.left:
            self.refused += size
            return False
        if self.left is not None:
            self.left -= size
        return True

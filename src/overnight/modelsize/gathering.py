"""From the tensors that lie in files of weights to Counts: what counts, what is left out, and what is counted once.

No file is opened here. What names do not tell (experts per token, heads) stays unknown: a config says that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from math import prod
from typing import Final

import msgspec

from overnight.modelsize import Counts
from overnight.modelsize.tensornames import EMBEDDING, EXPERT, HEAD, LAYER, POSITION, QUERY, Role, bare, role

_LEFT_OUT: Final = {
    "optimizer": "state of the optimizer",
    "buffer": "buffers",
    "average": "averaged copies of the weights",
    "scale": "scales of quantised weights",
}


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor as it lies in a file. ``same``: equal for two that are one and the same, None where it is not known.

    ``dtype`` as safetensors calls it.
    """

    name: str
    dtype: str | None
    shape: tuple[int, ...]
    same: Hashable = None

    @property
    def count(self) -> int:
        """Numbers in it."""
        return prod(self.shape)


class Gathered(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters in some files: each once, with its bare name. ``adapters`` are among the ``weights``.

    ``packed``: several weights lie in one number somewhere, and so their number is unknown.
    """

    weights: tuple[Stored, ...]
    adapters: int
    packed: str | None
    ties: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]

    @property
    def total(self) -> int:
        """Parameters."""
        return sum(one.count for one in self.weights)


def gather(stored: Iterable[Stored]) -> Gathered:
    """Sort tensors into parameters and what else lies beside them."""
    kept: list[Stored] = []
    seen: dict[Hashable, str] = {}
    left: dict[Role, list[int]] = {}
    ties: list[tuple[str, str]] = []
    adapters, packed = 0, None
    for one in sorted(stored, key=lambda one: HEAD.search(bare(one.name)) is not None):  # it is the one that is tied
        kind = role(one.name, one.dtype, one.shape)
        if kind == "packed":
            packed = packed or one.name
        if kind not in ("weight", "adapter"):
            left.setdefault(kind, []).append(one.count)
            continue
        if one.same is not None:
            first = seen.setdefault((one.same, one.shape), one.name)
            if first != one.name:
                ties.append((one.name, first))
                continue
        adapters += one.count if kind == "adapter" else 0
        kept.append(msgspec.structs.replace(one, name=bare(one.name)))
    notes = [_of_dtypes(kept)] if kept else []
    notes += [f"{name[:100]} is {first[:100]}: counted once" for name, first in ties[:4]]
    notes += [
        f"{sum(left[kind]):,} numbers in {len(left[kind]):,} tensors left out: {said}"
        for kind, said in _LEFT_OUT.items()
        if kind in left
    ]
    if adapters:
        notes.append(f"{adapters:,} of them are adapters (LoRA and the like)")
    return Gathered(
        weights=tuple(kept), adapters=adapters, packed=packed, ties=tuple(ties), notes=tuple(notes)
    )  # fmt: skip


def _of_dtypes(weights: Sequence[Stored]) -> str:
    """How many parameters are of which dtype, the most first."""
    found: Counter[str] = Counter()
    for one in weights:
        found[one.dtype or "a dtype that is not known"] += one.count
    return "by dtype: " + ", ".join(f"{count:,} {dtype}" for dtype, count in found.most_common())


def counts_of(found: Gathered, *, source: str) -> Counts:
    """Return what the names and shapes of the parameters tell; a file of nothing else has no more to say."""
    total = found.total
    dense = not any(EXPERT.search(one.name) or len(one.shape) == 3 for one in found.weights)
    trainable = found.adapters if 0 < found.adapters < total else None
    counts = Counts(
        total=total,
        source=source,
        active=total if dense else None,
        trainable=trainable,
        experts=None if dense else _experts(found.weights),
        notes=found.notes,
    )
    return _of_words(counts, found, dense=dense)


def _experts(weights: Sequence[Stored]) -> int | None:
    """How many experts a layer has: the highest number after ``experts``, or the first side of those in one tensor."""
    highest = -1
    for one in weights:
        match = EXPERT.search(one.name)
        if match is None:
            continue
        number = one.name[match.end() :].partition(".")[0]
        if number.isdigit() and len(number) < 7:
            highest = max(highest, int(number))
        elif len(one.shape) == 3:
            highest = max(highest, one.shape[0] - 1)
    return highest + 1 if highest >= 0 else None


def _of_words(counts: Counts, found: Gathered, *, dense: bool) -> Counts:
    """What is known of a language model with one table of tokens and one row of layers, and of nothing else."""
    tables = [one for one in found.weights if EMBEDDING.search(one.name) and len(one.shape) == 2]
    rows = {(match[1], match[2]) for one in found.weights if (match := LAYER.search(one.name))}
    if len(tables) != 1 or len(rows) != 1:
        return counts
    table = tables[0]
    vocab, width = table.shape
    places = sum(one.count for one in found.weights if POSITION.search(one.name))
    heads = [one for one in found.weights if HEAD.search(one.name) and len(one.shape) == 2 and one.shape[1] == width]
    tied = any(HEAD.search(bare(name)) for pair in found.ties for name in pair)
    layers = {match[3] for one in found.weights if (match := LAYER.search(one.name))}
    counts = msgspec.structs.replace(
        counts, embedding=table.count, position=places, vocab_size=vocab, layers=len(layers)
    )
    queries = [one.shape for one in found.weights if QUERY.search(one.name) and len(one.shape) == 2]
    if queries and all({rows, columns} <= {width, 3 * width} for rows, columns in queries):
        counts = msgspec.structs.replace(counts, width=width)  # so wide is attention too: H*h = d
    if not heads and not tied:
        said = "it has no output head: give --config to know what is multiplied"
        return msgspec.structs.replace(counts, notes=(*counts.notes, said))
    if len(heads) + tied > 1:
        return counts
    return _of_matrices(counts, found, table, head=heads[0] if heads else None, dense=dense)


def _of_matrices(counts: Counts, found: Gathered, table: Stored, *, head: Stored | None, dense: bool) -> Counts:
    """Add which weights multiply: all matrices but the tables; unknown where something is of another kind."""
    untied = 0 if head is None else head.count
    others = [one for one in found.weights if one is not table and one is not head and not POSITION.search(one.name)]
    matrices = [one for one in others if len(one.shape) >= 2]
    strange = any(
        len(one.shape) > (3 if EXPERT.search(one.name) else 2)
        or not ("weight" in one.name or "lora_" in one.name or EXPERT.search(one.name))
        or "relative_attention_bias" in one.name
        for one in matrices
    )
    if strange:
        return msgspec.structs.replace(counts, tied=head is None, untied_head=untied)
    body = sum(one.count for one in matrices)
    matmul = body + (untied or table.count)
    rest = sum(one.count for one in others) - body
    return msgspec.structs.replace(
        counts,
        tied=head is None,
        untied_head=untied,
        matmul=matmul,
        active_matmul=matmul if dense else None,
        norms_and_biases=rest,
        kaplan=body + rest,
    )

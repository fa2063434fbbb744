"""Which parameters are counted with: what was declared by hand laid over what a config, a file or a name told.

Pure: counts come in, counts go out. What is declared by hand leads; where it differs from the other source, that is
said, and counts that would no longer fit together become unknown.
"""

from __future__ import annotations

import msgspec

from overnight.calculator import Evidence
from overnight.calculator.numbers import near, times, whole
from overnight.modelsize import Attention, Counts
from overnight.modelsize.adapters import with_adapters

SHAPE = ("layers", "width", "heads", "head_size", "vocab_size")
ROUNDED, SHARD = 0.02, 0.1
"""How far a printed count may be off by its few digits; and that of a shard, of which some weights are on each."""

SHORT = 0.01
"""A declared count that is so near to another source's says the same in short: 124M."""

PARTIAL = 1.5

FEW = 5
"""Adapters have a fifth of the weights of their model at the most, and mostly a hundredth."""


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """What was declared by hand, or by a run when it was started; ``source`` of ``params``."""

    params: int | None = None
    active_params: int | None = None
    trainable_params: int | None = None
    layers: int | None = None
    width: int | None = None
    heads: int | None = None
    head_size: int | None = None
    vocab_size: int | None = None
    source: str = "--params"


def counted(declared: Declared, found: Counts | None) -> tuple[Counts | None, list[str]]:
    """Return the counts to work with and remarks on what disagrees; None without any count.

    ValueError, one sentence, for more active or trainable parameters than there are.
    """
    counts, remarks = _total(declared, found)
    if counts is None:
        return None, remarks
    counts = _active(declared, counts, remarks)
    trainable = declared.trainable_params
    if trainable is not None and _beside(trainable, declared, counts):
        remarks.append(
            f"trainable parameters: {trainable:,} are taken as adapters beside the {counts.total:,} of {counts.source} "
            f"(LoRA); if they are some of those, give --params {counts.total} too"
        )
        counts = adapted(counts, trainable)
    elif trainable is not None:
        counts = _frozen(counts, trainable)
    return _shaped(declared, counts, remarks), remarks


def _total(declared: Declared, found: Counts | None) -> tuple[Counts | None, list[str]]:
    total = declared.params
    if total is None:
        return found, []
    if found is None:
        return Counts(total=total, source=declared.source), []
    if total == found.total:
        return msgspec.structs.replace(found, source=f"{declared.source}, and so says {found.source}"), []
    active = found.active if found.active is not None and found.active < min(total, found.total) else None
    if near(total, found.total, SHORT):
        short = f"{declared.source}, in short what {found.source} has"
        return msgspec.structs.replace(found, total=total, active=active or total, source=short), []
    remark = (
        f"parameters: {whole(total)} ({declared.source}) is used; {found.source} has {whole(found.total)}, "
        f"{times(found.total / total)} of it"
    )
    lost = dict.fromkeys(("matmul", "active_matmul", "kaplan", "norms_and_biases", "untied_head", "encoder_decoder"))
    return msgspec.structs.replace(found, total=total, source=declared.source, active=active, **lost), [remark]


def _active(declared: Declared, counts: Counts, remarks: list[str]) -> Counts:
    active = declared.active_params
    if active is None:
        return counts
    if active > counts.total:
        message = f"--active-params {active:,} is more than the {counts.total:,} parameters that there are"
        raise ValueError(message)
    if counts.active == active:
        return counts
    if counts.active is not None and counts.active != counts.total:
        remarks.append(
            f"active parameters: {whole(active)} (--active-params) is used; {counts.source} has {whole(counts.active)}"
        )
    return msgspec.structs.replace(counts, active=active, active_matmul=None)


def _beside(trainable: int, declared: Declared, counts: Counts) -> bool:
    """Say whether trainable weights come on top of those counted: few, beside a model that has none of its own."""
    return declared.params is None and counts.trainable is None and trainable * FEW <= counts.total


def adapted(counts: Counts, trainable: int) -> Counts:
    """Return a frozen model with so many trainable weights of adapters beside its own, all of them multiplied."""
    return with_adapters(counts, trainable, source=f"{counts.source}, and {trainable:,} of adapters")


def _frozen(counts: Counts, trainable: int) -> Counts:
    if trainable > counts.total:
        message = f"--trainable-params {trainable:,} is more than the {counts.total:,} parameters that there are"
        raise ValueError(message)
    return msgspec.structs.replace(counts, trainable=trainable)


def _shaped(declared: Declared, counts: Counts, remarks: list[str]) -> Counts:
    asked = {name: getattr(declared, name) for name in SHAPE if getattr(declared, name) is not None}
    for name, value in asked.items():
        known = getattr(counts, name)
        if known is not None and known != value:
            remarks.append(f"{name.replace('_', ' ')}: {value:,} (by hand) is used; {counts.source} has {known:,}")
    if not asked:
        return counts
    shape = {name for name in asked if name != "vocab_size" and getattr(counts, name) != asked[name]}
    counts = msgspec.structs.replace(counts, **asked)
    if not shape and counts.attention:
        return counts
    layers, width = counts.layers, counts.width
    heads = counts.heads
    size = counts.head_size if counts.head_size is not None else None
    if size is None and heads is not None and width is not None and width % heads == 0:
        size = width // heads
    if layers is None:
        return counts
    by_width = "width" in shape and not {"heads", "head_size"} & asked.keys()
    if heads is not None and size is not None and not by_width:
        kinds: tuple[Attention, ...] = (Attention(layers=layers, heads=heads, qk=size, v=size),)
    elif width is not None:
        kinds = (Attention(layers=layers, heads=1, qk=width, v=width),)  # heads * head size is the width
    else:
        return counts
    return msgspec.structs.replace(counts, attention=kinds)


def printed(counts: Counts | None, evidence: Evidence | None, devices: int) -> str | None:
    """Return what is to be said of the count that a log prints; None where it agrees, or nothing is printed.

    A log's own count is never used: on one shard of a model it is of that shard.
    """
    number = None if evidence is None else evidence.printed_params
    if not number:
        return None
    if counts is None:
        return f"parameters: the log speaks of {_short(number)}; it may be of one shard: give --params to count with it"
    known = (counts.total, counts.total - (counts.position or 0), counts.matmul, counts.kaplan, counts.trainable)
    if any(near(number, one, ROUNDED) for one in (*known, counts.active) if one):
        return None
    ratio = counts.total / number
    if counts.matmul is None and 1 / PARTIAL < ratio < PARTIAL:  # without its embeddings, perhaps: nobody can tell
        return None
    said = f"parameters: {whole(counts.total)} ({counts.source}) is used; the log speaks of {_short(number)}"
    for shards in sorted({devices, round(ratio)}):
        if shards > 1 and near(number * shards, counts.total, SHARD):
            return f"{said}, which times {shards:,} is the whole model: it is the count of one shard"
    return f"{said}, {times(number / counts.total)} of it"


def _short(number: int) -> str:
    for size, letter in ((10**12, "T"), (10**9, "B"), (10**6, "M")):
        if number >= size:
            return f"{number / size:.4g}{letter}"
    return f"{number:,}"

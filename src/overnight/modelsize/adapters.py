"""Weights that are added to a model whose own are frozen (LoRA and its kin). No file, no name of a model here."""

from __future__ import annotations

import msgspec

from overnight.modelsize import Counts


def with_adapters(counts: Counts, added: int, *, source: str | None = None) -> Counts:
    """Return the counts of a frozen model and ``added`` trained weights beside it, all of which multiply.

    So does the ``all params`` of PEFT count: the added ones are in ``total`` too. ValueError: ``added`` is below 1.
    """
    if added < 1:
        raise ValueError(f"{added:,} added weights are none")

    def more(count: int | None) -> int | None:
        return None if count is None else count + added

    return msgspec.structs.replace(
        counts,
        total=counts.total + added,
        active=more(counts.active),
        matmul=more(counts.matmul),
        active_matmul=more(counts.active_matmul),
        kaplan=more(counts.kaplan),
        trainable=added,
        source=counts.source if source is None else source,
    )

"""Counts of a nanoGPT model, from the six values that its code, its config files and its checkpoints carry."""

from __future__ import annotations

import msgspec

from overnight.modelsize import Counts
from overnight.modelsize.config import from_config


def from_nanogpt(n_layer: int, n_head: int, n_embd: int, block_size: int, vocab_size: int, *, bias: bool) -> Counts:
    """Return the counts of nanoGPT's model; ``bias`` False leaves out those of linear layers and of LayerNorms.

    Raise ConfigError for values that no model has. nanoGPT itself prints the total without the position embedding.
    """
    sizes = {"n_layer": n_layer, "n_head": n_head, "n_embd": n_embd, "block_size": block_size}
    values = {**sizes, "vocab_size": vocab_size, "bias": bias}
    counts = from_config(values, source="nanoGPT's values")
    text = " ".join(f"{name} {value}" for name, value in values.items())
    printed = f"nanoGPT prints {(counts.total - (counts.position or 0)) / 1e6:.2f}M: without the position embedding"
    return msgspec.structs.replace(counts, source=f"nanoGPT: {text}", family="nanogpt", notes=(*counts.notes, printed))

"""Gemma, its second and third generation, and VaultGemma: tied embeddings, heads of their own size, many norms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from overnight.modelsize.families import windows
from overnight.modelsize.families.decoder import Recipe

_SECOND: dict[str, Any] = {
    "vocab_size": 256000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
_FIRST = {
    **_SECOND,
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
}

FAMILIES: Mapping[str, Recipe] = {
    "gemma": Recipe(defaults=_FIRST, qkv_bias="attention_bias", out_bias="attention_bias"),
    "gemma2": Recipe(
        defaults=_SECOND,
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        norms=4,
        windows=windows.alternate,
    ),
    "gemma3_text": Recipe(
        defaults={**_SECOND, "vocab_size": 262208, "max_position_embeddings": 131072},
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        qk_norm=True,
        norms=4,
        windows=windows.all_but_every(6),
    ),
    "vaultgemma": Recipe(
        defaults=_SECOND,
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        windows=windows.alternate,
    ),
}

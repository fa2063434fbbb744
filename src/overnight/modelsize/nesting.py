"""Finding the language model in a config: whole configs, those with a ``text_config``, nanoGPT's set. No counting here.

A vision or audio tower beside the language model is named as not counted: tokens do not pass through it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from overnight.modelsize.fields import ConfigError, shown

NESTED = ("text_config", "llm_config", "language_config")
TOWERS = ("vision_config", "audio_config", "vit_config")
INNER = {
    "gemma3": "gemma3_text",
    "llama4": "llama4_text",
    "llava": "llama",
    "llava_next": "llama",
    "mistral3": "mistral",
    "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
}
"""The language model's family where the outer config alone tells it."""

NANOGPT = ("n_layer", "n_head", "n_embd", "block_size", "vocab_size")


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The language model's own config, its model_type, the field it stood in (None: the whole), and what to say."""

    config: Mapping[str, Any]
    model_type: Any
    field: str | None = None
    outer: str | None = None
    notes: tuple[str, ...] = ()


def language_model(config: Mapping[str, Any]) -> Found:
    """Return the language model of a config."""
    outer = config.get("model_type")
    field = next((name for name in NESTED if isinstance(config.get(name), Mapping)), None)
    if field is None:
        return _whole(config, outer)
    inner = config[field]
    tied = _tied(config, inner)
    found = inner if tied is None else {**inner, "tie_word_embeddings": tied}
    kind = inner.get("model_type") or (INNER.get(outer) if isinstance(outer, str) else None)
    name = str(outer) if outer else "a model without model_type"
    return Found(config=found, model_type=kind, field=field, outer=name, notes=_towers(config))


def _whole(config: Mapping[str, Any], kind: Any) -> Found:
    """Return a config that is not nested; nanoGPT's set becomes the GPT-2 that it describes."""
    if kind is None and all(name in config for name in NANOGPT):
        return Found(config=_from_nanogpt(config), model_type="gpt2")
    if kind is None and "n_embd" in config and "linear_bias" in config:
        kind = "gpt2"
    if isinstance(kind, str) and kind in INNER and any(name in config for name in TOWERS):
        return Found(config=config, model_type=INNER[kind], notes=_towers(config))
    return Found(config=config, model_type=kind)


def _from_nanogpt(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the GPT-2 config of nanoGPT's set."""
    if not isinstance(config.get("bias"), bool):
        raise ConfigError(
            "a nanoGPT set needs bias true or false: its model.py has true for a default, and its train.py false"
        )
    context = {"n_positions": config["block_size"]}
    biases = {"linear_bias": config["bias"], "layernorm_bias": config["bias"]}
    return {**{name: config[name] for name in NANOGPT if name != "block_size"}, **context, **biases}


def _tied(outer: Mapping[str, Any], inner: Mapping[str, Any]) -> Any:
    """Return what a nested config says of tied embeddings, None where neither part says anything."""
    name = "tie_word_embeddings"
    if outer.get(name) is True:
        return True
    return inner[name] if inner.get(name) is not None else outer.get(name)


def _towers(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what is to be said of towers that are not counted."""
    return tuple(f"the model of {name} is not counted" for name in TOWERS if config.get(name))


def head_notes(config: Mapping[str, Any], family: str) -> tuple[str, ...]:
    """Return what is to be said where a config names another head than a language model's.

    Raise ConfigError where the head's size is not known here.
    """
    named = config.get("architectures")
    first = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""
    if not first or first.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "ForMaskedLM")):
        return ()
    if first.endswith(("Model", "ForPreTraining")):
        return (f"the config names {shown(first)}; counted as a language model with its output head",)
    if "For" in first:
        raise ConfigError(
            f"{family}: the config names {shown(first)}, and only language models are counted; give --params"
        )
    return ()

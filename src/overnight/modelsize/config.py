"""From a model's config.json, already read, to its counts. No file is opened here, and no family's arithmetic done.

Counted is what the family's own code builds: the language model with its output head, tied weights once. A family
that is not known, or a field that cannot be, is a ``ConfigError`` of one sentence; nothing is guessed.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from overnight.modelsize import Counts
from overnight.modelsize.families import bert, deepseek, gemma, gpt2, hybrid, layernorm, llama, moe, t5
from overnight.modelsize.families.decoder import Recipe, decoder
from overnight.modelsize.fields import ConfigError, Fields, shown
from overnight.modelsize.nesting import Found, head_notes, language_model
from overnight.modelsize.tally import Biases, count

__all__ = ["FAMILIES", "ConfigError", "from_config"]

FAMILIES: Mapping[str, Recipe] = {
    **gpt2.FAMILIES,
    **llama.FAMILIES,
    **gemma.FAMILIES,
    **layernorm.FAMILIES,
    **moe.FAMILIES,
    **deepseek.FAMILIES,
    **hybrid.FAMILIES,
    **t5.FAMILIES,
    **bert.FAMILIES,
}
_ALIASES = {"RefinedWeb": "falcon", "RefinedWebModel": "falcon", "xlm_roberta": "xlm-roberta"}
"""Names that public configs use for a family of the list above."""


def from_config(
    config: Mapping[str, Any],
    *,
    source: str = "config.json",
    pad_to: int | None = None,
    linear_bias: bool | None = None,
    layernorm_bias: bool | None = None,
) -> Counts:
    """Return the counts of the model that a config describes.

    ``pad_to``: the vocabulary is rounded up to a multiple of it, as Megatron and others do. ``linear_bias`` and
    ``layernorm_bias`` False: trained without those biases; the fields of these names in the config count as well.
    Raise ConfigError for a family that is not known and for fields that are missing or cannot be.
    """
    if not isinstance(config, Mapping):
        raise ConfigError(f"a config is a group of fields, and this is {shown(config)}")
    found = language_model(config)
    family = _family(found, source)
    recipe = FAMILIES[family]
    fields = Fields(found.config, family=family, defaults=recipe.defaults, names=recipe.names)
    if found.field is None and not fields.sizes_given():
        raise ConfigError(f"{family}: {source} gives no size at all, such as {fields.spelled('num_hidden_layers')}")
    notes = (*found.notes, *head_notes(config, family))
    if pad_to is not None:
        fields, said = _padded(fields, recipe, pad_to)
        notes += said
    biases = Biases(
        linear=_override(fields, "linear_bias", linear_bias),
        layernorm=_override(fields, "layernorm_bias", layernorm_bias),
    )
    model = (recipe.build or decoder)(fields, recipe)
    notes += _defaults_used(fields)
    where = f"{source} of {family}" if found.field is None else f"{found.field} of {source} of {found.outer}"
    return count(model, family=family, source=where, biases=biases, notes=notes)


def _family(found: Found, source: str) -> str:
    """Return the family of a model_type; raise ConfigError where it is not known."""
    kind = found.model_type
    where = source if found.field is None else f"{found.field} of {source}"
    if not isinstance(kind, str) or not kind:
        raise ConfigError(f"{where} names no model_type, so that its family is not known; give --params instead")
    family = _ALIASES.get(kind, kind)
    if family in FAMILIES:
        return family
    close = difflib.get_close_matches(kind, FAMILIES, n=3, cutoff=0.7)
    near = f"; close to it: {', '.join(close)}" if close else ""
    raise ConfigError(f"{where}: model_type {shown(kind)} is not a family that is counted{near}; give --params instead")


def _padded(fields: Fields, recipe: Recipe, multiple: int) -> tuple[Fields, tuple[str, ...]]:
    """Return fields with the vocabulary rounded up to a multiple, and what is to be said of it."""
    vocab, step = fields.size("vocab_size"), fields.checked("pad_to", multiple)
    padded = -(-vocab // step) * step
    if padded == vocab:
        return fields, ()
    config = {**fields.config, fields.spelled("vocab_size"): padded}
    new = Fields(config, family=fields.family, defaults=recipe.defaults, names=recipe.names)
    return new, (f"vocabulary {vocab:,} padded to {padded:,}, a multiple of {step}",)


def _override(fields: Fields, name: str, value: bool | None) -> bool | None:  # noqa: FBT001 - None says more than two
    """Return a switch of biases: the caller's, or the config's own."""
    if value is not None or not fields.given(name):
        return value
    return fields.flag(name)


def _defaults_used(fields: Fields) -> tuple[str, ...]:
    """Return what is to be said of sizes that the config leaves to its family."""
    taken = ", ".join(f"{name} {value}" for name, value in fields.defaulted.items())
    return (f"not in the config, so {fields.family}'s own default: {taken}",) if taken else ()

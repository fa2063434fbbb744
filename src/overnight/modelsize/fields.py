"""Reading one field of a model's config: sizes, switches, lists, each checked. No family and no file here.

A field that is absent has the default of its family's own config class, because public config.json leave such fields
out; which sizes came from there is kept, to be said. Everything else that cannot be is a ``ConfigError``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MAX_SIZE = 10**9
MAX_LAYERS = 10_000
"""More than any model has; beyond, a number is a slip, and a list of layers would fill the memory."""

ESSENTIAL = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")

Names = Mapping[str, tuple[str, ...]]
Switch = bool | str
"""Fixed by the family, or the name of the config's field that says it."""


class ConfigError(ValueError):
    """A config is of a kind that is not known, or holds what cannot be; one sentence for people."""


class Fields:
    """The fields of one config, under the names that Llama's config has; ``names`` gives a family's own spellings."""

    def __init__(self, config: Mapping[str, Any], *, family: str, defaults: Mapping[str, Any], names: Names) -> None:
        self.config = config
        self.family = family
        self.defaulted: dict[str, int] = {}
        self._defaults = defaults
        self._names = names

    def spelled(self, name: str) -> str:
        """Return how the config spells a field: as it does, or as its family would."""
        spellings = self._names.get(name, (name,))
        return next((one for one in spellings if one in self.config), next(iter(spellings), name))

    def given(self, name: str) -> bool:
        """Say whether the config itself holds a field, null included."""
        return any(one in self.config for one in self._names.get(name, (name,)))

    def raw(self, name: str) -> Any:
        """Return a field as it is, or its default (None where there is none); two spellings must agree."""
        spellings = [one for one in self._names.get(name, (name,)) if one in self.config]
        values = [self.config[one] for one in spellings]
        if any(value != values[0] for value in values):
            both = " and ".join(f"{one} {self.config[one]!r}" for one in spellings)
            raise ConfigError(f"{self.family}: {both} are the same field and differ")
        return values[0] if values else self._defaults.get(name)

    def maybe(self, name: str, *, least: int = 1) -> int | None:
        """Return a size, or None where the config says null or nothing and the family has no default."""
        value = self.raw(name)
        if value is None:
            return None
        return self.checked(self.spelled(name), value, least=least, name=name)

    def size(self, name: str, *, least: int = 1) -> int:
        """Return a size that must be there."""
        value = self.maybe(name, least=least)
        if value is None:
            raise ConfigError(f"{self.family}: the config gives no {self.spelled(name)}")
        return value

    def hint(self, name: str) -> int | None:
        """Return a size that decides no count, so that a default of it need not be said."""
        value = self.raw(name)
        return None if value is None else self.checked(self.spelled(name), value)

    def checked(self, spelled: str, value: Any, *, least: int = 1, name: str | None = None) -> int:
        """Return a whole number that a size can be."""
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{self.family}: {spelled} must be a whole number, and is {shown(value)}")
        if not least <= value <= MAX_SIZE:
            raise ConfigError(f"{self.family}: {spelled} is {value}, which no model has (at least {least})")
        if name is not None and not self.given(name):
            self.defaulted[spelled] = value
        return value

    def flag(self, name: Switch) -> bool:
        """Return a switch; a family that has it fixed gives the value itself; null is the default."""
        if isinstance(name, bool):
            return name
        value = self.raw(name)
        if value is None:
            value = self._defaults.get(name) or False
        if not isinstance(value, bool):
            raise ConfigError(f"{self.family}: {self.spelled(name)} must be true or false, and is {shown(value)}")
        return value

    def text(self, name: str) -> str:
        """Return a word."""
        value = self.raw(name)
        if not isinstance(value, str):
            raise ConfigError(f"{self.family}: {self.spelled(name)} must be a word, and is {shown(value)}")
        return value

    def items(self, name: str) -> list[Any] | None:
        """Return a list, None where there is none."""
        value = self.raw(name)
        if value is None:
            return None
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise ConfigError(f"{self.family}: {self.spelled(name)} must be a list, and is {shown(value)}")
        return list(value)

    def per_layer(self, name: str, layers: int) -> list[Any] | None:
        """Return a list with one entry for each layer, None where there is none."""
        found = self.items(name)
        if found is not None and len(found) != layers:
            raise ConfigError(
                f"{self.family}: {self.spelled(name)} has {len(found)} entries, and the model has {layers} layers"
            )
        return found

    def layers(self, name: str = "num_hidden_layers") -> int:
        """Return a number of layers."""
        value = self.size(name)
        if value > MAX_LAYERS:
            raise ConfigError(f"{self.family}: {self.spelled(name)} is {value}, which no model has")
        return value

    def refuse(self, name: str) -> None:
        """Refuse a switch whose effect on the count is not known here."""
        if self.flag(name):
            raise ConfigError(f"{self.family}: a model with {self.spelled(name)} true is not counted; give --params")

    def sizes_given(self) -> bool:
        """Say whether the config names any size at all."""
        return any(self.given(name) for name in ESSENTIAL)


def shown(value: Any) -> str:
    """Return a value for a sentence, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

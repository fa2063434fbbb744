"""Which layers of a model see only a sliding window, as the families say it in their configs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from overnight.modelsize.families.decoder import Windows
from overnight.modelsize.fields import ConfigError, Fields, shown

SLIDING, FULL, CHUNKED = "sliding_attention", "full_attention", "chunked_attention"


def everywhere(fields: Fields, layers: int) -> Sequence[int | None]:
    """All layers have the window of ``sliding_window``, or none has one."""
    return [fields.maybe("sliding_window")] * layers


def by_types(fields: Fields, layers: int, sliding: Callable[[int], bool], window: int | None) -> Sequence[int | None]:
    """Follow ``layer_types`` where the config has it, otherwise the family's pattern."""
    given = fields.per_layer("layer_types", layers)
    kinds = given or [SLIDING if sliding(index) else FULL for index in range(layers)]
    strange = [kind for kind in kinds if kind not in (SLIDING, FULL)]
    if strange:
        raise ConfigError(f"{fields.family}: layers of type {shown(strange[0])} are not known to this family")
    return [window if kind == SLIDING else None for kind in kinds]


def all_but_every(every: int) -> Windows:
    """All layers slide but every n-th; ``sliding_window_pattern`` of the config goes before the family's number."""

    def windows(fields: Fields, layers: int) -> Sequence[int | None]:
        window = fields.maybe("sliding_window")
        if window is None:
            return by_types(fields, layers, lambda _index: False, None)
        pattern = fields.raw("sliding_window_pattern")
        if isinstance(pattern, str):
            letters = pattern
            if set(letters) - {"L", "G"} or not letters:
                raise ConfigError(f"{fields.family}: sliding_window_pattern {shown(pattern)} is not known")
            return by_types(fields, layers, lambda index: letters[index % len(letters)] == "L", window)
        number = every if pattern is None else fields.checked("sliding_window_pattern", pattern)
        return by_types(fields, layers, lambda index: (index + 1) % number != 0, window)

    return windows


def alternate(fields: Fields, layers: int) -> Sequence[int | None]:
    """Every other layer slides, the first one too."""
    return by_types(fields, layers, lambda index: index % 2 == 0, fields.maybe("sliding_window"))


def later_layers(fields: Fields, layers: int) -> Sequence[int | None]:
    """Slide from layer ``max_window_layers`` on where ``use_sliding_window`` says so (Qwen)."""
    window = switched(fields)
    first = 0 if window is None else fields.maybe("max_window_layers", least=0) or 0
    return by_types(fields, layers, lambda index: index >= first, window)


def switched(fields: Fields) -> int | None:
    """Return the window where ``use_sliding_window`` is on."""
    return fields.maybe("sliding_window") if fields.flag("use_sliding_window") else None


def switched_everywhere(fields: Fields, layers: int) -> Sequence[int | None]:
    """All layers slide where ``use_sliding_window`` says so."""
    return [switched(fields)] * layers

"""Which numbers decide whether a save is finite: parameters, and what an optimizer or an average (EMA) keeps of them.

A mask of -inf, the best loss so far, a list of losses or a statistic may hold what it likes. So may everything that was
not finite before training began. Knows nothing of files.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from overnight.checkpoint import leaves, parts
from overnight.checkpoint.leaves import Apart, Path

TRAINED = frozenset({"model", "ema", "optimizer"})
"""Parts of which all tensors decide, also if they are nothing but arrays.

Where none is called so and there is no module, arrays of more than one number that were handed over by themselves do:
they are what is trained.
"""

SHAPES = "shapes"
"""The rule for what may hold a copy of the parameters: what has the shape of one decides."""


@dataclass(frozen=True, kw_only=True)
class Names:
    """The rule for a module: its parameters decide, its buffers never do."""

    parameters: frozenset[str]
    buffers: frozenset[str]


Rule = bool | str | Names | dict[Any, Any]
"""True: all tensors decide; False: none does; a dict has a rule for each key."""


class Deciding:
    """Whether the tensor at a path decides, for the parts that were handed over."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._shapes: set[tuple[int, ...]] = set()
        self._modules = any(map(parts.is_module, _all(given)))
        self._loose = not self._modules and not TRAINED & given.keys()
        self._rules = {name: self._rule(value, trained=name in TRAINED, top=True) for name, value in given.items()}

    def __call__(self, path: Path, shape: tuple[int, ...]) -> bool:
        """Say whether a tensor of this shape, at this path, decides."""
        rule: Any = self._rules
        for at, part in enumerate(path):
            rule = rule.get(part, False)
            if isinstance(rule, Names):
                name = ".".join(map(str, path[at + 1 :]))
                rule = name in rule.parameters or (name not in rule.buffers and SHAPES)
            if not isinstance(rule, dict):
                break
        return shape in self._shapes if rule == SHAPES else rule is True

    def _rule(self, value: Any, *, trained: bool, top: bool = False) -> Rule:
        value = parts.bare(value)
        if parts.is_module(value):
            return self._module(value)
        if isinstance(value, Mapping):
            return {key: self._rule(one, trained=trained) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return {at: self._rule(one, trained=trained) for at, one in enumerate(value)}
        if trained or hasattr(value, "param_groups"):
            return True
        if top and (leaves.is_tensor(value) or leaves.is_array(value)):
            return self._loose and prod(value.shape) > 1
        return SHAPES if self._modules else True

    def _module(self, module: Any) -> Rule:
        named = dict(module.named_parameters(remove_duplicate=False))
        lazy = sys.modules["torch"].nn.parameter.is_lazy
        self._shapes.update(tuple(one.shape) for one in named.values() if not lazy(one) and one.numel() > 1)
        buffers = (parts.strip(name) for name, _ in module.named_buffers(remove_duplicate=False))
        return Names(parameters=frozenset(map(parts.strip, named)), buffers=frozenset(buffers))


def _all(value: Any) -> Iterator[Any]:
    """Yield what lies in dicts and lists, to any depth."""
    if isinstance(value, (Mapping, list, tuple)):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _all(one)
    else:
        yield parts.bare(value)


def not_finite(apart: Apart) -> list[str]:
    """Return the paths of the tensors and arrays that hold NaN or infinity."""
    return [
        leaves.words(place)
        for live, places in zip(apart.live, apart.places, strict=True)
        if not _is_finite(live)
        for place in places
    ]


def _is_finite(live: Any) -> bool:
    if leaves.is_tensor(live):
        torch = sys.modules["torch"]
        if not live.is_floating_point() and not live.is_complex():
            return True
        small = live.element_size() == 1  # the eight-bit kinds can be neither added nor asked
        values = live.float() if small else live
        return bool(torch.isfinite(values.sum())) or bool(torch.isfinite(values).all())
    numpy = sys.modules["numpy"]
    return live.dtype.kind not in "fc" or bool(numpy.isfinite(live).all())

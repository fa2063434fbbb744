"""All that a training has handed over, by name: parts, generators, the loader and plain values.

How a state is taken from one thing and put back is in ``parts``; the order in which that happens is here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from overnight.checkpoint import leaves, parts, rng
from overnight.checkpoint.errors import UsageError
from overnight.checkpoint.loader import LoaderPosition

RESERVED = frozenset({"rng", "loader", "train_state"})
STANDARD = ("model", "ema", "optimizer", "scheduler", "scaler")


class Given:
    """``parts`` in the order in which they are restored, ``generators``, the ``position`` in the loader, ``values``.

    Raises CheckpointError, UsageError among them, naming the part, for what cannot be saved.
    """

    def __init__(self, given: Mapping[str, Any], loader: Any, *, say: Callable[[str], None]) -> None:
        for name, value in given.items():
            _check_name(name)
            if value is None and name not in STANDARD:
                raise UsageError(f"{name} is None: hand over what is to be saved")
        self.generators = {name: value for name, value in given.items() if rng.is_generator(value)}
        self.parts = {name: given[name] for name in _ordered(given) if name not in self.generators}
        for name, value in self.parts.items():
            parts.check(name, value)
        self.values = {name: value for name, value in self.parts.items() if not _in_place(value)}
        self.loader = loader
        self.position = None if loader is None else LoaderPosition(loader, say=say)

    def part_states(self) -> dict[str, Any]:
        """Return the state of each part: live tensors. Changes nothing, unlike asking a loader for its own."""
        found = {name: parts.state(value) for name, value in self.parts.items() if name not in self.values}
        for name, value in self.values.items():  # a script may have put further ones there
            _check_name(name)
            found[name] = parts.state(value)
        return found

    def states(self) -> dict[str, Any]:
        """Return all that decides the next step."""
        found = self.part_states()
        if self.position is not None:
            found["loader"] = self.position.state()
        found["rng"] = rng.capture(self.generators)
        return found

    def restore(self, saved: Mapping[str, Any]) -> list[str]:
        """Put saved states into the parts; return sentences about what was not there. The random numbers wait.

        CheckpointError if a part does not fit, or if there is no state for the model.
        """
        missing = []
        for name, value in self.parts.items():
            if name in saved and name in self.values:
                self.values[name] = saved[name]
            elif name in saved:
                parts.restore(name, value, saved[name])
            elif name == "model":
                raise UsageError("the checkpoint holds no model: it cannot be resumed from")
            else:
                missing.append(f"nothing was saved for {name}: it begins anew, so this resume is not exact")
        if self.position is not None and "loader" in saved:
            self.position.restore(saved["loader"])
        elif self.position is not None:
            missing.append("no data position was saved: data begins anew, so this resume is not exact")
        further = saved.keys() - self.parts.keys() - {"rng", "loader"}
        self.values.update({name: saved[name] for name in further if isinstance(saved[name], leaves.PLAIN)})
        left = sorted(further - self.values.keys())
        return missing + [f"{name} was saved, too, and nobody has handed it over: it is left out" for name in left]


def _check_name(name: object) -> None:
    if name in RESERVED or not isinstance(name, str) or not name.isidentifier():
        raise UsageError(f"no part can be called {name!r}: give it another name")


def _ordered(given: Mapping[str, Any]) -> list[str]:
    """Return the names of parts as they are restored: the model before what refers to its parameters."""
    known = [name for name in STANDARD if given.get(name) is not None]
    return [*known, *(name for name in given if name not in STANDARD)]


def _in_place(value: Any) -> bool:
    """Say whether a state can be put into the object itself; a number or a word is handed back in ``values``."""
    if leaves.is_array(value):
        return bool(value.flags.writeable)
    if isinstance(value, tuple):
        return bool(value) and all(map(_in_place, value))
    return not isinstance(value, leaves.PLAIN)

"""All that a training has handed over, by name: parts, generators, the loader and plain values.

How a state is taken from one thing is in ``parts``, how it is put back in ``restoring``; the order of it all is here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from overnight.checkpoint import deciding, leaves, parts, restoring, rng
from overnight.checkpoint.deciding import Deciding
from overnight.checkpoint.errors import CheckpointError, UsageError
from overnight.checkpoint.leaves import Apart
from overnight.checkpoint.loader import LoaderPosition
from overnight.checkpoint.parts import States

RESERVED = frozenset({"rng", "loader", "train_state"})
OTHERWISE = {
    **dict.fromkeys(("save_every", "save_steps", "save_interval", "interval", "every_n_steps", "frequency"), "every"),
    **dict.fromkeys(("keep", "keep_n", "max_to_keep", "save_total_limit", "total_limit", "keep_latest"), "keep_last"),
    **dict.fromkeys(("save_top_k", "top_k", "keep_top_k"), "keep_best"),
    **dict.fromkeys(("monitor", "metric_for_best_model"), "metric"),
    "async": "async_",
    "verify": "read_back",
    "path": "folder",
    "dir": "folder",
}
"""What other savers call our arguments: as a value to be saved such a name is hardly ever meant."""

STANDARD = ("model", "ema", "optimizer", "scheduler", "scaler")


class Given:
    """``parts`` in the order in which they are restored, ``generators``, the ``position`` in the loader, ``values``.

    Raises CheckpointError, UsageError among them, naming the part, for what cannot be saved.
    """

    def __init__(self, given: Mapping[str, Any], loader: Any, *, say: Callable[[str], None]) -> None:
        for name, value in given.items():
            _check_name(name)
            if name in OTHERWISE and isinstance(value, leaves.PLAIN):
                raise UsageError(f"there is no argument {name}: it is called {OTHERWISE[name]} here")
            if value is None and name not in STANDARD:
                raise UsageError(f"{name} is None: hand over what is to be saved")
        self.generators = {name: value for name, value in given.items() if rng.is_generator(value)}
        self.parts = {name: given[name] for name in _ordered(given) if name not in self.generators}
        for name, value in self.parts.items():
            parts.check(name, value)
        self.values = {name: value for name, value in self.parts.items() if not _in_place(value)}
        self.loader = loader
        self.position = None if loader is None else LoaderPosition(loader, say=say)

    def gaps(self) -> list[str]:
        """Return sentences about what is lacking for an exact resume, as far as it shows."""
        beside = [one for name, one in self.parts.items() if name != "model"]
        others = any(hasattr(one, "param_groups") or isinstance(one, (dict, list)) for one in beside)
        if "model" in self.parts and "optimizer" not in self.parts and not others:
            return ["only the model was handed over, no optimizer state: a resume will not be exact"]
        return []

    def part_states(self) -> States:
        """Return the state of each part: live tensors. Changes nothing, unlike asking a loader for its own."""
        found = States({name: parts.state(value) for name, value in self.parts.items() if name not in self.values})
        for name, value in self.values.items():  # a script may have put further ones there
            _check_name(name)
            found[name] = parts.state(value)
        found.kinds = {name: parts.kind(value) for name, value in self.parts.items() if parts.has_state(value)}
        found.decides = Deciding(self.parts)
        return found

    def states(self) -> States:
        """Return all that decides the next step."""
        found = self.part_states()
        if self.position is not None:
            found["loader"] = self.position.state()
        found["rng"] = rng.capture(self.generators)
        return found

    def not_finite(self) -> tuple[str, ...]:
        """Return the paths of all tensors that are not finite now, before training: they may stay so.

        What cannot be saved is not looked at: it is refused by the first plan, unless it has become what can be.
        """
        found: list[str] = []
        for name, one in self.part_states().items():
            apart = Apart()
            with contextlib.suppress(CheckpointError):
                apart.tree(one, (name,))
                found += deciding.not_finite(apart)
        return tuple(found)

    def restore(self, saved: Mapping[str, Any]) -> list[str]:
        """Put saved states into the parts; return sentences about what was not there. The random numbers wait.

        CheckpointError if a part does not fit, or if there is no state for the model.
        """
        missing: list[str] = []
        kinds = saved.kinds if isinstance(saved, States) else {}
        converted = any(
            restoring.is_converted(self.parts[name], saved[name]) for name in self.parts.keys() & saved.keys()
        )
        for name, value in self.parts.items():
            if name in saved and name in self.values:
                self.values[name] = restoring.fitted(leaves.owned(saved[name]), value)
            elif name in saved:
                own = leaves.owned(saved[name])  # one part after the other: never the whole state twice in memory
                restoring.restore(name, value, own, say=missing.append, was=kinds.get(name), converted=converted)
            elif name == "model":
                raise UsageError("the checkpoint holds no model: it cannot be resumed from")
            else:
                missing.append(f"nothing was saved for {name}: it begins anew, so this resume is not exact")
        if self.position is not None and "loader" in saved:
            self.position.restore(leaves.owned(saved["loader"]))
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

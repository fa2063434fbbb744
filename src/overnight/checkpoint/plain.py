"""A state as JSON, for trainings without torch: what JSON has no word for is said with a key that begins with ``$``."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from typing import Any

from overnight.checkpoint.jobs import Ref


def encode(value: Any, array: Callable[[int], int]) -> Any:
    """Return what ``json.dumps`` takes; ``array(leaf)`` is the number under which an array is stored."""
    if isinstance(value, Ref):
        return {"$array": array(value.leaf)}
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: encode(one, array) for key, one in value.items()}
        return {"$dict": [[encode(key, array), encode(one, array)] for key, one in value.items()]}
    if isinstance(value, (list, tuple)):
        found = [encode(one, array) for one in value]
        return found if isinstance(value, list) else {"$tuple": found}
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": repr(value)}
    return value


def decode(value: Any, array: Callable[[int], Any]) -> Any:
    """Return what was encoded; ``array(number)`` is the array stored under a number."""
    if isinstance(value, list):
        return [decode(one, array) for one in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((mark, held),) = value.items()
        if mark == "$array":
            return array(held)
        if mark == "$dict":
            return {decode(key, array): decode(one, array) for key, one in held}
        if mark == "$tuple":
            return tuple(decode(one, array) for one in held)
        if mark == "$bytes":
            return base64.b64decode(held)
        if mark == "$float":
            return float(held)
    return {key: decode(one, array) for key, one in value.items()}

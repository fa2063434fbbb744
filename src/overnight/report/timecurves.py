"""Curves over time of what sensors measure: least and largest of each part of the time, in bounded memory.

Pure. The x axis is time and not the step: a stall, a throttled hour or a restart would have no width there.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

MOST: Final = 1000
"""So many parts a curve has at most."""

_UNITS: Final = ((86400.0, "day", 4 * 86400.0), (3600.0, "hour", 7200.0), (60.0, "minute", 120.0), (1.0, "second", 0.0))
TIMES: Final = frozenset(name for _, name, _ in _UNITS)
"""What the x axis of such a curve may count."""


class Band(NamedTuple):
    """What is drawn: its name, its label and unit, and what a value is multiplied with to be of that unit."""

    name: str
    label: str
    unit: str
    scale: float


class Timeline:
    """Collects values of several bands by their time; ``began`` is where x is 0, None: the first value."""

    def __init__(self, began: float | None = None) -> None:
        self._began = began
        self._width_s = 1.0
        self._bands: dict[Band, dict[int, tuple[float, float]]] = {}
        self._origin: float | None = None
        self._first, self._last = math.inf, -math.inf

    def add(self, at: float, band: Band, *values: float | None) -> None:
        """Take in the values of one moment (seconds since the epoch): of one device, or of several."""
        numbers = [one for one in values if one is not None and -math.inf < one < math.inf]
        if not numbers or not math.isfinite(at):
            return
        self._origin = at if self._origin is None else self._origin
        self._first, self._last = min(self._first, at), max(self._last, at)
        parts = self._bands.setdefault(band, {})
        low, high = min(numbers) * band.scale, max(numbers) * band.scale
        key = math.floor((at - self._origin) / self._width_s)
        known = parts.get(key)
        parts[key] = (low, high) if known is None else (min(known[0], low), max(known[1], high))
        if len(parts) > MOST:
            self._widen()

    def _widen(self) -> None:
        self._width_s *= 2
        for band, parts in self._bands.items():
            joined: dict[int, tuple[float, float]] = {}
            for key, (low, high) in parts.items():
                known = joined.get(key // 2)
                joined[key // 2] = (low, high) if known is None else (min(known[0], low), max(known[1], high))
            self._bands[band] = joined

    def charts(self) -> list[dict[str, Any]]:
        """Return the curves in the form of the report's charts; ``zero`` is the time (epoch) of x = 0, in ``x_s`` s."""
        origin = self._origin
        if origin is None:
            return []
        zero = self._began if self._began is not None and self._began <= self._last else self._first
        long_s = self._last - min(zero, self._first)
        unit_s, word = next((size, name) for size, name, least in _UNITS if long_s >= least)
        return [
            {
                "name": band.name,
                "label": band.label,
                "unit": band.unit,
                "x_label": word,
                "x": [round((origin + key * self._width_s - zero) / unit_s, 5) for key in sorted(parts)],
                "low": [parts[key][0] for key in sorted(parts)],
                "high": [parts[key][1] for key in sorted(parts)],
                "attempts": [],
                "older": [],
                "nonfinite": [],
                "marks": [],
                "zero": zero,
                "x_s": unit_s,
            }
            for band, parts in self._bands.items()
        ]

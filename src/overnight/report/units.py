"""Numbers, durations, times and sizes as the page writes them. Pure; no markup, no sentence.

Every function takes whatever JSON may hold: None is "unknown", and "nan", "inf", "-inf" stay words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from overnight.moments import epoch_of

UNKNOWN: Final = "unknown"
_FITS: Final = 0.0005  # two durations beside a percentage with one digit may be off by half of that
_WORDS: Final = {"nan": "NaN", "inf": "infinite", "-inf": "\N{MINUS SIGN}infinite"}


def finite(value: Any) -> float | None:
    """Return a finite number as a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def number(value: Any, digits: int = 6) -> str:
    """Return a number with thousands separators, or with at most ``digits`` significant digits."""
    if value is None:
        return UNKNOWN
    if isinstance(value, str):
        return _WORDS.get(value, value)
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < 10**21 else f"{value:.{digits}e}"
    if isinstance(value, float):
        if not math.isfinite(value):
            return _WORDS[str(value)]
        if value.is_integer() and abs(value) < 1e15:
            return f"{int(value):,}"
        if 10**digits <= abs(value) < 1e15:
            return f"{value:,.0f}"
        return f"{value:,.{digits}g}" if abs(value) < 1e15 else f"{value:.{digits}g}"
    return str(value)


def percent(value: Any) -> str:
    """Return a fraction as percent."""
    known = finite(value)
    return number(value) if known is None else f"{known * 100:.1f}%" if abs(known) < 100 else f"{known * 100:.3g}%"


def duration(seconds: Any) -> str:
    """Return seconds in their two largest units: 0.4 s, 45 s, 3 min 10 s, 2 h 05 min, 4 d 03 h."""
    known = finite(seconds)
    if known is None:
        return number(seconds)
    if abs(known) >= 1e12:
        return f"{known:.3g} s"
    sign, known = ("\N{MINUS SIGN}", -known) if known < 0 else ("", known)
    if 0 < known < 10:
        return f"{sign}{known:.2g} s"
    whole = round(known)
    for size, below, name, least in ((86400, 3600, "d", "h"), (3600, 60, "h", "min"), (60, 1, "min", "s")):
        if whole >= size:
            rest = whole % size // below
            return f"{sign}{whole // size} {name}" + (f" {rest:02d} {least}" if rest else "")
    return f"{sign}{whole} s"


_UNITS: Final = ((3600.0, 86400.0), (60.0, 3600.0), (1.0, 10.0), (0.1, 1.0), (0.01, 0.1), (0.001, 0.0))
"""To what a duration may be rounded, and from how many seconds of the whole on."""


def part_of(part: Any, whole: Any) -> tuple[str, str]:
    """Return two durations as finely as their quotient asks for: 11.56 s and 12.00 s beside 96.3%."""
    known, all_of_it = finite(part), finite(whole)
    if known is None or all_of_it is None or known < 0 or not _UNITS[-1][0] <= all_of_it < 1e12:
        return duration(part), duration(whole)
    for unit, least in _UNITS:
        if all_of_it < least:
            continue
        shown, beside = (round(one / unit) for one in (known, all_of_it))
        if bool(shown) == bool(known) and abs(shown / beside - known / all_of_it) <= _FITS:
            return _rounded(shown, unit), _rounded(beside, unit)
    return duration(part), duration(whole)


def _rounded(count: int, unit: float) -> str:
    """Return a number of units as days, hours, minutes and seconds, down to the unit."""
    digits = max(0, -round(math.log10(unit))) if unit < 1 else 0
    whole, rest = divmod(count, 10**digits)
    seconds = whole * max(1, round(unit))
    said: list[str] = []
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size >= unit:
            said.append(f"{seconds // size:02d} {name}" if said else f"{seconds // size} {name}")
            seconds %= size
        elif said and size >= unit and seconds:
            said.append(f"00 {name}")
    if digits or seconds or not said:
        said.append(f"{seconds:02d}" if said else str(seconds))
        said[-1] += (f".{rest:0{digits}d}" if digits else "") + " s"
    return " ".join(said)


def attempt_steps(one: Mapping[str, Any]) -> str | None:
    """Return the steps of an attempt, "1 to 120"; of all epochs together where each counts anew. None: no step."""
    first, last = one.get("first_step"), one.get("last_step")
    whole = one.get("steps_in_all")
    if whole:
        return f"{number(whole[0])} to {number(whole[1])} in all"
    return None if first is None and last is None else f"{number(first)} to {number(last)}"


def clock(text: Any) -> str:
    """Return an RFC 3339 time as "2026-11-29 23:04:26", in UTC; what is no time stays as it is."""
    at = epoch_of(text)
    return number(text)[:60] if at is None else date(at, "%Y-%m-%d %H:%M:%S")


def date(at: float, form: str) -> str:
    """Return seconds since the epoch in UTC in a form of ``strftime``; empty if no calendar has such a day."""
    try:
        return datetime.fromtimestamp(at, tz=UTC).strftime(form)
    except (ValueError, OverflowError, OSError):
        return ""


def size(count: Any) -> str:
    """Return bytes in units of 1,024."""
    known = finite(count)
    if known is None:
        return number(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(known) < 1024:
            return f"{known:.0f} bytes" if unit == "bytes" else f"{known:.1f} {unit}"
        known /= 1024
    return f"{known:,.1f} TiB"


def money(amount: Any) -> str:
    """Return an amount in the currency of the price, which nobody named."""
    known = finite(amount)
    return number(amount) if known is None else f"{known:,.2f}" if abs(known) < 1e15 else f"{known:.3g}"


def amount(cost: Any) -> str:
    """Return an amount as ``money``, with three digits of one below a tenth."""
    known = finite(cost)
    return number(known, 3) if known is not None and 0 < abs(known) < 0.1 else money(cost)

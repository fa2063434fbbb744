"""What people write for a value, and what it means: durations, counts, numbers, choices, patterns.

Each function takes what a flag (text) or a toml file (any type) holds and returns the value; ValueError refuses it. The
sentence for the user is made by the caller, who knows the setting and where it was given. No file, clock, process.
"""

from __future__ import annotations

import math
import re
import shlex
from datetime import datetime, time, timedelta
from decimal import Decimal, InvalidOperation

UNITS_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
MULTIPLES = {"": 0, "K": 3, "M": 6, "B": 9, "G": 9, "T": 12}
_DURATION = re.compile(
    r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?", re.ASCII
)
_COUNT = re.compile(r"(\d[\d_]*(?:,\d{3})*(?:\.\d+)?(?:[eE]\+?\d{1,3})?)\s?([kKmMbBgGtT]?)", re.ASCII)
LARGEST = 10**18
TEN_YEARS_S = 3.2e8
LEAST, MOST = 1e-9, 1e9
"""Of a price per hour and of a peak in TFLOP/s: what lies beyond is a slip, and would make figures overflow."""


class RefusedError(ValueError):
    """A value that is refused with a reason of its own, to be put after "SETTING VALUE (ORIGIN)"."""


def number(raw: object) -> float:
    """Return a finite number above zero."""
    if isinstance(raw, bool) or not isinstance(raw, (int, float, str)):
        raise ValueError(raw)
    value = float(raw)
    if not math.isfinite(value) or value <= 0:
        raise ValueError(raw)
    return value


def between(value: float, least: float, most: float) -> float:
    """Return a value that lies between two limits; RefusedError for one that does not."""
    if not least <= value <= most:
        raise RefusedError(f"is not between {least:g} and {most:g}")
    return value


def tflops(raw: object) -> float:
    """Return the TFLOP/s of one device; RefusedError for what no device can have."""
    return between(number(raw), LEAST, MOST)


def duration_s(raw: object) -> float:
    """Return seconds above zero: 90s, 10m, 2h, 1h30m; a plain number is seconds already.

    RefusedError for more than ten years, which no clock of a run can hold.
    """
    value = raw
    if isinstance(raw, str) and (text := raw.strip().lower()) and text[-1] in UNITS_S:
        parts = _DURATION.fullmatch(text)
        if parts is None:
            raise ValueError(raw)
        value = sum(float(part) * unit for part, unit in zip(parts.groups(), UNITS_S.values(), strict=True) if part)
    seconds = number(value)
    if seconds > TEN_YEARS_S:
        raise RefusedError("is longer than ten years")
    return seconds


def interval_s(raw: object) -> float:
    """Return seconds between two samples: at least one, since each has a time mark in the journal."""
    seconds = duration_s(raw)
    if seconds < 1.0:
        raise RefusedError("is too short: the least is 1s")
    return seconds


def hours(raw: object) -> float:
    """Return hours above zero: 8, 7.5; what has a unit of time is turned into hours: 8h, 90m, 1h30m, 2d.

    RefusedError for more than ten years, as for ``duration_s``.
    """
    written = raw.strip().lower() if isinstance(raw, str) else ""
    if written and written[-1] in UNITS_S:
        return duration_s(written) / 3600.0
    found = number(raw)
    if found * 3600.0 > TEN_YEARS_S:
        raise RefusedError("is longer than ten years")
    return found


def wait_s(raw: object) -> float:
    """Return seconds, 0 included."""
    text = str(raw).strip().lower()
    return 0.0 if text in ("0", "0s", "0.0") and not isinstance(raw, bool) else duration_s(raw)


def count(raw: object) -> int:
    """Return a whole number above zero: 124356864, 124_356_864, 124e6, 124M, 1.3B."""
    if isinstance(raw, bool) or not isinstance(raw, (int, float, str)):
        raise ValueError(raw)
    parts = _COUNT.fullmatch(str(raw).strip())
    if parts is None:
        raise ValueError(raw)
    try:
        value = Decimal(parts[1].replace(",", "").replace("_", "")).scaleb(MULTIPLES[parts[2].upper()])
    except InvalidOperation as error:
        raise ValueError(raw) from error
    if not 0 < value <= LARGEST or value != value.to_integral_value():
        raise ValueError(raw)
    return int(value)


def whole(raw: object) -> int:
    """Return a whole number, 0 included."""
    return 0 if not isinstance(raw, (bool, float)) and str(raw).strip() == "0" else count(raw)


_PER_H = {"s": 3600.0, "sec": 3600.0, "min": 60.0, "h": 1.0, "hr": 1.0, "hour": 1.0, "d": 1 / 24, "day": 1 / 24}


def money(raw: object) -> float:
    """Return an amount above zero, in whatever currency the price has: 40, $40."""
    return between(number(raw.strip().lstrip("$€£").strip() if isinstance(raw, str) else raw), LEAST, LARGEST)


def price(raw: object) -> float:
    """Return a price per hour: 2.49/h, $2.49/hour, 60/day; a plain number is per hour already."""
    if not isinstance(raw, str):
        return between(money(raw), LEAST, MOST)
    amount, slash, unit = raw.partition("/")
    if slash and unit.strip().lower() not in _PER_H:
        raise ValueError(raw)
    return between(money(amount) * (_PER_H[unit.strip().lower()] if slash else 1.0), LEAST, MOST)


def moment(raw: object) -> time | datetime:
    """Return a time of day (07:30) or a date with one (2026-11-30 07:30, zone and seconds if given)."""
    if isinstance(raw, (time, datetime)):
        return raw
    if not isinstance(raw, str) or ":" not in raw:  # "07" would be read as seven o'clock, 20261130 as a date
        raise ValueError(raw)
    written = raw.strip()
    return datetime.fromisoformat(written) if "-" in written[:8] else time.fromisoformat(written.zfill(5))


def epoch_of(asked: time | datetime, now: float) -> float:
    """Return seconds since the epoch of the next such time of day (or of the very date), in local time unless it says.

    RefusedError for a date that has passed at ``now`` or is more than ten years ahead of it, and for one that the time
    zone has no answer for.
    """
    try:
        found = asked.timestamp() if isinstance(asked, datetime) else _next(asked, now)
    except (ValueError, OverflowError, OSError) as error:  # a year 0 or 10000, a zone such as TZ=XXX-25
        raise RefusedError(f"cannot be found in the local time zone ({error})") from error
    if found is None:
        raise RefusedError("comes on no day")
    if found <= now:
        raise RefusedError("has passed already")
    if found > now + TEN_YEARS_S:
        raise RefusedError("is more than ten years ahead")
    return found


def _next(asked: time, now: float) -> float | None:
    """Return the next such time of day; one that comes twice, when clocks are set back, may be the second one."""
    today = datetime.fromtimestamp(now, tz=asked.tzinfo)
    for days in (0, 1, 2):  # a time that a change of clocks leaves out on one day is there on the next
        first = datetime.combine(today.date() + timedelta(days=days), asked)
        for found in (first.timestamp(), first.replace(fold=1).timestamp()):
            if found > now and found >= first.timestamp():  # of a time left out, the fold is an hour before it
                return found
    return None


def words(raw: object) -> tuple[str, ...]:
    """Return the words of a command line, quoted as for a shell; an array of a file is taken as it is."""
    if isinstance(raw, (list, tuple)) and all(isinstance(one, str) for one in raw):
        return tuple(_without_nul(one) for one in raw)
    found = tuple(shlex.split(text(raw)))
    if not found:
        raise ValueError(raw)
    return found


def commands(raw: object) -> tuple[str, ...]:
    """Return one or several shell commands."""
    several = raw if isinstance(raw, (list, tuple)) else [raw]
    return tuple(text(one.strip() if isinstance(one, str) else one) for one in several)


def switch(raw: object) -> bool:
    """Return a yes or no."""
    if isinstance(raw, bool):
        return raw
    known = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    return known[str(raw).strip().lower()]


def tokens(raw: object) -> float:
    """Return a count as the float that the spec keeps."""
    return float(count(raw))


def text(raw: object) -> str:
    """Return text that is not empty."""
    if not isinstance(raw, str) or not raw:
        raise ValueError(raw)
    return _without_nul(raw)


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise RefusedError("holds a NUL byte, which no name and no command can")
    return text


def pattern(raw: object) -> str:
    """Return a regular expression that ``compiled`` accepts."""
    if not isinstance(raw, str):
        raise ValueError(raw)
    compiled(raw)
    return raw


def compiled(regex: str) -> re.Pattern[str]:
    """Return a regular expression ready to read with: the one check of ``--pattern``, in settings and in the reader.

    RefusedError when it is none, or when none of its groups is called step or loss.
    """
    try:
        found = re.compile(regex)
    except (re.error, RecursionError, OverflowError) as error:
        raise RefusedError(f"is not a regular expression: {error}") from error
    if not found.groupindex:
        raise RefusedError("has no named groups: write (?P<step>...) and (?P<loss>...) round the numbers")
    if not {"step", "loss"} & set(found.groupindex):
        raise RefusedError("names neither step nor loss: at least one of (?P<step>...) and (?P<loss>...) is needed")
    return found


def quoted(raw: object) -> str:
    """Return what was given as people wrote it: in quotes, backslashes single, on one line."""
    text = _written(raw)
    return f"'{text}'" if text.isprintable() else repr(text)


def _written(raw: object) -> str:
    """Return a value of a toml file as it may have stood there."""
    if isinstance(raw, bool):
        return str(raw).lower()
    if isinstance(raw, (list, tuple)):
        return f"[{', '.join(_written(one) for one in raw)}]"
    if isinstance(raw, dict):
        return f"{{{', '.join(f'{key} = {_written(one)}' for key, one in raw.items())}}}"
    return str(raw)


class Choice:
    """A word out of a few."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def __call__(self, raw: object) -> str:
        """Return the word; ValueError for another one."""
        if raw not in self.words:
            raise ValueError(raw)
        return str(raw)

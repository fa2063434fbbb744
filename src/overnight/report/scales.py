"""Axes: round ticks for any range of numbers, their labels, and where a value stands.

Pure arithmetic, exact where floats are not: a tick is a whole number times a power of ten. No markup.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Final, NamedTuple

_LETTERS: Final = ((12, "T"), (9, "G"), (6, "M"), (3, "k"))
_LARGEST: Final = 1.7976931348623157e308
LOG_FROM: Final = 1000.0
"""How many times the least value the largest must be before an axis is logarithmic."""
SIGN_PX: Final = 7.7
"""Pixels of one character of a label of 12 pixels: of a digit in the widest of the usual fonts."""


class Style(NamedTuple):
    """How labels are written: from which power of ten with a letter, with how many digits as distances."""

    letters_from: int
    digits: int


VALUES: Final = Style(5, 6)
"""For values: short, since they stand beside the chart."""
PLACES: Final = Style(8, 10)
"""For places: steps are looked up in a log, and stand there in full."""


class Tick(NamedTuple):
    """``digits`` times ten to the ``exponent``: what floats cannot say, 0.1 for one, this says exactly."""

    digits: int
    exponent: int

    @property
    def exact(self) -> Fraction:
        """The value."""
        return self.digits * Fraction(10) ** self.exponent

    def __float__(self) -> float:
        """Return the nearest float, infinite beyond the largest."""
        try:
            return float(self.exact)
        except OverflowError:
            return math.copysign(math.inf, self.digits)


class Axis(NamedTuple):
    """A range of values with its ticks. ``log``: places follow the logarithm. ``note``: what to tell."""

    low: float
    high: float
    ticks: tuple[float, ...]
    labels: tuple[str, ...]
    log: bool = False
    note: str | None = None

    def place(self, value: float) -> float:
        """Return where a value stands, 0 for the low end and 1 for the high one; not limited to these."""
        if self.log:
            return _share(math.log10(value), math.log10(self.low), math.log10(self.high))
        return _share(value, self.low, self.high)


def _share(value: float, low: float, high: float) -> float:
    # Of two values near the largest float the difference is infinite: a quarter of everything is not.
    part = 1.0 if math.isfinite(high - low) and math.isfinite(value - low) else 0.25
    return (value * part - low * part) / (high * part - low * part)


def round_ticks(low: float, high: float, most: int, *, whole: bool = False) -> list[Tick]:
    """Return at most ``most`` ticks at 1, 2 or 5 times a power of ten, all within [low, high].

    ``whole``: none between two integers. Empty if ``low`` is not below ``high`` or one is not finite.
    """
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        return []
    first, last = Fraction(low), Fraction(high)
    span = (last - first) / max(1, most)
    exponent = (Decimal(span.numerator) / Decimal(span.denominator)).adjusted()
    while True:
        for digit in (1, 2, 5):
            step = digit * Fraction(10) ** exponent
            if whole and step < 1:
                continue
            begin, end = math.ceil(first / step), math.floor(last / step)
            if end - begin < most:
                return [Tick(at * digit, exponent) for at in range(begin, end + 1)]
        exponent += 1


def labels(ticks: Sequence[Tick], style: Style = VALUES) -> tuple[list[str], str | None]:
    """Return a label for each tick, all of one kind, and a note if they are distances from some number."""
    if not ticks:
        return [], None
    largest = max(abs(one.exact) for one in ticks)
    if largest == 0:
        return ["0"] * len(ticks), None
    top = _magnitude(largest)
    exponent = ticks[0].exponent
    scientific = top >= 15 or top < -4
    if top - exponent >= 3 if scientific else max(top, 0) - exponent >= style.digits:
        base = ticks[0]
        away = [Tick(one.digits - base.digits, one.exponent) for one in ticks]
        plain, _ = labels(away, style)
        return ["0", *(f"+{one}" for one in plain[1:])], f"counted from {_written(base.exact, base.exponent)}"
    if scientific:
        return [_scientific(one) for one in ticks], None
    size, letter = next(((size, letter) for size, letter in _LETTERS if top >= max(size, style.letters_from)), (0, ""))
    places = max(0, size - exponent)
    return [(_fixed(one.exact / 10**size, places) + letter) if one.digits else "0" for one in ticks], None


def _magnitude(value: Fraction) -> int:
    return (Decimal(value.numerator) / Decimal(value.denominator)).adjusted()


def _fixed(value: Fraction, places: int) -> str:
    # Exact: the value is a whole number of 10**-places.
    whole = value * 10**places
    text = f"{Decimal(int(whole)).scaleb(-places):,f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text).replace("-", "\N{MINUS SIGN}")


def _written(value: Fraction, exponent: int) -> str:
    top = _magnitude(value)
    return f"{float(value):g}" if top >= 18 or exponent < -18 else _fixed(value, max(0, -exponent))


def _scientific(tick: Tick) -> str:
    if not tick.digits:
        return "0"
    digits = str(abs(tick.digits)).rstrip("0")
    power = tick.exponent + len(str(abs(tick.digits))) - 1
    sign = "\N{MINUS SIGN}" if tick.digits < 0 else ""
    return f"{sign}{digits[0]}{'.' + digits[1:] if digits[1:] else ''}e{power}"


def axis(values: Iterable[float], most: int = 5, *, whole: bool = False, least_span: float = 0.0) -> Axis | None:
    """Return an axis for values to be read off: some air above and below, zero where it is near, logarithmic if needed.

    It spans at least ``least_span`` of the largest value: what hardly changes shall look so. None if none is finite.
    """
    finite = [one for one in values if math.isfinite(one)]
    if not finite:
        return None
    low, high = min(finite), max(finite)
    if low > 0 and high / low >= LOG_FROM:
        return _log_axis(low, high, most)
    lacking = least_span * max(abs(low), abs(high)) - (high - low)
    if low < high and 0 < lacking < math.inf:
        low, high = low - lacking / 2, high + lacking / 2
    low, high = _aired(low, high)
    ticks = round_ticks(low, high, most, whole=whole)
    said, note = labels(ticks)
    return Axis(low, high, tuple(map(float, ticks)), tuple(said), note=note)


def _aired(low: float, high: float) -> tuple[float, float]:
    if low == high:
        air = abs(low) * 0.1 or 1.0
    elif 0 <= low <= high * 0.3:
        return 0.0, min(high + (high - low) * 0.06, _LARGEST)
    else:
        air = high * 0.06 - low * 0.06
    least, most = max(low - air, -_LARGEST), min(high + air, _LARGEST)
    # Air that is smaller than the last digit of a float is none.
    return (least, most) if least < most else (math.nextafter(low, -math.inf), math.nextafter(high, math.inf))


def _log_axis(low: float, high: float, most: int) -> Axis:
    air = 10 ** (0.04 * (math.log10(high) - math.log10(low)))
    least, top = max(low / air, 5e-324), min(high * air, _LARGEST)
    first, last = math.ceil(math.log10(least)), math.floor(math.log10(top))
    stride = max(1, math.ceil((last - first + 1) / most))
    ticks = [Tick(1, at) for at in range(first, last + 1, stride)]
    said = [labels([one])[0][0] for one in ticks]
    return Axis(least, top, tuple(map(float, ticks)), tuple(said), log=True, note="logarithmic scale")


def round_end(low: float, high: float) -> float:
    """Return ``high``, or a round number that lies less than 3% of the range above it: 20,000 for 19,984."""
    for tick in reversed(round_ticks(low, high + (high - low) * 0.03, 10)):
        return max(high, float(tick))
    return high


def span_axis(low: float, high: float, width_px: float, *, whole: bool = False, sign_px: float = SIGN_PX) -> Axis:
    """Return an axis that ends exactly at ``low`` and ``high``, with as many ticks as fit into ``width_px`` pixels.

    ``sign_px``: the width of one character of a label.
    """
    if not low < high:
        air = 1.0 if abs(low) < 1e15 else abs(low) * 1e-3
        ticks = round_ticks(low, low + 1, 1, whole=whole)[:1] if abs(low) < 1e15 else []
        said, note = labels(ticks, PLACES)
        return Axis(low - air, low + air, tuple(map(float, ticks)), tuple(said), note=note)
    for most in range(10, 0, -1):
        ticks = round_ticks(low, high, most, whole=whole)
        said, note = labels(ticks, PLACES)
        one = Axis(low, high, tuple(map(float, ticks)), tuple(said), note=note)
        if fits(one, width_px, sign_px):
            return one
    return Axis(low, high, (), ())


def fits(one: Axis, width_px: float, sign_px: float) -> bool:
    """Return whether no two labels touch, each placed as ``anchor`` says."""
    edge = -math.inf
    for tick, label in zip(one.ticks, one.labels, strict=True):
        place, wide = one.place(tick), len(label) * sign_px
        side = anchor(place, wide, width_px)
        left = place * width_px - {"start": 0.0, "middle": wide / 2, "end": wide}[side]
        if left < edge:
            return False
        edge = left + wide + 10
    return True


def anchor(place: float, label_px: float, width_px: float) -> str:
    """Return which part of a label stands at its tick, so that none reaches out of the chart by more than 5 pixels."""
    room = label_px / 2 - 5
    if place * width_px < room:
        return "start"
    return "end" if (1 - place) * width_px < room else "middle"

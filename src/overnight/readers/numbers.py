"""The one grammar of numbers that all readers share. Nothing else may decide what a number is.

Sign, thousands commas, fractions, exponents, and nan and inf in any case. ``1,234`` is a thousand (Python's own format
knows no decimal comma). A word that only contains such letters, as ``banana``, ``info`` or ``+nanz``, is no number.
"""

from __future__ import annotations

import re

NUMBER = (
    r"[-+]?(?:"
    r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?"
    r"|\.[0-9]+(?:[eE][-+]?[0-9]+)?"
    r"|(?:[nN][aA][nN]|[iI][nN][fF](?:[iI][nN][iI][tT][yY])?)(?![A-Za-z0-9_])"
    r")"
)

PLAIN = r"-?[0-9]{1,20}+(?:\.[0-9]{1,20}+)?+(?:e[-+][0-9]{1,3}+)?+"
"""What Python's ``print`` makes of a finite float, for shapes that must be read fast (possessive: half the time)."""

WHOLE = r"(?:[0-9]{1,3}(?:,[0-9]{3}){1,5}(?![0-9])|[0-9]{1,18})"
"""A step as printed: at most 18 digits, so that it fits 64 bits."""

_NUMBER = re.compile(NUMBER)
_WHOLE = re.compile(WHOLE + r"(?:\.0*)?")


def parse_number(text: str | None, exponent: int = 0) -> float | None:
    """Return ``text`` times ten to the ``exponent`` as a float if all of it is a number, otherwise None.

    The exponent is applied in decimal: 349.53 ms is 0.34953 s, where 349.53 / 1000 is 0.34952999999999995.
    """
    if text is None or not _NUMBER.fullmatch(text):
        return None
    plain = text.replace(",", "")
    if not exponent:
        return float(plain)
    if plain[-1] in "0123456789." and "e" not in plain and "E" not in plain:
        return float(f"{plain}e{exponent}")
    return float(plain) * 10.0**exponent


def parse_whole(text: str | None) -> int | None:
    """Return ``text`` as an int if all of it is a whole non-negative number (``12``, ``1,234``, ``12.0``)."""
    if text is None or not _WHOLE.fullmatch(text):
        return None
    return int(text.partition(".")[0].replace(",", ""))

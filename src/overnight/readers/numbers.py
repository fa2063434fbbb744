"""The one grammar of numbers that all readers share. Nothing else may decide what a number is.

Sign, thousands commas, fractions, exponents, and nan and inf in any case, also as C prints them (``-nan(ind)``,
``1.#QNAN``). ``1,234`` is a thousand (Python's own format knows no decimal comma). A word that only contains such
letters, as ``banana``, ``info`` or ``+nanz``, is no number. What may stand round a number is here, too: ``[2.31]``,
``"nan"``, ``array(2.31, dtype=float32)``.
"""

from __future__ import annotations

import math
import re

NUMBER = (
    r"[-+]?(?:"
    r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?"
    r"|\.[0-9]+(?:[eE][-+]?[0-9]+)?"
    r"|(?:[nN][aA][nN](?:\((?ai:ind|[qs]nan|0x[0-9a-f]{1,16}|[0-9]{1,20})\))?|[iI][nN][fF](?:[iI][nN][iI][tT][yY])?"
    r"|1\.#(?ai:[qs]?nan|ind|inf)0*)(?![A-Za-z0-9_])"
    r")"
)

# What Python prints of a number that is still a tensor or an array: tensor([2.31], device='cuda:0'), np.float32(2.31)
_CALL = r"(?:(?:[A-Za-z_]{1,16}\.)?(?:[tT]ensor|[aA]rray|DeviceArray)|(?:np|numpy|jnp)\.b?float(?:16|32|64))\("
_OPEN = r"[\[('\"`*]"
_CLOSE = r"[\])'\"`*]"
PRINTED = rf"(?:{_CALL})?(?:{_OPEN}{{1,3}}{NUMBER}{_CLOSE}{{1,4}}|{NUMBER})"
"""A number and what is written round it, for ``parse_printed``. What is opened must be closed: ``[2, 3]`` is none."""

_ODD_END = r"(?:(?<=[nN][aA][nN]\()|(?<=[iI][nN][fF]\()|(?<=[iI][tT][yY]\())"
_AVERAGE = rf"\((?:(?<=[0-9.]\()(?=[-+0-9.A-Za-z])|{_ODD_END}(?={NUMBER}\)))"  # `2.1(2.3)`, `nan(nan)`
VALUE_END = rf"(?=[\s;|)}}\]]|{_AVERAGE}|,(?![0-9])|[.!?'\"`*](?=[\s,;)}}\]]|$)|$)"
"""What may stand behind a value: a separator, the end of what is round the line, the end of a sentence."""

CLOSERS = frozenset(")]'\"`*")
"""Behind one of these a value is whole, whatever comes next."""

PLAIN = r"-?[0-9]{1,20}+(?:\.[0-9]{1,20}+)?+(?:[eE][-+][0-9]{1,3}+)?+"
"""What Python's ``print`` makes of a finite float, for shapes that must be read fast (possessive: half the time)."""

UNSIGNED = PLAIN.removeprefix("-?")

WHOLE = r"(?:[0-9]{1,3}(?:,[0-9]{3}){1,5}(?![0-9])|[0-9]{1,18})"
"""A step as printed: at most 18 digits, so that it fits 64 bits."""

_NUMBER = re.compile(NUMBER)
_WHOLE = re.compile(WHOLE + r"(?:\.0*)?")
_PRINTED = re.compile(rf"(?:{_CALL})?(?P<open>{_OPEN}{{0,3}})(?P<number>{NUMBER})(?P<close>{_CLOSE}{{0,4}})[.,;!?]?")
_CLOSER_OF = str.maketrans("[(", "])")


def parse_number(text: str | None, exponent: int = 0) -> float | None:
    """Return ``text`` times ten to the ``exponent`` as a float if all of it is a number, otherwise None.

    The exponent is applied in decimal: 349.53 ms is 0.34953 s, where 349.53 / 1000 is 0.34952999999999995.
    """
    if text is None or not _NUMBER.fullmatch(text):
        return None
    plain = text.replace(",", "")
    try:
        if not exponent:
            return float(plain)
        if plain[-1] in "0123456789." and "e" not in plain and "E" not in plain:
            return float(f"{plain}e{exponent}")
        return float(plain) * 10.0**exponent
    except ValueError:  # as C prints it: 1.#INF, -nan(ind)
        unsigned = math.inf if "inf" in plain.lower() else math.nan
        return -unsigned if plain[0] == "-" else unsigned


def unwrapped(text: str) -> re.Match[str] | None:
    """Return the match whose group "number" is the number in ``text``, if that is one and its wrapping.

    The text may end behind the number of a call, as in ``tensor(2.31``, whose ``device='cuda:0')`` is another field.
    """
    found = _PRINTED.fullmatch(text)
    if found is None or not found["close"].startswith(found["open"][::-1].translate(_CLOSER_OF)):
        return None
    return found


def parse_printed(text: str | None, exponent: int = 0) -> float | None:
    """Return what ``parse_number`` returns, also for a number that is wrapped or ends a sentence."""
    value = parse_number(text, exponent)
    if value is not None or text is None:
        return value
    found = unwrapped(text)
    return None if found is None else parse_number(found["number"], exponent)


def parse_whole(text: str | None) -> int | None:
    """Return ``text`` as an int if all of it is a whole non-negative number (``12``, ``1,234``, ``12.0``)."""
    if text is None or not _WHOLE.fullmatch(text):
        return None
    return int(text.partition(".")[0].replace(",", ""))

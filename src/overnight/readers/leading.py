"""What the words right before a mapping count: ``step 5/100: {'loss': 2.1}``. The mapping itself is read elsewhere."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from overnight.readers.asides import only_tells
from overnight.readers.counters import MICRO, counter_of, is_retold, step_marks
from overnight.readers.numbers import parse_whole
from overnight.readers.pairs import Fields
from overnight.readers.prefix import strip_prefix

if TYPE_CHECKING:
    from overnight.readers.mappings import Reading

_FARTHEST = 200
_SEPARATORS = r"[\s:=|,;>()\[\]-]{0,32}"
_ONLY_A_NAME = re.compile(
    rf"{_SEPARATORS}(?:epoch[ ]?[:=]?[ ]?\[?[0-9.]{{1,20}}(?:/[0-9]{{1,9}})?{_SEPARATORS})?"
    rf"(?:(?:train|training|metrics?|logs?|losses|loss|stats|scalars|results?|values){_SEPARATORS}){{0,2}}",
    re.IGNORECASE,
)


def counted(reading: Reading, words: str) -> Reading:
    """Return ``reading`` with the step, and the epoch, that stand in the words before it; its own step is kept.

    A batch or a micro step is none, for they begin anew.
    """
    if reading.step is not None or not words or len(words) > _FARTHEST:
        return reading
    marks = step_marks(words)
    counters = [counter_of(mark) for mark in marks]
    if not marks or _ONLY_A_NAME.fullmatch(words, marks[-1].end()) is None:
        return reading
    first = marks[0].start()
    rest = strip_prefix(words, 0, first)[1]
    if is_retold(words[:first], words[rest:first]) or only_tells(words[:first], loss=True):
        return reading
    best = max(range(len(marks)), key=lambda number: counters[number].rank)
    if counters[best].rank < MICRO or counters[best].plural:
        return reading
    values = dict(reading.values)
    for one in Fields(words, rest, len(words), known=True).found:
        if one.field == "epoch" and isinstance(one.value, float):
            values.setdefault("epoch", one.value)
    return reading._replace(
        step=parse_whole(marks[best]["step"]), total=parse_whole(marks[best]["total"]), values=values
    )

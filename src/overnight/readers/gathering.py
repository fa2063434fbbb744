"""Which step words, and which fields before and behind them, belong to one record of a line.

What the fields say is not judged here.
"""

from __future__ import annotations

from typing import NamedTuple

from overnight.readers.counters import Counter, after_bar, counter_of, has_broken_step
from overnight.readers.fields import LOSSES, PLACE
from overnight.readers.glue import Segment
from overnight.readers.pairs import Fields, Found
from overnight.readers.prefix import strip_prefix
from overnight.readers.shape import Slot


class Part(NamedTuple):
    """One step word and what follows it."""

    segment: Segment
    counter: Counter
    fields: Fields


class Group:
    """The step words of one record (``iter 4 step 1``) and its fields, ``found``, in the order of the line.

    ``step`` is the part whose number is the step; ``before`` and ``sentence`` are the words before the first one with
    and without dates and names; ``outside`` those of them that are no field; ``slots`` is filled when it is read, and
    ``aside`` is set where words set it apart from the training (see ``asides``).
    """

    __slots__ = ("aside", "before", "found", "outside", "parts", "sentence", "slots", "step")

    def __init__(self, part: Part) -> None:
        self.parts = [part]
        self.step = part
        self.found: list[Found] = []
        self.before = self.outside = part.segment.before
        self.sentence = part.segment.sentence
        self.slots: list[Slot] = []
        self.aside = False

    @property
    def start(self) -> int:
        """The place of the first step word."""
        return self.parts[0].segment.mark.start()

    def takes(self, part: Part) -> bool:
        """Say whether ``part`` is another counter of the same record, and add it if it is."""
        if any(one.counter.word == part.counter.word for one in self.parts):
            return False
        if has_loss(part.fields.found) and any(has_loss(one.fields.found) for one in self.parts):
            return False
        self.parts.append(part)
        if part.counter.rank > self.step.counter.rank:
            self.step = part
        return True


def has_loss(found: list[Found]) -> bool:
    """Say whether any of the fields is a loss."""
    return any(one.field in LOSSES for one in found)


def gather(text: str, found: list[Segment]) -> list[Group]:
    """Return the records of a line with all their fields, those before the first step word included."""
    groups: list[Group] = []
    for segment in found:
        part = Part(segment, counter_of(segment.mark), Fields(text, segment.mark.end(), segment.end))
        if not (groups and groups[-1].takes(part)):
            groups.append(Group(part))
    for group in groups:
        group.found = [one for part in group.parts for one in part.fields.found]
    if groups:
        _add_head(text, groups)
    return groups


def _add_head(text: str, groups: list[Group]) -> None:
    """Give the first record the known fields that stand before its step, unless they touch it or belong to a bar."""
    first = groups[0]
    if not first.start:
        return
    begin = after_bar(text, 0, first.start)
    if begin:
        first.before = first.sentence = first.outside = text[begin : first.start]
    if text[first.start - 1].isalnum() or text[first.start - 1] in "._/":
        return
    _, rest = strip_prefix(text, begin, first.start)
    head = Fields(text, rest, first.start, known=True)
    if has_broken_step(text, rest, first.start):
        return
    first.sentence = head.words(text)
    first.outside = text[begin:rest] + first.sentence
    # A number with its unit alone may be of a bar whose counter is another one.
    keyed = [one for one in head.found if one.field != "rank" and (one.begin > one.start or one.field not in PLACE)]
    if len(groups) > 1 and has_loss(keyed) and not has_loss(groups[-1].found):
        # every record names its step last, so that what follows a step belongs to the next one
        own = [group.found for group in groups]
        for number, group in enumerate(groups[1:]):
            group.found = own[number] if group is not groups[-1] else own[number] + own[-1]
        first.found = []
    taken = {one.field for one in first.found}
    first.found = [*(one for one in keyed if one.field not in taken), *first.found]

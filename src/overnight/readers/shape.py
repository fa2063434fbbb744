"""The learned shape: once the general parse has read a line, the exact shape of that line as one regular expression.

Programs print the same shape a million times. A shape only ever repeats what the general parse found: the same literal
text, with other digits in dates and texts, and other plain numbers in the fields. Whatever differs goes back to the
general parse, so that a shape changes the speed of a reader and never what it reads; nothing of it need be remembered.
"""

from __future__ import annotations

import re
from functools import partial
from math import trunc
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from overnight.batches import Batch, Places
from overnight.events import Record
from overnight.readers.numbers import PLAIN, UNSIGNED, parse_number
from overnight.readers.prefix import DATE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_WHOLE = r"[0-9]{1,18}"
_WITH_COMMAS = r"[0-9]{1,3}(?:,[0-9]{3}){0,5}(?:\.[0-9]{1,20})?"
_DATES = re.compile(DATE)
_MOST_SLOTS = 48
_MOST_PADDING = 16
_LONGEST = 2048
_LOOSE = "[-+.eE0-9]{1,40}+"
_LOOSE_PLAIN = "[-+.0-9]{1,40}+"
_FEW_DIGITS = "[0-9]{1,15}+"  # as a float it is still exact
_MINUS_ZERO = re.compile(rb"-0(?![0-9.])")  # which JSON reads as 0
_NUMBERS = msgspec.json.Decoder(list[float])


class Slot(NamedTuple):
    """One value of a line: its place, its field of ``Record`` ("" for extra), its key, power of ten, whether text.

    ``over``: it is read over, as an average in brackets is, and stands in no record. ``whole``: it is only digits.
    """

    begin: int
    end: int
    field: str
    key: str
    exponent: int = 0
    text: bool = False
    over: bool = False
    whole: bool = False

    @property
    def name(self) -> str:
        """What tells it from the other values of its line."""
        return self.field or f" {self.key}"


class Shape:
    """One shape of line: ``match`` is tried on the text, ``record`` makes the record of a match.

    ``run`` reads many such lines at once.
    """

    __slots__ = ("_extra", "_fields", "_layout", "_many", "_per_device", "_rank", "_reader", "match")

    def __init__(self, record: Record, layout: Layout) -> None:
        """Compile the shape of the line that ``record`` was read from."""
        self.match = re.compile(layout.pattern()).fullmatch
        self._reader = record.reader
        self._rank = record.rank
        self._per_device = record.per_device
        self._layout = layout
        self._many: Many | None = None
        numbered = list(enumerate(layout.slots, 1))
        self._fields = [(slot.field, group, _converter(slot)) for group, slot in numbered if slot.field]
        self._extra = [(slot.key, group, _converter(slot)) for group, slot in numbered if not (slot.field or slot.over)]

    def record(self, match: re.Match[str], offset: int, at: float, source: int) -> Record:
        """Return the record of a line that ``match`` matched."""
        fields: dict[str, Any] = {name: convert(match[group]) for name, group, convert in self._fields}
        return Record(
            reader=self._reader,
            source=source,
            offset=offset,
            at=at,
            rank=self._rank,
            extra={key: convert(match[group]) for key, group, convert in self._extra} if self._extra else None,
            per_device=self._per_device,
            **fields,
        )

    def run(self, block: bytes, begin: int, start: int, at: float, source: int) -> tuple[Batch, int] | None:
        """Return the records of all lines of this shape from ``begin`` of ``block`` on, and where the next line begins.

        ``block`` is whole lines, its first byte at ``start`` of the source. None: the line at ``begin`` is another one.
        """
        if self._many is None:
            line = block[begin : block.find(b"\n", begin)]
            if not self._layout.regular or self.match(line.decode("utf-8", "replace")) is None:
                return None
            self._many = Many(self._layout)
        found = self._many(block, begin)
        if found is None:
            return None
        columns, raw = found
        steps, loss = columns.pop("step"), columns.pop("loss")
        batch = Batch(
            reader=self._reader,
            source=source,
            at=at,
            rank=self._rank,
            steps=steps,
            loss=loss,
            columns={
                slot.field: columns[slot.name] for slot in self._layout.slots if slot.name in columns and slot.field
            },
            extra={slot.key: columns[slot.name] for slot in self._layout.slots if not (slot.field or slot.over)},
            places=Places(raw, start + begin),
            per_device=self._per_device,
        )
        return batch, begin + len(raw)


def learn(text: str, record: Record, slots: Sequence[Slot]) -> Shape | None:
    """Return the shape of ``text``, which the general parse read as ``record`` from ``slots``; None when it has none.

    ``slots`` are the values in the order of the line, the step first. A shape that would not read the very line it was
    learned from as the same record (a text field, a NaN) is not returned, nor one with a field that stands twice.
    """
    if len(slots) > _MOST_SLOTS or len({slot.name for slot in slots}) < len(slots):
        return None
    shape = Shape(record, Layout(text, tuple(slots), keep_digits=record.rank is not None))
    match = shape.match(text)
    if match is None or shape.record(match, record.offset, record.at, record.source) != record:
        return None
    return shape


class Layout:
    """What a line is made of: ``head``, then a value and what follows it in turns; ``behind`` the last is its end.

    A space behind a colon or an equals sign is padding, of which there may be more or less; ``behind`` has none of it.
    ``is_constant``: the head is the same in every line. ``regular``: many lines can be read at once.
    """

    __slots__ = ("behind", "head", "is_constant", "padded", "regular", "slots", "text", "values")

    def __init__(self, text: str, slots: tuple[Slot, ...], *, keep_digits: bool) -> None:
        self.text = text
        self.slots = slots
        self.head = _dates_free(text[: slots[0].begin], keep_digits=keep_digits)
        self.values = [_value(text, slot) for slot in slots]
        ends = [*(slot.begin for slot in slots[1:]), len(text)]
        between = [text[slot.end : end] for slot, end in zip(slots, ends, strict=True)]
        stripped = [one.rstrip(" ") for one in between[:-1]]
        self.padded = [one[-1:] in {":", "="} for one in stripped] + [False]
        self.behind = [
            short if padded else whole
            for short, whole, padded in zip([*stripped, ""], between, self.padded, strict=True)
        ]
        self.is_constant = self.head == re.escape(text[: slots[0].begin])
        fields = {slot.field for slot in slots}
        # Every line is far shorter than what a tail cuts, and a byte is a character: places in the text are offsets.
        self.regular = len(text) < _LONGEST and text.isascii() and {"step", "loss"} <= fields

    def pattern(self, *, values: Sequence[str] = (), group: str = "(") -> str:
        """Return the regular expression of one line, with other ``values`` if some are given."""
        pattern = self.head
        for value, behind, padded in zip(values or self.values, self.behind, self.padded, strict=True):
            padding = f" {{0,{_MOST_PADDING}}}+" if padded else ""
            pattern += f"{group}{value}){re.escape(behind)}{padding}"
        return pattern


class Many:
    """Reads many lines of one layout at once: the columns are those that line by line would give, or it says None.

    One regular expression finds how far the lines reach. What is left when all text between the numbers has become a
    comma is JSON, whose numbers are parsed in C three times as fast as one by one. A number that JSON spells in another
    way, or text in a value, takes the columns of ``findall`` instead.
    """

    __slots__ = ("_blank", "_erased", "_head", "_joint", "_json", "_layout", "_lines", "_swaps", "_tail", "_words")

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._lines = _reach(layout, _LOOSE)
        self._words: Callable[[str], list[Any]] | None = None
        self._head = layout.slots[0].begin
        self._tail = len(layout.behind[-1]) + 1
        self._swaps = _swaps(layout)
        self._erased = None if self._swaps is None else _erased(layout)
        self._blank = False
        ending = _scaled(layout.slots[-1]).encode()
        self._json = (b"[", ending + b"]")
        new = ending + b","
        self._joint: Callable[[bytes], bytes]
        if layout.is_constant:
            old = f"{layout.behind[-1]}\n{layout.text[: self._head]}".encode()
            self._joint = lambda body: body.replace(old, new)
        else:
            self._joint = partial(re.compile(f"{re.escape(layout.behind[-1])}\n{layout.head}".encode()).sub, new)

    def __call__(self, block: bytes, begin: int) -> tuple[dict[str, list[Any]], bytes] | None:
        """Return the columns by the names of their slots, and the lines they were read from."""
        erased = self._erased
        found = self._lines(block, begin) if erased is None else erased.lines(block, begin)
        if erased is not None and self._lines(block, begin if found is None else found.end()) is not None:
            self._erased, found = None, self._lines(block, begin)
        if found is None:
            return None
        raw = lines = found[0]
        self._blank = self._blank or b"\n\n" in raw[:_LONGEST]
        columns = None if self._blank else self._by_json(raw)
        if columns is None:
            while b"\n\n" in lines:
                lines, self._blank = lines.replace(b"\n\n", b"\n"), True
            columns = (self._by_json(lines) if self._blank else None) or self._by_words(lines)
        return None if columns is None else (columns, raw)

    def _by_json(self, lines: bytes) -> dict[str, list[Any]] | None:
        """Return the columns, or None if a number is written as JSON does not."""
        if self._swaps is None:
            return None
        body = lines[self._head : -self._tail]
        if self._erased is not None:
            body = body.translate(*self._erased.table)
        else:
            body = self._joint(body)
            for old, new in self._swaps:
                body = body.replace(old, new)
        try:
            values = _NUMBERS.decode(body.join(self._json))
        except msgspec.DecodeError:
            return None
        slots = self._layout.slots
        if b"-" in lines and 0.0 in values and _MINUS_ZERO.search(lines) is not None:
            return None
        columns: dict[str, list[Any]] = {slot.name: values[place :: len(slots)] for place, slot in enumerate(slots)}
        columns["step"] = list(map(trunc, columns["step"]))  # twice as fast as int, which asks for more
        return columns

    def _by_words(self, lines: bytes) -> dict[str, list[Any]] | None:
        """Return the columns by the very expression that reads single lines; None if it does not read all of these."""
        if self._words is None:
            self._words = re.compile(f"^{self._layout.pattern()}\n", re.MULTILINE).findall
        rows = self._words(lines.decode("ascii"))
        if len(rows) != lines.count(b"\n"):
            return None
        slots = self._layout.slots
        return {slot.name: _column(slot, words) for slot, words in zip(slots, zip(*rows, strict=True), strict=True)}


def _reach(layout: Layout, number: str) -> Callable[[bytes, int], re.Match[bytes] | None]:
    """Return what finds how far lines of this layout reach; ``number`` is quick and says only roughly what one is.

    Whoever reads the values finds out which are numbers.
    """
    values = [
        _FEW_DIGITS
        if slot.field == "step" or slot.whole
        else value
        if slot.text or value == _WITH_COMMAS
        else number
        if value == PLAIN
        else f"(?!-){number}"
        for slot, value in zip(layout.slots, layout.values, strict=True)
    ]
    return re.compile(f"(?:{layout.pattern(values=values, group='(?:')}\n++)++".encode()).match


class Erased(NamedTuple):
    """How to erase all but numbers and one mark between them; ``lines`` finds the lines whose numbers bear it."""

    lines: Callable[[bytes, int], re.Match[bytes] | None]
    table: tuple[bytes, bytes]


def _erased(layout: Layout) -> Erased | None:
    """Return how one pass over the bytes leaves only numbers and commas, for numbers without an exponent.

    None where there is no character that stands once between any two numbers, or one of a number stands there.
    """
    between = layout.behind[:-1]
    joint = f"{layout.behind[-1]}\n{layout.text[: layout.slots[0].begin]}"
    if not layout.is_constant or any(slot.exponent for slot in layout.slots):
        return None
    if any(re.search("[-+.0-9]", one) for one in (*between, joint)):
        return None
    for mark in ",|;:=":
        if any(one.count(mark) != 1 for one in between) or joint.count(mark) > 1:
            continue
        kept = f"-+.0123456789{mark}" + ("" if mark in joint else "\n")
        table = bytes.maketrans(mark.encode() + b"\n", b",,")
        gone = bytes(code for code in range(256) if chr(code) not in kept)
        return Erased(_reach(layout, _LOOSE_PLAIN), (table, gone))
    return None


def _swaps(layout: Layout) -> list[tuple[bytes, bytes]] | None:
    """Return what has to become what, so that only numbers and commas are left; None if that is not certain.

    What stands between two numbers begins and ends with something that no number holds, and has no digit in it: so it
    can only be found between numbers, and whatever is replaced there by mistake (a part of a longer one) leaves no
    JSON. The longest go first.
    """
    if any(slot.text or value == _WITH_COMMAS for slot, value in zip(layout.slots, layout.values, strict=True)):
        return None
    swaps: dict[str, str] = {}
    for slot, between in zip(layout.slots[:-1], layout.behind, strict=False):
        new = f"{_scaled(slot)},"
        ends = between[:1] + between[-1:]
        if not between or re.search("[-+.eE]", ends) or re.search("[0-9\n]", between):
            return None
        if swaps.setdefault(between, new) != new:
            return None
    ordered = sorted(swaps.items(), key=lambda one: -len(one[0]))
    return [(old.encode(), new.encode()) for old, new in ordered]


def _scaled(slot: Slot) -> str:
    """Return what multiplies a number by its unit: 250 ms is 250e-3."""
    return f"e{slot.exponent}" if slot.exponent else ""


def _dates_free(head: str, *, keep_digits: bool) -> str:
    """Return a pattern for what stands before the step: free digits in dates, and anywhere if there is no rank."""
    if not keep_digits:
        return _digits_free(head)
    pattern, at = "", 0
    for date in _DATES.finditer(head):
        pattern += re.escape(head[at : date.start()]) + _digits_free(date[0])
        at = date.end()
    return pattern + re.escape(head[at:])


def _digits_free(text: str) -> str:
    return "".join("[0-9]" if "0" <= character <= "9" else re.escape(character) for character in text)


def _value(text: str, slot: Slot) -> str:
    if slot.text:
        return re.sub("[0-9]+", "[0-9]{1,20}+", re.escape(text[slot.begin : slot.end]))
    if slot.field == "step" or slot.whole:
        return _WHOLE
    if "," in text[slot.begin : slot.end]:
        return _WITH_COMMAS
    # a negative utilization is a program's word for "unknown"; behind an epoch's name a minus may be a hyphen
    return UNSIGNED if slot.field in {"mfu", "epoch"} else PLAIN


def _converter(slot: Slot) -> Callable[[str], Any]:
    if slot.text:
        return str
    if slot.field == "step":
        return int
    if slot.exponent:
        return partial(parse_number, exponent=slot.exponent)
    return _float


def _float(text: str) -> float:
    return float(text.replace(",", ""))


def _column(slot: Slot, words: Sequence[str]) -> list[Any]:
    """Return what the slot's converter makes of each word, at a fifth of the cost."""
    convert = _converter(slot)
    plain = "\n".join(words)
    if convert in (str, int) or (slot.exponent and "e" in plain.lower()):
        return list(map(convert, words))
    unit = _scaled(slot)
    return list(map(float, (plain.replace(",", "").replace("\n", f"{unit}\n") + unit).split("\n")))

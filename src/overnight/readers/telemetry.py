"""The telemetry line ``step: 12, loss: 3.210, dt: 0.25``, with anything before it and any fields behind it.

Only the line is looked at: no state, no clock. The exact common shape goes through one regular expression; everything
else through a general parse that is slower and reads the same.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Literal

from overnight.events import Record
from overnight.readers.fields import UNIT, exponent_of, field_of, field_value
from overnight.readers.glue import Segment, segments, touches
from overnight.readers.numbers import (
    CLOSERS,
    NUMBER,
    PLAIN,
    PRINTED,
    VALUE_END,
    WHOLE,
    parse_number,
    parse_whole,
    unwrapped,
)
from overnight.readers.shape import Shape, Slot, learn

if TYPE_CHECKING:
    from overnight.tail import Line

_EXACT = re.compile(rf"step: ([0-9]{{1,18}}), loss: ({PLAIN}), dt: ({PLAIN})").fullmatch

_SPACE = r"[ \t]{0,32}"
_COLON = rf"{_SPACE}[:=]{_SPACE}"
_STEP = re.compile(
    rf"(?:[sS]tep|STEP)(?:(?P<colon>{_COLON})|[ \t]{{1,16}})"
    rf"(?P<step>{WHOLE}(?:\.0+(?![0-9]))?)(?![\w%]|[.,][0-9])(?:/(?P<total>{WHOLE}))?(?:[ ]?\([0-9.]{{1,8}}%\))?"
)
# `step 5 loss 2.1`, and `step: 5 | loss 2.1`: a loss without a colon counts only directly behind the step
_LOSS_NEXT = re.compile(rf"{_SPACE}[,|;:-]?{_SPACE}[lL]oss(?:(?P<colon>{_COLON})|[ \t]{{1,8}}(?={PRINTED}))")

_WORD = r"[A-Za-z_][A-Za-z0-9_/.-]{0,63}"
_AMOUNT = rf"(?P<number>{PRINTED})(?:[ ]?(?P<unit>{UNIT})(?!{_SPACE}[:=]))?{VALUE_END}"
_TEXT = rf"(?P<text>(?!{_WORD}{_SPACE}[:=])[^\s,;|]*(?:,[0-9][^\s,;|]*)*)"
_VALUE = re.compile(rf"{_AMOUNT}|{_TEXT}")
_FIELD = re.compile(
    rf"(?<![A-Za-z0-9_/.-])(?P<key>{_WORD}(?:[ \t]{{1,4}}{_WORD}){{0,3}}){_COLON}(?:{_AMOUNT}|{_TEXT})"
    rf"|(?<![A-Za-z0-9_/.-])(?P<bare>lr|norm|grad_norm|dt|mfu)[ \t]{{1,8}}"
    rf"(?P<bare_number>{PRINTED})(?:[ ]?(?P<bare_unit>{UNIT}))?{VALUE_END}"
    rf"|(?<![\w.,+-])(?P<rate>{NUMBER})[ ]?(?P<of>(?:tok|tokens|samples)/s(?:ec)?)(?![A-Za-z0-9_/:=])"
)

_EVAL_WORDS = re.compile(
    r"(?<![A-Za-z/.])(?:eval|evaluate|evaluating|evaluation|val|valid|validate|validating|validation)(?![A-Za-z/.])"
    r"|(?<![A-Za-z/.])(?:test|testing)[\s\]]{1,8}$",
    re.IGNORECASE,
)
# sentences about a step that is over: they repeat its numbers and are no progress
_RETELLING = re.compile(
    r"(?<![A-Za-z])(?:checkpoint|saved|saving|resum\w{1,8}|restor\w{1,8}|load\w{1,8}|skip\w{0,8}|best|previous|prior"
    r"|ended|crashed|namespace|overflow|note|if|when)(?![A-Za-z])",
    re.IGNORECASE,
)
# What looks like a logger's name and is none: `checkpoint: step: 5, loss: 2`
_RETELLER = re.compile(r"(?<![A-Za-z])(?:checkpoint|ckpt|note|overflow|previous)[:=]? ?$", re.IGNORECASE)
# An update that a loss scaler or the script itself has left out says nothing about the weights.
_LEFT_OUT = re.compile(r"(?<![A-Za-z])skipp(?:ed|ing)(?![A-Za-z])", re.IGNORECASE)
_LOSSES = frozenset({"loss", "train_loss", "val_loss"})
_MOST_EXTRA = 256
_LONGEST_TEXT = 256
_MOST_SHAPES = 8  # a node's ranks, each of which prints its own tag
_MOST_LESSONS = 64  # compiling costs a millisecond: a log whose every line differs is read without


class Telemetry:
    """Reads telemetry lines; a line with ``step`` and ``loss`` is a training record, one with only ``val_loss`` "eval".

    Also read are ``=`` for the colon, ``|``, ``;`` or spaces for the comma, units behind the numbers (``250ms``,
    ``34.1%``), ``step 5/100``, and ``step 5 loss 2.1``.
    """

    name = "telemetry"
    always = frozenset({"step", "loss"})

    def __init__(self) -> None:
        """Begin without any learned shape."""
        self._shapes: list[Shape] = []
        self._may_learn = _MOST_LESSONS

    def __call__(self, line: Line, at: float, source: int) -> tuple[Record, ...] | None:
        """Return the records of ``line``; None when it holds no step with a loss."""
        text, offset, cut = line
        exact = _EXACT(text)
        if exact is not None and not cut:
            step, loss, dt_s = exact.groups()
            return (
                Record(
                    reader="telemetry",
                    source=source,
                    offset=offset,
                    at=at,
                    step=int(step),
                    loss=float(loss),
                    dt_s=float(dt_s),
                ),
            )
        for shape in self._shapes:
            match = shape.match(text)
            if match is not None and not cut:
                return (shape.record(match, offset, at, source),)
        if "step" not in text and "Step" not in text and "STEP" not in text:
            return None
        return self._parse(line, at, source)

    def snapshot(self) -> None:
        """Return None: a line needs no other line."""

    def restore(self, state: Any) -> None:
        """Nothing to restore."""

    def _parse(self, line: Line, at: float, source: int) -> tuple[Record, ...] | None:
        """Read a line whose shape is not known yet."""
        found = segments(line.text, _STEP.finditer(line.text))
        records: list[Record] = []
        for segment in found:
            record, slots = _read(segment, line, at, source, len(records))
            if record is None:
                continue
            records.append(record)
            if len(found) == 1 and slots is not None and self._may_learn:
                self._learn(line, record, slots)
        return tuple(records) or None

    def _learn(self, line: Line, record: Record, slots: list[Slot]) -> None:
        """Keep the shape of ``line`` at the front; the oldest of too many goes."""
        self._may_learn -= 1
        shape = learn(line.text, record, slots)
        if shape is not None:
            self._shapes = [shape, *self._shapes[: _MOST_SHAPES - 1]]


def _read(
    segment: Segment, line: Line, at: float, source: int, part: int
) -> tuple[Record, list[Slot] | None] | tuple[None, None]:
    """Return the record of one segment and its numbers' places (None if they are not all of it), or no record."""
    mark = segment.mark
    loss_next = _LOSS_NEXT.match(line.text, mark.end(), segment.end)
    if (mark["colon"] is None and loss_next is None) or _retold(segment, line.text):
        return None, None
    fields = _Fields(line.text, mark.end(), segment.end, loss_next)
    values = fields.values
    kind, loss_field = _kind(values, evaluating=_EVAL_WORDS.search(segment.before) is not None)
    if kind is None:
        return None, None
    losses = {name: values.pop(name) for name in _LOSSES if name in values}
    fields.extra.update((name, value) for name, value in losses.items() if name != loss_field and value is not None)
    uncertain = fields.open_end is not None and touches(line.text, fields.open_end, segment, cut=line.cut)
    glued = uncertain and fields.last in {"", loss_field}
    if uncertain and not glued:
        # Only the last number may be cut short or lengthened; a loss that stands clear of the seam is as good as any.
        values.pop(fields.last, None)
        fields.extra.pop(fields.last, None)
    if mark["total"] is not None:
        fields.extra["total_steps"] = float(mark["total"].replace(",", ""))
    record = Record(
        reader="telemetry",
        source=source,
        offset=line.offset,
        part=part,
        at=at,
        kind=kind,
        rank=segment.rank if fields.rank is None else fields.rank,
        step=parse_whole(mark["step"]),
        loss=losses[loss_field],
        extra=fields.extra or None,
        glued=glued,
        **values,
    )
    if kind == "eval" or uncertain or line.cut or mark["colon"] is None or not fields.learnable:
        return record, None
    slots = [Slot(*mark.span("step"), "step", "step")]
    if mark["total"] is not None:
        slots.append(Slot(*mark.span("total"), "", "total_steps"))
    for slot in fields.slots:
        if slot.field == loss_field:
            slots.append(slot._replace(field="loss"))
        else:
            slots.append(slot._replace(field="", key=slot.field) if slot.field in _LOSSES else slot)
    return record, slots


def _retold(segment: Segment, text: str) -> bool:
    """Say whether the line only speaks of a step: of one saved, resumed from, skipped, or of what would be done."""
    if _RETELLING.search(segment.sentence) or _RETELLER.search(segment.before):
        return True
    return _LEFT_OUT.search(text, segment.mark.end(), segment.end) is not None


def _kind(values: dict[str, float | None], *, evaluating: bool) -> tuple[Literal["train", "eval"] | None, str]:
    """Return whether the fields are of training or of an evaluation (None: of neither), and which is the loss."""
    order: tuple[tuple[Literal["train", "eval"], str], ...]
    if evaluating:
        order = (("eval", "val_loss"), ("eval", "loss"), ("eval", "train_loss"))
    else:
        # `train_loss` beside `val_loss` is how evaluations print both
        order = (("train", "loss"), ("eval", "val_loss"), ("train", "train_loss"))
    for kind, name in order:
        if name in values:
            return kind, name
    return None, ""


class _Fields:
    """The fields of one record's text: known ones as floats in ``values``, the others in ``extra``.

    ``open_end`` is where the last value ends if something right behind it could still belong to it, otherwise None. Of
    a field that stands twice the first counts: the second belongs to whatever was glued in. ``slots`` are the places of
    the numbers behind keys, ``last`` names the last field, and ``learnable`` says that nothing else was read.
    """

    def __init__(self, text: str, begin: int, end: int, loss_next: re.Match[str] | None) -> None:
        self.values: dict[str, float | None] = {}
        self.extra: dict[str, float | str] = {}
        self.rank: int | None = None
        self.open_end: int | None = begin
        self.last = ""
        self.slots: list[Slot] = []
        self.learnable = True
        if loss_next is not None:
            self.learnable = loss_next["colon"] is not None
            value = _VALUE.match(text, loss_next.end(), end)
            if value is not None:
                self._take("loss", value)
                begin = value.end()
        for match in _FIELD.finditer(text, begin, end):
            if match["key"] is not None:
                self._take(match["key"], match)
                continue
            self.learnable = False
            if match["rate"] is not None:
                self._keep("tokens_per_s" if match["of"][0] == "t" else "samples_per_s", match["rate"], None)
                self.open_end = None
            else:
                self._keep(field_of(match["bare"]), match["bare_number"], match["bare_unit"])
                self.open_end = None if match["bare_unit"] or match["bare_number"][-1] in CLOSERS else match.end()

    def _take(self, key: str, match: re.Match[str]) -> None:
        """Keep what stands behind ``key``, known or not."""
        number, unit = match["number"], match["unit"]
        self.open_end = None if unit or (number and number[-1] in CLOSERS) else match.end()
        field = field_of(key)
        self.last = key
        if field == "rank":
            self.rank = parse_whole(number)
            self.learnable = False
        elif field:
            name = self._keep(field, number, unit)
            exponent = exponent_of(field, unit)
            found = None if number is None else unwrapped(number)
            if found is not None and exponent is not None:
                begin = match.start("number")
                slot = Slot(begin + found.start("number"), begin + found.end("number"), name, key, exponent)
                self._learn(slot, parse_number(found["number"]))
        elif len(self.extra) < _MOST_EXTRA and key not in self.extra:
            begin, end = match.start("text" if number is None else "number"), match.end()
            value = parse_number(number) if unit is None else None
            if value is None:
                end = min(end, begin + _LONGEST_TEXT)
            self.extra[key] = match.string[begin:end] if value is None else value
            self._learn(Slot(begin, end, "", key, text=value is None), value)

    def _learn(self, slot: Slot, value: float | None) -> None:
        """Note the place of a value, if its shape will fit others of its kind."""
        self.slots.append(slot)
        if value is not None and not math.isfinite(value):
            self.learnable = False

    def _keep(self, field: str, number: str | None, unit: str | None) -> str:
        """Keep the value of a known field and return its name in ``Record``."""
        name = "dt_s" if field == "dt_ms" else field
        self.values.setdefault(name, field_value(field, number, unit))
        self.last = name
        return name

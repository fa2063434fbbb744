"""nanoGPT's lines: ``iter 5: loss 3.1484, time 14.01ms, mfu 0.01%`` and ``step 40: train loss 3.13, val loss 3.09``.

Only the line is looked at: no state, no clock. ``step`` is nanoGPT's word for an evaluation, ``iter`` for an optimizer
step; its ``mfu -100.00%`` of the first iterations means "unknown".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from overnight.events import Record
from overnight.readers.fields import LOSSES, PLACE, field_of, field_value, is_measured
from overnight.readers.glue import Segment, segments, touches
from overnight.readers.numbers import CLOSERS, PLAIN, PRINTED, VALUE_END, parse_printed
from overnight.readers.pairs import AMOUNT, measured

if TYPE_CHECKING:
    from overnight.tail import Line

_EXACT = re.compile(
    rf"iter ([0-9]{{1,18}}): loss ({PLAIN}), time ([0-9]{{1,20}}+\.[0-9]{{1,20}}+)ms, mfu ({PLAIN})%"
).fullmatch

_MARK = re.compile(
    r"iter[ ]{1,16}(?P<iter>[0-9]{1,18}):[ ]{1,16}loss(?=[ \d])"
    r"|step[ ]{1,16}(?P<step>[0-9]{1,18}):[ ]{1,16}train loss(?=[ \d])"
)
_LOSS = re.compile(rf"[ ]{{1,8}}({PRINTED}){VALUE_END}")
_FIELD = re.compile(
    rf",[ ]{{0,8}}(?P<key>[A-Za-z_][A-Za-z0-9_/]{{0,63}}(?:[ ][A-Za-z_][A-Za-z0-9_/]{{0,63}})?)[ ]{{1,8}}"
    rf"{AMOUNT}(?P<more>[ ][A-Za-z0-9µμ]|[ ]?[(])?"
)


class NanoGPT:
    """Reads the training and evaluation lines of nanoGPT and of its children that add fields behind."""

    name = "nanogpt"
    always = frozenset({"step", "loss", "dt_s"})

    def __call__(self, line: Line, at: float, source: int) -> tuple[Record, ...] | None:
        """Return the records of ``line``; None when it is not nanoGPT's."""
        text, offset, cut = line
        exact = _EXACT(text)
        if exact is not None and not cut:
            step, loss, time_ms, mfu = exact.groups()
            return (
                Record(
                    reader="nanogpt",
                    source=source,
                    offset=offset,
                    at=at,
                    step=int(step),
                    loss=float(loss),
                    dt_s=float(time_ms + "e-3"),
                    mfu=None if mfu[0] == "-" else float(mfu),
                ),
            )
        if "loss" not in text:
            return None
        records: list[Record] = []
        for segment in segments(text, _MARK.finditer(text)):
            record = _read(segment, line, at, source, len(records))
            if record is not None:
                records.append(record)
        return tuple(records) or None

    def snapshot(self) -> None:
        """Return None: a line needs no other line."""

    def restore(self, state: Any) -> None:
        """Nothing to restore."""


def _open_end(match: re.Match[str]) -> int | None:
    """Return where a field ends if something right behind it could still belong to it, otherwise None."""
    if match["per"] is not None:
        return match.end("per")
    return match.end("number") if match["unit"] is None and match["number"][-1] not in CLOSERS else None


def _read(segment: Segment, line: Line, at: float, source: int, part: int) -> Record | None:
    """Return the record of one segment; None for a ``step`` line without a ``val loss``."""
    text, mark = line.text, segment.mark
    values: dict[str, Any] = {}
    extra: dict[str, float | str] = {}
    per_device = False
    found = _LOSS.match(text, mark.end(), segment.end)
    loss = parse_printed(found[1]) if found is not None else None
    open_end = mark.end() if found is None else None if found[1][-1] in CLOSERS else found.end()
    last = "loss"
    for match in _FIELD.finditer(text, mark.end(), segment.end):
        key, number = match["key"], match["number"]
        field, unit = measured(field_of(key), match, "")
        open_end = _open_end(match)
        # `3.1s for 10 iterations`, `2 min 3 s` say nothing that is certain
        doubtful = match["more"] not in {None, " (", "("} and is_measured(field) and match["per"] is None
        value = None if doubtful else field_value(field, number, unit)
        per_device |= field in {"tokens_per_s_device", "samples_per_s_device"}
        if not field or field == "rank":
            last = key
            extra.setdefault(key, f"{number}{unit or ''}" if value is None else value)
        else:
            last = PLACE.get(field, field)
            values.setdefault(last, value)
    evaluating = mark["iter"] is None
    uncertain = open_end is not None and touches(text, open_end, segment, cut=line.cut)
    glued = uncertain and last == ("val_loss" if evaluating else "loss")
    if uncertain and not glued:
        # Only the last number may be cut short or lengthened; a loss that stands clear of the seam is as good as any.
        values.pop(last, None)
        extra.pop(last, None)
    if evaluating and "val_loss" not in values:
        return None
    if evaluating:
        values["train_loss"], loss = loss, values.pop("val_loss")
    extra |= {other: value for other in values.keys() & set(LOSSES) if (value := values.pop(other)) is not None}
    return Record(
        reader="nanogpt",
        source=source,
        offset=line.offset,
        part=part,
        at=at,
        kind="eval" if evaluating else "train",
        rank=segment.rank,
        step=int(mark["iter"] or mark["step"]),
        loss=loss,
        extra=extra or None,
        glued=glued,
        per_device=per_device,
        **values,
    )

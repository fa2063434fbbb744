"""The general reader: any line with a step word and numbers with names, ``step: 12, loss: 3.210, dt: 0.25`` and others.

Only the line is looked at: no state, no clock. The exact common shape goes through one regular expression; everything
else through a general parse that is slower and reads the same. What it cannot read rightly it leaves alone: shapes in
which the step has no name, or that take several lines, are for readers of their own.
"""

from __future__ import annotations

import math
import re
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from overnight.events import Record
from overnight.readers.asides import SPLIT_NAMES, is_headed, is_piece, may_be_apart, names_split, only_tells
from overnight.readers.counters import MICRO, is_evaluation, is_left_out, is_retold, is_said, may_count, step_marks
from overnight.readers.fields import EVAL_WORDS, LOSSES, PLACE, RIVALS
from overnight.readers.gathering import Group, gather, has_loss
from overnight.readers.glue import segments, touches
from overnight.readers.numbers import PLAIN, parse_whole
from overnight.readers.shape import Layout, Shape, Slot, learn

if TYPE_CHECKING:
    from overnight.batches import Batch
    from overnight.readers.pairs import Found
    from overnight.tail import Line

_EXACT = re.compile(rf"step: ([0-9]{{1,18}}), loss: ({PLAIN}), dt: ({PLAIN})").fullmatch

_SEPARATED = re.compile(r"[\s,|;:()\[\]-]*(?:(?:train|training)[\s,|;:()\[\]-]*)?")
_SEPARATORS = frozenset("|,;-[(")
_NOTHING = re.compile(r"(?i:none|null|n/?a|-|)")
_MOST_EXTRA = 256
_MOST_RANKS = 10**9
_MOST_SHAPES = 8  # a node's ranks, each of which prints its own tag
_MOST_LESSONS = 64  # compiling costs a millisecond: a log whose every line differs is read without


@cache
def _exact_shape() -> Shape:
    """Return the shape of the lines that ``_EXACT`` reads."""
    text = "step: 1, loss: 2.0, dt: 3.0"
    record = Record(reader="keyvalue", step=1, loss=2.0, dt_s=3.0)
    slots = (Slot(6, 7, "step", "step"), Slot(15, 18, "loss", "loss"), Slot(24, 27, "dt_s", "dt"))
    return Shape(record, Layout(text, slots, keep_digits=False))


class KeyValue:
    """Reads lines with a step word; one with a loss is a training record, one with only ``val_loss`` "eval".

    Read are ``:``, ``=`` or spaces between name and number, any separators between the fields, units behind the numbers
    or in the names (``250ms``, ``time (ms): 250``, ``34.1%``), ``step 5/100``, fields before the step, and lines
    without a loss that have a time or a rate, and a total or another figure of a step.
    """

    name = "keyvalue"
    always = frozenset({"step", "loss"})

    def __init__(self) -> None:
        """Begin without any learned shape, before any training record."""
        self._trained = False
        self._shapes: list[Shape] = []
        self._may_learn = _MOST_LESSONS

    def __call__(self, line: Line, at: float, source: int) -> tuple[Record, ...] | None:
        """Return the records of ``line``; None when it holds no step with a loss or a time."""
        text, offset, cut = line
        exact = _EXACT(text)
        if exact is not None and not cut:
            self._trained = True
            step, loss, dt_s = exact.groups()
            return (
                Record(
                    reader="keyvalue",
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
        if not may_count(text):
            return None
        return self._parse(line, at, source)

    def block(self, block: bytes, begin: int, start: int, at: float, source: int) -> tuple[Batch, int] | None:
        """Return the records of all lines of one shape from ``begin`` of ``block`` on; see ``Shape.run``."""
        for shape in (*self._shapes, _exact_shape()):
            found = shape.run(block, begin, start, at, source)
            if found is not None:
                self._trained = True
                return found
        return None

    def snapshot(self) -> bool | None:
        """Return True once there was a training record that nothing sets apart; None before."""
        return self._trained or None

    def restore(self, state: Any) -> None:
        """Go on from a snapshot."""
        self._trained = state is True

    def _parse(self, line: Line, at: float, source: int) -> tuple[Record, ...] | None:
        """Read a line whose shape is not known yet."""
        marks = step_marks(line.text)
        if all(is_said(mark) for mark in marks):
            return None
        groups = gather(line.text, segments(line.text, marks))
        records: list[Record] = []
        for group in groups:
            record = _read(group, line, at, source, len(records), trained=self._trained)
            if record is None:
                continue
            records.append(record)
            self._trained = self._trained or (record.kind == "train" and not group.aside)
            if len(groups) == 1 and self._may_learn and group.slots:
                self._learn(line, record, group.slots)
        return tuple(records) or None

    def _learn(self, line: Line, record: Record, slots: list[Slot]) -> None:
        """Keep the shape of ``line`` at the front; the oldest of too many goes."""
        self._may_learn -= 1
        shape = learn(line.text, record, slots)
        if shape is not None:
            self._shapes = [shape, *self._shapes[: _MOST_SHAPES - 1]]


def _read(group: Group, line: Line, at: float, source: int, part: int, *, trained: bool) -> Record | None:
    """Return the record of one group, or None when it is no progress; ``trained``: other lines are the training's."""
    text, segment, last = line.text, group.step.segment, group.parts[-1]
    if is_retold(group.before, group.sentence) or is_left_out(text, group.start, last.segment.end):
        return None
    evaluating, apart = _is_evaluating(text, group), _is_apart(text, group)
    group.aside = apart or only_tells(group.before, loss=has_loss(group.found))
    if group.aside and trained and not (evaluating or apart):
        return None
    _drop_micro_times(group)
    kind, loss = _loss(group, evaluating=evaluating or (apart and trained))
    if kind is None or not _is_progress(text, group, loss):
        return None
    open_end, ending = last.fields.open_end, last.fields.last
    uncertain = open_end is not None and touches(text, open_end, last.segment, cut=line.cut)
    glued = uncertain and (ending is None or ending is loss)
    if uncertain and not glued:
        # Only the last number may be cut short or lengthened; a loss that stands clear of the seam is as good as any.
        group.found = [one for one in group.found if one is not ending]
    values = _Values(group, loss)
    record = Record(
        reader="keyvalue",
        source=source,
        offset=line.offset,
        part=part,
        at=at,
        kind=kind,
        rank=segment.rank if values.rank is None else values.rank,
        step=parse_whole(segment.mark["step"]),
        extra=values.extra or None,
        glued=glued,
        per_device=values.per_device,
        **values.known,
    )
    if kind == "train" and not (uncertain or line.cut or group.aside) and values.exact:
        group.slots = _slots(text, group, values.slots)
    return record


def _drop_micro_times(group: Group) -> None:
    """Take the time of one iteration for what it is where a step takes several."""
    if group.step.counter.rank > MICRO and len(group.parts) > 1:
        micro = tuple(one.counter.word for one in group.parts if one is not group.step)
        group.found = [
            one._replace(field="") if PLACE.get(one.field) == "dt_s" and one.key.lower().startswith(micro) else one
            for one in group.found
        ]


def _is_evaluating(text: str, group: Group) -> bool:
    """Say whether the words before the loss, fields apart, tell of an evaluation."""
    if is_evaluation(group.outside):
        return True
    until = _until_loss(group)
    return until > 0 and any(is_evaluation(part.fields.words(text, until)) for part in group.parts)


def _until_loss(group: Group) -> int:
    """Return where the first loss behind the step begins; 0 without one."""
    return min((one.start for one in group.found if one.field in LOSSES and one.start > group.start), default=0)


def _is_apart(text: str, group: Group) -> bool:
    """Say whether a heading, or the name of a part of the data, tells of an evaluation if the log trains as well."""
    if not may_be_apart(text):
        return False
    if is_headed(group.before) or names_split(group.outside) or any(_names_evaluation(one) for one in group.found):
        return True
    until = _until_loss(group)
    return until > 0 and any(is_piece(part.fields.between(text, until)) for part in group.parts)


def _names_evaluation(one: Found) -> bool:
    """Say whether a field names the part of the data, as ``split=dev`` does, and it is not the training's."""
    return one.text and one.key.lower() in SPLIT_NAMES and str(one.value).strip("'\"()[]").lower() in EVAL_WORDS


def _loss(group: Group, *, evaluating: bool) -> tuple[Literal["train", "eval"] | None, Found | None]:
    """Return whether the fields are of training or of an evaluation (None: of neither), and which is the loss."""
    losses: dict[str, Found] = {}
    for one in group.found:
        if one.field in LOSSES:
            losses.setdefault(one.field, one)
    if evaluating:
        found = losses.get("val_loss") or next((losses[name] for name in LOSSES if name in losses), None)
        return ("eval" if found else None), found
    # LOSSES has `train_loss` behind `val_loss`: beside it, it is how evaluations print both
    names = [name for name in LOSSES if name in losses]
    if not names:
        return "train", None
    if names[0] == "val_loss":
        return "eval", losses["val_loss"]
    training = [losses[name] for name in names if name != "val_loss"]
    return "train", next((one for one in training if one.value is not None), training[0])


def _is_progress(text: str, group: Group, loss: Found | None) -> bool:
    """Say whether a step with these fields is surely a line of progress and no sentence or configuration."""
    mark, counter = group.step.segment.mark, group.step.counter
    if loss is None:
        if not _is_unmistakable(group) or is_evaluation(text[group.start : group.parts[-1].segment.end]):
            return False
    elif loss.value is None and not counter.plain and not _NOTHING.fullmatch(text[loss.begin : loss.end]):
        return False
    if mark["colon"] is not None:
        return True
    if loss is not None and loss.start < group.start:
        before = text[max(0, group.start - 16) : group.start].rstrip()[-1:]
        return mark["total"] is not None or (before in _SEPARATORS and "update" not in counter.word)
    begin = group.parts[-1].segment.mark.end()
    following = [one.start for one in group.parts[-1].fields.found]
    return bool(following) and _SEPARATED.fullmatch(text, begin, following[0]) is not None


def _is_unmistakable(group: Group) -> bool:
    """Say whether fields without a loss are those of a step: a time or a rate, and a total or another such figure."""
    readable = [one for one in group.found if one.field and one.value is not None and one.start > group.start]
    timed = {PLACE[one.field] for one in readable if one.field in PLACE and one.field != "spent"}
    timed |= {"dt_s" for one in group.found if one.field == "step_avg"}  # nan until there is something to average
    others = {one.field for one in readable if one.field in {"lr", "grad_norm", "mfu", "tokens_total"}}
    if not timed or group.step.counter.rank < MICRO:
        return False
    return group.step.segment.mark["total"] is not None or (len(timed | others) > 1 and not group.step.counter.plural)


class _Values:
    """What fills a record: ``known`` fields, ``extra``, the ``rank``, and the ``slots`` of the numbers.

    Of a field that stands twice the first counts: the second belongs to whatever was glued in. ``exact`` says that all
    numbers are plain ones.
    """

    def __init__(self, group: Group, loss: Found | None) -> None:
        self.known: dict[str, Any] = {}
        self.extra: dict[str, float | str] = {}
        self._places: dict[str, int] = {}
        self.rank: int | None = None
        self.slots: list[Slot] = []
        self.exact = True
        self.per_device = False
        self._count(group)
        best = _best(group.found)
        seen: set[str] = set()
        for one in group.found:
            if not one.field:
                self._keep(one.key, one)
            elif one.field == "rank":
                self.rank = _rank(one.value)
            elif one.field in seen:
                continue
            elif one.field in LOSSES:
                self._know("loss", one) if one is loss else self._keep(_spelled(one), one)
            elif one.field not in PLACE:
                self._know(one.field, one)
            elif best[PLACE[one.field]] is one:
                self._know(PLACE[one.field], one)
            else:
                self._keep(one.key, one)
            seen.add(one.field)
        rate = best.get("tokens_per_s") or best.get("samples_per_s")
        self.per_device = rate is not None and rate.value is not None and rate.field.endswith("_device")
        # in the order of the line, as a learned shape has it
        self.extra = dict(sorted(self.extra.items(), key=lambda item: self._places[item[0]]))

    def _know(self, name: str, one: Found) -> None:
        self.known[name] = one.value
        self._slot(name, one)

    def _keep(self, key: str, one: Found) -> None:
        if one.value is None or key in self.extra or len(self.extra) >= _MOST_EXTRA:
            return
        self.extra[key] = one.value
        self._places[key] = one.begin
        self._slot("", one._replace(key=key))

    def _slot(self, name: str, one: Found) -> None:
        if isinstance(one.value, float) and not math.isfinite(one.value):
            self.exact = False
        if one.exact:
            self.slots.append(Slot(one.begin, one.end, name, one.key, one.exponent, one.text, whole=one.whole))

    def _count(self, group: Group) -> None:
        """Keep what the step words count besides the step."""
        for part in group.parts:
            mark = part.segment.mark
            if part is not group.step:
                self._number(mark, "step", part.counter.word)
                continue
            self.slots.append(Slot(*mark.span("step"), "step", "step"))
            if mark["total"] is not None:
                self._number(mark, "total", "total_steps")

    def _number(self, mark: re.Match[str], group: str, key: str) -> None:
        self.extra[key] = float(mark[group].replace(",", ""))
        self._places[key] = mark.start(group)
        self.slots.append(Slot(*mark.span(group), "", key, whole=True))


def _rank(value: float | str | None) -> int | None:
    """Return a printed rank; None where it is none, or a number that no machine room has."""
    return int(value) if isinstance(value, float) and value.is_integer() and 0 <= value < _MOST_RANKS else None


def _spelled(loss: Found) -> str:
    """Return the name under which a loss that is not the step's is kept: the usual ones without spaces."""
    return loss.field if loss.field in {"loss", "train_loss", "val_loss"} else loss.key


def _best(found: list[Found]) -> dict[str, Found]:
    """Return which of several fields for the same place in the record fills it."""
    best: dict[str, Found] = {}
    for one in found:
        place = PLACE.get(one.field)
        if place and (place not in best or _preference(one, place) < _preference(best[place], place)):
            best[place] = one
    return best


def _preference(one: Found, place: str) -> tuple[bool, int]:
    return one.value is None, RIVALS[place].index(one.field)


def _slots(text: str, group: Group, slots: list[Slot]) -> list[Slot]:
    """Return ``slots`` in the order of the line, with those of numbers that are read over: averages, z-scores."""
    begin = min(slot.begin for slot in slots)
    over = {span for part in group.parts for span in part.fields.unkept(text)}
    over |= {part.segment.mark.span("percent") for part in group.parts if part.segment.mark["percent"]}
    skipped = [Slot(*span, "", f"({span[0]})", text=True, over=True) for span in over if span[0] > begin]
    return sorted([*slots, *skipped])

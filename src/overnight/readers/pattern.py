"""``--pattern``: the user's own regular expression with named groups. It is the only judge of what is a record.

A line is at most 64 KiB (``tail`` caps it), which bounds the time of every pattern without nested repetition. One such
as ``(a+)+b`` can still take for ever on a line that nearly matches; write possessive ``a++`` or atomic ``(?>...)``
groups where two repetitions meet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from overnight.errors import UsageError
from overnight.events import Record
from overnight.quantities import RefusedError, compiled, quoted
from overnight.readers.fields import field_value
from overnight.readers.numbers import parse_number, parse_whole
from overnight.readers.prefix import strip_prefix

if TYPE_CHECKING:
    import re

    from overnight.tail import Line

_FLOATS = frozenset(
    {"loss", "dt", "dt_s", "dt_ms", "tokens", "tokens_per_s", "samples_per_s", "lr", "grad_norm", "mfu", "epoch"}
)
_FIELD_OF = {"dt": "dt_s", "dt_ms": "dt_s"}
_MOST_RECORDS = 64


class Pattern:
    """Reads every match of a regular expression in a line as one record.

    Named groups: ``step``, ``loss``, ``dt`` or ``dt_s`` (seconds), ``dt_ms``, ``tokens``, ``tokens_per_s``,
    ``samples_per_s``, ``lr``, ``grad_norm``, ``mfu`` (percent), ``epoch``, ``rank``; any other goes to ``extra``.
    """

    name = "pattern"

    def __init__(self, regex: str) -> None:
        """Compile ``regex``; raises ``UsageError`` when it is none or names neither a step nor a loss."""
        try:
            self._regex = compiled(regex)
        except RefusedError as error:
            raise UsageError(f"--pattern {quoted(regex)} {error}") from error
        self.always = frozenset(self._regex.groupindex) & {"step", "loss"}

    def __call__(self, line: Line, at: float, source: int) -> tuple[Record, ...] | None:
        """Return a record for each match in ``line`` that has a readable step or loss; None when there is none."""
        records: list[Record] = []
        matches = self._regex.finditer(line.text)
        match = next(matches, None)
        while match is not None and len(records) < _MOST_RECORDS:
            following = next(matches, None)
            # where a number would touch the next match, or the place where the line was cut
            edge = following.start() if following is not None else len(line.text) if line.cut else None
            record = _read(match, line)
            if record is not None:
                glued = edge is not None and any(match.end(name) == edge for name in self._regex.groupindex)
                records.append(replace(record, source=source, part=len(records), at=at, glued=glued))
            match = following
        return tuple(records) or None

    def snapshot(self) -> None:
        """Return None: a line needs no other line."""

    def restore(self, state: Any) -> None:
        """Nothing to restore."""


def _read(match: re.Match[str], line: Line) -> Record | None:
    """Return what one match says, or None when neither step nor loss can be read."""
    values: dict[str, float] = {}
    extra: dict[str, float | str] = {}
    step: int | None = None
    rank: int | None = None
    for name, text in match.groupdict().items():
        if text is None:
            continue
        if name == "step":
            step = parse_whole(text.strip())
        elif name == "rank":
            rank = parse_whole(text.strip())
        elif name in _FLOATS:
            value = field_value("dt_ms" if name == "dt_ms" else _FIELD_OF.get(name, name), text.strip(), None)
            if value is not None:
                values.setdefault(_FIELD_OF.get(name, name), value)
        else:
            number = parse_number(text.strip())
            extra[name] = text if number is None else number
    if step is None and values.get("loss") is None:
        return None
    return Record(
        reader="pattern",
        offset=line.offset,
        rank=strip_prefix(line.text)[0] if rank is None else rank,
        step=step,
        extra=extra or None,
        **values,  # type: ignore[arg-type]  # its keys are names of float fields, which the checker cannot know
    )

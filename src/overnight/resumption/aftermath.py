"""What came of a restart, for the supervisor: the attempt's first records beside what metrics.db has of those before.

Reads, and says the fact ``overlap``; what a verdict leads to is decided elsewhere. Earlier values are read when the
attempt's first record comes, and let go of when there is nothing more to compare. From then on it costs one look.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import inf
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec

from overnight.batches import Batch, Entry
from overnight.errors import FolderError
from overnight.events import Record, Verdict, jsonable
from overnight.history.layout import Layout, Stand
from overnight.history.reading import Sheet
from overnight.history.table import NUMBERS
from overnight.history.views import Views
from overnight.resumption.overlap import Earlier, Noticed, Overlap, Resuming, comparable

BEFORE: Final = 500
"""Records before the attempt's first step that say what is usual."""

BESIDE: Final = 1500
"""Steps from there on that can be compared."""

METRICS: Final = 64
"""Metrics that are compared; a log may print a new key with every line."""

Place = tuple[int, int, int]
Piece = Sequence[Entry] | Batch


class Aftermath:
    """One attempt after a restart. To be made before anything of the attempt's log is read by this supervisor.

    A supervisor that comes in the middle makes it from the same facts: what is stored of the attempt is taken first.
    """

    def __init__(
        self,
        metrics_db: Path,
        *,
        attempt: int,
        place: tuple[int, int],
        resume: Mapping[str, Any] | None,
        saved: int | None,
        told: bool,
        say: Callable[..., None],
    ) -> None:
        """``place``: (source, offset) where the attempt's log begins. ``resume``: the attempt's fact of that name.

        ``saved``: the newest step that earlier attempts were seen to save, None for none. ``told``: the journal has
        the attempt's fact ``overlap``, which is not said again; verdicts are found again, for one may have been lost.
        ``say("overlap", ...)`` writes a fact.
        """
        self.metrics_db = metrics_db
        self.attempt = attempt
        self.place = place
        self.resuming = _resuming(resume or {}, saved)
        self.told = told
        self.say = say
        self._overlap: Overlap | None = None
        self._rank: int | None = None
        self._taken: Place = (-1, -1, -1)
        self._over = attempt < 2  # the first one comes after nothing

    def over(self) -> bool:
        """Say whether nothing that is still to come matters."""
        return self._over

    def take(self, pieces: Iterable[Piece]) -> list[Verdict]:
        """Take what a monitor's outcome holds, each piece once and in order; return what it makes certain."""
        found: list[Verdict] = []
        if self._over:
            return found
        for piece in pieces:
            for record in _records(piece, self.attempt):
                found += self._take(record)
                if self.over():
                    return found
        return found

    def finish(self) -> list[Verdict]:
        """The attempt has ended and its log is read to its end: say what came of it, unless that is done."""
        if self._over:
            return []
        # This supervisor may have seen nothing of it, and the one before all.
        found = self._come_in(None) if self._overlap is None else []
        return found if self.over() else [*found, *self._close()]

    # -- its records -------------------------------------------------------------------------------------------------

    def _take(self, record: Record) -> list[Verdict]:
        if record.kind != "train" or record.step is None or record.glued or record.early or record.strange:
            return []
        found = self._come_in(record.step) if self._overlap is None else []
        if self.over() or (record.source, record.offset, record.part) <= self._taken:
            return found
        return [*found, *self._add(record.rank, record.step, _values(record), record.at)]

    def _come_in(self, step: int | None) -> list[Verdict]:
        """Read what was before the attempt, and what is stored of it; ``step`` is the first that is not, if any."""
        try:
            with Views(self.metrics_db) as views, views.failing():
                sheets = views.sheets()
                names = _names(sheets, self.attempt)
                layout = Layout([sheet for sheet in sheets if sheet.key.attempt < self.attempt], "train")
                self._rank = layout.pieces[-1].sheet.key.rank if layout.pieces else None
                own = _own(sheets, self.attempt, self._rank, names)
                earlier = read_earlier(layout, names, own[0][2] if own else step)
        except FolderError:
            # It is rebuilt from the log, by the next supervisor; without it there is nothing to compare.
            self._over = True
            return []
        self._overlap = Overlap(earlier=earlier, resuming=self.resuming)
        found: list[Verdict] = []
        for place, at, stored, values in own:
            self._taken = place
            found += self._add(self._rank, stored, values, at)
            if self.over():
                break
        return found

    def _add(self, rank: int | None, step: int, values: Mapping[str, float], at: float) -> list[Verdict]:
        overlap = self._overlap
        if overlap is None or (rank or 0) != (self._rank or 0):
            return []
        found = [self._verdict(one, at) for one in overlap.add(step, values)]
        return [*found, *self._close(at)] if overlap.over() else found

    # -- what came of it ---------------------------------------------------------------------------------------------

    def _close(self, at: float | None = None) -> list[Verdict]:
        overlap, self._overlap, self._over = self._overlap, None, True
        if overlap is None:
            return []
        summary, noticed = overlap.finish()
        if summary is not None and not self.told:
            self.told = True
            said = jsonable(msgspec.structs.asdict(summary))
            self.say("overlap", attempt=self.attempt, since=self.resuming.since, **said)
        return [self._verdict(one, at) for one in noticed]

    def _verdict(self, one: Noticed, at: float | None) -> Verdict:
        return Verdict(
            rule="resume",
            severity="warn",
            action="alert",
            text=one.text,
            step=one.step,
            at=at,
            attempt=self.attempt,
            source=self.place[0],
            offset=self.place[1],
            part=one.part,
            evidence=one.evidence,
        )


def _resuming(resume: Mapping[str, Any], saved: int | None) -> Resuming:
    """Return what the fact says; what somebody has edited says nothing."""
    path, step, skip = resume.get("path"), resume.get("step"), resume.get("skip")
    # Every save was passed over: it is meant to begin anew.
    anew = path is None and (saved is None or bool(resume.get("passed_over")))
    since = step if isinstance(step, int) and path is not None else None
    spans = skip if isinstance(skip, (list, tuple)) else ()
    begins = [one[0] for one in spans if isinstance(one, (list, tuple)) and one and isinstance(one[0], int)]
    ahead = [first for first in begins if since is None or first > since]
    return Resuming(since=since, saved=saved, resumes=not anew, skip_from=min(ahead, default=None))


def _records(piece: Piece, attempt: int) -> Iterator[Record]:
    """Yield the records of a piece that are of an attempt, one by one: who has enough asks for no more."""
    if isinstance(piece, Batch):
        if piece.attempt == attempt:
            yield from map(piece.record, range(len(piece)))
    else:
        yield from (entry.record for entry in piece if entry.attempt == attempt)


def _values(record: Record) -> dict[str, float]:
    """Return the numbers of a record by the names that the views have for them."""
    found = {name: float(value) for name in NUMBERS if (value := getattr(record, name)) is not None}
    for key, value in (record.extra or {}).items():
        if isinstance(value, (int, float)):
            found[f".{key}" if key in NUMBERS else key] = float(value)
    return {name: value for name, value in found.items() if comparable(name)}


# -- metrics.db ------------------------------------------------------------------------------------------------------


def _names(sheets: Sequence[Sheet], attempt: int) -> list[str]:
    """Return the columns of the attempts up to one that are compared; keys as printed with a dot before them."""
    own = [sheet for sheet in sheets if sheet.key.attempt <= attempt and sheet.key.kind == "train"]
    known = {name: None for sheet in own[-METRICS:] for name in sheet.names()}
    keys = [name for name in known if name[0] == "." and comparable(name)]
    return [*(name for name in NUMBERS if name in known and comparable(name)), *keys][:METRICS]


def _plain(name: str) -> str:
    return name if name in NUMBERS or name[1:] in NUMBERS else name[1:]


Row = tuple[Place, float, int, dict[str, float]]


def _rows(sheet: Sheet, rows: range, names: Sequence[str]) -> Iterator[Row]:
    """Yield (place, arrival, step, values) of those of some records of a sheet that print a step."""
    places = sheet.places()
    steps, absent = places.steps
    columns = [(_plain(name), column) for name in names if (column := sheet.column(name)) is not None]
    for row in rows:
        if absent is not None and absent[row]:
            continue
        values = {name: said[row] for name, (said, missing) in columns if missing is None or not missing[row]}
        place = (sheet.key.source, places.offsets[row], places.parts[row])
        yield place, places.ats[row], int(steps[row]), values


def _own(sheets: Sequence[Sheet], attempt: int, rank: int | None, names: Sequence[str]) -> list[Row]:
    """Return what is stored of the attempt, in the order of the log; no more than what could be compared."""
    found: list[Row] = []
    for sheet in sheets:
        key = sheet.key
        mine = key.attempt == attempt and key.kind == "train" and (key.rank or 0) == (rank or 0)
        if mine and not key.glued and len(found) < BESIDE + BEFORE:
            found += _rows(sheet, range(min(sheet.count, BESIDE + BEFORE)), names)
    return sorted(found, key=lambda one: one[0])


def read_earlier(layout: Layout, names: Sequence[str], first: int | None) -> Earlier:
    """Return what the attempts of a layout had done, around the ``first`` step of the next one."""
    spans = [span for span in layout.spans if span.first_step is not None]
    counted = _counted(layout)
    if not counted or layout.by != "step":
        return Earlier()
    steps = _around(layout, counted, inf if first is None else first, names)
    gaps = [after - one for one, after in pairwise(steps)]
    return Earlier(
        steps=steps,
        begins=spans[0].first_step,
        begins_epoch=counted[0][1].run.first_epoch,
        reached=max(span.last_step or 0 for span in spans),
        reached_epoch=counted[-1][1].run.last_epoch,
        interval=max(1, int(median(gaps))) if gaps else 1,
        folds=any(span.base for span in spans),
    )


def _counted(layout: Layout) -> list[tuple[Sheet, Stand]]:
    """Return the runs of records of which at least the first counts, in the order of the log: there x rises."""
    found = [(piece.sheet, stand) for piece in layout.pieces for stand in piece.stands]
    found.sort(key=lambda one: (one[0].key.source, one[1].run.first_offset))
    return [one for one in found if one[1].first < one[1].span.limit]


def _around(
    layout: Layout, counted: Sequence[tuple[Sheet, Stand]], first: float, names: Sequence[str]
) -> dict[int, dict[str, float]]:
    """Return the values of the last BEFORE steps below ``first`` and of the first BESIDE ones from there on."""
    middle = bisect_left(counted, first, key=lambda one: min(one[1].last, one[1].span.limit))
    rows: list[Row] = []
    for place in range(middle, len(counted)):
        rows += _kept(layout, *counted[place], first, names)
        if sum(one[2] >= first for one in rows) >= BESIDE:
            break
    below = sum(one[2] < first for one in rows)
    for place in range(middle - 1, -1, -1):
        if below >= BEFORE:
            break
        some = _kept(layout, *counted[place], first, names)
        below += len(some)
        rows = [*some, *rows]
    found: dict[int, dict[str, float]] = {}
    for _, _, step, values in rows:
        found.setdefault(step, {}).update(values)
    kept = sorted(found)
    split = bisect_left(kept, first)
    return {step: found[step] for step in kept[max(0, split - BEFORE) : split + BESIDE]}


def _kept(layout: Layout, sheet: Sheet, stand: Stand, first: float, names: Sequence[str]) -> list[Row]:
    """Return the records of a run that count, around the place ``first``."""
    x = layout.x_of(stand, sheet.places().steps, None)
    count = layout.kept_of(stand, x)
    begin, end = 0, count
    if stand.rising:
        split = bisect_left(x, first, 0, count)
        begin, end = max(0, split - BEFORE), min(count, split + BESIDE)
    return list(_rows(sheet, range(stand.begin + begin, stand.begin + end), names))

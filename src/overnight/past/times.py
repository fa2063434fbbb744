"""When things happened in a finished log: from a run's journal, or from the dates that its lines carry.

Only times are gathered here; what they mean for rules is somebody else's work. Nothing is guessed: a log without either
has no times. A run's own journal is read, and the log's bytes for dates; nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from overnight.folder import RunFolder, read_journal
from overnight.past.dates import Dates
from overnight.past.rereading import BLOCK, Bounds

RESOLUTION_S = 10.0
"""A time mark is written so often at most, so nothing in a log is known more finely."""

FAR_S = 1e11
"""No moment of a run, in seconds since the epoch: what a journal has beyond was edited, and is passed over."""

SAMPLE_LINES = 64
MOST_MARKS = 200_000


class Attempt(NamedTuple):
    """When the command of an attempt ran, in seconds since the epoch; ``ended`` is None while it still runs."""

    number: int
    started: float
    ended: float | None
    seconds: float | None


class Times(NamedTuple):
    """What is known of the time of a finished log; all of it in seconds since the epoch.

    ``states`` are (at, state, attempt), ``saves`` (at, seconds it took, a file was seen), ``clocks`` (at, seconds used
    by then). ``until`` is the last moment that is known, ``source`` where the times come from, ``local`` that dates
    without a zone were taken for local time.
    """

    source: str
    attempts: tuple[Attempt, ...]
    states: tuple[tuple[float, str, int], ...]
    saves: tuple[tuple[float, float, bool], ...]
    clocks: tuple[tuple[float, float], ...]
    until: float
    local: bool = False
    dates: Dates | None = None  # where those of the lines stand


def times_of(folder: RunFolder, *, now: float | None) -> Times | None:
    """Return what a run's journal says about its times; None if it says too little.

    ``now`` (seconds since the epoch) is given for a run that is not over: it has got so far.
    """
    found: dict[str, list[Any]] = {"state": [], "saved": [], "clock": [], "started": [], "attempt_ended": []}
    until = 0.0
    for fact in read_journal(folder.journal):
        at = epoch_of(fact.get("at"))
        if at is None:
            continue
        if fact["fact"] in found:
            found[fact["fact"]].append((at, fact))
        if fact["fact"] in ("state", "mark", "exit", "attempt_ended", "ended"):
            until = max(until, at)
    states = [(at, str(fact.get("state")), _whole(fact.get("attempt"))) for at, fact in found["state"]]
    if not states:
        return None
    ends = {_whole(fact.get("attempt")): fact for _, fact in found["attempt_ended"]}
    attempts = []
    for at, fact in found["started"]:
        end = ends.get(_whole(fact.get("attempt")), {})
        attempts.append(
            Attempt(
                _whole(fact.get("attempt")),
                epoch_of(end.get("started_at")) or at,
                epoch_of(end.get("ended_at")),
                _number(end.get("seconds")),
            )
        )
    saves = [
        (_number(fact.get("epoch")) or at, _number(fact.get("seconds")) or 0.0, fact.get("path") is not None)
        for at, fact in found["saved"]
    ]
    clocks = [(_number(fact.get("epoch")) or at, _number(fact.get("elapsed_s")) or 0.0) for at, fact in found["clock"]]
    return Times("journal", tuple(attempts), tuple(states), tuple(saves), tuple(clocks), max(until, now or 0.0))


def dated(path: Path) -> tuple[Times, Bounds] | None:
    """Return the times that the lines of a log carry, with a time mark for each ten seconds; None if they do not.

    They must be on most of the first lines, go on to the end, and never go back by more than a minute. Dates without a
    zone are taken for local time. The log is read once, and few of its lines are looked at.
    """
    dates = Dates()
    if not _sampled(path, dates):
        return None
    marks: list[tuple[int, float]] = []
    for offset, at in _marks(path, dates):
        if marks and at < marks[-1][1] - dates.JITTER_S:
            return None
        if not marks or at >= marks[-1][1] + RESOLUTION_S:
            marks.append((offset, at))
            if len(marks) > MOST_MARKS:
                return None
    if not marks or dates.missed:
        return None
    first, last = marks[0][1], max(marks[-1][1], dates.newest)
    times = Times(
        "dates",
        (Attempt(1, first, None, None),),
        ((first, "running", 1),),
        (),
        ((first, 0.0),),
        last,
        dates.local,
        dates,
    )
    return times, Bounds(0, 0, tuple(marks), ((0, 1),))


def epoch_of(text: object) -> float | None:
    """Return a time of the journal as seconds since the epoch; None for anything else."""
    if not isinstance(text, str):
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None


def _sampled(path: Path, dates: Dates) -> bool:
    """Say whether most of the first lines carry a date."""
    try:
        with path.open("rb") as stream:
            lines = stream.read(BLOCK).splitlines()[:SAMPLE_LINES]
    except OSError:
        return False
    return bool(lines) and 2 * dates.learn(lines) > len(lines)


def _marks(path: Path, dates: Dates) -> Iterator[tuple[int, float]]:
    """Yield (offset, time) of lines so close together that at most ten seconds lie between two of them."""
    place, rest = 0, b""
    with path.open("rb") as stream:
        while data := stream.read(BLOCK):
            block = rest + data
            cut = block.rfind(b"\n") + 1
            if cut == 0 and len(block) > BLOCK:  # a line without an end
                dates.missed = True
                return
            if cut:
                yield from _within(block[:cut], place, dates)
            rest = block[cut:]
            place += cut
    if rest:
        yield from _within(rest, place, dates)


def _within(block: bytes, place: int, dates: Dates) -> Iterator[tuple[int, float]]:
    """Yield the marks of one block of whole lines: its first dated line, and any more than ten seconds after."""
    starts = [0, *(at + 1 for at in _ends(block) if at + 1 < len(block))]
    known = _ask(block, starts, dates, 0)
    if known is None:
        dates.missed = True
        return
    first, at = known
    yield place + starts[first], at
    end = _ask(block, starts, dates, len(starts) - 1, back=True)
    if end is not None and end[0] > first:
        yield from ((place + starts[one], when) for one, when in _between(block, starts, dates, known, end))


def _between(
    block: bytes, starts: list[int], dates: Dates, low: tuple[int, float], high: tuple[int, float]
) -> Iterator[tuple[int, float]]:
    """Yield the dated lines up to ``high``, halving until no more than ten seconds lie between two neighbours."""
    todo = [(low, high)]
    while todo:
        (first, begin), (last, end) = todo.pop()
        middle = None
        if abs(end - begin) > RESOLUTION_S / 2 and last - first > 1:
            middle = _ask(block, starts, dates, (first + last) // 2)
            if middle is not None and not first < middle[0] < last:
                middle = _ask(block, starts, dates, (first + last) // 2, back=True)
        if middle is not None and first < middle[0] < last:
            todo += [(middle, (last, end)), ((first, begin), middle)]
        else:
            yield last, end


def _ask(block: bytes, starts: list[int], dates: Dates, at: int, *, back: bool = False) -> tuple[int, float] | None:
    """Return the nearest dated line at or behind ``at`` (``back``: before it), with its time."""
    for one in range(at, -1, -1) if back else range(at, len(starts)):
        begin = starts[one]
        when = dates.read(block[begin : begin + Dates.WIDTH])
        if when is not None:
            return one, when
    return None


def _ends(block: bytes) -> Iterator[int]:
    at = block.find(b"\n")
    while at >= 0:
        yield at
        at = block.find(b"\n", at + 1)


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and 0 <= value < FAR_S else None

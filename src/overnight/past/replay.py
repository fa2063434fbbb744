"""A finished run or log once more through the monitor, under tonight's rules: what is found, when, what it saves.

Bytes and times come from files that are only read; nothing is started, signalled or written. The verdicts on records
are those of a supervisor to the byte; those on time are as good as what is known of the time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from overnight.events import Verdict, VerdictKey
from overnight.monitor import Monitor, Outcome
from overnight.past.clock import PastClock
from overnight.past.outlook import Backs, Spot, back_of, outlook
from overnight.past.rereading import BLOCK, Bounds, Piece, pieces
from overnight.past.sensed import unsensed
from overnight.past.tally import Pieces, Place, SoFar, Tally, lasted, parted
from overnight.past.times import RESOLUTION_S, Times
from overnight.sensors.archive import in_time
from overnight.spec import RunSpec, cost
from overnight.states import LIMITS
from overnight.wiring import TIME_RULES, make_monitor

MOST_VERDICTS = 500
LINE_BYTES = 400


class Past(NamedTuple):
    """What is replayed: a log, how it is cut into attempts, and what is known of its times.

    ``untimed`` says why there are none; ``over``: nothing is written to it any more. ``sensed``: the run's folder,
    where sensors have left what they told; None for a log that was never a run's.
    """

    path: Path
    bounds: Bounds
    times: Times | None = None
    untimed: str = ""
    over: bool = True
    sensed: Path | None = None


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict with its place: ``line`` of the log (counted from 1) and its ``text``; None for a verdict on time.

    ``after_end``: the run would have been ended before. ``ends``: it asks for an end. ``rolls_back``: the run would
    have been taken back here. ``after_rollback``: it stands behind such a place, before the log begins again:
    that is of a run that went on as it was. ``epoch`` is the latest that was printed.
    """

    verdict: Verdict
    number: int | None = None
    text: str | None = None
    after_end: bool = False
    ends: bool = False
    rolls_back: bool = False
    after_rollback: bool = False
    epoch: float | None = None


class Back(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict that would have taken the run back, the ``n``-th to do so.

    It would have gone on from a save of a step below ``before``, and the script would have been asked to leave out the
    steps ``skip`` (None: nobody knows). ``followed``: behind it the log begins again, from an earlier step.
    """

    found: Found
    n: int
    before: int | None
    skip: tuple[int, int] | None
    followed: bool


class End(msgspec.Struct, frozen=True, kw_only=True):
    """The first verdict that would have ended the run, and what would have become of it.

    ``again``: it would have been started once more. What came after it in the log: ``records``, ``steps``,
    ``seconds`` (as ``source`` knows them: "journal", "dates" or "dt"; None: unknown), ``cost`` at the price given.
    """

    found: Found
    again: bool
    then: str
    records: int
    steps: int
    seconds: float | None
    source: str | None
    cost: float | None


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay found. ``counts``: all verdicts by rule and severity, also those ``left_out`` of the list.

    ``rollbacks`` do not end a run: behind them the log goes on as it is, and each attempt is judged for itself.
    ``unjudged``: rules that could not be asked, and why. ``unread``: lines that say of a loss that it is NaN or
    infinite and were no record, with the number of the first one.
    """

    found: tuple[Found, ...]
    left_out: int
    counts: dict[tuple[str, str], int]
    end: End | None
    rollbacks: tuple[Back, ...]
    tally: Tally
    reader: str | None
    lines: int
    unjudged: dict[str, str]
    unread: int
    unread_line: int | None


def replay(past: Past, spec: RunSpec, complain: Callable[[str], None]) -> Replay:
    """Judge a log under ``spec``; UsageError if it cannot be read. Memory does not grow with the log."""
    return _Replaying(past, spec, complain).run()


class _Replaying:
    """One replay while it goes on."""

    def __init__(self, past: Past, spec: RunSpec, complain: Callable[[str], None]) -> None:
        self.past = past
        self.spec = spec
        self.monitor: Monitor = make_monitor(spec, complain)
        self.clock = None
        if past.times is not None:
            samples = None if past.sensed is None else in_time(past.sensed)
            self.clock = PastClock(self.monitor, spec, past.times, self._begin, samples)
        self.found: dict[VerdictKey, Found] = {}
        self.counts: Counter[tuple[str, str]] = Counter()
        self.left_out = 0
        self.end: Found | None = None
        self.backs = Backs(spec.rollbacks)
        self.end_at: float | None = None
        self.ended_behind: Place | None = None
        self.tally = Tally()
        self.at_end = self.tally.so_far()
        self.at_mark: SoFar | None = None  # once the line is counted that came with the mark
        self.lines = 0
        self.unfinished = False
        self.at = 0.0
        self.unread = 0
        self.unread_line: int | None = None
        self.reader: str | None = None
        self.stamp = 0.0

    def run(self) -> Replay:
        for piece in pieces(self.past.path, self.past.bounds):
            self._take_piece(piece)
        if self.past.over:
            self._take(self.monitor.flush(self.stamp))
        if self.clock is not None:
            self._judge(list(self.clock.finish()))
        self.lines += self.unfinished  # the last line may have no end
        with self.past.path.open("rb") as stream:
            placed = placed_in(stream, self.found)
        self._place_end(placed)
        unread = 0 if self.tally.nonfinite or self.tally.nonfinite_evals else self.unread
        return Replay(
            found=tuple(placed.values()),
            left_out=self.left_out,
            counts=dict(self.counts),
            end=None if self.end is None else self._end(placed[self.end.verdict.key]),
            rollbacks=tuple(self._back(n, placed[key]) for n, key in enumerate(self.backs.keys, 1)),
            tally=self.tally,
            reader=self.reader or self.monitor.sniffer.chosen,
            lines=self.lines,
            unjudged=self._unjudged(),
            unread=unread,
            unread_line=self.unread_line if unread else None,
        )

    # -- the log -----------------------------------------------------------------------------------------------------

    def _take_piece(self, piece: Piece) -> None:
        if self.clock is not None:
            at = piece.at
            if piece.attempt != self.monitor.attempt:  # its first bytes may carry a mark of the attempt before
                at = max(at, self.clock.started(piece.attempt))
            self.at = max(self.at, at)
            self._judge(list(self.clock.advance(self.at)))
        self._begin(piece.attempt)
        if piece.at != self.stamp:
            self.stamp, self.at_mark = piece.at, None
        if piece.data:
            self._feed(piece)
            self.at_mark = self.at_mark or self.tally.so_far()

    def _begin(self, number: int) -> None:
        if number == self.monitor.attempt:
            return
        if self.monitor.attempt:
            self._take(self.monitor.flush(self.stamp))
        self.reader = self.monitor.sniffer.chosen or self.reader
        self.monitor.begin_attempt(number)

    def _feed(self, piece: Piece) -> None:
        """Feed the first line by itself, then the rest: it alone came at the time that the mark says."""
        clock, cut = self.clock, 0
        if clock is not None:
            cut = piece.data.find(b"\n") + 1
            self._take(self._fed(piece.data[:cut], piece.place))
            self.at_mark = self.at_mark or self.tally.so_far()
            clock.grew(0.0, stepping=False)
            self._judge(list(clock.ask()))
        moves = self.monitor.moves
        outcome = self._fed(piece.data[cut:], piece.place + cut)
        self._take(outcome)
        if clock is not None:
            clock.grew(lasted(outcome.pieces), stepping=self.monitor.moves != moves)
        self._look_unread(piece.data)
        self.lines += piece.data.count(b"\n")
        self.unfinished = not piece.data.endswith(b"\n")

    def _fed(self, data: bytes, place: int) -> Outcome:
        return self.monitor.feed(data, self.stamp, self.past.bounds.source, place)

    def _take(self, outcome: Outcome) -> None:
        going_on = self.end is None
        self._judge(outcome.verdicts, outcome.pieces)
        place = self.ended_behind
        if place is None:
            self.tally.add(outcome.pieces)
            return
        # The record of the end itself may come later: a NaN is told before all of its line is known.
        upto, behind = parted(outcome.pieces, place)
        self.tally.add([upto])
        self.at_end = self.tally.so_far()
        if (
            self.clock is not None and going_on
        ):  # the mark came with an earlier line: the steps since then took their time
            seconds = None if self.at_mark is None else self.tally.since(self.at_mark)[2]
            self.end_at = self.at + min(RESOLUTION_S, seconds or 0.0)
        self.tally.add([behind])
        self.ended_behind = None if behind else place

    def _look_unread(self, data: bytes) -> None:
        """Count what may be a loss that is NaN and that nobody has read."""
        if any(word in data for word in _WORDS):
            for one in _NONFINITE.finditer(data):
                self.unread += 1
                if self.unread_line is None:
                    self.unread_line = self.lines + data.count(b"\n", 0, one.start()) + 1

    # -- verdicts ----------------------------------------------------------------------------------------------------

    def _judge(self, verdicts: list[Verdict], pieces: Pieces = ()) -> None:
        spots = _spots(verdicts, pieces)
        for verdict in verdicts:
            spot = spots.get((verdict.offset, verdict.part), Spot(verdict.attempt, self.monitor.segment, None))
            spot = spot if spot.epoch is not None else spot._replace(epoch=self.tally.epoch)
            key = verdict.key
            known = self.found.get(key)
            if known is not None:  # found again, with all that the log says of it
                again = msgspec.structs.replace(known, verdict=verdict, epoch=spot.epoch)
                self.found[key] = again
                self.end = again if self.end is known else self.end
                continue
            one = self._weighed(verdict, spot)
            self.counts[verdict.rule, verdict.severity] += 1
            # What would not have gone on like this is ended by a limit only: that is reached in any case.
            if one.ends and self.end is None and (not one.after_rollback or verdict.rule in LIMITS):
                self._ended(one)
            if one.rolls_back:
                self.backs.take(key, spot)
            if len(self.found) < MOST_VERDICTS or self.end is one or one.rolls_back:
                self.found[key] = one
            else:
                self.left_out += 1

    def _weighed(self, verdict: Verdict, spot: Spot) -> Found:
        """Return a verdict with what it would have led to."""
        after_rollback = self.backs.behind(spot)
        back = verdict.action == "rollback" and self.end is None and not after_rollback
        return Found(
            verdict=verdict,
            after_end=self.end is not None,
            ends=verdict.action in ("stop", "terminate") or (back and not self.backs.left),
            rolls_back=back and bool(self.backs.left),
            after_rollback=after_rollback,
            epoch=spot.epoch,
        )

    def _ended(self, one: Found) -> None:
        """Here the run would have ended: what comes from now on is what that would have saved."""
        verdict = one.verdict
        self.end = one
        self.at_end = self.tally.so_far()
        if verdict.offset >= 0:
            self.ended_behind = (verdict.source, verdict.offset, verdict.part)
        if self.clock is not None:
            self.end_at = verdict.at if verdict.offset < 0 else self.at

    def _unjudged(self) -> dict[str, str]:
        unasked = unsensed(self.past.sensed, untimed=None if self.clock is not None else self.past.untimed)
        if self.clock is not None:
            return unasked
        asked = {"stall": True, "wall_clock": self.spec.max_hours, "until": self.spec.until, "cost": self.spec.max_cost}
        return {name: self.past.untimed for name in TIME_RULES if asked.get(name)} | unasked

    # -- the end -----------------------------------------------------------------------------------------------------

    def _place_end(self, placed: dict[VerdictKey, Found]) -> None:
        """Let the verdict that ends it bear the time of its line, from which on is counted what that would save."""
        if self.end is None or self.end_at is None:
            return
        key, times = self.end.verdict.key, self.past.times
        if times is not None and times.dates is not None and placed[key].text is not None:
            at = times.dates.read((placed[key].text or "").encode())
            if at is not None and self.end_at - RESOLUTION_S <= at <= times.until:
                self.end_at = at
        verdict = msgspec.structs.replace(placed[key].verdict, at=self.end_at)
        placed[key] = msgspec.structs.replace(placed[key], verdict=verdict)

    def _back(self, n: int, found: Found) -> Back:
        back = back_of(found.verdict, self.spec, self.monitor.plan(), rollbacks=n - 1)
        last = Spot(self.monitor.attempt, self.monitor.segment, self.tally.epoch)
        followed = n < len(self.backs.keys) or not self.backs.behind(last)
        return Back(found=found, n=n, before=back.before, skip=back.skip, followed=followed)

    def _end(self, found: Found) -> End:
        again, then = outlook(found.verdict, self.spec, self.monitor.plan(), rollbacks=len(self.backs.keys))
        records, steps, seconds = self.tally.since(self.at_end)
        source = None if seconds is None else "dt"
        times = self.past.times
        if times is not None and self.end_at is not None:
            seconds, source = max(0.0, times.until - self.end_at), times.source
        return End(
            found=found,
            again=again,
            then=then,
            records=records,
            steps=steps,
            seconds=seconds,
            source=source,
            cost=cost(self.spec, seconds),
        )


def _spots(verdicts: list[Verdict], pieces: Pieces) -> dict[tuple[int, int], Spot]:
    """Return where the lines of verdicts stand, by their places: attempt, segment, the epoch that they print."""
    wanted = {(one.offset, one.part) for one in verdicts if one.offset >= 0}
    if not wanted:
        return {}
    return {
        (record.offset, record.part): Spot(attempt, segment, record.epoch)
        for piece in pieces
        for record, attempt, segment in piece
        if (record.offset, record.part) in wanted
    }


def placed_in(stream: BinaryIO, found: Mapping[VerdictKey, Found]) -> dict[VerdictKey, Found]:
    """Return what was found, each with the number and the text of its line."""
    placed, lines, place = dict(found), 0, 0
    for key in sorted((key for key, one in found.items() if one.verdict.offset >= 0), key=lambda key: key[2]):
        offset = found[key].verdict.offset
        stream.seek(place)
        while place < offset:
            data = stream.read(min(BLOCK, offset - place))
            if not data:  # cut off meanwhile
                break
            lines += data.count(b"\n")
            place += len(data)
        text = re.split(rb"[\r\n\x08]", stream.read(LINE_BYTES), maxsplit=1)[0]
        placed[key] = msgspec.structs.replace(found[key], number=lines + 1, text=text.decode("utf-8", "replace"))
    return placed


_WORDS = (b"nan", b"NaN", b"NAN", b"inf", b"Inf")
_NONFINITE = re.compile(rb"(?i)loss['\"]?[ \t]{0,4}[:=]?[ \t]{0,4}['\"]?[-+]?(?:nan|inf(?:inity)?)(?![a-z0-9])")

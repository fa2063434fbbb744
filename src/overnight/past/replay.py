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

from overnight.events import Exit, Verdict, VerdictKey
from overnight.lifecycle import decide
from overnight.monitor import Monitor, Outcome
from overnight.past.clock import PastClock
from overnight.past.rereading import BLOCK, Bounds, Piece, pieces
from overnight.past.tally import Pieces, Place, SoFar, Tally, lasted, parted
from overnight.past.times import RESOLUTION_S, Times
from overnight.spec import RunSpec, cost
from overnight.states import Ended, Plan, RunState
from overnight.wiring import TIME_RULES, make_monitor

MOST_VERDICTS = 500
LINE_BYTES = 400


class Past(NamedTuple):
    """What is replayed: a log, how it is cut into attempts, and what is known of its times.

    ``untimed`` says why there are none; ``over``: nothing is written to it any more.
    """

    path: Path
    bounds: Bounds
    times: Times | None = None
    untimed: str = ""
    over: bool = True


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict with its place: ``line`` of the log (counted from 1) and its ``text``; None for a verdict on time.

    ``after_end``: the run would have been ended before. ``ends``: it asks for an end. ``epoch`` is the latest
    that was printed.
    """

    verdict: Verdict
    number: int | None = None
    text: str | None = None
    after_end: bool = False
    ends: bool = False
    epoch: float | None = None


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

    ``unjudged``: rules that could not be asked, and why. ``unread``: lines that say of a loss that it is NaN or
    infinite and were no record, with the number of the first one.
    """

    found: tuple[Found, ...]
    left_out: int
    counts: dict[tuple[str, str], int]
    end: End | None
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
        self.clock = None if past.times is None else PastClock(self.monitor, spec, past.times, self._begin)
        self.found: dict[VerdictKey, Found] = {}
        self.counts: Counter[tuple[str, str]] = Counter()
        self.left_out = 0
        self.end: Found | None = None
        self.end_at: float | None = None
        self.ended_behind: Place | None = None
        self.tally = Tally()
        self.at_end = self.tally.so_far()
        self.at_mark: SoFar | None = None  # once the line is counted that came with the mark
        self.lines = 0
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
        with self.past.path.open("rb") as stream:
            placed = placed_in(stream, self.found)
        self._place_end(placed)
        unread = 0 if self.tally.nonfinite or self.tally.nonfinite_evals else self.unread
        return Replay(
            found=tuple(placed.values()),
            left_out=self.left_out,
            counts=dict(self.counts),
            end=None if self.end is None else self._end(placed[self.end.verdict.key]),
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
        epochs = _epochs(verdicts, pieces)
        for verdict in verdicts:
            epoch = epochs.get((verdict.offset, verdict.part), self.tally.epoch)
            key = verdict.key
            ends = verdict.action in ("stop", "terminate")
            known = self.found.get(key)
            if known is not None:  # found again, with all that the log says of it
                again = Found(verdict=verdict, after_end=known.after_end, ends=ends, epoch=epoch)
                self.found[key] = again
                self.end = again if self.end is known else self.end
                continue
            one = Found(verdict=verdict, after_end=self.end is not None, ends=ends, epoch=epoch)
            self.counts[verdict.rule, verdict.severity] += 1
            if ends and self.end is None:
                self._ended(one)
            if len(self.found) < MOST_VERDICTS or self.end is one:
                self.found[key] = one
            else:
                self.left_out += 1

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
        if self.clock is not None:
            return {}
        asked = {"stall": True, "wall_clock": self.spec.max_hours, "until": self.spec.until, "cost": self.spec.max_cost}
        return {name: self.past.untimed for name in TIME_RULES if asked.get(name)}

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

    def _end(self, found: Found) -> End:
        again, then = outlook(found.verdict, self.spec, self.monitor.plan())
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


def _epochs(verdicts: list[Verdict], pieces: Pieces) -> dict[tuple[int, int], float]:
    """Return the epochs that the lines of verdicts print, by their places."""
    wanted = {(one.offset, one.part) for one in verdicts if one.offset >= 0}
    if not wanted:
        return {}
    records = (entry.record for piece in pieces for entry in piece)
    return {
        (one.offset, one.part): one.epoch
        for one in records
        if one.epoch is not None and (one.offset, one.part) in wanted
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


def outlook(verdict: Verdict, spec: RunSpec, plan: Plan) -> tuple[bool, str]:
    """Return whether a run that a verdict ends is started again, and the sentence that would stand in its status.

    Asked is the policy itself, for a run that has come further in each attempt.
    """
    state = RunState(state="running", attempt=verdict.attempt, restarts=max(0, verdict.attempt - 1))
    plan = msgspec.structs.replace(plan, last_step=verdict.step, restarts=spec.restarts, backoff_s=spec.backoff_s)
    stopping = decide(state, verdict, plan).state
    reached = None if verdict.step is None else (0.0, verdict.step)
    ended = decide(stopping, Ended(exit=Exit(signal="SIGTERM"), reached=reached), plan).state
    if ended.state == "backoff":
        return True, f"started again (restart {ended.restarts} of {spec.restarts})"
    return False, f"{ended.state} ({ended.cause})"


_WORDS = (b"nan", b"NaN", b"NAN", b"inf", b"Inf")
_NONFINITE = re.compile(rb"(?i)loss['\"]?[ \t]{0,4}[:=]?[ \t]{0,4}['\"]?[-+]?(?:nan|inf(?:inity)?)(?![a-z0-9])")

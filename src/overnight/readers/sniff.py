"""Which reader reads this log: all candidates from the first byte, the best so far counts, then one alone.

No list of readers may enter here: the candidates come as an argument. No clock and no file either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from overnight.readers.heads import Heads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from overnight.events import Record
    from overnight.readers import Reader
    from overnight.tail import Line

LOCK_AFTER_LINES = 200
LOCK_AFTER_CREDIT = 5
SWITCH_AFTER_CREDIT = 5


class Sniffer:
    """Offers each line to the candidates and returns the records of the most credible one.

    Credit is given for a training record with a loss, a time or a rate, whose step rises, as the candidate itself
    counts; where no step is printed, whose epoch does. A line that a candidate takes without telling all of it yet
    (a record that waits for a later line) is promised as much. While nothing is settled, a line that the best so far
    cannot read may still be told by one with as much credit, if its step is news.
    After ``LOCK_AFTER_LINES`` lines the best one with at least ``LOCK_AFTER_CREDIT`` reads alone. Lines it cannot read
    go on to be offered to the others; one of them takes over after ``SWITCH_AFTER_CREDIT`` credible records between
    which the chosen one read nothing.

    Training records of lines that begin as no line before did are marked as ``strange`` (see ``Heads``).
    """

    def __init__(self, candidates: Sequence[Reader]) -> None:
        """Take the candidates in order of preference: of equals the first counts."""
        self._candidates = [_Candidate(reader) for reader in candidates]
        self._winner: _Candidate | None = None
        self._lines = 0
        self._told: int | None = None
        self._rivals = False
        self._heads = Heads()
        self._holds = [one.reader.holds for one in self._candidates if hasattr(one.reader, "holds")]

    @property
    def chosen(self) -> str | None:
        """The name of the reader that counts; None before any of them has read a credible record."""
        best = self._winner or self._best()
        return best.reader.name if best is not None and best.credit else None

    def __call__(self, line: Line, at: float, source: int) -> tuple[Record, ...]:
        """Return the records of ``line``, empty when it says nothing."""
        winner = self._winner
        if winner is None:
            records: tuple[Record, ...] | None = self._compare(line, at, source)
        else:
            records = winner.reader(line, at, source)
            if records is None:
                records = self._challenge(line, at, source)
            elif self._rivals:
                self._forget_rivals()
            elif not winner.may_hold and line.text.startswith(self._heads.usual):  # nearly every line of a night
                return records
        if "{" in line.text:
            for holds in self._holds:
                if holds(source, line.offset):
                    self._heads.hold(line, source)
        return self._heads.judge(records, line) if records else ()

    def flush(self) -> tuple[Record, ...]:
        """Return the records that were held back for lines which will not come: an attempt has ended.

        While nothing is settled they are those of the most credible candidate that holds any.
        """
        return self._heads.judge(self._flush(), None)

    def _flush(self) -> tuple[Record, ...]:
        if self._winner is not None:
            return self._winner.flush()
        told: tuple[Record, ...] = ()
        teller: _Candidate | None = None
        for one in self._candidates:
            records = one.flush()
            one.credit += one.judge(records)
            if records and (teller is None or one.credit > teller.credit):
                teller, told = one, records
        best = self._best()
        if teller is None or best is None or teller.credit < best.credit:
            return ()
        self._note(told)
        return told

    def why(self) -> str:
        """Return in one sentence why the chosen reader reads: what it has read, and what the others have."""
        best = self._winner or self._best()
        if best is None or not best.credit:
            return f"none of {', '.join(one.reader.name for one in self._candidates)} has read a record that gets on"
        others = sorted((one for one in self._candidates if one is not best), key=lambda one: -one.credit)
        rest = f" ({', '.join(f'{one.reader.name} {one.credit}' for one in others)})" if others else ""
        counted = f"{best.credit} credible {'record' if best.credit == 1 else 'records'}"
        if self._winner is not None:
            return f"{best.reader.name} had read {counted}{rest} when it was settled, after {self._lines} lines"
        most = ", the first of those that read most" if others and others[0].credit == best.credit else ""
        return f"{best.reader.name} has read {counted} in {self._lines} lines{most}{rest}"

    @property
    def settled(self) -> Reader | None:
        """The reader that reads alone; None while nothing is settled."""
        return None if self._winner is None else self._winner.reader

    def knows(self, block: bytes, begin: int) -> bool:
        """Say whether a line like the one at ``begin`` of ``block`` would change nothing about which lines are known.

        So lines like it may be given to the settled reader directly.
        """
        end = block.find(b"\n", begin)
        return self._heads.knows(block[begin : end if end >= 0 else None].decode("utf-8", "replace"))

    def passed(self) -> None:
        """Hear that the settled reader has read lines which were given to it directly."""
        if self._rivals:
            self._forget_rivals()

    def snapshot(self) -> dict[str, Any]:
        """Return all that decides about the next line, as builtins."""
        return {
            "lines": self._lines,
            "told": self._told,
            "rivals": self._rivals,
            "heads": self._heads.snapshot(),
            "winner": None if self._winner is None else self._winner.reader.name,
            "candidates": [
                [one.reader.name, one.credit, one.since, one.last_step, one.reader.snapshot(), one.last_epoch]
                for one in self._candidates
            ],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from the snapshot of a sniffer with the same candidates; those it does not know start afresh."""
        self._lines = state["lines"]
        self._told = state["told"]
        self._rivals = state["rivals"]
        known = {one.reader.name: one for one in self._candidates}
        for name, credit, since, last_step, inner, *more in state["candidates"]:
            one = known.get(name)
            if one is not None:
                one.credit, one.since, one.last_step = credit, since, last_step
                one.last_epoch = more[0] if more else None  # an older version knew none
                one.reader.restore(inner)
        self._winner = known.get(state["winner"])
        if "heads" in state:  # an older version knew none
            self._heads = Heads.restore(state["heads"])

    def _compare(self, line: Line, at: float, source: int) -> tuple[Record, ...]:
        """Nothing is settled: let all read, and return what the most credible one read."""
        self._lines += 1
        told: tuple[Record, ...] = ()
        teller: _Candidate | None = None
        most, silent = 0, True  # silent: it takes the line, and has nothing to tell of it
        for one in self._candidates:
            records = one.reader(line, at, source)
            if records is not None:
                one.credit += one.judge(records)
                promised = one.may_hold and all(record.early for record in records)
                worth = one.credit + promised
                if teller is None or worth > most or (worth == most and silent):
                    teller, told, most, silent = one, records, worth, not (records or promised)
        best = self._best()
        if best is not None and self._lines >= LOCK_AFTER_LINES and best.credit >= LOCK_AFTER_CREDIT:
            self._winner = best
        if teller is None or best is None:
            return ()
        if teller is not best and (most < best.credit or not self._is_news(told)):
            return ()
        self._note(told)
        return told

    def _challenge(self, line: Line, at: float, source: int) -> tuple[Record, ...]:
        """Count the others that can read what the chosen one cannot, and let one take over that clearly leads."""
        for one in self._candidates:
            if one is self._winner:
                continue
            records = one.reader(line, at, source)
            if records is None:
                continue
            one.since += one.judge(records)
            self._rivals = True
            if one.since >= SWITCH_AFTER_CREDIT:
                one.credit += one.since
                self._winner = one
                self._forget_rivals()
                return records
        return ()

    def _forget_rivals(self) -> None:
        for one in self._candidates:
            one.since = 0
        self._rivals = False

    def _is_news(self, records: tuple[Record, ...]) -> bool:
        steps = [record.step for record in records if record.step is not None]
        return self._told is None or not steps or max(steps) > self._told

    def _note(self, records: tuple[Record, ...]) -> None:
        for record in records:
            if record.step is not None and record.kind == "train":
                self._told = record.step

    def _best(self) -> _Candidate | None:
        """Return the candidate with the most credit, of equals the first."""
        return max(self._candidates, key=lambda one: one.credit, default=None)


class _Candidate:
    """A reader and what speaks for it: ``credit`` in all, ``since`` while somebody else is chosen."""

    __slots__ = ("credit", "last_epoch", "last_step", "may_hold", "reader", "since")

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.credit = 0
        self.since = 0
        self.last_step: int | None = None
        self.last_epoch: float | None = None
        self.may_hold = callable(getattr(reader, "flush", None))

    def flush(self) -> tuple[Record, ...]:
        """Return what the reader holds back; nothing from one that holds nothing."""
        return tuple(self.reader.flush()) if self.may_hold else ()  # type: ignore[attr-defined]  # of some readers only

    def judge(self, records: tuple[Record, ...]) -> int:
        """Return how many of ``records`` are credible: they measure something, and get on."""
        credit = 0
        for record in records:
            if record.kind != "train" or record.early:
                continue
            if (
                record.loss is None
                and record.dt_s is None
                and record.tokens_per_s is None
                and record.samples_per_s is None
            ):
                continue
            if record.step is not None:
                credit += self.last_step is None or record.step > self.last_step
                self.last_step = record.step
            elif record.epoch is not None:
                credit += self.last_epoch is None or record.epoch > self.last_epoch
                self.last_epoch = record.epoch
        return credit

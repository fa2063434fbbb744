"""The pure heart: bytes in, records and verdicts out, and what follows from them.

Joins tail, readers, meter, rules and lifecycle; no clock, no file, no process. Time is an argument, so a week of
training is judged in milliseconds. The whole state can be saved and restored between any two bytes (``snapshot``,
``restore``), and records and verdicts are the same for any chunking of the bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from overnight.announce import announced
from overnight.events import Measure, Record, Verdict
from overnight.lifecycle import decide
from overnight.meter import Figures, Meter
from overnight.readers import Reader
from overnight.readers.sniff import Sniffer
from overnight.rules import Moment, RecordRule, TimeRule
from overnight.states import Decision, Event, Plan, Reached, RunState
from overnight.tail import Line, Tail


class Entry(NamedTuple):
    """A record with its place in the run: the attempt and the segment of rising steps it belongs to."""

    record: Record
    attempt: int
    segment: int


class Outcome(NamedTuple):
    """What a piece of log gave: entries and verdicts, each in the order of the log."""

    entries: list[Entry]
    verdicts: list[Verdict]


class Monitor:
    """One run's reading, measuring and judging.

    ``make_readers`` returns fresh readers (all candidates); ``rules`` are frozen callables, their memories live here.
    """

    def __init__(
        self,
        *,
        make_readers: Callable[[], Sequence[Reader]],
        rules: Sequence[RecordRule],
        time_rules: Sequence[TimeRule],
        figures: Figures,
        window: int,
        restarts: int = 0,
        backoff_s: float = 2.0,
    ) -> None:
        self.make_readers = make_readers
        self.rules = tuple(rules)
        self.time_rules = tuple(time_rules)
        self.figures = figures
        self.window = window
        self.meter = Meter(figures, window)
        self.sniffer = Sniffer(make_readers())
        self.tails: dict[int, Tail] = {}
        self.memories: dict[str, dict[str, Any]] = {}
        self.attempt = 0
        self.segment = self._first_segment = self.meter.segment
        self.state = RunState()
        self.sick_since: int | None = None
        self.restarts = restarts
        self.backoff_s = backoff_s
        # What the log says besides records: how often the training moved on and how often it announced a silence (both
        # count from this object's beginning), and the silence that was announced since it moved last.
        self.moves = 0
        self.heard = 0
        self.phase: str | None = None
        # Kept here, in one transaction with the rest, for whoever measures silences.
        self.remembered: dict[str, Any] = {}
        self._moved_to: int | None = None
        self._asked: list[tuple[RecordRule, dict[str, Any]]] = []
        self._forget()

    def begin_attempt(self, number: int) -> None:
        """A new attempt of the command begins: what the rules remember of the last one is over."""
        if number == self.attempt:
            return
        self.attempt = number
        self.meter.begin_attempt()
        self.segment = self._first_segment = self.meter.segment
        self.sniffer = Sniffer(self.make_readers())
        self.sick_since = None
        self.phase = self._moved_to = None
        self._forget()

    def change(self, rules: Sequence[RecordRule], time_rules: Sequence[TimeRule], figures: Figures) -> None:
        """Go on with other rules or another plan; what a rule of the same name remembers stays."""
        self.rules, self.time_rules = tuple(rules), tuple(time_rules)
        self.figures = self.meter.figures = figures
        for rule in (*self.rules, *self.time_rules):
            self.memories.setdefault(rule.name, rule.fresh())
        self._ask()

    def feed(self, data: bytes, at: float, source: int = 0, offset: int = 0) -> Outcome:
        """Read ``data``, the next bytes of ``source``, which arrived at ``at`` (seconds since the epoch).

        ``offset`` is the place of a source's very first bytes, where they do not stand at its beginning.
        """
        tail = self.tails.get(source)
        if tail is None:
            tail = self.tails[source] = Tail(offset=offset)
        return self._lines(tail.feed(data), at, source)

    def flush(self, at: float) -> Outcome:
        """No more bytes will come from this attempt: read the unfinished lines too."""
        entries: list[Entry] = []
        verdicts: list[Verdict] = []
        for source in sorted(self.tails):
            some = self._lines(self.tails[source].flush(), at, source)
            entries += some.entries
            verdicts += some.verdicts
        return Outcome(entries, verdicts)

    def forget_sources(self, kept: Sequence[int]) -> None:
        """Drop the half lines of sources that are no longer followed."""
        for source in set(self.tails) - set(kept):
            del self.tails[source]

    def tick(self, moment: Moment) -> list[Verdict]:
        """Ask the rules that judge time."""
        found = []
        for rule in self.time_rules:
            verdict = rule.on_time(moment, self.memories[rule.name])
            if verdict is not None:
                found.append(msgspec.structs.replace(verdict, attempt=self.attempt, step=self.meter.last_step))
        return found

    def due_s(self, moment: Moment) -> float:
        """Return the seconds until ``tick`` has to be called at the latest; infinite if no rule judges time."""
        return min((rule.due_s(moment, self.memories[rule.name]) for rule in self.time_rules), default=math.inf)

    def happen(self, event: Event) -> Decision:
        """Decide what follows from an event, and move the run's state on."""
        decision = decide(self.state, event, self.plan())
        self.state = decision.state
        return decision

    def plan(self) -> Plan:
        """Return how far the run is from its planned end."""
        meter = self.meter
        return Plan(
            steps=self.figures.steps,
            interval=meter.interval or 1,
            last_step=meter.last_step,
            folded=meter.segment > self._first_segment,
            restarts=self.restarts,
            backoff_s=self.backoff_s,
        )

    def reached(self) -> Reached | None:
        """Return how far the run has come, over all its attempts; None before the first step."""
        meter = self.meter
        return None if meter.highest_step is None else (meter.highest_epoch or 0.0, meter.highest_step)

    def measure(self) -> Measure:
        """Return the figures of this moment."""
        return self.meter.measure()

    def snapshot(self) -> dict[str, Any]:
        """Return everything that decides about the next byte, as builtins."""
        return {
            "tails": [[source, tail.snapshot()] for source, tail in sorted(self.tails.items())],
            "sniffer": self.sniffer.snapshot(),
            "meter": self.meter.snapshot(),
            "memories": {name: dict(memory) for name, memory in self.memories.items()},
            "phase": self.phase,
            "moved_to": self._moved_to,
            "remembered": dict(self.remembered),
            "attempt": self.attempt,
            "segment": self.segment,
            "first_segment": self._first_segment,
            "sick_since": self.sick_since,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a snapshot of a monitor that was built with the same readers and rules."""
        tails = {int(source): Tail.restore(one) for source, one in state["tails"]}
        sniffer = Sniffer(self.make_readers())
        sniffer.restore(state["sniffer"])
        meter = Meter(self.figures, self.window)
        meter.restore(state["meter"])
        attempt, segment, sick_since = state["attempt"], state["segment"], state["sick_since"]
        memories = {name: dict(memory) for name, memory in state["memories"].items() if name in self.memories}
        first_segment = state.get("first_segment", segment)
        phase, moved_to, remembered = state.get("phase"), state.get("moved_to"), dict(state.get("remembered", {}))
        # Only now, when all of it was understood: half a state would be worse than none.
        self.tails, self.sniffer, self.meter = tails, sniffer, meter
        self.attempt, self.segment, self.sick_since = attempt, segment, sick_since
        self._first_segment = first_segment
        self.phase, self._moved_to, self.remembered = phase, moved_to, remembered
        self._forget()
        for name, memory in memories.items():  # over what a fresh one holds, for an older version may know less
            self.memories[name].update(memory)

    def _lines(self, lines: Sequence[Line], at: float, source: int) -> Outcome:
        entries: list[Entry] = []
        verdicts: list[Verdict] = []
        sniffer, meter, attempt = self.sniffer, self.meter, self.attempt
        for line in lines:
            records = sniffer(line, at, source)
            if not records:
                self._hear(line.text)
            for record in records:
                meter.add(record)
                if record.kind != "train" or record.step is None or record.step != self._moved_to:
                    self._moved_to = record.step
                    self.moves += 1
                    self.phase = None
                if meter.segment != self.segment:
                    self.segment = meter.segment
                    self.sick_since = None
                    self._forget()
                entries.append(Entry(record, attempt, self.segment))
                for rule, memory in self._asked:  # anew for each record: a segment may have begun with it
                    verdict = rule(record, memory)
                    if verdict is not None:
                        verdicts.append(self._found(verdict))
        return Outcome(entries, verdicts)

    def _hear(self, text: str) -> None:
        """Take in what a line that is no record says about the silence to come."""
        said = announced(text.encode("utf-8", "replace"))
        if said is not None:
            self.phase = said or None
            self.heard += 1

    def _found(self, verdict: Verdict) -> Verdict:
        if verdict.severity == "critical" and self.sick_since is None:
            self.sick_since = verdict.step if verdict.step is not None else (self.meter.last_step or 0)
        return msgspec.structs.replace(verdict, attempt=self.attempt)

    def _forget(self) -> None:
        """Give every record rule a fresh memory; rules over time remember for the whole run."""
        for rule in self.rules:
            self.memories[rule.name] = rule.fresh()
        for limit in self.time_rules:
            self.memories.setdefault(limit.name, limit.fresh())
        self._ask()

    def _ask(self) -> None:
        """Pair the rules with their memories; one that has nothing to judge by is not asked at all."""
        self._asked = [(rule, self.memories[rule.name]) for rule in self.rules if not getattr(rule, "silent", False)]

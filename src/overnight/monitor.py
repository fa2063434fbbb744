"""The pure heart: bytes in, records and verdicts out, and what follows from them.

Joins tail, readers, meter, rules and lifecycle; no clock, no file, no process. Time is an argument, so a week of
training is judged in milliseconds. The whole state can be saved and restored between any two bytes (``snapshot``,
``restore``), and records and verdicts are the same for any chunking of the bytes. Long stretches in which nothing
happens are read and judged many lines at once, which changes the speed and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import msgspec

from overnight.batches import Batch, Entry, Outcome
from overnight.calm import FEW, MOST, calm_part
from overnight.carrying import Carried
from overnight.earliness import Early
from overnight.events import Measure, Record, Verdict
from overnight.hearing import Hearing
from overnight.lifecycle import decide
from overnight.meter import Figures, Meter
from overnight.readers import Reader
from overnight.readers.sniff import Sniffer
from overnight.rules import CalmRule, Fall, Memory, Moment, RecordRule, SegmentRule, SensorRule, TimeRule, onset_of
from overnight.sensors import Sensed
from overnight.states import Decision, Event, Plan, Reached, RunState
from overnight.tail import Line, Tail

__all__ = ["Batch", "Entry", "Monitor", "Outcome"]

MANY: Final = 64
"""Lines that come together, from which on it pays to look whether they can be read at once."""

_PATIENCE: Final = 4096  # lines read one by one between two looks


class Monitor:
    """One run's reading, measuring and judging.

    ``make_readers`` returns fresh readers (all candidates); ``rules`` are frozen callables, their memories live here.
    ``policy`` says how often the run may be started again.
    """

    def __init__(
        self,
        *,
        make_readers: Callable[[], Sequence[Reader]],
        rules: Sequence[RecordRule],
        time_rules: Sequence[TimeRule],
        figures: Figures,
        window: int,
        segment_rules: Sequence[SegmentRule] = (),
        sensor_rules: Sequence[SensorRule] = (),
        policy: Plan = Plan(),  # noqa: B008 - a frozen value
    ) -> None:
        self.make_readers = make_readers
        self.rules, self.time_rules, self.segment_rules = tuple(rules), tuple(time_rules), tuple(segment_rules)
        self.sensor_rules = tuple(sensor_rules)
        self.figures = figures
        self.window = window
        self.meter, self.sniffer = Meter(figures, window), Sniffer(make_readers())
        self.tails: dict[int, Tail] = {}
        self.memories: dict[str, dict[str, Any]] = {}
        self.attempt = 0
        self.segment = self._first_segment = self.meter.segment
        self.state = RunState()
        self.sick_since: int | None = None
        self.policy = policy
        self.moves = 0  # how often the training moved on, from this object's beginning
        self.hearing = Hearing()
        # Kept here, in one transaction with the rest, for whoever measures silences.
        self.remembered: dict[str, Any] = {}
        self._moved_to: int | None = None
        self._asked: list[tuple[RecordRule, Memory]] = []
        self._calm: list[CalmRule] | None = None
        self._early, self._carried = Early(), Carried()
        self._forget()
        self._forget_falls()

    def begin_attempt(self, number: int) -> None:
        """A new attempt of the command begins: what the rules remember of the last one is over."""
        if number == self.attempt:
            return
        self.attempt = number
        self._carried = self._carried.on(self._asked, self.meter.first_step)
        self.meter.begin_attempt()
        self.segment = self._first_segment = self.meter.segment
        self.sniffer = Sniffer(self.make_readers())
        self.sick_since = None
        self.hearing.phase = self._moved_to = None
        self._early = Early()
        self._forget()
        self._forget_falls()

    def change(self, rules: Sequence[RecordRule], time_rules: Sequence[TimeRule], figures: Figures) -> None:
        """Go on with other rules or another plan; what a rule of the same name remembers stays."""
        self.rules, self.time_rules = tuple(rules), tuple(time_rules)
        self.figures = figures
        self.meter.change(figures)
        for rule in (*self.rules, *self.time_rules, *self.sensor_rules):
            self.memories.setdefault(rule.name, rule.fresh())
        self._ask()

    def feed(self, data: bytes, at: float, source: int = 0, offset: int = 0) -> Outcome:
        """Read ``data``, the next bytes of ``source``, which arrived at ``at`` (seconds since the epoch).

        ``offset`` is the place of a source's very first bytes, where they do not stand at its beginning.
        """
        tail = self.tails.get(source)
        if tail is None:
            tail = self.tails[source] = Tail(offset=offset)
        found = Outcome([], [])
        lines, block, start = tail.take(data)
        if lines:
            self._lines(lines, at, source, found)
        if block.count(b"\n", 0, 1 << 14) < MANY and block.count(b"\n") < MANY:
            self._lines(tail.split(block, start), at, source, found)
        else:
            self._block(block, start, at, source, found)
        return found

    def flush(self, at: float) -> Outcome:
        """No more bytes will come from this attempt: read the unfinished lines too, and what readers hold back."""
        found = Outcome([], [])
        for source in sorted(self.tails):
            self._lines(self.tails[source].flush(), at, source, found)
        self._records(self.sniffer.flush(), found)
        return found

    def forget_sources(self, kept: Sequence[int]) -> None:
        """Drop the half lines of sources that are no longer followed."""
        self.tails = {source: tail for source, tail in self.tails.items() if source in kept}

    def tick(self, moment: Moment) -> list[Verdict]:
        """Ask the rules that judge time."""
        found = []
        for rule in self.time_rules:
            verdict = rule.on_time(moment, self.memories[rule.name])
            if verdict is not None:
                found.append(msgspec.structs.replace(verdict, attempt=self.attempt, step=self.meter.last_step))
        return found

    def sense(self, sensed: Sensed) -> list[Verdict]:
        """Ask the rules that judge what sensors tell."""
        told = [one for rule in self.sensor_rules for one in rule.on_sample(sensed, self.memories[rule.name])]
        return [msgspec.structs.replace(one, attempt=self.attempt, step=self.meter.last_step) for one in told]

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
        return msgspec.structs.replace(
            self.policy,
            steps=self.figures.steps,
            interval=meter.interval or 1,
            last_step=meter.last_step,
            folded=meter.segment > self._first_segment,
        )

    def reached(self) -> Reached | None:
        """Return how far the run has come, over all its attempts; None before the first step."""
        highest = self.meter.highest_step
        return None if highest is None else (self.meter.highest_epoch or 0.0, highest)

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
            "hearing": self.hearing.snapshot(),
            "moved_to": self._moved_to,
            "remembered": dict(self.remembered),
            "attempt": self.attempt,
            "segment": self.segment,
            "first_segment": self._first_segment,
            "sick_since": self.sick_since,
            "early": self._early.snapshot(),
            "carried": self._carried.snapshot(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a snapshot of a monitor that was built with the same readers and rules."""
        tails = {int(source): Tail.restore(one) for source, one in state["tails"]}
        sniffer, meter = Sniffer(self.make_readers()), Meter(self.figures, self.window)
        sniffer.restore(state["sniffer"])
        meter.restore(state["meter"])
        attempt, segment, sick_since = state["attempt"], state["segment"], state["sick_since"]
        memories = {name: dict(memory) for name, memory in state["memories"].items() if name in self.memories}
        first_segment = state.get("first_segment", segment)
        moved_to, remembered = state.get("moved_to"), dict(state.get("remembered", {}))
        early, carried = Early.restore(state.get("early", [])), Carried.restore(state.get("carried", [{}, None]))
        # Only now, when all of it was understood: half a state would be worse than none.
        self.tails, self.sniffer, self.meter = tails, sniffer, meter
        self.attempt, self.segment, self.sick_since = attempt, segment, sick_since
        self._first_segment, self._early, self._carried = first_segment, early, carried
        self.hearing.restore(state.get("hearing", [state.get("phase"), None]))
        self._moved_to, self.remembered = moved_to, remembered
        self._forget()
        self._forget_falls()
        for name, memory in memories.items():  # over what a fresh one holds, for an older version may know less
            self.memories[name].update(memory)

    def _block(self, block: bytes, start: int, at: float, source: int, found: Outcome) -> None:
        """Read many whole lines: at once as far as they have one shape, and else one by one."""
        tail = self.tails[source]
        place, few = 0, 1
        while place < len(block):
            reader = self.sniffer.settled
            # Of the type: what a plug-in has is asked for line by line, where it is guarded.
            read = None if self._calm is None or self._early.pending else getattr(type(reader), "block", None)
            run = None  # how lines begin is learned one by one
            if read is not None and self.sniffer.knows(block, place):
                run = read(reader, block, place, start, at, source)
            if run is not None and len(run[0]) >= FEW:
                self.sniffer.passed()
                self._run(run[0], found)
                place, few = run[1], 1
                continue
            end = place
            for _ in range(MANY if read is None else few):
                end = block.find(b"\n", end) + 1 or len(block)
            self._lines(tail.split(block[place:end], start + place), at, source, found)
            place, few = end, 1 if read is None else min(2 * few, _PATIENCE)

    def _lines(self, lines: Sequence[Line], at: float, source: int, found: Outcome) -> None:
        """Read lines one by one."""
        sniffer = self.sniffer
        entries: list[Entry] = []
        for line in lines:
            records = sniffer(line, at, source)
            for record in records:
                self._record(record, entries, found.verdicts)
            if not records and self.hearing.take(line.text):
                self.meter.interrupt()
        if entries:
            found.pieces.append(entries)

    def _records(self, records: Sequence[Record], found: Outcome) -> None:
        """Measure and judge records one by one."""
        entries: list[Entry] = []
        for record in records:
            self._record(record, entries, found.verdicts)
        if entries:
            found.pieces.append(entries)

    def _record(self, record: Record, entries: list[Entry], verdicts: list[Verdict]) -> None:
        """Measure and judge one record; every statement here runs once per log line of a night that is not calm."""
        pending, loss = None, record.loss
        odd = loss is not None and not -math.inf < loss < math.inf
        if odd and not self._early.pending and self.meter.is_far_behind(record):
            record = msgspec.structs.replace(record, strange=True, glued=True)
        if record.early or self._early.pending:
            if record.early:
                self._early.hold(record, self.segment, self.sick_since, self._memories())
                self._judge(record, verdicts)
                return
            pending = self._early.take(record)
            if pending is not None and pending.segment == self.segment:
                self.sick_since = pending.sick_since
                self._remember(pending.memories)
        self.meter.add(record)
        if (record.kind != "train" or record.step is None or record.step != self._moved_to) and not record.strange:
            self._moved_to = record.step
            self.moves += 1
            self.hearing.phase = None
        if self.meter.segment != self.segment:
            self._new_segment(record, verdicts)
        if self._carried.memories:
            self._remember(self._carried.take(record))
        entries.append(Entry(record, self.attempt, self.segment))
        self._judge(record, verdicts)
        if pending is not None and pending.segment == self.segment:
            self._judge_again(pending.since)

    def _judge(self, record: Record, verdicts: list[Verdict]) -> None:
        """Ask the rules; anew for each record, for a segment may have begun with it."""
        for rule, memory in self._asked:
            verdict = rule(record, memory)
            if verdict is not None:
                verdicts.append(self._found(verdict))

    def _judge_again(self, records: Sequence[Record]) -> None:
        """Let the rules remember records that were judged, and told of, before an earlier one was whole."""
        for record in records:
            if record.early:
                self._early.renew(record, self.sick_since, self._memories())
            self._judge(record, [])

    def _new_segment(self, record: Record, verdicts: list[Verdict]) -> None:
        """The step has fallen: what rules remember is over."""
        meter = self.meter
        self.segment = meter.segment
        self.sick_since = None
        self._forget()
        if meter.fell_from is None:
            return
        fell, epoch = meter.fell_from
        fall = Fall(step=fell, epoch=epoch, first_step=meter.first_step or 0, interval=meter.interval)
        for rule in self.segment_rules:
            verdict = rule.on_fall(record, fall, self.memories[rule.name])
            if verdict is not None:
                verdicts.append(self._found(verdict))

    def _run(self, run: Batch, found: Outcome) -> None:
        """Judge many records: at once where nothing happens, and one by one where something may."""
        size = len(run)
        place = begun = 0
        few = 1
        while place < size:
            calm = self._pass(run, place)
            if calm:
                place, few = place + calm, 1
                continue
            if place > begun:
                found.pieces.append(run.part(begun, place, attempt=self.attempt, segment=self.segment))
            begun = min(size, place + few)
            self._records([run.record(index) for index in range(place, begun)], found)
            place, few = begun, min(2 * few, MANY)
        if place > begun:
            found.pieces.append(run.part(begun, place, attempt=self.attempt, segment=self.segment))

    def _pass(self, run: Batch, begin: int) -> int:
        """Measure and judge at once the records from ``begin`` on that no rule has anything to say about.

        Return how many they were; 0 where they are too few to be worth it, and then nothing has changed.
        """
        if self._calm is None or self._carried.memories or not self.meter.follows(run.rank, run.steps[begin]):
            return 0
        some = run.part(begin, begin + MOST, attempt=self.attempt, segment=self.segment)
        least = min(FEW, len(run) - begin)
        found = calm_part(some, [(rule, self.memories[rule.name]) for rule in self._calm], least)
        if found is None:
            return 0
        some, changes = found
        for rule, changed in zip(self._calm, changes, strict=True):
            self.memories[rule.name].update(changed)
        self.meter.add_many(some)
        count = len(some)
        new = count - (some.steps[0] == self._moved_to)
        if new:
            self.moves += new
            self.hearing.phase = None
            self._moved_to = some.steps[-1]
        return count

    def _found(self, verdict: Verdict) -> Verdict:
        onset = onset_of(verdict, last=self.meter.last_step or 0, interval=self.meter.interval or 1)
        if verdict.severity == "critical" and self.sick_since is None:
            self.sick_since = onset
        evidence = {**verdict.evidence, "onset": onset} if verdict.action == "rollback" else verdict.evidence
        return msgspec.structs.replace(verdict, attempt=self.attempt, evidence=evidence)

    def _forget(self) -> None:
        """Give every record rule a fresh memory; rules over time remember for the whole run."""
        for rule in self.rules:
            self.memories[rule.name] = rule.fresh()
        for lasting in (*self.time_rules, *self.sensor_rules):
            self.memories.setdefault(lasting.name, lasting.fresh())
        self._ask()

    def _forget_falls(self) -> None:
        """Give the rules of an attempt's segments a fresh memory."""
        for rule in self.segment_rules:
            self.memories[rule.name] = rule.fresh()

    def _memories(self) -> dict[str, Memory]:
        """Return a copy of what the record rules remember."""
        return {rule.name: dict(memory) for rule, memory in self._asked}

    def _remember(self, memories: dict[str, Memory]) -> None:
        """Let the record rules remember what ``_memories`` has copied."""
        for rule, memory in self._asked:
            if rule.name in memories:
                memory.clear()
                memory.update(memories[rule.name])

    def _ask(self) -> None:
        """Pair the rules with their memories; one that has nothing to judge by is not asked at all."""
        self._asked = [(rule, self.memories[rule.name]) for rule in self.rules if not getattr(rule, "silent", False)]
        # Of the type: a plug-in is asked record by record, where it is guarded.
        able = all(hasattr(type(rule), "calm") for rule, _ in self._asked)
        self._calm = [cast("CalmRule", rule) for rule, _ in self._asked] if able else None

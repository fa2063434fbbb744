"""The course of a run from its journal: attempts, verdicts, requests, saves, notes, in the order of their coming.

Values only: facts come as an argument, one after the other, and what is kept of them is bounded. No file is opened
here, and no sentence about the outcome is found.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from overnight.bars import folded
from overnight.folder import utc
from overnight.report import goingon
from overnight.report.resumed import Resumed, spans_of
from overnight.report.units import duration, number

SHOWN = 200
"""So many entries a timeline has at most."""

_HELD = 2000  # of each weight, while the journal is read

Entry = dict[str, Any]
Fact = Mapping[str, Any]

_EMPTY: Entry = dict.fromkeys(
    ("at", "kind", "severity", "attempt", "step", "text", "rule", "action", "source", "offset", "line")
)
_WEIGHTS = {
    "attempt": 0, "end": 0, "restart": 0, "resume": 0, "overlap": 1, "clock": 1, "request": 1, "set": 1, "state": 1,
    "hook": 1,
}  # fmt: skip


class Course:
    """What a journal tells. ``ended`` and ``attempts`` are its facts of these ends, None and empty before them.

    ``devices`` is its newest fact of the GPUs that the run is on, None while they are not known.
    """

    def __init__(self, facts: Iterable[Fact]) -> None:
        self.entries: dict[int, _Bounded] = {weight: _Bounded() for weight in range(4)}
        self.attempts: dict[int, Fact] = {}
        self.started: dict[int, Fact] = {}
        self.ended: Fact | None = None
        self.state: str | None = None
        self.resumed = Resumed()
        self.verdicts = 0
        self.notes: deque[str] = deque(maxlen=_HELD)
        self.hooks_failed: list[str] = []
        self.boots = 0
        self.devices: Fact | None = None
        self.attempt: int | None = None
        self._order = 0.0
        self._follows: float | None = None  # the first entry that follows from the end of the attempt that goes on
        self._told: dict[tuple[Any, ...], Entry] = {}  # by what makes a verdict the same one: told again, it is whole
        self._askers: dict[str, str] = {}
        for fact in facts:
            with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError, OverflowError):  # edited
                self._take(str(fact["fact"]), fact)

    def judge(self, verdict: Fact) -> None:
        """Take in a verdict that no journal holds: of a log that nobody watched."""
        self._take_verdict(verdict)

    def newest_critical(self) -> Entry | None:
        """Return the last critical verdict; None if there is none."""
        found = [
            entry for _, entry in (*self.entries[1].first, *self.entries[1].last) if entry["severity"] == "critical"
        ]
        return found[-1] if found else None

    def timeline(self, most: int = SHOWN) -> list[Entry]:
        """Return the entries in order, the weightiest if there are too many; the last then says what is left out."""
        room, chosen, left = most, [], Counter[str]()
        for weight in sorted(self.entries):
            kept, dropped = self.entries[weight].ends(room)
            room -= len(kept)
            chosen += kept
            left += dropped
        found = [entry for _, entry in sorted(chosen, key=lambda one: one[0])]
        if left:
            what = ", ".join(f"{count:,} of {kind}" for kind, count in left.most_common())
            found.append({**_EMPTY, "kind": "note", "text": f"{left.total():,} more are left out here: {what}"})
        return found

    def _take(self, kind: str, fact: Fact) -> None:
        self.resumed.take(kind, fact)
        take = getattr(self, f"_take_{kind}", None)
        if take is not None:
            take(fact)

    def _add(self, kind: str, fact: Fact, text: str, *, weight: int | None = None, **details: Any) -> Entry:
        at = fact.get("at")
        entry = {
            **_EMPTY,
            "at": at if isinstance(at, str) else None,
            "kind": kind,
            "attempt": self.attempt,
            "text": text,
            **details,
        }
        self._order += 1
        if kind in ("end", "restart") and self._follows is None:
            self._follows = self._order
        self.entries[_WEIGHTS.get(kind, 2) if weight is None else weight].add((self._order, entry))
        return entry

    # -- one method for each kind of fact --------------------------------------------------------------------------

    def _take_started(self, fact: Fact) -> None:
        self.attempt = int(fact["attempt"])
        self._follows = None
        self.started[self.attempt] = fact
        self._add("attempt", fact, f"attempt {self.attempt} began, pid {fact.get('pid')}")

    def _take_attempt_ended(self, fact: Fact) -> None:
        number_of = int(fact["attempt"])
        self.attempts[number_of] = fact
        said = fact.get("cause_text") or fact.get("cause") or "nobody knows how"
        order, self._order = self._order, self._order if self._follows is None else self._follows - 1.5
        # What follows from an end is written down before it.
        self._add("attempt", fact, f"attempt {number_of} ended: {said}", attempt=number_of, step=fact.get("last_step"))
        self._order, self._follows = max(order, float(math.ceil(self._order))), None

    def _take_ended(self, fact: Fact) -> None:
        self.ended = fact
        cause = f" ({fact['cause']})" if fact.get("cause") else ""
        self._add("end", fact, f"the run is over: {fact['state']}{cause}")

    def _take_state(self, fact: Fact) -> None:
        self.state = str(fact["state"])

    def _take_backoff(self, fact: Fact) -> None:
        back, wait = fact.get("rollback"), duration(fact.get("wait_s"))
        if not isinstance(back, Mapping):
            self._add("restart", fact, f"to be started again in {wait}")
            return
        onset, before = (number(back.get(name)) for name in ("onset", "before"))
        skip = goingon.left_out(spans_of(back.get("skip")))
        said = f"to be taken back in {wait}, to a save before step {before}: {back['rule']} from step {onset} on"
        self._add("restart", fact, said + (f"; {skip} to be left out" if skip else ""))

    def _take_resume(self, fact: Fact) -> None:
        n = int(fact["attempt"])
        begun = f"goes on {goingon.start(fact)}"
        if fact.get("path") is None:  # written when it was started: whether it found a save by itself its steps tell
            begun = "is started, and no save was known"
            begun += f"; taken back by the rule {fact['rollback']}" if fact.get("rollback") else ""
        skip = goingon.left_out(spans_of(fact.get("skip")))
        passed = fact.get("passed_over")
        over = f"; {len(passed)} newer passed over" if isinstance(passed, list) and passed else ""
        said = f"attempt {n} {begun}" + (f"; {skip} left out" if skip else "") + over
        self._add("resume", fact, said, attempt=n, step=fact.get("step"))

    def _take_overlap(self, fact: Fact) -> None:
        n = int(fact["attempt"])
        self._add("overlap", fact, f"attempt {n} beside what was done before it: {goingon.overlap(fact)}", attempt=n)

    def _take_sick(self, fact: Fact) -> None:
        n, step = int(fact["attempt"]), number(fact.get("step"))
        self._add("check", fact, f"what attempt {n} saves from step {step} on is not healthy", attempt=n)

    def _take_checked(self, fact: Fact) -> None:
        # A bad one is told by a verdict of the rule checkpoint, too, which has the weight.
        known = {name: fact.get(name) for name in ("valid", "finite", "problem")}
        said = f"a save was looked into: {fact['path']} ({goingon.mark(known)})"
        self._add("check", fact, said, weight=3, attempt=fact.get("attempt"), step=fact.get("step"))

    def _take_load_failure(self, fact: Fact) -> None:
        n, why = int(fact["attempt"]), fact.get("text") or "nobody knows why"
        said = f"attempt {n} could not load {fact['path']} ({why}); it is passed over from now on"
        self._add("check", fact, said, weight=1, severity="warn", attempt=n, step=fact.get("step"))

    def _take_recovered(self, fact: Fact) -> None:
        self.ended = None
        self._add("restart", fact, "brought back after the machine was started anew")

    def _take_clock(self, fact: Fact) -> None:
        self.boots += 1
        if self.boots > 1:
            self._add("clock", fact, f"the machine was started anew; {duration(fact.get('elapsed_s'))} used until then")

    def _take_verdict(self, fact: Fact) -> None:
        severity = str(fact.get("severity"))
        offset = fact.get("offset")
        said = {
            "action": fact.get("action"),
            "severity": severity,
            "attempt": fact.get("attempt"),
            "step": fact.get("step"),
            "rule": fact.get("rule"),
            "source": fact.get("source"),
            "offset": offset if type(offset) is int and offset >= 0 else None,
        }
        text = str(fact["text"])
        key = tuple(fact.get(name) for name in ("attempt", "source", "offset", "part", "rule"))
        known = self._told.get(key) if type(offset) is int else None
        if known is not None:  # told before its line was whole, now with its step; the moment is that of the first time
            known.update(said, text=text)
            return
        self.verdicts += 1
        at = (
            utc(float(fact["epoch"]))
            if isinstance(fact.get("epoch"), (int, float)) and 0 <= fact["epoch"] < 1e11
            else fact.get("at")
        )
        weight = {"critical": 1, "warn": 1}.get(severity, 3)
        self._told[key] = self._add("verdict", {**fact, "at": at}, text, weight=weight, **said)
        if len(self._told) > _HELD:
            del self._told[next(iter(self._told))]

    def _take_request(self, fact: Fact) -> None:
        if fact.get("kind") in ("set", "note"):  # what comes of it is told
            self._askers[str(fact.get("file"))] = str(fact.get("by"))
            return
        now = ", at once" if fact.get("now") else ""
        self._add("request", fact, f"{fact.get('kind')} asked for by {fact.get('by')}{now}")

    def _take_stopping(self, fact: Fact) -> None:
        save = "a save is wanted" if fact.get("save") else "no save is wanted"
        pids = ", ".join(str(pid) for pid in list(fact.get("pids") or ())[:8])
        to = f" to pid {pids}" if pids else ""
        self._add("state", fact, f"stopping ({fact.get('cause')}): {fact.get('signal')}{to}, {save}")

    def _take_other_signal(self, fact: Fact) -> None:
        self._add("state", fact, f"{fact.get('signal')} was sent as well")

    def _take_killed(self, fact: Fact) -> None:
        self._add("state", fact, f"killed after {duration(fact.get('seconds'))}: {fact.get('reason')}")

    def _take_saved(self, fact: Fact) -> None:
        if fact.get("path") is None:
            return
        seconds = float(fact["seconds"])
        told = f"a save was seen: {fact['path']}" + (f", which took {duration(seconds)}" if seconds >= 1.0 else "")
        self._add("save", fact, told, weight=3, step=fact.get("step"))

    def _take_note(self, fact: Fact) -> None:
        self.notes.append(str(fact["text"]))
        self._add("note", fact, str(fact["text"]))

    def _take_set(self, fact: Fact) -> None:
        values, was = fact["values"], fact.get("was") or {}
        said = ", ".join(f"{name} {_value(name, was.get(name))} -> {_value(name, new)}" for name, new in values.items())
        by = self._askers.pop(str(fact.get("file")), None)
        self._add("set", fact, f"changed by {by}: {said}" if by else f"changed: {said}")

    def _take_devices(self, fact: Fact) -> None:
        names = Counter(str(gpu.get("name") or "a GPU without a name") for gpu in fact["gpus"])
        self.devices = fact
        said = " and ".join(f"{count} x {name}" if count > 1 else name for name, count in names.items())
        self._add("gpu", fact, f"its GPUs: {said}" + (f", driver {fact['driver']}" if fact.get("driver") else ""))

    def _take_hook_ended(self, fact: Fact) -> None:
        ok = fact.get("ok")
        said = f"{_hook(str(fact.get('key')))} {'ended well' if ok else 'failed'}"
        if not ok:
            said += f": {fact.get('text')}"
            self.hooks_failed.append(str(fact.get("text")))
        self._add("hook", fact, said, severity=None if ok else "warn", weight=3 if ok else 1)

    def _take_leftovers(self, fact: Fact) -> None:
        names = ", ".join(map(str, list(fact.get("names") or ())[:8]))
        self._add("note", fact, f"{fact.get('count')} processes were left behind: {names}", weight=2)

    def _take_dump(self, fact: Fact) -> None:
        self._add("note", fact, f"where it hangs is written to {fact.get('path')}: {fact.get('reason')}", weight=1)


def _value(name: str, value: Any) -> str:
    """Return the value of a setting in words; what ends in _s are seconds, and no limit is none."""
    if value is None:
        return "none"
    if name == "until" and isinstance(value, (int, float)):
        return utc(float(value))
    if name == "max_hours" and isinstance(value, (int, float)):
        return duration(value * 3600)
    return duration(value) if name.endswith("_s") else number(value)


def _hook(key: str) -> str:
    """Return what a hook is called: its flag, which of several, and what it was told. Its command may be a secret."""
    parts = key.split("-")
    flag = "--on-end" if parts[0] == "end" else "--on-event"
    of = f" of event {int(parts[1])}" if len(parts) == 3 and parts[0] == "event" and parts[1].isdecimal() else ""
    which = f" {int(parts[-1])}" if parts[-1].isdecimal() else ""
    return f"{flag} hook{which}{of}"


class _Bounded:
    """The first and the last entries of one weight, and how many of each kind lay between."""

    def __init__(self) -> None:
        self.first: list[tuple[float, Entry]] = []
        self.last: deque[tuple[float, Entry]] = deque()
        self.between: Counter[str] = Counter()

    def add(self, entry: tuple[float, Entry]) -> None:
        if len(self.first) < _HELD // 2:
            self.first.append(entry)
            return
        self.last.append(entry)
        if len(self.last) > _HELD // 2:
            self.between[self.last.popleft()[1]["kind"]] += 1

    def ends(self, room: int) -> tuple[list[tuple[float, Entry]], Counter[str]]:
        """Return at most ``room`` entries, half of them the first and half the last, and what is left out by kind."""
        held = [*self.first, *self.last]
        if len(held) <= room:
            return held, self.between
        head = (room + 1) // 2
        middle = held[head : len(held) - (room - head)]
        kept = held[:head] + held[len(held) - (room - head) :]
        return kept, self.between + Counter(entry["kind"] for _, entry in middle)


def attempts(course: Course, shown: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return every attempt that status or journal know; what one of them does not say the other may."""
    known = {one["n"]: dict(one) for one in shown if isinstance(one.get("n"), int)}
    for n in sorted({*course.started, *course.attempts}):
        known.setdefault(n, {"n": n})
    return [_attempt(n, known[n], course.started.get(n) or {}, course.attempts.get(n) or {}) for n in sorted(known)]


def _attempt(n: int, shown: Mapping[str, Any], started: Fact, end: Fact) -> dict[str, Any]:
    def either(name: str) -> Any:
        return shown[name] if shown.get(name) is not None else end.get(name)

    lines = end.get("lines")
    found = {
        "n": n,
        "started_at": either("started_at") or started.get("at"),
        "seconds": end.get("seconds"),
        "lines": folded(str(line)[:1000] for line in lines) if isinstance(lines, list) else [],
        **{name: either(name) for name in ("ended_at", "first_step", "last_step", "cause", "cause_text", "exit_code")},
        "signal": either("signal"),
    }
    found["state_words"] = _state_words(found, over=bool(end) or found["ended_at"] is not None)
    return found


_CAUSES = {"completed": "finished", "bad_teardown": "finished, then fell at its very end", "user": "stopped on request"}


def _state_words(one: Mapping[str, Any], *, over: bool) -> str:
    """Return how an attempt ended, in a few words; "going on" if it has not."""
    cause = one["cause"]
    if cause is not None:
        return _CAUSES.get(cause, str(cause).replace("_", " "))
    if one["signal"] is not None:
        return f"ended by {one['signal']}"
    if one["exit_code"] is not None:
        return f"exited with code {one['exit_code']}"
    return "ended, nobody knows how" if over else "going on"

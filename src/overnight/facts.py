"""The facts of one run as its supervisor writes them: the journal, the verdicts so far, the notes shown in status.

A fact is written before it is acted upon, with one write() and no fsync; ``sync`` follows when there is time. A full
disk never delays a stop: the ballast is freed for the last facts, and what still cannot be written is counted.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from overnight.events import Exit, Request, Verdict, VerdictKey
from overnight.exits.causes import Finding
from overnight.folder import Journal, RunFolder, read_journal, utc
from overnight.moments import epoch_of
from overnight.monitor import Monitor
from overnight.resumption.known import SavesBook
from overnight.states import ENDED

MAX_NOTES = 20
SAVES_KEPT = 6


def complain(text: str) -> None:
    """Say it on stderr, which is a file on the same full disk more often than not: that must not end the supervisor."""
    with contextlib.suppress(OSError):
        os.write(2, f"overnight: {text}\n".encode())


class Facts:
    """Everything that was written down, and the only way to write more."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.verdicts: list[Verdict] = []
        self.keys: set[VerdictKey] = set()
        self.notes: list[str] = []
        self.marks: list[tuple[int, int, float]] = []
        self.attempt_ends: dict[int, dict[str, Any]] = {}
        self.target_exit: dict[str, Any] | None = None
        self.ended: dict[str, Any] | None = None
        self.backoff: dict[str, Any] | None = None
        self.backoffs = 0
        self.clock: dict[str, Any] | None = None
        self.devices: dict[str, Any] | None = None
        self.changes: list[dict[str, Any]] = []
        self.boot_id: str | None = None
        self.memory: tuple[object, object] = (None, None)
        self.book = SavesBook()
        self.save_times: list[float] = []
        self.check_times: list[float] = []
        self.resumes: dict[int, dict[str, Any]] = {}
        self.overlaps: dict[int, dict[str, Any]] = {}
        self.starts: dict[int, float] = {}
        self.begins: dict[int, float] = {}  # when each was decided upon, a moment before it was started
        self.rollbacks = 0
        self.skips: list[tuple[int, int]] = []
        self.unloaded: dict[int, dict[str, Any]] = {}
        self.requests: set[str] = set()
        self.obeyed: set[str | None] = set()
        self.user_asked = False
        self.holding = self.unwanted = False  # hooks of the end are held back; and are not wanted any more
        self.lost = 0
        for fact in read_journal(folder.journal):
            # One that was edited by hand is passed over.
            with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
                if fact["fact"] == "mark":
                    self.marks.append((int(fact["source"]), int(fact["offset"]), float(fact["epoch"])))
                else:
                    self._recall(fact)
        self.journal = Journal(folder.journal)

    def say(self, fact: str, **details: Any) -> None:
        """Write one fact down, and remember what the journal would remember."""
        at = time.time()
        self._recall({"fact": fact, **details})
        try:
            self.journal.append(fact, at, **details)
        except OSError as error:
            freed = self.folder.drop_ballast()
            try:
                if not freed:
                    raise
                self.journal.append(fact, at, **details)
            except OSError:
                self.lost += 1
                complain(f"the fact {fact} could not be written: {error}")

    def note(self, text: str, *, file: str | None = None) -> None:
        """Write a sentence down that status shows too; the same one (or the request in ``file``) only once."""
        if text not in self.notes and file not in self.obeyed:
            self.say("note", text=text, **({} if file is None else {"file": file}))

    def judge(self, verdict: Verdict) -> bool:
        """Write a verdict down; False if it is already there, though perhaps without the step that is known by now."""
        if verdict.key not in self.keys:
            self._say_verdict(verdict)
            return True
        if verdict.step is not None and self.verdicts[self._place_of(verdict)].step is None:
            self._say_verdict(verdict)
        return False

    def _say_verdict(self, verdict: Verdict) -> None:
        # A verdict's own time is the time mark before its line (a rebuild gives the same); shown is when it was judged.
        details = msgspec.structs.asdict(verdict)
        details.pop("at")
        self.say("verdict", epoch=time.time(), **details)

    def _place_of(self, verdict: Verdict) -> int:
        key = verdict.key
        return next(place for place, one in enumerate(self.verdicts) if one.key == key)

    def fresh_request(self, name: str, request: Request) -> bool:
        """Write a request down; False if the file of that name was written down before."""
        if name in self.requests:
            return False
        self.say("request", file=name, kind=request.kind, by=request.by, now=request.now)
        return True

    def attempt_ended(
        self, line: dict[str, Any], how: Exit, monitor: Monitor, seconds: float, finding: Finding | None = None
    ) -> None:
        """Write down how an attempt ended and which steps it did; ``seconds`` is how long its command ran.

        ``line`` is the attempt as status shows it, ``finding`` why it failed, if it did.
        """
        self.say(
            "attempt_ended",
            attempt=line["n"],
            pid=line["pid"],
            started_at=line["started_at"],
            exit_code=how.exit_code,
            signal=how.signal,
            cause=monitor.state.cause,
            cause_text=monitor.state.cause_text if finding is None else finding.text,
            lines=[] if finding is None else list(finding.lines),
            first_step=monitor.meter.first_step,
            last_step=monitor.meter.last_step,
            ended_at=utc(how.at) if how.at is not None else None,
            seconds=round(seconds, 3),
        )

    def seconds(self) -> dict[int, float]:
        """Return how long the command ran in each attempt that has ended."""
        found = {number: end.get("seconds") for number, end in self.attempt_ends.items()}
        return {number: float(seconds) for number, seconds in found.items() if isinstance(seconds, (int, float))}

    @property
    def save_s(self) -> float | None:
        """Return the seconds that the slowest of the last saves took until it was known to be whole; None: none."""
        if not self.save_times:
            return None
        return max(self.save_times) + max(self.check_times, default=0.0)

    def saved(
        self, *, seconds: float, path: str | None, step: int | None, at: float, attempt: int, segment: int
    ) -> None:
        """Write down a save that was seen (``path``) and over ``at``, or how long the log was silent around one."""
        took_s = round(seconds, 3)
        self.say("saved", seconds=took_s, path=path, step=step, epoch=at, attempt=attempt, segment=segment)

    def attempt_times(self) -> Iterator[tuple[int, float, float | None]]:
        """Yield (number, began, ended) of each attempt, in seconds since the epoch; None: not over, or nobody knows."""
        for number, began in self.starts.items():
            yield number, began, epoch_of(self.attempt_ends.get(number, {}).get("ended_at"))

    def rolling_back(self) -> dict[str, Any] | None:
        """Return the rollback that is due: that of the last back-off, until an attempt was started after it."""
        told = self.backoff or {}
        back = told.get("rollback")
        due = isinstance(back, dict) and int(told["attempt"]) >= max(self.starts, default=0)
        return back if due else None

    def mark(self, source: int, offset: int, at: float) -> None:
        """Write down when a place in the log was reached."""
        self.say("mark", source=source, offset=offset, epoch=at)

    def sync(self) -> None:
        """Make the facts durable; a failure is no reason to stop."""
        try:
            self.journal.sync()
        except OSError as error:
            complain(f"the journal could not be synced: {error}")

    def _recall(self, fact: dict[str, Any]) -> None:
        kind = fact["fact"]
        if kind == "verdict":
            self._recall_verdict(fact)
        elif kind == "note":
            self.notes = [*self.notes, str(fact.get("text"))][-MAX_NOTES:]
            self._obeyed(fact)
        elif kind == "request":
            self.requests.add(str(fact.get("file")))
            self.user_asked = self.user_asked or (fact.get("kind") == "stop" and fact.get("by") == "user")
            late = self.holding and fact.get("kind") == "stop" and fact.get("now") is True
            self.unwanted = self.unwanted or late
        elif kind in ("saved", "sick", "checked", "load_failure", "resume", "overlap"):
            self._recall_save(kind, fact)
        elif kind == "attempt_ended":
            self.attempt_ends[int(fact["attempt"])] = fact
        elif kind == "target_ended":
            self.target_exit = fact
        elif kind == "target_started":
            self.target_exit = None
        elif kind == "ended" and fact.get("state") in ENDED:
            self.ended = fact
        else:
            self._recall_course(kind, fact)

    def _obeyed(self, fact: dict[str, Any]) -> None:
        if isinstance(fact.get("file"), str):
            self.obeyed.add(fact["file"])

    def _recall_course(self, kind: str, fact: dict[str, Any]) -> None:
        """Take in what happened between the attempts."""
        if kind == "backoff":
            float(fact["until_s"])
            self._recall_back_off(fact)
        elif kind == "started":
            self.memory = (fact.get("attempt"), fact.get("memory"))
            self.starts.setdefault(int(fact["attempt"]), _told_at(fact))
        elif kind == "state" and fact.get("state") == "starting":
            self.begins.setdefault(int(fact["attempt"]), _told_at(fact))
        elif kind == "recovered":
            self.boot_id, self.ended, self.holding, self.unwanted = str(fact["boot_id"]), None, False, False
        elif kind in ("hook_held", "hook_released"):
            self.holding = kind == "hook_held"
        elif kind == "clock":
            told = {name: float(fact.get(name) or 0.0) for name in ("uptime_s", "elapsed_s", "epoch")}
            if all(math.isfinite(value) for value in told.values()):
                self.clock = {**fact, **told}
        elif kind == "devices" and all(isinstance(one.get("name"), str) for one in fact["gpus"]) and fact["gpus"]:
            self.devices = fact
        elif kind == "set" and isinstance(fact.get("values"), dict):
            self.changes.append(fact["values"])
            self._obeyed(fact)

    def _recall_back_off(self, fact: dict[str, Any]) -> None:
        self.backoff, back = fact, fact.get("rollback")
        self.book.recall(fact)
        if not isinstance(back, dict):
            self.backoffs += 1
            return
        self.rollbacks += 1
        if back.get("skip") is not None:
            first, last = map(int, back["skip"])
            self.skips = [*(one for one in self.skips if one != (first, last)), (first, last)]

    def _recall_save(self, kind: str, fact: dict[str, Any]) -> None:
        if kind == "saved":
            self.save_times = [*self.save_times, float(fact["seconds"])][-SAVES_KEPT:]
        elif kind == "checked" and isinstance(fact.get("check_s"), (int, float)):
            self.check_times = [*self.check_times, float(fact["check_s"])][-SAVES_KEPT:]
        elif kind == "resume":
            self.resumes[int(fact["attempt"])] = fact
        elif kind == "overlap":
            self.overlaps[int(fact["attempt"])] = fact
        elif kind == "load_failure":
            self.unloaded[int(fact["attempt"])] = fact
        self.book.recall(fact)

    def _recall_verdict(self, fact: dict[str, Any]) -> None:
        known = {name: fact[name] for name in Verdict.__struct_fields__ if name in fact and name != "at"}
        epoch = fact.get("epoch")
        try:
            verdict = msgspec.convert({**known, "at": epoch}, Verdict)
        except msgspec.ValidationError:
            return  # edited by hand: it counts as never written, and will be found again
        if verdict.key in self.keys:  # told again, with its step
            first = self.verdicts[place := self._place_of(verdict)]
            self.verdicts[place] = msgspec.structs.replace(verdict, at=first.at)
            return
        self.keys.add(verdict.key)
        self.verdicts.append(verdict)


def _told_at(fact: dict[str, Any]) -> float:
    """Return when a fact was written down, seconds since the epoch: now for one that is just being said."""
    told = epoch_of(fact.get("at"))
    return time.time() if told is None else told

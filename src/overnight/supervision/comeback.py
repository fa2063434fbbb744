"""Where a run goes on from: its saves are looked at as they appear, and the one to resume from is found.

What a save is worth is decided in ``resumption``; here it is asked for, told to the journal, and handed to the attempt
that comes next. The supervisor calls ``turn`` in each of its turns.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec

from overnight.batches import Batch, Entry
from overnight.clocks import boot_clock
from overnight.events import Verdict
from overnight.exits.causes import Finding
from overnight.facts import Facts
from overnight.folder import RunFolder
from overnight.monitor import Monitor
from overnight.resumption.aftermath import Aftermath
from overnight.resumption.choice import LATER_S, Choice, Wanted
from overnight.resumption.fitting import unfit
from overnight.resumption.known import GONE, KnownSave
from overnight.resumption.point import Point, lost, sentence
from overnight.resumption.search import Search, folders_of
from overnight.resumption.steering import steered
from overnight.resumption.stranding import Circumstances, stranded
from overnight.resumption.vetting import Vetting
from overnight.saves.names import number_in
from overnight.spec import RunSpec
from overnight.states import Stranded, Waited
from overnight.supervision.attempt import Attempt

SOON_S = 120.0
LOOK_S = 0.05
DIGITS = re.compile(r"\d+")
SKEW_S, SAME_S = 60.0, 0.02
"""So far a file server's clock may be behind ours; and so close together lie the end of a save and the time on it."""
MOST_PARTS, MOST_REWRITTEN = 200, 20
BROKEN = frozenset({"damaged", "nonfinite"})
UNLOADED = frozenset({"crash", "load_failure"})
"""Ends before the first step that a save may be the cause of; a lack of memory or a full disk is none of its faults."""


class Comeback:
    """One run's saves and its way back to them."""

    def __init__(self, folder: RunFolder, spec: RunSpec, facts: Facts, monitor: Monitor) -> None:
        self.folder = folder
        self.spec = spec
        self.facts = facts
        self.monitor = monitor
        self.vetting = Vetting(facts.book, say=facts.say)
        self.search: Search | None = None
        self.answer: Waited | Stranded | None = None
        self.save_s: float | None = None
        self.looked = False
        self.step_s: float | None = None  # of an attempt that made some steps
        self.noticed: list[Verdict] = []
        self.aftermath: Aftermath | None = None

    # -- while an attempt goes on --------------------------------------------------------------------------------------

    def saved(self, *, seconds: float, path: str | None = None, step: int | None = None, ago_s: float = 0.0) -> None:
        """Take in that a save was seen (``path``), which was over ``ago_s`` ago, or how long the log was silent."""
        monitor = self.monitor
        at = time.time() - ago_s
        if path is not None and self._came_back(path):
            return
        self.facts.saved(seconds=seconds, path=path, step=step, at=at, attempt=monitor.attempt, segment=monitor.segment)
        if path is not None:
            self.vetting.saw(path)

    def _came_back(self, path: str) -> bool:
        """Say whether what appears to be saved now is an older file that was moved away, restored or mounted again."""
        written = written_at(path)
        if written is None:
            return False
        known, began = self.facts.book.of(path), min(self.facts.starts.values(), default=0.0)
        return written < began - SKEW_S or (known is not None and written <= known.at + SAME_S)

    def missed(self) -> None:
        """Take in what was written over while no supervisor lived: of which step it is only its name may say."""
        monitor = self.monitor
        for known in self.facts.book.saves[-MOST_REWRITTEN:]:
            written = None if known.problem == GONE else written_at(known.path)
            if written is not None and written > known.at + LATER_S:
                where = {"attempt": monitor.attempt, "segment": monitor.segment}
                self.facts.saved(seconds=known.seconds, path=known.path, step=named_step(known), at=written, **where)
                self.vetting.saw(known.path)

    def judged(self, verdict: Verdict) -> None:
        """Take in a verdict: from a segment's first serious one on its saves may be poisoned."""
        monitor = self.monitor
        if verdict.severity != "critical" and verdict.action != "rollback":
            return
        if verdict.attempt != monitor.attempt:
            return
        step, segment = monitor.sick_since, monitor.segment
        if step is None:
            # Told without being critical; or the step has fallen since, within the same bytes.
            step = verdict.evidence.get("onset", verdict.step)
            segment -= verdict.severity == "critical"
        if (monitor.attempt, segment) not in self.facts.book.sick:
            self.facts.say("sick", attempt=monitor.attempt, segment=segment, step=step, epoch=time.time())

    def take(self, pieces: Sequence[Sequence[Entry] | Batch]) -> None:
        """Take in records as they come: the first ones after a restart are compared with what was before."""
        if self.aftermath is not None:
            self.noticed += self.aftermath.take(pieces)
            if self.aftermath.over():
                self.aftermath = None

    def turn(self, place: int) -> Iterator[Verdict]:
        """Yield what was found since; ``place`` is where the log stands."""
        yield from self.bad_saves(place)
        yield from self.told()
        self.step_s = self.monitor.meter.mean_step_s or self.monitor.meter.step_s or self.step_s
        save_s = self.facts.save_s
        if save_s is not None and save_s != self.save_s:
            self.save_s = save_s
            for part, action, text in unfit(self.spec, save_s=save_s, step_s=self.monitor.meter.step_s):
                yield self._verdict("save_time", text, 0, part=part, action=action, evidence={"save_s": save_s})

    def told(self) -> Iterator[Verdict]:
        """Yield what was noticed of the first records after a restart, once."""
        while self.noticed:
            yield self.noticed.pop(0)

    def _verdict(
        self, rule: str, text: str, offset: int, *, part: int, evidence: dict[str, Any], action: str = "alert"
    ) -> Verdict:
        return Verdict(
            rule=rule,
            severity="note" if action == "note" else "warn",
            action="note" if action == "note" else "alert",
            text=text,
            step=self.monitor.meter.last_step,
            attempt=self.monitor.attempt,
            offset=offset,
            part=part,
            evidence=evidence,
        )

    def bad_saves(self, place: int) -> Iterator[Verdict]:
        """Yield a verdict on each save that was found to be bad since, or by a supervisor that could not tell it."""
        if not self.vetting.turn(boot_clock()) and self.looked:
            return
        self.looked = True
        told = {(one.evidence.get("path"), one.evidence.get("at")) for one in self.facts.verdicts}
        for save in self.facts.book.saves:
            if save.valid is not False or (save.path, save.at) in told:
                continue
            told.add((save.path, save.at))
            where = "a save" if save.step is None else f"the save of step {save.step}"
            text = f"{where} is bad: {save.problem or 'it is not whole'} ({save.path})"
            evidence = {"path": save.path, "step": save.step, "at": save.at}
            yield self._verdict("checkpoint", text, place, part=len(told) - 1, evidence=evidence)

    def next_look_s(self, now: float) -> float | None:
        """Return when ``turn`` wants to be called though nothing happens; None if it does not."""
        waits = [self.vetting.next_look_s(now)]
        if self.search is not None and self.search.choice is None:
            waits.append(self.search.next_look_s())
        return min((wait for wait in waits if wait is not None), default=None)

    def calm(self) -> bool:
        """Say whether no first record after a restart is waited for, and nothing that was noticed is to be told."""
        return self.aftermath is None and not self.noticed

    def busy(self) -> bool:
        """Say whether a save is still being looked at, or waits for it."""
        return self.vetting.busy()

    def close(self) -> None:
        """End the side processes."""
        self.vetting.close()
        if self.search is not None:
            self.search.close()

    # -- between two attempts ------------------------------------------------------------------------------------------

    def ended(self, attempt: Attempt, finding: Finding | None, *, stopped: bool) -> bool:
        """Take in that an attempt is over; True if it could not load the save that it was given."""
        if self.aftermath is not None:
            self.noticed += self.aftermath.finish()
            self.aftermath = None
        given = self.facts.resumes.get(attempt.number) or {}
        stepped = any(isinstance(end.get("last_step"), int) for end in self.facts.attempt_ends.values())
        if stopped or finding is None or finding.cause not in UNLOADED or not given.get("path") or not stepped:
            return False
        if self.monitor.meter.first_step is not None or self._as_before(attempt.number, given["path"], finding):
            return False
        self.facts.say(
            "load_failure", attempt=attempt.number, path=given["path"], step=given.get("step"), text=finding.text
        )
        return True

    def _as_before(self, number: int, path: str, finding: Finding) -> bool:
        """Say whether the attempt before has failed with the same words at another save: then it is no save's fault."""
        known = self.facts.unloaded.get(number - 1)
        if known is None or finding.cause == "load_failure" or known.get("path") == path:
            return False
        return DIGITS.sub("#", str(known.get("text"))) == DIGITS.sub("#", finding.text)

    def elsewhere(self) -> bool:
        """Say whether there is a save that nothing is known against."""
        return self.facts.book.newest_good() is not None

    def look_for(self, *, limit_s: float | None = None) -> None:
        """Begin to find the save to go on from; ``limit_s`` is how long its content may be read at most."""
        if self.search is not None:
            return
        back = self.facts.rolling_back() or {}
        firsts = [one.get("first_step") for one in self.facts.attempt_ends.values()]
        first = min((one for one in firsts if isinstance(one, int)), default=None)
        own = os.path.normpath(os.path.join(self.spec.cwd, self.spec.checkpoints or ""))
        wanted = Wanted(
            before=back.get("before"),
            attempts=tuple(self.facts.attempt_times()),
            first=first,
            own=(own, os.path.realpath(own)),
        )
        folders = folders_of(self.spec.checkpoints, self.facts.book, self.spec.cwd)
        more = {} if limit_s is None else {"limit_s": limit_s}
        self.search = Search(folders, self.facts.book, wanted, **more)

    def found(self) -> Waited | Stranded | None:
        """Return what follows from what was found; None while it is being looked for."""
        self.look_for()
        search = self.search
        if self.answer is None and search is not None and search.done() and search.choice is not None:
            self._learn(search.choice)
            why = stranded(search.choice, self._circumstances())  # once: it reads scripts
            self.answer = Waited() if why is None else Stranded(text=why)
        return self.answer

    def _learn(self, choice: Choice) -> None:
        """Take in what the search has found out about saves thought to be good: status must not offer them."""
        for one in choice.passed_over:
            known = self.facts.book.of(one.path)
            if known is None or known.valid is False or known.problem == GONE or one.kind not in BROKEN:
                continue
            about = {"path": known.path, "step": known.step, "attempt": known.attempt, "maker": known.maker}
            finite = False if one.kind == "nonfinite" else known.finite
            self.facts.say("checked", **about, valid=False, finite=finite, problem=one.why, check_s=None)
            self.looked = False  # it is an alert, as of any bad save

    def found_soon(self) -> str | None:
        """Wait for what is being looked for, not for long: somebody waits for the run; why it cannot go on, or None."""
        self.look_for(limit_s=SOON_S)
        while (found := self.found()) is None:
            time.sleep(LOOK_S)
        return found.text if isinstance(found, Stranded) else None

    def point(self, number: int, *, used_s: float) -> Point | None:
        """Write down where attempt ``number`` goes on, and return it; None for the first one.

        ``used_s`` is how long the commands have run, of which what lies behind the save is lost.
        """
        if number < 2:
            return None
        known = self.facts.resumes.get(number)
        if known is None:
            choice = self.search.choice if self.search is not None and self.search.choice is not None else Choice()
            self._tell(number, choice, used_s)
            known = self.facts.resumes[number]
        self.search = self.answer = None
        return Point(path=known.get("path"), step=known.get("step"), skip=tuple(self.facts.skips))

    def began(self, attempt: Attempt | None) -> None:
        """Watch how an attempt goes on."""
        if attempt is not None and attempt.number > 1:
            number = attempt.number
            saved = [one.step for one in self.facts.book.saves if one.step is not None and one.attempt < number]
            self.aftermath = Aftermath(
                self.folder.metrics_db,
                attempt=number,
                place=attempt.log_begins(),
                resume=self.facts.resumes.get(number),
                saved=max(saved, default=None),
                told=number in self.facts.overlaps,
                say=self.facts.say,
            )

    def _tell(self, number: int, choice: Choice, used_s: float) -> None:
        back = self.facts.rolling_back()
        done = (self.facts.attempt_ends.get(number - 1) or {}).get("last_step")
        if done is None:  # an attempt that made no step stood where it was begun
            done = (self.facts.resumes.get(number - 1) or {}).get("step")
        left_out = (self.facts.resumes.get(number - 1) or {}).get("skip")
        gone = lost(self.spec, done, choice, step_s=self.step_s, used_s=used_s, left_out=left_out)
        details: dict[str, Any] = {
            "attempt": number,
            "path": choice.path,
            "step": choice.step,
            "maker": choice.maker,
            "skip": [list(one) for one in self.facts.skips],
            "passed_over": [msgspec.structs.asdict(one) for one in choice.passed_over],
            **gone,
            "rollback": None if back is None else back.get("rule"),
        }
        self.facts.say("resume", **details, text=sentence(details, price=self.spec.price))
        for text in choice.notes:
            self.facts.note(text)

    def _circumstances(self) -> Circumstances:
        facts, book = self.facts, self.facts.book
        good = [one for one in book.saves if one.valid is True and one.problem != GONE]
        folders = {os.path.dirname(one.path) for one in good}
        missing = min((one for one in folders if not os.path.isdir(one)), default=None)
        return Circumstances(
            back=facts.rolling_back(),
            steered=steered(self.spec),
            missing=missing,
        )


def named_step(save: KnownSave) -> int | None:
    """Return the step that the name of a save tells, whatever is written to it; None if it tells none."""
    number, told = number_in(os.path.basename(save.path))
    return number if told == "step" or (told is None and number == save.step) else None


def written_at(path: str) -> float | None:
    """Return when the newest file of a checkpoint was written, in seconds since the epoch; None if nobody can say."""
    try:
        found = os.stat(path)
        if not stat.S_ISDIR(found.st_mode):
            return found.st_mtime
        with os.scandir(path) as inside:
            times = [one.stat().st_mtime for one in islice(inside, MOST_PARTS) if one.is_file()]
    except OSError:
        return None
    return max(times, default=None)

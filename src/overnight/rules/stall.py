"""A training that has stopped moving: no new step, no first step, or no end after the last one.

Progress is the step, not bytes and not a busy processor. Only silences live here; how long one is, and what the log
has announced of it, is measured elsewhere and handed in. Limits on a run as a whole are another family.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar, Final, NamedTuple

from overnight.events import RuleAction, Verdict
from overnight.rules import Memory, Moment, Quiet, milder, span

ALERT_S: Final = 60.0
END_S: Final = 1800.0
ANNOUNCED_ALERT_S: Final = 600.0
ANNOUNCED_END_S: Final = 7200.0
START_ALERT_S: Final = 1800.0
EXIT_ALERT_S: Final = 600.0
GAPS_ALERT: Final = 5.0
GAPS_END: Final = 10.0
BUSY: Final = 4.0
"""How many times the end a log that grows without a step may put it off: what is printed is no progress, but a training
may print for long what no reader understands, and half an hour would be hasty."""

_NOTE: Final = 1
_ALERT: Final = 2
_END: Final = 3
_ON: Final = 4
_PARTS: Final = 4  # of one silence


class _Bounds(NamedTuple):
    """Seconds of silence that get a note (if excused), an alert, an end; without a step, whatever explains it.

    ``exact``: the user gave the end.
    """

    note_s: float
    alert_s: float
    end_s: float
    last_alert_s: float
    last_end_s: float
    exact: bool = False


class _Look(NamedTuple):
    """What is remembered: the number of this silence, the gravest told of it, where what was announced of it ended.

    ``longest_announced_s`` is that of the silences that the training has come back from.
    """

    silence: int
    told: int
    from_s: float
    longest_announced_s: float


class _Found(NamedTuple):
    silence: int
    kind: int
    action: RuleAction
    text: str
    silent_s: float
    limit_s: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Stall:
    """No new step for long: critical when it ends the run, by default ``stop``, with a save.

    Without limits of the user's it learns from the run. It alerts after a minute or 5 times the longest gap between two
    steps so far, whichever is more, and ends after 30 minutes or 10 times that gap, if for as long neither the log nor
    a file that is watched has grown. A log that grows without a step puts the end off, at most to 4 times as long.
    Before the second step nothing is known of the gaps: it alerts after 30 minutes and ends after 2 hours. Before the
    first step it alerts after 30 minutes and never ends. After the planned end it alerts after 10 minutes and ends
    after 30. One alert per silence; when the training goes on the rule is armed anew.

    It does not kill healthy runs: an end is half an hour away at least, and a slow run has taught it its own gaps. What
    the log announces (evaluating, saving, compiling, loading) gets a note, an alert only after 10 minutes or twice the
    longest announced silence so far, and an end after 2 hours. Files that grow beside a silent log are taken for the
    training's work: they get a note, an alert after half an hour, and no end.

    ``limit_s``, ``start_limit_s`` and ``exit_limit_s`` are the user's and hold to the second, whatever grows or is
    announced: no new step, no first step, no end after the last step.
    """

    name: ClassVar[str] = "stall"

    limit_s: float | None = None
    start_limit_s: float | None = None
    exit_limit_s: float | None = None
    action: RuleAction = "stop"

    def fresh(self) -> Memory:
        """Return a memory in which nothing is silent."""
        return {
            "silence": 0,
            "told": 0,
            "step_s": 0.0,
            "from_s": 0.0,
            "announced": False,
            "longest_announced_s": 0.0,
            "limits": self._limits(),
        }

    def due_s(self, moment: Moment, memory: Memory | None = None, /) -> float:
        """Return the seconds until the next finding can come if nothing moves; infinite for none."""
        quiet = moment.quiet
        if quiet is None:
            return inf
        known = {**self.fresh(), **(memory or {})}
        if self._over(quiet, known):
            return 0.0
        look = self._look(quiet, known)
        return min((left_s for kind, left_s in self._left(quiet, look).items() if kind > look.told), default=inf)

    def on_time(self, moment: Moment, memory: Memory, /) -> Verdict | None:
        """Return what this silence is worth by now: the gravest that was not told yet, or that it is over."""
        quiet = moment.quiet
        for key, value in self.fresh().items():
            memory.setdefault(key, value)
        if quiet is None:  # between two attempts: the next one begins with a silence of its own
            memory.update(silence=memory["silence"] + (memory["told"] > 0), told=0, step_s=0.0, from_s=0.0)
            memory["announced"] = False
            return None
        over = self._over(quiet, memory)
        before_s, before = memory["step_s"], memory["silence"]
        look = self._look(quiet, memory)
        memory.update(look._asdict(), step_s=quiet.step_s, limits=self._limits())
        memory["announced"] = quiet.stepped and quiet.phase is not None
        if over:
            text = f"going on after at least {span(before_s)} without a new step"
            return self._verdict(moment, quiet, _Found(before, _ON, "note", text, before_s, None))
        left = self._left(quiet, look)
        kind = max((one for one, seconds in left.items() if one > look.told and seconds <= 0), default=0)
        if kind == 0:
            return None
        memory["told"] = kind
        bounds = self._bounds(quiet, look)
        limit_s = bounds.note_s if kind == _NOTE else bounds.alert_s if kind == _ALERT else bounds.end_s
        action = "note" if kind == _NOTE else milder(self.action) if kind == _ALERT else self.action
        text = self._text(quiet, kind, bounds)
        return self._verdict(moment, quiet, _Found(look.silence, kind, action, text, quiet.step_s, limit_s))

    def _limits(self) -> str:
        return f"{self.limit_s} {self.start_limit_s} {self.exit_limit_s}"

    def _ends(self) -> bool:
        return self.action in ("stop", "terminate", "rollback")

    def _over(self, quiet: Quiet, known: Memory) -> bool:
        """Say whether the training moves again after a silence that somebody was alerted to."""
        told = known["told"]
        alerted = told == _ALERT or (told == _END and not self._ends())
        return alerted and quiet.stepped and _moved(quiet, known)

    def _look(self, quiet: Quiet, known: Memory) -> _Look:
        """Return what is known of the silence that goes on, a new one if the step's silence has become shorter."""
        silence, told, from_s, longest_s = (known[name] for name in _Look._fields)
        if _moved(quiet, known):
            if quiet.stepped:
                longest_s = max(longest_s, known["step_s"] if known["announced"] else from_s)
            return _Look(silence + (told > 0), 0, 0.0, longest_s)
        if known["announced"] and quiet.phase is None:
            from_s = quiet.step_s  # what was announced is over: what comes now is a silence of its own
        if told == _END and known["limits"] != self._limits():
            silence, told = silence + 1, _ALERT
        return _Look(silence, told, from_s, longest_s)

    def _bounds(self, quiet: Quiet, look: _Look) -> _Bounds:
        if not quiet.stepped:
            limit_s = self.start_limit_s
            end_s = inf if limit_s is None else limit_s
            return _Bounds(START_ALERT_S, START_ALERT_S, end_s, ANNOUNCED_END_S, inf, limit_s is not None)
        gap_s, said = quiet.largest_gap_s or 0.0, quiet.phase is not None
        if quiet.planned:
            limit_s, alert_s, end_s = self.exit_limit_s, EXIT_ALERT_S, max(END_S, self.limit_s or 0.0)
        else:
            limit_s = self.limit_s
            known = quiet.largest_gap_s is not None
            alert_s, end_s = (ALERT_S, END_S) if known else (START_ALERT_S, ANNOUNCED_END_S)
        note_s = alert_s = max(alert_s, GAPS_ALERT * gap_s)
        end_s = max(end_s, GAPS_END * gap_s)
        said_end_s = max(end_s, ANNOUNCED_END_S, 4 * look.longest_announced_s)
        last_alert_s = said_end_s if said or look.from_s > 0 else end_s
        if limit_s is not None and note_s >= limit_s and not quiet.planned:
            note_s = alert_s = limit_s / 2
        if said:
            alert_s, end_s = max(alert_s, ANNOUNCED_ALERT_S, 2 * look.longest_announced_s), said_end_s
        last_end_s = BUSY * last_alert_s
        if limit_s is not None:
            return _Bounds(note_s, alert_s, limit_s, last_alert_s, limit_s, exact=True)
        return _Bounds(note_s, alert_s, end_s, last_alert_s, last_end_s)

    def _left(self, quiet: Quiet, look: _Look) -> dict[int, float]:
        """Return the seconds until each kind of finding comes if nothing moves from now on."""
        bounds = self._bounds(quiet, look)
        step_s = quiet.step_s
        silent_s = step_s - look.from_s if quiet.phase_s is None else quiet.phase_s
        file_s = quiet.file_s if quiet.file_s < quiet.log_s else inf  # a file has grown since the log did
        # The last write of a save may come just after the log's last line: files explain a silence if they go on.
        growing = file_s + max(0.0, bounds.note_s - step_s) < bounds.alert_s / 2
        excused = quiet.phase is not None or growing
        left = {_NOTE: bounds.note_s - step_s} if excused else {}
        left[_ALERT] = min(bounds.alert_s - min(silent_s, file_s), bounds.last_alert_s - step_s)
        if bounds.exact:
            left[_END] = bounds.end_s - step_s
        else:
            left[_END] = bounds.end_s - min(silent_s, quiet.file_s)
            last_s = bounds.last_end_s - step_s
            # Only a log that still grows is busy; beside a silent one it is the files that move.
            if quiet.log_s + max(0.0, last_s) < bounds.end_s:
                left[_END] = min(left[_END], last_s)
        if not self._ends():
            del left[_ALERT if bounds.exact else _END]
        return left

    def _text(self, quiet: Quiet, kind: int, bounds: _Bounds) -> str:
        silent, limit = span(quiet.step_s), span(bounds.end_s)
        if not quiet.stepped:
            if kind == _END:
                return f"no first step within {limit}"
            text = f"no first step after {silent}"
            if kind == _NOTE:
                return text + _excuse(quiet)
            return f"{text}: if the log shows steps that are not understood, give --pattern; --start-limit ends the run"
        if quiet.planned:
            return f"the last step was reached, and the command is still there {silent} later" + _excuse(quiet)
        text = f"no new step for {silent}"
        if kind == _END and bounds.exact:
            return f"{text}, the limit is {limit}"
        if quiet.largest_gap_s is not None:
            text += f", the longest gap before was {span(quiet.largest_gap_s)}"
        return text + _excuse(quiet)

    def _verdict(self, moment: Moment, quiet: Quiet, found: _Found) -> Verdict:
        ends = found.kind == _END and self._ends()
        return Verdict(
            rule=self.name,
            severity="critical" if ends else "note" if found.kind in (_NOTE, _ON) else "warn",
            action=found.action,
            text=found.text,
            at=moment.at,
            part=_PARTS * found.silence + found.kind - 1,
            evidence={
                "silent_s": found.silent_s,
                "limit_s": found.limit_s,
                "largest_gap_s": quiet.largest_gap_s,
                "phase": quiet.phase,
            },
        )


def _moved(quiet: Quiet, known: Memory) -> bool:
    """Say whether the step's silence is another than at the last look; a rounded clock is no step."""
    before_s: float = known["step_s"]
    return quiet.step_s < before_s - 1e-3


def _excuse(quiet: Quiet) -> str:
    """Return the end of a sentence: what explains a silence, so far as anything does."""
    if quiet.phase is not None:
        return f" (announced: {quiet.phase})"
    return " (files of the run have grown since)" if quiet.file_s < quiet.log_s else ""

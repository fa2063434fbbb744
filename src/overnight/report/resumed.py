"""How a run went on after each end of an attempt, and what became of its saves, as its journal tells it.

Values only: facts come one after the other. What is known against a save is said by ``resumption.known``, as in status;
no file is opened here, and no sentence is made up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from overnight.report.units import finite
from overnight.resumption.known import MOST, KnownSave, SavesBook
from overnight.resumption.point import told_by_steps

Fact = Mapping[str, Any]
Told = dict[str, Any]

MARKS = ("step", "path", "at", "seconds", "valid", "healthy", "problem", "load_failure", "finite", "attempt")
"""What is told of a save, in status and in a report."""

OURS = "overnight"
"""The maker of saves that are written by a process of their own, beside the training."""


class Resumed:
    """Saves, resumes and rollbacks of one run. ``count`` saves were seen, which took ``seconds`` in all.

    ``beside``: they were written while the training went on, as those of the library are.
    """

    def __init__(self) -> None:
        self.book = SavesBook()
        self.count = 0
        self.seconds = 0.0
        self.beside = False
        self._resumes: dict[int, Told] = {}
        self._overlaps: dict[int, Told] = {}
        self._rollbacks: dict[int, Told] = {}

    def take(self, kind: str, fact: Fact) -> None:
        """Take in a fact; KeyError, TypeError or ValueError if somebody has edited it."""
        self.book.recall(fact)
        if kind == "saved" and fact.get("path") is not None:  # without a path it is a silence around a save
            self.count += 1
            self.seconds += float(fact["seconds"])
        elif kind == "checked":
            self.beside = self.beside or fact.get("maker") == OURS
        elif kind == "resume":
            self._resumes[int(fact["attempt"])] = _resume(fact)
        elif kind == "overlap":
            self._overlaps[int(fact["attempt"])] = _overlap(fact)
        elif kind == "backoff" and isinstance(fact.get("rollback"), Mapping):
            self._rollbacks[int(fact["attempt"])] = _rollback(fact, fact["rollback"])

    def checkpoints(self) -> list[Told]:
        """Return what is known of each save, oldest first; of those under one path only the newest is there."""
        return [self._line(one) for one in self.book.saves[-MOST:]]

    def newest_good(self) -> Told | None:
        """Return the save to go on from: the newest that was looked into and is good, else one with nothing known."""
        found = self.book.newest_good()
        return None if found is None else self._line(found)

    def resumes(self) -> list[Told]:
        """Return how each attempt but the first went on, in order; ``overlap`` is None where nothing was compared."""
        return [{**self._resumes[n], "overlap": self._overlaps.get(n)} for n in sorted(self._resumes)]

    def rollbacks(self) -> list[Told]:
        """Return each order to go back; ``next_attempt`` is the one that came of it, None if there is none."""
        return [
            {**self._rollbacks[n], "next_attempt": min((one for one in self._resumes if one > n), default=None)}
            for n in sorted(self._rollbacks)
        ]

    def _line(self, save: KnownSave) -> Told:
        line = self.book.line(save)
        if not save.attempt:  # written down before it was known who had made it: nobody looked out for trouble then
            line.update(healthy=None, attempt=None)
        return {name: line.get(name) for name in MARKS}


def went_on(
    resumes: Sequence[Told], firsts: Mapping[int, int], gains: Mapping[int, int], *, step_s: float | None, folds: bool
) -> list[Told]:
    """Return the resumes with what the attempts printed: ``first_step``, and whether it began ``anew``.

    Where nobody knew of a save, all was thought to be lost when the attempt was started. A script that finds its saves
    by itself shows with its first step, after ``gains`` steps, what was lost; each took ``step_s`` seconds. One that
    was given a save and began anew has lost what the save held, too. Nothing tells it where each epoch is counted anew
    (``folds``).
    """
    return [_went_on(one, firsts, gains.get(one["attempt"], 1), step_s, folds=folds) for one in resumes]


def _went_on(one: Told, firsts: Mapping[int, int], gain: int, step_s: float | None, *, folds: bool) -> Told:
    began = next((firsts[n] for n in sorted(firsts) if n < one["attempt"]), None)
    return told_by_steps(one, firsts.get(one["attempt"]), began, gain, step_s=step_s, folds=folds)


def of_status(saves: object) -> list[Told]:
    """Return the saves that a status names, for a run whose journal says nothing of them."""
    if not isinstance(saves, Sequence) or isinstance(saves, str):
        return []
    known = [one for one in saves if isinstance(one, Mapping) and isinstance(one.get("path"), str)]
    return [{name: one.get(name) for name in MARKS} for one in known]


def _resume(fact: Fact) -> Told:
    passed = fact.get("passed_over")
    return {
        "attempt": int(fact["attempt"]),
        "at": _text(fact.get("at")),
        "path": _text(fact.get("path")),
        "step": _whole(fact.get("step")),
        "maker": _text(fact.get("maker")),
        "skip": spans_of(fact.get("skip")),
        "passed_over": [_passed(one) for one in passed if _named(one)] if isinstance(passed, list) else [],
        "lost_steps": _whole(fact.get("lost_steps")),
        "lost_s": finite(fact.get("lost_s")),
        "lost_cost": finite(fact.get("lost_cost")),
        "rollback": _text(fact.get("rollback")),
        "text": _text(fact.get("text")),
    }


def _named(one: object) -> bool:
    return isinstance(one, Mapping) and isinstance(one.get("path"), str)


def _passed(one: Fact) -> Told:
    return {"path": one["path"], "step": _whole(one.get("step")), "why": str(one.get("why") or "unknown")}


def _overlap(fact: Fact) -> Told:
    first = fact.get("first_difference")
    return {
        "since": _whole(fact.get("since")),
        "compared": int(fact["compared"]),
        "equal": int(fact["equal"]),
        "first_difference": {name: first.get(name) for name in ("step", "metric", "before", "after")}
        if isinstance(first, Mapping)
        else None,
        "text": _text(fact.get("text")),
    }


def _rollback(fact: Fact, order: Fact) -> Told:
    return {
        "attempt": int(fact["attempt"]),
        "at": _text(fact.get("at")),
        "rule": str(order["rule"]),
        "onset": _whole(order.get("onset")),
        "before": _whole(order.get("before")),
        "last": _whole(order.get("last")),
        "skip": next(iter(spans_of(order.get("skip"))), None),
        "text": _text(fact.get("text")),
    }


def spans_of(value: object) -> list[list[int]]:
    """Return [first, last] of each range of steps that is left out; one range may also stand by itself."""
    if not isinstance(value, (list, tuple)):
        return []
    ranges = value if all(isinstance(one, (list, tuple)) for one in value) else [value]
    return [list(one) for one in ranges if len(one) == 2 and all(type(step) is int for step in one)]


def _whole(value: object) -> int | None:
    return value if type(value) is int else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None

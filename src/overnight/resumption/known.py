"""What is known of a run's saves from its facts alone: who made each, whether it is whole, and whether it was healthy.

Pure: facts in, values out; no file is looked at. A save is healthy unless the trouble of its segment had begun, or a
rollback has left it behind. The newest is said by the run's history, never by how a name sorts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from overnight.inspector import naming

MOST, SPARE = 200, 50
"""So many saves are known, and some more, so that the oldest need not be found out with each new one."""
GONE = "it is not there any more"
"""The problem of a save that was removed; what was known of it stays."""
UNKNOWN_FORM = "it is not of a form that can be checked"
_WITHIN = re.compile(r"(.*/checkpoint-\d+)/global_step\d+")


class KnownSave(msgspec.Struct, frozen=True, kw_only=True):
    """One save that was seen: ``at`` (since the epoch) and ``seconds`` are those of the save itself.

    ``valid``: its content was looked at and is good, or is not; None: not yet, or it could not be told, and ``problem``
    says why. ``check_s``: seconds of a processor that the look took. ``load_failure``: why an attempt ended before its
    first step after it had been given this save. ``attempt`` 0: it is not known who made it.
    """

    path: str
    step: int | None
    at: float
    seconds: float
    attempt: int = 0
    segment: int = 0
    valid: bool | None = None
    finite: bool | None = None
    problem: str | None = None
    maker: str | None = None
    check_s: float | None = None
    load_failure: str | None = None


class Bound(NamedTuple):
    """What a rollback has left behind: saves of attempts below ``attempt``, from ``step`` on."""

    attempt: int
    step: int


class Spot(NamedTuple):
    """Where a save stands in a run's history; of two at one step the one with the larger ``tie`` is preferred."""

    attempt: int
    segment: int
    step: int | None
    at: float
    tie: tuple[int, ...] = ()


class BookState(msgspec.Struct, frozen=True, kw_only=True):
    """All that a book holds, to be handed to another process."""

    saves: tuple[KnownSave, ...] = ()
    sick: tuple[tuple[int, int, int, float | None], ...] = ()
    resumed: tuple[tuple[int, int | None], ...] = ()
    left: tuple[tuple[int, int], ...] = ()
    failures: tuple[tuple[str, str], ...] = ()


class SavesBook:
    """The saves of one run, oldest first, and what is known against some. It grows by facts, and is bounded.

    ``sick``: the first step of trouble by attempt and segment. ``resumed``: the step that each attempt went on from,
    -1 where it began anew, None where the step is not known. ``again``: paths that an attempt has saved to repeatedly.
    """

    def __init__(self, state: BookState | None = None) -> None:
        state = state or BookState()
        self.saves: list[KnownSave] = list(state.saves)
        self.sick: dict[tuple[int, int], int] = {(one[0], one[1]): one[2] for one in state.sick}
        self.sick_at: dict[tuple[int, int], float] = {
            (one[0], one[1]): one[3] for one in state.sick if one[3] is not None
        }
        self.resumed: dict[int, int | None] = dict(state.resumed)
        self.left: list[Bound] = [Bound(*one) for one in state.left]
        self.failures: dict[str, str] = dict(state.failures)
        self.again: set[str] = set()

    def state(self) -> BookState:
        """Return all that is known, as one value."""
        return BookState(
            saves=tuple(self.saves),
            sick=tuple((*key, step, self.sick_at.get(key)) for key, step in self.sick.items()),
            resumed=tuple(self.resumed.items()),
            left=tuple((one.attempt, one.step) for one in self.left),
            failures=tuple(self.failures.items()),
        )

    # -- facts ---------------------------------------------------------------------------------------------------------

    def recall(self, fact: Mapping[str, Any]) -> None:
        """Take in one fact; those that say nothing of saves are passed over.

        KeyError, TypeError or ValueError where somebody has edited it; nothing has changed then.
        """
        kind = fact.get("fact")
        if kind == "saved" and fact.get("path") is not None:
            self._saved(fact)
        elif kind == "sick":
            self._sick(fact)
        elif kind == "checked":
            self._checked(fact)
        elif kind == "load_failure":
            self._load_failure(fact)
        elif kind == "resume":
            self._resumed(fact)
        elif kind == "backoff" and isinstance(fact.get("rollback"), Mapping):
            before = _step(fact["rollback"].get("before"))
            if before is not None:
                self.left.append(Bound(int(fact["attempt"]) + 1, before))

    def _saved(self, fact: Mapping[str, Any]) -> None:
        save = KnownSave(
            path=whole(_text(fact["path"])),
            step=_step(fact.get("step")),
            at=_number(fact["epoch"]),
            seconds=_number(fact["seconds"]),
            attempt=int(fact.get("attempt") or 0),
            segment=int(fact.get("segment") or 0),
        )
        self.failures.pop(save.path, None)  # it is another one now
        before = self.of(save.path)
        if before is not None and before.attempt == save.attempt:
            self.again.add(save.path)
        self.saves = [one for one in self.saves if one.path != save.path] + [save]
        if len(self.saves) > MOST + SPARE:
            good = self.newest_good()
            self.saves = [one for one in self.saves[:SPARE] if one is good] + self.saves[SPARE:]

    def _sick(self, fact: Mapping[str, Any]) -> None:
        key = int(fact["attempt"]), int(fact["segment"])
        step, at = _step(fact.get("step")), fact.get("epoch")
        if step is None:  # nobody knows where the trouble began: what is there by now was saved before it was seen
            known = [one.step for one in self.saves if (one.attempt, one.segment) == key and one.step is not None]
            step = max(known, default=-1) + 1
        self.sick[key] = min(step, self.sick.get(key, step))
        if isinstance(at, (int, float)) and math.isfinite(at):
            self.sick_at.setdefault(key, float(at))

    def _checked(self, fact: Mapping[str, Any]) -> None:
        place = self._place(_text(fact["path"]))
        if place is None:
            return
        save = self.saves[place]
        if any(name in fact and fact[name] != getattr(save, name) for name in ("step", "attempt")):
            return  # that was the one that lay there before
        problem = None if fact.get("problem") is None else _text(fact["problem"])
        if problem == GONE:
            self.saves[place] = msgspec.structs.replace(save, problem=GONE)
            return
        took = fact.get("check_s")
        self.saves[place] = msgspec.structs.replace(
            save,
            valid=_bool(fact["valid"]),
            finite=_bool(fact.get("finite")),
            problem=problem,
            maker=None if fact.get("maker") is None else _text(fact["maker"]),
            check_s=None if took is None else _number(took),
        )

    def _load_failure(self, fact: Mapping[str, Any]) -> None:
        path, text = whole(_text(fact["path"])), _text(fact.get("text") or "it could not be loaded")
        place = self._place(path)
        if place is not None:
            self.saves[place] = msgspec.structs.replace(self.saves[place], load_failure=text)
        self.failures.pop(path, None)
        self.failures[path] = text
        while len(self.failures) > MOST:
            del self.failures[next(iter(self.failures))]

    def _resumed(self, fact: Mapping[str, Any]) -> None:
        attempt, step = int(fact["attempt"]), _step(fact.get("step"))
        since = -1 if fact.get("path") is None else step
        self.resumed[attempt] = since
        if fact.get("rollback") and since is not None:
            self.left.append(Bound(attempt, since + 1))

    # -- questions -----------------------------------------------------------------------------------------------------

    def healthy(self, save: KnownSave) -> bool | None:
        """Say whether it was saved before any trouble; None: its segment had some, and nobody knows which was first."""
        return self.in_health(save.attempt, save.segment, save.step, save.at)

    def in_health(self, attempt: int, segment: int | None, step: int | None, at: float | None) -> bool | None:
        """Say it of any place in the run's history; a ``segment`` of None is each of the attempt's."""
        told = [_below(step, one.step) for one in self.left if attempt < one.attempt]
        for key, first in self.sick.items():
            if key[0] == attempt and segment in (None, key[1]):
                begun = self.sick_at.get(key)
                earlier = None if begun is None or at is None else (True if at < begun else None)
                told.append(earlier if step is None else step < first)
        if False in told:
            return False
        return None if None in told else True

    def usable(self, save: KnownSave) -> bool:
        """Say whether nothing is known against it; what may have been saved in trouble is not usable either."""
        bad = save.valid is False or save.finite is False or save.load_failure is not None or save.problem == GONE
        return not bad and self.healthy(save) is True

    def newest_good(self) -> KnownSave | None:
        """Return the newest one that was looked at and is good; else the newest one with nothing against it."""
        good = [one for one in self.saves if self.usable(one)]
        ranked = [good[place] for place in lineage([spot(one) for one in good], self.resumed)]
        checked = [one for one in ranked if one.valid is True]
        return next(reversed(checked or ranked), None)

    def unchecked(self) -> list[KnownSave]:
        """Return those that nobody has looked into, newest first."""
        return [one for one in reversed(self.saves) if one.valid is None and one.problem is None]

    def line(self, save: KnownSave) -> dict[str, Any]:
        """Return it as status shows it; of the one to go on from status shows the first six."""
        return {
            "step": save.step,
            "path": save.path,
            "at": _utc(save.at),
            "seconds": save.seconds,
            "valid": save.valid,
            "healthy": self.healthy(save),
            "problem": save.problem,
            "load_failure": save.load_failure,
            "finite": save.finite,
            "attempt": save.attempt,
        }

    def of(self, path: str) -> KnownSave | None:
        """Return what is known of a path."""
        place = self._place(path)
        return None if place is None else self.saves[place]

    def fellow(self, path: str) -> KnownSave | None:
        """Return a good save of the same series, whose form is known: in the same folder, with another number."""
        folder, _, name = path.rpartition("/")
        for one in reversed(self.saves):
            where, _, called = one.path.rpartition("/")
            if where == folder and called != name and naming.form(called) == naming.form(name) and one.valid is True:
                return one if one.maker not in (None, "unknown") else None
        return None

    def _place(self, path: str) -> int | None:
        path = whole(path)
        return next((place for place, one in enumerate(self.saves) if one.path == path), None)


def whole(path: str) -> str:
    """Return the checkpoint that a saved path is of: what DeepSpeed writes lies one folder deeper than Trainer's."""
    found = _WITHIN.fullmatch(path)
    return path if found is None else found[1]


def spot(save: KnownSave) -> Spot:
    """Return where a save stands."""
    return Spot(save.attempt, save.segment, save.step, save.at)


def lineage(spots: Sequence[Spot], resumed: Mapping[int, int | None]) -> list[int]:
    """Return the places of some saves in the order of the run's history, the newest last.

    What an attempt saves beyond the step that it went on from overtakes all that was there. What it saves below that
    step is of a start from the beginning, and stands below everything of a higher step.
    """
    history: list[int] = []
    for attempt in sorted({one.attempt for one in spots}):
        mine = [place for place, one in enumerate(spots) if one.attempt == attempt]
        since = resumed.get(attempt)
        for place in sorted(mine, key=_within([spots[one] for one in mine], spots)):
            step = spots[place].step
            if step is None or since is None or step >= since:
                history.append(place)
                continue
            above = (at for at, one in enumerate(history) if (known := spots[one].step) is not None and known > step)
            history.insert(next(above, len(history)), place)
    return history


def _within(mine: Sequence[Spot], spots: Sequence[Spot]) -> Any:
    """Return the key by which the saves of one attempt are sorted: by time where not every step is known."""
    if any(one.step is None for one in mine):
        return lambda place: (spots[place].segment, spots[place].at, spots[place].tie)
    return lambda place: (spots[place].segment, spots[place].step, spots[place].tie, spots[place].at)


def _below(step: int | None, bound: int) -> bool | None:
    return None if step is None else step < bound


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _bool(value: object) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise TypeError
    return value


def _step(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError
    return int(_number(value))


def _number(value: object) -> float:
    found = float(value)  # type: ignore[arg-type] # what is no number raises
    if not math.isfinite(found):
        raise ValueError
    return found


def _utc(at: float) -> str:
    """Return RFC 3339 in UTC with milliseconds, as all times for people."""
    try:
        moment = datetime.fromtimestamp(at, tz=UTC)
    except (ValueError, OverflowError, OSError):
        moment = datetime.max.replace(tzinfo=UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"

"""Limits that the user set on a run as a whole; reaching one is no illness.

Here those of time and money; a limit never counts as a fault, and its end always asks for a save. What a run has used
of them is counted elsewhere and handed in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf, isfinite
from typing import Any, ClassVar, Final, NamedTuple

from overnight.events import RuleAction, Verdict
from overnight.rules import Memory, Moment, lead_of, milder, span, spoken

_HOUR_S: Final = 3600.0
_MINUTE_S: Final = 60.0

_MOST: Final = 0.5  # however slow a save is, half of the time is trained

_NEAR: Final = 0.1
NEAR_S: Final = 1800.0
_BEYOND: Final = 0.05  # of the time left to the planned end: an estimate is no better than this

_LIMIT: Final = 0
_AHEAD: Final = 1
_PACE: Final = 2
_PARTS: Final = 3  # of one bound


class _Account(NamedTuple):
    """How long a limit is as a whole, and how much of it is used."""

    whole_s: float
    used_s: float

    @property
    def left_s(self) -> float:
        return self.whole_s - self.used_s

    def lead_s(self, moment: Moment) -> float:
        """Return how long before the limit the stop has to begin for the measured save to be over when it comes."""
        if moment.save_s is None:
            return 0.0
        return min(lead_of(moment.save_s, moment.step_s), _MOST * max(0.0, self.whole_s))

    def near_s(self) -> float:
        """Return how long before the stop a person is told of it."""
        return min(_NEAR * max(0.0, self.whole_s), NEAR_S)

    def patience_s(self) -> float:
        """Return how long a pace has to be too slow: steps that compile, or an evaluation, make none."""
        return min(max(0.02 * self.whole_s, 3 * _MINUTE_S), 0.1 * self.whole_s)


class _Limit(ABC):
    """What limits have in common: the stop early enough, a word ahead, and one when the pace will not do.

    Told once each per bound: a rule with another bound and the memory of the one before it is armed anew.
    """

    __slots__ = ()

    name: ClassVar[str]
    title: ClassVar[str]

    @property
    @abstractmethod
    def action(self) -> RuleAction:
        """Return what reaching the limit asks for."""

    @abstractmethod
    def _bound(self) -> float | None:
        """Return what tells this limit from one that was changed; None for no limit."""

    @abstractmethod
    def _account(self, moment: Moment, memory: Memory) -> _Account:
        """Return how the limit stands, where there is one."""

    @abstractmethod
    def _said(self) -> str:
        """Return the limit for a sentence: "wall-clock limit of 8 h"."""

    @abstractmethod
    def _evidence(self, moment: Moment) -> dict[str, Any]:
        """Return what the limit was compared with."""

    def fresh(self) -> Memory:
        """Return a memory in which the limit was not reached yet."""
        told = {"told": False, "ahead": False, "pace": False}
        return told | {"slow_since_s": None, "bound": self._bound(), "bounds": 0, "since": None}

    def lead_s(self, moment: Moment, memory: Memory | None = None, /) -> float:
        """Return how many seconds before the limit the stop has to begin."""
        return 0.0 if self._bound() is None else self._account(moment, self._known(memory)).lead_s(moment)

    def due_s(self, moment: Moment, memory: Memory | None = None, /) -> float:
        """Return the seconds until there is something to tell, 0 or less when it is due; infinite for nothing more."""
        known = self._known(memory)
        if self._bound() is None or known["told"]:
            return inf
        return min(self._due(moment, known).values())

    def on_time(self, moment: Moment, memory: Memory, /) -> Verdict | None:
        """Return the verdict once, when the stop has to begin; before it, once each, what is to be expected."""
        memory.update(self._known(memory))
        if self._bound() is None or memory["told"]:
            return None
        if memory["since"] is None:
            memory["since"] = moment.at
        due = self._due(moment, memory)
        account = self._account(moment, memory)
        if due[_LIMIT] <= 0:
            memory["told"] = True
            return self._verdict(moment, memory, _LIMIT, self._reached(account, moment))
        if due.get(_AHEAD, inf) <= 0:
            memory["ahead"] = True
            text = f"{self._said()} comes in {span(account.left_s)}"
            return self._verdict(moment, memory, _AHEAD, text, left_s=account.left_s)
        return self._slow(moment, memory, account)

    def _known(self, memory: Memory | None) -> Memory:
        """Return the memory as it stands for this bound; one of an older version lacks some of it."""
        fresh = self.fresh()
        known = fresh | (memory or {})
        if known["bound"] == fresh["bound"]:
            return known
        return fresh | {"bounds": known["bounds"] + 1, "since": known["since"]}

    def _due(self, moment: Moment, known: Memory) -> dict[int, float]:
        """Return the seconds until each part that was not told yet has to be looked at."""
        account = self._account(moment, known)
        stop_s = account.left_s - account.lead_s(moment)
        due = {_LIMIT: stop_s}
        if not known["ahead"]:
            due[_AHEAD] = stop_s - account.near_s()
        if not known["pace"] and moment.eta_s is not None and isfinite(moment.eta_s):
            due[_PACE] = account.left_s - (1 - _BEYOND) * moment.eta_s
            if due[_PACE] <= 0 and known["slow_since_s"] is not None:
                due[_PACE] = known["slow_since_s"] + account.patience_s() - account.used_s
        return due

    def _slow(self, moment: Moment, memory: Memory, account: _Account) -> Verdict | None:
        """Return the verdict on a pace that has been too slow for long enough."""
        eta_s = moment.eta_s
        if memory["pace"]:
            return None
        if eta_s is None or not isfinite(eta_s) or account.left_s > (1 - _BEYOND) * eta_s:
            memory["slow_since_s"] = None
            return None
        if memory["slow_since_s"] is None:
            memory["slow_since_s"] = account.used_s
        if account.used_s < memory["slow_since_s"] + account.patience_s():
            return None
        memory["pace"] = True
        text = f"at this pace it needs {span(eta_s)} more, the {self.title} leaves {span(account.left_s)}"
        return self._verdict(moment, memory, _PACE, text, left_s=account.left_s, eta_s=eta_s)

    def _reached(self, account: _Account, moment: Moment) -> str:
        if account.left_s > 0 and moment.save_s is not None:
            early, save = span(account.left_s), span(moment.save_s)
            return f"{self._said()}: stopping {early} early, the last save took {save}"
        return f"{self._said()} reached"

    def _verdict(self, moment: Moment, memory: Memory, part: int, text: str, **more: float) -> Verdict:
        ahead = {} if part == _LIMIT else {"ahead": True, **more}
        return Verdict(
            rule=self.name,
            severity="warn",
            action=self.action if part == _LIMIT else milder(self.action),
            text=text,
            at=moment.at,
            part=_PARTS * memory["bounds"] + part,
            evidence=self._evidence(moment) | {"save_s": moment.save_s} | ahead,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class WallClock(_Limit):
    """At most ``max_s`` seconds of active time, all attempts together: by default ``stop``, with a save.

    There is no default limit, so a run that was given none is never ended by it. The stop begins early enough for the
    save that was measured to be over when the limit comes: one and a half saves, one step that has to end first, and
    two seconds, but never more than half of the limit. While no save was measured it begins at the limit. Fires once.

    Before it a person is alerted: a tenth of the limit or half an hour ahead, whichever is less, and once when the
    planned end has lain more than 5% beyond the limit for some minutes. Neither ends anything.
    """

    name: ClassVar[str] = "wall_clock"
    title: ClassVar[str] = "wall-clock limit"

    max_s: float | None = None
    action: RuleAction = "stop"

    def _bound(self) -> float | None:
        return self.max_s

    def _account(self, moment: Moment, _memory: Memory) -> _Account:
        return _Account(self.max_s or 0.0, moment.active_s)

    def _said(self) -> str:
        return f"{self.title} of {span(self.max_s or 0.0)}"

    def _evidence(self, moment: Moment) -> dict[str, Any]:
        return {"active_s": moment.active_s, "max_s": self.max_s}


@dataclass(frozen=True, kw_only=True, slots=True)
class Until(_Limit):
    """Not beyond the moment ``at``, in seconds since the epoch: by default ``stop``, with a save.

    There is no default, so a run that was given none is never ended by it. It begins early and alerts ahead as
    ``wall_clock`` does; the whole, of which a tenth is "near", is the time from the first moment that was seen. It
    follows the machine's clock, as it must: a clock that is set brings the end nearer or puts it off.
    """

    name: ClassVar[str] = "until"
    title: ClassVar[str] = "end time"

    at: float | None = None
    action: RuleAction = "stop"

    def _bound(self) -> float | None:
        return self.at

    def _account(self, moment: Moment, memory: Memory) -> _Account:
        since = moment.at if memory["since"] is None else memory["since"]
        return _Account((self.at or 0.0) - since, moment.at - since)

    def _said(self) -> str:
        return f"{self.title} {datetime.fromtimestamp(self.at or 0.0, UTC):%Y-%m-%d %H:%M:%SZ}"

    def _evidence(self, moment: Moment) -> dict[str, Any]:
        return {"at": moment.at, "until": self.at}


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost(_Limit):
    """At most ``max_cost`` at ``price`` per hour since the launch, back-off included: by default ``stop``, with a save.

    Without both there is no limit, so a run that was given none is never ended by it. It begins early and alerts ahead
    as ``wall_clock`` does: a machine costs the same whether it saves or trains.
    """

    name: ClassVar[str] = "cost"
    title: ClassVar[str] = "cost limit"

    max_cost: float | None = None
    price: float | None = None
    action: RuleAction = "stop"

    def _bound(self) -> float | None:
        """Return the hours that the money buys, in seconds."""
        if self.max_cost is None or self.price is None or self.price <= 0:
            return None
        return self.max_cost / self.price * _HOUR_S

    def _account(self, moment: Moment, _memory: Memory) -> _Account:
        return _Account(self._bound() or 0.0, moment.elapsed_s)

    def _said(self) -> str:
        return f"{self.title} of {spoken(self.max_cost or 0.0)} at {spoken(self.price or 0.0)} per hour"

    def _evidence(self, moment: Moment) -> dict[str, Any]:
        cost = (self.price or 0.0) * moment.elapsed_s / _HOUR_S
        return {"elapsed_s": moment.elapsed_s, "cost": cost, "max_cost": self.max_cost, "price": self.price}

"""A loss that has suddenly risen far above its own recent past.

Median and MAD of the last accepted losses, so that no single value can move what is called usual. A fixed bound is
divergence; a slow climb that the past follows is not seen here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite
from operator import itemgetter
from typing import ClassVar, Final

from overnight.batches import Batch
from overnight.events import Record, RuleAction, Verdict
from overnight.rules import Memory, on_record, spoken, where

WINDOW: Final = 128
"""Accepted losses that say what is usual."""

FIRST: Final = 64
"""Accepted losses after which there is a bound for the first time; from then on it is computed anew with each window,
for two sorts of 128 on every line would cost more than all the other rules together."""

SIGMAS: Final = 5.0
"""Robust standard deviations above the median, where they are more than RISE."""

RISE: Final = 0.3
"""Part of the median: a smooth loss has next to no deviation, and harder data may raise it by a fifth for a while."""

RUNNING: Final = 5
"""Records above the bound, more than not: heavy tails reach one or two, and a real spike lasts longer."""

WILD: Final = 100.0
"""Times the median and times the deviation: a single record is told, the first time."""

RECOVERED: Final = 8
"""Records running below the bound."""

SETTLED: Final = 512
"""Records of an episode after which its level is the new usual one."""

_SLOTS: Final = tuple(str(slot) for slot in range(WINDOW))  # keys: a list would have to be copied for each loss
_OF_WINDOW: Final = itemgetter(*_SLOTS)
_OF_FIRST: Final = itemgetter(*_SLOTS[:FIRST])
_SIGNED: Final = 4.0  # a loss that is often 0 or below is no likelihood: RL losses wander by many deviations
_QUIET: Final = 512  # windows without a spike (65,536 records) after which the rule is half as wary
_MOST_WARY: Final = 64.0
_LARGEST: Final = 1.7976931348623157e308  # as a bound: every finite loss is usual, an infinite one is not


@dataclass(frozen=True, kw_only=True, slots=True)
class Spike:
    """Losses far above the median of the last 128 accepted ones: severity warn, by default ``alert``.

    The bound is the median plus 5 robust standard deviations (from the MAD or the 90th percentile of the deviations,
    whichever is larger), or plus 30% of the median where that is more. Told when five more records lie above it than
    below, or at once for the first loss 100 times the median. What lies above is never accepted, so one insane value
    neither blinds the rule nor shifts what is usual.

    It does not kill healthy runs, for it only alerts, and it seldom disturbs them: nothing is told in the first 64
    records of a segment; heavy tails do not stay above for five records; where losses are often zero or negative (RL)
    it takes four times the deviation. One alert per episode, the next only after eight records below the bound or 512
    at a new level; each such episode doubles the rise that the next one takes, for data that comes in waves would
    else be told at each of them. The recovery is a note. The lowest rank that prints is judged; evaluations and glued
    numbers change nothing.
    """

    name: ClassVar[str] = "spike"

    action: RuleAction = "alert"

    def fresh(self) -> Memory:
        """Return a memory without a past: no bound, no episode.

        ``calm`` is the bound while nothing is above it. ``above`` counts towards an alert, ``episode`` the records
        after it, ``below`` those towards its end. ``wary`` multiplies the rise, ``quiet`` counts towards less of it.
        The window stands under "0", "1", ...; ``slot`` is where the next loss goes, at ``due`` the bound is computed.
        """
        return {
            "rank": -1, "slot": 0, "due": FIRST, "calm": _LARGEST, "bound": _LARGEST, "median": 0.0, "spread": 0.0,
            "rise": 0.0, "above": 0, "episode": 0, "below": 0, "lasting": False, "single": False, "wary": 1.0,
            "quiet": 0,
        }  # fmt: skip

    @staticmethod
    def carry(memory: Memory) -> Memory | None:
        """Return what is usual, for an attempt that goes on; None if that is not known yet."""
        if memory["bound"] >= _LARGEST:
            return None
        return memory | {"above": 0, "episode": 0, "below": 0, "lasting": False, "calm": memory["bound"]}

    def __call__(self, record: Record, memory: Memory, /) -> Verdict | None:
        """Return an alert on the line that makes a spike certain, and a note on the one that ends it."""
        loss = record.loss
        if loss is None or record.kind != "train" or record.glued:
            return None
        rank = record.rank or 0
        if rank != memory["rank"]:
            if 0 <= memory["rank"] < rank:
                return None
            memory.update(self.fresh(), rank=rank)
        if -inf < loss <= memory["calm"]:
            slot = memory["slot"]
            memory[_SLOTS[slot]] = loss
            memory["slot"] = slot = slot + 1
            if slot == memory["due"]:
                _learn(memory)
            return None
        return self._odd(record, loss, memory) if isfinite(loss) else None

    def calm(self, batch: Batch, memory: Memory, /) -> tuple[int, Memory]:
        """Return up to where every loss is a usual one; the window goes on as it would record by record."""
        rank, losses = batch.rank or 0, batch.loss
        if rank != memory["rank"]:
            return len(losses) if 0 <= memory["rank"] < rank else 0, {}
        if losses[0] > memory["calm"]:
            return 0, {}
        after, place = dict(memory), 0
        window: list[float] = []  # the last whole one: most are written over, and never asked for again
        while place < len(losses):
            slot, bound = after["slot"], after["calm"]
            some = losses[place : place + after["due"] - slot]
            odd = max(some) > bound
            if odd:
                some = some[: next(number for number, loss in enumerate(some) if loss > bound)]
            place += len(some)
            if len(some) == WINDOW:
                window = some
            else:
                after.update(zip(_SLOTS, window, strict=False))
                after.update(zip(_SLOTS[slot:], some, strict=False))
                window = []
            after["slot"] = slot = slot + len(some)
            if slot == after["due"]:
                _learn(after, window)
            if odd:
                break
        after.update(zip(_SLOTS, window, strict=False))
        return place, after

    def _odd(self, record: Record, loss: float, memory: Memory) -> Verdict | None:
        """Count a loss above the bound, or one after it; return the alert when it is certain that this is a spike."""
        if memory["episode"]:
            return self._later(record, loss, memory)
        if loss <= memory["bound"]:
            memory["above"] -= 1
            if memory["above"] == 0:
                memory["calm"] = memory["bound"]
            return None
        memory["above"] += 1
        memory["calm"] = -inf
        lasting = memory["above"] >= RUNNING
        median, spread = memory["median"], memory["spread"]
        if not lasting and (memory["single"] or loss - median < WILD * max(spread, abs(median))):
            return None
        memory.update(episode=1, below=0, lasting=lasting, single=memory["single"] or not lasting)
        text = f"loss has risen to {spoken(loss)} {where(record)}; it was about {spoken(median)}"
        evidence = {"loss": loss, "median": median, "bound": memory["bound"], "records": memory["above"]}
        return on_record(self, record, text, severity="warn", action=self.action, evidence=evidence)

    def _later(self, record: Record, loss: float, memory: Memory) -> Verdict | None:
        """Follow an episode that was told until it ends: by itself, or by becoming usual."""
        memory["episode"] += 1
        if loss > memory["bound"]:
            memory["below"] = 0
            memory["above"] += 1
            memory["lasting"] = memory["lasting"] or memory["above"] >= RUNNING
            if memory["episode"] >= SETTLED:
                wary = min(memory["wary"] * 2, _MOST_WARY)
                memory.update(self.fresh(), rank=memory["rank"], wary=wary)
            return None
        memory["below"] += 1
        if memory["below"] < RECOVERED:
            return None
        wary = min(memory["wary"] * 2, _MOST_WARY) if memory["lasting"] else memory["wary"]
        lasted = memory["episode"]
        memory.update(episode=0, above=0, below=0, lasting=False, wary=wary, quiet=0)
        memory["bound"] = memory["calm"] = _bound(memory)
        text = f"loss has recovered: {spoken(loss)} {where(record)}, {lasted} records after the rise was told"
        return on_record(self, record, text, severity="note", action="note", evidence={"loss": loss, "records": lasted})


def _learn(memory: Memory, window: Sequence[float] = ()) -> None:
    """Compute anew what is usual: the window, or for the first time its beginning, is full.

    ``window`` holds its losses where they are at hand.
    """
    if memory["slot"] == WINDOW:
        memory["slot"] = 0
        memory["quiet"] += 1
        if memory["quiet"] >= _QUIET:
            memory["quiet"] = 0
            memory["wary"] = max(1.0, memory["wary"] / 2)
    memory["due"] = WINDOW
    _judge(memory, window or _OF_WINDOW(memory) if memory["slot"] == 0 else _OF_FIRST(memory))


def _judge(memory: Memory, losses: Sequence[float]) -> None:
    """Compute the bound from ``losses``."""
    ordered = sorted(losses)
    count = len(ordered)
    half = count // 2
    median = ordered[half]
    away = sorted([*[median - one for one in ordered[:half]], *[one - median for one in ordered[half:]]])
    # Both are the standard deviation of a Gaussian. The second is larger for heavy tails, and where most are equal.
    spread = max(1.4826 * away[half], away[count * 9 // 10] / 1.645)
    sigmas = SIGMAS if ordered[count // 10] > 0 else SIGMAS * _SIGNED
    memory["median"], memory["spread"], memory["rise"] = median, spread, max(sigmas * spread, RISE * abs(median))
    memory["bound"] = memory["calm"] = _bound(memory)


def _bound(memory: Memory) -> float:
    """Return the loss above which a record is unusual; where nothing ever varied there is none."""
    rise = memory["rise"] * memory["wary"]
    return min(memory["median"] + rise, _LARGEST) if rise > 0 else _LARGEST

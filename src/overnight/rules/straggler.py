"""A rank that is slower than the others, lastingly.

Compared are ranks of one log over the same stretch of it, never a rank with its own past: that is slowdown's. Ranks
that wait for each other at every step print equal times, whoever is late; nothing can be seen of it here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import inf
from typing import Any, ClassVar, Final, NamedTuple

from overnight.batches import Batch
from overnight.events import Record, RuleAction, Verdict
from overnight.rules import Memory, on_record

WARM_UP: Final = 10
"""Records of a rank that are left out: compiling, caches, the first reads of the data."""

BLOCK: Final = 16
"""Records of a rank whose median is its step time."""

SLOW: Final = 1.5
EQUAL: Final = 1.25
"""Times the median of the others: above the first a rank is slow, below the second it is as fast as they are."""

BLOCKS: Final = 3
SECONDS: Final = 5.0
"""How long a rank has to be slow: blocks in a row, and their time as far as it is known."""

RECOVERED: Final = 2
MOST_RANKS: Final = 64
"""Ranks that are compared; a rank that comes later is not looked at."""

WINDOW_S: Final = 60.0
WINDOW_LINES: Final = 8
"""Where no time is printed: what has to pass, and to arrive, for one step time."""

_SHOWN: Final = 8
_GONE: Final = 6  # rounds without a block after which a rank says nothing of now
_NOTHING: Final = (0.0, 0.0, 0, 0, 0, 0, 0)


class _Rank(NamedTuple):
    """What is known of a rank: its last step time, the seconds it was measured over, the round in which that was.

    ``blocks`` in a row in which it was slow, from ``since`` on; ``equal`` ones since it was told, 0 while it was not;
    ``end``: the last step that was measured.
    """

    step_s: float
    seconds: float
    turn: int
    blocks: int
    since: int
    equal: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Straggler:
    """A rank whose step takes more than 1.5 times as long as the others' do: severity warn, by default ``alert``.

    A rank's step time is the median of 16 of its records as printed, or what passed between arrivals over at least a
    minute and 8 lines where no line prints one; the others' is the median over them. A round of comparing is over when
    a rank that took part has its next block. Told are the ranks that were slow for three blocks and 5 s.

    It does not kill healthy runs, for it only alerts. Ranks are compared with each other at the same time, so a machine
    that is slow as a whole tells nothing, nor does a log in which one rank prints. One alert for all ranks that are
    found in a round; a rank is told again only after two blocks within 1.25 times the others', which are noted.
    """

    name: ClassVar[str] = "straggler"

    action: RuleAction = "alert"

    def fresh(self) -> Memory:
        """Return a memory without a rank.

        For each rank, "R" holds the values of its block, "R:warm" what is left of its warm-up, "R:is" what a ``_Rank``
        says, "R:at" what its arrivals need. ``ranks`` are all of them, ``turn`` the round, ``done`` who has a block in
        it.
        """
        return {"ranks": [], "turn": 0, "done": []}

    def __call__(self, record: Record, memory: Memory, /) -> Verdict | None:
        """Return an alert on the line that makes a straggler certain, and a note on the one that shows it is over."""
        rank, step = record.rank, record.step
        if rank is None or step is None or record.kind != "train" or record.glued:
            return None
        key = str(rank)
        left = memory.get(key + ":warm")
        if left is None:
            if len(memory["ranks"]) >= MOST_RANKS:
                return None
            left = WARM_UP
            memory.update({"ranks": sorted([*memory["ranks"], rank]), key: [], key + ":warm": left})
        if left:
            memory[key + ":warm"] = left - 1
            return None
        value = record.dt_s
        if value is None:
            changes, found = _arrived(memory, key, step, record.at)
        elif not 0 < value < inf:
            return None
        else:
            block = [*memory[key], value]
            memory[key] = block
            if len(block) < BLOCK:
                return None
            changes, found = _closed(memory, key, block, step)
        memory.update(changes)
        return None if not found else self._told(record, found, memory)

    def calm(self, batch: Batch, memory: Memory, /) -> tuple[int, Memory]:
        """Return up to where no round tells anything."""
        count, rank = len(batch.steps), batch.rank
        if rank is None:
            return count, {}
        key = str(rank)
        left = memory.get(key + ":warm")
        if left is None:
            return count if len(memory["ranks"]) >= MOST_RANKS else 0, {}
        if left:
            return 0, {}
        values = batch.columns.get("dt_s")
        if values is None:
            changes, found = _arrived(memory, key, batch.steps[0], batch.at)
            if found:
                return 0, {}
            place = changes[key + ":at"]
            return count, changes | {key + ":at": [*place[:3], batch.steps[-1], place[4] + count - 1]}
        if not (min(values) > 0 and sum(values) < inf):
            values = list(takewhile(lambda value: 0 < value < inf, values))
        return _passed(dict(memory), key, values, batch.steps)

    def _told(self, record: Record, found: list[int], memory: Memory) -> Verdict:
        """Return the verdict on the ranks that were found in a round."""
        slow = [rank for rank in found if _known(memory, rank).blocks]
        named = slow or found
        times = {rank: _known(memory, rank).step_s for rank in named}
        others = _others(memory, named)
        ranks = _ranks(named)
        each = ", ".join(f"{times[rank]:.3g}" for rank in named[:_SHOWN]) + (" ..." if len(named) > _SHOWN else "")
        evidence: dict[str, Any] = {"ranks": named, "step_s": list(times.values()), "others_s": others}
        if not slow:
            word = "is as fast as the others" if len(named) == 1 else "are as fast as the others"
            text = f"{ranks} {word} again at step {record.step}: {each} s a step, the others {others:.3g} s"
            return on_record(self, record, text, severity="note", action="note", evidence=evidence)
        since = min(_known(memory, rank).since for rank in named)
        evidence |= {"since": since, "records": min(_known(memory, rank).blocks for rank in named) * BLOCK}
        ratio = max(times.values()) / others
        word = "is slow" if len(named) == 1 else "are slow"
        text = f"{ranks} {word}: {each} s a step since step ~{since}, the others {others:.3g} s ({ratio:.3g} times)"
        return on_record(self, record, text, severity="warn", action=self.action, evidence=evidence)


def _known(memory: Memory, rank: int) -> _Rank:
    return _Rank(*memory.get(f"{rank}:is", _NOTHING))


def _ranks(ranks: Sequence[int]) -> str:
    named = ", ".join(map(str, ranks[:_SHOWN])) + (" ..." if len(ranks) > _SHOWN else "")
    return f"rank {named}" if len(ranks) == 1 else f"ranks {named}"


def _middle(values: Sequence[float]) -> float:
    """Return the median, between the two middle ones of an even number."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _others(memory: Memory, named: Sequence[int]) -> float:
    """Return the step time of all ranks that are not named: of the last round they took part in."""
    rest = [known for rank in memory["ranks"] if rank not in named and (known := _known(memory, rank)).step_s > 0]
    turn = max((one.turn for one in rest), default=0)
    return _middle([one.step_s for one in rest if turn - one.turn <= _GONE] or [inf])


def _passed(after: Memory, key: str, values: Sequence[float], steps: Sequence[int]) -> tuple[int, Memory]:
    """Return how many values come before a finding, and the memory after them; ``after`` is changed."""
    place = 0
    while place < len(values):
        held = after[key]
        some = values[place : place + BLOCK - len(held)]
        block = [*held, *some]
        place += len(some)
        after[key] = block
        if len(block) == BLOCK:
            changes, found = _closed(after, key, block, steps[place - 1])
            if found:
                after[key] = block[:-1]
                return place - 1, after
            after.update(changes)
    return place, after


def _arrived(memory: Memory, key: str, step: int, at: float) -> tuple[Memory, list[int]]:
    """Return what a record without a time changes, as of the ends of groups of lines that arrived together.

    "R:at" holds where the window began (step, arrival), the last arrival and step, and how many lines the window has.
    """
    place = memory.get(key + ":at")
    if place is None:
        return {key + ":at": [step, -1.0, at, step, 1]}, []
    begin, anchor, group, last, lines = place
    if at == group:
        return {key + ":at": [begin, anchor, group, step, lines + 1]}, []
    if anchor < 0 or at < group or group < anchor:  # a clock that was set back measures nothing
        return {key + ":at": [last, group if at >= group else -1.0, at, step, 1]}, []
    if group - anchor < WINDOW_S or lines < WINDOW_LINES or last <= begin:
        return {key + ":at": [begin, anchor, at, step, lines + 1]}, []
    seconds = group - anchor
    changes, found = _measured(memory, key, seconds / (last - begin), seconds, last)
    return changes | {key + ":at": [last, group, at, step, 1]}, found


def _closed(memory: Memory, key: str, block: list[float], step: int) -> tuple[Memory, list[int]]:
    """Return what the end of a rank's block changes, and the ranks that are told."""
    changes, found = _measured(memory, key, sorted(block)[len(block) // 2], sum(block), step)
    return changes | {key: []}, found


def _measured(memory: Memory, key: str, step_s: float, seconds: float, step: int) -> tuple[Memory, list[int]]:
    """Return what a rank's next step time changes, and whom the round tells that it ends, if it ends one."""
    rank = int(key)
    changes: Memory = {}
    found: list[int] = []
    done, turn = memory["done"], memory["turn"]
    if rank in done:
        changes, found = _compared(memory)
        done, turn = [], turn + 1
    known = _known({**memory, **changes}, rank)
    lasted = seconds + (known.seconds if known.blocks else 0.0)
    since = known.since if known.blocks else known.end or step
    one = known._replace(step_s=step_s, seconds=lasted, turn=turn, since=since, end=step)
    return changes | {key + ":is": list(one), "done": [*done, rank], "turn": turn}, found


def _compared(memory: Memory) -> tuple[Memory, list[int]]:
    """Return what a round that is over says of each rank that took part, and the ranks that are told."""
    turn, done = memory["turn"], set(memory["done"])
    alive = {rank: one for rank in memory["ranks"] if (one := _known(memory, rank)).step_s > 0}
    alive = {rank: one for rank, one in alive.items() if turn - one.turn <= _GONE}
    if len(alive) < 2:
        return {}, []
    changes: Memory = {}
    found, over = [], []
    for rank in sorted(done & set(alive)):
        one = alive[rank]
        others = _middle([other.step_s for number, other in alive.items() if number != rank])
        told = one.equal > 0
        if one.step_s > SLOW * others:
            one = one._replace(blocks=one.blocks + 1, equal=1 if told else 0)
            if not told and one.blocks >= BLOCKS and one.seconds >= SECONDS:
                found.append(rank)
                one = one._replace(equal=1)
        elif not told:
            one = one._replace(blocks=0)
        else:
            one = one._replace(equal=one.equal + 1 if one.step_s <= EQUAL * others else 1)
            if one.equal > RECOVERED:
                over.append(rank)
                one = one._replace(blocks=0, equal=0)
        changes[f"{rank}:is"] = list(one)
    return changes, found or over

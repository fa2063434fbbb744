"""Records that were judged before all of them was known, and what has to be taken back when the whole record comes.

Only what is remembered lives here; who judges, and what, is decided elsewhere. No clock, no file.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from overnight.events import Record

_MOST: Final = 16
"""Early records that wait for their whole ones; of more the oldest is given up, and its step is never told."""

_MOST_SINCE: Final = 64
"""Records judged since one of them; with more it is given up, too."""

Memories = dict[str, dict[str, Any]]


class Pending:
    """One early record: what rules remembered before it, and the records that they have judged since, itself left out.

    ``segment`` and ``sick_since`` are the monitor's of that moment.
    """

    __slots__ = ("key", "memories", "segment", "sick_since", "since")

    def __init__(self, key: tuple[int, int, int], segment: int, sick_since: int | None, memories: Memories) -> None:
        self.key = key
        self.segment = segment
        self.sick_since = sick_since
        self.memories = memories
        self.since: list[Record] = []


class Early:
    """The early records of one attempt that wait for their whole ones, ``pending`` in the order in which they came."""

    __slots__ = ("pending",)

    def __init__(self) -> None:
        self.pending: list[Pending] = []

    def hold(self, record: Record, segment: int, sick_since: int | None, memories: Memories) -> None:
        """Keep what must be known to take ``record``, which is early, back; ``memories`` are a copy."""
        self._note(record)
        self.pending = [*self.pending[1 - _MOST :], Pending(_key(record), segment, sick_since, memories)]

    def take(self, record: Record) -> Pending | None:
        """Return what is known of the early form of ``record``, if it had one, and let it wait no longer."""
        for place, one in enumerate(self.pending):
            if one.key == _key(record):
                behind = self.pending[place + 1 :]
                self.pending = self.pending[:place]
                self._note(record)  # those before it have judged the early form, and will judge this one instead
                self.pending += behind
                return one
        self._note(record)
        return None

    def renew(self, record: Record, sick_since: int | None, memories: Memories) -> None:
        """What is known from before an early record that still waits has changed."""
        for one in self.pending:
            if one.key == _key(record):
                one.sick_since, one.memories = sick_since, memories

    def _note(self, record: Record) -> None:
        """Add a record to what was judged since, for each that waits; in place of its early form if that is there."""
        key = _key(record)
        for one in self.pending:
            places = [place for place, other in enumerate(one.since) if _key(other) == key]
            if places:
                one.since[places[0]] = record
            else:
                one.since.append(record)
        self.pending = [one for one in self.pending if len(one.since) <= _MOST_SINCE]

    def snapshot(self) -> list[Any]:
        """Return all of it as builtins."""
        return [
            [
                list(one.key),
                one.segment,
                one.sick_since,
                one.memories,
                [msgspec.structs.asdict(two) for two in one.since],
            ]
            for one in self.pending
        ]

    @classmethod
    def restore(cls, state: list[Any]) -> Early:
        """Go on where ``snapshot`` was taken."""
        early = cls()
        for (source, offset, part), segment, sick_since, memories, since in state:
            one = Pending(
                (source, offset, part), segment, sick_since, {name: dict(kept) for name, kept in memories.items()}
            )
            one.since = [Record(**record) for record in since]
            early.pending.append(one)
        return early


def _key(record: Record) -> tuple[int, int, int]:
    return record.source, record.offset, record.part

"""What a reader is: the contract that every shape of log is read by. No implementation may be listed here.

A reader gets whole lines in the order they were written and returns records. It is a plain callable with a name:

* ``None`` means "not mine": another reader may try;
* an empty tuple means "mine, but it says nothing about a step" (the first half of a two-line record, for example);
* otherwise the records of the line in the order they stand in it, with ``part`` 0, 1, ... when several were glued.

A reader never raises, whatever the line holds; it never guesses: a value that cannot be read is None and the rest of
the line is still read. Readers that join several lines keep what they need in ``snapshot``.

A reader that must hold a record back until a later line completes it returns an empty tuple meanwhile, and has one more
method: ``flush() -> tuple[Record, ...]`` returns what is still held when no more lines will come. A record that is not
finite waits for nothing: it is released at once as ``early``, and whole later, with the same source, offset and part.
A reader of mappings whose records may come with a later line says of which lines: ``holds(source, offset) -> bool``,
asked right after each line with a brace in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from overnight.events import Record
    from overnight.tail import Line


class Reader(Protocol):
    """One shape of log.

    ``name`` is what stands in ``Record.reader``. ``always`` names the fields that every training record of this shape
    carries, so that one which is missing them is a sign in itself.
    """

    name: str
    always: frozenset[str]

    def __call__(self, line: Line, at: float, source: int) -> tuple[Record, ...] | None:
        """Return the records of ``line``, which arrived at ``at`` (seconds since the epoch) from ``source``."""
        ...

    def snapshot(self) -> Any:
        """Return what the next line depends on, as builtins that msgpack and JSON can carry; None when nothing."""
        ...

    def restore(self, state: Any) -> None:
        """Go on from what ``snapshot`` of a reader of the same kind returned."""
        ...

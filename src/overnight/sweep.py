"""One look at each of many things on a disk: one after the other, or many at once where each look has to wait.

A home on a network disk may take 50 ms for each file that is opened: nearly a minute for a thousand runs, one by one.
On a disk of this machine threads would only cost time. So the first looks are timed. Knows nothing of runs; what is
costly to import is imported when it is needed.
"""

from __future__ import annotations

import time

from overnight.errors import OvernightError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeVar

    Item = TypeVar("Item")
    Seen = TypeVar("Seen")

ALLOWED_S, ALLOWED_EACH_S = 0.03, 0.001
"""Looks that took longer together are slow: an allowance for the first one, and for each. A local disk needs 30 us."""

AT_ONCE = 96
"""Looks that wait at the same time; a server serves so many without effort, and a thread that waits costs little."""

LEAST_AT_ONCE = 4
"""Fewer looks than these are not worth a thread."""


def each(items: Sequence[Item], look: Callable[[Item], Seen]) -> list[Seen]:
    """Return what ``look`` returns for each item, in order; what it raises for one of them is raised."""
    found: list[Seen] = []
    began = time.monotonic()
    for item in items:
        found.append(look(item))
        done = len(found)
        if time.monotonic() - began > ALLOWED_S + ALLOWED_EACH_S * done and len(items) - done >= LEAST_AT_ONCE:
            return found + _at_once(items[done:], look)
    return found


def _at_once(items: Sequence[Item], look: Callable[[Item], Seen]) -> list[Seen]:
    from threading import Thread

    found: dict[int, Seen] = {}
    left: Iterator[tuple[int, Item]] = iter(enumerate(items))  # next() of it is one step for all threads

    def work() -> None:
        for at, item in left:
            try:
                found[at] = look(item)
            except (OvernightError, OSError, ValueError):
                return  # the caller looks again, and is told

    # Daemons: whoever leaves with Ctrl-C does not wait for a disk that does not answer.
    threads = [Thread(target=work, daemon=True) for _ in range(min(AT_ONCE, len(items)))]
    started = []
    for thread in threads:
        try:
            thread.start()
        except RuntimeError:  # no more processes for this user: those that are there do it, or the caller itself
            break
        started.append(thread)
    for thread in started:
        thread.join()
    return [found[at] if at in found else look(item) for at, item in enumerate(items)]

"""Which growing file is a save in progress: the one judgement that a stop and the clearing after it both wait for.

A file counts by its name (or its folder's) if it was open before the first look, since logs and caches are open then as
well; a file that was begun later counts unless it has the name of a log. The run's own log never counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from overnight.processes import writable_files
from overnight.saves.names import looks_like_save

NOT_A_SAVE = re.compile(r"\.(log|out|err|csv|tsv|json|jsonl|ya?ml|py)$|tfevents", re.IGNORECASE)
"""Files that a training appends to at every step: their growth says nothing about a save."""


class Growth:
    """Looks again and again at the files that some processes have open for writing."""

    def __init__(self, log: str) -> None:
        self.log = log
        self.sizes: dict[str, int] | None = None
        self.open_before: frozenset[str] = frozenset()

    def forget(self) -> None:
        """Begin anew: the next look only remembers."""
        self.sizes = None

    def look(self, pids: Iterable[int]) -> bool:
        """Say whether a save has grown since the last look; the first look only remembers what is there."""
        seen = writable_files(pids)
        seen.pop(self.log, None)
        known, self.sizes = self.sizes, seen
        if known is None:
            self.open_before = frozenset(seen)
            return False
        return any(size > known.get(path, 0) and self._counts(path) for path, size in seen.items())

    def _counts(self, path: str) -> bool:
        return looks_like_save(path) or (path not in self.open_before and not NOT_A_SAVE.search(path))

"""A whole look at a place: structure at once, then content in the side process, newest first, as far as it may read.

Joins walking, choosing and the side process. Nothing is printed and nothing is removed here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from overnight.inspector import choosing, side, walk
from overnight.inspector.findings import Budget, Found
from overnight.sweep import each


@dataclass(kw_only=True)
class Report:
    """What lies at ``place``, newest first, with what its content has shown.

    ``unchecked`` are paths whose content was not looked at, or not all of it. ``pointed``: paths to which a link leads.
    """

    place: str
    found: list[Found]
    notes: list[str] = field(default_factory=list)
    unchecked: set[str] = field(default_factory=set)
    pointed: frozenset[str] = frozenset()

    @property
    def newest(self) -> Found | None:
        """The one to resume from."""
        return choosing.newest(self.found)

    @property
    def damaged(self) -> list[Found]:
        """What is not as it should be: incomplete, damaged, or with NaN in it."""
        return [one for one in self.found if False in (one.complete, one.intact, one.finite)]


def look(
    place: str,
    *,
    limit: int | None,
    enough: Callable[[Report], bool] | None = None,
    say: Callable[[str], None] | None = None,
) -> Report:
    """Return what lies at ``place``: paths are absolute. UsageError if there is nothing to look at.

    ``limit`` are the bytes that are read for content, None for all. ``enough`` may end the reading early, ``say`` is
    told each path whose content is known now.
    """
    path = Path(os.path.abspath(place))
    survey = walk.survey(path, Budget(0), each)
    report = Report(
        place=str(path),
        found=choosing.newest_first(choosing.with_owner(survey.found)),
        notes=survey.notes,
        pointed=survey.pointed,
    )
    _content(report, limit, enough or (lambda _: False), say or (lambda _: None))
    there = [one for one in report.found if os.path.lexists(one.path)]  # a training beside us may have let some go
    report.found = choosing.newest_first(there)
    return report


def _content(report: Report, limit: int | None, enough: Callable[[Report], bool], say: Callable[[str], None]) -> None:
    worth = [one for one in report.found if one.complete is True and one.intact is not False]
    report.unchecked = {one.path for one in worth}
    if not worth or limit == 0:
        return
    at = {one.path: index for index, one in enumerate(report.found)}
    size = sum(one.size_bytes for one in worth)
    try:
        with side.Side([one.path for one in worth], limit, size if limit is None else min(limit, size)) as process:
            for checked in process:
                index = at[checked.path]
                report.found[index] = side.applied(report.found[index], checked)
                if checked.whole:
                    report.unchecked.discard(checked.path)
                say(checked.path)
                if enough(report):
                    return
            code = process.process.wait() if process.process else 0
    except OSError as error:
        report.notes.append(f"content was not looked at: no process could be started for it ({error.strerror})")
        return
    if code:
        report.notes.append("content was not looked at to the end: the process that read it was ended")

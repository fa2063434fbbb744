"""A whole look at a place: structure at once, then content in the side process, newest first, as far as it may read.

Joins walking, choosing and the side process. Nothing is printed and nothing is removed here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from overnight.checkpoint import lock as locks
from overnight.errors import UsageError
from overnight.inspector import choosing, side, walk
from overnight.inspector.findings import Budget, Found
from overnight.sweep import each


@dataclass(kw_only=True)
class Report:
    """What lies at ``place``, newest first, with what its content has shown.

    ``unchecked`` are paths whose content was not looked at, or not all of it; ``cut_off``: because the process that
    reads it could not, and not for the limit's sake. ``pointed``: paths to which a link leads, ``names``: all that lies
    there.
    """

    place: str
    found: list[Found]
    notes: list[str] = field(default_factory=list)
    unchecked: set[str] = field(default_factory=set)
    cut_off: bool = False
    pointed: frozenset[str] = frozenset()
    names: tuple[str, ...] = ()

    @property
    def newest(self) -> Found | None:
        """The one to resume from."""
        return choosing.newest(self.found)

    @property
    def damaged(self) -> list[Found]:
        """What is not as it should be: incomplete, damaged, with NaN in it, or not readable as what its name says."""
        return [one for one in self.found if not _sound(one)]


def _sound(found: Found) -> bool:
    told = found.problem is not None and found.healthy is not False  # that a training was not healthy is no damage
    return found.complete is True and not told and False not in (found.intact, found.finite)


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
    if not place:
        raise UsageError("an empty name is no place to look at; give a folder of checkpoints, or . for this one")
    path = Path(os.path.abspath(place))
    survey = walk.survey(path, Budget(0), each)
    report = Report(
        place=str(path),
        found=choosing.newest_first(choosing.with_owner(survey.found, locks.signed_run(path))),
        notes=survey.notes,
        pointed=survey.pointed,
        names=survey.names,
    )
    _content(report, limit, enough or (lambda _: False), say or (lambda _: None))
    there = [one for one in report.found if os.path.lexists(one.path)]  # a training beside us may have let some go
    report.found = choosing.newest_first(there)
    report.notes.extend(choosing.about(report.found))
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
        report.cut_off = True
        report.notes.append(f"content was not looked at: no process could be started for it ({error.strerror})")
        return
    if code:
        report.cut_off = True
        report.notes.append("content was not looked at to the end: the process that read it was ended")

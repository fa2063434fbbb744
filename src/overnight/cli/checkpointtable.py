"""Checkpoints as text for people: one line each, at most 80 columns, the one to resume from marked, notes below.

Text in, text out: the time and the colours are arguments. Nothing is looked at here.
"""

from __future__ import annotations

import os

from overnight.cli.render import WIDTH, folded, red, span
from overnight.inspector import choosing
from overnight.printable import harmless

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from overnight.inspector.checking import Report
    from overnight.inspector.findings import Found

HEADS = ("NAME", "STEP", "SIZE", "AGE", "MAKER")
SHORTEST_NAME, LONGEST_NAME = 8, 34
MARK = "->"
SHOWN = 40
"""Rows at most; of thousands the newest ones and all that is wrong are shown, --json has them all."""
NAMED = 4


def size(count: int) -> str:
    """Return bytes as 512 B, 1.5 kB, 2.3 MB, 1.49 GB."""
    if count < 1000:
        return f"{count} B"
    value = float(count)
    for unit in ("kB", "MB", "GB", "TB"):
        value /= 1000
        if value < 999.5 or unit == "TB":
            break
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"


def state(found: Found, *, unchecked: bool) -> str:
    """Return in words how good a checkpoint is."""
    foreign = "of another run" if found.own is False else ""
    return "; ".join(part for part in (foreign, _state(found, unchecked=unchecked, foreign=bool(foreign))) if part)


def _state(found: Found, *, unchecked: bool, foreign: bool) -> str:
    problem = found.problem
    if found.complete is False:
        return f"incomplete: {problem}" if problem else "incomplete"
    if found.intact is False:
        return f"damaged: {problem}" if problem else "damaged"
    if found.finite is False or found.healthy is False:
        return problem or ("NaN or infinity in it" if found.finite is False else "saved while unhealthy")
    if found.complete is None:
        return f"unknown: {problem}" if problem else "unknown"
    if problem is not None:
        return f"doubtful: {problem}"
    good = "good, its content not read" if unchecked else "good"
    return "" if foreign and good == "good" else good


def table(report: Report, *, now: float, colours: bool, width: int = WIDTH) -> str:
    """Return the list of what lies in a folder."""
    if not report.found:
        lines = [harmless(f"no checkpoints in {report.place}")]
        return "\n".join([*lines, *(line for note in report.notes for line in folded(note, "  ", width=width))])
    newest = report.newest
    shown = _shown(report, newest)
    rows = [_cells(one, now) for one in shown]
    widths = [max(len(head), *(len(row[at]) for row in rows)) for at, head in enumerate(HEADS)]
    room = width - len(MARK) - 1 - sum(widths[1:]) - 2 * len(HEADS) - len("STATE")
    widths[0] = min(widths[0], LONGEST_NAME, max(SHORTEST_NAME, room))
    lines = ["   " + _line(HEADS, widths) + "  STATE"]
    for one, row in zip(shown, rows, strict=True):
        mark = MARK if one is newest else "  "
        lines += _row(f"{mark} {_line(row, widths)}", one, report, colours=colours, width=width)
    if len(shown) < len(report.found):
        lines.append(f"   and {len(report.found) - len(shown):,} more; --json lists all of them")
    lines.append("")
    lines += folded(_verdict(report, newest), "  ", first="", width=width)
    for note in _notes(report):
        lines += folded(note, "  ", first="- ", width=width)
    return "\n".join(lines)


def _shown(report: Report, newest: Found | None) -> list[Found]:
    if len(report.found) <= SHOWN:
        return report.found
    wrong = [one for one in report.damaged if one is not newest][: SHOWN // 2]
    first = [one for one in report.found if one not in wrong][: SHOWN - len(wrong)]
    keep = {id(one) for one in (*wrong, *first)}
    return [one for one in report.found if id(one) in keep or one is newest]


def _cells(found: Found, now: float) -> tuple[str, ...]:
    return (
        harmless(os.path.basename(found.path)),
        "-" if found.step is None else str(found.step),
        size(found.size_bytes),
        "-" if found.saved_at is None else span(max(0.0, now - found.saved_at)),
        found.maker,
    )


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    parts = []
    for at, (cell, room) in enumerate(zip(cells, widths, strict=True)):
        short = cell if len(cell) <= room else cell[: room - 1] + "…"
        parts.append(short.ljust(room) if at in (0, 4) else short.rjust(room))
    return "  ".join(parts)


def _row(begin: str, found: Found, report: Report, *, colours: bool, width: int) -> list[str]:
    """Return a line, or several: a state that finds no room beside the figures stands below them."""
    said = harmless(state(found, unchecked=found.path in report.unchecked))
    bad = found.problem is not None or False in (found.complete, found.intact, found.finite, found.healthy)
    if len(begin) + 2 + len(said) <= width:
        return [f"{begin}  {red(said, colours=colours and bad)}"]
    below = folded(said, " " * 8, width=width)
    return [begin.rstrip(), *(red(line, colours=colours and bad) for line in below)]


def _verdict(report: Report, newest: Found | None) -> str:
    if newest is None and any(choosing.usable(one) and one.own is not False for one in report.found):
        return "several are good, but nothing in them says which is the newest: no step, and no names that tell it"
    if newest is None:
        return "nothing here is good enough to resume from"
    step = "" if newest.step is None else f", step {newest.step}"
    return f"resume from {os.path.basename(newest.path)}{step}"


def _notes(report: Report) -> list[str]:
    """Return each note once, with the names of all that it is about."""
    about: dict[str, list[str]] = {}
    for one in report.found:
        for note in one.notes:
            about.setdefault(note, []).append(os.path.basename(one.path))
    found = []
    for note, names in about.items():
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        found.append(f"{', '.join(names[:NAMED])}{more}: {note}")
    unread = [one for one in report.found if one.path in report.unchecked]
    if unread:
        total = size(sum(one.size_bytes for one in unread))
        found.append(f"the content of {len(unread):,} ({total}) was not read to its end; see --verify-max")
    return [*found, *report.notes]


def removal(
    paths: Sequence[str], failed: Mapping[str, str], kept: Mapping[str, str], *, dry: bool, width: int = WIDTH
) -> str:
    """Return what a prune has removed, what it could not, and what it left alone and why."""
    word = "would remove" if dry else "removed"
    lines = [""] if paths or failed or kept else ["", "nothing to remove"]
    lines += [line for path in paths for line in folded(f"{word} {path}", "  ", first="", width=width)]
    if not paths and (failed or kept):
        lines.append("nothing removed" if not dry else "nothing to remove")
    for path, why in failed.items():
        lines += folded(f"could not remove {path}: {why}", "  ", first="", width=width)
    for path, why in kept.items():
        lines += folded(f"left alone {os.path.basename(path)}: {why}", "  ", first="", width=width)
    return "\n".join(lines)

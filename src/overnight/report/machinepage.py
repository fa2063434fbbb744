"""The sections of the page about the machine under a run, and about what its figures mean.

Pure: parts of the report value in, markup out. Long lists are cut, and what was cut is counted.
"""

from __future__ import annotations

from typing import Any, Final

from overnight.report import machinewords
from overnight.report.appendix import facts
from overnight.report.charts import chart
from overnight.report.markup import Markup, begun, each, el, join, sentence, text

_CHARTS: Final = 12
_SENTENCES: Final = 12
_SIGNS: Final = 900


def meaning(value: dict[str, Any]) -> Markup | None:
    """Return what the figures mean, and which sources disagree; None where nothing is said of either."""
    reading, odd = value.get("reading") or [], value.get("disagreements") or []
    if not reading and not odd:
        return None
    parts = [_list(reading)] if reading else []
    if odd:
        parts += [el("h3", "Sources that disagree"), _list(odd)]
    return join(*parts)


def _list(said: list[Any]) -> Markup:
    rows = [el("li", sentence(begun(str(one)), _SIGNS)) for one in said[:_SENTENCES]]
    left = len(said) - len(rows)
    return el("ul", each(rows), el("li", f"and {left:,} more") if left > 0 else None, class_="next")


def hardware(value: dict[str, Any]) -> Markup | None:
    """Return GPUs, errors, host and disks in words, and their curves over time; None where nothing is known."""
    rows = machinewords.rows(value)
    drawn = (value.get("hardware") or {}).get("charts") or []
    if not rows and not drawn:
        return None
    told: set[tuple[float, str]] = set()
    parts = [chart(one, f"machine-{at}", told) for at, one in enumerate(drawn[:_CHARTS])]
    left = len(drawn) - len(parts)
    note = el("p", f"{left:,} more are not drawn.", class_="small more") if left > 0 else None
    said = facts([(begun(label or "and"), text(words, 500)) for label, words in rows]) if rows else None
    return join(said, el("div", each(parts), class_="more") if parts else None, note)

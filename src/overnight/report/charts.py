"""One series as an SVG chart: a band from least to largest, a line, marks; gaps where nothing is known.

Pure: a chart of the report value in, markup out. Horizontal places are percent and vertical ones pixels, so that one
drawing fits a telephone and a desk without its letters being scaled. No sentence about the run is made here.
"""

from __future__ import annotations

from typing import Any, Final

from overnight.report.curves import KINDS, PARTS, Cluster, Mark, Part, Stretch, clusters, marks_of, stretches, thinned
from overnight.report.markup import Markup, begun, each, el, join, shown
from overnight.report.scales import SIGN_PX, Axis, anchor, axis, round_end, span_axis
from overnight.report.timecurves import TIMES
from overnight.report.units import finite, number

TOP: Final = 32  # pixels above the plot, where the signs of marks stand in two rows
HEIGHT: Final = 200  # pixels of the plot
WIDE_PX: Final = 560.0
NARROW_PX: Final = 240.0
"""The least width of a plot above and below the width at which the style changes; labels fit from there on."""
_ROWS: Final = {"restart": 24, "nan": TOP + HEIGHT - 9}
"""Pixels from the top of the signs that do not stand in the first row, so that all of one step is seen."""
_ODD: Final = 2  # so many values alone, far from all others, are no curve
_STEADY: Final = 0.02  # of the value: smaller changes of speeds, and of what sensors tell, are none to look at
_SPEEDS: Final = frozenset({"dt_s", "tokens_per_s", "samples_per_s", "mfu"})
_ACROSS, _DOWN = 4000, 1000  # units of the stretched drawing
_OLDER: Final = 24
_SIGNS: Final = 60  # clusters of marks that are drawn
_LINES: Final = 24  # clusters of marks with a line through the plot
_LISTED: Final = 12
_DOTS: Final = 60  # up to so many values each one is a dot

SIGNS: Final = {
    "critical": "M0-6 6 0 0 6-6 0Z",
    "warn": "M0-5.5 6 5-6 5Z",
    "note": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0Z",
    "restart": "M-4-5 5 0-4 5Z",
    "nan": "M-5-3-3-5 0-2 3-5 5-3 2 0 5 3 3 5 0 2-3 5-5 3-2 0Z",
}
"""A shape for each kind of mark, 12 pixels across, around its own origin: colour is never the only difference."""


Older = list[tuple[Any, list[Stretch]]]
"""What was superseded, by attempt."""


# -- drawing ---------------------------------------------------------------------------------------------------------


def chart(one: dict[str, Any], key: str, told: set[tuple[float, str]] | None = None) -> Markup:
    """Return a figure with one chart; ``key`` makes its ids unique on the page.

    ``told`` are marks (place, text) that another chart lists already; those that this one lists are added.
    """
    marks = marks_of(one)
    lines = thinned(stretches(one, [mark.x for mark in marks if mark.kind == "nan"]))
    older, stray = _near(_older(one), lines)
    name = begun(shown(str(one.get("label") or one.get("name") or "series"), 60))
    x_label = shown(str(one.get("x_label") or "step"), 20)
    places = [part.x for piece in (*lines, *(p for _, pieces in older for p in pieces)) for part in piece]
    places += [mark.x for mark in marks]
    if not places:
        return el("figure", el("h3", name), el("p", "No value of it is known.", class_="small"), class_="chart")
    down = axis(
        (value for piece in (*lines, *(p for _, ps in older for p in ps)) for part in piece for value in part[1:3]),
        least_span=_STEADY if "zero" in one or one.get("name") in _SPEEDS else 0.0,
    )
    whole = all(place.is_integer() for place in places)
    low = _begin(places, x_label) if whole else min(places)
    high = round_end(low, max(places))
    across = span_axis(low, high, WIDE_PX, whole=whole)
    grouped = clusters(marks, across)
    said = _said(one, lines, older, grouped, x_label)
    unit = " · ".join(shown(str(part), 60) for part in (_unit(one), down and down.note) if part)
    below = x_label if not across.note else f"{x_label}, {across.note}"
    svg = el(
        "svg",
        el("title", name, id=f"{key}-title"),
        el("desc", said, id=f"{key}-desc"),
        _grid(down),
        _x_ticks(across, "wide", WIDE_PX),
        _x_ticks(span_axis(low, high, NARROW_PX, whole=whole), "narrow", NARROW_PX),
        _curves(lines, older, across, down),
        _signs(grouped),
        role="img",
        width="100%",
        height=TOP + HEIGHT + 26,
        aria_labelledby=f"{key}-title {key}-desc",
    )
    return el(
        "figure",
        el(
            "figcaption",
            el("h3", name, *((" ", el("span", unit, class_="unit")) if unit else ())),
            el("output", _in_short(one, lines, x_label), class_="readout"),
        ),
        el("div", svg, el("p", below, class_="below"), class_="plot", **_data(lines, across, x_label)),
        _legend(one, lines, older, grouped, stray),
        _listed(marks, x_label, set() if told is None else told),
        class_="chart",
    )


def _unit(one: dict[str, Any]) -> str | None:
    """Return the unit, unless the name says it already."""
    unit = one.get("unit")
    return None if not unit or str(unit) == str(one.get("label")) else str(unit)


def _begin(places: list[float], x_label: str) -> float:
    """Return where the x axis begins: a log that prints each 50th step began before the 50th."""
    low = min(places)
    return 0.0 if 1 < low <= max(places) / 10 and "step" in x_label.split() else low


def _older(one: dict[str, Any]) -> Older:
    found = [(old.get("attempt"), stretches(old)) for old in (one.get("older") or [])[:_OLDER]]
    found = [(attempt, pieces) for attempt, pieces in found if pieces]
    share = PARTS // 2 // max(1, len(found))
    return [(attempt, thinned(pieces, share)) for attempt, pieces in found]


def _near(older: Older, lines: list[Stretch]) -> tuple[Older, list[float]]:
    """Return what is drawn of the older parts, and the places of what is not: odd steps far beyond all that counts.

    A step that was printed once, far ahead, and gone back from would leave no width to everything else.
    """
    places = [part.x for piece in lines for part in piece]
    if not places:
        return older, []
    far = max(places) + max(1.0, max(places) - min(places))
    near = [(attempt, [one for one in pieces if len(one) > _ODD or one[0].x <= far]) for attempt, pieces in older]
    stray = [one[0].x for _, pieces in older for one in pieces if len(one) <= _ODD and one[0].x > far]
    return [(attempt, pieces) for attempt, pieces in near if pieces], stray


def _grid(down: Axis | None) -> Markup:
    edge = el("line", x1="0", x2="100%", y1=TOP + HEIGHT, y2=TOP + HEIGHT, class_="frame")
    if down is None:
        return join(edge, el("text", "no finite value", x="50%", y=TOP + HEIGHT // 2, class_="x"))
    parts = []
    for tick, label in zip(down.ticks, down.labels, strict=True):
        y = round(TOP + HEIGHT * (1 - down.place(tick)), 1)
        if y < TOP + HEIGHT - 1:
            parts.append(el("line", x1="0", x2="100%", y1=y, y2=y, class_="grid"))
        parts.append(el("text", label, x="-8", y=round(y + 4, 1), class_="y"))
    return join(each(parts), edge)


def _x_ticks(across: Axis, kind: str, width_px: float) -> Markup:
    parts = []
    for tick, label in zip(across.ticks, across.labels, strict=True):
        place = across.place(tick)
        x = f"{place * 100:.2f}%"
        side = anchor(place, len(label) * SIGN_PX, width_px)
        parts.append(el("line", x1=x, x2=x, y1=TOP + HEIGHT, y2=TOP + HEIGHT + 5, class_="frame"))
        parts.append(el("text", label, x=x, y=TOP + HEIGHT + 19, class_=f"tick {side}"))
    return el("g", each(parts), class_=kind)


def _curves(lines: list[Stretch], older: Older, across: Axis, down: Axis | None) -> Markup | None:
    if down is None:
        return None
    parts = []
    for attempt, pieces in older:  # below what counts: where both are alike, that is what is seen
        title = el("title", f"attempt {number(attempt)}, redone later")
        parts.append(el("g", title, _drawn(pieces, across, down, every=False), class_="older"))
    parts.append(el("g", _drawn(lines, across, down, every=sum(map(len, lines)) <= _DOTS), class_="newest"))
    return el(
        "svg",
        each(parts),
        y=TOP,
        width="100%",
        height=HEIGHT,
        viewBox=f"0 0 {_ACROSS} {_DOWN}",
        preserveAspectRatio="none",
        overflow="visible",
    )


def _drawn(pieces: list[Stretch], across: Axis, down: Axis, *, every: bool) -> Markup:
    """Return bands, lines and dots: a dot for what no line joins to another, or for ``every`` value."""

    def at(part: Part, value: float) -> str:
        return f"{across.place(part.x) * _ACROSS:.0f} {(1 - down.place(value)) * _DOWN:.0f}"

    bands, curves, dots = [], [], []
    for piece in pieces:
        middle = [at(part, part.low / 2 + part.high / 2 if part.low != part.high else part.low) for part in piece]
        if any(part.low != part.high for part in piece):
            edge = [at(part, part.high) for part in piece] + [at(part, part.low) for part in reversed(piece)]
            bands.append("M" + " ".join(edge) + "Z")
        if len(piece) > 1:
            curves.append("M" + " ".join(middle))
        if every or len(piece) == 1:
            dots += [f"M{one}h0" for one in middle]
    return join(
        el("path", d="".join(bands), class_="band") if bands else None,
        el("path", d="".join(curves), class_="line") if curves else None,
        el("path", d="".join(dots), class_="dots") if dots else None,
    )


def _signs(grouped: list[Cluster]) -> Markup:
    parts = []
    for cluster in grouped[:_SIGNS]:
        x = f"{cluster.place * 100:.2f}%"
        if len(grouped) <= _LINES:
            parts.append(el("line", x1=x, x2=x, y1=TOP, y2=TOP + HEIGHT, class_=f"mark {cluster.kind}"))
        said = (
            cluster.marks[0].text if len(cluster.marks) == 1 else f"{len(cluster.marks)} times: {KINDS[cluster.kind]}"
        )
        sign = el("path", el("title", said[:100]), d=SIGNS[cluster.kind], class_=f"sign {cluster.kind}")
        parts.append(el("svg", sign, x=x, y=_ROWS.get(cluster.kind, 8), width=1, height=1, overflow="visible"))
    return each(parts)


# -- words below and beside it ---------------------------------------------------------------------------------------


def _in_short(one: dict[str, Any], lines: list[Stretch], x_label: str) -> str:
    parts = [part for piece in lines for part in piece]
    if not parts:
        return ""
    if finite(one.get("least")) is not None and one.get("least_x") is not None:  # exactly, not of a part of the curve
        said = _range(parts[-1]) if finite(one.get("last")) is None else number(one["last"], 5)
        odd = (one.get("nonfinite") or [[None, None]])[-1]
        if finite(odd[0]) is not None and float(odd[0]) > parts[-1].x:
            said = number(odd[1])
        return f"least {number(one['least'], 5)} at {x_label} {_where(one['least_x'], x_label)} · last {said}"
    least = min(parts, key=lambda part: part.low)
    last = parts[-1]
    return f"least {number(least.low, 5)} at {x_label} {_where(least.x, x_label)} · last {_range(last)}"


def _where(x: float, x_label: str) -> str:
    """Return a place in words: a step as it stands in the log, a time as exactly as it is known."""
    return number(x, 4) if x_label in TIMES else number(x)


def _range(part: Part) -> str:
    low, high = number(part.low, 5), number(part.high, 5)
    return low if low == high else f"{low} to {high}"


def _said(one: dict[str, Any], lines: list[Stretch], older: list[Any], grouped: list[Cluster], x_label: str) -> str:
    parts = [part for piece in lines for part in piece]
    if not parts:
        return "No finite value."
    first, last = parts[0], parts[-1]
    said = f"From {_range(first)} at {x_label} {_where(first.x, x_label)} "
    said += f"to {_range(last)} at {x_label} {_where(last.x, x_label)}; "
    least, largest = _in_short(one, lines, x_label).partition(" ·")[0], max(part.high for part in parts)
    said += f"{least}; largest {number(largest, 5)}."
    if older:
        said += f" {len(older)} older parts were redone."
    counted: dict[str, int] = {}
    for cluster in grouped:
        counted[cluster.kind] = counted.get(cluster.kind, 0) + len(cluster.marks)
    told = ", ".join(f"{KINDS[kind]} ({count})" for kind, count in counted.items())
    return f"{said} Marks: {told}." if told else said


def _data(lines: list[Stretch], across: Axis, x_label: str) -> dict[str, str]:
    """Return what the pointer reads off, as attributes; the page is whole without."""
    parts = [part for piece in lines for part in piece]
    if not parts:
        return {}
    starts = [at for at, part in enumerate(parts) if not at or part.attempt != parts[at - 1].attempt]
    exact = all(part.low == part.high for part in parts)
    return {
        "data_x": " ".join(f"{part.x:.9g}" for part in parts),
        "data_low": " ".join(f"{part.low:.4g}" for part in parts),
        **({} if exact else {"data_high": " ".join(f"{part.high:.4g}" for part in parts)}),
        "data_attempts": " ".join(
            f"{at}:{number(parts[at].attempt)}" for at in starts if parts[at].attempt is not None
        ),
        "data_label": x_label,
        "data_from": f"{across.low!r}",
        "data_to": f"{across.high!r}",
    }


def _swatch(kind: str, pieces: list[Stretch]) -> Markup:
    """Return what a curve looks like: a line, or dots where nothing of it is joined."""
    return el("span", class_=f"swatch {kind}" + (" dotted" if all(len(piece) == 1 for piece in pieces) else ""))


def _legend(
    one: dict[str, Any], lines: list[Stretch], older: Older, grouped: list[Cluster], stray: list[float]
) -> Markup | None:
    entries = []
    if older:
        entries.append(el("li", _swatch("newest", lines), "what counts"))
        names = sorted({number(attempt) for attempt, _ in older}, key=lambda name: (len(name), name))
        said = f"attempt{'s' * (len(names) > 1)} {', '.join(names[:6])}{', …' * (len(names) > 6)}: redone later"
        left = len(one.get("older") or []) - _OLDER
        entries.append(
            el(
                "li",
                _swatch("older", [piece for _, pieces in older for piece in pieces]),
                said + (f" ({left} more not drawn)" if left > 0 else ""),
            )
        )
    if stray:
        said = f"one value at {shown(str(one.get('x_label') or 'step'), 20)} {number(stray[0])}, far beyond: not drawn"
        entries.append(el("li", said if len(stray) == 1 else f"{said}, like {number(len(stray) - 1)} more"))
    seen = {cluster.kind for cluster in grouped}
    entries += [el("li", sign(kind), KINDS[kind]) for kind in SIGNS if kind in seen]
    if len(grouped) > _SIGNS:
        entries.append(el("li", f"{len(grouped) - _SIGNS:,} more marks not drawn"))
    return el("ul", each(entries), class_="legend") if entries else None


def sign(kind: str, colour: str | None = None) -> Markup:
    """Return the small picture of a kind of mark, for texts that explain it; ``colour`` is another kind's."""
    shape = el("path", d=SIGNS[kind], class_=f"sign {colour or kind}")
    return el("svg", shape, viewBox="-7 -7 14 14", width=12, height=12, aria_hidden="true")


def _listed(marks: list[Mark], x_label: str, told: set[tuple[float, str]]) -> Markup | None:
    judged = {mark.x for mark in marks if mark.kind == "critical"}  # a NaN that a verdict tells of is told once
    new = [mark for mark in marks if mark.text and (mark.x, mark.text) not in told]
    new = [mark for mark in new if mark.kind != "nan" or mark.x not in judged]
    told.update((mark.x, mark.text) for mark in new)
    if not new:
        return None
    rows = []
    for mark in new[:_LISTED]:
        where = el("span", f"{x_label} {_where(mark.x, x_label)}", class_="where")
        rows.append(el("li", sign(mark.kind), where, f" {mark.text[:160]}"))
    if len(new) > _LISTED:
        rows.append(el("li", f"and {len(new) - _LISTED:,} more"))
    return el("details", el("summary", f"Marks ({len(new):,})"), el("ul", each(rows), class_="marks"))

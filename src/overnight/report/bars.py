"""Two bars of the page: where the time went, and the attempts along the clock.

Pure: parts of the report value in, markup out. Curves are drawn in ``charts``; no other section stands here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from overnight.moments import epoch_of
from overnight.report.charts import NARROW_PX, SIGNS, WIDE_PX, sign
from overnight.report.markup import Markup, each, el, join
from overnight.report.scales import SIGN_PX, Axis, anchor, fits
from overnight.report.units import UNKNOWN, amount, date, duration, finite, number, percent

_BAR_PX: Final = 34
_ROW_PX: Final = 30
_TOP_PX: Final = 20
_BARS: Final = 300  # attempts that are drawn
_MARKS: Final = 80
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86400
_PACES: Final = (
    *(1, 2, 5, 10, 30, _MINUTE_S, 2 * _MINUTE_S, 5 * _MINUTE_S, 10 * _MINUTE_S, 30 * _MINUTE_S),
    *(_HOUR_S, 2 * _HOUR_S, 3 * _HOUR_S, 6 * _HOUR_S, 12 * _HOUR_S, _DAY_S, 2 * _DAY_S, 7 * _DAY_S, 30 * _DAY_S),
    *(365 * _DAY_S, 3650 * _DAY_S, 36500 * _DAY_S),
)


class Slice(NamedTuple):
    """One part of the time of a run; ``seconds`` is None where nobody knows."""

    kind: str
    label: str
    seconds: float | None
    explained: str


def slices(goodput: dict[str, Any]) -> list[Slice]:
    """Return the parts of the wall time in their order; empty where they are not known, or do not fit into it."""
    wall, productive = finite(goodput.get("wall_s")), finite(goodput.get("productive_s"))
    if goodput.get("goodput") is None or wall is None or productive is None or wall <= 0:
        return []
    lost, restart = finite(goodput.get("lost_s")), finite(goodput.get("restart_s"))
    other = max(0.0, wall - productive - (lost or 0.0) - (restart or 0.0))
    return [
        Slice("productive", "productive", productive, "steps that count"),
        Slice("redone", "redone", lost, "steps that a later attempt did again"),
        Slice("other", "saving and other", other, "starting, saving, evaluating, waiting"),
        Slice("restart", "restarts", restart, "from the end of an attempt to the first step of the next"),
    ]


def goodput_bar(goodput: dict[str, Any], price: Any) -> Markup | None:
    """Return the time of a run as one bar with a table of its parts; None if it is not known.

    ``price``: money per hour, or None.
    """
    parts = slices(goodput)
    if not parts:
        return None
    known = [one for one in parts if one.seconds]
    whole = max(finite(goodput["wall_s"]) or 0.0, sum(one.seconds or 0.0 for one in known)) or 1.0
    said = ", ".join(f"{one.label} {duration(one.seconds)} ({percent((one.seconds or 0) / whole)})" for one in known)
    drawn, x = [], 0.0
    for one in known:
        share = (one.seconds or 0.0) / whole * 100
        drawn.append(
            el(
                "rect",
                el("title", f"{one.label}: {duration(one.seconds)}"),
                x=f"{x:.3f}%",
                width=f"{share:.3f}%",
                height=_BAR_PX,
                class_=f"part {one.kind}",
            )
        )
        x += share
    svg = el(
        "svg",
        el("title", "Where the time went", id="goodput-title"),
        el("desc", said or "no time", id="goodput-desc"),
        el("g", each(drawn)),
        role="img",
        width="100%",
        height=_BAR_PX,
        aria_labelledby="goodput-title goodput-desc",
        class_="bar",
    )
    return join(svg, _shares(parts, whole, finite(price)))


def _shares(parts: list[Slice], whole: float, price: float | None) -> Markup:
    def row(one: Slice) -> Markup:
        said = percent(one.seconds / whole) if one.seconds is not None else UNKNOWN
        cost = None if price is None or one.seconds is None else amount(one.seconds / _HOUR_S * price)
        return el(
            "tr",
            el("th", el("span", el("span", class_=f"swatch {one.kind}"), one.label, class_="pair"), scope="row"),
            el("td", duration(one.seconds), class_="n"),
            el("td", said, class_="n"),
            el("td", cost or UNKNOWN, class_="n") if price is not None else None,
            el("td", one.explained, class_="small wide"),
        )

    heads = ["Part", "Time", "Share", *(["Money"] if price is not None else [])]
    head = el(
        "tr",
        each(el("th", name, scope="col", class_=None if name == "Part" else "n") for name in heads),
        el("th", "What it is", scope="col", class_="wide"),
    )
    return el("table", el("thead", head), el("tbody", each(map(row, parts))), class_="shares")


# -- attempts along the clock ----------------------------------------------------------------------------------------


def strip(value: dict[str, Any]) -> Markup | None:
    """Return the attempts and what happened to them along the clock; None if no attempt's times are known."""
    bars = [bar for one in value.get("attempts") or () if (bar := _bar(one, value))]
    if not bars:
        return None
    marks = [
        (at, kind, text)
        for one in value.get("timeline") or ()
        if (at := epoch_of(one.get("at"))) is not None
        for kind, text in [_kind(one)]
        if kind
    ]
    # Marks of another clock, years away, would squeeze the night into nothing.
    first, last = min(one[0] for one in bars), max(one[1] for one in bars)
    room = max(60.0, last - first)
    marks = [one for one in marks if first - room <= one[0] <= last + room]
    first, last = min([first, *(one[0] for one in marks)]), max([last, *(one[0] for one in marks)])
    if first == last:
        first, last = first - 1, last + 1
    drawn = bars[:_BARS]
    said = "; ".join(
        f"attempt {name} from {date(begin, '%H:%M:%S')} for {duration(end - begin)}"
        for begin, end, name, _ in drawn[:20]
    )
    wide, narrow = clock_axis(first, last, WIDE_PX), clock_axis(first, last, NARROW_PX)
    svg = el(
        "svg",
        el("title", "Attempts along the clock", id="strip-title"),
        el("desc", said, id="strip-desc"),
        each(_rect(one, first, last) for one in drawn),
        each(_sign(one, first, last) for one in marks[:_MARKS]),
        _times(wide, "wide", WIDE_PX),
        _times(narrow, "narrow", NARROW_PX),
        role="img",
        width="100%",
        height=_TOP_PX + _ROW_PX + 28,
        aria_labelledby="strip-title strip-desc",
    )
    return el("div", el("div", svg, class_="strip"), _key(marks, drawn, len(bars)))


def _bar(one: dict[str, Any], value: dict[str, Any]) -> tuple[float, float, str, bool] | None:
    """Return where an attempt begins and ends, its name, and whether it goes on."""
    begin, end = epoch_of(one.get("started_at")), epoch_of(one.get("ended_at"))
    seconds = finite(one.get("seconds"))
    open_end = end is None
    if begin is not None and end is None:
        end = begin + seconds if seconds is not None else epoch_of(value.get("made_at"))
    if begin is None or end is None:
        return None
    return begin, max(begin, end), number(one.get("n")), open_end


def _kind(one: dict[str, Any]) -> tuple[str | None, str]:
    text = str(one.get("text") or "")
    if one.get("kind") == "verdict":
        severity = one.get("severity")
        return (severity if severity in SIGNS else "note"), text
    return ("request" if one.get("kind") == "request" else None), text


def _rect(bar: tuple[float, float, str, bool], first: float, last: float) -> Markup:
    begin, end, name, open_end = bar
    x, wide = (begin - first) / (last - first) * 100, (end - begin) / (last - first) * 100
    kind = "attempt open" if open_end else "attempt"
    title = el("title", f"attempt {name}: {duration(end - begin)}{', goes on' if open_end else ''}")
    rect = el(
        "rect", title, x=f"{x:.3f}%", y=_TOP_PX, width=f"{max(wide, 0.3):.3f}%", height=_ROW_PX, rx=2, class_=kind
    )
    label = (
        el("text", name, x=f"{x + wide / 2:.3f}%", y=_TOP_PX + 20, class_="inside")
        if wide >= 3 + 3 * len(name)
        else None
    )
    return join(rect, label)


def _sign(mark: tuple[float, str, str], first: float, last: float) -> Markup:
    at, kind, text = mark
    x = f"{(at - first) / (last - first) * 100:.3f}%"
    shape = SIGNS.get(kind, SIGNS["restart"])
    return join(
        el("line", x1=x, x2=x, y1=_TOP_PX - 4, y2=_TOP_PX + _ROW_PX + 2, class_=f"mark {kind}"),
        el(
            "svg",
            el("path", el("title", text[:300]), d=shape, class_=f"sign {kind}"),
            x=x,
            y=8,
            width=1,
            height=1,
            overflow="visible",
        ),
    )


def clock_axis(first: float, last: float, width_px: float) -> Axis:
    """Return an axis of UTC times whose ticks are full minutes, hours or days, and fit into ``width_px`` pixels."""
    for pace in _PACES:
        if (last - first) / pace > 12:
            continue
        begin, end = -(-first // pace), last // pace
        ticks = [at * pace for at in range(int(begin), int(end) + 1)]
        one = Axis(first, last, tuple(ticks), tuple(_labels(ticks, pace)))
        if fits(one, width_px, SIGN_PX):
            return one
    return Axis(first, last, (), ())


def _labels(ticks: Sequence[float], pace: int) -> list[str]:
    form = "%H:%M:%S" if pace < _MINUTE_S else "%H:%M" if pace < _DAY_S else "%b %d" if pace < 365 * _DAY_S else "%Y"
    return [date(at, "%b %d" if pace < _DAY_S and at % _DAY_S == 0 else form) for at in ticks]


def _times(one: Axis, kind: str, width_px: float) -> Markup:
    y = _TOP_PX + _ROW_PX
    parts = [el("line", x1="0", x2="100%", y1=y + 3, y2=y + 3, class_="frame")]
    for tick, label in zip(one.ticks, one.labels, strict=True):
        place = one.place(tick)
        x = f"{place * 100:.3f}%"
        parts.append(el("line", x1=x, x2=x, y1=y + 3, y2=y + 8, class_="frame"))
        parts.append(el("text", label, x=x, y=y + 22, class_=f"tick {anchor(place, len(label) * SIGN_PX, width_px)}"))
    return el("g", each(parts), class_=kind)


def _key(marks: list[tuple[float, str, str]], drawn: list[Any], count: int) -> Markup:
    words = {"critical": "critical verdict", "warn": "warning", "note": "note", "request": "request"}
    entries = [
        el("li", sign(kind if kind in SIGNS else "restart", kind), name)
        for kind, name in words.items()
        if any(mark[1] == kind for mark in marks[:_MARKS])
    ]
    entries.insert(0, el("li", el("span", class_="swatch attempt"), "attempt, by its number"))
    if count > len(drawn) or len(marks) > _MARKS:
        left = [f"{count - len(drawn):,} attempts"] * (count > len(drawn)) + [f"{len(marks) - _MARKS:,} marks"] * (
            len(marks) > _MARKS
        )
        entries.append(el("li", f"not drawn: {' and '.join(left)}"))
    entries.append(el("li", "times are UTC"))
    return el("ul", each(entries), class_="legend")

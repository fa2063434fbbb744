"""The night in its order: attempts as a table, and everything that happened with the log line it came from.

Pure: parts of the report value in, markup out. Long lists are cut by importance, and what was cut is counted.
"""

from __future__ import annotations

from typing import Any, Final

from overnight.moments import epoch_of
from overnight.report.charts import sign
from overnight.report.markup import Markup, each, el, join, sentence, text
from overnight.report.units import attempt_steps, clock, date, duration, number

ENTRIES: Final = 200
ATTEMPTS: Final = 40
_LINES: Final = 8
_SAID_SIGNS: Final = 160
_LINE_SIGNS: Final = 240
_RANKS: Final = {"critical": 0, "warn": 1, "note": 3}
_KIND_RANKS: Final = {
    "end": 0, "attempt": 1, "restart": 1, "resume": 1, "overlap": 1, "request": 2, "set": 2, "hook": 2, "state": 2,
}  # fmt: skip
_STARTS: Final = frozenset({"attempt", "restart", "resume"})
_TAGS: Final = {
    "attempt": "attempt",
    "verdict": "verdict",
    "state": "state",
    "request": "request",
    "save": "saved",
    "note": "note",
    "set": "changed",
    "restart": "restart",
    "resume": "went on",
    "overlap": "compared",
    "check": "checkpoint",
    "hook": "hook",
    "clock": "clock",
    "gpu": "GPU",
    "end": "end",
}


# -- timeline --------------------------------------------------------------------------------------------------------


def timeline(entries: list[dict[str, Any]], records: object = None) -> Markup:
    """Return what happened as a list; the days stand between, in UTC. ``records``: how many were read and judged."""
    if not entries and not records:
        return el("p", "Nothing is known of what happened between the first line and the last.", class_="small")
    if not entries:
        replay = el("code", "overnight replay")
        return el("p", "No rule found anything in its lines. ", replay, " judges silences, too.", class_="small")
    timed = any(epoch_of(one.get("at")) is not None for one in entries)
    kept = _chosen(entries)
    rows: list[Markup] = []
    day, before = "", -1
    for at in kept:
        if at > before + 1:
            rows.append(el("li", _left_out(entries[before + 1 : at]), class_="cut"))
        before = at
        seconds = epoch_of(entries[at].get("at"))
        today = day if seconds is None else date(seconds, "%A, %Y-%m-%d")
        if today != day:
            day = today
            rows.append(el("li", f"{day} (UTC)", class_="day"))
        rows.append(_entry(entries[at], timed=timed))
    if before + 1 < len(entries):
        rows.append(el("li", _left_out(entries[before + 1 :]), class_="cut"))
    note = None if timed else el("p", "The log has no times: this is its order.", class_="small")
    return join(note, el("ol", each(rows), class_="timeline" if timed else "timeline timeless"))


def _chosen(entries: list[dict[str, Any]]) -> list[int]:
    """Return the places of the entries that are shown: the most important ones, of equals the first and the last."""
    if len(entries) <= ENTRIES:
        return list(range(len(entries)))
    kept: list[int] = []
    ranks = [_rank(one) for one in entries]
    for rank in range(5):
        these = [at for at, one in enumerate(ranks) if one == rank]
        room = ENTRIES - len(kept)
        kept += these if len(these) <= room else these[: room // 2] + these[len(these) - (room - room // 2) :]
        if len(kept) >= ENTRIES:
            break
    return sorted(kept)


def _rank(one: dict[str, Any]) -> int:
    severity = one.get("severity")
    return min(_RANKS.get(str(severity), 4), _KIND_RANKS.get(str(one.get("kind")), 4))


def _left_out(entries: list[dict[str, Any]]) -> str:
    counted: dict[str, int] = {}
    for one in entries:
        name = str(one.get("rule") or _TAGS.get(str(one.get("kind")), one.get("kind")))[:40]
        counted[name] = counted.get(name, 0) + 1
    told = sorted(counted.items(), key=lambda pair: -pair[1])[:4]
    noun = "entry" if len(entries) == 1 else "entries"
    return (
        f"{len(entries):,} less important {noun} left out: {', '.join(f'{name} {count:,}' for name, count in told)}"
        + (", …" if len(counted) > 4 else "")
    )


def _entry(one: dict[str, Any], *, timed: bool) -> Markup:
    kind, severity = str(one.get("kind") or "note"), one.get("severity")
    tone = severity if severity in _RANKS else "restart" if kind in _STARTS else {"end": "finish"}.get(kind, "request")
    picture = sign(severity if severity in _RANKS else "restart" if kind in _STARTS else "note", tone)
    if tone in ("request", "finish"):
        picture = sign("note", tone)
    tag = _TAGS.get(kind, kind)
    if one.get("rule"):
        tag = f"{tag} {one['rule']}"
    if severity in ("critical", "warn"):
        tag += {"critical": ", critical", "warn": ", warning"}[severity]
    where = [f"attempt {number(one['attempt'])}"] if one.get("attempt") is not None and kind != "attempt" else []
    where += [f"step {number(one['step'])}"] if one.get("step") is not None else []
    body = [
        el("p", el("span", text(tag, 80), class_="tag"), el("span", " · ".join(where), class_="where")),
        el("p", sentence(str(one.get("text") or ""), 300)),
    ]
    if one.get("line") is not None:
        body.append(el("pre", text(str(one["line"]), _LINE_SIGNS), class_="line"))
    place = _place(one)
    if place:
        body.append(el("p", place, class_="small"))
    seconds = epoch_of(one.get("at"))
    when = (
        el("time", date(seconds, "%H:%M:%S"), datetime=date(seconds, "%Y-%m-%dT%H:%M:%SZ"))
        if seconds is not None
        else (el("span", "unknown", class_="when"))
    )
    return el("li", when if timed else None, picture, el("div", each(body), class_="what"), class_=tone)


def _place(one: dict[str, Any]) -> str | None:
    if one.get("offset") is None:
        return None
    source = one.get("source")
    return f"log line at offset {number(one['offset'])}" + (
        f", source {number(source)}" if source not in (None, 0) else ""
    )


# -- attempts --------------------------------------------------------------------------------------------------------


def attempts(entries: list[dict[str, Any]]) -> Markup | None:
    """Return the attempts as a table that becomes cards where there is little room; None if there is none."""
    if not entries:
        return None
    shown = entries if len(entries) <= ATTEMPTS else entries[:10] + entries[10 - ATTEMPTS :]
    names = ("Attempt", "Began", "Lasted", "Steps", "Ended", "Why")
    head = el("tr", each(el("th", name, scope="col") for name in names))
    table = el("table", el("thead", head), el("tbody", each(map(_attempt, shown))), class_="cards")
    left = len(entries) - len(shown)
    note = el("p", f"{left:,} attempts between the first 10 and the last {ATTEMPTS - 10} are left out.", class_="small")
    return join(table, note if left else None, each(_said_last(one) for one in shown if one.get("lines")))


def _attempt(one: dict[str, Any]) -> Markup:
    ended = " · ".join(
        str(part)
        for part in (
            one.get("state_words") or one.get("cause") or "unknown",
            None if one.get("exit_code") is None else f"exit code {number(one['exit_code'])}",
            one.get("signal"),
        )
        if part
    )
    return el(
        "tr",
        el("th", number(one.get("n")), scope="row", data_label="Attempt"),
        el("td", clock(one.get("started_at")), data_label="Began", class_="when"),
        el("td", duration(one.get("seconds")), data_label="Lasted", class_="when"),
        el("td", attempt_steps(one) or "none read", data_label="Steps", class_="when"),
        el("td", text(ended, 120), data_label="Ended"),
        el("td", text(str(one.get("cause_text") or "unknown"), 300), data_label="Why", class_="long"),
    )


def _said_last(one: dict[str, Any]) -> Markup:
    lines = [str(line) for line in one["lines"]]
    body = el("pre", each(join(text(line, _SAID_SIGNS), "\n") for line in lines[-_LINES:]), tabindex=0)
    return el("details", el("summary", f"What attempt {number(one.get('n'))} said at its end"), body)

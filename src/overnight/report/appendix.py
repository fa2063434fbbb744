"""The sections below the charts: limits and cost, checkpoints, proofs, last log lines, the command, what is unknown.

Pure: parts of the report value in, markup out. Long lists and texts are cut, and what was cut is counted.
"""

from __future__ import annotations

import shlex
from typing import Any, Final

from overnight.report import goingon
from overnight.report.markup import Child, Markup, each, el, join, sentence, shown, text, unbroken
from overnight.report.money import LEAST_IDLE_S
from overnight.report.units import UNKNOWN, amount, clock, duration, finite, number, size
from overnight.report.words import counted

_CHECKPOINTS: Final = 30
_RESUMES: Final = 40
_PROOFS: Final = 12
_PROOF_SIGNS: Final = 4000
_LAST: Final = 60
_LINE_SIGNS: Final = 400
_COMMAND_SIGNS: Final = 6000
_UNKNOWN: Final = 40

_LIMITS: Final = {
    "max_hours": ("Most time", lambda value: duration(value * 3600 if isinstance(value, (int, float)) else value)),
    "until": ("Until", clock),
    "max_steps": ("Most steps", number),
    "max_cost": ("Most cost", amount),
    "restarts": ("Restarts", number),
    "stall_s": ("Without a new step", duration),
    "start_limit_s": ("To the first step", duration),
    "exit_limit_s": ("From the last step to the exit", duration),
    "price": ("Price of an hour", amount),
}


_BY_DEFAULT: Final = {
    "stall_s": "learned from the run: no --stall was given",
    "start_limit_s": "only an alert: no --start-limit was given",
    "exit_limit_s": "learned from the run: no --exit-limit was given",
}
"""What holds where no limit was given; everything else has none then."""


def facts(pairs: list[tuple[str, Child]]) -> Markup:
    """Return names with what they are; None as a value is said to be unknown."""
    return el(
        "dl",
        each(
            join(el("dt", name), el("dd", value) if value is not None else el("dd", UNKNOWN, class_="none"))
            for name, value in pairs
        ),
        class_="facts",
    )


def limits(value: dict[str, Any]) -> Markup | None:
    """Return limits and cost; None where nothing of both applies."""
    # A log that nobody kept had no limits: what the flags say now was never in force.
    found = (value.get("limits") or {}) if value.get("kind") != "log" else {}
    cost = {name: one for name, one in (value.get("cost") or {}).items() if one is not None}
    pairs: list[tuple[str, Child]] = []
    for name, what in list(found.items())[:30]:
        label, form = _LIMITS.get(name, (name, number))
        if name != "price":
            none = el("span", _BY_DEFAULT.get(name, "no limit"), class_="none")
            said = none if what is None else text(form(what), 100)
            pairs.append((label[:60], said))
    price = cost.get("price") if cost.get("price") is not None else found.get("price")
    told = finite(price) is not None
    for label, name in (("Spent", "spent"), ("Spent on lost work", "lost"), ("A billion tokens", "per_billion_tokens")):
        if told or cost.get(name) is not None:
            pairs.append((label, None if cost.get(name) is None else amount(cost[name])))
    for label, name in (("Expected at the end", "forecast"), ("Since nothing runs here any more", "idle")):
        if finite(cost.get(name)) and (name != "idle" or (finite(cost.get("idle_s")) or 0.0) >= LEAST_IDLE_S):
            pairs.append((label, amount(cost[name])))
    if told:
        source = f" (from {cost['price_source']})" if cost.get("price_source") else ""
        pairs.append(("Price of an hour", text(f"{amount(price)}{source}", 300)))
    elif found or cost:
        pairs.append(("Spent", join(UNKNOWN, el("span", ": no --price was given", class_="none"))))
    return facts(pairs) if pairs else None


def resumes(entries: list[dict[str, Any]]) -> Markup | None:
    """Return how each restart went on, as a table; None if there was none."""
    if not entries:
        return None
    shown_ones = entries if len(entries) <= _RESUMES else entries[:10] + entries[10 - _RESUMES :]
    names = ("Attempt", "Went on", "Passed over", "Lost", "Left out", "Beside what was before")
    head = el("tr", each(el("th", name, scope="col") for name in names))
    table = el("table", el("thead", head), el("tbody", each(map(_resume, shown_ones))), class_="cards")
    left = len(entries) - len(shown_ones)
    note = el("p", f"{left:,} between the first 10 and the last {_RESUMES - 10} are left out.", class_="small more")
    return join(table, note if left else None)


def _resume(one: dict[str, Any]) -> Markup:
    row = goingon.row(one)
    passed = each(el("div", sentence(said, 400)) for said in row.passed) if row.passed else "none"
    return el(
        "tr",
        el("th", row.attempt, scope="row", data_label="Attempt"),
        el("td", sentence(row.start, 400), data_label="Went on", class_="long"),
        el("td", passed, data_label="Passed over", class_="long"),
        el("td", text(row.lost, 100), data_label="Lost"),
        el("td", text(row.left_out or "nothing", 200), data_label="Left out"),
        el("td", sentence(row.overlap, 300), data_label="Beside what was before", class_="long"),
    )


def checkpoints(entries: list[dict[str, Any]], good: dict[str, Any] | None) -> Markup:
    """Return the saves that were seen, the newest first, each with its marks; ``good`` is the one to go on from."""
    if not entries:
        return el("p", "No save was seen.", class_="small")
    kept = list(reversed(entries))
    rows_of = kept[:_CHECKPOINTS]
    best = None if good is None else good.get("path")
    # The one to go on from is shown however old it is.
    rows_of += [one for one in kept[_CHECKPOINTS:] if one.get("path") == best and best is not None][:1]
    rows = [
        el(
            "tr",
            el("th", "step unknown" if one.get("step") is None else f"step {number(one['step'])}", scope="row"),
            el("td", el("code", text(str(one.get("path") or UNKNOWN), 300)), data_label="File", class_="long"),
            el("td", _mark(one, best), data_label="Known of it", class_="long"),
            el("td", clock(one.get("at")), data_label="Finished"),
            el("td", duration(one.get("seconds")), data_label="Took"),
        )
        for one in rows_of
    ]
    names = ("Step", "File", "Known of it", "Finished (UTC)", "Took")
    head = el("tr", each(el("th", name, scope="col") for name in names))
    left = len(entries) - len(rows)
    note = el("p", f"{left:,} older ones are left out.", class_="small more") if left else None
    return join(el("table", el("thead", head), el("tbody", each(rows)), class_="cards"), note)


def _mark(one: dict[str, Any], best: Any) -> Markup:
    go_on = el("strong", "to go on from: ") if best is not None and one.get("path") == best else None
    return join(go_on, text(goingon.mark(one), 400))


def proofs(entries: list[dict[str, Any]]) -> Markup:
    """Return what lies in the evidence folder, each text behind its name."""
    if not entries:
        return el("p", "Nothing was kept as evidence.", class_="small")
    parts = [
        el(
            "details",
            el("summary", text(str(one.get("name") or one.get("path")), 120)),
            el("p", el("code", text(str(one.get("path") or UNKNOWN), 300)), class_="small"),
            el("pre", text(str(one.get("text") or ""), _PROOF_SIGNS), class_="tall", tabindex=0),
        )
        for one in entries[:_PROOFS]
    ]
    left = len(entries) - len(parts)
    more = f"{left:,} more {'lies' if left == 1 else 'lie'} in the same folder."
    return join(each(parts), el("p", more, class_="small more") if left else None)


def last_lines(lines: list[str], many: int | None = None) -> Markup:
    """Return the end of the log, as it stands there; ``many`` lines are in all of it."""
    if not lines:
        return el("p", "No line of the log is known.", class_="small")
    body = each(join(text(str(line), _LINE_SIGNS), "\n") for line in lines[-_LAST:])
    box = el("pre", body, tabindex=0, class_="tall", role="region", aria_label="last log lines")
    here = min(len(lines), _LAST)
    whole = len(lines) if many is None else max(many, len(lines))
    note = el("p", f"{here:,} of its {counted(whole, 'line')}.", class_="small") if whole > here else None
    return join(note, box)


def command(value: dict[str, Any]) -> Markup:
    """Return what was started, where, and what its log is."""
    log, times = value.get("log") or {}, value.get("times") or {}
    words = [shown(str(word), 2000) for word in (value.get("command") or ())[:1000]]
    said = el("pre", unbroken(shlex.join(words), _COMMAND_SIGNS), class_="line") if words else None
    lines = None if log.get("lines") is None else counted(log["lines"], "line")
    amount = " in ".join(part for part in (size(log["bytes"]) if log.get("bytes") is not None else None, lines) if part)
    reader = " · ".join(str(part) for part in (log.get("reader"), log.get("why")) if part)
    pairs: list[tuple[str, Child]] = [
        ("Log", el("code", str(log["path"])) if log.get("path") else None),
        ("Size of the log", amount or None),
        ("Read as", reader or None),
    ]
    if value.get("kind") != "log":
        pairs = [
            ("Folder", el("code", str(value["cwd"])) if value.get("cwd") else None),
            ("Machine", value.get("host")),
            ("Engine", value.get("engine")),
            *pairs,
            ("Launched", clock(times["created_at"]) + " UTC" if times.get("created_at") else None),
        ]
    why = ": this log was not started by Overnight" if value.get("kind") == "log" else ""
    missing = el("p", f"The command is unknown{why}.", class_="small")
    return join(said or missing, el("div", facts(pairs), class_="more"))


def unknown(reasons: dict[str, Any]) -> Markup | None:
    """Return what is not known and what would make it known; None if there is nothing of it."""
    if not reasons:
        return None
    pairs: list[tuple[str, Child]] = [
        (name[:80].replace("_", " "), text(str(why), 400)) for name, why in list(reasons.items())[:_UNKNOWN]
    ]
    left = len(reasons) - _UNKNOWN
    return join(facts(pairs), el("p", f"and {left:,} more", class_="small") if left > 0 else None)

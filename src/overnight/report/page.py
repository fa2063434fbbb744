"""The morning report as one HTML page: everything in it, nothing asked of anybody, in the order of questions.

``page`` is a pure function of the report value: no file, no clock, no network. It finds no facts and judges nothing.
"""

from __future__ import annotations

import re
from typing import Any, Final

from overnight.report import appendix, machinepage, story
from overnight.report.bars import goodput_bar, strip
from overnight.report.charts import chart
from overnight.report.looks import POLICY, SCRIPT, STYLE
from overnight.report.markup import Markup, begun, each, el, join, raw, sentence, shown, text, unbroken
from overnight.report.units import UNKNOWN, amount, clock, duration, finite, number, part_of, percent
from overnight.report.words import step_words, training, x_word

LARGEST_BYTES: Final = 3_000_000
"""What no page exceeds, whatever the value holds; the limits of all lists and texts add up to less."""
_CHARTS: Final = 6
_FIGURES: Final = 40
_NEXT: Final = 12
_NAME_SIGNS: Final = 120

# What ends a run without being an alarm.
_ASKED_FOR: Final = frozenset({None, "user", "preempted", "wall_clock", "until", "max_steps", "cost"})


def page(value: dict[str, Any]) -> str:
    """Return the whole page for a report value (format 1), as text to be written in UTF-8."""
    name = shown(str(value.get("name") or "unnamed"), _NAME_SIGNS)
    title = f"{name}: {shown(_state(value), 60)} · Overnight"
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=POLICY),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("meta", name="referrer", content="no-referrer"),
        el("link", rel="icon", href="data:,"),
        el("title", title),
        el("style", raw(STYLE)),
    )
    main = el("main", *(_section(*one) for one in _sections(value)))
    foot = el(
        "footer",
        el("p", f"Made by Overnight{_made(value)}. All times are UTC. Nothing in this page is loaded from elsewhere."),
    )
    body = el("body", _header(value, name), main, foot, el("script", raw(SCRIPT)))
    return f"<!DOCTYPE html>\n{el('html', head, body, lang='en')}\n"


def _made(value: dict[str, Any]) -> str:
    return f" on {shown(clock(value['made_at']), 60)}" if value.get("made_at") else ""


def _section(key: str, title: str, body: Markup | None) -> Markup | None:
    return None if body is None else el("section", el("h2", title, id=key), body, aria_labelledby=key)


def _sections(value: dict[str, Any]) -> list[tuple[str, str, Markup | None]]:
    return [
        ("next", "What to look at next", _next(value.get("next") or [])),
        ("figures", "Key figures", _figures(value)),
        ("meaning", "What the figures mean", machinepage.meaning(value)),
        ("goodput", "Where the time went", _goodput(value)),
        ("attempts", "Attempts", _attempts(value)),
        ("resumes", "How it went on", appendix.resumes(value.get("resumes") or [])),
        ("timeline", "What happened", _timeline(value)),
        ("charts", "Curves", _charts(value.get("charts") or [])),
        ("hardware", "Hardware", machinepage.hardware(value)),
        ("limits", "Limits and cost", appendix.limits(value)),
        (
            "checkpoints",
            "Checkpoints",
            appendix.checkpoints(value.get("checkpoints") or [], value.get("checkpoint")),
        ),
        ("proofs", "Evidence", appendix.proofs(value.get("proofs") or []) if value.get("kind") != "log" else None),
        (
            "lines",
            "The last lines of the log",
            appendix.last_lines(value.get("last_lines") or [], (value.get("log") or {}).get("lines")),
        ),
        ("command", "Command and log", appendix.command(value)),
        ("unknown", "What is not known", appendix.unknown(_left_unknown(value))),
    ]


# -- outcome ---------------------------------------------------------------------------------------------------------


def _state(value: dict[str, Any]) -> str:
    outcome = value.get("outcome") or {}
    state, cause = outcome.get("state"), outcome.get("cause")
    if not state or state == UNKNOWN:
        return "end unknown" if value.get("kind") == "log" else f"state {UNKNOWN}"
    return f"{state} ({cause})" if cause and cause != state else str(state)


def tone(outcome: dict[str, Any]) -> str:
    """Return the class that colours an outcome: good, bad, warned, plain, unclear."""
    state, cause, code = outcome.get("state"), outcome.get("cause"), outcome.get("code")
    if state in ("failed", "gave_up", "damaged"):
        return "bad"
    if state == "stopped":
        return "plain" if cause in _ASKED_FOR else "bad"
    if state == "finished":
        return "good" if cause in (None, "completed") and code in (None, 0) else "warned"
    if state in ("stopping", "backoff"):
        return "warned"
    return "plain" if state in ("pending", "starting", "running") else "unclear"


def _header(value: dict[str, Any], name: str) -> Markup:
    outcome = value.get("outcome") or {}
    whole = str(outcome.get("sentence") or "How it ended is not known.")
    more = [
        str(outcome["text"]) if outcome.get("text") and str(outcome["text"]) not in whole else None,
        None if outcome.get("exit_code") is None else f"exit code {number(outcome['exit_code'])}",
        f"signal {outcome['signal']}" if outcome.get("signal") else None,
    ]
    told = f"{whole} {outcome.get('text')}"
    beside = " · ".join(part for at, part in enumerate(more) if part and (not at or part not in told))
    kind = "Report of a log" if value.get("kind") == "log" else "Report of a run"
    return el(
        "header",
        el("p", kind, class_="kicker"),
        el("h1", name),
        el(
            "div",
            el("p", text(_state(value), 120), class_="state"),
            el("p", sentence(whole if whole.startswith(name) else begun(whole), 600), class_="sentence"),
            el("p", text(beside, 600), class_="small") if beside else None,
            class_=f"outcome {tone(outcome)}",
        ),
        class_="top",
    )


def _next(sentences: list[Any]) -> Markup | None:
    if not sentences:
        return None
    rows = [el("li", _with_code(begun(str(one)))) for one in sentences[:_NEXT]]
    left = len(sentences) - len(rows)
    return el("ol", each(rows), el("li", f"and {left:,} more") if left > 0 else None, class_="next")


def _with_code(said: str) -> Markup:
    """Return a sentence with what stands between backticks as code."""
    parts = re.split(r"`([^`]+)`", shown(said, 600))
    return each(el("code", unbroken(part)) if at % 2 else sentence(part, 600) for at, part in enumerate(parts))


# -- figures ---------------------------------------------------------------------------------------------------------


def _tile(label: str, said: str | None, *notes: str | None, wrong: bool = False) -> Markup:
    told = UNKNOWN if said is None else said
    look = "value unknown" if told == UNKNOWN else "value wrong" if wrong else "value"
    return el(
        "div",
        el("dt", text(begun(label), 80)),
        el("dd", text(told, 100), class_=look),
        each(el("dd", sentence(note, 600), class_="small") for note in notes if note),
    )


def _left_unknown(value: dict[str, Any]) -> dict[str, Any]:
    """Return what is not known and does not stand among the figures or with the goodput."""
    told = {str(one.get("name")) for one in value.get("figures") or []} | {"goodput"}
    return {name: why for name, why in (value.get("unknown") or {}).items() if name not in told}


def _figures(value: dict[str, Any]) -> Markup:
    every = value.get("figures") or []
    found = [one for one in every if one.get("value") is not None]
    tiles = [*_progress(value), *(_figure(one) for one in found[:_FIGURES])]
    left = len(found) - _FIGURES
    lacking = _lacking([one for one in every if one.get("value") is None][:_FIGURES])
    note = el("p", f"and {left:,} more, in the JSON form of this report", class_="small") if left > 0 else None
    return join(el("dl", each(tiles), class_="tiles"), note, lacking)


def _timeline(value: dict[str, Any]) -> Markup:
    return story.timeline(value.get("timeline") or [], (value.get("progress") or {}).get("records"))


def _lacking(unknown: list[dict[str, Any]]) -> Markup | None:
    """Return the figures that are not known, all in one small sentence, with what would make them known."""
    if not unknown:
        return None
    names = ", ".join(str(one.get("label") or one.get("name")) for one in unknown)
    needs = dict.fromkeys(need for one in unknown for need in str(one.get("provenance") or UNKNOWN).split("; "))
    return el("p", "Not known: ", text(names, 600), ". ", sentence(begun("; ".join(needs)), 600), class_="small more")


def _figure(one: dict[str, Any]) -> Markup:
    said = str(one["text"]) if one.get("text") else None if one.get("value") is None else number(one["value"])
    note = str(one["provenance"]) if one.get("provenance") else None
    return _tile(str(one.get("label") or one.get("name")), said, note, wrong=bool(one.get("impossible")))


def _progress(value: dict[str, Any]) -> list[Markup]:
    known, times, reasons = value.get("progress") or {}, value.get("times") or {}, value.get("unknown") or {}
    step, steps = known.get("step"), known.get("steps")
    at, planned = finite(step), finite(steps)
    in_all = finite(known.get("step_in_all"))
    done = at if in_all is None else in_all
    plan = None if done is None or not planned or done > planned else f"{percent(done / planned)} of the plan"
    read = None if known.get("records") is None else f"{number(known['records'])} records read"
    least = known.get("loss_least")
    best = None if least is None else f"least {number(least, 5)}{_at_step(known, known.get('loss_least_step'))}"
    first = None if known.get("loss_first") is None else f"first {number(known['loss_first'], 5)}"
    tiles = [
        _tile(
            "Step",
            None if step is None else step_words(known),
            " · ".join(part for part in (plan, read) if part) or None,
            _why(reasons, "step") if step is None else None,
        ),
        _tile(
            "Loss, last",
            None if known.get("loss_last") is None else number(known["loss_last"], 5),
            " · ".join(part for part in (first, best) if part) or None,
            _why(reasons, "loss") if known.get("loss_last") is None else None,
        ),
    ]
    if known.get("epoch") is not None:
        tiles.append(_tile("Epoch", number(known["epoch"])))
    if known.get("eval"):
        tiles.append(_evaluation(known["eval"], known))
    elapsed, active = times.get("elapsed_s"), times.get("active_s")
    local = ", taken for local time: its dates name no zone" if times.get("zone") == "local" else ""
    span = [f"began {clock(times['started_at'])}{local}" if times.get("started_at") else None]
    span.append(f"ended {clock(times['ended_at'])}" if times.get("ended_at") else None)
    said = elapsed if elapsed is not None else active
    inside = f"the command ran {duration(active)} of it" if elapsed is not None and active is not None else None
    notes = (
        " · ".join(part for part in span if part) or None,
        inside,
        _why(reasons, "elapsed_s") if said is None else None,
    )
    return [*tiles, _tile("Time", duration(said), *notes)] if said is not None or any(notes) else tiles


def _at_step(known: dict[str, Any], step: Any) -> str:
    return "" if step is None else f" at {x_word(known)} {number(step)}"


def _why(reasons: dict[str, Any], name: str) -> str | None:
    return str(reasons[name]) if reasons.get(name) else None


def _evaluation(known: dict[str, Any], progress: dict[str, Any]) -> Markup:
    least = known.get("least")
    best = None if least is None else f"least {number(least, 5)}{_at_step(progress, known.get('least_step'))}"
    last, name = known.get("last"), str(known.get("name") or "loss")
    said = None if last is None else number(last, 5)
    note = (
        f"last{_at_step(progress, known.get('last_step'))}"
        if last is not None and known.get("last_step") is not None
        else None
    )
    return _tile(
        name if name.startswith("eval") else f"Evaluation, {name}",
        said,
        " · ".join(part for part in (note, best) if part) or None,
    )


# -- time ------------------------------------------------------------------------------------------------------------


def _goodput(value: dict[str, Any]) -> Markup | None:
    goodput = value.get("goodput") or {}
    price = (value.get("cost") or {}).get("price")
    bar = goodput_bar(goodput, price)
    if bar is None:
        why = goodput.get("unknown") or (value.get("unknown") or {}).get("goodput") or "The log has no times."
        reason = str(why) if "unknown" in str(why) else f"Goodput is unknown: {why}"
        return el("p", text(begun(reason), 400), class_="small")
    told = [f"from {goodput['from']}" if goodput.get("from") else None]
    for name, label in (("stepping_tokens_per_s", "while stepping"), ("overall_tokens_per_s", "over all")):
        known = finite(goodput.get(name))
        told.append(f"{number(known, 4)} tokens/s {label}" if known is not None else None)
    redone = goodput.get("redone_steps")
    lost = f"{number(redone)} steps were done again" if redone else None
    if lost and goodput.get("lost_s") is not None:
        lost += f": {duration(goodput['lost_s'])}"
        lost += f", worth {amount(goodput['lost_cost'])}" if goodput.get("lost_cost") is not None else ""
    share = goodput.get("goodput")
    productive, wall = part_of(min(goodput["productive_s"], goodput["wall_s"]), goodput["wall_s"])
    line = el(
        "p",
        el("span", percent(share), class_="big"),
        el("span", f"goodput: {productive} of {wall} were {training(value)}", class_="beside"),
    )
    notes = [lost, " · ".join(part for part in told if part), goodput.get("unknown")]
    small = each(el("p", text(str(note), 400), class_="small") for note in notes if note)
    return join(line, bar, el("div", small, class_="more"), _by_attempt(goodput.get("parts") or []))


def _by_attempt(parts: list[dict[str, Any]]) -> Markup | None:
    if len(parts) < 2:
        return None
    shown_parts = parts[: story.ATTEMPTS]
    rows = [
        el(
            "tr",
            el("th", f"attempt {number(one.get('attempt'))}", scope="row"),
            el("td", f"{number(one.get('first_step'))} to {number(one.get('last_step'))}", data_label="Steps"),
            el("td", duration(one.get("productive_s")), data_label="Productive"),
            el("td", number(one.get("lost_steps")), data_label="Redone steps"),
            el("td", duration(one.get("lost_s")), data_label="Redone time"),
        )
        for one in shown_parts
    ]
    names = ("Attempt", "Steps", "Productive", "Redone steps", "Redone time")
    head = el("tr", each(el("th", name, scope="col") for name in names))
    left = len(parts) - len(rows)
    note = el("p", f"{left:,} more are left out.", class_="small") if left else None
    table = el("table", el("thead", head), el("tbody", each(rows)), class_="cards more")
    return el("details", el("summary", "By attempt"), table, note)


def _attempts(value: dict[str, Any]) -> Markup | None:
    drawn, table = strip(value), story.attempts(value.get("attempts") or [])
    return join(drawn, el("div", table, class_="more")) if drawn or table else None


def _charts(found: list[dict[str, Any]]) -> Markup:
    if not found:
        return el("p", "There is nothing to draw: no number was read from the log.", class_="small")
    told: set[tuple[float, str]] = set()  # a mark that all curves have is told in words below the first
    parts = [chart(one, f"chart-{at}", told) for at, one in enumerate(found[:_CHARTS])]
    left = len(found) - len(parts)
    names = ", ".join(str(one.get("label") or one.get("name"))[:40] for one in found[_CHARTS : _CHARTS + 20])
    return join(
        each(parts), el("p", f"{left:,} more are not drawn: {names}", class_="small more") if left > 0 else None
    )

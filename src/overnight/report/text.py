"""The morning report as text for a terminal: at most 80 columns, in the order in which a person asks in the morning.

Pure: a report value in, lines out. No fact is found and nothing judged here. Every text that was read from somewhere
goes through ``clean``, which the caller brings.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from overnight.report import goingon, machinewords, money
from overnight.report.figures import rate
from overnight.report.textpage import Clean, Page
from overnight.report.units import amount, attempt_steps, clock, duration, finite, number, part_of, percent, size
from overnight.report.words import counted, step_words, training, x_word

WIDTH = 80
LEAST_WIDTH = 30

_VERDICTS = 12
_TIMELINE = 24
_ATTEMPTS = 12
_PROOFS = 12
_FAULTY = 4
_QUIET = ("hook", "check")
_BARS = "▁▂▃▄▅▆▇█"

Value = Mapping[str, Any]


def text(value: Value, *, clean: Clean, width: int = WIDTH) -> str:
    """Return the report, at most ``width`` columns wide (30 at the least)."""
    page = Page(clean, max(LEAST_WIDTH, min(width, WIDTH)))
    outcome = value["outcome"]
    state = str(outcome["state"]) + (f" ({outcome['cause']})" if outcome["cause"] else "")
    page.add(f"{value['name']}: {state}")
    page.add(str(outcome["sentence"]), "  ")
    page.title("what to look at next")
    for one in value["next"]:
        page.add(str(one), "    ", "  - ")
    for title, rows in (
        ("how far", _progress(value)),
        ("figures", _figures(value)),
        ("where the time went", _goodput(value)),
        ("limits and cost", _limits(value)),
        ("hardware", machinewords.rows(value)),
    ):
        page.table(title, rows)
    _sentences(page, "what the figures mean", value.get("reading") or ())
    _loss(page, value)
    _attempts(page, value)
    _resumes(page, value)
    _timeline(page, value)
    page.table("checkpoints", _checkpoints(value))
    _proofs(page, value)
    page.table("log and command", _places(value))
    if value["last_lines"]:
        page.title(f"the log ends{_so_many(value)}")
        for line in value["last_lines"]:
            page.line(f"    {line}")
    page.table("not known", [(name, why) for name, why in _unknown(value)])
    return "\n".join(page.lines)


def _so_many(value: Value) -> str:
    """Return how much of the log its last lines are, where it has more."""
    shown, lines = len(value["last_lines"]), value["log"]["lines"]
    return f": {shown:,} of its {counted(lines, 'line')}" if lines is not None and lines > shown else ""


def _progress(value: Value) -> list[tuple[str, str]]:
    known, times = value["progress"], value["times"]
    rows = []
    if known["step"] is not None:
        rows.append(("step", step_words(known)))
    if known["epoch"] is not None:
        rows.append(("epoch", number(known["epoch"], 4)))
    if known["records"] is not None:
        rows.append(("lines read", f"{number(known['records'])} with progress"))
    if known["loss_last"] is not None or known["loss_first"] is not None:
        least = ""
        if known["loss_least"] is not None:
            least = f", least {number(known['loss_least'], 5)} at {_x_name(value)} {number(known['loss_least_step'])}"
        rows.append(("loss", f"{number(known['loss_first'], 5)} -> {number(known['loss_last'], 5)}{least}"))
    if known["eval"]:
        one = known["eval"]
        at = "" if one["last_step"] is None else f" at {x_word(known)} {number(one['last_step'])}"
        least = f", least {number(one['least'], 5)} at {x_word(known)} {number(one['least_step'])}"
        rows.append(("evaluation", f"loss {number(one['last'], 5)}{at}{least}"))
    local = ", its dates name no zone and were taken for local time" if times.get("zone") == "local" else ""
    for label, name in (("began", "started_at"), ("ended", "ended_at")):
        if times[name]:
            rows.append((label, f"{clock(times[name])} UTC{local if name == 'started_at' else ''}"))
    if times["elapsed_s"] is not None:
        active = "" if times["active_s"] is None else f", of which the command ran {duration(times['active_s'])}"
        rows.append(("lasted", duration(times["elapsed_s"]) + active))
    return rows


def _x_name(value: Value) -> str:
    return str(value["charts"][0]["x_label"]) if value["charts"] else "step"


def _figures(value: Value) -> list[tuple[str, str]]:
    rows, lacking = [], {}
    for one in value["figures"]:
        if one["value"] is None:
            lacking[one["label"]] = one["provenance"]
        else:
            rows.append((one["label"], f"{one['text']} ({one['provenance']})"))
    needs = dict.fromkeys(need for why in lacking.values() for need in why.split("; "))
    return [*rows, *([("unknown", f"{', '.join(lacking)}: {'; '.join(needs)}")] if lacking else [])]


def _goodput(value: Value) -> list[tuple[str, str]]:
    good = value["goodput"]
    rows = []
    if good["goodput"] is not None:
        part, whole = part_of(min(good["productive_s"], good["wall_s"]), good["wall_s"])
        rows.append(("goodput", f"{percent(good['goodput'])}: {part} of {whole} were {training(value)}"))
    elif good["unknown"]:
        rows.append(("goodput", str(good["unknown"]).removeprefix("goodput is ")))
    if good["stepping_tokens_per_s"] is not None:
        overall = good["overall_tokens_per_s"]
        beside = "" if overall is None else f", {rate(overall)} over all the time"
        rows.append(("tokens/s", f"{rate(good['stepping_tokens_per_s'])} while stepping{beside}"))
    if good["redone_steps"]:
        lost = f"{number(good['redone_steps'])} steps were done again, {duration(good['lost_s'])} of work"
        if good["lost_cost"] is not None:
            lost += f", {amount(good['lost_cost'])} of the cost"
        rows.append(("lost", lost))
    if good["unfinished_s"]:
        rows.append(("unfinished", f"{duration(good['unfinished_s'])} or more from last steps to ends of attempts"))
    if good["restart_s"]:
        rows.append(
            ("restarts", f"{duration(good['restart_s'])} or more from ends of attempts to first steps of the next")
        )
    if value["saves"]["count"]:
        beside = ", while the training went on" if value["saves"].get("beside") else ""
        rows.append(("saves", f"{number(value['saves']['count'])} seen, {duration(value['saves']['seconds'])}{beside}"))
    if good["from"] and good["productive_s"] is not None:
        rows.append(("known from", str(good["from"])))
    return rows


_LIMITS: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "max_hours": ("--max-hours", lambda hours: duration(hours * 3600 if isinstance(hours, (int, float)) else hours)),
    "until": ("--until", lambda at: f"{clock(at)} UTC"),
    "max_steps": ("--max-steps", number),
    "max_cost": ("--max-cost", amount),
    "restarts": ("--restarts", number),
    "stall_s": ("--stall", duration),
    "start_limit_s": ("--start-limit", duration),
    "exit_limit_s": ("--exit-limit", duration),
}


def _limits(value: Value) -> list[tuple[str, str]]:
    limits = value["limits"]
    given = [f"{flag} ({words(limits[name])})" for name, (flag, words) in _LIMITS.items() if limits.get(name)]
    rows = [("limits", ", ".join(given))] if given else []
    return rows + money.rows(value["cost"])


def _sentences(page: Page, title: str, said: Sequence[str]) -> None:
    if said:
        page.title(title)
    for one in said:
        page.add(str(one), "    ", "  - ")


def _loss(page: Page, value: Value) -> None:
    """Add the curve of the loss: a column for each part, x for NaN, ^ where another attempt begins."""
    chart = next((one for one in value["charts"] if one["name"] == "loss"), None)
    if chart is None or len(chart["x"]) < 2:
        return
    room = page.width - 4
    end = _end(chart, value["progress"])
    first, last = (number(_whole(x)) for x in (chart["x"][0], end))
    columns, marks, span = _columns(chart, room, end)
    if span is None:
        return
    page.title(f"loss over {page.clean(str(chart['x_label']))} {first} to {last}")
    page.lines += [f"    {columns}", *([f"    {marks}"] if marks.strip() else [])]
    least, most = min(chart["low"]), max(chart["high"])
    told = [f"{_BARS[0]} {number(span[0], 5)}", f"{_BARS[-1]} {number(span[1], 5)}"]
    if span[0] == span[1]:
        told = [f"{_BARS[0]} {number(span[0], 5)}, from end to end"]
    if (least, most) != span:  # a bar stands for many values, and none of them need be as far out as the farthest
        told[0] = f"a bar is the middle of its part: {told[0]}"
        told.insert(0, f"least {number(least, 5)}, most {number(most, 5)}")
    told += ["x NaN or infinite"] if "x" in columns else []
    told += ["^ another attempt begins"] if "^" in marks else []
    page.add("; ".join(told), "    ")


def _end(chart: Value, progress: Value) -> float:
    """Return the last place: a chart names the first of each of its parts, and the last part goes on to the last."""
    places = [chart["x"][-1], *(place for place, _ in chart["nonfinite"])]
    last = progress["step"] if progress.get("step_in_all") is None else progress["step_in_all"]
    if "step" in str(chart["x_label"]).split() and last is not None and finite(last) is not None:
        places.append(last)
    return max(float(x) for x in places)


def _whole(x: float) -> float | int:
    return int(x) if float(x).is_integer() else x


def _columns(chart: Value, room: int, last: float) -> tuple[str, str, tuple[float, float] | None]:
    """Return the bars, the marks below them, and the least and the largest value (None: there is none).

    A column stands for a part of the x axis, which ends at ``last``. It is as high as the middle of what is in it; an
    empty one is a space.
    """
    first = chart["x"][0]
    room = min(room, len(chart["x"]) + len(chart["nonfinite"]))
    cells: list[list[float]] = [[] for _ in range(room)]
    odd, begins = set(), set()
    attempt = chart["attempts"][0] if chart["attempts"] else None
    for at, x in enumerate(chart["x"]):
        column = min(room - 1, int((x - first) / ((last - first) or 1.0) * room))
        cells[column] += [chart["low"][at], chart["high"][at]]
        if chart["attempts"] and chart["attempts"][at] != attempt:
            attempt = chart["attempts"][at]
            begins.add(column)
    for x, _ in chart["nonfinite"]:
        odd.add(min(room - 1, max(0, int((x - first) / ((last - first) or 1.0) * room))))
    middles = [min(cell) / 2 + max(cell) / 2 if cell else math.nan for cell in cells]  # never beyond all numbers
    known = [middle for middle in middles if math.isfinite(middle)]
    if not known:
        return "", "", None
    low, high = min(known), max(known)
    bars = "".join(
        "x"
        if at in odd
        else " "
        if math.isnan(one)
        else _BARS[round((one / 2 - low / 2) / ((high / 2 - low / 2) or 1.0) * (len(_BARS) - 1))]
        for at, one in enumerate(middles)
    )
    return bars.rstrip(), "".join("^" if at in begins else " " for at in range(room)).rstrip(), (low, high)


def _attempts(page: Page, value: Value) -> None:
    attempts = value["attempts"]
    if not attempts or (len(attempts) == 1 and not attempts[0]["lines"]):
        return
    page.title("attempts")
    shown = attempts if len(attempts) <= _ATTEMPTS + 1 else [*attempts[:2], *attempts[2 - _ATTEMPTS :]]
    for one in shown:
        known = attempt_steps(one)
        steps = "no steps" if known is None else f"steps {known}"
        lasted = "" if one["seconds"] is None else f", {duration(one['seconds'])}"
        why = f": {one['cause_text']}" if one["cause_text"] else ""
        begun = clock(one["started_at"]) if one["started_at"] else "not started"
        page.add(f"{one['n']}  {begun}, {steps}{lasted}, {one['state_words']}{why}", "     ", "  ")
        for line in one["lines"]:
            page.line(f"       {line}")
    if len(shown) < len(attempts):
        page.add(f"{len(attempts) - len(shown)} attempts between them: --json has all", "  ")


def _timeline(page: Page, value: Value) -> None:
    """Add what happened; each verdict with the line of the log that it came from."""
    entries = value["timeline"]
    verdicts = [one for one in entries if one["kind"] == "verdict"]
    chosen = {id(one) for one in verdicts[:_VERDICTS]}
    quiet = [one for one in entries if one["kind"] == "save" or (one["kind"] in _QUIET and not one["severity"])]
    passed = {id(one) for one in quiet} | chosen
    others = [one for one in entries if id(one) not in passed and one["kind"] != "verdict"]
    room = _TIMELINE - len(chosen)
    chosen |= {
        id(one) for one in (others if len(others) <= room else [*others[: room // 2], *others[room // 2 - room :]])
    }
    if not chosen:
        return
    if len(entries) - len(chosen) == 1:  # to say that it is left out takes as much room
        chosen = {id(one) for one in entries}
    page.title("what happened (UTC)" if any(one["at"] for one in entries) else "what happened, in this order")
    for one in entries:
        if id(one) in chosen:
            when = f"{clock(one['at'])}  " if one["at"] else ""
            what = _verdict(one) if one["kind"] == "verdict" else str(one["text"])
            page.add(when + what, "      ", "  ")
            if one["line"]:
                page.line(f"        {one['line']}")
    left = len(entries) - len(chosen)
    if left > 0:
        page.add(f"{left:,} more: --json and --html have them", "  ")


def _verdict(one: Value) -> str:
    asks = f" -> {one['action']}" if one.get("action") else ""
    return f"{one['severity']} {one['rule']}{asks}: {one['text']}"


def _resumes(page: Page, value: Value) -> None:
    """Add how each restart went on: from which save, what was passed over, lost and left out, and was it the same."""
    resumes = value["resumes"]
    if not resumes:
        return
    page.title("how it went on")
    shown = resumes if len(resumes) <= _ATTEMPTS + 1 else [*resumes[:2], *resumes[2 - _ATTEMPTS :]]
    for one in map(goingon.row, shown):
        page.add(f"{one.attempt}  {one.start}", "     ", "  ")
        for passed in one.passed:
            page.add(f"passed over: {passed}", "       ", "     ")
        left_out = f"; left out: {one.left_out}" if one.left_out else ""
        page.add(f"lost: {one.lost}{left_out}; beside what was before: {one.overlap}", "       ", "     ")
    if len(shown) < len(resumes):
        page.add(f"{len(resumes) - len(shown)} restarts between them: --json has all", "  ")


def _checkpoints(value: Value) -> list[tuple[str, str]]:
    """Return the save to go on from, the newest one, and what is known against others, each with its marks."""
    saves, good = value["checkpoints"], value["checkpoint"]
    rows = [] if good is None else [("go on from", _saved(good))]
    if saves and (good is None or saves[-1]["path"] != good["path"]):
        rows.append(("newest", _saved(saves[-1])))
    faulty = [one for one in reversed(saves[:-1]) if goingon.bad(one)]
    listed = _FAULTY + (len(faulty) == _FAULTY + 1)
    rows += [("bad" if not at else "", _saved(one)) for at, one in enumerate(faulty[:listed])]
    if len(faulty) > listed:
        rows.append(("", f"{number(len(faulty) - listed)} more: --json has all"))
    return rows


def _saved(one: Value) -> str:
    step = "step unknown" if one["step"] is None else f"step {number(one['step'])}"
    return f"{step}, {clock(one['at'])} UTC: {one['path']} ({goingon.mark(one)})"


def _proofs(page: Page, value: Value) -> None:
    proofs = value["proofs"]
    if not proofs:
        return
    # The folder once, and the names in it: a long path would be broken in its middle, and could not be copied.
    folder = str(proofs[0]["path"]).removesuffix(str(proofs[0]["name"]))
    page.title("evidence")
    page.add(f"in {folder}", "    ", "  ")
    listed = _PROOFS + (len(proofs) == _PROOFS + 1)
    for one in proofs[:listed]:
        page.add(str(one["name"]), "      ", "    ")
    if len(proofs) > listed:
        page.add(f"{len(proofs) - listed} more: --json has all", "  ")


def _places(value: Value) -> list[tuple[str, str]]:
    log = value["log"]
    rows = []
    if value["command"]:
        rows.append(("command", shlex.join(str(word) for word in value["command"])))
    for label, name in (("folder", "cwd"), ("host", "host")):
        if value[name]:
            rows.append((label, str(value[name])))
    parts = [size(log["bytes"]) if log["bytes"] is not None else None]
    parts.append(None if log["lines"] is None else counted(log["lines"], "line"))
    rows.append(("log", f"{log['path']} ({', '.join(part for part in parts if part) or 'cannot be read'})"))
    rows.append(
        (
            "read by",
            log["why"] if not log["reader"] or log["reader"] in log["why"] else f"{log['reader']}: {log['why']}",
        )
    )
    return rows


def _unknown(value: Value) -> Iterator[tuple[str, str]]:
    """Yield what is not known and does not stand above already."""
    figures = {one["name"] for one in value["figures"]}
    for name, why in value["unknown"].items():
        if name not in figures and name != "goodput":
            yield name, str(why)


_PLAIN = {ord(bar): plain for bar, plain in zip(_BARS, "_.,-=+*#", strict=True)}
_PLAIN |= {ord("…"): "...", ord("\N{MINUS SIGN}"): "-", ord("·"): "-"}


def spelt(said: str, encoding: str | None) -> str:
    """Return the report for an output that may lack the signs of its curve: ASCII ones stand in for them there."""
    try:
        _BARS.encode(encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return said.translate(_PLAIN)
    return said


def columns(environ: Mapping[str, str], terminal: int) -> int:
    """Return the width to write for: that of the terminal (0: none), or what COLUMNS says."""
    asked = finite(int(environ["COLUMNS"])) if environ.get("COLUMNS", "").isdecimal() else None
    found = int(asked) if asked else terminal
    return min(WIDTH, found) if found else WIDTH

"""Turns statuses and log bytes into text for people: at most 80 columns, nothing a terminal could be tricked with.

Pure text in, text out (the width, the colours and the time are arguments). No run folder, no process.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from overnight.client import Status

WIDTH = 80
LABEL = 12

# -- single values ---------------------------------------------------------------------------------------------------

# Kept as text: `re` compiles them on first use and remembers; `ls` of plain names never needs them.
_ESCAPE = (
    r"\x1b\[[0-?]*[ -/]*(?:[@-~]|$)"  # CSI: colours, cursor
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)"  # OSC, DCS, SOS, PM, APC: titles, links
    r"|\x1b[ -/]*[0-~]?"  # the two-byte rest
)
_HARMFUL = "[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]"


def harmless(text: str) -> str:
    """Return one line of text without anything that moves a cursor, colours or reorders."""
    if text.isprintable():
        return text
    return _mask(re.sub(_ESCAPE, "", text).replace("\0", "").replace("\n", " "))


def _mask(text: str) -> str:
    return re.sub(_HARMFUL, "\N{REPLACEMENT CHARACTER}", text)


def clean_line(line: bytes) -> str:
    """Return a log line as a person should see it: bars collapsed to their last state, control characters harmless."""
    text = line.decode("utf-8", "replace")
    if text.isprintable():
        return text
    text = re.sub(_ESCAPE, "", text.replace("\0", ""))
    frames = [frame for frame in text.rstrip("\r\n").split("\r") if frame]
    return _mask(_rub_out(frames[-1])) if frames else ""


def _rub_out(frame: str) -> str:
    """Carry out backspaces: what comes after one is written over what stood before it."""
    if "\b" not in frame:
        return frame
    cells: list[str] = []
    at = 0
    for sign in frame:
        if sign == "\b":
            at = max(0, at - 1)
            continue
        cells[at : at + 1] = [sign]
        at += 1
    return "".join(cells)


def figure(value: Any, digits: int = 4) -> str:
    """Return a number for a table; "nan", "inf" and "-inf" stay words, None is a dash."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return harmless(value)
    return f"{value:.{digits}g}"


def thousands(value: Any) -> str:
    """Return 131072.0 as 131k and 950.25 as 950."""
    if value is None or isinstance(value, str):
        return figure(value)
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.4g}{letter}"
    return f"{value:.4g}"


def percent(value: Any) -> str:
    """Return a fraction as percent."""
    if value is None or isinstance(value, str):
        return figure(value)
    return f"{value * 100:.1f}%" if abs(value) < 1000 else f"{value * 100:.1e}%"


def span(seconds: Any) -> str:
    """Return a duration in its two largest units: 45s, 3m10s, 2h05m, 4d03h."""
    if not isinstance(seconds, (int, float)) or not 0 <= seconds < 1e12:
        return "-"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def epoch(text: object) -> float | None:
    """Return an RFC 3339 time of a status as seconds since the epoch; None for anything else."""
    from datetime import datetime

    if not isinstance(text, str):
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None


_COLOURS = {"running": "32", "starting": "32", "stopping": "33", "backoff": "33", "failed": "31", "gave_up": "31"}


HARMLESS_STOPS = frozenset({None, "user", "preempted", "wall_clock"})
"""Causes of a stop that are no alarm; what else stops a run is a health rule."""


def painted(text: str, one: Status, *, colours: bool) -> str:
    """Return ``text`` in the colour of a run's state; one stopped by a health rule is as red as a failed one."""
    state = one["state"]
    alarm = state == "damaged" or (state == "stopped" and one["cause"] not in HARMLESS_STOPS)
    code = "31" if alarm else _COLOURS.get(state)
    return f"\x1b[{code}m{text}\x1b[0m" if colours and code else text


def state_words(one: Status) -> str:
    """Return the state with its cause: "stopped (nonfinite)"."""
    if one.get("foreign"):
        return f"{one['state']} elsewhere"
    if one.get("stale") and one["state"] not in ("failed", "damaged"):
        return f"{one['state']}, unkept"
    cause = one["cause"]
    return f"{one['state']} ({harmless(cause)})" if cause and one["state"] != "damaged" else str(one["state"])


def ending(one: Status) -> str:
    """Return one sentence on how a run ended, or how it is doing."""
    said = f": {harmless(one['cause_text'])}" if one["cause_text"] else ""
    named = re.search(r"\bstep \d", said) is not None
    step = f", at step {one['step']}" if one["step"] is not None and not named else ""
    return f"{one['name']} {state_words(one)}{said}{step}"


# -- ls --------------------------------------------------------------------------------------------------------------


def table(runs: list[Status], *, now: float, colours: bool) -> str:
    """Return the list of runs, one line each, at most 80 columns; below it what is wrong with damaged ones."""
    rows = [_row(one, now) for one in runs]
    heads = ("NAME", "STATE", "STEP", "LOSS", "TOK/S", "MFU", "AGE")
    widths = [max(len(head), *(len(row[at]) for row in rows)) for at, head in enumerate(heads)]
    room = WIDTH - sum(widths[2:]) - 2 * (len(heads) - 1)
    widths[1] = min(widths[1], max(20, room - widths[0]))
    widths[0] = max(8, min(widths[0], room - widths[1]))
    lines = [_line(heads, widths)]
    for one, row in zip(runs, rows, strict=True):
        text = _line(row, widths)
        lines.append(painted(text, one, colours=colours))
    for one in runs:
        if one["state"] == "damaged":
            lines.extend(folded(f"{one['name']}: {one['cause_text']}", "  "))
    return "\n".join(lines)


def _row(one: Status, now: float) -> tuple[str, ...]:
    began = epoch(one["started_at"] or one["created_at"])
    return (
        harmless(one["name"]),
        state_words(one),
        figure(one["step"], 12)[:10],
        figure(one["loss"]),
        thousands(one["tokens_per_second"]),
        percent(one["mfu"]),
        "-" if began is None else span(max(0.0, now - began)),
    )


def _line(cells: Iterable[str], widths: list[int]) -> str:
    parts = []
    for at, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        short = cell if len(cell) <= width else cell[: width - 1] + "…"
        parts.append(short.ljust(width) if at <= 1 else short.rjust(width))
    return "  ".join(parts).rstrip()


# -- status ----------------------------------------------------------------------------------------------------------

MISSING = {
    "tokens_per_second": "give --tokens-per-step",
    "tflops": "give --params and --tokens-per-step",
    "mfu": "give --params, --tokens-per-step and --peak-tflops",
    "eta_s": "give --steps",
    "params": "give --params",
    "loss": "no progress line has been read yet",
    "step": "no progress line has been read yet",
}


def status_text(
    one: Status,
    *,
    now: float,
    colours: bool,
    remarks: Sequence[str] = (),
    last_lines: Sequence[str] = (),
    max_hours: object = None,
) -> str:
    """Return the page of one run, at most 80 columns.

    ``remarks`` are sentences to go with the state, ``last_lines`` those of its log, ``max_hours`` the time limit.
    """
    lines = [painted(f"{harmless(one['name'])}: {state_words(one)}", one, colours=colours)]
    said = one["cause_text"]
    for text in (*([said] if said else ()), *_trouble(one), *remarks):
        lines += folded(text, "  ")
    for label, text in (*_figures(one), *_places(one, now, max_hours)):
        lines += folded(text, " " * (LABEL + 2), first=f"  {label:<{LABEL}}")
    if last_lines:
        lines += ["  log ends", *(f"    {harmless(text)[: WIDTH - 4]}".rstrip() for text in last_lines)]
    lines += _verdicts(one)
    if len(one["attempts"]) > 1:
        lines.append("  attempts")
        for each in one["attempts"]:
            lines += folded(_attempt(each), "      ", first="    ")
    return "\n".join(lines)


def _trouble(one: Status) -> list[str]:
    if one["foreign"]:
        return ["it is kept on another machine; from here nobody can tell whether it lives"]
    if one["stale"]:
        return ["its guard, shim and supervisor are gone; a new supervisor finds out what became of it"]
    if one["unguarded"]:
        return ["unguarded: its supervisor died too often and is restarted only every 30 s"]
    return []


def _figures(one: Status) -> list[tuple[str, str]]:
    steps = f" of {one['steps']}" if one.get("steps") else ""
    known = {
        "step": ("step", figure(one["step"], 12) + steps),
        "loss": ("loss", f"{figure(one['loss'], 6)} (window average {_or_unknown(figure(one['loss_avg'], 6))})"),
        "tokens_per_second": ("tokens/s", thousands(one["tokens_per_second"])),
        "tflops": ("TFLOP/s", figure(one["tflops"], 5)),
        "mfu": ("MFU", _mfu(one)),
        "params": ("params", f"{one['params'] or 0:,}{_from(one['params_source'])}"),
    }
    if not one["ended_at"]:
        known["eta_s"] = ("left", span(one["eta_s"]))
    rows, lacking, flags = [], [], []
    for key, (label, text) in known.items():
        why = _why_unknown(one, key) if one[key] is None else ""
        wanted = re.findall(r"--[a-z][a-z-]*", why)
        if wanted:  # a line for each figure that nobody asked for would hide those that matter
            lacking.append(label)
            flags += wanted
        else:
            rows.append((label, f"unknown: {why}" if one[key] is None else text))
    if lacking:
        rows.append(("unknown", f"{', '.join(lacking)}: give {', '.join(dict.fromkeys(flags))}"))
    return rows


def _or_unknown(text: str) -> str:
    return "unknown" if text == "-" else text


def _mfu(one: Status) -> str:
    mfu = one["mfu"]
    above = isinstance(mfu, (int, float)) and mfu > 1
    doubt = " (above 100%: check --params, --tokens-per-step, --peak-tflops, --devices)" if above else ""
    beside = one.get("mfu_attention")
    attention = f"; with attention {percent(beside)}" if isinstance(beside, (int, float)) else ""
    return f"{percent(mfu)}{doubt} (whole run {_or_unknown(percent(one['mfu_avg']))}){_basis(one)}{attention}"


def _basis(one: Status) -> str:
    peak = one["peak_flops"]
    if not isinstance(peak, (int, float)):
        return ""
    devices = f"{one['devices']} x " if (one["devices"] or 1) != 1 else ""
    return f", {harmless(one['convention'] or '?')} over {devices}{peak / 1e12:g} TFLOP/s{_from(one['peak_source'])}"


def _from(source: str | None) -> str:
    return f" from {harmless(source)}" if source else ""


def _why_unknown(one: Status, key: str) -> str:
    unknown = one.get("unknown")
    why = unknown.get(key) if isinstance(unknown, dict) else None
    return str(why or MISSING.get(key, "not read yet"))


def _active_s(one: Status, now: float) -> float | None:
    """Return the seconds the command has run by now: of a live run, status.json was written a little ago."""
    active_s, written = one["active_s"], epoch(one.get("updated_at"))
    if not isinstance(active_s, (int, float)):
        return None
    going_on = written is not None and one["state"] in ("running", "stopping") and one["supervisor"]["alive"]
    return active_s + max(0.0, now - written) if going_on and written is not None else active_s


def _limit(max_hours: object, active_s: float | None) -> list[tuple[str, str]]:
    if not isinstance(max_hours, (int, float)) or not max_hours > 0:
        return []
    left = "" if active_s is None else f", {span(max(0.0, max_hours * 3600 - active_s))} left"
    return [("limit", f"{span(max_hours * 3600)} of active time (--max-hours){left}")]


def _places(one: Status, now: float, max_hours: object) -> list[tuple[str, str]]:
    rows = []
    if one["attempt"] is not None:
        rows.append(("process", f"attempt {one['attempt']}, pid {figure(one['pid'], 12)}{_exit_words(one)}"))
    active_s = _active_s(one, now)
    active = f", active {span(active_s)}" if active_s is not None else ""
    for label, at in (("started", one["started_at"] or one["created_at"]), ("ended", one["ended_at"])):
        moment = epoch(at)
        if moment is not None:
            live = active if (label == "ended") == bool(one["ended_at"]) else ""
            rows.append((label, f"{at} ({span(max(0.0, now - moment))} ago){live}"))
    rows += _limit(max_hours, None if one["ended_at"] else active_s)
    keepers = [f"{role} {_keeper(one[role])}" for role in ("supervisor", "shim") if one[role] is not None]
    if one["ended_at"] is None:
        rows.append(("kept by", ", ".join(keepers)))
    saved = one["checkpoint"]
    if saved:
        marks = [word for word in ("valid", "healthy") if saved.get(word)]
        rows.append(("checkpoint", f"step {saved.get('step')} {saved.get('path')} {' '.join(marks)}".rstrip()))
    rows.append(("log", one["log"] or "unknown"))
    notes = one.get("notes")
    rows += [("note", str(note)) for note in (notes if isinstance(notes, list) else ())]
    return rows


def _keeper(who: Status) -> str:
    if who.get("pid") is None:
        return "not there"
    return f"{who['pid']} {'alive' if who.get('alive') else 'dead'}"


def _exit_words(one: Status) -> str:
    if one.get("signal"):
        return f", ended by {one['signal']}"
    return "" if one.get("exit_code") is None else f", exit code {one['exit_code']}"


def _verdicts(one: Status) -> list[str]:
    found = one["verdicts"]
    lines = ["  verdicts" if found else "  verdicts    none"]
    hidden = max(0, len(found) - 10)
    if hidden:
        lines.append(f"    {hidden} earlier ones: overnight status {one['name']} --json")
    for each in found[hidden:]:
        at = "" if each.get("step") is None else f" step {each['step']}"
        head = f"{each.get('severity')} {each.get('rule')}{at} -> {each.get('action')}"
        lines += folded(f"{head}: {each.get('text')}", "      ", first="    ")
    return lines


def _attempt(each: Status) -> str:
    ended = _exit_words(each) or ", going on"
    steps = f"steps {each.get('first_step')} to {each.get('last_step')}"
    return f"{each.get('n')}: {each.get('started_at') or 'not started'}, {steps}{ended}"


def folded(text: object, indent: str, first: str | None = None) -> list[str]:
    """Return harmless lines of at most 80 columns; a path too long for one line is broken rather than cut."""
    from textwrap import wrap

    lead = indent if first is None else first
    return wrap(harmless(str(text)), WIDTH, initial_indent=lead, subsequent_indent=indent, break_on_hyphens=False) or [
        lead.rstrip()
    ]


def live_line(one: Status) -> str:
    """Return the line below a live log: state, step, loss, speed."""
    parts = [str(one["name"]), state_words(one)]
    if one["step"] is not None:
        parts.append(f"step {figure(one['step'], 12)}" + (f"/{one['steps']}" if one.get("steps") else ""))
    for label, text in (
        ("loss", figure(one["loss"])),
        ("tok/s", thousands(one["tokens_per_second"])),
        ("MFU", percent(one["mfu"])),
        ("left", span(one["eta_s"])),
    ):
        if text != "-":
            parts.append(f"{label} {text}")
    return harmless(" | ".join(parts))

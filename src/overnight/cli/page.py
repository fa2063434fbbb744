"""Turns the status of one run into the page that ``overnight status`` shows; unknown is said to be so.

Pure text in, text out, as in ``render``, whose pieces it is made of. No run folder, no process.
"""

from __future__ import annotations

import re

from overnight.cli import pagesaves
from overnight.cli.render import (
    WIDTH,
    backoff_s,
    beside_step,
    epoch,
    figure,
    folded,
    hook_words,
    money,
    painted,
    percent,
    plain_state,
    red,
    span,
    thousands,
)
from overnight.kept import ENDED
from overnight.patience import hooks_left, kept
from overnight.printable import harmless

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from overnight.client import Status

LABEL = 12

SHOWN = 10
"""So many verdicts and attempts are on the page at most, the newest of each."""

SILENT_S = 60.0
"""A shorter silence is not worth a line."""

LONGEST = {
    "stall_s": "no longer without a step than",
    "start_limit_s": "first step within",
    "exit_limit_s": "exit after the last step within",
}

MISSING = {
    "tokens_per_second": "give --tokens-per-step",
    "tflops": "give --params and --tokens-per-step",
    "mfu": "give --params, --tokens-per-step and --peak-tflops",
    "eta_s": "give --steps",
    "params": "give --params",
    "loss": "no progress line has been read yet",
    "step": "no progress line has been read yet",
}

OVER = {
    "no progress line has been read yet": "no progress line was read",
    "wait for a progress line": "no progress line was read",
    "wait for the next progress line": "its last attempt printed no progress line",
    "print dt, or wait for a second line with a higher step": "print dt (no second line with a higher step came)",
    "not read yet": "not read",
}
"""What is said of an ended run instead of what would make a figure known: nobody need wait for anything."""


def status_text(
    one: Status,
    *,
    now: float,
    colours: bool,
    width: int = WIDTH,
    remarks: Sequence[str] = (),
    last_lines: Sequence[str] = (),
    max_hours: object = None,
    attach: str | None = None,
    report: str | None = None,
) -> str:
    """Return the page of one run, at most ``width`` columns.

    ``remarks`` are sentences to go with the state, ``last_lines`` the end of its log if the status has none,
    ``max_hours`` the time limit that was asked for, ``attach`` the engine's own command to see the run live,
    ``report`` where its page for the morning is.
    """
    lines = [painted(f"{harmless(one['name'])}: {plain_state(one)}", one, colours=colours)]
    said = one["cause_text"]
    for text in (*([said] if said else ()), *_trouble(one, now), *remarks):
        lines += folded(text, "  ", width=width)
    failed = hook_words(one)
    lines += [red(text, colours=colours) for text in (folded(failed, "  ", width=width) if failed else ())]
    rows = [*_figures(one), *_costs(one), *limit_rows(one, now, max_hours), *_places(one, now, attach, report)]
    for label, text in rows:
        lines += folded(text, " " * (LABEL + 2), first=f"  {label:<{LABEL}}", width=width)
    ended = one.get("last_lines") or last_lines
    if ended:
        lines += ["  log ends", *(f"    {harmless(str(text))[: width - 4]}".rstrip() for text in ended)]
    lines += _verdicts(one, width)
    lines += _attempts(one, width)
    return "\n".join(lines)


def _trouble(one: Status, now: float) -> list[str]:
    if one["foreign"]:
        return ["it is kept on another machine; from here nobody can tell whether it lives"]
    if one["stale"] and one["state"] not in ENDED:
        return ["its guard, shim and supervisor are gone; a new supervisor finds out what became of it"]
    found = []
    if one["unguarded"]:
        found.append("unguarded: its supervisor died too often and is restarted only every 30 s")
    wait_s = backoff_s(one, now)
    if wait_s is not None:
        found.append(f"backoff: next attempt in {wait_s:.0f} s")
    left = hooks_left(one)
    if left and one["state"] in ENDED:
        going_on = "still going on" if kept(one) else "not known to have ended; a new supervisor looks after that"
        found.append(f"{left} hook{'s are' if left > 1 else ' is'} {going_on}")
    return found


def _figures(one: Status) -> list[tuple[str, str]]:
    steps = f" of {one['steps']}" if one.get("steps") else ""
    known = {
        "step": ("step", figure(one["step"], 12) + steps + beside_step(one)),
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
    if (one.get("grad_norm_nonfinite") or 0) > 0:
        rows.append(("grad norm", f"not finite {_times(one['grad_norm_nonfinite'])}"))
    return rows + _silence(one)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _silence(one: Status) -> list[tuple[str, str]]:
    """Return what a run that prints no step has announced, or for how long it has been silent."""
    silent = one.get("silent_s")
    long = isinstance(silent, (int, float)) and silent >= SILENT_S
    if one["state"] not in ("starting", "running"):
        return []
    if one.get("phase"):
        return [("phase", f"{one['phase']}, as the log said" + (f"; silent for {span(silent)}" if long else ""))]
    return [("silent", f"for {span(silent)}")] if long else []


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
    said = str(why or MISSING.get(key, "not read yet"))
    if one["state"] in ENDED:
        for wait, instead in OVER.items():
            said = said.replace(wait, instead)
    return said


def _active_s(one: Status, now: float) -> float | None:
    """Return the seconds the command has run by now: of a live run, status.json was written a little ago."""
    active_s, written = one["active_s"], epoch(one.get("updated_at"))
    if not isinstance(active_s, (int, float)):
        return None
    going_on = written is not None and one["state"] in ("running", "stopping") and one["supervisor"]["alive"]
    return active_s + max(0.0, now - written) if going_on and written is not None else active_s


def _costs(one: Status) -> list[tuple[str, str]]:
    cost, forecast = one.get("cost"), one.get("cost_forecast")
    if cost is None:
        return []
    price = (one.get("limits") or {}).get("price")
    at = f", at {figure(price)}/h" if isinstance(price, (int, float)) else ""
    end = "" if forecast is None or one["ended_at"] else f", {money(forecast)} expected at the end"
    return [("cost", f"{money(cost)}{end}{at}")]


def limit_rows(one: Status, now: float, max_hours: object) -> list[tuple[str, str]]:
    """Return the limits in force with what is left of them, as (label, text)."""
    limits: dict[str, Any] = {"max_hours": max_hours, **(one.get("limits") or {})}
    ended = bool(one["ended_at"])
    found = [*_time_limits(limits, one, now, ended=ended), *_amount_limits(limits, one, ended=ended)]
    for key, text in LONGEST.items():
        if (seconds := _above_zero(limits.get(key))) is not None:
            found.append(f"{text} {span(seconds)} (--{key.removesuffix('_s').replace('_', '-')})")
    rows = [("limit" if at == 0 else "", text) for at, text in enumerate(found)]
    used, allowed = one.get("restarts_used"), limits.get("restarts")
    if used or allowed:
        rows.append(("restarts", f"{used or 0} of {figure(allowed or 0, 12)} used"))
    return rows


def _above_zero(value: object) -> float | None:
    return value if isinstance(value, (int, float)) and value > 0 else None


def _time_limits(limits: dict[str, Any], one: Status, now: float, *, ended: bool) -> list[str]:
    found = []
    hours, until = _above_zero(limits.get("max_hours")), epoch(limits.get("until"))
    if hours is not None:
        active_s = None if ended else _active_s(one, now)
        left = "" if active_s is None else f", {span(max(0.0, hours * 3600 - active_s))} left"
        found.append(f"{span(hours * 3600)} of active time (--max-hours){left}")
    if until is not None:
        left = "" if ended else f", {span(max(0.0, until - now))} left"
        found.append(f"{local(until)} (--until){left}")
    return found


def local(at: float) -> str:
    """Return seconds since the epoch as people here write a moment."""
    from datetime import datetime

    try:
        return datetime.fromtimestamp(at).astimezone().isoformat(sep=" ", timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return figure(at)


def _amount_limits(limits: dict[str, Any], one: Status, *, ended: bool) -> list[str]:
    found = []
    steps, most = _above_zero(limits.get("max_steps")), _above_zero(limits.get("max_cost"))
    if steps is not None:
        at = None if ended else one["step"]
        left = "" if at is None else f", {figure(max(0, steps - at), 12)} to go"
        found.append(f"step {figure(steps, 12)} (--max-steps){left}")
    if most is not None:
        cost = None if ended else one.get("cost")
        left = f", {money(max(0.0, most - cost))} left" if isinstance(cost, (int, float)) else ""
        found.append(f"cost {money(most)} (--max-cost){left}")
    return found


def _places(one: Status, now: float, attach: str | None, report: str | None) -> list[tuple[str, str]]:
    rows = []
    if one["attempt"] is not None:
        rows.append(("process", f"attempt {one['attempt']}, pid {figure(one['pid'], 12)}{_exit_words(one)}"))
    active_s = _active_s(one, now)
    rows += _times_rows(one, now, "" if active_s is None else f", active {span(active_s)}")
    keepers = [f"{role} {_keeper(one[role])}" for role in ("supervisor", "shim") if one[role] is not None]
    if one["ended_at"] is None:
        rows.append(("kept by", ", ".join(keepers)))
    if (one.get("engine") or "local") != "local":
        rows.append(("engine", f"{one['engine']}" + (f": {attach}" if attach else "")))
    rows += pagesaves.rows(one)
    rows.append(("log", one["log"] or "unknown"))
    if report is not None:
        rows.append(("report", report))
    notes = one.get("notes")
    rows += [("note", str(note)) for note in (notes if isinstance(notes, list) else ())]
    return rows


def _times_rows(one: Status, now: float, active: str) -> list[tuple[str, str]]:
    """Return when a run was first started, its newest attempt where that is another, when it ended and what it took."""
    newest = one["started_at"] or one["created_at"]
    told = (each.get("started_at") for each in one["attempts"] if each.get("n") == 1)
    first = next((at for at in (*told, one["created_at"], newest) if epoch(at) is not None), None)
    began, ended = epoch(first), epoch(one["ended_at"])
    rows = []
    if began is not None:
        again = epoch(newest) if (one["attempt"] or 1) > 1 else None
        beside = "" if again is None else f"; attempt {figure(one['attempt'], 12)} {_ago(again, now)} ago"
        rows.append(("started", f"{first} ({_ago(began, now)} ago{beside}){'' if one['ended_at'] else active}"))
    if ended is not None:
        took = "" if began is None else f", {span(max(0.0, ended - began))} after its start"
        rows.append(("ended", f"{one['ended_at']} ({_ago(ended, now)} ago{took}){active}"))
    return rows


def _ago(moment: float, now: float) -> str:
    return span(max(0.0, now - moment))


def _keeper(who: Status) -> str:
    if who.get("pid") is None:
        return "not there"
    return f"{who['pid']} {'alive' if who.get('alive') else 'dead'}"


def _exit_words(one: Status) -> str:
    if one.get("signal"):
        return f", ended by {one['signal']}"
    return "" if one.get("exit_code") is None else f", exit code {one['exit_code']}"


def _verdicts(one: Status, width: int) -> list[str]:
    found = one["verdicts"]
    lines = ["  verdicts" if found else "  verdicts    none"]
    hidden = max(0, len(found) - SHOWN)
    if hidden:
        lines.append(f"    {hidden} earlier ones: overnight status {one['name']} --json")
    for each in found[hidden:]:
        at = "" if each.get("step") is None else f" step {each['step']}"
        head = f"{each.get('severity')} {each.get('rule')}{at} -> {each.get('action')}"
        lines += folded(f"{head}: {each.get('text')}", "      ", first="    ", width=width)
    return lines


def _attempts(one: Status, width: int) -> list[str]:
    found = one["attempts"]
    if len(found) < 2:
        return []
    lines, shown = ["  attempts"], found[-SHOWN:]
    first = shown[0].get("n")
    hidden = first - 1 if type(first) is int and first > 0 else len(found) - len(shown)
    if hidden:
        lines.append(f"    {hidden} earlier one{'s' if hidden > 1 else ''}: overnight report {one['name']} --json")
    for each in shown:
        lines += folded(_attempt(each), "      ", first="    ", width=width)
    return lines


def _attempt(each: Status) -> str:
    ended = _exit_words(each) or ("" if each.get("cause") else ", going on")
    first, last = each.get("first_step"), each.get("last_step")
    steps = "no steps" if first is None and last is None else f"steps {first} to {last}"
    why = f" ({each['cause']})" if each.get("cause") else ""
    text = f": {each['cause_text']}" if each.get("cause_text") else ""
    return f"{each.get('n')}: {each.get('started_at') or 'not started'}, {steps}{ended}{why}{text}"

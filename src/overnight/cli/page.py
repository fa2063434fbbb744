"""Turns the status of one run into the page that ``overnight status`` shows; unknown is said to be so.

Pure text in, text out, as in ``render``, whose pieces it is made of. No run folder, no process.
"""

from __future__ import annotations

from overnight.cli import pagesaves
from overnight.cli.pagefigures import figure_rows
from overnight.cli.render import (
    WIDTH,
    backoff_s,
    figure,
    folded,
    held_words,
    hook_words,
    money,
    painted,
    plain_state,
    red,
    span,
)
from overnight.kept import ENDED
from overnight.moments import epoch_of
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

LONGEST = {
    "stall_s": "no longer without a step than",
    "start_limit_s": "first step within",
    "exit_limit_s": "exit after the last step within",
}


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
    rows = [
        *figure_rows(one),
        *_costs(one),
        *_idle(one, now),
        *limit_rows(one, now, max_hours),
        *_places(one, now, attach, report),
    ]
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
        gone = "its guard, shim and supervisor are gone; a new supervisor finds out what became of it"
        return [harmless(str(one.get("stale_text") or gone))]
    found = []
    if one["unguarded"]:
        found.append("unguarded: its supervisor died too often and is restarted only every 30 s")
    wait_s = backoff_s(one, now)
    if wait_s is not None:
        found.append(f"backoff: next attempt in {wait_s:.0f} s")
    left, waits = hooks_left(one), held_words(one)
    if waits is not None and kept(one):
        found.append(f"{waits} (`overnight stop {one['name']} --now` gives it up)")
    elif left and one["state"] in ENDED:
        going_on = "still going on" if kept(one) else "not known to have ended; a new supervisor looks after that"
        found.append(f"{left} hook{'s are' if left > 1 else ' is'} {going_on}")
    return found


def _active_s(one: Status, now: float) -> float | None:
    """Return the seconds the command has run by now: of a live run, status.json was written a little ago."""
    active_s, written = one["active_s"], epoch_of(one.get("updated_at"))
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
    tokens = one.get("cost_per_billion_tokens")
    per = f", {money(tokens)} per billion tokens" if isinstance(tokens, (int, float)) else ""
    return [("cost", f"{money(cost)}{end}{at}{per}")]


def _idle(one: Status, now: float) -> list[tuple[str, str]]:
    """Return what the machine has cost since nothing of this home runs on it any more."""
    idle_s, cost, ended = one.get("idle_s"), one.get("idle_cost"), epoch_of(one["ended_at"])
    if not (isinstance(idle_s, (int, float)) and isinstance(cost, (int, float)) and cost > 0):
        return []
    own = ended is None or abs(now - ended - idle_s) < 5
    since = "the end" if own else "the last run here was over, or the machine was started"
    return [("idle", f"the box has cost {money(cost)} since {since} ({span(idle_s)})")]


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
    hours, until = _above_zero(limits.get("max_hours")), epoch_of(limits.get("until"))
    if hours is not None:
        active_s = None if ended else _active_s(one, now)
        left = "" if active_s is None else f", {span(max(0.0, hours * 3600 - active_s))} left"
        found.append(f"{span(round(hours * 3600))} of active time (--max-hours){left}")
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
    first = next((at for at in (*told, one["created_at"], newest) if epoch_of(at) is not None), None)
    began, ended = epoch_of(first), epoch_of(one["ended_at"])
    rows = []
    if began is not None:
        again = epoch_of(newest) if (one["attempt"] or 1) > 1 else None
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

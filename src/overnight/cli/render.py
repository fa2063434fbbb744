"""Turns statuses and log bytes into text for people: at most 80 columns, nothing a terminal could be tricked with.

Pure text in, text out (the width, the colours and the time are arguments). No run folder, no process.
"""

from __future__ import annotations

import re

from overnight.kept import ENDED
from overnight.moments import epoch_of
from overnight.patience import hooks_failed, hooks_held
from overnight.printable import harmless

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from overnight.client import Status

WIDTH = 80
_MOST = 10**300

# -- single values ---------------------------------------------------------------------------------------------------


def figure(value: Any, digits: int = 4) -> str:
    """Return a number for a table; "nan", "inf" and "-inf" stay words, None is a dash."""
    if value is None:
        return "-"
    known = real(value)
    return harmless(str(value))[:WIDTH] if known is None else f"{known:.{digits}g}"


def real(value: object) -> float | None:
    """Return a number of a file that anybody may have edited; None for all that no float can hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if isinstance(value, float) or abs(value) < _MOST else None


def thousands(value: Any) -> str:
    """Return 131072.0 as 131k and 950.25 as 950."""
    if real(value) is None:
        return figure(value)
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.4g}{letter}"
    return f"{value:.4g}"


def percent(value: Any) -> str:
    """Return a fraction as percent."""
    if real(value) is None:
        return figure(value)
    return f"{value * 100:.1f}%" if abs(value) < 1000 else f"{value * 100:.1e}%"


def utilisation(value: Any) -> str:
    """Return an MFU as percent; one above 100%, which cannot be, is marked: "117.0%?!"."""
    return percent(value) + ("?!" if isinstance(value, (int, float)) and value > 1 else "")


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


def money(amount: Any) -> str:
    """Return an amount with two decimals, a large or tiny one with its digits; words and dashes as ``figure``."""
    if real(amount) is None:
        return figure(amount)
    return f"{amount:.2f}" if amount == 0 or 0.1 <= abs(amount) < 1e6 else f"{amount:.3g}"


_COLOURS = {"running": "32", "starting": "32", "stopping": "33", "backoff": "33", "failed": "31", "gave_up": "31"}


HARMLESS_STOPS = frozenset({None, "user", "preempted", "wall_clock", "until", "max_steps", "cost"})
"""Causes of a stop that are no alarm; what else stops a run is a health rule."""


def painted(text: str, one: Status, *, colours: bool) -> str:
    """Return ``text`` in the colour of a run's state; a health rule's stop and a failed hook are red too."""
    state = one["state"]
    alarm = state == "damaged" or (state == "stopped" and one["cause"] not in HARMLESS_STOPS)
    alarm = alarm or bool(one.get("hooks") and hooks_failed(one))
    code = "31" if alarm else _COLOURS.get(state)
    return f"\x1b[{code}m{text}\x1b[0m" if colours and code else text


def red(text: str, *, colours: bool) -> str:
    """Return ``text`` as an alarm."""
    return f"\x1b[31m{text}\x1b[0m" if colours else text


def plain_state(one: Status) -> str:
    """Return the state with its cause: "stopped (nonfinite)"."""
    if one.get("foreign"):
        return f"{one['state']} elsewhere"
    if one.get("stale") and one["state"] not in (*ENDED, "damaged"):
        return f"{one['state']}, {'old' if one.get('stale_text') else 'unkept'}"
    cause = one["cause"]
    return f"{one['state']} ({harmless(cause)})" if cause and one["state"] != "damaged" else str(one["state"])


def state_words(one: Status, now: float | None = None) -> str:
    """Return the state, its cause and what matters most beside it: "running, unguarded", "finished, hook failed".

    ``now`` (seconds since the epoch) is what a back-off is counted from.
    """
    said, beside = plain_state(one), None if one.get("foreign") or one.get("stale") else _beside(one, now)
    return f"{said}, {beside}" if beside else said


def _beside(one: Status, now: float | None) -> str | None:
    if one.get("unguarded"):
        return "unguarded"
    if one.get("hooks") and hooks_failed(one):
        return "hook failed"
    if one["state"] == "backoff":
        wait_s = backoff_s(one, now)
        return None if wait_s is None else f"{span(wait_s)} left"
    if one["state"] in ("running", "starting") and one.get("phase"):
        return harmless(str(one["phase"]))
    used, allowed = one.get("restarts_used"), (one.get("limits") or {}).get("restarts")
    if used and one["state"] in ("running", "starting", "stopping"):
        return f"restart {used}" + (f"/{figure(allowed, 12)}" if allowed else "")
    return None


def backoff_s(one: Status, now: float | None) -> float | None:
    """Return the seconds until the next attempt; None if the run does not wait for one."""
    at = epoch_of(one.get("backoff_until"))
    return None if at is None or now is None or one["state"] != "backoff" else max(0.0, at - now)


def hook_words(one: Status) -> str | None:
    """Return what is wrong with the hooks of a run; None if nothing is."""
    failed, text = hooks_failed(one), (one.get("hooks") or {}).get("text")
    if not failed:
        return None
    if failed == 1 and text and "failed" in str(text):
        return harmless(str(text))
    many = "a hook failed" if failed == 1 else f"{failed} hooks failed"
    return f"{many}: {harmless(str(text))}" if text else many


def held_words(one: Status) -> str | None:
    """Return what turning the machine off waits for; None if it does not, or nobody is there to do it."""
    held = hooks_held(one)
    return None if held is None else harmless(f"turning off waits: {held}")


def beside_step(one: Status) -> str:
    """Return the epoch that belongs to a step, where the log prints one: " (epoch 4)"; some count anew in each."""
    known = one.get("epoch")
    if one["step"] is None or not isinstance(known, (int, float)) or not -1e9 < known < 1e9:
        return ""
    return f" (epoch {figure(known)})"


def ending(one: Status) -> str:
    """Return one sentence on how a run ended, or how it is doing."""
    said = f": {harmless(one['cause_text'])}" if one["cause_text"] else ""
    named = re.search(r"\bstep \d", said) is not None
    step = f", at step {one['step']}{beside_step(one)}" if one["step"] is not None and not named else ""
    return f"{one['name']} {plain_state(one)}{said}{step}"


def folded(text: object, indent: str, first: str | None = None, *, width: int = WIDTH) -> list[str]:
    """Return harmless lines of at most ``width`` columns; a path too long for one line is broken rather than cut."""
    from textwrap import wrap

    lead = indent if first is None else first
    return wrap(harmless(str(text)), width, initial_indent=lead, subsequent_indent=indent, break_on_hyphens=False) or [
        lead.rstrip()
    ]


# -- ls --------------------------------------------------------------------------------------------------------------


STEP_WIDTH = 10


def table(runs: list[Status], *, now: float, colours: bool, width: int = WIDTH) -> str:
    """Return the list of runs, one line each, at most ``width`` columns; below it what is wrong with some."""
    rows = [_row(one, now) for one in runs]
    heads = ("NAME", "STATE", "STEP", "LOSS", "TOK/S", "MFU", "AGE")
    widths = [max(len(head), *(len(row[at]) for row in rows)) for at, head in enumerate(heads)]
    room = width - sum(widths[2:]) - 2 * (len(heads) - 1)
    widths[1] = min(widths[1], max(20, room - widths[0]))
    widths[0] = max(8, min(widths[0], room - widths[1]))
    lines = [_line(heads, widths)]
    for one, row in zip(runs, rows, strict=True):
        text = _line(row, widths)
        lines.append(painted(text, one, colours=colours))
    for one in runs:
        if one["cause"] == "ended_early" and one.get("records") == 0:
            unread = f"{one['name']}: no progress line was read; `overnight read {one['name']}` tells why"
            lines.extend(folded(unread, "  ", width=width))
        if one["state"] != "damaged" and not one.get("hooks"):
            continue
        if one["state"] == "damaged":
            lines.extend(folded(f"{one['name']}: {one['cause_text']}", "  ", width=width))
        elif hooks_failed(one):
            said = folded(f"{one['name']}: {hook_words(one)}", "  ", width=width)
            lines.extend(red(text, colours=colours) for text in said)
        if (waits := held_words(one)) is not None:
            lines.extend(folded(f"{one['name']}: {waits}", "  ", width=width))
    return "\n".join(lines)


def _row(one: Status, now: float) -> tuple[str, ...]:
    began = epoch_of(one["created_at"] or one["started_at"])
    step = figure(one["step"], 12)[:STEP_WIDTH]
    beside = step + beside_step(one).replace(" (epoch ", " ep").removesuffix(")")
    return (
        harmless(one["name"]),
        state_words(one, now),
        beside if len(beside) <= STEP_WIDTH else step,
        figure(one["loss"]),
        thousands(one["tokens_per_second"]),
        utilisation(one["mfu"]),
        "-" if began is None else span(max(0.0, now - began)),
    )


def _line(cells: Iterable[str], widths: list[int]) -> str:
    parts = []
    for at, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        short = cell if len(cell) <= width else cell[: width - 1] + "…"
        parts.append(short.ljust(width) if at <= 1 else short.rjust(width))
    return "  ".join(parts).rstrip()


# -- attach ----------------------------------------------------------------------------------------------------------


def live_line(one: Status, now: float | None = None) -> str:
    """Return the line below a live log: state, step, loss, speed; ``now`` counts a back-off down."""
    parts = [str(one["name"]), state_words(one, now)]
    if one["step"] is not None:
        parts.append(
            f"step {figure(one['step'], 12)}" + (f"/{one['steps']}" if one.get("steps") else "") + beside_step(one)
        )
    for label, text in (
        ("loss", figure(one["loss"])),
        ("tok/s", thousands(one["tokens_per_second"])),
        ("MFU", utilisation(one["mfu"])),
        ("left", span(one["eta_s"])),
    ):
        if text != "-":
            parts.append(f"{label} {text}")
    return harmless(" | ".join(parts))

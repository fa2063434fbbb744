"""The sentence of the report: how it went. Pure: from a report value to text; what to do about it is for ``advice``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from overnight.report.units import duration, finite, number, percent

Value = Mapping[str, Any]

LIMITS = ("wall_clock", "until", "max_steps", "cost")
_SPENT = {"wall_clock": "time", "until": "the clock", "max_steps": "steps", "cost": "money"}

# --- the outcome ------------------------------------------------------------------------------------------------------


def sentence(value: Value, hooks: Sequence[str] = ()) -> str:
    """Return how it went, as one sentence without a name before it; ``hooks`` are the texts of hooks that failed."""
    said = _live(value) or _ended(value) or _unknown(value)
    good = finite(value["goodput"].get("goodput"))
    if good is not None and value["outcome"]["state"] != "damaged":
        said += f"; {share(good)} of the time was {training(value)}"
    if hooks:
        said += f"; {counted(len(hooks), 'hook')} failed ({hooks[-1]})"
    return f"{said}."


def _live(value: Value) -> str | None:
    state, made_at = value["outcome"]["state"], f"as of {value['made_at']}"
    if state == "damaged":
        return f"its run folder is damaged, so only a part is known: {text_of(value)}"
    if state == "pending":
        return f"not started yet, {made_at}"
    if state == "backoff":
        return f"between two attempts after {_ran(value)}, {made_at}: {text_of(value)}"
    if state in ("starting", "running", "stopping"):
        doing = {"starting": "starting", "running": "still running", "stopping": "being stopped"}[state]
        return f"{doing} after {_ran(value)}{_at_step(value)}{_loss(value)}{_restarts(value)}, {made_at}"
    return None


def _ended(value: Value) -> str | None:
    outcome, known_s = value["outcome"], _known_s(value)
    state, cause, text = outcome["state"], outcome["cause"], text_of(value)
    ran, ran_and, ran_then = "", "", ""
    if known_s is not None:
        ran = f"ran {_ran(value)}"
        ran, ran_and, ran_then = f"{ran}, ", f"{ran} and ", f"{ran}, then "
    if state == "finished":
        return f"{ran}{_finished(value)}{_loss(value)}{_restarts(value)}{_after_all(value)}"
    if state == "stopped":
        if cause == "user":
            return f"{ran_and}was stopped{_on_whose(text)}{_at_step(value)}{_loss(value)}{_restarts(value)}"
        if cause in LIMITS:
            limit = f"its limit of {_SPENT[str(cause)]} ended it"
            return f"{ran_then}{limit}{_at_step(value)}{_loss(value)}{_restarts(value)}: {text}"
        return f"{ran_then}the rule {cause} ended it{_at_step(value, text)}{_restarts(value)}: {text}"
    if state == "gave_up":
        tried = counted(len(value["attempts"]), "attempt")
        return f"{ran_and}gave up after {tried}{_at_step(value, text)}: {text}"
    if state == "failed":
        why = str(cause or "unknown").replace("_", " ")
        return f"{ran_then}failed ({why}){_at_step(value, text)}{_restarts(value)}: {text}"
    return None


def _finished(value: Value) -> str:
    text, steps = text_of(value), value["progress"]["steps"]
    if value["kind"] == "log":
        return f"{text}{_at_step(value)}"
    if "nobody can tell whether all" in text:
        return f"ended well{_at_step(value)}, though {text.partition('; ')[2]}"
    return f"finished all {number(steps)} steps" if steps else f"ended well{_at_step(value)}"


def _after_all(value: Value) -> str:
    """Return what spoils a good end: a fall after the last step, an illness that did not end it."""
    fell = f", and fell after its last step ({text_of(value)})" if value["outcome"]["cause"] == "bad_teardown" else ""
    mended = {one["attempt"] for one in value.get("rollbacks") or ()}
    critical = [one for one in value["timeline"] if one["kind"] == "verdict" and one["severity"] == "critical"]
    ill = [one for one in critical if one.get("attempt") not in mended]
    return fell + (f", but {ill[0]['text']}" if ill else "")


def _unknown(value: Value) -> str:
    """Return the sentence for a log of which nobody knows how it ended."""
    progress, text = value["progress"], text_of(value)
    if not progress["records"]:
        if progress.get("eval"):
            return text or "only evaluations were read, so nothing is known of the loss between them"
        return text or "no line of it was read as progress, so nothing is known but its text"
    upto = _at_step(value).replace(" at step", ", up to step")
    read = f"{counted(progress['records'], 'progress line')} read{upto}{_loss(value)}"
    return f"{read}; {text}" if text else f"{read}; how it ended does not stand in the log"


def text_of(value: Value) -> str:
    """Return what was written down on the end, without its full stop; empty if there is nothing."""
    return str(value["outcome"].get("text") or "").rstrip(".")


def _known_s(value: Value) -> float | None:
    times = value["times"]
    known = finite(times.get("elapsed_s"))
    return finite(times.get("active_s")) if known is None else known


def _ran(value: Value) -> str:
    known = _known_s(value)
    return "an unknown time" if known is None else duration(known)


def _on_whose(text: str) -> str:
    return " by the scheduler" if "scheduler" in text else " on request"


def _at_step(value: Value, said: str = "") -> str:
    """Return ", at step 15 of 20,000", unless ``said`` names a step already."""
    if value["progress"]["step"] is None or re.search(r"\bstep \d", said):
        return ""
    return f" at step {step_words(value['progress'])}"


def x_word(progress: Value) -> str:
    """Return what the x axis counts: where steps are counted anew in each epoch, those of all epochs together."""
    return "step" if progress.get("step_in_all") is None else "total step"


def step_words(progress: Value) -> str:
    """Return "15 of 20,000", or "150 of epoch 4 (600 in all)" where steps are counted anew in each epoch."""
    step, steps, in_all, epoch = (progress.get(name) for name in ("step", "steps", "step_in_all", "epoch"))
    if in_all is None:
        return number(step) + (f" of {number(steps)}" if steps else "")
    planned = f" of {number(steps)}" if steps and steps >= in_all else ""
    known = finite(epoch)
    which = f" of epoch {number(epoch)}" if known is not None and known.is_integer() else ""
    return f"{number(step)}{which} ({number(in_all)}{planned} in all)"


def _loss(value: Value) -> str:
    loss = value["progress"]["loss_last"]
    return "" if loss is None else f" with loss {number(loss, 4)}"


def _restarts(value: Value) -> str:
    restarts, back = max(0, len(value["attempts"]) - 1), len(value.get("rollbacks") or ())
    back = min(back, restarts)
    if not restarts:
        return ""
    if back == restarts:
        return f" after {counted(back, 'rollback')}"
    return f" after {counted(restarts, 'restart')}" + (f", {back:,} of them rollbacks" if back else "")


def training(value: Value) -> str:
    """Return what the steps of a run are called: no training where the loss is no number from some step to the end."""
    charts = [one for one in value.get("charts") or () if one["name"] == "loss"]
    last = value["progress"].get("loss_last")
    lost = isinstance(last, str) or (isinstance(last, float) and not math.isfinite(last))
    if not lost or not charts or not charts[0]["nonfinite"]:
        return "training"
    one = charts[0]
    since = max(one["x"], default=-math.inf)
    # Of a thinned chart the last part may hold numbers and others: where they end is not known then.
    exact = one["low"] == one["high"]
    first = next((float(x) for x, _ in one["nonfinite"] if x > since), None) if exact else None
    where = "" if first is None else f" from {one['x_label']} {number(int(first) if first.is_integer() else first)} on"
    return f"steps, with a loss that is no number{where}"


def share(good: float) -> str:
    """Return a fraction in percent, only as finely as it matters."""
    return percent(good) if good >= 0.9995 or good < 0.1 else f"{good * 100:.0f}%"


def counted(many: int, what: str) -> str:
    """Return "1 restart", "2 restarts"."""
    return f"1 {what}" if many == 1 else f"{many:,} {what}s"

"""The sentences of the report: how it went, in one of them, and what to look at next.

Pure: from a report value to text. Nothing is advised without something in the value to show for it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from overnight.report.units import duration, finite, number, percent

Value = Mapping[str, Any]

LOW_GOODPUT = 0.9
LOST_S = 60.0
"""Less time than this is no reason to look into goodput."""

LEAST_RECORDS = 20
"""From fewer records nobody can say where a curve is going."""

_LIMITS = ("wall_clock", "until", "max_steps", "cost")
_MEMORY = ("out_of_memory_gpu", "out_of_memory_host")
_AS_IT_IS = ("usage", "import_error", "load_failure", "hardware")
_SPENT = {"wall_clock": "time", "until": "the clock", "max_steps": "steps", "cost": "money"}

# --- the outcome ------------------------------------------------------------------------------------------------------


def sentence(value: Value, hooks: Sequence[str] = ()) -> str:
    """Return how it went, as one sentence without a name before it; ``hooks`` are the texts of hooks that failed."""
    said = _live(value) or _ended(value) or _unknown(value)
    good = finite(value["goodput"].get("goodput"))
    if good is not None and value["outcome"]["state"] != "damaged":
        said += f"; {_share(good)} of the time was training"
    if hooks:
        said += f"; {_count(len(hooks), 'hook')} failed ({hooks[-1]})"
    return f"{said}."


def _live(value: Value) -> str | None:
    state, made_at = value["outcome"]["state"], f"as of {value['made_at']}"
    if state == "damaged":
        return f"its run folder is damaged, so only a part is known: {_text(value)}"
    if state == "pending":
        return f"not started yet, {made_at}"
    if state == "backoff":
        return f"between two attempts after {_ran(value)}, {made_at}: {_text(value)}"
    if state in ("starting", "running", "stopping"):
        doing = {"starting": "starting", "running": "still running", "stopping": "being stopped"}[state]
        return f"{doing} after {_ran(value)}{_at_step(value)}{_loss(value)}{_restarts(value)}, {made_at}"
    return None


def _ended(value: Value) -> str | None:
    outcome, known_s = value["outcome"], _known_s(value)
    state, cause, text = outcome["state"], outcome["cause"], _text(value)
    ran, ran_and, ran_then = "", "", ""
    if known_s is not None:
        ran = f"ran {_ran(value)}"
        ran, ran_and, ran_then = f"{ran}, ", f"{ran} and ", f"{ran}, then "
    if state == "finished":
        return f"{ran}{_finished(value)}{_loss(value)}{_restarts(value)}{_after_all(value)}"
    if state == "stopped":
        if cause == "user":
            return f"{ran_and}was stopped{_on_whose(text)}{_at_step(value)}{_loss(value)}{_restarts(value)}"
        if cause in _LIMITS:
            limit = f"its limit of {_SPENT[str(cause)]} ended it"
            return f"{ran_then}{limit}{_at_step(value)}{_loss(value)}{_restarts(value)}: {text}"
        return f"{ran_then}the rule {cause} ended it{_at_step(value, text)}{_restarts(value)}: {text}"
    if state == "gave_up":
        tried = _count(len(value["attempts"]), "attempt")
        return f"{ran_and}gave up after {tried}{_at_step(value, text)}: {text}"
    if state == "failed":
        why = str(cause or "unknown").replace("_", " ")
        return f"{ran_then}failed ({why}){_at_step(value, text)}{_restarts(value)}: {text}"
    return None


def _finished(value: Value) -> str:
    text, steps = _text(value), value["progress"]["steps"]
    if value["kind"] == "log":
        return f"{text}{_at_step(value)}"
    if "nobody can tell whether all" in text:
        return f"ended well{_at_step(value)}, though {text.partition('; ')[2]}"
    return f"finished all {number(steps)} steps" if steps else f"ended well{_at_step(value)}"


def _after_all(value: Value) -> str:
    """Return what spoils a good end: a fall after the last step, an illness that did not end it."""
    fell = f", and fell after its last step ({_text(value)})" if value["outcome"]["cause"] == "bad_teardown" else ""
    ill = [one for one in value["timeline"] if one["kind"] == "verdict" and one["severity"] == "critical"]
    return fell + (f", but {ill[0]['text']}" if ill else "")


def _unknown(value: Value) -> str:
    """Return the sentence for a log of which nobody knows how it ended."""
    progress, text = value["progress"], _text(value)
    if not progress["records"]:
        return text or "no line of it was read as progress, so nothing is known but its text"
    read = f"{_count(progress['records'], 'progress line')} read{_at_step(value)}{_loss(value)}"
    return f"{read}; {text}" if text else f"{read}; how it ended does not stand in the log"


def _text(value: Value) -> str:
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
    step, steps = value["progress"]["step"], value["progress"]["steps"]
    if step is None or re.search(r"\bstep \d", said):
        return ""
    return f" at step {number(step)}" + (f" of {number(steps)}" if steps else "")


def _loss(value: Value) -> str:
    loss = value["progress"]["loss_last"]
    return "" if loss is None else f" with loss {number(loss, 4)}"


def _restarts(value: Value) -> str:
    restarts = max(0, len(value["attempts"]) - 1)
    return f" after {_count(restarts, 'restart')}" if restarts else ""


def _share(good: float) -> str:
    return percent(good) if good >= 0.9995 or good < 0.1 else f"{good * 100:.0f}%"


def _count(many: int, what: str) -> str:
    return f"1 {what}" if many == 1 else f"{many:,} {what}s"


# --- what to look at next ---------------------------------------------------------------------------------------------


def next_steps(value: Value, spec: Value, hooks: Sequence[str] = ()) -> list[str]:
    """Return what to look at, the most urgent first, each one sentence with its evidence; never empty.

    ``spec`` are the settings that were asked for, empty if nobody knows them.
    """
    found = [
        *_of_reading(value),
        *_of_verdicts(value, spec),
        *_of_end(value, spec),
        *_of_hooks(value, hooks),
        *_of_curves(value),
        *_of_goodput(value),
        *_of_restarts(value),
    ]
    return list(dict.fromkeys(found)) or ["nothing to do: nothing in it asks for a look"]


def _of_reading(value: Value) -> Iterator[str]:
    if value["progress"]["records"] or value["outcome"]["state"] in ("pending", "starting", "damaged"):
        return
    if "metrics" in value["unknown"]:
        yield f"its records are not to be had: {value['unknown']['metrics']}"
        return
    log = value["log"]
    if log["bytes"]:
        yield (
            f"no line was read as progress, so a NaN would not have been seen: {log['why']}; "
            f"`overnight read {shlex.quote(str(log['path']))}` shows more"
        )
    elif log["bytes"] == 0:
        yield f"the log is empty: {log['path']}"


def _of_verdicts(value: Value, spec: Value) -> Iterator[str]:
    verdicts = [
        one for one in value["timeline"] if one["kind"] == "verdict" and one["severity"] in ("warn", "critical")
    ]
    critical = [one for one in verdicts if one["severity"] == "critical"]
    for one in _first_of_each(critical, "rule"):
        if one["rule"] == "stall":
            yield _stall(value, one)
            continue
        where = f" (byte {one['offset']:,} of {value['log']['path']})" if one["offset"] is not None else ""
        line = f": {_clip(' '.join(str(one['line']).split()))}" if one["line"] else ""
        yield f"{one['rule']}: {one['text']}{where}{line}"
        if one["step"] is not None and one["rule"] in ("nonfinite", "divergence", "collapse"):
            yield from _resume(value, spec, one["step"])
    for one in _first_of_each([one for one in verdicts if one["severity"] == "warn"], "rule"):
        same = sum(other["rule"] == one["rule"] and other["severity"] == "warn" for other in verdicts)
        again = f", the first of {same}" if same > 1 else ""
        if one["rule"] not in _LIMITS:
            yield _stall(value, one) if one["rule"] == "stall" else f"{one['rule']}: {one['text']}{again}"


def _clip(text: str, most: int = 120) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _first_of_each(entries: Sequence[Value], key: str) -> list[Value]:
    return list({one[key]: one for one in reversed(entries)}.values())[::-1]


def _stall(value: Value, one: Value) -> str:
    dumps = [proof for proof in value["proofs"] if re.search(r"/stall-[^/]*/summary\.txt$", proof["path"])]
    dump = dumps[-1] if dumps else None
    if dump is None:
        return f"stall: {one['text']}"
    frame = innermost(dump["text"] or "")
    return f"stall: {one['text']}; " + (f"it hung in {frame}: {dump['path']}" if frame else f"see {dump['path']}")


def innermost(summary: str) -> str | None:
    """Return the innermost Python frame of the youngest process of a stall dump's summary; None if there is none."""
    lines = [line for line in summary.splitlines() if "(parent " in line and "no Python" not in line]
    return lines[-1].rpartition("): ")[2][:200] if lines else None


def _resume(value: Value, spec: Value, sick: int) -> Iterator[str]:
    """Say from which save to go on, and how: the newest that was seen before the step at which it fell ill."""
    saves = [one for one in value["checkpoints"] if isinstance(one["step"], int)]
    healthy = max((one for one in saves if one["step"] < sick), key=lambda one: one["step"], default=None)
    if healthy is not None:
        how = _again(value, spec)
        yield f"the last save from before step {sick:,} is of step {healthy['step']:,}: {healthy['path']}" + how
    elif saves:
        yield f"no save from before step {sick:,} was seen; {saves[-1]['path']} is of step {saves[-1]['step']:,}"
    elif value["kind"] == "run":
        yield f"no save was seen from before step {sick:,}; `--checkpoints DIR` says where to look for them"


def _again(value: Value, spec: Value) -> str:
    argv, more = spec.get("argv") or (), spec.get("resume_args") or ()
    if not argv or value["kind"] != "run":
        return ""
    if not more:
        return "; start it again from there, in the way your script resumes"
    return (
        f"; go on with `overnight run --name {value['name']}-again -- {shlex.join([*map(str, argv), *map(str, more)])}`"
    )


def _of_end(value: Value, spec: Value) -> Iterator[str]:
    outcome, name = value["outcome"], value["name"]
    state, cause, text = outcome["state"], outcome["cause"], _text(value)
    if state == "damaged":
        yield f"mend the run folder: {text}"
    if state not in ("failed", "gave_up"):
        return
    logs = f"`overnight logs {name} -n 40`" if value["kind"] == "run" else f"the end of {value['log']['path']}"
    if cause in _MEMORY:
        yield f"it ran out of memory: {text}; less per step (batch, sequence) needs less"
    elif cause == "disk_full":
        yield f"make room on the disk: {text}"
    elif cause in _AS_IT_IS:
        yield f"{text}; starting it again would fail in the same way until that is mended; see {logs}"
    elif cause == "host_rebooted" and spec.get("recover"):
        yield f"`overnight recover {name}` starts its next attempt"
    elif cause == "host_rebooted":
        yield "it was started without --recover, so `overnight run` has to start it anew"
    elif state == "gave_up":
        yield f"it came no further in spite of restarts: {text}; see {logs}"
    else:
        yield f"{text}; see {logs}"
    yield from (note for note in value.get("notes") or () if str(note).startswith("a restart may mend this"))


def _of_hooks(value: Value, hooks: Sequence[str]) -> Iterator[str]:
    if hooks:
        what = "a hook" if len(hooks) == 1 else f"{len(hooks)} hooks"
        where = f": see the hooks folder of the run, `overnight status {value['name']}`"
        yield f"{what} did not get through ({hooks[-1]}){where}"


def _of_curves(value: Value) -> Iterator[str]:
    by_name = {chart["name"]: chart for chart in value["charts"]}
    if (value["progress"]["records"] or 0) < LEAST_RECORDS:
        return
    rate = by_name.get("lr")
    if rate is not None:
        yield from _warming(rate)
    loss = by_name.get("loss")
    if loss is not None and value["outcome"]["state"] == "finished":
        yield from _falling(loss)


def _warming(chart: Value) -> Iterator[str]:
    """Say if the learning rate rose to the very end, or for most of the run."""
    x, high = chart["x"], chart["high"]
    if len(x) < 10 or not high[-1] > high[0]:
        return
    top = max(high)
    peak = high.index(top)
    if high[-1] == top and top > high[-max(2, len(high) // 10)]:
        yield (
            f"the learning rate was still rising at the end, step {number(x[-1])} "
            f"({number(high[0], 3)} -> {number(top, 3)}): the warm-up is longer than the run"
        )
    elif x[peak] - x[0] > (x[-1] - x[0]) / 2 and high[: peak + 1] == sorted(high[: peak + 1]) and top > 1.05 * high[0]:
        yield (
            f"the learning rate rose until step {number(x[peak])} of {number(x[-1])}: "
            "the warm-up covers most of the run"
        )


def _falling(chart: Value) -> Iterator[str]:
    low, high = chart["low"], chart["high"]
    tenth = len(low) // 10
    if tenth < 2:
        return
    middle = [(one + other) / 2 for one, other in zip(low, high, strict=True)]
    before, last = (sum(piece) / tenth for piece in (middle[-2 * tenth : -tenth], middle[-tenth:]))
    if before - last > 0.02 * abs(before):
        yield (
            f"the loss was still falling at the end ({number(before, 4)} -> {number(last, 4)} over the last tenth): "
            "more steps may lower it further"
        )


def _of_goodput(value: Value) -> Iterator[str]:
    good = value["goodput"]
    share, wall_s, productive_s = (finite(good.get(name)) for name in ("goodput", "wall_s", "productive_s"))
    if share is None or wall_s is None or productive_s is None:
        return
    if share >= LOW_GOODPUT or wall_s - productive_s < LOST_S:
        return
    saves = value.get("saves") or {}
    reasons = [
        (finite(good.get("lost_s")), f"went into {number(good.get('redone_steps'))} steps that were done again"),
        (finite(good.get("unfinished_s")), "passed between a last step and the end of an attempt"),
        (finite(good.get("restart_s")), "passed until the first step after a restart"),
        (finite(saves.get("seconds")), f"were saves ({saves.get('count')} seen)"),
    ]
    told = [(seconds, text) for seconds, text in reasons if seconds is not None and seconds >= 1.0]
    rest = wall_s - productive_s - sum(seconds for seconds, _ in told)
    if rest >= 1.0:
        told.append(
            (rest, "was none of these (start, data, evaluations)" if told else "was no stepping: start, saves, data")
        )
    told.sort(reverse=True)
    yield f"only {_share(share)} of the time was training: " + ", ".join(f"{duration(s)} {text}" for s, text in told)


def _of_restarts(value: Value) -> Iterator[str]:
    attempts = value["attempts"]
    if len(attempts) < 2 or value["outcome"]["state"] == "gave_up":
        return
    causes = [str(one["cause_text"] or one["state_words"]) for one in attempts[:-1]]
    last = causes[-1]
    same = "each time" if len(set(causes)) == 1 and len(causes) > 1 else "the last time" if len(causes) > 1 else ""
    again = f"it was started again {_count(len(causes), 'time')}"
    yield f"{again}, {same} because it {last}" if same else f"{again}: {last}"

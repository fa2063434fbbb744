"""What to look at next, and how to go on: the advice of the report, each sentence with its evidence.

Pure: from a report value to text. Nothing is advised without something in the value to show for it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from overnight.report import remedies, waysback
from overnight.report.units import duration, finite, number
from overnight.report.words import LIMITS, Value, counted, share, text_of, training, x_word

LOW_GOODPUT = 0.9
LOST_S = 60.0
"""Less time than this is no reason to look into goodput."""

LEAST_RECORDS = 20
"""From fewer records nobody can say where a curve is going."""

_MEMORY = ("out_of_memory_gpu", "out_of_memory_host")
_AS_IT_IS = ("usage", "import_error", "load_failure")


def next_steps(value: Value, spec: Value, hooks: Sequence[str] = ()) -> list[str]:
    """Return what to look at, the most urgent first, each one sentence with its evidence; never empty.

    ``spec`` are the settings that were asked for, empty if nobody knows them.
    """
    found = [
        *_of_reading(value),
        *_of_verdicts(value, spec),
        *_of_end(value, spec),
        *waysback.of_rule(value, spec),
        *waysback.of_stop(value, spec),
        *waysback.of_resumes(value),
        *remedies.of_figures(value),
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
        none, why = "no line was read as progress, so a NaN would not have been seen", str(log["why"])
        if value["progress"].get("eval"):
            none = "only evaluations were read, so a NaN between them would not have been seen"
            why = re.sub(r"^only evaluations were read(?:, and|;) ", "", why)
        yield (f"{none}: {why}; `overnight read {shlex.quote(str(log['path']))}` shows more")
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
        yield _with_remedy(value, one, f"{one['rule']}: {one['text']}{where}{line}")
        if one["rule"] == "nonfinite" and waysback.went_on(value, one) is None:  # else others stand in its place
            yield from _good_before(value)
        if one["rule"] in waysback.ILL:
            yield from waysback.after(value, spec, one)
    for one in _first_of_each([one for one in verdicts if one["severity"] == "warn"], "rule"):
        same = sum(other["rule"] == one["rule"] and other["severity"] == "warn" for other in verdicts)
        again = f", the first of {same}" if same > 1 else ""
        if one["rule"] not in LIMITS:
            said = _stall(value, one) if one["rule"] == "stall" else f"{one['rule']}: {one['text']}{again}"
            yield _with_remedy(value, one, said)


def _with_remedy(value: Value, one: Value, said: str) -> str:
    remedy = remedies.of_rule(value, one)
    return said if remedy is None else f"{said}; {remedy}"


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


def _good_before(value: Value) -> Iterator[str]:
    progress, outcome = value["progress"], value["outcome"]
    if progress.get("loss_good") is not None:
        where = f"{x_word(progress)} {number(progress['loss_good_step'])}"
        yield f"the last loss before it that is a number is {number(progress['loss_good'], 4)}, at {where}"
    if outcome["state"] == "stopped" and outcome.get("cause") == "nonfinite" and not value.get("rollbacks"):
        yield (
            "it was not started again, because a restart alone does not mend a NaN: go on from a save before it, with "
            "a lower learning rate, other data or clipped gradients"
        )


def _of_end(value: Value, spec: Value) -> Iterator[str]:
    outcome, name = value["outcome"], value["name"]
    state, cause, text = outcome["state"], outcome["cause"], text_of(value)
    if state == "damaged":
        yield f"mend the run folder: {text}"
    if state not in ("failed", "gave_up"):
        return
    logs = f"`overnight logs {name} -n 40`" if value["kind"] == "run" else f"the end of {value['log']['path']}"
    if cause in _MEMORY:
        yield f"it ran out of memory: {text}; less per step (batch, sequence) needs less"
    elif cause == "disk_full":
        yield f"make room on the disk: {text}"
    elif cause == "hardware":
        told = any(one.get("rule") == "hardware" and one.get("severity") == "critical" for one in value["timeline"])
        yield f"see {logs}" if told else f"{text}; {remedies.of_end(value)}; see {logs}"
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
    good_share, wall_s, productive_s = (finite(good.get(name)) for name in ("goodput", "wall_s", "productive_s"))
    if good_share is None or wall_s is None or productive_s is None:
        return
    if good_share >= LOW_GOODPUT or wall_s - productive_s < LOST_S:
        return
    saves = value.get("saves") or {}
    reasons = [
        (finite(good.get("lost_s")), f"went into {number(good.get('redone_steps'))} steps that were done again"),
        (finite(good.get("unfinished_s")), "passed between a last step and the end of an attempt"),
        (finite(good.get("restart_s")), "passed until the first step after a restart"),
        (None if saves.get("beside") else finite(saves.get("seconds")), f"were saves ({saves.get('count')} seen)"),
    ]
    told = [(seconds, text) for seconds, text in reasons if seconds is not None and seconds >= 1.0]
    rest = wall_s - productive_s - sum(seconds for seconds, _ in told)
    if rest >= 1.0:
        told.append(
            (rest, "was none of these (start, data, evaluations)" if told else "was no stepping: start, saves, data")
        )
    told.sort(reverse=True)
    parts = ", ".join(f"{duration(seconds)} {text}" for seconds, text in told)
    where = ""
    if value["kind"] == "log" and rest >= LOST_S:  # its lines were judged here, and their times were not
        where = f"; `overnight replay {shlex.quote(str(value['log']['path']))}` says whether it stood still, and where"
    yield f"only {share(good_share)} of the time was {training(value)}: {parts}{where}"


def _of_restarts(value: Value) -> Iterator[str]:
    attempts = value["attempts"]
    if len(attempts) < 2 or value["outcome"]["state"] == "gave_up":
        return
    causes = [str(one["cause_text"] or one["state_words"]) for one in attempts[:-1]]
    last = causes[-1]
    same = "each time" if len(set(causes)) == 1 and len(causes) > 1 else "the last time" if len(causes) > 1 else ""
    again = f"it was started again {counted(len(causes), 'time')}"
    of_it = last.startswith(("exited ", "was ", "ended "))  # what a rule has found is a sentence of its own
    yield f"{again}, {same} because it {last}" if same and of_it else f"{again}{', ' * bool(same)}{same}: {last}"

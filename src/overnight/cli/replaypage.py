"""Turns a replay into the text that ``overnight replay`` prints: 80 columns, unknown is said to be so.

Pure: the dict of ``replayed.document`` in, text out. No run folder, no log.
"""

from __future__ import annotations

from overnight.cli.render import WIDTH, figure, folded, span
from overnight.printable import harmless
from overnight.report.units import amount, number, size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Told = dict[str, Any]

LABEL = 12
SHOWN = 40
"""Verdicts and lines shown; --json has more."""

ENDS = ("stop", "terminate")
"""Actions that end a run."""

SOURCES = {"journal": "the run's journal", "dates": "the dates in the lines", "dt": "the printed step times"}
ASKED = (
    "max_loss", "vocab_size", "stall_s", "start_limit_s", "exit_limit_s", "max_hours", "until", "max_steps", "max_cost",
)  # fmt: skip


def replay_text(told: Told) -> str:
    """Return the whole text."""
    lines = [
        *folded(f"{_title(told)}: {_answer(told)}", "  ", ""),
        *_head(told),
        *_verdicts(told),
        *_missing(told),
        *_remarks(told),
    ]
    return "\n".join(lines)


def _title(told: Told) -> str:
    return str(told["name"] or told["log"]["path"])


def _answer(told: Told) -> str:
    """Return the one sentence: would it have been ended, and was it."""
    end = told["end"]
    if not told["read"]["records"] and not told["verdicts"] and told["read"]["evals"]:
        return "only evaluations were read, so no rule could judge the training between them"
    if not told["read"]["records"] and not told["verdicts"]:
        return "nothing in it was read as a training record, so no rule on records could judge"
    backs = told["rollbacks"]
    if end is None and backs:
        more = "" if len(backs) == 1 else f", the first of {len(backs)} times"
        return (
            f"{backs[0]['rule']} would have rolled it back {_where(backs[0], told)}{more}; no rule would have ended it"
        )
    if end is None:
        ended = None if told.get("changed") else _ended_then(told)
        said = "no rule would have ended it" if ended is None else "nothing that is kept ends it"
        return said if ended is None else f"{said}; that night {ended} did"
    said = f"{end['rule']} would have ended it {_where(end, told)}"
    how = next((one["night"]["how"] for one in told["verdicts"] if _same_place(one, end) and one["night"]), None)
    if how in ("same", "changed"):
        said += ", where it was told that night, too"
    elif how is not None:
        said += {"earlier": ", earlier than that night", "later": ", later than that night"}.get(
            how, ", which nothing told that night"
        )
    return said


def _ended_then(told: Told) -> str | None:
    """Return the rule that ended the run that night by what cannot be found again; None if none did."""
    cause = (told.get("outcome") or {}).get("cause")
    missing = [] if told["night"] is None else told["night"]["missing"]
    return next((cause for one in missing if one["rule"] == cause and one["action"] in ENDS), None)


def _then_too(told: Told) -> bool:
    """Say whether the night had the same end."""
    return any(
        _same_place(one, told["end"]) and one["night"] is not None and one["night"]["action"] == one["action"]
        for one in told["verdicts"]
        if one["night"] is None or one["night"]["how"] in ("same", "changed")
    )


def _same_place(one: Told, end: Told) -> bool:
    return bool(one["ends"] and one["rule"] == end["rule"] and one["offset"] == end["offset"] and not one["after_end"])


def _where(one: Told, told: Told) -> str:
    step = "" if one["step"] is None else f"at step {_step(one, told)}"
    line = "" if one["line"] is None else f"{'' if step else 'at '}line {one['line']:,}"
    at = "" if one["at"] is None else f"at {_clock(one['at'])}"
    return ", ".join(word for word in (step, line, at) if word) or "at a place that nobody knows"


def _step(one: Told, told: Told) -> str:
    """Return a step, with its epoch where steps are counted anew in each."""
    epoch = one.get("epoch")
    if not told["read"]["anew"] or not isinstance(epoch, (int, float)) or epoch != int(epoch):
        return number(one["step"])
    return f"{number(one['step'])} of epoch {int(epoch)}"


def _clock(at: str) -> str:
    return f"{at[:10]} {at[11:19]} UTC"


def _head(told: Told) -> list[str]:
    log, read, clock = told["log"], told["read"], told["clock"]
    lines = []
    if told["end"] is not None:
        lines += _row("because", told["end"]["text"])
        lines += _row("then", _then(told))
        # What came after an end that the night had too, or after which it would have gone on, is not saved by it.
        label = "after it" if told["end"]["again"] or _then_too(told) else "saved"
        lines += _row(label, _saved(told["end"]["saved"], again=read["segments"] - 1 > read["anew"]))
    lines += [line for one in told["rollbacks"][:SHOWN] for line in _row("rolled back", _back(one, told))]
    if told["rollbacks"]:
        lines += _row("", _behind(told["rollbacks"]))
    if told.get("outcome"):
        outcome = told["outcome"]
        cause = f" ({outcome['cause']})" if outcome["cause"] else ""
        said = f": {outcome['cause_text']}" if outcome["cause_text"] else ""
        lines += _row("that night", f"{outcome['state']}{cause}{said}")
    elif told.get("live"):
        lines += _row("that night", "not over yet: judged as far as it has come")
    none = "only evaluations were read" if read["evals"] else "no reader fits"
    reader = f"read by {log['reader']}" if log["reader"] else none
    lines += _row("log", f"{log['path']} ({size(log['bytes'])}, {_many(log['lines'], 'line')}, {reader})")
    many = _many(read["records"], "record")
    if read["segments"] > 1:
        many += f" in {read['segments']:,} segments" + (", steps counted anew in each epoch" if read["anew"] else "")
    last = "" if read["step"] is None else f", the last step is {_step(read, told)}, its loss {figure(read['loss'])}"
    evals = f" of training, {_many(read['evals'], 'evaluation')}" if read["evals"] else ""
    lines += _row("read", (many if read["records"] else "no records") + evals + last)
    if clock["from"] is not None:
        every = f"one for each {span(clock['resolution_s'])} is looked at"
        fine = every if clock["from"] == "dates" else f"to about {span(clock['resolution_s'])}"
        lines += _row("time", f"from {SOURCES[clock['from']]}, {fine}")
    lines += _row("rules", _rules(told))
    lines += [line for rule, why in _grouped(told["unjudged"]).items() for line in _row("not judged", f"{rule}: {why}")]
    return lines


def _back(one: Told, told: Told) -> str:
    """Return where and to what a rule would have taken the run back."""
    before = "a save before the trouble" if one["before"] is None else f"a save before step {number(one['before'])}"
    skip = one["skip"]
    left_out = f", its script asked to leave out steps {number(skip[0])} to {number(skip[1])} at least" if skip else ""
    return f"{_where(one, told)} by {one['rule']}, {one['n']} of {told['rules']['rollbacks']}: to {before}{left_out}"


def _behind(backs: list[Told]) -> str:
    """Say what the log behind a rollback is worth: no log tells what was never done."""
    saves = "whether there was such a save the log does not tell"
    if all(one["followed"] for one in backs):
        return f"behind it the log begins again from an earlier step, and that is judged for itself; {saves}"
    return f"what stands behind it in the log is of a run that was not taken back; {saves}"


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _grouped(unjudged: dict[str, str]) -> dict[str, str]:
    reasons: dict[str, list[str]] = {}
    for rule, why in unjudged.items():
        reasons.setdefault(why, []).append(rule)
    return {", ".join(rules): why for why, rules in reasons.items()}


def _then(told: Told) -> str:
    end = told["end"]
    return f"the run would have been {end['then']}" if end["again"] else f"the run would have ended: {end['then']}"


def _saved(saved: Told, *, again: bool) -> str:
    """Return what came after the end, in steps, time and money, as far as each is known."""
    if not saved["records"] and not saved["seconds"]:
        return "nothing: the log ends there"
    again = again and saved["steps"] > 0
    parts = [_many(saved["steps"], "step") + (", those that were done again counted once more" if again else "")]
    if saved["seconds"] is None:
        parts.append("for a time that nobody knows (no times in the log, no step time printed)")
    else:
        parts.append(f"{span(saved['seconds'])} by {SOURCES[saved['from']]}")
    if saved["cost"] is not None:
        parts.append(f"{amount(saved['cost'])} at {saved['price']:g}/h")
    elif saved["seconds"] is not None:
        parts.append("--price says how much money")
    return ", ".join(parts)


def _rules(told: Told) -> str:
    changed = told.get("changed")
    if changed:
        words = []
        for name, (before, after) in changed.items():
            if name == "actions":
                words += [f"{rule}={to}" for rule, to in after.items() if before.get(rule) != to]
            else:
                words.append(f"--{_label(name)} {_setting(name, after)} (was {_setting(name, before)})")
        return "the run's own, but " + ", ".join(words)
    rules = told["rules"]
    words = [f"--{_label(name)} {_setting(name, rules[name])}" for name in ASKED if rules[name] is not None]
    words += [f"{rule}={action}" for rule, action in rules["actions"].items()]
    own = "the run's own" if told["kind"] == "run" else "the defaults" if not words else "as given"
    return f"{own}: {', '.join(words)}" if words else own


def _setting(name: str, value: object) -> str:
    """Return the value of a setting with its unit."""
    if value is None:
        return "none"
    if name.endswith("_s") and isinstance(value, (int, float)):
        return f"{value:g}s"
    return figure(value, 12) if isinstance(value, (int, float, str)) else harmless(str(value))


def _label(name: str) -> str:
    return name.removesuffix("_s").replace("_", "-")


def _verdicts(told: Told) -> list[str]:
    verdicts = told["verdicts"]
    if not verdicts:
        return ["verdicts     none"]
    lines, told_end, behind = ["verdicts"], False, False
    for one in verdicts[:SHOWN]:
        if one["after_end"] and not told_end:
            told_end = True
            lines.append("  -- after the end --")
        elif one["after_rollback"] and not told_end and not behind:
            lines.append("  -- after the rollback, of a run that was not taken back --")
        behind = one["after_rollback"]
        lines += _verdict(one, told)
    left = len(verdicts) - SHOWN
    left = max(0, left) + told["left_out"]
    if left:
        counts = ", ".join(f"{one['verdicts']:,} {one['rule']} {one['severity']}" for one in told["counts"])
        lines += folded(f"and {left:,} more; in all {counts}", "  ")
    return lines


def _verdict(one: Told, told: Told) -> list[str]:
    night = one["night"]
    beside = "" if night is None else f"  [{_beside(one, night)}]"
    lines = folded(f"{one['severity']} {one['rule']} {_where(one, told)} -> {one['action']}{beside}", "    ", "  ")
    lines += folded(one["text"], "    ")
    if one["line_text"]:
        text = harmless(one["line_text"])
        room = WIDTH - 6
        lines.append("    | " + (text if len(text) <= room else text[: room - 1] + "…"))
    return lines


def _beside(one: Told, night: Told) -> str:
    """Return how a verdict stands to that of the night."""
    if night["how"] == "same":
        return "as that night"
    if night["how"] == "new":
        return "new"
    if night["how"] == "changed":
        return f"that night -> {night['action']}" if night["action"] != one["action"] else "that night in other words"
    step = "" if night["step"] is None else f" at step {number(night['step'])}"
    return f"{night['how']}; that night{step or ' at ' + _clock(str(night['at']))}"


WHY_MISSING = {
    "gone": "gone",
    "elsewhere": "in a part of the log that is not here any more",
    "live only": "not to be judged from a log",
    "not asked": "no samples to judge it by now",
}


def _missing(told: Told) -> list[str]:
    missing = [] if told["night"] is None else told["night"]["missing"]
    if not missing:
        return []
    lines = ["only that night"]
    for one in missing[:SHOWN]:
        step = "" if one["step"] is None else f" at step {number(one['step'])}"
        lines += folded(
            f"{one['severity']} {one['rule']}{step} -> {one['action']}  [{WHY_MISSING[one['how']]}]", "    ", "  "
        )
        lines += folded(one["text"], "    ")
    more = len(missing) - SHOWN
    return lines + ([f"  and {more:,} more"] if more > 0 else [])


def _remarks(told: Told) -> list[str]:
    said = list(told.get("remarks") or [])
    unread, read = told["unread"], told["read"]
    if unread:
        said.append(
            f"{unread['lines']:,} lines say of a loss that it is NaN or infinite and were not read as records; the "
            f"first is line {unread['first_line']:,}: `overnight read` shows what is read, --pattern reads more"
        )
    if read["nonfinite"] and not any(one["rule"] == "nonfinite" for one in told["verdicts"]):
        said.append(
            f"{read['nonfinite']:,} records have a loss that is NaN or infinite, the first at step "
            f"{number(read['first_nonfinite'])}, and no rule spoke of it"
        )
    return [line for one in said for line in folded(one, "  ", "note: ")]


def _row(label: str, text: object) -> list[str]:
    return folded(text, " " * (LABEL + 2), f"  {label:<{LABEL}}")

"""From which save to go on, and with which command: the part of the advice that is about saves.

Pure: from a report value to text. What is known against a save stands in the value; nothing is looked at here.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from overnight.moments import epoch_of
from overnight.report import goingon
from overnight.report.words import LIMITS, Value, counted
from overnight.resumption.point import Point

ILL = ("nonfinite", "divergence", "collapse")
"""Rules whose verdict means that what is saved from then on is worth nothing."""

_MORE = {
    "wall_clock": "--max-hours H", "until": "--until WHEN", "max_steps": "--max-steps N", "cost": "--max-cost X",
}  # fmt: skip
_FAULTY = 3


def after(value: Value, spec: Value, one: Value) -> Iterator[str]:
    """Say from which save to go on after a verdict of an illness, or how the run went on by itself."""
    went = went_on(value, one)
    if went is not None:
        yield f"after it attempt {went['attempt']} went on {goingon.start(went)}"
        if value["outcome"]["state"] != "stopped" or value["outcome"].get("cause") != one["rule"]:
            return
    best = value.get("checkpoint")
    if best is not None and best.get("healthy") and not _behind(best, one):
        yield from _from_known(value, spec, best)
    else:
        yield from _from_step(value, spec, one)
    yield from _by_itself(value, spec, one)


def went_on(value: Value, one: Value) -> Value | None:
    """Return how the run went on after the attempt of a verdict; None if it did not."""
    attempt = one.get("attempt")
    resumes = value.get("resumes") or ()
    return None if attempt is None else next((each for each in resumes if each["attempt"] > attempt), None)


def of_rule(value: Value, spec: Value) -> Iterator[str]:
    """Say how to go on after an end by a rule of which no critical verdict has said it."""
    outcome = value["outcome"]
    cause = outcome.get("cause")
    if outcome["state"] != "stopped" or cause != "spike":
        return
    verdicts = [one for one in value["timeline"] if one["rule"] == cause and one["severity"] in ("warn", "critical")]
    if verdicts:
        yield from after(value, spec, verdicts[-1])


def _behind(save: Value, one: Value) -> bool:
    """Say whether a save is of the steps behind a verdict: not every trouble makes saves unhealthy."""
    known = isinstance(save.get("step"), int) and isinstance(one.get("step"), int)
    return known and save.get("attempt") == one.get("attempt") and bool(save["step"] >= one["step"])


def _from_known(value: Value, spec: Value, best: Value, flag: str = "") -> Iterator[str]:
    """Say from which save to go on where it is known what is in them."""
    if best.get("valid"):
        said = f"the newest healthy checkpoint whose content was checked is {_save(best)}"
    else:
        said = f"the newest save with nothing known against it is {_save(best)}, and nobody has looked into it"
    newer = [one for one in value["checkpoints"][_place(value, best) + 1 :] if goingon.bad(one)]
    yield said + _again(value, spec, best, flag)
    if newer:
        named = "; ".join(f"{_save(one)}: {goingon.mark(one)}" for one in newer[-1 : -1 - _FAULTY : -1])
        more = f"; and {len(newer) - _FAULTY} more" if len(newer) > _FAULTY else ""
        yield f"{counted(len(newer), 'newer save')} {'is' if len(newer) == 1 else 'are'} not to be used: {named}{more}"


def _place(value: Value, best: Value) -> int:
    return next((at for at, one in enumerate(value["checkpoints"]) if one["path"] == best["path"]), -1)


def _from_step(value: Value, spec: Value, one: Value) -> Iterator[str]:
    """Say from which save to go on where only steps and times tell: the newest before it fell ill."""
    sick, saves = one["step"], [save for save in value["checkpoints"] if not goingon.bad(save)]
    if sick is None or value["progress"].get("step_in_all") is not None:  # the steps of saves tell nothing then
        at, where = epoch_of(one.get("at")), "it"
        before = [save for save in saves if at is not None and (epoch_of(save["at"]) or at) < at]
        healthy = before[-1] if before else None
    else:
        where, saves = f"step {sick:,}", [save for save in saves if isinstance(save["step"], int)]
        before = [save for save in saves if save["step"] < sick]
        healthy = max(before, key=lambda save: save["step"], default=None)
    every = value["checkpoints"]
    if healthy is not None:
        yield f"the last save from before {where} is {_save(healthy)}{_again(value, spec, healthy)}"
    elif saves:
        yield f"no save from before {where} was seen; the newest is {_save(saves[-1])}"
    elif every:
        yield (
            f"none of the {counted(len(every), 'save')} that were seen is good; "
            f"the newest is {_save(every[-1])}: {goingon.mark(every[-1])}"
        )
    elif value["kind"] == "run":
        yield f"no save was seen from before {where}; `--checkpoints DIR` says where to look for them"


def _by_itself(value: Value, spec: Value, one: Value) -> Iterator[str]:
    """Say that a run may go back by itself, after one that was ended instead."""
    outcome, rule = value["outcome"], one["rule"]
    if outcome["state"] != "stopped" or outcome.get("cause") != rule or value["kind"] != "run":
        return
    if (spec.get("actions") or {}).get(rule) != "rollback":
        yield (
            f"with `--action {rule}=rollback` a run goes back by itself to the last healthy save before the trouble, "
            "and tells the script which steps to leave out"
        )
    elif value.get("rollbacks"):
        used = counted(len(value["rollbacks"]), "rollback")
        yield (
            f"{used} did not mend it: `--rollback-steps R` goes further back, `--rollbacks N` allows more; where it "
            "comes back in spite of other data, a lower learning rate or clipped gradients may help"
        )


def of_stop(value: Value, spec: Value) -> Iterator[str]:
    """Say how to go on after an end that somebody asked for, or a limit."""
    outcome, saves = value["outcome"], value["checkpoints"]
    cause = str(outcome.get("cause"))
    if outcome["state"] != "stopped" or cause not in (*LIMITS, "user", "preempted", "stall") or value["kind"] != "run":
        return
    flag = _MORE.get(cause)
    more = f"to go on, with a higher limit (`{flag}`)" if flag else "to go on"
    also, best = f" {flag}" if flag else "", value.get("checkpoint")
    if not saves:
        yield f"{more}: no save of it was seen; `--checkpoints DIR` says where to look for them"
    elif best is not None and best.get("healthy"):
        first, *others = _from_known(value, spec, best, also)
        yield from (f"{more}: {first}", *others)
    elif goingon.bad(saves[-1]):
        yield f"{more}: no good save was seen; the newest is {_save(saves[-1])}: {goingon.mark(saves[-1])}"
    else:
        yield f"{more}: the newest save that was seen is {_save(saves[-1])}{_again(value, spec, saves[-1], also)}"


def of_resumes(value: Value) -> Iterator[str]:
    """Say which saves could not be loaded, and which attempts did not do again what had been done before."""
    for one in [save for save in value["checkpoints"] if save.get("load_failure")][-_FAULTY:]:
        yield f"{_save(one)} could not be loaded ({one['load_failure']}); it is passed over, and was not removed"
    for one in value.get("resumes") or ():
        if goingon.differs(one.get("overlap")):
            yield (
                f"attempt {one['attempt']} did not do again what had been done before it: "
                f"{goingon.overlap(one['overlap'])}; `overnight verify-resume -- CMD` says which part of a "
                "resume is not exact"
            )


def _save(save: Value) -> str:
    return f"{save['path']}, of step {save['step']:,}" if isinstance(save["step"], int) else str(save["path"])


def _again(value: Value, spec: Value, save: Value, flag: str = "") -> str:
    argv, more = spec.get("argv") or (), spec.get("resume_args") or ()
    if not argv or value["kind"] != "run":
        return ""
    if not more:
        return "; start it again from there, in the way your script resumes"
    given = Point(path=str(save["path"])).words([str(word) for word in more])
    words = shlex.join([*map(str, argv), *given])
    return f"; go on with `overnight run --name {value['name']}-again{flag} -- {words}`"

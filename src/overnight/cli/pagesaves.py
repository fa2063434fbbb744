"""Words about saves and resuming for the page of one run: which save is the newest good one, which are bad and why.

Pure text from a status, as in ``page``. Nothing is opened: what is known of a save stands in the status.
"""

from __future__ import annotations

from overnight.cli.render import figure, money, span
from overnight.printable import harmless
from overnight.report import goingon
from overnight.resumption.known import GONE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from overnight.client import Status

SHOWN_BAD = 3

LEAST_WHOLE_S = 9.95

NO_FORM = "not of a form that can be checked"

IT_IS = "it is "
"""How a problem begins that is told within a sentence here."""


def rows(one: Status) -> list[tuple[str, str]]:
    """Return what the page says about saves and about how the current attempt began, as (label, text)."""
    found = []
    newest = one.get("checkpoint")
    if newest:
        newest = next((save for save in saves_of(one) if save.get("path") == newest.get("path")), newest)
        path = harmless(str(newest.get("path")))
        found.append(("checkpoint", f"{_step(newest)} {path} ({', '.join(_marks(newest, one))})"))
    there = [save for save in reversed(saves_of(one)) if save.get("problem") != GONE]  # who removed it, meant to
    bad = [(save, text) for save in there if (text := fault(save)) is not None]
    for at, (save, text) in enumerate(bad[:SHOWN_BAD]):
        found.append(("bad saves" if at == 0 else "", f"{_step(save)}: {text} ({harmless(str(save.get('path')))})"))
    if (resumed := _resumed(one)) is not None:
        found.append(("resume", resumed))
    if used := one.get("rollbacks_used"):
        found.append(("rollbacks", f"{figure(used, 12)} used"))
    return found


def saves_of(one: Status) -> list[dict[str, Any]]:
    """Return the newest saves that a status tells of, the newest last."""
    known = one.get("saves")
    return [save for save in known if isinstance(save, dict)] if isinstance(known, list) else []


def where(save: Status) -> str:
    """Return the step and the path of a save: "step 300: /data/ckpt-300"."""
    return f"{_step(save)}: {harmless(str(save.get('path')))}"


def _step(save: Status) -> str:
    return "step unknown" if save.get("step") is None else f"step {save['step']}"


def fault(save: Status) -> str | None:
    """Return what is known against a save; None if nothing is."""
    problem = _problem(save)
    if save.get("problem") == GONE:
        return problem
    if save.get("load_failure"):
        return f"could not be loaded: {harmless(str(save['load_failure']))}"
    if save.get("valid") is False:
        return f"damaged: {problem}" if problem else "damaged"
    if save.get("finite") is False:
        return problem or "holds numbers that are not finite"
    return "saved after the trouble began" if save.get("healthy") is False else None


def _problem(save: Status) -> str:
    return harmless(str(save.get("problem") or "")).removeprefix(IT_IS)


def checked(save: Status) -> bool:
    """Say whether somebody has looked at what is inside a save, whatever came of it."""
    return any(save.get(key) is not None for key in ("valid", "problem", "check_s"))


def check_words(save: Status, *, later: bool) -> str:
    """Return what looking inside has told; ``later``: somebody is there who may still look."""
    if save.get("valid"):
        return "verified"
    if checked(save):
        return _problem(save) or NO_FORM
    return "not checked yet" if later else "not checked"


def _marks(save: Status, one: Status) -> list[str]:
    keeper = one.get("supervisor")
    marks = [check_words(save, later=isinstance(keeper, dict) and bool(keeper.get("alive")))]
    if not isinstance(one.get("saves"), list) and not checked(save):  # of a version that never looked
        marks = ["not looked into"]
    if save.get("healthy") is not None:
        marks.append("before any trouble" if save["healthy"] else "saved after the trouble began")
    return marks


def _resumed(one: Status) -> str | None:
    """Return how the current attempt went on: from where, what was compared, what was lost and left out."""
    known = one.get("resume")
    if not isinstance(known, dict):
        return None
    attempt = f"attempt {figure(known.get('attempt'), 12)}"
    path, step = known.get("path"), known.get("step")
    began = f"{attempt} went on from {_step(known)} ({harmless(str(path))})" if path else f"{attempt} began anew"
    if not path and step is not None:
        began = f"{attempt} went on from {_step(known)}"
    overlap = known.get("overlap")
    same = harmless(str(overlap["text"])) if isinstance(overlap, dict) and overlap.get("text") else None
    if isinstance(overlap, dict) and overlap.get("compared"):  # "0/12" alone does not say what was counted
        same = harmless(goingon.overlap(overlap))
    lost = lost_words(known)
    if not path and step is None and isinstance(overlap, dict) and overlap.get("compared"):
        # It did steps that were done before: it had a save of its own, and what was thought to be lost was not.
        began, lost = f"{attempt} went on by itself, from a save that is not known", None
    if not path and step is None and same is not None and same.startswith("it began anew"):
        same = None  # said already
    parts = [began, same, lost, _left_out(known.get("skip"))]
    return "; ".join(part for part in parts if part)


def lost_words(known: Status) -> str | None:
    """Return the steps that were to be done again, with time and money as far as they are known."""
    steps, seconds, cost = (known.get(key) for key in ("lost_steps", "lost_s", "lost_cost"))
    if not isinstance(steps, int) or steps <= 0:
        return None
    parts = [counted(steps)]
    if isinstance(seconds, (int, float)):
        parts.append(brief(seconds))
    if isinstance(cost, (int, float)):
        parts.append(f"{money(cost)} of money")
    return f"{', '.join(parts)} lost"


def brief(seconds: float) -> str:
    """Return a duration that may be far below a second: 0.72s, 3.1s, 45s, 3m10s."""
    return f"{seconds:.2g}s" if 0 < seconds < LEAST_WHOLE_S else span(seconds)


def counted(steps: int) -> str:
    """Return a number of steps with its noun."""
    return f"{steps} step{'' if steps == 1 else 's'}"


def _left_out(skip: object) -> str | None:
    """Return the steps that the script is asked to leave out: [a, b], or a list of such."""
    if not isinstance(skip, (list, tuple)) or not skip:
        return None
    spans = skip if isinstance(skip[0], (list, tuple)) else [skip]
    known = [f"{figure(one[0], 12)}-{figure(one[1], 12)}" for one in spans if len(one) == 2]
    return f"steps {', '.join(known)} left out" if known else None

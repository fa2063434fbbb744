"""What became of the last save of a run that was asked to stop: whether one came, whether it is good, what is lost.

A pure function of the last status and of what the stop asked for, and the waiting until the save has been looked at.
Nothing is opened but the run's own files.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

import msgspec

from overnight import client
from overnight.cli import pagesaves
from overnight.cli.render import money
from overnight.errors import FolderError
from overnight.folder import RunFolder
from overnight.moments import epoch_of
from overnight.resumption.point import behind, seconds_of

VERIFIED_WITHIN_S = 600.0
TOLD_AFTER_S = 2.0
LOOK_S = 0.5
TAIL_BYTES = 8192
VERIFYING = "verifying the save ...; Ctrl-C leaves, it goes on"

HOUR_S = 3600.0


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a stop has asked for: ``at`` is seconds since the epoch, None if nobody knows."""

    at: float | None = None
    save: bool = True
    now: bool = False


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """What a stop has lost: steps since the newest good save, their seconds, their cost. None is unknown.

    ``at_most``: the seconds are all that passed since the save, for nobody knows how long a step takes.
    """

    steps: int | None = None
    seconds: float | None = None
    cost: float | None = None
    at_most: bool = False

    def facts(self) -> dict[str, Any]:
        """Return what ``--json`` tells of it."""
        return {"steps": self.steps, "seconds": self.seconds, "cost": self.cost}


class LastSave(msgspec.Struct, frozen=True, kw_only=True):
    """``save`` came after the stop was asked for (None: none did), ``text`` is the sentence; None: nothing is known."""

    save: dict[str, Any] | None = None
    lost: Lost | None = None
    text: str | None = None

    def facts(self) -> dict[str, Any]:
        """Return the fields that ``stop --json`` adds to the status."""
        keys = ("step", "path", "seconds", "valid", "problem")
        save = None if self.save is None else {key: self.save.get(key) for key in keys}
        return {"final_save": save, "lost": self.lost.facts() if self.lost is not None else None}


def asked_of(folder: RunFolder) -> Asked | None:
    """Return what the stop of the newest attempt asked for; None if it was not stopped, or nobody can read it."""
    try:
        numbers = folder.attempt_numbers()
        written = client.read_object(str(folder.attempt(numbers[-1]).stop_json)) if numbers else None
    except (OSError, FolderError):
        return None
    if written is None:
        return None
    at = written.get("epoch")
    known_at = float(at) if isinstance(at, (int, float)) and at > 0 else None
    return Asked(at=known_at, save=written.get("save") is not False, now=written.get("now") is True)


def judge(one: client.Status, asked: Asked | None) -> LastSave:
    """Return what became of the final save of an ended run. ``asked`` None: it was stopped while nothing trained.

    A status without ``saves`` (an older version wrote it) tells nothing, and so does a run that never trained.
    """
    if not isinstance(one.get("saves"), list) or not one["attempt"]:
        return LastSave()
    final, good = _final(one, asked), _good(one)
    if final is not None and pagesaves.fault(final) is None:
        good = final
    lost = _lost(one, asked, good)
    if final is None:
        return LastSave(lost=lost, text=_none_came(one, asked, good, lost))
    return LastSave(save=final, lost=lost, text=_came(final, good, lost, asked))


def _final(one: client.Status, asked: Asked | None) -> dict[str, Any] | None:
    """Return the newest save that was over after the stop was asked for."""
    since = None if asked is None else asked.at
    if since is None:
        return None
    late = [save for save in pagesaves.saves_of(one) if (epoch_of(save.get("at")) or 0.0) >= since]
    return late[-1] if late else None


def _good(one: client.Status) -> dict[str, Any] | None:
    known = one.get("checkpoint")
    return known if isinstance(known, dict) and known.get("path") and pagesaves.fault(known) is None else None


def _lost(one: client.Status, asked: Asked | None, good: dict[str, Any] | None) -> Lost:
    """Return what has to be done again: the steps after the newest good save, at the usual time of one.

    Where no step time is known, it is no more than what has passed since the save.
    """
    last, saved = one.get("step"), None if good is None else good.get("step")
    done = 0 if good is None else saved
    resume = one.get("resume")
    left_out = resume.get("skip") if isinstance(resume, dict) else None
    steps = behind(done, last, left_out) if isinstance(done, int) and isinstance(last, int) else None
    if steps == 0:
        return _priced(one, 0, 0.0)
    active_s, step_s = (_number(one.get(name)) for name in ("active_s", "step_s"))
    if (seconds := seconds_of(steps, step_s, active_s)) is not None:
        return _priced(one, steps, seconds)
    if good is None and len(one["attempts"]) > 1:  # no attempt has left anything
        return _priced(one, steps, active_s, at_most=True)
    end = asked.at if asked is not None and asked.at is not None else epoch_of(one.get("ended_at"))
    began = epoch_of(one.get("started_at"))
    saved_at = None if good is None else epoch_of(good.get("at"))
    since = max((at for at in (began, saved_at) if at is not None), default=None)
    if steps is None or end is None or since is None or (good is not None and saved_at is None):
        return _priced(one, steps, None)
    return _priced(one, steps, max(0.0, end - since), at_most=True)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and value >= 0 else None


def _priced(one: client.Status, steps: int | None, seconds: float | None, *, at_most: bool = False) -> Lost:
    limits = one.get("limits")
    price = limits.get("price") if isinstance(limits, dict) else None
    cost = price * seconds / HOUR_S if isinstance(price, (int, float)) and seconds is not None else None
    return Lost(steps=steps, seconds=seconds, cost=cost, at_most=at_most)


# -- words -----------------------------------------------------------------------------------------------------------


def _came(final: dict[str, Any], good: dict[str, Any] | None, lost: Lost, asked: Asked | None) -> str:
    fault, took = pagesaves.fault(final), final.get("seconds")
    unwanted = "" if asked is None or asked.save or asked.now else ", though none was asked for"
    if fault is None:
        seconds = f", {took:.1f} s" if isinstance(took, (int, float)) else ""
        said = f"saved {pagesaves.where(final)} ({pagesaves.check_words(final, later=False)}{seconds}){unwanted}"
        return said + (f"; {_amount(lost, 'after it')}" if lost.steps else "")
    odd = fault.startswith(("could not", "holds"))
    said = f"saved {pagesaves.where(final)}{unwanted}, but it {'' if odd else 'is '}{fault}"
    newest = "no good one is known" if good is None else f"the newest good one is {pagesaves.where(good)}"
    return f"{said}; {newest}" + (f"; {_amount(lost)}" if lost.steps else "")


def _none_came(one: client.Status, asked: Asked | None, good: dict[str, Any] | None, lost: Lost) -> str:
    said = _lead(asked)
    if good is not None and lost.steps == 0:
        return f"nothing is lost: {said}, and {pagesaves.where(good)} is of the last step ({_looked(good)})"
    if good is not None and lost.steps is None:
        return f"{said}: the newest good one is {pagesaves.where(good)}; how much came after it is not known"
    if good is not None:
        since = f"since step {good['step']} ({pagesaves.where(good).partition(': ')[2]})"
        return f"{said}: {_amount(lost, since)}"
    known = pagesaves.saves_of(one)
    none = "no good save is left" if known else "no save was ever seen (`--checkpoints DIR` says where to look)"
    before = "killed at once, and " if asked is not None and asked.now else ""
    return f"{before}{none}" + (f": {_amount(lost)}" if lost.steps else "")


def _lead(asked: Asked | None) -> str:
    if asked is None:
        return "nothing was training when it was stopped"
    if asked.now:
        return "killed at once, without a save"
    return "no save appeared" if asked.save else "no save was asked for, and none appeared"


def _looked(save: dict[str, Any]) -> str:
    return pagesaves.check_words(save, later=False)


def _amount(lost: Lost, which: str = "") -> str:
    """Return "12 steps since step 300 are lost, about 3m00s, 0.12 of money"."""
    steps = lost.steps or 0
    parts = [f"{pagesaves.counted(steps)}{f' {which}' if which else ''} {'is' if steps == 1 else 'are'} lost"]
    if lost.seconds is not None:
        parts.append(f"{'at most' if lost.at_most else 'about'} {pagesaves.brief(lost.seconds)}")
    if lost.cost is not None:
        parts.append(f"{money(lost.cost)} of money")
    return ", ".join(parts)


# -- waiting ---------------------------------------------------------------------------------------------------------


def pending(one: client.Status, asked: Asked | None) -> bool:
    """Say whether the final save is still to be looked at by somebody who is there to do it."""
    final = _final(one, asked)
    return final is not None and not pagesaves.checked(final) and bool(one["supervisor"]["alive"])


def closing(folder: RunFolder) -> bool:
    """Say whether the end of a run is a fact that its status does not show yet: its saves are looked at till then."""
    try:
        with open(folder.journal, "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - TAIL_BYTES))
            lines = stream.read().splitlines()
    except OSError:
        return False
    ended = False
    for line in lines:
        try:
            fact = json.loads(line)
        except ValueError:  # the first one, cut off
            continue
        kind = fact.get("fact") if isinstance(fact, dict) else None
        ended = kind == "ended" or (ended and kind != "state")
    return ended


def await_check(
    folder: RunFolder, one: client.Status, *, tell: Callable[[str], None], most_s: float = VERIFIED_WITHIN_S
) -> client.Status:
    """Return the status once the final save has been looked at, nobody is left to do so, or ``most_s`` have passed.

    ``tell`` is told once, after 2 s, what is waited for.
    """
    asked, began, told = asked_of(folder), time.monotonic(), False
    if not pending(one, asked):
        return one
    with client.FolderWatch(folder) as watch:
        while pending(one, asked) and (left := began + most_s - time.monotonic()) > 0:
            if not told and time.monotonic() - began >= TOLD_AFTER_S:
                told = True
                tell(VERIFYING)
            watch.wait(min(LOOK_S, left))
            one = client.status(folder)
    return one

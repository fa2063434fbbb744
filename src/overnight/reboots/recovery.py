"""Brings a run back that a reboot has interrupted: says whether it may be, and places its keepers anew.

Which attempt comes next, and that there is one, is decided by the supervisor that comes with the keepers. All that is
done before they are placed is to look, so that asking twice, or for a run that is well, changes nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from overnight import client, launch
from overnight.errors import FolderError, LaunchError, OvernightError
from overnight.events import StopOrder
from overnight.folder import RunFolder, drop_request, machine_id, read_journal, read_json
from overnight.lifecycle import NOT_BACK, lost_with_the_machine
from overnight.processes import boot_id
from overnight.requests.asked import Asked, read_asked
from overnight.spec import RunSpec

STARTED_WITHIN_S = 150.0
LOCKED_FOR_S = 60.0

SETTLING_S = 6.0
"""How long a supervisor without keepers, which somebody's `wait` has started, may take to write a reboot down."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done about a run, and why, as the end of a sentence that begins with its name.

    ``bring``: it is to be brought back. ``rest``: there is nothing to do. ``unasked``: it was interrupted, or may have
    been, and cannot be brought back, for nobody has arranged for that. ``blocked``: it should be, and cannot be now.
    """

    kind: Literal["bring", "rest", "unasked", "blocked"]
    text: str


_BRING = Case(kind="bring", text="was interrupted by a reboot")


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one run; ``recovered`` has the number of the new attempt and its command's pid."""

    name: str
    result: Literal["recovered", "nothing", "failed"]
    text: str
    attempt: int | None = None
    pid: int | None = None


def judge(folder: RunFolder) -> Case:
    """Say what is to be done about a run. Only looks."""
    try:
        asked = read_asked(folder)
        one = client.status(folder)
    except FolderError as error:
        return Case(kind="blocked", text=f"is damaged: {error}")
    if one["state"] == "damaged":
        return Case(kind="blocked", text=f"is damaged: {one['cause_text']}")
    return _well(folder, asked, one) or _unwanted(folder, asked.spec) or _missing(folder, asked.spec) or _BRING


def _well(folder: RunFolder, asked: Asked, one: dict[str, Any]) -> Case | None:
    """Return the case of a run that no reboot has interrupted, or none of this machine."""
    rebooted = _boot_of(folder, asked) not in ("", boot_id())
    until = time.monotonic() + SETTLING_S
    while rebooted and _adopted(one) and time.monotonic() < until:
        time.sleep(0.05)
        one = client.status(folder)
    state, cause = one["state"], one["cause"]
    if state in client.ENDED and cause != "host_rebooted":
        return Case(kind="rest", text=f"already {state}: nothing to do")
    if one["foreign"] or asked.machine_id not in (None, machine_id()):
        return Case(kind="unasked", text=f"is kept on another machine ({asked.host}): recover it there")
    if (held := client.hooks_held(one)) is not None and one["supervisor"]["alive"]:
        text = f"is {state}, and turning off waits: {held}; `overnight stop {folder.name} --now` gives that up first"
        return Case(kind="blocked", text=text)
    if one["supervisor"]["alive"] or one["shim"]["alive"]:
        return Case(kind="rest", text=f"is {state}: left alone")
    if not rebooted:
        text = f"was not interrupted by a reboot; `overnight wait {folder.name}` finds out how it ended"
        return Case(kind="unasked", text=text)
    return None


def _unwanted(folder: RunFolder, spec: RunSpec) -> Case | None:
    """Return the case of an interrupted run that nobody wants back, or can have back."""
    ending = _was_ending(folder)
    if ending is not None:
        return Case(kind="rest", text=ending)
    if spec.watched:
        return Case(kind="unasked", text="was started by hand and only watched: it cannot be started again")
    if not spec.recover:
        return Case(kind="unasked", text="was not started with --recover: start it anew with `overnight run`")
    return None


def bring_back(folder: RunFolder) -> Outcome:
    """Start the next attempt of an interrupted run and wait until its command lives; nothing is done for others."""
    try:
        with _alone(folder):
            case = judge(folder)
            if case.kind != "bring":
                result: Literal["nothing", "failed"] = "nothing" if case.kind == "rest" else "failed"
                return Outcome(name=folder.name, result=result, text=case.text)
            return _place(folder)
    except (OvernightError, OSError) as error:
        return Outcome(name=folder.name, result="failed", text=f"could not be brought back: {error}")


# -- looking -----------------------------------------------------------------------------------------------------------


def _adopted(one: dict[str, Any]) -> bool:
    """Say whether a supervisor without keepers is about to write down how the run ended."""
    return one["supervisor"]["alive"] and not one["shim"]["alive"] and one["state"] not in client.ENDED


def _boot_of(folder: RunFolder, asked: Asked) -> str:
    """Return the boot in which the run went on last: that of its start, or of its newest recovery."""
    boots = [fact["boot_id"] for fact in read_journal(folder.journal) if fact["fact"] == "recovered"]
    return str(boots[-1] if boots else asked.boot_id)


def _was_ending(folder: RunFolder) -> str | None:
    """Return a sentence if the run was being ended for a reason that a reboot does not change; None if it went on.

    The machine's own shutdown sends signals too: a stop that a scheduler or an init asked for is no such reason.
    """
    numbers = folder.attempt_numbers()
    try:
        order = read_json(folder.attempt(numbers[-1]).stop_json) if numbers else None
    except FolderError:
        order = None
    stops = [fact for fact in read_journal(folder.journal) if fact["fact"] == "request" and fact.get("kind") == "stop"]
    if any(fact.get("by") == "user" for fact in stops):
        return "was asked to stop before the reboot: nothing to do"
    if order is None or order.get("cause") is None:
        return None
    known = StopOrder(
        cause=str(order["cause"]),
        save=True,
        at=0.0,
        by=str(order.get("by") or "scheduler"),
        rollback=bool(order.get("rollback")),
    )
    if lost_with_the_machine(known):
        return None
    return f"was being ended ({order['cause']}) when the machine went down: nothing to do"


def _missing(folder: RunFolder, spec: RunSpec) -> Case | None:
    """Return the case of a command that needs what is not there (yet): its attempt would be a failure for good."""
    if not folder.run_env.exists():
        text = f"its environment ({folder.run_env}) is gone"
    elif not os.path.isdir(spec.cwd):
        text = f"its folder {spec.cwd} is not there; is its disk mounted?"
    elif not os.access(spec.executable, os.X_OK):
        text = f"{spec.executable} is not there or not executable; is its disk mounted?"
    elif not os.path.isdir(os.path.dirname(spec.log)):
        text = f"the folder of its log {spec.log} is not there; is its disk mounted?"
    else:
        return None
    return Case(kind="blocked", text=f"cannot be started again: {text}")


# -- acting ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _alone(folder: RunFolder) -> Iterator[None]:
    """Let one at a time bring a run back: two guards would start two trainings.

    The lock is on run.json, which nobody replaces; it is not the supervisors', and is gone with its holder.
    """
    handle = os.open(folder.run_json, os.O_RDWR | os.O_CLOEXEC)  # a lock on a network disk wants a file open to write
    until = time.monotonic() + LOCKED_FOR_S
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise LaunchError("another `overnight recover` has been busy with it for a minute") from None
                time.sleep(0.05)
        yield
    finally:
        os.close(handle)


def _place(folder: RunFolder) -> Outcome:
    spec = read_asked(folder).spec
    environ = launch.read_env(folder)
    known = folder.attempt_numbers()
    # The request first: a supervisor that does not find it writes down that the reboot has ended the run.
    request = drop_request(folder, "recover", by="overnight")
    try:
        launch.place(folder, spec, environ)
        return _await_attempt(folder, known[-1] if known else 0)
    except (OvernightError, OSError):
        launch.revoke(folder)  # what was said not to have been brought back must not come later
        _withdraw(request)
        raise


def _withdraw(request: Path) -> None:
    with contextlib.suppress(FileNotFoundError):  # taken, by a supervisor that lives no more
        request.unlink()


def _ended_again(folder: RunFolder) -> bool:
    """Say whether the journal has the run's end after the newest time that it was brought back."""
    last = [fact["fact"] for fact in read_journal(folder.journal) if fact["fact"] in ("recovered", "ended")]
    return last[-1:] == ["ended"]


def _await_attempt(folder: RunFolder, before: int) -> Outcome:
    """Wait until an attempt of this boot has been started, or could not be."""
    until = time.monotonic() + STARTED_WITHIN_S
    while time.monotonic() < until:
        for number in reversed(folder.attempt_numbers()):
            started = read_json(folder.attempt(number).started_json)
            if started is not None and started.get("boot_id") == boot_id():
                text = f"goes on: attempt {number}, pid {started['pid']}"
                return Outcome(name=folder.name, result="recovered", text=text, attempt=number, pid=started["pid"])
            how = read_json(folder.attempt(number).exit_json) if number > before else None
            if how is not None:
                raise LaunchError(str(how.get("error") or "its command could not be executed"))
        seen = read_json(folder.status_json) or {}
        if seen.get("state") == "finished":  # it had ended before the machine went down, and is now written down
            return Outcome(name=folder.name, result="nothing", text="already finished: nothing to do")
        told = [str(note) for note in seen.get("notes") or () if NOT_BACK in str(note)]
        if seen.get("state") in client.ENDED and told and _ended_again(folder):
            raise LaunchError(told[-1])
        if seen.get("state") in client.ENDED and seen.get("cause") != "host_rebooted":
            raise LaunchError(f"it has ended instead: {seen.get('cause_text')}")
        time.sleep(0.02)
    raise LaunchError(f"its command was not started within {STARTED_WITHIN_S:g} s: {launch.why_not(folder)}")

"""How a part of a proof has ended: by what its journal and its exit file say, which are written before all else.

A supervisor that looks at the last saves publishes the end only when that is done, so status.json may say "running" for
a minute after everything is known. Only read; nothing is waited for or ended here.
"""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from overnight import client
from overnight.errors import FolderError
from overnight.events import Exit
from overnight.exits.causes import describe
from overnight.folder import RunFolder, read_journal


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a run has ended: its last state, why (None: as it should), how its command exited, seconds that it took."""

    state: str
    cause_text: str | None
    exit_code: int | None
    signal: str | None
    seconds: float | None


def told(folder: RunFolder) -> dict[str, Any] | None:
    """Return the journal's fact that the run has ended, None if it is not there. By then all records are stored."""
    found = None
    for fact in read_journal(folder.journal):
        if fact["fact"] == "ended" and fact.get("state") in client.ENDED:
            found = fact
        elif fact["fact"] == "recovered":
            found = None
    return found


def sent(folder: RunFolder) -> str | None:
    """Return the name of the signal that a run was asked to end with; None if it was given none."""
    found = [fact.get("signal") for fact in read_journal(folder.journal) if fact["fact"] == "stopping"]
    return next((one for one in found if isinstance(one, str)), None)


def known(folder: RunFolder, status: client.Status) -> bool:
    """Say whether the run's end is written down: in its status, or already in its journal."""
    return status["state"] in client.ENDED or told(folder) is not None


def ending_of(folder: RunFolder, *, asked: bool) -> Ending | None:
    """Return how a run has ended, None if nothing says that it has; ``asked``: somebody had asked for its end.

    NoSuchRunError if its folder is gone.
    """
    one, fact, how = client.status(folder), told(folder), _exit(folder)
    if one["state"] in client.ENDED:
        return Ending(
            state=one["state"], cause_text=one["cause_text"], exit_code=one["exit_code"], signal=one["signal"],
            seconds=one["elapsed_s"] or one["active_s"],
        )  # fmt: skip
    if fact is not None:
        text, took = fact.get("text"), fact.get("elapsed_s")
        return Ending(
            state=str(fact["state"]),
            cause_text=text if isinstance(text, str) else None,
            exit_code=None if how is None else how.exit_code,
            signal=None if how is None else how.signal,
            seconds=float(took) if isinstance(took, (int, float)) else None,
        )
    if how is None:
        return None
    well = how.exit_code == 0
    return Ending(
        state="stopped" if asked else "finished" if well else "failed",
        cause_text=None if well else describe(how),
        exit_code=how.exit_code,
        signal=how.signal,
        seconds=None,
    )


def _exit(folder: RunFolder) -> Exit | None:
    """Return what the newest attempt's exit file says; None if it is not there or cannot be read."""
    numbers = folder.attempt_numbers()
    if not numbers:
        return None
    with contextlib.suppress(FolderError, msgspec.ValidationError):
        written = client.read_object(str(folder.attempt(numbers[-1]).exit_json))
        if written is not None:
            return msgspec.convert({key: written.get(key) for key in ("exit_code", "signal")}, Exit)
    return None

"""Where a run stands, read from its files alone: what a supervisor that has just come needs to go on.

start.json, started.json, stop.json and exit.json of the newest attempt say how far it came; the journal says whether
the run is over. Nothing is written here, and nothing is decided.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import msgspec

from overnight.errors import FolderError
from overnight.events import Exit
from overnight.exits.causes import SIGNAL_CODES
from overnight.facts import Facts
from overnight.folder import RunFolder, read_json
from overnight.keepers import Keepers
from overnight.moments import epoch_of
from overnight.processes import boot_id
from overnight.spec import RunSpec
from overnight.states import RunState
from overnight.supervision.attempt import Attempt
from overnight.supervision.waking import Wake


class Standing:
    """The newest attempt, the state of the run, and the stop that was under way; nothing of it before a run began."""

    attempt: Attempt | None = None
    order: dict[str, Any] | None = None
    state = RunState()
    lost = False
    """Whether the newest attempt was going on when the machine was started anew."""

    ended_before: Exit | None = None
    last_life = 0.0
    """When an attempt that was lost with the machine gave its last sign of life, in seconds since the epoch."""

    resume_at: float | None = None
    """When the back-off is over, on the clock of ``uptime_s``."""

    def __init__(self, folder: RunFolder, spec: RunSpec, facts: Facts, *, keepers: Keepers, wake: Wake) -> None:
        self.folder = folder
        numbers = [number for number in folder.attempt_numbers() if folder.attempt(number).start_json.exists()]
        if not numbers:
            return
        attempt = self.attempt = Attempt(numbers[-1], folder=folder, spec=spec, wake=wake, say=facts.say)
        started = self._look_started(attempt, keepers)
        attempt.recall(facts.target_exit)
        end = facts.attempt_ends.get(attempt.number) or {}
        course = _course(facts)
        if facts.ended is not None:
            self.last_life = epoch_of(end.get("ended_at")) or self.last_life
            self.state = msgspec.structs.replace(self._over(attempt, facts.ended, end), **course)
            return
        waiting = facts.backoff if (facts.backoff or {}).get("attempt") == attempt.number else None
        self.state = RunState(
            state="backoff" if waiting else "running" if started else "starting",
            attempt=attempt.number,
            asked=facts.user_asked,
            **course,
        )
        if waiting is not None:
            self._wait_on(attempt, waiting, end)
            return
        if attempt.command is not None:
            self.order = self._read_order(attempt, facts)
        self.lost = _boot_of(attempt) not in (None, boot_id())
        self.ended_before = self._look_before(attempt) if self.lost else None
        if self.lost and self.ended_before is None:
            self.last_life = _last_life(folder, spec)
            attempt.rebooted(self.last_life)

    def _look_before(self, attempt: Attempt) -> Exit | None:
        """Return how the command ended by itself before the machine went down, if it did: then nothing was lost."""
        try:
            how = attempt.look_ended(kept=True)
        except FolderError:
            how = None
        if how is None or how.exit_code is None or how.exit_code > SIGNAL_CODES:
            attempt.exit = attempt.ended_s = attempt.gone_at = None
            return None
        return how

    def _wait_on(self, attempt: Attempt, told: dict[str, Any], end: dict[str, Any]) -> None:
        """Go on with a back-off that an earlier supervisor began."""
        self._settle(attempt, end)
        self.state = msgspec.structs.replace(
            self.state, cause=told.get("cause"), cause_text=told.get("text"), exit=attempt.exit
        )
        self.resume_at = float(told["until_s"]) if told.get("boot_id") == boot_id() else 0.0

    def begins(self, known: int) -> list[tuple[int, int, int]]:
        """Return (source, offset, attempt) of every attempt above ``known``: where each begins in the log."""
        found = []
        for number in self.folder.attempt_numbers():
            order = read_json(self.folder.attempt(number).start_json)
            if order is not None and number > known:
                found.append((*_position(order.get("position")), number))
        return found

    def _look_started(self, attempt: Attempt, keepers: Keepers) -> bool:
        try:
            return attempt.look_started()
        except FolderError:
            command = keepers.command()
            if command is None:
                raise
            attempt.found(command)
            return True

    def _read_order(self, attempt: Attempt, facts: Facts) -> dict[str, Any] | None:
        try:
            return read_json(attempt.files.stop_json)
        except FolderError as error:
            facts.note(f"{error}; the stop begins anew")
            return {}

    def _over(self, attempt: Attempt, told: dict[str, Any], end: dict[str, Any]) -> RunState:
        self._settle(attempt, end)
        how = attempt.exit or Exit()
        return RunState(
            state=told["state"], attempt=attempt.number, cause=told.get("cause"), cause_text=told.get("text"), exit=how
        )

    def _settle(self, attempt: Attempt, end: dict[str, Any]) -> None:
        attempt.look_ended(kept=False)
        seconds = end.get("seconds")
        attempt.ended_s = float(seconds) if isinstance(seconds, (int, float)) else attempt.ended_s


def _course(facts: Facts) -> dict[str, Any]:
    """Return what earlier attempts mean for the next: restarts used, how far they came, how many came no further."""
    told = facts.backoff or {}
    reached = told.get("reached")
    try:
        return {
            "restarts": facts.backoffs,
            "rollbacks": facts.rollbacks,
            "tries": int(told.get("tries") or 0),
            "reached": None if reached is None else (float(reached[0]), int(reached[1])),
        }
    except (TypeError, ValueError, IndexError, KeyError):  # edited by hand
        return {"restarts": facts.backoffs, "rollbacks": facts.rollbacks}


def _boot_of(attempt: Attempt) -> str | None:
    """Return the boot in which an attempt's command was started; None if it never was."""
    return None if attempt.command is None else attempt.command.boot_id


def _last_life(folder: RunFolder, spec: RunSpec) -> float:
    """Return when the run gave its last sign of life, in seconds since the epoch: the newest of the files it writes."""
    newest = 0.0
    for path in (Path(spec.log), folder.journal, folder.status_json):
        with contextlib.suppress(OSError):
            newest = max(newest, path.stat().st_mtime)
    return newest


def _position(value: object) -> tuple[int, int]:
    """Return (source, offset) of start.json; the beginning for what is no position."""
    try:
        return msgspec.convert(value, tuple[int, int])
    except msgspec.ValidationError:
        return 0, 0

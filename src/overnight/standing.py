"""Where a run stands, read from its files alone: what a supervisor that has just come needs to go on.

start.json, started.json, stop.json and exit.json of the newest attempt say how far it came; the journal says whether
the run is over. Nothing is written here, and nothing is decided.
"""

from __future__ import annotations

from typing import Any

import msgspec

from overnight.attempt import Attempt
from overnight.errors import FolderError
from overnight.events import Exit
from overnight.facts import Facts
from overnight.folder import RunFolder, read_json
from overnight.keepers import Keepers
from overnight.lifecycle import RunState
from overnight.processes import boot_id
from overnight.spec import RunSpec
from overnight.waking import Wake


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What run.json says: the spec, when (seconds since the epoch) and in which boot, and where in the log it began."""

    spec: RunSpec
    epoch: float | None = None
    log_start: int = 0
    boot_id: str = ""

    @property
    def rebooted(self) -> bool:
        """Say whether the machine was started anew since then."""
        return bool(self.boot_id) and self.boot_id != boot_id()


def read_asked(folder: RunFolder) -> Asked:
    """Return what was asked; FolderError if run.json is gone or was edited into something else."""
    written = read_json(folder.run_json)
    if written is None:
        raise FolderError(f"{folder.run_json} is gone; restore it: without it nobody knows how the run is to be read")
    try:
        return msgspec.convert(written, Asked)
    except msgspec.ValidationError as error:
        raise FolderError(f"{folder.run_json} was edited ({error}): restore it") from error


class Standing:
    """The newest attempt, the state of the run, and the stop that was under way; nothing of it before a run began."""

    attempt: Attempt | None = None
    order: dict[str, Any] | None = None
    state = RunState()

    def __init__(self, folder: RunFolder, spec: RunSpec, facts: Facts, *, keepers: Keepers, wake: Wake) -> None:
        self.folder = folder
        numbers = [number for number in folder.attempt_numbers() if folder.attempt(number).start_json.exists()]
        if not numbers:
            return
        attempt = self.attempt = Attempt(numbers[-1], folder=folder, spec=spec, wake=wake, say=facts.say)
        started = self._look_started(attempt, keepers)
        attempt.recall(facts.target_exit)
        if facts.ended is not None:
            self.state = self._over(attempt, facts.ended, facts.attempt_ends.get(attempt.number) or {})
            return
        self.state = RunState(
            state="running" if started else "starting", attempt=attempt.number, asked=facts.user_asked
        )
        if attempt.command is not None:
            self.order = self._read_order(attempt, facts)

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
        attempt.look_ended(kept=False)
        seconds = end.get("seconds")
        attempt.ended_s = float(seconds) if isinstance(seconds, (int, float)) else attempt.ended_s
        how = attempt.exit or Exit()
        return RunState(
            state=told["state"], attempt=attempt.number, cause=told.get("cause"), cause_text=told.get("text"), exit=how
        )


def _position(value: object) -> tuple[int, int]:
    """Return (source, offset) of start.json; the beginning for what is no position."""
    try:
        return msgspec.convert(value, tuple[int, int])
    except msgspec.ValidationError:
        return 0, 0

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
from overnight.folder import RunFolder, boot_id, read_json
from overnight.keepers import Keepers
from overnight.lifecycle import RunState
from overnight.spec import RunSpec
from overnight.stopping import Stopping
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
    stopping: Stopping | None = None
    state = RunState()

    def __init__(self, folder: RunFolder, spec: RunSpec, facts: Facts, *, keepers: Keepers, wake: Wake) -> None:
        self.folder = folder
        numbers = [number for number in folder.attempt_numbers() if folder.attempt(number).start_json.exists()]
        if not numbers:
            return
        attempt = self.attempt = Attempt(numbers[-1], folder=folder, spec=spec, wake=wake, say=facts.say)
        started = attempt.look_started()
        attempt.recall(facts.target_exit)
        if facts.ended is not None:
            self.state = self._over(attempt, facts.ended, facts.attempt_ends.get(attempt.number) or {})
            return
        self.state = RunState(
            state="running" if started else "starting", attempt=attempt.number, asked=facts.user_asked
        )
        order = read_json(attempt.files.stop_json)
        if order is not None and attempt.command is not None:
            self.stopping = Stopping(
                spec=spec, attempt=attempt.files, command=attempt.command, keepers=keepers, say=facts.say
            )
            self.stopping.resume(order)
            self.state = msgspec.structs.replace(self.state, state="stopping", order=self.stopping.order)

    def begins(self, known: int) -> list[tuple[int, int, int]]:
        """Return (source, offset, attempt) of every attempt above ``known``: where each begins in the log."""
        found = []
        for number in self.folder.attempt_numbers():
            order = read_json(self.folder.attempt(number).start_json)
            if order is not None and number > known:
                source, offset = order.get("position") or (0, 0)
                found.append((int(source), int(offset), number))
        return found

    def _over(self, attempt: Attempt, told: dict[str, Any], end: dict[str, Any]) -> RunState:
        attempt.look_ended(kept=False)
        attempt.ended_s = end.get("seconds")
        how = attempt.exit or Exit()
        return RunState(
            state=told["state"], attempt=attempt.number, cause=told.get("cause"), cause_text=told.get("text"), exit=how
        )

"""The words of hooks: which execution a key stands for, its files, what is told in its environment, how it ended.

Both sides read here: ``starting.py`` in the supervisor and ``runner.py`` in a process of its own. Nothing is started,
written or decided here.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from overnight import processes
from overnight.errors import FolderError
from overnight.folder import RunFolder, read_json, utc
from overnight.keepers import read_identity
from overnight.processes import Identity
from overnight.quantities import RefusedError
from overnight.spec import RunSpec
from overnight.states import exit_code

OUTCOMES = ("success", "failure", "limit", "stopped", "always")
KEY = re.compile(r"(?:end-\d+|event-\d{6,}|event-end-\d+|event-failed-\d+-\d+)-(\d+)", re.ASCII)
"""Every execution has one: end of attempt, event, end told as an event, failed hook; then the number of the command."""

TOLD_OF_ALL = ("state", "cause", "cause_text", "step", "steps", "loss", "attempt", "checkpoint", "active_s", "cost")
TOLD_OF_END = ("exit_code", "signal", "code", "elapsed_s", "loss_avg", "mfu_avg", "restarts_used", "log", "last_lines")

GIVEN_UP = "it waited, and was given up by `overnight stop --now`"
REBOOTED = "the machine was started anew while it waited"

SHOWN = 200
TEXT_CHARS = 1000


class HookFiles(NamedTuple):
    """The files of one execution: what the hook gets on stdin, who runs it, and how it ended."""

    payload: Path
    claim: Path
    result: Path

    def taken(self) -> bool:
        """Say whether a runner is or has been at work here."""
        return self.claim.exists() or self.result.exists()

    def remove(self) -> None:
        """Remove them in an order in which nothing can be started again: no payload, nothing to be run."""
        for path in (self.payload, self.result, self.claim):
            with contextlib.suppress(OSError):
                path.unlink()

    def age_s(self) -> float:
        """Return how long ago the payload was written; 0 if there is none."""
        try:
            return max(0.0, time.time() - self.payload.stat().st_mtime)
        except OSError:
            return 0.0


def files_of(folder: RunFolder, key: str) -> HookFiles:
    """Return the paths of one execution."""
    hooks = folder.hooks
    return HookFiles(hooks / f"{key}.json", hooks / f"{key}.claim", hooks / f"{key}.result.json")


def parse_on_end(text: str) -> tuple[str, str]:
    """Return (command, outcome) of ``CMD[:OUTCOME]``; "always" if no outcome is named. ValueError: no command."""
    command, colon, outcome = text.strip().rpartition(":")
    if colon and outcome not in OUTCOMES and outcome.isalpha() and not command.endswith(":"):
        from difflib import get_close_matches

        near = get_close_matches(outcome, OUTCOMES, n=1, cutoff=0.8)
        if near:
            raise RefusedError(f"ends in :{outcome}; did you mean :{near[0]}? (if not, write :always behind it)")
    if not colon or outcome not in OUTCOMES:
        command, outcome = text, "always"
    if not command.strip():
        raise ValueError(text)
    return command.strip(), outcome


def command_of(spec: RunSpec, key: str) -> str:
    """Return the shell command that an execution runs; LookupError if the run was not asked for one."""
    number = number_of(key)
    if is_end(key):
        return parse_on_end(spec.on_end[number - 1])[0]
    return spec.on_event[number - 1]


def number_of(key: str) -> int:
    """Return which of the commands of its flag an execution runs, 1 for the first."""
    return int(key.rpartition("-")[2])


def is_end(key: str) -> bool:
    """Say whether an execution is one of --on-end; the others are of --on-event."""
    return key.startswith("end-")


def is_numbered(key: str) -> bool:
    """Say whether an execution is of an ordinary event: these are many, and numbered."""
    return key.startswith("event-") and key.split("-")[1].isdecimal()


def same_hook(key: str, other: str) -> bool:
    """Say whether two executions run the same command."""
    return is_end(key) == is_end(other) and number_of(key) == number_of(other)


def wanted(outcome: str, state: str, cause: str | None) -> bool:
    """Say whether an --on-end hook for ``outcome`` is for a run that ended so."""
    by_code = {0: "success", 100: "failure", 104: "failure", 106: "failure", 105: "limit", 103: "stopped"}
    return outcome in ("always", by_code.get(exit_code(state, cause), "stopped"))


def at_each_end(spec: RunSpec) -> dict[str, tuple[str, ...]]:
    """Return which --on-end commands run at which outcome, in their order."""
    asked = [parse_on_end(text) for text in spec.on_end]
    return {
        outcome: tuple(command for command, wants in asked if wants in ("always", outcome))
        for outcome in OUTCOMES
        if outcome != "always"
    }


def name_of(spec: RunSpec, key: str) -> str:
    """Return what a hook is called. Its command is not shown: it may hold an address that is a secret."""
    flag, several = ("--on-end", spec.on_end) if is_end(key) else ("--on-event", spec.on_event)
    return f"{flag} hook {number_of(key)}" if len(several) > 1 else f"{flag} hook"


def payload_of(folder: RunFolder, event: str, status: Mapping[str, Any], details: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a hook reads on stdin: what has happened, and where the run stands."""
    told = {name: status.get(name) for name in (*TOLD_OF_ALL, *(TOLD_OF_END if event == "end" else ()))}
    found = details.get("verdict")
    text = found.get("text") if isinstance(found, dict) else None
    head = {"event": event, "run": folder.name, "folder": str(folder.path), "at": utc()}
    return {**head, "text": text or told["cause_text"], **told, **details}


def environment(folder: RunFolder, key: str) -> dict[bytes, bytes]:
    """Return the environment of an execution: the user's own, with what has happened in OVERNIGHT_*."""
    try:
        payload = read_json(files_of(folder, key).payload) or {}
    except FolderError:
        payload = {}  # damaged by hand; the runner still gets what is there
    checkpoint = payload.get("checkpoint")
    given = {
        "ROLE": "hook",
        "RUN_ID": folder.name,
        "RUN_DIR": str(folder.path),
        **{name.upper(): payload.get(name) for name in ("event", "state", "cause", "text", "step")},
        "LAST_CHECKPOINT": checkpoint.get("path") if isinstance(checkpoint, dict) else None,
    }
    environ = dict(os.environb)
    for name, value in given.items():
        text = "" if value is None else str(value).replace("\0", "")[:TEXT_CHARS]
        try:
            data = os.fsencode(text)  # a path in an old encoding comes back as it was
        except UnicodeEncodeError:
            data = text.encode("utf-8", "replace")
        environ[f"OVERNIGHT_{name}".encode()] = data
    return environ


def well(result: Mapping[str, Any]) -> bool:
    """Say whether a hook did what it should."""
    return result.get("exit_code") == 0 and not result.get("timed_out")


def sentence(result: Mapping[str, Any], timeout_s: float) -> str:
    """Return how a hook ended, with the last line that it wrote."""
    lines = [line for line in str(result.get("output") or "").splitlines() if line.strip()]
    last = "".join(one if one.isprintable() else " " for one in lines[-1]).strip()[-SHOWN:] if lines else ""
    if result.get("error") is not None:
        return str(result["error"])
    if result.get("timed_out"):
        how = f"took longer than {timeout_s:g} s and was ended"
    elif result.get("signal") is not None:
        how = f"was ended by {result['signal']}"
    else:
        how = f"exited {result.get('exit_code')}"
    return f"{how}: {last}" if last else how


def runs_it(path: Path) -> Identity | None:
    """Return who has claimed an execution; None if nobody has, or the disk was too full to say who."""
    try:
        return read_identity(read_json(path))
    except FolderError:
        return None


def users_umask() -> int:
    """Return the umask of our parent, the shim, which is the user's: ours is for the run folder only."""
    for line in (processes.read_proc(os.getppid(), "status") or b"").splitlines():
        if line.startswith(b"Umask:"):
            return int(line.split()[1], 8)
    return 0o022

"""What is worth a sentence beside a run's status: its log, its supervisor's log, the stop that is under way.

Only reads run folders, and only a little of them; a damaged or missing file is no sentence, never an error.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from overnight import client
from overnight.cli import lastsave
from overnight.cli.follow import offset_of_last_shown
from overnight.cli.render import ending, held_words, hook_words, red, span
from overnight.clocks import boot_clock
from overnight.errors import FolderError
from overnight.folder import RunFolder, read_journal
from overnight.printable import harmless
from overnight.screen import Lines

COUNTED_BYTES = 1 << 20
CRASH_LINES = 20

# -- what was asked --------------------------------------------------------------------------------------------------


def asked(folder: RunFolder) -> dict[str, Any]:
    """Return what run.json holds; empty if nobody can read it."""
    return _object(folder.run_json)


def asked_spec(folder: RunFolder) -> dict[str, Any]:
    """Return the settings of a run as run.json holds them; empty if nobody can read them."""
    spec = asked(folder).get("spec")
    return spec if isinstance(spec, dict) else {}


def _object(path: Path) -> dict[str, Any]:
    try:
        return client.read_object(str(path)) or {}
    except FolderError:
        return {}


# -- its log ---------------------------------------------------------------------------------------------------------


def last_lines(path: str, count: int, start: int = 0) -> list[str]:
    """Return the last ``count`` lines of a file, harmless, of those that begin at ``start`` or after it."""
    try:
        with open(path, "rb") as stream:
            stream.seek(max(start, offset_of_last_shown(path, count)))
            lines = Lines()
            shown = [line.text for line in lines.feed(stream.read(COUNTED_BYTES))]
            return [*shown, *(line.text for line in lines.flush())][-count:]
    except OSError:
        return []


def own_start(folder: RunFolder, log: str) -> int:
    """Return where in its log a run began to write: behind what an older run left in a file given with --log."""
    begin = asked(folder).get("log_start")
    try:
        return begin if type(begin) is int and begin <= os.stat(log).st_size else 0
    except OSError:
        return 0


def unread(folder: RunFolder, one: client.Status) -> str | None:
    """Say that a run prints and nothing of it is read as progress: its health cannot be judged then."""
    if one.get("records") != 0 or not one["log"]:
        return None
    lines = _count_lines(one["log"], own_start(folder, one["log"]))
    if lines is None:
        return None
    hint = f"see `overnight read {folder.name}` and `--pattern`"
    if one["state"] in client.ENDED:
        return f"no progress line was read ({lines}), so a NaN would not have been seen: {hint}"
    return f"{lines}, none read as progress, so a NaN would not be seen: {hint}"


def _count_lines(path: str, start: int) -> str | None:
    try:
        with open(path, "rb") as stream:
            stream.seek(start)
            data = stream.read(COUNTED_BYTES)
    except OSError:
        return None
    if not data:
        return None
    count = data.count(b"\n") + (not data.endswith(b"\n"))
    if len(data) == COUNTED_BYTES:
        return f"more than {count} lines"
    return f"{count} line{'s' if count > 1 else ''}"


# -- its end ---------------------------------------------------------------------------------------------------------


HINT_BEGINS = "a restart may mend this"
"""How the hint of ``lifecycle.HINT`` begins; importing that would cost every verb 20 ms."""


def farewell(folder: RunFolder, one: client.Status, *, colours: bool = False) -> str:
    """Return how a run ended, and on lines of their own what else its owner should know."""
    lines = [ending(one), *(f"  {text}" for text in remarks(folder, one))]
    if (saved := last_save_words(folder, one)) is not None:
        lines.append(f"  {saved}")
    failed, left = hook_words(one), client.hooks_left(one)
    if failed:
        lines.append(red(f"  {failed}", colours=colours))
    kept, waits = one["supervisor"]["alive"], held_words(one)
    if waits is not None and kept:
        lines.append(f"  {waits} (`overnight stop {one['name']} --now` gives it up)")
    elif left:
        lines.append(
            f"  {left} hook{'s' if left > 1 else ''} {'still going on' if kept else 'not known to have ended'}"
        )
    return "\n".join(lines)


def last_save_words(folder: RunFolder, one: client.Status) -> str | None:
    """Return what became of the final save of a run that was stopped; None for any other run."""
    asked = lastsave.asked_of(folder)
    return lastsave.judge(one, asked).text if asked is not None or one["state"] == "stopped" else None


def remarks(folder: RunFolder, one: client.Status) -> list[str]:
    """Return what else is worth saying of a run that is shown: how it was killed, where to look, what was not read."""
    found = [_killed(folder) if one["state"] == "stopped" and one["signal"] == "SIGKILL" else None]
    if one["state"] in ("failed", "gave_up"):
        found.append(f"see `overnight logs {folder.name} -n {CRASH_LINES}`")
        if one["cause"] == "host_rebooted":
            found.append(_after_reboot(folder))
        found += [str(note) for note in one.get("notes") or () if str(note).startswith(HINT_BEGINS)]
    found.append(unread(folder, one))
    return [text for text in found if text]


def _after_reboot(folder: RunFolder) -> str:
    if asked_spec(folder).get("recover"):
        return f"`overnight recover {folder.name}` starts its next attempt"
    return "it was started without --recover, so it cannot be started again from here"


def _killed(folder: RunFolder) -> str | None:
    try:
        facts = [fact for fact in read_journal(folder.journal) if fact["fact"] == "killed"]
    except OSError:
        return None
    if not facts:
        return None
    return harmless(f"killed after {span(facts[-1].get('seconds'))}: {facts[-1].get('reason')}")


# -- its supervisor --------------------------------------------------------------------------------------------------


def unguarded_words(folder: RunFolder, one: client.Status) -> str | None:
    """Return what to tell somebody who stays with a run that nothing judges or stops any more; None if all is well."""
    said = supervisor_words(folder, one) if one["unguarded"] else None
    return None if said is None else f"{folder.name} is unguarded, so nothing is judged or stopped: {said}"


def supervisor_words(folder: RunFolder, one: client.Status) -> str | None:
    """Return what a supervisor that cannot live says last, for a run that it should keep; None if all is well."""
    if not (one["unguarded"] or one["stale"]):
        return None
    said = next(iter(last_lines(str(folder.supervisor_log), 1)), "")
    if not said:
        return f"{folder.supervisor_log} says nothing" if one["unguarded"] else None
    try:
        value = json.loads(said)
        said = str(value["error"]) if isinstance(value, dict) and "error" in value else said
    except (ValueError, RecursionError):
        pass
    return harmless(f"{folder.supervisor_log} ends: {said}")


# -- its stop --------------------------------------------------------------------------------------------------------

OTHER = {"SIGINT": "SIGTERM", "SIGTERM": "SIGINT"}


class StopNews:
    """Tells each rung of a stop once, as the run's stop.json shows it."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.told = ""

    def look(self) -> tuple[str, str] | None:
        """Return (what was done, what asking again does), if there is something new since the last look."""
        numbers = self.folder.attempt_numbers()
        stop = _object(self.folder.attempt(numbers[-1]).stop_json) if numbers else {}
        rung = stop.get("rung") if stop.get("signalled") or stop.get("rung") == "kill" else None
        if rung not in ("asked", "other", "kill") or rung == self.told:
            return None
        self.told = rung
        if rung == "kill":
            return "killed", ""
        name = _signal_name(stop.get("signal"))
        if rung == "other":
            return f"{OTHER.get(name, 'SIGTERM')} was sent as well", "kill"
        other = f"the other signal, {OTHER.get(name, 'SIGTERM')}"
        return f"asked with {name}{_pids(stop)}{self._patience(stop)}", other

    def _patience(self, stop: dict[str, Any]) -> str:
        grace_s, began = asked_spec(self.folder).get("grace_s"), stop.get("began")
        if not isinstance(grace_s, (int, float)) or not isinstance(began, (int, float)):
            return ""
        return f"; killed in {max(0.0, grace_s - (boot_clock() - began)):.0f} s unless it saves"


def _signal_name(number: object) -> str:
    try:
        return signal.Signals(number).name if isinstance(number, int) else "a signal"
    except ValueError:
        return f"signal {number}"


def _pids(stop: dict[str, Any]) -> str:
    targets = stop.get("targets")
    pids = [str(one[0]) for one in targets if isinstance(one, list) and one] if isinstance(targets, list) else []
    more = f" and {len(pids) - 3} more" if len(pids) > 3 else ""
    return f" (pid {', '.join(pids[:3])}{more})" if pids else ""

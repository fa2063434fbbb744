"""Who is told: starts the run's hooks, each exactly once, and takes in how they ended. It never waits for one.

An execution is a key and three files: the payload (made here), the claim and the result (made by ``runner.py``, a
process of its own that outlives the supervisor). A payload without a claim is to be started, one with a claim is waited
for: so a supervisor that has just come goes on where the one before it was killed. What a hook does and whether it
works never changes the run, and nothing here decides about the run. When --on-end may start is ``guard``'s to say.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from overnight import processes
from overnight.clocks import boot_clock
from overnight.errors import FolderError
from overnight.facts import Facts
from overnight.folder import RunFolder, read_journal, read_json, utc, write_json
from overnight.hooks.files import (
    GIVEN_UP,
    KEY,
    REBOOTED,
    environment,
    files_of,
    is_end,
    is_numbered,
    name_of,
    number_of,
    parse_on_end,
    payload_of,
    runs_it,
    same_hook,
    sentence,
    users_umask,
    wanted,
    well,
)
from overnight.hooks.folding import Fold
from overnight.hooks.guard import Guard
from overnight.spec import RunSpec
from overnight.states import ENDED

AT_ONCE = 4
"""Runs of one --on-event command at the same time: as many as come in a minute, which is what a hook may take."""

PATIENCE_S = 3.0
"""How long a hook lets those before it end: a message should be out before the machine is turned off."""

TRIES = 6
AGAIN_S = 0.5
"""Doubled with each try: half a minute for a full disk or a full process table to be mended."""

OVERDUE_S = 60.0
KEPT = 50


class Execution(msgspec.Struct, kw_only=True):
    """One run of one hook that has not been told as ended. ``payload`` is what could not be written yet."""

    key: str
    payload: dict[str, Any] | None = None
    pid: int | None = None  # its runner, if that is a child of ours
    since: float | None = None  # when it was started, or found to be running; None: it waits
    tries: int = 0
    made: float = 0.0
    next_at: float = 0.0


class Hooks:
    """The hooks of one run. ``describe`` returns the current status; ``now`` is always a time of the boot clock."""

    again_s = AGAIN_S
    kept = KEPT

    def __init__(
        self,
        folder: RunFolder,
        spec: RunSpec,
        facts: Facts,
        describe: Callable[[], dict[str, Any]],
        *,
        fold: Fold | None = None,
    ) -> None:
        self.folder = folder
        self.spec = spec
        self.facts = facts
        self.describe = describe
        self.fold = fold or Fold()
        self.guard = Guard(folder, facts)
        self.held_json = folder.hooks / "held.json"
        self.live: dict[str, Execution] = {}
        self.known: set[str] = set()
        self.told: set[str] = set()
        self.children: set[int] = set()
        self.finished: list[str] = []
        self.failures: dict[str, str] = {}
        self.next_event = 1
        self.ended_attempt: int | None = None
        self.fold_moved = False
        if spec.on_end or spec.on_event:
            self._recall()

    # -- what the supervisor says --------------------------------------------------------------------------------------

    def tell(self, event: str, now: float, **details: Any) -> None:
        """Tell the --on-event hooks what has happened, or hold it if there was much in the last minute."""
        if self.spec.on_event:
            self.fold_moved = True
            details.setdefault("at", utc())
            if self.fold.offer(event, now, details, hold=self._choked()):
                self._start_event(event, details)

    def end(self) -> None:
        """Write down which hooks fit the run's end; ``turn`` starts them. Doing it again changes nothing."""
        if not (self.spec.on_end or self.spec.on_event):
            return
        status = self.describe()
        state, attempt = str(status.get("state")), int(status.get("attempt") or 0)
        if state not in ENDED or self.ended_attempt == attempt:
            return
        self.ended_attempt = attempt
        self.guard.begin(attempt)
        folded = self.fold.held
        payload = {**self._payload("end", {}), **({"folded": folded} if folded else {})}
        for number in range(1, len(self.spec.on_event) + 1):
            self._put(f"event-end-{attempt:03d}-{number}", payload)
        for number, text in enumerate(self.spec.on_end, 1):
            if wanted(parse_on_end(text)[1], state, status.get("cause")):
                self._put(f"end-{attempt:03d}-{number}", payload)
        if self.fold.flush() is not None:
            self._save_fold()

    def turn(self, now: float) -> bool:
        """Take in what has ended and start what waits; True if something has changed."""
        if not (self.live or self.children or self.fold.held or self.fold_moved):
            return False
        changed = False
        gone = self._reap()
        for one in list(self.live.values()):
            changed = self._look(one, now, gone) or changed
        folded = None if self._choked() else self.fold.take(now)
        if folded is not None:
            self.fold_moved = True
            kinds = ", ".join(f"{count} {kind}" for kind, count in folded["kinds"].items())
            self._start_event("folded", {**folded, "text": f"{folded['count']} more: {kinds}"})
        changed = self._start_waiting(now) or changed
        changed = self._give_up(GIVEN_UP) or changed if self.facts.unwanted else changed
        if self.fold_moved:
            self._save_fold()
        return changed or folded is not None

    def next_look_s(self, now: float) -> float | None:
        """Return when ``turn`` wants to be called though nothing happens, in seconds; None if it does not."""
        due_s = None if self._choked() else self.fold.due_s(now)
        waits = [] if due_s is None else [due_s]
        for one in self.live.values():
            if one.since is not None:
                waits.append(min(1.0, max(0.05, (now - one.since) / 10)))
            elif is_end(one.key) and self.guard.waiting():
                waits.append(max(0.05, self.guard.next_look_s(now)))
            else:
                waits.append(max(0.2, one.next_at - now, one.made + PATIENCE_S - now))
        return min(waits, default=None)

    def busy(self) -> bool:
        """Say whether a hook is running or waiting, or something is yet to be told."""
        return bool(self.live or self.fold.held)

    def summary(self) -> dict[str, Any] | None:
        """Return {pending, failed, text, held} for the status; None if the run has no hooks."""
        if not (self.spec.on_end or self.spec.on_event):
            return None
        last = next(reversed(self.failures.values()), None)
        count = len(self.live) + (self.fold.held is not None)
        return {"pending": count, "failed": len(self.failures), "text": last, "held": self._held()}

    def _held(self) -> str | None:
        """Return what the hooks wait for; None while any of them runs, or has to wait for nothing but its turn."""
        hold = None if self.spec.on_end_guard == "off" or not self.live else self.guard.hold
        idle = self.fold.held is None and all(is_end(key) and one.since is None for key, one in self.live.items())
        return hold.text if hold is not None and idle else None

    # -- where the one before was killed -------------------------------------------------------------------------------

    def _recall(self) -> None:
        with contextlib.suppress(OSError):
            self.folder.hooks.mkdir(mode=0o700, exist_ok=True)
        try:
            names = sorted(os.listdir(self.folder.hooks))
        except OSError:
            return
        for fact in read_journal(self.folder.journal):
            if fact["fact"] == "hook_started":
                self.known.add(str(fact.get("key")))
            elif fact["fact"] == "hook_ended":
                self.told.add(key := str(fact.get("key")))
                if fact.get("ok") is False and KEY.fullmatch(key):
                    self.failures[key] = f"{name_of(self.spec, key)} failed: {fact.get('text')}"
            elif fact["fact"] in ("hook_held", "hook_released"):
                with contextlib.suppress(KeyError, TypeError, ValueError):  # edited by hand
                    self.guard.recall(fact)
        keys = {name.removesuffix(".json") for name in names if KEY.fullmatch(name.removesuffix(".json"))}
        self.next_event = 1 + max((int(key.split("-")[1]) for key in keys | self.told if is_numbered(key)), default=0)
        self.finished = sorted(key for key in keys & self.told if is_numbered(key))
        for key in sorted(keys - self.told, key=lambda key: (is_end(key), key)):
            if number_of(key) <= len(self.spec.on_end if is_end(key) else self.spec.on_event):
                self.live[key] = Execution(key=key, made=boot_clock() - files_of(self.folder, key).age_s())
        if self.guard.rebooted():
            self._give_up(REBOOTED)  # it may turn the machine off that somebody has just turned on
        with contextlib.suppress(FolderError, KeyError, TypeError, ValueError):
            self.fold.restore(read_json(self.held_json) or {}, boot_clock())

    # -- from an event to a payload ------------------------------------------------------------------------------------

    def _payload(self, event: str, details: Mapping[str, Any]) -> dict[str, Any]:
        return payload_of(self.folder, event, self.describe(), details)

    def _start_event(self, event: str, details: Mapping[str, Any]) -> None:
        payload = self._payload(event, details)
        for number in range(1, len(self.spec.on_event) + 1):
            self._put(f"event-{self.next_event:06d}-{number}", payload)
        self.next_event += 1

    def _put(self, key: str, payload: dict[str, Any]) -> None:
        """Write the payload: from now on the hook will run, whoever is killed. One that is there is left as it is."""
        if not (key in self.live or key in self.told or files_of(self.folder, key).payload.exists()):
            one = self.live[key] = Execution(key=key, payload=payload, made=boot_clock())
            self._write(one)  # if it cannot be, it is tried again when it is to be started

    def _choked(self) -> bool:
        """Say whether an --on-event hook is so slow that its runs queue up: then events are held, not queued."""
        waiting = [number_of(key) for key, one in self.live.items() if one.since is None and not is_end(key)]
        return any(waiting.count(number) >= AT_ONCE for number in set(waiting))

    def _write(self, one: Execution) -> str | None:
        """Write a payload down; a sentence if it cannot be."""
        try:
            self.folder.hooks.mkdir(mode=0o700, exist_ok=True)
            try:
                write_json(files_of(self.folder, one.key).payload, one.payload)
            except OSError:
                if not self.folder.drop_ballast():
                    raise
                write_json(files_of(self.folder, one.key).payload, one.payload)
        except OSError as error:
            return f"{files_of(self.folder, one.key).payload} cannot be written: {error.strerror}"
        one.payload = None
        return None

    def _save_fold(self) -> None:
        self.fold_moved = False
        with contextlib.suppress(OSError):  # then a later supervisor tells too much rather than too little
            write_json(self.held_json, {"times": self.fold.times, "held": self.fold.held})

    # -- from a payload to a result ------------------------------------------------------------------------------------

    def _start_waiting(self, now: float) -> bool:
        """Start what waits and may be started; True if something was."""
        changed = False
        for one in list(self.live.values()):
            if one.since is not None or now < one.next_at:
                continue
            if one.payload is not None and (trouble := self._write(one)) is not None:
                changed = self._postpone(one, now, trouble) or changed
            elif files_of(self.folder, one.key).taken():
                one.since = now
            elif self._may_start(one, now) and (not is_end(one.key) or self._free(now)):
                changed = True
                self._spawn(one, now)
        return changed

    def _free(self, now: float) -> bool:
        """Say whether what may turn the machine off may start; tells once that it may not."""
        if self.spec.on_end_guard == "off":
            return True
        free, news = self.guard.allows(now), self.guard.take_news()
        if news is not None:
            self.tell("hook_held", now, text=f"turning off waits: {news}")
        return free

    def _give_up(self, why: str) -> bool:
        """Do without the hooks that were held back and have not begun; True if there were any."""
        held = [] if self.guard.hold is None else [one for one in self.live.values() if is_end(one.key)]
        for one in (left := [one for one in held if not (one.since or files_of(self.folder, one.key).taken())]):
            self._ended(one, ok=None, text=why)
        return bool(left)

    def _may_start(self, one: Execution, now: float) -> bool:
        """Say whether it is the turn of an execution: in order, and messages before what may turn the machine off."""
        earlier = list(self.live.values())
        if is_end(one.key):
            number = number_of(one.key)
            before = [it for it in earlier if not is_end(it.key) or number_of(it.key) < number]
        else:
            before = [it for it in earlier[: earlier.index(one)] if same_hook(it.key, one.key)]
        if before and now - one.made < PATIENCE_S:
            return False
        return not is_numbered(one.key) or sum(it.since is not None for it in before) < AT_ONCE

    def _spawn(self, one: Execution, now: float) -> None:
        if one.key not in self.known:
            self.known.add(one.key)
            self.facts.say("hook_started", key=one.key, hook=name_of(self.spec, one.key))
        words = [sys.executable, "-I", "-m", "overnight.hooks.runner", str(self.folder.path), one.key]
        mask = os.umask(users_umask())
        try:
            one.pid = processes.start_apart(words, environment(self.folder, one.key))
        except OSError as error:
            self._postpone(one, now, f"its runner could not be started: {error.strerror}")
        else:
            one.since = now
            self.children.add(one.pid)
        finally:
            os.umask(mask)

    def _postpone(self, one: Execution, now: float, trouble: str) -> bool:
        """Try it again later, or give it up; True if it was given up."""
        one.tries += 1
        one.since, one.next_at = None, now + self.again_s * 2.0**one.tries
        return one.tries >= TRIES and self._ended(one, ok=False, text=trouble)

    def _reap(self) -> set[int]:
        """Reap the runners that have ended, also those that only waited for what their hook left in the background."""
        gone = set()
        for pid in self.children:
            try:
                if os.waitpid(pid, os.WNOHANG)[0]:
                    gone.add(pid)
            except ChildProcessError:
                gone.add(pid)
        self.children -= gone
        return gone

    def _look(self, one: Execution, now: float, gone: set[int]) -> bool:
        """Look whether an execution has ended; True if it has."""
        if one.since is None:
            return False
        files = files_of(self.folder, one.key)
        missed = one.pid in gone
        if missed:
            one.pid = None
        holder = None if one.pid is not None else runs_it(files.claim)
        dead = holder is not None and not processes.is_alive(holder)
        try:
            result = read_json(files.result)  # after the look at its runner: it may have come just before the death
        except FolderError as error:
            result = {"error": str(error)}
        if result is not None:
            return self._ended(one, ok=well(result), text=sentence(result, self.spec.hook_timeout_s))
        if dead and holder is not None and holder.boot_id != processes.boot_id():
            return self._ended(one, ok=None, text="the machine was started anew while it ran")
        if dead:
            return self._ended(one, ok=False, text="its runner was killed")
        if missed and not files.taken():
            return self._postpone(one, now, "its runner could not be started; supervisor.log may say why")
        if now - one.since > self.spec.hook_timeout_s + OVERDUE_S:
            return self._ended(one, ok=False, text="its runner does not answer")
        return False

    def _ended(self, one: Execution, *, ok: bool | None, text: str) -> bool:
        """Tell how an execution ended. The journal is last: until then a later supervisor does all this again."""
        key = one.key
        del self.live[key]
        if ok is False:
            said = f"{name_of(self.spec, key)} failed: {text}"
            if is_end(key):
                payload = self._payload("hook_failed", {"text": said})
                for number in range(1, len(self.spec.on_event) + 1):
                    self._put(f"event-failed-{key.removeprefix('end-')}-{number}", payload)
            if is_end(key) or not any(same_hook(key, other) for other in self.failures):
                self.facts.note(said)  # of a message that never gets through only the first, or nothing else is seen
            self.failures[key] = said
        self.facts.say("hook_ended", key=key, ok=ok, text=text)
        self.told.add(key)
        if is_numbered(key):
            self.finished.append(key)
            self._forget()
        return True

    def _forget(self) -> None:
        """Remove the files of events long past: a restless run must not fill the folder. The journal has them."""
        while len(self.finished) > self.kept * len(self.spec.on_event):
            files_of(self.folder, self.finished.pop(0)).remove()

"""Proves that a run lives, grows and survives a logout: what is looked at, what is asked of it, and the evidence kept.

Processes are known by pid, start time and boot, never by their command lines, so a check cannot find itself. Nothing
is written but one new folder below the run's ``evidence/``; no request, no signal to the run and no decision about it
may enter here. The logout is rehearsed by the caller, who has a command line to run on a terminal.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from overnight import client, processes, targets
from overnight.clocks import uptime_s
from overnight.folder import RunFolder, read_json, utc, write_atomic, write_json
from overnight.keepers import read_identity
from overnight.moments import epoch_of
from overnight.processes import Identity
from overnight.requests.asked import read_asked
from overnight.wiring import make_monitor

READ_BYTES = 1 << 20  # of the log, searched for its last step
KEPT_BYTES = 1 << 16  # of each tail, as evidence
LOOK_S = 0.2
PRESENT_S = 3.0  # a supervisor that was killed just now has a successor within 1.5 s
STATUS_LAG_S = 8.0  # status.json is published every 3 s; later on a loaded machine
LOGINS = frozenset("sshd sshd-session login agetty getty mosh-server xterm gnome-terminal- konsole".split())
LOOKED_AT = ("at", "size", "step", "told", "attempt")
NAMES = ("processes", "terminal", "steps", "disconnect", "hours")


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One question with its answer in a sentence, and the facts behind it."""

    name: str
    ok: bool
    text: str
    facts: dict[str, Any] = {}


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """All checks of a run, where the evidence lies, and the hours since its first start (None: unknown)."""

    name: str
    ok: bool
    checks: tuple[Check, ...]
    evidence: str
    hours: float | None


# -- processes ---------------------------------------------------------------------------------------------------------


class Person(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the run at one moment. ``terminal`` and ``streams`` are None where there is none, or none told."""

    role: str
    identity: Identity
    name: str
    state: str
    parent: int
    group: int
    session: int
    terminal: str | None
    streams: tuple[str | None, ...]
    hangup: str

    def line(self) -> str:
        """Return the process line that is kept as evidence."""
        family = f"ppid={self.parent} pgid={self.group} sid={self.session} tty={self.terminal or '-'}"
        streams = " ".join(f"{word}={to or '-'}" for word, to in zip(("in", "out", "err"), self.streams, strict=True))
        who = f"{self.role:<10} pid={self.identity.pid} start={self.identity.start_ticks} state={self.state}"
        return f"{who} {family} hup={self.hangup} {streams} {self.name}"


def lines_of(seen: Sequence[Person]) -> bytes:
    """Return process lines as a file holds them."""
    return "".join(f"{one.line()}\n" for one in seen).encode("utf-8", "backslashreplace")


def see(role: str, identity: Identity | None) -> Person | None:
    """Look at exactly this process; None if it does not live."""
    known = processes.stat(identity.pid) if identity is not None and processes.is_alive(identity) else None
    if known is None or identity is None:
        return None
    return Person(
        role=role, identity=identity, name=known.comm, state=known.state, parent=known.ppid, group=known.pgrp,
        session=known.session, terminal=_terminal(known.pid), hangup=_hangup(known.pid),
        streams=tuple(_stream(known.pid, number) for number in range(3)),
    )  # fmt: skip


def _terminal(pid: int) -> str | None:
    """Return the controlling terminal: field 7 of stat, where 0 is none."""
    fields = (processes.read_proc(pid, "stat") or b"").rpartition(b")")[2].split()
    number = int(fields[4]) if len(fields) > 4 else 0
    major, minor = number >> 8 & 0xFFF, number & 0xFF | number >> 12 & 0xFFF00
    if not number:
        return None
    return f"/dev/pts/{(major - 136) * 256 + minor}" if 136 <= major <= 143 else f"tty {major}:{minor}"


def _stream(pid: int, number: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/fd/{number}")
    except OSError:
        return None


def _hangup(pid: int) -> str:
    lines = (processes.read_proc(pid, "status") or b"").splitlines()
    masks = {key: value for key, _, value in (line.partition(b":") for line in lines)}
    for word, field in (("blocked", b"SigBlk"), ("ignored", b"SigIgn"), ("caught", b"SigCgt")):
        if int(masks.get(field, b"0"), 16) >> (signal.SIGHUP - 1) & 1:
            return word
    waits = (processes.read_proc(pid, "wchan") or b"").startswith(b"do_sigtimedwait")
    return "awaited" if waits else "default"  # whoever waits for signals has them unblocked for so long


def people(folder: RunFolder, adopted: dict[str, Any]) -> list[Person]:
    """Return those of guard, shim, supervisor, command and training that live, as the run's files name them.

    ``adopted`` ({"pid", "alive"}) is the supervisor of a run without keepers, which only status.json names.
    """
    kept = read_json(folder.shim_json) or {}
    boot = {"boot_id": kept["boot_id"]} if kept.get("boot_id") else {}
    named = {role: kept.get(role) for role in ("guard", "shim", "supervisor")}
    found = {role: see(role, read_identity({**boot, **one})) for role, one in named.items() if isinstance(one, dict)}
    if found.get("supervisor") is None and adopted["alive"]:
        found["supervisor"] = see("supervisor", processes.identify(adopted["pid"]))
    numbers = folder.attempt_numbers()
    started = read_json(folder.attempt(numbers[-1]).started_json) if numbers else None
    command = found["command"] = see("command", read_identity(started))
    pids = targets.find_targets(command.identity.pid).pids if command is not None else ()
    below = [see("training", processes.identify(pid)) for pid in pids if command and pid != command.identity.pid]
    return [one for one in (*found.values(), *below) if one is not None]


def not_live(folder: RunFolder, one: client.Status) -> str | None:
    """Return why a run cannot pass by its state alone, None if it should be training."""
    why = one.get("cause_text") or one["cause"] or "no reason is known"
    if one["foreign"]:
        return f"it is kept on another machine; run `overnight check {folder.name}` there"
    if one["state"] in client.ENDED:
        return f"it has ended: {one['state']} ({one['cause'] or 'unknown'}), {why}"
    soon = one.get("backoff_until") or "its time"
    told = {"stopping": f"it is being stopped: {why}", "backoff": f"it waits until {soon} to be started again: {why}"}
    told |= {"damaged": str(why), **dict.fromkeys(("pending", "starting"), "its command has not been started yet")}
    return told.get(one["state"])


def _processes(folder: RunFolder, seen: Sequence[Person], why: str | None) -> Check:
    roles = {one.role for one in seen}
    named = ", ".join(f"{one.role} (pid {one.identity.pid}, {one.name})" for one in seen) or "nobody"
    if why is None and "command" not in roles:
        why = "the command is not alive: its pid is gone, or belongs to a later process by now"
    elif why is None and not roles & {"guard", "shim"}:
        why = "guard and shim are gone, so nobody would start a dead supervisor again"
    elif why is None and "supervisor" not in roles:
        why = f"no supervisor lives, so nothing is judged: see {folder.supervisor_log}"
    text = f"{named} live, each by pid and start time" if why is None else f"{why}; alive: {named}"
    facts = {"processes": [msgspec.to_builtins(one) for one in seen], "why": why}
    return Check(name="processes", ok=why is None, text=text, facts=facts)


# -- terminals ---------------------------------------------------------------------------------------------------------


def _above(pid: int) -> list[dict[str, Any]]:
    """Return the ancestors of a process from its parent to pid 1."""
    found: list[dict[str, Any]] = []
    known = processes.stat(pid)
    while known is not None and known.ppid > 0 and len(found) < targets.DEPTH:
        known = processes.stat(known.ppid)
        if known is not None:
            login = known.comm in LOGINS or ((processes.cmdline(known.pid) or ("",))[0]).startswith("-")
            found.append({"pid": known.pid, "name": known.comm, "terminal": _terminal(known.pid), "login": login})
    return found


def _ties(one: Person, own: Collection[int], above: Sequence[dict[str, Any]]) -> list[str]:
    """Return what ties a process to somebody's terminal or login."""
    found = []
    if one.terminal is not None:
        found.append(f"its controlling terminal is {one.terminal}")
    for word, stream in zip(("output", "error output"), one.streams[1:], strict=True):
        if stream is not None and stream.startswith(("/dev/pts/", "/dev/tty", "/dev/console")):
            found.append(f"its {word} goes to {stream}")
    leader = processes.stat(one.session) if one.session not in {0, *own} else None
    if leader is not None and not leader.dead:
        found.append(f"it is in the session of {leader.comm} (pid {leader.pid})")
    for who in above if one.parent not in own else ():
        if who["pid"] != 1 and (who["terminal"] or who["login"]):
            where = f" on {who['terminal']}" if who["terminal"] else ""
            found.append(f"it stands below {who['name']} (pid {who['pid']}{where})")
            break
    return found


def _terminals(seen: Sequence[Person]) -> Check:
    own = {one.identity.pid for one in seen}
    for one in seen:
        own.update(processes.descendants(one.identity.pid) if one.role == "command" else ())
    above = {one.identity.pid: _above(one.identity.pid) for one in seen}
    ties = {f"{one.role} (pid {one.identity.pid})": _ties(one, own, above[one.identity.pid]) for one in seen}
    tied = "; ".join(f"the {who}: {' and '.join(said)}" for who, said in ties.items() if said)
    sessions = ", ".join(str(one) for one in sorted({one.session for one in seen}))
    first = next((who["terminal"] for chain in above.values() for who in chain if who["pid"] == 1), None)
    note = f"; but pid 1 is on {first}: when that ends, so does this container" if first else ""
    text = f"of its {len(seen)} processes none has a terminal or is below or in a login's session ({sessions}){note}"
    if tied:
        text = (
            f"tied to a terminal: {tied}. An open `overnight run` can be left with Ctrl-C; a training that was started "
            f"by hand has to be started anew with `overnight run -- COMMAND`"
        )
    facts = {"ancestors": {str(pid): chain for pid, chain in above.items()}, "ties": ties}
    return Check(name="terminal", ok=not tied, text=text, facts=facts)


# -- steps -------------------------------------------------------------------------------------------------------------


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """The log and the figures at one moment. Steps are None where none was understood; ``gap`` is steps per line."""

    at: str
    file: int
    size: int
    step: int | None
    told: int | None
    attempt: int | None
    gap: int
    dt_s: float | None
    tail: bytes


class Steps:
    """Looks at a run's log with the reader the supervisor has, and at what the supervisor made of it."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        asked = read_asked(folder)
        self.spec, self.start = asked.spec, asked.log_start

    def look(self) -> Look:
        """Read the end of the log afresh: the last step in it is the log's own word, ``told`` the supervisor's."""
        one = client.status(self.folder)
        file, size, begin, data = self._tail()
        monitor = make_monitor(self.spec, lambda _: None)
        monitor.feed(data, time.time(), offset=begin)
        step, told, dt_s = monitor.measure().step, one["step"], one.get("dt")
        return Look(
            at=utc(), file=file, size=size, step=step, told=told, attempt=one["attempt"],
            gap=monitor.meter.interval, dt_s=dt_s if isinstance(dt_s, (int, float)) else None, tail=data[-KEPT_BYTES:],
        )  # fmt: skip

    def _tail(self) -> tuple[int, int, int, bytes]:
        try:
            handle = os.open(self.spec.log, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return 0, 0, 0, b""
        try:
            found = os.fstat(handle)
            own = self.start if self.start <= found.st_size else 0  # it was rotated or truncated since
            begin = max(own, found.st_size - READ_BYTES)
            data = os.pread(handle, found.st_size - begin, begin)
        except OSError:
            return 0, 0, 0, b""
        finally:
            os.close(handle)
        cut = data.find(b"\n") + 1 if begin > own else 0
        return found.st_ino, found.st_size, begin + cut, data[cut:]

    def wait(self, limit_s: float, done: Callable[[], bool]) -> str | None:
        """Wait until ``done`` or the time is up; return why it was of no use, if the run ends meanwhile."""
        end = time.monotonic() + limit_s
        while True:
            why = not_live(self.folder, client.status(self.folder))
            if why is not None or done() or time.monotonic() >= end:
                return why
            time.sleep(min(LOOK_S, max(0.0, end - time.monotonic())))

    def _grown_bytes(self, first: Look, last: Look) -> int:
        return last.size - first.size if last.file == first.file and last.size >= first.size else last.size

    def grew(self, first: Look, last: Look) -> bool:
        """Say whether the log went on: by its steps, or by its bytes where none was ever understood."""
        if first.step is None and last.step is None:
            return self._grown_bytes(first, last) > 0
        return last.step is not None and (first.step is None or last.step > first.step)

    def verdict(self, first: Look, last: Look, waited_s: float, ended: str | None) -> Check:
        """Compare two looks."""
        within, more = f"within {waited_s:.3g} s", self._grown_bytes(first, last)
        looks = [{name: getattr(one, name) for name in LOOKED_AT} for one in (first, last)]
        facts = {"seconds": waited_s, "log": self.spec.log, "bytes": more, "looks": looks}
        grown, pace_s = f"the log grew by {more} bytes", (last.dt_s or 0.0) * last.gap
        why = None
        if ended is not None:
            why = f"{within} {ended}"
        elif first.attempt != last.attempt:
            why = f"attempt {last.attempt} began {within}, so the steps cannot be compared: check again"
        elif last.step is None:
            hint = "`overnight run --pattern` tells a run how its progress line looks"
            why = f"no step was understood in the end of the log ({grown} {within}): {hint}"
        elif first.step is not None and last.step < first.step:
            why = f"the step fell from {first.step} to {last.step} {within}: its count began anew, check again"
        elif last.step == first.step:
            slow = f"; one is printed about every {pace_s:.3g} s, so check with --interval {2 * pace_s:.0f}"
            why = f"no new step {within}: step {last.step} both times, {grown}{slow if pace_s > waited_s else ''}"
        elif last.told is None or (first.told is not None and last.told <= first.told):
            why = f"the log went on to step {last.step}, but the supervisor says {last.told}: see `overnight status`"
        by_log = f"step {first.step} -> {last.step} in {waited_s:.3g} s by the log ({grown})"
        text = why or f"{by_log}, {first.told} -> {last.told} by the supervisor's figures"
        return Check(name="steps", ok=why is None, text=text, facts=facts)


# -- all of it ---------------------------------------------------------------------------------------------------------

Rehearsal = Callable[[Steps, Sequence[Person], Check], tuple[Check, dict[str, bytes]]]
"""(the log, the living processes, the check of its steps) -> the check of the logout, and files for the evidence."""


def prove(
    folder: RunFolder, *, interval_s: float, rehearse: Rehearsal, tell: Callable[[Check], None] = lambda _: None
) -> Proof:
    """Check a run and keep the evidence; each check is handed to ``tell`` as it is made."""
    checks: list[Check] = []
    files: dict[str, bytes] = {}

    def found(check: Check) -> bool:
        checks.append(check)
        tell(check)
        return check.ok

    one = client.status(folder)
    why, seen = not_live(folder, one), people(folder, one["supervisor"])
    end = time.monotonic() + PRESENT_S
    while why is None and time.monotonic() < end and not any(person.role == "supervisor" for person in seen):
        time.sleep(LOOK_S)
        seen = people(folder, one["supervisor"])
    if found(_processes(folder, seen, why)):
        found(_terminals(seen))
        log = Steps(folder)
        first, last, check = _two_looks(log, interval_s)
        files |= {"tail-1.log": first.tail, "tail-2.log": last.tail}
        found(check)
        one = client.status(folder)
        why, seen = not_live(folder, one), people(folder, one["supervisor"])
        if why is None:
            check, more = rehearse(log, seen, check)
            found(check)
            files |= more
    files["processes-before.txt"] = lines_of(seen)
    for name in NAMES[len(checks) : -1]:
        found(Check(name=name, ok=False, text=f"not tried: {why or checks[0].text}"))
    hours, check = _hours(folder, one, seen)
    found(check)
    path = folder.evidence / f"check-{utc().replace(':', '-')}"
    ok = all(check.ok for check in checks)
    proof = Proof(name=folder.name, ok=ok, checks=tuple(checks), evidence=str(path), hours=hours)
    path.mkdir(mode=0o700, parents=True)
    for name, data in files.items():
        write_atomic(path / name, data)
    write_json(path / "facts.json", msgspec.to_builtins(proof), fsync=True)
    return proof


def _two_looks(log: Steps, interval_s: float) -> tuple[Look, Look, Check]:
    first, began = log.look(), time.monotonic()
    ended = log.wait(interval_s, lambda: False)
    last, waited_s = log.look(), time.monotonic() - began
    end = time.monotonic() + STATUS_LAG_S if ended is None and log.grew(first, last) else 0.0
    while (last.told or -1) <= (first.told or -1) and time.monotonic() < end:
        time.sleep(LOOK_S)
        last = msgspec.structs.replace(last, told=client.status(log.folder)["step"])
    return first, last, log.verdict(first, last, waited_s, ended)


def _hours(folder: RunFolder, one: client.Status, seen: Sequence[Person]) -> tuple[float | None, Check]:
    """Return the hours since the first start, by the wall clock and, for this attempt, by the kernel's."""
    numbers = folder.attempt_numbers()
    began = (read_json(folder.attempt(numbers[0]).started_json) or {}).get("at") if numbers else None
    if not isinstance(began, (int, float)):
        return None, Check(name="hours", ok=False, text="nobody wrote down when it was started")
    end = epoch_of(one.get("ended_at")) if one["state"] in client.ENDED else None
    hours = ((time.time() if end is None else end) - began) / 3600
    facts = {"hours": hours, "started_at": utc(began), "attempts": len(numbers), "attempt_hours": None}
    text = f"{hours:.2f} h since its first start at {utc(began)}; attempts: {len(numbers)}"
    for person in seen:
        if person.role == "command":
            began_s = person.identity.start_ticks / os.sysconf("SC_CLK_TCK")
            lived = facts["attempt_hours"] = (uptime_s() - began_s) / 3600
            text += f"; its command has lived {lived:.2f} h by the clock since boot"
    return hours, Check(name="hours", ok=True, text=text, facts=facts)

"""Says whether an --on-end command, which may turn the machine off, may start: no other work may be going on here.

Other work is another run of the same home that goes on, or somebody else's process on a GPU of this machine. Only
looks, and tells the journal once what is waited for; the commands are started, each once, in ``starting.py``.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from overnight import processes
from overnight.clocks import boot_clock
from overnight.errors import FolderError
from overnight.facts import Facts
from overnight.folder import RunFolder, read_json, sensor_file, utc
from overnight.keepers import read_identity
from overnight.sensors import GpuProcess, GpuSample, gpulook
from overnight.sensors.following import gpu_likely

FIRST_S, EVERY_S = 1.0, 10.0
"""Looked at again after a second, then less and less often: two runs that end together need not wait long."""

UNKNOWN_S = 3600.0
"""So long the GPUs may be unknown. Longer, and the machine costs money for the sake of work that probably hangs too:
a driver that answers nobody for an hour has lost its device, or needs the restart that it may get now."""

FRESH_S = 20.0
TAIL_BYTES = 1 << 18
NAMED = 3
MOST_TOLD = 20
KFD = "/sys/class/kfd/kfd/proc"

SERVICES = frozenset(
    "nvidia-cuda-mps-server nvidia-cuda-mps-control nvidia-persistenced nv-hostengine dcgm dcgm-exporter Xorg X "
    "Xwayland gnome-shell kwin_x11 kwin_wayland".split()
)
"""Programs that sit on a GPU for as long as the machine runs: the driver's own, and what draws a desktop."""

STANDS = {
    "pending": "about to start",
    "backoff": "waiting for its next attempt",
    "damaged": "alive, its folder damaged",
}


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """Why it must wait. ``who``: names of runs, or pids; the same ones need not be told again."""

    kind: Literal["run", "gpu", "unknown"]
    text: str
    who: tuple[str, ...] = ()


# -- pure: from what was seen to a decision ----------------------------------------------------------------------------


def of_runs(statuses: Iterable[Mapping[str, Any]], own: str) -> Hold | None:
    """Return what other runs a run named ``own`` has to wait for: those that go on and are kept on this machine.

    ``statuses`` as ``client`` returns them. A run that has ended is not waited for, whatever its hooks do: two ended
    runs would wait for each other. One whose keepers are dead does nothing any more, unless its status says
    ``command_alive``.
    """
    found = [(str(one["name"]), str(one["state"])) for one in statuses if one["name"] != own and _active(one)]
    if not found:
        return None
    names = tuple(sorted(name for name, _ in found))
    if len(found) == 1:
        return Hold(kind="run", text=f"run {names[0]} is {STANDS.get(found[0][1], f'still {found[0][1]}')}", who=names)
    return Hold(kind="run", text=f"{len(found)} other runs go on: {_some(names)}", who=names)


def _active(one: Mapping[str, Any]) -> bool:
    if one["state"] in ("finished", "stopped", "failed", "gave_up") or one.get("foreign"):
        return False
    if one["state"] == "damaged" or one.get("stale"):
        kept = any((one.get(role) or {}).get("alive") is True for role in ("supervisor", "shim"))
        return kept or one.get("command_alive") is True
    return True


def of_gpus(
    sample: GpuSample, ours: Callable[[GpuProcess], bool], here: Callable[[int], bool] = lambda _: True
) -> Hold | None:
    """Return whose processes on which GPU it has to wait for; of kind "unknown" where nobody can say.

    A GPU that is lost does no work. ``ours`` tells whether a process is of the run itself, ``here`` whether there is
    one of this pid: a driver may list one that has died, or one of a container by a number that means nothing here.
    """
    foreign: dict[int, tuple[GpuProcess, int]] = {}
    unseen: dict[int, int] = {}
    silent = []
    for gpu in sample.gpus:
        if gpu.lost is not None:
            continue
        if gpu.processes is None:
            silent.append(gpu.index)
        for one in gpu.processes or ():
            service = os.path.basename(one.name or "") in SERVICES
            if one.ours is not True and one.graphics is not True and not service and not ours(one):
                if here(one.pid):
                    foreign.setdefault(one.pid, (one, gpu.index))
                else:
                    unseen.setdefault(one.pid, gpu.index)
    if foreign:
        said = [f"{_named(one.pid, one.name, one.user)} uses GPU {index}" for one, index in foreign.values()]
        return Hold(kind="gpu", text=_some(said, "; "), who=tuple(sorted(map(str, foreign))))
    if sample.trouble is not None:
        return _unknown(sample.trouble)
    if unseen:
        said = [f"GPU {index} is said to be used by process {pid}" for pid, index in unseen.items()]
        text = f"{_some(said, '; ')}: not seen here (dead, or of another container)"
        return Hold(kind="unknown", text=text, who=tuple(sorted(map(str, unseen))))
    return _unknown(f"GPU {silent[0]} does not tell which processes use it") if silent else None


def _unknown(why: str) -> Hold:
    return Hold(kind="unknown", text=f"the GPUs cannot be looked at: {why}")


def _named(pid: int, name: str | None, user: str | None) -> str:
    program = f" ({os.path.basename(name)})" if name else ""
    return f"process {pid}{program}{f' of {user}' if user else ''}"


def _some(texts: Sequence[str], between: str = ", ") -> str:
    more = len(texts) - NAMED
    return between.join(texts[:NAMED]) + (f" and {more} more" if more > 0 else "")


# -- what is seen ------------------------------------------------------------------------------------------------------


class Around:
    """What goes on around one run."""

    def __init__(self, folder: RunFolder, home: str) -> None:
        from overnight.client import Listing  # here, since few runs have a hook at their end

        self.folder = folder
        self.listing = Listing(home)

    def runs(self) -> Hold | None:
        """Return what other runs have to be waited for."""
        try:
            statuses = self.listing.look()
        except FolderError as error:
            return Hold(kind="unknown", text=f"other runs cannot be looked at: {error}")
        for one in statuses:
            if one.get("stale") or one["state"] == "damaged":
                one["command_alive"] = _command_lives(RunFolder(Path(self.listing.home) / "runs" / one["name"]))
        return of_runs(statuses, self.folder.name)

    def sampled(self) -> Hold | None:
        """Return whom the newest sample of the run's own sensors shows, if it is fresh; it only tells whom to wait for.

        Whether nobody is there is asked anew: after the end of a run nobody samples for it any more.
        """
        sample = self._newest()
        if sample is None or not 0.0 <= time.time() - sample.at <= FRESH_S:
            return None
        hold = of_gpus(sample, lambda one: one.ours is not False or not _exists(one.pid) or self.is_ours(one))
        return hold if hold is not None and hold.kind == "gpu" else None

    def _newest(self) -> GpuSample | None:
        try:
            with open(sensor_file(self.folder.path, "gpu"), "rb") as stream:
                stream.seek(max(0, os.fstat(stream.fileno()).st_size - TAIL_BYTES))
                lines = stream.read().splitlines()
        except OSError:
            return None
        return next((one for one in map(gpulook.read_sample, reversed(lines[-2:])) if one is not None), None)

    def asked(self, seen: gpulook.Seen) -> Hold | None:
        """Return what a look at the GPUs means."""
        sample = seen.sample
        if not seen.hangs and (sample is None or sample.trouble is not None) and not gpulook.device():
            return None  # a library without a driver: nobody can use a GPU here
        if sample is None:
            return self.compute() or _unknown(seen.trouble or "nothing was said")
        last = self._newest()
        own = {one.pid for gpu in (last.gpus if last else ()) for one in gpu.processes or () if one.ours}
        # A driver lists a process for a moment after its end.
        hold = of_gpus(sample, lambda one: self.is_ours(one) or (one.pid in own and not _exists(one.pid)), _exists)
        if hold is None or hold.kind != "unknown":
            return hold or self.compute()
        told = sample.maker != "nvidia" and os.path.isdir(KFD) and not hold.who  # by the AMD driver itself
        return self.compute() or (None if told else hold)

    def compute(self) -> Hold | None:
        """Return which processes the AMD driver lists as computing; it needs no library and hides no user's.

        It lists those of other containers, too, by numbers that mean nothing here: only processes seen here count.
        """
        try:
            pids = [int(name) for name in os.listdir(KFD) if name.isdigit()]
        except OSError:
            return None
        alive = [GpuProcess(pid=pid, name=_program(pid)) for pid in pids if _exists(pid)]
        foreign = [one for one in alive if (one.name or "") not in SERVICES and not self.is_ours(one)]
        if not foreign:
            return None
        said = _some([f"{_named(one.pid, one.name, None)} uses a GPU" for one in foreign], "; ")
        return Hold(kind="gpu", text=said, who=tuple(sorted(str(one.pid) for one in foreign)))

    def is_ours(self, one: GpuProcess) -> bool:
        """Say whether a process is of this run: what its command has left behind, or one of its hooks."""
        mark = b"OVERNIGHT_RUN_DIR=" + os.fsencode(self.folder.path)
        return mark in (processes.read_proc(one.pid, "environ") or b"").split(b"\0")


def _command_lives(folder: RunFolder) -> bool:
    """Say whether the command of a run that nobody keeps lives on: then its work is not over."""
    with contextlib.suppress(FolderError, OSError):
        for number in folder.attempt_numbers()[-1:]:
            who = read_identity(read_json(folder.attempt(number).started_json))
            return who is not None and processes.is_alive(who)
    return False


def _exists(pid: int) -> bool:
    """Say whether there is a living process of this number here, of whomever."""
    if pid <= 0:  # 0 is what a container is told of a process outside
        return False
    known = processes.stat(pid)
    if known is not None:
        return not known.dead
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def _program(pid: int) -> str | None:
    known = processes.stat(pid)
    return None if known is None else known.comm


def look_now(folder: RunFolder, home: str) -> Hold | None:
    """Return what an --on-end command of this run would wait for if the run ended now; waits up to 10 s for the GPUs.

    ``folder`` need not exist yet.
    """
    around = Around(folder, home)
    hold = around.runs() or around.sampled()
    if hold is not None or not gpu_likely():
        return hold
    look = gpulook.GpuLook()
    seen = look.begin(boot_clock())
    while seen is None:
        time.sleep(gpulook.QUICK_S)
        seen = look.turn(boot_clock())
    return around.asked(seen)


class Guard:
    """Lets the --on-end commands of one run go once nothing else goes on; ``now`` is always a time of the boot clock.

    ``hold`` is what is waited for, None before the first look and when there is nothing. What must outlive this process
    is in the journal: who was told of, and since when the GPUs are unknown.
    """

    unknown_s = UNKNOWN_S

    def __init__(self, folder: RunFolder, facts: Facts, *, look: gpulook.GpuLook | None = None) -> None:
        self.folder = folder
        self.facts = facts
        self.look = look or gpulook.GpuLook()
        self.around: Around | None = None
        self.boot: str | None = None
        self.begin(0)

    def begin(self, attempt: int) -> None:
        """Begin anew at the end of an attempt; what an earlier supervisor has told of this end is kept."""
        if getattr(self, "attempt", None) != attempt:
            self.attempt = attempt
            self.hold: Hold | None = None
            self.told: list[tuple[str, ...]] = []
            self.since: float | None = None
            self.unknown_since: float | None = None
        self.free = False
        self.news: str | None = None
        self.next_at = 0.0

    def recall(self, fact: Mapping[str, Any]) -> None:
        """Take in what the journal tells of an earlier supervisor; TypeError or ValueError if it was edited."""
        if fact["fact"] == "hook_released":
            self.hold = self.since = self.unknown_since = self.boot = None
            return
        kind, who, at = str(fact["kind"]), tuple(map(str, fact["who"])), float(fact["clock"])
        if int(fact["attempt"]) != self.attempt:
            self.begin(int(fact["attempt"]))
        self.hold = msgspec.convert({"kind": kind, "text": str(fact["text"]), "who": who}, Hold)
        self.told.append((kind, *who))
        self.boot = str(fact["boot_id"])
        self.since = at if self.since is None else self.since
        self.unknown_since = (at if self.unknown_since is None else self.unknown_since) if kind == "unknown" else None

    def rebooted(self) -> bool:
        """Say whether the machine was started anew while a command of this end was held back."""
        return self.hold is not None and self.boot not in (None, processes.boot_id())

    def allows(self, now: float) -> bool:
        """Go on looking, and say whether the commands may start: if they may once, they may until the next end."""
        if self.free:
            return True
        if self.look.pid is None:
            if now >= self.next_at:
                self._begin(now)
        elif (seen := self.look.turn(now)) is not None:
            self._settle(self._around().runs() or self._around().asked(seen), now)  # it may have taken a while
        return self.free

    def waiting(self) -> bool:
        """Say whether something is looked at, or waited for."""
        return not self.free and (self.hold is not None or self.look.pid is not None)

    def next_look_s(self, now: float) -> float:
        """Return when ``allows`` wants to be asked again, in seconds."""
        looking = self.look.next_look_s(now)
        return max(0.0, self.next_at - now) if looking is None else looking

    def take_news(self) -> str | None:
        """Return what is to be told to people, once."""
        news, self.news = self.news, None
        return news

    def _around(self) -> Around:
        if self.around is None:
            self.around = Around(self.folder, str(self.folder.path.parent.parent))
        return self.around

    def _begin(self, now: float) -> None:
        hold = self._around().runs() or self._around().sampled()
        if hold is not None or not gpu_likely():
            self._settle(hold, now)
        elif (seen := self.look.begin(now)) is not None:
            self._settle(self._around().asked(seen), now)

    def _settle(self, hold: Hold | None, now: float) -> None:
        unknown = hold is not None and hold.kind == "unknown"
        self.unknown_since = (now if self.unknown_since is None else self.unknown_since) if unknown else None
        if hold is not None and self.unknown_since is not None:
            left_s = self.unknown_since + self.unknown_s - now
            if left_s <= 0:
                self.facts.note(f"{hold.text}; it was waited for {self.unknown_s:g} s, and the --on-end commands run")
                hold = None
            else:
                until = utc(time.time() + left_s)[:19] + "Z"
                hold = msgspec.structs.replace(hold, text=f"{hold.text}; not waited for beyond {until}")
        if hold is None:
            self._release(now)
            return
        self.since = now if self.since is None else self.since
        self.next_at = now + min(EVERY_S, max(FIRST_S, (now - self.since) / 2))
        self.hold = hold
        self._tell(hold, now)

    def _tell(self, hold: Hold, now: float) -> None:
        """Tell the journal, once for each whom it waits for, and not without end where they change all the time."""
        key = (hold.kind, *hold.who)
        if key in self.told or len(self.told) >= MOST_TOLD:
            return
        if not self.told:
            self.news = hold.text
        self.told.append(key)
        self.boot = processes.boot_id()
        self.facts.say(
            "hook_held",
            attempt=self.attempt,
            kind=hold.kind,
            text=hold.text,
            who=hold.who,
            boot_id=self.boot,
            clock=now,
        )
        self.facts.sync()  # the machine may be turned off by another run: this end's commands must not run after that

    def _release(self, now: float) -> None:
        self.free = True
        if self.since is not None:
            self.facts.say("hook_released", attempt=self.attempt, seconds=round(now - self.since, 3))
        self.hold = self.since = self.unknown_since = None

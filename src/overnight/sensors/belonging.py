"""Which GPUs belong to a run: those its processes are on, and those that its environment lets it see.

What nobody can say is None, for a rule must not act upon a guess in either direction: a container hides processes, a
script chooses its card in code. Only /proc is read here; no GPU library is called.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from overnight import clearing, processes
from overnight.errors import FolderError
from overnight.folder import RunFolder, read_json
from overnight.processes import Identity
from overnight.sensors import Gpu, GpuProcess
from overnight.sensors.cards import Seen, Slice

ELSEWHERE: Final = frozenset("docker podman nerdctl srun ssh kubectl mpirun mpiexec orterun".split())
"""Programs whose training is no descendant of theirs: that the run's own processes use no GPU then says nothing."""

NODES: Final = re.compile(r"/dev/(?:nvidia\d+|kfd|dri/renderD\d+)")
_LEGACY_MIG: Final = re.compile(r"MIG-(GPU-[0-9a-f-]+)/(\d+)/(\d+)")


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The cards that an environment names, by number; and the slices, as (card, place among its slices)."""

    cards: frozenset[int]
    slices: frozenset[tuple[int, int]] = frozenset()

    def __or__(self, other: Choice) -> Choice:
        return Choice(cards=self.cards | other.cards, slices=self.slices | other.slices)


# -- what an environment lets a program see ----------------------------------------------------------------------------


def chosen(environ: Mapping[str, str], seen: Sequence[Seen], maker: str) -> Choice | None:
    """Return the cards a program with this environment can use; None if it names none, or not so that one could tell.

    NVIDIA's rule: a list ends at the first entry that names nothing ("-1", a number too high, "none"), and an empty
    list hides every card. Numbers count in the order of the bus only if CUDA_DEVICE_ORDER says so, or if all cards are
    of one kind.
    """
    if maker == "amd":
        return _chosen_amd(environ, seen)
    value = environ.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return None
    in_order = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({one.gpu.name for one in seen}) <= 1
    cards: set[int] = set()
    slices: set[tuple[int, int]] = set()
    for word in (word.strip() for word in value.split(",")):
        found = _named(word, seen, seen)
        if found is None:
            break
        if word.isdecimal() and not in_order:
            return None
        card, part = found
        cards.add(card)
        if part is not None:
            slices.add((card, part))
    return Choice(cards=frozenset(cards), slices=frozenset(slices))


def _chosen_amd(environ: Mapping[str, str], seen: Sequence[Seen]) -> Choice | None:
    """ROCR_VISIBLE_DEVICES is applied first; the numbers of HIP (or CUDA) count among what it leaves."""
    left, restricted = list(seen), False
    for names in (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")):
        value = next((environ[name] for name in names if name in environ), None)
        if value is None:
            continue
        restricted, kept = True, []
        for word in (word.strip() for word in value.split(",")):
            found = _named(word, left, seen)
            if found is None:
                break
            kept.append(next(one for one in left if one.gpu.index == found[0]))
        left = kept
    return Choice(cards=frozenset(one.gpu.index for one in left)) if restricted else None


def _named(word: str, order: Sequence[Seen], seen: Sequence[Seen]) -> tuple[int, int | None] | None:
    """Return (card, slice or None) that an entry names. A uuid may be cut short as long as only one begins with it."""
    if word.isdecimal():
        return (order[int(word)].gpu.index, None) if int(word) < len(order) else None
    if word.startswith("MIG-"):
        return _slice_named(word, seen)
    if not word.startswith("GPU-"):
        return None
    found = [one.gpu.index for one in seen if (one.gpu.uuid or "").lower().startswith(word.lower())]
    return (found[0], None) if len(found) == 1 else None


def _slice_named(word: str, seen: Sequence[Seen]) -> tuple[int, int | None] | None:
    legacy = _LEGACY_MIG.fullmatch(word)
    found = []
    for one in seen:
        for place, part in enumerate(one.slices):
            if legacy is not None:
                same = one.gpu.uuid == legacy[1] and part.instance == int(legacy[2])
            else:
                same = (part.uuid or "").lower().startswith(word.lower())
            if same:
                found.append((one.gpu.index, place))
    return found[0] if len(found) == 1 else None


# -- the run's processes -----------------------------------------------------------------------------------------------


class Family:
    """The living processes of a run as they stand now, our own side processes left out.

    ``below``: the children of each; ``roots``: those whose parents are none of the run's.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.below: dict[int, list[int]] = {}
        keepers, commands = _written(RunFolder(run_dir))
        tops = [child for keeper in keepers for child in processes.children(keeper)]
        marked = () if keepers else (one.pid for one in clearing.marked(run_dir))
        self.roots = [pid for pid in dict.fromkeys([*commands, *tops, *marked]) if pid not in keepers]
        self.roots = [pid for pid in self.roots if self._take(pid)]

    def _take(self, top: int) -> bool:
        """Take in a process with all that is below it; False if it is one of our own, or already in."""
        if top in self.below or clearing.ours(top):
            return False
        waiting = [top]
        while waiting:
            pid = waiting.pop()
            found = [one for one in processes.children(pid) if one not in self.below and not clearing.ours(one)]
            self.below[pid] = found
            waiting += found
        return True

    def has(self, pid: int) -> bool | None:
        """Say whether a process belongs to the run; None if it cannot be seen from here, as through a container."""
        if pid in self.below:
            return True
        if processes.stat(pid) is None:
            return None
        words = (processes.read_proc(pid, "environ") or b"").split(b"\0")
        return b"OVERNIGHT_RUN_DIR=" + os.fsencode(self.run_dir) in words and not clearing.ours(pid)

    def choice(self, seen: Sequence[Seen], maker: str) -> Choice | None:
        """Return the cards that the run's environments name. What a child was given counts before its parent's."""
        found: Choice | None = None
        for root in self.roots:
            one = self._choice(root, seen, maker)
            found = one if found is None else found if one is None else found | one
        return found

    def _choice(self, pid: int, seen: Sequence[Seen], maker: str) -> Choice | None:
        told: dict[int, Choice | None] = {}
        for one in reversed(list(self._walk(pid))):
            below = [told[child] for child in self.below[one]]
            inner = Choice(cards=frozenset())
            for each in below:
                inner = inner if each is None else inner | each
            # Data workers are often given "": a choice of nothing below does not undo the parent's.
            told[one] = inner if inner.cards else chosen(processes.environ(one) or {}, seen, maker)
        return told[pid]

    def _walk(self, pid: int) -> Iterator[int]:
        """Yield a process and all below it, parents first."""
        waiting = [pid]
        while waiting:
            one = waiting.pop()
            yield one
            waiting += self.below[one]

    def uses_devices(self) -> bool | None:
        """Say whether a process of the run has a GPU's device file open; None if that cannot be known."""
        if not any(Path("/dev").glob("nvidia[0-9]*")) and not Path("/dev/kfd").exists():
            return None
        if not self.below or any((processes.stat(pid) or _NOBODY).comm in ELSEWHERE for pid in self.below):
            return None
        return any(NODES.fullmatch(path) for pid in self.below for path in open_paths(pid))


_NOBODY: Final = processes.Stat(0, "", "X", 0, 0, 0, 0, 0, 0)


def open_paths(pid: int) -> Iterator[str]:
    """Yield the paths of a process's descriptors, as far as they may be seen."""
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        try:
            yield os.readlink(f"{folder}/{name}")
        except OSError:
            continue


def _written(folder: RunFolder) -> tuple[list[int], list[int]]:
    """Return the living keepers of a run, and its command: from the files that name them."""
    shim = _read(folder.shim_json)
    keepers = [_alive({"boot_id": shim.get("boot_id"), **one}) for one in map(shim.get, ("shim", "guard")) if one]
    numbers = folder.attempt_numbers()
    command = _alive(_read(folder.attempt(numbers[-1]).started_json)) if numbers else None
    return [pid for pid in keepers if pid], [command] if command else []


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_json(path) or {}
    except (FolderError, OSError):
        return {}


def _alive(value: Mapping[str, Any]) -> int | None:
    try:
        one = msgspec.convert(dict(value), Identity)
    except msgspec.ValidationError:
        return None
    return one.pid if processes.is_alive(one) else None


# -- whose a card is ---------------------------------------------------------------------------------------------------


class Belonging:
    """Says of each look whose the cards are. It remembers of a lost card what was known before."""

    def __init__(self, run_dir: Path | None, maker: str) -> None:
        self._run_dir = run_dir
        self._maker = maker
        self._before: dict[str, bool] = {}

    def told(self, seen: Sequence[Seen]) -> tuple[Gpu, ...]:
        """Return the cards with ``ours`` of each and of each process, and with the run's slice in place of the card."""
        family = None if self._run_dir is None else Family(self._run_dir)
        named = [(one, _processes(one.gpu.processes, family)) for one in seen]
        choice = None if family is None else family.choice(seen, self._maker)
        unused = family is not None and family.uses_devices() is False
        somewhere = any(each.ours for _, users in named for each in users or ())
        found = []
        for one, users in named:
            ours = None if family is None else self._whose(one, users, choice, unused=unused, somewhere=somewhere)
            if one.gpu.uuid is not None and ours is not None:
                self._before[one.gpu.uuid] = ours
            gpu = msgspec.structs.replace(one.gpu, processes=users, ours=ours)
            found.append(_sliced(gpu, one, choice) if one.gpu.mig else gpu)
        return tuple(found)

    def _whose(
        self,
        seen: Seen,
        users: Sequence[GpuProcess] | None,
        choice: Choice | None,
        *,
        unused: bool,
        somewhere: bool,
    ) -> bool | None:
        if any(one.ours for one in users or ()):
            return True
        if choice is not None:
            return seen.gpu.index in choice.cards
        if seen.gpu.lost:
            return self._before.get(seen.gpu.uuid or "")
        if unused:
            return False
        judged = users is not None and all(one.ours is not None for one in users)
        return False if somewhere and judged else None


def _processes(users: Iterable[GpuProcess] | None, family: Family | None) -> tuple[GpuProcess, ...] | None:
    if users is None:
        return None
    found = []
    for one in users:
        known = processes.stat(one.pid)
        ours = None if family is None else family.has(one.pid)
        name = one.name or (known.comm if known else None)
        found.append(msgspec.structs.replace(one, name=name, user=user_of(one.pid), ours=ours))
    return tuple(found)


def user_of(pid: int) -> str | None:
    """Return the name (or number) of the user whose process it is."""
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _sliced(gpu: Gpu, seen: Seen, choice: Choice | None) -> Gpu:
    """Return a card under MIG as what the run has of it: name, multiprocessors and memory of its slice.

    Where the slice is not known, or they differ, name and multiprocessors must not be taken for the run's.
    """
    parts = _parts(gpu, seen, choice)
    kinds = {(one.name, one.units) for one in parts}
    if len(kinds) != 1 or not parts[0].name:
        name = None if gpu.name is None else f"{gpu.name} MIG"
        return msgspec.structs.replace(gpu, name=name, units=None)
    one = parts[0]
    fields: dict[str, Any] = {"name": one.name, "units": one.units}
    if len(parts) == 1:
        fields |= {"memory_total": one.memory_total, "memory_used": one.memory_used}
    return msgspec.structs.replace(gpu, **fields)


def _parts(gpu: Gpu, seen: Seen, choice: Choice | None) -> list[Slice]:
    """Return the slices that the run uses; all of them if nothing says which."""
    used = {seen.instances.get(one.pid) for one in gpu.processes or () if one.ours} - {None}
    by_process = [one for one in seen.slices if one.instance is not None and one.instance in used]
    if by_process:
        return by_process
    places = {place for card, place in (choice.slices if choice else ()) if card == gpu.index}
    return [one for place, one in enumerate(seen.slices) if not places or place in places]

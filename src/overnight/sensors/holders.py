"""Who holds the GPUs' device files: a process that hangs in the kernel keeps the memory of a card after all else ended.

Only /proc and /dev are read, no GPU library is asked: it works where the driver hangs. Nothing is signalled here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from overnight import processes
from overnight.sensors.belonging import Family, open_paths, user_of

NODES: Final = ("nvidia[0-9]*", "nvidia-uvm", "kfd")
"""What a program that computes has open below /dev. nvidiactl is left out: whoever only looks at a card has it open."""

COMMAND_CHARS: Final = 200
DELETED: Final = " (deleted)"


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A process that has a device file open or mapped. ``state``: "D" hangs in the kernel, where no signal reaches it.

    ``ours``: of the run that was asked for; None if none was, or nobody can say.
    """

    pid: int
    start_ticks: int
    command: str
    paths: tuple[str, ...]
    state: str = "S"
    user: str | None = None
    ours: bool | None = None


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds the devices. ``unseen``: processes of other users, whose open files may not be seen from here."""

    holders: tuple[Holder, ...]
    unseen: int = 0

    def of_run(self) -> tuple[Holder, ...]:
        """Return the holders that belong to the run."""
        return tuple(one for one in self.holders if one.ours)


def device_files(root: Path = Path("/dev")) -> list[Path]:
    """Return the device files of the GPUs that are here."""
    return sorted(path for shape in NODES for path in root.glob(shape))


def holders(paths: Iterable[str | Path], run_dir: Path | None = None) -> Held:
    """Return who holds any of these files, by whatever name; with a run, which of them belong to it.

    A file is known by its name, and a device by its number as well: a container may have it under another name.
    """
    names = {os.fspath(path) for path in paths}
    numbers = {number: name for name in sorted(names) if (number := _number(name)) is not None}
    family = None if run_dir is None else Family(run_dir)
    found, unseen = [], 0
    for pid in processes.all_pids() if names else ():
        known = processes.stat(pid)
        if known is None or known.dead:
            continue
        if not os.access(f"/proc/{pid}/fd", os.R_OK | os.X_OK):
            unseen += bool(processes.cmdline(pid))  # a thread of the kernel holds nothing
            continue
        held = {name for path in _held(pid) if (name := _name(path, pid, names, numbers))}
        if held:
            found.append(
                Holder(
                    pid=pid,
                    start_ticks=known.start_ticks,
                    command=_command(pid, known.comm),
                    paths=tuple(sorted(held)),
                    state=known.state,
                    user=user_of(pid),
                    ours=None if family is None else family.has(pid),
                )
            )
    return Held(holders=tuple(sorted(found, key=lambda one: one.pid)), unseen=unseen)


def _number(path: str) -> tuple[int, int] | None:
    """Return a device's number, or a file's place on its disk."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (0, found.st_rdev) if found.st_rdev else (found.st_dev, found.st_ino)


def _held(pid: int) -> Iterator[str]:
    """Yield the names of what a process has open or mapped; of the descriptors also what only /proc can name."""
    yield from open_paths(pid)
    for line in (processes.read_proc(pid, "maps") or b"").splitlines():
        _, slash, path = line.partition(b" /")
        if slash:
            yield os.fsdecode(b"/" + path)


def _name(path: str, pid: int, names: set[str], numbers: dict[tuple[int, int], str]) -> str | None:
    """Return by which of the asked names a process's file goes."""
    path = path.removesuffix(DELETED)
    if path in names:
        return path
    if not path.startswith("/dev/"):
        return None
    number = _number(f"/proc/{pid}/root{path}")
    return None if number is None else numbers.get(number)


def _command(pid: int, comm: str) -> str:
    words = processes.cmdline(pid) or ()
    return " ".join(word.replace("\n", " ") for word in words)[:COMMAND_CHARS] or f"[{comm}]"


def sentences(held: Held, *, of_run: bool = False) -> list[str]:
    """Return what a person should be told, one sentence for each holder; "the devices are free" if there is none.

    With ``of_run`` only what belongs to the run is told.
    """
    told: Sequence[Holder] = held.of_run() if of_run else held.holders
    if not told:
        unseen = 0 if of_run else held.unseen
        hidden = f", as far as can be seen ({unseen} processes of others cannot)" if unseen else ""
        return [f"the devices are free{hidden}"]
    return [_sentence(one) for one in told]


def _sentence(one: Holder) -> str:
    whose = f" of {one.user}" if one.user else ""
    stuck = ", which hangs in the kernel" if one.state == "D" else ""
    return f"{' and '.join(one.paths)} is held by process {one.pid}{whose} ({one.command}){stuck}"

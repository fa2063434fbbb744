"""How much memory a container leaves to what runs in it: the limits of its control groups, versions 1 and 2.

The machine's own memory does not enter here. What is not limited, or cannot be read, is None.
"""

from __future__ import annotations

from typing import NamedTuple

from overnight.machine import Machine


class Limit(NamedTuple):
    """A limit on memory in bytes, and how much of it is left; None: what is used could not be read."""

    limit: int
    available: int | None


class Files(NamedTuple):
    """What a version calls its files, and the field of memory.stat for what can be had back at once."""

    limit: str
    used: str
    cache: str


VERSION_2 = Files("memory.max", "memory.current", "inactive_file")
VERSION_1 = Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def memory_limits(machine: Machine) -> list[Limit]:
    """Return the limits of our control group and of all above it; the least that is left of any is what there is."""
    found = []
    for folder, files in _folders(machine):
        limit = machine.number(f"{folder}/{files.limit}")  # "max" is no number
        if limit is None:
            continue
        used = machine.number(f"{folder}/{files.used}")
        cache = _field(machine.text(f"{folder}/memory.stat"), files.cache) or 0
        left = None if used is None else max(0, limit - max(0, used - cache))
        found.append(Limit(limit, left))
    return found


def _folders(machine: Machine) -> list[tuple[str, Files]]:
    """Return our control group's folder and those above it, for each version that limits memory here."""
    found = []
    for line in (machine.text("/proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            kind, files = "cgroup2", VERSION_2
        elif "memory" in controllers.split(","):
            kind, files = "cgroup", VERSION_1
        else:
            continue
        points = [
            point
            for point, one, options in machine.mounts()
            if one == kind and (kind == "cgroup2" or "memory" in options.split(","))
        ]
        if not points:
            continue
        # In a container the path may be that of the machine outside: what is not there is passed over, and the
        # folder that is mounted is the container's own.
        parts = [part for part in path.split("/") if part not in ("", "..")]
        found += [("/".join([points[0].rstrip("/"), *parts[:count]]), files) for count in range(len(parts), -1, -1)]
    return found


def _field(text: str | None, name: str) -> int | None:
    for line in (text or "").splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == name and words[1].isdigit():
            return int(words[1])
    return None

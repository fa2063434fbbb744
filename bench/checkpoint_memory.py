"""The memory of a trainer and of all processes below it, from the kernel's own high-water marks.

ru_maxrss is of no use here: a new process counts as its own what its parent had when it was made.
"""

from __future__ import annotations

from pathlib import Path


def figures(pid: int) -> dict[str, int]:
    """Return the bytes that /proc/PID/status names: VmRSS, VmHWM, RssShmem and the rest; {} if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    found = (line.split() for line in lines if line.endswith(" kB"))
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in found}


def below(pid: int) -> list[int]:
    """Return the processes that a process and its children have started, and that are still there."""
    found = []
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            words = listed.read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        for child in map(int, words):
            found += [child, *below(child)]
    return found


def forget(pid: int) -> int:
    """Let the high-water mark of a process begin anew; return the bytes it holds now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return figures(pid)["VmRSS"]


def beside(pid: int, before: int) -> dict[str, int]:
    """Return the most bytes held since :func:`forget`: more in the trainer, in other processes, and shared by both.

    Shared memory is counted once. Each is the peak of its process, so their sum is an upper bound: the processes need
    not have reached theirs at one time, and libraries that both have loaded count in full.
    """
    own, others = figures(pid), [one for one in map(figures, below(pid)) if "VmHWM" in one]
    return {
        "trainer": own["VmHWM"] - own["RssShmem"] - before,
        "others": sum(one["VmHWM"] - one["RssShmem"] for one in others),
        "shared": max(one["RssShmem"] for one in [own, *others]),
    }

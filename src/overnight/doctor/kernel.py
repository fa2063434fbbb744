"""What of the kernel, of /proc and of the programs here could end or blind a run: checks of ``overnight doctor``.

As there: a check looks at a ``Machine`` and returns one frozen value, and nothing is changed.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from overnight.doctor.findings import Check, ok, problem, warning
from overnight.engines.environment import is_fleeting, is_tool_environment
from overnight.machine import CAP_SYS_PTRACE, Machine

# -- what the kernel allows ------------------------------------------------------------------------------------------


def stacks(machine: Machine) -> Check:
    """Say whether the stacks of a stalled training can be taken."""
    name = "stacks"
    tool = machine.program("py-spy") or _beside("py-spy", machine)
    scope = machine.number("/proc/sys/kernel/yama/ptrace_scope") or 0
    if scope == 3 or (scope > 0 and not machine.capable(CAP_SYS_PTRACE)):
        mend = "it stays so until a reboot" if scope == 3 else "`sudo sysctl kernel.yama.ptrace_scope=0`"
        return warning(name, f"the kernel forbids to look at a stalled training's stacks (ptrace_scope={scope})", mend)
    if tool is None:
        return warning(name, "py-spy is not there, so a stalled training's stacks are not kept", "install py-spy")
    return ok(name, f"the stacks of a stalled training can be taken ({tool}, ptrace_scope={scope})")


def _beside(name: str, machine: Machine) -> str | None:
    path = Path(sys.prefix, "bin", name)
    return str(path) if machine.real and path.exists() else None


def memory(machine: Machine) -> Check:
    """Say whom the kernel takes first when memory runs out."""
    name = "memory"
    score = machine.number("/proc/self/oom_score_adj") or 0
    swap = re.search(r"^SwapTotal:\s+(\d+)", machine.text("/proc/meminfo") or "", re.MULTILINE)
    with_swap = f"{int(swap[1]) / (1 << 20):.1f} GiB swap" if swap is not None else "unknown swap"
    if score >= 1000:
        text = f"our oom score is {score}, the highest: the kernel may take the supervisor instead of the training"
        return warning(name, f"{text} ({with_swap})", "start from a shell with a lower one: `choom -n 0 -p $$`")
    return ok(name, f"out of memory, the training goes before its keepers (oom score {score} and 10 more), {with_swap}")


def inotify(machine: Machine) -> Check:
    """Say whether there are watches enough to wake by."""
    name = "inotify"
    watches = machine.number("/proc/sys/fs/inotify/max_user_watches")
    instances = machine.number("/proc/sys/fs/inotify/max_user_instances")
    if watches is None or instances is None:
        return ok(name, "its limits cannot be told")
    text = f"{watches:,} watches and {instances} instances a user"
    if watches < 1024 or instances < 32:
        fix = "`sudo sysctl fs.inotify.max_user_instances=256 fs.inotify.max_user_watches=65536`"
        return warning(name, f"{text}: few, and then logs are polled", fix)
    return ok(name, text)


def proc(machine: Machine) -> Check:
    """Say whether /proc shows the processes of a run."""
    name = "proc"
    found = [options for point, kind, options in machine.mounts() if point == "/proc" and kind == "proc"]
    if not found and (machine.real or machine.mounts()):
        return problem(name, "/proc is not mounted, and Overnight lives on it", "`mount -t proc proc /proc`")
    hidden = re.search(r"\bhidepid=(\w+)", " ".join(found))
    if hidden is None or hidden[1] in ("0", "off") or machine.uid == 0:
        return ok(name, "shows all processes")
    if hidden[1] in ("4", "ptraceable"):
        return problem(
            name, f"hidepid={hidden[1]} may hide a run's own processes", "mount /proc with hidepid=2 or less"
        )
    return ok(name, f"hides other users' processes (hidepid={hidden[1]}), not those of a run")


def kernel(machine: Machine) -> Check:
    """Say whether the end of a process can be waited for, and whether how it ended can be asked."""
    name = "kernel"
    release = (machine.text("/proc/sys/kernel/osrelease") or "").strip()
    parts = re.match(r"(\d+)\.(\d+)", release)
    if parts is None:
        return ok(name, "its version cannot be told")
    version = int(parts[1]), int(parts[2])
    if version < (5, 3) or not machine.pidfd():
        return problem(name, f"Linux {release} gives no pidfds", "use Linux 5.3 or later, or a looser seccomp profile")
    if version < (6, 15):
        text = f"Linux {release}; the exit status of a watched training that is nobody's child is unknown before 6.15"
        return ok(name, text)
    return ok(name, f"Linux {release}: pidfds, and the exit status of any process")


def subreaper(machine: Machine) -> Check:
    """Say whether orphans of a run come to its shim."""
    name = "subreaper"
    if machine.subreaper():
        return ok(name, "orphans of a run stay with its shim")
    text = "prctl(PR_SET_CHILD_SUBREAPER) is refused: what a training leaves behind is lost sight of"
    return warning(name, text, "use a looser seccomp profile")


# -- programs --------------------------------------------------------------------------------------------------------


def tmux(machine: Machine) -> Check:
    """Say whether --engine tmux would show anything."""
    if machine.program("tmux") is None:
        return ok("tmux", "not installed; only --engine tmux needs it")
    return ok("tmux", machine.answer("tmux", "-V") or "installed")


def environment(machine: Machine) -> Check:
    """Say where Overnight itself lives."""
    name = "environment"
    prefix = Path(sys.prefix)
    if not machine.real:
        return ok(name, "cannot be told of a tree of files")
    if is_fleeting(prefix):
        fix = "`uv add --dev overnight` in the project, or `uv tool install overnight`"
        return problem(name, f"{prefix} is deleted when `uv run --with` returns", fix)
    if is_tool_environment(prefix, Path(sys.base_prefix)):
        return ok(name, f"a tool environment ({prefix}); trainings get your PATH without it")
    return ok(name, f"{prefix}; trainings get your PATH as it is")

"""What of the GPUs here could end or blind a run: checks of ``overnight doctor``.

As there: a check looks at a ``Machine`` and returns one frozen value. A driver that hangs holds up none of them:
whoever asks it is a process of its own, which is given up after some seconds.
"""

from __future__ import annotations

import json
import sys
from collections import Counter

from overnight.doctor.findings import Check, ok, problem, warning
from overnight.exits import postmortem
from overnight.machine import Machine
from overnight.sensors import GpuSample
from overnight.sensors.following import gpu_likely
from overnight.sensors.gpulook import LIMIT_S
from overnight.sensors.holders import device_files

RESET = "reset the device (`nvidia-smi --gpu-reset`) or reboot"


def gpu(machine: Machine) -> Check:
    """Say which GPUs answer; no run needs one of us."""
    name = "gpu"
    driver = machine.exists("/proc/driver/nvidia/version")
    if not machine.real:
        return ok(name, "an NVIDIA driver; a tree of files does not answer" if driver else "no NVIDIA driver")
    if not driver and not gpu_likely(machine.environ):
        return ok(name, "no NVIDIA driver, no AMD one")
    from overnight.sensors.gpu import look

    return _answered(look(LIMIT_S / 2))


def _answered(sample: GpuSample) -> Check:
    name = "gpu"
    if not sample.gpus:
        return ok(name, f"none that answers: {sample.trouble or 'no GPU is listed'}")
    lost = [one for one in sample.gpus if one.lost is not None]
    if lost:
        text = "; ".join(f"GPU {one.index} is lost: {one.lost}" for one in lost)
        return problem(name, text, RESET)
    failed = [one for one in sample.gpus if one.remap_failed]
    if failed:
        text = f"GPU {failed[0].index} could not replace a faulty row of its memory"
        return warning(name, text, "keep runs off it, and have it exchanged")
    waits = [one for one in sample.gpus if one.remap_pending]
    if waits:
        text = f"GPU {waits[0].index} waits for a reset to replace a faulty row of its memory"
        return warning(name, text, RESET)
    names = Counter(one.name or "a GPU without a name" for one in sample.gpus)
    told = ", ".join(one if count == 1 else f"{count} x {one}" for one, count in names.items())
    return ok(name, told + (f", driver {sample.driver}" if sample.driver else ""))


def devices(machine: Machine) -> Check:
    """Say who holds the GPUs' device files: a process that hangs keeps the memory of a card."""
    name = "devices"
    files = device_files(machine.path("/dev"))
    if not files:
        return ok(name, "no device files of GPUs (/dev/nvidia0 and the like)")
    if not machine.real:
        return ok(name, "who holds the GPUs cannot be told of a tree of files")
    said = machine.answer(sys.executable, "-I", "-m", "overnight.aftermath.vacancy", "--all", *map(str, files))
    if said is None:
        return warning(name, "who holds the GPUs' device files cannot be found out in time", RESET)
    found = json.loads(said)
    hung = [one["text"] for one in found["holders"] if one["state"] == "D"]
    if hung:
        return problem(name, "; ".join(hung), f"end it; if it does not die, {RESET}")
    return ok(name, "; ".join(found["sentences"]))


def kernel_log(machine: Machine) -> Check:
    """Say whether the kernel's log can be read, where drivers tell of faults of a GPU (Xid)."""
    name = "kernel_log"
    if not machine.real:
        return ok(name, "whether it can be read cannot be told of a tree of files")
    closed = postmortem.kernel_log_closed()
    if closed is None:
        return ok(name, "can be read: faults that a driver reports (Xid) and kills for memory are found in it")
    text = f"the kernel's log is not readable ({closed})"
    if not device_files():
        return ok(name, f"{text}; there is no GPU of which it could tell")
    text += ": Xid errors are known from NVIDIA's library only"
    return warning(name, text, "`sudo sysctl kernel.dmesg_restrict=0`")

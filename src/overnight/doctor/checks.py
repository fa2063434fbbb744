"""Says what on a machine could end or blind a run in the night, and what mends it: one check for each thing.

A check looks at a ``Machine`` and returns one frozen value; nothing is changed but a file of no name in the home of the
runs, and no run is read. What can only be tried on the machine itself is left out for a tree of files.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from overnight.doctor.findings import Check, ok, problem, warning
from overnight.doctor.gpu import devices, gpu, kernel_log
from overnight.doctor.kernel import environment, inotify, kernel, memory, proc, stacks, subreaper, tmux
from overnight.intake.space import NETWORK
from overnight.machine import Machine
from overnight.quantities import duration_s
from overnight.spec import RunSpec

GRACE_S = RunSpec(name="", argv=(), executable="", cwd="", log="").grace_s
"""What a run gets unless --grace says otherwise: outer limits are compared with this."""

LOW_BYTES, NEEDED_BYTES = 5 << 30, 16 << 20
CLOCKS_APART_S = 2.0
BUILT_AT = 1_764_547_200  # 2025-12-01: no clock that is right shows an earlier time
LINGER = "`loginctl enable-linger`"
SCOPE = "`systemd-run --user --scope overnight run ...`"


def examine(machine: Machine) -> list[Check]:
    """Return what every check finds, in the order of CHECKS."""
    return [check(machine) for check in CHECKS]


def quick(machine: Machine) -> list[str]:
    """Return the sentences that a person who starts a run must hear at once: only what ends runs at a logout."""
    found = logind(machine)
    return [f"{found.text}: {found.fix}"] if found.level == "problem" else []


# -- the login session -----------------------------------------------------------------------------------------------


def logind(machine: Machine) -> Check:
    """Say whether logging out ends what the session has started."""
    name = "logind"
    if not _systemd(machine):
        return ok(name, "no systemd here, so nothing ends processes at a logout")
    lingers = machine.exists(f"/var/lib/systemd/linger/{machine.user}")
    groups = machine.cgroups()
    if any(f"/user@{machine.uid}.service" in group for group in groups):
        if lingers:
            return ok(name, "this is a unit of your user manager, which stays after a logout (lingering is on)")
        return problem(name, "your user manager ends with your last session, and this shell's runs with it", LINGER)
    if groups and not any("/session-" in group or "/user.slice" in group for group in groups) and machine.real:
        return ok(name, "this is no login session, so no logout ends it")
    kills, where = _kills_at_logout(machine)
    if not kills:
        return ok(name, f"a logout leaves processes alone (KillUserProcesses=no, {where})")
    if lingers:
        text = f"logging out kills what a session has started (KillUserProcesses=yes, {where}); lingering is on"
        return warning(name, text, f"start runs with {SCOPE}, outside the session")
    text = f"logging out kills every run (KillUserProcesses=yes, {where}) and your user manager (lingering is off)"
    return problem(name, text, f"{LINGER}, then start runs with {SCOPE}")


def _systemd(machine: Machine) -> bool:
    """Say whether systemd runs; of a tree of files, whether it may."""
    if machine.exists("/run/systemd/system"):
        return True
    first = machine.text("/proc/1/comm")
    return not machine.real and (first is None or first.strip() == "systemd")


def _kills_at_logout(machine: Machine) -> tuple[bool, str]:
    """Return whether logind kills this user's processes at a logout, and the file that says so."""
    kills, where = "no", "the default"
    only: list[str] = []
    spared = ["root"]
    for path in _logind_files(machine):
        for key, value in _settings(machine.text(path) or ""):
            if key == "KillUserProcesses":
                kills, where = value.lower(), path
            elif key == "KillOnlyUsers":
                only = [*only, *value.split()] if value else []
            elif key == "KillExcludeUsers":
                spared = value.split()
    if kills not in ("yes", "true", "on", "1", "y", "t"):
        return False, where
    if machine.user in spared:
        return False, f"{machine.user} is in KillExcludeUsers"
    return (not only or machine.user in only), where


def _logind_files(machine: Machine) -> list[str]:
    """Return the files of logind's settings, what wins last: one main file, then drop-ins by name, /etc before /usr."""
    main = [f"{place}/systemd/logind.conf" for place in ("/etc", "/run", "/usr/local/lib", "/usr/lib")]
    found = [path for path in main if machine.exists(path)][:1]
    drops: dict[str, str] = {}
    for place in ("/usr/lib", "/usr/local/lib", "/run", "/etc"):  # the same name hides those of the places before
        folder = f"{place}/systemd/logind.conf.d"
        drops.update({name: f"{folder}/{name}" for name in machine.names(folder) if name.endswith(".conf")})
    return [*found, *(drops[name] for name in sorted(drops))]


def _settings(text: str) -> list[tuple[str, str]]:
    """Return the keys and values of [Login] in a file of systemd."""
    found, section = [], ""
    for line in text.splitlines():
        said = line.strip()
        if said.startswith("["):
            section = said
        elif section == "[Login]" and "=" in said and said[0] not in "#;":
            key, _, value = said.partition("=")
            found.append((key.strip(), value.strip().strip("\"'")))
    return found


# -- who else ends it, and how soon ----------------------------------------------------------------------------------


def unit(machine: Machine) -> Check:
    """Say how long a systemd unit that we run in leaves a run for its save."""
    name = "unit"
    found = re.findall(r"/([^/]+\.service)(?:/|$)", " ".join(f"{group}/" for group in machine.cgroups()))
    own = [one for one in found if not one.startswith("user@")]
    if not own:
        return ok(name, "not in a systemd service")
    whose = ("--user",) if "user@" in found[0] else ()
    said = machine.answer("systemctl", *whose, "show", own[-1], "-p", "KillMode", "-p", "TimeoutStopUSec")
    known = dict(line.partition("=")[::2] for line in (said or "").splitlines())
    mode, wait = known.get("KillMode") or "unknown", known.get("TimeoutStopUSec") or "unknown"
    text = f"in {own[-1]}: stopping it ends runs started from it (KillMode={mode}, TimeoutStopSec={wait})"
    if mode in ("process", "none"):
        return ok(name, f"in {own[-1]}, which leaves runs alone when it is stopped (KillMode={mode})")
    wait_s = _systemd_s(wait)
    if wait_s is not None and wait_s > GRACE_S and mode == "mixed":
        return ok(name, text)
    return warning(name, text, f"set KillMode=mixed and TimeoutStopSec above --grace ({GRACE_S:g} s) in the unit")


def _systemd_s(text: str) -> float | None:
    """Return a time as systemctl prints it ("1min 30s", "infinity") in seconds."""
    if text == "infinity":
        return float("inf")
    try:
        return duration_s(text.replace("min", "m").replace(" ", ""))
    except ValueError:
        return None


def slurm(machine: Machine) -> Check:
    """Say how long Slurm waits between SIGTERM and SIGKILL."""
    name = "slurm"
    if "SLURM_JOB_ID" not in machine.environ:
        return ok(name, "not in a Slurm job")
    said = machine.answer("scontrol", "show", "config") or ""
    wait = re.search(r"^KillWait\s*=\s*(\d+)", said, re.MULTILINE)
    if wait is not None and int(wait[1]) > GRACE_S:
        return ok(name, f"Slurm waits {wait[1]} s before it kills (KillWait), longer than --grace ({GRACE_S:g} s)")
    text = f"Slurm kills {wait[1]} s after its SIGTERM (KillWait)" if wait else "how long Slurm waits cannot be told"
    return warning(name, text, f"ask for an earlier signal: sbatch --signal=B:TERM@{GRACE_S * 2:.0f}")


def container(machine: Machine) -> Check:
    """Say how long a container leaves a run for its save."""
    name = "container"
    kind = machine.container()
    if kind is None:
        return ok(name, "not in a container")
    wait_s = 30 if kind == "kubernetes" else 10
    how = "terminationGracePeriodSeconds" if kind == "kubernetes" else "--stop-timeout (stop_grace_period in compose)"
    text = f"in a container ({kind}): it is killed {wait_s} s after its stop unless it was started otherwise"
    return warning(name, text, f"set {how} above --grace ({GRACE_S:g} s), and use `overnight run --foreground`")


def torchrun(_: Machine) -> Check:
    """Say what becomes of torchrun's own patience."""
    text = "torchrun kills its ranks 30 s after a signal to itself; Overnight signals the ranks, so they have --grace"
    return ok("torchrun", text)


# -- disk and clock --------------------------------------------------------------------------------------------------


def disk(machine: Machine) -> Check:
    """Say whether the home of the runs can be written to, has room, and is on a disk of this machine."""
    name = "disk"
    place = _existing(machine.home if machine.real else machine.path(str(machine.home)))
    if not os.access(place, os.W_OK | os.X_OK):
        return problem(name, f"{place} cannot be written to", "mend its permissions, or set OVERNIGHT_HOME")
    free = shutil.disk_usage(place).free
    room = f"{machine.home} has {free / (1 << 30):.1f} GiB free"
    if free < NEEDED_BYTES:
        return problem(name, room, "free some space, or set OVERNIGHT_HOME to another disk")
    if free < LOW_BYTES:
        return warning(name, room, "free some space: a log that cannot be written ends most trainings")
    kind = machine.filesystem(os.path.realpath(place) if machine.real else str(machine.home))
    if kind in NETWORK:
        text = f"{room}, on a network disk ({kind}): changes are polled for once a second"
        return warning(name, text, "set OVERNIGHT_HOME to a disk of this machine, if there is one")
    return ok(name, f"{room}" + (f" ({kind})" if kind else ""))


def _existing(path: Path) -> Path:
    return next((one for one in (path, *path.parents) if one.exists()), path)


def clock(machine: Machine) -> Check:
    """Say whether the wall clock can be trusted: --until and all times in the morning go by it."""
    name = "clock"
    fix = "start a time service: `timedatectl set-ntp true`, chrony or ntpd"
    if not machine.real:
        return ok(name, "cannot be told of a tree of files")
    now = time.time()
    if now < BUILT_AT:
        return problem(name, f"the clock shows {time.strftime('%Y-%m-%d', time.gmtime(now))}", fix)
    apart = _apart_s(_existing(machine.home))
    if apart is not None and abs(apart) > CLOCKS_APART_S:
        text = f"files in {machine.home} are dated {apart:+.0f} s from this machine's clock"
        return warning(name, text, "let the file server and this machine use the same time service")
    shared = "; a container shows its host's clock" if machine.container() else ""
    synced = machine.synchronized()
    if synced:
        return ok(name, f"synchronized{shared}")
    if synced is None:
        return ok(name, f"whether it is synchronized cannot be told; it is plausible{shared}")
    return warning(name, f"plausible, but not synchronized{shared}: --until may come early or late", fix)


def _apart_s(folder: Path) -> float | None:
    """Return by how much a new file there is dated later than now; None if none can be made."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
            file.flush()
            return os.fstat(file.fileno()).st_mtime - time.time()
    except OSError:
        return None


CHECKS: tuple[Callable[[Machine], Check], ...] = (
    logind, unit, slurm, container, torchrun, disk, clock, memory, stacks, inotify, proc, kernel, subreaper, tmux,
    environment, gpu, devices, kernel_log,
)  # fmt: skip
"""Every check, those that may end a run first; what looks at kernel, programs and GPUs has files of its own."""

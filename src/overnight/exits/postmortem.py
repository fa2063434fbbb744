"""What can still be learned of a command that has ended: its last lines, the out-of-memory counter, the kernel's log.

Reading only, bounded in bytes and in time, and a thing that cannot be read is unknown, never an error. What it all
means is decided by ``causes.py``. SIGKILL counts as a lack of memory only if the counter of the command's own control
group rose, or the kernel's log names a process of ours: a counter of the whole machine is no more than a hint.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec

from overnight.events import Exit
from overnight.exits.causes import Finding, classify
from overnight.exits.symptoms import MEMORY_FAILURE, XID
from overnight.tail import Tail

TAIL_BYTES = 64 * 1024
LINE_BYTES = 4096
KMSG = Path("/dev/kmsg")
KMSG_RECORD_BYTES = 8192  # the kernel's own limit of one record
KMSG_MAX_RECORDS = 20_000
KMSG_LIMIT_S = 0.5
KERNEL_LINES = 20
SYSLOG_READ_ALL, SYSLOG_SIZE = 3, 10
SYSLOG_BYTES = 1 << 20

_CLOCK_SLACK_S = 5.0
_CLOCK_DRIFT = 1e-4  # the clock of the kernel's log is not corrected by NTP: a few seconds in a day
_PRINTED = re.compile(r"^(?:<\d+>)?\[\s*(?P<at>\d+\.\d+)\] (?P<text>.*)$")
_RECORD = re.compile(r"^\d+,\d+,(?P<at_us>\d+),[^;]*;(?P<text>.*)$")
_VICTIM = re.compile(
    r"Killed process (?P<killed>\d+)\b|oom-kill:.*\bpid=(?P<chosen>\d+)\b|reaped process (?P<reaped>\d+)\b"
    r"|Killing \S+?:(?P<corrupt>\d+) due to hardware memory corruption"
)
_XID_PID = re.compile(r"\bpid='?(?P<pid>\d+|<unknown>)'?")


class OomCounters(msgspec.Struct, frozen=True, kw_only=True):
    """How often the kernel has killed for memory: within the command's own control group, and on the whole machine.

    ``path`` is the group's file, to be read again when the command is gone; ``kills`` is None if there is no counter.
    """

    path: str | None
    kills: int | None
    host_kills: int | None


def oom_counters(pid: int, root: Path = Path("/")) -> OomCounters | None:
    """Return the counters of the control group that ``pid`` is in; None if the process is gone.

    cgroup v2 counts in memory.events, v1 in memory.oom_control. ``root`` is where /proc is looked for, and the groups.
    """
    try:
        text = (root / f"proc/{pid}/cgroup").read_text(errors="surrogateescape")
    except OSError:
        return None
    path = next((one for one in _counter_files(text, root) if _kills(one) is not None), None)
    host = _kills(root / "proc/vmstat")
    return OomCounters(path=None if path is None else str(path), kills=_kills(path), host_kills=host)


def again(before: OomCounters, root: Path = Path("/")) -> OomCounters:
    """Return the same counters now; unknown where the group was removed together with its last process."""
    kills = None if before.path is None else _kills(Path(before.path))
    return msgspec.structs.replace(before, kills=kills, host_kills=_kills(root / "proc/vmstat"))


def _counter_files(groups: str, root: Path) -> Iterator[Path]:
    """Yield the files that may count for a process: v1's memory controller, then v2."""
    mounts = list(_mounts(root))
    for line in groups.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        for kind, options, origin, point in mounts:
            if kind == "cgroup" and "memory" in controllers.split(",") and "memory" in options.split(","):
                yield root / _inside(group, origin, point) / "memory.oom_control"
            elif kind == "cgroup2" and number == "0" and not controllers:
                yield root / _inside(group, origin, point) / "memory.events"


def _mounts(root: Path) -> Iterator[tuple[str, str, str, str]]:
    """Yield type, options, origin and mount point of every mount."""
    try:
        text = (root / "proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return
    for line in text.splitlines():
        fields, _, rest = line.partition(" - ")
        words, more = fields.split(" "), rest.split(" ")
        if len(words) > 4 and len(more) > 2:
            yield more[0], more[2], words[3], words[4]


def _inside(group: str, origin: str, point: str) -> str:
    """Return the folder of a group below a mount, relative to the root; in a container the mount shows only a part."""
    below = group[len(origin) :] if origin != "/" and f"{group}/".startswith(f"{origin}/") else group
    return f"{point}/{below}".lstrip("/")


def _kills(path: Path | None) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        for line in () if path is None else path.read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return None


def examine(
    *,
    how: Exit,
    target: Exit | None,
    log: Path,
    start: int,
    end: int | None,
    pid: int | None,
    started_at: float | None,
    before: OomCounters | None,
    pids: Collection[int] = (),
    root: Path = Path("/"),
    kmsg: Path = KMSG,
) -> Finding:
    """Return why an attempt ended. Its part of the log lies from byte ``start`` to ``end`` (None: to the log's end).

    ``pid`` is the command, ``pids`` are others that were known to be of the run; ``started_at`` is in seconds since the
    epoch. ``before`` are the counters of the attempt's start. ``root`` and ``kmsg`` are other places in tests.
    """
    tail = last_lines(log, start, end)
    mine = {*pids, *(() if pid is None else (pid,)), *_told_pids(tail)}
    kernel = list(kernel_lines(mine, started_at, kmsg)) if started_at is not None else []
    after = None if before is None else again(before, root)
    found = classify(
        how, target, tail, _evidence(before, after, kernel), "\n".join(kernel) or None, disk=full_disk(log)
    )
    hint = _host_hint(before, after) if found.cause == "unknown_kill" and "SIGKILL" in found.text else None
    return found if hint is None else msgspec.structs.replace(found, text=f"{found.text}; {hint}")


def last_lines(log: Path, start: int, end: int | None) -> list[str]:
    """Return the last lines of one part of a log, at most 64 KiB of it; none if the file is gone or was cut shorter."""
    try:
        handle = os.open(log, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return []
    try:
        size = os.fstat(handle).st_size
        last = size if end is None else min(end, size)
        # Shorter than where the attempt began: it was emptied meanwhile, and all that is in it is younger.
        first = max(0 if start > size else start, last - TAIL_BYTES)
        data = os.pread(handle, max(0, last - first), first)
        cut = first > start and (first == 0 or os.pread(handle, 1, first - 1) not in (b"\n", b"\r"))
    except OSError:
        return []
    finally:
        os.close(handle)
    tail = Tail()
    lines = [line.text for line in (*tail.feed(data), *tail.flush())]
    return lines[1:] if cut else lines


def full_disk(log: Path) -> str | None:
    """Return a sentence if not even a line more can be written into a log; None if it can, or nobody knows."""
    try:
        disk, look = os.statvfs(log), log.stat()
    except OSError:
        return None
    free = (disk.f_bavail if os.geteuid() else disk.f_bfree) * disk.f_frsize
    kept = look.st_blocks * 512 - look.st_size  # space that was allocated ahead of the end of the log
    if free >= LINE_BYTES or kept >= LINE_BYTES:
        return None
    return f"the disk of {log} is full, so it could not say why"


def _told_pids(lines: list[str]) -> set[int]:
    """Return the pids that launchers and data loaders name as those of processes of theirs that failed."""
    found = re.findall(r"\(pid:? (\d+)\)|\(pid\(s\) ([\d, ]+)\)", "\n".join(lines))
    return {int(word) for pair in found for word in re.findall(r"\d+", " ".join(pair))}


def _evidence(before: OomCounters | None, after: OomCounters | None, kernel: list[str]) -> str | None:
    """Return the sentence that proves a kill for memory."""
    told = next((line for line in kernel if _VICTIM.search(line) and "corruption" not in line), None)
    if told is not None:
        return f"its log says {told.strip()[:160]!r}"
    if before is None or after is None or before.kills is None or after.kills is None or after.kills <= before.kills:
        return None
    return f"the counter of its control group rose by {after.kills - before.kills} ({after.path})"


def _host_hint(before: OomCounters | None, after: OomCounters | None) -> str | None:
    """Return a hint from the counter of the whole machine, for a kill that nothing else explains."""
    if before is None or after is None or before.host_kills is None or after.host_kills is None:
        return None
    if after.host_kills > before.host_kills:
        return "the kernel has killed for memory on this machine meanwhile, but not demonstrably here"
    return None


# --- the kernel's log -------------------------------------------------------------------------------------------------


def kernel_lines(pids: Collection[int], started_at: float, kmsg: Path = KMSG) -> Iterator[str]:
    """Yield the lines that speak of processes of ours, or of a GPU, since the attempt began; nothing if not readable.

    A GPU that has left the bus is reported without a pid, so such a line counts for everyone on the machine.
    """
    now_s = time.clock_gettime(time.CLOCK_MONOTONIC)
    slack_s = _CLOCK_SLACK_S + now_s * _CLOCK_DRIFT
    since_s = now_s - max(0.0, time.time() - started_at) - slack_s
    seen = 0
    for at_s, text in _records(kmsg):
        if at_s >= since_s and _concerns(text, pids):
            seen += 1
            if seen > KERNEL_LINES:
                return
            yield text


def device_lines(since: float, kmsg: Path = KMSG) -> tuple[list[tuple[float, str]], str | None]:
    """Return the last lines that speak of a fault of a device, each with its time; or why nobody can read them.

    ``since`` and the times are seconds since the epoch, as near as the kernel's own clock tells.
    """
    closed = kernel_log_closed(kmsg)
    if closed is not None:
        return [], closed
    apart_s = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)
    slack_s = _CLOCK_SLACK_S + time.clock_gettime(time.CLOCK_MONOTONIC) * _CLOCK_DRIFT
    found = [
        (at_s + apart_s, text)
        for at_s, text in _records(kmsg)
        if at_s + apart_s >= since - slack_s and (XID.search(text) or MEMORY_FAILURE.search(text))
    ]
    return found[-KERNEL_LINES:], None


def kernel_log_closed(kmsg: Path = KMSG) -> str | None:
    """Return why the kernel's log cannot be read; None if it can."""
    try:
        handle = os.open(kmsg, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        readable = kmsg == KMSG and ctypes.CDLL(None).klogctl(SYSLOG_SIZE, None, 0) > 0 and any(_from_syslog())
        return None if readable else error.strerror
    try:
        os.read(handle, KMSG_RECORD_BYTES)
    except (BlockingIOError, BrokenPipeError):
        return None
    except OSError as error:
        return error.strerror
    finally:
        os.close(handle)
    return None


def _concerns(text: str, pids: Collection[int]) -> bool:
    victim = _VICTIM.search(text)
    if victim is not None:
        return int(next(pid for pid in victim.groups() if pid is not None)) in pids
    if XID.search(text) is None:
        return False
    named = _XID_PID.search(text)
    return named is None or not named["pid"].isdigit() or int(named["pid"]) in pids


def _records(kmsg: Path) -> Iterator[tuple[float, str]]:
    """Yield (seconds since boot, text) of each record: from /dev/kmsg, else as the system call hands them out."""
    try:
        handle = os.open(kmsg, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        yield from _from_syslog() if kmsg == KMSG else ()
        return
    limit = time.monotonic() + KMSG_LIMIT_S
    try:
        for _ in range(KMSG_MAX_RECORDS):
            try:
                data = os.read(handle, KMSG_RECORD_BYTES)
            except BrokenPipeError:
                continue  # what was to be read next has been overwritten: the next read goes on behind the gap
            except OSError:
                return  # all is read, or we may not read
            if not data or time.monotonic() > limit:
                return
            for line in data.decode("utf-8", "replace").splitlines():
                record = _RECORD.match(line)
                if record is not None:
                    yield int(record["at_us"]) / 1e6, record["text"]
    finally:
        os.close(handle)


def _from_syslog() -> Iterator[tuple[float, str]]:
    """Yield the same through syslog(2): it may be allowed where /dev/kmsg is missing, as in containers."""
    buffer = ctypes.create_string_buffer(SYSLOG_BYTES)
    size = ctypes.CDLL(None, use_errno=True).klogctl(SYSLOG_READ_ALL, buffer, SYSLOG_BYTES)
    for line in buffer.raw[: max(0, size)].decode("utf-8", "replace").splitlines():
        printed = _PRINTED.match(line)
        if printed is not None:
            yield float(printed["at"]), printed["text"]

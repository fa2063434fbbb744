"""One JSON file of a run folder, read without waiting; and who keeps a run: which of its processes live.

``ls`` of a thousand runs lives on this file, so nothing costly is imported (typing, pathlib, msgspec through
``folder``). Nothing is decided, started or signalled here; what a status says besides is ``client``'s.
"""

from __future__ import annotations

import json
import os
import time

from overnight.errors import FolderError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Status = dict[str, Any]

ENDED = frozenset({"finished", "stopped", "failed", "gave_up"})
"""The same set as ``states.ENDED`` (a test compares them); importing that one would cost ``ls`` 20 ms (msgspec)."""

NEWBORN_S = 15.0
"""A run younger than this may not have its keepers yet: nobody calls it abandoned."""

AGAIN_S = 0.005
"""On a full disk a status is written over the old one: whoever met half of it looks again so much later."""

UNWRITTEN_S = 75.0
"""A status this old is not kept up: a living supervisor writes it anew within half a minute, or has a minute for the
last saves of a run that ends."""

LEAST_FREE = 1 << 20
"""With less than this left a disk is full for a supervisor: the same as ``folder.FULL_BYTES``, as a test says."""

_NON_FINITE = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}
_DECODE = json.JSONDecoder(parse_constant=_NON_FINITE.__getitem__).decode
_CHUNK = 1 << 16


def read_object(path: str) -> Status | None:
    """Return the JSON object in a file, None if there is none; FolderError with a sentence for anything else.

    A twin of ``folder.read_json`` without that room's imports (20 ms for ``ls``), and one that no FIFO can block.
    """
    data = _read(path)
    if data is None:
        return None
    try:
        value = _DECODE(data.decode())
    except (ValueError, RecursionError):
        time.sleep(AGAIN_S)
        try:
            value = _DECODE((_read(path) or b"").decode())
        except (ValueError, RecursionError) as error:
            raise FolderError(f"{path} is not valid JSON ({error}); it was edited or damaged: restore it") from error
    if not isinstance(value, dict):
        raise FolderError(f"{path} does not hold a JSON object; it was edited or damaged: restore it")
    return value


def there(path: str) -> bool:
    """Say whether a run has a folder, or a link in its place, which may lead to a disk that is away or nowhere."""
    return os.path.isdir(path) or os.path.islink(path)


def may_be_run(entry: os.DirEntry[str]) -> bool:
    """Say whether an entry of the folder of all runs is one: a folder, or what should lead to one."""
    try:
        return entry.is_dir() or (entry.is_symlink() and not os.path.exists(entry.path))
    except OSError:  # a link to itself, a disk that fails: one bad entry hides no run, and is shown as damaged
        return True


def leads_nowhere(path: str) -> FolderError | None:
    """Return what to say of a link in a run's place that leads to nothing, or to itself; None for anything else."""
    if not os.path.islink(path) or os.path.exists(path):
        return None
    return FolderError(f"{path} is a link that leads nowhere: mount or restore what it is to show, or remove the link")


def _read(path: str) -> bytes | None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            data = os.read(handle, _CHUNK)
            if len(data) == _CHUNK:
                while more := os.read(handle, _CHUNK):
                    data += more
        finally:
            os.close(handle)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FolderError(f"{path} cannot be read: {error.strerror}; check who owns the run folder") from error
    return data


def boot_id() -> str:
    """Return the identity of this boot, "" where nobody tells."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as stream:
            return stream.read().decode().strip()
    except OSError:
        return ""


def alive(who: object) -> bool:
    """Say whether the process with this identity ({"pid", "start_ticks"}) runs; a zombie does not, nor a reused pid."""
    if not isinstance(who, dict) or type(who.get("pid")) is not int or who.get("start_ticks") is None:
        return False
    try:
        with open(f"/proc/{who['pid']}/stat", "rb") as stream:
            after_name = stream.read().rpartition(b")")[2].split()
    except OSError:  # gone, or gone between open and read (ESRCH)
        return False
    return after_name[0] not in (b"Z", b"X") and after_name[19] == str(who["start_ticks"]).encode()


MOVING = frozenset("updated_at active_s elapsed_s idle_s idle_cost cost cost_forecast silent_s backoff_until".split())
"""Fields of a status that change by themselves: one that differs only in these has not changed."""


def add_keepers(found: Status, path: str, boot: str) -> None:
    """Put into a status who keeps the run in ``path`` now, and what follows from that; ``boot`` is this boot's id."""
    try:
        kept = read_object(path + "/shim.json")
    except FolderError:
        kept = {"damaged": True}
    known = kept or {}
    was = known.get("boot_id")
    same_boot = was is None or not boot or was == boot
    supervisor = _pick([known.get("supervisor")], same_boot=same_boot)
    busy = found["state"] not in ENDED or found.get("hooks") is not None  # it may run the hooks of an ended run
    if not supervisor["alive"] and busy:
        supervisor = _adopted(found.get("supervisor"), path) or supervisor
    shim = _pick([known.get("shim"), known.get("guard")], same_boot=same_boot)  # the guard takes the dead shim's place
    found["supervisor"], found["shim"], found["stale_text"] = supervisor, shim, None
    found.update(unguarded=bool(known.get("unguarded")) and found["state"] not in ENDED, stale=False, foreign=False)
    if supervisor["alive"] and found["state"] not in (*ENDED, "damaged") and _is_old(found.get("updated_at")):
        found.update(stale=True, stale_text=_old_words(found, path))
        return
    if supervisor["alive"] or shim["alive"] or (found["state"] in ENDED and not _hooks_wait(found)):
        return
    if not same_boot and _foreign(path):
        found["foreign"] = True
        return
    if found["state"] in ENDED:
        found["stale"] = True  # whoever adopts it runs the hooks that are left
        return
    born = changed_at(path)
    found["stale"] = bool(known) or (born is not None and time.time() - born > NEWBORN_S)
    if not same_boot and found["state"] != "damaged":
        found["state"], found["cause"] = "failed", "host_rebooted"
        found["cause_text"] = "the machine was started anew while the run was going on"


def _is_old(written: object) -> bool:
    """Say whether a status was written too long ago; times of this form compare as texts do (and import nothing)."""
    limit = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() - UNWRITTEN_S))
    return isinstance(written, str) and len(written) >= len(limit) and written < limit


def _old_words(found: Status, path: str) -> str:
    """Return since when a status is not kept up though its supervisor lives, and why that may be."""
    try:
        look = os.statvfs(path)
        if look.f_flag & os.ST_RDONLY:
            why = f"the disk of {path} is read-only"
        elif look.f_bavail * look.f_frsize < LEAST_FREE or (look.f_files and not look.f_favail):
            why = f"the disk of {path} is full: make room there"
        elif not os.access(path, os.W_OK | os.X_OK):
            why = f"nobody may write to {path}"
        else:
            why = "it is stopped, or waits for a disk"
    except OSError as error:
        why = f"{path}: {error.strerror}"
    return f"what is shown is of {found['updated_at']}: its supervisor lives, but writes no status any more ({why})"


def changed_at(path: str) -> float | None:
    """Return when a run folder got or lost an entry last (seconds since the epoch); None if it was removed."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return None


def _hooks_wait(found: Status) -> bool:
    """Say whether hooks of an ended run have not been done with."""
    hooks = found.get("hooks")
    pending = hooks.get("pending") if isinstance(hooks, dict) else None
    return type(pending) is int and pending > 0


def _pick(identities: list[object], *, same_boot: bool) -> Status:
    """Return the first living process of several that may fill a place, or else the first one named."""
    named: list[Any] = [one for one in identities if isinstance(one, dict) and type(one.get("pid")) is int]
    living = [one for one in named if same_boot and alive(one)]
    return {"pid": (living or named or [{"pid": None}])[0]["pid"], "alive": bool(living)}


def _adopted(who: object, path: str) -> Status | None:
    """Return the supervisor that status.json names if it lives; an adopting one stands in no shim.json."""
    pid = who.get("pid") if isinstance(who, dict) else None
    if type(pid) is not int:
        return None
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as stream:
            words = stream.read().split(b"\0")
        known = b"overnight.supervisor" in words and os.path.samefile(words[-2], path)
    except OSError:
        return None
    return {"pid": pid, "alive": True} if known else None


def _foreign(path: str) -> bool:
    """Say whether the last owner's fencing file names another machine than this one."""
    from overnight.folder import machine_id

    try:
        last = max(name for name in os.listdir(path + "/owner") if name.isdigit())
        owner = read_object(f"{path}/owner/{last}") or {}
    except (OSError, ValueError, FolderError):
        return False
    return owner.get("machine_id") not in (None, machine_id())

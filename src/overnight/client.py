"""What every looker may do with runs: list them, read one, ask it to stop, wait for its end.

Reads run folders and drops requests, nothing else; nothing here starts or signals a process. ``ls`` of a thousand runs
lives on this file, so what is costly to import (typing, pathlib, msgspec through ``folder``) is imported where needed.
"""

from __future__ import annotations

import json
import os
import time

from overnight.errors import FolderError, NoSuchRunError, UsageError, WaitTimeoutError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Self

    from overnight.folder import RunFolder

    Status = dict[str, Any]

ENDED = frozenset({"finished", "stopped", "failed", "gave_up"})
"""The same set as ``lifecycle.ENDED`` (a test compares them); importing that one would cost ``ls`` 20 ms (msgspec)."""

STATES = ENDED | {"pending", "starting", "running", "stopping", "backoff"}

NEWBORN_S = 15.0
"""A run younger than this may not have its keepers yet: nobody calls it abandoned."""

RECHECK_S = 2.0
SHOWN_NAMES = 5
STALE_EVERY_S = 5.0

_NUMBER = (int, float)
FIELDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("name", "state", "cause", "cause_text", "signal", "log"), (str,)),
    **dict.fromkeys(("peak_source", "convention", "params_source", "created_at", "started_at", "ended_at"), (str,)),
    **dict.fromkeys(("attempt", "pid", "step", "params", "devices", "exit_code"), (int,)),
    **dict.fromkeys(("loss", "loss_avg", "tokens_per_second", "tflops", "mfu", "mfu_avg"), _NUMBER),
    **dict.fromkeys(("flops_per_token", "peak_flops", "active_s", "eta_s"), _NUMBER),
    **dict.fromkeys(("supervisor", "shim", "checkpoint"), (dict,)),
    **dict.fromkeys(("verdicts", "attempts"), (list,)),
}
"""The fields that every status has, with the types they may have besides None."""

_EMPTY: dict[str, object] = dict.fromkeys(FIELDS)
_NON_FINITE = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}
_DECODE = json.JSONDecoder(parse_constant=_NON_FINITE.__getitem__).decode
_CHUNK = 1 << 16


def find_home(environ: Mapping[str, str] = os.environ) -> str:
    """Return the folder that holds all runs: $OVERNIGHT_HOME, or one in the XDG state folder of the user."""
    state = environ.get("XDG_STATE_HOME") or ""
    usual = os.path.join(state if os.path.isabs(state) else "~/.local/state", "overnight")
    asked = environ.get("OVERNIGHT_HOME") or usual
    found = os.path.expanduser(asked)
    if found.startswith("~"):  # somebody unknown here, or a container's user without a name and without HOME
        raise UsageError(f"there is no home folder for runs in {asked}; set OVERNIGHT_HOME to a folder")
    # A working folder that was deleted has no name, and an absolute home needs none.
    return found if os.path.isabs(found) else os.path.join(os.getcwd(), found)


# -- many runs -------------------------------------------------------------------------------------------------------


def list_runs(home: str, *, full: bool = False) -> list[Status]:
    """Return the status of every run, oldest first; a damaged one is an entry with state "damaged" and a sentence.

    Without ``full`` the keepers of ended runs are not looked up: nobody keeps them any more.
    """
    boot = _boot_id()
    found = [_look(os.path.join(home, "runs", name), name, boot, full=full) for name in run_names(home)]
    found.sort(key=lambda one: (one["created_at"] or one["started_at"] or "9", one["name"]))
    return found


def run_names(home: str) -> list[str]:
    """Return the names of all runs in order; hidden entries and plain files are none."""
    try:
        with os.scandir(os.path.join(home, "runs")) as entries:
            return sorted(entry.name for entry in entries if entry.name[0] != "." and entry.is_dir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise FolderError(f"{home}/runs cannot be listed: {error.strerror}; check OVERNIGHT_HOME") from error


def find(home: str, name: str | None, *, for_stop: bool = False, whole: bool = False) -> RunFolder:
    """Return the folder of the run ``name``: exact or, unless ``whole`` is asked for, the only one that begins so.

    Without a name the latest run, with ``for_stop`` only if exactly one is live; else NoSuchRunError or UsageError.
    """
    names = run_names(home)
    if name is None:
        return _folder(home, _only_live(home) if for_stop else _latest(home, names))
    if name in names:
        return _folder(home, name)
    alike = [one for one in names if name and one.startswith(name)]
    if len(alike) == 1 and not whole:
        return _folder(home, alike[0])
    if alike:
        more = "the whole name is needed here" if whole else "write more of the name"
        raise UsageError(f"{name!r} may be {_enumerate(alike)}; {more}")
    raise NoSuchRunError(f"no run is called {name!r} in {home}; `overnight ls` shows what there is")


def _folder(home: str, name: str) -> RunFolder:
    from pathlib import Path

    from overnight.folder import RunFolder

    return RunFolder(Path(home) / "runs" / name)


def _latest(home: str, names: list[str]) -> str:
    def created(name: str) -> tuple[str, float]:
        path = os.path.join(home, "runs", name)
        try:
            found = read_object(path + "/run.json") or {}
        except FolderError:
            found = {}
        at = found.get("created_at")
        return (at if isinstance(at, str) else "", os.stat(path).st_mtime)

    if not names:
        raise NoSuchRunError(f"there are no runs in {home} yet; `overnight run -- COMMAND` starts one")
    return max(names, key=created)


def _only_live(home: str) -> str:
    live = [one["name"] for one in list_runs(home) if one["state"] in STATES - ENDED]
    if not live:
        raise NoSuchRunError("no run is live; `overnight ls` shows what there is")
    if len(live) > 1:
        raise UsageError(f"{len(live)} runs are live ({_enumerate(live)}); say which one")
    return str(live[0])


def _enumerate(names: list[str]) -> str:
    shown = names if len(names) <= SHOWN_NAMES else [*names[:SHOWN_NAMES], f"{len(names) - SHOWN_NAMES} more"]
    return shown[0] if len(shown) == 1 else ", ".join(shown[:-1]) + " or " + shown[-1]


# -- one run ---------------------------------------------------------------------------------------------------------


def status(folder: RunFolder) -> Status:
    """Return everything known about one run; NoSuchRunError if its folder is gone. Numbers as in status.json.

    Beside the fields of FIELDS: ``unguarded`` (nobody restarts a dead supervisor), ``stale`` (not ended, nobody
    keeps it: an adopting supervisor must settle it) and ``foreign`` (kept on another machine, so nobody here can tell).
    """
    path = str(folder.path)
    if not os.path.isdir(path):
        raise NoSuchRunError(f"the run {folder.name} is gone: {path} was removed")
    return _look(path, folder.name, _boot_id(), full=True)


def _look(path: str, name: str, boot: str, *, full: bool) -> Status:
    found: Status = _EMPTY.copy()
    try:
        seen = read_object(path + "/status.json")
        found.update(_from_request(path) if seen is None else seen)
        _check(found, path)
    except FolderError as error:
        found = {**_EMPTY, **_salvage(path), "state": "damaged", "cause_text": str(error)}
    found["name"] = name  # a renamed or copied folder is found under the name it has now
    for key in ("verdicts", "attempts"):
        if found[key] is None:
            found[key] = []
    if full or found["state"] not in ENDED:
        _add_keepers(found, path, boot)
    else:
        found.update(unguarded=False, stale=False, foreign=False)
    return found


def _from_request(path: str) -> Status:
    """Return what run.json alone tells: the state before the supervisor's first snapshot."""
    asked = read_object(path + "/run.json")
    if asked is None:
        raise FolderError(f"{path} has neither status.json nor run.json; restore them or clean the run")
    spec = asked.get("spec", asked)
    spec = spec if isinstance(spec, dict) else {}
    return {
        "state": "pending",
        "log": spec.get("log"),
        "params": spec.get("params"),
        "devices": spec.get("devices"),
        "steps": spec.get("steps"),
        "argv": spec.get("argv"),
        **dict.fromkeys(("created_at", "updated_at"), asked.get("created_at")),
    }


def _salvage(path: str) -> Status:
    """Return what is still readable of a damaged run: where its log is and when it was made."""
    try:
        found = _from_request(path)
    except FolderError:
        return {}
    return {key: value for key in ("log", "created_at") if isinstance(value := found[key], str)}


def _check(found: Status, path: str) -> None:
    """Raise FolderError if a field has a type that the supervisor never writes: a person edited the file."""
    for key, kinds in FIELDS.items():
        value = found[key]
        if value is None or type(value) in kinds or (kinds is _NUMBER and value in ("nan", "inf", "-inf")):
            continue
        raise FolderError(f"{path}/status.json says {key} is {value!r}; it was edited: restore it or clean the run")
    if found["state"] not in STATES:
        raise FolderError(f"{path}/status.json says state is {found['state']!r}; no run has that state: restore it")
    for key in ("verdicts", "attempts"):
        if any(type(item) is not dict for item in found[key] or ()):
            raise FolderError(f"{path}/status.json holds {key} of a wrong shape; it was edited: restore it")


def read_object(path: str) -> Status | None:
    """Return the JSON object in a file, None if there is none; FolderError with a sentence for anything else.

    A twin of ``folder.read_json`` without that room's imports (20 ms for ``ls``), and one that no FIFO can block.
    """
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
    try:
        value = _DECODE(data.decode())
    except (ValueError, RecursionError) as error:
        raise FolderError(f"{path} is not valid JSON ({error}); it was edited or damaged: restore it") from error
    if not isinstance(value, dict):
        raise FolderError(f"{path} does not hold a JSON object; it was edited or damaged: restore it")
    return value


# -- who keeps it ----------------------------------------------------------------------------------------------------


def _boot_id() -> str:
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


def _add_keepers(found: Status, path: str, boot: str) -> None:
    try:
        kept = read_object(path + "/shim.json")
    except FolderError:
        kept = {"damaged": True}
    known = kept or {}
    was = known.get("boot_id")
    same_boot = was is None or not boot or was == boot
    supervisor = _pick([known.get("supervisor")], same_boot=same_boot)
    if not supervisor["alive"] and found["state"] not in ENDED:
        supervisor = _adopted(found.get("supervisor"), path) or supervisor
    shim = _pick([known.get("shim"), known.get("guard")], same_boot=same_boot)  # the guard takes the dead shim's place
    found["supervisor"], found["shim"] = supervisor, shim
    found.update(unguarded=bool(known.get("unguarded")) and found["state"] not in ENDED, stale=False, foreign=False)
    if found["state"] in ENDED or supervisor["alive"] or shim["alive"]:
        return
    if not same_boot and _foreign(path):
        found["foreign"] = True
        return
    found["stale"] = bool(known) or time.time() - os.stat(path).st_mtime > NEWBORN_S
    if not same_boot and found["state"] != "damaged":
        found["state"], found["cause"] = "failed", "host_rebooted"
        found["cause_text"] = "the machine was started anew while the run was going on"


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


# -- asking and waiting ----------------------------------------------------------------------------------------------


def request_stop(folder: RunFolder, *, now: bool = False, by: str = "user") -> None:
    """Ask the run to end, with a save and its grace, or at once with ``now``; asking again climbs one rung."""
    from overnight.folder import drop_request

    drop_request(folder, "stop", by=by, now=now)


def wait(
    folder: RunFolder,
    timeout_s: float | None = None,
    *,
    on_stale: Callable[[], None] | None = None,
    until: Callable[[Status], bool] | None = None,
) -> Status:
    """Block until the run has ended (or ``until`` says so of a status) and return its status.

    WaitTimeoutError after ``timeout_s`` seconds. ``on_stale`` is called at most every 5 s while nobody keeps the run.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    stale_at: float | None = None
    with FolderWatch(folder) as watch:
        while True:
            seen = status(folder)
            if seen["state"] in ENDED or (until is not None and until(seen)):
                return seen
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                raise WaitTimeoutError(f"{folder.name} is still {seen['state']} after {timeout_s:g} s")
            if seen["stale"] and (stale_at is None or now - stale_at >= STALE_EVERY_S):
                if seen["state"] == "damaged" and (stale_at is not None or on_stale is None):
                    raise FolderError(str(seen["cause_text"]))  # an adopting supervisor could not mend it
                stale_at = now
                if on_stale is not None:
                    on_stale()
            watch.wait(RECHECK_S if deadline is None else min(RECHECK_S, deadline - now))


class FolderWatch:
    """Sleeps until a file of the run folder is published. Where inotify is refused (limits, odd disks) it polls."""

    def __init__(self, folder: RunFolder) -> None:
        from inotify_simple import INotify, flags

        self._inotify: INotify | None = None
        try:
            self._inotify = INotify()
            self._inotify.add_watch(folder.path, flags.MOVED_TO | flags.DELETE_SELF)
        except OSError:
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self, most_s: float) -> None:
        """Return at the next publication, after ``most_s`` seconds at the latest."""
        if self._inotify is None:
            time.sleep(min(most_s, 0.25))
        else:
            list(self._inotify.read(timeout=max(1, int(most_s * 1000))))

    def close(self) -> None:
        """Let the watch go."""
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None

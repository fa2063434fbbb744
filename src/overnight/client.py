"""What every looker may do with runs: list them, read one, ask it to stop, wait for its end.

Reads run folders and drops requests, nothing else; nothing here starts or signals a process. ``ls`` of a thousand runs
lives on this file, so what is costly to import (typing, pathlib, msgspec through ``folder``) is imported where needed.
"""

from __future__ import annotations

import os
import time

from overnight import idling
from overnight.errors import FolderError, NoSuchRunError, UsageError, WaitTimeoutError
from overnight.kept import ENDED, add_keepers, alive, boot_id, changed_at, leads_nowhere, may_be_run, read_object, there
from overnight.patience import STALE_EVERY_S, FolderWatch, Patience, hooks_failed, hooks_held, hooks_left, kept, over
from overnight.sweep import each

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from overnight.folder import RunFolder

    Status = dict[str, Any]

__all__ = [
    "ENDED", "STALE_EVERY_S", "FolderWatch", "alive", "hooks_failed", "hooks_held", "hooks_left", "over", "read_object",
]  # fmt: skip

STATES = ENDED | {"pending", "starting", "running", "stopping", "backoff"}

RECHECK_S = 2.0

LEAVING_S = 0.05
"""How often a supervisor that is about to leave is looked at: that it has left is published nowhere."""

SHOWN_NAMES = 5

_NUMBER = (int, float)
_MOST = 1 << 80
FIELDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("name", "state", "cause", "cause_text", "signal", "log"), (str,)),
    **dict.fromkeys(("peak_source", "convention", "params_source", "created_at", "started_at", "ended_at"), (str,)),
    **dict.fromkeys(("attempt", "pid", "step", "params", "devices", "exit_code"), (int,)),
    **dict.fromkeys(("loss", "loss_avg", "tokens_per_second", "tflops", "mfu", "mfu_avg"), _NUMBER),
    **dict.fromkeys(("flops_per_token", "peak_flops", "active_s", "eta_s"), _NUMBER),
    **dict.fromkeys(("supervisor", "shim", "checkpoint"), (dict,)),
    **dict.fromkeys(("verdicts", "attempts"), (list,)),
    **dict.fromkeys(("engine", "backoff_until", "phase"), (str,)),
    **dict.fromkeys(("elapsed_s", "silent_s", "cost", "cost_forecast", "idle_s", "idle_cost"), _NUMBER),
    **dict.fromkeys(("restarts_used", "grad_norm_nonfinite"), (int,)),
    **dict.fromkeys(("limits", "hooks", "host", "sensors"), (dict,)),
    **dict.fromkeys(("convention_attention", "tokens_source", "dtype", "gpu", "mfu_trouble", "gpu_trouble"), (str,)),
    **dict.fromkeys(("mfu_clean", "mfu_wall", "hfu", "goodput", "tokens_per_second_wall"), _NUMBER),
    **dict.fromkeys(("useful_tokens_per_second", "cost_per_billion_tokens", "tokens_per_step"), _NUMBER),
    **dict.fromkeys(("gpus", "disagreements"), (list,)),
    "last_lines": (list,),
}
"""The fields that every status has, with the types they may have besides None."""

_EMPTY: dict[str, object] = dict.fromkeys(FIELDS)


def find_home(environ: Mapping[str, str] = os.environ) -> str:
    """Return the folder that holds all runs: $OVERNIGHT_HOME, or one in the XDG state folder of the user."""
    state = environ.get("XDG_STATE_HOME") or ""
    usual = os.path.join(state if os.path.isabs(state) else "~/.local/state", "overnight")
    asked = environ.get("OVERNIGHT_HOME") or usual
    # An empty HOME is no home: what the user's record says is.
    found = os.path.expanduser(asked) if environ.get("HOME") != "" else _home_of_record(asked)
    if found.startswith("~"):  # somebody unknown here, or a container's user without a name and without HOME
        raise UsageError(f"there is no home folder for runs in {asked}; set OVERNIGHT_HOME to a folder")
    # A working folder that was deleted has no name, and an absolute home needs none.
    return found if os.path.isabs(found) else os.path.join(os.getcwd(), found)


def _home_of_record(path: str) -> str:
    import pwd

    if not path.startswith("~/"):
        return path
    try:
        return pwd.getpwuid(os.getuid()).pw_dir + path[1:]
    except KeyError:
        return path


# -- many runs -------------------------------------------------------------------------------------------------------


def list_runs(home: str, *, full: bool = False) -> list[Status]:
    """Return the status of every run, oldest first; a damaged one is an entry with state "damaged" and a sentence.

    Without ``full`` the keepers of ended runs are not looked up: nobody keeps them any more.
    """
    boot = boot_id()
    found = each(run_names(home), lambda name: _look(os.path.join(home, "runs", name), name, boot, full=full))
    return _oldest_first([one for one in found if not _gone(home, one)], full=full)


def _gone(home: str, one: Status) -> bool:
    """Say whether a run has no files because its folder was removed while others were looked at."""
    return one["state"] == "damaged" and not there(os.path.join(home, "runs", one["name"]))


def _oldest_first(found: list[Status], *, full: bool) -> list[Status]:
    found.sort(key=lambda one: (one["created_at"] or one["started_at"] or "9", one["name"]))
    if full and (asking := [one for one in found if idling.asks(one)]):
        last_end = idling.last_end(found)
        for one in asking:
            idling.fill(one, last_end)
    return found


class Listing:
    """``list_runs`` again and again: an ended run is read anew only if its status.json is another file than before."""

    def __init__(self, home: str, *, full: bool = False) -> None:
        self.home = home
        self.full = full
        self._known: dict[str, tuple[object, Status]] = {}

    def look(self) -> list[Status]:
        """Return the statuses as they are now, oldest first."""
        boot, names = boot_id(), run_names(self.home)

        def look(name: str) -> tuple[object, Status]:
            path = os.path.join(self.home, "runs", name)
            was, mark = self._known.get(name), _mark(path + "/status.json")
            ended = was is not None and was[1]["state"] in ENDED and not kept(was[1])
            fresh = was is None or not ended or mark is None or mark != was[0]
            return (mark, _look(path, name, boot, full=self.full)) if fresh or was is None else was

        self._known = dict(zip(names, each(names, look), strict=True))
        return _oldest_first([one for _, one in self._known.values() if not _gone(self.home, one)], full=self.full)


def _mark(path: str) -> tuple[int, int] | None:
    """Return what tells one published file from the next; None if there is none."""
    try:
        look = os.stat(path)
    except OSError:
        return None
    return look.st_mtime_ns, look.st_ino


def run_names(home: str) -> list[str]:
    """Return the names of all runs in order; hidden entries and plain files are none, a link that leads nowhere is."""
    try:
        with os.scandir(os.path.join(home, "runs")) as entries:
            found = [entry for entry in entries if entry.name[0] != "."]
        folders = each(found, may_be_run)  # some disks say only when asked what an entry is
        return sorted(entry.name for entry, folder in zip(found, folders, strict=True) if folder)
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
        if not whole and (lost := leads_nowhere(os.path.join(home, "runs", name))) is not None:
            raise lost
        return _folder(home, name)
    alike = [one for one in names if name and one.startswith(name)]
    if len(alike) == 1 and not whole:
        return _folder(home, alike[0])
    if alike:
        more = "the whole name is needed here" if whole else "write more of the name"
        raise UsageError(f"{name!r} may be {_enumerate(alike)}; {more}")
    from difflib import get_close_matches

    near = get_close_matches(name, names, n=1, cutoff=0.7)
    hint = f"did you mean {near[0]}?" if near else "`overnight ls` shows what there is"
    raise NoSuchRunError(f"no run is called {name!r} in {home}; {hint}")


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
        return (at if isinstance(at, str) else "", changed_at(path) or 0.0)

    if not names:
        raise NoSuchRunError(f"there are no runs in {home} yet; `overnight run -- COMMAND` starts one")
    return max(zip(each(names, created), names, strict=True), key=lambda one: one[0])[1]


def _only_live(home: str) -> str:
    live = [folder.name for folder in live_runs(home)]
    if len(live) > 1:
        raise UsageError(f"{len(live)} runs are live ({_enumerate(live)}); say which one")
    return str(live[0])


def live_runs(home: str) -> list[RunFolder]:
    """Return the folders of all runs that have not ended, oldest first; NoSuchRunError if there is none."""
    live = [one["name"] for one in list_runs(home) if one["state"] in STATES - ENDED]
    if not live:
        raise NoSuchRunError("no run is live; `overnight ls` shows what there is")
    return [_folder(home, name) for name in live]


def _enumerate(names: list[str]) -> str:
    shown = names if len(names) <= SHOWN_NAMES else [*names[:SHOWN_NAMES], f"{len(names) - SHOWN_NAMES} more"]
    return shown[0] if len(shown) == 1 else ", ".join(shown[:-1]) + " or " + shown[-1]


# -- one run ---------------------------------------------------------------------------------------------------------


def status(folder: RunFolder) -> Status:
    """Return everything known about one run; NoSuchRunError if its folder is gone. Numbers as in status.json.

    Beside the fields of FIELDS: ``unguarded`` (nobody restarts a dead supervisor), ``stale`` (not ended, nobody
    keeps it: an adopting supervisor must settle it) and ``foreign`` (kept on another machine, so nobody here can tell).
    ``idle_s`` and ``idle_cost``: of a run with a price that has ended, since nothing of its home runs here any more.
    """
    path = str(folder.path)
    if not there(path):
        raise NoSuchRunError(f"the run {folder.name} is gone: {path} was removed")
    boot = boot_id()
    found = _look(path, folder.name, boot, full=True)
    if idling.asks(found):
        runs = os.path.dirname(path)
        others = idling.last_end_beside(
            found, runs, lambda name: _look(os.path.join(runs, name), name, boot, full=False)
        )
        idling.fill(found, others)
    return found


def _look(path: str, name: str, boot: str, *, full: bool) -> Status:
    found: Status = _EMPTY.copy()
    try:
        seen = read_object(path + "/status.json")
        found.update(_from_request(path) if seen is None else seen)
        _check(found, path)
    except FolderError as error:
        found = {**_EMPTY, **_salvage(path), "state": "damaged", "cause_text": str(leads_nowhere(path) or error)}
    found["name"] = name  # a renamed or copied folder is found under the name it has now
    for key in ("verdicts", "attempts"):
        if found[key] is None:
            found[key] = []
    if full or found["state"] not in ENDED:
        add_keepers(found, path, boot)
    else:
        found.update(unguarded=False, stale=False, stale_text=None, foreign=False)
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
        if type(value) is int and abs(value) >= _MOST:
            raise FolderError(
                f"{path}/status.json says {key} is a number that is far too large; it was edited: restore it"
            )
        if value is None or type(value) in kinds or (kinds is _NUMBER and value in ("nan", "inf", "-inf")):
            continue
        raise FolderError(f"{path}/status.json says {key} is {value!r}; it was edited: restore it or clean the run")
    if found["state"] not in STATES:
        raise FolderError(f"{path}/status.json says state is {found['state']!r}; no run has that state: restore it")
    for key in ("verdicts", "attempts"):
        if any(type(item) is not dict for item in found[key] or ()):
            raise FolderError(f"{path}/status.json holds {key} of a wrong shape; it was edited: restore it")


# -- asking and waiting ----------------------------------------------------------------------------------------------


def request_stop(folder: RunFolder, *, now: bool = False, by: str = "user") -> None:
    """Ask the run to end, with a save and its grace, or at once with ``now``; asking again climbs one rung."""
    from overnight.folder import drop_request

    drop_request(folder, "stop", by=by, now=now)


def request_note(folder: RunFolder, text: str, *, by: str = "user") -> Path:
    """Ask for a sentence to be kept with the run; return the request's file, which goes once it has been taken."""
    from overnight.folder import drop_request

    return drop_request(folder, "note", by=by, text=text)


def request_set(folder: RunFolder, values: Mapping[str, Any], *, by: str = "user") -> Path:
    """Ask for other values of fields of the run's spec; return the request's file, which goes once it has been taken.

    ``actions`` holds only the rules whose action is to change.
    """
    from overnight.folder import drop_request

    return drop_request(folder, "set", by=by, values=dict(values))


def wait(
    folder: RunFolder,
    timeout_s: float | None = None,
    *,
    on_stale: Callable[[], None] | None = None,
    until: Callable[[Status], bool] | None = None,
    since: float | None = None,
) -> Status:
    """Block until the run has ended and its hooks are done (or ``until`` says so of a status); return its status.

    WaitTimeoutError if the run has not ended ``timeout_s`` seconds after ``since`` (by the monotonic clock; default:
    now); hooks are not waited for any longer then.
    """
    found = wait_any([folder], timeout_s, on_stale={folder.name: on_stale}, until={folder.name: until}, since=since)
    return found[1]


def wait_any(
    folders: Sequence[RunFolder],
    timeout_s: float | None = None,
    *,
    on_stale: Mapping[str, Callable[[], None] | None],
    until: Mapping[str, Callable[[Status], bool] | None],
    since: float | None = None,
) -> tuple[RunFolder, Status]:
    """Block until one of several runs has ended, as ``wait`` does; return it, the first in the order given."""
    deadline = None if timeout_s is None else (time.monotonic() if since is None else since) + timeout_s
    patience = {folder.name: Patience(on_stale.get(folder.name)) for folder in folders}
    ended: RunFolder | None = None
    with FolderWatch(*folders) as watch:
        while True:
            for folder in folders if ended is None else (ended,):  # its hooks are waited for, and no other run
                seen, asked = status(folder), until.get(folder.name)
                late = deadline is not None and time.monotonic() >= deadline
                if seen["state"] in ENDED:
                    if late or patience[folder.name].done(seen):
                        return folder, seen
                    ended = folder
                    break
                if asked is not None and asked(seen):
                    return folder, seen
                if not late:
                    patience[folder.name].done(seen)
            most_s = RECHECK_S if ended is None else LEAVING_S
            left = most_s if deadline is None else min(most_s, deadline - time.monotonic())
            if left <= 0 and ended is None:
                raise WaitTimeoutError(_still(folders, timeout_s))
            watch.wait(max(0.0, left))


def _still(folders: Sequence[RunFolder], timeout_s: float | None) -> str:
    if len(folders) == 1:
        return f"{folders[0].name} is still {status(folders[0])['state']} after {timeout_s:g} s"
    return f"{_enumerate([folder.name for folder in folders])}: none has ended after {timeout_s:g} s"

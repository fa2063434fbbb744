"""From settings to a placed run, with proof: the folder, the keepers in their own session, the command's process.

``start`` returns once the command has been executed (or could not be); ``place`` gives keepers to a folder that exists;
``adopt`` gives a run whose keepers are all dead a supervisor that finds out the truth and writes it down. Which engine
does the placing is looked up in ``wiring``; nothing here knows how.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from overnight import __version__, clearing, processes, wiring
from overnight.engines import Engine, Handle, Placement
from overnight.engines.environment import clean_environment
from overnight.errors import FolderError, LaunchError, OvernightError, UsageError
from overnight.folder import (
    RunFolder,
    check_name,
    drop_request,
    machine_id,
    read_json,
    read_regular,
    utc,
    write_atomic,
    write_json,
)
from overnight.snapshot import FORMAT
from overnight.spec import RunSpec
from overnight.states import ENDED

PLACED_WITHIN_S = 30.0

HANDED_ON = "RUN_ID RUN_DIR ATTEMPT ROLE EVENT STATE CAUSE TEXT STEP LAST_CHECKPOINT".split()
"""What a run gives to its training and to its hooks, as OVERNIGHT_* variables."""

TO_GO_ON = ("CHECKPOINT", "SKIP_STEPS", "STOP_AT")
"""Where a training goes on: a user may give these, but those of an outer run are not for this one."""

NEEDED_BYTES = 256 * 1024
"""With less than this left, not even the first files of a run fit beside a database."""


class Launched(msgspec.Struct, frozen=True, kw_only=True):
    """A run that has been placed: its folder, the command's pid (None if it could not be executed) and what it is.

    ``attach`` is the engine's own command to see it live, None if it has none; ``notes`` is what its user should know.
    """

    folder: RunFolder
    pid: int | None
    executable: str
    log: str
    attach: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()


def start(spec: RunSpec, origins: dict[str, str], *, home: Path, settle_s: float = 2.0) -> Launched:
    """Make the run's folder, place its keepers, and wait until the command lives (``settle_s`` more to see it die).

    Raises UsageError if the name is taken, home cannot be written to or the engine cannot place it as asked,
    LaunchError if nothing could be placed.
    """
    folder = RunFolder(home / "runs" / check_name(spec.name))
    environ = user_environment()
    for name in (*HANDED_ON, *(TO_GO_ON if "OVERNIGHT_RUN_ID" in environ else ())):
        environ.pop(f"OVERNIGHT_{name}", None)  # started from within another run or its hook: not a part of that
    _engine(spec.engine).check(placement(folder, spec, environ))
    make(folder, spec, origins, environ)
    notes: list[str] = []
    try:
        handle = place(folder, spec, environ, notes=notes)
        started = _await_command(folder)
    except LaunchError:
        revoke(folder)  # what was said not to have started must not start later
        forget(folder)
        shutil.rmtree(folder.path, ignore_errors=True)
        raise
    except BaseException:
        if not _placed(folder):
            shutil.rmtree(folder.path, ignore_errors=True)
        raise
    _settle(folder, settle_s)
    return Launched(
        folder=folder,
        pid=None if started is None else int(started["pid"]),
        executable=spec.executable,
        log=spec.log,
        attach=_engine(handle.engine).attach(handle),
        notes=tuple(notes),
    )


# -- engines and their handles ---------------------------------------------------------------------------------------


def place(folder: RunFolder, spec: RunSpec, environ: dict[str, str], *, notes: list[str] | None = None) -> Handle:
    """Place guard, shim and supervisor of a folder that exists, for a training in ``environ``; write engine.json.

    Returns at once. What the engine could not do as asked, but need not end the run, is put into the run's inbox as a
    note and added to ``notes``. UsageError for an unknown engine, LaunchError if nothing could be placed.
    """
    said: list[str] = []
    handle = wiring.make_engine(spec.engine, said.append).start(placement(folder, spec, environ))
    try:
        write_json(folder.engine_json, msgspec.structs.asdict(handle), fsync=True)
    except OSError as error:  # a full disk; the run lives, and goes on without it
        said.append(f"{folder.engine_json} cannot be written: {error.strerror}")
    for text in said:
        with contextlib.suppress(OSError):
            drop_request(folder, "note", by="overnight", text=text)
    if notes is not None:
        notes += said
    return handle


def placed_by(folder: RunFolder) -> tuple[Engine, Handle] | None:
    """Return the engine that placed a run and its handle; None for a run without engine.json (an older one).

    FolderError if the file is damaged, UsageError if the engine's plug-in is not there any more.
    """
    written = read_json(folder.engine_json)
    if written is None:
        return None
    try:
        handle = msgspec.convert(written, Handle)
    except msgspec.ValidationError as error:
        raise FolderError(f"{folder.engine_json} is no handle ({error}); it was edited or damaged") from error
    return _engine(handle.engine), handle


def attach_words(folder: RunFolder) -> tuple[str, ...] | None:
    """Return the command with which a person sees the run in its engine's own place; None if there is none now."""
    with contextlib.suppress(OvernightError, OSError):
        placed = placed_by(folder)
        return placed and placed[0].attach(placed[1])
    return None


def forget(folder: RunFolder) -> None:
    """Remove what an ended run left in its engine's own place; to be called before its folder is removed."""
    with contextlib.suppress(OvernightError, OSError):  # what cannot be found any more need not be removed
        placed = placed_by(folder)
        if placed is not None:
            placed[0].forget(placed[1], folder.path)


def _engine(name: str) -> Engine:
    return wiring.make_engine(name, lambda _: None)


def placement(folder: RunFolder, spec: RunSpec, environ: dict[str, str]) -> Placement:
    """Return what is to be placed for a run, with ``environ`` as the environment of keepers and training."""
    return Placement(
        run_dir=folder.path,
        supervisor_argv=tuple(supervisor_argv(folder)),
        env=environ,
        cwd=spec.cwd,
        viewer_argv=(sys.executable, "-I", "-m", "overnight", "attach", "--pane", str(folder.path)),
    )


# -- the environment -------------------------------------------------------------------------------------------------


def user_environment() -> dict[str, str]:
    """Return the environment as the user has it: without what our own tool environment put in front of it."""
    return clean_environment(dict(os.environ), prefix=Path(sys.prefix), base_prefix=Path(sys.base_prefix))


def write_env(folder: RunFolder, environ: Mapping[str, str]) -> None:
    """Keep the whole environment to start again with: durable, for the owner's eyes only, and never shown anywhere."""
    words = [os.fsencode(f"{name}={value}") for name, value in environ.items()]
    write_atomic(folder.run_env, b"\0".join(words), fsync=True, mode=0o600)


def read_env(folder: RunFolder) -> dict[str, str]:
    """Return the environment that a run was started with; FolderError if it was not kept or cannot be read."""
    try:
        words = read_regular(folder.run_env).split(b"\0")
    except OSError as error:
        raise FolderError(
            f"{folder.run_env} cannot be read: {error.strerror}; only a run that may be started again (--recover, "
            f"--restarts, a rollback) has it"
        ) from error
    pairs = (os.fsdecode(word).partition("=") for word in words if word)
    return {name: value for name, _, value in pairs}


# -- keepers ---------------------------------------------------------------------------------------------------------


def help_stop(folder: RunFolder) -> None:
    """Let the engine help a stop along where the request in the inbox cannot reach: a job that waits in a queue."""
    with contextlib.suppress(OvernightError, OSError):
        placed = placed_by(folder)
        if placed is not None:
            placed[0].stop(placed[1], folder.path)


def revoke(folder: RunFolder) -> None:
    """End guard, shim, supervisor and whatever they have started, so that nothing of the run is left or can come."""
    written = read_json(folder.shim_json) or {}
    if written.get("boot_id") not in (None, processes.boot_id()):
        written = {}  # of another boot: what has these numbers now is a stranger
    for role in ("guard", "shim", "supervisor"):  # from the top, or the one above would take its work over
        one = written.get(role)
        if isinstance(one, dict) and isinstance(one.get("pid"), int) and isinstance(one.get("start_ticks"), int):
            processes.send(one["pid"], one["start_ticks"], signal.SIGKILL)
    clearing.kill_all([], run_dir=folder.path)


_adopters: list[subprocess.Popen[bytes]] = []
"""They are never waited for, outlive us as a rule, and one that is dropped early warns."""


def adopt(folder: RunFolder) -> None:
    """Start a supervisor for a run without keepers; it settles what happened, or watches a training that is alive."""
    if read_json(folder.run_json) is None:  # FolderError with a sentence of its own if it is damaged
        raise FolderError(f"{folder.run_json} is gone; restore it: without it the run cannot be settled")
    with folder.supervisor_log.open("ab") as log:
        adopter = subprocess.Popen(
            [*supervisor_argv(folder)[:-1], "--adopt", str(folder.path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
            env={**os.environ, "OVERNIGHT_ROLE": "supervisor"},
        )
    _adopters[:] = [*(one for one in _adopters if one.poll() is None), adopter]


def supervisor_argv(folder: RunFolder) -> list[str]:
    """Return the command line of a run's supervisor; isolated, so that nothing of the user's can change it."""
    return [sys.executable, "-I", "-m", "overnight.supervisor", str(folder.path)]


# -- the first moments -----------------------------------------------------------------------------------------------


def make(folder: RunFolder, spec: RunSpec, origins: dict[str, str], environ: dict[str, str]) -> None:
    """Make a run's folder with run.json, and run.env if it may be started again; UsageError if that cannot be done."""
    try:
        folder.create()
    except FileExistsError as error:
        if not folder.path.is_dir() or error.filename != str(folder.path):
            raise UsageError(
                f"{error.filename} is in the way: it is not a folder; move it or set OVERNIGHT_HOME"
            ) from error
        raise UsageError(
            f"the name {spec.name!r} is already used by a run in {folder.path}: choose another --name, "
            f"or remove an ended run with `overnight clean {spec.name}`"
        ) from error
    except OSError as error:
        shutil.rmtree(folder.path, ignore_errors=True)
        raise UsageError(
            f"no run folder can be made in {folder.path.parent}: {error.strerror}; free some space, mend the "
            f"permissions, or set OVERNIGHT_HOME to another folder"
        ) from error
    now = time.time()
    try:
        write_json(folder.run_json, _asked(spec, origins, now), fsync=True)
        if spec.comes_again():
            write_env(folder, environ)
    except OSError as error:
        shutil.rmtree(folder.path, ignore_errors=True)
        raise UsageError(
            f"{folder.path} cannot be written: {error.strerror}; free some space or set OVERNIGHT_HOME"
        ) from error


def _asked(spec: RunSpec, origins: dict[str, str], now: float) -> dict[str, Any]:
    try:
        log_start = os.stat(spec.log).st_size
    except OSError:
        log_start = 0
    return {
        "format": FORMAT,
        "version": __version__,
        "name": spec.name,
        "created_at": utc(now),
        "epoch": now,
        "boot_id": processes.boot_id(),
        "machine_id": machine_id(),
        "host": os.uname().nodename,
        "log_start": log_start,
        "spec": msgspec.structs.asdict(spec),
        "origins": origins,
    }


def _await_command(folder: RunFolder) -> dict[str, Any] | None:
    """Wait for the first attempt's process; None if it could not be executed."""
    files = folder.attempt(1)
    until = time.monotonic() + PLACED_WITHIN_S
    while time.monotonic() < until:
        started = read_json(files.started_json)
        if started is not None or files.exit_json.exists() or _over(folder):
            return started
        time.sleep(0.01)
    raise LaunchError(f"the command was not started within {PLACED_WITHIN_S:g} s: {why_not(folder)}")


def why_not(folder: RunFolder) -> str:
    """Return the best reason there is for a command that was not started."""
    with contextlib.suppress(OSError):
        look = os.statvfs(folder.path)
        if look.f_bavail * look.f_frsize < NEEDED_BYTES:
            return f"the disk of {folder.path.parent} is full; free some space or set OVERNIGHT_HOME"
    for log in (folder.supervisor_log, folder.shim_log):
        with contextlib.suppress(OSError):
            said = log.read_text(errors="replace").strip().splitlines()
            if said:
                return said[-1][-500:]
    return "neither guard nor supervisor gave a reason"


def _over(folder: RunFolder) -> bool:
    """Say whether the run has ended without having been started: somebody stopped it first."""
    return (read_json(folder.status_json) or {}).get("state") in ENDED


def _settle(folder: RunFolder, settle_s: float) -> None:
    """Give the command a moment to die, if it is going to; return early when it has."""
    files = folder.attempt(1)
    until = time.monotonic() + settle_s
    while time.monotonic() < until and not files.exit_json.exists():
        time.sleep(0.02)


def _placed(folder: RunFolder) -> bool:
    return folder.attempt(1).started_json.exists() or folder.attempt(1).exit_json.exists() or folder.shim_json.exists()

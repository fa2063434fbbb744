"""Makes the run folder of a training that was started by hand, so that it is watched and ended like any other.

Looks at the process, refuses what cannot or must not be watched, and writes what launch and shim write for a run of
their own. Nothing is signalled here and nothing of the training is touched: it does not notice.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import time
from pathlib import Path
from typing import Any

import msgspec

from overnight import client, launch, processes
from overnight.clocks import boot_clock
from overnight.errors import FolderError, LaunchError, UsageError
from overnight.folder import RunFolder, read_json, write_json
from overnight.processes import Identity
from overnight.spec import RunSpec

WATCHED_WITHIN_S = 30.0

LINE_BYTES = 64 * 1024
"""A longer line than this is cut by whoever reads it, so its beginning is looked for no further back."""

DESCRIPTORS = ((1, "standard output"), (2, "standard error"))


class Training(msgspec.Struct, frozen=True, kw_only=True):
    """A process that may be watched; ``began`` is its start in seconds since the epoch.

    ``log`` is the regular file its output goes to, if it does; ``output`` says in words where it goes.
    """

    identity: Identity
    argv: tuple[str, ...]
    executable: str
    cwd: str
    began: float
    log: str | None
    output: str


def look(pid: int, *, home: str) -> Training:
    """Return what is known of the process; UsageError, one sentence, for one that cannot or must not be watched."""
    known = processes.stat(pid)
    if known is None:
        raise UsageError(f"there is no process {pid}; `ps -eo pid,args` lists them")
    status = _status(pid)
    if status.get("Tgid", str(pid)) != str(pid):
        raise UsageError(f"{pid} is a thread of the process {status['Tgid']}; give --pid {status['Tgid']}")
    if known.dead:
        raise UsageError(f"process {pid} ({known.comm}) has ended already; its parent has only not looked yet")
    _refuse_family(pid, known.comm)
    if status.get("Uid", str(os.getuid())) != str(os.getuid()):
        raise UsageError(
            f"process {pid} ({known.comm}) is another user's (uid {status['Uid']}); let that user watch it"
        )
    executable, cwd = processes.exe(pid), processes.cwd(pid)
    if executable is None or cwd is None:
        raise UsageError(f"process {pid} ({known.comm}) cannot be looked into: it is no program of yours")
    _refuse_ours(pid, known.comm, known.start_ticks, home)
    log, output = output_of(pid)
    ticks = known.start_ticks
    return Training(
        identity=Identity(pid=pid, start_ticks=ticks, boot_id=processes.boot_id()),
        argv=tuple(map(_plain, processes.cmdline(pid) or (known.comm,))),
        executable=executable,
        cwd=cwd,
        began=time.time() - max(0.0, boot_clock() - ticks / os.sysconf("SC_CLK_TCK")),
        log=log,
        output=output,
    )


def output_of(pid: int) -> tuple[str | None, str]:
    """Return (the regular file that the output goes to, the words for where it goes); None for a pipe or a terminal."""
    said = "nowhere"
    for number, name in DESCRIPTORS:
        place = f"/proc/{pid}/fd/{number}"
        try:
            path, seen = os.readlink(place), os.stat(place)
        except OSError:
            continue
        if not stat.S_ISREG(seen.st_mode):
            kind = "a pipe" if stat.S_ISFIFO(seen.st_mode) else path
        elif _same(path, seen):
            return path, f"the {name} of process {pid}"
        else:
            kind = "a file that has no name any more"
        said = kind if number == 1 or said == "nowhere" else said
    return None, said


def hangs_on(pid: int) -> str | None:
    """Return a sentence for a process that the end of its terminal would end too; None for one that is free of it."""
    fields = (processes.read_proc(pid, "stat") or b"").rpartition(b")")[2].split()
    on_terminal = len(fields) > 4 and fields[4] != b"0"
    if not on_terminal or signal.SIGHUP in processes.ignored(pid) | processes.caught(pid):
        return None
    return (
        f"process {pid} still hangs on its terminal and may end with it; to close that, let go of it first "
        f"(Ctrl-Z, `bg`, `disown -h` in its shell)"
    )


def line_start(path: str) -> int:
    """Return where the unfinished line at the end of a log begins: its size if the last line is whole."""
    with open(path, "rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        begin = max(0, size - LINE_BYTES)
        stream.seek(begin)
        data = stream.read(size - begin)
    at = max(data.rfind(b"\n"), data.rfind(b"\r"))
    return size if at < 0 < begin else begin + at + 1


def start(training: Training, spec: RunSpec, origins: dict[str, str], *, home: Path) -> launch.Launched:
    """Make the folder, place keepers, and return once a supervisor watches. ``spec`` is that of ``watched_spec``.

    Raises UsageError if the name is taken or home cannot be written to, LaunchError if nobody could be placed.
    """
    folder = RunFolder(home / "runs" / spec.name)
    environ = launch.user_environment()
    for name in ("OVERNIGHT_RUN_ID", "OVERNIGHT_RUN_DIR", "OVERNIGHT_ATTEMPT"):
        environ.pop(name, None)
    launch.make(folder, spec, origins, environ)
    notes: list[str] = []
    try:
        _write(folder, training, spec)
        launch.place(folder, spec, environ, notes=notes)
        _await_supervisor(folder)
    except BaseException:
        launch.revoke(folder)  # ends keepers only: nothing of the training carries the mark of this run
        launch.forget(folder)
        shutil.rmtree(folder.path, ignore_errors=True)
        raise
    return launch.Launched(
        folder=folder,
        pid=training.identity.pid,
        executable=spec.executable,
        log=spec.log,
        attach=launch.attach_words(folder),
        notes=tuple(notes),
    )


def watched_spec(spec: RunSpec, training: Training) -> RunSpec:
    """Return the spec of a watched training: what it is stands in /proc, and nothing can start it again."""
    return msgspec.structs.replace(
        spec,
        argv=training.argv,
        executable=_plain(training.executable),
        cwd=_plain(training.cwd),
        watched=True,
        line_buffered=False,
        restarts=0,
        actions={rule: "terminate" if to == "rollback" else to for rule, to in spec.actions.items()},
        resume_args=(),
        recover=False,
    )


# -- refusals ----------------------------------------------------------------------------------------------------------


def _refuse_family(pid: int, name: str) -> None:
    if pid == 1:
        raise UsageError("process 1 is the init of this machine or container; give the pid of the training")
    above = processes.stat(os.getpid())
    while above is not None and above.pid > 1:
        if above.pid == pid:
            what = "this very command" if pid == os.getpid() else "above this command and would end it with itself"
            raise UsageError(f"process {pid} ({name}) is {what}; give the pid of the training")
        above = processes.stat(above.ppid)


def _refuse_ours(pid: int, name: str, start_ticks: int, home: str) -> None:
    given = processes.environ(pid) or {}
    if "OVERNIGHT_ROLE" in given:
        raise UsageError(f"process {pid} ({name}) is one of Overnight's own; give the pid of the training")
    run_dir = given.get("OVERNIGHT_RUN_DIR", "")
    if given.get("OVERNIGHT_RUN_ID") and os.path.isdir(run_dir) and _live(RunFolder(Path(run_dir))):
        owner = given["OVERNIGHT_RUN_ID"]
        raise UsageError(f"process {pid} ({name}) belongs to the run {owner} already; see `overnight status {owner}`")
    for owner in client.run_names(home):
        folder = RunFolder(Path(home) / "runs" / owner)
        if _commands(folder, pid, start_ticks) and _live(folder):
            raise UsageError(f"process {pid} ({name}) is watched by the run {owner}; see `overnight status {owner}`")


def _live(folder: RunFolder) -> bool:
    return client.status(folder)["state"] not in client.ENDED


def _commands(folder: RunFolder, pid: int, start_ticks: int) -> bool:
    """Say whether the process is the command of this run's newest attempt."""
    numbers = folder.attempt_numbers()
    try:
        started = read_json(folder.attempt(numbers[-1]).started_json) if numbers else None
    except FolderError:
        return False
    same = started is not None and (started.get("pid"), started.get("start_ticks")) == (pid, start_ticks)
    return same and started is not None and started.get("boot_id") == processes.boot_id()


def _status(pid: int) -> dict[str, str]:
    """Return the first word of each line of /proc/PID/status."""
    lines = (processes.read_proc(pid, "status") or b"").decode("utf-8", "replace").splitlines()
    fields = (line.partition(":") for line in lines)
    return {key: value.split()[0] for key, _, value in fields if value.split()}


def _same(path: str, seen: os.stat_result) -> bool:
    """Say whether ``path`` names that very file: it may be deleted, or lie in another container."""
    try:
        look = os.stat(path)
    except OSError:
        return False
    return (look.st_dev, look.st_ino) == (seen.st_dev, seen.st_ino)


def _plain(word: str) -> str:
    """Return a word that a run folder can hold: what is no Unicode is shown, as nothing is executed from it."""
    return os.fsencode(word).decode("utf-8", "replace")


# -- the folder --------------------------------------------------------------------------------------------------------


def _write(folder: RunFolder, training: Training, spec: RunSpec) -> None:
    """Write the files of the first attempt as supervisor and shim would have, had they started it."""
    files = folder.attempt(1)
    files.path.mkdir(mode=0o700)
    asked = read_json(folder.run_json) or {}
    at = line_start(spec.log)
    # A line that is half written now is read as a whole, and nothing before it: it was printed before anybody watched.
    write_json(folder.run_json, {**asked, "log_start": at}, fsync=True)
    order: dict[str, Any] = {
        "attempt": 1,
        "argv": list(spec.argv),
        "executable": spec.executable,
        "cwd": spec.cwd,
        "log": spec.log,
        "set": {},
        "unset": [],
        "oom_score_adj": None,
        "position": [0, at],
        "watched": True,
    }
    write_json(files.start_json, order, fsync=True)
    started = {**msgspec.structs.asdict(training.identity), "at": round(training.began, 6)}
    write_json(files.started_json, started, fsync=True)


def _await_supervisor(folder: RunFolder) -> None:
    until = time.monotonic() + WATCHED_WITHIN_S
    while time.monotonic() < until:
        seen = read_json(folder.status_json) or {}
        if seen.get("state") not in (None, "pending"):
            return
        time.sleep(0.02)
    raise LaunchError(f"no supervisor came up within {WATCHED_WITHIN_S:g} s: {launch.why_not(folder)}")

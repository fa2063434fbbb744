"""Guard and shim as real processes: true exits through kill -9, one fork per attempt, a supervisor that comes back."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from overnight import processes
from overnight.clearing import kill_all
from overnight.engines import Handle, Placement
from overnight.engines.local import SHIM, Local
from overnight.folder import RunFolder, write_json

pytestmark = pytest.mark.timeout(60)
Seen = TypeVar("Seen")

# A stand-in for the supervisor: says that it lives, and ends the run when the test has made the file `over`.
SUPERVISOR = """
import os, sys, time
run = sys.argv[1]
with open(run + "/lives", "a") as stream:
    stream.write(f"{os.getpid()} {os.environ.get('OVERNIGHT_ROLE')}\\n")
while not os.path.exists(run + "/over"):
    time.sleep(0.01)
"""
ORPHANS = "for i in 1 2 3 4 5 6 7 8; do (setsid sh -c 'sleep 0.05' &); done; sleep 0.3; exec ps -eo stat="
# A training that says how it was started.
MIRROR = """
import json, os, signal, sys
lines = open('/proc/self/status').read().splitlines()
status = dict(line.split(':\\t', 1) for line in lines if ':\\t' in line)
links = {n: os.path.join('/proc/self/fd', n) for n in os.listdir('/proc/self/fd')}
print(json.dumps({
    # 32 and 33 belong to the C library: nobody can reset them, if whoever started the suite had them ignored.
    'ignored': int(status['SigIgn'], 16) & sum(1 << (number - 1) for number in signal.valid_signals()),
    'blocked': int(status['SigBlk'], 16),
    'int': signal.getsignal(signal.SIGINT) is not signal.SIG_IGN,
    'fds': {n: os.readlink(link) for n, link in links.items() if int(n) < 3},
    'more': [n for n, link in links.items() if int(n) > 2 and os.path.exists(link)],
    'sid': os.getsid(0),
    'pid': os.getpid(),
    'oom': open('/proc/self/oom_score_adj').read().strip(),
    'cwd': os.getcwd(),
    'argv': sys.orig_argv[0],
    'env': dict(os.environ),
}))
"""


def until(look: Callable[[], Seen | None], what: str, limit_s: float = 15.0) -> Seen:
    """Return the first true value of ``look``; the test fails after ``limit_s``."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        found = look()
        if found:
            return found
        time.sleep(0.005)
    pytest.fail(f"not within {limit_s:g} s: {what}")


def read_json(path: Path) -> dict[str, Any] | None:
    with contextlib.suppress(FileNotFoundError):
        value = json.loads(path.read_text())
        assert isinstance(value, dict)
        return value
    return None


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def alive(pid: int) -> bool:
    known = processes.stat(pid)
    return known is not None and not known.dead


class Night:
    """One run with a stand-in supervisor; the test plays the rest of it."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.script = folder.path / "supervisor.py"
        self.script.write_text(SUPERVISOR)
        self.handle: Handle | None = None

    def place(self, env: dict[str, str] | None = None) -> None:
        argv = (sys.executable, "-I", "-S", str(self.script), str(self.folder.path))
        self.handle = Local().start(
            Placement(run_dir=self.folder.path, supervisor_argv=argv, env=dict(os.environ) if env is None else env)
        )

    def keepers(self) -> dict[str, Any]:
        return until(lambda: read_json(self.folder.shim_json), "shim.json")

    def pid(self, role: str) -> int:
        return int(until(lambda: self.keepers()[role], f"a {role}")["pid"])

    def ask(self, argv: list[str], number: int = 1, *, executable: str | None = None, **fields: Any) -> None:
        start = {
            "attempt": number,
            "argv": argv,
            "executable": executable or shutil.which(argv[0]) or argv[0],
            "cwd": str(self.folder.path),
            "log": str(self.folder.output_log),
            "set": {"OVERNIGHT_RUN_ID": self.folder.name, "OVERNIGHT_RUN_DIR": str(self.folder.path)},
            "unset": [],
            "oom_score_adj": 500,
            **fields,
        }
        self.folder.attempt(number).path.mkdir()
        write_json(self.folder.attempt(number).start_json, start)
        for role in ("guard", "shim"):
            who = (read_json(self.folder.shim_json) or {}).get(role)
            if who is not None:
                processes.send(who["pid"], who["start_ticks"], signal.SIGUSR1)

    def started(self, number: int = 1) -> int:
        path = self.folder.attempt(number).started_json
        return int(until(lambda: read_json(path), "started.json")["pid"])

    def ended(self, number: int = 1) -> dict[str, Any]:
        return until(lambda: read_json(self.folder.attempt(number).exit_json), "exit.json")

    def log(self) -> str:
        return text_of(self.folder.output_log)

    def lives(self) -> list[str]:
        return text_of(self.folder.path / "lives").splitlines()

    def finish(self) -> None:
        (self.folder.path / "over").touch()

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        until(lambda: not alive(pid), f"the end of {pid}")


@pytest.fixture
def night(tmp_path: Path) -> Iterator[Night]:
    folder = RunFolder(tmp_path / "runs" / "night")
    folder.create()
    made = Night(folder)
    yield made
    known = read_json(folder.shim_json) or {}
    for role in ("guard", "shim", "supervisor"):
        who = known.get(role)
        if who is not None:
            processes.send(who["pid"], who["start_ticks"], signal.SIGKILL)
    for found in kill_all([], run_dir=folder.path, limit_s=5).left:
        pytest.fail(f"{found} could not be removed")
    # A supervisor carries OVERNIGHT_ROLE, which the clearing rightly spares.
    (folder.path / "over").touch()


def sleeper(code: int) -> list[str]:
    """Return a command that says it is there and exits with ``code`` when the file `go` appears."""
    text = (
        f"import os,time\nprint('there', flush=True)\nwhile not os.path.exists('go'): time.sleep(.01)\nos._exit({code})"
    )
    return [sys.executable, "-S", "-c", text]


def test_an_exit_code_is_written_and_everybody_leaves_when_the_supervisor_says_so(night: Night) -> None:
    night.place()
    night.ask([sys.executable, "-c", "print('hello'); raise SystemExit(7)"])
    pid = night.started()
    exit_ = night.ended()
    assert (exit_["exit_code"], exit_["signal"], exit_["pid"], exit_["core"]) == (7, None, pid, False)
    assert night.log() == "hello\n"
    assert night.handle is not None
    assert Local().look(night.handle) is True
    guard, shim = night.pid("guard"), night.pid("shim")
    night.finish()
    until(lambda: not alive(guard) and not alive(shim), "the end of guard and shim")
    assert Local().look(night.handle) is False
    assert [line.split()[1] for line in night.lives()] == ["supervisor"]


def test_a_signal_is_written_by_name(night: Night) -> None:
    night.place()
    night.ask(["sh", "-c", "ulimit -c 0; kill -SEGV $$"])
    assert (night.ended()["exit_code"], night.ended()["signal"]) == (None, "SIGSEGV")


@pytest.mark.parametrize("victim", ["shim", "guard"])
def test_the_exit_is_true_although_a_parent_was_killed(night: Night, victim: str) -> None:
    night.place()
    night.ask(sleeper(9))
    pid = night.started()
    until(night.log, "the first line")
    supervisor = night.pid("supervisor")
    night.kill(night.pid(victim))
    if victim == "shim":
        until(lambda: night.keepers()["guard"] is None, "the guard to take over")
    else:
        until(lambda: night.keepers()["guard"] is None, "the shim to notice that it is alone")
    assert alive(pid)
    (night.folder.path / "go").touch()
    assert night.ended()["exit_code"] == 9
    assert night.ended()["pid"] == pid
    assert night.keepers()["supervisor"]["pid"] == supervisor, "a living supervisor is kept, not doubled"
    until(night.lives, "the first line of the supervisor")
    assert len(night.lives()) == 1
    last = night.pid("shim")
    night.finish()
    until(lambda: not alive(last), "the end of the one that was left")


def test_a_zombie_is_not_lost_when_the_shim_is_killed_before_it_could_look(night: Night) -> None:
    night.place()
    night.ask(sleeper(23))
    night.started()
    until(night.log, "the first line")
    shim = night.pid("shim")
    os.kill(shim, signal.SIGSTOP)  # the command ends while the shim cannot see it
    (night.folder.path / "go").touch()
    pid = night.started()
    until(lambda: not alive(pid), "the end of the command")
    assert read_json(night.folder.attempt(1).exit_json) is None
    night.kill(shim)
    assert night.ended()["exit_code"] == 23


def test_both_parents_killed_the_status_is_learnt_from_the_process_itself(night: Night) -> None:
    night.place()
    night.ask(sleeper(5))
    pid = night.started()
    until(night.log, "the first line")
    pidfd = os.pidfd_open(pid)
    try:
        guard, shim = night.pid("guard"), night.pid("shim")
        night.kill(guard)
        night.kill(shim)
        assert alive(pid)
        assert processes.exit_of(pidfd, pid) is None
        (night.folder.path / "go").touch()
        until(lambda: not alive(pid), "the end of the command")
        learnt = processes.exit_of(pidfd, pid)
        if learnt is None and tuple(map(int, os.uname().release.split(".")[:2])) < (6, 15):
            pytest.skip("before Linux 6.15 the status of a reaped process is gone")
        assert learnt is not None
        assert learnt.exit_code == 5
    finally:
        os.close(pidfd)


@pytest.mark.parametrize("delay_ms", [0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.6, 2.0, 3.0, 4.0])
def test_one_training_whenever_the_shim_is_killed(night: Night, delay_ms: float) -> None:
    night.place()
    shim = night.pid("shim")
    night.ask([sys.executable, "-S", "-c", "import os; os.write(1, b'run\\n')"])
    time.sleep(delay_ms / 1000)
    os.kill(shim, signal.SIGKILL)
    assert night.ended() | {"at": 0} == {"pid": night.started(), "exit_code": 0, "signal": None, "core": False, "at": 0}
    assert night.log() == "run\n"


def test_a_killed_supervisor_comes_back_and_ends_the_run(night: Night) -> None:
    night.place()
    night.ask(sleeper(0))
    pid = night.started()
    first = night.pid("supervisor")
    until(night.lives, "the first supervisor")
    night.kill(first)
    until(lambda: len(night.lives()) == 2, "the second supervisor")
    second = int(night.lives()[1].split()[0])
    assert night.pid("supervisor") == second
    assert night.keepers()["unguarded"] is False
    assert alive(pid)
    night.finish()
    until(lambda: not alive(second), "the end of the second supervisor")
    # It ended with 0 while the command runs: that is no end of the run, so a third one is started.
    until(lambda: len(night.lives()) == 3, "the third supervisor")
    assert alive(pid)
    shim = night.pid("shim")
    (night.folder.path / "go").touch()
    assert night.ended()["exit_code"] == 0
    until(lambda: not alive(shim), "the end of the shim")


def test_five_deaths_in_a_minute_leave_the_run_unguarded_and_the_training_alone(night: Night) -> None:
    night.script.write_text("raise SystemExit(3)")
    night.place()
    night.ask(sleeper(0))
    pid = night.started()
    until(lambda: night.keepers()["unguarded"], "unguarded")
    assert night.keepers()["supervisor"] is None
    assert night.folder.shim_log.read_text().count("the supervisor ended") == 5
    assert alive(pid)


@pytest.mark.parametrize("role", ["guard", "shim"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_a_parent_is_a_request(night: Night, role: str, number: signal.Signals) -> None:
    night.place()
    night.ask(sleeper(0))
    pid = night.started()
    os.kill(night.pid(role), signal.SIGHUP)
    os.kill(night.pid(role), number)
    inbox = night.folder.inbox
    name = until(lambda: [path for path in inbox.iterdir() if path.name.endswith("-stop.json")], "the request")[0]
    request = read_json(name)
    assert request is not None
    assert (request["kind"], request["by"]) == ("stop", "scheduler")
    assert abs(request["at"] - time.time()) < 60
    assert alive(pid)
    assert alive(night.pid(role))
    assert len(list(inbox.iterdir())) == 1


def test_a_signal_in_the_guards_first_milliseconds_is_a_request_too(night: Night) -> None:
    night.place()
    assert night.handle is not None
    os.kill(night.handle.pid, signal.SIGTERM)
    until(lambda: list(night.folder.inbox.glob("[0-9]*-stop.json")), "the request")
    assert alive(night.handle.pid)


@pytest.mark.parametrize(
    ("content", "mode", "code", "words"),
    [
        (None, 0, 127, "No such file"),
        ("#!/bin/sh\n", 0o600, 126, "Permission denied"),
        ("echo no interpreter\n", 0o700, 126, "interpreter line"),
        ("#!/nowhere/python\n", 0o700, 127, "does not exist"),
    ],
)
def test_an_exec_that_fails_says_why(night: Night, content: str | None, mode: int, code: int, words: str) -> None:
    night.place()
    program = night.folder.path / 'a "program"é'
    if content is not None:
        program.write_text(content)
        program.chmod(mode)
    night.ask([str(program)])
    exit_ = night.ended()
    assert exit_["exit_code"] == code
    assert words in exit_["error"]
    assert str(program) in exit_["error"]


@pytest.mark.parametrize("fields", [{"log": "/nowhere/log"}, {"cwd": "/nowhere"}, {"set": {"A": 5}}])
def test_what_stands_in_the_way_of_an_exec_is_told(night: Night, fields: dict[str, Any]) -> None:
    night.place()
    night.ask(["true"], **fields)
    assert night.ended()["exit_code"] == 126
    assert night.ended()["error"]


def test_the_commands_own_127_is_no_exec_failure(night: Night) -> None:
    night.place()
    night.ask(["sh", "-c", "exit 127"])
    assert night.ended()["exit_code"] == 127
    assert "error" not in night.ended()


def test_the_training_is_started_as_from_a_login_shell(night: Night) -> None:
    # The whole night is started by a script with `&`, with more ignored signals and an open descriptor.
    env = {"PATH": os.environ["PATH"], "LANG": "C", "GONE": "1", "OVERNIGHT_ROLE": "none", "PYTHONCOERCECLOCALE": "0"}
    supervisor = [sys.executable, "-I", "-S", str(night.script), str(night.folder.path)]
    words = [sys.executable, "-I", "-S", str(SHIM), str(night.folder.path), "--", *supervisor]
    quoted = " ".join(f"'{word}'" for word in words)
    script = f"trap '' HUP QUIT USR1 CHLD PIPE TSTP; exec 7</etc/passwd; {quoted} </dev/null >/dev/null 2>&1 & exit 0"
    subprocess.run(["sh", "-c", script], env=env, check=True, timeout=10)
    night.ask(
        ["my own name", "-S", "-c", MIRROR],
        executable=sys.executable,
        set={"OVERNIGHT_RUN_DIR": str(night.folder.path), "ADDED": "é=1", "OVERNIGHT_ROLE": "no"},
        unset=["GONE"],
    )
    assert night.ended()["exit_code"] == 0, night.log()
    seen = json.loads(night.log())
    # Python itself ignores SIGPIPE and SIGXFSZ.
    assert seen["ignored"] & ~(1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1) == 0
    assert seen["blocked"] == 0
    assert seen["int"] is True
    log = str(night.folder.output_log)
    assert seen["fds"] == {"0": "/dev/null", "1": log, "2": log}
    assert seen["more"] == []
    assert seen["sid"] == seen["pid"] == night.started()
    assert seen["oom"] == "500"
    assert seen["cwd"] == str(night.folder.path)
    assert seen["argv"] == "my own name"
    assert "GONE" not in seen["env"]
    assert "OVERNIGHT_ROLE" not in seen["env"]
    assert seen["env"]["ADDED"] == "é=1"
    assert night.folder.output_log.stat().st_mode & 0o777 == 0o600


def test_an_orphan_of_the_training_is_written_down(night: Night) -> None:
    night.place()
    night.ask(["sh", "-c", "(setsid sh -c 'echo $$ > orphan; exit 4' &) ; exit 0"])
    assert night.ended()["exit_code"] == 0
    orphan = night.folder.path / "orphan"
    pid = int(until(lambda: text_of(orphan), "the orphan"))
    path = night.folder.attempt(1).reaped

    def written() -> list[processes.Reaped]:
        return [line for line in processes.read_reaped(path.read_bytes()) if line.pid == pid] if path.exists() else []

    assert until(written, "the orphan's line")[0].exit.exit_code == 4


def test_a_second_attempt_follows_the_first(night: Night) -> None:
    night.place()
    night.ask(["sh", "-c", "echo one; exit 1"], 1)
    assert night.ended(1)["exit_code"] == 1
    night.ask(["sh", "-c", "echo two; exit 2"], 2)
    assert night.ended(2)["exit_code"] == 2
    assert night.log() == "one\ntwo\n"


def test_what_the_supervisor_left_behind_is_removed_when_the_run_is_over(night: Night) -> None:
    night.place()
    text = "trap '' TERM INT HUP; echo $$ > stubborn; while :; do sleep 0.2; done"
    (night.folder.path / "stubborn.sh").write_text(text)
    night.ask(["sh", "-c", "setsid sh stubborn.sh & exit 0"])
    path = night.folder.path / "stubborn"
    pid = int(until(lambda: text_of(path), "the stubborn one"))
    assert night.ended()["exit_code"] == 0
    shim = night.pid("shim")
    night.finish()
    until(lambda: not alive(shim), "the end of the shim", 20)
    assert not alive(pid)


def mounted(tmp_path: Path, size: str) -> Path:
    """Mount a small disk, or skip where that is not allowed."""
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", disk], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("a small disk cannot be mounted here (no CAP_SYS_ADMIN)")
    return disk


def test_a_full_disk_delays_the_exit_but_does_not_change_it(tmp_path: Path) -> None:
    disk = mounted(tmp_path, "256k")
    try:
        folder = RunFolder(disk / "runs" / "full")
        folder.create()
        night = Night(folder)
        night.place()
        log = tmp_path / "elsewhere.log"
        night.ask(sleeper(11), log=str(log))
        pid = night.started()
        until(lambda: text_of(log) and night.lives(), "the first line")
        (folder.path / "go").touch()  # needs no space of the data; made before the disk is full
        with contextlib.suppress(OSError), (disk / "ballast").open("wb") as stream:
            while True:
                stream.write(b"x" * 4096)
                stream.flush()
        until(lambda: not alive(pid), "the end of the command")
        time.sleep(0.6)  # two tries of the shim
        assert read_json(folder.attempt(1).exit_json) is None, "the disk was not full"
        known = processes.stat(pid)
        assert known is not None
        assert processes.exit_of_status(known.status).exit_code == 11, "the zombie keeps the status"
        (disk / "ballast").unlink()
        assert night.ended()["exit_code"] == 11
        shim = night.pid("shim")
        night.finish()
        until(lambda: not alive(shim), "the end of the shim")
    finally:
        subprocess.run(["umount", "-l", disk], check=False)


def test_as_process_one_every_zombie_is_reaped(night: Night, tmp_path: Path) -> None:
    probe = subprocess.run(["unshare", "-pf", "--mount-proc", "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("a pid namespace cannot be made here")
    night.script.write_text(SUPERVISOR)
    argv = [sys.executable, "-I", "-S", str(SHIM), str(night.folder.path), "--", sys.executable, str(night.script)]
    night.folder.attempt(1).path.mkdir()
    start = {
        "attempt": 1,
        "argv": [
            "sh",
            "-c",
            "for i in 1 2 3 4 5 6 7 8; do (setsid sh -c 'sleep 0.05' &); done; sleep 0.3; exec ps -eo stat=",
        ],
        "executable": "/bin/sh",
        "cwd": "/",
        "log": str(night.folder.output_log),
        "set": {},
        "unset": [],
    }
    write_json(night.folder.attempt(1).start_json, start)
    box = subprocess.Popen(
        ["unshare", "-pf", "--kill-child", "--mount-proc", *argv, str(night.folder.path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert night.ended()["exit_code"] == 0
        assert night.keepers()["guard"]["pid"] == 1
        states = night.log().split()
        assert states
        assert not [state for state in states if state.startswith("Z")]
        reaped = processes.read_reaped(night.folder.attempt(1).reaped.read_bytes())
        assert len(reaped) >= 8
        night.finish()
        assert box.wait(timeout=15) == 0
    finally:
        box.kill()
        box.wait()


def test_a_wrong_call_is_told(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-I", "-S", SHIM, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "usage" in done.stderr

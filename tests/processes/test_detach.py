"""A run outlives the session, the terminal and the connection it was started from, and can be looked at and left."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from looking import BIN, Run, Runs, Terminal, alive, toy, until

pytestmark = pytest.mark.timeout(60)

Start = Callable[..., Run]
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


@pytest.fixture
def ssh(tmp_path: Path) -> Iterator[list[str]]:
    """Start an sshd on the loopback and return the words of a client that logs in to it with a terminal."""
    if SSHD is None or shutil.which("ssh") is None or shutil.which("ssh-keygen") is None:
        pytest.skip("sshd, ssh or ssh-keygen is not installed")
    folder = tmp_path / "ssh"
    folder.mkdir(mode=0o700)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    (folder / "authorized").write_bytes((folder / "user.pub").read_bytes())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    options = {
        "HostKey": folder / "host", "AuthorizedKeysFile": folder / "authorized", "PidFile": "none", "UsePAM": "no",
        "StrictModes": "no", "PermitRootLogin": "yes", "PasswordAuthentication": "no", "ListenAddress": "127.0.0.1",
        "Port": port,
    }  # fmt: skip
    (folder / "config").write_text("".join(f"{name} {value}\n" for name, value in options.items()))
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # its own start script would make it
    with (folder / "sshd.log").open("wb") as log:
        daemon = subprocess.Popen([SSHD, "-D", "-e", "-f", str(folder / "config")], stdout=log, stderr=log)
    client = [
        "ssh", "-tt", "-p", str(port), "-i", str(folder / "user"), "-o", "StrictHostKeyChecking=no",
        "-o", f"UserKnownHostsFile={folder / 'known'}", "-o", "BatchMode=yes", f"{getpass.getuser()}@127.0.0.1",
    ]  # fmt: skip
    try:
        for _ in range(50):
            login = subprocess.run([*client, "true"], capture_output=True, stdin=subprocess.DEVNULL, check=False)
            if login.returncode == 0:
                break
            if daemon.poll() is not None:
                break
            time.sleep(0.1)
        else:
            pytest.skip(f"sshd lets nobody in here: {(folder / 'sshd.log').read_text()[-300:]}")
        if daemon.poll() is not None:
            pytest.skip(f"sshd does not start here: {(folder / 'sshd.log').read_text()[-300:]}")
        yield client
    finally:
        daemon.terminate()
        daemon.wait()


def remote(runs: Runs, words: list[str]) -> str:
    """Return the line that a login shell is told: our command line in the test's folder and home."""
    env = f"OVERNIGHT_HOME={runs.home} PATH={BIN}:$PATH XDG_CONFIG_HOME={runs.work / 'config'}"
    return f"cd {runs.work} && export {env} && overnight {' '.join(words)}"


@pytest.mark.parametrize(
    "stay",
    # An sshd and two logins for each; a --follow that is cut off is in test_check.py too.
    ["", "--foreground", *(pytest.param(one, marks=pytest.mark.long) for one in ("--follow", "--wait-step"))],
)
def test_an_ssh_connection_that_breaks(runs: Runs, ssh: list[str], stay: str) -> None:
    """A1-01: started over ssh on a terminal, the client killed: the run comes to its last step, no signal is told."""
    words = ["run", "--name", "night", *([stay] if stay else []), "--", *toy("--steps", 120, "--dt", 0.06)]
    terminal = Terminal([*ssh, remote(runs, words) + "; sleep 600"], env=runs.env, cwd=runs.work)
    try:
        run = runs.run("night")
        until(lambda: b"step: 10," in run.log, f"step 10; the terminal shows {terminal.shown!r}", 20.0)
        assert alive(terminal.process.pid)
        terminal.process.kill()
        terminal.process.wait()
    finally:
        terminal.close()
    at = run.log.count(b"\n")
    until(lambda: run.log.count(b"\n") > at + 5, "it goes on")
    assert run.wait() == 0
    assert b"step: 120," in run.log
    assert run.status["state"] == "finished"
    journal = (run.folder / "journal.jsonl").read_text()
    assert "SIG" not in journal
    assert not run.facts("stopping")


@pytest.mark.long
@pytest.mark.timeout(120)
def test_an_ssh_connection_that_breaks_a_minute_long(runs: Runs, ssh: list[str]) -> None:
    """The row as it stands: sixty steps of a second each."""
    words = ["run", "--name", "night", "--", *toy("--steps", 60, "--dt", 1)]
    terminal = Terminal([*ssh, remote(runs, words) + "; sleep 600"], env=runs.env, cwd=runs.work)
    run = runs.run("night")
    until(lambda: b"step: 2," in run.log, "step 2", 20.0)
    terminal.close()
    assert run.wait(80) == 0
    assert b"step: 60," in run.log


def test_a_terminal_that_is_closed(runs: Runs) -> None:
    """The whole session gets SIGHUP: shell, viewer and whatever it started; the run is not in it."""
    words = " ".join(["overnight", "run", "--name", "night", "--follow", "--", *toy("--steps", 100)])
    terminal = Terminal(["bash", "-c", words + "; sleep 600"], env=runs.env, cwd=runs.work)
    run = runs.run("night")
    run.wrote("step: 10,")
    terminal.close()
    assert run.wait() == 0
    assert b"step: 100," in run.log


def test_a_hangup_of_every_keeper_is_ignored(start: Start) -> None:
    """A1-03, first half: SIGHUP to the supervisor itself (and to shim and guard): noted, the training goes on."""
    run = start("night", *toy("--steps", 1000), log="step: 3,")
    supervisor = run.pid("supervisor")
    os.kill(supervisor, signal.SIGHUP)
    until(lambda: run.facts("hangup_ignored"), "the fact")
    for role in ("shim", "guard"):
        os.kill(run.pid(role), signal.SIGHUP)
    step = run.status["step"]
    until(lambda: run.status["step"] > step + 5, "it goes on")
    assert run.pid("supervisor") == supervisor
    assert len(run.facts("hangup_ignored")) == 1
    assert run.status["state"] == "running"


def test_the_training_has_no_terminal_and_a_session_of_its_own(start: Start) -> None:
    run = start("night", *toy("--steps", 1000), log="step: 3,")
    fields = Path(f"/proc/{run.command}/stat").read_text().rpartition(")")[2].split()
    session, terminal = int(fields[3]), int(fields[4])
    assert session == run.command
    assert terminal == 0
    assert os.readlink(f"/proc/{run.command}/fd/0") == "/dev/null"
    assert os.readlink(f"/proc/{run.command}/fd/1") == str(run.folder / "output.log"), "no pipe of ours"


def test_attach_shows_new_lines_and_is_left_with_control_c(start: Start, runs: Runs) -> None:
    """A1-04: new lines within 2 s; Ctrl-C leaves the view, not the run; then an explicit stop ends it."""
    run = start("night", *toy("--steps", 1000, "--handle", "int"), log="step: 3,")
    view = runs.on_terminal("attach", "night")
    until(lambda: b"step:" in view.shown, "the view shows the run")
    step = run.status["step"] + 5
    until(lambda: f"step: {step},".encode() in run.log, "a new line")
    until(lambda: f"step: {step},".encode() in view.shown, "the new line in the view", 2.0)
    view.type(b"\x03")
    assert view.wait() in (0, 130)
    at = len(run.log)
    until(lambda: len(run.log) > at, "the job goes on")
    assert run.status["state"] == "running"
    assert not run.facts("stopping")
    assert run.stop().returncode == 0
    assert (run.status["state"], run.status["cause"]) == ("stopped", "user")


def test_sigint_to_a_view_without_a_terminal(start: Start, runs: Runs) -> None:
    run = start("night", *toy("--steps", 1000), log="step: 3,")
    words = ["overnight", "attach", "night"]
    view = subprocess.Popen(words, env=runs.env, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert view.stdout is not None
    assert b"step:" in view.stdout.readline()
    view.send_signal(signal.SIGINT)
    assert view.wait(10) in (0, 130)
    view.stdout.close()
    assert alive(run.command)
    assert run.status["state"] == "running"


def test_leaving_follow_with_control_c(runs: Runs) -> None:
    view = runs.on_terminal("run", "--name", "night", "--follow", "--", *toy("--steps", 1000, "--handle", "both"))
    run = runs.run("night")
    run.wrote("step: 3,")
    until(lambda: b"step: 3," in view.shown, "the output is shown")
    view.type(b"\x03")
    view.wait()
    at = len(run.log)
    until(lambda: len(run.log) > at, "the job goes on")
    assert run.status["state"] == "running"


def test_the_folder_it_was_started_from_may_vanish(runs: Runs, work: Path) -> None:
    """Started in a scratch folder that is removed afterwards: run, stop and status still work."""
    scratch = work / "scratch"
    scratch.mkdir()
    subprocess.run(
        ["overnight", "run", "--name", "night", "--settle", "0.05", "--", *toy("--steps", 1000)],
        env=runs.env, cwd=scratch, check=True, capture_output=True, timeout=30,
    )  # fmt: skip
    run = runs.run("night")
    run.wrote("step: 3,")
    scratch.rmdir()
    assert run.stop().returncode == 0
    assert run.wait() == 103


@pytest.mark.parametrize("flags", [("--recover",), ("--restarts", "2"), ()])
def test_the_environment_is_kept_only_for_a_run_that_may_be_started_again(
    runs: Runs, start: Start, flags: tuple[str, ...]
) -> None:
    """Whole, for its owner only, and in no other file and no answer of ours."""
    runs.env["API_TOKEN"] = "hunter2-and-3"
    run = start("night", *toy("--steps", 5), flags=flags, log="step: 5,")
    assert run.wait() == 0
    kept = run.folder / "run.env"
    assert kept.exists() == bool(flags)
    if flags:
        assert kept.stat().st_mode & 0o777 == 0o600
        words = kept.read_bytes().split(b"\0")
        assert b"API_TOKEN=hunter2-and-3" in words
        assert not [
            word for word in words if word.startswith((b"OVERNIGHT_RUN_", b"OVERNIGHT_ATTEMPT", b"OVERNIGHT_ROLE"))
        ]
    for path in run.folder.rglob("*"):
        assert path == kept or not path.is_file() or b"hunter2" not in path.read_bytes(), path
    shown = runs.overnight("status", "night", "--json").stdout + runs.overnight("status", "night").stdout
    assert "hunter2" not in shown

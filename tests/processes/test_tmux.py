"""``--engine tmux``: a real tmux server of the test's own shows the run; nothing done to it takes the training away."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from looking import (
    BIN,
    TOY,
    Run,
    Runs,
    Terminal,
    alive,
    all_processes,
    belonging,
    keepers,
    read,
    toy,
    until,
    whole,
)

from overnight import launch
from overnight.folder import RunFolder, write_json
from overnight.processes import boot_id

pytestmark = [
    pytest.mark.timeout(90),
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
]

TRAIN = ("--steps", 5000, "--handle", "int", "--checkpoints", "saved")


class Server:
    """A tmux server that only this test uses, found through TMUX_TMPDIR as a user's own."""

    def __init__(self, runs: Runs, folder: Path) -> None:
        self.runs = runs
        folder.mkdir(mode=0o700)
        runs.env.pop("TMUX", None)
        runs.env |= {"TMUX_TMPDIR": str(folder), "TERM": "xterm", "LANG": "C.UTF-8"}

    def call(self, *words: str, check: bool = True) -> str:
        done = subprocess.run(
            ["tmux", *words], env=self.runs.env, cwd=self.runs.work, capture_output=True, text=True, timeout=20,
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        assert done.returncode == 0 or not check, (words, done.stderr)
        return done.stdout

    def start(self, name: str, *command: object, flags: tuple[object, ...] = (), log: str = "step: 3,") -> Run:
        """Start a run that is shown here, once its log contains ``log``."""
        return self.runs.start(name, *command, flags=("--engine", "tmux", *flags), log=log)

    def sessions(self) -> list[str]:
        return sorted(self.call("list-sessions", "-F", "#{session_name}", check=False).split())

    def shown(self, name: str) -> str:
        """Return what the pane of a session shows, lines that it wrapped put together again."""
        return self.call("capture-pane", "-p", "-J", "-S", "-", "-t", f"={name}:", check=False)

    def type(self, name: str, key: str) -> None:
        self.call("send-keys", "-t", f"={name}:", key)

    def ask(self, name: str, what: str) -> str:
        return self.call("display-message", "-p", "-t", f"={name}:", f"#{{{what}}}").strip()

    def dead(self, name: str) -> str | None:
        """Return the exit status of a pane's program, None while it lives."""
        found = self.call(
            "list-panes", "-t", f"={name}:", "-F", "#{pane_dead} #{pane_dead_status}", check=False
        ).split()
        return found[1] if len(found) == 2 and found[0] == "1" else None

    def shows(self, name: str, text: str) -> None:
        until(lambda: text in self.shown(name), f"{text!r} in the pane of {name}: {self.shown(name)!r}")


def viewers(home: Path) -> list[int]:
    """Return the living viewers of the runs of a home. The server has their words too, behind its own."""
    begin = ("-I", "-m", "overnight", "attach", "--pane")
    found = [one for one in all_processes() if one.words[1:6] == begin]
    return [one.pid for one in found if one.words[6].startswith(f"{home}/")]


@pytest.fixture
def tmux(runs: Runs, tmp_path: Path) -> Iterator[Server]:
    server = Server(runs, tmp_path / "t")
    yield server
    server.call("kill-server", check=False)
    until(lambda: not viewers(runs.home), "no viewer is left without its pane")


# -- what it shows ---------------------------------------------------------------------------------------------------


def test_the_session_has_the_runs_name_and_shows_it_live(tmux: Server, runs: Runs) -> None:
    """In a server with another environment than ours: nothing of it is needed."""
    env = {**runs.env, "OVERNIGHT_HOME": "/nonexistent", "PATH": "/usr/bin:/bin"}
    subprocess.run(["tmux", "new-session", "-d", "-s", "own", "sleep 600"], env=env, check=True)
    done = runs.overnight("run", "--name", "night", "--settle", "0.05", "--engine", "tmux", "--", *toy("--steps", 5000))
    assert "  next        tmux attach -t night\n              overnight attach night\n" in done.stdout, done.stderr
    run = runs.run("night")
    assert tmux.sessions() == ["night", "own"]
    run.wrote("step: 3,")
    tmux.shows("night", "step: 3,")
    step = run.log.count(b"\nstep: ") + 5
    tmux.shows("night", f"step: {step},")
    engine = run.file("engine.json")
    assert (engine["engine"], engine["place"]) == ("tmux", "night")
    words = next(one.words for one in all_processes() if one.pid == engine["pid"])
    assert "shim.py" in " ".join(words), "the handle is that of the guard"


def pressed(view: Terminal, *keys: bytes) -> bool:
    """Press the keys one after the other; say whether the program on the terminal has ended within a second."""
    for key in keys:
        view.type(key)
        time.sleep(0.1)
    with contextlib.suppress(subprocess.TimeoutExpired):
        view.process.wait(1.0)
    return view.process.poll() is not None


def test_attach_and_leaving_with_the_prefix_key(tmux: Server, runs: Runs) -> None:
    run = tmux.start("night", *toy("--steps", 5000))
    view = Terminal(["tmux", "attach", "-t", "=night"], env=runs.env, cwd=runs.work)
    try:
        until(lambda: b"step: " in view.shown, "the session is shown")
        # As a person types: tmux takes keys that come within a millisecond for a paste and passes them on.
        until(lambda: pressed(view, b"\x02", b"d"), "the prefix and d let go of it", 60)
        assert view.wait() == 0
    finally:
        view.close()
    at = len(run.log)
    until(lambda: len(run.log) > at, "it goes on")
    assert run.status["state"] == "running"
    assert tmux.dead("night") is None
    assert viewers(runs.home)


def test_plain_attach_names_the_session_and_only_leaves(tmux: Server, runs: Runs) -> None:
    run = tmux.start("night", *toy("--steps", 5000))
    view = runs.on_terminal("attach", "night")
    until(lambda: b"also in: tmux attach -t night" in view.shown and b"step: " in view.shown, "the run and the hint")
    view.type(b"\x03")
    assert view.wait() == 0
    assert not run.facts("stopping")


@pytest.mark.parametrize(
    ("switches", "code", "said"),
    [
        (("--steps", 20), "0", "night finished"),
        (("--steps", 5000, "--crash-at", 8), "100", "night failed"),
        (("--steps", 5000, "--nan-at", 8), "104", "nonfinite"),
    ],
)
def test_the_pane_stays_with_the_outcome(tmux: Server, switches: tuple[object, ...], code: str, said: str) -> None:
    run = tmux.start("night", *toy(*switches))
    assert str(run.wait()) == code
    assert until(partial(tmux.dead, "night"), "the viewer ends") == code
    assert said in tmux.shown("night")
    assert f"overnight: {run.name}" not in tmux.shown("night")


def test_words_that_tmux_would_read_as_its_own(tmux: Server, runs: Runs, work: Path) -> None:
    odd = work / "50% #{pid} of it;"
    odd.mkdir()
    done = subprocess.run(
        ["overnight", "run", "--name", "night", "--engine", "tmux", "--settle", "0.05", "--", *toy("--steps", 5000)],
        env=runs.env, cwd=odd, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    tmux.shows("night", "step: 3,")
    assert tmux.ask("night", "session_path") == str(odd), "a pane that the user adds begins where the training is"


def test_from_within_tmux_it_is_the_users_own_server_and_a_switch(tmux: Server, runs: Runs) -> None:
    tmux.call("new-session", "-d", "-s", "mine", "sleep 600")
    runs.env["TMUX"] = f"{tmux.ask('mine', 'socket_path')},{tmux.ask('mine', 'pid')},0"
    runs.env["TMUX_TMPDIR"] = "/nonexistent"
    done = runs.overnight("run", "--name", "night", "--settle", "0", "--engine", "tmux", "--", *toy("--steps", 5000))
    assert "  next        tmux switch-client -t night\n" in done.stdout, done.stderr
    assert tmux.sessions() == ["mine", "night"]


def test_a_server_of_before_a_reboot_is_not_asked_for(tmux: Server, runs: Runs) -> None:
    """The environment of a run that is recovered may still name it."""
    usual = dict(runs.env)
    runs.env["TMUX"] = "/nonexistent/tmux-0/default,4711,0"
    done = runs.overnight("run", "--name", "night", "--settle", "0", "--engine", "tmux", "--", *toy("--steps", 5000))
    runs.env = usual
    assert done.stderr == ""
    tmux.shows("night", "step: 3,")


# -- what Ctrl-C in it does ------------------------------------------------------------------------------------------


def test_control_c_stops_the_run_with_its_checkpoint(tmux: Server, work: Path) -> None:
    run = tmux.start("night", *toy(*TRAIN))
    tmux.shows("night", "step: 3,")
    tmux.type("night", "C-c")
    assert run.wait() == 103
    assert (run.status["state"], run.status["cause"]) == ("stopped", "user")
    assert len(whole(work / "saved")) == 1
    assert until(partial(tmux.dead, "night"), "the viewer ends") == "103"
    shown = tmux.shown("night")
    assert "overnight: night is asked to stop" in shown
    assert "night stopped (user)" in shown


def test_control_c_in_the_usual_recipe_loses_the_checkpoint(tmux: Server, work: Path) -> None:
    """The same toy and the same key, as most people do it: tee dies first, the next print breaks the pipe."""
    signals = str(work / "signals")
    line = f"{' '.join(toy(*TRAIN, '--signals', signals))} 2>&1 | tee -a log"
    tmux.call("new-session", "-d", "-s", "usual", "-c", str(work), line)
    until(lambda: b"step: 3," in read(work / "log"), "step 3")
    tmux.type("usual", "C-c")
    until(lambda: "usual" not in tmux.sessions(), "the session ends")
    until(lambda: not [one for one in all_processes() if TOY in one.words and signals in one.words], "the toy ends")
    assert (work / "signals").read_text().startswith("SIGINT")
    assert not whole(work / "saved")


def test_a_second_control_c_climbs(tmux: Server) -> None:
    run = tmux.start("night", *toy("--steps", 5000, "--handle", "int", "--hang-at", 4))
    tmux.shows("night", "step: 3,")
    tmux.type("night", "C-c")
    tmux.shows("night", "Ctrl-C again: the other signal, SIGTERM")
    tmux.type("night", "C-c")
    assert run.wait() == 103
    assert run.status["signal"] == "SIGTERM"
    assert "overnight: night is asked to stop again" in tmux.shown("night")


def test_control_c_reaches_only_the_run_of_that_very_name(tmux: Server, work: Path) -> None:
    runs = {name: tmux.start(name, *toy("--steps", 5000, "--handle", "int")) for name in ("ab", "a-b", "a", "0")}
    tmux.shows("a", "step: 3,")
    tmux.type("a", "C-c")
    assert runs["a"].wait() == 103
    tmux.shows("0", "step: 3,")
    tmux.type("0", "C-c")
    assert runs["0"].wait() == 103
    for name in ("ab", "a-b"):
        assert not runs[name].facts("request"), name
        assert runs[name].status["state"] == "running"


# -- what else may happen to it --------------------------------------------------------------------------------------


def kill_server(tmux: Server, number: signal.Signals) -> None:
    os.kill(int(tmux.ask("night", "pid")), number)


ENDS: dict[str, Callable[[Server], object]] = {
    "kill-pane": lambda tmux: tmux.call("kill-pane", "-t", "=night:"),
    "kill-session": lambda tmux: tmux.call("kill-session", "-t", "=night"),
    "kill-server": lambda tmux: tmux.call("kill-server"),
    "kill -9 of the server": lambda tmux: kill_server(tmux, signal.SIGKILL),
    "kill of the server": lambda tmux: kill_server(tmux, signal.SIGTERM),
}


@pytest.mark.parametrize("end", ENDS)
def test_whatever_ends_the_pane_the_training_goes_on(tmux: Server, runs: Runs, end: str) -> None:
    run = tmux.start("night", *toy("--steps", 80, "--handle", "both"))
    tmux.shows("night", "step: 3,")
    ENDS[end](tmux)
    until(lambda: not viewers(runs.home), "the viewer ends")
    assert alive(run.command)
    assert run.wait() == 0
    assert b"step: 80," in run.log
    assert not run.facts("stopping")


@pytest.mark.parametrize("what", ["SIGTERM", "SIGQUIT", "C-d"])
def test_the_viewer_leaves_and_the_run_goes_on(tmux: Server, runs: Runs, what: str) -> None:
    run = tmux.start("night", *toy("--steps", 5000, "--handle", "both"))
    tmux.shows("night", "step: 3,")
    if what == "C-d":
        tmux.type("night", what)
    else:
        os.kill(viewers(runs.home)[0], signal.Signals[what])
    assert until(partial(tmux.dead, "night"), "the viewer ends") == "130"
    assert "left; night goes on" in tmux.shown("night")
    at = len(run.log)
    until(lambda: len(run.log) > at, "it goes on")
    assert not run.facts("stopping")


def test_keys_typed_into_the_pane_do_nothing(tmux: Server) -> None:
    run = tmux.start("night", *toy("--steps", 5000, "--handle", "both"))
    tmux.shows("night", "step: 3,")
    for key in ("q", "Enter", "C-z", "x", "Enter"):
        tmux.type("night", key)
    at = run.log.count(b"\n") + 10
    tmux.shows("night", f"step: {at},")
    assert tmux.dead("night") is None
    assert not run.facts("stopping")


def test_a_run_folder_that_vanishes(runs: Runs) -> None:
    folder = RunFolder(runs.home / "runs" / "night")
    folder.create()
    write_json(folder.status_json, {"state": "running", "log": str(folder.output_log)})
    folder.output_log.write_text("a line\n")
    view = runs.on_terminal("attach", "--pane", folder.path)
    until(lambda: b"a line" in view.shown, "the log")
    shutil.rmtree(folder.path)
    assert view.wait() == 102
    assert b"the run night is gone" in view.shown


def test_recovered_after_a_reboot_it_is_shown_again(tmux: Server, runs: Runs) -> None:
    """Everything is killed, every file made one of an earlier boot; what the old status says is not taken for now."""
    run = tmux.start("night", *toy("--steps", 5000), flags=("--recover",))
    until(lambda: run.file("status.json").get("step"), "a step in its status")
    kill_server(tmux, signal.SIGKILL)
    for one in sorted(keepers(run.folder), key=lambda process: process.pid) + belonging(run.folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one.pid, signal.SIGKILL)
    until(lambda: not [*keepers(run.folder), *belonging(run.folder), *viewers(runs.home)], "everything is dead")
    for path in [*run.folder.rglob("*.json*"), *(run.folder / "owner").glob("0*")]:
        path.write_bytes(path.read_bytes().replace(boot_id().encode(), str(uuid.uuid4()).encode()))
    done = runs.overnight("recover", "night")
    assert done.returncode == 0, done.stderr
    at = run.log.count(b"step: ") + 5
    until(lambda: run.log.count(b"step: ") > at, "the second attempt")
    tmux.shows("night", "step: 5,")
    assert tmux.dead("night") is None
    tmux.type("night", "C-c")
    assert run.wait() == 103
    assert until(partial(tmux.dead, "night"), "the viewer ends") == "103"


# -- names that are taken, and tmux that does not serve --------------------------------------------------------------


def refused(runs: Runs, name: str = "night") -> str:
    """Return why a run shown in tmux was refused, nothing of it having been made."""
    done = runs.overnight("run", "--name", name, "--engine", "tmux", "--", *toy("--steps", 5000))
    assert done.returncode == 2, done.stdout + done.stderr
    assert not (runs.home / "runs" / name).exists()
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_a_name_that_a_foreign_session_has(tmux: Server, runs: Runs, work: Path) -> None:
    tmux.call("new-session", "-d", "-s", "night", "sleep 600")
    tmux.call("new-session", "-d", "-s", "other-one", "sleep 600")
    assert "a tmux session is called 'night' already and is none of Overnight's" in refused(runs)
    assert tmux.dead("night") is None
    tmux.start("other", *toy("--steps", 5000))
    tmux.shows("other", "step: 3,")
    assert tmux.sessions() == ["night", "other", "other-one"]


def test_the_place_of_an_earlier_run_is_taken(tmux: Server, runs: Runs, tmp_path: Path) -> None:
    """Its folder was removed by hand, or it lies in another home: a dead pane of ours is in nobody's way."""
    first = tmux.start("night", *toy("--steps", 10), log="step: 10,")
    assert first.wait() == 0
    until(partial(tmux.dead, "night"), "the viewer ends")
    shutil.rmtree(first.folder)
    tmux.start("night", *toy("--steps", 5000))
    tmux.shows("night", "step: 3,")
    assert tmux.sessions() == ["night"]


def test_a_run_of_that_name_that_goes_on_in_another_home(tmux: Server, runs: Runs, tmp_path: Path) -> None:
    other = Runs(tmp_path / "other", runs.work)
    other.env = {**runs.env, "OVERNIGHT_HOME": str(other.home)}
    try:
        other.start("night", *toy("--steps", 5000), flags=("--engine", "tmux"), log="step: 3,")
        assert f"shows the run in {other.home}/runs/night" in refused(runs)
    finally:
        other.end()
    until(partial(tmux.dead, "night"), "the viewer ends")
    tmux.start("night", *toy("--steps", 5000))
    tmux.shows("night", "step: 3,")


def test_forget_closes_the_session_but_no_pane_of_the_users(tmux: Server, runs: Runs) -> None:
    alone = tmux.start("alone", *toy("--steps", 5), log="step: 5,")
    shared = tmux.start("shared", *toy("--steps", 5), log="step: 5,")
    for run in (alone, shared):
        assert run.wait() == 0
        until(partial(tmux.dead, run.name), "the viewer ends")
    tmux.call("split-window", "-t", "=shared:", "sleep 600")
    assert "panes of yours" in refused_again(runs, shared)
    launch.forget(RunFolder(alone.folder))
    launch.forget(RunFolder(shared.folder))
    assert tmux.sessions() == ["shared"]
    assert tmux.call("list-panes", "-t", "=shared:", "-F", "#{pane_start_command}").split() == ['"sleep', '600"']


def refused_again(runs: Runs, run: Run) -> str:
    """Return why a second run of a name is refused once the first one's folder is out of the way."""
    aside = run.folder.rename(run.folder.with_name(".aside"))
    said = refused(runs, run.name)
    aside.rename(run.folder)
    return said


def said_in_the_run(run: Run, text: str) -> bool:
    """Say whether a sentence has reached the run: it is in the journal, or waits in the inbox."""
    files = [run.folder / "journal.jsonl", *(run.folder / "inbox").glob("*-note.json")]
    return any(text.encode() in read(path) for path in files)


def test_without_tmux_it_runs_all_the_same_and_it_is_said(runs: Runs) -> None:
    runs.env["PATH"] = BIN
    assert shutil.which("tmux", path=BIN) is None
    done = runs.overnight("run", "--name", "night", "--engine", "tmux", "--", *toy("--steps", 5000))
    assert done.returncode == 0, done.stderr
    assert "overnight: tmux is not on PATH: night runs without a tmux session" in done.stderr
    assert "tmux attach" not in done.stdout
    run = runs.run("night")
    assert run.file("engine.json")["engine"] == "local"
    assert run.status["state"] == "running"
    until(lambda: said_in_the_run(run, "tmux is not on PATH"), "the note")


def test_a_server_that_cannot_be_started(tmux: Server, runs: Runs) -> None:
    """Its folder for sockets may be used by anybody, which tmux refuses."""
    folder = Path(runs.env["TMUX_TMPDIR"]) / f"tmux-{os.geteuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    done = runs.overnight("run", "--name", "night", "--engine", "tmux", "--", *toy("--steps", 5000))
    assert done.returncode == 0, done.stderr
    assert "overnight: tmux refuses (" in done.stderr
    run = runs.run("night")
    run.wrote("step: 3,")
    assert run.file("engine.json")["engine"] == "local"
    until(lambda: said_in_the_run(run, "tmux refuses ("), "the note")


def test_an_engine_that_is_none(runs: Runs) -> None:
    done = runs.overnight("run", "--name", "night", "--engine", "tmax", "--", *toy("--steps", 5000))
    assert done.returncode == 2
    assert done.stderr == "overnight: there is no engine 'tmax'; engines are local, tmux\n"
    assert not (runs.home / "runs" / "night").exists()

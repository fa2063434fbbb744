"""Hooks as real processes: each runs once whoever is killed, none holds anybody up, and failures are seen."""

from __future__ import annotations

import json
import os
import random
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from looking import alive, all_processes, until

from overnight import clearing
from overnight.clocks import boot_clock
from overnight.facts import Facts
from overnight.folder import RunFolder, read_journal
from overnight.hooks.folding import Fold
from overnight.hooks.starting import Hooks
from overnight.spec import RunSpec

pytestmark = pytest.mark.timeout(180)
ENDED: dict[str, Any] = {"state": "finished", "cause": "completed", "cause_text": "exited 0", "step": 99, "attempt": 1}


class Night:
    """A run folder with hooks, and who looks after them; no supervisor, no training."""

    def __init__(self, path: Path) -> None:
        self.work = path / "work"
        self.work.mkdir()
        self.folder = RunFolder(path / "runs" / "a")
        self.folder.create()
        self.status = dict(ENDED)
        self.opened: list[Facts] = []

    def spec(self, **given: Any) -> RunSpec:
        """Write down what is asked for."""
        words = {"name": "a", "argv": ("true",), "executable": "/bin/true", "cwd": str(self.work), "log": "/dev/null"}
        spec = RunSpec(**{**words, **given})
        self.folder.run_json.write_bytes(msgspec.json.encode({"spec": spec}))
        return spec

    def hooks(self, fold: Fold | None = None, **given: Any) -> Hooks:
        """Return what a supervisor that has just come would have."""
        facts = Facts(self.folder)
        self.opened.append(facts)
        return Hooks(self.folder, self.spec(**given), facts, lambda: dict(self.status), fold=fold)

    def ends(self, limit_s: float = 60.0, **given: Any) -> Hooks:
        """Let the run end, and its hooks."""
        hooks = self.hooks(**given)
        hooks.end()
        drive(hooks, limit_s)
        return hooks

    def wrote(self, name: str) -> str:
        """Return what a hook wrote into the working folder."""
        path = self.work / name
        return path.read_text() if path.exists() else ""

    def result(self, key: str) -> dict[str, Any]:
        """Return how an execution ended."""
        found = json.loads((self.folder.hooks / f"{key}.result.json").read_text())
        assert isinstance(found, dict)
        return found

    def facts(self, kind: str) -> list[dict[str, Any]]:
        """Return the facts of a kind."""
        return [fact for fact in read_journal(self.folder.journal) if fact["fact"] == kind]


@pytest.fixture
def night(tmp_path: Path) -> Iterator[Night]:
    """Return a run folder; of its hooks no process may be left."""
    found = Night(tmp_path)
    yield found
    for facts in found.opened:
        facts.journal.close()
    left = []
    until_s = time.monotonic() + 10.0
    while time.monotonic() < until_s and (left := belonging(found.folder)):
        time.sleep(0.02)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def belonging(folder: RunFolder) -> list[int]:
    mark = f"OVERNIGHT_RUN_DIR={folder.path}"
    return [one.pid for one in all_processes() if mark in one.environ]


def drive(hooks: Hooks, limit_s: float = 60.0, done: Callable[[], bool] | None = None) -> None:
    """Be the loop of the supervisor until nothing is to be done; no turn may take long."""
    end = time.monotonic() + limit_s
    while not (done() if done is not None else not hooks.busy()):
        assert time.monotonic() < end, f"still going on: {hooks.live}"
        hooks.turn(boot_clock())
        time.sleep(min(0.1, hooks.next_look_s(boot_clock()) or 0.01))
    hooks.turn(boot_clock())


def test_a_run_without_hooks_costs_nothing(night: Night) -> None:
    hooks = night.hooks()
    hooks.tell("verdict", boot_clock(), verdict={"text": "x"})
    hooks.end()
    assert not hooks.turn(boot_clock())
    assert not hooks.busy()
    assert hooks.next_look_s(boot_clock()) is None
    assert hooks.summary() is None
    assert not night.folder.hooks.exists()


def test_a_hook_is_told_everything_and_nothing_secret(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "tok-1")
    monkeypatch.setenv("OVERNIGHT_STEP", "of an outer run")
    night.status.update(
        loss=float("nan"), checkpoint={"path": "/ckpt/ü 7", "step": 90}, cause_text="Schritt 99 ⭐\n fertig", argv=["x"]
    )
    users = os.umask(0o077)  # as in a supervisor
    try:
        night.ends(on_end=("cat > payload; env > env; pwd > cwd; umask > umask; echo tschüß",))
    finally:
        os.umask(users)
    assert int(night.wrote("umask"), 8) == users
    told = json.loads(night.wrote("payload"))
    assert told == json.loads((night.folder.hooks / "end-001-1.json").read_text())
    assert told["event"] == "end"
    assert told["loss"] == "nan"
    assert told["checkpoint"] == {"path": "/ckpt/ü 7", "step": 90}
    assert (told["run"], told["folder"]) == ("a", str(night.folder.path))
    assert "tok-1" not in night.wrote("payload")
    assert "argv" not in told
    lines = set(night.wrote("env").splitlines())
    expected = {"EVENT": "end", "STATE": "finished", "CAUSE": "completed", "STEP": "99", "RUN_ID": "a", "ROLE": "hook"}
    expected |= {"RUN_DIR": str(night.folder.path), "LAST_CHECKPOINT": "/ckpt/ü 7", "TEXT": "Schritt 99 ⭐"}
    assert {f"OVERNIGHT_{name}={value}" for name, value in expected.items()} | {"MY_TOKEN=tok-1"} <= lines
    assert night.wrote("cwd").strip() == str(night.work)
    result = night.result("end-001-1")
    assert (result["exit_code"], result["signal"], result["timed_out"], result["output"]) == (
        0,
        None,
        False,
        "tschüß\n",
    )
    for name in ("end-001-1.json", "end-001-1.result.json", "end-001-1.claim"):
        assert stat.S_IMODE((night.folder.hooks / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(night.folder.hooks.stat().st_mode) == 0o700
    assert [fact["ok"] for fact in night.facts("hook_ended")] == [True]


@pytest.mark.parametrize(
    ("state", "cause", "right"),
    [
        ("finished", "completed", "success always"),
        ("failed", "crash", "failure always"),
        ("gave_up", "crash", "failure always"),
        ("stopped", "nonfinite", "failure always"),
        ("stopped", "wall_clock", "limit always"),
        ("stopped", "user", "stopped always"),
        ("stopped", "preempted", "stopped always"),
    ],
)
def test_each_end_starts_its_own_hooks(night: Night, state: str, cause: str, right: str) -> None:
    night.status.update(state=state, cause=cause)
    night.ends(on_end=tuple(f"echo {one} >> ran:{one}" for one in ("success", "failure", "limit", "stopped", "always")))
    found = " ".join(night.wrote("ran").split())
    assert found == right


def test_a_run_that_goes_on_starts_no_end_hook(night: Night) -> None:
    night.status.update(state="backoff", cause="crash")
    hooks = night.ends(on_end=("echo x > ran",))
    assert not night.wrote("ran")
    night.status.update(state="failed", attempt=2)
    hooks.end()
    drive(hooks)
    assert night.wrote("ran") == "x\n"


def test_ending_again_runs_nothing_again(night: Night) -> None:
    asked = {"on_end": ("echo x >> ran",), "on_event": ("echo e >> ran",)}
    night.ends(**asked).end()
    night.ends(**asked)
    for path in night.folder.hooks.iterdir():  # and not after somebody has tidied up
        path.unlink()
    hooks = night.ends(**asked)
    assert sorted(night.wrote("ran").split()) == ["e", "x"]
    assert hooks.summary() == {"pending": 0, "failed": 0, "text": None, "held": None}
    night.status.update(attempt=2)  # brought back after a reboot: that is another end
    night.ends(**asked)
    assert sorted(night.wrote("ran").split()) == ["e", "e", "x", "x"]


def test_a_run_that_never_started_has_an_end(night: Night) -> None:
    night.status = {"state": "failed", "cause": "usage", "cause_text": "no such command", "attempt": None}
    night.ends(on_end=("echo $OVERNIGHT_CAUSE > ran:failure",))
    assert night.wrote("ran") == "usage\n"


def test_end_hooks_run_in_order_and_messages_first(night: Night) -> None:
    night.ends(on_event=("sleep 0.3; echo told >> ran",), on_end=("sleep 0.3; echo one >> ran", "echo two >> ran"))
    assert night.wrote("ran").split() == ["told", "one", "two"]


def test_a_supervisor_that_has_just_come_keeps_the_order(night: Night) -> None:
    asked = {"on_end": ("touch begun; sleep 1; echo one >> ran", "echo two >> ran")}
    hooks = night.hooks(**asked)
    hooks.end()
    drive(hooks, done=(night.work / "begun").exists)
    night.ends(**asked)
    assert night.wrote("ran").split() == ["one", "two"]


def test_one_that_hangs_holds_up_nobody_for_long(night: Night) -> None:
    hooks = night.hooks(on_end=("sleep 30", "touch second", "touch third"), hook_timeout_s=30.0)
    begun = time.monotonic()
    hooks.end()
    assert time.monotonic() - begun < 2.0
    drive(hooks, done=lambda: (night.work / "second").exists() and (night.work / "third").exists())
    assert time.monotonic() - begun < 20.0
    assert hooks.busy()
    [holder] = [int(json.loads(path.read_text())["pid"]) for path in [night.folder.hooks / "end-001-1.claim"]]
    for pid in belonging(night.folder):
        if pid != holder:
            os.kill(pid, signal.SIGKILL)
    drive(hooks)
    assert hooks.failures["end-001-1"].startswith("--on-end hook 1 failed: was ended by SIGKILL")


def test_failures_are_seen_and_told(night: Night) -> None:
    hooks = night.ends(
        on_event=('[ "$OVERNIGHT_EVENT" = end ] || { cat >> told; exit 3; }',),
        on_end=("echo wrong key >&2; exit 7", "no-such-program-xyz", "kill -9 $$"),
    )
    assert night.facts("hook_ended")[0]["ok"] is True
    notes = [fact["text"] for fact in night.facts("note")]
    assert "--on-end hook 1 failed: exited 7: wrong key" in notes
    assert [note for note in notes if note.startswith("--on-end hook 2 failed: exited 127: ") and "not found" in note]
    assert "--on-end hook 3 failed: was ended by SIGKILL" in notes
    assert notes.count("--on-event hook failed: exited 3") == 1  # once, though it failed three times
    told = [json.loads(line) for line in night.wrote("told").splitlines()]
    assert sorted(one["text"] for one in told) == sorted(note for note in notes if "--on-end" in note)
    assert {one["event"] for one in told} == {"hook_failed"}
    summary = hooks.summary()
    assert summary is not None
    assert (summary["pending"], summary["failed"]) == (0, 6)
    again = night.hooks(on_event=("true",), on_end=("a", "b", "c")).summary()
    assert again is not None
    assert again["failed"] == 6


def test_a_hook_may_take_only_so_long(night: Night) -> None:
    asked = "trap '' TERM; (trap '' TERM; echo $$ > inner; sleep 100) & echo begun; sleep 100; sleep 100"
    begun = time.monotonic()
    night.ends(on_end=(asked,), hook_timeout_s=1.0)
    assert 5.5 < time.monotonic() - begun < 40.0  # TERM, five seconds, KILL
    result = night.result("end-001-1")
    assert (result["timed_out"], result["signal"], result["output"]) == (True, "SIGKILL", "begun\n")
    assert [fact["text"] for fact in night.facts("hook_ended")] == ["took longer than 1 s and was ended: begun"]
    assert not belonging(night.folder)


def test_a_hook_that_obeys_term_is_not_waited_for(night: Night) -> None:
    night.ends(on_end=("trap 'echo bye; exit 0' TERM; while :; do sleep 0.05; done 2> sleeps",), hook_timeout_s=0.5)
    result = night.result("end-001-1")
    assert (result["timed_out"], result["exit_code"], result["output"]) == (True, 0, "bye\n")
    assert result["seconds"] < 4.5
    assert night.facts("hook_ended")[0]["ok"] is False


def test_a_flood_of_output_fills_nothing(night: Night) -> None:
    night.ends(
        on_end=("yes | head -c 100M; printf '\\303\\274%.0s' $(seq 999) ; echo end; grep VmHWM /proc/$PPID/status",)
    )
    result = night.result("end-001-1")
    assert result["exit_code"] == 0
    assert len(result["output"].encode()) <= 2000
    assert "�" not in result["output"]
    assert "üüüend\n" in result["output"]
    assert int(result["output"].split()[-2]) < 100_000  # kB, of the runner
    assert sum(path.stat().st_size for path in night.folder.hooks.iterdir()) < 10_000


def test_input_that_nobody_reads_troubles_nobody(night: Night) -> None:
    night.status["last_lines"] = ["x" * 1000] * 1000
    night.ends(on_end=("exec <&-; sleep 0.2; exit 0", "true", "head -c 10 > ten", "wc -c > all"))
    assert [fact["ok"] for fact in night.facts("hook_ended")] == [True] * 4
    assert len(night.wrote("ten")) == 10
    assert int(night.wrote("all")) > 1_000_000


def test_what_stays_in_the_background_is_left_alone(night: Night) -> None:
    night.ends(on_end=("(sleep 3; echo still; echo here > later) & echo $! > pid",))
    assert night.result("end-001-1")["seconds"] < 3.0
    assert alive(int(night.wrote("pid")))
    until(lambda: night.wrote("later") == "here\n", "the background of the hook, unharmed by a closed pipe")


def test_a_working_folder_that_is_gone_is_no_reason(night: Night, tmp_path: Path) -> None:
    night.ends(cwd=str(night.work / "gone"), on_end=(f"pwd > {tmp_path}/where",))
    assert (tmp_path / "where").read_text() == "/\n"


def test_a_command_that_no_shell_can_be_given_is_a_failure(night: Night) -> None:
    hooks = night.ends(on_end=("echo a\0b",))
    assert hooks.failures == {"end-001-1": "--on-end hook failed: it cannot be started: embedded null byte"}


def test_many_events_are_folded(night: Night) -> None:
    hooks = night.hooks(Fold(period_s=3.0), on_event=("cat >> told", "echo x >> other"))
    begun = boot_clock()
    for number in range(100):
        hooks.tell("verdict", boot_clock(), verdict={"rule": "spike", "text": f"spike {number}", "value": float("inf")})
    assert boot_clock() - begun < 3.0
    drive(hooks, done=lambda: len(hooks.live) == 0)
    assert [json.loads(line)["text"] for line in night.wrote("told").splitlines()] == [f"spike {n}" for n in range(4)]
    drive(hooks)
    told = [json.loads(line) for line in night.wrote("told").splitlines()]
    assert boot_clock() - begun >= 3.0
    assert sorted(one["event"] for one in told) == ["folded", *["verdict"] * 4]
    folded = next(one for one in told if one["event"] == "folded")
    assert (folded["count"], folded["kinds"], folded["text"]) == (96, {"verdict": 96}, "96 more: 96 verdict")
    assert folded["last"]["verdict"] == {"rule": "spike", "text": "spike 99", "value": "inf"}
    assert night.wrote("other").split() == ["x"] * 5


def test_an_end_is_not_folded_and_tells_what_was_held(night: Night) -> None:
    asked = {"on_event": ("cat >> told",), "on_end": ("cat > end",)}
    hooks = night.hooks(**asked)
    for number in range(10):
        hooks.tell("restart", boot_clock(), restart={"attempt": number})
    hooks.turn(boot_clock())
    night.ends(**asked)  # by another one: what was held is not forgotten
    told = [json.loads(line) for line in night.wrote("told").splitlines()]
    assert sorted(one["event"] for one in told) == ["end", *["restart"] * 4]
    for end in (json.loads(night.wrote("end")), next(one for one in told if one["event"] == "end")):
        assert (end["folded"]["count"], end["folded"]["last"]["restart"]["attempt"]) == (6, 9)


def test_a_channel_that_hangs_does_not_hold_up_another(night: Night) -> None:
    hooks = night.hooks(Fold(limit=50), on_event=("sleep 60", "echo x >> quick"), hook_timeout_s=60.0)
    begun = time.monotonic()
    for number in range(1, 5):
        hooks.tell("verdict", boot_clock(), verdict={})
        drive(hooks, done=lambda told=number: len(night.wrote("quick").split()) == told)  # type: ignore[misc]
    assert time.monotonic() - begun < 30.0
    for _ in range(5):
        hooks.tell("verdict", boot_clock(), verdict={})
    assert hooks.fold.held is not None  # what cannot be started is counted and not queued for ever
    while hooks.busy():
        for one in all_processes():
            if one.words[:2] == ("sleep", "60") and one.pid in belonging(night.folder):
                os.kill(one.pid, signal.SIGKILL)
        hooks.turn(boot_clock())
        time.sleep(0.02)
    told = [json.loads(path.read_text()) for path in night.folder.hooks.glob("event-*-2.json")]
    assert len(told) == len(night.wrote("quick").split())
    assert sum(one.get("count", 1) for one in told) == 9


def test_old_events_leave_no_files(night: Night) -> None:
    hooks = night.hooks(Fold(limit=99), on_event=("echo x >> ran",))
    hooks.kept = 3
    for _ in range(6):
        hooks.tell("verdict", boot_clock(), verdict={})
        drive(hooks)
    keys = sorted(path.name for path in night.folder.hooks.glob("event-*.claim"))
    assert keys == ["event-000004-1.claim", "event-000005-1.claim", "event-000006-1.claim"]
    hooks = night.hooks(Fold(limit=99), on_event=("echo x >> ran",))
    hooks.tell("verdict", boot_clock(), verdict={})
    drive(hooks)
    assert (night.folder.hooks / "event-000007-1.json").exists()
    assert len(night.wrote("ran").split()) == 7


def test_a_killed_runner_is_a_failure_and_not_another_try(night: Night) -> None:
    hooks = night.hooks(on_end=("echo x >> ran; sleep 60",))
    hooks.end()
    drive(hooks, done=lambda: night.wrote("ran") != "")
    os.kill(json.loads((night.folder.hooks / "end-001-1.claim").read_text())["pid"], signal.SIGKILL)
    hooks = night.ends(on_end=("echo x >> ran; sleep 60",))
    assert hooks.summary() == {
        "pending": 0,
        "failed": 1,
        "text": "--on-end hook failed: its runner was killed",
        "held": None,
    }
    assert night.wrote("ran") == "x\n"
    for pid in belonging(night.folder):
        os.kill(pid, signal.SIGKILL)


def test_a_hook_that_turned_the_machine_off_has_not_failed(night: Night) -> None:
    spec = {"on_end": ("echo x >> ran",)}
    night.hooks(**spec)
    (night.folder.hooks / "end-001-1.json").write_text('{"event": "end"}')
    claim = {"pid": 1, "start_ticks": 1, "boot_id": "another boot"}
    (night.folder.hooks / "end-001-1.claim").write_text(json.dumps(claim))
    hooks = night.ends(**spec)
    assert hooks.summary() == {"pending": 0, "failed": 0, "text": None, "held": None}
    assert night.facts("hook_ended")[0]["text"] == "the machine was started anew while it ran"
    assert not night.wrote("ran")


def test_a_runner_that_cannot_start_is_tried_again_and_then_told(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/false")
        hooks = night.hooks(on_end=("echo x >> ran",))
        hooks.again_s = 0.01
        hooks.end()
        drive(hooks, done=lambda: hooks.live["end-001-1"].tries >= 2)
    drive(hooks)
    assert night.wrote("ran") == "x\n"
    night.status["attempt"] = 2
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    hooks.end()
    drive(hooks)
    text = "--on-end hook failed: its runner could not be started: No such file or directory"
    assert hooks.summary() == {"pending": 0, "failed": 1, "text": text, "held": None}


def test_a_payload_that_cannot_be_written_is_tried_again(night: Night) -> None:
    hooks = night.hooks(on_end=("echo x >> ran",))
    hooks.again_s = 0.05
    night.folder.hooks.rmdir()
    night.folder.hooks.write_text("in the way")
    hooks.end()
    hooks.turn(boot_clock())
    assert hooks.busy()
    night.folder.hooks.unlink()
    drive(hooks)
    assert night.wrote("ran") == "x\n"


def test_clearing_a_run_spares_its_hooks(night: Night) -> None:
    env = {**os.environ, "OVERNIGHT_RUN_DIR": str(night.folder.path)}
    training = subprocess.Popen(["sleep", "60"], env=env)
    hooks = night.hooks(on_end=("(sleep 2; echo later >> ran) & echo begun >> ran; sleep 1; echo done >> ran",))
    hooks.end()
    drive(hooks, done=lambda: night.wrote("ran") != "")
    until(lambda: [one.pid for one in clearing.marked(night.folder.path)] == [training.pid], "only the training")
    cleared = clearing.kill_all([], run_dir=night.folder.path)
    assert [one.pid for one in cleared.removed] == [training.pid]
    training.wait()
    drive(hooks)
    assert night.result("end-001-1")["exit_code"] == 0
    until(lambda: night.wrote("ran").split() == ["begun", "done", "later"], "all of the hook")


OWNER = """
import json, sys, time
from pathlib import Path
import msgspec
from overnight.clocks import boot_clock
from overnight.facts import Facts
from overnight.folder import RunFolder
from overnight.hooks.starting import Hooks
from overnight.spec import RunSpec
folder = RunFolder(Path(sys.argv[1]))
spec = msgspec.convert(json.loads(folder.run_json.read_text())["spec"], RunSpec)
status = {"state": "finished", "cause": "completed", "attempt": 1}
print("ready", flush=True)
sys.stdin.readline()
hooks = Hooks(folder, spec, Facts(folder), lambda: status)
hooks.end()
print("going", flush=True)
while hooks.busy():
    hooks.turn(boot_clock())
    time.sleep(0.005)
print("over", flush=True)
"""


def owner(night: Night) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", OWNER, str(night.folder.path)]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)


@pytest.mark.parametrize("seed", range(6))
def test_every_hook_runs_once_whoever_is_killed(night: Night, seed: int) -> None:
    """Five trials each: two owners are killed at random moments, the third one sees it through."""
    dice = random.Random(seed)
    marker = 'echo "$OVERNIGHT_EVENT" >> {}; sleep 0.05'
    night.spec(on_end=(marker.format("one"), marker.format("two")), on_event=(marker.format("told"),))
    for trial in range(1, 6):
        owners = [owner(night) for _ in range(3)]
        for one in owners[:2]:
            assert one.stdin is not None
            assert one.stdout is not None
            assert one.stdout.readline() == "ready\n"
            one.stdin.write("go\n")
            time.sleep(dice.uniform(0.0, 0.25))
            one.kill()
            one.communicate()
        last, _ = owners[2].communicate("go\n", timeout=60)
        assert last.split()[-1] == "over", last
        assert [night.wrote(name) for name in ("one", "two", "told")] == ["end\n"] * 3, f"trial {trial}"
        ended = [fact["key"] for fact in night.facts("hook_ended") if fact["ok"]]
        assert sorted(ended) == ["end-001-1", "end-001-2", "event-end-001-1"]
        for path in (*night.folder.hooks.iterdir(), *night.work.iterdir(), night.folder.journal):
            path.unlink()

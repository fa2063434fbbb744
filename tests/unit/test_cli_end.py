"""``stop``, ``wait`` and ``clean`` on hand-made folders: exit codes, requests, and what must never be removed."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from overnight import cli, client
from overnight.cli.notice import StopNews
from overnight.cli.page import status_text
from overnight.clocks import boot_clock
from overnight.folder import Journal, RunFolder, write_json
from overnight.processes import boot_id


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OVERNIGHT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def me() -> dict[str, Any]:
    after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return {"pid": os.getpid(), "start_ticks": int(after_name[19]), "boot_id": boot_id()}


def make(home: Path, name: str, status: dict[str, Any], *, kept: bool = False) -> RunFolder:
    folder = RunFolder(home / "runs" / name)
    folder.create()
    write_json(folder.run_json, {"spec": {}})
    write_json(folder.status_json, status)
    if kept:
        write_json(folder.shim_json, {"boot_id": boot_id(), "shim": me()})
    return folder


@pytest.mark.parametrize(
    ("state", "cause", "code"),
    [
        ("finished", "completed", 0),
        ("finished", "bad_teardown", 0),
        ("stopped", "user", 103),
        ("stopped", "nonfinite", 104),
        ("stopped", "divergence", 104),
        ("stopped", "a_rule_of_the_user", 104),
        ("stopped", "wall_clock", 105),
        ("stopped", "preempted", 107),
        ("failed", "crash", 100),
        ("gave_up", "crash", 106),
    ],
)
def test_wait_exits_by_the_table(
    home: Path, state: str, cause: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    make(home, "r", {"state": state, "cause": cause, "cause_text": "because"})
    assert cli.main(["wait", "r"]) == code
    advice = "  see `overnight logs r -n 20`\n" if state in ("failed", "gave_up") else ""
    assert capsys.readouterr().out == f"r {state} ({cause}): because\n{advice}"


@pytest.mark.parametrize(
    ("how", "code"), [({"exit_code": 7}, 7), ({"signal": "SIGSEGV"}, 139), ({}, 100), ({"signal": "SIGWHAT"}, 100)]
)
def test_the_commands_own_exit_code_is_handed_on(home: Path, how: dict[str, Any], code: int) -> None:
    make(home, "r", {"state": "failed", "cause": "crash", **how})
    assert cli.main(["wait", "--pass-exit-code", "--json"]) == code


def test_wait_gives_up_with_101(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(home, "r", {"state": "running"}, kept=True)
    assert cli.main(["wait", "--timeout", "0.05s"]) == 101
    assert "still running" in capsys.readouterr().err


def test_wait_may_only_look(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(home, "r", {"state": "running"}, kept=True)
    assert cli.main(["wait", "--timeout", "0"]) == 101
    assert "still running" in capsys.readouterr().err


def test_a_wait_for_a_run_that_nobody_can_keep_says_why(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make(home, "r", {"state": "running"})
    write_json(folder.shim_json, {"boot_id": boot_id(), "shim": me(), "unguarded": True})
    folder.supervisor_log.write_text('{"error": "the disk is odd"}\n')
    for words, way_out in ((["wait", "--timeout", "3.5s"], True), (["stop", "--now"], False)):
        later = threading.Timer(3.0, lambda: write_json(folder.status_json, {"state": "stopped", "cause": "user"}))
        if words[0] == "stop":
            later.start()
        assert cli.main(words) in (0, 101)
        said = capsys.readouterr().err
        assert "no supervisor of r can live, so nothing is judged or stopped" in said
        assert f"{folder.supervisor_log} ends: the disk is odd" in said
        assert ("overnight stop r --now" in said) is way_out
        assert said.count("no supervisor") == 1
    later.join()


def test_stop_says_what_has_been_asked_of_whom(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make(home, "r", {"state": "stopping"}, kept=True)
    write_json(folder.run_json, {"spec": {"grace_s": 60.0}})
    folder.attempt(1).path.mkdir()
    stop = {"rung": "asked", "signal": 2, "signalled": True, "targets": [[77, 1, "x"]], "began": boot_clock()}
    write_json(folder.attempt(1).stop_json, stop)
    ended = {"state": "stopped", "cause": "user", "signal": "SIGKILL"}
    Journal(folder.journal).append("killed", 0.0, reason="grace of 12 s ran out", seconds=12.2)
    later = threading.Timer(0.5, lambda: write_json(folder.status_json, ended))
    later.start()
    assert cli.main(["stop"]) == 0
    later.join()
    said = capsys.readouterr()
    asked = "asked with SIGINT (pid 77); killed in 60 s unless it saves; Ctrl-C leaves, the stop goes on"
    assert said.err == f"overnight: {asked}; `overnight stop --now` kills at once\n"
    assert said.out == "r stopped (user)\n  killed after 12s: grace of 12 s ran out\n"


def test_each_rung_is_told_once_with_what_comes_next(home: Path) -> None:
    folder = make(home, "r", {"state": "stopping"})
    news = StopNews(folder)
    assert news.look() is None
    folder.attempt(1).path.mkdir()
    stop: dict[str, Any] = {"rung": "asked", "signal": 15, "signalled": False, "targets": []}
    seen = []
    for change in ({}, {"signalled": True}, {}, {"rung": "other"}, {"rung": "kill"}, {"rung": 7}, {"rung": []}):
        stop |= change
        write_json(folder.attempt(1).stop_json, stop)
        seen.append(news.look())
    assert seen == [
        None,
        ("asked with SIGTERM", "the other signal, SIGINT"),
        None,
        ("SIGINT was sent as well", "kill"),
        ("killed", ""),
        None,
        None,
    ]


def test_stop_of_an_ended_run_is_0_and_asks_for_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make(home, "r", {"state": "failed", "cause": "crash"})
    assert cli.main(["stop", "r"]) == 0
    assert "failed (crash)" in capsys.readouterr().out
    assert list(folder.inbox.iterdir()) == []


def test_stop_without_waiting_leaves_one_request(home: Path) -> None:
    folder = make(home, "r", {"state": "running"}, kept=True)
    assert cli.main(["stop", "--no-wait", "--now"]) == 0
    (path,) = folder.inbox.iterdir()
    assert json.loads(path.read_text())["now"] is True


def test_stop_blocks_until_the_end(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make(home, "r", {"state": "running"}, kept=True)
    seen: list[int] = []

    def end() -> None:
        seen.append(len(list(folder.inbox.iterdir())))
        write_json(folder.status_json, {"state": "stopped", "cause": "user", "step": 5})

    later = threading.Timer(0.2, end)
    later.start()
    assert cli.main(["stop"]) == 0
    later.join()
    assert seen == [1]
    assert capsys.readouterr().out == "r stopped (user), at step 5\n"


# -- several runs, hooks ---------------------------------------------------------------------------------------------


def test_waiting_for_several_says_how_each_ended_and_gives_the_first_code(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(home, "good", {"state": "finished", "cause": "completed"})
    make(home, "nan", {"state": "stopped", "cause": "nonfinite"})
    make(home, "limit", {"state": "stopped", "cause": "wall_clock"})
    assert cli.main(["wait", "good", "nan", "limit", "good"]) == 104
    assert capsys.readouterr().out.splitlines() == [
        "good finished (completed)",
        "nan stopped (nonfinite)",
        "limit stopped (wall_clock)",
    ]
    assert cli.main(["wait", "limit", "nan", "--json"]) == 105
    assert [json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()] == ["limit", "nan"]
    assert cli.main(["wait", "good", "good"]) == 0
    assert cli.main(["wait", "good", "nosuch"]) == 102


def test_waiting_for_several_has_one_timeout(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(home, "good", {"state": "finished", "cause": "completed"})
    make(home, "live", {"state": "running"}, kept=True)
    assert cli.main(["wait", "good", "live", "--timeout", "0.1s"]) == 101
    said = capsys.readouterr()
    assert said.out == "good finished (completed)\n"
    assert "live is still running" in said.err


def test_waiting_for_any_gives_the_code_of_the_first(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(home, "over", {"state": "failed", "cause": "crash"})
    slow, quick = (make(home, name, {"state": "running"}, kept=True) for name in ("slow", "quick"))
    later = threading.Timer(0.3, lambda: write_json(quick.status_json, {"state": "stopped", "cause": "wall_clock"}))
    later.start()
    assert cli.main(["wait", "--any"]) == 105, "ended runs are not meant without a name"
    later.join()
    assert capsys.readouterr().out == "quick stopped (wall_clock)\n"
    assert cli.main(["wait", "--any", "slow", "over"]) == 100
    assert cli.main(["wait", "--any", "slow", "--timeout", "0.05s"]) == 101
    write_json(slow.status_json, {"state": "finished", "cause": "completed"})
    assert cli.main(["wait", "--any"]) == 102
    assert "no run is live" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("state", "cause", "code"), [("finished", "completed", 108), ("stopped", "user", 103), ("failed", "crash", 100)]
)
def test_a_failed_hook_is_told_and_a_finished_run_with_one_is_not_0(
    home: Path, state: str, cause: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    hooks = {"pending": 0, "failed": 1, "text": "./upload.sh exited with code 7"}
    make(home, "r", {"state": state, "cause": cause, "exit_code": 0, "hooks": hooks})
    assert cli.main(["wait", "r"]) == code
    assert "\n  a hook failed: ./upload.sh exited with code 7\n" in capsys.readouterr().out
    assert cli.main(["wait", "r", "--pass-exit-code"]) == 0


def test_hooks_that_nobody_runs_any_more_are_told(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(home, "r", {"state": "finished", "cause": "completed", "hooks": {"pending": 2, "failed": 0, "text": None}})
    assert cli.main(["ls"]) == 0  # `wait` and `status` would have them run
    assert "unkept" not in capsys.readouterr().out
    one = client.status(client.find(str(home), "r"))
    assert one["stale"]
    page = status_text(one, now=0.0, colours=False, width=200)
    assert "2 hooks are not known to have ended; a new supervisor looks after that" in page


# -- clean -----------------------------------------------------------------------------------------------------------


def test_clean_removes_the_folder_and_leaves_a_log_elsewhere(home: Path, tmp_path: Path) -> None:
    outside = tmp_path / "train.log"
    outside.write_text("kept")
    folder = make(home, "r", {"state": "finished", "log": str(outside)})
    assert cli.main(["clean", "r"]) == 0
    assert not folder.path.exists()
    assert outside.read_text() == "kept"
    assert list((home / "runs").iterdir()) == []


@pytest.mark.parametrize("state", ["pending", "starting", "running", "stopping", "backoff"])
@pytest.mark.parametrize("kept", [True, False])
def test_clean_refuses_what_is_not_settled_and_then_removes_nothing(
    home: Path, state: str, *, kept: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    live = make(home, "live", {"state": state}, kept=kept)
    done = make(home, "done", {"state": "finished"})
    assert cli.main(["clean", "done", "live"]) == 2
    assert "overnight stop live" in capsys.readouterr().err
    assert live.path.exists()
    assert done.path.exists()
    assert cli.main(["clean", "--all"]) == 0
    assert live.path.exists()
    assert not done.path.exists()
    assert "1 removed, 1 kept" in capsys.readouterr().out


def test_clean_wants_names_or_all(home: Path) -> None:
    make(home, "r", {"state": "finished"})
    assert cli.main(["clean"]) == cli.main(["clean", "r", "--all"]) == 2
    assert cli.main(["clean", "nosuch"]) == 102
    assert (home / "runs" / "r").exists()


def test_clean_takes_no_beginning_of_a_name(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make(home, "night", {"state": "finished"})
    assert cli.main(["clean", "nig"]) == 2
    assert "the whole name is needed" in capsys.readouterr().err
    assert folder.path.exists()


def test_clean_by_force_takes_what_nobody_can_settle_but_nothing_that_lives(home: Path) -> None:
    folder = make(home, "r", {"state": "running"}, kept=True)
    assert cli.main(["clean", "r", "--force"]) == 2
    write_json(folder.shim_json, {"boot_id": boot_id(), "shim": {**me(), "start_ticks": 1}})
    folder.attempt(1).path.mkdir()
    write_json(folder.attempt(1).started_json, me())
    assert cli.main(["clean", "r", "--force"]) == 2
    folder.attempt(1).started_json.unlink()
    assert cli.main(["clean", "r"]) == cli.main(["clean", "--all", "--force"]) == 2
    assert folder.path.exists()
    assert cli.main(["clean", "r", "--force"]) == 0
    assert not folder.path.exists()


def test_a_damaged_run_goes_only_by_name_and_only_if_nothing_of_it_lives(home: Path) -> None:
    folder = make(home, "bad", {"state": "flying"})
    assert cli.main(["clean", "--all"]) == 0
    assert folder.path.exists()
    attempt = folder.attempt(1)
    attempt.path.mkdir()
    write_json(attempt.started_json, me())
    assert cli.main(["clean", "bad"]) == 2
    write_json(attempt.started_json, {**me(), "start_ticks": 1})
    assert cli.main(["clean", "bad"]) == 0
    assert not folder.path.exists()


def test_a_link_to_a_run_is_removed_and_not_what_it_points_to(home: Path, tmp_path: Path) -> None:
    folder = make(home, "r", {"state": "finished"})
    folder.path.rename(tmp_path / "elsewhere")
    folder.path.symlink_to(tmp_path / "elsewhere")
    assert cli.main(["clean", "r"]) == 0
    assert not folder.path.is_symlink()
    assert (tmp_path / "elsewhere" / "status.json").exists()


def test_an_interrupted_removal_is_finished_later(home: Path) -> None:
    (home / "runs" / ".trash-old-1" / "deep").mkdir(parents=True)
    assert cli.main(["clean", "--all"]) == 0
    assert list((home / "runs").iterdir()) == []

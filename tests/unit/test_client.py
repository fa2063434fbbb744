"""Client: runs are listed, found and read as they are, damaged and abandoned ones included, from hand-made folders."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from overnight import client, kept, states
from overnight import folder as folders
from overnight.errors import FolderError, NoSuchRunError, UsageError, WaitTimeoutError
from overnight.folder import RunFolder, machine_id, write_json
from overnight.processes import boot_id

GONE = {"pid": 1 << 22, "start_ticks": 1}  # above the kernel's highest pid


def me() -> dict[str, int]:
    after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return {"pid": os.getpid(), "start_ticks": int(after_name[19])}


def make(
    home: Path, name: str, status: Any = None, *, keepers: dict[str, Any] | None = None, **asked: Any
) -> RunFolder:
    """Write a run folder as launch, supervisor and shim would."""
    folder = RunFolder(home / "runs" / name)
    folder.create()
    write_json(folder.run_json, {"name": name, "spec": {"log": str(folder.output_log)}, **asked})
    if status is not None:
        write_json(folder.status_json, {"name": name, **status})
    if keepers is not None:
        write_json(folder.shim_json, {"boot_id": boot_id(), "unguarded": False, **keepers})
    return folder


# -- the house -------------------------------------------------------------------------------------------------------


def test_words_written_twice_agree() -> None:
    assert client.ENDED == states.ENDED
    assert set(states.TRANSITIONS) == client.STATES


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"OVERNIGHT_HOME": "/data/on", "XDG_STATE_HOME": "/x"}, "/data/on"),
        ({"OVERNIGHT_HOME": "~/x"}, "/h/x"),
        ({"OVERNIGHT_HOME": "here"}, "/here"),
        ({"OVERNIGHT_HOME": "", "XDG_STATE_HOME": "/x"}, "/x/overnight"),
        ({"XDG_STATE_HOME": "relative/is/ignored"}, "/h/.local/state/overnight"),
        ({}, "/h/.local/state/overnight"),
    ],
)
def test_where_runs_are_kept(environ: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/h")
    monkeypatch.chdir("/")
    assert client.find_home(environ) == expected


def test_an_unknown_home_is_one_sentence() -> None:
    with pytest.raises(UsageError, match="set OVERNIGHT_HOME"):
        client.find_home({"OVERNIGHT_HOME": "~nobody-of-that-name/x"})


# -- listing and finding ---------------------------------------------------------------------------------------------


def test_no_home_is_no_run(tmp_path: Path) -> None:
    home = str(tmp_path / "none")
    assert client.list_runs(home) == []
    for name in (None, "x"):
        with pytest.raises(NoSuchRunError, match="overnight "):
            client.find(home, name)


def test_runs_are_listed_oldest_first_and_strangers_are_not(tmp_path: Path) -> None:
    for name, at in (("b", "2026-01-02"), ("a", "2026-01-03"), ("c", "2026-01-01")):
        make(tmp_path, name, {"state": "finished", "created_at": f"{at}T00:00:00Z"})
    (tmp_path / "runs" / ".trash-x-1").mkdir()
    (tmp_path / "runs" / "note.txt").write_text("")
    assert [one["name"] for one in client.list_runs(str(tmp_path))] == ["c", "b", "a"]


def test_names_match_exactly_or_by_a_unique_beginning(tmp_path: Path) -> None:
    for name in ("night", "night-2", "noon"):
        make(tmp_path, name)
    home = str(tmp_path)
    assert client.find(home, "night").name == "night"
    assert client.find(home, "no").name == "noon"
    with pytest.raises(UsageError, match="night, night-2 or noon"):
        client.find(home, "n")
    for name in ("x", "", "../runs/noon", "zzz/"):
        with pytest.raises(NoSuchRunError, match=r"overnight ls"):
            client.find(home, name)


def test_where_something_is_lost_the_whole_name_is_asked_for(tmp_path: Path) -> None:
    make(tmp_path, "night")
    home = str(tmp_path)
    assert client.find(home, "night", whole=True).name == "night"
    with pytest.raises(UsageError, match="'nig' may be night; the whole name is needed here"):
        client.find(home, "nig", whole=True)
    with pytest.raises(NoSuchRunError):
        client.find(home, "x", whole=True)


def test_without_a_name_the_latest_run_is_meant(tmp_path: Path) -> None:
    make(tmp_path, "z", created_at="2026-01-01T00:00:00Z")
    make(tmp_path, "a", created_at="2026-01-02T00:00:00Z")
    assert client.find(str(tmp_path), None).name == "a"


def test_stop_without_a_name_needs_exactly_one_live_run(tmp_path: Path) -> None:
    home = str(tmp_path)
    make(tmp_path, "over", {"state": "stopped"}, created_at="2027")
    with pytest.raises(NoSuchRunError, match="no run is live"):
        client.find(home, None, for_stop=True)
    make(tmp_path, "one", {"state": "running"}, keepers={"shim": me()})
    assert client.find(home, None, for_stop=True).name == "one"
    make(tmp_path, "two", {"state": "starting"}, keepers={"shim": me()})
    with pytest.raises(UsageError, match=r"2 runs are live \(one or two\)"):
        client.find(home, None, for_stop=True)


# -- reading one -----------------------------------------------------------------------------------------------------

PROMISED = (
    "name state cause cause_text attempt pid step loss loss_avg tokens_per_second tflops mfu mfu_avg flops_per_token "
    "peak_flops peak_source convention params params_source devices started_at active_s eta_s log exit_code signal "
    "verdicts supervisor shim checkpoint attempts"
)


@pytest.mark.parametrize("status", [None, {"state": "running", "loss": "nan", "later_field": [1]}])
def test_every_promised_field_is_there_whatever_was_written(tmp_path: Path, status: Any) -> None:
    seen = client.status(make(tmp_path, "r", status))
    assert set(PROMISED.split()) <= set(seen)
    assert seen["verdicts"] == seen["attempts"] == []
    assert seen["state"] == ("pending" if status is None else "running")
    assert seen["supervisor"] == seen["shim"] == {"pid": None, "alive": False}
    assert json.dumps(seen, allow_nan=False)


def test_a_newborn_run_is_not_called_abandoned_and_an_old_one_is(tmp_path: Path) -> None:
    folder = make(tmp_path, "r")
    assert client.status(folder)["stale"] is False
    os.utime(folder.path, (1, 1))
    assert client.status(folder)["stale"] is True


@pytest.mark.parametrize(
    ("keepers", "shim", "supervisor", "stale"),
    [
        ({"shim": me(), "supervisor": me()}, True, True, False),
        ({"shim": me(), "supervisor": GONE}, True, False, False),
        ({"shim": GONE, "guard": me()}, True, False, False),
        ({"shim": None, "guard": me()}, True, False, False),
        ({"shim": GONE, "guard": GONE, "supervisor": me()}, False, True, False),
        ({"shim": GONE, "guard": GONE, "supervisor": GONE}, False, False, True),
        ({"shim": {"pid": os.getpid(), "start_ticks": 1}}, False, False, True),  # a reused pid
        ({"shim": {"pid": "x", "start_ticks": []}, "supervisor": 7}, False, False, True),
    ],
)
def test_who_keeps_a_run(tmp_path: Path, keepers: dict[str, Any], *, shim: bool, supervisor: bool, stale: bool) -> None:
    seen = client.status(make(tmp_path, "r", {"state": "running"}, keepers=keepers))
    assert (seen["shim"]["alive"], seen["supervisor"]["alive"], seen["stale"]) == (shim, supervisor, stale)
    assert seen["state"] == "running"


def test_a_status_that_a_living_supervisor_writes_no_more_is_old(tmp_path: Path) -> None:
    assert kept.LEAST_FREE == folders.FULL_BYTES
    keepers = {"shim": me(), "supervisor": me()}
    for age_s, state, stale in ((20, "running", False), (120, "running", True), (120, "finished", False)):
        status = {"state": state, "updated_at": folders.utc(time.time() - age_s)}
        seen = client.status(make(tmp_path, f"r{age_s}{state}", status, keepers=keepers))
        assert seen["stale"] is stale
        assert (seen["stale_text"] is not None) is stale
        if stale:
            assert str(status["updated_at"]) in seen["stale_text"]


def test_a_status_written_over_the_old_one_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    write_json(path, {"state": "running", "text": "x" * 900})
    folders.write_in_place(path, b'{"state": "finished"}\n')
    assert client.read_object(str(path)) == {"state": "finished"}
    with pytest.raises(OSError, match="No space"):
        folders.write_in_place(path, b"x" * (1 << 20))
    assert client.read_object(str(path)) == {"state": "finished"}


def test_a_zombie_is_not_alive() -> None:
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    who = {"pid": pid, "start_ticks": int(after_name[19])}
    assert after_name[0] == "Z"
    assert client.alive(who) is False
    os.waitpid(pid, 0)
    assert client.alive(who) is False
    assert client.alive(me()) is True


def test_unguarded_is_handed_on(tmp_path: Path) -> None:
    assert client.status(make(tmp_path, "r", {"state": "running"}, keepers={"shim": me(), "unguarded": True}))[
        "unguarded"
    ]


def test_a_run_of_an_earlier_boot_has_failed_and_an_ended_one_stays_as_it_was(tmp_path: Path) -> None:
    before = {"shim": me(), "boot_id": "another"}
    lost = client.status(make(tmp_path, "lost", {"state": "running"}, keepers=before))
    assert (lost["state"], lost["cause"], lost["stale"]) == ("failed", "host_rebooted", True)
    done = client.status(make(tmp_path, "done", {"state": "finished", "cause": "completed"}, keepers=before))
    assert (done["state"], done["cause"], done["stale"]) == ("finished", "completed", False)


@pytest.mark.parametrize(("machine", "foreign"), [("other", True), (machine_id(), False)])
def test_a_run_kept_on_another_machine_is_not_judged(tmp_path: Path, machine: str, *, foreign: bool) -> None:
    folder = make(tmp_path, "far", {"state": "running"}, keepers={"shim": me(), "boot_id": "another"})
    write_json(folder.owner / "0001", {"machine_id": machine})
    seen = client.status(folder)
    assert (seen["foreign"], seen["stale"]) == (foreign, not foreign)
    assert seen["state"] == ("running" if foreign else "failed")


def _to_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _to_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: path.write_text('{"state": "run'),
    "empty": lambda path: path.write_text(""),
    "no object": lambda path: path.write_text("[1]"),
    "bytes": lambda path: path.write_bytes(b"\xff\xfe"),
    "deep": lambda path: path.write_text("[" * 100_000),
    "unknown state": lambda path: path.write_text('{"state": "flying"}'),
    "no state": lambda path: path.write_text("{}"),
    "wrong type": lambda path: path.write_text('{"state": "running", "step": "three"}'),
    "bool step": lambda path: path.write_text('{"state": "running", "step": true}'),
    "wrong loss": lambda path: path.write_text('{"state": "running", "loss": "low"}'),
    "wrong verdicts": lambda path: path.write_text('{"state": "running", "verdicts": [3]}'),
    "state list": lambda path: path.write_text('{"state": ["running"]}'),
    "a folder": _to_folder,
    "a fifo": _to_fifo,
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_status_is_told_and_the_others_are_shown(tmp_path: Path, how: str) -> None:
    make(tmp_path, "good", {"state": "finished"})
    folder = make(tmp_path, "bad", {"state": "running"})
    DAMAGE[how](folder.status_json)
    seen = {one["name"]: one for one in client.list_runs(str(tmp_path))}
    assert seen["good"]["state"] == "finished"
    assert seen["bad"]["state"] == "damaged"
    assert str(folder.path) in seen["bad"]["cause_text"]
    assert seen["bad"]["log"] == str(folder.output_log)


def test_a_folder_with_nothing_in_it_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "runs" / "empty").mkdir(parents=True)
    (one,) = client.list_runs(str(tmp_path), full=True)
    assert one["state"] == "damaged"
    assert "neither status.json nor run.json" in one["cause_text"]


def test_a_damaged_shim_json_leaves_the_rest_readable(tmp_path: Path) -> None:
    folder = make(tmp_path, "r", {"state": "running", "step": 7})
    folder.shim_json.write_text("{")
    assert (client.status(folder)["step"], client.status(folder)["state"]) == (7, "running")


def test_nan_written_by_hand_becomes_a_word(tmp_path: Path) -> None:
    folder = make(tmp_path, "r", {"state": "running"})
    folder.status_json.write_text('{"state": "running", "loss": NaN, "mfu": -Infinity}')
    seen = client.status(folder)
    assert (seen["loss"], seen["mfu"]) == ("nan", "-inf")


def test_a_large_status_is_read_whole(tmp_path: Path) -> None:
    note = "x" * 300_000
    assert client.status(make(tmp_path, "r", {"state": "running", "notes": [note]}))["notes"] == [note]


def test_a_renamed_folder_has_its_new_name_and_a_removed_one_is_no_run(tmp_path: Path) -> None:
    folder = make(tmp_path, "old", {"state": "finished"})
    folder.path.rename(tmp_path / "runs" / "new")
    assert client.list_runs(str(tmp_path))[0]["name"] == "new"
    with pytest.raises(NoSuchRunError):
        client.status(folder)


# -- asking and waiting ----------------------------------------------------------------------------------------------


def test_a_stop_request_is_one_file_in_the_inbox(tmp_path: Path) -> None:
    folder = make(tmp_path, "r", {"state": "running"})
    client.request_stop(folder, now=True)
    (path,) = folder.inbox.iterdir()
    asked = json.loads(path.read_text())
    assert (asked["kind"], asked["by"], asked["now"]) == ("stop", "user", True)
    assert abs(asked["at"] - time.time()) < 60


def test_waiting_returns_at_the_end_at_once_and_on_the_publication(tmp_path: Path) -> None:
    folder = make(tmp_path, "r", {"state": "running"}, keepers={"shim": me()})
    write_end = threading.Timer(0.2, lambda: write_json(folder.status_json, {"state": "stopped", "cause": "user"}))
    write_end.start()
    began = time.monotonic()
    assert client.wait(folder, 30)["cause"] == "user"
    assert time.monotonic() - began < client.RECHECK_S  # woken, not by the timer
    write_end.join()
    assert client.wait(folder, 0.0001)["state"] == "stopped"


def test_waiting_gives_up_in_time(tmp_path: Path) -> None:
    folder = make(tmp_path, "r", {"state": "running"}, keepers={"shim": me()})
    with pytest.raises(WaitTimeoutError, match=r"still running after 0\.05 s"):
        client.wait(folder, 0.05)


def test_waiting_asks_for_help_once_when_nobody_keeps_the_run(tmp_path: Path) -> None:
    folder = make(tmp_path, "r", {"state": "running"}, keepers={"shim": GONE})
    calls = []

    def settle() -> None:
        calls.append(1)
        write_json(folder.status_json, {"state": "failed", "cause": "unknown_kill"})

    assert client.wait(folder, 30, on_stale=settle)["cause"] == "unknown_kill"
    assert calls == [1]


def test_waiting_for_a_damaged_run_that_nobody_can_mend_ends_with_its_sentence(tmp_path: Path) -> None:
    folder = make(tmp_path, "r", {"state": "flying"}, keepers={"shim": GONE})
    with pytest.raises(FolderError, match="flying"):
        client.wait(folder, 30)


def test_waiting_until_something_other_than_the_end(tmp_path: Path) -> None:
    folder = make(tmp_path, "r", {"state": "running", "records": 1}, keepers={"shim": me()})
    assert client.wait(folder, 30, until=lambda seen: bool(seen.get("records")))["state"] == "running"


# -- hooks at the end ------------------------------------------------------------------------------------------------


def hooks(pending: int = 0, failed: int = 0) -> dict[str, Any]:
    return {"hooks": {"pending": pending, "failed": failed, "text": None}}


def test_waiting_goes_on_while_hooks_are_pending_and_somebody_runs_them(tmp_path: Path) -> None:
    ended = {"state": "finished", "cause": "completed"}
    folder = make(tmp_path, "r", {**ended, **hooks(pending=1)}, keepers={"shim": me(), "supervisor": me()})
    done = threading.Timer(0.3, lambda: write_json(folder.status_json, {**ended, **hooks(failed=1)}))
    done.start()
    assert client.hooks_failed(client.wait(folder, 1.5)) == 1
    done.join()


@pytest.mark.parametrize("limit_s", [0.05, None])
def test_a_pending_hook_holds_nobody_for_ever(tmp_path: Path, limit_s: float | None) -> None:
    """Not after the time is up, and not if nobody lives that would run it."""
    keepers = {"shim": me(), "supervisor": me()} if limit_s else {"shim": GONE, "supervisor": GONE}
    folder = make(tmp_path, "r", {"state": "stopped", **hooks(pending=2)}, keepers=keepers)
    began = time.monotonic()
    assert client.hooks_left(client.wait(folder, limit_s)) == 2
    assert time.monotonic() - began < 4.0


def test_a_shim_without_a_supervisor_is_not_waited_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overnight.patience.HOOKS_UNKEPT_S", 0.2)
    folder = make(tmp_path, "r", {"state": "stopped", **hooks(pending=1)}, keepers={"shim": me(), "supervisor": GONE})
    assert client.wait(folder, 60)["state"] == "stopped"


def test_an_adopting_supervisor_runs_the_hooks_too(tmp_path: Path) -> None:
    """It stands in status.json only, and is believed if its command line says that it is one of this run."""
    folder = make(tmp_path, "r", {"state": "stopped", **hooks(pending=1), "supervisor": {"pid": os.getpid()}})
    assert client.over(client.status(folder)), "this process is no supervisor"


# -- several runs ----------------------------------------------------------------------------------------------------


def test_the_first_run_to_end_is_returned(tmp_path: Path) -> None:
    folders = [make(tmp_path, name, {"state": "running"}, keepers={"shim": me()}) for name in ("a", "b", "c")]
    later = threading.Timer(0.2, lambda: write_json(folders[1].status_json, {"state": "stopped"}))
    later.start()
    began = time.monotonic()
    folder, one = client.wait_any(folders, 30, on_stale={}, until={})
    assert (folder.name, one["state"]) == ("b", "stopped")
    assert time.monotonic() - began < client.RECHECK_S
    later.join()
    write_json(folders[0].status_json, {"state": "finished"})
    assert client.wait_any(folders, 30, on_stale={}, until={})[0].name == "a"
    with pytest.raises(WaitTimeoutError, match=r"^c is still running after 0\.05 s"):
        client.wait_any(folders[2:], 0.05, on_stale={}, until={})


def test_a_listing_sees_what_changes_and_reads_ended_runs_once(tmp_path: Path) -> None:
    done = make(tmp_path, "done", {"state": "finished", "created_at": "2026-01-01"})
    live = make(tmp_path, "live", {"state": "running", "created_at": "2026-01-02"}, keepers={"shim": me()})
    listing = client.Listing(str(tmp_path))
    first = listing.look()
    assert [one["state"] for one in first] == ["finished", "running"]
    write_json(live.status_json, {"state": "running", "step": 7, "created_at": "2026-01-02"})
    make(tmp_path, "new", {"state": "starting", "created_at": "2026-01-03"}, keepers={"shim": me()})
    second = listing.look()
    assert [(one["name"], one["step"]) for one in second] == [("done", None), ("live", 7), ("new", None)]
    assert second[0] is first[0]
    write_json(done.status_json, {"state": "failed", "created_at": "2026-01-01"})
    assert listing.look()[0]["state"] == "failed"
    done.path.rename(tmp_path / "away")
    assert [one["name"] for one in listing.look()] == ["live", "new"]


def test_what_is_asked_is_one_file_each_in_the_inbox(tmp_path: Path) -> None:
    folder = make(tmp_path, "r", {"state": "running"})
    paths = [client.request_note(folder, "lr too high"), client.request_set(folder, {"max_hours": 12.0})]
    note, change = (json.loads(path.read_text()) for path in paths)
    assert (note["kind"], note["text"]) == ("note", "lr too high")
    assert (change["kind"], change["values"]) == ("set", {"max_hours": 12.0})

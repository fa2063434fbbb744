"""What a machine costs since the end: counted when a status is read, from the last end of all runs of a home."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from overnight import client, idling
from overnight.cli.page import status_text
from overnight.folder import RunFolder, utc, write_json
from overnight.processes import boot_id


def me() -> dict[str, Any]:
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return {"pid": os.getpid(), "start_ticks": ticks, "boot_id": boot_id()}


def make(
    home: Path, name: str, state: str, ago_s: float, *, price: float | None = 3.6, kept: bool = False
) -> RunFolder:
    """Make a run that ended (or was last written to) so long ago."""
    folder = RunFolder(home / "runs" / name)
    folder.create()
    at = time.time() - ago_s
    write_json(folder.run_json, {"spec": {}})
    ended = utc(at) if state in client.ENDED else None
    write_json(folder.status_json, {"state": state, "ended_at": ended, "limits": {"price": price}})
    os.utime(folder.status_json, (at, at))
    if kept:
        write_json(folder.shim_json, {"boot_id": boot_id(), "shim": me()})
    return folder


@pytest.fixture(autouse=True)
def long_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idling, "_uptime_s", lambda: 1e6)


def test_the_box_costs_on_after_the_end(tmp_path: Path) -> None:
    one = client.status(make(tmp_path, "a", "finished", 1000.0))
    assert one["idle_s"] == pytest.approx(1000.0, abs=5)
    assert one["idle_cost"] == pytest.approx(1.0, abs=0.01)
    page = status_text(one, now=time.time(), colours=False)
    assert "the box has cost 1.00 since the end (16m4" in page


def test_without_a_price_or_an_end_nothing_is_said(tmp_path: Path) -> None:
    for folder in (
        make(tmp_path, "a", "finished", 1000.0, price=None),
        make(tmp_path, "b", "running", 1000.0, kept=True),
        make(tmp_path, "c", "damaged", 1000.0),
    ):
        one = client.status(folder)
        assert (one["idle_s"], one["idle_cost"]) == (None, None)
        assert "the box has cost" not in status_text(one, now=time.time(), colours=False)


@pytest.mark.parametrize("limits", [None, {}, {"price": "dear"}, {"price": True}, {"price": -1}, {"price": None}])
def test_a_price_that_was_edited_is_none(limits: object) -> None:
    assert idling.price_of({"limits": limits}) is None


def test_while_another_run_goes_on_the_box_is_not_idle(tmp_path: Path) -> None:
    folder = make(tmp_path, "a", "finished", 1000.0)
    other = make(tmp_path, "b", "running", 0.0, kept=True)
    one = client.status(folder)
    assert (one["idle_s"], one["idle_cost"]) == (0.0, 0.0)
    assert "the box has cost" not in status_text(one, now=time.time(), colours=False)
    write_json(other.status_json, {"state": "stopped", "ended_at": utc(time.time() - 100)})
    one = client.status(folder)
    assert one["idle_s"] == pytest.approx(100.0, abs=5), "from the last end on"
    assert "since the last run here was over" in " ".join(status_text(one, now=time.time(), colours=False).split())


def test_runs_that_were_over_before_are_not_even_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make(tmp_path, "a", "finished", 1000.0)
    for number in range(5):
        make(tmp_path, f"old{number}", "finished", 5000.0)
    make(tmp_path, "late", "finished", 500.0)
    read: list[str] = []
    real = client._look
    monkeypatch.setattr(
        client, "_look", lambda path, name, boot, full: (read.append(name), real(path, name, boot, full=full))[1]
    )
    assert client.status(folder)["idle_s"] == pytest.approx(500.0, abs=5)
    assert read == ["a", "late"]


def test_a_run_that_nobody_keeps_does_not_work(tmp_path: Path) -> None:
    folder = make(tmp_path, "a", "finished", 1000.0)
    dead = make(tmp_path, "b", "running", 0.0)
    write_json(dead.shim_json, {"boot_id": boot_id(), "shim": {"pid": 2**22 + 1, "start_ticks": 1}})
    assert client.status(folder)["idle_s"] == pytest.approx(1000.0, abs=5)


def test_time_in_which_the_machine_was_off_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make(tmp_path, "a", "finished", 100_000.0)
    monkeypatch.setattr(idling, "_uptime_s", lambda: 250.0)
    assert client.status(folder)["idle_s"] == pytest.approx(250.0, abs=5)


def test_a_clock_that_was_set_back_is_no_credit(tmp_path: Path) -> None:
    assert client.status(make(tmp_path, "a", "finished", -5000.0))["idle_s"] == 0.0


def test_a_list_says_the_same(tmp_path: Path) -> None:
    make(tmp_path, "a", "finished", 1000.0)
    make(tmp_path, "b", "stopped", 300.0)
    make(tmp_path, "c", "failed", 200.0, price=None)
    for runs in (client.list_runs(str(tmp_path), full=True), client.Listing(str(tmp_path), full=True).look()):
        found = {one["name"]: one["idle_s"] for one in runs}
        assert found["a"] == pytest.approx(200.0, abs=5)
        assert found["b"] == pytest.approx(200.0, abs=5)
        assert found["c"] is None

"""What a run has used: the count stands still at its end, goes on after a reboot, and leaves out the time in between.

With facts that were written in other boots, and clocks that the test gives.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from overnight.clocks import uptime_s
from overnight.facts import Facts
from overnight.folder import RunFolder, utc
from overnight.keepers import Keepers
from overnight.processes import boot_id
from overnight.reboots.rebooting import Reboot
from overnight.requests.asked import Asked
from overnight.spec import RunSpec
from overnight.states import RunState
from overnight.supervision import spending as room
from overnight.supervision.inbox import Inbox
from overnight.supervision.spending import Spending
from overnight.supervision.standing import Standing
from overnight.supervision.waking import Wake

LAUNCHED = 1_700_000_000.0
SPEC = RunSpec(name="r", argv=("true",), executable="/bin/true", cwd="/", log="/nonexistent/log", recover=True)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    found = RunFolder(tmp_path / "r")
    found.create()
    return found


def write(folder: RunFolder, *facts: dict[str, Any]) -> None:
    """Write the journal of an earlier supervisor."""
    folder.journal.write_text("".join(json.dumps(fact) + "\n" for fact in facts))


def clock(elapsed_s: float, *, boot: str, epoch: float, up_s: float = 50.0) -> dict[str, Any]:
    """Return where the count stood as a boot began."""
    return {"fact": "clock", "elapsed_s": elapsed_s, "uptime_s": up_s, "epoch": epoch, "boot_id": boot}


def attempt(folder: RunFolder, number: int, boot: str, at: float) -> None:
    """Make the files of an attempt that was started in another boot and never ended."""
    files = folder.attempt(number)
    files.path.mkdir()
    files.start_json.write_text(json.dumps({"attempt": number, "position": [0, 0]}))
    files.started_json.write_text(json.dumps({"pid": 4_000_000, "start_ticks": 1, "boot_id": boot, "at": at}))


def comes_back(folder: RunFolder, *, lost: bool = True) -> float:
    """Bring the run back in this boot; return the seconds that are used as it begins."""
    facts = Facts(folder)
    wake = Wake()
    try:
        standing = Standing(folder, SPEC, facts, keepers=Keepers(folder, wake), wake=wake)
        assert standing.lost is lost
        asked = Asked(spec=SPEC, epoch=LAUNCHED, boot_id="first")
        account = Spending(facts)
        back = Reboot(
            asked=asked,
            standing=standing,
            facts=facts,
            inbox=Inbox(folder, facts),
            spending=account,
            adopting=False,
        )
        assert back.happened()
        back.bring_back(RunState(state="failed", cause="host_rebooted", attempt=1))
        assert not back.happened()
        return account.elapsed_s(None)
    finally:
        facts.journal.close()
        wake.inotify.close()
        os.close(wake.reading)
        os.close(wake.writing)


def test_it_is_counted_from_the_launch(folder: RunFolder) -> None:
    facts = Facts(folder)
    assert Spending(facts).elapsed_s(None) < 5.0
    facts.journal.close()
    write(folder, clock(100.0, boot=boot_id(), epoch=time.time(), up_s=uptime_s() - 40.0))
    facts = Facts(folder)
    assert Spending(facts).elapsed_s(None) == pytest.approx(140.0, abs=5.0)
    facts.journal.close()


def test_the_time_in_which_the_machine_was_off_is_nobodys(folder: RunFolder) -> None:
    """600 s in the first boot, off for an hour, 90 s in the second, off for a day: 690 s, however late it is."""
    second = LAUNCHED + 600 + 3600
    write(
        folder,
        clock(0.0, boot="first", epoch=LAUNCHED),
        {"fact": "recovered", "boot_id": "second", "attempt": 1},
        clock(600.0, boot="second", epoch=second),
    )
    attempt(folder, 1, "second", second)
    os.utime(folder.journal, (second + 90, second + 90))
    assert comes_back(folder) == pytest.approx(690.0, abs=5.0)


def test_one_that_was_settled_before_counts_to_its_end(folder: RunFolder) -> None:
    """Somebody's `wait` has written the reboot down long ago: what counts is when the attempt gave its last sign."""
    attempt(folder, 1, "first", LAUNCHED)
    write(
        folder,
        clock(20.0, boot="first", epoch=LAUNCHED),
        {"fact": "attempt_ended", "attempt": 1, "seconds": 300.0, "ended_at": utc(LAUNCHED + 300)},
        {"fact": "ended", "state": "failed", "cause": "host_rebooted", "text": "", "elapsed_s": 320.0},
    )
    assert comes_back(folder, lost=False) == pytest.approx(320.0, abs=5.0)


def test_what_the_command_ran_is_the_least(folder: RunFolder) -> None:
    attempt(folder, 1, "first", LAUNCHED)
    write(
        folder,
        {"fact": "clock", "elapsed_s": 0.0, "uptime_s": 50.0, "boot_id": "first"},  # as an older version wrote it
        {"fact": "attempt_ended", "attempt": 1, "seconds": 300.0, "ended_at": None},
        {"fact": "ended", "state": "failed", "cause": "host_rebooted", "text": ""},
    )
    assert comes_back(folder, lost=False) == pytest.approx(300.0, abs=5.0)


@pytest.mark.parametrize("boot", ["this", "other"])
def test_an_ended_run_uses_no_more(folder: RunFolder, boot: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        folder,
        clock(10.0, boot=boot_id() if boot == "this" else "other", epoch=LAUNCHED),
        {"fact": "ended", "state": "finished", "cause": "completed", "text": "exited 0", "elapsed_s": 70.5},
    )
    facts = Facts(folder)
    account = Spending(facts)
    assert account.elapsed_s(None) == 70.5
    monkeypatch.setattr(room, "uptime_s", lambda: uptime_s() + 3600.0)
    assert account.elapsed_s(None) == 70.5
    facts.journal.close()


def test_a_recovered_run_uses_more_again(folder: RunFolder) -> None:
    write(
        folder,
        {"fact": "ended", "state": "failed", "cause": "host_rebooted", "text": "", "elapsed_s": 70.0},
        {"fact": "recovered", "boot_id": boot_id(), "attempt": 1},
        clock(70.0, boot=boot_id(), epoch=time.time(), up_s=uptime_s() - 30.0),
    )
    facts = Facts(folder)
    assert Spending(facts).elapsed_s(None) == pytest.approx(100.0, abs=5.0)
    facts.journal.close()


@pytest.mark.parametrize("words", [{"uptime_s": "noon"}, {"elapsed_s": []}, {"epoch": "words"}, {"uptime_s": None}])
def test_a_clock_that_was_edited_counts_as_never_written(folder: RunFolder, words: dict[str, Any]) -> None:
    write(folder, {**clock(10.0, boot=boot_id(), epoch=time.time(), up_s=uptime_s()), **words})
    facts = Facts(folder)
    account = Spending(facts)
    assert account.elapsed_s(None) >= 0.0
    assert account.elapsed_before_s(LAUNCHED) >= 0.0
    facts.journal.close()

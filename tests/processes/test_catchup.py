"""The samples of a night that no database has any more: stored where they belong, seen by the rules, told to nobody."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from overnight.events import Verdict
from overnight.facts import Facts
from overnight.folder import RunFolder
from overnight.intake.catchup import SOME, Catchup
from overnight.intake.instruments import Instruments
from overnight.intake.reading import Intake
from overnight.monitor import Entry
from overnight.progress import Progress
from overnight.sensors import Gpu, GpuSample, HostSample
from overnight.spec import RunSpec
from overnight.wiring import make_monitor

COUNT = 2 * SOME + 50
EVERY_S = 10.0


class Night:
    """A run whose database was deleted: a step per sample, time marks, samples of a GPU that is throttled."""

    def __init__(self, path: Path, *, ago_s: float, told: int = 0) -> None:
        self.folder = RunFolder(path)
        self.folder.create()
        self.begin = time.time() - ago_s - COUNT * EVERY_S
        lines = [f"step: {step}, loss: 1.5, dt: 10.0\n".encode() for step in range(COUNT)]
        self.folder.output_log.write_bytes(b"".join(lines))
        facts = Facts(self.folder)
        place = 0
        for number, line in enumerate(lines):
            facts.mark(0, place, self.begin + number * EVERY_S)
            place += len(line)
        for part in range(told):
            facts.judge(Verdict(rule="throttle", severity="warn", action="alert", text="hot", part=part))
        (path / "sensors").mkdir()
        hot = Gpu(index=0, ours=True, temperature_c=91.0, throttle=("thermal",), utilisation=0.9)
        samples = [GpuSample(at=self.begin + number * EVERY_S + 5, gpus=(hot,)) for number in range(COUNT)]
        data = b"".join(msgspec.json.encode(one) + b"\n" for one in samples)
        (path / "sensors" / "gpu.jsonl").write_bytes(data)
        host = b"".join(msgspec.json.encode(HostSample(at=one.at + 1, cpu=0.5)) + b"\n" for one in samples[:3])
        (path / "sensors" / "host.jsonl").write_bytes(host)
        self.sizes = {"gpu": len(data), "host": len(host)}
        self.spec = spec = RunSpec(name="night", argv=(), executable="", cwd="/", log=str(self.folder.output_log))
        self.facts = Facts(self.folder)
        self.monitor = make_monitor(spec, self.facts.note)
        self.intake = Intake(self.folder, spec, self.monitor, self.facts, start=0, pids=())
        self.monitor.begin_attempt(1)
        self.intake.read(clock=0.0)
        while self.intake.more:
            self.intake.read(clock=0.0)
        self.catchup = Catchup(self.folder.path, facts=self.facts, monitor=self.monitor, intake=self.intake)

    def run(self) -> tuple[list[Verdict], list[Entry]]:
        """Let all of it be taken in; return what would be told, and the samples that would be stored."""
        self.intake.pending.clear()
        found: list[Verdict] = []
        for turn in range(10):
            assert not self.catchup.done
            found += self.catchup.turn(young_s=120.0)
            if self.catchup.done:
                break
            assert turn < 3
        return found, [one for one in self.intake.pending if isinstance(one, Entry)]


def test_each_sample_has_its_own_step_and_nothing_is_told_again(tmp_path: Path) -> None:
    night = Night(tmp_path / "run", ago_s=3600.0)
    found, stored = night.run()
    assert found == []
    gpu = [one.record for one in stored if one.record.kind == "gpu"]
    assert [record.step for record in gpu] == list(range(COUNT))
    assert [one.record.step for one in stored if one.record.kind == "host"] == [0, 1, 2]
    assert {(one.attempt, one.segment) for one in stored} == {(1, night.monitor.segment)}
    assert night.catchup.places == night.sizes
    # the rule knows that it is hot: that goes on, and is no new event
    assert night.monitor.memories["throttle"]["told"]
    assert night.facts.verdicts == []


def test_what_is_young_is_found_and_what_was_told_keeps_its_number(tmp_path: Path) -> None:
    assert Night(tmp_path / "old", ago_s=200.0).run()[0] == []
    night = Night(tmp_path / "run", ago_s=3600.0, told=4)
    night.run()
    assert night.monitor.memories["throttle"]["part"] == 4
    assert night.monitor.memories["hardware"]["part"] == 0


def test_a_fault_of_this_very_minute_is_not_swallowed(tmp_path: Path) -> None:
    night = Night(tmp_path / "run", ago_s=5.0)
    path = night.folder.path / "sensors" / "gpu.jsonl"
    lost = GpuSample(at=time.time() - 2, gpus=(Gpu(index=0, ours=True, lost="GPU is lost"),))
    with path.open("ab") as stream:
        stream.write(msgspec.json.encode(lost) + b"\n")
    (found,) = [one for one in night.run()[0] if one.rule == "hardware"]
    assert (found.rule, found.attempt, found.step) == ("hardware", 1, COUNT - 1)


def test_without_files_it_is_done_at_once(tmp_path: Path) -> None:
    night = Night(tmp_path / "run", ago_s=3600.0)
    for kind in ("gpu", "host"):
        (night.folder.path / "sensors" / f"{kind}.jsonl").unlink()
    night.catchup = Catchup(night.folder.path, facts=night.facts, monitor=night.monitor, intake=night.intake)
    assert night.run() == ([], [])
    assert night.catchup.places == {"gpu": 0, "host": 0}


def instruments(night: Night) -> Instruments:
    progress = Progress(night.monitor, log=str(night.folder.output_log))
    return Instruments(
        night.folder, night.spec, facts=night.facts, monitor=night.monitor, intake=night.intake,
        progress=progress, change=lambda _: None,
    )  # fmt: skip


def test_new_samples_follow_the_old_ones_and_the_last_are_not_lost(tmp_path: Path) -> None:
    night = Night(tmp_path / "run", ago_s=3600.0)
    sensors = instruments(night)
    night.intake.pending.clear()
    path = night.folder.path / "sensors" / "host.jsonl"
    with path.open("ab") as stream:
        stream.write(msgspec.json.encode(HostSample(at=time.time(), cpu=0.25)) + b"\n")
    sensors.close()  # the run ends before any turn
    assert sum(1 for one in night.intake.pending if isinstance(one, Entry)) + stored_in(night) == COUNT + 4
    assert night.monitor.remembered["sensors"] == {"gpu": night.sizes["gpu"], "host": path.stat().st_size}


def stored_in(night: Night) -> int:
    return int(night.intake.history.db.execute("SELECT count(*) FROM records WHERE source < 0").fetchone()[0]) + int(
        night.intake.history.db.execute("SELECT coalesce(sum(records), 0) FROM chunks WHERE source < 0").fetchone()[0]
    )


def test_where_the_files_are_taken_in_is_not_forgotten_by_who_measures_silences(tmp_path: Path) -> None:
    night = Night(tmp_path / "run", ago_s=3600.0)
    night.monitor.remembered["sensors"] = {"gpu": 7, "host": 9}
    progress = Progress(night.monitor, log="/nowhere")
    progress.begin_attempt(1)
    progress.look(log_grew_at=None, saved=False, command=None)
    assert night.monitor.remembered["sensors"] == {"gpu": 7, "host": 9}


def test_nobody_wakes_all_the_time_for_sensors_that_are_not_asked(tmp_path: Path) -> None:
    """While a stop is under way no turn of theirs comes, however long they are due."""
    night = Night(tmp_path / "run", ago_s=3600.0)
    sensors = instruments(night)
    assert sensors.next_look_s(0.0) == 0.0
    assert [sensors.next_look_s(0.0) for _ in range(3)] == [1.0] * 3
    sensors.turn(0.0, active_s=0.0)
    assert sensors.next_look_s(0.0) == 0.0


@pytest.mark.parametrize("kind", ["gpu", "host"])
def test_more_than_any_sensor_writes_in_a_pause_is_read_whole(tmp_path: Path, kind: str) -> None:
    """While a run is followed a file that has grown by very much is passed over; a rebuild needs all of it."""
    night = Night(tmp_path / "run", ago_s=3600.0)
    path = night.folder.path / "sensors" / f"{kind}.jsonl"
    line = path.read_bytes().partition(b"\n")[0] + b"\n"
    many = (9 << 20) // len(line)
    path.write_bytes(line * many)
    catchup = Catchup(night.folder.path, facts=night.facts, monitor=night.monitor, intake=night.intake)
    assert sum(1 for _ in catchup.samples) == many + (3 if kind == "gpu" else COUNT)

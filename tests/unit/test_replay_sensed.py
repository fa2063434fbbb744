"""A replay asks the rules on sensors with the samples of that night: what they find, when, and what cannot be asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from sensed_night import DT, EPOCH, GIB, card, machine, night, spec_of

from overnight.events import Verdict
from overnight.folder import RunFolder
from overnight.past.comparing import compared
from overnight.past.replay import Replay, replay
from overnight.past.replayed import document, past_of_run
from overnight.past.sensed import JUDGED_BY
from overnight.sensors import Disk, Gpu, GpuSample, HostSample, Xid


def judged(run: RunFolder, **changes: object) -> Replay:
    spec = spec_of(run, **changes)
    said: list[str] = []
    found = replay(past_of_run(run, spec, over=True, now=0.0), spec, said.append)
    assert not said
    return found


def of(found: Replay, rule: str) -> list[tuple[float, str, str]]:
    """Return when a rule told what, in seconds from the beginning."""
    told = [one.verdict for one in found.found if one.verdict.rule == rule]
    return [((one.at or 0.0) - EPOCH, one.action, one.text) for one in told]


def hot(at: float) -> Gpu:
    """Be throttled by heat from 1200 s to 1800 s."""
    if 1200 <= at < 1800:
        return card(at, temperature_c=91.0, throttle=("thermal",), sm_clock_mhz=900.0)
    return card(at)


def test_a_healthy_night_is_silent(tmp_path: Path) -> None:
    found = judged(night(tmp_path / "run"))
    assert found.found == ()
    assert found.unjudged == {}
    assert found.end is None


def test_throttling_is_found_at_its_time_and_may_end_the_run(tmp_path: Path) -> None:
    run = night(tmp_path / "run", gpu=hot)
    told = of(judged(run), "throttle")
    assert [action for _, action, _ in told] == ["alert", "note"]
    assert 1200 + 50 <= told[0][0] <= 1200 + 80
    assert "91 C" in told[0][2]
    assert 1800 + 50 <= told[1][0] <= 1800 + 90
    ended = judged(run, actions={"throttle": "stop"})
    assert ended.end is not None
    assert ended.end.found.verdict.rule == "throttle"
    assert (ended.end.found.verdict.at or 0.0) - EPOCH == pytest.approx(told[0][0])
    assert ended.end.source == "journal"
    assert ended.end.seconds == pytest.approx(3600 - told[0][0])
    assert [one.after_end for one in ended.found] == [False, True]


def test_a_slowdown_has_the_words_of_the_gpu(tmp_path: Path) -> None:
    slow = {"pace": lambda at: DT if at < 1200 else 2 * DT}
    (with_gpu,) = of(judged(night(tmp_path / "hot", gpu=hot, **slow)), "slowdown")  # type: ignore[arg-type]
    assert "GPU 0 at 91 C, throttled (thermal)" in with_gpu[2]
    (without,) = of(judged(night(tmp_path / "none", gpu=None, **slow)), "slowdown")  # type: ignore[arg-type]
    assert with_gpu[2].startswith(without[2] + "; GPU")
    assert with_gpu[0] == pytest.approx(without[0])
    assert 1200 < without[0] < 1300


def test_idle_gpus_are_found_while_steps_go_on(tmp_path: Path) -> None:
    def idle(at: float) -> Gpu:
        return card(at, utilisation=0.05 if at >= 900 else 0.9)

    ((at, action, text),) = of(judged(night(tmp_path / "run", gpu=idle)), "low_utilisation")
    assert action == "alert"
    assert 900 + 600 <= at <= 900 + 720
    assert "below 20%" in text

    # the same GPU in a stall is no finding of this rule: nothing goes on
    stands = night(tmp_path / "stands", gpu=idle, pace=lambda at: DT if at < 900 else 5000.0)
    assert of(judged(stands), "low_utilisation") == []


def test_memory_and_disk_that_run_out_are_found(tmp_path: Path) -> None:
    def filling(at: float) -> HostSample:
        left = max(0.0, 1 - at / 7200)
        disk = Disk(mount="/data", holds=("log",), free=int(500 * GIB * left), total=1000 * GIB, inodes_free=10**6)
        return machine(at, memory_available=int(200 * GIB * left), disks=(disk,))

    found = judged(night(tmp_path / "run", host=filling))
    for rule in ("memory_creep", "disk_space"):
        told = of(found, rule)
        assert told, rule
        assert all(action == "alert" for _, action, _ in told)
        assert 600 < told[0][0] < 3600
        assert "will be full in" in told[0][2]


def test_a_lost_gpu_ends_it_as_hardware(tmp_path: Path) -> None:
    def gone(at: float) -> Gpu:
        return card(at) if at < 2000 else Gpu(index=0, ours=True, lost="GPU is lost")

    run = night(tmp_path / "run", gpu=gone)
    found = judged(run, restarts=3)
    assert found.end is not None
    assert (found.end.found.verdict.rule, found.end.again) == ("hardware", False)
    assert found.end.then == "failed (hardware)"
    assert 2000 <= (found.end.found.verdict.at or 0.0) - EPOCH <= 2015
    assert judged(run, actions={"hardware": "alert"}).end is None


def test_an_xid_is_judged_at_its_sample(tmp_path: Path) -> None:
    run = night(tmp_path / "run")
    path = run.path / "sensors" / "gpu.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    sample = msgspec.json.decode(lines[100], type=GpuSample)
    xid = Xid(code=79, at=sample.at - 2, device="0000:3b:00", index=0)
    lines[100] = msgspec.json.encode(msgspec.structs.replace(sample, xids=(xid,))) + b"\n"
    path.write_bytes(b"".join(lines))
    found = judged(run)
    assert found.end is not None
    assert found.end.found.verdict.evidence["xid"] == 79
    assert found.end.found.verdict.at == sample.at


def test_without_samples_it_is_said_which_rules_cannot_be_asked(tmp_path: Path) -> None:
    bare = judged(night(tmp_path / "bare", gpu=None, host=None))
    assert set(bare.unjudged) == set(JUDGED_BY)
    assert bare.unjudged["memory_creep"] == "there are no samples of GPUs or the machine"
    no_gpu = judged(night(tmp_path / "no_gpu", gpu=None))
    assert set(no_gpu.unjudged) == {"hardware", "throttle", "low_utilisation"}
    no_host = judged(night(tmp_path / "no_host", host=None))
    assert no_host.unjudged == {"disk_space": "there are no samples of the machine"}


def told(rule: str, at: float, **more: Any) -> Verdict:
    return Verdict(rule=rule, severity="warn", action="alert", text="t", at=EPOCH + at, **more)


def test_a_night_and_its_replay_agree(tmp_path: Path) -> None:
    run = night(tmp_path / "run", gpu=hot)
    spec = spec_of(run)
    past = past_of_run(run, spec, over=True, now=0.0)
    found = replay(past, spec, print)
    first, over = (one.verdict for one in found.found)
    # in the night they were told a little after the sample
    then = [msgspec.structs.replace(one, at=(one.at or 0.0) + 1.5) for one in (first, over)]
    same = document(found, past, spec, name="night", night=then)
    assert [one["night"]["how"] for one in same["verdicts"]] == ["same", "same"]
    assert same["night"]["missing"] == []

    (run.path / "sensors" / "gpu.jsonl").unlink()
    found = replay(past, spec, print)
    lost = document(found, past, spec, name="night", night=[*then, told("disk_space", 50.0)])
    assert lost["verdicts"] == []
    assert [(one["rule"], one["how"]) for one in lost["night"]["missing"]] == [
        ("throttle", "not asked"), ("throttle", "not asked"), ("disk_space", "gone"),
    ]  # fmt: skip


def test_what_was_seen_after_the_last_sample_is_not_called_gone(tmp_path: Path) -> None:
    """When a command has ended its GPUs are looked at once more, and that look is in no file."""
    run = night(tmp_path / "run")
    spec = spec_of(run)
    past = past_of_run(run, spec, over=True, now=0.0)
    seen = [told("hardware", 3640.0), told("hardware", 1000.0, part=1)]
    found = document(replay(past, spec, print), past, spec, name="night", night=seen)
    assert [one["how"] for one in found["night"]["missing"]] == ["not asked", "gone"]


def test_what_only_the_night_could_know_is_not_missing() -> None:
    full = told("disk_space", 1.0, offset=700)
    assert [one.how for one in compared([], [full], source=0)] == ["live only"]
    slow = Verdict(rule="slowdown", severity="warn", action="alert", text="slow", at=EPOCH, offset=5)
    then = msgspec.structs.replace(slow, text="slow; GPU 0 at 91 C, throttled (thermal)")
    assert [one.how for one in compared([slow], [then], source=0, unasked=JUDGED_BY)] == ["same"]
    assert [one.how for one in compared([slow], [then], source=0)] == ["changed"]
    other = msgspec.structs.replace(then, text="slower; GPU 0 at 91 C")
    assert [one.how for one in compared([slow], [other], source=0, unasked=JUDGED_BY)] == ["changed"]

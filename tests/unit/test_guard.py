"""What --on-end waits for: which runs and GPU processes count as other work, for how long, and what is written down."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from overnight.facts import Facts
from overnight.folder import RunFolder, read_journal, write_json
from overnight.hooks import guard
from overnight.hooks.guard import EVERY_S, MOST_TOLD, UNKNOWN_S, Around, Guard, Hold, of_gpus, of_runs
from overnight.hooks.starting import Hooks
from overnight.processes import boot_id
from overnight.sensors import Gpu, GpuProcess, GpuSample
from overnight.sensors.gpulook import GpuLook, Seen, read_sample
from overnight.spec import RunSpec


def status(name: str, state: str, **more: Any) -> dict[str, Any]:
    kept = {"supervisor": {"pid": 1, "alive": True}, "shim": {"pid": 2, "alive": True}}
    return {"name": name, "state": state, "stale": False, "foreign": False, **kept, **more}


DEAD: dict[str, Any] = {"supervisor": {"pid": 1, "alive": False}, "shim": {"pid": None, "alive": False}}


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("pending", "run b is about to start"),
        ("starting", "run b is still starting"),
        ("running", "run b is still running"),
        ("stopping", "run b is still stopping"),
        ("backoff", "run b is waiting for its next attempt"),
        ("damaged", "run b is alive, its folder damaged"),
    ],
)
def test_a_run_that_goes_on_is_waited_for(state: str, said: str) -> None:
    hold = of_runs([status("a", "finished"), status("b", state)], "a")
    assert hold is not None
    assert (hold.kind, hold.text, hold.who) == ("run", said, ("b",))


@pytest.mark.parametrize("state", ["finished", "stopped", "failed", "gave_up"])
def test_a_run_that_has_ended_is_not_whatever_its_hooks_do(state: str) -> None:
    assert of_runs([status("b", state, hooks={"pending": 3, "held": "run a is still running"})], "a") is None


def test_neither_itself_nor_one_of_another_machine_nor_one_that_nobody_keeps_is_waited_for() -> None:
    assert of_runs([status("a", "running")], "a") is None
    assert of_runs([status("b", "running", foreign=True)], "a") is None
    assert of_runs([status("b", "running", stale=True, **DEAD)], "a") is None
    assert of_runs([status("b", "damaged", **DEAD)], "a") is None
    assert of_runs([], "a") is None


def test_a_command_that_lives_on_without_keepers_is_work() -> None:
    hold = of_runs([status("b", "running", stale=True, command_alive=True, **DEAD)], "a")
    assert hold is not None
    assert hold.who == ("b",)


def test_many_runs_are_named_up_to_three() -> None:
    hold = of_runs([status(name, "running") for name in "edcba"], "z")
    assert hold is not None
    assert hold.text == "5 other runs go on: a, b, c and 2 more"
    assert hold.who == tuple("abcde")


def process(pid: int, **more: Any) -> GpuProcess:
    return GpuProcess(pid=pid, **more)


def sample(*gpus: Gpu, trouble: str | None = None) -> GpuSample:
    return GpuSample(at=0.0, gpus=gpus, trouble=trouble)


def test_somebody_elses_process_is_waited_for() -> None:
    one = process(42, name="/usr/bin/python3.11", user="alice", ours=False)
    hold = of_gpus(sample(Gpu(index=0, processes=()), Gpu(index=1, processes=(one,))), lambda _: False)
    assert hold is not None
    assert (hold.kind, hold.who) == ("gpu", ("42",))
    assert hold.text == "process 42 (python3.11) of alice uses GPU 1"


def test_one_process_on_two_gpus_is_one_and_many_are_counted() -> None:
    twice = [Gpu(index=index, processes=(process(7),)) for index in (0, 1)]
    hold = of_gpus(sample(*twice), lambda _: False)
    assert hold is not None
    assert hold.text == "process 7 uses GPU 0"
    many = of_gpus(sample(Gpu(index=0, processes=tuple(process(pid) for pid in range(1, 6)))), lambda _: False)
    assert many is not None
    assert many.text.count("uses GPU 0") == 3
    assert many.text.endswith("and 2 more")


@pytest.mark.parametrize(
    "one",
    [
        process(1, ours=True),
        process(1, graphics=True),
        process(1, name="/usr/lib/xorg/Xorg"),
        process(1, name="nvidia-cuda-mps-server"),
    ],
)
def test_own_drawing_and_the_drivers_own_processes_are_no_work(one: GpuProcess) -> None:
    assert of_gpus(sample(Gpu(index=0, processes=(one,))), lambda _: False) is None


def test_what_the_environment_of_a_process_tells_counts() -> None:
    assert of_gpus(sample(Gpu(index=0, processes=(process(5), process(6)))), lambda one: one.pid < 10) is None


def test_a_lost_gpu_does_no_work_and_one_that_tells_nothing_is_unknown() -> None:
    lost = Gpu(index=0, processes=(process(5),), lost="GPU is lost")
    assert of_gpus(sample(lost), lambda _: False) is None
    silent = of_gpus(sample(lost, Gpu(index=1)), lambda _: False)
    assert silent is not None
    assert silent.kind == "unknown"
    assert "GPU 1 does not tell" in silent.text
    both = of_gpus(sample(Gpu(index=1), Gpu(index=2, processes=(process(9),))), lambda _: False)
    assert both is not None
    assert both.kind == "gpu", "what is known comes first"
    troubled = of_gpus(sample(trouble="the driver and the library differ"), lambda _: False)
    assert troubled == Hold(kind="unknown", text="the GPUs cannot be looked at: the driver and the library differ")


def test_lines_that_are_no_sample_are_none() -> None:
    line = msgspec.json.encode(sample(Gpu(index=0)))
    assert read_sample(line) == sample(Gpu(index=0))
    for damaged in (b"", line[:-3], b"[]", b"\xff", b'{"kind": "host", "at": 1}'):
        assert read_sample(damaged) is None


# -- what is seen ------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    found = RunFolder(tmp_path / "home" / "runs" / "a")
    found.create()
    return found


def beside(folder: RunFolder, name: str, state: str) -> RunFolder:
    """Make another run of the home whose keeper is this process."""
    found = RunFolder(folder.path.with_name(name))
    found.create()
    write_json(found.run_json, {"spec": {}})
    write_json(found.status_json, {"state": state})
    write_json(found.shim_json, {"boot_id": boot_id(), "shim": me()})
    return found


def me() -> dict[str, Any]:
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return {"pid": os.getpid(), "start_ticks": ticks, "boot_id": boot_id()}


def test_the_runs_of_the_home_are_looked_at(folder: RunFolder) -> None:
    around = Around(folder, str(folder.path.parent.parent))
    assert around.runs() is None
    other = beside(folder, "b", "running")
    hold = around.runs()
    assert hold is not None
    assert hold.text == "run b is still running"
    write_json(other.status_json, {"state": "finished"})
    assert around.runs() is None


def test_a_home_that_cannot_be_read_is_unknown(folder: RunFolder, tmp_path: Path) -> None:
    home = tmp_path / "odd"
    home.mkdir()
    (home / "runs").write_text("no folder")
    hold = Around(folder, str(home)).runs()
    assert hold is not None
    assert hold.kind == "unknown"


def test_only_a_fresh_sample_of_the_own_sensors_names_somebody(folder: RunFolder) -> None:
    around = Around(folder, str(folder.path.parent.parent))
    assert around.sampled() is None
    path = folder.path / "sensors" / "gpu.jsonl"
    path.parent.mkdir()

    def wrote(age_s: float, ours: bool | None, pid: int = os.getpid()) -> Hold | None:
        gpu = Gpu(index=0, processes=(process(pid, ours=ours),))
        line = msgspec.json.encode(GpuSample(at=time.time() - age_s, gpus=(gpu,)))
        path.write_bytes(b'{"kind": "gpu"\n' + line + b'\n{"kind": "gp')
        return around.sampled()

    hold = wrote(5, ours=False)
    assert hold is not None
    assert hold.who == (str(os.getpid()),)
    assert wrote(60, ours=False) is None, "too old"
    assert wrote(-60, ours=False) is None, "of a clock that was set back"
    assert wrote(5, ours=True) is None
    assert wrote(5, ours=None) is None, "it may have been of the run, when it was sampled"
    assert wrote(5, ours=False, pid=2**22 + 1) is None, "it is gone"


def test_a_dead_process_of_the_run_that_a_driver_still_lists_is_its_own(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "KFD", "/nowhere/kfd")
    dead, path = 2**22 + 1, folder.path / "sensors" / "gpu.jsonl"
    listed = Seen(sample=sample(Gpu(index=0, processes=(process(dead),))))
    around = Around(folder, "/nowhere")
    hold = around.asked(listed)
    assert hold is not None, "of a container whose processes are not seen here"
    assert hold.who == (str(dead),)
    path.parent.mkdir()
    path.write_bytes(msgspec.json.encode(sample(Gpu(index=0, processes=(process(dead, ours=True),)))) + b"\n")
    assert around.asked(listed) is None


def test_a_process_that_bears_the_runs_mark_is_its_own(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = b"OVERNIGHT_RUN_DIR=" + os.fsencode(folder.path)
    around = Around(folder, "/nowhere")
    for words, own in ((mark + b"\0X=1", True), (mark + b"2\0", False), (b"", False)):
        monkeypatch.setattr("overnight.processes.read_proc", lambda _pid, _name, words=words: words)
        assert around.is_ours(process(1)) is own


def test_what_no_driver_can_tell_is_free_and_what_hangs_is_not(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    around = Around(folder, "/nowhere")
    monkeypatch.setattr(guard, "KFD", "/nowhere/kfd")
    missing = Seen(sample=sample(trouble="the NVIDIA driver is not loaded"))
    for device, kinds in ((False, [None, None, "unknown"]), (True, ["unknown", "unknown", "unknown"])):
        monkeypatch.setattr("overnight.sensors.gpulook.device", lambda device=device: device)
        found = [around.asked(seen) for seen in (missing, Seen(trouble="x"), Seen(trouble="y", hangs=True))]
        assert [None if one is None else one.kind for one in found] == kinds


def test_what_the_amd_driver_lists_needs_no_library(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kfd = tmp_path / "kfd"
    kfd.mkdir()
    monkeypatch.setattr(guard, "KFD", str(kfd))
    monkeypatch.setattr("overnight.sensors.gpulook.device", lambda: True)
    around = Around(folder, "/nowhere")
    without = Seen(sample=GpuSample(at=0.0, trouble="amdsmi is not installed", maker="amd"))
    assert around.asked(without) is None
    (kfd / str(2**22 + 1)).mkdir()
    assert around.asked(without) is None, "of another container: nobody here"
    (kfd / str(os.getpid())).mkdir()
    hold = around.asked(without)
    assert hold is not None
    assert (hold.kind, hold.who) == ("gpu", (str(os.getpid()),))


# -- over time ---------------------------------------------------------------------------------------------------------


class Asked(GpuLook):
    """A look that is answered by the test, at once."""

    def __init__(self, *answers: Seen) -> None:
        super().__init__(["/bin/false"])
        self.answers = list(answers)
        self.begun = 0

    def begin(self, now: float) -> Seen | None:  # noqa: ARG002
        self.begun += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


FREE = Seen(sample=sample(Gpu(index=0, processes=())))
HANGS = Seen(trouble="the driver does not answer within 10 s", hangs=True)


@pytest.fixture
def facts(folder: RunFolder) -> Iterator[Facts]:
    found = Facts(folder)
    yield found
    found.journal.close()


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "gpu_likely", lambda: True)
    monkeypatch.setattr(guard, "KFD", "/nowhere/kfd")


def said(facts: Facts, kind: str) -> list[dict[str, Any]]:
    return [fact for fact in read_journal(facts.folder.journal) if fact["fact"] == kind]


def test_without_a_gpu_nothing_is_asked(folder: RunFolder, facts: Facts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "gpu_likely", lambda: False)
    look = Asked(HANGS)
    assert Guard(folder, facts, look=look).allows(0.0)
    assert look.begun == 0
    assert not said(facts, "hook_held")
    assert not said(facts, "hook_released")


@pytest.mark.usefixtures("a_gpu")
def test_another_run_first_then_the_gpus(folder: RunFolder, facts: Facts) -> None:
    other, look = beside(folder, "b", "running"), Asked(FREE)
    one = Guard(folder, facts, look=look)
    one.begin(1)
    assert not one.allows(0.0)
    assert one.waiting()
    assert look.begun == 0, "no GPU is asked while a run is waited for"
    assert 0 < one.next_look_s(0.0) <= EVERY_S
    write_json(other.status_json, {"state": "finished"})
    assert not one.allows(0.5), "not looked at again before its time"
    assert one.allows(20.0)
    assert one.allows(21.0)
    assert look.begun == 1
    assert not one.waiting()
    (fact,) = said(facts, "hook_released")
    assert fact["seconds"] == 20.0


def test_the_looks_become_rarer_up_to_ten_seconds(folder: RunFolder, facts: Facts) -> None:
    beside(folder, "b", "running")
    one, now, pauses = Guard(folder, facts), 0.0, []
    for _ in range(30):
        assert not one.allows(now)
        pauses.append(one.next_look_s(now))
        now += pauses[-1]
    assert pauses[0] == 1.0
    assert max(pauses) == pauses[-1] == EVERY_S
    assert pauses == sorted(pauses)


@pytest.mark.usefixtures("a_gpu")
def test_an_unknown_gpu_is_waited_for_an_hour_and_no_longer(folder: RunFolder, facts: Facts) -> None:
    one = Guard(folder, facts, look=Asked(HANGS))
    one.begin(1)
    now = 1000.0
    while not one.allows(now):
        assert one.hold is not None
        assert one.hold.kind == "unknown"
        assert "not waited for beyond 2" in one.hold.text
        now += one.next_look_s(now)
    assert now - 1000.0 == pytest.approx(UNKNOWN_S, abs=EVERY_S)
    assert len(said(facts, "hook_held")) == 1
    assert any("was waited for 3600 s" in note for note in facts.notes)


@pytest.mark.usefixtures("a_gpu")
def test_the_hour_begins_anew_when_the_gpus_were_known_between(folder: RunFolder, facts: Facts) -> None:
    busy = Seen(sample=sample(Gpu(index=0, processes=(process(1, ours=False),))))
    one = Guard(folder, facts, look=Asked(HANGS, busy, HANGS))
    assert not one.allows(0.0)
    assert not one.allows(3000.0)
    assert not one.allows(3700.0)
    assert not one.allows(3700.0 + UNKNOWN_S - EVERY_S)
    assert one.allows(3700.0 + UNKNOWN_S)


@pytest.mark.usefixtures("a_gpu")
def test_a_later_supervisor_goes_on_counting_and_tells_nothing_twice(folder: RunFolder, facts: Facts) -> None:
    first = Guard(folder, facts, look=Asked(HANGS))
    first.begin(1)
    assert not first.allows(500.0)
    assert first.take_news() is not None
    second = Guard(folder, facts, look=Asked(HANGS))
    for fact in read_journal(folder.journal):
        if fact["fact"] == "hook_held":
            second.recall(fact)
    second.begin(1)
    assert second.hold is not None, "known before the first look"
    assert not second.allows(500.0 + UNKNOWN_S - EVERY_S)
    assert second.take_news() is None
    assert second.allows(500.0 + UNKNOWN_S)
    assert len(said(facts, "hook_held")) == 1


def test_who_changes_all_the_time_is_not_told_without_end(folder: RunFolder, facts: Facts) -> None:
    one, news = Guard(folder, facts), []
    for number in range(3 * MOST_TOLD):
        other = beside(folder, f"run{number}", "running")
        assert not one.allows(100.0 * number)
        news.append(one.take_news())
        write_json(other.status_json, {"state": "finished"})
    assert len(said(facts, "hook_held")) == MOST_TOLD
    assert [text for text in news if text] == ["run run0 is still running"]


# -- and the hooks -----------------------------------------------------------------------------------------------------


def hooks_of(folder: RunFolder, facts: Facts, **asked: Any) -> Hooks:
    words = {"name": "a", "argv": ("true",), "executable": "/bin/true", "cwd": "/", "log": "/dev/null"}
    spec = RunSpec(**{**words, "on_end": ("false",), **asked})
    folder.run_json.write_bytes(msgspec.json.encode({"spec": spec}))
    return Hooks(folder, spec, facts, lambda: {"state": "finished", "cause": "completed", "attempt": 1})


def test_after_a_start_of_the_machine_what_was_held_is_not_run(folder: RunFolder, facts: Facts) -> None:
    """It would turn off the machine that somebody has just turned on to look at it."""
    other = beside(folder, "b", "running")
    hooks = hooks_of(folder, facts)
    hooks.end()
    hooks.turn(10.0)
    assert hooks.summary() == {"pending": 1, "failed": 0, "text": None, "held": "run b is still running"}
    lines = folder.journal.read_text().replace(boot_id(), "a boot before this one")
    folder.journal.write_text(lines)
    write_json(other.status_json, {"state": "finished"})
    later = Facts(folder)
    hooks = hooks_of(folder, later)
    hooks.end()
    assert not hooks.busy()
    assert hooks.summary() == {"pending": 0, "failed": 0, "text": None, "held": None}
    later.journal.close()
    (fact,) = said(facts, "hook_ended")
    assert (fact["key"], fact["ok"]) == ("end-001-1", None)
    assert "started anew" in fact["text"]


def test_a_fact_that_was_edited_is_passed_over(folder: RunFolder, facts: Facts) -> None:
    for damaged in ({"attempt": "x"}, {"who": 7}, {"kind": "odd"}, {"clock": "late"}, {"text": 3, "who": [1]}):
        whole = {"attempt": 1, "kind": "run", "text": "x", "who": ["b"], "boot_id": boot_id(), "clock": 1.0}
        facts.say("hook_held", **{**whole, **damaged})
    with folder.journal.open("a") as stream:
        stream.write(json.dumps({"fact": "hook_held"}) + "\n")
    hooks = hooks_of(folder, facts)
    hooks.end()
    assert hooks.busy()


def test_messages_are_not_held(folder: RunFolder, facts: Facts) -> None:
    beside(folder, "b", "running")
    hooks = hooks_of(folder, facts, on_event=("true",), on_end=())
    hooks.end()
    assert list(hooks.live) == ["event-end-001-1"]
    assert hooks.summary() == {"pending": 1, "failed": 0, "text": None, "held": None}
    assert not said(facts, "hook_held")


# -- processes that nobody sees ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pid", [0, 2**22 + 1, 2**32 - 1])
@pytest.mark.usefixtures("a_gpu")
def test_a_process_that_is_not_here_is_unknown_and_waited_for_an_hour(
    folder: RunFolder, facts: Facts, pid: int
) -> None:
    one = Guard(folder, facts, look=Asked(Seen(sample=sample(Gpu(index=3, processes=(process(pid),))))))
    one.begin(1)
    assert not one.allows(0.0)
    assert one.hold is not None
    assert (one.hold.kind, one.hold.who) == ("unknown", (str(pid),))
    assert f"GPU 3 is said to be used by process {pid}: not seen here (dead" in one.hold.text
    assert "; not waited for beyond 2" in one.hold.text
    assert not one.allows(UNKNOWN_S - 1.0)
    assert one.allows(UNKNOWN_S + EVERY_S)
    (note,) = [text for text in facts.notes if "was waited for 3600 s" in text]
    assert f"process {pid}" in note


def test_a_zombie_is_not_here_and_who_is_here_comes_first() -> None:
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    gpus = sample(Gpu(index=0, processes=(process(child), process(os.getpid()))), Gpu(index=1))
    hold = of_gpus(gpus, lambda _: False, guard._exists)
    os.waitpid(child, 0)
    assert hold is not None
    assert (hold.kind, hold.who) == ("gpu", (str(os.getpid()),))


def test_amds_list_of_processes_does_not_free_one_that_is_not_seen(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "KFD", str(tmp_path))
    gpus = (Gpu(index=0, processes=(process(2**22 + 1),)),)
    hold = Around(folder, "/nowhere").asked(Seen(sample=GpuSample(at=0.0, gpus=gpus, maker="amd")))
    assert hold is not None
    assert hold.kind == "unknown"
    (tmp_path / str(os.getpid())).mkdir()
    hold = Around(folder, "/nowhere").asked(Seen(sample=GpuSample(at=0.0, gpus=gpus, maker="amd")))
    assert hold is not None
    assert hold.kind == "gpu", "who is seen to compute is named"

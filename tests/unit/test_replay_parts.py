"""The parts of a replay by themselves: the clock of a past night, counts, comparison, pieces of a log, what follows."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from overnight.events import Verdict
from overnight.folder import RunFolder
from overnight.monitor import Monitor
from overnight.past.clock import PastClock
from overnight.past.comparing import compared
from overnight.past.dates import Dates
from overnight.past.outlook import outlook
from overnight.past.rereading import Bounds, bounds_of, pieces, reread
from overnight.past.tally import Tally, lasted
from overnight.past.times import Attempt, Times
from overnight.spec import RunSpec
from overnight.states import Plan
from overnight.wiring import make_monitor

START = 1_000_000.0


def spec(**changes: object) -> RunSpec:
    plain = RunSpec(name="n", argv=(), executable="", cwd="/", log="/nowhere/output.log")
    return msgspec.structs.replace(plain, **changes)


def monitor(**changes: object) -> Monitor:
    return make_monitor(spec(**changes), print)


def line(step: int, dt: str = "1", loss: str = "2.5") -> bytes:
    return f"step: {step}, loss: {loss}, dt: {dt}\n".encode()


# -- pieces of a log -------------------------------------------------------------------------------------------------


def test_pieces_are_cut_at_marks_and_attempts(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"0123456789")
    bounds = Bounds(0, 2, ((2, 10.0), (5, 20.0), (8, 30.0)), ((2, 1), (7, 2), (10, 3)))
    found = [(piece.data, piece.place, piece.at, piece.attempt) for piece in pieces(log, bounds)]
    assert found == [
        (b"", 2, 10.0, 1), (b"234", 2, 10.0, 1), (b"56", 5, 20.0, 1), (b"", 7, 20.0, 2), (b"7", 7, 20.0, 2),
        (b"89", 8, 30.0, 2), (b"", 10, 30.0, 3),
    ]  # fmt: skip


def test_the_last_line_of_a_log_that_goes_on_is_not_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(line(1) + b"step: 2, loss: 1")
    over, open_ = monitor(), monitor()
    assert [len(one.entries) for one in reread(over, log)] == [1, 1]
    assert [len(one.entries) for one in reread(open_, log, finished=False)] == [1]
    assert (over.meter.last_step, open_.meter.last_step) == (2, 1)


def a_run(
    tmp_path: Path, log: bytes, *facts: dict[str, object], positions: Sequence[tuple[int, int]] = ((0, 0),)
) -> Bounds:
    """Return what is known of a run's log, from a folder with just these facts and attempts."""
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir(exist_ok=True)
    folder.output_log.write_bytes(log)
    folder.journal.write_text("".join(json.dumps(fact) + "\n" for fact in facts) + "{torn")
    for number, position in enumerate(positions, 1):
        folder.attempt(number).path.mkdir(parents=True)
        folder.attempt(number).start_json.write_text(json.dumps({"position": position}))
    return bounds_of(folder, folder.output_log)


def mark(offset: int, epoch: object, source: int = 0) -> dict[str, object]:
    return {"fact": "mark", "source": source, "offset": offset, "epoch": epoch}


def test_what_a_journal_knows_of_a_log(tmp_path: Path) -> None:
    strange = [mark(7, "soon"), mark(8, None), {"fact": "mark"}, {"fact": "verdict", "rule": "x"}]
    found = a_run(tmp_path, bytes(100), mark(50, 20.0), mark(10, 10.0), *strange, positions=((0, 10), (0, 60)))
    assert found == Bounds(0, 10, ((10, 10.0), (50, 20.0)), ((10, 1), (60, 2)))


def test_of_a_rotated_log_only_the_newest_file_is_known(tmp_path: Path) -> None:
    found = a_run(
        tmp_path, bytes(100), mark(500, 5.0), mark(0, 10.0, 1), mark(70, 20.0, 1), positions=((0, 0), (1, 70))
    )
    assert found == Bounds(1, 0, ((0, 10.0), (70, 20.0)), ((0, 1), (70, 2)))


@pytest.mark.parametrize("fact", [mark(101, 5.0), {"fact": "verdict", "source": 0, "offset": 101, "epoch": 1.0}])
def test_a_log_that_is_shorter_than_what_was_read_is_another_one(tmp_path: Path, fact: dict[str, object]) -> None:
    assert a_run(tmp_path, bytes(100), mark(0, 1.0), fact) == Bounds(1, 0, (), ((0, 1),))


def test_a_damaged_database_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.db").write_bytes(b"not a database" * 100)
    assert a_run(tmp_path, bytes(100), mark(0, 1.0)) == Bounds(0, 0, ((0, 1.0),), ((0, 1),))


# -- counts ----------------------------------------------------------------------------------------------------------


def counted(data: bytes, *, cut: int | None = None) -> Tally:
    """Return the counts of a log, fed in pieces of ``cut`` bytes."""
    reading, tally = monitor(), Tally()
    reading.begin_attempt(1)
    size = cut or max(1, len(data))
    for at in range(0, len(data), size):
        tally.add(reading.feed(data[at : at + size], 0.0, 0, at).pieces)
    tally.add(reading.flush(0.0).pieces)
    return tally


def test_counts_do_not_depend_on_how_many_lines_come_at_once() -> None:
    chance = random.Random(3)
    rows, step = [], 0
    for _ in range(3000):
        step = step + chance.choice([1, 1, 1, 10]) if chance.random() > 0.002 else 5
        rows.append(line(step, f"{chance.random():.3f}", "nan" if chance.random() < 0.001 else "2.5"))
    data = b"".join(rows)
    tallies = [counted(data), counted(data, cut=50), counted(data, cut=4096)]
    names = ("records", "evals", "segments", "steps", "step", "loss", "nonfinite", "first_nonfinite")
    for name in names:
        assert len({repr(getattr(tally, name)) for tally in tallies}) == 1, name
    assert tallies[0].records == 3000
    assert tallies[0].nonfinite > 0
    assert tallies[0].segments > 2
    assert all(tally.dt_s == pytest.approx(tallies[0].dt_s) for tally in tallies)


def test_steps_made_twice_count_twice_and_times_are_of_each_step() -> None:
    tally = counted(b"".join(line(step, "0.5") for step in [*range(10, 120, 10), *range(80, 170, 10)]))
    assert (tally.segments, tally.records) == (2, 20)
    assert tally.steps == 1 + 100 + 1 + 80
    assert tally.dt_s == 0.5 * tally.steps


def test_a_line_without_a_time_makes_the_time_unknown() -> None:
    assert counted(line(1) + b"step: 2, loss: 3.1\n" + line(3)).dt_s is None
    assert counted(b"").dt_s is None


def test_only_the_lowest_rank_counts_steps() -> None:
    both = b"".join(f"[rank{rank}]: step: {n}, loss: 2, dt: 1\n".encode() for n in range(1, 101) for rank in (1, 0))
    tally = counted(both)
    assert (tally.records, tally.steps) == (200, 101)  # a step of rank 1 came before anybody knew of rank 0


def test_how_long_a_few_records_took() -> None:
    reading = monitor()
    reading.begin_attempt(1)
    assert lasted(reading.feed(line(1, "2") + line(4, "2"), 0.0).pieces) == 8.0
    assert lasted(reading.feed(b"hello\n", 0.0, 0, 99).pieces) == 0.0
    assert lasted(reading.feed(b"step: 9, loss: 1.5\n", 0.0, 0, 105).pieces) is None


# -- the clock of a past night ---------------------------------------------------------------------------------------


def a_night(until_s: float, **changes: object) -> Times:
    plain = Times(
        "journal",
        (Attempt(1, START, None, None),),
        ((START, "starting", 1), (START, "running", 1)),
        (),
        ((START, 0.0),),
        START + until_s,
    )
    return plain._replace(**changes)


def clocked(reading: Monitor, times: Times, **changes: object) -> PastClock:
    return PastClock(reading, spec(**changes), times, reading.begin_attempt)


def feed(clock: PastClock, at_s: float, data: bytes, place: int, lasting_s: float | None = 0.0) -> list[Verdict]:
    found = list(clock.advance(START + at_s))
    moves = clock.monitor.moves
    clock.monitor.feed(data, START + at_s, 0, place)
    clock.grew(lasting_s, stepping=clock.monitor.moves != moves)
    return found + list(clock.ask())


def test_a_silence_is_told_when_it_is_due_and_once() -> None:
    reading = monitor(stall_s=300.0)
    clock = clocked(reading, a_night(2000), stall_s=300.0)
    found: list[Verdict] = []
    for n in range(20):
        found += feed(clock, 10 + n, line(n), 100 * n)
    assert not found
    found += clock.finish()
    assert [(one.action, one.at) for one in found] == [
        ("alert", pytest.approx(START + 29 + 60, abs=1.5)), ("stop", pytest.approx(START + 29 + 300, abs=1.5)),
    ]  # fmt: skip
    assert {one.step for one in found} == {19}


def test_what_is_written_behind_a_mark_is_no_silence() -> None:
    """A mark comes every ten seconds: lines that came since the last one may have come at any time before the next."""
    reading = monitor(stall_s=8.0)
    clock = clocked(reading, a_night(101), stall_s=8.0)
    found: list[Verdict] = []
    for n in range(10):
        found += feed(clock, 1 + 10.0 * n, line(n), 100 * n, lasting_s=None)
    found += clock.finish()
    assert not found


def test_printed_step_times_say_how_long_it_was_written_for() -> None:
    reading = monitor(stall_s=12.0)
    clock = clocked(reading, a_night(30), stall_s=12.0)
    found = feed(clock, 1, line(1) + line(2) + line(3), 0, lasting_s=2.0)
    found += clock.finish()
    assert [(one.action, one.at) for one in found if one.action == "stop"] == [
        ("stop", pytest.approx(START + 3 + 12, abs=1.1))
    ]


@pytest.mark.parametrize(("gap_s", "ends"), [(10.2, False), (13.0, False), (18.0, True)])
def test_a_limit_finer_than_the_time_marks_is_only_met_beyond_doubt(gap_s: float, *, ends: bool) -> None:
    """Steps of 0.12 s add up to less than the ten seconds between two marks: what is missing is no silence."""
    reading = monitor(stall_s=5.0)
    clock = clocked(reading, a_night(31 + gap_s), stall_s=5.0)
    found: list[Verdict] = []
    for n, at in enumerate([1.0, 11.0, 21.0, 21.0 + gap_s, 31.0 + gap_s]):
        found += feed(clock, at, line(2 * n) + line(2 * n + 1), 100 * n, lasting_s=6.0)
    assert bool([one for one in found if one.action == "stop"]) == ends
    if gap_s < 12:
        assert not found


def test_a_save_among_the_steps_is_no_silence_after_it() -> None:
    reading = monitor(stall_s=5.0)
    saves = ((START + 4.0, 0.0, True),)
    clock = clocked(reading, a_night(11, saves=saves), stall_s=5.0)
    found = feed(clock, 1, line(1) + line(2), 0, lasting_s=1.0)
    assert not found + list(clock.finish())


def test_limits_count_the_seconds_of_attempts_and_money_those_between_them() -> None:
    attempts = (Attempt(1, START, START + 100, 100.0), Attempt(2, START + 400, None, None))
    states = (
        (START, "running", 1), (START + 100, "backoff", 1), (START + 399, "starting", 2), (START + 400, "running", 2),
    )  # fmt: skip
    times = a_night(2000, attempts=attempts, states=states)
    hours = monitor(max_hours=0.1)  # 360 s of the command: 100 in the first attempt, 260 in the second
    found = list(clocked(hours, times, max_hours=0.1).finish())
    assert [one.at for one in found if one.action == "stop"] == [pytest.approx(START + 660, abs=1.5)]
    money = monitor(max_cost=1.0, price=10.0)  # 360 s since the launch, which pass between the attempts
    found = list(clocked(money, times, max_cost=1.0, price=10.0).finish())
    assert [one.at for one in found if one.action == "stop"] == [pytest.approx(START + 360, abs=1.5)]


def test_nothing_is_asked_while_a_stop_is_under_way() -> None:
    states = ((START, "running", 1), (START + 50, "stopping", 1))
    reading = monitor(max_hours=0.1)
    assert not [one for one in clocked(reading, a_night(2000, states=states)).finish() if one.action == "stop"]


def test_a_save_that_was_seen_begins_the_stop_earlier() -> None:
    saves = ((START + 100, 40.0, True),)
    with_save, without = monitor(max_hours=0.1), monitor(max_hours=0.1)
    early = [one for one in clocked(with_save, a_night(900, saves=saves)).finish() if one.action == "stop"]
    late = [one for one in clocked(without, a_night(900)).finish() if one.action == "stop"]
    assert late[0].at is not None
    assert early[0].at == pytest.approx(late[0].at - 1.5 * 40 - 2, abs=2)


def test_a_save_of_its_own_folder_excuses_a_silence() -> None:
    saves = tuple((START + 30.0 + 30 * n, 25.0, True) for n in range(60))
    plain = monitor()
    clock = clocked(plain, a_night(1500, saves=saves), checkpoints="/own")
    found = [one for n in range(5) for one in feed(clock, 1 + n, line(n), 100 * n)] + list(clock.finish())
    assert not [one for one in found if one.action == "alert"]
    lonely = monitor()
    clock = clocked(lonely, a_night(1500))
    found = [one for n in range(5) for one in feed(clock, 1 + n, line(n), 100 * n)] + list(clock.finish())
    assert [one.action for one in found if one.action == "alert"] == ["alert"]


# -- the night beside it ---------------------------------------------------------------------------------------------


def verdict(rule: str = "spike", offset: int = 100, **changes: object) -> Verdict:
    plain = Verdict(rule=rule, severity="warn", action="alert", text="t", step=offset // 10, offset=offset, at=START)
    return msgspec.structs.replace(plain, **changes)


def how(now: list[Verdict], then: list[Verdict], source: int = 0) -> list[str]:
    return [pair.how for pair in compared(now, then, source=source)]


def test_verdicts_are_paired_by_place_then_in_their_order() -> None:
    one = verdict()
    assert how([one], [one]) == ["same"]
    assert how([one], [msgspec.structs.replace(one, action="note")]) == ["changed"]
    assert how([one], []) == ["new"]
    assert how([], [one]) == ["gone"]
    assert how([verdict(offset=50)], [one]) == ["earlier"]
    assert how([verdict(offset=500)], [one]) == ["later"]
    assert how([verdict("collapse", 50)], [one]) == ["new", "gone"]
    assert how([verdict(offset=50), one], [one]) == ["new", "same"]
    assert how([verdict(attempt=2)], [one]) == ["new", "gone"]


def test_what_cannot_be_judged_again_is_no_difference() -> None:
    assert how([], [verdict("disk_space")]) == ["live only"]
    assert how([], [verdict(source=1)], source=2) == ["elsewhere"]
    assert how([verdict(source=2)], [verdict(source=1)], source=2) == ["new", "elsewhere"]


def test_verdicts_on_time_are_the_same_within_the_resolution() -> None:
    told = verdict("stall", -1, part=2)
    assert how([msgspec.structs.replace(told, at=START + 9, text="other seconds")], [told]) == ["same"]
    assert how([msgspec.structs.replace(told, at=START + 90)], [told]) == ["later"]
    assert how([msgspec.structs.replace(told, at=START - 90)], [told]) == ["earlier"]
    pair = compared([msgspec.structs.replace(told, at=START - 90)], [told], source=0)[0]
    assert pair.by_s == -90


# -- what would have become of it ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "restarts", "attempt", "again", "then"),
    [
        ("nonfinite", 3, 1, False, "stopped (nonfinite)"),
        ("wall_clock", 3, 1, False, "stopped (wall_clock)"),
        ("stall", 0, 1, False, "stopped (stall)"),
        ("stall", 3, 1, True, "started again (restart 1 of 3)"),
        ("stall", 3, 3, True, "started again (restart 3 of 3)"),
        ("stall", 3, 4, False, "gave_up (stall)"),
    ],
)
def test_what_the_restart_policy_makes_of_an_end(
    rule: str, restarts: int, attempt: int, again: bool, then: str
) -> None:
    one = verdict(rule, action="stop", attempt=attempt)
    assert outlook(one, spec(restarts=restarts), Plan()) == (again, then)


def test_a_stall_after_the_last_step_is_a_finish() -> None:
    one = verdict("stall", action="stop", step=100)
    assert outlook(one, spec(restarts=3), Plan(steps=100)) == (False, "finished (bad_teardown)")


# -- dates -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "2026-02-03T04:05:06Z step: 1",
        "[2026-02-03 04:05:06,250+00:00][INFO] - step",
        "INFO 2026-02-03 09:35:06+0530 step",
        "(worker pid) 2026/02/03 04:05:06 UTC x",
        "[rank] [02/03/2026 04:05:06 UTC] x",
        '{"ts": "2026-02-03T04:05:06Z", "step": 1}',
        "Tue Feb  3 04:05:06 2026 UTC: x",
    ],
)
def test_dates_of_many_forms(text: str) -> None:
    assert Dates().read(text.encode()) == pytest.approx(1770091506.0, abs=0.3)


@pytest.mark.parametrize(
    "text",
    [
        "step: 1, loss: 2.0, saved at 2026-02-03 04:05:06", "04:05:06 step: 1", "2026-13-03 04:05:06 x", "x",
        "step=2026-02-03 04:05:06", "", "02/03 04:05:06 x", "2026-02-03 x",
    ],
)  # fmt: skip
def test_what_is_no_date_of_the_line(text: str) -> None:
    assert Dates().read(text.encode()) is None


def test_one_form_is_kept() -> None:
    dates = Dates()
    assert dates.read(b"2026-02-03T04:05:06Z a") is not None
    assert dates.read(b"02/03/2026 04:05:06 UTC a") is None

"""Exactly once: Intake abandoned or killed anywhere stores and judges what one that was never killed would have.

"Abandoned" is what SIGKILL leaves: nothing is committed, closed or flushed. What a rebuild from log and journal gives
is the yardstick, arrival times included.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from overnight.facts import Facts
from overnight.folder import RunFolder, read_journal
from overnight.history.store import records_of
from overnight.intake import reading as intake_module
from overnight.intake.reading import Intake
from overnight.spec import RunSpec
from overnight.wiring import make_monitor

POISON = {37: "nan", 90: "inf", 141: "nan"}


class Night:
    """One run folder with a log, and the intakes that came and went."""

    def __init__(self, path: Path, *, start: int = 0, old: bytes = b"", log: Path | None = None) -> None:
        self.folder = RunFolder(path)
        self.folder.create()
        self.log = log or self.folder.output_log
        self.log.write_bytes(old)
        self.start = start
        self.bounds: list[tuple[int, int, int]] = []
        self.spec = RunSpec(
            name="night", argv=("train",), executable="/bin/true", cwd="/", log=str(self.log),
            tokens_per_step=100.0, actions={"nonfinite": "alert"},
        )  # fmt: skip
        self.open: list[tuple[Intake, Facts]] = []
        self.intake = self.begin()

    def begin(self) -> Intake:
        """Do what a supervisor does when it starts."""
        facts = Facts(self.folder)
        monitor = make_monitor(self.spec, facts.note)
        self.intake = Intake(self.folder, self.spec, monitor, facts, start=self.start, pids=())
        self.intake.bounds.extend(bound for bound in self.bounds if bound[2] > monitor.attempt)
        self.open.append((self.intake, facts))
        return self.intake

    def attempt(self, number: int) -> None:
        """Begin an attempt as the supervisor does: start.json keeps the place."""
        self.bounds.append((*self.intake.begin_attempt(number), number))

    def turn(self) -> int:
        """Read and judge; return how many verdicts there were."""
        found = self.intake.read(clock=1.0)
        for verdict in found:
            self.intake.facts.judge(verdict)
        return len(found)

    def abandon(self) -> None:
        """Close what SIGKILL would close, and no more than that."""
        for one, facts in self.open:
            one.history.db.close()  # rolls back what is open
            one.log.close()
            facts.journal.close()
        self.open.clear()

    def killed(self) -> Intake:
        """SIGKILL, and a new supervisor."""
        self.abandon()
        return self.begin()

    def stored(self) -> tuple[list[dict[str, object]], list[dict[str, Any]]]:
        """Return the records and verdicts of metrics.db."""
        with closing(sqlite3.connect(self.folder.metrics_db)) as db:
            db.row_factory = sqlite3.Row
            verdicts = [dict(row) for row in db.execute("SELECT * FROM verdicts")]
        return list(records_of(self.folder.metrics_db)), verdicts

    def facts(self) -> list[dict[str, Any]]:
        """Return the verdict facts of the journal."""
        return [fact for fact in read_journal(self.folder.journal) if fact["fact"] == "verdict"]

    def rebuilt(self) -> tuple[list[dict[str, object]], list[dict[str, Any]]]:
        """Throw metrics.db away and return what a new supervisor makes of log and journal."""
        self.abandon()
        for path in self.folder.path.glob("metrics.db*"):
            path.unlink()
        self.begin()
        while True:
            self.turn()
            if not self.intake.more:
                break
        self.intake.commit()
        return self.stored()


@contextmanager
def a_night(path: Path, **facts: Any) -> Iterator[Night]:
    """Make a night and close it."""
    night = Night(path, **facts)
    try:
        yield night
    finally:
        night.abandon()


@pytest.fixture
def night(tmp_path: Path) -> Iterator[Night]:
    """Return a run whose first attempt has begun."""
    with a_night(tmp_path / "runs" / "night") as one:
        one.attempt(1)
        yield one


def line(step: int, *, dt: bool = True) -> bytes:
    """Return a telemetry line; some are poisoned."""
    loss = POISON.get(step, f"{3 - step / 1000:.4f}")
    return f"step: {step}, loss: {loss}{', dt: 0.25' if dt else ''}\n".encode()


def append(path: Path, data: bytes) -> None:
    """Add to a file as a writer with O_APPEND does."""
    with path.open("ab") as stream:
        stream.write(data)


@pytest.fixture
def quick_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have many time marks in a short test."""
    monkeypatch.setattr(intake_module, "MARK_EVERY_S", 0.002)
    monkeypatch.setattr(intake_module, "MARK_WITHOUT_DT_S", 0.001)


@pytest.mark.usefixtures("quick_marks")
@pytest.mark.parametrize("seed", range(6))
def test_killed_at_random_moments_equals_a_rebuild(night: Night, seed: int) -> None:
    dice = random.Random(seed)
    dt = seed % 2 == 0
    text = b"".join(line(step, dt=dt) for step in range(1, 200))
    written = 0
    while written < len(text):
        size = dice.randint(1, 120)
        append(night.log, text[written : written + size])
        written += size
        if dice.random() < 0.8:
            night.turn()
        if dice.random() < 0.3:
            night.intake.commit()
        if dice.random() < 0.15:
            night.killed()
        if dice.random() < 0.1:
            time.sleep(0.003)
    night.turn()
    night.intake.commit()
    records, verdicts = night.stored()
    assert [row["step"] for row in records] == list(range(1, 200))
    assert len({row["at"] for row in records}) > 5
    assert [(one["step"], one["rule"]) for one in verdicts] == [(37, "nonfinite")]  # told once per segment
    facts = night.facts()
    assert [fact["step"] for fact in facts] == [37]
    assert night.rebuilt() == (records, verdicts)
    assert night.facts() == facts


@pytest.mark.usefixtures("quick_marks")
@pytest.mark.parametrize("seed", range(3))
def test_segments_and_attempts_are_the_same_after_kills_and_a_rebuild(night: Night, seed: int) -> None:
    dice = random.Random(seed)
    for number in (1, 2, 3, 4):
        if number > 1:
            night.attempt(number)
        if number != 3:  # attempt 3 says nothing at all
            for step in [*range(30, 45), *range(35, 40)]:
                append(night.log, line(step))
                if dice.random() < 0.7:
                    night.turn()
                if dice.random() < 0.2:
                    night.intake.commit()
                if dice.random() < 0.2:
                    night.killed()
        append(night.log, b"step: 99, loss: 1.0")  # killed within its last line
        night.turn()
        night.intake.flush()
    night.intake.commit()
    records, verdicts = night.stored()
    steps = [*range(30, 45), *range(35, 40), 99]
    assert [(row["attempt"], row["step"]) for row in records] == [
        (number, step) for number in (1, 2, 3, 4) for step in (steps if number != 3 else [99])
    ]
    assert [one["attempt"] for one in verdicts if one["rule"] != "rewind"] == [1, 1, 2, 2, 4, 4]  # two segments each
    assert [one["attempt"] for one in verdicts if one["rule"] == "rewind"] == [1, 2, 4]
    assert len(night.facts()) == 9
    night.rebuilt()
    night.intake.flush()
    night.intake.commit()
    assert night.stored() == (records, verdicts)
    assert len(night.facts()) == 9


CHILD = """
import sys, time
from pathlib import Path
from overnight.intake import reading as module
from overnight.facts import Facts
from overnight.folder import RunFolder
from overnight.spec import RunSpec
from overnight.wiring import make_monitor
module.MARK_EVERY_S = 0.02
folder = RunFolder(Path(sys.argv[1]))
spec = RunSpec(name="night", argv=("train",), executable="/bin/true", cwd="/", log=sys.argv[2], tokens_per_step=100.0,
               actions={"nonfinite": "alert"})
facts = Facts(folder)
monitor = make_monitor(spec, facts.note)
intake = module.Intake(folder, spec, monitor, facts, start=0, pids=())
if monitor.attempt < 1:
    intake.bounds.append((0, 0, 1))
print("up", flush=True)
committed = time.monotonic()
while True:
    for verdict in intake.read(clock=1.0):
        facts.judge(verdict)
    if time.monotonic() - committed > 0.02:
        intake.commit()
        committed = time.monotonic()
    time.sleep(0.0005)
"""


def test_sigkill_at_random_moments_of_a_fast_log(tmp_path: Path) -> None:
    dice = random.Random(11)
    with a_night(tmp_path / "runs" / "night") as night:
        night.bounds.append((0, 0, 1))
        night.abandon()
        step = 0
        with night.log.open("ab", buffering=0) as training:
            for _ in range(8):
                argv = [sys.executable, "-c", CHILD, str(night.folder.path), str(night.log)]
                with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as child:
                    assert child.stdout is not None
                    assert child.stdout.readline() == "up\n"
                    end = time.monotonic() + dice.uniform(0.02, 0.25)
                    while time.monotonic() < end:
                        step += 1
                        text = line(step)
                        cut = dice.randint(0, len(text))
                        training.write(text[:cut])  # two writes to a line, as PYTHONUNBUFFERED does
                        training.write(text[cut:])
                        time.sleep(0.0005)
                    child.send_signal(signal.SIGKILL)
                    assert child.wait() == -signal.SIGKILL
        night.begin()
        night.turn()
        night.intake.commit()
        records, verdicts = night.stored()
        assert [row["step"] for row in records] == list(range(1, step + 1))
        facts = night.facts()
        assert [fact["step"] for fact in facts] == [one["step"] for one in verdicts]
        assert len(facts) == 1
        assert night.rebuilt() == (records, verdicts)
        assert night.facts() == facts


def test_a_torn_journal_line_loses_that_fact_alone(night: Night) -> None:
    append(night.log, line(36) + line(37))
    assert night.turn() == 1
    night.intake.commit()
    append(night.folder.journal, b'{"at": "2026-01-01T00:00:00.000Z", "fact": "verdict", "rule": "nonf')
    night.killed()
    append(night.log, line(1) + line(37))
    assert night.turn() == 1
    night.intake.commit()
    assert [fact["offset"] for fact in night.facts()] == [len(line(36)), len(line(36) + line(37) + line(1))]
    lines = night.folder.journal.read_bytes().splitlines()
    assert sum(b'"rule": "nonf' in one and not one.endswith(b"}") for one in lines) == 1


def test_a_verdict_whose_fact_was_torn_is_written_again(night: Night) -> None:
    append(night.log, line(36) + line(37))
    night.turn()
    data = night.folder.journal.read_bytes()
    night.abandon()
    night.folder.journal.write_bytes(data[:-20])  # killed within the write of the verdict
    night.begin()
    assert night.facts() == []
    assert night.turn() == 1
    assert [fact["step"] for fact in night.facts()] == [37]


@pytest.mark.parametrize(
    "edit",
    [
        b'{"fact": "mark"}\n',
        b'{"fact": "mark", "source": "x", "offset": null, "epoch": []}\n',
        b'{"fact": "verdict", "rule": 5}\n{"fact": "attempt_ended"}\n{"fact": "saved"}\n',
        b"[]\nnull\n\xff\xfe\n\n",
    ],
)
def test_a_journal_edited_by_hand_ends_nothing(night: Night, edit: bytes) -> None:
    append(night.folder.journal, edit)
    night.killed()
    append(night.log, line(37))
    assert night.turn() == 1


def test_a_log_that_was_there_before_counts_from_its_own_places(tmp_path: Path) -> None:
    old = b"".join(line(step) for step in range(30, 50))
    with a_night(tmp_path / "runs" / "night", old=old, start=len(old)) as night:
        night.attempt(1)
        assert night.bounds == [(0, len(old), 1)]
        append(night.log, line(37) + line(38))
        assert night.turn() == 1
        night.intake.commit()
        night.killed()
        append(night.log, line(39))
        night.turn()
        night.intake.commit()
        records, verdicts = night.stored()
        places = [len(old), len(old) + len(line(37)), len(old) + len(line(37) + line(38))]
        assert [row["offset"] for row in records] == places  # of the line in the file, not of what was read
        assert [one["offset"] for one in verdicts] == places[:1]
        assert night.rebuilt() == (records, verdicts)


@pytest.mark.usefixtures("quick_marks")
@pytest.mark.parametrize("how", ["truncate", "rename"])
def test_a_rebuild_after_the_log_began_anew_gives_the_same_numbers(night: Night, how: str) -> None:
    append(night.log, b"".join(line(step) for step in range(1, 40)))
    night.turn()
    time.sleep(0.01)
    if how == "truncate":
        os.truncate(night.log, 0)
        night.turn()
    else:
        night.log.rename(night.log.with_suffix(".1"))
    append(night.log, line(1) + line(37))
    night.turn()
    time.sleep(0.01)
    append(night.log, line(38))
    night.turn()
    night.intake.commit()
    records, verdicts = night.stored()
    facts = night.facts()
    assert {row["source"] for row in records} == {0, 1}
    assert [(one["source"], one["step"]) for one in verdicts] == [(0, 37), (1, 37)]
    again, _ = night.rebuilt()  # of the older bytes nothing is left under the log's name
    fresh = [row for row in records if row["source"] == 1]
    for row in (*again, *fresh):
        del row["segment"]  # of what is gone
    assert again == fresh
    assert night.facts() == facts  # nothing is told twice
    time.sleep(0.01)
    append(night.log, line(39))
    night.turn()
    night.intake.commit()
    last = night.stored()[0][-1]
    assert float(str(last["at"])) > float(str(again[-1]["at"]))  # time goes on after a rebuild


def test_a_log_that_begins_anew_twice_in_a_moment_is_counted_in_a_rebuild(night: Night) -> None:
    for step in (1, 2, 37):  # all within the distance of two time marks
        append(night.log, line(step))
        night.turn()
        if step != 37:
            os.truncate(night.log, 0)
            night.turn()
    night.intake.commit()
    records, verdicts = night.stored()
    assert [(row["source"], row["step"]) for row in records] == [(0, 1), (1, 2), (2, 37)]
    again, same = night.rebuilt()
    assert [(row["source"], row["step"]) for row in again] == [(2, 37)]
    assert same == verdicts
    assert len(night.facts()) == 1


def test_attempts_that_began_before_the_first_byte_of_a_hole(night: Night) -> None:
    """A writer that does not append, after a truncation: its first byte lies behind the places of several attempts."""
    night.abandon()
    night.folder.metrics_db.unlink()
    with night.log.open("r+b") as stream:
        stream.seek(1 << 20)
        stream.write(b"\n" + line(37))
    night.bounds = [(0, 0, 1), (0, 0, 2), (0, 100, 3), (0, 200, 4)]
    night.begin()
    assert night.turn() == 1
    night.intake.commit()
    assert [(row["attempt"], row["step"]) for row in night.stored()[0]] == [(4, 37)]


def test_a_truncated_log_keeps_its_arrival_times_over_a_kill(night: Night) -> None:
    append(night.log, line(1))
    night.turn()
    night.intake.commit()
    os.truncate(night.log, 0)
    night.turn()
    append(night.log, line(2))
    night.turn()
    night.intake.commit()
    at = night.intake.mark_at
    night.killed()
    assert night.intake.mark_at == at
    append(night.log, line(3))
    night.turn()
    assert night.intake.mark_at == at  # less than a mark's distance has gone by


@pytest.mark.usefixtures("quick_marks")
def test_a_clock_that_is_set_back(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    shift = 0.0
    real = time.time
    monkeypatch.setattr(intake_module.time, "time", lambda: real() + shift)
    for step in range(1, 40):
        if step == 20:
            shift = -3600.0
        append(night.log, line(step))
        night.turn()
        if step % 7 == 0:
            night.intake.commit()
            night.killed()
        time.sleep(0.003)
    night.intake.commit()
    records, verdicts = night.stored()
    times = [float(str(row["at"])) for row in records]
    assert max(times[20:]) < min(times[:19])
    assert night.rebuilt() == (records, verdicts)


def test_a_damaged_database_is_rebuilt(night: Night) -> None:
    append(night.log, b"".join(line(step) for step in range(1, 60)))
    night.turn()
    night.intake.commit()
    before = night.stored()
    night.abandon()
    night.folder.metrics_db.write_bytes(b"SQLite format 3\0" + b"\xff" * 9000)
    for tail in ("-wal", "-shm"):
        Path(f"{night.folder.metrics_db}{tail}").unlink(missing_ok=True)
    night.begin()
    night.turn()
    night.intake.commit()
    assert night.stored() == before
    assert len(night.facts()) == 1
    assert any("damaged" in note for note in night.intake.facts.notes)


def test_one_turn_reads_so_much_and_says_that_there_is_more(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake_module, "TURN_BYTES", 300_000)
    text = b"".join(line(step) for step in range(1000, 31_000))
    append(night.log, text)
    turns = 0
    while True:
        night.turn()
        night.intake.commit()
        turns += 1
        if not night.intake.more:
            break
        if turns == 2:
            night.killed()
    assert turns > 2
    assert [row["step"] for row in night.stored()[0]] == list(range(1000, 31_000))


def test_memory_stays_bounded_without_a_line_end(night: Night) -> None:
    append(night.log, b"x" * (5 << 20))
    while True:
        night.turn()
        night.intake.commit()
        if not night.intake.more:
            break
    append(night.log, b"\n" + line(37))
    assert night.turn() == 1
    with closing(sqlite3.connect(night.folder.metrics_db)) as db:
        assert db.execute("SELECT length(value) FROM state").fetchone()[0] < 100_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of 4 MiB; skip where that is not allowed."""
    point = tmp_path / "disk"
    point.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(point)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    yield point
    subprocess.run(["umount", "--lazy", str(point)], check=True)  # also when a failed test holds a file


def fill(path: Path) -> None:
    """Use up what is free on a disk, to the last byte."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        for size in (65536, 4096, 1):
            with suppress(OSError):
                while True:
                    os.write(handle, b"f" * size)
    finally:
        os.close(handle)
    assert os.statvfs(path.parent).f_bavail == 0


def test_a_full_disk_keeps_nobody_from_judging(small_disk: Path, tmp_path: Path) -> None:
    """The run folder's disk is full, the log is elsewhere: judged at once, stored once there is room."""
    with a_night(small_disk / "night", log=tmp_path / "train.log") as night:
        night.attempt(1)
        append(night.log, line(1))
        night.turn()
        night.intake.commit()
        fill(small_disk / "filler")
        for step in range(2, 40):
            append(night.log, line(step))
            found = night.turn()
            night.intake.commit()
            assert found == (step == 37)
        assert night.intake.dirty
        assert [row["step"] for row in records_of(night.folder.metrics_db)] == [1]
        (small_disk / "filler").unlink()
        append(night.log, line(40))
        night.turn()
        night.intake.commit(at_last=True)
        assert [row["step"] for row in night.stored()[0]] == list(range(1, 41))


def test_the_ballast_is_freed_for_the_last_facts(small_disk: Path, tmp_path: Path) -> None:
    with a_night(small_disk / "night", log=tmp_path / "train.log") as night:
        night.attempt(1)
        night.folder.put_ballast()
        fill(small_disk / "filler")
        append(night.log, line(37))
        assert night.turn() == 1
        assert night.intake.facts.lost == 0
        assert not night.folder.ballast.exists()
        assert [fact["step"] for fact in night.facts()] == [37]


def test_a_supervisor_that_starts_on_a_full_disk_judges_too(small_disk: Path, tmp_path: Path) -> None:
    with a_night(small_disk / "night", log=tmp_path / "train.log") as night:
        night.attempt(1)
        append(night.log, line(1) + line(2))
        night.turn()
        night.intake.commit()
        night.abandon()
        fill(small_disk / "filler")
        night.begin()
        append(night.log, line(37))
        assert night.turn() == 1
        night.intake.commit()
        (small_disk / "filler").unlink()
        night.killed()
        append(night.log, line(38))
        night.turn()
        night.intake.commit()
        assert [row["step"] for row in night.stored()[0]] == [1, 2, 37, 38]


def test_a_full_stderr_ends_nothing(small_disk: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from overnight.facts import Facts; from overnight.folder import RunFolder\n"
        "facts = Facts(RunFolder(Path(sys.argv[1])))\n"
        "for turn in range(1000): facts.say('note', text='n' * 500); facts.sync()\n"
        "print(facts.lost > 0)"
    )
    folder = RunFolder(small_disk / "night")
    folder.create()
    folder.journal.touch()
    fill(small_disk / "filler")
    with Path("/dev/full").open("wb") as full:
        argv = [sys.executable, "-c", code, str(folder.path)]
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=full, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "True\n")


def test_closing_stores_the_rest_and_gives_space_back(night: Night) -> None:
    append(night.log, line(1))
    night.turn()
    night.intake.disk_trouble()
    night.intake.close()
    night.open.clear()
    assert night.log.read_bytes() == line(1)
    assert night.log.stat().st_blocks * 512 < 1 << 20
    assert [row["step"] for row in night.stored()[0]] == [1]


def test_closing_when_the_log_was_taken_away(night: Night) -> None:
    append(night.log, line(1))
    night.turn()
    night.intake.disk_trouble()
    night.log.unlink()
    night.intake.close()
    night.open.clear()
    assert [row["step"] for row in night.stored()[0]] == [1]


@pytest.mark.parametrize("let_go", [True, False])
def test_a_last_commit_that_fails_is_tried_again_or_told(night: Night, let_go: bool) -> None:
    append(night.log, b"".join(line(step) for step in range(20)))
    night.turn()
    night.intake.commit()
    append(night.log, b"".join(line(step) for step in range(20, 400)))
    night.turn()
    with closing(sqlite3.connect(night.folder.metrics_db, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert not night.intake.close()
        assert not night.intake.close()
        assert len(list(records_of(night.folder.metrics_db))) == 20
        if let_go:
            other.execute("ROLLBACK")
            assert night.intake.close()
        else:
            night.intake.give_up()
    notes = [fact["text"] for fact in read_journal(night.folder.journal) if fact["fact"] == "note"]
    assert any("`overnight reindex night`" in text for text in notes) is not let_go
    assert len(list(records_of(night.folder.metrics_db))) == (400 if let_go else 20)
    night.killed()
    night.turn()
    night.intake.commit()
    assert len(list(records_of(night.folder.metrics_db))) == 400  # the place that is stored is that of what is stored


def test_a_disk_that_was_full_at_the_end_and_has_room_again(small_disk: Path, tmp_path: Path) -> None:
    with a_night(small_disk / "runs" / "night", log=tmp_path / "output.log") as night:
        night.attempt(1)
        night.turn()
        night.intake.commit()
        append(night.log, b"".join(line(step) for step in range(3000)))
        night.turn()
        fill(small_disk / "filler")
        assert not night.intake.close()
        (small_disk / "filler").unlink()
        assert night.intake.close()
        records, _ = night.stored()
        assert len(records) == 3000


def test_no_line_ends_the_night(night: Night) -> None:
    huge = b"9" * 25
    odd = [
        b"step 51 | loss 3.1 | rank=" + huge + b"\n", b"step: " + huge + b", loss: 3.0\n",
        b"step: 52, loss: " + b"9" * 400 + b", tokens: " + huge + b"\n", b'{"step": 53, "loss": 3.0, "t\\ud800": 4}\n',
        b'{"step": 54, "loss": 3.0, "n": ' + b"9" * 400 + b', "u": "\\udfff"}\n', b"step: 55, loss: 1e999, x\xff: 3\n",
    ]  # fmt: skip
    append(night.log, b"".join(line(step) for step in range(50)) + b"".join(odd))
    append(night.log, b"".join(line(step) for step in range(60, 9000)))
    for _ in range(3):
        night.turn()
        while night.intake.more:
            night.intake.commit()
            night.turn()
        night.intake.commit()
        assert not night.intake.dirty
        night.killed()
    records, _ = night.stored()
    assert {row["step"] for row in records} >= {*range(50), *range(60, 9000)}

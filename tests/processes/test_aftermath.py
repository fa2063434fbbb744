"""What came of a restart, from a real metrics.db: read at the first record, said once, found again after a kill."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from overnight.batches import Batch, Entry
from overnight.events import Record, Verdict
from overnight.facts import Facts
from overnight.folder import RunFolder
from overnight.history import store
from overnight.history.store import History
from overnight.intake.reading import Intake
from overnight.monitor import Outcome
from overnight.resumption.aftermath import BEFORE, BESIDE, Aftermath
from overnight.spec import RunSpec
from overnight.wiring import make_monitor


def line(step: int, **changed: float) -> str:
    """Return a line of a training that does the same again whenever it does a step again."""
    dice = random.Random(step)
    said = {"loss": round(dice.gauss(2.1, 0.05), 4), "lr": 3e-4, "norm": round(dice.random(), 3), **changed}
    return (
        f"step {step} | "
        + " | ".join(f"{name} {value}" for name, value in said.items())
        + f" | dt {dice.random():.3f}\n"
    )


def lines(first: int, last: int, every: int = 1, **changed: float) -> str:
    """Return the lines of some steps, the last one included."""
    return "".join(line(step, **changed) for step in range(first, last + 1, every))


class Night:
    """A run folder, its log, and what a supervisor does with them, as far as it matters here."""

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder(path)
        self.folder.create()
        self.folder.output_log.touch()
        self.spec = RunSpec(
            name="night", argv=("train",), executable="/bin/true", cwd="/", log=str(self.folder.output_log)
        )  # fmt: skip
        self.bounds: list[tuple[int, int, int]] = []
        self.said: list[dict[str, Any]] = []
        self.verdicts: dict[Any, Verdict] = {}
        self.aftermath: Aftermath | None = None
        self.resume: dict[str, Any] = {}
        self.saved: int | None = None
        self.begin()

    def begin(self) -> None:
        """A supervisor starts, perhaps in the middle of an attempt."""
        self.facts = Facts(self.folder)
        self.monitor = make_monitor(self.spec, self.facts.note)
        self.intake = Intake(self.folder, self.spec, self.monitor, self.facts, start=0, pids=())
        self.intake.bounds.extend(bound for bound in self.bounds if bound[2] > self.monitor.attempt)
        take = self.intake._take

        def taken(outcome: Outcome) -> list[Verdict]:
            if self.aftermath is not None:
                self.judge(self.aftermath.take(outcome.pieces))
            return take(outcome)

        self.intake._take = taken  # type: ignore[method-assign]
        if len(self.bounds) > 1:
            self.make_aftermath()

    def judge(self, verdicts: Iterable[Verdict]) -> None:
        """Take verdicts, each once."""
        for one in verdicts:
            self.verdicts.setdefault(one.key, one)

    def say(self, fact: str, **details: Any) -> None:
        """Keep a fact."""
        assert fact == "overlap"
        self.said.append(details)

    def attempt(self, number: int, *, saved: int | None = None, **resume: Any) -> None:
        """Begin an attempt, the second one with what it was given."""
        self.read()
        self.intake.commit(at_last=True)
        self.bounds.append((*self.intake.begin_attempt(number), number))
        self.saved, self.resume = saved, resume
        if number > 1:
            self.make_aftermath()

    def make_aftermath(self) -> None:
        """Make what is looked at, from the facts."""
        *place, number = self.bounds[-1]
        self.aftermath = Aftermath(
            self.folder.metrics_db,
            attempt=number,
            place=(place[0], place[1]),
            resume=self.resume,
            saved=self.saved,
            told=any(one["attempt"] == number for one in self.said),
            say=self.say,
        )

    def write(self, text: str) -> None:
        """Append to the log and read it."""
        with self.folder.output_log.open("a") as log:
            log.write(text)
        self.read()

    def read(self) -> None:
        """Read all that is there."""
        self.intake.read(clock=1.0)
        while self.intake.more:
            self.intake.read(clock=1.0)

    def end(self) -> None:
        """The attempt has ended."""
        self.read()
        self.intake.flush()
        if self.aftermath is not None:
            self.judge(self.aftermath.finish())

    def abandon(self) -> None:
        """Close what SIGKILL would close, and no more than that."""
        self.intake.history.db.close()
        self.intake.log.close()
        self.facts.journal.close()

    def texts(self) -> list[str]:
        """Return what was told."""
        return [one.text for one in self.verdicts.values()]


@pytest.fixture
def night(tmp_path: Path) -> Iterator[Night]:
    """Return a run whose first attempt is under way."""
    one = Night(tmp_path / "night")
    one.attempt(1)
    yield one
    one.abandon()


def test_ten_of_ten_equal(night: Night) -> None:
    night.write(lines(1, 210))
    night.attempt(2, saved=200, path="/c/200.pt", step=200)
    night.write(lines(201, 230))
    assert night.said == [
        {"attempt": 2, "since": 200, "compared": 10, "equal": 10, "first_difference": None, "text": "10/10 equal"}
    ]
    assert night.aftermath is not None
    assert night.aftermath.over()
    night.end()
    assert len(night.said) == 1
    assert night.verdicts == {}


def test_first_difference_207_and_the_attempts_end(night: Night) -> None:
    night.write(lines(1, 210))
    night.attempt(2, saved=200, path="/c/200.pt", step=200)
    night.write(lines(201, 206) + line(207, norm=0.5, loss=2.1) + lines(208, 210))
    assert night.said == []
    night.end()
    (said,) = night.said
    assert said["text"].startswith("9/10, first difference 207: loss ")
    assert said["first_difference"]["after"] == 2.1
    assert night.verdicts == {}


def test_a_fresh_start_is_told_with_the_first_line(night: Night) -> None:
    night.write(lines(1, 320))
    night.attempt(2, saved=300, path="/c/300.pt", step=300)
    night.write("loading\n" + line(1))
    (verdict,) = night.verdicts.values()
    assert verdict.text == "resumed from 300 but the run restarted at 1"
    assert (verdict.rule, verdict.severity, verdict.action, verdict.part) == ("resume", "warn", "alert", 0)
    assert (verdict.attempt, verdict.step, verdict.source, verdict.offset) == (2, 1, *night.bounds[1][:2])
    assert [one["text"] for one in night.said] == ["it began at step 1"]


def test_a_fresh_start_without_a_known_path(night: Night) -> None:
    night.write(lines(10, 320, 10))
    night.attempt(2, saved=300, path=None, step=None, passed_over=[])
    night.write(lines(10, 40, 10))
    assert night.texts() == ["the run had reached 320, with a save at 300, but it restarted at 10"]


def test_a_run_that_had_to_begin_anew_is_not_told(night: Night) -> None:
    night.write(lines(1, 320))
    night.attempt(2, saved=300, path=None, step=None, passed_over=[{"path": "/c/300.pt", "step": 300, "why": "bad"}])
    night.write(lines(1, 40))
    assert night.texts() == []


def test_a_jump_and_a_learning_rate(night: Night) -> None:
    night.write(lines(1, 200))
    night.attempt(2, saved=200, path="/c/200.pt", step=200)
    night.write("".join(line(step, loss=round(2.95 + step % 5 / 50, 4), lr=1.4e-4) for step in range(201, 230)))
    jump, rate = sorted(night.verdicts.values(), key=lambda one: one.part)
    assert jump.text.startswith("jump after resume: 2.")
    assert jump.step is not None
    assert jump.step <= 220
    assert rate.text == "learning rate after resume: 0.00014 at step 201; 0.0003 was to be expected"
    assert {one.key[:3] for one in (jump, rate)} == {(2, *night.bounds[1][:2])}


def test_epochs_that_count_anew_say_nothing(night: Night) -> None:
    night.write(lines(1, 100) * 3)
    night.attempt(2, saved=300, path="/c/300.pt", step=300)
    night.write(lines(1, 100, loss=9.0))
    night.end()
    assert night.texts() == []
    assert [one["compared"] for one in night.said] == [0]


def test_each_attempt_is_compared_with_the_newest_values(night: Night) -> None:
    night.write(lines(1, 320))
    night.attempt(2, saved=300, path="/c/300.pt", step=300)
    night.write(lines(301, 305, norm=7.0))
    night.end()
    night.attempt(3, saved=300, path="/c/300.pt", step=300)
    night.write(lines(301, 340, norm=7.0))
    night.end()
    assert [(one["attempt"], one["text"].partition(":")[0]) for one in night.said] == [
        (2, "0/5, first difference 301"),
        (3, "5/5 equal"),
    ]


@pytest.mark.parametrize("chunk", [16, 4096])
@pytest.mark.parametrize("seed", range(4))
def test_a_kill_anywhere_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, seed: int
) -> None:
    monkeypatch.setattr(store, "CHUNK", chunk)
    monkeypatch.setattr(store, "LEAST", 4)
    told = []
    for kills in (False, True):
        dice = random.Random(seed)
        night = Night(tmp_path / str(kills))
        night.attempt(1)
        night.write(lines(1, 230))
        night.attempt(2, saved=200, path="/c/200.pt", step=200)
        for step in range(201, 251):
            night.write(line(step, loss=5.0) if step == 215 else line(step, lr=1e-4) if step == 208 else line(step))
            if dice.random() < 0.3:
                night.intake.commit()
            if dice.random() < 0.3 and kills:
                night.abandon()
                night.begin()
                night.read()
        night.end()
        told.append((night.said, night.texts(), list(night.verdicts)))
        night.abandon()
    assert told[0] == told[1]
    assert len(told[0][0]) == 1
    assert told[0][0][0]["text"].startswith("28/30, first difference 208: lr 0.0003 -> 0.0001")
    assert len(told[0][1]) == 2


def test_a_supervisor_that_comes_after_all_was_stored_tells_what_came_of_it(night: Night) -> None:
    night.write(lines(1, 210))
    night.attempt(2, saved=200, path="/c/200.pt", step=200)
    aftermath, night.aftermath = night.aftermath, None
    night.write(lines(201, 205))
    night.intake.commit()
    assert aftermath is not None
    assert aftermath.finish() == []
    assert [one["text"] for one in night.said] == ["5/5 equal"]


class Log:
    """Records as they would be stored, without a log."""

    def __init__(self, path: Path) -> None:
        self.history = History(path)
        self.offset = 0

    def entries(self, steps: Iterable[int], attempt: int, **said: Any) -> list[Entry]:
        """Return entries of an attempt that is its own segment."""
        found = []
        for step in steps:
            self.offset += 40
            loss = round(random.Random(step).gauss(2.0, 0.1), 4)
            values = {"loss": loss, **said}
            found.append(Entry(Record(reader="t", offset=self.offset, at=1.0, step=step, **values), attempt, attempt))
        return found

    def store(self, entries: Iterable[Entry]) -> None:
        """Store them."""
        self.history.commit(entries, [], b"state")


def test_what_is_strange_glued_early_or_of_others_is_not_compared(tmp_path: Path) -> None:
    log, said = Log(tmp_path / "metrics.db"), []
    log.store(log.entries(range(1, 211), 1, rank=0))
    log.store(log.entries(range(1, 211), 1, rank=1, loss=7.0))
    aftermath = Aftermath(
        tmp_path / "metrics.db", attempt=2, place=(0, 9), resume={"path": "/c", "step": 200}, saved=200, told=False,
        say=lambda fact, **details: said.append((fact, details)),
    )  # fmt: skip
    odd: list[dict[str, Any]] = [
        *({"glued": True}, {"strange": True, "glued": True}, {"early": True}, {"rank": 1}, {"kind": "eval"}),
        {"step": None},
    ]
    for one in odd:
        (entry,) = log.entries([1], 2, loss=math.nan, rank=0)
        record = Record(**{**{name: getattr(entry.record, name) for name in Record.__struct_fields__}, **one})
        assert aftermath.take([[Entry(record, 2, 2)]]) == []
    assert aftermath.take([log.entries([1], 1, loss=9.0)]) == []
    assert aftermath.take([log.entries(range(201, 231), 2, rank=0)]) == []
    assert [one[1]["text"] for one in said] == ["10/10 equal"]
    log.history.close()


def test_little_is_read_of_a_long_past_and_nothing_stays(tmp_path: Path) -> None:
    log = Log(tmp_path / "metrics.db")
    log.store(log.entries(range(1, 20_001), 1))
    said: list[dict[str, Any]] = []
    aftermath = Aftermath(
        tmp_path / "metrics.db", attempt=2, place=(0, 9), resume={"path": "/c", "step": 9000}, saved=9000, told=False,
        say=lambda _, **details: said.append(details),
    )  # fmt: skip
    aftermath.take([log.entries([9001], 2)])
    overlap = aftermath._overlap
    assert overlap is not None
    assert overlap.earlier is not None
    known = list(overlap.earlier.steps)
    assert known == list(range(9001 - BEFORE, 9001 + BESIDE))
    assert overlap.earlier.reached == 20_000
    assert overlap.earlier.begins == 1
    aftermath.take([log.entries(range(9002, 11_000), 2)])
    assert aftermath.over()
    assert aftermath._overlap is None
    assert overlap.earlier is None
    assert (overlap._twins, overlap._loss, overlap._lr) == ({}, None, None)
    assert [one["text"] for one in said] == [f"{BESIDE}/{BESIDE} equal"]
    log.history.close()


def test_many_records_at_once_and_one_by_one_give_the_same(night: Night) -> None:
    night.write(lines(1, 800))
    night.attempt(2, saved=500, path="/c/500.pt", step=500)
    kinds = set()
    assert night.aftermath is not None
    take = night.aftermath.take

    def seen(pieces: list[Any]) -> list[Verdict]:
        kinds.update(isinstance(piece, Batch) for piece in pieces)
        return take(pieces)

    night.aftermath.take = seen  # type: ignore[method-assign]
    night.write(lines(501, 700) + line(701, norm=9.0) + lines(702, 900))
    assert True in kinds
    assert [one["text"].partition(":")[0] for one in night.said] == ["299/300, first difference 701"]


def test_a_missing_or_broken_file_leaves_it_at_that(tmp_path: Path) -> None:
    path = tmp_path / "metrics.db"
    for text in (None, b"no database" * 100):
        if text is not None:
            path.write_bytes(text)
        aftermath = Aftermath(path, attempt=2, place=(0, 0), resume={}, saved=None, told=False, say=print)
        record = Record(reader="t", step=1, loss=1.0)
        assert aftermath.take([[Entry(record, 2, 2)]]) == []
        assert aftermath.over()


@pytest.mark.parametrize(
    "resume", [{"step": "300", "path": 7}, {"skip": 5, "path": "/c", "step": None}, {"skip": ["a"]}]
)
def test_facts_that_were_edited_say_nothing(night: Night, resume: dict[str, Any]) -> None:
    night.write(lines(1, 210))
    night.attempt(2, saved=200, **resume)
    night.write(lines(201, 240))
    assert night.texts() == []
    assert [one["text"] for one in night.said] == ["10/10 equal"]


def test_the_first_attempt_comes_after_nothing(tmp_path: Path) -> None:
    aftermath = Aftermath(tmp_path / "no", attempt=1, place=(0, 0), resume=None, saved=None, told=False, say=print)
    assert aftermath.over()
    assert aftermath.finish() == []


def test_keys_as_printed_are_compared_but_for_times_and_texts(tmp_path: Path) -> None:
    log = Log(tmp_path / "metrics.db")
    said: list[dict[str, Any]] = []
    extra = {"aux_loss": 0.5, "time/step": 1.0, "note": "a", "Loss": 3.0}
    log.store(log.entries(range(1, 211), 1, extra=extra))
    aftermath = Aftermath(
        tmp_path / "metrics.db", attempt=2, place=(0, 9), resume={"path": "/c", "step": 200}, saved=200, told=False,
        say=lambda _, **details: said.append(details),
    )  # fmt: skip
    aftermath.take([log.entries(range(201, 205), 2, extra={**extra, "time/step": 9.0, "note": "b"})])
    aftermath.take([log.entries([205], 2, extra={**extra, "aux_loss": math.inf})])
    aftermath.take([log.entries(range(206, 231), 2, extra=extra)])
    (fact,) = said
    assert fact["text"] == "9/10, first difference 205: aux_loss 0.5 -> inf"
    assert fact["first_difference"] == {"step": 205, "metric": "aux_loss", "before": 0.5, "after": "inf"}
    log.history.close()

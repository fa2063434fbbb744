"""The views of metrics.db: one value per step after any rewinds, charts as exact as brute force at every zoom."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from overnight.batches import Entry
from overnight.errors import FolderError
from overnight.events import Record
from overnight.history import store
from overnight.history.store import History, open_history, records_of
from overnight.history.views import Views

LINE = 40


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a metrics.db that is not there yet."""
    return tmp_path / "metrics.db"


@pytest.fixture(params=[64, 4096])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Have small chunks, so that a short test sees many, and the usual ones."""
    size = int(request.param)
    monkeypatch.setattr(store, "CHUNK", size)
    monkeypatch.setattr(store, "LEAST", max(2, size // 16))
    return size


class Log:
    """Records as a monitor would give them, kept for brute force beside the file."""

    def __init__(self, path: Path, *, every: int = 100) -> None:
        self.history = History(path)
        self.every = every
        self.all: list[Entry] = []
        self.waiting: list[Entry] = []
        self.segment = 0
        self.attempt = 0

    def add(self, *, kind: str = "train", **said: Any) -> None:
        """Add a record."""
        record = Record(reader="t", source=0, offset=LINE * len(self.all), kind=kind, at=100.0 + len(self.all), **said)
        self.all.append(Entry(record, self.attempt, self.segment))
        self.waiting.append(self.all[-1])
        if len(self.waiting) >= self.every:
            self.commit()

    def begin(self, attempt: int | None = None) -> None:
        """Begin a segment, with ``attempt`` a whole attempt."""
        self.segment += 1
        self.attempt = attempt or self.attempt

    def commit(self) -> None:
        """Store what waits."""
        self.history.commit(self.waiting, [], b"state")
        self.waiting = []

    def views(self) -> Views:
        """Store everything and open the file."""
        self.commit()
        self.history.close()
        return Views(self.history.path)


def kept_values(views: Views, name: str = "loss", kind: str = "train") -> list[tuple[float, float]]:
    """Return (x, value) of all records that count, out of the stretches."""
    found = []
    for one in views.stretches([name], kind):
        values, missing = one.columns[name]
        rows = list(zip(one.x, values, missing or bytes(len(values)), strict=True))[: one.kept]
        found += [(x, value) for x, value, gone in rows if not gone]
    return found


def stored(path: Path, table: str) -> int:
    """Return how many rows a table has."""
    with closing(sqlite3.connect(path)) as db:
        return int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


@pytest.mark.parametrize("seed", range(8))
def test_one_value_per_step_on_random_segments(path: Path, chunk: int, seed: int) -> None:
    dice = random.Random(seed)
    log = Log(path, every=dice.choice([1, 30, 700, 10_000]))
    newest: dict[int, float] = {}
    step, every = 0, dice.choice([1, 10])
    for attempt in range(1, dice.randint(2, 7)):
        log.begin(attempt)
        for _ in range(dice.randint(1, 3)):
            first = True
            for _ in range(dice.randint(1, 900)):
                step += every
                loss = dice.random()
                log.add(step=step, loss=loss)
                if first:  # of its segment: what lies beyond it is done again
                    newest = {known: value for known, value in newest.items() if known < step}
                newest[step], first = loss, False
            if dice.random() < 0.6:
                back = dice.randint(2, max(2, step // every)) * every
                if back < step:
                    log.begin()
                    step = back
        step = dice.randint(0, step // every) * every
    with log.views() as views:
        assert kept_values(views) == sorted(newest.items())
        chart = views.chart("loss", points=10**6)
        assert chart.exact
        assert list(zip(chart.x, chart.low, strict=True)) == sorted(newest.items())
        assert chart.low == chart.high
        summary = views.summary("loss")
        values = [value for _, value in sorted(newest.items())]
        assert summary[:4] == (len(values), values[0], values[-1], min(values))
        assert (newest[int(summary.least_x or 0)], summary.largest) == (min(values), max(values))
    assert [row["step"] for row in records_of(path)] == [one.record.step for one in log.all]
    if chunk == 64:
        assert stored(path, "chunks") > 0


def test_log_to_212_resumed_at_200(path: Path, chunk: int) -> None:
    log = Log(path)
    log.begin(1)
    for step in range(1, 213):
        log.add(step=step, loss=1.0)
    log.begin(2)
    for step in range(200, 301):
        log.add(step=step, loss=2.0)
    with log.views() as views:
        chart = views.chart("loss")
        assert chart.x == list(range(1, 301))
        assert chart.low[:199] == [1.0] * 199
        assert chart.low[199:] == [2.0] * 101
        assert chart.attempts == [1] * 199 + [2] * 101
        older = [(x, one.span.attempt) for one in views.stretches(["loss"]) for x in one.x[one.kept :]]
        assert older == [(float(step), 1) for step in range(200, 213)]
        assert [(one.attempt, one.first_step, one.last_step, one.limit) for one in views.spans()] == [
            (1, 1, 212, 200.0), (2, 200, 300, math.inf),
        ]  # fmt: skip


def test_a_step_far_ahead_loses_nothing(path: Path) -> None:
    log = Log(path)
    log.begin(1)
    for step in (583600, 607500):
        log.add(step=step, loss=1.0)
    log.begin()
    for step in range(583700, 590000, 100):
        log.add(step=step, loss=2.0)
    with log.views() as views:
        assert views.chart("loss").x == [583600.0, *range(583700, 590000, 100)]
        assert sum(len(one.x) for one in views.stretches([])) == 65


def test_three_attempts_that_go_back(path: Path, chunk: int) -> None:
    log = Log(path)
    for attempt, first, last in ((1, 1, 116), (2, 80, 116), (3, 80, 150)):
        log.begin(attempt)
        for step in range(first, last + 1):
            log.add(step=step, loss=float(attempt))
    with log.views() as views:
        chart = views.chart("loss")
        assert chart.x == list(range(1, 151))
        assert chart.low == [1.0] * 79 + [3.0] * 71


def test_a_count_that_begins_anew_in_each_epoch_goes_on_rising(path: Path, chunk: int) -> None:
    log = Log(path)
    log.attempt = 1
    for epoch in range(30):
        log.begin()
        for step in range(50):
            log.add(step=step, loss=epoch + step / 100)
    with log.views() as views:
        assert views.chart("loss").x == list(range(1500))
        assert views.chart("loss", points=30).low == [float(epoch) for epoch in range(30)]
        assert [one.base for one in views.spans()] == [50.0 * epoch for epoch in range(30)]


def test_only_the_lowest_rank_counts_and_nothing_that_is_glued(path: Path, chunk: int) -> None:
    log = Log(path)
    log.begin(1)
    for step in range(1, 400):
        for rank in (3, 1, 2):
            log.add(step=step, loss=float(rank), rank=rank)
        log.add(step=1, loss=99.0, rank=0, glued=True)
    with log.views() as views:
        assert views.chart("loss").x == list(range(1, 400))
        assert set(views.chart("loss").low) == {1.0}
        others = [value for one in views.stretches(["loss"], rank=3) for value in one.columns["loss"].values]
        assert others == [3.0] * 399
    assert sum(bool(row["glued"]) for row in records_of(path)) == 399


def test_records_without_a_step(path: Path, chunk: int) -> None:
    log = Log(path)
    log.begin(1)
    for row in range(300):
        log.add(loss=float(row), epoch=row / 100)
        log.add(kind="eval", loss=float(row), epoch=None)
    log.begin(2)
    for row in range(200, 300):
        log.add(loss=1000.0 + row, epoch=row / 100)
    with log.views() as views:
        assert views.chart("loss").x == [row / 100 for row in range(300)]
        assert views.chart("loss").low[200:] == [1000.0 + row for row in range(200, 300)]
        assert views.chart("loss", "eval").x == list(range(300))
        assert views.names("eval") == ["loss"]


def test_a_record_without_a_step_among_others_stands_beside_the_one_before(path: Path) -> None:
    log = Log(path)
    log.begin(1)
    for step in (None, 10, None, 20, None):
        log.add(step=step, loss=float(step or 1))
    with log.views() as views:
        (one,) = views.stretches(["loss"])
        assert one.x.tolist() == [10.0, 10.0, 10.0, 20.0, 20.0]
        assert list(one.steps.missing or b"") == [1, 0, 1, 0, 1]


def test_evaluations_are_superseded_with_the_training(path: Path, chunk: int) -> None:
    log = Log(path)
    for attempt, first, last in ((1, 1, 250), (2, 101, 250)):
        log.begin(attempt)
        for step in range(first, last + 1):
            log.add(step=step, loss=0.0)
            if step % 50 == 0:
                log.add(step=step, kind="eval", loss=float(attempt))
    with log.views() as views:
        chart = views.chart("loss", "eval")
        assert (chart.x, chart.low) == ([50, 100, 150, 200, 250], [1.0, 1.0, 2.0, 2.0, 2.0])


# -- charts against brute force --------------------------------------------------------------------------------------


def noisy(path: Path, *, count: int = 20_000, uneven: bool = False) -> Log:
    """Return a log with several attempts, epochs, missing values and values that are not finite."""
    dice = random.Random(5)
    log = Log(path, every=1500)
    step, attempt = 0, 1
    log.begin(1)
    for row in range(count):
        step += dice.randint(1, 3) if uneven else 1
        if row in (count // 3, count // 2):
            attempt += 1
            log.begin(attempt)
            step -= 1000
        loss: float | None = dice.gauss(3, 1)
        if dice.random() < 0.001:
            loss = dice.choice([math.nan, math.inf, -math.inf])
        log.add(step=step, loss=loss if dice.random() < 0.9 else None, extra={"temperature": dice.random()})
    return log


@pytest.mark.parametrize("uneven", [False, True])
def test_charts_are_those_of_brute_force_at_every_zoom(path: Path, chunk: int, uneven: bool) -> None:
    log = noisy(path, uneven=uneven)
    dice = random.Random(6)
    with log.views() as views:
        every = kept_values(views)
        assert [x for x, _ in every] == sorted({x for x, _ in every})
        last = every[-1][0]
        zooms: list[tuple[float | None, float | None]] = [
            (None, None),
            (-5.0, last + 5),
            (last, last),
            (last + 1, None),
        ]
        zooms += [(low := dice.uniform(0, last), low + last * dice.choice([1e-4, 0.01, 0.3, 1])) for _ in range(12)]
        for low, high in zooms:
            for points in (2, 7, 100, 2000, 10**5):
                _compare(views, every, low, high, points)
        assert stored(path, "chunks") > 3


def _compare(
    views: Views, every: list[tuple[float, float]], low: float | None, high: float | None, points: int
) -> None:
    chart = views.chart("loss", low=low, high=high, points=points)
    inside = [one for one in every if (low is None or one[0] >= low) and (high is None or one[0] <= high)]
    finite = [one for one in inside if math.isfinite(one[1])]
    odd = [one for one in inside if not math.isfinite(one[1])]
    assert [(x, repr(value)) for x, value in chart.nonfinite] == [(x, repr(value)) for x, value in odd[:1000]]
    assert len(chart.x) <= points + 2
    assert chart.exact == (len(finite) <= points)
    assert all(one < other for one, other in pairwise(chart.x))
    if chart.exact:
        assert list(zip(chart.x, chart.low, strict=True)) == finite
        return
    # Every part holds the records from its x to the next one's, and both of their extremes. A block may begin with a
    # record that has no value: then its x lies before that of its first value.
    ends = [*chart.x[1:], math.inf]
    places = [x for x, _ in finite]
    for x, end, least, largest in zip(chart.x, ends, chart.low, chart.high, strict=True):
        part = [value for _, value in finite[bisect_left(places, x) : bisect_left(places, end)]]
        assert (min(part), max(part)) == (least, largest)
    assert chart.x[0] <= places[0]


def test_a_key_as_printed_is_a_series(path: Path, chunk: int) -> None:
    log = Log(path)
    log.begin(1)
    for step in range(200):
        log.add(step=step, extra={"reward": step / 2, "loss": 5.0, "mode": "a"})
    with log.views() as views:
        assert views.names() == [".loss", "reward"]
        assert views.chart("reward").low == [step / 2 for step in range(200)]
        assert set(views.chart(".loss").low) == {5.0}
        assert views.chart("loss").x == []
        assert views.summary("loss") == (0, None, None, None, None, None)


# -- beside a writer, damaged, and of the first form -----------------------------------------------------------------


def test_a_reader_beside_the_writer_sees_whole_commits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "CHUNK", 64)
    history = History(path)
    history.commit([], [], b"")
    history.close()
    done = threading.Event()
    failures: list[str] = []

    def write() -> None:
        writer = History(path)
        try:
            for turn in range(300):
                first = 7 * turn + 1
                entries = [
                    Entry(Record(reader="t", offset=step, step=step, loss=float(step)), 1, 1)
                    for step in range(first, first + 7)
                ]
                writer.commit(entries, [], b"")
        except sqlite3.Error as error:
            failures.append(str(error))
        finally:
            writer.close()
            done.set()

    thread = threading.Thread(target=write)
    thread.start()
    looks = 0
    with Views(path) as views:
        while not done.is_set() or looks == 0:
            chart = views.chart("loss", points=10**5)
            assert chart.x == list(range(1, len(chart.x) + 1))
            assert len(chart.x) % 7 == 0
            assert len(list(records_of(path))) % 7 == 0
            looks += 1
        thread.join()
        assert not failures
        assert len(views.chart("loss", points=10**5).x) == 2100


CHILD = """
import sys
from pathlib import Path
from overnight.batches import Entry
from overnight.events import Record
from overnight.history import store
store.CHUNK = 16
history = store.History(Path(sys.argv[1]))
turn = int((history.load() or b"-1").decode()) + 1
print("up", flush=True)
while True:
    steps = range(3 * turn, 3 * turn + 3)
    entries = [Entry(Record(reader="t", offset=step, step=step, loss=0.5), 1, 1) for step in steps]
    history.commit(entries, [], str(turn).encode())
    turn += 1
"""


def test_sigkill_of_a_writer_of_chunks_leaves_a_file_that_opens(path: Path) -> None:
    dice = random.Random(3)
    for _ in range(8):
        with subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "up\n"
            threading.Event().wait(dice.uniform(0.005, 0.1))
            child.send_signal(signal.SIGKILL)
        history, said = open_history(path)
        assert said is None
        turns = int((history.load() or b"-1").decode()) + 1
        history.close()
        assert [row["step"] for row in records_of(path)] == list(range(3 * turns))
    assert stored(path, "chunks") > 1


@pytest.mark.parametrize("restart", [0, 1])
def test_what_is_read_again_replaces_and_what_is_gone_stays(path: Path, chunk: int, restart: int) -> None:
    def entries(source: int, count: int, value: float) -> list[Entry]:
        return [
            Entry(Record(reader="t", source=source, offset=row, step=row, loss=value), 1, 1) for row in range(count)
        ]

    history = History(path)
    history.commit(entries(0, 300, 0.0) + entries(1, 300, 0.0), [], b"old")
    history.read_again(1)
    if restart:
        history.close()  # killed before the first commit: whoever comes next says so again
        history = History(path)
        history.read_again(1)
    history.commit([], [], b"new")
    history.commit(entries(1, 200, 1.0), [], b"newer")
    history.close()
    found = [(row["source"], row["loss"]) for row in records_of(path)]
    assert found == [(0, 0.0)] * 300 + [(1, 1.0)] * 200
    with closing(sqlite3.connect(path)) as db:
        for table in ("series", "levels", "coarse", "columns"):
            assert not db.execute(f"SELECT * FROM {table} WHERE chunk NOT IN (SELECT id FROM chunks)").fetchall()


FIRST_FORM = """
CREATE TABLE state (id INTEGER PRIMARY KEY CHECK (id = 1), format INTEGER NOT NULL, value BLOB NOT NULL);
CREATE TABLE records (
  source INTEGER NOT NULL, offset INTEGER NOT NULL, part INTEGER NOT NULL,
  attempt INTEGER NOT NULL, segment INTEGER NOT NULL, at REAL NOT NULL, reader TEXT NOT NULL, kind TEXT NOT NULL,
  rank INTEGER, step INTEGER, loss, dt_s, tokens, tokens_per_s, samples_per_s, mfu, lr, grad_norm, epoch, extra TEXT,
  PRIMARY KEY (source, offset, part)) WITHOUT ROWID;
CREATE TABLE verdicts (
  attempt INTEGER NOT NULL, source INTEGER NOT NULL, offset INTEGER NOT NULL, part INTEGER NOT NULL, rule TEXT NOT NULL,
  severity TEXT NOT NULL, action TEXT NOT NULL, step INTEGER, at REAL, text TEXT NOT NULL, evidence TEXT NOT NULL,
  PRIMARY KEY (attempt, source, offset, part, rule)) WITHOUT ROWID;
INSERT INTO state VALUES (1, 1, x'01');
"""


def first_form(path: Path) -> None:
    """Write a metrics.db as it was before there were chunks."""
    with closing(sqlite3.connect(path)) as db:
        db.executescript(FIRST_FORM)
        for step in range(1, 101):
            loss: object = "nan" if step == 50 else step / 10
            extra = json.dumps({"gap": "nan" if step == 7 else 0.5, "mode": "x"})
            row = (0, step, 0, 1, 1, 1.5, "t", "train", None, step, loss, *[None] * 8, extra)
            db.execute(f"INSERT INTO records VALUES ({','.join('?' * 20)})", row)
        db.commit()


def test_a_file_of_the_first_form_is_read_as_it_is_and_goes_on(path: Path, chunk: int) -> None:
    first_form(path)
    data = path.read_bytes()
    before = list(records_of(path))
    assert (before[6]["extra"], before[49]["loss"]) == ('{"gap": "nan", "mode": "x"}', "nan")
    with Views(path) as views:
        assert views.chart("loss").nonfinite[0][0] == 50
        assert [x for x, _ in views.chart("gap").nonfinite] == [7]
    assert path.read_bytes() == data
    history, said = open_history(path)
    assert said is None
    assert history.load() == b"\x01"
    history.commit([Entry(Record(reader="t", offset=101, step=101, loss=1.0), 1, 1)], [], b"")
    history.commit([Entry(Record(reader="t", offset=102, step=102, loss=1.0), 2, 2)], [], b"")
    history.close()
    assert list(records_of(path))[:100] == before
    assert stored(path, "chunks") == (chunk == 64)
    with Views(path) as views:
        assert views.chart("loss").x == [float(step) for step in range(1, 103) if step != 50]
        assert [x for x, _ in views.chart("gap").nonfinite] == [7]


def test_no_file_and_a_damaged_one_are_told_with_what_to_do(path: Path) -> None:
    with pytest.raises(FolderError, match="reindex"):
        Views(path)
    assert not path.exists()
    path.write_bytes(os.urandom(9000))
    with pytest.raises(FolderError, match="reindex"):
        Views(path)


@pytest.mark.parametrize("table", ["columns", "levels", "coarse"])
def test_a_damaged_chunk_is_told_and_not_guessed(path: Path, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 2048 if table == "coarse" else 64
    monkeypatch.setattr(store, "CHUNK", size)
    log = Log(path, every=size)
    log.begin(1)
    for step in range(6400):
        log.add(step=step, loss=1.0 + step)
    log.commit()
    log.history.db.execute(f"UPDATE {table} SET value = x'7a01'")
    points = {"columns": 10**5, "levels": 100, "coarse": 2}[table]
    with log.views() as views, pytest.raises(FolderError, match="reindex"):
        views.chart("loss", points=points)


def everything(path: Path) -> Iterator[object]:
    """Yield all that the views say of a file."""
    with Views(path) as views:
        yield views.spans()
        for kind in ("train", "eval"):
            yield views.names(kind)
            for name in views.names(kind):
                yield views.chart(name, kind)
                yield views.summary(name, kind)


def test_segments_of_a_record_or_two(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that print without saying which they are: the step falls at every other line."""
    monkeypatch.setattr(store, "CHUNK", 2048)
    log = Log(path, every=1000)
    log.begin(1)
    for step in range(100, 4100):
        log.begin()
        log.add(step=step - 3, loss=1.0)
        log.add(step=step, loss=2.0)
    with log.views() as views:
        assert stored(path, "chunks") > 1
        assert len(views.spans()) == 4000
        assert sum(len(one.x) for one in views.stretches(["loss"])) == 8000
        values = kept_values(views)
        assert [x for x, _ in values] == [*range(97, 4097), 4099]
        chart = views.chart("loss", points=10**4)
        assert list(zip(chart.x, chart.low, strict=True)) == values


def test_an_empty_file_has_no_series(path: Path) -> None:
    History(path).close()
    assert list(everything(path)) == [[], [], []]


def test_many_ranks_do_not_pile_up_as_rows(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST_ROWS", 2000)
    log = Log(path, every=1000)
    log.begin(1)
    for step in range(400):
        for rank in range(16):
            log.add(step=step, loss=float(rank), rank=rank)
    log.views().close()
    assert stored(path, "records") <= 3000
    assert [row["rank"] for row in records_of(path)] == list(range(16)) * 400

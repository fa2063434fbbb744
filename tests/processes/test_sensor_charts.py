"""Series of sensors in metrics.db: many samples at one step, a step that stands still, rewinds, rows and chunks."""

from __future__ import annotations

import csv
import io
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from overnight.batches import Entry
from overnight.events import Record
from overnight.history import store
from overnight.history.store import History
from overnight.history.views import Views

Overnight = Callable[..., Any]
EPOCH = 1_900_000_000.0


def trained(steps: Iterable[int], attempt: int, segment: int, offset: int) -> list[Entry]:
    return [
        Entry(Record(reader="t", offset=offset + n, step=step, loss=1.0, at=EPOCH), attempt, segment)
        for n, step in enumerate(steps)
    ]


def sampled(
    values: Iterable[tuple[float, int | None, float]], attempt: int, segment: int, *, kind: Any = "gpu"
) -> list[Entry]:
    """Return samples of (seconds, step, temperature); a line has 100 bytes."""
    source = {"gpu": -1, "host": -2}[kind]
    return [
        Entry(
            Record(
                reader=kind, kind=kind, source=source, offset=int(10 * at), at=EPOCH + at, step=step,
                extra={"gpu0.temperature_c": value},
            ),
            attempt,
            segment,
        )
        for at, step, value in values
    ]  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.db"


def store_all(path: Path, *commits: list[Entry]) -> None:
    history = History(path)
    for entries in commits:
        history.commit(entries, [], b"")
    history.close()


NAME = "gpu0.temperature_c"


def test_samples_of_one_step_are_one_place_with_both_extremes(path: Path) -> None:
    # six samples a step, and the hottest is never the last of its step
    samples = [(10.0 * n, n // 6, 60.0 + (30.0 if n % 6 == 2 else 0.0)) for n in range(60)]
    store_all(path, [*trained(range(10), 1, 1, 0), *sampled(samples, 1, 1)])
    with Views(path) as views:
        chart = views.chart(NAME, "gpu")
        assert chart.x == list(range(10))
        assert set(chart.low) == {60.0}
        assert set(chart.high) == {90.0}
        assert not chart.exact
        assert views.names("gpu") == [NAME]
        part = views.chart(NAME, "gpu", low=3, high=5)
        assert part.x == [3.0, 4.0, 5.0]
        short = views.summary(NAME, "gpu")
        assert (short.values, short.least, short.largest) == (60, 60.0, 90.0)


def test_a_stall_is_one_column_over_steps_and_all_of_itself_over_time(path: Path) -> None:
    goes = [(10.0 * n, n, 50.0) for n in range(100)]
    stands = [(1000.0 + 10.0 * n, 99, 80.0 - n / 100) for n in range(3000)]
    store_all(path, [*trained(range(100), 1, 1, 0), *sampled([*goes, *stands], 1, 1)])
    with Views(path) as views:
        chart = views.chart(NAME, "gpu", points=500)
        assert chart.x == list(range(100))  # no part of the budget is spent on what stands still
        assert (chart.low[-1], chart.high[-1]) == (50.0, 80.0)
        time = views.over_time(NAME, "gpu", points=500)
        assert len(time.x) == 500
        assert (time.x[0], time.low[0]) == (EPOCH, 50.0)
        assert max(time.high) == 80.0
        assert time.high[-1] < 51
        assert time.x == sorted(time.x)
        later = views.over_time(NAME, "gpu", low=EPOCH + 1000, high=EPOCH + 1045)
        assert (later.x, later.exact) == ([EPOCH + 1000 + 10 * n for n in range(5)], True)


def test_before_the_first_step_there_is_time_and_no_step_of_its_own(path: Path) -> None:
    early = [(float(n), None, 40.0) for n in range(5)]
    store_all(path, sampled(early, 1, 1), [*trained(range(5, 9), 1, 1, 0), *sampled([(50.0, 7, 60.0)], 1, 1)])
    with Views(path) as views:
        assert views.chart(NAME, "gpu").x == [7.0]  # they stand where the first step known beside them stands
        assert views.chart(NAME, "gpu").low == [40.0]
        assert views.over_time(NAME, "gpu").x == [EPOCH + n for n in range(5)] + [EPOCH + 50]


def test_after_a_rewind_the_newer_samples_count_and_time_has_all(path: Path) -> None:
    first = sampled([(float(n), n, 60.0) for n in range(100)], 1, 1)
    again = sampled([(200.0 + n, 50 + n, 70.0) for n in range(100)], 2, 2)
    store_all(path, [*trained(range(100), 1, 1, 0), *first], [*trained(range(50, 150), 2, 2, 1000), *again])
    with Views(path) as views:
        chart = views.chart(NAME, "gpu")
        assert chart.x == list(range(150))
        assert chart.low == [60.0] * 50 + [70.0] * 100
        assert chart.attempts == [1] * 50 + [2] * 100
        assert len(views.over_time(NAME, "gpu").x) == 200


def test_an_attempt_without_samples_takes_none_of_the_others_away(path: Path) -> None:
    """Files of sensors have no place among logs: what their numbers are must not decide what counts."""
    later = sampled([(200.0 + n, 100 + n, 70.0) for n in range(50)], 2, 2)
    store_all(path, [*trained(range(100), 1, 1, 0), *trained(range(100, 150), 2, 2, 1000), *later])
    with Views(path) as views:
        assert views.chart(NAME, "gpu").x == list(range(100, 150))
        # and a segment of which no line of training is known is shown as it is
    store_all(path, sampled([(400.0, None, 75.0)], 3, 3))
    with Views(path) as views:
        assert views.chart(NAME, "gpu").high[-1] == 75.0
        assert views.chart("loss").x == list(range(150))


def test_rows_become_chunks_and_nothing_changes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "CHUNK", 64)
    monkeypatch.setattr(store, "LEAST", 16)
    whole = path.with_name("whole.db")
    samples = [(10.0 * n, n // 3 if n > 2 else None, 60.0 + n % 7) for n in range(300)]
    commits = [[*trained([n], 1, 1, n), *sampled(samples[3 * n : 3 * n + 3], 1, 1)] for n in range(100)]
    store_all(path, *commits)
    monkeypatch.setattr(store, "CHUNK", 10_000)
    store_all(whole, *commits)
    with closing(sqlite3.connect(path)) as db:
        chunks = db.execute("SELECT count(*), sum(records) FROM chunks WHERE source < 0").fetchone()
        (rows,) = db.execute("SELECT count(*) FROM records WHERE source < 0").fetchone()
    # Beside a log, whose source is newer, they wait for a whole chunk, too, and are not left as rows for ever.
    assert chunks[0] == 4
    assert rows == 300 - chunks[1] < 64 + 3
    with Views(path) as one, Views(whole) as other:
        assert one.chart(NAME, "gpu") == other.chart(NAME, "gpu")
        assert one.over_time(NAME, "gpu") == other.over_time(NAME, "gpu")
        assert one.summary(NAME, "gpu") == other.summary(NAME, "gpu")


def test_export_gives_a_row_per_sample(home: Path, overnight: Overnight) -> None:
    folder = home / "runs" / "night"
    folder.mkdir(parents=True)
    gpu = sampled([(float(n), None if n < 2 else n // 4, 60.0 + n) for n in range(20)], 1, 1)
    host = sampled([(float(n), 3, 9.0) for n in range(5)], 1, 1, kind="host")
    store_all(folder / "metrics.db", [*trained(range(6), 1, 1, 0), *gpu, *host])

    def rows(*words: str) -> list[dict[str, str]]:
        said = overnight("export", "night", "--to", "csv", *words)
        assert said.returncode == 0, said.stderr
        return list(csv.DictReader(io.StringIO(said.stdout)))

    found = rows("--kind", "gpu")
    assert len(found) == 20
    assert list(found[0]) == ["x", "step", "kind", "attempt", "segment", "at", NAME]
    assert [row["step"] for row in found[:6]] == ["", "", "0", "0", "1", "1"]
    assert [float(row[NAME]) for row in found] == [60.0 + n for n in range(20)]
    assert [float(row["at"]) for row in found] == [EPOCH + n for n in range(20)]
    assert {row["kind"] for row in rows("--kind", "host")} == {"host"}
    every = rows("--kind", "gpu", "--all-attempts")
    assert [(row["source"], row["offset"]) for row in every] == [("-1", str(10 * n)) for n in range(20)]
    # what was asked for before is what it was
    assert {row["kind"] for row in rows()} == {"train"}
    assert {row["kind"] for row in rows("--kind", "all")} == {"train"}
    said = overnight("export", "night", "--to", "jsonl", "--kind", "gpu")
    assert said.stdout.count("\n") == 20

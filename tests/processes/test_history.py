"""metrics.db: one transaction for everything, numbers SQLite does not know, damage, disks of both kinds."""

from __future__ import annotations

import json
import math
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overnight.batches import Entry
from overnight.events import Record, Verdict, jsonable
from overnight.history import store, table
from overnight.history.store import History, decode_state, encode_state, open_history, records_of
from overnight.history.table import NUMBERS
from overnight.history.views import Views


def entry(offset: int = 0, *, source: int = 0, part: int = 0, attempt: int = 1, segment: int = 2, **said: Any) -> Entry:
    """Return an entry as the monitor makes it."""
    record = Record(reader="test", source=source, offset=offset, part=part, at=1.5, **said)
    return Entry(record, attempt, segment)


def rows(path: Path, table: str = "records") -> list[dict[str, Any]]:
    """Return a table as a stranger with sqlite3 sees it."""
    with closing(sqlite3.connect(path)) as db:
        db.row_factory = sqlite3.Row
        return [dict(row) for row in db.execute(f"SELECT * FROM {table}")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a metrics.db that is not there yet."""
    return tmp_path / "metrics.db"


def test_every_field_of_a_record_is_stored(path: Path) -> None:
    said = {name: index + 0.1 for index, name in enumerate(NUMBERS)}
    history = History(path)
    besides = {"kind": "eval", "rank": 4, "step": 12, "glued": True, "per_device": True}
    said_besides = {**besides, "extra": {"a": 1.0, "b": "x"}}
    history.commit([entry(7, source=3, part=1, **said_besides, **said)], [], b"")
    history.close()
    (row,) = records_of(path)
    extra = json.loads(str(row.pop("extra")))
    assert extra == {"a": 1.0, "b": "x"}
    place = {"source": 3, "offset": 7, "part": 1, "attempt": 1, "segment": 2, "at": 1.5}
    assert row == {**place, "reader": "test", **besides, **said}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize(("value", "stored"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf"), (None, None)])
def test_numbers_that_sqlite_does_not_keep_are_texts_and_unknown_is_null(
    path: Path, name: str, value: float | None, stored: str | None
) -> None:
    history = History(path)
    history.commit([entry(**{name: value, "extra": {"g": math.nan}})], [], b"")
    history.close()
    (row,) = records_of(path)
    assert row[name] == stored
    assert row["extra"] == '{"g": "nan"}'


def test_records_come_in_the_order_of_the_log_and_once(path: Path) -> None:
    history = History(path)
    history.commit([entry(20, step=3), entry(10, part=1, step=2), entry(10, step=1)], [], b"")
    history.commit([entry(0, source=1, step=4), entry(20, step=3)], [], b"")
    history.close()
    assert [row["step"] for row in records_of(path)] == [1, 2, 3, 4]


numbers = st.none() | st.floats()
keys = st.dictionaries(st.text(max_size=3), st.floats() | st.text(max_size=4), max_size=3)
entries = st.lists(
    st.builds(
        lambda key, kept, **said: Entry(Record(reader=key[0], kind=key[1], rank=key[2], **said), *kept),
        st.tuples(st.sampled_from("ab"), st.sampled_from(["train", "eval"]), st.none() | st.integers(0, 1)),
        st.sampled_from([(1, 1), (1, 2), (2, 3)]),
        source=st.integers(0, 1),
        offset=st.integers(0, 2**40),
        part=st.integers(0, 1),
        at=st.floats(0, 2e9),
        step=st.none() | st.integers(-(2**63), 2**63 - 1),
        extra=st.none() | keys,
        glued=st.booleans(),
        per_device=st.booleans(),
        **dict.fromkeys(NUMBERS, numbers),
    ),
    unique_by=lambda one: (one.record.source, one.record.offset, one.record.part),
    max_size=30,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(entries, st.integers(1, 12), st.integers(1, 30), st.integers(0, 3))
def test_rows_and_chunks_give_back_what_was_said(
    tmp_path_factory: pytest.TempPathFactory, said: list[Entry], chunk: int, every: int, most: int
) -> None:
    """Whatever becomes a chunk, and when: the records are those that were committed, number by number."""
    path = tmp_path_factory.mktemp("history") / "metrics.db"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(store, "CHUNK", chunk)
        patched.setattr(store, "LEAST", 3)
        patched.setattr(table, "MOST_COLUMNS", most)
        patched.setattr(table, "SPARSE", 2)
        history = History(path)
        for begin in range(0, len(said), every):
            history.commit(said[begin : begin + every], [], b"")
        history.close()
    wanted = sorted(said, key=lambda one: (one.record.source, one.record.offset, one.record.part))
    found = list(records_of(path))
    assert len(found) == len(wanted)
    for row, one in zip(found, wanted, strict=True):
        assert json.loads(str(row.pop("extra") or "null")) == jsonable(one.record.extra)
        fields = msgspec.structs.asdict(one.record)
        del fields["extra"], fields["early"], fields["strange"]
        assert row == {**jsonable(fields), "attempt": one.attempt, "segment": one.segment}


def test_verdicts_are_kept_once_by_their_key(path: Path) -> None:
    verdict = Verdict(
        rule="nonfinite", severity="critical", action="terminate", text="NaN", step=4, at=9.25, offset=3,
        evidence={"loss": math.nan},
    )  # fmt: skip
    history = History(path)
    history.commit([], [verdict, verdict], b"")
    history.commit([], [verdict], b"")
    history.close()
    (row,) = rows(path, "verdicts")
    assert (row["rule"], row["step"], row["at"], row["offset"], row["evidence"]) == (
        "nonfinite", 4, 9.25, 3, '{"loss": "nan"}',
    )  # fmt: skip


def test_a_commit_that_fails_leaves_everything_as_it_was(path: Path) -> None:
    history = History(path)
    history.commit([entry(1, step=1)], [], b"first")
    history.db.execute("CREATE TEMP TRIGGER full BEFORE INSERT ON state BEGIN SELECT RAISE(ABORT, 'no'); END")
    with pytest.raises(sqlite3.Error):
        history.commit([entry(2, step=2)], [], b"second")
    history.db.execute("DROP TRIGGER full")
    assert history.load() == b"first"
    assert [row["step"] for row in records_of(path)] == [1]
    history.commit([entry(2, step=2)], [], b"third")  # and it goes on
    assert history.load() == b"third"
    history.close()


@pytest.mark.parametrize("chunk", [400, 10_000])
def test_a_new_key_on_every_line_costs_no_more_than_it_says(
    path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(store, "CHUNK", chunk)
    count, each = 2000, 20
    extras: list[dict[str, float | str]] = [
        {"same": float(line), **{f"key {line} {one}": f"t{one}" if one % 5 == 0 else one / 2 for one in range(each)}}
        for line in range(count)
    ]
    for place in range(1000, 1000 + count // 4):
        extras[place]["late"] = float(place)  # many have it, though the columns are given out by then
    history = History(path)
    history.commit([entry(line, step=line, extra=said) for line, said in enumerate(extras)], [], b"")
    history.close()
    assert [json.loads(str(row["extra"])) for row in records_of(path)] == extras
    said = sum(len(json.dumps(one)) for one in extras)
    assert path.stat().st_size < 2 * said
    with closing(sqlite3.connect(path)) as db:
        columns, chunks = db.execute("SELECT (SELECT count(*) FROM columns), (SELECT count(*) FROM chunks)").fetchone()
    assert columns <= (table.MOST_COLUMNS + 5) * chunks
    assert bool(chunks) is (chunk < count)
    with Views(path) as views:
        assert {"same", "late"} <= set(views.names())
        wanted = ["late", "key 1999 1", "key 1999 0", "nowhere"]
        found: dict[str, list[float]] = {name: [] for name in wanted}
        for stretch in views.stretches(wanted):
            for name in wanted:
                values, missing = stretch.columns[name]
                odd = missing or bytes(len(values))
                found[name] += [value for value, one in zip(values, odd, strict=True) if not one]
    assert found == {
        "late": [float(place) for place in range(1000, 1000 + count // 4)], "key 1999 1": [0.5], "key 1999 0": [],
        "nowhere": [],
    }  # fmt: skip


BEYOND = (2**63, -(2**63) - 1, 2**70, 10**400, -(10**400))
HALF = "t\ud800"


@pytest.mark.parametrize("chunk", [1, 1000])
@pytest.mark.parametrize("value", BEYOND)
def test_no_integer_is_too_large_to_go_on(path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, value: int) -> None:
    monkeypatch.setattr(store, "CHUNK", chunk)
    history = History(path)
    said: dict[str, Any] = dict.fromkeys(NUMBERS, value)
    odd = [entry(1, rank=value), entry(2, step=value), entry(3, **said), entry(4, extra={"n": value})]
    history.commit([entry(0, step=1), *odd, entry(5, step=2)], [], encode_state({"step": value}))
    assert history.left_out == (abs(value) > 1e308)  # nothing is left of what only such a value stood in
    history.close()
    assert isinstance(decode_state(History(path).load() or b""), dict)
    found = {row["offset"]: row for row in records_of(path)}
    assert found.keys() - {4} == {0, 1, 2, 3, 5}
    assert (found[1]["rank"], found[2]["step"]) == (None, None)
    assert found[3]["loss"] == (None if abs(value) > 1e308 else float(value))
    with Views(path) as views:
        assert sum(stretch.kept for stretch in views.stretches(["loss"])) == len(found)


@pytest.mark.parametrize("chunk", [1, 2, 1000])
def test_half_a_surrogate_pair_is_shown_as_what_it_is(path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(store, "CHUNK", chunk)
    history = History(path)
    verdict = Verdict(
        rule="nonfinite", severity="warn", action="alert", text=HALF, at=1.0, step=2**70, evidence={HALF: 2**70}
    )
    odd = [entry(0, step=1, extra={HALF: 4.0, "ok": HALF, "\U0001f600": 1.0}), entry(1, step=2, extra={HALF: 5.0})]
    history.commit(odd, [verdict], encode_state({HALF: HALF, "n": [math.nan]}))
    history.commit([entry(2, step=3, extra={HALF: 6.0})], [], b"")
    history.close()
    assert history.left_out == 0
    assert [json.loads(str(row["extra"])) for row in records_of(path)] == [
        {r"t\ud800": 4.0, "ok": r"t\ud800", "\U0001f600": 1.0}, {r"t\ud800": 5.0}, {r"t\ud800": 6.0},
    ]  # fmt: skip
    with Views(path) as views:
        assert r"t\ud800" in views.names()
        (stretch, *others) = views.stretches([r"t\ud800"])
        values = [value for one in (stretch, *others) for value in one.columns[r"t\ud800"].values]
        assert values == [4.0, 5.0, 6.0]


def test_what_an_older_version_has_stored_can_be_read_and_packed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = History(path)
    history.commit([entry(place, step=place, extra={"k": 1.0}) for place in range(3)], [], b"")
    odd = json.dumps({HALF: 4.0, "s": HALF, "n": 10**400})
    history.db.execute("UPDATE records SET extra = ? WHERE offset > 0", (odd,))
    history.close()
    wanted = [{"k": 1.0}, *[{r"t\ud800": 4.0, "s": r"t\ud800", "n": None}] * 2]
    assert [json.loads(str(row["extra"])) for row in records_of(path)] == wanted
    with Views(path) as views:
        assert r"t\ud800" in views.names()
    monkeypatch.setattr(store, "CHUNK", 3)
    history = History(path)
    history.commit([entry(9, step=9)], [], b"")
    history.close()
    assert not rows(path)
    assert [json.loads(str(row["extra"] or "null")) for row in records_of(path)] == [*wanted, None]


def test_a_record_that_no_database_can_hold_is_left_out(path: Path) -> None:
    history = History(path)
    odd: list[Any] = [
        entry(1, step="four"), entry(2, loss=[1.0]), entry(3, extra={"list": [1]}), entry(2**64, step=5),
        entry(4, kind="other"),
    ]  # fmt: skip
    history.commit([entry(0, step=1), *odd, entry(6, step=2)], [], b"state")
    assert history.load() == b"state"
    assert history.left_out == len(odd)
    history.close()
    assert [row["step"] for row in records_of(path)] == [1, 2]


def test_nobody_else_can_read_it(path: Path) -> None:
    before = os.umask(0o022)
    try:
        history = History(path)
        history.commit([entry(1, step=1)], [], b"")
        modes = {one.name: one.stat().st_mode & 0o777 for one in path.parent.iterdir()}
        history.close()
    finally:
        os.umask(before)
    assert set(modes.values()) == {0o600}, modes


def test_state_of_another_format_is_no_state(path: Path) -> None:
    history = History(path)
    assert history.load() is None
    history.commit([], [], b"mine")
    history.db.execute("UPDATE state SET format = 99")
    assert history.load() is None
    history.close()


@pytest.mark.parametrize(("network", "mode"), [(False, "wal"), (True, "delete")])
def test_wal_only_where_it_is_safe(path: Path, network: bool, mode: str) -> None:
    history = History(path, network=network)
    history.commit([entry(1, step=1)], [], b"x")
    assert history.db.execute("PRAGMA journal_mode").fetchone() == (mode,)
    assert path.with_name("metrics.db-wal").exists() is not network
    assert [row["step"] for row in records_of(path)] == [1]  # a reader beside the writer
    history.close()
    assert not path.with_name("metrics.db-wal").exists()


def test_the_disk_turning_out_to_be_a_network_disk_changes_the_mode(path: Path) -> None:
    History(path).close()
    history = History(path, network=True)
    assert history.db.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    history.close()


@pytest.mark.parametrize("damage", ["noise", "head", "middle", "half"])
def test_a_damaged_file_is_moved_aside(path: Path, damage: str) -> None:
    history = History(path)
    history.commit([entry(offset, step=offset) for offset in range(5000)], [], b"state" * 1000)
    history.close()
    data = bytearray(path.read_bytes())
    if damage == "noise":
        data = bytearray(os.urandom(len(data)))
    elif damage == "head":
        data[:100] = bytes(100)
    elif damage == "middle":
        data[100:8192] = b"\xff" * 8092
    else:
        del data[len(data) // 2 :]
    path.write_bytes(data)
    history, said = open_history(path)
    assert said is not None
    assert str(path) in said
    assert history.load() is None
    history.commit([entry(1, step=1)], [], b"new")
    history.close()
    assert path.with_suffix(".damaged").read_bytes() == data
    assert [row["step"] for row in records_of(path)] == [1]


def test_a_write_ahead_log_that_is_noise_loses_at_most_what_it_held(path: Path) -> None:
    history = History(path)
    history.commit([entry(1, step=1)], [], b"first")
    history.close()
    path.with_name("metrics.db-wal").write_bytes(os.urandom(40_000))
    history, said = open_history(path)
    assert said is None
    assert history.load() == b"first"
    history.close()


def test_a_file_that_is_locked_or_out_of_reach_is_left_alone(path: Path) -> None:
    first = History(path, network=True)
    first.commit([entry(1, step=1)], [], b"kept")
    first.db.execute("BEGIN EXCLUSIVE")
    second, said = open_history(path, network=True)
    assert said is not None
    assert "locked" in said
    assert second.load() is None
    second.commit([entry(2, step=2)], [], b"lost")  # it works, and nothing of it is kept
    second.close()
    first.db.execute("COMMIT")
    assert first.load() == b"kept"
    first.close()
    assert sorted(one.name for one in path.parent.iterdir()) == ["metrics.db"]
    nowhere, said = open_history(path.parent / "gone" / "metrics.db")
    assert said is not None
    nowhere.close()


def test_a_path_with_signs_that_mean_something_in_addresses(tmp_path: Path) -> None:
    folder = tmp_path / "50% of #1? yes&mode=rwc"
    folder.mkdir()
    history = History(folder / "metrics.db")
    history.commit([entry(1, step=1)], [], b"")
    assert [row["step"] for row in records_of(folder / "metrics.db")] == [1]
    history.close()


def test_reading_makes_no_file_where_there_is_none(path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError):
        list(records_of(path))
    assert not path.exists()


CHILD = """
import sys
from pathlib import Path
from overnight.events import Record
from overnight.history.store import History
from overnight.batches import Entry
history = History(Path(sys.argv[1]))
for turn in range(10**9):
    entries = [Entry(Record(reader="t", offset=turn, part=part, step=turn), 1, 1) for part in range(3)]
    history.commit(entries, [], str(turn).encode())
    print(turn, flush=True)
"""


def test_sigkill_leaves_whole_transactions(path: Path) -> None:
    for _ in range(5):
        with subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            for _line in range(30):
                told = int(child.stdout.readline())
            child.send_signal(signal.SIGKILL)
        history, said = open_history(path)
        assert said is None
        state = int(history.load() or b"-1")
        assert state >= told
        found = [(row["step"], row["part"]) for row in records_of(path)]
        assert found[-3:] == [(max(found)[0], part) for part in range(3)]
        history.close()
        assert len(found) % 3 == 0


builtins = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(builtins)
def test_state_comes_back_as_it_was(value: object) -> None:
    assert decode_state(encode_state(value)) == value


def test_state_keeps_nan_and_infinities() -> None:
    back = decode_state(encode_state([math.nan, math.inf, -math.inf]))
    assert repr(back) == "[nan, inf, -inf]"


def test_a_key_that_only_one_of_two_chunks_has_damages_neither(path: Path) -> None:
    entries = [entry(at, step=at, loss=1.0, extra={"kl": 0.5} if at < 10 else {}) for at in range(12_000)]
    history = History(path)
    history.commit(entries, [], b"")
    history.close()
    found = [json.loads(str(row["extra"] or "{}")) for row in records_of(path)]
    assert found == [{"kl": 0.5}] * 10 + [{}] * 11_990

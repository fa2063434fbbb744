"""The run folder's files: published whole, journal lines that stand alone, names that cannot leave the folder."""

from __future__ import annotations

import json
import math
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overnight.errors import FolderError, UsageError
from overnight.folder import (
    BALLAST_BYTES,
    Journal,
    RunFolder,
    check_name,
    drop_request,
    machine_id,
    read_journal,
    read_json,
    utc,
    write_atomic,
    write_json,
)
from overnight.processes import boot_id


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """Return a new run folder."""
    made = RunFolder(tmp_path / "home" / "runs" / "night")
    made.create()
    return made


@pytest.mark.parametrize("name", ["a", "0", "night-1_B", "x" * 64])
def test_names_that_may_name_a_run(name: str) -> None:
    assert check_name(name) == name


BAD_NAMES = ["", "-a", "_a", "../a", "a/b", "a.b", "a b", "a\n", "\n", "é", "x" * 65, ".", "..", "a\0b", "٣"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_may_not(name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a run"):
        check_name(name)


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (0.0, "1970-01-01T00:00:00.000Z"),
        (1_767_261_600.9999, "2026-01-01T10:00:00.999Z"),
        (1_767_261_600.5, "2026-01-01T10:00:00.500Z"),
    ],
)
def test_times_are_utc(at: float, text: str) -> None:
    assert utc(at) == text


def test_the_folder_is_for_its_user_alone(folder: RunFolder) -> None:
    for path in (folder.path, folder.attempts, folder.inbox, folder.owner, folder.evidence):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    with pytest.raises(FileExistsError):
        folder.create()
    assert folder.name == "night"


def test_every_path_is_inside(folder: RunFolder) -> None:
    paths = [value for value in vars(folder).values() if isinstance(value, Path)]
    paths += [value for value in vars(folder.attempt(3)).values() if isinstance(value, Path)]
    assert len(paths) > 15
    assert all(path.is_relative_to(folder.path) for path in paths)
    assert folder.attempt(3).path.name == "003"


def test_attempt_numbers(folder: RunFolder) -> None:
    for name in ("002", "001", "010", "1000", "notes", ".tmp", "²"):
        (folder.attempts / name).mkdir()
    assert folder.attempt_numbers() == [1, 2, 10, 1000]
    assert RunFolder(folder.path / "nothing").attempt_numbers() == []


def test_published_files_are_whole_or_not_there(folder: RunFolder) -> None:
    write_json(folder.status_json, {"n": -1, "pad": ""})
    torn: list[object] = []
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            try:
                found = read_json(folder.status_json)
            except FolderError as error:
                torn.append(error)
            else:
                assert found is not None
                if found["n"] >= 0 and len(found["pad"]) != found["n"] * 200:
                    torn.append(found["n"])

    looker = threading.Thread(target=look)
    looker.start()
    for turn in range(300):
        write_json(folder.status_json, {"n": turn, "pad": "x" * turn * 200}, fsync=turn % 100 == 0)
    over.set()
    looker.join()
    assert torn == []
    assert [name for name in os.listdir(folder.path) if name.endswith(".tmp")] == []
    assert stat.S_IMODE(folder.status_json.stat().st_mode) == 0o600


def test_a_failed_publication_leaves_the_old_file_and_no_litter(folder: RunFolder) -> None:
    folder.status_json.mkdir()
    with pytest.raises(OSError):  # noqa: PT011 - which one is the kernel's choice
        write_atomic(folder.status_json, b"x")
    assert sorted(os.listdir(folder.path)) == ["attempts", "evidence", "inbox", "owner", "status.json"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters()), inner, max_size=3),
    max_leaves=10,
)


def as_words(value: Any) -> Any:
    """Return a value as it should come back: non-finite numbers are words."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, list):
        return [as_words(one) for one in value]
    return {key: as_words(one) for key, one in value.items()} if isinstance(value, dict) else value


@given(value=json_values)
def test_json_comes_back(value: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "value.json"
    write_json(path, {"value": value})
    assert read_json(path) == {"value": as_words(value)}
    assert path.read_bytes().count(b"\n") == 1


def test_arguments_that_are_no_unicode_come_back(folder: RunFolder) -> None:
    word = os.fsdecode(b"caf\xe9")
    write_json(folder.run_json, {"argv": [word, "é"]})
    assert read_json(folder.run_json) == {"argv": [word, "é"]}
    journal = Journal(folder.journal)
    journal.append("note", 0.0, text=word)
    journal.close()
    assert [fact["text"] for fact in read_journal(folder.journal)] == [word]


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b"\xff\xfe\x00", b'{"a": 1} x'])
def test_a_damaged_file_is_one_sentence(folder: RunFolder, text: bytes) -> None:
    folder.run_json.write_bytes(text)
    with pytest.raises(FolderError, match=r"run\.json"):
        read_json(folder.run_json)


def test_a_missing_file_is_none_and_a_folder_in_its_place_is_told(folder: RunFolder) -> None:
    assert read_json(folder.run_json) is None
    folder.run_json.mkdir()
    with pytest.raises(FolderError, match="cannot be read"):
        read_json(folder.run_json)


def test_journal_lines_stand_alone(folder: RunFolder) -> None:
    journal = Journal(folder.journal)
    journal.append("one", 0.0, loss=math.nan, text="zwölf\nlines")
    journal.append("two", 1.5)
    journal.sync()
    journal.close()
    assert list(read_journal(folder.journal)) == [
        {"at": "1970-01-01T00:00:00.000Z", "fact": "one", "loss": "nan", "text": "zwölf\nlines"},
        {"at": "1970-01-01T00:00:01.500Z", "fact": "two"},
    ]
    assert list(read_journal(folder.path / "none.jsonl")) == []


@pytest.mark.parametrize("cut", range(1, 60))
def test_a_journal_torn_anywhere_goes_on(folder: RunFolder, cut: int) -> None:
    journal = Journal(folder.journal)
    journal.append("first", 0.0)
    journal.append("second", 0.0, text="x" * 20)
    journal.close()
    data = folder.journal.read_bytes()
    whole = [fact["fact"] for fact in map(json.loads, data[:-cut].split(b"\n")[:-1])]
    folder.journal.write_bytes(data[:-cut])
    again = Journal(folder.journal)
    again.append("third", 0.0)
    again.append("fourth", 0.0)
    again.close()
    kinds = [fact["fact"] for fact in read_journal(folder.journal)]
    if cut == 1:
        whole.append("second")  # only the line's end was missing
    assert kinds == [*whole, "third", "fourth"]


def test_half_a_line_of_a_failed_write_is_closed_by_the_next(folder: RunFolder) -> None:
    journal = Journal(folder.journal)
    journal.append("first", 0.0)
    os.write(journal.handle, b'{"at": "half')
    journal.torn = True  # what append leaves behind when the disk was full in the middle
    journal.append("second", 0.0)
    journal.append("third", 0.0)
    journal.close()
    assert [fact["fact"] for fact in read_journal(folder.journal)] == ["first", "second", "third"]


def test_foreign_lines_are_passed_over(folder: RunFolder) -> None:
    foreign = b'\xff\n\0\0\0\n[]\nnull\n{"fact": 5}\n{"no": "fact"}\n\n'
    folder.journal.write_bytes(foreign + b'{"fact": "kept", "new": [1]}\n{"fa')
    assert list(read_journal(folder.journal)) == [{"fact": "kept", "new": [1]}]


def test_requests_are_dropped_whole_and_in_order(folder: RunFolder) -> None:
    paths = [drop_request(folder, "stop", by="user", now=turn == 2) for turn in range(3)]
    assert sorted(paths) == paths
    assert sorted(os.listdir(folder.inbox)) == [path.name for path in paths]
    found = read_json(paths[2])
    assert found is not None
    assert (found["kind"], found["by"], found["now"]) == ("stop", "user", True)
    assert found["at"] == pytest.approx(paths[2].stat().st_mtime, abs=60)


def test_the_ballast_holds_real_blocks_and_is_freed_once(folder: RunFolder) -> None:
    folder.put_ballast()
    assert folder.ballast.stat().st_blocks * 512 >= BALLAST_BYTES
    folder.put_ballast()
    assert folder.drop_ballast() is True
    assert folder.drop_ballast() is False


def test_this_machine_and_this_boot() -> None:
    assert boot_id() == boot_id() != ""
    assert machine_id()

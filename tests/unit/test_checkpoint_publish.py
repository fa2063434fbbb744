"""How a checkpoint gets its name, is replaced, and who holds the folder; whatever the file system can do."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from overnight.checkpoint import errors, lock, publish


def written(folder: Path, step: int, text: str) -> Path:
    made = publish.begin(folder, step)
    (made / "file").write_text(text)
    return made


def content(folder: Path) -> dict[str, str]:
    return {path.name: (path / "file").read_text() for path in sorted(folder.iterdir()) if path.is_dir()}


class KilledError(Exception):
    """Stands for SIGKILL at one system call."""


def test_one_of_this_run_is_replaced_in_one_moment(tmp_path: Path) -> None:
    publish.publish(written(tmp_path, 5, "old"), tmp_path, 5, lambda _: True)
    assert publish.publish(written(tmp_path, 5, "new"), tmp_path, 5, lambda _: True) == tmp_path / "step-00000005"
    assert content(tmp_path) == {"step-00000005": "new"}


def test_anything_else_is_left_alone(tmp_path: Path) -> None:
    for text, name in (("first", "step-00000005"), ("second", "step-00000005.2"), ("third", "step-00000005.3")):
        assert publish.publish(written(tmp_path, 5, text), tmp_path, 5, lambda _: False).name == name
    assert list(content(tmp_path).values()) == ["first", "second", "third"]


@pytest.mark.parametrize("calls", range(5))
def test_where_names_cannot_be_swapped_one_of_them_is_always_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """Killed at any system call that changes a name: what is left after the next sweep is the old or the new one."""
    monkeypatch.setattr(publish, "_exchange", lambda *_: False)
    publish.publish(written(tmp_path, 5, "old"), tmp_path, 5, lambda _: True)
    made = written(tmp_path, 5, "new")
    left = [calls]

    def counted(name: str) -> None:
        real = getattr(os, name)

        def call(*args: object, **more: object) -> object:
            left[0] -= 1
            if left[0] < 0:
                raise KilledError
            return real(*args, **more)

        monkeypatch.setattr(os, name, call)

    for name in ("rename", "rmdir", "unlink"):
        counted(name)
    killed = False
    try:
        publish.publish(made, tmp_path, 5, lambda _: True)
    except KilledError:
        killed = True
    monkeypatch.undo()
    publish.sweep(tmp_path)
    assert killed == (calls < 4)
    assert set(content(tmp_path).values()) & {"old", "new"}
    assert killed or content(tmp_path) == {"step-00000005.2": "new"}


def test_a_lock_of_a_folder_that_was_removed_is_taken_again(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()
    handle = lock.take(folder, say=print)
    assert lock.held(handle, folder)
    shutil.rmtree(folder)
    assert not lock.held(handle, folder)
    lock.take_again(handle, folder, say=print)
    assert lock.held(handle, folder)
    with pytest.raises(errors.LockedError, match=str(os.getpid())):
        lock.take(folder, say=print)
    os.close(handle)
    os.close(lock.take(folder, say=print))


def test_somebody_else_may_have_made_it_anew(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()
    first = lock.take(folder, say=print)
    shutil.rmtree(folder)
    folder.mkdir()
    second = lock.take(folder, say=print)
    with pytest.raises(errors.LockedError):
        lock.take_again(first, folder, say=print)
    os.close(first)
    os.close(second)


def test_sizes_in_words() -> None:
    assert [publish.in_words(size) for size in (0, 999, 1000, 14_110, 3_200_000, 1_490_000_000)] == [
        "0 bytes", "999 bytes", "1.0 kB", "14.1 kB", "3.2 MB", "1.5 GB",
    ]  # fmt: skip

"""What wakes a supervisor is never lost: a signal between two looks, what the kernel's queue had no room for."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from inotify_simple import Event, flags

from overnight.supervision.waking import Wake


@pytest.fixture
def wake() -> Iterator[Wake]:
    made = Wake()
    yield made
    made.inotify.close()
    os.close(made.reading)
    os.close(made.writing)


class Late(list[int]):
    """Notes to which a signal handler adds one just after they were read."""

    def __iter__(self) -> Iterator[int]:
        """Yield what is there, then let the handler run."""
        yield from list(super().__iter__())
        if signal.SIGTERM not in list(super().__iter__()):
            self.append(signal.SIGTERM)


def test_a_signal_that_comes_while_the_notes_are_read_is_told_the_next_time(wake: Wake) -> None:
    wake.notes = Late([signal.SIGHUP])
    assert wake.sleep(0.0).signals == (signal.SIGHUP,)
    assert wake.sleep(0.0).signals == (signal.SIGTERM,)
    assert wake.sleep(0.0).by_timer


def test_where_the_kernel_had_no_room_everything_is_looked_at(
    wake: Wake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wake.watch_folder(tmp_path)
    (tmp_path / "one").touch()
    lost = Event(wd=-1, mask=flags.Q_OVERFLOW, cookie=0, name="")
    monkeypatch.setattr(wake.inotify, "read", lambda **_: [lost])
    woke = wake.sleep(0.0)
    assert woke.log
    assert woke.names
    assert not woke.by_log, "a request may be what was lost"

"""What a training is asked: signals that only leave a note, the order of a run, steps to leave out."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from overnight.checkpoint.asking import GRACE_S, SIGNALS, Asking, skip_ranges, stop_step
from overnight.checkpoint.errors import CheckpointError


@pytest.fixture(autouse=True)
def _signals_and_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("RUN_DIR", "ATTEMPT", "SKIP_STEPS", "STOP_AT"):
        monkeypatch.delenv(f"OVERNIGHT_{name}", raising=False)
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def asking(said: list[str]) -> Asking:
    return Asking(say=said.append)


def handlers() -> list[Any]:
    return [signal.getsignal(number) for number in SIGNALS]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_only_leaves_a_note(number: signal.Signals, asking: Asking) -> None:
    asking.listen()
    assert (asking.asked, asking.at, asking.grace_left_s()) == (None, None, None)
    before = time.monotonic()
    signal.raise_signal(number)  # SIGINT raises no KeyboardInterrupt
    assert asking.asked == number.name
    assert asking.at is not None
    assert before <= asking.at <= time.monotonic()


def test_the_first_signal_counts(asking: Asking) -> None:
    asking.listen()
    signal.raise_signal(signal.SIGUSR1)
    at = asking.at
    for number in SIGNALS:
        signal.raise_signal(number)
    assert (asking.asked, asking.at) == ("SIGUSR1", at)


def test_what_was_there_is_put_back(asking: Asking) -> None:
    before = handlers()
    asking.listen()
    asking.listen()
    assert not set(map(id, before)) & set(map(id, handlers()))
    asking.unlisten()
    assert handlers() == before
    asking.unlisten()
    assert handlers() == before


def test_a_users_handler_is_called_behind_the_note(asking: Asking) -> None:
    seen: list[tuple[int, str | None]] = []

    def own(number: int, _frame: FrameType | None) -> None:
        seen.append((number, asking.asked))

    signal.signal(signal.SIGTERM, own)
    asking.listen()
    signal.raise_signal(signal.SIGTERM)
    assert seen == [(signal.SIGTERM, "SIGTERM")]
    asking.unlisten()
    assert signal.getsignal(signal.SIGTERM) is own


def test_a_users_handler_that_raises_is_the_users_will(asking: Asking) -> None:
    def own(_number: int, _frame: FrameType | None) -> None:
        raise RuntimeError("mine")

    signal.signal(signal.SIGUSR2, own)
    asking.listen()
    with pytest.raises(RuntimeError, match="mine"):
        signal.raise_signal(signal.SIGUSR2)
    assert asking.asked == "SIGUSR2"


def test_an_ignored_signal_stays_ignored(asking: Asking) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asking.listen()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    signal.raise_signal(signal.SIGINT)
    assert asking.asked is None
    asking.unlisten()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_handler_that_came_later_is_left_in_place_and_still_works(asking: Asking) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    later: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: later.append(number))
    asking.listen()
    ours = signal.getsignal(signal.SIGTERM)
    assert callable(ours)

    def last(number: int, frame: FrameType | None) -> None:
        ours(number, frame)

    signal.signal(signal.SIGTERM, last)
    asking.unlisten()
    assert signal.getsignal(signal.SIGTERM) is last
    signal.raise_signal(signal.SIGTERM)
    assert later == [signal.SIGTERM]
    assert asking.asked is None  # it does not listen any more, and passes on


def test_two_at_a_time_each_get_the_note(said: list[str]) -> None:
    first, second = Asking(say=said.append), Asking(say=said.append)
    before = handlers()
    first.listen()
    second.listen()
    signal.raise_signal(signal.SIGTERM)
    assert (first.asked, second.asked) == ("SIGTERM", "SIGTERM")
    second.unlisten()
    first.unlisten()
    assert handlers() == before


def test_it_can_listen_again(asking: Asking) -> None:
    asking.listen()
    asking.unlisten()
    asking.listen()
    signal.raise_signal(signal.SIGTERM)
    assert asking.asked == "SIGTERM"


def test_outside_the_main_thread_it_says_so_once(asking: Asking, said: list[str]) -> None:
    before = handlers()

    def elsewhere() -> None:
        asking.listen()
        asking.listen()
        asking.unlisten()

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert len(said) == 1
    assert "main thread" in said[0]
    assert handlers() == before


# -- the order of a run ----------------------------------------------------------------------------------------------


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "run" / "attempts" / "012"
    made.mkdir(parents=True)
    monkeypatch.setenv("OVERNIGHT_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("OVERNIGHT_ATTEMPT", "12")
    return made


def test_a_save_is_wanted_where_nobody_says_otherwise(asking: Asking) -> None:
    assert asking.save_wanted()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('{"cause": "nonfinite", "save": false, "at": 1.0}', False),
        ('{"cause": "user", "save": true}', True),
        ('{"cause": "user"}', True),
        ('{"save": null}', True),
        ("[]", True),
        ("{", True),
        ("", True),
        ("[" * 100_000, True),
    ],
)
def test_the_order_says_whether_a_save_is_wanted(text: str, wanted: bool, attempt: Path, asking: Asking) -> None:
    assert asking.save_wanted()
    (attempt / "stop.json").write_text(text)
    assert asking.save_wanted() is wanted


def test_only_the_order_of_this_attempt_counts(attempt: Path, asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    (attempt / "stop.json").write_text('{"save": false}')
    for other in ("13", "", "-12", "x", "..", "²"):
        monkeypatch.setenv("OVERNIGHT_ATTEMPT", other)
        assert asking.save_wanted()
    monkeypatch.setenv("OVERNIGHT_ATTEMPT", "12")
    assert not asking.save_wanted()


def order(attempt: Path, *, ago_s: float, signalled: bool = True, grace_s: Any = 100.0) -> None:
    began = time.clock_gettime(time.CLOCK_BOOTTIME) - ago_s
    (attempt / "stop.json").write_text(json.dumps({"save": True, "began": began, "signalled": signalled}))
    (attempt.parents[1] / "run.json").write_text(json.dumps({"spec": {"grace_s": grace_s}}))


def noted(asking: Asking, *, ago_s: float = 0.0) -> float:
    asking.listen()
    signal.raise_signal(signal.SIGTERM)
    assert asking.at is not None
    asking.at -= ago_s
    left_s = asking.grace_left_s()
    assert left_s is not None
    return left_s


def test_the_grace_is_a_minute_where_nobody_says(asking: Asking) -> None:
    assert GRACE_S - 50 < noted(asking, ago_s=10.0) <= GRACE_S - 10


def test_the_grace_is_the_runs_from_its_supervisors_signal(attempt: Path, asking: Asking) -> None:
    order(attempt, ago_s=30.0)
    assert 30 < noted(asking) <= 70


def test_a_signal_of_somebody_else_begins_a_grace_of_its_own(attempt: Path, asking: Asking) -> None:
    order(attempt, ago_s=30.0, signalled=False)
    assert 70 < noted(asking) <= 100


@pytest.mark.parametrize("grace_s", [None, "60", True, [1]])
def test_an_edited_run_json_falls_back_to_a_minute(grace_s: Any, attempt: Path, asking: Asking) -> None:
    order(attempt, ago_s=0.0, grace_s=grace_s)
    assert 30 < noted(asking) <= GRACE_S


def test_the_grace_never_falls_below_nothing(attempt: Path, asking: Asking) -> None:
    order(attempt, ago_s=1e6)
    assert noted(asking) == 0.0


# -- steps -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ranges"),
    [
        ("", ()),
        ("  ", ()),
        ("7", ((7, 7),)),
        ("10-20,30", ((10, 20), (30, 30))),
        (" 30 , 10 - 20 ", ((10, 20), (30, 30))),
        ("10-20,15-40,41,43", ((10, 41), (43, 43))),
        ("1-9,3-4,20", ((1, 9), (20, 20))),
        ("0-999999999999", ((0, 999999999999),)),
    ],
)
def test_ranges_of_steps(text: str, ranges: tuple[tuple[int, int], ...]) -> None:
    assert skip_ranges(text) == ranges


@pytest.mark.parametrize("text", ["a", "5-3", "-5", "5-", "1,,2", "1,", "1-2-3", "1.5", "1e3", "²", "1" * 19, "all"])
def test_other_ranges_are_refused_by_name(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERNIGHT_SKIP_STEPS", text)
    with pytest.raises(CheckpointError, match="OVERNIGHT_SKIP_STEPS"):
        Asking(say=print)


def test_steps_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERNIGHT_SKIP_STEPS", "12-14,7,20-20")
    asking = Asking(say=print)
    assert [step for step in range(30) if asking.skip(step)] == [7, 12, 13, 14, 20]
    monkeypatch.delenv("OVERNIGHT_SKIP_STEPS")
    assert not any(Asking(say=print).skip(step) for step in range(30))


def test_the_step_to_stop_at(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Asking(say=print).stop_at is None
    monkeypatch.setenv("OVERNIGHT_STOP_AT", " 1200 ")
    assert Asking(say=print).stop_at == 1200
    assert stop_step("") is None


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "end", "1-2"])
def test_other_steps_to_stop_at_are_refused_by_name(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERNIGHT_STOP_AT", text)
    with pytest.raises(CheckpointError, match="OVERNIGHT_STOP_AT") as refused:
        Asking(say=print)
    assert repr(text) in str(refused.value)
    assert os.environ["OVERNIGHT_STOP_AT"] == text

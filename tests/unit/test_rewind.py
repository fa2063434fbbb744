"""A step that goes back within an attempt: one note, and none where a program counts anew in each epoch."""

from __future__ import annotations

import pytest

from overnight.events import Verdict
from overnight.monitor import Monitor
from overnight.spec import RunSpec
from overnight.wiring import make_monitor


def heart() -> Monitor:
    """Return a monitor in its first attempt."""
    spec = RunSpec(name="night", argv=("train",), executable="/bin/true", cwd="/", log="/output.log")
    one = make_monitor(spec, pytest.fail)
    one.begin_attempt(1)
    return one


def lines(*spans: range, end: str = "") -> bytes:
    """Return telemetry of the steps of some ranges."""
    steps = [step for span in spans for step in span]
    return "".join(f"step: {step}, loss: 3.0, dt: 0.25{end}\n" for step in steps).encode()


def notes(one: Monitor, log: bytes) -> list[Verdict]:
    """Return what is said about falling steps."""
    return [verdict for verdict in one.feed(log, 1.0).verdicts if verdict.rule == "rewind"]


def test_one_note_on_the_first_line_after_it() -> None:
    one = heart()
    before = lines(range(600_000, 607_501, 100))
    (note,) = notes(one, before + lines(range(583_700, 590_000, 100)))
    assert note.text == "step went back from 607500 to 583700"
    assert (note.severity, note.action, note.step, note.attempt) == ("note", "note", 583_700, 1)
    assert note.offset == len(before)
    assert note.evidence == {"from_step": 607_500, "to_step": 583_700}
    assert one.sick_since is None


def test_once_per_attempt() -> None:
    one = heart()
    assert len(notes(one, lines(range(100, 150), range(120, 160), range(130, 170)))) == 1
    one.begin_attempt(2)
    assert notes(one, lines(range(125, 180))) == []  # the restart itself
    assert len(notes(one, lines(range(140, 180)))) == 1


def test_nothing_is_dropped() -> None:
    one = heart()
    found = one.feed(lines(range(100, 150), range(120, 160)), 1.0)
    assert [entry.record.step for entry in found.entries] == [*range(100, 150), *range(120, 160)]


@pytest.mark.parametrize(
    "spans",
    [
        (range(50), range(50), range(50)),
        (range(1, 50), range(1, 50)),
        (range(37, 50), range(1, 50), range(1, 50)),  # resumed within an epoch
        (range(10, 500, 10), range(10, 500, 10)),
        (range(210, 500, 10), range(10, 500, 10)),
        (range(200, 300), range(200, 300)),  # each begins where the first one did
    ],
)
def test_a_count_that_begins_anew_is_none(spans: tuple[range, ...]) -> None:
    assert notes(heart(), lines(*spans)) == []


def test_a_rising_epoch_is_none_and_a_falling_one_is() -> None:
    one = heart()
    assert notes(one, lines(range(100, 200), end=", epoch: 1") + lines(range(130, 200), end=", epoch: 2")) == []
    assert len(notes(one, lines(range(150, 160), end=", epoch: 1"))) == 1


def test_saved_and_restored_it_is_still_told_once() -> None:
    one = heart()
    notes(one, lines(range(100, 150), range(120, 160)))
    again = heart()
    again.restore(one.snapshot())
    assert notes(again, lines(range(130, 160))) == []
    fresh = heart()
    fresh.feed(lines(range(100, 150)), 1.0)
    again = heart()
    again.restore(fresh.snapshot())
    (note,) = notes(again, lines(range(120, 160)))
    assert note.evidence == {"from_step": 149, "to_step": 120}

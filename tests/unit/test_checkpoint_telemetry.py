"""The progress line: exact, read by the general reader, and no reason for a training to end."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overnight.checkpoint.errors import CheckpointError
from overnight.checkpoint.telemetry import Telemetry
from overnight.events import Record
from overnight.readers.keyvalue import KeyValue
from overnight.tail import Line


def read(text: str) -> Record:
    found = KeyValue()(Line(text, 0, False), 0.0, 0)
    assert found is not None, text
    (record,) = found
    return record


def line(step: int = 12, **figures: Any) -> str:
    return Telemetry().line(step, figures)


def test_the_line_is_as_documented() -> None:
    assert line(loss=2.0625, dt=0.051, tokens=32_768) == "step: 12, loss: 2.0625, dt: 0.051, tokens: 32768"
    assert line(tokens=32_768, dt=0.051, lr=1e-05, loss=2.0625) == (
        "step: 12, loss: 2.0625, dt: 0.051, tokens: 32768, lr: 1e-05"
    )


@settings(deadline=None)
@given(
    st.integers(1, 10**17),
    st.floats(allow_nan=False),
    st.floats(1e-9, 1e9),
    st.integers(0, 10**15),
    st.floats(allow_nan=False, allow_infinity=False),
)
def test_the_reader_gets_the_very_numbers(step: int, loss: float, dt: float, tokens: int, metric: float) -> None:
    record = read(line(step, loss=loss, dt=dt, tokens=tokens, metric=metric))
    assert (record.kind, record.step, record.loss, record.dt_s, record.tokens) == ("train", step, loss, dt, tokens)
    assert record.extra == {"metric": metric}
    assert not record.glued


def test_a_line_like_the_one_before_is_read_by_its_shape() -> None:
    reader = KeyValue()
    for step in (1, 2, 3):
        found = reader(Line(line(step, loss=2.5 + step, dt=0.25, tokens=64), 0, False), 0.0, 0)
        assert found is not None
        assert (found[0].step, found[0].loss, found[0].dt_s, found[0].tokens) == (step, 2.5 + step, 0.25, 64)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_read_as_such(loss: float) -> None:
    assert str(read(line(loss=loss, dt=0.1, tokens=5)).loss) == str(loss)


@pytest.mark.parametrize("figures", [{}, {"loss": None}, {"reward": 1.5}, {"loss": None, "tokens": 5, "lr": None}])
def test_a_step_without_a_loss_is_still_a_step(figures: dict[str, Any]) -> None:
    text = line(**figures)
    record = read(text)
    assert (record.kind, record.step, record.loss) == ("train", 12, None)
    assert "lr" not in text


def test_losses_by_other_names() -> None:
    assert read(line(lm_loss=2.5, dt=1.0)).loss == 2.5
    both = read(line(loss=2.5, val_loss=3.5))
    assert (both.kind, both.loss, both.extra) == ("train", 2.5, {"val_loss": 3.5})
    only = read(line(val_loss=3.5))
    assert (only.kind, only.loss) == ("eval", 3.5)


def test_arrays_and_tensors_of_one_element_are_numbers() -> None:
    np = pytest.importorskip("numpy")
    text = line(loss=np.float32(2.1), a=np.array([3.5]), tokens=np.int64(7), b=np.float64(0.1), c=np.bool_(True))
    assert text == f"step: 12, loss: {float(np.float32(2.1))!r}, a: 3.5, tokens: 7, b: 0.1, c: 1"
    assert np.float32(read(text).loss) == np.float32(2.1)
    torch = pytest.importorskip("torch")
    text = line(loss=torch.tensor(2.1, requires_grad=True), grad_norm=torch.tensor([[3.0]]), tokens=torch.tensor(5))
    assert text == f"step: 12, loss: {torch.tensor(2.1).item()!r}, grad_norm: 3.0, tokens: 5"


def test_other_numbers_and_words() -> None:
    assert line(loss=Decimal("2.5"), ok=True, none=None) == "step: 12, loss: 2.5, ok: 1"
    hostile = line(loss=1.0, phase="warm up,\nstep: 99, loss: nan", **{"a b:\n=c": 3, "": 4})
    assert "\n" not in hostile
    record = read(hostile)
    assert (record.step, record.loss) == (12, 1.0)
    assert record.extra == {"phase": "warm_up_step_99_loss_nan", "a_b_c": 3.0, "_": 4.0}


@pytest.mark.parametrize("value", [[1.0], {"a": 1}, 1j, object(), float])
def test_what_is_no_number_is_named(value: Any) -> None:
    with pytest.raises(CheckpointError, match=r"'grad_norm'.*report its mean"):
        line(loss=1.0, grad_norm=value)


def test_an_array_of_many_is_named() -> None:
    np = pytest.importorskip("numpy")
    with pytest.raises(CheckpointError, match=r"'loss' is a numpy\.ndarray"):
        line(loss=np.zeros(3))


class Clock:
    """Stands for ``time.perf_counter``."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("overnight.checkpoint.telemetry.time.perf_counter", made)
    return made


def test_the_time_of_a_step_is_measured_between_lines(clock: Clock) -> None:
    telemetry = Telemetry()
    assert telemetry.line(5, {"loss": 1.0}) == "step: 5, loss: 1.0"  # nobody knows how long it took
    clock.now += 0.25
    assert telemetry.line(6, {"loss": 1.0}) == "step: 6, loss: 1.0, dt: 0.25"
    clock.now += 5.0
    assert telemetry.line(16, {"loss": 1.0}) == "step: 16, loss: 1.0, dt: 0.5"
    clock.now += 3.0
    assert telemetry.line(17, {"loss": 1.0, "dt": 2.0}) == "step: 17, loss: 1.0, dt: 2.0"
    clock.now += 0.0000123
    assert read(telemetry.line(18, {"loss": 1.0})).dt_s == pytest.approx(0.0000123)
    assert telemetry.line(3, {"loss": 1.0}) == "step: 3, loss: 1.0"  # taken back: there is no step between


def test_the_first_line_has_its_time_where_the_beginning_is_known(clock: Clock) -> None:
    telemetry = Telemetry()
    telemetry.begin(40)
    clock.now += 0.5
    assert telemetry.line(41, {"loss": 1.0}) == "step: 41, loss: 1.0, dt: 0.5"


def test_report_prints_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    Telemetry().report(12, {"loss": 2.0625, "dt": 0.051, "tokens": 32_768})
    assert capsys.readouterr().out == "step: 12, loss: 2.0625, dt: 0.051, tokens: 32768\n"


SCRIPT = """
import os, sys
from overnight.checkpoint.telemetry import Telemetry
telemetry = Telemetry()
{before}
for step in range(1, 5000):
    telemetry.report(step, {{"loss": 1.0, "tokens": 5}})
    if step == 10:
        {at_ten}
{after}
os.write(3, b"went on")
"""


def run(before: str = "", at_ten: str = "pass", after: str = "", *, stdout: Any = subprocess.PIPE) -> tuple[Any, bytes]:
    """Run the script; return how it ended, and what it wrote when it had come through."""
    reading, writing = os.pipe()
    script = f"import os\nos.dup2({writing}, 3)\n" + SCRIPT.format(before=before, at_ten=at_ten, after=after)
    done = subprocess.run(
        [sys.executable, "-c", script], stdout=stdout, stderr=subprocess.PIPE, pass_fds=(writing,), check=False
    )
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        return done, stream.read()


@pytest.mark.parametrize(
    ("before", "at_ten"),
    [
        ("", "sys.stdout.close()"),
        ("", "os.close(1)"),
        ("sys.stdout = None", "pass"),
    ],
)
def test_a_stdout_that_the_script_closed_ends_nothing(before: str, at_ten: str) -> None:
    done, said = run(before, at_ten, after="sys.stdout = None")
    assert (done.returncode, said) == (0, b"went on")
    assert done.stderr.count(b"overnight: a progress line could not be printed") == 1
    assert b"Traceback" not in done.stderr


def test_a_reader_that_has_gone_ends_nothing_and_leaves_the_exit_code_alone() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done, said = run(after="print('and the next print', flush=True)", stdout=writing)
    os.close(writing)
    assert (done.returncode, said) == (0, b"went on")
    assert done.stderr.count(b"overnight: ") == 1
    assert b"Broken pipe" in done.stderr


def test_a_full_disk_loses_lines_and_nothing_else() -> None:
    with open("/dev/full", "wb") as full:
        done, said = run(after="os.dup2(os.open('/dev/null', os.O_WRONLY), 1)", stdout=full)
    assert (done.returncode, said) == (0, b"went on")
    assert b"No space left" in done.stderr

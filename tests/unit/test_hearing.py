"""What lines say that are no records: silences, their ends, and how many parameters the model has."""

from __future__ import annotations

import pytest

from overnight.hearing import Hearing, stated_params


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("number of parameters: 123.65M", 123.65e6),
        ("[rank3] params 875M", 875e6),
        ("params: 875M", 875e6),
        ("Model size: 124.4M parameters", 124.4e6),
        ("Total params = 8,030,261,248", 8_030_261_248),
        ("n_params=7e9", 7e9),
        ("#params: 1_234_567", 1_234_567),
        ("param_count: 1000000", 1_000_000),
        ("Num params: 1.3 billion", 1.3e9),
        ("124 M     Total params", 124e6),
        ("The model has 124356864 parameters.", 124_356_864),
        (" > number of parameters on (tensor, pipeline) model parallel rank (0, 0): 875000000", 875e6),
        ("number of parameters (with padding): 1.5T", 1.5e12),
        ("trainable params: 4,194,304 || all params: 6,742,609,920 || trainable%: 0.06", 6_742_609_920),
    ],
)
def test_lines_that_tell_how_large_the_model_is(line: str, count: float) -> None:
    found = stated_params(line)
    assert found is not None
    assert found[0] == pytest.approx(count)
    assert found[1] in line


@pytest.mark.parametrize(
    "line",
    [
        "Number of trainable parameters = 7,000,000",
        "num decayed parameter tensors: 50, with 124,354,560 parameters",
        "active parameters: 12.9B",
        "non-embedding params: 85M",
        "124 M    Trainable params",
        "hyperparameters: 12000",
        "loading 3 params from file",
        "params 12",
        "params: 999",
        "parameters:12345678901234567890",
        "step 4, parameter norm 1.2",
        "x" * 300 + " params: 875M",
        "",
    ],
)
def test_lines_that_do_not(line: str) -> None:
    assert stated_params(line) is None


def test_the_first_count_stays() -> None:
    one = Hearing()
    assert one.take("number of parameters: 7B") is False
    assert one.take("number of parameters: 8B") is False
    assert one.stated == (7e9, "number of parameters: 7B")


def test_a_silence_begins_and_ends() -> None:
    one = Hearing()
    assert one.take("saving checkpoint to /ckpt")
    assert (one.phase, one.heard) == ("saving", 1)
    assert one.take("saved checkpoint")
    assert (one.phase, one.heard) == (None, 2)
    assert not one.take("hello")
    assert one.take("evaluating \udce4\u00b5 ...")
    assert one.phase == "evaluating"


def test_it_is_kept() -> None:
    one, again = Hearing(), Hearing()
    one.take("params: 7B")
    one.take("evaluating ...")
    again.restore(one.snapshot())
    assert (again.phase, again.stated) == ("evaluating", (7e9, "params: 7B"))
    again.restore([None, None])
    assert (again.phase, again.stated) == (None, None)

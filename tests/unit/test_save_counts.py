"""Which number in the name of a save counts: alone by its word or its place, later by what differs."""

from __future__ import annotations

import pytest

from overnight.saves.names import Counting, number_in


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        (["llama_2048_500.pt", "llama_2048_1000.pt", "llama_2048_4000.pt"], [500, 1000, 4000]),
        (["ckpt_512x512_10.pt", "ckpt_512x512_20.pt"], [10, 20]),
        (["10_2048.pt", "20_2048.pt", "30_2048.pt"], [2048, 20, 30]),  # of the first nobody can say
        (["checkpoint_1_150.pt", "checkpoint_2_300.pt"], [150, 300]),
        (["ckpt-150-1.pt", "ckpt-300-2.pt"], [1, 300]),
        (["run_7_100.pt", "run_7_200.pt", "other_9_5.pt", "run_7_300.pt"], [100, 200, 5, 300]),
        (["ckpt_500_rank_0.pt", "ckpt_1000_rank_0.pt"], [500, 1000]),
        (["ckpt_500_rank_3.pt"], [500]),
        (["a_2048_step10.pt", "a_2048_step20.pt"], [10, 20]),
        (["epoch3_2048.pt"], [3]),
        (["same_1_2.pt", "same_1_2.pt"], [2, 2]),
        (["model.pt"], [None]),
    ],
)
def test_a_constant_is_no_count(names: list[str], numbers: list[int | None]) -> None:
    counting = Counting()
    assert [counting.number_in(name)[0] for name in names] == numbers
    assert counting.number_in("step_3.pt") == (3, "step")


def test_the_words_lead() -> None:
    assert number_in("epoch=3-step=200.ckpt") == (200, "step")
    assert number_in("9999_epoch_4.pt") == (4, "epoch")


def test_forms_are_bounded() -> None:
    counting = Counting()
    for size in range(1, 200):
        counting.number_in(f"{'x' * size}_1_2.pt")
    assert len(counting._known) <= Counting.MOST

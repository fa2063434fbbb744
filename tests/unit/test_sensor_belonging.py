"""Which cards an environment names, and which card is which from one look to the next."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from overnight.sensors import Gpu, GpuProcess
from overnight.sensors.belonging import Belonging, Choice, chosen
from overnight.sensors.cards import UNLISTED, Register, Seen, Slice


def seen(index: int, uuid: str | None = None, name: str = "NVIDIA A100", **more: object) -> Seen:
    return Seen(gpu=Gpu(index=index, uuid=uuid or f"GPU-{index}abc-ef", name=name, **more))  # type: ignore[arg-type]


FOUR = [seen(index) for index in range(4)]


@pytest.mark.parametrize(
    ("value", "cards"),
    [
        ("0", {0}),
        (" 3 , 1 ", {1, 3}),
        ("", set()),
        ("-1", set()),
        ("none", set()),
        ("NoDevFiles", set()),
        ("2,9,1", {2}),
        ("2,,1", {2}),
        ("1,-1,2", {1}),
        ("GPU-1abc", {1}),
        ("gpu-1abc", set()),
        ("GPU-3ABC-EF,0", {0, 3}),
        ("GPU-", set()),
        ("MIG-GPU-0abc-ef/1/0", set()),
    ],
)
def test_the_list_of_cuda(value: str, cards: set[int]) -> None:
    assert chosen({"CUDA_VISIBLE_DEVICES": value}, FOUR, "nvidia") == Choice(cards=frozenset(cards))


def test_no_list_names_nothing() -> None:
    assert chosen({"HIP_VISIBLE_DEVICES": "0"}, FOUR, "nvidia") is None
    assert chosen({"PATH": "/bin"}, FOUR, "amd") is None


def test_numbers_need_an_order_where_cards_differ() -> None:
    mixed = [seen(0, name="NVIDIA T400"), seen(1)]
    assert chosen({"CUDA_VISIBLE_DEVICES": "0"}, mixed, "nvidia") is None
    assert chosen({"CUDA_VISIBLE_DEVICES": "GPU-0abc"}, mixed, "nvidia") == Choice(cards=frozenset({0}))
    assert chosen({"CUDA_VISIBLE_DEVICES": ""}, mixed, "nvidia") == Choice(cards=frozenset())
    ordered = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert chosen(ordered, mixed, "nvidia") == Choice(cards=frozenset({0}))


@pytest.mark.parametrize(
    ("environ", "cards"),
    [
        ({"HIP_VISIBLE_DEVICES": "1"}, {1}),
        ({"CUDA_VISIBLE_DEVICES": "2"}, {2}),
        ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "2"}, {1}),
        ({"ROCR_VISIBLE_DEVICES": "3,2"}, {2, 3}),
        ({"ROCR_VISIBLE_DEVICES": "3,2", "HIP_VISIBLE_DEVICES": "0"}, {3}),
        ({"ROCR_VISIBLE_DEVICES": "3,2", "HIP_VISIBLE_DEVICES": "2"}, set()),
        ({"ROCR_VISIBLE_DEVICES": "GPU-1abc", "HIP_VISIBLE_DEVICES": "0"}, {1}),
        ({"HIP_VISIBLE_DEVICES": ""}, set()),
    ],
)
def test_the_lists_of_rocm(environ: dict[str, str], cards: set[int]) -> None:
    assert chosen(environ, FOUR, "amd") == Choice(cards=frozenset(cards))


def test_slices_are_named_in_both_forms() -> None:
    parts = tuple(Slice(uuid=f"MIG-{number}fff", instance=number + 5) for number in range(2))
    cards = [seen(0), Seen(gpu=Gpu(index=1, uuid="GPU-1abc-ef", name="NVIDIA A100", mig=True), slices=parts)]
    found = Choice(cards=frozenset({1}), slices=frozenset({(1, 1)}))
    assert chosen({"CUDA_VISIBLE_DEVICES": "MIG-1fff"}, cards, "nvidia") == found
    assert chosen({"CUDA_VISIBLE_DEVICES": "MIG-GPU-1abc-ef/6/0"}, cards, "nvidia") == found
    assert chosen({"CUDA_VISIBLE_DEVICES": "MIG-GPU-1abc-ef/9/0"}, cards, "nvidia") == Choice(cards=frozenset())


def test_without_a_run_nobody_is_asked_whose_a_card_is() -> None:
    (card,) = Belonging(None, "nvidia").told([seen(0, processes=(GpuProcess(pid=1, name="init"),))])
    assert card.ours is None
    assert [one.ours for one in card.processes or ()] == [None]


# -- which card is which -----------------------------------------------------------------------------------------------


def test_cards_keep_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "cards.json"
    register = Register(path)
    assert register.empty
    assert [one.gpu.index for one in register.numbered(FOUR)] == [0, 1, 2, 3]
    assert not register.empty
    left = [FOUR[0], seen(1, "GPU-2abc-ef"), seen(2, "GPU-3abc-ef")]
    for found in (register.numbered(left), Register(path).numbered(left)):
        assert [(one.gpu.index, one.gpu.uuid) for one in found] == [(at, f"GPU-{at}abc-ef") for at in range(4)]
        assert [one.gpu.lost for one in found] == [None, UNLISTED, None, None]


def test_a_new_card_takes_the_place_of_the_lost_one(tmp_path: Path) -> None:
    register = Register(tmp_path / "cards.json")
    register.numbered(FOUR[:2])
    found = register.numbered([FOUR[0], seen(1, "GPU-new")])
    assert [(one.gpu.index, one.gpu.uuid, one.gpu.lost) for one in found] == [
        (0, "GPU-0abc-ef", None),
        (1, "GPU-new", None),
    ]


def test_a_card_that_tells_no_name_has_its_old_one(tmp_path: Path) -> None:
    register = Register(tmp_path / "cards.json")
    register.numbered(FOUR[:2])
    (_, lost) = register.numbered([FOUR[0], Seen(gpu=Gpu(index=1, lost="GPU is lost"))])
    assert lost.gpu == Gpu(index=1, uuid="GPU-1abc-ef", name="NVIDIA A100", lost="GPU is lost")


@pytest.mark.parametrize("damage", ["", "{}", "[]", '{"life": "LIFE", "cards": 3}', '{"life": "LIFE"}', "\0" * 9])
def test_a_damaged_register_is_none(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "cards.json"
    Register(path).numbered(FOUR)
    life = json.loads(path.read_text())["life"]
    path.write_text(damage.replace("LIFE", life))
    found = Register(path).numbered(FOUR[:1])
    assert [one.gpu.lost for one in found] == [None]


def test_another_start_of_the_machine_knows_no_cards(tmp_path: Path) -> None:
    """The run goes on in a new container, or after a reboot, where other cards are: none of them was lost."""
    path = tmp_path / "cards.json"
    Register(path).numbered(FOUR)
    path.write_text(path.read_text().replace('"life": "', '"life": "x').replace('"life":"', '"life":"x'))
    assert Register(path).empty


def test_a_register_that_cannot_be_written_is_kept_in_mind(tmp_path: Path) -> None:
    register = Register(tmp_path / "none" / "cards.json")
    register.numbered(FOUR[:2])
    assert [one.gpu.lost for one in register.numbered(FOUR[:1])] == [None, UNLISTED]

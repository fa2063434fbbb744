"""Which numbers must be finite: those of models and optimizers, whatever holds them; and what masks look like."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")
safetensors = pytest.importorskip("safetensors.torch")

from specimens import saved, trained  # noqa: E402 - it imports torch

from overnight.inspector import archive, tensors, torchzip  # noqa: E402
from overnight.inspector.findings import Budget  # noqa: E402
from overnight.inspector.places import Place  # noqa: E402

NAN, INF = math.nan, math.inf
STATE = trained()[0].state_dict()


def finite(value: Any, folder: Path) -> bool | None:
    (folder / "a.pt").write_bytes(saved(value))
    return torchzip.look(folder / "a.pt", Budget()).finite


def broken(where: str) -> dict[str, Any]:
    """The state of a small model with one NaN."""
    state = {name: one.clone() for name, one in STATE.items()}
    state[where].view(-1)[0] = NAN
    return state


HOLDERS = ["generator", "generators", "best_model", "best", "random_net", "rng_net", "loss", "criterion", "loss_fn",
           "scheduler", "lr_schedulers", "stats", "metrics", "callbacks", "history", "logs", "config", "scaler",
           "ema", "mask", "masks", "discriminator", "random_features", "args"]  # fmt: skip


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_model_is_looked_at_under_every_name(holder: str, tmp_path: Path) -> None:
    for where in ("0.weight", "0.bias", "1.running_mean"):
        check_model(holder, where, tmp_path)


def check_model(holder: str, where: str, tmp_path: Path) -> None:
    state = broken(where)
    assert finite({holder: state, "step": 3}, tmp_path) is False
    assert finite({holder: {"inner": {"state_dict": state}}}, tmp_path) is False
    flat = {f"{holder}.{name}": one for name, one in state.items() if one.numel() > 1}
    safetensors.save_file(flat, tmp_path / "a.safetensors")
    assert tensors.look(tmp_path / "a.safetensors", Budget()).finite is False
    np.savez(tmp_path / "a.npz", **{name: one.numpy() for name, one in flat.items()})
    assert archive.look(tmp_path / "a.npz", Budget()).finite is False


@pytest.mark.parametrize("holder", ["loss", "scheduler", "best_model", "generator"])
def test_single_parameters_too(holder: str, tmp_path: Path) -> None:
    assert finite({holder: {"logit_scale": torch.tensor(NAN), "temperature": torch.tensor(1.0)}}, tmp_path) is False
    assert finite({holder: {"temperature": torch.tensor([NAN])}}, tmp_path) is False


RECORDS = [
    {"best_loss": torch.tensor(INF)}, {"best": torch.tensor(-INF)}, {"loss": torch.tensor(NAN)},
    {"losses": [torch.tensor(1.0), torch.tensor(NAN)]}, {"val_loss": torch.tensor([NAN])},
    {"loss_history": torch.tensor([1.0, NAN, 2.0])}, {"history": {"train": np.array([1.0, NAN])}},
    {"callbacks": {"stop": {"best_score": torch.tensor(INF)}, "ckpt": {"kth": torch.tensor(INF)}}},
    {"best_k_models": {"/a/b.ckpt": torch.tensor(INF)}}, {"metrics": {"psnr": torch.tensor(INF)}},
    {"observer": {"min_val": torch.tensor(INF), "max_val": torch.tensor(-INF)}},
    {"observer.min_val": torch.full((4,), INF)}, {"config": {"clip": torch.tensor(INF)}},
    {"np_rng": np.random.RandomState(1).get_state(), "torch_rng": torch.get_rng_state()},
]  # fmt: skip


@pytest.mark.parametrize("value", RECORDS)
def test_records_may_be_infinite(value: Any, tmp_path: Path) -> None:
    assert finite({"w": torch.ones(3), **value}, tmp_path) is True


def test_nothing_in_an_optimizer_is_a_record(tmp_path: Path) -> None:
    for name in ("exp_avg", "exp_avg_sq", "best", "loss", "mask", "step"):
        state = {"state": {0: {name: torch.tensor([NAN, 1.0])}}}
        assert finite({"optimizer": state}, tmp_path) is False


def triangle(side: int = 8, low: float = -INF, dtype: Any = torch.float32) -> Any:
    return torch.full((side, side), low).triu(1).to(dtype)


def padding() -> Any:
    return torch.tensor([[0.0, 0.0, -INF, -INF], [0.0, -INF, -INF, -INF]])


def alibi() -> Any:
    return triangle() + torch.arange(8.0) * 0.5


def heads(value: Any) -> Any:
    return value.expand(2, *value.shape).contiguous()


MASKS = [
    ("mask", triangle()), ("attn_mask", padding()), ("causal", triangle()), ("bias", triangle()),
    ("attn.bias", heads(triangle())), ("anything", triangle()), ("future_mask", heads(alibi())), ("mask", alibi()),
    ("mask", torch.full((4, 4), -INF)), ("masked_bias", torch.tensor(-INF)),
    ("mask", torch.tensor([0.0, -INF, 1.0, -INF])),
    ("bias", torch.ones(8, 8).tril() + triangle()),
    *(("mask", triangle(dtype=kind)) for kind in (torch.float64, torch.float16, torch.bfloat16)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), MASKS)
def test_masks_are_meant(name: str, value: Any, tmp_path: Path) -> None:
    assert finite({"model": {name: value, "w": torch.ones(3)}}, tmp_path) is True
    safetensors.save_file({f"layer.{name}": value}, tmp_path / "a.safetensors")
    assert tensors.look(tmp_path / "a.safetensors", Budget()).finite is True
    if value.dtype != torch.bfloat16:
        np.savez(tmp_path / "a.npz", **{f"layer.{name}": value.numpy()})
        assert archive.look(tmp_path / "a.npz", Budget()).finite is True
        assert finite({"model": {name: value.numpy()}}, tmp_path) is True


def changed(value: Any, at: tuple[int, ...], number: float) -> Any:
    value = value.clone()
    value[at] = number
    return value


NO_MASKS = [
    ("bias", torch.tensor([0.0, INF, 0.0, INF])), ("mask", -triangle()), ("mask", torch.tensor([0.0, INF, 0.0, 0.0])),
    ("weight", torch.tensor([0.0, -INF, 0.0, -INF])), ("bias", padding()), ("anything", alibi()),
    ("mask", changed(triangle(), (0, 1), NAN)), ("mask", changed(alibi(), (3, 3), NAN)),
    ("mask", changed(alibi(), (3, 2), -INF)), ("anything", changed(triangle(), (0, 1), 0.0)),
    ("weight", changed(triangle(), (3, 3), 2.0)), ("anything", triangle().t().contiguous()),
    ("mask", torch.full((4, 4), INF)), ("weight", torch.full((4, 4), -INF)), ("mask", torch.full((4,), NAN)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), NO_MASKS)
def test_what_only_resembles_a_mask(name: str, value: Any, tmp_path: Path) -> None:
    assert finite({"model": {name: value}}, tmp_path) is False
    safetensors.save_file({f"layer.{name}": value}, tmp_path / "a.safetensors")
    assert tensors.look(tmp_path / "a.safetensors", Budget()).finite is False


@pytest.mark.parametrize("path", [("optimizer", "state", 0, "exp_avg"), ("state", 0, "exp_avg"), ("opt.exp_avg_sq",),
                                  ("optimizers", 0, "mask")])  # fmt: skip
def test_no_mask_lies_in_an_optimizer(path: tuple[Any, ...], tmp_path: Path) -> None:
    value: Any = triangle()
    for key in reversed(path):
        value = {key: value}
    assert finite(value, tmp_path) is False


def test_words_of_places() -> None:
    assert Place().words() == "it"
    assert Place().path("a.b").below(0).below((1, 2)).words() == "a.b.0.?"
    assert len(Place().below("x" * 10**6).words()) < 200
    assert Place().below("losses").below(3).named() == "losses"

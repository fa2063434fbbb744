"""States of every kind: what is saved comes back as it was, or is refused before the first step, in one sentence."""

from __future__ import annotations

import enum
import gc
import math
import subprocess
import sys
import textwrap
from collections import Counter, OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy", reason="arrays of numpy are saved here")
torch = pytest.importorskip("torch", reason="tensors of torch are saved here")

from overnight.checkpoint import Checkpointer, CheckpointError, load, newest  # noqa: E402 - torch first
from overnight.checkpoint.leaves import buffer  # noqa: E402
from overnight.checkpoint.parts import bare  # noqa: E402

nn = torch.nn
INF = float("inf")


class Box:
    """Keeps whatever state it is given."""

    def __init__(self, state: Any) -> None:
        self.held = state

    def state_dict(self) -> Any:
        return self.held

    def load_state_dict(self, state: Any) -> None:
        self.held = state


class Color(str, enum.Enum):  # noqa: UP042 - as scripts have them: its str() is another word than it is
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


Pair = namedtuple("Pair", "x y")  # noqa: PYI024 - as scripts have them


def save(folder: Path, steps: int = 1, **given: Any) -> None:
    with Checkpointer(folder / "saved", every=1, async_=False, **given) as ckpt:
        for _ in ckpt.steps(steps):
            pass


def resume(folder: Path, **given: Any) -> None:
    with Checkpointer(folder / "saved", every=1, async_=False, **given):
        pass


# -- plain values ----------------------------------------------------------------------------------------------------

VALUES = [
    b"", b"\xff\x00", 1 << 5000, -(1 << 2100), 1 << 1999, 1 << 100, "a\udce9b", "\0", (1,), ((), [b"", (1 << 4000,)]),
    {None: 1}, {True: 1, 2: 3}, {(1, (2, "a")): 3}, {1.5: 2, INF: b""}, {-INF: {"a": (b"",)}}, {1 << 100: b""},
    {(INF, 1): b""}, Color.RED, Level.HIGH, {Color.RED: b""}, {np.int64(3): b""}, {np.float64(3.5): 1}, np.str_("abc"),
    np.bytes_(b"a"), {"$array": 1}, {"$dict": [1]}, -0.0, INF, {}, [], (), [[[[b""]]]],
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda one: repr(one)[:30])
def test_a_plain_value_comes_back_equal(value: Any, tmp_path: Path) -> None:
    save(tmp_path, box=Box({"x": value, "t": torch.ones(2)}))
    box = Box({})
    resume(tmp_path, box=box)
    assert box.held["x"] == value
    assert box.held["t"].tolist() == [1, 1]
    torch.load(tmp_path / "saved" / "step-00000001" / "train_state.pt", weights_only=True)


@pytest.mark.parametrize(
    "key", [Color.RED, (1, "a"), INF, -INF, None, True, 0.1, (), (INF, ("b",)), 1 << 90, np.int64(3), "a.b/c", math.nan]
)
def test_an_array_under_any_key_comes_back(key: Any, tmp_path: Path) -> None:
    save(tmp_path, box=Box({"a": [{key: (np.arange(3), np.float32(2.5))}]}))
    box = Box({})
    resume(tmp_path, box=box)
    ((found, (array, number)),) = box.held["a"][0].items()
    assert found == key or (math.isnan(found) and math.isnan(key))
    assert array.tolist() == [0, 1, 2]
    assert type(number) is np.float32


@dataclass
class Settings:
    rate: float = 0.1


def loop() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({1, 2}, r"box\.x\.0 holds a builtins\.set"),
        (Settings(), r"box\.x\.0 holds a .*Settings"),
        (Settings, r"box\.x\.0 holds a builtins\.type"),
        (1j, r"box\.x\.0 holds a builtins\.complex"),
        (torch.float32, r"box\.x\.0 holds a torch\.dtype"),
        ({(b"",): 1}, r"box\.x\.0 has a key"),
        ({1 << 4000: 1}, r"box\.x\.0 has a key"),
        (loop(), "holds itself"),
        (np.array([1, None]), r"box\.x\.0 has the dtype object"),
        (np.ma.array([1.0], mask=[True]), r"box\.x\.0 is a masked array"),
        (torch.eye(3).to_sparse(), r"box\.x\.0 is a tensor of a kind .*sparse"),
        (torch.empty(3, device="meta"), r"box\.x\.0 is on the meta device"),
        (nn.LazyLinear(3).weight, r"box\.x\.0 is a lazy parameter"),
    ],
)
def test_what_cannot_be_saved_is_refused_before_the_first_step(value: Any, said: str, tmp_path: Path) -> None:
    ran = []
    with pytest.raises(CheckpointError, match=said), Checkpointer(tmp_path, box=Box({"x": [value]})) as ckpt:
        ran += [*ckpt.steps(1)]
    assert not ran


@pytest.mark.parametrize("make", [Counter, lambda had: defaultdict(int, had), OrderedDict], ids=["C", "dd", "od"])
def test_dicts_have_the_class_that_the_live_ones_have(make: Any, tmp_path: Path) -> None:
    save(tmp_path, box=Box({"x": make({"b": 1, "a": 2}), "y": Pair(1, 2), "z": [Color.RED]}))
    box = Box({"x": make({}), "y": Pair(0, 0), "z": [Color.RED]})
    resume(tmp_path, box=box)
    assert type(box.held["x"]) is type(make({}))
    assert list(box.held["x"].items()) == [("b", 1), ("a", 2)]
    assert type(box.held["y"]) is Pair
    assert type(box.held["z"][0]) is Color
    if make not in (Counter, OrderedDict):
        assert box.held["x"]["missing"] == 0


# -- tensors ---------------------------------------------------------------------------------------------------------


class Wrapped(torch.Tensor):  # type: ignore[misc,name-defined]
    """A tensor whose numbers lie in another one, as those of quantized weights do."""

    @staticmethod
    def __new__(cls: Any, inner: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from torch.utils._pytree import tree_map

        def inner(one: Any) -> Any:
            return one.inner if isinstance(one, Wrapped) else one

        found = func(*tree_map(inner, args), **tree_map(inner, kwargs or {}))
        return Wrapped(found) if func is torch.ops.aten.detach.default else found


def test_only_what_is_one_memory_is_one_tensor(tmp_path: Path) -> None:
    z = torch.tensor([1 + 2j, 3 - 1j])
    whole = torch.arange(4.0)
    held = {
        "z": z, "conj": z.conj(), "imag": z.imag, "neg": z.conj().imag, "a": whole, "again": whole, "half": whole[:2],
        "w0": Wrapped(torch.ones(3)), "w1": Wrapped(torch.zeros(3)), "n": 1,
    }  # fmt: skip
    save(tmp_path, box=Box(held))
    found = load(tmp_path / "saved").parts["box"]
    for name, one in held.items():
        mine = one.inner if isinstance(one, Wrapped) else one
        assert mine == found[name] if name == "n" else torch.equal(mine.resolve_conj().resolve_neg(), found[name]), name
    assert found["a"].data_ptr() == found["again"].data_ptr()


@pytest.mark.parametrize("one", [torch.ones(4)[::2][:1], torch.ones(5, 3)[:1, 1], torch.tensor(1.0)])
def test_the_bytes_of_a_single_number_of_any_stride(one: Any, tmp_path: Path) -> None:
    assert bytes(buffer(one)) == np.float32(1).tobytes()
    save(tmp_path, t=one)


def test_expanded_tensors_are_refused_when_they_are_handed_over(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"a is a tensor .*clone"):
        Checkpointer(tmp_path, a=torch.ones(1).expand(5))


def test_the_order_of_names_is_kept(tmp_path: Path) -> None:
    def made() -> dict[str, Any]:
        return {"b1": np.ones(7, "f4"), "w1": np.ones((64, 64)), "b2": np.ones(3), "w2": np.ones((32, 32), "f4")}

    save(tmp_path, model=made())
    model = made()
    resume(tmp_path, model=model)
    assert [*model] == [*load(tmp_path / "saved").parts["model"]] == ["b1", "w1", "b2", "w2"]


@pytest.mark.parametrize(
    ("before", "now", "refused"),
    [
        (np.array([1.5]), np.array([1]), True),
        (np.array([1.5]), np.array([1.5], "f4"), True),
        (np.array([1.5], "f4"), np.array([0.0]), False),
        (torch.tensor([1.5]), torch.tensor([1]), True),
        (torch.tensor([1.5]), torch.tensor([0.0]).bfloat16(), True),
        (torch.tensor([1.5]), torch.tensor([0.0]).double(), False),
    ],
)
def test_a_cast_is_safe_and_said_or_refused(
    before: Any, now: Any, refused: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, a=before)
    if refused:
        with pytest.raises(CheckpointError, match=r"a was saved as float\d+ and is .* now"):
            resume(tmp_path, a=now)
    else:
        resume(tmp_path, a=now)
        assert now.tolist() == [1.5]
        assert "a was saved as float32 and is float64 now" in capsys.readouterr().out


# -- models and optimizers -------------------------------------------------------------------------------------------


class Masked(nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(4, 3)
        self.register_buffer("mask", torch.full((3, 4), -INF).triu(1))


class Counting(Masked):
    def get_extra_state(self) -> Any:
        return {"n": 1}

    def set_extra_state(self, state: Any) -> None:
        pass


def averaged() -> dict[str, Any]:
    model = Masked()
    return {"model": model, "ema": torch.optim.swa_utils.AveragedModel(model)}


CASES = {
    "model": lambda: {"model": Masked()},
    "extra": lambda: {"model": Counting()},
    "other name": lambda: {"generator": Masked()},
    "nested": lambda: {"models": [Masked(), {"b": Masked()}]},
    "average": averaged,
    "own average": lambda: {"model": (m := Masked()), "shadow": Box(dict(m.state_dict()))},
    "dict of arrays": lambda: {"model": {"w": np.ones(3), "mask": np.full((2, 2), -INF)}},
    "best array": lambda: {"model": Masked(), "best": np.full(1, INF), "history": np.full(9, np.nan)},
    "best tensor": lambda: {"model": Masked(), "best": torch.tensor(INF)},
}


@pytest.mark.parametrize("name", CASES)
def test_what_was_not_finite_before_training_may_stay_so(name: str, tmp_path: Path) -> None:
    save(tmp_path, steps=2, **CASES[name]())
    assert newest(tmp_path / "saved") == tmp_path / "saved" / "step-00000002"
    known = load(tmp_path / "saved").manifest
    assert known.exempt
    assert all(one.partition(".")[0] in CASES[name]() for one in known.exempt)


def spoil(name: str, given: dict[str, Any]) -> None:
    with torch.no_grad():
        if name == "parameter":
            given["model"].l.weight[0, 0] = math.nan
        elif name == "moment":
            next(iter(given["optimizer"].state.values()))["exp_avg"][0] = math.nan
        elif name == "average":
            given["shadow"].held["l.weight"] = torch.full((3, 4), INF)
        elif name == "best":
            given["best"][:] = math.nan
        elif name == "tracker":
            given["tracker"].held = {"grad_norm": torch.tensor(INF)}
        else:
            given["model"].mask[2, 0] = math.nan


@pytest.mark.parametrize(
    ("name", "finite"),
    [("parameter", False), ("moment", False), ("average", False), ("best", True), ("tracker", True), ("buffer", True)],
)
def test_only_what_is_trained_decides(name: str, finite: bool, tmp_path: Path) -> None:
    model = Masked()
    optimizer = torch.optim.AdamW(model.parameters())
    given = {"model": model, "optimizer": optimizer, "shadow": Box({}), "best": np.ones(3), "tracker": Box({})}
    with Checkpointer(tmp_path, every=1, async_=False, **given) as ckpt:
        for _ in ckpt.steps(1):
            model.l(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            spoil(name, given)
    assert load(tmp_path / "step-00000001").manifest.finite is finite


class Master(torch.optim.Optimizer):  # type: ignore[misc,name-defined]
    """Keeps its average in float32, whatever the parameters are, as Adafactor does."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.01})

    def step(self, closure: Any = None) -> None:  # noqa: ARG002 - torch's signature
        for param in (one for group in self.param_groups for one in group["params"]):
            state = self.state[param]
            state.setdefault("m", torch.zeros_like(param, dtype=torch.float32)).add_(param.grad.float() / 3)
            state.setdefault("deep", {"list": [torch.tensor([1 / 3], dtype=torch.float64)]})


def trained(optimizer: Any, steps: int = 1) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Linear(4, 3).bfloat16()
    made = optimizer(model.parameters())
    for _ in range(steps):
        model(torch.randn(2, 4).bfloat16()).sum().backward()
        made.step()
    return {"model": model, "optimizer": made}


def test_an_optimizer_keeps_the_dtypes_that_were_saved(tmp_path: Path) -> None:
    had = trained(Master)
    save(tmp_path, **had)
    now = trained(Master, steps=0)
    resume(tmp_path, **now)
    for one, other in zip(had["optimizer"].state.values(), now["optimizer"].state.values(), strict=True):
        assert other["m"].dtype == torch.float32
        assert torch.equal(one["m"], other["m"])
        assert torch.equal(one["deep"]["list"][0], other["deep"]["list"][0])


ADAM, SGD = torch.optim.Adam, torch.optim.SGD


@pytest.mark.parametrize(("before", "now"), [(ADAM, SGD), (SGD, ADAM), (ADAM, torch.optim.RMSprop)])
def test_another_optimizer_is_refused_before_the_first_step(before: Any, now: Any, tmp_path: Path) -> None:
    save(tmp_path, **trained(before))
    with pytest.raises(CheckpointError, match=rf"was a torch.*\.{before.__name__} .*is a .*\.{now.__name__} now"):
        resume(tmp_path, **trained(now, steps=0))


def test_another_optimizer_that_fits_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, **trained(ADAM))
    resume(tmp_path, **trained(torch.optim.AdamW, steps=0))
    assert "optimizer was a torch.optim.adam.Adam when it was saved" in capsys.readouterr().out


def test_lbfgs_and_its_history_come_back_without_a_false_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def made() -> dict[str, Any]:
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        return {"model": model, "optimizer": torch.optim.LBFGS(model.parameters(), max_iter=3)}

    def closure() -> Any:
        had["optimizer"].zero_grad()
        loss = had["model"](torch.ones(2, 4)).pow(2).sum()
        loss.backward()
        return loss

    had = made()
    had["optimizer"].step(closure)
    save(tmp_path, **had)
    now = made()
    resume(tmp_path, **now)
    assert "never trained" not in capsys.readouterr().out
    old, new = (next(iter(one["optimizer"].state.values())) for one in (had, now))
    assert old.keys() == new.keys()
    assert all(map(torch.equal, old["old_dirs"], new["old_dirs"]))


def test_milestones_are_a_counter_again(tmp_path: Path) -> None:
    def made() -> dict[str, Any]:
        had = trained(SGD)
        return {**had, "scheduler": torch.optim.lr_scheduler.MultiStepLR(had["optimizer"], [2, 2, 5])}

    save(tmp_path, **made())
    now = made()
    resume(tmp_path, **now)
    assert type(now["scheduler"].milestones) is Counter
    assert now["scheduler"].milestones == Counter({2: 2, 5: 1})


@pytest.mark.parametrize(("before", "now", "said"), [(False, True, "begins anew"), (True, False, "left out")])
def test_a_scaler_that_is_switched(
    before: bool, now: bool, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, scaler=torch.amp.GradScaler("cpu", enabled=before))
    resume(tmp_path, scaler=torch.amp.GradScaler("cpu", enabled=now))
    assert said in capsys.readouterr().out


class Handing:
    """An average that hands on whatever it has not itself."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.shadow = {name: one.clone() + 1 for name, one in inner.state_dict().items()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    def state_dict(self) -> Any:
        return self.shadow

    def load_state_dict(self, state: Any) -> None:
        self.shadow = dict(state)


def test_a_wrapper_is_known_by_its_class(tmp_path: Path) -> None:
    model = torch.compile(nn.Linear(4, 3), backend="eager")
    ema = Handing(model)
    assert bare(ema) is ema
    assert isinstance(bare(model), nn.Linear)
    save(tmp_path, model=model, ema=ema)
    assert torch.equal(load(tmp_path / "saved").parts["ema"]["_orig_mod.weight"], model._orig_mod.weight + 1)


def compiled_within() -> Any:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model[0] = torch.compile(model[0], backend="eager")
    return model


MODELS = {
    "plain": lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
    "whole": lambda: torch.compile(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), backend="eager"),
    "within": compiled_within,
}


@pytest.mark.parametrize("before", MODELS)
@pytest.mark.parametrize("now", MODELS)
def test_compiled_or_not_is_the_same_model(before: str, now: str, tmp_path: Path) -> None:
    def made(kind: str) -> dict[str, Any]:
        model = MODELS[kind]()
        return {"model": model, "ema": torch.optim.swa_utils.AveragedModel(model)}

    had = made(before)
    save(tmp_path, **had)
    found = load(tmp_path / "saved").parts
    assert [*found["model"]][:2] == ["0.weight", "0.bias"]
    assert found["model"]._metadata["1"] == {"version": 2}
    again = made(now)
    resume(tmp_path, **again)
    for part in ("model", "ema"):
        pairs = zip(had[part].state_dict().values(), again[part].state_dict().values(), strict=True)
        assert all(torch.equal(one, other) for one, other in pairs)


def test_a_model_in_another_dtype_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, model=nn.Linear(4, 3))
    resume(tmp_path, model=nn.Linear(4, 3).bfloat16())
    assert "model: 2 tensors were saved as float32 and are bfloat16 now" in capsys.readouterr().out


def test_nothing_of_the_folder_is_mapped_after_a_resume(tmp_path: Path) -> None:
    def made() -> dict[str, Any]:
        return {**trained(ADAM), "box": Box({"big": torch.ones(99_999), "n": 1}), "flat": Box({"t": torch.ones(9999)})}

    save(tmp_path, **made())
    now = made()
    with Checkpointer(tmp_path / "saved", every=None, **now):
        gc.collect()
        assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    assert now["box"].held["big"].sum() == 99_999


# -- without torch ---------------------------------------------------------------------------------------------------


def test_a_training_of_numpy_alone_keeps_every_kind(tmp_path: Path) -> None:
    script = f"""
    import sys, numpy as np
    from overnight.checkpoint import Checkpointer
    class Box:
        def __init__(self, state): self.held = state
        def state_dict(self): return self.held
        def load_state_dict(self, state): self.held = state
    def made(k):
        z = (np.arange(6) * (1 + 2j) * k).reshape(2, 3)
        return dict(model={{"z": z, "w": np.ones(2) * k}}, box=Box({{
            1: np.ones(2) * k, True + 1: b"", (1, float("inf")): [z.T, np.complex128(2j)], "n": 1 << 9000, "b": b"",
            "e": np.zeros((0, 2), complex)}}))
    had = made(1)
    with Checkpointer({str(tmp_path)!r}, every=1, async_=False, **had) as ckpt: list(ckpt.steps(1))
    now = made(0); now["box"].held = {{}}
    with Checkpointer({str(tmp_path)!r}, every=1, **now) as ckpt: assert ckpt.step == 1
    assert (now["model"]["z"] == had["model"]["z"]).all() and now["model"]["z"].dtype == complex
    held = now["box"].held
    assert list(held) == list(had["box"].held)
    assert held[1].tolist() == [1, 1] and held[2] == held["b"] == b"" and held["n"] == 1 << 9000
    array, number = held[1, float("inf")]
    assert (array == had["model"]["z"].T).all() and number == 2j and type(number) is np.complex128
    assert held["e"].shape == (0, 2) and held["e"].dtype == complex
    assert "torch" not in sys.modules
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_parameters_of_another_dtype_take_their_optimizer_along(tmp_path: Path, capsys: Any) -> None:
    """Saved as float32 and resumed as bfloat16: what AdamW keeps must be of the dtype that it computes in."""

    def life(dtype: Any, last: int) -> None:
        model = torch.nn.Linear(4, 2).to(dtype)
        optimizer = torch.optim.AdamW(model.parameters())
        with Checkpointer(tmp_path, every=1, async_=False, model=model, optimizer=optimizer) as ckpt:
            for _ in ckpt.steps(last):
                model(torch.ones(3, 4, dtype=dtype)).sum().backward()
                optimizer.step()

    life(torch.float32, 2)
    life(torch.bfloat16, 4)
    assert "was converted to the dtype that its parameters have now" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["save_every", "keep", "save_total_limit", "async"])
def test_a_name_that_other_savers_use_is_no_value_to_be_saved(name: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"there is no argument {name}"):
        Checkpointer(tmp_path, **{"w": torch.ones(2), name: 5})


def test_torchs_own_word_for_a_full_disk_is_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598")

    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    with Checkpointer(tmp_path, every=1, async_=False, model=model, optimizer=optimizer) as ckpt:
        for step in ckpt.steps(3):
            with monkeypatch.context() as patched:
                if step == 2:
                    patched.setattr(torch, "save", full)
                    ckpt.save()
                    next_one = ckpt._saver
                    next_one.save(ckpt._given.states(), ckpt._account.draft(1, ckpt._start, "asked"))
    assert "as when a disk is full" in capsys.readouterr().err
    assert [path.name for path in sorted(tmp_path.glob("step-*"))][-1] == "step-00000003"

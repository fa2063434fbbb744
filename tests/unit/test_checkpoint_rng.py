"""Every generator goes on where it stood, through a file without pickles; what cannot is said."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

np = pytest.importorskip("numpy", reason="numpy's generators are what is saved")
torch = pytest.importorskip("torch", reason="torch's generators are what is saved")

from overnight.checkpoint import plain, rng  # noqa: E402
from overnight.checkpoint.leaves import Apart, as_torch, at_path, buffer, together  # noqa: E402

BITS = ["PCG64", "PCG64DXSM", "Philox", "SFC64", "MT19937"]


def round_trip(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state as it comes back from a file that holds no pickles."""
    apart = Apart()
    tree = apart.tree(state, ())
    data = [bytearray(buffer(one)) for one in apart.live]
    file = io.BytesIO()
    torch.save(together(tree, lambda leaf: as_torch(apart.leaves[leaf], data[leaf])), file)
    file.seek(0)
    back = torch.load(file, weights_only=True)
    for path in apart.arrays:
        at_path(back, path, lambda tensor: tensor.numpy())
    return back


def as_json(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state as it comes back from the file of a training without torch."""
    return plain.decode(json.loads(json.dumps(plain.encode(state, lambda leaf: leaf))), lambda number: number)


def draw_all() -> list[Any]:
    return [
        random.random(), random.gauss(0, 1), np.random.normal(), np.random.randint(1000), torch.rand(3).tolist(),
        torch.randn(1).item(),
    ]  # fmt: skip


def made(kind: str, seed: int) -> Any:
    if kind == "random.Random":
        return random.Random(seed)
    if kind == "torch.Generator":
        return torch.Generator().manual_seed(seed)
    what, _, bits = kind.partition(" ")
    source = getattr(np.random, bits)(seed)
    return source if what == "BitGenerator" else getattr(np.random, what)(source)


def draw(one: Any) -> Any:
    if isinstance(one, random.Random):
        return one.random(), one.gauss(0, 1), one.getrandbits(70)
    if isinstance(one, torch.Generator):
        return torch.randn(3, generator=one).tolist()
    if isinstance(one, np.random.BitGenerator):
        return one.random_raw()
    if isinstance(one, np.random.Generator):  # an odd number of 32 bit numbers leaves a half one
        return one.integers(1 << 20, dtype=np.uint32), one.normal(), one.permutation(5).tolist()
    return one.normal(), one.randint(1000)  # an odd number of normal ones leaves one in RandomState


KINDS = [
    "random.Random",
    "torch.Generator",
    *(f"Generator {one}" for one in BITS),
    *(f"RandomState {one}" for one in BITS),
    *(f"BitGenerator {one}" for one in BITS),
]


@pytest.mark.parametrize("through", [round_trip, dict])
def test_the_global_numbers_go_on(through: Any) -> None:
    draw_all()
    state = through(rng.capture({}))
    wanted = [draw_all(), draw_all()]
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    assert draw_all() != wanted[0]
    assert rng.restore(state, {}) == []
    assert [draw_all(), draw_all()] == wanted


@pytest.mark.parametrize("piece", ["python", "numpy", "torch"])
def test_each_of_the_global_numbers_is_needed(piece: str) -> None:
    state = rng.capture({})
    wanted = [random.random(), np.random.random(), torch.rand(()).item()]
    del state[piece]
    rng.restore(state, {})
    found = [random.random(), np.random.random(), torch.rand(()).item()]
    same = [one == other for one, other in zip(found, wanted, strict=True)]
    assert same == [name != piece for name in ("python", "numpy", "torch")]


@pytest.mark.parametrize("draws", [0, 1, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_a_generator_handed_over_goes_on(kind: str, draws: int) -> None:
    one = made(kind, 1)
    assert rng.is_generator(one)
    for _ in range(draws):
        draw(one)
    state = round_trip(rng.capture({"mine": one}))
    wanted = [draw(one) for _ in range(4)]
    other = made(kind, 2)
    draw(other)
    assert rng.restore(state, {"mine": other}) == []
    assert [draw(other) for _ in range(4)] == wanted
    assert [draw(made(kind, 2)) for _ in range(4)] != wanted


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "torch.Generator"])
def test_a_generator_goes_on_through_json_too(kind: str) -> None:
    one = made(kind, 1)
    draw(one)
    state = as_json(rng.capture_own({"mine": one}))
    wanted = draw(one)
    other = made(kind, 2)
    assert rng.restore_own(state, {"mine": other}) == []
    assert draw(other) == wanted


def test_what_is_captured_does_not_change_any_more() -> None:
    mine = {"mine": made("Generator Philox", 1), "other": made("torch.Generator", 1)}
    state = rng.capture(mine)
    copy = round_trip(state)
    draw_all()
    for one in mine.values():
        draw(one)
    assert rng.moved(state, copy) == []
    assert state["own"]["mine"] == copy["own"]["mine"]
    assert torch.equal(state["own"]["other"]["state"], copy["own"]["other"]["state"])


def test_only_plain_values_and_tensors_are_captured() -> None:
    def kinds(value: Any) -> set[type]:
        if isinstance(value, dict):
            return {type(value)}.union(*map(kinds, value.values()))
        return {list}.union(*map(kinds, value)) if type(value) is list else {type(value)}

    own = {kind: made(kind, 1) for kind in KINDS}
    found = kinds(rng.capture(own))
    assert found <= {dict, list, int, float, str, type(None), torch.Tensor}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith(("Generator", "BitGenerator"))])
def test_children_spawned_later_are_the_same_as_without_a_stop(kind: str) -> None:
    """Numpy's state of a bit generator does not say how many children it had."""
    one = made(kind, 1)
    getattr(one, "bit_generator", one).seed_seq.spawn(3)
    state = round_trip(rng.capture({"mine": one}))
    child = getattr(one, "bit_generator", one).seed_seq.spawn(1)[0].generate_state(4).tolist()
    other = made(kind, 1)
    assert rng.restore(state, {"mine": other}) == []
    assert getattr(other, "bit_generator", other).seed_seq.spawn(1)[0].generate_state(4).tolist() == child
    (said,) = rng.restore(state, {"mine": made(kind, 2)})
    assert said.startswith("mine: spawn() gives other children")


@pytest.mark.parametrize(
    ("before", "now", "says"),
    [
        ("Generator PCG64", "Generator Philox", "mine: its bits came from PCG64, and come from Philox now"),
        ("Generator PCG64", "BitGenerator PCG64", "a numpy.random.Generator was saved, and it is a numpy.random.Bit"),
        ("RandomState MT19937", "RandomState SFC64", "its bits came from MT19937, and come from SFC64 now"),
        ("random.Random", "torch.Generator", "mine: a random.Random was saved, and it is a torch.Generator now"),
    ],
)
def test_another_kind_of_generator_is_named_and_left_alone(before: str, now: str, says: str) -> None:
    state = rng.capture({"mine": made(before, 1)})
    other = made(now, 2)
    (said,) = rng.restore(state, {"mine": other})
    assert says in said
    assert draw(other) == draw(made(now, 2))


def test_generators_that_come_and_go_are_named() -> None:
    state = rng.capture({"gone": random.Random(1)})
    said = rng.restore(state, {"new": random.Random(2)})
    assert said == [
        "gone: the random numbers of a random.Random were saved, and there is none now",
        "new: no random numbers of it were saved, it goes on as it is",
    ]


def test_a_state_that_is_refused_is_a_sentence_and_the_rest_is_restored() -> None:
    state = rng.capture({"mine": torch.Generator()})
    wanted = random.random()
    state["torch"] = state["torch"][:16]
    state["own"]["mine"]["state"] = state["own"]["mine"]["state"][:16]
    said = rng.restore(state, {"mine": torch.Generator()})
    assert [one.partition(" were not restored")[0].partition(":")[0] for one in said] == [
        "the random numbers of torch", "mine",
    ]  # fmt: skip
    assert random.random() == wanted


def test_randomness_of_the_system_is_told() -> None:
    one = random.SystemRandom()
    assert rng.is_generator(one)
    (said,) = rng.restore(round_trip(rng.capture({"mine": one})), {"mine": one})
    assert "use random.Random" in said


@pytest.mark.parametrize("value", [None, 3, "x", [random.Random()], np.zeros(3), torch.zeros(3), random, np.random])
def test_other_things_are_no_generators(value: Any) -> None:
    assert not rng.is_generator(value)


def test_a_numpy_of_other_bits_for_all_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    state = rng.capture({})
    state["numpy"]["bit_generator"] = "PCG64"
    state["numpy"]["state"] = {"state": 1, "inc": 1}
    (said,) = rng.restore(state, {})
    assert said.startswith("the random numbers of numpy.random were not restored")


# -- devices ---------------------------------------------------------------------------------------------------------


class Devices:
    """torch.cuda with some devices, on a machine without any."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int, *, initialised: bool = True) -> None:
        self.states = [torch.tensor([at, 7, 0, 0], dtype=torch.uint8) for at in range(count)]
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: initialised)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: [one.clone() for one in self.states])
        monkeypatch.setattr(torch.cuda, "set_rng_state", self.put)

    def put(self, state: Any, device: int) -> None:
        assert state.device.type == "cpu"
        self.states[device] = state.clone()


def test_each_device_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = Devices(monkeypatch, 2)
    state = round_trip(rng.capture({}))
    wanted = [one.tolist() for one in devices.states]
    devices.states = [one + 9 for one in devices.states]
    assert rng.moved(state, rng.capture({})) == ["torch on CUDA"]
    assert rng.restore(state, {}) == []
    assert [one.tolist() for one in devices.states] == wanted
    assert rng.moved(state, rng.capture({})) == []


def test_devices_that_are_not_in_use_are_not_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    Devices(monkeypatch, 2, initialised=False)
    assert "cuda" not in rng.capture({})


@pytest.mark.parametrize(("now", "says"), [(1, "those of 1 were restored"), (3, "those of 2 were"), (0, "none was")])
def test_other_devices_than_before_are_named(now: int, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Devices(monkeypatch, 2)
    state = rng.capture({})
    state["cuda"] = [one + 1 for one in state["cuda"]]
    devices = Devices(monkeypatch, now)
    (said,) = rng.restore(state, {})
    assert said.startswith(f"the random numbers of 2 CUDA devices were saved, and there are {now} now")
    assert says in said
    assert [one[0].item() for one in devices.states] == [1, 2, 2][:now]


def test_a_generator_that_moved_to_another_device_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    one = torch.Generator().manual_seed(3)
    state = rng.capture({"mine": one})
    state["own"]["mine"]["device"] = "cuda"
    (said,) = rng.restore(state, {"mine": one})
    assert said == "mine: it was on cuda, and is on cpu now; nothing was restored"


# -- what is not loaded ----------------------------------------------------------------------------------------------


def test_nothing_is_imported() -> None:
    """Neither to save what a training draws that has neither, nor to find out that a state had more."""
    code = (
        "import sys, random, json; from overnight.checkpoint import rng\n"
        "one = random.Random(1); state = rng.capture({'mine': one}); wanted = random.random(), one.random()\n"
        "assert sorted(state) == ['own', 'python']\n"
        "state = json.loads(json.dumps(state)) | {'torch': None, 'numpy': {}, 'cuda': []}\n"
        "said = rng.restore(state, {'mine': one}); assert (random.random(), one.random()) == wanted\n"
        "assert len(said) == 2 and all('not loaded' in one for one in said), said\n"
        "assert not rng.is_generator(3) and rng.within(object()) == {}\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_numpys_random_part_is_not_imported_to_save_but_to_restore() -> None:
    code = (
        "import sys, numpy; from overnight.checkpoint import rng\n"
        "state = rng.capture({}); assert 'numpy' not in state and 'numpy.random' not in sys.modules\n"
        "import numpy.random; numpy.random.seed(3); state = rng.capture({}); wanted = numpy.random.random()\n"
        "numpy.random.seed(4); assert rng.restore(state, {}) == [] and numpy.random.random() == wanted\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# -- inside an object ------------------------------------------------------------------------------------------------


def test_generators_inside_an_object_are_found_by_where_they_are() -> None:
    deep, method = np.random.default_rng(1), random.Random(2)
    shared = torch.Generator()
    holder = SimpleNamespace(source=method)

    class Collate:
        def go(self) -> None: ...

    collate: Any = Collate()
    collate.rng = holder.source
    root = SimpleNamespace(
        generator=shared,
        sampler=SimpleNamespace(generator=shared, data_source=list(range(10))),
        dataset=SimpleNamespace(steps=[{"noise": deep}], me=None),
        collate_fn=collate.go,
        _iterator=SimpleNamespace(rng=random.Random(3)),
        module=random,
    )
    root.dataset.me = root
    found = rng.within(root)
    assert found == {"generator": shared, "dataset.steps.0.noise": deep, "collate_fn.self.rng": method}


def test_large_data_are_not_searched() -> None:
    root = SimpleNamespace(data=[random.Random(1)] * (rng.FEW + 1), some=[SimpleNamespace() for _ in range(rng.FEW)])
    assert rng.within(root) == {}
    root.last = random.Random(2)
    assert list(rng.within(root)) == ["last"]

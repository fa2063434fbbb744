"""Copies from a GPU, on a torch.cuda that only writes down what it is told: in which order things must happen."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from overnight.checkpoint import staging
from overnight.checkpoint.errors import SaveError
from overnight.checkpoint.jobs import Leaf
from overnight.checkpoint.pinned import TORN, Pending, Pinned


class Gpu:
    """A torch with CUDA: one list of everything that was asked of it, in order."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.hooks: list[Callable[..., None]] = []
        self.within = "main"
        self.code = 0
        self.capturing = self.compiling = False
        self.streams: dict[str, Stream] = {}
        self.cuda = SimpleNamespace(
            is_initialized=lambda: True,
            is_current_stream_capturing=lambda: self.capturing,
            current_stream=lambda device: self.streams.setdefault(f"main:{device}", Stream(self, f"main:{device}")),
            Stream=lambda device: self.streams.setdefault(f"side:{device}", Stream(self, f"side:{device}")),
            stream=lambda stream: Within(self, stream.name),
            cudart=lambda: SimpleNamespace(
                cudaHostRegister=lambda *words: (self.log.append(("register", *words)), self.code)[1],
                cudaHostUnregister=lambda *words: self.log.append(("unregister", *words)),
            ),
        )
        self.compiler = SimpleNamespace(is_compiling=lambda: self.compiling)
        self.kept: list[Any] = []

    def listen(self, hook: Callable[..., None]) -> Any:
        self.hooks.append(hook)
        return SimpleNamespace(remove=lambda: self.hooks.remove(hook))

    def step(self, optimizer: Any) -> None:
        """Do what Optimizer.step does: call the hooks, then change the parameters."""
        self.kept.append(optimizer)
        for hook in self.hooks:
            hook(optimizer, (), {})
        self.log.append(("step",))
        for group in optimizer.param_groups:
            for value in group["params"]:
                value._version += 1

    def at(self, *entry: Any) -> int:
        """Return when something was asked."""
        return self.log.index(entry)


class Within:
    def __init__(self, gpu: Gpu, name: str) -> None:
        self.gpu, self.name = gpu, name

    def __enter__(self) -> None:
        self.before, self.gpu.within = self.gpu.within, self.name

    def __exit__(self, *_: object) -> None:
        self.gpu.within = self.before


class Event:
    def __init__(self, gpu: Gpu, name: str) -> None:
        self.gpu, self.name, self.reached = gpu, name, threading.Event()
        self.reached.set()

    def synchronize(self) -> None:
        assert self.reached.wait(20)
        self.gpu.log.append(("synchronize", self.name))


class Stream:
    def __init__(self, gpu: Gpu, name: str) -> None:
        self.gpu, self.name, self.events = gpu, name, []

    def wait_stream(self, other: Stream) -> None:
        self.gpu.log.append(("wait_stream", self.name, other.name))

    def wait_event(self, event: Event) -> None:
        self.gpu.log.append(("wait_event", self.name, event.name))

    def record_event(self) -> Event:
        self.gpu.log.append(("record", self.name))
        self.events.append(Event(self.gpu, self.name))
        return self.events[-1]


class Tensor:
    """On a GPU. ``storage`` is what its detached twin in a state_dict shares with it, and so is the version."""

    is_cuda = True

    def __init__(self, gpu: Gpu, name: str, storage: int, device: str = "cuda:0") -> None:
        self.gpu, self.name, self.device = gpu, name, device
        self._version = 0
        self.untyped_storage = lambda: SimpleNamespace(data_ptr=lambda: storage)

    def record_stream(self, stream: Stream) -> None:
        self.gpu.log.append(("record_stream", self.name, stream.name))


class View:
    """A place in main memory."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu

    def copy_(self, value: Tensor, *, non_blocking: bool) -> None:
        assert non_blocking
        self.gpu.log.append(("copy", value.name, self.gpu.within))


class Optimizer:
    def __init__(self, params: list[Tensor], state: dict[Any, Any] | None = None) -> None:
        self.param_groups = [{"params": params, "lr": 0.1}]
        self.state = state or {}


@pytest.fixture
def gpu() -> Gpu:
    return Gpu()


@pytest.fixture
def pinned(gpu: Gpu) -> Pinned:
    found = Pinned(gpu, gpu.listen)
    assert found.register(4096, 100)
    found.watch()
    return found


def copy(gpu: Gpu, pinned: Pinned, *values: Tensor) -> Pending:
    gpu.log.clear()
    return pinned.copy([(View(gpu), value) for value in values])


def test_memory_is_pinned_once_and_let_go_before_other_memory_is_pinned(gpu: Gpu) -> None:
    pinned = Pinned(gpu, gpu.listen)
    assert pinned.register(4096, 100)
    assert pinned.register(4096, 100)
    assert pinned.register(8192, 200)
    pinned.release()
    pinned.release()
    assert gpu.log == [
        ("register", 4096, 100, 0),
        ("unregister", 4096),
        ("register", 8192, 200, 0),
        ("unregister", 8192),
    ]


def test_memory_that_cuda_refuses_to_pin_is_asked_for_once_and_nothing_is_copied_beside(gpu: Gpu) -> None:
    gpu.code = 2
    pinned, weight = Pinned(gpu, gpu.listen), Tensor(gpu, "weight", 1)
    assert not pinned.register(4096, 100)
    assert not pinned.register(4096, 100)
    assert gpu.log == [("register", 4096, 100, 0)]
    pinned.watch()
    gpu.step(Optimizer([weight]))
    copy(gpu, pinned, weight)
    assert gpu.log == [("copy", "weight", "main"), ("record", "main:cuda:0")]


def test_only_what_an_optimizer_changes_is_copied_beside_the_training(gpu: Gpu, pinned: Pinned) -> None:
    weight, moment, buffer = Tensor(gpu, "weight", 1), Tensor(gpu, "moment", 2), Tensor(gpu, "buffer", 3)
    gpu.step(Optimizer([weight], {weight: {"exp_avg": moment, "step": 3}}))
    twin = Tensor(gpu, "twin", 1)
    copy(gpu, pinned, twin, buffer, moment)
    assert gpu.log == [
        ("wait_stream", "side:cuda:0", "main:cuda:0"),
        ("copy", "twin", "side:cuda:0"),
        ("record_stream", "twin", "side:cuda:0"),
        ("copy", "moment", "side:cuda:0"),
        ("record_stream", "moment", "side:cuda:0"),
        ("record", "side:cuda:0"),
        ("copy", "buffer", "main"),
        ("record", "main:cuda:0"),
    ]


def test_the_next_step_of_any_optimizer_waits_for_the_copy_and_only_that_one(gpu: Gpu, pinned: Pinned) -> None:
    weight, other = Tensor(gpu, "weight", 1), Optimizer([])
    optimizer = Optimizer([weight])
    gpu.step(optimizer)
    pending = copy(gpu, pinned, weight)
    gpu.step(other)
    gpu.step(optimizer)
    assert gpu.log.count(("wait_event", "main:cuda:0", "side:cuda:0")) == 1
    assert gpu.at("wait_event", "main:cuda:0", "side:cuda:0") < gpu.at("step")
    pending.wait()
    assert gpu.log[-1] == ("synchronize", "side:cuda:0")


def test_each_device_has_a_stream_and_an_event_of_its_own(gpu: Gpu, pinned: Pinned) -> None:
    first, second = Tensor(gpu, "first", 1), Tensor(gpu, "second", 1, "cuda:1")
    gpu.step(Optimizer([first, second]))
    pending = copy(gpu, pinned, first, second)
    gpu.step(Optimizer([first]))
    assert ("wait_event", "main:cuda:0", "side:cuda:0") in gpu.log
    assert ("wait_event", "main:cuda:1", "side:cuda:1") in gpu.log
    assert ("copy", "second", "side:cuda:1") in gpu.log
    pending.wait()


def test_an_optimizer_that_made_no_step_since_the_last_copy_owns_nothing(gpu: Gpu, pinned: Pinned) -> None:
    weight = Tensor(gpu, "weight", 1)
    optimizer = Optimizer([weight])
    copy(gpu, pinned, weight)
    assert ("copy", "weight", "main") in gpu.log  # not one step was seen yet
    gpu.step(optimizer)
    copy(gpu, pinned, weight)
    assert ("copy", "weight", "side:cuda:0") in gpu.log
    copy(gpu, pinned, weight)  # as when a captured graph is replayed: its steps come by nobody
    assert ("copy", "weight", "main") in gpu.log


@pytest.mark.parametrize("way", ["capturing", "compiling"])
def test_steps_that_are_captured_or_compiled_end_all_copying_beside(gpu: Gpu, pinned: Pinned, way: str) -> None:
    weight = Tensor(gpu, "weight", 1)
    setattr(gpu, way, True)
    gpu.step(Optimizer([weight]))
    setattr(gpu, way, False)
    gpu.step(Optimizer([weight]))
    copy(gpu, pinned, weight)
    assert ("copy", "weight", "main") in gpu.log


def test_a_change_without_a_step_makes_the_copy_void_and_the_next_one_careful(gpu: Gpu, pinned: Pinned) -> None:
    weight = Tensor(gpu, "weight", 1)
    optimizer = Optimizer([weight])
    gpu.step(optimizer)
    pending = copy(gpu, pinned, weight)
    weight._version += 1
    gpu.step(optimizer)
    with pytest.raises(SaveError) as caught:
        pending.wait()
    assert str(caught.value) == TORN
    copy(gpu, pinned, weight)
    assert ("copy", "weight", "main") in gpu.log


def test_a_change_without_any_step_is_seen_when_the_copy_is_done(gpu: Gpu, pinned: Pinned) -> None:
    weight = Tensor(gpu, "weight", 1)
    gpu.step(Optimizer([weight]))
    pending = copy(gpu, pinned, weight)
    weight._version += 1
    with pytest.raises(SaveError):
        pending.wait()


def test_a_step_while_somebody_waits_for_the_copy_is_no_change_of_it(gpu: Gpu, pinned: Pinned) -> None:
    weight = Tensor(gpu, "weight", 1)
    optimizer = Optimizer([weight])
    gpu.step(optimizer)
    pending = copy(gpu, pinned, weight)
    event = gpu.streams["side:cuda:0"].events[-1]
    event.reached.clear()
    failed: list[str] = []

    def wait() -> None:
        try:
            pending.wait()
        except SaveError as error:
            failed.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    for _ in range(3):
        gpu.step(optimizer)
    assert waiting.is_alive()
    event.reached.set()
    waiting.join()
    assert failed == []


def test_copies_under_way_end_before_their_memory_goes(gpu: Gpu, pinned: Pinned) -> None:
    weight = Tensor(gpu, "weight", 1)
    gpu.step(Optimizer([weight]))
    copy(gpu, pinned, weight)
    pinned.release()
    assert gpu.at("synchronize", "side:cuda:0") < gpu.at("unregister", 4096)


def test_a_forked_child_says_nothing_to_cuda(gpu: Gpu, pinned: Pinned) -> None:
    copy(gpu, pinned, Tensor(gpu, "weight", 1))
    gpu.log.clear()
    pinned.forget()
    pinned.close()
    assert gpu.log == []


def test_the_hook_keeps_nothing_alive_and_goes_with_its_owner(gpu: Gpu, pinned: Pinned) -> None:
    assert len(gpu.hooks) == 1
    pinned.close()
    assert gpu.hooks == []
    other = Pinned(gpu, gpu.listen)
    other.watch()
    other.watch()
    assert len(gpu.hooks) == 1
    del other
    gc.collect()
    gpu.step(Optimizer([]))
    assert gpu.log[-1] == ("step",)


def test_without_cuda_in_use_nothing_is_pinned() -> None:
    assert not Pinned(SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: False))).usable()


def test_an_arena_lets_pinned_memory_go_before_it_grows_and_when_it_closes(gpu: Gpu) -> None:
    arena = staging.Arena()
    arena.pinned = Pinned(gpu, gpu.listen)
    arena.reserve(10)
    arena.pin()
    first = arena.address
    arena.reserve(50_000)
    assert gpu.log == [("register", first, 4096, 0), ("unregister", first)]
    arena.pin()
    second = arena.address
    arena.close()
    assert gpu.log[2:] == [("register", second, 53_248, 0), ("unregister", second)]
    assert arena.fd == -1


def test_the_real_optimizers_of_torch_call_the_hook_before_they_change_anything() -> None:
    torch = pytest.importorskip("torch")
    pinned = Pinned(SimpleNamespace(cuda=Gpu().cuda, compiler=torch.compiler))
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    seen: list[int] = []
    pending = Pending()
    pending.guard = lambda _cuda: seen.append(weight._version)  # type: ignore[method-assign]
    pinned.watch()
    pinned._pending = pending
    before = weight._version
    try:
        torch.optim.SGD([weight], lr=0.1).step()
    finally:
        pinned.close()
    assert seen == [before]
    assert weight._version > before


def test_free_memory_is_the_least_that_machine_and_groups_leave(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for level, limit, used, cached in (("", "max", 5, 0), ("a", "1000", 900, 300), ("a/b", "500", 100, 50)):
        folder = tmp_path / level
        folder.mkdir(exist_ok=True)
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 1\nactive_file 0\ninactive_file {cached}\n")
    found = list(staging._levels(tmp_path, "/a/b", "memory.max", "memory.current", ""))
    assert found == [450, 400]
    assert list(staging._levels(tmp_path, "/nowhere", "memory.max", "memory.current", "")) == []
    monkeypatch.setattr(staging, "_of_cgroups", lambda: iter(found))
    assert staging.free_memory() == 400
    monkeypatch.setattr(staging, "_of_cgroups", lambda: iter([]))
    free = staging.free_memory()
    assert free is not None
    assert 0 < free < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_an_arena_refuses_what_a_leaf_does_not_say() -> None:
    arena = staging.Arena()
    try:
        np = pytest.importorskip("numpy")
        leaf = Leaf(kind="numpy", dtype="F64", shape=(3,), size=24)
        assert arena.copy([np.arange(3.0)], [leaf]) == [0]
        with pytest.raises(ValueError, match="broadcast"):
            arena.copy([np.arange(4.0)], [leaf])
    finally:
        arena.close()

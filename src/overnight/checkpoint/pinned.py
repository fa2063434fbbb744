"""From a GPU into the staging memory while the training computes: pinned pages, a stream beside, an event to wait for.

Parameters and optimizer state change only in a step of their optimizer: they are copied beside the next forward and
backward pass, and that step's kernels wait for the copy. Everything else is copied in the order of the training's own
stream. Not tested on hardware. What the bytes are for may not enter here.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from overnight.checkpoint.errors import SaveError

TORN = (
    "its tensors were changed outside of optimizer.step() while they were copied from the GPU; "
    "the next save copies them before the training goes on"
)


class Pending:
    """Copies on their way from one or more devices."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.late: dict[Any, Any] = {}  # device: the event behind all that is copied beside the training
        self.watched: list[tuple[Any, int]] = []  # tensors copied beside it, with their version at that time
        self.torn = False
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Return when every byte is in main memory; SaveError if it may be a mix of two steps."""
        for event in (*self.events, *self.late.values()):
            event.synchronize()
        with self._lock:  # an optimizer step that begins now waits until this has been looked at
            self._look()
        if self.torn:
            raise SaveError(TORN)

    def guard(self, cuda: Any) -> None:
        """Make what is launched from now on wait for the copies; called right before an optimizer changes anything."""
        with self._lock:
            self._look()
        for device, event in self.late.items():
            cuda.current_stream(device).wait_event(event)

    def _look(self) -> None:
        """Notice tensors that were written to before a guard could make the writing wait."""
        watched, self.watched = self.watched, []
        self.torn = self.torn or any(value._version != version for value, version in watched)  # noqa: SLF001


class Pinned:
    """The GPU's side of an arena. ``torch``, and what tells of optimizer steps, are handed over by tests only."""

    def __init__(self, torch: Any = None, listen: Callable[[Any], Any] | None = None) -> None:
        self._given = torch
        self._listen = listen
        self._registered: tuple[int, int] | None = None
        self._refused: tuple[int, int] | None = None
        self._streams: dict[Any, Any] = {}
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._hook: Any = None
        self._pending: Pending | None = None
        self.overlap = True

    @property
    def _torch(self) -> Any:
        return self._given or sys.modules.get("torch")

    def usable(self) -> bool:
        """Say whether the training uses CUDA; it is never initialised for the sake of a copy."""
        torch = self._torch
        return torch is not None and bool(torch.cuda.is_initialized())

    def watch(self) -> None:
        """Learn from now on which optimizers there are, and be called before each of their steps."""
        if self._hook is None:
            listen = self._listen or _steps_of_torch()
            self._hook = listen(_hook_of(weakref.ref(self)))

    def register(self, address: int, size: int) -> bool:
        """Pin memory, once; False where CUDA refuses it: copies are right then, too, and only slower."""
        if (address, size) in (self._registered, self._refused):
            return self._registered == (address, size)
        self.release()
        code = self._torch.cuda.cudart().cudaHostRegister(address, size, 0)
        if int(code) != 0:
            self._refused = (address, size)
            return False
        self._registered = (address, size)
        return True

    def release(self) -> None:
        """Let pinned memory go; to be called before it is unmapped."""
        pending, self._pending = self._pending, None
        if pending is not None and self._registered is not None:
            for event in (*pending.events, *pending.late.values()):
                event.synchronize()
        registered, self._registered, self._refused = self._registered, None, None
        if registered is not None:
            self._torch.cuda.cudart().cudaHostUnregister(registered[0])

    def forget(self) -> None:
        """Do as :meth:`release` in a forked child, which must not speak to CUDA: nothing is called."""
        self._registered = self._refused = self._pending = self._hook = None

    def close(self) -> None:
        """Pinned memory goes, and no optimizer tells us of its steps any more."""
        self.release()
        hook, self._hook = self._hook, None
        if hook is not None:
            hook.remove()

    def copy(self, pairs: Sequence[tuple[Any, Any]]) -> Pending:
        """Start copying (target in main memory, tensor on a GPU) pairs and return what must be waited for."""
        self.watch()
        cuda = self._torch.cuda
        owned = set(self._owned()) if self.overlap and self._registered is not None else set()
        self._optimizers.clear()  # one whose steps we are not told of (a replayed CUDA graph) owns nothing next time
        pending = Pending()
        by_device: dict[Any, tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]] = {}
        for view, value in pairs:
            now, late = by_device.setdefault(value.device, ([], []))
            (late if _storage(value) in owned else now).append((view, value))
        for device, (now, late) in by_device.items():
            current = cuda.current_stream(device)
            if late:
                self._beside(pending, device, current, late)
            for view, value in now:
                view.copy_(value, non_blocking=True)
            if now:
                pending.events.append(current.record_event())
        self._pending = pending
        return pending

    def _beside(self, pending: Pending, device: Any, current: Any, pairs: Sequence[tuple[Any, Any]]) -> None:
        cuda = self._torch.cuda
        side = self._streams.get(device)
        if side is None:
            side = self._streams[device] = cuda.Stream(device=device)
        side.wait_stream(current)  # what the training has launched so far comes first
        with cuda.stream(side):
            for view, value in pairs:
                view.copy_(value, non_blocking=True)
                value.record_stream(side)  # if the training drops it, its memory is not used again before it is copied
                pending.watched.append((value, value._version))  # noqa: SLF001
        pending.late[device] = side.record_event()

    def before_step(self, optimizer: Any) -> None:
        """An optimizer is about to change its parameters and its state."""
        torch = self._torch
        if torch.cuda.is_current_stream_capturing() or torch.compiler.is_compiling():
            self.overlap = False  # its later steps will not come by here
            return
        self._optimizers.add(optimizer)
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.guard(torch.cuda)
            self.overlap = self.overlap and not pending.torn

    def _owned(self) -> Iterator[tuple[Any, int]]:
        """Yield the storages of what only an optimizer's step changes, for those that made one since the last copy."""
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                yield from map(_storage, self._on_gpu(group["params"]))
            for state in optimizer.state.values():
                yield from map(_storage, self._on_gpu(state.values() if isinstance(state, dict) else ()))

    def _on_gpu(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            if getattr(value, "is_cuda", False):
                yield value


def _steps_of_torch() -> Callable[[Any], Any]:
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    return register_optimizer_step_pre_hook


def _storage(value: Any) -> tuple[Any, int]:
    return value.device, int(value.untyped_storage().data_ptr())


def _hook_of(link: weakref.ref[Pinned]) -> Any:
    """Return a hook that does not keep the Pinned alive."""

    def hook(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        pinned = link()
        if pinned is not None:
            pinned.before_step(optimizer)

    return hook

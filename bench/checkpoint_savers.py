"""The savers, each as its makers would have it used, behind one face: save, done, wait, load.

``save`` returns when the training may change the state again: what passes until then is what a save keeps the training.
Each save goes to a folder of its own that does not exist yet. Nothing is measured here.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import xxhash
from checkpoint_state import State
from typing_extensions import override

PIECE = 1 << 20
ALIGNED = 8 << 20


def digest(path: Path) -> str:
    """Return XXH3 of a file's bytes, as who wants to be sure of a peer's file would take it."""
    state = xxhash.xxh3_128()
    piece = bytearray(PIECE)
    view = memoryview(piece)
    with path.open("rb", buffering=0) as stream:
        while size := stream.readinto(piece):
            state.update(view[:size])
    return state.hexdigest()


class Saver:
    """A saver that is done when ``save`` returns; the others say more."""

    imports: tuple[str, ...] = ()
    """What is imported before anything is measured, for a trainer that uses it has it anyway."""
    phases: tuple[str, ...] = ("training", "durable")
    """What of a save is measured: what it costs a training, and how long it takes until it is durable."""
    durable = False
    """Whether what it has written is on the disk when it says that it is done."""
    verified = False
    """Whether it keeps a digest of what it has written, and checks it when it loads."""

    def __init__(self, state: State, home: Path) -> None:
        self.state, self.home = state, home

    def target(self, number: int) -> Path:
        """Return the file or folder of a save; savers that choose it themselves say otherwise."""
        folder = self.home / f"{number}"
        folder.mkdir()
        return folder / "state.pt"

    def save(self, number: int) -> None:
        """Save; return when the state may be changed."""
        raise NotImplementedError

    def done(self) -> bool:
        """Say whether the last save is finished, as far as the saver itself cares."""
        return True

    def wait(self) -> None:
        """Wait until it is; RuntimeError if it failed."""

    def loads(self) -> dict[str, Callable[[Path], None]]:
        """Return ways to bring what lies in a save's folder back into the state, by name."""
        return {}

    def close(self) -> None:
        """End what runs beside the training."""


class TorchSave(Saver):
    """``torch.save`` into a file, buffered."""

    @override
    def save(self, number: int) -> None:
        torch.save(self.state.dict(), self.target(number))

    @override
    def loads(self) -> dict[str, Callable[[Path], None]]:
        def plain(folder: Path) -> None:
            self.state.load(torch.load(folder / "state.pt", weights_only=True))

        def mapped(folder: Path) -> None:
            self.state.fill(torch.load(folder / "state.pt", weights_only=True, mmap=True))

        def checked(folder: Path) -> None:
            digest(folder / "state.pt")
            plain(folder)

        return {"torch.load": plain, "torch.load, mmap and copy": mapped, "xxh3 of the file, then torch.load": checked}


class Safetensors(Saver):
    """``safetensors.torch.save_file``; what is no tensor goes into its metadata."""

    imports = ("safetensors.torch",)

    @override
    def save(self, number: int) -> None:
        from safetensors.torch import save_file

        state = self.state.dict()
        flat = {f"model.{name}": one for name, one in state["model"].items()}
        for at, kept in state["optimizer"]["state"].items():
            flat |= {f"optimizer.{at}.{name}": one for name, one in kept.items()}
        groups = json.dumps(state["optimizer"]["param_groups"])
        save_file(flat, self.target(number), metadata={"param_groups": groups})

    @override
    def loads(self) -> dict[str, Callable[[Path], None]]:
        from safetensors import safe_open
        from safetensors.torch import load_file

        def plain(folder: Path) -> None:
            flat = load_file(folder / "state.pt")
            with safe_open(folder / "state.pt", "pt") as opened:
                groups = json.loads(opened.metadata()["param_groups"])
            state: dict[str, Any] = {"model": {}, "optimizer": {"state": {}, "param_groups": groups}}
            for name, one in flat.items():
                kind, rest = name.split(".", 1)
                if kind == "model":
                    state["model"][rest] = one
                else:
                    at, what = rest.split(".")
                    state["optimizer"]["state"].setdefault(int(at), {})[what] = one
            self.state.fill(state)

        def checked(folder: Path) -> None:
            digest(folder / "state.pt")
            plain(folder)

        return {"safetensors load_file and copy": plain, "xxh3 of the file, then load_file and copy": checked}


class DcpSync(Saver):
    """``torch.distributed.checkpoint.save``; it fsyncs its files, not their folder."""

    imports = ("torch.distributed.checkpoint", "torch.distributed.checkpoint.staging")
    durable = True

    @override
    def target(self, number: int) -> Path:
        return self.home / f"{number}"

    @override
    def save(self, number: int) -> None:
        import torch.distributed.checkpoint as dcp

        dcp.save(self.state.dict(), checkpoint_id=self.target(number), no_dist=True)

    @override
    def loads(self) -> dict[str, Callable[[Path], None]]:
        import torch.distributed.checkpoint as dcp

        def plain(folder: Path) -> None:
            state = self.state.dict()
            dcp.load(state, checkpoint_id=folder, no_dist=True)
            self.state.load(state)

        return {"torch.distributed.checkpoint.load": plain}


class DcpThread(DcpSync):
    """``async_save`` with a thread, and a stager that is kept from save to save."""

    kind = "THREAD"
    shared = False

    def __init__(self, state: State, home: Path) -> None:
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        super().__init__(state, home)
        # Pinned memory, staging beside the training and copies that do not block want CUDA.
        self.stager = DefaultStager(StagingOptions(False, self.shared, False, False))
        self.future: Any = None

    @override
    def save(self, number: int) -> None:
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        self.future = dcp.async_save(
            self.state.dict(),
            checkpoint_id=self.target(number),
            async_checkpointer_type=AsyncCheckpointerType[self.kind],
            async_stager=self.stager,
            no_dist=self.kind == "THREAD",
        )

    @override
    def done(self) -> bool:
        return bool(self.future.done())

    @override
    def wait(self) -> None:
        self.future.result()

    @override
    def loads(self) -> dict[str, Callable[[Path], None]]:
        return {}

    @override
    def close(self) -> None:
        self.stager.close()


class DcpProcess(DcpThread):
    """``async_save`` with a process, and a stager in shared memory that is kept from save to save."""

    kind = "PROCESS"
    shared = True

    def __init__(self, state: State, home: Path) -> None:
        import torch.distributed as dist

        super().__init__(state, home)
        listening = socket.create_server(("127.0.0.1", 0))  # else its store would listen on every address
        port = listening.getsockname()[1]
        os.environ.update(
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo", DCP_USE_PREFIX_STORE="1"
        )
        self.store = dist.TCPStore(
            "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
        )
        dist.init_process_group("gloo", store=self.store, rank=0, world_size=1)

    @override
    def close(self) -> None:
        import torch.distributed as dist
        from torch.distributed.checkpoint import _async_process_executor as executor

        super().close()
        executor._CHECKPOINT_PROCESS = None  # noqa: SLF001 - it has no other way to end its process
        dist.destroy_process_group()


class LightningAsync(Saver):
    """Lightning's AsyncCheckpointIO around its own TorchCheckpointIO."""

    imports = ("lightning.pytorch.plugins.io",)

    def __init__(self, state: State, home: Path) -> None:
        from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO

        super().__init__(state, home)
        finished = self.finished = threading.Event()

        class Telling(TorchCheckpointIO):
            """Says when it has written, for the plugin around it keeps that to itself."""

            @override
            def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
                try:
                    super().save_checkpoint(*args, **kwargs)
                finally:
                    finished.set()

        self.io = AsyncCheckpointIO(Telling())

    @override
    def save(self, number: int) -> None:
        self.finished.clear()
        self.io.save_checkpoint(self.state.dict(), self.target(number))

    @override
    def done(self) -> bool:
        return self.finished.is_set()

    @override
    def wait(self) -> None:
        self.finished.wait()

    @override
    def close(self) -> None:
        self.io.teardown()


class Copy(Saver):
    """A copy of all tensors into memory that is kept: the least that any saver must keep a training on a CPU."""

    phases = ("training",)

    def __init__(self, state: State, home: Path) -> None:
        super().__init__(state, home)
        self.kept = [torch.zeros_like(one) for one in state.tensors()]

    @override
    def save(self, number: int) -> None:
        for kept, one in zip(self.kept, self.state.tensors(), strict=True):
            kept.copy_(one)


class Direct(Saver):
    """As many bytes past the page cache, and fsync: the least that any saver must take until it is durable."""

    phases = ("durable",)
    durable = True

    def __init__(self, state: State, home: Path) -> None:
        super().__init__(state, home)
        import mmap

        self.block = mmap.mmap(-1, ALIGNED)  # its address is aligned, which O_DIRECT asks for
        self.block.write(os.urandom(ALIGNED))

    @override
    def save(self, number: int) -> None:
        handle = os.open(self.target(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT)
        try:
            for _ in range(-(-self.state.size // ALIGNED)):
                os.write(handle, self.block)
            os.fsync(handle)
        finally:
            os.close(handle)


PEERS: dict[str, type[Saver]] = {
    "torch.save": TorchSave,
    "safetensors save_file": Safetensors,
    "DCP save": DcpSync,
    "DCP async_save, thread, kept stager": DcpThread,
    "DCP async_save, process, kept stager": DcpProcess,
    "Lightning AsyncCheckpointIO": LightningAsync,
    "limit: copy into warm memory": Copy,
    "limit: O_DIRECT write and fsync": Direct,
}


def is_here(kind: type[Saver]) -> bool:
    """Say whether what a saver needs can be imported."""
    return all(importlib.util.find_spec(name.split(".")[0]) is not None for name in kind.imports)

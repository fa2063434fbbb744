"""Overnight's own savers, behind the face of ``checkpoint_savers``; used as a training script uses them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from checkpoint_savers import Saver
from checkpoint_state import State
from typing_extensions import override

ENDLESS = 1 << 40


class Overnight(Saver):
    """``Checkpointer`` with a save at every boundary. The trial removes old ones, for all savers."""

    imports = ("overnight.checkpoint.checkpointer", "overnight.checkpoint.link", "xxhash")
    durable = True
    verified = True
    beside = True

    def __init__(self, state: State, home: Path) -> None:
        super().__init__(state, home)
        self.ending = contextlib.ExitStack()
        checkpointer = self.ending.enter_context(self.made(every=1))
        self.wait_for = checkpointer.wait
        self.loop = checkpointer.steps(ENDLESS)
        self.ending.callback(self.loop.close)  # as one who leaves the loop: no last save
        self.step = next(self.loop)

    def made(self, **more: Any) -> Any:
        """Return a Checkpointer of the state."""
        from overnight.checkpoint import Checkpointer

        parts = {"model": self.state.model, "optimizer": self.state.optimizer}
        return Checkpointer(self.home, keep_last=None, async_=self.beside, **parts, **more)

    @override
    def save(self, number: int) -> None:
        self.saved = self.home / f"step-{self.step:08d}"
        self.step = next(self.loop)

    @override
    def done(self) -> bool:
        return self.saved.exists()  # nothing lies under this name before it is whole and on the disk

    @override
    def wait(self) -> None:
        self.wait_for()

    @override
    def close(self) -> None:
        self.ending.close()


class OvernightSync(Overnight):
    """The same in the training itself. It loads, too: both make the same files."""

    beside = False

    @override
    def loads(self) -> dict[str, Callable[[Path], None]]:
        self.close()  # a folder has one training at a time

        def resume(folder: Path) -> None:
            with self.made(every=None) as checkpointer:
                if checkpointer.resumed_from != folder:
                    raise RuntimeError(f"resumed from {checkpointer.resumed_from} instead of {folder}")

        return {"overnight, resumed (verified)": resume}


OURS: dict[str, type[Saver]] = {"overnight, async": Overnight, "overnight, async_=False": OvernightSync}

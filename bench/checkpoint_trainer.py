"""One saver in a process of its own: a training with a large state that saves, and the figures of each save.

Started by checkpoints.py, with the Python of the peers. It writes what it has found as JSON to the file ``--out``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import checkpoint_memory
import torch
from checkpoint_ours import OURS
from checkpoint_savers import PEERS, Saver, digest, is_here
from checkpoint_state import State, Training


def files(folder: Path) -> list[Path]:
    """Return the files of a save."""
    return [one for one in folder.rglob("*") if one.is_file()]


def sync(folder: Path) -> None:
    """Bring a save, its folders and their parent to the disk; costs next to nothing where the saver has done it."""
    for one in [*folder.rglob("*"), folder, folder.parent]:
        handle = os.open(one, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def forget_pages(folder: Path) -> None:
    """Let the next who reads a save read it from the disk."""
    for one in files(folder):
        handle = os.open(one, os.O_RDONLY)
        try:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


class Trial:
    """The saves of one process. Every save begins with all earlier ones durable, and with only the last one kept."""

    def __init__(self, kind: type[Saver], asked: argparse.Namespace) -> None:
        for name in kind.imports:
            importlib.import_module(name)
        torch.manual_seed(1)
        self.asked, self.state, self.training = asked, State(asked.size), Training()
        self.training.steps(1.0)
        self.before = checkpoint_memory.forget(os.getpid())
        self.saver = kind(self.state, asked.folder)
        self.number = 0

    def settle(self) -> None:
        """Make durable what is there and remove what is older; nothing of it is measured."""
        kept = self.newest()
        for one in asked_folders(self.asked.folder):
            if kept is not None and one != kept:
                shutil.rmtree(one)
        if kept is not None:
            sync(kept)
            held = sum(one.stat().st_size for one in files(kept))
            if held < self.state.size:
                raise RuntimeError(f"{self.asked.saver} wrote {held:,} bytes of {self.state.size:,}")

    def newest(self) -> Path | None:
        """Return the folder of the last save; None for a saver that has none."""
        found = asked_folders(self.asked.folder)
        return max(found, key=lambda one: one.stat().st_mtime_ns) if found else None

    def beside_training(self) -> dict[str, Any]:
        """Save while training; the training goes on until the save is done."""
        quiet = self.training.steps(self.asked.quiet_s)
        self.number += 1
        began = time.monotonic()
        self.saver.save(self.number)
        kept = time.monotonic() - began
        during: list[float] = []
        while not self.saver.done() and time.monotonic() - began < self.asked.longest_s:
            during.append(self.training.step())
        ended = self.saver.done()
        took = time.monotonic() - began
        self.saver.wait()
        self.settle()
        return {
            "kept_s": kept,
            "quiet_s": statistics.median(quiet),
            "during_s": statistics.median(during) if during else None,
            "during_largest_s": max(during, default=None),
            "steps": len(during),
            "done_s": took if ended else None,
        }

    def at_rest(self) -> dict[str, Any]:
        """Save with nothing else to do, and see until when it is done, durable, and has a digest."""
        self.number += 1
        began = time.monotonic()
        self.saver.save(self.number)
        self.saver.wait()
        done = time.monotonic() - began
        newest = self.newest()
        assert newest is not None
        sync(newest)
        durable = time.monotonic() - began
        for one in files(newest) if not self.saver.verified else ():
            digest(one)
        verified = time.monotonic() - began
        self.settle()
        return {"done_s": done, "durable_s": durable, "verified_s": verified}

    def load(self, way: Callable[[Path], None]) -> dict[str, float]:
        """Load the last save from the disk and again from memory; it must be what was saved."""
        newest = self.newest()
        assert newest is not None
        saved, taken = self.state.sums(), {}
        for where in ("disk_s", "memory_s"):
            with torch.no_grad():
                for one in self.state.tensors():
                    one.zero_()
            if where == "disk_s":
                forget_pages(newest)
            began = time.monotonic()
            way(newest)
            taken[where] = time.monotonic() - began
            if self.state.sums() != saved:
                raise RuntimeError(f"{self.asked.saver} did not load what it had saved")
        return taken

    def run(self) -> dict[str, Any]:
        """Return all figures of this process."""
        found: dict[str, Any] = {
            "size": self.state.size,
            "parameters": self.state.parameters,
            "threads": torch.get_num_threads(),
        }
        with contextlib.closing(self.saver):
            if "training" in self.saver.phases:
                found["training"] = [self.beside_training() for _ in range(self.asked.saves)]
                found["memory"] = checkpoint_memory.beside(os.getpid(), self.before)
            if "durable" in self.saver.phases:
                found["durable"] = [self.at_rest() for _ in range(self.asked.idle)]
            found["loads"] = {
                name: [self.load(way) for _ in range(self.asked.loads)] for name, way in self.saver.loads().items()
            }
        return found


def asked_folders(folder: Path) -> list[Path]:
    """Return the saves that lie in a folder."""
    return [one for one in folder.iterdir() if one.is_dir() and not one.name.startswith(".")]


def main() -> int:
    """Run one saver."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--saver", required=True, choices=[*PEERS, *OURS])
    parser.add_argument("--folder", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--size", type=float, default=1.0)
    parser.add_argument("--saves", type=int, default=4)
    parser.add_argument("--idle", type=int, default=2)
    parser.add_argument("--loads", type=int, default=2)
    parser.add_argument("--quiet-s", type=float, default=3.0)
    parser.add_argument("--longest-s", type=float, default=180.0, help="the training rests if a write takes longer")
    asked = parser.parse_args()
    kind = {**PEERS, **OURS}[asked.saver]
    asked.out.write_text(json.dumps(Trial(kind, asked).run() if is_here(kind) else None))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

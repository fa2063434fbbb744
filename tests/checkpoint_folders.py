"""Folders of checkpoints made by hand, file by file, for tests of the inspector; torch only where a file is torch's."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from overnight.checkpoint import manifest as manifests
from overnight.checkpoint.manifest import FileFacts, Manifest

T0 = 1_700_000_000.0


def safetensors(path: Path, tensors: Mapping[str, list[float]] | None = None) -> Path:
    """Write float32 tensors in the form of safetensors."""
    known = {"weight": [0.5, -1.0, 2.0]} if tensors is None else tensors
    header: dict[str, Any] = {}
    data = b""
    for name, values in known.items():
        raw = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": [len(values)], "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def own(folder: Path, step: int, *, run: str = "r1", weights: list[float] | None = None, **more: Any) -> Path:
    """Make a checkpoint in Overnight's own layout; ``more`` are fields of its manifest."""
    path = folder / more.pop("name", f"step-{step:08d}")
    safetensors(path / "model.safetensors", {"wte.weight": weights or [float(step), 1.0]})
    (path / "train_state.json").write_text(json.dumps({"step": step}))
    facts = {
        name: FileFacts(size=(path / name).stat().st_size, xxh3_128=manifests.file_digest(path / name))
        for name in ("model.safetensors", "train_state.json")
    }
    about: dict[str, Any] = {
        "saved_at": f"2026-11-30T02:{step // 60 % 60:02d}:{step % 60:02d}.000Z",
        "reason": "interval",
    }
    made = Manifest(step=step, run=run, files=facts, **{**about, **more})
    (path / manifests.NAME).write_bytes(manifests.dump(made))
    return path


def trainer(folder: Path, step: int, *, lacks: tuple[str, ...] = (), **state: Any) -> Path:
    """Make a folder as Trainer does, without the files in ``lacks``."""
    torch = pytest.importorskip("torch")
    path = folder / f"checkpoint-{step}"
    safetensors(path / "model.safetensors", {"wte.weight": [float(step), 1.0]})
    moments = {"exp_avg": torch.ones(3), "step": torch.tensor(float(step))}
    torch.save({"state": {0: moments}, "param_groups": [{"lr": 0.1, "params": [0]}]}, path / "optimizer.pt")
    torch.save({"last_epoch": step}, path / "scheduler.pt")
    torch.save({"python": (3, (1, 2)), "cpu": torch.zeros(8, dtype=torch.uint8)}, path / "rng_state.pth")
    (path / "config.json").write_text("{}")
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step, "epoch": 1.0, **state}))
    for name in lacks:
        (path / name).unlink()
    return path


def at(path: Path, seconds: float) -> None:
    """Set the time of a folder and all that is in it."""
    for one in [*path.rglob("*"), path]:
        os.utime(one, (T0 + seconds, T0 + seconds))

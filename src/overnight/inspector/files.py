"""Which reader looks at a file, or at a folder that is one checkpoint of torch.distributed: by name and first bytes.

Nothing is judged here.
"""

from __future__ import annotations

from pathlib import Path

from overnight.inspector import archive, dcp, tensors, torchzip
from overnight.inspector.findings import Budget, Found


def look(path: Path, budget: Budget) -> Found:
    """Return what a file, or a folder with ``.metadata``, holds; what no reader knows has the maker ``unknown``."""
    name = path.name
    if path.is_dir():
        return dcp.look(path, budget)
    if name.endswith(".index.json"):
        return tensors.look_index(path, budget)
    if name.endswith(".safetensors"):
        return tensors.look(path, budget)
    if name.endswith((".npz", ".npy", ".zip")):
        return archive.look(path, budget)
    return torchzip.look(path, budget)

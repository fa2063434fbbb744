"""What a training ran in and can change its numbers: workers, threads, precision, versions; and what has changed since.

Facts are recorded and compared, never restored. Nothing is imported or initialised for their sake.
"""

from __future__ import annotations

import json
import math
import os
import platform
import sys
from collections.abc import Mapping
from typing import Any

from overnight.checkpoint import loaderkind
from overnight.checkpoint.errors import CheckpointError

VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG", "PYTHONHASHSEED", "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS",
)  # fmt: skip
"""Variables that change which kernels run, in which order they add, or the order of sets."""

PACKAGES = (
    "torch", "numpy", "torchdata", "safetensors", "torchvision", "torchaudio", "datasets", "transformers", "accelerate",
    "lightning", "triton", "jax",
)  # fmt: skip
"""Packages whose version is recorded if the training has loaded them."""

LONGEST = 80
"""Characters of a value that are shown; what lies beyond is cut."""


def world_size() -> int:
    """Return how many ranks train together, as far as torch knows by now."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_world_size())
    return 1


def refuse_ranks() -> None:
    """CheckpointError where several ranks train together."""
    if world_size() > 1:
        raise CheckpointError(
            f"this training has {world_size()} ranks, and checkpoints of several are not written yet; "
            f"save with torch.distributed.checkpoint meanwhile"
        )


def facts(*, loader: Any, world_size: int) -> dict[str, Any]:
    """Return what can change a training's numbers from outside of its state; None is what is not set or not known.

    Only what can be had without a side effect: CUDA is not initialised, an iterable dataset is not asked its length.
    """
    found: dict[str, Any] = {"world_size": world_size, "machine": platform.machine()}
    found["variables"] = {name: os.environ.get(name) for name in VARIABLES}
    if loader is not None:
        found["loader"] = _loader(loader)
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = _torch(torch)
    return found


def _loader(loader: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": type(loader).__name__}
    for name in ("batch_size", "num_workers", "drop_last", "persistent_workers"):
        value = getattr(loader, name, None)
        if isinstance(value, (bool, int)):
            found[name] = value
    if found.get("batch_size") is None and getattr(loader, "batch_sampler", None) is not None:
        size = getattr(loader.batch_sampler, "batch_size", None)  # DataLoader has None for a batch_sampler given to it
        if isinstance(size, int):
            found["batch_size"] = size
    dataset = loader if isinstance(loader, (list, tuple, range)) else getattr(loader, "dataset", None)
    sized = hasattr(type(dataset), "__len__") and hasattr(type(dataset), "__getitem__")
    if sized and not loaderkind.is_iterable_style(loader):
        try:
            found["dataset_size"] = len(dataset)  # type: ignore[arg-type]
        except (TypeError, NotImplementedError):  # as torch's Subset of an unsized one
            found["dataset_size"] = None
    return found


def _torch(torch: Any) -> dict[str, Any]:
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    found = {
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "mkldnn": torch.backends.mkldnn.enabled,
        "matmul_precision": _asked(torch.get_float32_matmul_precision),
        "cuda_matmul_tf32": _asked(lambda: cuda.allow_tf32),
        "cuda_matmul_precision": _asked(lambda: cuda.fp32_precision),
        "cuda_matmul_fp16_reduction": _asked(lambda: cuda.allow_fp16_reduced_precision_reduction),
        "cuda_matmul_bf16_reduction": _asked(lambda: cuda.allow_bf16_reduced_precision_reduction),
        "cudnn": cudnn.enabled,
        "cudnn_deterministic": cudnn.deterministic,
        "cudnn_benchmark": cudnn.benchmark,
        "cudnn_tf32": _asked(lambda: cudnn.allow_tf32),
        "cudnn_precision": _asked(lambda: cudnn.fp32_precision),
    }
    if torch.cuda.is_initialized():
        found["devices"] = [torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())]
    return found


def _asked(question: Any) -> Any:
    """Return the answer, None where torch has none: it refuses when its older and newer settings are mixed."""
    try:
        answer = question()
    except (RuntimeError, AttributeError):
        return None
    return answer if isinstance(answer, (bool, int, str, type(None))) else str(answer)


def versions() -> dict[str, str]:
    """Return the versions of Python, of this package, and of what the training has loaded."""
    found = {"python": platform.python_version(), "overnight": str(sys.modules["overnight"].__version__)}
    for name in PACKAGES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            found[name] = str(version)
    torch = sys.modules.get("torch")
    if torch is None:
        return found
    for name in ("cuda", "hip"):
        version = getattr(torch.version, name, None)
        if version is not None:
            found[name] = str(version)
    if torch.version.cuda is not None and torch.backends.cudnn.is_available():
        found["cudnn"] = str(torch.backends.cudnn.version())
    return found


# -- what has changed ------------------------------------------------------------------------------------------------


def changes(old: Any, new: Any) -> list[str]:
    """Return each difference in a few words, ordered by name: ``loader.batch_size 32 -> 64``.

    Of environment, versions and config alike: nested dicts and lists are compared item by item; a tuple is the same as
    a list, and a number that is not finite the same as its word, as a manifest holds them.
    """
    before, after = _flat(_plain(old), ()), _flat(_plain(new), ())
    said = []
    for path in sorted(before.keys() | after.keys(), key=_order):
        name = ".".join(path) or "all of it"
        if path not in after:
            said.append(f"{name} is gone, it was {_shown(before[path])}")
        elif path not in before:
            said.append(f"{name} is new: {_shown(after[path])}")
        elif not _equal(before[path], after[path]):
            said.append(f"{name} {_pair(before[path], after[path])}")
    return said


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)


def _flat(value: Any, path: tuple[str, ...]) -> dict[tuple[str, ...], Any]:
    """Return what lies at the ends of the branches; an empty dict or list is such an end."""
    if isinstance(value, dict) and (value or not path):
        pairs = [*value.items()]
    elif isinstance(value, list) and value:
        pairs = [(str(at), one) for at, one in enumerate(value)]
    else:
        return {path: value}
    return {key: one for name, held in pairs for key, one in _flat(held, (*path, name)).items()}


def _order(path: tuple[str, ...]) -> list[tuple[bool, int, str]]:
    """Order names by letter and places in a list by number."""
    return [(not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in path]


def _equal(one: Any, other: Any) -> bool:
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _pair(one: Any, other: Any) -> str:
    shown = _shown(one), _shown(other)
    if shown[0] == shown[1] and (isinstance(one, str) or isinstance(other, str)):  # 8 and "8", or a difference cut off
        shown = tuple(json.dumps(value) for value in (one, other))  # type: ignore[assignment]
    return f"{shown[0]} -> {shown[1]}"


def _shown(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, str):
        text = value if value.isprintable() and value.strip() else json.dumps(value)
    else:
        text = json.dumps(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."

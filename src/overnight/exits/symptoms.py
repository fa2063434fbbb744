"""Which text stands for which cause: the words in which programs, libraries and the kernel tell of a failure.

Pure tables and the look-up in them; which text of a log is a failure at all is the question of ``traces.py``, which of
several counts that of ``causes.py``. The words are those of torch 2.0 to 2.13, JAX, TensorFlow, NCCL, Linux and NVIDIA.
"""

from __future__ import annotations

import re

from overnight.exits.traces import Trace

HARDWARE_XIDS = frozenset({48, 54, 61, 62, 64, 74, 79, 92, 94, 95, 110, 119, 120, 136, 140, 142, 143, *range(145, 152)})
"""Codes of the NVIDIA driver that speak of the device; 13, 31, 43, 45 and others may as well be the program's fault."""

XID = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<device>[0-9a-fA-F:.]+)\): (?P<code>\d+)")
MEMORY_FAILURE = re.compile(r"due to hardware memory corruption|Uncorrected hardware memory error")
OOM_KILL = re.compile(r"Killed process \d+|oom-kill:|oom_reaper: reaped process")
PEER_LEFT = re.compile(r"Connection closed by peer|Connection reset|ncclRemoteError|remote process exited")
SHELL_FILE = re.compile(r"^\S+: (?:line \d+: |\d+: )?.*(?:No such file or directory|Permission denied|not found)$")
USAGE_LINE = re.compile(
    r": error: (?:unrecognized arguments|the following arguments are required|argument |ambiguous option|one of the)"
    r"|^Error: (?:No such|Missing|Invalid|Got unexpected)|: can't open file |Flags parsing error|^SyntaxError:"
    r"|^(?:IndentationError|TabError):|^Could not override|^Key '.*' is not in struct"
    r"|^(?:Primary|Cannot find primary) config"
)


def _any(*words: str) -> re.Pattern[str]:
    return re.compile("|".join(words), re.MULTILINE)


# In this order: a save that fails on a full disk may speak of memory, an allocator's failure of a loader.
_SHAPES: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "out_of_memory_host",
        _any(
            r"insufficient shared memory|out of shared memory|shared memory\(shm\) for file",
            r"unable to write to file </torch|killed by signal: Killed|node running low on memory",
            r"[Dd]etected \d+ oom.kill event|^srun: error: .*: Out Of Memory$",
        ),
    ),
    (
        "disk_full",
        _any(
            r"No space left on device|\[Errno (?:28|122)\]|os error (?:28|122)\b|[Dd]isk quota exceeded|\bENOSPC\b",
            r"PytorchStreamWriter failed writing|inline_container\.cc:\d+\]\s*\.\s*unexpected pos|errno = 28\b",
        ),
    ),
    (
        "out_of_memory_host",
        _any(
            r"(?:\b|_Array)MemoryError\b|Cannot allocate memory|\[Errno 12\]|os error 12\b|std::bad_alloc",
            r"by allocator cpu\b|DefaultCPUAllocator: (?:can't|not enough)|CPU out of memory",
        ),
    ),
    (
        "out_of_memory_gpu",
        _any(
            r"(?:CUDA|HIP|XPU|MPS backend|GPU|device)(?: error)?:? out of memory|\bOutOfMemoryError\b",
            r"^\[?(?:CUDA|HIP) ERROR\]?.{0,120}\bout of memory\b",
            r"[Cc]uda failure.{0,4}out of memory|CU(?:BLAS|DNN|SOLVER|SPARSE)_STATUS_ALLOC_FAILED",
            r"CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|hipErrorOutOfMemory|[Cc]uda failure 2\b",
            r"RESOURCE_EXHAUSTED: .*(?:memory|allocat)|ResourceExhaustedError|OOM when allocating",
            r"Failed to CUDA (?:malloc|calloc)|No executable batch size found",
        ),
    ),
    (
        "hardware",
        _any(
            r"fallen off the bus|[Uu]ncorrectable (?:ECC|NVLink) error|GPU is lost|GPU requires reset",
            r"cudaErrorECCUncorrectable|Unable to determine the device handle|HW Exception by GPU",
        ),
    ),
    (
        "collective_timeout",
        _any(
            r"Watchdog caught collective operation timeout|[Tt]imed out waiting \d+ ?ms for (?:send|recv)",
            r"monitoredBarrier|watchdog got stuck|NCCL operations have failed or timed out|Connection closed by peer",
            r"DistBackendError: .*(?:NCCL error|[Tt]imed? ?out|wait)|DistStoreError|DistNetworkError|ncclRemoteError",
            r"gloo/transport|RendezvousTimeoutError|[Ss]ocket Timeout|wait timeout after \d+ ?ms, keys",
        ),
    ),
    (
        "import_error",
        _any(
            r"^(?:ModuleNotFoundError|ImportError)\b|: No module named |cannot open shared object file",
            r"undefined symbol|version `GLIBC\w*' not found",
        ),
    ),
    (
        "load_failure",
        _any(
            r"Error\(s\) in loading state_dict|size mismatch for|PytorchStreamReader|archive is corrupted",
            r"UnpicklingError|SafetensorError|Weights only load failed|(?:Missing|Unexpected) key\(s\) in state_dict",
            r"loaded state dict (?:contains|has)|failed finding central directory|Unable to open file \(truncated",
        ),
    ),
    (
        "usage",
        _any(
            r"^(?:SyntaxError|IndentationError|TabError)\b|^(?:hydra|omegaconf)\.[\w.]+: ",
            r"not used by the HfArgumentParser",
        ),
    ),
)
_LOADING = re.compile(r"\b(?:load_state_dict|load_checkpoint|_load_from_checkpoint|torch\.load|load_weights)\(")
_LOADERS = frozenset(
    {"load_state_dict", "load_checkpoint", "_load_from_checkpoint", "_load_state_dict", "load_weights"}
)
_LOADER_ERRORS = re.compile(r"^(?:KeyError|EOFError|FileNotFoundError|zipfile\.BadZipFile|ValueError|AttributeError)\b")


def cause_of(text: str) -> str | None:
    """Return the cause that the text of an error stands for; None if it is only a crash."""
    return next((cause for cause, shape in _SHAPES if shape.search(text)), None)


def loading(trace: Trace) -> str | None:
    """Return "load_failure" if the error came out of loading a checkpoint: a missing key tells nothing but its name."""
    if not _LOADER_ERRORS.match(trace.error):
        return None
    inside = any(
        frame.function in _LOADERS
        or _LOADING.search(frame.source)
        or (frame.function == "load" and frame.path.endswith("torch/serialization.py"))
        for frame in trace.frames
    )
    return "load_failure" if inside else None

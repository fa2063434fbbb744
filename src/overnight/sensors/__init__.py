"""What sensors tell: the words of sensors.jsonl. No library, no clock, no judgement here.

Each sample is one line. None is "not known": a card that cannot measure it, or a call that failed.
"""

from __future__ import annotations

import msgspec


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process that uses a GPU. ``memory``: bytes. ``ours``: of the run's process tree; None: nobody could say.

    ``graphics``: it draws and does not compute; None: nobody could say, or it computes.
    """

    pid: int
    memory: int | None = None
    name: str | None = None
    user: str | None = None
    ours: bool | None = None
    graphics: bool | None = None


class Gpu(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU at one moment.

    ``utilisation`` (kernels running) and ``memory_busy`` are fractions; memory in bytes, power in W, clocks in MHz.
    ``throttle``: reasons that slow it down now: "thermal", "power_cap", "hw_slowdown", "power_brake", "sync_boost",
    "app_clocks", "display_clocks" (idle is none). ``lost``: it does not answer any more, in the driver's words.
    ``ours``: a process of the run is on it, or CUDA_VISIBLE_DEVICES of the command names it; None: nobody could say.
    ``arch``: "gfx942", where the maker's library tells it; AMD's names are often empty.
    ECC and remapped rows are counts since the driver was loaded, or of the card's life where it keeps them.
    """

    index: int
    name: str | None = None
    uuid: str | None = None
    bus_id: str | None = None
    units: int | None = None
    arch: str | None = None
    mig: bool | None = None
    utilisation: float | None = None
    memory_busy: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    temperature_c: float | None = None
    slowdown_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    sm_clock_mhz: float | None = None
    max_sm_clock_mhz: float | None = None
    throttle: tuple[str, ...] = ()
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    remapped_rows: int | None = None
    remap_failed: bool | None = None
    remap_pending: bool | None = None
    nvlinks_active: int | None = None
    nvlink_errors: int | None = None
    processes: tuple[GpuProcess, ...] | None = None
    ours: bool | None = None
    lost: str | None = None


class Xid(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error event of the driver: ``code`` as NVIDIA numbers them, ``device`` its bus id."""

    code: int
    at: float
    device: str | None = None
    index: int | None = None
    text: str = ""


class GpuSample(msgspec.Struct, frozen=True, kw_only=True, tag="gpu", tag_field="kind", omit_defaults=True):
    """All GPUs of the machine. ``trouble``: why there is nothing to be told ("the NVIDIA driver is not loaded").

    ``notes``: what could not be looked at beside them ("the kernel's log is not readable").
    """

    at: float
    gpus: tuple[Gpu, ...] = ()
    xids: tuple[Xid, ...] = ()
    driver: str | None = None
    trouble: str | None = None
    maker: str = "nvidia"
    notes: tuple[str, ...] = ()


class Disk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file system that the run writes to; bytes. ``holds``: what of the run lies there ("log", "checkpoints")."""

    mount: str
    holds: tuple[str, ...]
    free: int | None = None
    total: int | None = None
    inodes_free: int | None = None


class Pressure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Pressure stall information of one resource: part of the last 10 s in which some, or all, had to wait for it."""

    some: float | None = None
    full: float | None = None


class HostSample(msgspec.Struct, frozen=True, kw_only=True, tag="host", tag_field="kind", omit_defaults=True):
    """The machine, and the run's own processes: ``rss`` in bytes over all ``processes`` of the training's tree.

    ``cpu`` is a fraction of all processors. ``memory_total`` and ``memory_available`` are the container's where it has
    a limit that is lower than the machine's.
    """

    at: float
    cpu: float | None = None
    load1: float | None = None
    processors: int | None = None
    memory_total: int | None = None
    memory_available: int | None = None
    swap_used: int | None = None
    swap_total: int | None = None
    disks: tuple[Disk, ...] = ()
    cpu_pressure: Pressure | None = None
    memory_pressure: Pressure | None = None
    io_pressure: Pressure | None = None
    rss: int | None = None
    processes: int | None = None
    own_rss: int | None = None


Sample = GpuSample | HostSample


class Sensed(msgspec.Struct, frozen=True, kw_only=True):
    """A sample with what a rule must know beside it.

    ``active_s``: seconds the command has run, all attempts; ``step`` the last step, ``step_s`` seconds a step over the
    window; ``moved_s`` seconds since the last step, None before the first; ``phase`` what the log announced since then
    ("saving", "evaluating", ...), None for nothing. ``file_s``: seconds since the log or a watched file grew;
    ``gap_s``: the longest time between two steps so far. None where nobody knows.
    """

    sample: Sample
    active_s: float
    step: int | None = None
    step_s: float | None = None
    moved_s: float | None = None
    phase: str | None = None
    file_s: float | None = None
    gap_s: float | None = None

"""The words of the calculator: what is asked, what a run knows of itself, what comes out. No arithmetic, no file.

Unknown is None, and ``Answer.unknown`` names what would make it known. Every figure has the line that it came from.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from overnight.modelsize import Counts

Recompute = Literal["none", "selective", "full"]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What a run or a log tells about itself. Shares are fractions; rates are of all devices together.

    ``tokens_per_second`` is over clean steps if ``clean`` (the first ones after a start are left out, and those with an
    evaluation, a save or a compile before them), otherwise over all; ``tokens_source`` says of what it was made.
    ``tokens_per_step`` are those that the log prints with its steps, where they lead.
    ``printed_tokens_per_second`` is the program's own figure, ``printed_per_device`` that it was of one.
    ``useful_tokens_per_second`` leaves padding out. ``stepping`` is the part of the wall clock that the steps took.
    ``median_s`` and ``slow_s`` are the middle and the 95th percentile of the clean step times. ``data_wait`` is the
    part of the step time that the log says was spent waiting for data; ``evaluation`` the part of all printed step
    time that evaluations took, as far as it stands in them. ``utilisation`` and the fields behind it are of the run's
    own GPUs, over ``gpu_samples`` samples of the sensors; ``low`` is the part of them below half the middle one.
    """

    kind: Literal["run", "log"]
    name: str
    tokens_per_second: float | None = None
    tokens_source: str = ""
    tokens_per_second_all: float | None = None
    tokens_per_step: float | None = None
    clean: bool = False
    step_s: float | None = None
    printed_tokens_per_second: float | None = None
    printed_per_device: bool = False
    printed_mfu: float | None = None
    printed_params: int | None = None
    useful_tokens_per_second: float | None = None
    wall_s: float | None = None
    wall_tokens_per_second: float | None = None
    stepping: float | None = None
    median_s: float | None = None
    slow_s: float | None = None
    data_wait: float | None = None
    evaluation: float | None = None
    evaluations: int = 0
    gpu_samples: int = 0
    utilisation: float | None = None
    low: float | None = None
    throttled: float | None = None
    throttle: tuple[str, ...] = ()
    power: float | None = None
    needs: str = ""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is given; ``sources`` says where each input came from, by the name of its field ("--params").

    ``tokens_per_second`` is of all devices together, unless ``per_device``. ``peak_tflops`` is the dense peak of one
    device. ``gpu_units`` (SMs or CUs), ``gpu_memory_gb`` and ``gpu_arch`` ("gfx942") are as its driver reports them.
    ``price`` is per hour of everything that is paid for. ``target_len`` are tokens of the decoder's side.
    """

    counts: Counts | None = None
    tokens_per_step: float | None = None
    batch: int | None = None
    seq_len: int | None = None
    accumulate: int | None = None
    world_size: int | None = None
    dt_s: float | None = None
    tokens_per_second: float | None = None
    per_device: bool = False
    devices: int | None = None
    gpu: str | None = None
    gpu_units: int | None = None
    gpu_memory_gb: float | None = None
    gpu_arch: str | None = None
    dtype: str | None = None
    peak_tflops: float | None = None
    convention: str = "6n"
    recompute: Recompute = "none"
    target_len: int | None = None
    vocab_size: int | None = None
    price: float | None = None
    sources: dict[str, str] = {}
    remarks: tuple[str, ...] = ()
    evidence: Evidence | None = None

    def source(self, name: str) -> str:
        """Return where an input came from, "" for one that was not given."""
        return self.sources.get(name, "")


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the working: ``working`` gives ``result`` (text with its unit), and ``source`` says from where."""

    name: str
    label: str
    working: str = ""
    result: str = ""
    source: str = ""


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """The same speed by another convention. ``mfu`` is None for one that counts what the hardware does: see ``hfu``.

    ``impossible``: more than the device can do; its ratio is not given as MFU.
    """

    key: str
    convention: str
    kind: str
    flops_per_token: float
    tflops: float | None
    mfu: float | None
    hfu: float | None
    formula: str
    working: str
    source: str
    note: str = ""
    impossible: bool = False


class Impossible(msgspec.Struct, frozen=True, kw_only=True):
    """A result above 100%: ``ratio``, and the ``reasons`` that were checked, the likeliest first."""

    ratio: float
    reasons: tuple[str, ...]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What came out, in the order in which it is shown. ``tflops`` is of one device; ``mfu`` a fraction."""

    tokens_per_step: float | None = None
    step_s: float | None = None
    tokens_per_second: float | None = None
    tokens_source: str | None = None
    useful_tokens_per_second: float | None = None
    flops_per_token: float | None = None
    tflops: float | None = None
    mfu: float | None = None
    mfu_attention: float | None = None
    hfu: float | None = None
    hfu_convention: str | None = None
    convention: str | None = None
    convention_key: str | None = None
    devices: int = 1
    gpu: str | None = None
    dtype: str | None = None
    peak_flops: float | None = None
    peak_source: str | None = None
    peak_sparse_flops: float | None = None
    peak_confidence: str | None = None
    ln_vocab: float | None = None
    vocab_size: int | None = None
    cost_per_billion_tokens: float | None = None
    counts: Counts | None = None
    alternatives: tuple[Alternative, ...] = ()
    impossible: Impossible | None = None
    working: tuple[Line, ...] = ()
    reading: tuple[str, ...] = ()
    disagreements: tuple[str, ...] = ()
    unknown: dict[str, str] = {}

    def plain(self) -> dict[str, Any]:
        """Return it as JSON types, but for floats that are no numbers."""
        found = msgspec.to_builtins(self)
        counts = found.pop("counts")
        keys = ("total", "active", "matmul", "active_matmul", "embedding", "position", "kaplan", "trainable", "source")
        found["params"] = {key: None if counts is None else counts.get(key) for key in keys}
        found["model"] = counts
        return dict(found)

"""What the figures of a run mean: its evidence put before the calculator, which knows what is typical and what is odd.

Pure: everything was read before. Nothing is measured or judged here; the sentences are ``calculator.reading``'s own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from overnight.calculator import Answer, Evidence, Question
from overnight.calculator.answer import answer
from overnight.spec import RunSpec
from overnight.yardsticks.basis import Figures
from overnight.yardsticks.sizing import counts_of

TAKEN: Final = (
    "tokens_per_step", "batch", "seq_len", "accumulate", "world_size", "devices", "dtype", "convention", "recompute",
    "vocab_size", "price",
)  # fmt: skip
"""Settings of a run that are inputs of the calculator under the same names."""

LEAST_RECORDS: Final = 20
"""From fewer records nothing is said of what may be better."""


class Meaning(NamedTuple):
    """Sentences: what the result means, what disagrees beyond what a status has, why it cannot be (likeliest first)."""

    reading: tuple[str, ...] = ()
    disagreements: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


def meaning(
    spec: RunSpec,
    basis: Figures,
    origins: Mapping[str, str],
    evidence: Evidence,
    gpus: Sequence[Mapping[str, Any]] = (),
    *,
    records: int | None = None,
) -> Meaning:
    """Return what the calculator says; nothing where the run's speed or its size is not known.

    ``gpus``: as the driver named them, where it did; ``records``: progress lines that were read.
    """
    if evidence.tokens_per_second is None or basis.params is None:
        return Meaning()
    try:
        found = answer(_question(spec, basis, origins, evidence, gpus))
    except ValueError:  # a convention that this version does not know
        return Meaning()
    enough = records is None or records >= LEAST_RECORDS
    return Meaning(
        reading=found.reading if found.mfu is not None and enough else (),
        disagreements=tuple(_more(found)),
        reasons=() if found.impossible is None else found.impossible.reasons,
    )


def _more(found: Answer) -> list[str]:
    """Return what disagrees; of speeds and parameters the status tells already, with what the log said."""
    return [one for one in found.disagreements if not one.startswith(("tokens per second", "parameters"))]


def _question(
    spec: RunSpec, basis: Figures, origins: Mapping[str, str], evidence: Evidence, gpus: Sequence[Mapping[str, Any]]
) -> Question:
    given = {name: value for name in TAKEN if (value := getattr(spec, name)) is not None}
    sources = {name: origins.get(name, "").removeprefix("flag ") or "as asked" for name in given}
    names = {str(gpu["name"]) for gpu in gpus if gpu.get("name")}
    device: dict[str, Any] = {}
    if spec.gpu is not None:
        device, sources["gpu"] = {"gpu": spec.gpu}, "--gpu"
    elif len(names) == 1:
        memory = gpus[0].get("memory")
        device, sources["gpu"] = {"gpu": names.pop(), "gpu_units": gpus[0].get("units")}, "the run's sensors"
        device["gpu_memory_gb"] = memory / 1e9 if isinstance(memory, (int, float)) else None
    by_table = spec.gpu is not None and spec.dtype is not None and not _by_flag(origins)
    if spec.peak_tflops is not None and not by_table:
        device["peak_tflops"] = spec.peak_tflops
        sources["peak_tflops"] = (basis.peak_source or "--peak-tflops").removeprefix("flag ")
    return Question(counts=counts_of(spec), evidence=evidence, sources=sources, **given, **device)


def _by_flag(origins: Mapping[str, str]) -> bool:
    """Say whether the peak was given by hand, beside the name of a device."""
    return not origins.get("peak_tflops", "").startswith("gpu ")

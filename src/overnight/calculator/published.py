"""What MFU others have published, by size of model and by hardware: ranges of their runs, and who has told.

Literals and a look-up. They are no limits and no promises: each was made with its own sequence length, parallelism and
count of FLOPs, which is said beside it. Attention is in all of them unless a row says otherwise.
"""

from __future__ import annotations

import msgspec

MOSAIC = "MosaicML llm-foundry, scripts/train/benchmarking (512 to 8,192 tokens, FSDP, bf16)"
MEGATRON = "Korthikanti et al. 2022, arXiv 2205.05198 (A100, tensor and pipeline parallel)"
NANO = (
    "nanoGPT, worked out from its README: 600,000 steps of 491,520 tokens of GPT-2 124M in about 4 days on 8 A100, "
    "evaluations included"
)


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """A range of MFU (fractions) of models between two sizes (parameters) on one kind of device."""

    family: str
    least_params: float
    most_params: float
    low: float
    high: float
    what: str
    source: str


PUBLISHED: tuple[Published, ...] = (
    Published(family="A100", least_params=6e7, most_params=2e8, low=0.29, high=0.29, what="GPT-2 124M", source=NANO),
    Published(family="A100", least_params=6e7, most_params=2e8, low=0.426, high=0.489, what="125M", source=MOSAIC),
    Published(family="A100", least_params=2e8, most_params=5e8, low=0.505, high=0.538, what="350M", source=MOSAIC),
    Published(family="A100", least_params=5e8, most_params=1e9, low=0.451, high=0.569, what="760M", source=MOSAIC),
    Published(family="A100", least_params=1e9, most_params=2e9, low=0.567, high=0.607, what="1.3B", source=MOSAIC),
    Published(family="A100", least_params=2e9, most_params=4.5e9, low=0.593, high=0.637, what="2.7B", source=MOSAIC),
    Published(family="A100", least_params=4.5e9, most_params=9e9, low=0.545, high=0.642, what="6.7B", source=MOSAIC),
    Published(family="A100", least_params=9e9, most_params=1.8e10, low=0.561, high=0.596, what="13B", source=MOSAIC),
    Published(family="A100", least_params=1.8e10, most_params=5e10, low=0.394, high=0.564, what="30B", source=MOSAIC),
    Published(family="A100", least_params=1.8e10, most_params=5e10, low=0.415, high=0.415, what="22B", source=MEGATRON),
    Published(family="A100", least_params=5e10, most_params=1e11, low=0.486, high=0.533, what="70B", source=MOSAIC),
    Published(
        family="A100", least_params=1e11, most_params=2e12, low=0.514, high=0.563, what="175B to 1T", source=MEGATRON
    ),
    Published(family="H100", least_params=5e8, most_params=1e9, low=0.348, high=0.404, what="760M", source=MOSAIC),
    Published(family="H100", least_params=1e9, most_params=2e9, low=0.377, high=0.432, what="1.3B", source=MOSAIC),
    Published(family="H100", least_params=2e9, most_params=4.5e9, low=0.403, high=0.463, what="2.7B", source=MOSAIC),
    Published(family="H100", least_params=4.5e9, most_params=9e9, low=0.371, high=0.464, what="6.7B", source=MOSAIC),
    Published(family="H100", least_params=9e9, most_params=1.8e10, low=0.396, high=0.443, what="13B", source=MOSAIC),
    Published(family="H100", least_params=1.8e10, most_params=5e10, low=0.299, high=0.439, what="30B", source=MOSAIC),
    Published(family="H100", least_params=5e10, most_params=2e11, low=0.361, high=0.426, what="70B", source=MOSAIC),
    Published(
        family="H100", least_params=2e11, most_params=1e12, low=0.38, high=0.43, what="Llama 3 405B",
        source="Llama Team 2024, The Llama 3 Herd of Models, arXiv 2407.21783 (bf16, 8,192 to 16,384 GPUs)",
    ),
    Published(
        family="TPU v4", least_params=1e11, most_params=2e12, low=0.457, high=0.462, what="PaLM 540B",
        source="Chowdhery et al. 2022, PaLM, arXiv 2204.02311 (6,144 chips; 45.7% without attention)",
    ),
    Published(
        family="TPU v3", least_params=1e11, most_params=1e12, low=0.325, high=0.325, what="Gopher 280B",
        source="as PaLM, arXiv 2204.02311, gives it",
    ),
    Published(
        family="V100", least_params=5e10, most_params=1e12, low=0.213, high=0.213, what="GPT-3 175B",
        source="as PaLM, arXiv 2204.02311, gives it",
    ),
)  # fmt: skip

_SAME = {"H100": ("H100", "H800", "GH200", "H200"), "A100": ("A100", "A800")}
"""Devices whose published ranges may be read for one another: the same chip, with other links or memory."""


def family_of(name: str | None) -> str | None:
    """Return the kind of device that a name of the table belongs to; None where nothing is published for it."""
    words = "" if name is None else " ".join(name.upper().replace("-", " ").split())
    for family in dict.fromkeys(one.family for one in PUBLISHED):
        if any(f" {one.upper()} " in f" {words} " for one in _SAME.get(family, (family,))):
            return family
    return None


def published(params: float, family: str | None) -> list[Published]:
    """Return what is published for models of this size, on one kind of device or (None) on all."""
    return [
        one
        for one in PUBLISHED
        if one.least_params <= params < one.most_params and (family is None or one.family == family)
    ]

"""NVIDIA's GeForce and TITAN cards: rows only. Desktop parts; laptop, Max-Q and "D" parts are others and have no rows.

GeForce tensor cores sum in FP32 at half the rate of FP16 sums, and a training sums in FP32: that is the peak here. What
the maker advertises is the faster one, sparse, and mostly in 8 or 4 bits.
"""

from __future__ import annotations

from typing import Final

from overnight.accelerators import Accelerator, Peak
from overnight.accelerators.entry import Entry, Pair, peaks, words

_EDITION = words("founders edition fe")


def _geforce(fp32: float, half: Pair, *, fp8: bool) -> tuple[Peak, ...]:
    """Return all peaks of a card since Ampere: TF32 is half of the 16-bit rate, FP16 sums and FP8 twice, INT8 four."""
    fast, faster = _times(half, 2), _times(half, 4)
    found = peaks(fp32=fp32, tf32=(fp32, half[0]), bf16=half, fp16=half, fp16_fp16acc=fast)
    if fp8:
        found += peaks(fp8=fast, fp8_fp16acc=faster)
    return found + peaks(int8=faster)


def _times(pair: Pair, factor: int) -> Pair:
    """Return a pair of peaks times a factor, as datasheets round it."""
    return round(pair[0] * factor, 1), round(pair[1] * factor, 1)


def _desktop(
    model: str, units: int, boost_mhz: float, memory_gb: tuple[float, ...], bandwidth: float, *, fp32: float,
    dense: float, source: str, suffix: str = "", fp8: bool = False,
) -> Entry:  # fmt: skip
    """Return the entry of a desktop card of the common kind. The sparse rate is twice the dense one."""
    key = f"rtx-{model.lower().replace(' ', '-')}{suffix}"
    return Entry(
        row=Accelerator(
            key=key, vendor="NVIDIA", name=f"GeForce RTX {model}{suffix.replace('-', ' ').upper()}", form="desktop",
            peaks=_geforce(fp32, (dense, round(2 * dense, 1)), fp8=fp8), memory_gb=memory_gb, bandwidth=bandwidth,
            units=units, boost_mhz=boost_mhz, confidence="B", source=source,
        ),
        models=(f"rtx {model.lower()}", model.lower()), words=_EDITION,
    )  # fmt: skip


_GA102 = "NVIDIA GA102 whitepaper, rows with FP32 accumulation"
_GA104 = "NVIDIA's specification and SMs * 512 * boost clock"
_ADA = "NVIDIA's specification (AI TOPS are 8 times this: sparse FP8) and SMs * 512 * boost clock"
_RTX_BLACKWELL = "NVIDIA's specification (AI TOPS are 16 times this: sparse FP4) and SMs * 512 * boost clock"

COMMON: Final[tuple[Entry, ...]] = (
    _desktop("3060", 28, 1777, (8, 12), 360, fp32=12.7, dense=25.5, source=_GA104),
    _desktop("3060 Ti", 38, 1665, (8,), 448, fp32=16.2, dense=32.4, source=_GA104),
    _desktop("3070", 46, 1725, (8,), 448, fp32=20.3, dense=40.6, source=_GA104),
    _desktop("3070 Ti", 48, 1770, (8,), 608, fp32=21.7, dense=43.5, source=_GA104),
    _desktop("3080", 68, 1710, (10,), 760, fp32=29.8, dense=59.5, source=_GA102, suffix="-10gb"),
    _desktop("3080", 70, 1710, (12,), 912, fp32=30.6, dense=61.3, source=_GA104, suffix="-12gb"),
    _desktop("3080 Ti", 80, 1665, (12,), 912, fp32=34.1, dense=68.2, source=_GA104),
    _desktop("4060", 24, 2460, (8,), 272, fp32=15.1, dense=30.2, source=_ADA, fp8=True),
    _desktop("4060 Ti", 34, 2535, (8, 16), 288, fp32=22.1, dense=44.1, source=_ADA, fp8=True),
    _desktop("4070", 46, 2475, (12,), 504, fp32=29.1, dense=58.3, source=_ADA, fp8=True),
    _desktop("4070 SUPER", 56, 2475, (12,), 504, fp32=35.5, dense=71, source=_ADA, fp8=True),
    _desktop("4070 Ti", 60, 2610, (12,), 504, fp32=40.1, dense=80.2, source=_ADA, fp8=True),
    _desktop("4070 Ti SUPER", 66, 2610, (16,), 672, fp32=44.1, dense=88.2, source=_ADA, fp8=True),
    _desktop("4080", 76, 2505, (16,), 717, fp32=48.7, dense=97.5, source=_ADA, fp8=True),
    _desktop("4080 SUPER", 80, 2550, (16,), 736, fp32=52.2, dense=104.4, source=_ADA, fp8=True),
    _desktop("5060", 30, 2497, (8,), 448, fp32=19.2, dense=38.4, source=_RTX_BLACKWELL, fp8=True),
    _desktop("5060 Ti", 36, 2572, (8, 16), 448, fp32=23.7, dense=47.4, source=_RTX_BLACKWELL, fp8=True),
    _desktop("5070", 48, 2512, (12,), 672, fp32=30.9, dense=61.7, source=_RTX_BLACKWELL, fp8=True),
    _desktop("5070 Ti", 70, 2452, (16,), 896, fp32=43.9, dense=87.9, source=_RTX_BLACKWELL, fp8=True),
    _desktop("5080", 84, 2617, (16,), 960, fp32=56.3, dense=112.6, source=_RTX_BLACKWELL, fp8=True),
)

WELL_KNOWN: Final[tuple[Entry, ...]] = (
    Entry(
        row=Accelerator(
            key="titan-rtx", vendor="NVIDIA", name="TITAN RTX", form="desktop",
            peaks=peaks(fp32=16.3, fp16=130.5, int8=261), memory_gb=(24,), bandwidth=672, units=72, boost_mhz=1770,
            confidence="B", source="NVIDIA's specification and 72 SMs * 1024 * 1.77 GHz",
        ),
        models=("titan rtx",),
    ),
    Entry(
        row=Accelerator(
            key="rtx-2080-ti", vendor="NVIDIA", name="GeForce RTX 2080 Ti", form="desktop, Founders Edition",
            peaks=peaks(fp32=14.2, fp16=56.9, fp16_fp16acc=113.8, int8=227.7), memory_gb=(11,), bandwidth=616,
            units=68, boost_mhz=1635, confidence="B",
            source="NVIDIA Turing whitepaper, rows with FP32 accumulation",
            note="cards of other makers with the reference clock of 1545 MHz: 53.8",
        ),
        models=("rtx 2080 ti", "2080 ti"), words=_EDITION,
    ),
    Entry(
        row=Accelerator(
            key="rtx-3090", vendor="NVIDIA", name="GeForce RTX 3090", form="desktop",
            peaks=peaks(
                fp32=35.6, tf32=(35.6, 71), bf16=(71, 142), fp16=(71, 142), fp16_fp16acc=(142, 284), int8=(284, 568)
            ),
            memory_gb=(24,), bandwidth=936, units=82, boost_mhz=1695, confidence="A",
            source=f"{_GA102}; nanochat has 71",
        ),
        models=("rtx 3090", "3090"), words=_EDITION,
    ),
    Entry(
        row=Accelerator(
            key="rtx-3090-ti", vendor="NVIDIA", name="GeForce RTX 3090 Ti", form="desktop",
            peaks=_geforce(40, (80, 160), fp8=False), memory_gb=(24,), bandwidth=1008, units=84, boost_mhz=1860,
            confidence="B", source="llm.c's table, and 84 SMs * 512 * 1.86 GHz",
        ),
        models=("rtx 3090 ti", "3090 ti"), words=_EDITION,
    ),
    Entry(
        row=Accelerator(
            key="rtx-4090", vendor="NVIDIA", name="GeForce RTX 4090", form="desktop",
            peaks=peaks(
                fp32=82.6, tf32=(82.6, 165.2), bf16=(165.2, 330.3), fp16=(165.2, 330.3), fp16_fp16acc=(330.3, 660.6),
                fp8=(330.3, 660.6), fp8_fp16acc=(660.6, 1321.2), int8=(660.6, 1321.2),
            ),
            memory_gb=(24,), bandwidth=1008, units=128, boost_mhz=2520, confidence="A",
            source="NVIDIA Ada whitepaper, rows with FP32 accumulation; llm.c and nanochat have 165.2",
        ),
        models=("rtx 4090", "4090"), words=_EDITION,
    ),
    Entry(
        row=Accelerator(
            key="rtx-5090", vendor="NVIDIA", name="GeForce RTX 5090", form="desktop",
            peaks=_geforce(104.8, (209.5, 419), fp8=True), memory_gb=(32,), bandwidth=1792, units=170, boost_mhz=2407,
            confidence="A", source="NVIDIA RTX Blackwell whitepaper, rows with FP32 accumulation; nanochat has 209.5",
        ),
        models=("rtx 5090", "5090"), words=_EDITION,
    ),
)  # fmt: skip

ENTRIES: Final[tuple[Entry, ...]] = WELL_KNOWN + COMMON

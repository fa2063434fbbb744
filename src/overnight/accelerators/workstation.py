"""NVIDIA's cards for workstations (RTX A, RTX Ada, RTX PRO, Quadro RTX): rows only.

Unlike GeForce they sum in FP32 at the full rate. Datasheets print the sparse rate of the narrowest type: 309.7 of an
RTX A6000 is sparse FP16, 1457 of an RTX 6000 Ada sparse FP8.
"""

from __future__ import annotations

from typing import Final

from overnight.accelerators import Accelerator
from overnight.accelerators.entry import Entry, doubling, peaks, words


def _card(
    name: str, units: int, boost_mhz: float, memory_gb: tuple[float, ...], bandwidth: float, *, fp32: float,
    dense: float, printed: str, fp8: bool,
) -> Entry:  # fmt: skip
    """Return the entry of a card whose datasheet, SMs and clock agree; the other peaks follow by twos."""
    model = name.lower()
    half, eight = (dense, round(2 * dense, 1)), (round(2 * dense, 1), round(4 * dense, 1))
    return Entry(
        row=Accelerator(
            key=model.replace(" ", "-"), vendor="NVIDIA", name=name, form="workstation",
            peaks=doubling(fp32, (round(dense / 2, 1), dense), half, eight, fp8=fp8), memory_gb=memory_gb,
            bandwidth=bandwidth, units=units, boost_mhz=boost_mhz, confidence="B",
            source=f"NVIDIA {name} datasheet ({printed}) and SMs * 1024 * boost clock",
        ),
        models=(model, model.removeprefix("rtx ")), words=words("generation"),
    )  # fmt: skip


_AMPERE = "its tensor figure is sparse FP16"
_ADA = "its tensor figure is sparse FP8"

COMMON: Final[tuple[Entry, ...]] = (
    _card("RTX A2000", 26, 1200, (6, 12), 288, fp32=8, dense=31.9, printed=_AMPERE, fp8=False),
    _card("RTX A4000", 48, 1560, (16,), 448, fp32=19.2, dense=76.7, printed=_AMPERE, fp8=False),
    _card("RTX A4500", 56, 1650, (20,), 640, fp32=23.7, dense=94.6, printed=_AMPERE, fp8=False),
    _card("RTX A5500", 80, 1665, (24,), 768, fp32=34.1, dense=136.4, printed=_AMPERE, fp8=False),
    _card("RTX 2000 Ada", 22, 2130, (16,), 224, fp32=12, dense=48, printed=_ADA, fp8=True),
    _card("RTX 4000 Ada", 48, 2175, (20,), 360, fp32=26.7, dense=106.9, printed=_ADA, fp8=True),
    _card("RTX 4000 SFF Ada", 48, 1560, (20,), 280, fp32=19.2, dense=76.7, printed=_ADA, fp8=True),
    _card("RTX 4500 Ada", 60, 2580, (24,), 432, fp32=39.6, dense=158.5, printed=_ADA, fp8=True),
    _card("RTX 5000 Ada", 100, 2550, (32,), 576, fp32=65.3, dense=261.1, printed=_ADA, fp8=True),
    _card("RTX 5880 Ada", 110, 2460, (48,), 960, fp32=69.3, dense=277.1, printed=_ADA, fp8=True),
)

WELL_KNOWN: Final[tuple[Entry, ...]] = (
    Entry(
        row=Accelerator(
            key="quadro-rtx-6000", vendor="NVIDIA", name="Quadro RTX 6000", form="workstation, Turing",
            peaks=peaks(fp32=16.3, fp16=130.5, int8=261), memory_gb=(24,), bandwidth=672, units=72, boost_mhz=1770,
            confidence="B", source="NVIDIA Quadro RTX 6000 datasheet and 72 SMs * 1024 * 1.77 GHz",
        ),
        models=("quadro rtx 6000",),
    ),
    Entry(
        row=Accelerator(
            key="quadro-rtx-8000", vendor="NVIDIA", name="Quadro RTX 8000", form="workstation, Turing",
            peaks=peaks(fp32=16.3, fp16=130.5, int8=261), memory_gb=(48,), bandwidth=672, units=72, boost_mhz=1770,
            confidence="B", source="NVIDIA Quadro RTX 8000 datasheet and 72 SMs * 1024 * 1.77 GHz",
        ),
        models=("quadro rtx 8000",),
    ),
    Entry(
        row=Accelerator(
            key="rtx-a5000", vendor="NVIDIA", name="RTX A5000", form="workstation",
            peaks=doubling(27.8, (55.6, 111.1), (111.1, 222.2), (222.2, 444.4), fp8=False), memory_gb=(24,),
            bandwidth=768, units=64, boost_mhz=1695, confidence="B",
            source="NVIDIA RTX A5000 datasheet (its 222.2 is sparse) and 64 SMs * 1024 * 1.695 GHz",
        ),
        models=("rtx a5000", "a5000"),
    ),
    Entry(
        row=Accelerator(
            key="rtx-a6000", vendor="NVIDIA", name="RTX A6000", form="workstation",
            peaks=doubling(38.7, (77.4, 154.8), (154.8, 309.7), (309.7, 619.4), fp8=False), memory_gb=(48,),
            bandwidth=768, units=84, boost_mhz=1800, confidence="A",
            source="NVIDIA RTX A6000 datasheet (its 309.7 is sparse); torchtitan has 154.85",
        ),
        models=("rtx a6000", "a6000"),
    ),
    Entry(
        row=Accelerator(
            key="rtx-6000-ada", vendor="NVIDIA", name="RTX 6000 Ada", form="workstation",
            peaks=doubling(91.1, (182.1, 364.2), (364.2, 728.5), (728.5, 1457)), memory_gb=(48,), bandwidth=960,
            units=142, boost_mhz=2505, confidence="B",
            source="NVIDIA RTX 6000 Ada datasheet (its 1457 is sparse FP8) and 142 SMs * 1024 * 2.505 GHz",
        ),
        models=("rtx 6000 ada", "6000 ada"), words=words("generation"),
    ),
    Entry(
        row=Accelerator(
            key="rtx-pro-6000-workstation", vendor="NVIDIA", name="RTX PRO 6000 Blackwell Workstation Edition",
            form="workstation, 600 W",
            peaks=peaks(fp32=125, bf16=(503.8, 1007.6), fp16=(503.8, 1007.6), fp8=(1007.6, 2015.2)), memory_gb=(96,),
            bandwidth=1792, units=188, boost_mhz=2617, confidence="C",
            source="NVIDIA RTX PRO Blackwell whitepaper from memory, and 188 SMs * 1024 * 2.617 GHz",
            note="the Max-Q and Server editions run at other clocks",
        ),
        models=("rtx pro 6000 blackwell", "rtx pro 6000"), words=words("workstation edition"),
        needs=words("workstation"),
    ),
)  # fmt: skip

ENTRIES: Final[tuple[Entry, ...]] = WELL_KNOWN + COMMON

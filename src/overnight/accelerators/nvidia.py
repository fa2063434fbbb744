"""NVIDIA's accelerators for data centres. Rows only: figures, sources and names, no matching.

The 16-bit peaks are those of tensor cores with FP32 accumulation, at boost clock. Datasheets print most of them "with
sparsity", twice the dense rate: that one stands second and is never divided by.
"""

from __future__ import annotations

from typing import Final

from overnight.accelerators import Accelerator
from overnight.accelerators.entry import Entry, doubling, peaks, words

_V100 = "NVIDIA V100 datasheet; Lightning and Composer have the same"
_A100 = "NVIDIA A100 datasheet; five public tables agree on 312"
_A100_PEAKS = doubling(19.5, (156, 312), (312, 624), (624, 1248), fp8=False)
_H100 = "NVIDIA H100 datasheet and Hopper whitepaper; Lightning, Composer and torchtitan have the same"
_HOPPER_SXM = doubling(66.9, (494.7, 989.4), (989.4, 1978.9), (1978.9, 3957.8))
_HOPPER_NVL = doubling(60, (417.5, 835), (835.5, 1671), (1670.5, 3341))
_BLACKWELL = "NVIDIA Blackwell datasheet and HGX page (36 PFLOP/s sparse FP16 per 8)"

VOLTA_TO_AMPERE: Final[tuple[Entry, ...]] = (
    Entry(
        row=Accelerator(
            key="p100-sxm2", vendor="NVIDIA", name="P100 SXM2", form="SXM2", peaks=peaks(fp32=10.6, fp16=21.2),
            memory_gb=(16,), bandwidth=732, units=56, boost_mhz=1480, confidence="B", source="NVIDIA P100 datasheet",
            note="no tensor cores",
        ),
        models=("p100",), words=words("sxm2 sxm"),
    ),
    Entry(
        row=Accelerator(
            key="p100-pcie", vendor="NVIDIA", name="P100 PCIe", form="PCIe", peaks=peaks(fp32=9.3, fp16=18.7),
            memory_gb=(12, 16), bandwidth=732, units=56, boost_mhz=1303, confidence="B",
            source="NVIDIA P100 datasheet", note="no tensor cores",
        ),
        models=("p100",), words=words("pcie"),
    ),
    Entry(
        row=Accelerator(
            key="v100-sxm2", vendor="NVIDIA", name="V100 SXM2", form="SXM2", peaks=peaks(fp32=15.7, fp16=125),
            memory_gb=(16, 32), bandwidth=900, units=80, boost_mhz=1530, confidence="A", source=_V100,
        ),
        models=("v100",), words=words("sxm2 sxm"),
    ),
    Entry(
        row=Accelerator(
            key="v100-pcie", vendor="NVIDIA", name="V100 PCIe", form="PCIe", peaks=peaks(fp32=14, fp16=112),
            memory_gb=(16, 32), bandwidth=900, units=80, boost_mhz=1380, confidence="A", source=_V100,
        ),
        models=("v100",), words=words("pcie"),
    ),
    Entry(
        row=Accelerator(
            key="v100s", vendor="NVIDIA", name="V100S PCIe", form="PCIe", peaks=peaks(fp32=16.4, fp16=130),
            memory_gb=(32,), bandwidth=1134, units=80, boost_mhz=1597, confidence="A", source=_V100,
        ),
        models=("v100s",), words=words("pcie"),
    ),
    Entry(
        row=Accelerator(
            key="t4", vendor="NVIDIA", name="T4", form="PCIe", peaks=peaks(fp32=8.1, fp16=65, int8=130),
            memory_gb=(16,), bandwidth=320, units=40, boost_mhz=1590, confidence="A",
            source="NVIDIA T4 datasheet; Lightning and Composer have the same",
            note="its 70 W rarely sustain the boost clock",
        ),
        models=("t4",), words=words("pcie"),
    ),
    Entry(
        row=Accelerator(
            key="a2", vendor="NVIDIA", name="A2", form="PCIe",
            peaks=doubling(4.5, (9, 18), (18, 36), (36, 72), fp8=False), memory_gb=(16,), bandwidth=200, units=10,
            boost_mhz=1770, confidence="B", source="NVIDIA A2 datasheet",
        ),
        models=("a2",), words=words("pcie"),
    ),
    Entry(
        row=Accelerator(
            key="a10", vendor="NVIDIA", name="A10", form="PCIe",
            peaks=doubling(31.2, (62.5, 125), (125, 250), (250, 500), fp8=False), memory_gb=(24,), bandwidth=600,
            units=72, boost_mhz=1695, confidence="A", source="NVIDIA A10 datasheet; Composer has the same",
        ),
        models=("a10",), words=words("pcie"),
    ),
    Entry(
        row=Accelerator(
            key="a10g", vendor="NVIDIA", name="A10G", form="PCIe, AWS G5",
            peaks=doubling(35, (35, 70), (70, 140), (140, 280), fp8=False), memory_gb=(24,), bandwidth=600, units=80,
            boost_mhz=1710, confidence="C",
            source="NVIDIA's A10G datasheet for AWS from memory, and 80 SMs * 512 * 1.71 GHz = 70",
            note="public tables give it the A10's 125",
        ),
        models=("a10g",), words=words("pcie"),
    ),
    Entry(
        row=Accelerator(
            key="a30", vendor="NVIDIA", name="A30", form="PCIe",
            peaks=doubling(10.3, (82, 165), (165, 330), (330, 661), fp8=False), memory_gb=(24,), bandwidth=933,
            units=56, boost_mhz=1440, confidence="A", source="NVIDIA A30 datasheet; nanochat has the same",
        ),
        models=("a30",), words=words("pcie hbm2"),
    ),
    Entry(
        row=Accelerator(
            key="a40", vendor="NVIDIA", name="A40", form="PCIe",
            peaks=doubling(37.4, (74.8, 149.6), (149.7, 299.4), (299.3, 598.6), fp8=False), memory_gb=(48,),
            bandwidth=696, units=84, boost_mhz=1740, confidence="A",
            source="NVIDIA A40 datasheet; Lightning and nanochat have the same",
        ),
        models=("a40",), words=words("pcie"),
    ),
    Entry(
        row=Accelerator(
            key="a100-sxm4-40gb", vendor="NVIDIA", name="A100 SXM4 40GB", form="SXM4", peaks=_A100_PEAKS,
            memory_gb=(40,), bandwidth=1555, units=108, boost_mhz=1410, confidence="A", source=_A100,
        ),
        models=("a100",), words=words("sxm4 sxm hbm2"),
    ),
    Entry(
        row=Accelerator(
            key="a100-sxm4-80gb", vendor="NVIDIA", name="A100 SXM4 80GB", form="SXM4", peaks=_A100_PEAKS,
            memory_gb=(80,), bandwidth=2039, units=108, boost_mhz=1410, confidence="A", source=_A100,
        ),
        models=("a100",), words=words("sxm4 sxm hbm2e"),
    ),
    Entry(
        row=Accelerator(
            key="a100-pcie-40gb", vendor="NVIDIA", name="A100 PCIe 40GB", form="PCIe", peaks=_A100_PEAKS,
            memory_gb=(40,), bandwidth=1555, units=108, boost_mhz=1410, confidence="A", source=_A100,
        ),
        models=("a100",), words=words("pcie hbm2"),
    ),
    Entry(
        row=Accelerator(
            key="a100-pcie-80gb", vendor="NVIDIA", name="A100 PCIe 80GB", form="PCIe", peaks=_A100_PEAKS,
            memory_gb=(80,), bandwidth=1935, units=108, boost_mhz=1410, confidence="A", source=_A100,
        ),
        models=("a100",), words=words("pcie hbm2e"),
    ),
    Entry(
        row=Accelerator(
            key="a100-sxm-64gb", vendor="NVIDIA", name="A100 SXM 64GB", form="SXM, made for CINECA's Leonardo",
            peaks=peaks(bf16=354.3, fp16=354.3), memory_gb=(64,), bandwidth=1638, units=124, boost_mhz=1395,
            confidence="C", source="CINECA's description of Leonardo from memory, 124 SMs * 2048 * 1.395 GHz",
            note="its clock is not confirmed",
        ),
        models=("a100",), words=words("sxm4 sxm"), needs=words("64gb"), by_units=True,
    ),
    *(
        Entry(
            row=Accelerator(
                key=f"a800-{form.lower()}", vendor="NVIDIA", name=f"A800 {form}", form=form, peaks=_A100_PEAKS,
                memory_gb=memory, bandwidth=bandwidth, units=108, boost_mhz=1410, confidence="B",
                source="as the A100, of which the A800 has the compute with less NVLink",
            ),
            models=("a800",), words=words(allowed),
        )
        for form, memory, bandwidth, allowed in (
            ("SXM4", (40.0, 80.0), None, "sxm4 sxm"), ("PCIe", (40.0, 80.0), 1935.0, "pcie active"),
        )
    ),
)  # fmt: skip

ADA: Final[tuple[Entry, ...]] = (
    Entry(
        row=Accelerator(
            key="l4", vendor="NVIDIA", name="L4", form="PCIe",
            peaks=doubling(30.3, (60, 120), (121, 242), (242.5, 485)), memory_gb=(24,), bandwidth=300, units=58,
            boost_mhz=2040, confidence="A",
            source="NVIDIA L4 datasheet (it prints the sparse ones); Lightning and nanochat have 121",
            note="its 72 W sustain a clock well below boost",
        ),
        models=("l4",), words=words("pcie"),
    ),
    Entry(
        row=Accelerator(
            key="l20", vendor="NVIDIA", name="L20", form="PCIe", peaks=peaks(bf16=119.5, fp16=119.5),
            memory_gb=(48,), bandwidth=864, units=92, confidence="C",
            source="resellers' data of the L20 (NVIDIA publishes none outside China)",
        ),
        models=("l20",), words=words("pcie"),
    ),
    Entry(
        row=Accelerator(
            key="l40", vendor="NVIDIA", name="L40", form="PCIe",
            peaks=doubling(90.5, (90.5, 181), (181.05, 362.1), (362, 724)), memory_gb=(48,), bandwidth=864, units=142,
            boost_mhz=2490, confidence="A", source="NVIDIA L40 datasheet; Lightning has the same",
            note="half the rate of an L40S where sums are FP32",
        ),
        models=("l40",), words=words("pcie"),
    ),
    Entry(
        row=Accelerator(
            key="l40s", vendor="NVIDIA", name="L40S", form="PCIe",
            peaks=doubling(91.6, (183, 366), (362.05, 733), (733, 1466)), memory_gb=(48,), bandwidth=864, units=142,
            boost_mhz=2520, confidence="A", source="NVIDIA L40S datasheet; nanochat and torchtitan have 362",
        ),
        models=("l40s",), words=words("pcie"),
    ),
)  # fmt: skip

HOPPER: Final[tuple[Entry, ...]] = (
    Entry(
        row=Accelerator(
            key="h100-sxm", vendor="NVIDIA", name="H100 SXM5", form="SXM5", peaks=_HOPPER_SXM, memory_gb=(80,),
            bandwidth=3350, units=132, boost_mhz=1830, confidence="A", source=_H100,
        ),
        models=("h100",), words=words("sxm5 sxm hbm3"),
    ),
    Entry(
        row=Accelerator(
            key="h100-pcie", vendor="NVIDIA", name="H100 PCIe", form="PCIe",
            peaks=doubling(51.2, (378, 756), (756, 1513), (1513, 3026)), memory_gb=(80,), bandwidth=2039, units=114,
            boost_mhz=1620, confidence="A", source=_H100,
        ),
        models=("h100",), words=words("pcie hbm2e"),
    ),
    Entry(
        row=Accelerator(
            key="h100-nvl", vendor="NVIDIA", name="H100 NVL", form="NVL, one of a pair", peaks=_HOPPER_NVL,
            memory_gb=(94,), bandwidth=3938, units=132, confidence="A",
            source="NVIDIA H100 datasheet of 2024 (1,671 is sparse); Lightning and torchtitan have 835",
        ),
        models=("h100",), words=words("nvl"),
    ),
    Entry(
        row=Accelerator(
            key="h200-sxm", vendor="NVIDIA", name="H200 SXM", form="SXM", peaks=_HOPPER_SXM, memory_gb=(141,),
            bandwidth=4800, units=132, boost_mhz=1830, confidence="A",
            source="NVIDIA H200 datasheet; Composer and torchtitan have the same",
        ),
        models=("h200",), words=words("sxm5 sxm hbm3e"), bare=True,
    ),
    Entry(
        row=Accelerator(
            key="h200-nvl", vendor="NVIDIA", name="H200 NVL", form="NVL", peaks=_HOPPER_NVL, memory_gb=(141,),
            bandwidth=4800, units=132, confidence="A",
            source="NVIDIA H200 datasheet (1,671 is sparse); nanochat has 836",
        ),
        models=("h200",), words=words("nvl"),
    ),
    Entry(
        row=Accelerator(
            key="h800-sxm", vendor="NVIDIA", name="H800 SXM5", form="SXM5",
            peaks=peaks(bf16=(989.4, 1978.9), fp16=(989.4, 1978.9), fp8=(1978.9, 3957.8), int8=(1978.9, 3957.8)),
            memory_gb=(80,), bandwidth=3350, units=132, boost_mhz=1830, confidence="B",
            source="tensor cores as in the H100 SXM; no NVIDIA datasheet outside China, two public tables have 989",
        ),
        models=("h800",), words=words("sxm5 sxm hbm3"), bare=True,
    ),
    Entry(
        row=Accelerator(
            key="h800-pcie", vendor="NVIDIA", name="H800 PCIe", form="PCIe",
            peaks=peaks(bf16=(756, 1513), fp16=(756, 1513), fp8=(1513, 3026)), memory_gb=(80,), bandwidth=2039,
            units=114, boost_mhz=1620, confidence="C", source="as the H100 PCIe; no NVIDIA datasheet outside China",
        ),
        models=("h800",), words=words("pcie hbm2e"),
    ),
    Entry(
        row=Accelerator(
            key="h20", vendor="NVIDIA", name="H20", form="SXM5",
            peaks=peaks(fp32=44, tf32=74, bf16=148, fp16=148, fp8=296, int8=296), memory_gb=(96, 141), bandwidth=4000,
            units=78, confidence="B", source="no NVIDIA datasheet outside China; torchtitan has 148",
        ),
        models=("h20",), words=words("3e sxm5 sxm hbm3 hbm3e"),
    ),
    Entry(
        row=Accelerator(
            key="gh200", vendor="NVIDIA", name="GH200", form="superchip", peaks=_HOPPER_SXM, memory_gb=(96, 144),
            bandwidth=4000, units=132, boost_mhz=1830, confidence="A",
            source="NVIDIA GH200 datasheet; torchtitan has the same",
        ),
        models=("gh200",), words=words("480gb 120gb hbm3 hbm3e grace hopper superchip"),
    ),
)  # fmt: skip

BLACKWELL: Final[tuple[Entry, ...]] = (
    Entry(
        row=Accelerator(
            key="b100", vendor="NVIDIA", name="B100", form="SXM6, 700 W",
            peaks=peaks(tf32=(875, 1750), bf16=(1750, 3500), fp16=(1750, 3500), fp8=(3500, 7000), int8=(3500, 7000)),
            memory_gb=(192,), bandwidth=8000, confidence="B",
            source="NVIDIA Blackwell datasheet and HGX page (28 PFLOP/s sparse FP16 per 8); nanochat rounds to 1800",
        ),
        models=("b100",), words=words("sxm6 sxm"),
    ),
    Entry(
        row=Accelerator(
            key="b200", vendor="NVIDIA", name="B200", form="SXM6, 1000 W",
            peaks=doubling(75, (1125, 2250), (2250, 4500), (4500, 9000)), memory_gb=(180, 192), bandwidth=8000,
            units=148, confidence="A", source=f"{_BLACKWELL}; torchtitan and nanochat have 2250",
        ),
        models=("b200",), words=words("sxm6 sxm hgx dgx"),
    ),
    Entry(
        row=Accelerator(
            key="gb200", vendor="NVIDIA", name="GB200 (one GPU of it)", form="superchip, 1200 W per GPU",
            peaks=doubling(80, (1250, 2500), (2500, 5000), (5000, 10000)), memory_gb=(186, 192), bandwidth=8000,
            confidence="A",
            source="NVIDIA Blackwell brief (NVL72: 360 PFLOP/s sparse FP16 per 72); torchtitan and nanochat have 2500",
        ),
        models=("gb200",), words=words("nvl72 nvl4 superchip"),
    ),
    Entry(
        row=Accelerator(
            key="b300", vendor="NVIDIA", name="B300", form="SXM6, HGX",
            peaks=peaks(fp32=75, tf32=(1125, 2250), bf16=(2250, 4500), fp16=(2250, 4500), fp8=(4500, 9000)),
            memory_gb=(270, 288), bandwidth=8000, confidence="A",
            source="NVIDIA HGX B300 page (36 PFLOP/s sparse FP16 per 8); torchtitan and OLMo-core have 2250",
        ),
        models=("b300",), words=words("sxm6 sxm ac hgx dgx"),
    ),
    Entry(
        row=Accelerator(
            key="gb300", vendor="NVIDIA", name="GB300 (one GPU of it)", form="superchip",
            peaks=peaks(fp32=80, tf32=(1250, 2500), bf16=(2500, 5000), fp16=(2500, 5000), fp8=(5000, 10000)),
            memory_gb=(288,), bandwidth=8000, confidence="A",
            source="NVIDIA GB300 NVL72 page (360 PFLOP/s sparse FP16 per 72); torchtitan has 2500",
        ),
        models=("gb300",), words=words("nvl72 superchip"),
    ),
)  # fmt: skip

ENTRIES: Final[tuple[Entry, ...]] = VOLTA_TO_AMPERE + ADA + HOPPER + BLACKWELL

"""AMD's accelerators: rows only. An MI250 or MI250X is two devices, and so two of these.

``parts``: the unit counts that programs see where a chip is run in partitions (DPX, QPX, TPX, CPX).
"""

from __future__ import annotations

from typing import Final

from overnight.accelerators import Accelerator
from overnight.accelerators.entry import Entry, doubling, peaks, words

_WORDS = words("oam vf accelerator")
_CDNA3 = doubling(163.4, (653.7, 1307.4), (1307.4, 2614.9), (2614.9, 5229.8))
_DIE = "one of the two dies of a card: each is a device of its own"

ENTRIES: Final[tuple[Entry, ...]] = (
    Entry(
        row=Accelerator(
            key="mi100", vendor="AMD", name="MI100", form="PCIe",
            peaks=peaks(fp32=46.1, bf16=92.3, fp16=184.6, int8=184.6), memory_gb=(32,), bandwidth=1229, units=120,
            boost_mhz=1502, confidence="B", source="AMD Instinct MI100 product page and 120 CUs * 1024 * 1.502 GHz",
        ),
        models=("mi100",), words=_WORDS, arch="gfx908",
    ),
    Entry(
        row=Accelerator(
            key="mi210", vendor="AMD", name="MI210", form="PCIe",
            peaks=peaks(fp32=45.3, bf16=181, fp16=181, int8=181), memory_gb=(64,), bandwidth=1638, units=104,
            boost_mhz=1700, confidence="B", source="AMD MI210 product page and CDNA2 whitepaper, from memory",
        ),
        models=("mi210",), words=_WORDS | {"pcie"}, arch="gfx90a",
    ),
    Entry(
        row=Accelerator(
            key="mi250", vendor="AMD", name="MI250 (one die)", form="OAM, one die of two",
            peaks=peaks(fp32=45.3, bf16=181, fp16=181, int8=181), memory_gb=(64, 128), bandwidth=1638, units=104,
            boost_mhz=1700, confidence="A", source="AMD MI250 product page; nanochat has 362.1 for both dies",
            note=_DIE,
        ),
        models=("mi250", "mi250x mi250"), words=_WORDS, arch="gfx90a",
    ),
    Entry(
        row=Accelerator(
            key="mi250x", vendor="AMD", name="MI250X (one die)", form="OAM, one die of two",
            peaks=peaks(fp32=47.9, bf16=191.5, fp16=191.5, int8=191.5), memory_gb=(64, 128), bandwidth=1638, units=110,
            boost_mhz=1700, confidence="A",
            source="AMD MI250X product page (383.0 for both dies); torchtitan has 191.5", note=_DIE,
        ),
        models=("mi250x", "mi250x mi250"), words=_WORDS, arch="gfx90a",
    ),
    Entry(
        row=Accelerator(
            key="mi300a", vendor="AMD", name="MI300A", form="APU",
            peaks=doubling(122.6, (490.3, 980.6), (980.6, 1961.2), (1961.2, 3922.3)), memory_gb=(128,), bandwidth=5300,
            units=228, boost_mhz=2100, confidence="A", source="AMD MI300A product page; nanochat has 980.6",
        ),
        models=("mi300a",), words=_WORDS | {"apu"}, arch="gfx942", parts=(38, 76),
    ),
    Entry(
        row=Accelerator(
            key="mi300x", vendor="AMD", name="MI300X", form="OAM", peaks=_CDNA3, memory_gb=(192,), bandwidth=5300,
            units=304, boost_mhz=2100, confidence="A",
            source="AMD MI300X data sheet and CDNA3 whitepaper; nanochat has 1307.4",
        ),
        models=("mi300x",), words=_WORDS, arch="gfx942", parts=(38, 76, 152),
    ),
    Entry(
        row=Accelerator(
            key="mi325x", vendor="AMD", name="MI325X", form="OAM", peaks=_CDNA3, memory_gb=(256,), bandwidth=6000,
            units=304, boost_mhz=2100, confidence="A", source="AMD MI325X data sheet; nanochat has the same",
        ),
        models=("mi325x",), words=_WORDS, arch="gfx942", parts=(38, 76, 152),
    ),
    Entry(
        row=Accelerator(
            key="mi350x", vendor="AMD", name="MI350X", form="OAM, 1000 W",
            peaks=peaks(
                fp32=144.2, bf16=(2306.9, 4613.7), fp16=(2306.9, 4613.7), fp8=4613.7, int8=(4613.7, 9227.5)
            ),
            memory_gb=(288,), bandwidth=8000, units=256, boost_mhz=2200, confidence="A",
            source="AMD MI350X product page and 256 CUs * 4096 * 2.2 GHz; Primus has 2300",
        ),
        models=("mi350x",), words=_WORDS, arch="gfx950", parts=(32, 64, 128),
    ),
    Entry(
        row=Accelerator(
            key="mi355x", vendor="AMD", name="MI355X", form="OAM, 1400 W",
            peaks=peaks(
                fp32=157.3, bf16=(2516.6, 5033.2), fp16=(2516.6, 5033.2), fp8=5033.2, int8=(5033.2, 10066.3)
            ),
            memory_gb=(288,), bandwidth=8000, units=256, boost_mhz=2400, confidence="A",
            source="AMD MI355X product page and 256 CUs * 4096 * 2.4 GHz; torchtitan and nanochat round to 2500",
        ),
        models=("mi355x",), words=_WORDS, arch="gfx950", parts=(32, 64, 128),
    ),
    Entry(
        row=Accelerator(
            key="rx-7900-xt", vendor="AMD", name="Radeon RX 7900 XT", form="desktop",
            peaks=peaks(fp32=51.6, bf16=103.2, fp16=103.2), memory_gb=(20,), bandwidth=800, boost_mhz=2400,
            confidence="B", source="AMD's specification (103) and 84 CUs * 512 * 2.4 GHz",
        ),
        models=("radeon rx 7900 xt", "rx 7900 xt", "7900 xt"),
    ),
    Entry(
        row=Accelerator(
            key="rx-7900-xtx", vendor="AMD", name="Radeon RX 7900 XTX", form="desktop",
            peaks=peaks(fp32=61.4, bf16=122.8, fp16=122.8), memory_gb=(24,), bandwidth=960, boost_mhz=2500,
            confidence="B", source="AMD's specification and 96 CUs * 512 * 2.5 GHz",
        ),
        models=("radeon rx 7900 xtx", "rx 7900 xtx", "7900 xtx"),
    ),
)  # fmt: skip

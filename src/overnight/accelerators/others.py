"""Google's TPUs, AWS's Trainium, Intel and Apple: rows only.

Programs see some chips as several devices: the row that a reported name means is the device, and the whole chip has a
row of its own, whose name says so ("tpu-v3-chip").
"""

from __future__ import annotations

from typing import Final, Literal

from overnight.accelerators import Accelerator, Peak
from overnight.accelerators.entry import Entry, peaks, share_of, words


def _tpu(
    version: str, found: tuple[Peak, ...], memory_gb: float, bandwidth: float, models: str, *, source: str,
    devices: int = 1, confidence: Literal["A", "B"] = "A",
) -> tuple[Entry, ...]:  # fmt: skip
    """Return the entries of a TPU: the device that JAX lists, and the chip where that is more than one device.

    ``models``: spellings after "tpu", with a bar between; those of the chip have "chip" behind them.
    """
    spelled = tuple(f"tpu {one}" for one in models.split("|")) + tuple(one for one in models.split("|") if one != "7x")
    said = words("slice podslice pod")
    chip = Entry(
        row=Accelerator(
            key=f"tpu-{version}" if devices == 1 else f"tpu-{version}-chip", vendor="Google",
            name=f"TPU {version}" if devices == 1 else f"TPU {version} (whole chip)", form="chip", peaks=found,
            memory_gb=(memory_gb,), bandwidth=bandwidth, confidence=confidence, source=source,
            note="" if devices == 1 else f"a chip is {devices} devices",
        ),
        models=spelled, words=said | {"chip"}, needs=frozenset() if devices == 1 else words("chip"),
    )  # fmt: skip
    if devices == 1:
        return (chip,)
    device = Entry(
        row=Accelerator(
            key=f"tpu-{version}", vendor="Google", name=f"TPU {version} (one device)", form="device",
            peaks=share_of(found, devices), memory_gb=(memory_gb / devices,), bandwidth=bandwidth / devices,
            confidence=confidence, source=source, note=f"one of the {devices} devices that JAX lists for a chip",
        ),
        models=spelled, words=said,
    )  # fmt: skip
    return device, chip


_CLOUD = "Google Cloud TPU pages; torchtitan, MaxText or Lightning have the same"

TPUS: Final[tuple[Entry, ...]] = (
    *_tpu("v2", peaks(bf16=45), 16, 700, "v2", source="Jouppi et al., Google Cloud TPU pages", devices=2,
          confidence="B"),
    *_tpu("v3", peaks(bf16=123), 32, 900, "v3", source=_CLOUD, devices=2),
    *_tpu("v4", peaks(bf16=275, int8=275), 32, 1228, "v4", source=_CLOUD),
    *_tpu("v5e", peaks(bf16=197, int8=394), 16, 819, "v5 lite|v5e|v5litepod|v5lite", source=_CLOUD),
    *_tpu("v5p", peaks(bf16=459, int8=918), 95, 2765, "v5|v5p", source=_CLOUD),
    *_tpu("v6e", peaks(bf16=918, int8=1836), 32, 1640, "v6 lite|v6e|trillium", source=_CLOUD),
    *_tpu("v7", peaks(bf16=2307, fp8=4614), 192, 7380, "7x|v7x|v7|ironwood", source=_CLOUD, devices=2),
)  # fmt: skip

_TRN1 = peaks(fp32=47.5, tf32=190, bf16=190, fp16=190, fp8=190, int8=380)
_TRN2 = peaks(fp32=181, tf32=(667, 2563), bf16=(667, 2563), fp16=(667, 2563), fp8=(1299, 2563))
_TRN3 = peaks(fp32=183, bf16=(671, 2517), fp16=(671, 2517), fp8=2517)


def _trainium(
    number: int, found: tuple[Peak, ...], memory_gb: float, bandwidth: float, *, part: str, parts: int, meaning: str
) -> Entry:
    """Return the entry of a Trainium, or of the part of one that is a device. ``part`` "": what the bare name means."""
    name = f"Trainium{number}"
    return Entry(
        row=Accelerator(
            key=f"trn{number}-{part}" if part else f"trn{number}", vendor="AWS", name=f"{name} ({meaning})",
            form=meaning, peaks=share_of(found, parts), memory_gb=(memory_gb / parts,), bandwidth=bandwidth / parts,
            confidence="A", source=f"AWS Neuron documentation, {name} architecture",
            note="" if parts == 1 else f"a chip has {parts} such devices, and {parts} times the peak",
        ),
        models=(f"trn{number}", f"trainium{number}", f"trainium {number}"),
        words=words(part or "core neuroncore"), needs=words(part),
    )  # fmt: skip


TRAINIUMS: Final[tuple[Entry, ...]] = (
    _trainium(1, _TRN1, 32, 820, part="", parts=2, meaning="one NeuronCore"),
    _trainium(1, _TRN1, 32, 820, part="chip", parts=1, meaning="whole chip"),
    _trainium(2, _TRN2, 96, 2900, part="lnc2", parts=4, meaning="logical core of two NeuronCores"),
    _trainium(2, _TRN2, 96, 2900, part="lnc1", parts=8, meaning="one NeuronCore"),
    _trainium(2, _TRN2, 96, 2900, part="chip", parts=1, meaning="whole chip"),
    _trainium(3, _TRN3, 144, 4900, part="lnc2", parts=4, meaning="logical core of two NeuronCores"),
    _trainium(3, _TRN3, 144, 4900, part="lnc1", parts=8, meaning="one NeuronCore"),
    _trainium(3, _TRN3, 144, 4900, part="chip", parts=1, meaning="whole chip"),
)

INTEL: Final[tuple[Entry, ...]] = (
    Entry(
        row=Accelerator(
            key="gaudi2", vendor="Intel", name="Gaudi2", form="OAM HL-225", peaks=peaks(bf16=432, fp8=865),
            memory_gb=(96,), bandwidth=2450, confidence="B", source="Intel's Gaudi 2 and 3 whitepaper",
        ),
        models=("gaudi2", "gaudi 2", "hl 225"), words=words("hl 225 accelerator"),
    ),
    Entry(
        row=Accelerator(
            key="gaudi3", vendor="Intel", name="Gaudi3", form="OAM HL-325L", peaks=peaks(bf16=1835, fp8=1835),
            memory_gb=(128,), bandwidth=3700, confidence="C", source="Intel's Gaudi 3 whitepaper at launch",
            note="a later brief is said to give 1678",
        ),
        models=("gaudi3", "gaudi 3", "hl 325l"), words=words("hl 325l accelerator"),
    ),
    Entry(
        row=Accelerator(
            key="max-1550", vendor="Intel", name="Data Center GPU Max 1550 (one tile)", form="OAM, one tile of two",
            peaks=peaks(bf16=298.2), memory_gb=(64, 128), bandwidth=3277, units=448, confidence="C",
            source="torchtitan's rule, 512 * 448 units * 1.3 GHz",
            note="Intel prints 832 for both tiles at boost clock",
        ),
        models=("data center gpu max 1550", "gpu max 1550", "max 1550"),
    ),
)  # fmt: skip


def _apple(chip: str, units: int, fp32: float, bandwidth: float, source: str, *, named: bool = False) -> Entry:
    """Return the entry of an Apple chip. ``named``: a smaller one has the same name, so the cores must be said."""
    model = chip.lower()
    return Entry(
        row=Accelerator(
            key=f"{model.replace(' ', '-')}-{units}" if named else model.replace(" ", "-"), vendor="Apple",
            name=f"{chip} ({units} GPU cores)", form="GPU of a chip", peaks=peaks(fp32=fp32), bandwidth=bandwidth,
            units=units, confidence="C", source=source, note="no 16-bit peak is published",
        ),
        models=(model,), words=words(f"{units} {units}core core cores"),
        needs=words(str(units)) if named else frozenset(), by_units=named,
    )  # fmt: skip


APPLES: Final[tuple[Entry, ...]] = (
    _apple("M1", 8, 2.6, 68, "Apple's announcement"),
    _apple("M1 Max", 32, 10.4, 400, "Apple's announcement"),
    _apple("M2", 10, 3.6, 100, "Apple's announcement"),
    _apple("M2 Ultra", 76, 27.2, 800, "Apple's announcement"),
    _apple("M3 Max", 40, 14.2, 400, "third parties' measurements", named=True),
    _apple("M4 Max", 40, 18.4, 546, "third parties' measurements", named=True),
)

ENTRIES: Final[tuple[Entry, ...]] = TPUS + TRAINIUMS + INTEL + APPLES

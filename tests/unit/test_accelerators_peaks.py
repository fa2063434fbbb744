"""The table's figures, checked against each other and against a collected list, and the sentence beside a peak."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

from overnight.accelerators import DTYPES, Match
from overnight.accelerators.naming import match
from overnight.accelerators.peaks import peak_of
from overnight.accelerators.table import ACCELERATORS, by_key

TABLE = Path(__file__).parents[2].parent / "shared" / "data" / "accelerators.csv"

RATES = {
    "v100-sxm2": 1024, "v100s": 1024, "t4": 1024, "rtx-2080-ti": 512, "a10": 1024, "a10g": 512, "a30": 2048,
    "a40": 1024, "a100-sxm4-80gb": 2048, "rtx-a6000": 1024, "rtx-a5000": 1024, "rtx-3090": 512, "rtx-3090-ti": 512,
    "l4": 1024, "l40": 512, "rtx-6000-ada": 1024, "rtx-4090": 512, "rtx-5090": 512, "h100-sxm": 4096,
    "h100-pcie": 4096, "mi210": 1024, "mi250x": 1024, "mi300a": 2048, "mi300x": 2048, "mi350x": 4096, "mi355x": 4096,
    **{one.key: 512 for one in ACCELERATORS if one.key.startswith("rtx-") and one.form == "desktop"},
    **{one.key: 1024 for one in ACCELERATORS if one.form == "workstation"},
}  # fmt: skip
"""FLOPs per clock and unit, sums in FP32."""


@pytest.mark.parametrize(
    ("name", "dtype", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4), ("NVIDIA H100 PCIe", "bf16", 756), ("NVIDIA H100 NVL", "bf16", 835.5),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312), ("a100", "bf16", 312), ("a100", "tf32", 156), ("a100", "fp32", 19.5),
        ("NVIDIA A100-SXM-64GB", "bf16", 354.3), ("NVIDIA A10G", "bf16", 70), ("NVIDIA A10", "bf16", 125),
        ("NVIDIA L4", "bf16", 121), ("NVIDIA L40", "bf16", 181.05), ("NVIDIA L40S", "bf16", 362.05),
        ("NVIDIA H200 NVL", "bf16", 835.5), ("NVIDIA H200", "fp8", 1978.9), ("NVIDIA GH200 480GB", "bf16", 989.4),
        ("NVIDIA GB200", "bf16", 2500), ("NVIDIA B200", "bf16", 2250), ("NVIDIA B300 SXM6 AC", "bf16", 2250),
        ("rtx4090", "bf16", 165.2), ("rtx4090", "fp8", 330.3), ("NVIDIA RTX A6000", "bf16", 154.8),
        ("AMD Instinct MI250X", "bf16", 191.5), ("AMD Instinct MI300X", "fp8", 2614.9), ("TPU v5 lite", "bf16", 197),
        ("TPU v5", "bf16", 459), ("TPU v3", "bf16", 61.5), ("TPU7x", "bf16", 1153.5), ("trn1", "bf16", 95),
        ("trn2-lnc2", "bf16", 166.75), ("trn2-chip", "bf16", 667), ("NVIDIA H20", "bf16", 148),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16", 312 * 14 / 108), ("RTX A4000", "bf16", 76.7),
        ("AMD Instinct MI100", "bf16", 92.3), ("a100", "bfloat16", 312), ("a100", "torch.float16", 312),
    ],
)  # fmt: skip
def test_a_peak_is_the_dense_one_of_the_dtype(name: str, dtype: str, tflops: float) -> None:
    found = peak_of(match(name), dtype)
    assert found.flops is not None
    assert math.isclose(found.flops, tflops * 1e12, rel_tol=1e-12)
    assert found.sparse_flops is None or found.sparse_flops >= found.flops * 1.9


def test_the_sentence_says_what_was_used_and_what_was_not() -> None:
    found = peak_of(match("a100"), "bf16")
    assert found.source == (
        "312 TFLOP/s: dense bf16 of A100 (not used: sparse 624, fp32 19.5), "
        "NVIDIA A100 datasheet; five public tables agree on 312, confidence A"
    )
    assert (found.dtype, found.sparse_flops, found.confidence) == ("bf16", 624e12, "A")
    assert "fp16 with fp16 sums 330.3" in peak_of(match("rtx4090"), "bf16").source
    assert "not used: bf16 312" in peak_of(match("a100"), "fp32").source


def test_a_slice_is_labelled_in_the_sentence() -> None:
    found = peak_of(match("NVIDIA A100-SXM4-40GB MIG 1g.5gb"), "bf16")
    assert found.source.startswith("40.4444 TFLOP/s: dense bf16 of A100 SXM4 40GB, 312 * 0.1296 (a MIG slice: 14 of ")
    assert found.sparse_flops == pytest.approx(624e12 * 14 / 108)


def test_only_the_16_bit_peaks_were_read_in_enough_places() -> None:
    assert [peak_of(match("h100-sxm"), one).confidence for one in ("bf16", "fp16", "fp8", "tf32")] == [*"AABB"]
    assert peak_of(match("a10g"), "fp32").confidence == "C"


@pytest.mark.parametrize(
    ("name", "dtype", "said"),
    [
        ("a100", None, "give --dtype"), ("h100", "bf16", "h100-sxm or h100-pcie"), ("v100-sxm2", "bf16", "has no bf16"),
        ("t4", "bf16", "fp16 65"), ("t4", "tf32", "has no tf32"), ("a100", "fp8", "has no fp8"),
        ("Apple M1", "fp16", "no 16-bit peak is published"), ("rtx-4092", "bf16", "closest names"),
        ("a100", "nonsense", "has no nonsense"), ("cpu", "fp32", "CPU"), ("mi355x", "tf32", "has no tf32"),
    ],
)  # fmt: skip
def test_an_unknown_peak_says_what_would_make_it_known(name: str, dtype: str | None, said: str) -> None:
    found = peak_of(match(name), dtype)
    assert (found.flops, found.sparse_flops, found.confidence) == (None, None, None)
    assert said in found.source


def test_no_match_has_no_peak() -> None:
    assert peak_of(Match(said="why"), "bf16").source == "why"


def test_every_row_is_whole_and_plausible() -> None:
    for row in ACCELERATORS:
        assert row.source
        assert len({one.dtype for one in row.peaks}) == len(row.peaks) > 0
        for one in row.peaks:
            assert one.dense > 0
            assert one.sparse is None or 1.85 <= one.sparse / one.dense <= 4.01, (row.key, one)
        assert any(one.dtype in DTYPES for one in row.peaks)
        half, single = row.peak("fp16") or row.peak("bf16"), row.peak("fp32")
        assert half is None or single is None or half.dense > 1.9 * single.dense or row.key == "v100-pcie"


@pytest.mark.parametrize(("key", "rate"), RATES.items())
def test_units_rate_and_clock_give_the_peak(key: str, rate: int) -> None:
    row = by_key(key)
    assert row is not None
    assert row.units is not None
    assert row.boost_mhz is not None
    half = row.peak("fp16")
    assert half is not None
    assert half.dense == pytest.approx(row.units * rate * row.boost_mhz / 1e6, rel=0.01)


FORMS = {
    ("V100", "SXM2"): "v100-sxm2", ("V100", "PCIe"): "v100-pcie", ("H100", "SXM5"): "h100-sxm",
    ("H100", "PCIe"): "h100-pcie", ("H100", "NVL (per GPU)"): "h100-nvl", ("H200", "SXM"): "h200-sxm",
    ("H200", "NVL"): "h200-nvl", ("H800", "SXM5"): "h800-sxm", ("H800", "PCIe"): "h800-pcie",
    ("TPU v2", "chip (2 devices)"): "tpu-v2-chip", ("TPU v3", "chip (2 devices)"): "tpu-v3-chip",
    ("TPU v7 (Ironwood)", "chip (2 devices)"): "tpu-v7-chip", ("Trainium1", "chip (2 NeuronCore-v2)"): "trn1-chip",
    ("Trainium2", "chip (8 NeuronCore-v3)"): "trn2-chip", ("Trainium3", "chip (8 NeuronCore-v4)"): "trn3-chip",
    ("RTX PRO 6000 Blackwell", "Workstation Edition"): "rtx-pro-6000-workstation",
    ("Data Center GPU Max 1550", "OAM (2 tiles)"): "max-1550",
    ("M3 Max (40-core)", "SoC GPU"): "m3-max-40", ("M4 Max (40-core)", "SoC GPU"): "m4-max-40",
}  # fmt: skip


def test_every_figure_of_the_collected_table_is_here() -> None:
    if not TABLE.exists():
        pytest.skip("the collected table is not on this machine")
    rows, seen = list(csv.DictReader(TABLE.read_text().splitlines())), set()
    for row in rows:
        name, form = row["accelerator"], row["form_factor"]
        key = FORMS.get((name, form), name.lower().replace(" ", "-"))
        if name.startswith("A100"):
            key = "a100-sxm-64gb" if "64" in form else f"a100-{form.lower()}-{row['mem_gb']}gb"
        found = by_key(key)
        assert found is not None, key
        seen.add(key)
        peak = found.peak(row["dtype"])
        assert peak is not None, (key, row["dtype"])
        sparse = float(row["sparse_tflops"]) if row["sparse_tflops"] else None
        assert (peak.dense, peak.sparse) == (float(row["dense_tflops"]), sparse), (key, row["dtype"])
        assert found.confidence == row["confidence"], key
        units = int(row["sm_or_cu"]) if row["sm_or_cu"] else None
        assert units in (None, found.units), key
        if row["mem_bw_gb_s"]:
            assert found.bandwidth == float(row["mem_bw_gb_s"]), key
    assert len(seen) == 66

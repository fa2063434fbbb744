"""Which accelerator a name means: what programs report, what people write, and the traps among them."""

from __future__ import annotations

import csv
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overnight.accelerators import Match
from overnight.accelerators.naming import match
from overnight.accelerators.table import ACCELERATORS, ENTRIES, by_key

NAMES = Path(__file__).parents[2].parent / "shared" / "data" / "device_names.csv"

REPORTED = {
    "Tesla V100-SXM2-16GB": "v100-sxm2", "Tesla V100-SXM2-32GB": "v100-sxm2", "Tesla V100-PCIE-32GB": "v100-pcie",
    "Tesla V100S-PCIE-32GB": "v100s", "Tesla P100-PCIE-16GB": "p100-pcie", "Tesla T4": "t4", "NVIDIA A2": "a2",
    "NVIDIA A10": "a10", "NVIDIA A10G": "a10g", "NVIDIA A30": "a30", "NVIDIA A40": "a40",
    "NVIDIA A100-SXM4-40GB": "a100-sxm4-40gb", "A100-SXM4-40GB": "a100-sxm4-40gb",
    "NVIDIA A100-SXM4-80GB": "a100-sxm4-80gb", "NVIDIA A100-PCIE-40GB": "a100-pcie-40gb",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb", "NVIDIA A100-SXM-64GB": "a100-sxm-64gb",
    "NVIDIA A800-SXM4-80GB": "a800-sxm4", "NVIDIA A800 80GB PCIe": "a800-pcie", "NVIDIA RTX A6000": "rtx-a6000",
    "NVIDIA RTX A5000": "rtx-a5000", "NVIDIA RTX A4000": "rtx-a4000",
    "NVIDIA RTX 6000 Ada Generation": "rtx-6000-ada", "NVIDIA RTX 4000 SFF Ada Generation": "rtx-4000-sff-ada",
    "NVIDIA RTX 4000 Ada Generation": "rtx-4000-ada", "Quadro RTX 6000": "quadro-rtx-6000", "NVIDIA L4": "l4",
    "NVIDIA L40": "l40", "NVIDIA L40S": "l40s", "NVIDIA TITAN RTX": "titan-rtx",
    "NVIDIA GeForce RTX 2080 Ti": "rtx-2080-ti", "GeForce RTX 2080 Ti": "rtx-2080-ti",
    "NVIDIA GeForce RTX 3090": "rtx-3090", "NVIDIA GeForce RTX 3090 Ti": "rtx-3090-ti",
    "NVIDIA GeForce RTX 4070 Ti SUPER": "rtx-4070-ti-super", "NVIDIA GeForce RTX 4070 Ti": "rtx-4070-ti",
    "NVIDIA GeForce RTX 4070": "rtx-4070", "NVIDIA GeForce RTX 4090": "rtx-4090",
    "NVIDIA GeForce RTX 5090": "rtx-5090",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "rtx-pro-6000-workstation",
    "NVIDIA H100 80GB HBM3": "h100-sxm", "NVIDIA H100 PCIe": "h100-pcie", "NVIDIA H100 NVL": "h100-nvl",
    "GH100 [H100 PCIe]": "h100-pcie", "NVIDIA H200": "h200-sxm", "NVIDIA H200 NVL": "h200-nvl", "NVIDIA H20": "h20",
    "NVIDIA H20-3e": "h20", "NVIDIA H800": "h800-sxm", "NVIDIA H800 PCIe": "h800-pcie",
    "NVIDIA GH200 480GB": "gh200", "NVIDIA GH200 120GB": "gh200", "NVIDIA GH200 144G HBM3e": "gh200",
    "NVIDIA B100": "b100", "NVIDIA B200": "b200", "NVIDIA GB200": "gb200", "NVIDIA B300 SXM6 AC": "b300",
    "NVIDIA GB300": "gb300", "AMD Instinct MI100": "mi100", "AMD Instinct MI210": "mi210",
    "AMD Instinct MI250": "mi250", "AMD Instinct MI250X": "mi250x", "AMD Instinct MI300A": "mi300a",
    "AMD Instinct MI300X": "mi300x", "AMD Instinct MI300X OAM": "mi300x", "AMD Instinct MI325X": "mi325x",
    "AMD Instinct MI325X OAM": "mi325x", "AMD Instinct MI350X": "mi350x", "AMD Instinct MI355X": "mi355x",
    "AMD Radeon RX 7900 XTX": "rx-7900-xtx", "TPU v2": "tpu-v2", "TPU v3": "tpu-v3", "TPU v4": "tpu-v4",
    "TPU v5 lite": "tpu-v5e", "v5litepod-16": "tpu-v5e", "TPU v5": "tpu-v5p", "TPU v5p": "tpu-v5p",
    "TPU v6 lite": "tpu-v6e", "TPU7x": "tpu-v7", "trn1": "trn1", "Apple M1 Max": "m1-max", "GAUDI2": "gaudi2",
    "Intel(R) Data Center GPU Max 1550": "max-1550",
    "GPU 0: NVIDIA L40S (UUID: GPU-4f5e8dd4-7d8c-6f0c-93c5-0c0d6a4c8a9e)": "l40s",
}  # fmt: skip
"""What NVML, torch, ROCm, JAX, lspci and nvidia-smi -L print."""

WRITTEN = {
    "a100": "a100", "A100": "a100", "a100-80gb": "a100-80gb", "a100-sxm": "a100-sxm4", "a100 pcie": "a100-pcie",
    "h100-pcie": "h100-pcie", "H100 PCIe": "h100-pcie", "H100_PCIE": "h100-pcie", "h100pcie": "h100-pcie",
    "h100-sxm": "h100-sxm", "h100-sxm5-80gb": "h100-sxm", "h100sxm": "h100-sxm", "H100 94GB": "h100-nvl",
    "h200": "h200-sxm", "rtx4090": "rtx-4090", "RTX-4090": "rtx-4090", "4090": "rtx-4090", "3090ti": "rtx-3090-ti",
    "a6000": "rtx-a6000", "6000 ada": "rtx-6000-ada", "mi300x": "mi300x", "mi250x": "mi250x", "l40s": "l40s",
    "tpu-v5e": "tpu-v5e", "v5p-128": "tpu-v5p", "tpuv4": "tpu-v4", "tpu-v3-chip": "tpu-v3-chip",
    "trainium1": "trn1", "trn1-chip": "trn1-chip", "trainium2-lnc2": "trn2-lnc2", "gaudi-3": "gaudi3",
    "rtx-3080-10gb": "rtx-3080-10gb", "m3-max-40": "m3-max-40", "NVIDIA A100 Tensor Core GPU": "a100",
}  # fmt: skip

UNKNOWN = (
    "FooGPU 9000", "NVIDIA RTX A1000", "NVIDIA RTX A1000 Laptop GPU", "NVIDIA RTX A3000 Laptop GPU",
    "NVIDIA T400", "NVIDIA T400 4GB", "NVIDIA T4G", "NVIDIA T1000", "Quadro T400", "Quadro P4000", "Quadro RTX 4000",
    "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D", "RTX 4090D", "rtx4090d",
    "NVIDIA GeForce RTX 5090 D", "NVIDIA GeForce RTX 5090 D v2", "NVIDIA GeForce RTX 5090 Laptop GPU",
    "NVIDIA GeForce RTX 2080 Ti with Max-Q Design", "NVIDIA GeForce RTX 3080 Ti Laptop GPU", "GeForce GTX 1080 Ti",
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "rtx pro 6000", "NVIDIA RTX 5000 Ada Generation Laptop GPU", "RTX 6000", "NVIDIA A100X", "NVIDIA A10M",
    "NVIDIA A30X", "NVIDIA A10-24Q", "GRID A100D-20C", "GRID V100D-32Q", "NVIDIA RTX A6000-48Q", "NVIDIA L40G",
    "L40 S", "L 40S", "A 100", "H 100", "NVIDIA H100", "h100", "h100-80gb", "NVIDIA H100 MIG 1g.10gb", "v100",
    "Tesla V100-FHHL-16GB", "Tesla V100-DGXS-32GB", "rtx3080", "A100 H100", "A100/H100", "A100 SXM4 PCIe",
    "A100-SXM4-96GB", "xA100", "A100x", "A100?", "A1000", "A1OO", "NVIDIA H2000", "NVIDIA GB2000", "AMD A100",
    "Intel H100", "NVIDIA MI300X", "AMD Instinct MI308X", "AMD Instinct MI300", "AMD Instinct MI250X/MI250", "TPU",
    "TPU v4 lite", "TPU v5 litex", "TPU v55", "trn2", "trainium", "trn3", "Apple M3 Max", "Apple M5", "NVIDIA",
    "NVIDIA Graphics Device", "Intel(R) Xeon(R) Platinum 8480+", "cpu", "AMD EPYC 9654 96-Core Processor", "", " ",
    "AMD Radeon Graphics", "AMD Radeon(TM) Graphics", "N/A", "gfx942", "gfx1036", "\N{FULLWIDTH DIGIT ONE}" * 3,
    "A100" * 100, "A100\x00", "NVIDIA A100-SXM4-80GB\nNVIDIA H100 PCIe",
)  # fmt: skip


def key(found: Match) -> str | None:
    return found.accelerator.key if found.accelerator else None


@pytest.mark.parametrize(("name", "meant"), REPORTED.items())
def test_a_reported_name_is_that_row_in_any_case(name: str, meant: str) -> None:
    for one in (name, name.lower(), name.upper(), f"  {name} "):
        found = match(one)
        assert (key(found), found.share) == (meant, 1.0), found.said


@pytest.mark.parametrize(("name", "meant"), WRITTEN.items())
def test_what_people_write_is_understood(name: str, meant: str) -> None:
    assert key(match(name)) == meant


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_known_is_said_to_be_unknown_and_what_to_do(name: str) -> None:
    found = match(name)
    assert found.accelerator is None
    assert "--peak-tflops" in found.said
    assert "\n" not in found.said
    assert "\x00" not in found.said
    assert all(by_key(one) for one in found.closest)


def test_an_unknown_name_comes_with_the_closest() -> None:
    assert match("NVIDIA L40 S").closest[:2] == ("l40", "l40s")
    assert len(match("rtx-4092").closest) == 3
    assert all(one in match("rtx-4092").said for one in match("rtx-4092").closest)


@pytest.mark.parametrize("name", ["foo", "xyzzy"])
def test_a_name_that_is_near_to_none_comes_without_any(name: str) -> None:
    found = match(name)
    assert (found.accelerator, found.closest) == (None, ())
    assert found.said == f"'{name}' is in no row of the table; give --gpu with a name of the table, or --peak-tflops"


def test_a_name_near_to_the_text_of_a_row() -> None:
    assert match("RTX A1000").closest[0].startswith("rtx-a")
    assert "'laptop' makes it another chip" in match("NVIDIA GeForce RTX 4090 Laptop GPU").said


def test_an_ambiguous_name_comes_with_the_choice() -> None:
    found = match("h100")
    assert found.closest == ("h100-sxm", "h100-pcie", "h100-nvl")
    assert "--gpu h100-sxm or h100-pcie or h100-nvl" in found.said
    assert set(match("trn2").closest) == {"trn2-lnc1", "trn2-lnc2", "trn2-chip"}
    assert match("RTX PRO 6000").closest == ("rtx-pro-6000-workstation",)


@pytest.mark.parametrize(
    ("units", "memory_gb", "meant"),
    [
        (114, None, "h100-pcie"), (132, 79.6, "h100-sxm"), (132, 85.5, "h100-sxm"), (132, 93.6, "h100-nvl"),
        (132, 100.5, "h100-nvl"), (None, 93.6, "h100-nvl"), (132, None, None), (None, 79.6, None), (78, 96, None),
        (60, 39.5, None),
    ],
)  # fmt: skip
def test_units_and_memory_tell_forms_apart(units: int | None, memory_gb: float | None, meant: str | None) -> None:
    assert key(match("NVIDIA H100", units=units, memory_gb=memory_gb)) == meant


def test_more_forms_that_units_tell_apart() -> None:
    assert key(match("NVIDIA GeForce RTX 3080", units=68)) == "rtx-3080-10gb"
    assert key(match("NVIDIA GeForce RTX 3080", memory_gb=12.0)) == "rtx-3080-12gb"
    assert key(match("AMD Instinct MI250X/MI250", units=110)) == "mi250x"
    assert key(match("AMD Instinct MI250X/MI250", units=104)) == "mi250"
    assert key(match("A100", units=124)) == "a100-sxm-64gb"
    assert key(match("Apple M4 Max", units=40)) == "m4-max-40"
    assert key(match("A100", memory_gb=39.4)) == "a100-40gb"
    assert key(match("NVIDIA H800", units=114)) == "h800-pcie"


def test_forms_of_one_peak_are_one_answer_that_claims_no_form() -> None:
    row = match("a100").accelerator
    assert row is not None
    assert (row.name, row.memory_gb, row.bandwidth, row.units) == ("A100", (40, 80), None, 108)
    assert key(match(row.key)) == row.key


@pytest.mark.parametrize(
    ("name", "units"),
    [
        ("NVIDIA GeForce RTX 4090", 114), ("NVIDIA GeForce RTX 4090", 76), ("NVIDIA A100-SXM4-40GB", 124),
        ("NVIDIA A100-SXM4-40GB", 107), ("NVIDIA H100 80GB HBM3", 144), ("Tesla T4", 20),
        ("AMD Instinct MI300X", 80), ("AMD Instinct MI300X", 100), ("AMD Instinct MI355X", 255),
    ],
)  # fmt: skip
def test_a_count_of_units_that_does_not_fit_makes_it_unknown(name: str, units: int) -> None:
    found = match(name, units=units)
    assert found.accelerator is None
    assert str(units) in found.said


def test_a_chip_that_goes_by_anothers_name_is_named() -> None:
    assert "MI308X" in match("AMD Instinct MI300X OAM", units=80).said
    assert match("NVIDIA A100-SXM4-40GB", units=124).closest[0] == "a100-sxm-64gb"


@pytest.mark.parametrize(
    ("name", "units", "count", "full"),
    [
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None, 14, 108), ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", None, 42, 108),
        ("NVIDIA A100 80GB PCIe MIG 7g.80gb", None, 98, 108), ("NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb", None, 14, 108),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb+me", None, 14, 108), ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 14, 14, 108),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 108, 14, 108), ("NVIDIA A100-SXM4-40GB MIG", 28, 28, 108),
        ("NVIDIA A100-SXM4-40GB", 14, 14, 108), ("NVIDIA A100-SXM4-40GB", 98, 98, 108),
        ("NVIDIA A30 MIG 2g.12gb", None, 28, 56), ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None, 16, 132),
        ("NVIDIA H100 80GB HBM3 MIG 1g.20gb", None, 26, 132), ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", None, 60, 132),
        ("NVIDIA H200 MIG 1g.18gb", None, 16, 132), ("NVIDIA H100 80GB HBM3 MIG 7g.80gb", None, 132, 132),
        ("NVIDIA H100 PCIe MIG 2g.20gb", 30, 30, 114), ("a100-mig-1g.5gb", None, 14, 108),
        ("NVIDIA B200 MIG 1g.23gb", 18, 18, 148), ("AMD Instinct MI300X", 38, 38, 304),
        ("AMD Instinct MI350X", 128, 128, 256),
    ],
)  # fmt: skip
def test_a_slice_is_its_share_of_the_units(name: str, units: int | None, count: int, full: int) -> None:
    found = match(name, units=units)
    assert found.share == count / full
    assert found.accelerator is not None
    assert f"{count} of {full}" in found.said


@pytest.mark.parametrize(
    ("name", "units"),
    [
        ("NVIDIA H100 PCIe MIG 2g.20gb", None), ("NVIDIA A100-SXM4-40GB MIG", None), ("NVIDIA B200 MIG 1g.23gb", 148),
        ("NVIDIA A100-SXM4-40GB MIG 5g.20gb", None), ("NVIDIA A30 MIG 3g.20gb", None), ("NVIDIA GB200 MIG 1g.23gb", 18),
        ("NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb", None), ("FooGPU MIG 1g.5gb", 14),
    ],
)  # fmt: skip
def test_a_slice_of_unknown_size_is_unknown(name: str, units: int | None) -> None:
    assert match(name, units=units).accelerator is None


@pytest.mark.parametrize("name", ["", "AMD Radeon Graphics", "gfx942", "AMD Radeon(TM) Graphics"])
@pytest.mark.parametrize(
    ("arch", "units", "memory_gb", "meant"),
    [
        ("gfx942:sramecc+:xnack-", 304, 192.0, "mi300x"), ("gfx942", 304, 206.1, "mi300x"),
        ("gfx942", 304, 255.9, "mi325x"), ("gfx942", 304, None, "mi300x"), ("gfx942", 228, 128.0, "mi300a"),
        ("gfx942", 80, 192.0, None), ("gfx942", None, 192.0, None), ("gfx942", 38, 64.0, None),
    ],
)  # fmt: skip
def test_a_device_without_a_name_is_told_by_its_architecture(
    name: str, arch: str, units: int | None, memory_gb: float | None, meant: str | None
) -> None:
    found = match(name, units=units, memory_gb=memory_gb, arch=arch)
    assert key(found) == meant
    assert found.said


def test_other_architectures() -> None:
    assert key(match("", arch="gfx90a:sramecc+", units=110, memory_gb=64)) == "mi250x"
    assert "MI210 or MI250" in match("", arch="gfx90a", units=104).said
    assert key(match("", arch="gfx908")) == "mi100"
    assert match("", arch="gfx950", units=256, memory_gb=288).closest == ("mi350x", "mi355x")
    assert "MI308X" in match("", arch="gfx942", units=80).said
    assert match("", arch="gfx1100", units=48).accelerator is None
    assert match("", arch="sm_90", units=132).accelerator is None
    assert match("NVIDIA", arch="gfx942", units=304).accelerator is None


def test_every_reported_name_of_the_collected_list_is_right() -> None:
    if not NAMES.exists():
        pytest.skip("the collected names are not on this machine")
    rows = list(csv.DictReader(NAMES.read_text().splitlines()))
    assert len(rows) > 45
    unknown = {"AMD Radeon Graphics", "trn2", "trn3"}
    kind = {"A100 SXM": "a100-sxm4-40gb", "A100 PCIe 40": "a100-pcie-40gb", "A100 PCIe 80": "a100-pcie-80gb",
            "A100 custom": "a100-sxm-64gb", "A800": "a800-sxm4", "MIG slice": "a100-sxm4-40gb", "H200": "h200-sxm",
            "H800": "h800-sxm", "RTX PRO 6000": "rtx-pro-6000-workstation", "Trainium": "trn1"}  # fmt: skip
    for row in rows:
        for name in row["reported_name"].split(" / "):
            want = kind.get(row["key"], row["key"].lower().replace(" ", "-"))
            assert key(match(name)) == (None if name in unknown else want), name


def test_each_key_means_its_own_row() -> None:
    assert len({one.key for one in ACCELERATORS}) == len(ACCELERATORS)
    for one in ACCELERATORS:
        assert match(one.key).accelerator == one
        assert match(one.key.upper().replace("-", " ")).accelerator == one
        assert by_key(one.key) == one
    assert by_key("nothing") is None


FULL = {
    f"{model} {' '.join(sorted(entry.needs))} {' '.join(extra)}": entry
    for entry in ENTRIES
    for model in entry.models
    for extra in ((), *((word,) for word in sorted(entry.words)))
}


@pytest.mark.parametrize("name", FULL)
def test_no_name_of_one_row_means_another(name: str) -> None:
    """A name of a row means that row, its forms of the same peak, or nobody can say; never a row of another model."""
    entry, found = FULL[name], match(name).accelerator
    if found is not None and found.key != entry.row.key:
        kin = [one for one in ENTRIES if one.row.peaks == found.peaks and set(one.models) & set(entry.models)]
        same = [one for one in ENTRIES if one.row.key == found.key and set(one.models) & set(entry.models)]
        bare = [one for one in same if one.bare]
        assert kin or bare
        assert entry.row.peaks == found.peaks or bare or not entry.needs <= set(name.split())


WORDS = sorted({word for entry in ENTRIES for model in entry.models for word in model.split()} | {"mig", "laptop", "d"})


@given(st.sampled_from([model for entry in ENTRIES for model in entry.models]), st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=4))  # fmt: skip  # noqa: E501
def test_letters_stuck_to_a_name_never_leave_it_the_same(model: str, more: str) -> None:
    """Only where the longer name is itself one of a row."""
    for name in (f"{model}{more}", f"{more}{model}"):
        found = match(name).accelerator
        if found is not None:
            letters = name.replace(" ", "")
            assert any(
                letters == (spelling := other.replace(" ", "")) or (
                    letters.startswith(spelling) and letters[len(spelling):] in entry.words
                )
                for entry in ENTRIES for other in (*entry.models, entry.row.key.replace("-", ""))
            )  # fmt: skip


@given(st.lists(st.sampled_from(WORDS), max_size=5), st.integers(-1, 400), st.floats(), st.text(max_size=12))
def test_any_mixture_of_words_gives_an_answer(words: list[str], units: int, memory_gb: float, arch: str) -> None:
    found = match(" ".join(words), units=units, memory_gb=memory_gb, arch=arch)
    assert 0 < found.share <= 1
    assert found.accelerator is not None or "--peak-tflops" in found.said


@given(st.text(max_size=400))
def test_odd_text_never_raises_and_never_means_a_device(name: str) -> None:
    found = match(name)
    assert found.accelerator is None or any(one.isalnum() for one in name)
    assert found.said.isprintable()

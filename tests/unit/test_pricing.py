"""Price tables of a user's own: what is read, which row counts for which device, and what tokens and lost work cost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from overnight.errors import UsageError
from overnight.spec import cost_per_billion_tokens
from overnight.yardsticks.pricing import (
    PriceTable,
    parse,
    price_of,
    read_prices,
)

ROWS = [
    ("h100-pcie", 1.99),
    ("h100", 2.49),
    ("NVIDIA A100-SXM4-80GB", 1.2),
    ("a100", 0.9),
    ("l4", 0.5),
    ("Thing 9000", 3.0),
    ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 0.2),
]


@pytest.fixture
def table() -> PriceTable:
    text = "\n".join(f'"{name}" = {cost}' for name, cost in ROWS)
    return parse(text, source="prices.toml", as_csv=False)


@pytest.mark.parametrize(
    ("name", "cost"),
    [
        ("NVIDIA H100 PCIe", 1.99),
        ("NVIDIA H100 80GB HBM3", 2.49),
        ("NVIDIA H100 NVL", 2.49),
        ("h100", 2.49),
        ("h100-pcie", 1.99),
        ("NVIDIA A100-SXM4-80GB", 1.2),
        ("NVIDIA A100-PCIE-40GB", 0.9),
        ("a100", 0.9),
        ("NVIDIA L4", 0.5),
        ("thing-9000", 3.0),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 0.2),
    ],
)
def test_the_closest_row_counts(table: PriceTable, name: str, cost: float) -> None:
    found = price_of(table, [name])
    assert found.per_hour == cost
    assert "prices.toml" in found.said


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA L40S",
        "NVIDIA L40",
        "NVIDIA A10G",
        "NVIDIA GH200 480GB",
        "NVIDIA H200",
        "NVIDIA RTX A1000",
        "NVIDIA A100-SXM4-40GB MIG 2g.10gb",
        "Thing 9001",
        "",
        "cpu",
    ],
)
def test_nothing_is_priced_by_a_name_that_is_only_alike(table: PriceTable, name: str) -> None:
    found = price_of(table, [name])
    assert found.per_hour is None
    assert "give --price" in found.said


def test_a_laptops_gpu_is_not_its_desktop_namesake() -> None:
    table = parse("rtx-4090 = 0.4", source="p.toml", as_csv=False)
    assert price_of(table, ["NVIDIA GeForce RTX 4090"]).per_hour == 0.4
    assert price_of(table, ["NVIDIA GeForce RTX 4090 Laptop GPU"]).per_hour is None


def test_devices_are_counted(table: PriceTable) -> None:
    eight = price_of(table, ["NVIDIA H100 80GB HBM3"], 8)
    assert eight.per_hour == pytest.approx(8 * 2.49)
    assert eight.said == "8 x 2.49/h (h100) from prices.toml"
    mixed = price_of(table, ["NVIDIA L4", "NVIDIA H100 PCIe", "NVIDIA L4"], 3)
    assert mixed.per_hour == pytest.approx(2 * 0.5 + 1.99)
    assert mixed.said == "2 x 0.5/h (l4) + 1 x 1.99/h (h100-pcie) from prices.toml"


def test_what_is_not_known_is_said(table: PriceTable) -> None:
    assert price_of(table, []).per_hour is None
    eight = price_of(table, ["NVIDIA L4"] * 8, 4)
    assert eight.per_hour is None
    assert "8 devices are named and the run uses 4" in eight.said
    one_unknown = price_of(table, ["NVIDIA L4", "NVIDIA L40S"], 2)
    assert one_unknown.per_hour is None
    assert "L40S" in one_unknown.said


def test_two_names_of_one_device_may_not_differ() -> None:
    odd = parse('"NVIDIA L4" = 1\nl4 = 2', source="p.toml", as_csv=False)
    assert price_of(odd, ["l4"]).per_hour == 2, "just its name"
    other = price_of(parse('"nvidia l4 gpu" = 1\nl4 = 2', source="p.toml", as_csv=False), ["NVIDIA L4"])
    assert other.per_hour is None
    assert "different prices" in other.said
    same = price_of(parse('"nvidia l4 gpu" = 2\nl4 = 2', source="p.toml", as_csv=False), ["NVIDIA L4"])
    assert same.per_hour == 2


def test_a_row_that_means_nothing_is_named() -> None:
    table = parse("a100-sxm-80 = 1", source="p.toml", as_csv=False)
    found = price_of(table, ["NVIDIA A100-SXM4-80GB"])
    assert found.per_hour is None
    assert "'a100-sxm-80'" in found.said


@pytest.mark.parametrize(
    "text",
    [
        "# mine\n[prices]\nl4 = 0.5\n'h100-sxm' = '2.49/h'\n",
        "l4 = '$0.50'\nh100-sxm = '59.76/day'\n",
    ],
)
def test_toml(text: str) -> None:
    table = parse(text, source="p.toml", as_csv=False)
    assert {row.device: row.per_hour for row in table.rows} == pytest.approx({"l4": 0.5, "h100-sxm": 2.49})


@pytest.mark.parametrize(
    "text",
    [
        "l4,0.5\nh100-sxm,2.49\n",
        "# mine\ndevice,price\nl4, 0.5\n\n h100-sxm , 2.49/h\n",
        "region;price per hour;gpu\nhere;0.5;l4\nthere;2.49;h100-sxm\n",
        "gpu\thourly cost\tnote\nl4\t$0.50\tsmall\nh100-sxm\t2.49\t\n",
        '"l4","0.5"\r\n"h100-sxm","2.49"\r\n',
    ],
)
def test_csv(text: str) -> None:
    table = parse(text, source="p.csv", as_csv=True)
    assert {row.device: row.per_hour for row in table.rows} == pytest.approx({"l4": 0.5, "h100-sxm": 2.49})


@pytest.mark.parametrize(
    ("text", "as_csv", "why"),
    [
        ("", False, "holds no price"),
        ("# nothing", True, "holds no price"),
        ("device,price\n", True, "holds no price"),
        ("l4 0.5", False, "not valid TOML"),
        ("l4 = 0", False, "'l4'"),
        ("l4 = -1", False, "'l4'"),
        ("l4 = true", False, "'l4'"),
        ("l4 = inf", False, "'l4'"),
        ("l4 = 'cheap'", False, "'l4'"),
        ("l4 = '1/fortnight'", False, "'l4'"),
        ("[odd]\nl4 = 1", False, "a table"),
        ("a.b = 1", False, "quotation marks"),
        ("l4 = 1\nL4 = 2", False, "twice"),
        ("l4", True, "device,price"),
        (",1", True, "device,price"),
        ("l4,one", True, "line 1"),
        ("l4,1\nl4,2", True, "twice"),
    ],
)
def test_what_is_no_table_is_refused_in_one_sentence(text: str, as_csv: bool, why: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse(text, source="/here/p", as_csv=as_csv)
    assert why in str(refused.value)
    assert "/here/p" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_files_are_read_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("l4,1\n")
    (tmp_path / "p.toml").write_text("\ufeffl4 = 2\n", encoding="utf-8")
    assert read_prices(tmp_path / "p.csv").rows[0].per_hour == 1
    assert read_prices(tmp_path / "p.toml").rows[0].per_hour == 2
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "odd.csv").write_bytes(b"l4,\xff\xfe")
    (tmp_path / "huge.toml").write_text("#" * (2 << 20))
    for name in ("missing.toml", "pipe.csv", "odd.csv", "huge.toml", "."):
        with pytest.raises(UsageError, match="price table"):
            read_prices(tmp_path / name)


def test_a_billion_tokens() -> None:
    assert cost_per_billion_tokens(2.49, 131_072.0) == pytest.approx(5.276998, rel=1e-6)
    assert cost_per_billion_tokens(3600.0, 1e9) == pytest.approx(1.0)
    for price, speed in ((None, 1.0), (1.0, None), (1.0, 0.0), (1.0, float("inf")), (1.0, -1.0)):
        assert cost_per_billion_tokens(price, speed) is None

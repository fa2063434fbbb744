"""The figures of the report: what each was divided by and where that came from, and what cannot be."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from fake_views import FakeViews
from test_report_series import known, records

from overnight.modelsize import Counts
from overnight.printable import harmless
from overnight.report.page import page
from overnight.report.text import text
from overnight.report.value import build
from overnight.spec import RunSpec

DEVICES = {
    "fact": "devices",
    "attempt": 1,
    "at": "2026-11-29T22:00:00.000Z",
    "gpus": [
        {"index": index, "name": "NVIDIA A100-SXM4-80GB", "uuid": f"GPU-{index}", "units": 108, "memory": 85 * 10**9}
        for index in range(2)
    ],
    "maker": "nvidia",
    "driver": "550.54.15",
}


def value(
    facts: list[dict[str, Any]] | None = None,
    one: dict[str, Any] | None = None,
    rows: list[dict[str, Any]] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """Return the report of a run with these settings: 140 steps of half a second, 1,000 tokens each."""
    found = known(FakeViews(records((1, 140)) if rows is None else rows), facts, **(one or {}))
    found.spec = msgspec.structs.replace(found.spec or _no_spec(), **spec)
    return build(found)


def _no_spec() -> RunSpec:
    raise AssertionError


def figures(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in found["figures"]}


def test_every_share_is_labelled_and_says_what_it_was_divided_by() -> None:
    one = {"tokens_per_second_avg": 2000.0, "tokens_per_second_clean": 2500.0}
    found = figures(value(one=one, layers=2, seq_len=10, width=8, tokens_source="--tokens-per-step"))
    assert found["mfu"]["value"] == pytest.approx(6e6 * 2000 / 1e12)
    assert found["mfu_clean"]["value"] == pytest.approx(6e6 * 2500 / 1e12)
    assert found["mfu_wall"]["value"] == pytest.approx(6e6 * 1000 / 1e12)
    assert found["mfu_attention"]["value"] == pytest.approx((6e6 + 12 * 2 * 8 * 10) * 2000 / 1e12)
    assert found["flops_per_token"]["value"] == 6_000_000
    assert found["flops_per_token_attention"]["value"] == 6_001_920
    assert "6N + 12*L*H*h*T with L = 2, T = 10, H*h = 8" in found["mfu_attention"]["provenance"]
    labels = {name: found[name]["label"] for name in ("mfu", "mfu_clean", "mfu_wall", "tokens_per_second_wall")}
    assert labels == {
        "mfu": "MFU", "mfu_clean": "MFU (clean steps)", "mfu_wall": "MFU (all time)",
        "tokens_per_second_wall": "tokens/s (all time)",
    }  # fmt: skip
    assert "12*L*T*d" not in str(found)


def test_the_peak_of_the_device_that_the_driver_names() -> None:
    made = value([DEVICES], peak_tflops=None, dtype="bf16", devices=2)
    found = figures(made)
    assert found["peak_flops"]["value"] == 312e12
    for said in ("dense bf16 of A100", "sparse 624", "as its driver names it"):
        assert said in found["peak_flops"]["provenance"]
    assert found["mfu"]["value"] == pytest.approx(6e6 * 2000 / (2 * 312e12))
    assert "2 x 312 TFLOP/s (dense bf16 of A100" in found["mfu"]["provenance"]
    assert any("2 x NVIDIA A100-SXM4-80GB, driver 550.54.15" in one["text"] for one in made["timeline"])
    assert [gpu["name"] for gpu in made["hardware"]["gpus"]] == ["NVIDIA A100-SXM4-80GB"] * 2


def test_without_a_dtype_the_peak_is_unknown_and_says_what_to_give() -> None:
    found = value([DEVICES], peak_tflops=None)
    assert figures(found)["mfu"]["value"] is None
    assert "give --dtype" in figures(found)["mfu"]["provenance"]
    assert "give --dtype" in found["unknown"]["peak_flops"]


def test_more_gpus_than_devices_disagree() -> None:
    found = value([DEVICES], peak_tflops=None, dtype="bf16", devices=1)
    assert any("on 2 GPUs, and --devices says 1" in said for said in found["disagreements"])
    assert "on 2 GPUs, and --devices says 1" in " ".join(found["next"])
    assert "Sources that disagree" in page(found)
    agreed = value([DEVICES], peak_tflops=None, dtype="bf16", devices=2)
    assert agreed["disagreements"] == []


def test_what_the_status_says_of_disagreements_is_shown_once() -> None:
    said = "the printed step time, 0.25 s, is not what passes between two steps, 0.5 s; the printed one is used"
    found = value(one={"disagreements": [said]})
    assert found["disagreements"] == [said]
    assert text(found, clean=harmless).count("0.25 s, is not what") == 1


@pytest.mark.parametrize("devices", [1, 8])
def test_above_all_that_there_is_is_an_error_and_not_a_figure(devices: int) -> None:
    made = value(params=10**9, devices=devices)  # 6e9 FLOPs * 2,000 tokens/s over 1 TFLOP/s a device
    found = figures(made)
    share = 6e9 * 2000 / 1e12 / devices
    assert found["mfu"]["value"] == pytest.approx(share)
    assert found["mfu"]["impossible"] is True
    assert found["mfu"]["text"] == f"not possible: {share * 100:.1f}%"
    assert "an input is wrong" in found["mfu"]["provenance"]
    assert made["reasons"]
    assert made["reasons"][0] in found["mfu"]["provenance"]
    assert made["next"][0].startswith(f"MFU {share * 100:.1f}% cannot be: an input is wrong. Likely: ")
    assert 'class="value wrong"' in page(made)
    assert made["reading"] == []
    assert ("--devices 12 or more" in made["reasons"][0]) is (devices == 1)


def test_what_can_be_carries_no_mark() -> None:
    made = value()
    assert not [one for one in made["figures"] if "impossible" in one]
    assert 'class="value wrong"' not in page(made)


def test_hfu_only_where_recomputation_is_given() -> None:
    assert "hfu" not in figures(value())
    found = figures(value(recompute="full"))
    assert found["hfu"]["value"] == pytest.approx(found["mfu"]["value"] * 4 / 3)
    assert "computed again" in found["hfu"]["provenance"]


def test_a_mixture_of_experts_counts_what_one_token_uses() -> None:
    counts = Counts(total=1_000_000, source="config.json", active=250_000)
    found = figures(value(counts=counts))
    assert found["mfu"]["value"] == pytest.approx(6 * 250_000 * 2000 / 1e12)
    assert found["params_active"]["value"] == 250_000
    assert "6N (active) with N = 250,000 that one token uses of 1,000,000" in found["mfu"]["provenance"]


def test_two_labelled_rates_where_the_log_tells_padding_apart() -> None:
    rows = [
        {"step": step, "loss": 1.0, "dt_s": 0.5, "tokens": 4096.0, "non_pad": 2900.0 + step % 2}
        for step in range(1, 41)
    ]
    found = value(rows=rows, tokens_per_step=None)
    told = figures(found)
    assert told["tokens_per_second"]["value"] == pytest.approx(8192)
    assert told["useful_tokens_per_second"]["value"] == pytest.approx(2 * 2900.5)
    assert "padding too" in told["tokens_per_second"]["provenance"]
    assert told["mfu"]["value"] == pytest.approx(6e6 * 8192 / 1e12)  # all that were processed
    said = text(found, clean=harmless)
    assert "tokens/s" in said
    assert "useful tokens/s" in said
    assert "useful_tokens_per_second" not in figures(value())


def test_money_for_work_for_lost_work_and_for_tokens() -> None:
    rows = records((1, 116), (81, 100), (81, 140))
    found = value(rows=rows, price=36.0, price_source="2 x 18/h (a100) from prices.toml", one={"cost": 1.4})
    cost = found["cost"]
    assert (cost["spent"], cost["price"], cost["lost"]) == (1.4, 36.0, 0.28)
    assert cost["per_billion_tokens"] == pytest.approx(36 / 3600 / 1000 * 1e9)
    assert cost["price_source"] == "2 x 18/h (a100) from prices.toml"
    said = " ".join(text(found, clean=harmless).split())
    for part in ("10,000.00 for a billion tokens", "0.28 of it for steps", "36 an hour (from 2 x 18/h (a100)"):
        assert part in said
    assert "10,000.00" in page(found)


def test_no_price_no_money() -> None:
    found = value(price=None)
    assert set(found["cost"].values()) == {None}
    assert "billion tokens" not in text(found, clean=harmless)


def test_the_reading_rests_on_the_evidence_of_the_run() -> None:
    rows = [{"step": step, "loss": 1.0, "dt_s": 0.5, "data_time": 0.2 if step > 10 else 0.5} for step in range(1, 141)]
    found = value([DEVICES], rows=rows, dtype="bf16", peak_tflops=None, devices=2)
    assert found["evidence"]["data_wait"] == pytest.approx(0.4)
    assert any("40.00% of the step time is waiting for data" in said for said in found["reading"])
    assert "What the figures mean" in page(found)
    assert "what the figures mean" in text(found, clean=harmless)
    few = value([DEVICES], rows=rows[:15], dtype="bf16", peak_tflops=None, devices=2)
    assert few["reading"] == []


def test_evaluations_are_no_jitter_and_cost_their_share() -> None:
    rows = []
    for step in range(1, 201):
        slow = step % 10 == 1 and step > 1
        rows.append({"step": step, "loss": 1.0, "dt_s": 2.5 if slow else 0.5, "offset": 100 * step})
        if step % 10 == 0:
            rows.append({"step": step, "loss": 2.0, "kind": "eval", "offset": 100 * step + 50})
    found = value(rows=rows)["evidence"]
    assert (found["median_s"], found["slow_s"]) == (0.5, 0.5)
    assert found["evaluations"] == 20
    assert found["evaluation"] == pytest.approx(19 * 2.0 / (181 * 0.5 + 19 * 2.5))


def test_an_old_status_that_knows_nothing_of_all_this() -> None:
    found = value(one={"tokens_per_second_avg": 2000.0})
    told = figures(found)
    assert told["mfu"]["text"] == "1.2%"
    assert told["mfu_clean"]["value"] is None
    assert "None" not in text(found, clean=harmless)

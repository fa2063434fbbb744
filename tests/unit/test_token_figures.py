"""However a program prints its tokens, the report says one speed: its goodput's is the meter's average."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from overnight.report.bare import of_log
from overnight.spec import RunSpec
from overnight.wiring import make_monitor

TOKENS = 32768
DT_S = 0.5
STEPS = 3000

SHAPES: dict[str, tuple[Callable[[int], str], dict[str, float], float]] = {
    "of a step": (lambda _: f"tokens: {TOKENS}", {}, 1),
    "of a step, each another": (lambda i: f"tokens: {TOKENS + i % 3 - 1}", {}, 1),
    "a counter": (lambda i: f"tokens: {(i + 1) * TOKENS}", {}, 1),
    "a counter that is about even": (lambda i: f"tokens: {(i + 1) * TOKENS + i % 7}", {}, 1),
    "a counter, and given": (lambda i: f"tokens: {(i + 1) * TOKENS}", {"tokens_per_step": 100.0}, 100 / TOKENS),
    "a total": (lambda i: f"total_tokens: {(i + 1) * TOKENS}", {}, 1),
    "a rate": (lambda _: f"tok/s: {TOKENS / DT_S:.1f}", {"devices": 8}, 1),
    "a rate of one device": (lambda _: "tps: 1,000", {"devices": 8}, 8000 * DT_S / TOKENS),
    "given": (lambda _: "lr: 0.1", {"tokens_per_step": TOKENS, "devices": 8}, 1),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_goodput_and_figures_tell_one_speed(shape: str, tmp_path: Path) -> None:
    words, given, share = SHAPES[shape]
    log = tmp_path / "train.log"
    log.write_text("".join(f"step: {i}, loss: 2.5, {words(i)}, dt: {DT_S}\n" for i in range(STEPS)), encoding="utf-8")
    spec = msgspec.structs.replace(RunSpec(name="x", argv=(), executable="", cwd=str(tmp_path), log=str(log)), **given)
    value = of_log(log, spec, {}, make_monitor(spec, lambda _: None), 0.0)
    figure = next(one["value"] for one in value["figures"] if one["name"] == "tokens_per_second")
    stepping = value["goodput"]["stepping_tokens_per_s"]
    assert stepping == pytest.approx(share * TOKENS / DT_S, rel=2e-3)
    assert figure == pytest.approx(stepping, rel=1e-6 if "even" not in shape else 1e-4)
    labels = {one["name"]: one["label"] for one in value["charts"]}
    assert labels.get("tokens_per_s") in (
        None,
        "tokens/s of one device" if shape.endswith("one device") else "tokens/s",
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_so_they_do_when_the_steps_go_back(shape: str, tmp_path: Path) -> None:
    words, given, share = SHAPES[shape]
    log = tmp_path / "train.log"
    rows = [*range(700), *range(500, 900), *range(850, 1300)]
    log.write_text("".join(f"step: {i}, loss: 2.5, {words(i)}, dt: {DT_S}\n" for i in rows), encoding="utf-8")
    spec = msgspec.structs.replace(RunSpec(name="x", argv=(), executable="", cwd="/", log=str(log)), **given)
    value = of_log(log, spec, {}, make_monitor(spec, lambda _: None), 0.0)
    figure = next(one["value"] for one in value["figures"] if one["name"] == "tokens_per_second")
    assert value["goodput"]["redone_steps"] == 250
    assert value["goodput"]["stepping_tokens_per_s"] == pytest.approx(share * TOKENS / DT_S, rel=2e-3)
    assert figure == pytest.approx(value["goodput"]["stepping_tokens_per_s"], rel=2e-3)

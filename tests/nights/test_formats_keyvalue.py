"""Whole logs of known programs, read by the general reader: those it must read, and those it must leave alone.

The samples here are our own; the logs beside the repository are read too where they are.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from overnight.events import Record, jsonable
from overnight.readers.keyvalue import KeyValue
from overnight.tail import Tail

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases" / "formats"
SAMPLES = Path(__file__).parent / "shapes"
FIELDS = ("step", "loss", "dt_s", "tokens_per_s", "samples_per_s", "mfu", "lr", "grad_norm", "epoch")
READ = (
    *("nanogpt", "nanogpt-nan", "build-nanogpt", "llm.c-cpu", "llm.c-cuda", "maxtext", "megatron-lm"),
    *("megatron-deepspeed", "deepspeed-pipeline", "detectron2", "litgpt-pretrain", "modded-nanogpt", "nanochat-base"),
    *("odd-interleaved-ranks", "odd-reset-counter-1-of-1000", "torchtitan", "torchtitan-color", "torchtune-stdout"),
)
SILENT = (
    *("odd-not-progress", "keras-verbose1", "keras-verbose2", "lightning-default", "lightning-tqdm", "mmengine-iter"),
    *("hf-trainer-tqdm", "hf-trainer-printer", "hf-trainer-nan-filtered", "hf-trainer-resumed", "accelerate-examples"),
    *("composer-llmfoundry", "deepspeed-engine", "fastai", "llm.c-main.log", "mmengine", "olmo-core", "ultralytics"),
)


def records_of(data: bytes) -> list[Record]:
    tail, reader = Tail(), KeyValue()
    lines = tail.feed(data) + tail.flush()
    return [record for line in lines for record in reader(line, 0.0, 0) or ()]


def row(record: Record) -> dict[str, Any]:
    """Return what is known of a record, as the expected rows have it."""
    found = {name: jsonable(getattr(record, name)) for name in FIELDS if getattr(record, name) is not None}
    return {**found, "per_gpu": True} if record.per_device else found


def rows_of(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(text) for text in path.read_text("utf-8").splitlines()]
    return [{key: value for key, value in one.items() if key in {*FIELDS, "per_gpu"}} for one in rows]


def case(name: str) -> Path:
    found = [path for path in CASES.glob(f"*/{name}.log") if path.is_file()]
    if not found:
        pytest.skip(f"no logs beside the repository: {CASES}")
    return found[0]


def same(value: Any, expected: Any) -> bool:
    if isinstance(value, float) and isinstance(expected, (int, float)):
        return math.isclose(value, expected, rel_tol=1e-9)
    return bool(value == expected)


@pytest.mark.parametrize("name", READ)
def test_a_log_beside_the_repository_is_read(name: str) -> None:
    log = case(name)
    records = [record for record in records_of(log.read_bytes()) if record.kind == "train"]
    lowest = min((record.rank for record in records if record.rank is not None), default=None)
    rows = [row(record) for record in records if record.rank == lowest]
    expected = rows_of(log.parent / f"{name}.expected.jsonl")
    assert [sorted(one) for one in rows] == [sorted(one) for one in expected]
    pairs = list(zip(rows, expected, strict=True))
    assert not [pair for pair in pairs if not all(same(pair[0][key], pair[1][key]) for key in pair[0])]


@pytest.mark.parametrize("name", SILENT)
def test_a_log_that_needs_a_reader_of_its_own_is_left_alone(name: str) -> None:
    assert [row(record) for record in records_of(case(name).read_bytes())] == []


@pytest.mark.parametrize("log", sorted(SAMPLES.glob("*.log")), ids=lambda path: path.stem)
def test_a_sample_of_each_shape_is_read(log: Path) -> None:
    data, expected = log.read_bytes(), rows_of(log.parent / f"{log.stem}.expected.jsonl")
    assert expected
    for times in (1, 4):  # from the second time on by the shapes that were learned
        assert [row(record) for record in records_of(data * times) if record.kind == "train"] == expected * times


def test_every_rank_keeps_its_number() -> None:
    assert [record.rank for record in records_of((SAMPLES / "ranks.log").read_bytes())] == [1, 0]

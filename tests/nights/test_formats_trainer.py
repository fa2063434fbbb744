"""Whole logs through the verb ``read``: those of Trainer and of JSON lines, and those that no reader fits yet.

The samples here are our own; the logs beside the repository are read too where they are.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from overnight.cli import main
from overnight.readers.pattern import Pattern
from overnight.readers.programs import recognise
from overnight.readers.sniff import Sniffer
from overnight.tail import Tail
from overnight.wiring import READERS

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases" / "formats"
KEYS = "kind step loss dt_s tokens_per_s samples_per_s mfu lr grad_norm epoch".split()
READ = {
    **dict.fromkeys(("hf-trainer-nan-filtered", "hf-trainer-nan-unfiltered", "hf-trainer-printer"), "trainer"),
    **dict.fromkeys(("hf-trainer-resumed", "hf-trainer-tqdm", "hf-trainer-v4", "axolotl", "trl-grpo"), "trainer"),
    **dict.fromkeys(("fairseq-json", "llamafactory.trainer_log.jsonl"), "jsonlines"),
    "odd-interleaved-ranks": "keyvalue",
}
UNREAD = {
    **dict.fromkeys(("keras-verbose1", "keras-verbose2"), "Keras"),
    **dict.fromkeys(("lightning-default", "lightning-tqdm"), "Lightning"),
    **dict.fromkeys(("mmengine-iter", "mmengine"), "mmengine"),
    "accelerate-examples": "Accelerate examples",
    "composer-llmfoundry": "Composer",
    "deepspeed-engine": "DeepSpeed engine",
    "fastai": "fastai",
    "llm.c-main.log": "llm.c main.log",
    "olmo-core": "OLMo-core",
    "ultralytics": "ultralytics",
}


def case(name: str) -> Path:
    found = list(CASES.glob(f"*/{name}.log"))
    if not found:
        pytest.skip(f"no logs beside the repository: {CASES}")
    return found[0]


def read(path: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert main(["read", str(path), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all(list(row) == KEYS for row in rows)
    return [row for row in rows if row["kind"] == "train"]


def same(value: Any, expected: Any) -> bool:
    if isinstance(value, (int, float)) and isinstance(expected, (int, float)):
        return math.isclose(value, expected, rel_tol=1e-5)  # some expected values are rounded to 6 digits
    return bool(value == expected)


@pytest.mark.parametrize("name", READ)
def test_every_field_is_as_expected(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = case(name)
    expected = [json.loads(line) for line in path.with_name(f"{path.stem}.expected.jsonl").read_text().splitlines()]
    rows = read(path, capsys)
    assert len(rows) == len(expected)
    for row, want in zip(rows, expected, strict=True):
        if "step_from" in want:  # worked out by a person, for it is not printed
            want["step"] = None
        assert {key: row[key] for key in KEYS[1:] if not same(row[key], want.get(key))} == {}


@pytest.mark.parametrize("name", READ)
def test_the_reader_is_the_right_one_and_says_why(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["read", str(case(name))]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert f".log is read by {READ[name]}: " in told
    assert f"Why: {READ[name]} has read " in told


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("size", [1, 7, 4096])
def test_any_chunks_give_the_same_records(name: str, size: int) -> None:
    data = case(name).read_bytes()

    def records(pieces: list[bytes]) -> str:
        tail, sniffer = Tail(), Sniffer([make() for make in READERS.values()])
        found = [record for piece in pieces for line in tail.feed(piece) for record in sniffer(line, 0.0, 0)]
        found += [record for line in tail.flush() for record in sniffer(line, 0.0, 0)]
        return str([*found, *sniffer.flush()])

    assert records([data[at : at + size] for at in range(0, len(data), size)]) == records([data])


@pytest.mark.parametrize("name", UNREAD)
def test_no_reader_fits_the_others_and_the_program_is_named(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = case(name)
    assert main(["read", str(path), "--json"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert "no reader fits" in told.err
    assert f"it looks like the log of {UNREAD[name]}: " in told.err


@pytest.mark.parametrize("name", UNREAD)
def test_the_advised_pattern_reads_what_stands_on_one_line(name: str) -> None:
    path = case(name)
    tail = Tail()
    lines = tail.feed(path.read_bytes()) + tail.flush()
    program = recognise(line.text for line in lines)
    assert program is not None
    if program.pattern is None or name in ("lightning-default", "lightning-tqdm", "ultralytics"):
        pytest.skip("its figures do not stand on one line each")
    reader = Pattern(program.pattern)
    records = [record for line in lines for record in reader(line, 0.0, 0) or ()]
    expected = [json.loads(line) for line in path.with_name(f"{path.stem}.expected.jsonl").read_text().splitlines()]
    # as text, for a NaN is equal to none
    wanted = [str(float(want["loss"]) if "loss" in want else None) for want in expected]
    assert wanted
    assert [str(record.loss) for record in records] == wanted


def test_what_is_no_progress_is_not_read_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["read", str(case("odd-not-progress")), "--json"]) == 1
    assert [json.loads(line)["kind"] for line in capsys.readouterr().out.splitlines()] in ([], ["eval"])


def test_a_night_of_our_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Loading, training, evaluations, saves, a restart in the same log, a NaN, an end in the middle of a line."""

    def bar(n: int, total: int = 120, title: str = "") -> str:
        return f"\r{title}{100 * n // total:3d}%|{'#' * (n % 9):9s}| {n}/{total} [01:02<03:04,  1.50s/it]"

    def logged(n: int, loss: str, norm: str = "0.5") -> str:
        said = {"loss": loss, "grad_norm": norm, "learning_rate": "1e-05", "epoch": f"{n / 60:.4g}"}
        return bar(n - 1) + "\r" + " " * 60 + f"\r{said}\n" + bar(n)

    def evaluated(n: int) -> str:
        done = f"{{'eval_loss': '3.5', 'eval_runtime': '1.2', 'epoch': '{n / 60:.4g}'}}"
        return "\n" + bar(0, 25) + "\n" + bar(25, 25) + "\r" + " " * 60 + f"\r\n{done}\n" + bar(n) + "\n" + bar(25, 25)

    shards = "\n" + bar(0, 2, "Writing model shards: ") + bar(2, 2, "Writing model shards: ") + "\n"
    text = bar(0, 3, "Loading checkpoint shards: ") + bar(3, 3, "Loading checkpoint shards: ") + "\n" + bar(0)
    text += "".join(logged(n, f"{9 - n / 20:.4g}") for n in (10, 20, 30)) + evaluated(30) + shards + logged(40, "7")
    text += "\nTraceback (most recent call last):\nKilled\n" + bar(0) + bar(30) + logged(40, "7.1") + logged(50, "6.5")
    text += logged(60, "0", "nan") + bar(61) + "\r" + " " * 60 + "\r{'loss': '0', 'grad_norm': 'nan', 'learning_rate'"
    path = tmp_path / "night.log"
    path.write_text(text)
    assert [(row["step"], row["loss"], row["grad_norm"]) for row in read(path, capsys)] == [
        (10, 8.5, 0.5),
        (20, 8.0, 0.5),
        (30, 7.5, 0.5),
        (40, 7.0, 0.5),
        (40, 7.1, 0.5),
        (50, 6.5, 0.5),
        (60, 0.0, "nan"),
    ]

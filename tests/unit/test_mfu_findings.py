"""What ``mfu`` and the report say of notes, printed tokens, suspicious results, and inputs that are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from overnight.accelerators.naming import match
from overnight.accelerators.peaks import peak_of
from overnight.calculator import Answer, Evidence, Question
from overnight.calculator.answer import answer
from overnight.cli import main
from overnight.cli.mfupage import text as lines
from overnight.modelsize import Counts
from overnight.modelsize.named import from_name
from overnight.printable import harmless
from overnight.report.bare import of_log
from overnight.report.page import page
from overnight.report.text import text
from overnight.spec import RunSpec
from overnight.wiring import make_monitor

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100,
}  # fmt: skip
A100 = {"gpu": "a100", "dtype": "bf16"}


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERNIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["mfu", *words])
    told = capsys.readouterr()
    return code, told.out, told.err


def ask(**given: Any) -> Answer:
    return answer(Question(**{"sources": {name: f"--{name}" for name in given}, **A100, **given}))


# -- notes of the counts -----------------------------------------------------------------------------------------------


def test_what_a_config_leaves_to_defaults_is_told_below_the_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    Path("config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    code, out, _ = said(capsys, "--config", "config.json")
    assert code == 0
    assert "  note               not in the config, so llama's own default:" in out
    assert "intermediate_size 11008" in out
    assert out.index("parameters ") < out.index("  note ") < out.index("FLOPs per token")


def test_a_note_is_harmless_and_any_length() -> None:
    found = ask(counts=Counts(total=1, source="x", notes=("\x1b[2J" + "a word " * 40,)))
    assert all(len(line) <= 80 and "\x1b" not in line for line in lines(found))


def test_the_report_has_the_notes_with_the_parameters(tmp_path: Path) -> None:
    note = "not in the config, so llama's own default: intermediate_size 11008"
    counts = Counts(total=1000, source="config.json", notes=(note,))
    value = report(tmp_path, spec={"counts": counts, "params": 1000})
    params = next(one for one in value["figures"] if one["name"] == "params")
    assert params["provenance"].endswith(f"; note: {note}")
    assert "intermediate_size 11008" in " ".join(text(value, clean=harmless).split())
    assert "intermediate_size 11008" in page(value)


# -- tokens as printed -------------------------------------------------------------------------------------------------


def report(tmp_path: Path, *, tokens: str = "", spec: dict[str, Any] | None = None) -> dict[str, Any]:
    log = training(tmp_path, tokens)
    given = RunSpec(name="x", argv=(), executable="", cwd=str(tmp_path), log=str(log), **(spec or {}))
    return of_log(log, given, {}, make_monitor(given, lambda _: None), 0.0)


def training(tmp_path: Path, tokens: str = "") -> Path:
    log = tmp_path / "train.log"
    log.write_text("".join(f"step: {at}, loss: 2.5, dt: 0.05{tokens}\n" for at in range(1, 61)), encoding="utf-8")
    return log


def test_tokens_that_a_log_prints_lead_in_the_words_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = str(training(tmp_path, ", tokens: 500"))
    words = (log, "--params", "124M", "--tokens-per-step", "1000", "--gpu", "a100", "--dtype", "bf16")
    code, out, _ = said(capsys, *words)
    assert code == 0
    assert "tokens per step      500  (as the log train.log prints them)" in out
    assert "10,000 tokens/s" in out
    assert "1,000 tokens a step" not in out
    assert "a micro-step of 500 tokens" in " ".join(out.split())
    assert json.loads(said(capsys, *words, "--json")[1])["tokens_per_step"] == 500


def test_beside_a_time_given_by_hand_the_given_tokens_lead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = str(training(tmp_path, ", tokens: 500"))
    _, out, _ = said(capsys, log, "--params", "124M", "--tokens-per-step", "1000", "--dt", "0.04")
    assert "1,000 / 0.04 s = 25,000 tokens/s" in out
    assert "the latter is used" not in " ".join(out.split())


def test_without_printed_tokens_the_given_ones_stand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = said(capsys, str(training(tmp_path)), "--tokens-per-step", "1000")
    assert "20,000 tokens/s" in out
    assert "1,000 tokens a step" in " ".join(out.split())


def test_the_report_shows_the_tokens_that_are_used(tmp_path: Path) -> None:
    asked = {
        "params": 124_000_000, "tokens_per_step": 1000.0, "gpu": "a100", "dtype": "bf16", "peak_tflops": 312.0,
        "peak_source": "312 TFLOP/s: dense bf16 of A100",
    }  # fmt: skip
    value = report(tmp_path, tokens=", tokens: 500", spec=asked)
    tokens = next(one for one in value["figures"] if one["name"] == "tokens_per_step")
    assert tokens["value"] == 500
    assert "as the log prints them; 1,000 " in tokens["provenance"]
    assert tokens["provenance"].endswith("is not used")
    assert value["evidence"]["tokens_per_step"] == 500
    assert any("a micro-step of 500 tokens" in one for one in value["reading"])


# -- results that are too good, or impossible --------------------------------------------------------------------------


@pytest.mark.parametrize("evidence", [None, Evidence(kind="run", name="quiet", data_wait=0.0)])
def test_an_mfu_above_all_that_is_published_is_suspicious(evidence: Evidence | None) -> None:
    counts = Counts(total=10**9, source="--params")
    reading = " ".join(ask(counts=counts, tokens_per_second=40_000.0, evidence=evidence).reading)
    assert "76.92% is suspicious" in reading
    for check in ("N (1,000,000,000)", "tokens of a step", "ends before the device is done", "number of devices (1)"):
        assert check in reading
    assert "profile" not in reading
    usual = " ".join(ask(counts=counts, tokens_per_second=30_000.0, evidence=evidence).reading)
    assert "suspicious" not in usual
    assert "profile" in usual


def test_a_result_that_only_attention_makes_impossible_is_told() -> None:
    found = ask(counts=from_name("gpt2"), tokens_per_second=200_000.0, seq_len=32768)
    assert found.mfu is not None
    assert found.mfu < 0.65
    assert any("with attention it is above 100%" in one for one in found.reading)


NANO = {"batch": 12, "seq_len": 1024, "devices": 8, "dt_s": 0.25}


def test_accumulation_of_all_ranks_together_is_the_first_reason() -> None:
    over = ask(counts=from_name("gpt2"), accumulate=40, **NANO).impossible
    assert over is not None
    assert over.reasons[0] == "accumulate 40 may be for all ranks (nanoGPT): 5 each, 58.81%"


@pytest.mark.parametrize(
    "given",
    [
        {"accumulate": 41},  # not to be divided evenly
        {"accumulate": 400},  # would not fit
        {"accumulate": 40, "devices": 1},
        {"accumulate": 40, "tokens_per_step": 4e6},  # tokens that were not made with it
        {"accumulate": 40, "tokens_per_second": 1.6e7},
    ],
)
def test_that_reason_is_given_only_where_it_fits(given: dict[str, Any]) -> None:
    over = ask(counts=from_name("gpt2"), **{**NANO, **given}).impossible
    assert over is not None
    assert not any("nanoGPT" in one for one in over.reasons)


def test_an_encoder_decoder_has_no_negative_attention() -> None:
    found = ask(counts=from_name("t5-small"), seq_len=512, target_len=114)
    names = {one.name for one in found.working}
    assert "flops_per_token_attention" in names
    assert "attention" not in names
    assert "attention" in {one.name for one in ask(counts=from_name("gpt2"), seq_len=512).working}


# -- what is refused, and what is not known ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--gpu", "a100", "--dtype", "bf16", "--convention", "foo"), "there is no convention 'foo'"),
        (("--gpu", "a100", "--convention", "palmm"), "there are palm"),
        (("--gpu", "a100", "--convention", "hfu-full"), "that is HFU"),
        (("--gpu", ""), "give a name such as h100-pcie"),
    ],
)
def test_what_is_refused_without_any_model(
    words: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = said(capsys, *words)
    assert code == 2
    assert sentence in err


def test_a_config_without_a_family_says_once_what_to_give(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.json").write_text('{"a": 1}', encoding="utf-8")
    code, _, err = said(capsys, "--config", "bad.json")
    assert code == 2
    assert err.count("--params") == 1
    assert err.rstrip().endswith("; give --params")


def test_every_figure_that_is_null_for_want_of_an_input_says_of_which() -> None:
    found = answer(Question())
    names = (
        "tokens_per_step tokens_per_second flops_per_token tflops peak_flops mfu mfu_attention hfu ln_vocab "
        "cost_per_billion_tokens"
    )
    assert set(found.unknown) == set(names.split())
    assert all(getattr(found, name) is None for name in found.unknown)
    full = ask(counts=from_name("gpt2"), tokens_per_step=32768.0, dt_s=0.25, seq_len=1024, recompute="full", price=1.0)
    assert full.unknown == {}
    assert full.hfu is not None
    assert full.mfu_attention is not None


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_hfu_is_null_only_with_the_words_of_what_it_lacks(recompute: str) -> None:
    for counts in (Counts(total=10**9, source="--params"), from_name("gpt2"), None):
        for seq_len in (None, 1024):
            found = ask(counts=counts, seq_len=seq_len, recompute=recompute, tokens_per_second=1000.0)
            assert (found.hfu is None) == ("hfu" in found.unknown), (counts, seq_len)


def test_only_dtypes_that_can_be_given_are_offered() -> None:
    said = peak_of(match("h100-pcie"), None).source
    offered, _, others = said.partition("; also in the table: ")
    assert "fp8 1513" in offered
    assert "int8" not in offered
    assert "int8 1513" in others


def test_the_sentence_of_a_slice_has_its_share_of_everything() -> None:
    said = peak_of(match("NVIDIA A100-SXM4-40GB MIG 1g.5gb"), "bf16")
    assert "sparse 624" not in said.source
    assert said.sparse_flops is not None
    assert f"sparse {said.sparse_flops / 1e12:.6g}" in said.source

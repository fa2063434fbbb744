"""The calculator by values: which source leads, what each figure is divided by, what is said of what does not fit."""

from __future__ import annotations

import math
from typing import Any

import pytest

from overnight.calculator import Answer, Evidence, Question
from overnight.calculator.answer import answer
from overnight.calculator.device import dtype_of
from overnight.calculator.size import Declared, counted
from overnight.modelsize import Attention, Counts

N = 124_356_864
A100 = {"gpu": "a100", "dtype": "bf16"}


def ask(**given: Any) -> Answer:
    """Answer a question whose parameters may be a plain number, with the flags' own names as sources."""
    params = given.pop("params", None)
    shape = {name: given.pop(name) for name in ("layers", "width", "active", "trainable") if name in given}
    if params is not None:
        given["counts"] = Counts(total=params, source="--params", **shape)
    sources = {name: f"--{name.replace('_', '-')}" for name in given}
    return answer(Question(sources={**sources, "dt_s": "--dt"}, **given))


def line(found: Answer, name: str) -> str:
    one = next(one for one in found.working if one.name == name)
    return f"{one.working} = {one.result} ({one.source})"


def test_the_seed_figures() -> None:
    found = ask(params=N, tokens_per_step=32768.0, dt_s=0.25, vocab_size=50257, **A100)
    assert (found.tokens_per_second, found.flops_per_token) == (131_072, 746_141_184)
    assert found.tflops == pytest.approx(97.798217, abs=1e-6)
    assert found.mfu == pytest.approx(0.31345582, abs=1e-8)
    assert (found.convention, found.convention_key, found.peak_flops) == ("6N", "6n", 312e12)
    assert found.ln_vocab == math.log(50257)
    assert line(found, "tokens_per_second") == "32,768 / 0.25 s = 131,072 tokens/s (tokens per step / --dt)"
    assert line(found, "flops_per_token") == "6 * 124,356,864 = 746,141,184 FLOPs/token (6N)"
    assert line(found, "mfu") == "97.80 / 312 = 31.35% (6N)"
    assert "dense bf16" in line(found, "peak")
    assert found.mfu_attention is None
    assert found.disagreements == ()


def test_with_attention_beside_it() -> None:
    found = ask(params=N, layers=12, width=768, seq_len=1024, tokens_per_step=32768.0, dt_s=0.25, **A100)
    assert found.mfu == pytest.approx(0.31345582, abs=1e-8)
    assert found.mfu_attention == pytest.approx(0.36103085, abs=1e-8)
    assert "113,246,208" in line(found, "attention")
    others = {one.key: one.flops_per_token for one in found.alternatives}
    assert (others["palm"], others["causal"]) == (859_387_392, 802_764_288)
    assert "6n" not in {one.key for one in found.alternatives}


@pytest.mark.parametrize(
    ("given", "speed"),
    [
        ({"tokens_per_second": 80_000.0}, 80_000),
        ({"tokens_per_second": 10_000.0, "per_device": True}, 80_000),
        ({"tokens_per_step": 20_000.0, "dt_s": 0.25}, 80_000),
        ({"batch": 10, "seq_len": 1000, "dt_s": 1.0}, 80_000),
        ({"batch": 10, "seq_len": 1000, "world_size": 4, "accumulate": 2, "dt_s": 1.0}, 80_000),
    ],
)
def test_eight_devices_and_one_truth(given: dict[str, Any], speed: float) -> None:
    """Global tokens over the peaks of all devices, however the tokens were given."""
    found = ask(params=10**9, devices=8, **given, **A100)
    assert (found.tokens_per_second, found.devices) == (speed, 8)
    assert found.tflops == pytest.approx(60.0)
    assert found.mfu == pytest.approx(6e9 * 80_000 / (8 * 312e12))
    assert found.mfu == pytest.approx(0.192, abs=5e-4)


def test_accumulation_counts_for_an_optimizer_step() -> None:
    found = ask(params=10**9, batch=4, accumulate=8, seq_len=1024, world_size=2, dt_s=1.0, **A100)
    assert (found.tokens_per_step, found.tokens_per_second, found.devices) == (65_536, 65_536, 2)
    assert "one for each of --world-size" in line(found, "devices")


def test_a_factor_between_two_sources_is_named() -> None:
    found = ask(params=10**9, tokens_per_step=8192.0, batch=4, accumulate=8, seq_len=2048, dt_s=1.0, **A100)
    assert found.tokens_per_second == 8192
    assert "65,536, 8x of it, which is the accumulation" in found.disagreements[0]
    found = ask(params=10**9, tokens_per_second=1000.0, tokens_per_step=8000.0, dt_s=1.0, devices=8, **A100)
    assert found.tokens_per_second == 1000
    assert "8x of it, which is the number of devices" in found.disagreements[0]
    assert ask(params=10**9, tokens_per_second=1000.0, tokens_per_step=1001.0, dt_s=1.0).disagreements == ()


# -- what cannot be known ----------------------------------------------------------------------------------------------


def test_nothing_is_guessed() -> None:
    found = ask(params=N)
    assert (found.tokens_per_second, found.tflops, found.mfu, found.peak_flops, found.ln_vocab) == (None,) * 5
    assert found.flops_per_token == 6 * N
    assert "--tokens-per-step" in found.unknown["tokens_per_second"]
    assert "--gpu" in found.unknown["mfu"]
    assert "--vocab-size" in found.unknown["ln_vocab"]
    assert "--dt" in ask(params=N, tokens_per_step=1000.0).unknown["tokens_per_second"]
    assert "--tokens-per-step" in ask(params=N, dt_s=1.0).unknown["tokens_per_second"]
    assert "--params" in ask(gpu="a100", dtype="bf16").unknown["flops_per_token"]


def test_an_unknown_device_leaves_the_tflops() -> None:
    found = ask(params=10**9, tokens_per_second=10_000.0, gpu="FooGPU 9000", dtype="bf16")
    assert found.tflops == pytest.approx(60.0)
    assert (found.mfu, found.peak_flops, found.impossible) == (None, None, None)
    assert "FooGPU 9000" in found.unknown["peak_flops"]


def test_a_device_without_a_dtype_has_no_peak() -> None:
    found = ask(params=10**9, tokens_per_second=10_000.0, gpu="NVIDIA H100 80GB HBM3")
    assert found.mfu is None
    assert "--dtype" in found.unknown["peak_flops"]
    assert ask(gpu="NVIDIA H100 80GB HBM3", dtype="bf16").peak_flops == pytest.approx(989.4e12, rel=1e-3)


def test_a_convention_that_needs_more_says_what() -> None:
    found = ask(params=N, tokens_per_second=1000.0, convention="palm", **A100)
    assert (found.flops_per_token, found.mfu) == (None, None)
    assert "--layers" in found.unknown["flops_per_token"]
    assert "--seq-len" in found.unknown["flops_per_token"]
    found = ask(params=N, layers=12, width=768, seq_len=1024, tokens_per_second=131_072.0, convention="palm", **A100)
    assert (found.convention, found.flops_per_token) == ("6N + 12*L*H*h*T", 859_387_392)
    assert "6n" in {one.key for one in found.alternatives}


@pytest.mark.parametrize("key", ["9n", "hfu-8n", "hfu-full"])
def test_what_is_no_convention_of_mfu_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match=key):
        ask(params=N, convention=key)


# -- above 100% --------------------------------------------------------------------------------------------------------


def test_more_than_the_device_can_do_is_no_result() -> None:
    found = ask(params=10**9, tokens_per_second=80_000.0, **A100)
    assert found.mfu is None
    assert found.impossible is not None
    assert found.impossible.ratio == pytest.approx(480 / 312)
    reasons = " | ".join(found.impossible.reasons)
    assert "--devices 2 or more" in reasons
    assert "76.92% with 2, 19.23% with 8" in reasons
    assert "only the sparse peak (624 TFLOP/s) would fit (76.92%)" in reasons
    assert "--active-params" in reasons
    assert "--trainable-params" in reasons
    assert "650,000,000" in reasons
    assert found.reading == ()
    assert line(found, "mfu").startswith("480.00 / 312 = n/a (1.54x")


def test_another_dtype_is_tried() -> None:
    found = ask(params=10**9, tokens_per_second=10_000.0, gpu="a100", dtype="fp32")
    assert found.impossible is not None
    assert any("in bf16 the peak is 312 TFLOP/s, and it is 19.23%" in one for one in found.impossible.reasons)


def test_a_rate_of_all_called_one_device_s() -> None:
    found = ask(params=10**9, devices=8, tokens_per_second=80_000.0, per_device=True, **A100)
    assert found.impossible is not None
    assert "--per-device: if 80,000 tokens/s are of all 8 devices already, it is 19.23%" in found.impossible.reasons


def test_a_mixture_of_experts_counted_whole() -> None:
    mixture = Counts(total=46_702_792_704, active=12_879_925_248, experts=8, source="config.json of mixtral")
    good = answer(Question(counts=mixture, tokens_per_second=2000.0, **A100))  # type: ignore[arg-type]
    assert good.flops_per_token == 6 * 12_879_925_248
    assert good.convention == "6N (active)"
    assert good.mfu == pytest.approx(6 * 12_879_925_248 * 2000 / 312e12)
    whole = ask(params=46_702_792_704, tokens_per_second=2000.0, **A100)
    assert whole.impossible is not None
    assert any("--active-params" in one for one in whole.impossible.reasons)


def test_milliseconds_taken_for_seconds_the_other_way() -> None:
    found = ask(params=N, tokens_per_step=32768.0, dt_s=0.00025, **A100)
    assert found.impossible is not None
    assert any("31.35%" in one and "milliseconds" in one for one in found.impossible.reasons)


def test_an_alternative_above_100_percent_has_no_ratio() -> None:
    found = ask(params=10**8, layers=100, width=4096, seq_len=65536, tokens_per_second=300_000.0, **A100)
    assert found.mfu is not None
    assert found.mfu_attention is None
    palm = next(one for one in found.alternatives if one.key == "palm")
    assert (palm.mfu, palm.impossible) == (None, True)
    assert palm.tflops is not None


# -- peaks by hand, recomputation, money -------------------------------------------------------------------------------


def test_a_peak_by_hand_leads_and_a_sparse_one_is_told() -> None:
    found = ask(params=10**9, tokens_per_second=10_000.0, peak_tflops=624.0, **A100)
    assert (found.peak_flops, found.peak_source) == (624e12, "--peak-tflops")
    assert found.mfu == pytest.approx(60 / 624)
    assert "the sparse peak" in found.disagreements[0]
    over = ask(params=10**9, tokens_per_second=60_000.0, peak_tflops=624.0, **A100)
    assert over.mfu == pytest.approx(360 / 624)
    assert any("115.38%" in one for one in over.disagreements)
    assert ask(params=N, peak_tflops=312.0, **A100).disagreements == ()


def test_recomputation_is_never_in_mfu() -> None:
    plain = ask(params=10**9, tokens_per_second=10_000.0, **A100)
    again = ask(params=10**9, tokens_per_second=10_000.0, recompute="full", **A100)
    assert again.mfu == plain.mfu
    assert plain.hfu is None
    assert again.hfu is not None
    assert plain.mfu is not None
    assert again.hfu / plain.mfu == pytest.approx(4 / 3)
    hardware = [one for one in again.alternatives if one.kind == "hardware"]
    assert hardware
    assert all(one.mfu is None and one.hfu is not None for one in hardware)


def test_a_long_sequence_differs_by_the_known_amount() -> None:
    short = ask(params=10**9, layers=16, width=2048, seq_len=1024, tokens_per_second=1000.0, **A100)
    long = ask(params=10**9, layers=16, width=2048, seq_len=32768, tokens_per_second=1000.0, **A100)
    assert short.mfu == long.mfu
    assert long.mfu is not None
    assert long.mfu_attention is not None
    assert (long.mfu_attention - long.mfu) * 312e12 / 1000 == pytest.approx(12 * 16 * 2048 * 32768)
    assert any("leaves out the attention" in one for one in long.reading)


def test_frozen_weights_need_no_gradient() -> None:
    found = ask(params=6_742_609_920, trainable=4_194_304, tokens_per_second=1000.0, **A100)
    assert found.flops_per_token == 4 * (6_742_609_920 - 4_194_304) + 6 * 4_194_304
    assert found.convention == "4N_f + 6N_t"


def test_money() -> None:
    found = ask(params=N, tokens_per_second=1_000_000.0, price=3.6)
    assert found.cost_per_billion_tokens == pytest.approx(1.0)
    assert ask(params=N, tokens_per_second=1_000_000.0).cost_per_billion_tokens is None
    assert "--price" in ask(params=N, tokens_per_second=1.0).unknown["cost_per_billion_tokens"]


def test_the_plain_answer_has_the_promised_keys() -> None:
    found = ask(params=N, layers=12, width=768, seq_len=1024, tokens_per_step=32768.0, dt_s=0.25, **A100).plain()
    wanted = (
        "tokens_per_second flops_per_token tflops mfu convention peak_flops peak_source ln_vocab params alternatives"
    )
    assert set(wanted.split()) <= found.keys()
    assert {"total", "active", "matmul", "embedding", "source"} <= found["params"].keys()
    assert (found["params"]["total"], found["params"]["matmul"]) == (N, None)
    assert {"convention", "flops_per_token", "tflops", "mfu"} <= found["alternatives"][0].keys()
    assert ask().plain()["params"] == dict.fromkeys(found["params"])


# -- which parameters --------------------------------------------------------------------------------------------------

LLAMA = Counts(
    total=8_030_261_248, matmul=7_504_658_432, embedding=525_336_576, source="config.json of llama", layers=32,
    width=4096, heads=32, head_size=128, vocab_size=128_256,
    attention=(Attention(layers=32, heads=32, qk=128, v=128),),
)  # fmt: skip


def test_what_is_declared_leads_and_the_other_is_named() -> None:
    counts, remarks = counted(Declared(params=7_000_000_000), LLAMA)
    assert counts is not None
    assert (counts.total, counts.matmul, counts.layers) == (7_000_000_000, None, 32)
    assert "8,030,261,248" in remarks[0]
    counts, remarks = counted(Declared(params=8_030_261_248), LLAMA)
    assert counts is not None
    assert (counts.matmul, remarks) == (7_504_658_432, [])


def test_a_shape_by_hand_lies_over_the_config_s() -> None:
    counts, remarks = counted(Declared(layers=16, vocab_size=128_256), LLAMA)
    assert counts is not None
    assert counts.attention == (Attention(layers=16, heads=32, qk=128, v=128),)
    assert remarks == ["layers: 16 (by hand) is used; config.json of llama has 32"]


def test_heads_of_their_own_size() -> None:
    counts, _ = counted(Declared(params=N, layers=2, width=64, heads=8, head_size=256), None)
    assert counts is not None
    found = answer(Question(counts=counts, seq_len=100))
    palm = next(one for one in found.alternatives if one.key == "palm")
    assert palm.flops_per_token == 6 * N + 12 * 2 * 8 * 256 * 100


def test_more_active_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="--active-params"):
        counted(Declared(params=10, active_params=11), None)


@pytest.mark.parametrize(
    ("text", "dtype"), [("bf16", "bf16"), ("torch.bfloat16", "bf16"), ("HALF", "fp16"), ("float32", "fp32")]
)
def test_dtypes_by_their_other_names(text: str, dtype: str) -> None:
    assert dtype_of(text) == dtype


def test_a_dtype_that_no_table_has() -> None:
    with pytest.raises(ValueError, match="bf16"):
        dtype_of("int3")


# -- what a log prints -------------------------------------------------------------------------------------------------


def seen(**given: Any) -> Evidence:
    return Evidence(kind="log", name="train.log", **given)


@pytest.mark.parametrize(
    ("printed", "devices", "said"),
    [
        (875_000_000, 8, "times 8 is the whole model: it is the count of one shard"),
        (1_003_000_000, 1, "times 8 is the whole model"),
        (8_030_000_000, 1, None),
        (7_505_000_000, 1, None),
        (3_000_000_000, 1, "the log speaks of 3B"),
    ],
)
def test_a_printed_count_is_compared_and_never_used(printed: int, devices: int, said: str | None) -> None:
    total = 7_000_000_000 if printed == 875_000_000 else LLAMA.total
    counts = LLAMA if total == LLAMA.total else Counts(total=total, source="config.json")
    found = answer(Question(counts=counts, devices=devices, evidence=seen(printed_params=printed)))
    assert found.flops_per_token == 6 * total
    assert [said in one for one in found.disagreements] == [True] if said else found.disagreements == ()


def test_a_printed_count_alone_is_no_count() -> None:
    found = answer(Question(evidence=seen(printed_params=875_000_000)))
    assert found.flops_per_token is None
    assert "give --params" in found.disagreements[0]


def test_a_printed_mfu_by_another_peak_is_told() -> None:
    counts = Counts(total=10**9, source="--params")
    known = seen(tokens_per_second=50_000.0, printed_mfu=6e9 * 50_000 / 312e12)
    found = answer(Question(counts=counts, gpu="NVIDIA H100 80GB HBM3", dtype="bf16", evidence=known))
    assert found.mfu == pytest.approx(0.3032, abs=1e-3)
    assert "a peak of about 312 TFLOP/s" in found.disagreements[0]
    agreed = answer(Question(counts=counts, gpu="a100", dtype="bf16", evidence=known))
    assert agreed.disagreements == ()


def test_useful_tokens_stand_beside_and_do_not_count() -> None:
    known = seen(tokens_per_second=4096.0, useful_tokens_per_second=2900.0)
    found = answer(Question(counts=Counts(total=10**9, source="--params"), evidence=known, **A100))  # type: ignore[arg-type]
    assert found.mfu == pytest.approx(6e9 * 4096 / 312e12)
    assert "2,900 tokens/s" in line(found, "useful_tokens_per_second")
    assert "4,096 tokens/s" in line(found, "tokens_per_second")

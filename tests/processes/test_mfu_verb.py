"""The verb ``mfu``: by hand, from configs, for logs and real runs; what it refuses, and what it says is not known."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from looking import Runs, toy

from overnight.cli import main
from overnight.sensors import Gpu, GpuSample

SEED = "--params 124356864 --tokens-per-step 32768 --dt 0.25 --gpu a100 --dtype bf16".split()
SHAPE = "--layers 12 --seq-len 1024 --width 768".split()
A100 = ["--gpu", "NVIDIA A100-SXM4-80GB", "--dtype", "bf16"]
H100 = ["--gpu", "NVIDIA H100 80GB HBM3", "--dtype", "bf16"]
WANTED = "tokens_per_second flops_per_token tflops mfu convention peak_flops peak_source ln_vocab params alternatives"

LLAMA_3_8B = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": False,
    "max_position_embeddings": 8192,
}  # fmt: skip
LLAMA_2_7B = {
    **LLAMA_3_8B, "num_key_value_heads": 32, "intermediate_size": 11008, "vocab_size": 32000,
    "max_position_embeddings": 4096,
}  # fmt: skip
MIXTRAL = {
    "model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000, "num_local_experts": 8,
    "num_experts_per_tok": 2, "tie_word_embeddings": False, "sliding_window": None,
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}
T5_BASE = {
    "model_type": "t5", "d_model": 768, "d_ff": 3072, "d_kv": 64, "num_heads": 12, "num_layers": 12,
    "num_decoder_layers": 12, "vocab_size": 32128, "tie_word_embeddings": True, "feed_forward_proj": "relu",
}  # fmt: skip

Said = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERNIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def mfu(capsys: pytest.CaptureFixture[str]) -> Said:
    """Return what runs one command line: its exit code, stdout and stderr."""

    def said(*words: object) -> tuple[int, str, str]:
        code = main(["mfu", *map(str, words)])
        told = capsys.readouterr()
        if "--json" not in words:
            assert max((len(line) for line in told.out.splitlines()), default=0) <= 80, told.out
            assert "None" not in told.out
        return code, told.out, told.err

    return said


@pytest.fixture
def value(mfu: Said) -> Callable[..., dict[str, Any]]:
    """Return what gives the object of one command line, the text of which can be made too."""

    def found(*words: object, code: int = 0) -> dict[str, Any]:
        assert mfu(*words)[0] == code
        got, out, err = mfu(*words, "--json")
        assert got == code, err
        one = json.loads(out)
        assert set(WANTED.split()) <= one.keys()
        assert isinstance(one, dict)
        return one

    return found


Value = Callable[..., dict[str, Any]]


def config(folder: Path, fields: dict[str, Any]) -> Path:
    path = folder / f"{fields['model_type']}-{fields.get('vocab_size')}" / "config.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(fields))
    return path


def other(found: dict[str, Any], key: str) -> dict[str, Any]:
    if found["convention_key"] == key:
        return found
    return next(dict(one) for one in found["alternatives"] if one["key"] == key)


def flat(text: str) -> str:
    return " ".join(text.split())


# -- by hand -----------------------------------------------------------------------------------------------------------


def test_the_seed_as_text(mfu: Said) -> None:
    code, out, err = mfu(*SEED, *SHAPE, "--vocab-size", 50257, "--price", "2.49/h")
    assert (code, err) == (0, "")
    text = flat(out)
    for piece in (
        "131,072 tokens/s", "746,141,184 FLOPs/token", "97.80 TFLOP/s", "31.35%", "113,246,208", "36.10%",
        "dense bf16", "ln(50,257) = 10.825", "5.28",
    ):  # fmt: skip
        assert piece in text
    peak = next(line for line in out.splitlines() if line.startswith("peak"))
    assert "312 TFLOP/s (dense bf16" in flat(peak)


def test_the_seed_as_json(value: Value) -> None:
    found = value(*SEED, "--vocab-size", 50257)
    assert found["tokens_per_second"] == 131072
    assert found["flops_per_token"] == 746141184
    assert found["tflops"] == pytest.approx(97.798217, abs=1e-6)
    assert found["mfu"] == pytest.approx(0.31345582, abs=1e-8)
    assert (found["convention"], found["peak_flops"], found["devices"]) == ("6N", 312e12, 1)
    assert found["ln_vocab"] == math.log(50257)
    assert "dense bf16" in found["peak_source"]
    assert found["mfu_attention"] is None
    for n, mfu_there in (("124e6", 0.31255631), ("124439808", 0.31366489), ("124337664", 0.31340743)):
        assert value("--params", n, *SEED[2:])["mfu"] == pytest.approx(mfu_there, abs=1e-8)
    with_shape = value(*SEED, *SHAPE)
    assert with_shape["mfu_attention"] == pytest.approx(0.36103085, abs=1e-8)
    assert other(with_shape, "palm")["tflops"] == pytest.approx(112.641624, abs=1e-6)
    assert other(with_shape, "causal")["mfu"] == pytest.approx(0.33724334, abs=1e-8)


@pytest.mark.parametrize(
    ("name", "peak"), [("NVIDIA H100 80GB HBM3", 989.4), ("NVIDIA A100-SXM4-80GB", 312), ("h100-pcie", 756)]
)
def test_only_the_peak(value: Value, name: str, peak: float) -> None:
    found = value("--gpu", name, "--dtype", "bf16")
    assert found["peak_flops"] == pytest.approx(peak * 1e12, rel=1e-3)
    assert (found["mfu"], found["tokens_per_second"], found["params"]["total"]) == (None, None, None)
    assert found["alternatives"] == []


def test_an_unknown_device(mfu: Said, value: Value) -> None:
    words = ["--params", "1e9", "--tokens-per-second", "10000", "--gpu", "FooGPU 9000", "--dtype", "bf16"]
    found = value(*words)
    assert (found["mfu"], found["peak_flops"]) == (None, None)
    assert found["tflops"] == pytest.approx(60.0)
    text = flat(mfu(*words)[1])
    assert "60.00 TFLOP/s" in text
    assert "MFU n/a" in text
    assert "FooGPU 9000" in text


def test_what_has_no_bf16(value: Value) -> None:
    found = value("--gpu", "Tesla V100-SXM2-16GB", "--dtype", "bf16", "--params", "1e9", "--tokens-per-second", 1000)
    assert (found["mfu"], found["peak_flops"]) == (None, None)
    assert found["tflops"] == pytest.approx(6.0)
    assert "bf16" in found["unknown"]["peak_flops"]


@pytest.mark.parametrize("how", [("80000",), ("10000", "--per-device")])
def test_eight_gpus(value: Value, how: tuple[str, ...]) -> None:
    found = value("--params", "1e9", "--devices", 8, *A100, "--tokens-per-second", *how)
    assert found["tokens_per_second"] == 80000
    assert found["mfu"] == pytest.approx(0.192, abs=5e-4)


def test_accumulation(value: Value) -> None:
    sizes = "--batch 4 --accumulate 8 --seq-len 1024 --world-size 2 --dt 1".split()
    found = value("--params", "1e9", *A100, *sizes)
    assert (found["tokens_per_step"], found["tokens_per_second"]) == (65536, 65536)


def test_times_as_people_write_them(value: Value) -> None:
    for written in ("0.25", "0.25s", "250ms"):
        assert value("--params", "1e9", "--tokens-per-step", "32k", "--dt", written)["tokens_per_second"] == 128_000


def test_recomputation(value: Value) -> None:
    plain, again = value(*SEED), value(*SEED, "--recompute", "full")
    assert again["mfu"] == plain["mfu"]
    assert again["hfu"] == pytest.approx(plain["mfu"] * 4 / 3)
    assert plain["hfu"] is None
    assert all(one["mfu"] is None for one in again["alternatives"] if one["kind"] == "hardware")


# -- above 100% --------------------------------------------------------------------------------------------------------


def test_an_impossible_result_is_wrong_use(mfu: Said) -> None:
    words = ["--params", "1e9", "--tokens-per-second", "80000", *A100]
    code, out, err = mfu(*words)
    assert code == 2
    assert "153.85%" not in out
    assert "153.8" not in err
    text = flat(out)
    assert "480.00 TFLOP/s" in text
    assert "MFU 480.00 / 312 = n/a" in text
    assert "--devices 2 or more" in text
    assert "only the sparse peak (624 TFLOP/s) would fit" in text
    assert "an input is wrong" in err
    code, out, _ = mfu(*words, "--json")
    assert code == 2
    found = json.loads(out)
    assert found["mfu"] is None
    assert found["impossible"]["ratio"] == pytest.approx(480 / 312)
    assert found["tflops"] == pytest.approx(480.0)
    assert found["reading"] == []


def test_all_the_experts_instead_of_the_active_ones(mfu: Said, value: Value, tmp_path: Path) -> None:
    speed = ["--tokens-per-second", "2000", *A100]
    assert value("--config", config(tmp_path, MIXTRAL), *speed)["mfu"] == pytest.approx(
        6 * 12_879_925_248 * 2e3 / 312e12
    )
    code, out, _ = mfu("--params", 46_702_792_704, *speed)
    assert code == 2
    assert "--active-params" in flat(out)
    assert value("--params", 46_702_792_704, "--active-params", 12_879_925_248, *speed)["convention"] == "6N (active)"


# -- worked numbers, from configs --------------------------------------------------------------------------------------


def test_only_the_counts(value: Value, tmp_path: Path) -> None:
    found = value("--config", config(tmp_path, LLAMA_3_8B))
    assert found["params"]["total"] == 8_030_261_248
    assert (found["params"]["matmul"], found["params"]["embedding"]) == (7_504_658_432, 525_336_576)
    assert found["flops_per_token"] == 48_181_567_488
    assert (found["tokens_per_second"], found["mfu"]) == (None, None)
    assert found["ln_vocab"] == pytest.approx(math.log(128256))
    assert value("--config", config(tmp_path, LLAMA_3_8B).parent)["params"]["total"] == 8_030_261_248


@pytest.mark.parametrize(
    ("key", "flops", "mfu_there"),
    [
        ("6n", 746_638_848, 0.31366489),
        ("6n-matmul", 741_192_192, 0.31137674),
        ("causal", 803_261_952, 0.33745241),
        ("causal-exact", 797_870_592, 0.33518749),
        ("matmul", 854_438_400, 0.35895176),
        ("palm", 859_885_056, 0.36123992),
        ("kaplan", 509_607_936, None),
        ("kaplan-attention", 566_231_040, None),
        ("chinchilla", 1_087_349_760, None),
        ("narayanan", 854_438_400, None),
    ],
)
def test_gpt2_small_by_every_convention(
    value: Value, tmp_path: Path, key: str, flops: int, mfu_there: float | None
) -> None:
    path = config(tmp_path, GPT2)
    found = value(
        "--config", path, "--seq-len", 1024, "--tokens-per-second", 131072, "--gpu", "a100", "--dtype", "bf16"
    )
    one = other(found, key)
    assert one["flops_per_token"] == flops
    if mfu_there is not None:
        assert one["mfu"] == pytest.approx(mfu_there, abs=1e-8)
    chosen = value("--config", path, "--seq-len", 1024, "--convention", key)
    assert chosen["flops_per_token"] == flops


@pytest.mark.parametrize(
    ("key", "flops", "mfu_there"),
    [
        ("6n", 48_181_567_488, 0.48697764),
        ("megatron", 51_470_401_536, 0.52021833),
        ("torchtitan", 57_914_449_920, 0.58534920),
        ("matmul", 57_912_852_480, 0.58533305),
        ("levanter", 57_988_349_952, 0.58609612),
        ("palm", 61_066_469_376, 0.61720709),
    ],
)
def test_llama_3_8b_by_every_program(value: Value, tmp_path: Path, key: str, flops: int, mfu_there: float) -> None:
    given = ["--config", config(tmp_path, LLAMA_3_8B), "--seq-len", 8192, "--tokens-per-second", 10000]
    one = other(value(*given, "--peak-tflops", 989.4), key)
    assert one["flops_per_token"] == flops
    assert one["mfu"] == pytest.approx(mfu_there, abs=1e-6)


def test_what_the_hardware_does(value: Value, tmp_path: Path) -> None:
    given = ["--config", config(tmp_path, LLAMA_3_8B), "--seq-len", 8192]
    full, selective = value(*given, "--recompute", "full"), value(*given, "--recompute", "selective")
    assert other(full, "hfu-full")["flops_per_token"] == 67_576_528_896
    assert other(selective, "hfu-selective")["flops_per_token"] == 53_617_885_184
    assert full["flops_per_token"] == 48_181_567_488


def test_experts_adapters_and_two_sides(value: Value, tmp_path: Path) -> None:
    mixtral = value("--config", config(tmp_path, MIXTRAL), "--seq-len", 4096)
    assert mixtral["params"]["active"] == 12_879_925_248
    assert other(mixtral, "6n-matmul")["flops_per_token"] == 76_491_522_048
    assert other(mixtral, "megatron")["flops_per_token"] == 79_712_747_520
    adapters = ["--config", config(tmp_path, LLAMA_2_7B), "--trainable-params", 4_194_304, "--seq-len", 2048]
    lora = value(*adapters, "--convention", "lora")
    assert lora["flops_per_token"] == 26_453_475_328
    assert other(lora, "matmul")["flops_per_token"] == 29_674_700_800
    assert any("as adapters beside" in one for one in lora["disagreements"])
    pair = value("--config", config(tmp_path, T5_BASE), "--seq-len", 512, "--target-len", 114)
    per_pair = other(pair, "encoder-decoder")["flops_per_token"] * (512 + 114)
    assert per_pair == pytest.approx(425_225_576_448, rel=1e-9)


def test_a_set_as_nanogpt_writes_it(value: Value, mfu: Said) -> None:
    given = "n_layer=12 n_head=12 n_embd=768 block_size=1024 vocab_size=50304 bias=False"
    found = value("--nanogpt", given, "--tokens-per-step", 491520, "--dt", 0.25, "--devices", 8, *A100)
    assert found["params"]["total"] == 124_373_760
    own = other(found, "nanogpt")
    assert own["flops_per_token"] == 854_770_176
    assert own["mfu"] == pytest.approx(0.67329589, abs=1e-8)
    code, _, err = mfu("--nanogpt", "n_layer=12 n_head=12")
    assert code == 2
    assert "n_embd" in err


def test_a_public_model_by_name(value: Value, mfu: Said) -> None:
    assert value("--model", "gpt2")["params"]["total"] == 124_439_808
    code, _, err = mfu("--model", "gpt2-xxl")
    assert code == 2
    assert "gpt2-xl" in err


# -- logs --------------------------------------------------------------------------------------------------------------


def written(folder: Path, text: str) -> Path:
    path = folder / "train.log"
    path.write_text(text)
    return path


def test_a_log_gives_its_own_speed(value: Value, tmp_path: Path) -> None:
    log = written(tmp_path, "".join(f"step: {n}, loss: {4 - n / 100:.3f}, dt: 0.5\n" for n in range(1, 101)))
    found = value(log, "--params", "1e9", "--tokens-per-step", "1000", *A100)
    assert found["tokens_per_second"] == pytest.approx(2000.0)
    assert found["mfu"] == pytest.approx(12e12 / 312e12)
    assert "train.log" in found["tokens_source"]
    faster = value(log, "--params", "1e9", "--tokens-per-step", "1000", "--dt", "0.25", *A100)
    assert faster["tokens_per_second"] == pytest.approx(4000.0)
    assert any("2,000" in one for one in faster["disagreements"])
    nothing = value(log, "--params", "1e9", *A100)
    assert (nothing["tokens_per_second"], nothing["mfu"]) == (None, None)
    assert "--tokens-per-step" in nothing["unknown"]["tokens_per_second"]


def test_first_steps_and_evaluations_are_not_clean(value: Value, mfu: Said, tmp_path: Path) -> None:
    text = ""
    for n in range(300):
        slow = 25.0 if n == 0 else 2.5 if n % 50 == 0 else 0.25
        if n and n % 50 == 0:
            text += f"step {n}: train loss 3.0000, val loss 3.1000\n"
        text += f"iter {n}: loss {4 - n / 100:.4f}, time {slow * 1000:.2f}ms, mfu 31.00%\n"
    log = written(tmp_path, text)
    words = [log, "--params", 124_373_760, "--tokens-per-step", "32768", *A100]
    found = value(*words)
    assert found["tokens_per_second"] == pytest.approx(131072.0)
    out = flat(mfu(*words)[1])
    assert "over clean steps" in out
    assert "look first at the evaluations (5)" in out


def test_a_counter_of_tokens_by_dates(value: Value, tmp_path: Path) -> None:
    begin = datetime(2026, 5, 1, 22, 0, 0, tzinfo=UTC)
    lines = [
        f"{(begin + timedelta(seconds=2 * n)).strftime('%Y-%m-%d %H:%M:%S')} step: {n}, loss: {4 - n / 1000:.3f}, "
        f"tokens_seen: {n * 8192}"
        for n in range(1, 200)
    ]
    found = value(written(tmp_path, "\n".join(lines) + "\n"), "--params", "1e9", *A100)
    assert found["tokens_per_second"] == pytest.approx(4096, rel=0.02)


def test_a_counter_after_a_resume_is_no_speed(value: Value, tmp_path: Path) -> None:
    lines = [f"step: {n}, loss: 2.5, dt: 1.0, tokens_seen: {10**9 + (n - 5000) * 4096}" for n in range(5000, 5060)]
    found = value(written(tmp_path, "\n".join(lines) + "\n"), "--params", "1e9", *A100)
    assert found["tokens_per_second"] == pytest.approx(4096, rel=0.05)


def test_useful_tokens_are_shown_and_not_counted(value: Value, tmp_path: Path) -> None:
    lines = [f"step: {n}, loss: 2.5, dt: 1.0, tokens: 4096, non_pad: 2900" for n in range(1, 60)]
    found = value(written(tmp_path, "\n".join(lines) + "\n"), "--params", "1e9", *A100)
    assert found["tokens_per_second"] == pytest.approx(4096)
    assert found["useful_tokens_per_second"] == pytest.approx(2900)
    assert found["mfu"] == pytest.approx(6e9 * 4096 / 312e12)


def test_the_count_of_one_shard_is_told_and_not_used(value: Value, tmp_path: Path) -> None:
    log = written(tmp_path, "model has 875M params\n" + "".join(f"step: {n}, loss: 2, dt: 1\n" for n in range(1, 40)))
    found = value(log, "--params", "7B", "--devices", 8, "--tokens-per-step", 8000, *A100)
    assert found["params"]["total"] == 7_000_000_000
    assert any("it is the count of one shard" in one for one in found["disagreements"])


def test_waits_for_data_come_first(mfu: Said, tmp_path: Path) -> None:
    lines = [f"step: {n}, loss: 2.5, dt: 1.0, data_time: 0.4" for n in range(1, 60)]
    code, out, _ = mfu(written(tmp_path, "\n".join(lines) + "\n"), "--params", "1e9", "--tokens-per-step", "8k", *A100)
    assert code == 0
    assert "look first at the data loader: the log says that 40.00%" in flat(out)


def test_a_log_without_progress_says_so(mfu: Said, tmp_path: Path) -> None:
    code, out, _ = mfu(written(tmp_path, "hello\n" * 50), "--params", "1e9", *A100)
    assert code == 0
    assert "no progress line was read" in flat(out)


def test_what_hides_in_a_log_reaches_no_terminal(mfu: Said, tmp_path: Path) -> None:
    log = tmp_path / "a\x1b[31m\x07b.log"
    log.write_text("".join(f"step: {n}, loss: 2, dt: 1\n" for n in range(1, 40)))
    _, out, _ = mfu(log, "--params", "1e9", "--tokens-per-step", "8k", "--gpu", "x\x1b]0;y\x07", "--dtype", "bf16")
    assert not set("\x1b\x07") & set(out)


# -- runs --------------------------------------------------------------------------------------------------------------


def test_a_run_knows_its_inputs(runs: Runs) -> None:
    flags = ["--params", "1e8", "--tokens-per-step", "1000", "--peak-tflops", "312", "--price", "3.6/h"]
    runs.start("quiet", *toy("--steps", 60, "--dt", 0.01), flags=flags)
    assert runs.overnight("wait", "quiet").returncode == 0
    done = runs.overnight("mfu", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["tokens_per_second"] == pytest.approx(100_000)  # 1,000 tokens / the printed 0.01 s
    assert found["mfu"] == pytest.approx(60 / 312)
    assert found["params"] == {**found["params"], "total": 10**8, "source": "--params, of the run"}
    assert found["peak_source"] == "--peak-tflops, of the run"
    told = json.loads(runs.overnight("status", "quiet", "--json").stdout)
    assert found["cost_per_billion_tokens"] == pytest.approx(told["cost_per_billion_tokens"], rel=0.1)
    assert found["cost_per_billion_tokens"] >= 10.0  # all of the time is paid for, not the steps alone
    changed = runs.overnight("mfu", "qui", "--params", "1e6", "--gpu", "a100", "--dtype", "bf16", "--json")
    assert changed.returncode == 0, changed.stderr
    other_one = json.loads(changed.stdout)
    assert (other_one["flops_per_token"], other_one["peak_flops"]) == (6_000_000, 312e12)
    assert "312 TFLOP/s" in other_one["peak_source"]
    (runs.home / "runs" / "quiet" / "output.log").unlink()
    gone = runs.overnight("mfu", "quiet", "--json")
    assert gone.returncode == 0, gone.stderr
    assert json.loads(gone.stdout)["tokens_per_second"] == pytest.approx(100_000)
    assert any("is gone" in one for one in json.loads(gone.stdout)["disagreements"])


def test_what_the_sensors_saw(runs: Runs) -> None:
    runs.start("hot", *toy("--steps", 40, "--dt", 0.01), flags=["--params", "1e6", "--tokens-per-step", "1000"])
    assert runs.overnight("wait", "hot").returncode == 0
    folder = runs.home / "runs" / "hot" / "sensors"
    folder.mkdir(exist_ok=True)
    gpus = [
        Gpu(index=n, name="NVIDIA A100-SXM4-80GB", utilisation=0.4, ours=n < 2, throttle=("thermal",) if n == 0 else ())
        for n in range(3)
    ]
    one = msgspec.json.encode(GpuSample(at=1.0, gpus=tuple(gpus)))
    (folder / "gpu.jsonl").write_bytes(b"\n".join([one] * 30) + b'\n{"kind": "gpu", "at": 3')
    done = runs.overnight("mfu", "hot", "--dtype", "bf16", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["peak_flops"] == 312e12
    assert any("the sensors see 2 GPUs" in one for one in found["disagreements"])
    text = " ".join(found["reading"])
    assert "they ran kernels 40.00% of the time over 30 samples" in text
    assert "throttled (thermal) in 100.00%" in text


# -- wrong use ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "piece"),
    [
        (["--params", "many"], "--params cannot be 'many'"),
        (["--dt", "-1", "--params", "1"], "--dt"),
        (["--dt", "0"], "--dt cannot be '0'"),
        (["--dtype", "int3"], "--dtype"),
        (["--convention", "9n", "--params", "1e9"], "9n"),
        (["--convention", "hfu-full", "--params", "1e9"], "hfu-full"),
        (["--recompute", "some"], "none, selective, full"),
        (["--config", "/nowhere/config.json"], "/nowhere/config.json"),
        (["--config", "a", "--model", "gpt2"], "give one"),
        (["--per-device", "--params", "1e9"], "--tokens-per-second"),
        (["--params", "10", "--active-params", "11"], "--active-params"),
        (["--params", "10", "--trainable-params", "11"], "--trainable-params"),
        (["./nothing.log"], "is not there"),
        (["--gpuu", "a100"], "did you mean --gpu?"),
    ],
)
def test_wrong_use_is_one_sentence(mfu: Said, words: list[str], piece: str) -> None:
    code, out, err = mfu(*words)
    assert (code, out) == (2, "")
    assert piece in err
    assert len(err.strip().splitlines()) == 1


def test_no_run_yet(mfu: Said) -> None:
    code, _, err = mfu()
    assert code == 102
    assert "no runs" in err


def test_no_gpu_here(tmp_path: Path) -> None:
    if any(os.path.exists(f"/dev/{name}") for name in ("nvidiactl", "kfd")):
        pytest.skip("this machine has a GPU")
    words = [sys.executable, "-m", "overnight", "mfu", "--gpu", "here"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert "--gpu here" in done.stderr

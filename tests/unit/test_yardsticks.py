"""What figures are divided by, from flags, environment and files: accepted, refused, warned about, explained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from overnight import settings
from overnight.errors import UsageError
from overnight.meter import Meter
from overnight.modelsize.named import from_name
from overnight.settings import Resolved
from overnight.yardsticks.sizing import figures_of

LLAMA = {
    "model_type": "llama", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
    "num_hidden_layers": 32, "num_attention_heads": 32,
}  # fmt: skip
LLAMA_TOTAL = 6_738_415_616
MIXTRAL = {
    **LLAMA, "model_type": "mixtral", "intermediate_size": 14336, "num_key_value_heads": 8, "num_local_experts": 8,
    "num_experts_per_tok": 2,
}  # fmt: skip


class Place:
    """A project folder with what is asked for in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.environ = {"PATH": "/usr/bin:/bin", "HOME": str(path), "XDG_CONFIG_HOME": str(path / "config")}

    def ask(self, environ: dict[str, str] | None = None, **flags: Any) -> Resolved:
        """Return what is resolved from these flags."""
        found = {**self.environ, **(environ or {})}
        return settings.resolve(flags, ["true"], home=self.path / "home", environ=found, cwd=self.path)

    def refuse(self, environ: dict[str, str] | None = None, **flags: Any) -> str:
        """Return the sentence with which these flags are refused."""
        with pytest.raises(UsageError) as error:
            self.ask(environ, **flags)
        text = str(error.value)
        assert "\n" not in text
        return text

    def write(self, name: str, value: object) -> str:
        """Return the name of a file with this JSON."""
        (self.path / name).write_text(json.dumps(value))
        return name


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """An empty project."""
    return Place(tmp_path)


def explained(resolved: Resolved) -> dict[str, tuple[str, str]]:
    """Return the lines of --explain: value and origin by setting."""
    return {name: (value, origin) for name, value, origin in settings.explain(resolved)}


def per_token(resolved: Resolved) -> tuple[float | None, float | None, str]:
    """Return FLOPs per token, those with attention, and the convention."""
    figures = figures_of(resolved.spec)
    measure = Meter(figures).measure()
    return measure.flops_per_token, measure.flops_per_token_attention, figures.convention


# ---- every new setting, from all places

SAMPLES: dict[str, tuple[str, object, str]] = {
    "model": ("gpt2", "gpt2", "params"),
    "active_params": ("12.9B", 12_900_000_000, "12900000000"),
    "trainable_params": ("4M", 4_000_000, "4000000"),
    "batch": ("4", 4, "4"),
    "accumulate": ("8", 8, "8"),
    "world_size": ("2", 2, "2"),
    "gpu": ("a100", "a100", "a100"),
    "dtype": ("bf16", "bf16", "bf16"),
    "heads": ("12", 12, "12"),
    "head_size": ("64", 64, "64"),
    "convention": ("6n", "6n", "6n"),
    "recompute": ("full", "full", "full"),
    "sensors": ("off", "off", "off"),
    "sensor_interval": ("30s", 30.0, "30 s"),
    "on_end_guard": ("off", "off", "off"),
}


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("where", ["flag", "environment", "file"])
def test_each_setting_comes_from_flag_environment_and_file(place: Place, name: str, where: str) -> None:
    written, value, _ = SAMPLES[name]
    label = name.replace("_", "-")
    if where == "flag":
        found, origin = place.ask(**{name: written}), f"flag --{label}"
    elif where == "environment":
        found, origin = place.ask({f"OVERNIGHT_{name.upper()}": written}), f"OVERNIGHT_{name.upper()}"
    else:
        (place.path / "overnight.toml").write_text(f'{label} = "{written}"\n')
        found, origin = place.ask(), str(place.path / "overnight.toml")
    assert found.values[name] == value
    assert explained(found)[label][1] == origin


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("active_params", "0"), ("active_params", "-1"), ("active_params", "many"), ("trainable_params", "1.5"),
        ("batch", "0"), ("batch", "4.5"), ("accumulate", "0"), ("world_size", "x"), ("heads", "-3"),
        ("head_size", "0"), ("dtype", "fp64"), ("dtype", "bfloat"), ("recompute", "some"), ("sensors", "maybe"),
        ("sensor_interval", "0"), ("sensor_interval", "often"), ("on_end_guard", "on"), ("gpu", ""), ("model", ""),
        ("config", ""), ("price_table", ""), ("convention", ""),
    ],
)  # fmt: skip
def test_bad_values_are_refused_by_name_and_place(place: Place, name: str, raw: str) -> None:
    label = name.replace("_", "-")
    assert f"(flag --{label})" in place.refuse(**{name: raw})
    if raw:
        assert f"OVERNIGHT_{name.upper()}" in place.refuse({f"OVERNIGHT_{name.upper()}": raw})


# ---- the size of the model


def test_a_config_gives_counts_layers_width_and_vocabulary(place: Place) -> None:
    found = place.ask(config=place.write("config.json", LLAMA), seq_len="4096")
    spec, told = found.spec, explained(found)
    assert (spec.params, spec.layers, spec.width, spec.vocab_size) == (LLAMA_TOTAL, 32, 4096, 32000)
    assert told["params"] == (str(LLAMA_TOTAL), spec.params_source)
    assert "config.json" in told["layers"][1]
    assert per_token(found) == (6 * LLAMA_TOTAL, 6 * LLAMA_TOTAL + 12 * 32 * 4096 * 4096, "6N")
    assert found.warnings == ()


def test_a_config_is_looked_for_beside_the_project_and_may_be_a_folder(place: Place, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    place.write("model/config.json", LLAMA)
    for config in ("model", "model/config.json", str(tmp_path / "model")):
        assert place.ask(config=config).spec.params == LLAMA_TOTAL


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"model_type":"gpt2","n_layer":12', "cut off"),
        ("[]", "no JSON object"),
        ('{"model_type":"foo"}', "foo"),
        ("{}", "model_type"),
        ('{"model_type":"llama","hidden_size":-4}', "hidden_size"),
        ("\0\0\0", "config"),
    ],
)
def test_broken_configs_are_refused_with_the_next_step(place: Place, content: str, said: str) -> None:
    (place.path / "config.json").write_text(content)
    text = place.refuse(config="config.json")
    assert "config.json" in text
    assert said in text
    assert "--params" in text


def test_a_config_that_is_not_there_is_refused(place: Place) -> None:
    assert "nowhere.json is not there" in place.refuse(config="nowhere.json")
    (place.path / "empty").mkdir()
    assert "empty holds no config.json" in place.refuse(config="empty")


def test_a_model_by_name_and_a_near_miss(place: Place) -> None:
    found = place.ask(model="GPT2")
    assert found.spec.params == from_name("gpt2").total == 124_439_808
    text = place.refuse(model="gpt-2")
    assert "(flag --model)" in text
    assert "gpt2" in text.partition("known here")[2]
    assert "both say how large" in place.refuse(model="gpt2", config=place.write("c.json", LLAMA))


def test_a_count_by_hand_leads_and_what_disagrees_is_said(place: Place) -> None:
    found = place.ask(config=place.write("c.json", LLAMA), params="13B")
    assert (found.spec.params, found.spec.params_source) == (13_000_000_000, "--params")
    assert per_token(found)[0] == 78e9
    (warning,) = found.warnings
    for word in ("13,000,000,000", "--params", "6,738,415,616", "c.json"):
        assert word in warning
    assert place.ask(model="gpt2", params="124M").warnings == ()  # the same, rounded
    (warning,) = place.ask({"OVERNIGHT_PARAMS": "1B"}, model="gpt2").warnings
    assert "OVERNIGHT_PARAMS" in warning


def test_shapes_by_hand_lead_over_those_of_a_config(place: Place) -> None:
    found = place.ask(config=place.write("c.json", LLAMA), layers="30", width="5000", seq_len="100")
    assert per_token(found)[1] == 6 * LLAMA_TOTAL + 12 * 30 * 5000 * 100
    assert {warning.partition(":")[0] for warning in found.warnings} == {"layers", "width"}


def test_heads_give_the_width(place: Place) -> None:
    found = place.ask(params="100M", layers="12", heads="16", head_size="96", seq_len="1024")
    assert explained(found)["width"] == ("1536", "heads * head size")
    assert per_token(found)[1] == 6e8 + 12 * 12 * 1536 * 1024


def test_of_experts_the_active_ones_lead(place: Place) -> None:
    config = place.write("c.json", MIXTRAL)
    found = place.ask(config=config, seq_len="4096")
    counts = found.spec.counts
    assert counts is not None
    assert counts.active == 12_879_925_248
    assert per_token(found)[0] == 6 * 12_879_925_248
    assert per_token(found)[2] == "6N (active)"
    rounded = place.ask(config=config, params="46.7B")
    assert per_token(rounded)[0] == 6 * 12_879_925_248
    given = place.ask(config=config, active_params="12B")
    assert per_token(given)[0] == 72e9
    assert "12,879,925,248" in given.warnings[0]
    by_hand = place.ask(params="46.7B", active_params="12.9B", layers="32", width="4096", seq_len="4096")
    assert per_token(by_hand) == (6 * 12.9e9, 6 * 12.9e9 + 12 * 32 * 4096 * 4096, "6N (active)")
    assert "more than" in place.refuse(params="1B", active_params="2B")


def test_adapters_beside_a_config_and_trained_weights_of_a_total(place: Place) -> None:
    config = place.write("c.json", LLAMA)
    beside = place.ask(config=config, trainable_params="4M")
    assert beside.spec.params == LLAMA_TOTAL + 4_000_000
    assert per_token(beside)[0] == 4 * LLAMA_TOTAL + 6 * 4_000_000
    assert per_token(beside)[2] == "4N_f + 6N_t"
    assert "adapters" in beside.warnings[0]
    within = place.ask(params="7B", trainable_params="4M")
    assert within.spec.params == 7_000_000_000
    assert per_token(within)[0] == 4 * (7_000_000_000 - 4_000_000) + 6 * 4_000_000
    most = place.ask(config=config, trainable_params="4B")  # too many for adapters: so many of its own
    assert most.spec.params == LLAMA_TOTAL
    assert per_token(most)[0] == 4 * (LLAMA_TOTAL - 4_000_000_000) + 24e9
    assert "more than" in place.refuse(params="1M", trainable_params="2M")


def test_the_calculator_says_the_same(place: Place) -> None:
    from overnight.calculator.size import Declared, counted
    from overnight.modelsize.config import from_config

    base = from_config(LLAMA, source=str(place.path / "c.json"))
    spec = place.ask(config=place.write("c.json", LLAMA), trainable_params="4M").spec
    assert spec.counts == counted(Declared(trainable_params=4_000_000), base)[0]


# ---- conventions


def test_a_convention_that_there_is_not_or_that_lacks_something_is_refused(place: Place) -> None:
    config = place.write("c.json", LLAMA)
    assert "there is no convention 'six'" in place.refuse(convention="six")
    assert "no convention of MFU" in place.refuse(convention="hfu-full")
    assert "--seq-len" in place.refuse(config=config, convention="matmul")
    assert "--config" in place.refuse(params="100M", convention="matmul", seq_len="512")
    assert "--layers" in place.refuse(params="100M", convention="palm", seq_len="512")
    assert "encoder-decoder" in place.refuse(config=config, convention="encoder-decoder", seq_len="512")


def test_a_convention_leads(place: Place) -> None:
    found = place.ask(params="100M", layers="12", width="768", seq_len="1024", convention="palm")
    assert per_token(found)[0] == per_token(found)[1] == 6e8 + 12 * 12 * 768 * 1024
    (warning,) = place.ask(convention="palm").warnings
    assert "does nothing without --params" in warning
    assert "does nothing" in place.ask(recompute="full").warnings[0]


def test_a_figure_that_is_wrong_for_a_model_is_said(place: Place) -> None:
    (warning,) = place.ask(model="t5-small").warnings
    assert "twice too high" in warning


# ---- tokens


def test_tokens_of_a_step_are_the_product(place: Place) -> None:
    found = place.ask(batch="4", seq_len="1024", accumulate="8", world_size="2")
    assert found.spec.tokens_per_step == 65536
    assert found.spec.tokens_source == "batch 4 * seq-len 1,024 * accumulate 8 * world-size 2"
    assert explained(found)["tokens-per-step"] == ("65536", found.spec.tokens_source)
    one = place.ask(batch="4", seq_len="1024")
    assert (one.spec.tokens_per_step, one.spec.devices) == (4096, 1)
    eight = place.ask(batch="4", seq_len="1024", devices="8")
    assert eight.spec.tokens_per_step == 32768
    assert "data-parallel" in str(eight.spec.tokens_source)


def test_each_rank_has_a_device(place: Place) -> None:
    found = place.ask(batch="4", seq_len="1024", world_size="8")
    assert found.spec.devices == 8
    assert "world-size" in explained(found)["devices"][1]
    assert place.ask(batch="4", seq_len="1024", world_size="2", devices="8").spec.devices == 8
    (warning,) = place.ask(batch="4", seq_len="1024", world_size="8", devices="4").warnings
    assert "more than devices 4" in warning


def test_given_tokens_lead_and_what_disagrees_is_said(place: Place) -> None:
    found = place.ask(batch="4", seq_len="1024", accumulate="8", tokens_per_step="4096")
    assert found.spec.tokens_per_step == 4096
    assert found.spec.tokens_source == "--tokens-per-step"
    (warning,) = found.warnings
    assert "4,096" in warning
    assert "32,768" in warning
    assert place.ask(batch="4", seq_len="1024", tokens_per_step="4096").warnings == ()


def test_half_a_product_gives_nothing_and_says_so(place: Place) -> None:
    for flags, missing in (({"batch": "4"}, "seq-len"), ({"accumulate": "8", "seq_len": "10"}, "batch")):
        found = place.ask(**flags)
        assert found.spec.tokens_per_step is None
        assert f"give {missing} too" in found.warnings[0]
    assert place.ask(accumulate="8", tokens_per_step="100").warnings == ()
    assert place.ask(seq_len="10").warnings == ()


# ---- the peak


def test_a_named_device_has_a_peak_with_its_source(place: Place) -> None:
    found = place.ask(gpu="a100", dtype="bf16")
    assert found.spec.peak_tflops == 312
    source = str(found.spec.peak_source)
    for word in ("dense bf16", "A100", "sparse 624", "fp32 19.5"):
        assert word in source
    assert explained(found)["peak-tflops"] == ("312", "gpu a100, dtype bf16")
    assert found.warnings == ()


def test_without_a_dtype_or_with_one_it_has_not_the_peak_is_unknown(place: Place) -> None:
    for flags, word in (({"gpu": "h100-pcie"}, "--dtype"), ({"gpu": "v100-sxm2", "dtype": "bf16"}, "no bf16 peak")):
        found = place.ask(**flags)
        assert found.spec.peak_tflops is None
        assert explained(found)["peak-tflops"][0] == "unknown"
        (warning,) = found.warnings
        assert "the peak is unknown" in warning
        assert word in warning


@pytest.mark.parametrize(
    ("gpu", "near"),
    [
        ("h100", "h100-pcie"),
        ("rtx4091", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "laptop"),
        ("a101", "a100"),
    ],
)
def test_unknown_devices_are_refused_with_what_is_close(place: Place, gpu: str, near: str) -> None:
    text = place.refuse(gpu=gpu, dtype="bf16")
    assert "(flag --gpu)" in text
    assert near in text
    assert text.count("h100-sxm") <= 1
    assert place.ask(gpu=gpu, dtype="bf16", peak_tflops="100").spec.peak_tflops == 100


def test_a_peak_by_hand_leads_and_a_sparse_one_is_noticed(place: Place) -> None:
    found = place.ask(gpu="a100", dtype="bf16", peak_tflops="624")
    assert (found.spec.peak_tflops, found.spec.peak_source) == (624, "--peak-tflops")
    assert any("sparse" in warning and "312" in warning for warning in found.warnings)
    assert any("only shown" in warning for warning in place.ask(dtype="bf16", peak_tflops="312").warnings)
    same = place.ask({"OVERNIGHT_PEAK_TFLOPS": "312"}, gpu="a100", dtype="bf16")
    assert same.spec.peak_source == "OVERNIGHT_PEAK_TFLOPS"
    assert not any("sparse" in warning for warning in same.warnings)


def test_there_is_no_default_device(place: Place) -> None:
    told = explained(place.ask())
    assert told["gpu"] == ("what the driver says", "default")
    assert told["peak-tflops"][0] == "unknown"
    assert {told[name][0] for name in ("config", "model", "price-table")} == {"none"}
    assert told["world-size"][0] == "all devices"
    assert told["accumulate"][0] == "1"


# ---- the price


def test_a_price_of_a_table(place: Place) -> None:
    (place.path / "prices.toml").write_text('"NVIDIA A100-SXM4-80GB" = 1.5\n"NVIDIA H100 PCIe" = 2.5\n')
    found = place.ask(price_table="prices.toml", gpu="h100-pcie", dtype="bf16", devices="4", max_cost="40")
    assert found.spec.price == 10
    assert "prices.toml" in str(found.spec.price_source)
    assert explained(found)["price"][0] == "10"
    later = place.ask(price_table="prices.toml")
    assert (later.spec.price, later.spec.price_table) == (None, str(place.path / "prices.toml"))
    both = place.ask(price_table="prices.toml", price="3/h")
    assert (both.spec.price, both.spec.price_source) == (3, "--price")
    assert "is not used" in both.warnings[0]
    assert "prices.toml" in place.refuse(price_table="prices.toml", gpu="l4", dtype="bf16")
    assert "missing.toml" in place.refuse(price_table="missing.toml")

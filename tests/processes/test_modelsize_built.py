"""Counts from config fields against models that transformers builds of the same fields, without memory for them.

Every family, with small sizes drawn anew for each of a few fixed seeds: fields present and absent, switches on and off.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from overnight.modelsize.config import FAMILIES, from_config

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore")
SEEDS = range(3)
ELSEWHERE = {
    "internlm2": "its code is not part of transformers",
    "kimi_k2": "DeepSeek V3 under another name",
    **dict.fromkeys(("qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text"), "nested, below"),
}
MASKED = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "modernbert")
PAIRS = ("t5", "mt5", "umt5", "bart", "mbart")
LATENT = ("deepseek_v2", "deepseek_v3", "minicpm3", "glm4_moe_lite", "youtu")
SWITCHES = (
    "attention_bias mlp_bias tie_word_embeddings qk_layernorm use_qk_norm use_bias use_qkv_bias use_parallel_residual "
    "bias new_decoder_architecture multi_query parallel_attn enable_bias do_layer_norm_before lm_head_bias qkv_bias "
    "attention_out_bias use_sliding_window norm_bias decoder_bias classifier_bias layer_norm_elementwise_affine "
    "conv_bias use_conv_bias block_auto_adjust_ff_dim"
).split()


def choices(pick: random.Random) -> dict[str, Any]:
    """Return a value for every field that some family has."""
    heads, layers = pick.choice([2, 4, 6]), pick.randint(1, 5)
    width = heads * pick.choice([4, 8])
    found: dict[str, Any] = {}
    found |= dict.fromkeys("hidden_size n_embd d_model dim".split(), width)
    found |= dict.fromkeys("num_attention_heads n_head n_heads num_heads attention_heads".split(), heads)
    found |= {"encoder_attention_heads": heads, "decoder_attention_heads": 2}
    found |= dict.fromkeys("num_hidden_layers n_layer n_layers num_layers encoder_layers".split(), layers)
    found |= dict.fromkeys("num_decoder_layers decoder_layers".split(), pick.randint(1, 4))
    found |= dict.fromkeys("num_key_value_heads num_kv_heads".split(), pick.choice([1, 2, heads]))
    found |= {name: pick.choice([24, 40, 56]) for name in "intermediate_size ffn_dim d_ff hidden_dim".split()}
    found |= {"encoder_ffn_dim": 40, "decoder_ffn_dim": 24, "intermediate_size_mlp": 48, "ffn_hidden_size": 72}
    found |= {"vocab_size": pick.randint(60, 200), "d_kv": pick.choice([4, 6]), "moe_intermediate_size": 12}
    found |= dict.fromkeys("max_position_embeddings n_positions".split(), pick.choice([32, 64]))
    found |= {"shared_expert_intermediate_size": 28, "shared_intermediate_size": pick.choice([0, 28])}
    experts = "num_local_experts num_experts n_routed_experts moe_num_experts".split()
    found |= dict.fromkeys(experts, pick.choice([4, 8]))
    found |= dict.fromkeys("num_experts_per_tok moe_k moe_topk".split(), pick.randint(1, 4))
    found |= {"n_shared_experts": pick.randint(1, 2), "moe_num_shared_experts": pick.randint(0, 2), "n_group": 1}
    found |= {
        "num_shared_experts": 1,
        "mlp_layer_types": None,
        "topk_group": 1,
        "first_k_dense_replace": pick.randint(0, 3),
        "decoder_sparse_step": pick.randint(1, 3),
    }
    found |= {"mlp_only_layers": pick.choice([[], [0], [1, 2]]), "moe_layer_start_index": pick.randint(0, 2)}
    found |= {"moe_layer_end_index": pick.choice([-1, 2]), "moe_layer_interval": pick.randint(1, 2)}
    found |= {"interleave_moe_layer_step": pick.randint(1, 2), "kv_lora_rank": 12, "v_head_dim": pick.choice([6, 10])}
    found |= {"q_lora_rank": pick.choice([None, 16]), "qk_nope_head_dim": pick.choice([6, 8]), "qk_rope_head_dim": 4}
    found |= {"sliding_window": pick.choice([8, 16]), "max_window_layers": pick.randint(0, 4), "window_size": 8}
    found |= {"attention_types": [[["global"], (layers + 1) // 2], [["local"], layers // 2]]}
    found |= {"word_embed_proj_dim": pick.choice([width, 16]), "feed_forward_proj": pick.choice(["relu", "gated-gelu"])}
    found |= {"relative_attention_num_buckets": 8, "type_vocab_size": pick.choice([1, 2])}
    found |= {name: pick.random() < 0.5 for name in SWITCHES if pick.random() < 0.6}
    found |= {"state_size": 8, "expand": 2, "n_groups": 2, "conv_kernel": 3, "conv_L_cache": 4, "use_conv_bias": True}
    found |= {"linear_num_key_heads": 2, "linear_num_value_heads": pick.choice([2, 4]), "linear_conv_kernel_dim": 3}
    found |= {"linear_key_head_dim": 6, "linear_value_head_dim": pick.choice([4, 8]), "block_multiple_of": 8}
    found |= {"full_attn_idxs": [1, 3], "layer_types": None, "time_step_rank": pick.choice(["auto", 3])}
    found |= {"n_inner": 24} if pick.random() < 0.5 else {}
    return found


def drawn(family: str, seed: int) -> dict[str, Any]:
    """Return fields of one family for one seed; what it has not, and what transformers cannot build, is left out."""
    pick = random.Random(f"{family} {seed}")
    known = transformers.AutoConfig.for_model(family).to_dict()
    fields = {name: value for name, value in choices(pick).items() if name in known}
    if family == "mamba2":
        fields |= {"num_heads": 4, "head_dim": fields["hidden_size"] // 2}
    elif family in LATENT or family == "gpt_bigcode":
        fields.pop("num_key_value_heads", None)
    elif family == "helium":
        fields["head_dim"] = fields["hidden_size"] // fields["num_attention_heads"]
    elif family.startswith("hunyuan") or family == "ministral" or pick.random() < 0.5:
        fields |= {"head_dim": pick.choice([4, 10, 12])} if "head_dim" in known and family != "cohere2" else {}
    if family in PAIRS:
        fields.pop("tie_word_embeddings", None)
    if family == "internlm3":
        fields["mlp_bias"] = fields["attention_bias"] = pick.random() < 0.5
    if known.get("num_ln_in_parallel_attn", 0) is None and not fields.get("new_decoder_architecture"):
        fields.pop("num_ln_in_parallel_attn", None)
    ends = {name: at for at, name in enumerate("pad bos eos cls sep".split()) if f"{name}_token_id" in known}
    return fields | {f"{name}_token_id": at for name, at in ends.items()}


def built(family: str, fields: dict[str, Any]) -> Any:
    """Return the model that transformers builds, on the meta device."""
    kind = transformers.AutoModelForCausalLM
    if family in MASKED:
        kind = transformers.AutoModelForMaskedLM
    elif family in PAIRS:
        kind = transformers.AutoModelForSeq2SeqLM
    with torch.device("meta"):
        model = kind.from_config(transformers.AutoConfig.for_model(family, **fields))
    model.tie_weights()
    return model


def matrices(model: Any) -> Iterator[Any]:
    """Yield each weight that multiplies tokens, the output head too where it is the embedding again."""
    seen = set()
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            skipped = (
                isinstance(module, (torch.nn.Embedding, torch.nn.Conv1d)) or "norm" in type(module).__name__.lower()
            )
            if weight.ndim >= 2 and "bias" not in name and name != "A_log" and not skipped and id(weight) not in seen:
                seen.add(id(weight))
                yield weight


def unused(model: Any) -> int:
    """Return how many weights of routed experts one token does not use."""
    config, idle = model.config, 0
    for name, weight in model.named_parameters():
        if ".experts." in name:
            chosen = next(
                getattr(config, field)
                for field in ("num_experts_per_tok", "moe_k", "moe_topk")
                if getattr(config, field, None) is not None
            )
            idle += weight.numel() * (weight.shape[0] - chosen) // weight.shape[0]
    return idle


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ELSEWHERE])
def test_counts_are_those_of_the_model_that_is_built(family: str) -> None:
    for seed in SEEDS:
        fields = drawn(family, seed)
        model = built(family, fields)
        counts = from_config({"model_type": family, **fields})
        total = sum(weight.numel() for weight in model.parameters())
        found = (counts.total, counts.active, counts.embedding, counts.matmul)
        matmul = sum(weight.numel() for weight in matrices(model))
        embedding = model.get_input_embeddings().weight.numel()
        assert found == (total, total - unused(model), embedding, matmul), fields


def sliding(model: Any) -> list[int]:
    """Return the windows of the layers that have one, as the model's own attention modules hold them."""
    found = [getattr(module, "sliding_window", None) for module in model.modules() if hasattr(module, "q_proj")]
    return [window for window in found if window]


@pytest.mark.parametrize(
    "family", ["qwen2", "qwen3", "qwen2_moe", "gemma2", "gemma3_text", "olmo3", "gpt_oss", "cohere2"]
)
def test_windows_are_those_of_the_model_that_is_built(family: str) -> None:
    for seed in SEEDS:
        fields = drawn(family, seed) | {"num_hidden_layers": 7}
        counts = from_config({"model_type": family, **fields})
        ours = [kind.window for kind in counts.attention for _ in range(kind.layers) if kind.window]
        assert ours == sliding(built(family, fields)), fields


TEXT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
NESTED: list[dict[str, Any]] = [
    {"model_type": "gemma3", "text_config": {**TEXT, "model_type": "gemma3_text"}},
    {"model_type": "llava", "text_config": {**TEXT, "model_type": "llama"}},
    {"model_type": "llava", "text_config": {**TEXT, "model_type": "llama", "tie_word_embeddings": True}},
    {"model_type": "qwen2_5_vl", "tie_word_embeddings": True, **TEXT, "vision_config": {"depth": 1}},
    {"model_type": "qwen2_vl", **TEXT, "vision_config": {"depth": 1}},
    {"model_type": "qwen3_vl", "text_config": {**TEXT, "model_type": "qwen3_vl_text"}},
    {"model_type": "qwen3_vl_moe", "text_config": {**TEXT, "model_type": "qwen3_vl_moe_text"}},
    {"model_type": "llama4", "text_config": {**TEXT, "model_type": "llama4_text"}},
    {"model_type": "mistral3", "tie_word_embeddings": False, "text_config": {**TEXT, "model_type": "mistral"}},
]


@pytest.mark.parametrize("config", NESTED, ids=[str(at) + one["model_type"] for at, one in enumerate(NESTED)])
def test_the_language_model_in_a_larger_one_is_counted_alone(config: dict[str, Any]) -> None:
    kind, fields = config["model_type"], {name: value for name, value in config.items() if name != "model_type"}
    for where in (fields, *(value for value in fields.values() if isinstance(value, dict))):
        if "num_attention_heads" in where:
            where |= {"num_key_value_heads": 2, "vocab_size": 300, "pad_token_id": 0}
    with torch.device("meta"):
        model = transformers.AutoModelForImageTextToText.from_config(transformers.AutoConfig.for_model(kind, **fields))
    model.tie_weights()
    towers = ("vision", "visual", "projector")
    language = {
        id(one): one.numel() for name, one in model.named_parameters() if not any(word in name for word in towers)
    }
    assert from_config({"model_type": kind, **fields}).total == sum(language.values())


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3", "gemma2", "phi3", "olmo2", "gpt_neox", "starcoder2"])
def test_a_forward_pass_does_two_flops_for_each_matmul_weight_and_its_attention(family: str) -> None:
    """What torch counts while the model runs is 2 * N_matmul a token and 4 * L * H * h * T for its scores."""
    from torch.utils.flop_counter import FlopCounterMode

    fields, length = drawn(family, 0), 16
    config = transformers.AutoConfig.for_model(family, **fields, attn_implementation="eager")
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros((1, length), dtype=torch.long))
    counts = from_config({"model_type": family, **fields})
    scores = sum(4 * kind.layers * kind.heads * kind.qk for kind in counts.attention)
    assert counter.get_total_flops() == 2 * (counts.matmul or 0) * length + scores * length * length

"""Sizes of popular public models by name: the fields of their config.json that decide a count. No weights, no network.

Rows are literals in the order of the fields above them; the counts are made of them as of any config. Sources: the
models' own published config.json and papers.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import msgspec

from overnight.modelsize import Counts
from overnight.modelsize.config import from_config
from overnight.modelsize.fields import ConfigError

_Rows = Mapping[str, tuple[int | bool, ...]]

_FIELDS = (
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads "
    "tie_word_embeddings"
).split()
_HEADS = [*_FIELDS, "head_dim"]

_GPT2: _Rows = {
    "gpt2": (768, 12, 12),
    "gpt2-medium": (1024, 24, 16),
    "gpt2-large": (1280, 36, 20),
    "gpt2-xl": (1600, 48, 25),
    "distilgpt2": (768, 6, 12),
}

_LLAMA: _Rows = {
    "meta-llama/Llama-2-7b-hf": (32000, 4096, 11008, 32, 32, 32, False),
    "meta-llama/Llama-2-13b-hf": (32000, 5120, 13824, 40, 40, 40, False),
    "meta-llama/Llama-2-70b-hf": (32000, 8192, 28672, 80, 64, 8, False),
    "meta-llama/Meta-Llama-3-8B": (128256, 4096, 14336, 32, 32, 8, False),
    "meta-llama/Meta-Llama-3-70B": (128256, 8192, 28672, 80, 64, 8, False),
    "meta-llama/Llama-3.1-8B": (128256, 4096, 14336, 32, 32, 8, False),
    "meta-llama/Llama-3.1-70B": (128256, 8192, 28672, 80, 64, 8, False),
    "meta-llama/Llama-3.1-405B": (128256, 16384, 53248, 126, 128, 8, False),
    "meta-llama/Llama-3.2-1B": (128256, 2048, 8192, 16, 32, 8, True),
    "meta-llama/Llama-3.2-3B": (128256, 3072, 8192, 28, 24, 8, True),
    "meta-llama/Llama-3.3-70B-Instruct": (128256, 8192, 28672, 80, 64, 8, False),
    "codellama/CodeLlama-7b-hf": (32016, 4096, 11008, 32, 32, 32, False),
    "codellama/CodeLlama-34b-hf": (32000, 8192, 22016, 48, 64, 8, False),
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": (32000, 2048, 5632, 22, 32, 4, False),
    "HuggingFaceTB/SmolLM2-135M": (49152, 576, 1536, 30, 9, 3, True),
    "HuggingFaceTB/SmolLM2-360M": (49152, 960, 2560, 32, 15, 5, True),
    "HuggingFaceTB/SmolLM2-1.7B": (49152, 2048, 8192, 24, 32, 32, True),
    "01-ai/Yi-6B": (64000, 4096, 11008, 32, 32, 4, False),
    "01-ai/Yi-34B": (64000, 7168, 20480, 60, 56, 8, False),
    "deepseek-ai/deepseek-llm-7b-base": (102400, 4096, 11008, 30, 32, 32, False),
}

_MISTRAL: _Rows = {
    "mistralai/Mistral-7B-v0.1": (32000, 4096, 14336, 32, 32, 8, False, 128, 4096),
    "mistralai/Mistral-7B-v0.3": (32768, 4096, 14336, 32, 32, 8, False, 128),
    "mistralai/Mistral-Nemo-Base-2407": (131072, 5120, 14336, 40, 32, 8, False, 128),
}

_MIXTRAL: _Rows = {
    "mistralai/Mixtral-8x7B-v0.1": (32000, 4096, 14336, 32, 32, 8, False, 8, 2),
    "mistralai/Mixtral-8x22B-v0.1": (32000, 6144, 16384, 56, 48, 8, False, 8, 2),
}

_QWEN2: _Rows = {
    "Qwen/Qwen2.5-0.5B": (151936, 896, 4864, 24, 14, 2, True),
    "Qwen/Qwen2.5-1.5B": (151936, 1536, 8960, 28, 12, 2, True),
    "Qwen/Qwen2.5-3B": (151936, 2048, 11008, 36, 16, 2, True),
    "Qwen/Qwen2.5-7B": (152064, 3584, 18944, 28, 28, 4, False),
    "Qwen/Qwen2.5-14B": (152064, 5120, 13824, 48, 40, 8, False),
    "Qwen/Qwen2.5-32B": (152064, 5120, 27648, 64, 40, 8, False),
    "Qwen/Qwen2.5-72B": (152064, 8192, 29568, 80, 64, 8, False),
    "Qwen/Qwen2-0.5B": (151936, 896, 4864, 24, 14, 2, True),
    "Qwen/Qwen2-1.5B": (151936, 1536, 8960, 28, 12, 2, True),
    "Qwen/Qwen2-7B": (152064, 3584, 18944, 28, 28, 4, False),
}

_QWEN3: _Rows = {
    "Qwen/Qwen3-0.6B": (151936, 1024, 3072, 28, 16, 8, True, 128),
    "Qwen/Qwen3-1.7B": (151936, 2048, 6144, 28, 16, 8, True, 128),
    "Qwen/Qwen3-4B": (151936, 2560, 9728, 36, 32, 8, True, 128),
    "Qwen/Qwen3-8B": (151936, 4096, 12288, 36, 32, 8, False, 128),
    "Qwen/Qwen3-14B": (151936, 5120, 17408, 40, 40, 8, False, 128),
    "Qwen/Qwen3-32B": (151936, 5120, 25600, 64, 64, 8, False, 128),
}

_QWEN3_MOE: _Rows = {
    "Qwen/Qwen3-30B-A3B": (151936, 2048, 6144, 48, 32, 4, False, 128, 768, 128, 8),
    "Qwen/Qwen3-235B-A22B": (151936, 4096, 12288, 94, 64, 4, False, 128, 1536, 128, 8),
}

_GEMMA: _Rows = {
    "google/gemma-2b": (256000, 2048, 16384, 18, 8, 1, True, 256),
    "google/gemma-7b": (256000, 3072, 24576, 28, 16, 16, True, 256),
}
_GEMMA2: _Rows = {
    "google/gemma-2-2b": (256000, 2304, 9216, 26, 8, 4, True, 256),
    "google/gemma-2-9b": (256000, 3584, 14336, 42, 16, 8, True, 256),
    "google/gemma-2-27b": (256000, 4608, 36864, 46, 32, 16, True, 128),
}
_GEMMA3: _Rows = {
    "google/gemma-3-270m": (262144, 640, 2048, 18, 4, 1, True, 256, 512),
    "google/gemma-3-1b-pt": (262144, 1152, 6912, 26, 4, 1, True, 256, 512),
}

_PHI3: _Rows = {
    "microsoft/Phi-3-mini-4k-instruct": (32064, 3072, 8192, 32, 32, 32, False),
    "microsoft/Phi-3-medium-4k-instruct": (32064, 5120, 17920, 40, 40, 10, False),
    "microsoft/phi-4": (100352, 5120, 17920, 40, 40, 10, False),
    "microsoft/Phi-4-mini-instruct": (200064, 3072, 8192, 32, 24, 8, True),
}
_PHI: _Rows = {
    "microsoft/phi-1_5": (51200, 2048, 8192, 24, 32, 32, False),
    "microsoft/phi-2": (51200, 2560, 10240, 32, 32, 32, False),
}

_OLMO: _Rows = {
    "allenai/OLMo-1B-hf": (50304, 2048, 8192, 16, 16, 16, True),
    "allenai/OLMo-7B-hf": (50304, 4096, 11008, 32, 32, 32, False),
}
_OLMO2: _Rows = {
    "allenai/OLMo-2-0425-1B": (100352, 2048, 8192, 16, 16, 16, False),
    "allenai/OLMo-2-1124-7B": (100352, 4096, 11008, 32, 32, 32, False),
    "allenai/OLMo-2-1124-13B": (100352, 5120, 13824, 40, 40, 40, False),
    "allenai/OLMo-2-0325-32B": (100352, 5120, 27648, 64, 40, 8, False),
}
_OLMOE: _Rows = {"allenai/OLMoE-1B-7B-0924": (50304, 2048, 1024, 16, 16, 16, False, 64, 8)}

_NEOX: _Rows = {
    "EleutherAI/pythia-14m": (50304, 128, 512, 6, 4),
    "EleutherAI/pythia-31m": (50304, 256, 1024, 6, 8),
    "EleutherAI/pythia-70m": (50304, 512, 2048, 6, 8),
    "EleutherAI/pythia-160m": (50304, 768, 3072, 12, 12),
    "EleutherAI/pythia-410m": (50304, 1024, 4096, 24, 16),
    "EleutherAI/pythia-1b": (50304, 2048, 8192, 16, 8),
    "EleutherAI/pythia-1.4b": (50304, 2048, 8192, 24, 16),
    "EleutherAI/pythia-2.8b": (50304, 2560, 10240, 32, 32),
    "EleutherAI/pythia-6.9b": (50432, 4096, 16384, 32, 32),
    "EleutherAI/pythia-12b": (50688, 5120, 20480, 36, 40),
    "EleutherAI/gpt-neox-20b": (50432, 6144, 24576, 44, 64),
}

_OPT: _Rows = {
    "facebook/opt-125m": (50272, 768, 3072, 12, 12, 768, True),
    "facebook/opt-350m": (50272, 1024, 4096, 24, 16, 512, False),
    "facebook/opt-1.3b": (50272, 2048, 8192, 24, 32, 2048, True),
    "facebook/opt-2.7b": (50272, 2560, 10240, 32, 32, 2560, True),
    "facebook/opt-6.7b": (50272, 4096, 16384, 32, 32, 4096, True),
    "facebook/opt-13b": (50272, 5120, 20480, 40, 40, 5120, True),
}
_BLOOM: _Rows = {
    "bigscience/bloom-560m": (250880, 1024, 24, 16),
    "bigscience/bloom-1b1": (250880, 1536, 24, 16),
    "bigscience/bloom-1b7": (250880, 2048, 24, 16),
    "bigscience/bloom-3b": (250880, 2560, 30, 32),
    "bigscience/bloom-7b1": (250880, 4096, 30, 32),
    "bigscience/bloom": (250880, 14336, 70, 112),
}
_STARCODER2: _Rows = {
    "bigcode/starcoder2-3b": (49152, 3072, 12288, 30, 24, 2, True, 4096),
    "bigcode/starcoder2-7b": (49152, 4608, 18432, 32, 36, 4, True, 4096),
}
_GPT_OSS: _Rows = {"openai/gpt-oss-20b": (24, 32), "openai/gpt-oss-120b": (36, 128)}

_LATENT = (
    "vocab_size hidden_size intermediate_size moe_intermediate_size num_hidden_layers num_attention_heads "
    "n_routed_experts n_shared_experts num_experts_per_tok first_k_dense_replace"
).split()
_DEEPSEEK3: _Rows = {
    "deepseek-ai/DeepSeek-V3": (129280, 7168, 18432, 2048, 61, 128, 256, 1, 8, 3),
    "deepseek-ai/DeepSeek-R1": (129280, 7168, 18432, 2048, 61, 128, 256, 1, 8, 3),
    "moonshotai/Kimi-K2-Base": (163840, 7168, 18432, 2048, 61, 64, 384, 1, 8, 1),
}

_T5: _Rows = {
    "t5-small": (32128, 512, 2048, 64, 6, 8),
    "t5-base": (32128, 768, 3072, 64, 12, 12),
    "t5-large": (32128, 1024, 4096, 64, 24, 16),
    "t5-3b": (32128, 1024, 16384, 128, 24, 32),
}
_T5_GATED: _Rows = {
    "google/flan-t5-small": (32128, 512, 1024, 64, 8, 6),
    "google/flan-t5-base": (32128, 768, 2048, 64, 12, 12),
    "google/flan-t5-large": (32128, 1024, 2816, 64, 24, 16),
    "google/flan-t5-xl": (32128, 2048, 5120, 64, 24, 32),
}
_BERT: _Rows = {
    "bert-base-uncased": (30522, 768, 3072, 12, 12),
    "bert-large-uncased": (30522, 1024, 4096, 24, 16),
}


def _made(kind: str, fields: list[str], rows: _Rows, **more: Any) -> dict[str, Mapping[str, Any]]:
    """Return the configs of some rows; a row that is shorter leaves the last fields out."""
    return {name: {"model_type": kind, **more, **dict(zip(fields, row, strict=False))} for name, row in rows.items()}


_T5_FIELDS = "vocab_size d_model d_ff d_kv num_layers num_heads".split()

NAMED: Mapping[str, Mapping[str, Any]] = {
    **_made("gpt2", ["n_embd", "n_layer", "n_head"], _GPT2, vocab_size=50257, n_positions=1024),
    **_made("llama", _FIELDS, _LLAMA),
    **_made("mistral", [*_HEADS, "sliding_window"], _MISTRAL, sliding_window=None),
    **_made("mixtral", [*_FIELDS, "num_local_experts", "num_experts_per_tok"], _MIXTRAL),
    **_made("qwen2", _FIELDS, _QWEN2),
    **_made("qwen3", _HEADS, _QWEN3),
    **_made("qwen3_moe", [*_HEADS, "moe_intermediate_size", "num_experts", "num_experts_per_tok"], _QWEN3_MOE),
    **_made("gemma", _HEADS, _GEMMA),
    **_made("gemma2", _HEADS, _GEMMA2, sliding_window=4096),
    **_made("gemma3_text", [*_HEADS, "sliding_window"], _GEMMA3),
    **_made("phi3", _FIELDS, _PHI3),
    **_made("phi", _FIELDS, _PHI),
    **_made("olmo", _FIELDS, _OLMO),
    **_made("olmo2", _FIELDS, _OLMO2),
    **_made("olmoe", [*_FIELDS, "num_experts", "num_experts_per_tok"], _OLMOE),
    **_made("gpt_neox", _FIELDS[:5], _NEOX, tie_word_embeddings=False),
    **_made(
        "opt",
        "vocab_size hidden_size ffn_dim num_hidden_layers num_attention_heads word_embed_proj_dim "
        "do_layer_norm_before".split(),
        _OPT,
        max_position_embeddings=2048,
    ),
    **_made("bloom", ["vocab_size", "hidden_size", "n_layer", "n_head"], _BLOOM),
    **_made("starcoder2", [*_FIELDS, "sliding_window"], _STARCODER2),
    **_made("gpt_oss", ["num_hidden_layers", "num_local_experts"], _GPT_OSS, vocab_size=201088, hidden_size=2880),
    **_made("deepseek_v3", _LATENT, _DEEPSEEK3),
    **_made("t5", _T5_FIELDS, _T5),
    **_made("t5", _T5_FIELDS, _T5_GATED, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    **_made("bert", _FIELDS[:5], _BERT),
    "deepseek-ai/DeepSeek-V2-Lite": {
        "model_type": "deepseek_v2",
        **dict(zip(_LATENT, (102400, 2048, 10944, 1408, 27, 16, 64, 2, 6, 1), strict=True)),
        "q_lora_rank": None,
    },
}
"""Configs by name, as far as they decide a count."""


def from_name(name: str) -> Counts:
    """Return the counts of a public model, by its name with or without its owner, in any case.

    Raise ConfigError for a name that is not known, with the close ones.
    """
    wanted = name.strip().lower()
    full = next((one for one in NAMED if wanted in (one.lower(), one.lower().rpartition("/")[2])), None)
    if full is not None:
        counts = from_config(NAMED[full], source=full)
        notes = tuple(note for note in counts.notes if not note.startswith("not in the config"))
        return msgspec.structs.replace(counts, source=f"{full}, by name", notes=notes)
    short = {one.lower().rpartition("/")[2]: one for one in NAMED}
    close = difflib.get_close_matches(wanted.rpartition("/")[2], short, n=4, cutoff=0.5)
    near = (
        f"close to it: {', '.join(short[one] for one in close)}" if close else "give --config config.json or --params"
    )
    raise ConfigError(f"no model called {name!r} is known here; {near}")

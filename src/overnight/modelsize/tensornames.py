"""What a tensor in a file of weights is, by its name, dtype and shape: a weight, a buffer, state of an optimizer.

Names only, as training programs and libraries write them; no file, no number is added up. What is of no kind that is
known here is a weight, for most tensors are.
"""

from __future__ import annotations

import re
from typing import Final, Literal

Role = Literal["weight", "adapter", "buffer", "optimizer", "average", "packed", "scale"]
"""adapter: LoRA and its kin. average: a copy of the weights (EMA). packed: several weights in one number."""

WRAPPERS: Final = re.compile(
    r"(?:^|(?<=\.))(?:module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|_forward_module|base_layer"
    r"|_modules|_parameters|modules_to_save(?:\.default)?)\."
)
"""Parts of names that come from what a model was wrapped in, or pickled whole."""

_OPTIMIZER = re.compile(
    r"(?:^|\.)(?:optim\w*|exp_avg(?:_sq)?|max_exp_avg_sq|momentum_buffer|(?:lr_)?schedulers?(?:_states?)?"
    r"|(?:grad_)?scaler|cuda_rng\w*|rng\w*|random_states?\w*|dataloader_state\w*|sampler_state\w*|master_weights|fp32_params?)(?:\.|$)"
)
_AVERAGE = re.compile(r"(?:^|\.)(?:ema\w*|\w+_ema|swa_\w+|averaged?_model|shadow_params)(?:\.|$)")
_ADAPTER = re.compile(
    r"(?:^|[._])(?:lora_(?:a|b|embedding_a|embedding_b|magnitude_vector)|hada_w\d_[ab]|lokr_w\d(?:_[ab])?|ia3_l"
    r"|oft_r|vera_lambda_[bd]|prompt_embeddings)(?:\.|$)",
    re.IGNORECASE,
)
_BUFFER = re.compile(
    r"(?:^|\.)(?:_buffers\..*|running_mean|running_var|num_batches_tracked|inv_freq|original_inv_freq|position_ids"
    r"|token_type_ids|masked_bias|rotary_emb\..*|freqs_cis|freqs_(?:cos|sin)|(?:cos|sin)_cached|causal_mask|attn_mask"
    r"|tril|e_score_correction_bias|embed_scale|kv_cache\w*|k_cache|v_cache)$"
)
_PACKED = re.compile(r"(?:^|[._])(?:qweight|qzeros|weight_packed|blocks)$")
_SCALE = re.compile(
    r"(?:^|[._])(?:scales|g_idx|scb|absmax|nested_absmax|quant_map|nested_quant_map|weight_format"
    r"|quant_state(?:\.\w+)?|weight_scale(?:_inv|_2)?|weight_zero_point|weight_shape|(?:in|out)put_scale|[kv]_scale"
    r"|bitsandbytes__nf4|bitsandbytes__fp4)$",
    re.IGNORECASE,
)
_COUNTERS = frozenset("BOOL I8 I16 I32 I64 U8 U16 U32 U64".split())

EMBEDDING: Final = re.compile(
    r"(?:^|\.)(?:embed_tokens|wte|tok_embeddings|word_embeddings|embed_in|token_embedding|token_embeddings|tok_emb"
    r"|token_emb|token_embedding_table|shared|embedding)\.weight$"
)
POSITION: Final = re.compile(
    r"(?:^|\.)(?:wpe|embed_positions|position_embeddings?|pos_emb|pos_embedding|position_embedding_table)\.weight$"
)
HEAD: Final = re.compile(r"^(?:[A-Za-z_]\w*\.){0,3}(?:lm_head|output|embed_out|head|unembed|out_head)\.weight$")
EXPERT: Final = re.compile(r"(?:^|\.)(?:experts|local_experts|mlp_experts)(?:\.|$)")
LAYER: Final = re.compile(r"^(.*?)(?:^|(?<=\.))(layers|h|blocks|layer)\.(\d{1,6})\.")
QUERY: Final = re.compile(r"(?:^|\.)(?:q_proj|wq|query|c_attn)\.weight$")


def bare(name: str) -> str:
    """Return a name without what a model was wrapped in."""
    return WRAPPERS.sub("", name).removeprefix("base_model.model.")


def role(name: str, dtype: str | None, shape: tuple[int, ...]) -> Role:
    """Return what a tensor is. ``dtype`` as safetensors calls it, None where it is not known."""
    if _OPTIMIZER.search(name):
        return "optimizer"
    if _AVERAGE.search(name):
        return "average"
    if _SCALE.search(name):
        return "scale"
    if _PACKED.search(name) or dtype in ("F4", "F6_E2M3", "F6_E3M2") or (dtype == "U8" and name.endswith(".weight")):
        return "packed"
    mask = len(shape) == 4 and shape[:2] == (1, 1) and shape[2] == shape[3] and name.endswith("bias")
    if _BUFFER.search(name) or mask:
        return "buffer"
    if dtype in _COUNTERS and not (dtype == "I8" and len(shape) == 2):
        return "buffer"
    if _ADAPTER.search(name) or ".modules_to_save." in f".{name}":
        return "adapter"
    return "weight"

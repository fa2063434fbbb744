"""DeepSeek V2 and V3 and what is built like them: attention through a narrow latent (MLA), experts behind that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from overnight.modelsize import Attention
from overnight.modelsize.families.decoder import Forward, Recipe, assemble, dense_forward, layer_of, shape_of, sizes
from overnight.modelsize.families.moe import after_dense_layers
from overnight.modelsize.fields import Fields
from overnight.modelsize.tally import Model, Weights, linear, norm

_BUFFER_NOTE = "the router's correction bias is a buffer, and not counted"


def latent_attention(fields: Fields, width: int, heads: int) -> tuple[Weights, Attention]:
    """Return the weights of one layer's attention and its kind; queries are full where ``q_lora_rank`` is null."""
    bias = fields.flag("attention_bias")
    nope, rope = fields.size("qk_nope_head_dim", least=0), fields.size("qk_rope_head_dim")
    value, narrow = fields.size("v_head_dim"), fields.size("kv_lora_rank")
    rank = fields.maybe("q_lora_rank")
    if rank is None:
        found = linear(width, heads * (nope + rope))
    else:
        found = linear(width, rank, bias=bias) + norm(rank) + linear(rank, heads * (nope + rope))
    found += linear(width, narrow + rope, bias=bias) + norm(narrow) + linear(narrow, heads * (nope + value))
    found += linear(heads * value, width, bias=bias)
    return found, Attention(layers=1, heads=heads, qk=nope + rope, v=value)


def _build(fields: Fields, recipe: Recipe) -> Model:
    """Return a model with latent attention, and the recipe's feed-forwards."""
    heads = fields.size("num_attention_heads")
    weights, kind = latent_attention(fields, fields.size("hidden_size"), heads)
    shape = shape_of(fields, recipe, kv_heads=heads, head=kind.qk)
    always = weights + norm(shape.width) * 2
    blocks: Sequence[Forward]
    if recipe.forwards is not None:
        blocks = recipe.forwards(fields, shape)
    else:
        blocks = [dense_forward(fields, recipe, shape.width, shape.inner or 0)] * shape.layers
    model = assemble(fields, recipe, shape, [layer_of(always, block, kind) for block in blocks])
    further = fields.maybe("num_nextn_predict_layers", least=0)
    if fields.given("num_nextn_predict_layers") and further:
        said = f"{further} further layer(s) of multi-token prediction in the checkpoint are not counted"
        return msgspec.structs.replace(model, notes=(*model.notes, said))
    return model


_RANKS = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
_V3 = Recipe(
    defaults=sizes(129280, 7168, 18432, 61, 128, None, 4096, **_RANKS, n_routed_experts=256, num_experts_per_tok=8)
    | {"n_shared_experts": 1, "moe_intermediate_size": 2048, "first_k_dense_replace": 3},
    names={"n_routed_experts": ("n_routed_experts", "num_local_experts"), "mlp_layer_types": ()},
    forwards=after_dense_layers,
    build=_build,
    notes=(_BUFFER_NOTE,),
)

FAMILIES: Mapping[str, Recipe] = {
    "deepseek_v3": _V3,
    "kimi_k2": _V3,
    "deepseek_v2": Recipe(
        defaults=sizes(102400, 4096, 11008, 32, 32, None, 2048, **_RANKS, n_routed_experts=64)
        | {"n_shared_experts": 2, "moe_intermediate_size": 1407, "first_k_dense_replace": 0},
        forwards=lambda fields, shape: after_dense_layers(fields, shape, bias=fields.flag("mlp_bias")),
        build=_build,
    ),
    "glm4_moe_lite": Recipe(
        defaults=sizes(154880, 2048, 10240, 47, 20, None, 202752, n_routed_experts=64, num_experts_per_tok=4)
        | {**_RANKS, "q_lora_rank": 768, "qk_nope_head_dim": 192, "v_head_dim": 256}
        | {"n_shared_experts": 1, "moe_intermediate_size": 1536, "first_k_dense_replace": 1},
        names={"n_routed_experts": ("n_routed_experts", "num_local_experts"), "first_k_dense_replace": ()},
        forwards=after_dense_layers,
        build=_build,
        notes=(_BUFFER_NOTE,),
    ),
    "youtu": Recipe(
        defaults=sizes(128256, 2048, 6144, 32, 16, None, 131072, **_RANKS) | {"tie_word_embeddings": True},
        build=_build,
    ),
    "minicpm3": Recipe(
        defaults=sizes(73448, 2560, 6400, 62, 40, None, 32768, tie_word_embeddings=True)
        | {"kv_lora_rank": 256, "q_lora_rank": 768, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64},
        mlp_bias="mlp_bias",
        build=_build,
    ),
}

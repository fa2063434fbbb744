"""Decoders with routed experts: Mixtral, Qwen MoE, OLMoE, Phi-MoE, Granite MoE, GLM MoE, gpt-oss, Llama 4 and others.

A router counts as a matrix that every token uses; shared experts too. One routed expert is kept apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from overnight.modelsize.families import windows
from overnight.modelsize.families.decoder import Forward, Recipe, Shape, sizes
from overnight.modelsize.fields import ConfigError, Fields, shown
from overnight.modelsize.tally import NOTHING, Weights, gated, linear


def routed(
    fields: Fields,
    width: int,
    expert: Weights,
    *,
    many: str = "num_local_experts",
    few: str = "num_experts_per_tok",
    shared: Weights = NOTHING,
    router_bias: bool = False,
) -> Forward:
    """Return a feed-forward of experts: ``many`` and ``few`` name the fields for how many there are and are used."""
    experts, chosen = fields.size(many), fields.size(few)
    if chosen > experts:
        raise ConfigError(
            f"{fields.family}: {fields.spelled(few)} {chosen} is more than {fields.spelled(many)} {experts}"
        )
    router = linear(width, experts, bias=router_bias)
    return Forward(weights=router + shared, expert=expert, experts=experts, chosen=chosen)


def _everywhere(many: str) -> Callable[[Fields, Shape], Sequence[Forward]]:
    """Every layer has experts of ``intermediate_size``."""

    def forwards(fields: Fields, shape: Shape) -> Sequence[Forward]:
        expert = gated(shape.width, fields.size("intermediate_size"))
        return [routed(fields, shape.width, expert, many=many)] * shape.layers

    return forwards


def qwen_forwards(fields: Fields, shape: Shape, *, shared: bool = False) -> Sequence[Forward]:
    """Every n-th layer has experts but those of ``mlp_only_layers``; some Qwens have a shared one too, with a gate."""
    dense = Forward(weights=gated(shape.width, fields.size("intermediate_size")))
    if not fields.size("num_experts", least=0):
        return [dense] * shape.layers
    every = fields.size("decoder_sparse_step")
    only = fields.items("mlp_only_layers") or []
    always = NOTHING
    if shared:
        always = gated(shape.width, fields.size("shared_expert_intermediate_size")) + linear(shape.width, 1)
    expert = gated(shape.width, fields.size("moe_intermediate_size"))
    sparse = routed(fields, shape.width, expert, many="num_experts", shared=always)
    return [sparse if index not in only and (index + 1) % every == 0 else dense for index in range(shape.layers)]


def _qwen2_windows(fields: Fields, layers: int) -> Sequence[int | None]:
    """Qwen2-MoE: every other one of the first ``max_window_layers`` slides where the config switches it on."""
    window = windows.switched(fields)
    first = 0 if window is None else fields.size("max_window_layers", least=0)
    return windows.by_types(fields, layers, lambda index: index % 2 == 0 and index < first, window)


def _granite(fields: Fields, shape: Shape) -> Sequence[Forward]:
    """Granite: experts everywhere, and a shared feed-forward where its size is not 0."""
    inner = fields.maybe("shared_intermediate_size", least=0) or 0
    shared = gated(shape.width, inner) if inner else NOTHING
    expert = gated(shape.width, fields.size("intermediate_size"))
    return [routed(fields, shape.width, expert, shared=shared)] * shape.layers


def after_dense_layers(fields: Fields, shape: Shape, *, bias: bool = False) -> Sequence[Forward]:
    """The first ``first_k_dense_replace`` layers are dense, the others have routed and shared experts.

    ``mlp_layer_types`` says it layer by layer in the families that have it.
    """
    experts = fields.maybe("n_routed_experts", least=0) or 0
    if (fields.maybe("moe_layer_freq") or 1) != 1:
        raise ConfigError(f"{fields.family}: a moe_layer_freq other than 1 is not counted; give --params")
    first = (fields.maybe("first_k_dense_replace", least=0) or 0) if experts else shape.layers
    kinds = fields.per_layer("mlp_layer_types", shape.layers) or [
        "dense" if index < first else "sparse" for index in range(shape.layers)
    ]
    strange = [kind for kind in kinds if kind not in ("dense", "sparse")]
    if strange:
        raise ConfigError(f"{fields.family}: mlp_layer_types names {shown(strange[0])}, which is not known")
    made: dict[str, Forward] = {}
    if "dense" in kinds:
        made["dense"] = Forward(weights=gated(shape.width, fields.size("intermediate_size"), bias=bias))
    if "sparse" in kinds:
        inner = fields.size("moe_intermediate_size")
        together = (fields.maybe("n_shared_experts", least=0) or 0) * inner
        shared = gated(shape.width, together, bias=bias) if together else NOTHING
        expert = gated(shape.width, inner)
        made["sparse"] = routed(fields, shape.width, expert, many="n_routed_experts", shared=shared)
    return [made[kind] for kind in kinds]


def _gpt_oss(fields: Fields, shape: Shape) -> Sequence[Forward]:
    """gpt-oss: experts and router with biases."""
    expert = gated(shape.width, fields.size("intermediate_size"), bias=True)
    return [routed(fields, shape.width, expert, router_bias=True)] * shape.layers


def _llama4(fields: Fields, shape: Shape) -> Sequence[Forward]:
    """Llama 4: the layers of ``moe_layers``, or every n-th, have experts and a shared one; the others are wider."""
    every = fields.size("interleave_moe_layer_step")
    sparse_layers = fields.items("moe_layers")
    if sparse_layers is None:
        sparse_layers = list(range(every - 1, shape.layers, every))
    inner = gated(shape.width, fields.size("intermediate_size"))
    sparse = routed(fields, shape.width, inner, shared=inner)
    dense = Forward(weights=gated(shape.width, fields.size("intermediate_size_mlp")))
    return [sparse if index in sparse_layers else dense for index in range(shape.layers)]


def _llama4_windows(fields: Fields, layers: int) -> Sequence[int | None]:
    """Llama 4: layers with rotary positions see chunks, the others everything."""
    chunk = fields.maybe("attention_chunk_size")
    every = fields.size("no_rope_layer_interval")
    kinds = fields.per_layer("layer_types", layers)
    if kinds is not None:
        return [chunk if kind == windows.CHUNKED else None for kind in kinds]
    rope = fields.items("no_rope_layers") or [(index + 1) % every for index in range(layers)]
    if len(rope) != layers:
        raise ConfigError(f"llama4_text: no_rope_layers has {len(rope)} entries, and the model has {layers} layers")
    return [chunk if has else None for has in rope]


def _ernie(fields: Fields, shape: Shape) -> Sequence[Forward]:
    """ERNIE 4.5: experts from one layer to another, shared ones, and a router with a correction for each expert."""
    bias = fields.flag("use_bias")
    dense = Forward(weights=gated(shape.width, fields.size("intermediate_size"), bias=bias))
    inner = fields.size("moe_intermediate_size")
    together = inner * (fields.maybe("moe_num_shared_experts", least=0) or 0)
    shared = gated(shape.width, together, bias=bias) if together else NOTHING
    shared += Weights(other=fields.size("moe_num_experts"))
    sparse = routed(fields, shape.width, gated(shape.width, inner), many="moe_num_experts", few="moe_k", shared=shared)
    every, first = fields.size("moe_layer_interval"), fields.size("moe_layer_start_index", least=0)
    last = fields.size("moe_layer_end_index", least=-1)
    last = shape.layers - 1 if last == -1 else last
    return [sparse if (index + 1) % every == 0 and first <= index <= last else dense for index in range(shape.layers)]


def _hunyuan(fields: Fields, shape: Shape) -> Sequence[Forward]:
    """Hunyuan: experts everywhere and a shared feed-forward of the same size."""
    inner = gated(shape.width, fields.size("intermediate_size"))
    sparse = routed(fields, shape.width, inner, many="num_experts", few="moe_topk", shared=inner)
    return [sparse] * shape.layers


_EXPERTS = {"num_local_experts": ("num_local_experts", "num_experts")}
_OLMOE = {"num_experts": ("num_experts", "num_local_experts")}
_ROUTED = {"n_routed_experts": ("n_routed_experts", "num_local_experts"), "mlp_layer_types": ()}
_CHUNK_NOTE = "attention in chunks is taken for a window of the same size, which sees a little more"

FAMILIES: Mapping[str, Recipe] = {
    "mixtral": Recipe(
        defaults=sizes(32000, 4096, 14336, 32, 32, 8, 131072, num_local_experts=8, num_experts_per_tok=2),
        names=_EXPERTS,
        forwards=_everywhere("num_local_experts"),
        windows=windows.everywhere,
    ),
    "qwen2_moe": Recipe(
        defaults=sizes(151936, 2048, 5632, 24, 16, 16, 32768, num_experts=60, num_experts_per_tok=4)
        | {"moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "decoder_sparse_step": 1}
        | {"qkv_bias": True, "sliding_window": 4096, "max_window_layers": 28},
        qkv_bias="qkv_bias",
        forwards=lambda fields, shape: qwen_forwards(fields, shape, shared=True),
        windows=_qwen2_windows,
    ),
    "qwen3_moe": Recipe(
        defaults=sizes(151936, 2048, 6144, 24, 32, 4, 32768, num_experts=128, num_experts_per_tok=8)
        | {"moe_intermediate_size": 768, "decoder_sparse_step": 1, "sliding_window": 4096},
        names=_OLMOE,
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        qk_norm=True,
        forwards=qwen_forwards,
        windows=windows.switched_everywhere,
    ),
    "qwen3_vl_moe_text": Recipe(
        defaults=sizes(151936, 2048, 5632, 24, 16, 16, 128000, num_experts=60, num_experts_per_tok=4)
        | {"moe_intermediate_size": 1408, "decoder_sparse_step": 1},
        names=_OLMOE,
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        qk_norm=True,
        forwards=qwen_forwards,
    ),
    "olmoe": Recipe(
        defaults=sizes(50304, 2048, 2048, 16, 16, None, 4096, num_experts=64, num_experts_per_tok=8),
        names=_OLMOE,
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        qk_norm=True,
        qk_wide=True,
        forwards=_everywhere("num_experts"),
    ),
    "flex_olmo": Recipe(
        defaults=sizes(100352, 4096, 11008, 32, 32, None, 4096, num_experts=7, num_experts_per_tok=5),
        names=_OLMOE,
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        qk_norm=True,
        qk_wide=True,
        forwards=_everywhere("num_experts"),
    ),
    "phimoe": Recipe(
        defaults=sizes(32064, 4096, 6400, 32, 32, 8, 131072, num_local_experts=16, num_experts_per_tok=2),
        names=_EXPERTS,
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        norm_bias=True,
        head_bias="lm_head_bias",
        forwards=_everywhere("num_local_experts"),
        windows=windows.everywhere,
    ),
    "granitemoe": Recipe(
        defaults=sizes(32000, 4096, 11008, 32, 32, None, 2048, num_local_experts=8, num_experts_per_tok=2),
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        forwards=_everywhere("num_local_experts"),
    ),
    "granitemoeshared": Recipe(
        defaults=sizes(32000, 4096, 11008, 32, 32, None, 2048, num_local_experts=8, num_experts_per_tok=2),
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        forwards=_granite,
    ),
    "glm4_moe": Recipe(
        defaults=sizes(151552, 4096, 10944, 46, 96, 8, 131072, n_routed_experts=128, num_experts_per_tok=8)
        | {"n_shared_experts": 1, "moe_intermediate_size": 1408, "first_k_dense_replace": 1},
        names=_ROUTED,
        qkv_bias="attention_bias",
        qk_norm="use_qk_norm",
        forwards=after_dense_layers,
    ),
    "dots1": Recipe(
        defaults=sizes(152064, 4608, 10944, 62, 32, None, 2048, moe_intermediate_size=1408)
        | {"sliding_window": 4096, "max_window_layers": 62},
        names=_ROUTED,
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        qk_norm=True,
        forwards=after_dense_layers,
        windows=lambda fields, layers: windows.by_types(
            fields,
            layers,
            lambda index: index >= fields.size("max_window_layers", least=0),
            fields.maybe("sliding_window"),
        ),
    ),
    "solar_open": Recipe(
        defaults=sizes(196608, 4096, None, 48, 64, 8, 131072, n_routed_experts=128, num_experts_per_tok=8)
        | {"head_dim": 128, "n_shared_experts": 1, "moe_intermediate_size": 1280},
        names={**_ROUTED, "mlp_layer_types": (), "first_k_dense_replace": ()},
        qkv_bias="attention_bias",
        forwards=after_dense_layers,
    ),
    "exaone_moe": Recipe(
        defaults=sizes(102400, 4096, 16384, 32, 32, 32, 2048, n_routed_experts=64, num_experts_per_tok=8)
        | {"n_shared_experts": 1, "moe_intermediate_size": 1024, "first_k_dense_replace": 1}
        | {"sliding_window": 4096, "sliding_window_pattern": 4},
        names={"n_routed_experts": ("num_experts",), "n_shared_experts": ("num_shared_experts",)},
        qk_norm=True,
        forwards=after_dense_layers,
        windows=windows.all_but_every(4),
    ),
    "gpt_oss": Recipe(
        defaults=sizes(201088, 2880, 2880, 36, 64, 8, 131072, num_local_experts=128, num_experts_per_tok=4)
        | {"head_dim": 64, "sliding_window": 128, "attention_bias": True},
        names=_EXPERTS,
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        forwards=_gpt_oss,
        windows=windows.alternate,
        more=lambda _fields, shape: Weights(other=shape.heads),  # one sink for each head
    ),
    "llama4_text": Recipe(
        defaults=sizes(202048, 5120, 8192, 48, 40, 8, 131072, num_local_experts=16, num_experts_per_tok=1)
        | {"head_dim": 128, "intermediate_size_mlp": 16384, "interleave_moe_layer_step": 1}
        | {"no_rope_layer_interval": 4, "attention_chunk_size": 8192},
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        forwards=_llama4,
        windows=_llama4_windows,
        notes=(_CHUNK_NOTE,),
    ),
    "ernie4_5_moe": Recipe(
        defaults=sizes(103424, 2560, 12288, 28, 20, 4, 131072, tie_word_embeddings=True)
        | {"moe_intermediate_size": 1536, "moe_k": 6, "moe_num_experts": 64, "moe_num_shared_experts": 2}
        | {"moe_layer_start_index": 1, "moe_layer_end_index": -1, "moe_layer_interval": 1},
        qkv_bias="use_bias",
        out_bias="use_bias",
        head_bias="use_bias",
        forwards=_ernie,
    ),
    "hunyuan_v1_moe": Recipe(
        defaults=sizes(290943, 4096, 11008, 32, 32, None, 2048, num_experts=1, moe_topk=1),
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        qk_norm=True,
        forwards=_hunyuan,
    ),
    "minimax_m2": Recipe(
        defaults=sizes(200064, 3072, 1536, 62, 48, 8, 196608, num_local_experts=256, num_experts_per_tok=8)
        | {"head_dim": 128},
        names=_EXPERTS,
        qk_norm=True,
        qk_wide=True,
        forwards=_everywhere("num_local_experts"),
    ),
}

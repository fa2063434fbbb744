"""Each convention applied to what is known of a model: its FLOPs with the working, or the words of what it lacks.

The formulas and where they come from are in the files by family; here is only which counts go into them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Final

import msgspec

from overnight.flops import papers, programs, recompute
from overnight.flops.attention import Mask, keys_seen, softmax
from overnight.flops.given import Given, Part, plain

NEEDS_ACTIVE: Final = "it has experts: give --active-params or --config"
NEEDS_CONFIG: Final = "give --config or --model: which of its weights are multiplied is not known"
NEEDS_LENGTH: Final = "give --seq-len"
NEEDS_SHAPE: Final = "give --layers and --width, or --config"
NEEDS_HEADS: Final = "give --heads and --head-size, or --config"
NEEDS_TARGET: Final = "the length of its target is not known"
NOT_PAIRED: Final = "it is no encoder-decoder"
PAIRED: Final = "a token of an encoder-decoder passes one side only: see encoder-decoder"
NOT_CAUSAL: Final = "its tokens see what comes after them too: nothing is masked"
NOT_TRAINED: Final = "it takes every weight for a trained one, and some are frozen"
NOT_RECOMPUTED: Final = "nothing of that kind is computed again: see --recompute"
TWICE: Final = "each token is counted on both sides, and passes one: about twice too high"


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """What one convention gives for one model."""

    label: str
    part: Part
    note: str = ""


Counting = Callable[[Given], Counted | str]


def _said(given: Given, label: str) -> str:
    """The label with what was done beside it: 6N is 4N_f + 6N_t where weights are frozen."""
    if given.frozen:
        label = label.replace("6*N_matmul", "4*N_f + 6*N_t (matmul)").replace("6N", "4N_f + 6N_t")
    return f"{label} (active)" if given.sparse else label


def _sum(*parts: Part) -> Part:
    return Part(flops=sum((one.flops for one in parts), start=Fraction(0)), text=" + ".join(one.text for one in parts))


def _scored(given: Given, *, masked: bool = False) -> str | None:
    """Say why attention's products cannot be counted; None where they can."""
    if given.paired:
        return PAIRED
    if masked and not given.causal:
        return NOT_CAUSAL
    needs = [None if given.attention else NEEDS_SHAPE, None if given.seq_len is not None else NEEDS_LENGTH]
    return "; ".join(one for one in needs if one) or None


def _lacks(value: object, given: Given) -> str | None:
    """Say why a number of weights is unknown; None where it is known."""
    if value is not None:
        return None
    return NEEDS_ACTIVE if given.counts.experts and given.params is None else NEEDS_CONFIG


def six_n(given: Given) -> Counted | str:
    """6N."""
    if given.params is None:
        return NEEDS_ACTIVE
    return Counted(label=_said(given, "6N"), part=given.weights(given.params), note=TWICE if given.paired else "")


def _with_products(label: str, mask: Mask, *, matmul: bool = False) -> Counting:
    """Weights, all of them or those that are multiplied, and attention's products under a mask."""

    def counting(given: Given) -> Counted | str:
        params = given.matmul if matmul else given.params
        needs = [_lacks(params, given), _scored(given, masked=mask != "none")]
        if params is None or any(needs):
            return "; ".join(one for one in needs if one)
        return Counted(label=_said(given, label), part=_sum(given.weights(params), given.products(mask)))

    return counting


def six_n_matmul(given: Given) -> Counted | str:
    """6*N_matmul."""
    if given.matmul is None:
        return _lacks(None, given) or NEEDS_CONFIG
    note = TWICE if given.paired else ""
    return Counted(label=_said(given, "6*N_matmul"), part=given.weights(given.matmul), note=note)


def _trained(given: Given) -> str | None:
    return NOT_TRAINED if given.frozen else None


def nanogpt(given: Given) -> Counted | str:
    """All but positions, as nanoGPT counts."""
    params, position = given.params, given.counts.position
    needs = [_trained(given), _lacks(None if position is None else params, given), _scored(given)]
    if params is None or position is None or any(needs):
        return "; ".join(one for one in needs if one)
    products = given.products("none")
    flops = programs.nanogpt(params, position, 0) + products.flops
    text = f"6 * ({params:,} - {position:,}) + {products.text}"
    return Counted(label=_said(given, "6(N - N_pos) + 12*L*H*h*T"), part=Part(flops=flops, text=text))


def torchtitan(given: Given) -> Counted | str:
    """All but an untied input embedding, as torchtitan counts."""
    counts, params = given.counts, given.params
    looked_up = 0 if counts.tied else counts.embedding if counts.tied is False else None
    needs = [_trained(given), _lacks(None if looked_up is None else params, given), _scored(given)]
    if params is None or looked_up is None or any(needs):
        return "; ".join(one for one in needs if one)
    products = given.products("none")
    flops = programs.torchtitan(params, looked_up, 0) + products.flops
    text = f"6 * ({params:,} - {looked_up:,}) + {products.text}"
    return Counted(label=_said(given, "6(N - N_in) + 12*L*H*h*T"), part=Part(flops=flops, text=text))


def _softmax(given: Given) -> Part:
    terms = (
        f"9 * {one.layers:,} * {one.heads:,} * {plain(keys_seen(given.seq_len or 0, 'none', one.window))}"
        for one in given.attention
    )
    return Part(flops=Fraction(softmax(given.attention, given.seq_len or 0)), text=" + ".join(terms))


def _with_softmax(given: Given) -> str | None:
    """Say why a count with the softmax in it cannot be made."""
    known = NEEDS_HEADS if given.attention and not given.heads_known else None
    needs = [_trained(given), _lacks(given.matmul, given), _scored(given) or known]
    return "; ".join(one for one in needs if one) or None


def levanter(given: Given) -> Counted | str:
    """Three times the forward pass of levanter."""
    why = _with_softmax(given)
    if given.matmul is None or why:
        return why or NEEDS_CONFIG
    products, exponents = given.products("none"), _softmax(given)
    flops = programs.levanter(given.matmul, 0, int(exponents.flops)) + products.flops
    text = f"6 * {given.matmul:,} + {products.text} + {exponents.text}"
    label = _said(given, "6*N_matmul + 12*L*H*h*T + 9*L*H*T")
    return Counted(label=label, part=Part(flops=flops, text=text))


def chinchilla(given: Given) -> Counted | str:
    """Chinchilla's appendix F."""
    why, vocab, width = _with_softmax(given), given.counts.vocab_size, given.counts.width
    if given.matmul is None or vocab is None or width is None or why:
        return why or NEEDS_CONFIG
    products, exponents = given.products("none"), _softmax(given)
    flops = papers.chinchilla(
        given.matmul, vocab_size=vocab, width=width, products=0, softmax=int(exponents.flops)
    ) + products.flops  # fmt: skip
    text = f"6 * ({given.matmul:,} + {vocab:,} * {width:,}) + {products.text} + {exponents.text}"
    note = f"{6 * vocab * width:,} of it are for the embedding, which is looked up and not multiplied"
    label = _said(given, "6(N_matmul + V*d) + 12*L*H*h*T + 9*L*H*T")
    return Counted(label=label, part=Part(flops=flops, text=text), note=note)


def kaplan(given: Given) -> Counted | str:
    """6N, N without embeddings."""
    needs = [_trained(given), PAIRED if given.paired else _lacks(given.body, given)]
    if given.body is None or any(needs):
        return "; ".join(one for one in needs if one)
    part = Part(flops=Fraction(6 * given.body), text=f"6 * {given.body:,}")
    return Counted(label=_said(given, "6N, no embedding"), part=part)


def kaplan_attention(given: Given) -> Counted | str:
    """Three times Kaplan's forward pass."""
    bare, why = kaplan(given), _scored(given, masked=True)
    if isinstance(bare, str) or why:
        return "; ".join(one for one in (bare if isinstance(bare, str) else None, why) if one)
    return Counted(label=_said(given, "6N + 6*L*H*h*T, no embedding"), part=_sum(bare.part, given.products("half")))


def _uniform(given: Given) -> str | None:
    """Say why Narayanan's formula does not hold: it knows layers of 12*d^2 weights and nothing else."""
    counts = given.counts
    needs = [_trained(given), _scored(given), _lacks(given.body, given)]
    if any(needs) or None in (counts.layers, counts.width, counts.vocab_size):
        return "; ".join(one for one in needs if one) or NEEDS_CONFIG
    layers, width = counts.layers or 0, counts.width or 0
    plain_layers = given.body == 12 * layers * width * width and given.head == (counts.vocab_size or 0) * width
    full = sum(one.layers * one.heads * (one.qk + one.v) for one in given.attention) == 2 * layers * width
    windows = any(one.window is not None and one.window < (given.seq_len or 0) for one in given.attention)
    return None if plain_layers and full and not windows else "its layers are not of 12*d^2 weights each"


def _narayanan(*, recomputed: bool) -> Counting:
    factor, share = (96, 16) if recomputed else (72, 12)

    def counting(given: Given) -> Counted | str:
        why = _uniform(given)
        if recomputed and given.recompute != "full":
            why = NOT_RECOMPUTED
        if why:
            return why
        layers, width = given.counts.layers or 0, given.counts.width or 0
        length, vocab = given.seq_len or 0, given.counts.vocab_size or 0
        flops = papers.narayanan(layers, width, seq_len=length, vocab_size=vocab, recomputed=recomputed)
        inner = f"1 + {length:,} / (6 * {width:,}) + {vocab:,} / ({share} * {layers:,} * {width:,})"
        text = f"{factor} * {layers:,} * {width:,} * {width:,} * ({inner})"
        label = f"{factor}*L*d^2*(1 + T/(6d) + V/({share}*L*d))"
        return Counted(label=label, part=Part(flops=flops, text=text))

    return counting


def encoder_decoder(given: Given) -> Counted | str:
    """Source and target apart, per token of both together."""
    pair, matmul = given.counts.encoder_decoder, given.counts.matmul
    if pair is None:
        return NOT_PAIRED
    source, target = given.seq_len, given.target_len
    if _trained(given) or matmul is None or source is None or target is None:
        needs = (NEEDS_LENGTH if source is None else None, NEEDS_TARGET if target is None else None)
        missing = "; ".join(one for one in needs if one)
        return _trained(given) or missing or NEEDS_CONFIG
    if source < 1 or target < 1:
        raise ValueError(f"a pair of {source} and {target} tokens is none")
    head = matmul - pair.encoder_matmul - pair.decoder_matmul
    layers, width = (pair.encoder_layers, pair.decoder_layers), pair.attention_width
    both = papers.encoder_decoder_pair(
        encoder=pair.encoder_matmul, decoder=pair.decoder_matmul, cross_kv=pair.cross_kv, head=head,
        layers=layers, width=width, lengths=(source, target),
    )  # fmt: skip
    own = pair.decoder_matmul - pair.cross_kv
    text = (
        f"(6 * ({pair.encoder_matmul:,} * {source:,} + {own:,} * {target:,} + {pair.cross_kv:,} * {source:,} + "
        f"{head:,} * {target:,}) + 12 * {layers[0]:,} * {width:,} * {source:,} * {source:,} + "
        f"6 * {layers[1]:,} * {width:,} * {target:,} * {target:,} + "
        f"12 * {layers[1]:,} * {width:,} * {target:,} * {source:,}) / ({source:,} + {target:,})"
    )
    note = f"{both:,} per pair; tokens are those of source and target together"
    label = "encoder-decoder, per token of source and target"
    return Counted(label=label, part=Part(flops=Fraction(both, source + target), text=text), note=note)


def _recomputed(kind: str) -> Counting:
    """Count the model as Megatron-LM does, and what is run a second time."""

    def counting(given: Given) -> Counted | str:
        if given.recompute != kind:
            return NOT_RECOMPUTED
        mask: Mask = "half" if given.causal else "none"
        needs = [_lacks(given.matmul if kind == "selective" else given.body, given), _scored(given)]
        if given.matmul is None or any(needs):
            return "; ".join(one for one in needs if one)
        core = given.products(mask)
        model = _sum(given.weights(given.matmul), core)
        product = "6*L*H*h*T" if mask == "half" else "12*L*H*h*T"
        if kind == "selective":
            flops = recompute.selective(model.flops, core=core.flops)
            label, again = f"6*N_matmul + 4/3 * {product}", f"({core.text}) / 3"
        else:
            body = given.body or 0
            flops = recompute.full(model.flops, body=body, core=core.flops)
            label, again = f"6*N_matmul + 2*N_body + 4/3 * {product}", f"2 * {body:,} + ({core.text}) / 3"
        return Counted(label=_said(given, label), part=Part(flops=flops, text=f"{model.text} + {again}"))

    return counting


def eight_n(given: Given) -> Counted | str:
    """8N."""
    if given.recompute != "full":
        return NOT_RECOMPUTED
    if given.params is None or given.paired or given.frozen:
        return NEEDS_ACTIVE if given.params is None else PAIRED if given.paired else NOT_TRAINED
    part = Part(flops=Fraction(recompute.eight_n(given.params)), text=f"8 * {given.params:,}")
    return Counted(label=_said(given, "8N"), part=part)


COUNTINGS: Final[Mapping[str, Counting]] = MappingProxyType({
    "6n": six_n,
    "palm": _with_products("6N + 12*L*H*h*T", "none"),
    "causal": _with_products("6N + 6*L*H*h*T", "half"),
    "6n-matmul": six_n_matmul,
    "matmul": _with_products("6*N_matmul + 12*L*H*h*T", "none", matmul=True),
    "causal-exact": _with_products("6*N_matmul + 6*L*H*h*(T + 1)", "exact", matmul=True),
    "megatron": _with_products("6*N_matmul + 6*L*H*h*T", "half", matmul=True),
    "nanogpt": nanogpt,
    "torchtitan": torchtitan,
    "levanter": levanter,
    "kaplan": kaplan,
    "kaplan-attention": kaplan_attention,
    "chinchilla": chinchilla,
    "narayanan": _narayanan(recomputed=False),
    "encoder-decoder": encoder_decoder,
    "hfu-8n": eight_n,
    "hfu-full": _recomputed("full"),
    "hfu-selective": _recomputed("selective"),
    "hfu-narayanan": _narayanan(recomputed=True),
})  # fmt: skip
"""By the key of the convention."""

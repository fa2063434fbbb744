"""Every convention by its key, with formula and source, and what they give for one model.

Which of them leads is the caller's choice; here none is better than another. All that can be counted is counted, and
what cannot says what it lacks.
"""

from __future__ import annotations

from difflib import get_close_matches
from types import MappingProxyType
from typing import Final

from overnight.flops import SIX_N, SIX_N_ATTENTION, Convention, FlopsFigure, Kind, Recompute
from overnight.flops.counting import COUNTINGS
from overnight.flops.given import Given, number
from overnight.modelsize import Counts

_LENGTH: Final = "sequence length T"
_SHAPE: Final = "layers L and the width of attention H*h"
_HEADS: Final = "heads H"
_MATMUL: Final = "N_matmul, from a config"
_KAPLAN: Final = "Kaplan et al. 2020, section 2.1 (arXiv 2001.08361)"
_PALM: Final = "Chowdhery et al. 2022, PaLM, appendix B (arXiv 2204.02311)"
_HOFFMANN: Final = "Hoffmann et al. 2022, appendix F (arXiv 2203.15556)"
_NARAYANAN: Final = "Narayanan et al. 2021, section 5.1 (arXiv 2104.04473)"
_KORTHIKANTI: Final = "Korthikanti et al. 2022 (arXiv 2205.05198)"
_MEGATRON: Final = "Megatron-LM, training.py, num_floating_point_operations"


def _one(
    key: str, label: str, formula: str, needs: tuple[str, ...], source: str, *, kind: Kind = "model"
) -> Convention:
    return Convention(key=key, label=label, formula=formula, needs=needs, source=source, kind=kind)


_OWN: Final = (
    _one("6n", SIX_N, "6 * N: 2N forward, 4N backward; N all parameters, with experts the active ones; 4*N_f + 6*N_t "
         "where some are frozen", ("N",), f"{_KAPLAN}, with every parameter as N: Hoffmann et al. 2022"),
    _one("palm", SIX_N_ATTENTION, "6*N + 12*L*H*h*T: no mask; min(w, T) keys where a window w is slid",
         ("N", _SHAPE, _LENGTH), _PALM),
    _one("causal", "6N + 6*L*H*h*T", "6*N + 6*L*H*h*T: the mask halves the products", ("N", _SHAPE, _LENGTH),
         "llm.c, train_gpt2.cu, gpt2_estimate_mfu"),
    _one("6n-matmul", "6*N_matmul", "6 * N_matmul: weights that are multiplied, an output head included even if tied",
         (_MATMUL,), "nanochat, gpt.py, num_matmul_params"),
    _one("matmul", "6*N_matmul + 12*L*H*h*T", "6*N_matmul + 12*L*H*h*T: no mask; min(w, T) keys where a window w is "
         "slid", (_MATMUL, _SHAPE, _LENGTH), "nanochat, gpt.py, estimate_flops; NeMo, flops_formulas.py, llama3"),
    _one("causal-exact", "6*N_matmul + 6*L*H*h*(T + 1)", "6*N_matmul + 12*L*H*h*A: A = (T + 1)/2 keys under the mask, "
         "(w(w + 1)/2 + (T - w)w)/T in a window", (_MATMUL, _SHAPE, _LENGTH), "counted: the triangle and its diagonal"),
    _one("megatron", "6*N_matmul + 6*L*H*h*T", "6*N_matmul + 6*L*H*h*T: the mask halves the products; the padded "
         "vocabulary, and the router's weights too", (_MATMUL, _SHAPE, _LENGTH),
         f"{_MEGATRON}; MaxText, calculate_tflops_training_per_device, for the router"),
    _one("nanogpt", "6(N - N_pos) + 12*L*H*h*T", "6*(N - N_position) + 12*L*H*h*T",
         ("N and its position embedding", _SHAPE, _LENGTH), "nanoGPT, model.py, estimate_mfu"),
    _one("torchtitan", "6(N - N_in) + 12*L*H*h*T", "6*(N - N_in) + 12*L*H*h*T: N_in an untied input embedding",
         ("N and its embedding, from a config", _SHAPE, _LENGTH), "torchtitan, models/utils.py"),
    _one("levanter", "6*N_matmul + 12*L*H*h*T + 9*L*H*T", "three times the forward pass 2*N_matmul + 4*L*H*h*T + "
         "3*L*H*T", (_MATMUL, _SHAPE, _HEADS, _LENGTH), "levanter, lm_flops_per_token, which is the forward pass"),
    _one("kaplan", "6N, no embedding", "6 * N: N without token, position and output embeddings, biases and norms",
         (_MATMUL,), _KAPLAN),
    _one("kaplan-attention", "6N + 6*L*H*h*T, no embedding", "3 * (2*N + 2*L*T*H*h): three times the forward pass",
         (_MATMUL, _SHAPE, _LENGTH), _KAPLAN),
    _one("chinchilla", "6(N_matmul + V*d) + 12*L*H*h*T + 9*L*H*T", "the embedding as a product, no mask, the softmax",
         (_MATMUL, _SHAPE, _HEADS, "vocabulary V", _LENGTH), _HOFFMANN),
    _one("narayanan", "72*L*d^2*(1 + T/(6d) + V/(12*L*d))", "72*L*d^2*(1 + T/(6d) + V/(12*L*d)): layers of 12*d^2 "
         "weights only", (_MATMUL, _SHAPE, "vocabulary V", _LENGTH), _NARAYANAN),
    _one("encoder-decoder", "encoder-decoder, per token of source and target", "(6*(N_enc*S + (N_dec - N_xkv)*R + "
         "N_xkv*S + N_head*R) + 12*L_enc*q*S^2 + 6*L_dec*q*R^2 + 12*L_dec*q*R*S) / (S + R)",
         ("an encoder-decoder's config", "lengths of source S and target R"), f"{_PALM}, each side by its own tokens"),
    _one("hfu-8n", "8N", "8 * N: 6N and all weights forward once more", ("N", "--recompute full"), _KORTHIKANTI,
         kind="hardware"),
    _one("hfu-full", "6*N_matmul + 2*N_body + 4/3 * 6*L*H*h*T", "the model as megatron counts it, 2*N_body for its "
         "layers once more, a third of the products", (_MATMUL, _SHAPE, _LENGTH, "--recompute full"), _KORTHIKANTI,
         kind="hardware"),
    _one("hfu-selective", "6*N_matmul + 4/3 * 6*L*H*h*T", "the model as megatron counts it and a third of the products",
         (_MATMUL, _SHAPE, _LENGTH, "--recompute selective"), _KORTHIKANTI, kind="hardware"),
    _one("hfu-narayanan", "96*L*d^2*(1 + T/(6d) + V/(16*L*d))", "96*L*d^2*(1 + T/(6d) + V/(16*L*d)): layers of 12*d^2 "
         "weights only", (_MATMUL, _SHAPE, "vocabulary V", _LENGTH, "--recompute full"), _NARAYANAN, kind="hardware"),
)  # fmt: skip

_ALIASES: Final = {
    "moe-active": "6n",
    "lora": "6n-matmul",
    "lora-attention": "matmul",
    "llmc": "causal",
    "nanochat": "matmul",
    "nemo": "matmul",
    "maxtext": "megatron",
}


def _alias(key: str, of: str) -> Convention:
    known = next(one for one in _OWN if one.key == of)
    return Convention(key=key, label=known.label, formula=known.formula, needs=known.needs, source=known.source,
                      kind=known.kind, alias_of=of)  # fmt: skip


CONVENTIONS: Final = MappingProxyType(
    {one.key: one for one in (*_OWN, *(_alias(key, of) for key, of in _ALIASES.items()))}
)
"""Every convention by its key; the other names of some come last."""


def known(key: str) -> Convention:
    """Return the convention that a key names, the real one where it is another name; ValueError with close names."""
    found = CONVENTIONS.get(key.lower())
    if found is None:
        close = get_close_matches(key.lower(), CONVENTIONS, n=3) or list(COUNTINGS)
        raise ValueError(f"there is no convention {key!r}; there are {', '.join(close)}")
    return found if found.alias_of is None else CONVENTIONS[found.alias_of]


def figure_of(
    key: str,
    counts: Counts,
    *,
    seq_len: int | None,
    target_len: int | None = None,
    recompute: Recompute = "none",
) -> FlopsFigure | str:
    """Return FLOPs per token by one convention, or the words of what it lacks. Lengths in tokens.

    ValueError: there is no such convention, or a length is below 1.
    """
    convention = known(key)
    given = Given(counts=counts, seq_len=seq_len, target_len=target_len, recompute=recompute)
    found = COUNTINGS[convention.key](given)
    if isinstance(found, str):
        return found
    return FlopsFigure(
        convention=convention.key,
        label=found.label,
        flops_per_token=number(found.part.flops),
        formula=convention.formula,
        working=found.part.text,
        source=convention.source,
        kind=convention.kind,
        note="; ".join(one for one in (found.note, given.windows if _LENGTH in convention.needs else "") if one),
    )


def all_of(
    counts: Counts, *, seq_len: int | None, recompute: Recompute = "none", target_len: int | None = None
) -> list[FlopsFigure]:
    """Return every figure that can be counted, each convention once; those of the hardware last, if ``recompute``.

    nanoGPT's is there for models with an embedding of positions only: for all others it is PaLM's.
    """
    keys = (key for key in COUNTINGS if key != "nanogpt" or counts.position)
    found = (figure_of(key, counts, seq_len=seq_len, target_len=target_len, recompute=recompute) for key in keys)
    return [one for one in found if not isinstance(one, str)]


def headline(
    counts: Counts, seq_len: int | None, chosen: str = "6n", *, target_len: int | None = None
) -> FlopsFigure | None:
    """Return the figure that leads; None where it cannot be counted, and ``figure_of`` says why.

    ValueError as ``figure_of``, and for a convention of the hardware: MFU has nothing in it that is computed again.
    """
    if known(chosen).kind == "hardware":
        raise ValueError(f"{chosen} counts what is computed again: that is HFU, and no convention of MFU")
    found = figure_of(chosen, counts, seq_len=seq_len, target_len=target_len)
    return None if isinstance(found, str) else found


def with_attention(counts: Counts, seq_len: int | None, *, target_len: int | None = None) -> FlopsFigure | None:
    """Return the figure with attention that stands beside the headline; None where it cannot be counted.

    PaLM's; of an encoder-decoder, the one that counts each side by its own tokens.
    """
    key = "encoder-decoder" if counts.encoder_decoder is not None else "palm"
    found = figure_of(key, counts, seq_len=seq_len, target_len=target_len)
    return None if isinstance(found, str) else found


def with_recompute(counts: Counts, seq_len: int | None, recompute: Recompute, *, beside: str) -> FlopsFigure | None:
    """Return what the hardware does, with what is computed again; None where nothing is, or it cannot be counted.

    ``beside``: the convention of the headline. 8N stands beside 6N, for it is counted in the same way: 4/3 of it.
    """
    full = ("hfu-8n", "hfu-full") if known(beside).key == "6n" else ("hfu-full", "hfu-8n")
    keys = {"full": full, "selective": ("hfu-selective",)}.get(recompute, ())
    figures = (figure_of(key, counts, seq_len=seq_len, recompute=recompute) for key in keys)
    return next((one for one in figures if not isinstance(one, str)), None)

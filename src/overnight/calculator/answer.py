"""From the question to the answer: every figure with its line, every unknown with what would make it known.

Pure arithmetic on values. Which source leads is decided in ``speed``, ``size`` and ``device``; how FLOPs are counted
in ``flops``.
"""

from __future__ import annotations

import math

import msgspec

from overnight.calculator import Alternative, Answer, Question
from overnight.calculator.device import NEEDS_PEAK, Known, peak_for
from overnight.calculator.doubts import impossible
from overnight.calculator.numbers import percent
from overnight.calculator.reading import read
from overnight.calculator.size import printed
from overnight.calculator.speed import NEEDS_TOKENS, Speed, speed_of
from overnight.calculator.working import Sums, cost_of, possible, rate_of, vocabulary, working
from overnight.flops import FlopsFigure
from overnight.flops.conventions import all_of, figure_of, headline, known, with_attention, with_recompute

NEEDS_PARAMS = "give --params, --config or --model"


def answer(question: Question) -> Answer:
    """Return everything that can be known.

    ValueError, one sentence, for a convention that does not exist, or one of what the hardware computes again.
    """
    if known(question.convention).kind == "hardware":  # refused without any count too
        message = f"{question.convention} counts what is computed again: that is HFU, and no convention of MFU"
        raise ValueError(message)
    speed, device, counts = speed_of(question), peak_for(question), question.counts
    figures: list[FlopsFigure] = []
    chosen = attention = None
    if counts is not None:
        figures = all_of(counts, seq_len=question.seq_len, recompute=question.recompute, target_len=question.target_len)
        chosen = headline(counts, question.seq_len, question.convention, target_len=question.target_len)
        attention = with_attention(counts, question.seq_len, target_len=question.target_len)
    rate = rate_of(chosen, speed, device)
    over = None
    if chosen is not None and rate.share is not None and rate.share > 1:
        over = impossible(question, rate.share, chosen, speed, device)
    hfu, hfu_convention = _hfu(question, speed, device)
    found = msgspec.structs.replace(
        _inputs(question, speed, device),
        flops_per_token=None if chosen is None else chosen.flops_per_token,
        tflops=rate.tflops,
        mfu=None if over else rate.share,
        mfu_attention=possible(rate_of(attention, speed, device).share),
        hfu=hfu,
        hfu_convention=hfu_convention,
        convention=None if chosen is None else chosen.label,
        convention_key=None if chosen is None else chosen.convention,
        alternatives=tuple(
            _alternative(one, speed, device) for one in figures if chosen is None or one.convention != chosen.convention
        ),
        impossible=over,
        working=tuple(
            working(Sums(question=question, speed=speed, device=device, chosen=chosen, attention=attention, over=over))
        ),
        unknown=_unknown(question, speed, device, chosen),
    )
    more = (*_over_the_table(question, found, device), *_printed_mfu(question, found))
    found = msgspec.structs.replace(found, disagreements=(*found.disagreements, *more))
    return msgspec.structs.replace(found, reading=tuple(read(question, found)))


def _inputs(question: Question, speed: Speed, device: Known) -> Answer:
    """Return what is known before FLOPs are counted: speed, device, vocabulary, money, and what disagrees there."""
    evidence, size = question.evidence, vocabulary(question)
    said = printed(question.counts, evidence, speed.devices)
    return Answer(
        tokens_per_step=speed.tokens_per_step,
        step_s=question.dt_s if evidence is None or question.dt_s is not None else evidence.step_s,
        tokens_per_second=speed.tokens_per_second,
        tokens_source=speed.source,
        useful_tokens_per_second=None if evidence is None else evidence.useful_tokens_per_second,
        devices=speed.devices,
        gpu=device.name,
        dtype=question.dtype,
        peak_flops=device.flops,
        peak_source=device.source,
        peak_sparse_flops=device.sparse_flops,
        peak_confidence=device.confidence,
        vocab_size=size,
        ln_vocab=None if size is None else math.log(size),
        cost_per_billion_tokens=cost_of(question, speed),
        counts=question.counts,
        disagreements=(*question.remarks, *speed.disagreements, *device.disagreements, *([said] if said else ())),
    )


def _hfu(question: Question, speed: Speed, device: Known) -> tuple[float | None, str | None]:
    """Return what the hardware does of its peak, what it computes again included, and by which convention.

    (None, None) where nothing is said to be computed again.
    """
    if question.counts is None:
        return None, None
    found = with_recompute(question.counts, question.seq_len, question.recompute, beside=question.convention)
    return (None, None) if found is None else (possible(rate_of(found, speed, device).share), found.label)


def _alternative(figure: FlopsFigure, speed: Speed, device: Known) -> Alternative:
    rate = rate_of(figure, speed, device)
    hardware = figure.kind == "hardware"
    return Alternative(
        key=figure.convention,
        convention=figure.label,
        kind=figure.kind,
        flops_per_token=figure.flops_per_token,
        tflops=rate.tflops,
        mfu=None if hardware else possible(rate.share),
        hfu=possible(rate.share) if hardware else None,
        formula=figure.formula,
        working=figure.working,
        source=figure.source,
        note=figure.note,
        impossible=rate.share is not None and rate.share > 1,
    )


# -- what is not known -------------------------------------------------------------------------------------------------


def _unknown(question: Question, speed: Speed, device: Known, chosen: FlopsFigure | None) -> dict[str, str]:
    needs: dict[str, list[str]] = {}
    fast = [] if speed.tokens_per_second is not None else [speed.needs]
    counted = [] if chosen is not None else [_needs_flops(question)]
    high = [] if device.flops is not None else [device.needs or NEEDS_PEAK]
    needs["tokens_per_step"] = [] if speed.tokens_per_step is not None else [NEEDS_TOKENS]
    needs["tokens_per_second"] = fast
    needs["flops_per_token"] = counted
    needs["tflops"] = [*counted, *fast]
    needs["peak_flops"] = high
    needs["mfu"] = [*counted, *fast, *high]
    needs["mfu_attention"] = [*_needs_attention(question), *fast, *high]
    needs["hfu"] = [*_needs_recompute(question), *fast, *high]
    needs["ln_vocab"] = [] if vocabulary(question) is not None else ["give --vocab-size, --config or --model"]
    needs["cost_per_billion_tokens"] = [*([] if question.price is not None else ["give --price"]), *fast]
    return {name: "; ".join(dict.fromkeys(said)) for name, said in needs.items() if said}


def _needs_flops(question: Question) -> str:
    if question.counts is None:
        return NEEDS_PARAMS
    found = figure_of(question.convention, question.counts, seq_len=question.seq_len, target_len=question.target_len)
    return found if isinstance(found, str) else NEEDS_PARAMS


def _needs_attention(question: Question) -> list[str]:
    if question.counts is None:
        return [NEEDS_PARAMS]
    key = "palm" if question.counts.encoder_decoder is None else "encoder-decoder"
    found = figure_of(key, question.counts, seq_len=question.seq_len, target_len=question.target_len)
    return [found] if isinstance(found, str) else []


def _needs_recompute(question: Question) -> list[str]:
    if question.recompute == "none":
        return ["give --recompute selective or full, where activations are computed again"]
    if question.counts is None:
        return [NEEDS_PARAMS]
    if with_recompute(question.counts, question.seq_len, question.recompute, beside=question.convention) is not None:
        return []
    key = f"hfu-{question.recompute}"
    found = figure_of(key, question.counts, seq_len=question.seq_len, recompute=question.recompute)
    return [found] if isinstance(found, str) else []


def _over_the_table(question: Question, found: Answer, device: Known) -> list[str]:
    """Return that a peak given by hand hides a result that the device cannot reach."""
    dense = device.table_flops
    if question.peak_tflops is None or dense is None or found.tflops is None or found.tflops * 1e12 <= dense:
        return []
    share = found.tflops * 1e12 / dense
    return [f"over the dense peak of the table it would be {percent(share)}, more than {found.gpu} can do"]


def _printed_mfu(question: Question, found: Answer) -> list[str]:
    """Return what is to be said of the MFU that a log prints: by which peak it may have been divided."""
    evidence = question.evidence
    if evidence is None or evidence.printed_mfu is None or found.mfu is None:
        return []
    ours = found.mfu_attention if found.mfu_attention is not None else found.mfu
    low, high = sorted((found.mfu, ours))
    if low * 0.95 <= evidence.printed_mfu <= high * 1.05:
        return []
    said = f"MFU: the log prints {percent(evidence.printed_mfu)}, by its own count and peak"
    if found.peak_flops is not None:
        implied = ours * found.peak_flops / evidence.printed_mfu
        said += f"; it is ours over a peak of about {implied / 1e12:,.0f} TFLOP/s"
    return [said]

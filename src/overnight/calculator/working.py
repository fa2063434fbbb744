"""The working, line by line: each input and each figure with the arithmetic that gave it and where it came from.

Pure: values in, lines out. What is not known has no line here.
"""

from __future__ import annotations

import math

import msgspec

from overnight.calculator import Impossible, Line, Question
from overnight.calculator.device import Known
from overnight.calculator.numbers import peak, percent, teraflops, times, whole
from overnight.calculator.speed import Speed, devices_of
from overnight.flops import FlopsFigure
from overnight.spec import cost_per_billion_tokens


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """A speed of FLOPs on one device, in TFLOP/s, and its part of the peak; None while unknown."""

    tflops: float | None = None
    share: float | None = None


class Sums(msgspec.Struct, frozen=True, kw_only=True):
    """What was found of a question, as far as it is known."""

    question: Question
    speed: Speed
    device: Known
    chosen: FlopsFigure | None = None
    attention: FlopsFigure | None = None
    over: Impossible | None = None

    @property
    def rate(self) -> Rate:
        """The rate by the convention that leads."""
        return rate_of(self.chosen, self.speed, self.device)


def rate_of(figure: FlopsFigure | None, speed: Speed, device: Known) -> Rate:
    """Return what one device does by one convention."""
    if figure is None or speed.tokens_per_second is None:
        return Rate()
    flops = float(figure.flops_per_token) * speed.tokens_per_second / speed.devices
    return Rate(tflops=flops / 1e12, share=None if device.flops is None else flops / device.flops)


def possible(share: float | None) -> float | None:
    """Return a part of a peak; None for more than all of it."""
    return None if share is None or share > 1 else share


def vocabulary(question: Question) -> int | None:
    """Return the number of tokens that a model tells apart."""
    if question.vocab_size is not None:
        return question.vocab_size
    return None if question.counts is None else question.counts.vocab_size


def cost_of(question: Question, speed: Speed) -> float | None:
    """Return what a billion (1e9) tokens cost, in the currency of the price: over all time where that is known."""
    return cost_per_billion_tokens(question.price, paid_speed(question, speed))


def paid_speed(question: Question, speed: Speed) -> float | None:
    """Return the tokens per second of all time that is paid for; of the steps alone where nobody knows more."""
    known = question.evidence
    wall = None if known is None else known.wall_tokens_per_second
    return speed.tokens_per_second if wall is None else wall


def working(sums: Sums) -> list[Line]:
    """Return the lines in the order in which one would work them out on paper."""
    lines = [*sums.speed.lines, *_beside(sums.question), *_model(sums), *_flops(sums)]
    if sums.device.line is not None:
        lines.append(sums.device.line)
    return [*lines, *_mfu(sums), *_money(sums)]


def _beside(question: Question) -> list[Line]:
    """Return the speeds that are shown beside the one that counts: what a run has useful, and over all its steps."""
    known, lines = question.evidence, []
    devices, source = devices_of(question)
    if devices > 1:
        lines.append(Line(name="devices", label="devices", result=f"{devices:,}", source=source))
    if known is None:
        return lines
    useful, every, part, wall_s = (
        known.useful_tokens_per_second,
        known.tokens_per_second_all,
        known.stepping,
        known.wall_s,
    )
    if useful is not None:
        said = "without padding, as the log counts them; MFU is of all that were processed"
        lines.append(_rate_line("useful_tokens_per_second", "  useful tokens", useful, said))
    if known.clean and every is not None:
        said = "the first steps after a start, and those with an evaluation or a save before them, included"
        lines.append(_rate_line("tokens_per_second_all", "  over all steps", every, said))
    if part is not None and wall_s is not None:
        said = f"part of the {wall_s:,.0f} s that passed which the steps took, each counted once"
        lines.append(Line(name="stepping", label="  stepping", result=percent(part), source=said))
    return lines


def _rate_line(name: str, label: str, speed: float, source: str) -> Line:
    return Line(name=name, label=label, result=f"{whole(speed)} tokens/s", source=source)


def _model(sums: Sums) -> list[Line]:
    counts = sums.question.counts
    if counts is None:
        return []
    own = (
        ("active", "  active for a token", None if counts.active == counts.total else counts.active),
        ("matmul", "  in matmuls", counts.matmul if counts.active_matmul is None else counts.active_matmul),
        ("embedding", "  token embedding", counts.embedding),
        ("trainable", "  trainable", counts.trainable),
    )
    return [
        Line(name="params", label="parameters", result=f"{counts.total:,}", source=counts.source),
        *(Line(name=name, label=label, result=f"{value:,}") for name, label, value in own if value is not None),
        *(Line(name="note", label="  note", result=note) for note in counts.notes),
    ]


def _flops(sums: Sums) -> list[Line]:
    chosen, attention, speed, lines = sums.chosen, sums.attention, sums.speed, []
    if chosen is None:
        return []
    lines.append(_flops_line("flops_per_token", "FLOPs per token", chosen))
    if attention is not None and attention.flops_per_token != chosen.flops_per_token:
        beyond = attention.flops_per_token - chosen.flops_per_token
        lines.append(_flops_line("flops_per_token_attention", "  with attention", attention))
        if beyond > 0:  # below it the two count other tokens, as of an encoder-decoder, and it is no attention
            lines.append(
                Line(
                    name="attention",
                    label="  the difference",
                    working=f"{whole(attention.flops_per_token)} - {whole(chosen.flops_per_token)}",
                    result=f"{whole(beyond)} FLOPs/token",
                )
            )
    if sums.rate.tflops is not None and speed.tokens_per_second is not None:
        over = "" if speed.devices == 1 else f" / {speed.devices:,} devices"
        lines.append(
            Line(
                name="tflops",
                label="TFLOP/s",
                working=f"{whole(chosen.flops_per_token)} * {whole(speed.tokens_per_second)}{over} / 1e12",
                result=f"{teraflops(sums.rate.tflops * 1e12)} TFLOP/s",
                source="of one device",
            )
        )
    return lines


def _flops_line(name: str, label: str, figure: FlopsFigure) -> Line:
    result = f"{whole(figure.flops_per_token)} FLOPs/token"
    note = f"; {figure.note}" if figure.note else ""
    return Line(name=name, label=label, working=figure.working, result=result, source=f"{figure.label}{note}")


def _mfu(sums: Sums) -> list[Line]:
    chosen, attention, device, rate = sums.chosen, sums.attention, sums.device, sums.rate
    if chosen is None or rate.tflops is None or rate.share is None or device.flops is None:
        return []
    said = f"{teraflops(rate.tflops * 1e12)} / {peak(device.flops)}"
    if sums.over is not None:
        why = f"{times(sums.over.ratio)} what the device can do at most: an input is wrong"
        return [Line(name="mfu", label="MFU", working=said, result="n/a", source=why)]
    lines = [Line(name="mfu", label="MFU", working=said, result=percent(rate.share), source=chosen.label)]
    other = rate_of(attention, sums.speed, device)
    if attention is not None and attention.flops_per_token != chosen.flops_per_token and other.tflops is not None:
        share = possible(other.share)
        result = "n/a, above 100%" if share is None else percent(share)
        said = f"{teraflops(other.tflops * 1e12)} / {peak(device.flops)}"
        name = "mfu_attention"
        lines.append(Line(name=name, label="  with attention", working=said, result=result, source=attention.label))
    return lines


def _money(sums: Sums) -> list[Line]:
    question, speed, lines = sums.question, sums.speed, []
    size, price = vocabulary(question), cost_of(question, speed)
    if size is not None:
        counts = question.counts
        own = counts is not None and counts.vocab_size == size and not question.source("vocab_size").startswith("--")
        source = "the model's vocabulary" if own else question.source("vocab_size")
        said = f"{source}; the loss of a guess among all tokens alike, where a training begins"
        lines.append(
            Line(name="ln_vocab", label="ln(V)", working=f"ln({size:,})", result=f"{math.log(size):.3f}", source=said)
        )
    paid = paid_speed(question, speed)
    if price is not None and paid is not None:
        over = " over all time" if paid != speed.tokens_per_second else ""
        said = f"{question.price:g}/h / ({whole(paid)} tokens/s{over} * 3,600 s) * 1e9"
        source = f"{question.source('price')}, of everything that is paid for"
        name, label = "cost_per_billion_tokens", "cost of 1e9 tokens"
        lines.append(Line(name=name, label=label, working=said, result=f"{price:,.2f}", source=source))
    return lines

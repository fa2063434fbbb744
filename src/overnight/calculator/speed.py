"""Tokens per second of all devices together, from whichever inputs there are, with the line that shows how.

Pure. One figure leads, in a fixed order; what the other sources would give is compared with it and named where it
differs. Rates of one device and of all of them are never mixed.
"""

from __future__ import annotations

import msgspec

from overnight.calculator import Evidence, Line, Question
from overnight.calculator.numbers import near, times, whole

NEEDS_TOKENS = "give --tokens-per-step, or --batch and --seq-len (and --accumulate, --world-size)"
NEEDS_TIME = "give --dt"
NEEDS_SPEED = f"{NEEDS_TOKENS}, and {NEEDS_TIME.removeprefix('give ')}; or --tokens-per-second"


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens a second over all ``devices``; ``needs`` says what would make it known where it is not."""

    tokens_per_second: float | None = None
    source: str | None = None
    tokens_per_step: float | None = None
    devices: int = 1
    lines: tuple[Line, ...] = ()
    disagreements: tuple[str, ...] = ()
    needs: str = ""


def devices_of(question: Question) -> tuple[int, str]:
    """Return how many devices work, and where that came from; each data-parallel rank has one at least."""
    if question.devices is not None:
        return question.devices, question.source("devices")
    if question.world_size is not None:
        return question.world_size, "one for each of --world-size; give --devices where a rank has several"
    return 1, "--devices not given"


def tokens_of_batch(question: Question) -> tuple[float, str] | None:
    """Return the tokens of one optimizer step as the sizes of batches tell them, and the working.

    Sequences of a micro-step on one rank * tokens of a sequence * micro-steps * data-parallel ranks.
    """
    if question.batch is None or question.seq_len is None:
        return None
    accumulate = question.accumulate or 1
    ranks = question.world_size or devices_of(question)[0]
    tokens = question.batch * question.seq_len * accumulate * ranks
    said = f"{question.batch:,} sequences * {question.seq_len:,} tokens * {accumulate:,} accumulated * {ranks:,} ranks"
    return tokens, said


def printed_tokens_lead(question: Question) -> bool:
    """Say whether the tokens of a step are those that a log prints: they lead but beside a time given by hand."""
    known = question.evidence
    return known is not None and known.tokens_per_step is not None and question.dt_s is None


def speed_of(question: Question) -> Speed:
    """Return the speed. --tokens-per-second leads, then tokens per step over --dt, then what the run tells."""
    devices, _ = devices_of(question)
    tokens, lines, odd = _tokens_per_step(question)
    found: list[tuple[float, str, list[Line]]] = []
    if question.tokens_per_second is not None:
        found.append(_given(question, question.tokens_per_second, devices))
    if tokens is not None and question.dt_s is not None:
        found.append(_worked(question, tokens, question.dt_s))
    elif question.dt_s is not None:
        lines.append(Line(name="dt", label="step time", result=f"{question.dt_s:g} s", source=question.source("dt_s")))
    known = question.evidence
    if known is not None and known.tokens_per_second is not None:
        found.append(_seen(known, known.tokens_per_second))
    if not found:
        return Speed(
            tokens_per_step=tokens,
            devices=devices,
            lines=tuple(lines),
            disagreements=tuple(odd),
            needs=_needs(question, tokens),
        )
    best, source, own = found[0]
    odd += [said for other, name, _ in found[1:] if (said := _differs(best, source, other, name, question)) is not None]
    printed = None if known is None else known.printed_tokens_per_second
    if known is not None and printed is not None:
        said = _differs(best, source, printed, "what the log prints", question)
        odd += [said] if said is not None else []
    return Speed(
        tokens_per_second=best,
        source=source,
        tokens_per_step=tokens,
        devices=devices,
        lines=(*lines, *own),
        disagreements=tuple(odd),
    )


def _tokens_per_step(question: Question) -> tuple[float | None, list[Line], list[str]]:
    made = tokens_of_batch(question)
    given, known = question.tokens_per_step, question.evidence
    if printed_tokens_lead(question) and known is not None and known.tokens_per_step is not None:
        source = f"as the {known.kind} {known.name} prints them" if known.kind == "log" else "as its log prints them"
        result = whole(known.tokens_per_step)
        line = Line(name="tokens_per_step", label="tokens per step", result=result, source=source)
        return known.tokens_per_step, [line], []
    if given is not None:
        line = Line(
            name="tokens_per_step",
            label="tokens per step",
            result=whole(given),
            source=question.source("tokens_per_step"),
        )
        odd = []
        if made is not None and not near(given, made[0], 1e-9) and question.source("batch").startswith("--"):
            odd.append(
                f"tokens per step: {whole(given)} ({question.source('tokens_per_step')}) is used; {made[1]} would be "
                f"{whole(made[0])}, {times(made[0] / given)} of it{_which_factor(made[0] / given, question)}"
            )
        return given, [line], odd
    if made is None:
        return None, [], []
    line = Line(
        name="tokens_per_step",
        label="tokens per step",
        working=made[1],
        result=whole(made[0]),
        source=f"--batch, --seq-len{', --accumulate' if question.accumulate else ''}"
        + (", --world-size" if question.world_size else "; ranks: all devices"),
    )
    return made[0], [line], []


def _given(question: Question, value: float, devices: int) -> tuple[float, str, list[Line]]:
    source = question.source("tokens_per_second")
    if not question.per_device or devices == 1:
        said = source if devices == 1 else f"{source}, all {devices:,} devices together"
        line = Line(name="tokens_per_second", label="tokens per second", result=_rate(value), source=said)
        return value, source, [line]
    line = Line(
        name="tokens_per_second",
        label="tokens per second",
        working=f"{whole(value)} of one device * {devices:,} devices",
        result=_rate(value * devices),
        source=f"{source}, --per-device",
    )
    return value * devices, f"{source} of one device * {devices:,}", [line]


def _worked(question: Question, tokens: float, dt_s: float) -> tuple[float, str, list[Line]]:
    speed = tokens / dt_s
    line = Line(
        name="tokens_per_second",
        label="tokens per second",
        working=f"{whole(tokens)} / {dt_s:g} s",
        result=_rate(speed),
        source=f"tokens per step / {question.source('dt_s')}",
    )
    return speed, f"tokens per step / {question.source('dt_s')}", [line]


def _seen(known: Evidence, speed: float) -> tuple[float, str, list[Line]]:
    of = f"the {known.kind} {known.name}"
    over = "over clean steps" if known.clean else "over all steps"
    source = f"{of}: {known.tokens_source}, {over}" if known.tokens_source else f"{of}, {over}"
    return (
        speed,
        source,
        [Line(name="tokens_per_second", label="tokens per second", result=_rate(speed), source=source)],
    )


def _rate(speed: float) -> str:
    return f"{whole(speed)} tokens/s"


def _differs(best: float, source: str, other: float, name: str, question: Question) -> str | None:
    if near(best, other):
        return None
    ratio = other / best
    return (
        f"tokens per second: {whole(best)} ({source}) is used; {name} would be {whole(other)}, "
        f"{times(ratio)} of it{_which_factor(ratio, question)}"
    )


def _which_factor(ratio: float, question: Question) -> str:
    """Return what factor two sources may differ by: the usual ones are devices, ranks and accumulation."""
    factors = (
        (devices_of(question)[0], "the number of devices: one may be of one device, the other of all"),
        (question.world_size or 1, "the number of ranks: one may be of one rank, the other of all"),
        (question.accumulate or 1, "the accumulation: one may count micro-steps, the other optimizer steps"),
    )
    for factor, said in factors:
        if factor > 1 and (near(ratio, factor, 0.03) or near(ratio, 1 / factor, 0.03)):
            return f", which is {said}"
    return ""


def _needs(question: Question, tokens: float | None) -> str:
    known = question.evidence
    if known is not None and known.needs and tokens is None:
        return known.needs
    if tokens is None:
        return NEEDS_SPEED if question.dt_s is None else NEEDS_TOKENS
    return f"{NEEDS_TIME}, or --tokens-per-second"

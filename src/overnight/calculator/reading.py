"""What a result means: what others have published for such a model on such a device, and what to look at first.

Pure. Whatever is said of a run rests on its own evidence, with the figure beside it; without any, what would give some
is named. Shares here are thresholds of attention, not of health.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from overnight.calculator import Answer, Evidence, Question
from overnight.calculator.numbers import percent, whole
from overnight.calculator.published import PUBLISHED, Published, family_of, published
from overnight.calculator.speed import printed_tokens_lead

DATA_WAIT = 0.05
EVALUATION = 0.05
NOT_STEPPING = 0.1
JITTER = 1.3
BUSY, LOW = 0.85, 0.05
THROTTLED = 0.02
SMALL_S = 0.01
"""A micro-step that needs less than this at the peak is short beside the launches of its hundreds of kernels."""
LONG = 0.25
SUSPICIOUS = 0.65
"""An MFU, with attention where that is known, above what anybody has published for training."""


def read(question: Question, found: Answer) -> list[str]:
    """Return the sentences, the most useful first; nothing where there is no result to read."""
    if found.impossible is not None:
        return []
    said = _typical(found) if found.mfu is not None else []
    known, odd = question.evidence, _suspicious(question, found)
    if odd is not None:
        said.append(odd)
    culprits = [*([] if known is None else _of_run(known)), *_small(question, found)]
    if culprits:
        said.append(f"look first at {culprits[0].what}")
        said += [f"then at {one.what}" for one in culprits[1:]]
    elif known is not None and found.tokens_per_second is not None and odd is None:
        said.append(_nothing_found(known))
    if found.mfu is not None and known is None and odd is None:
        said.append(
            "nothing is known here of a run: `overnight mfu RUN` or `overnight mfu LOG` reads its waits for data, "
            "step times, evaluations and GPU samples, and says what to profile first"
        )
    said += _about_the_count(found)
    return said


# -- what is typical ---------------------------------------------------------------------------------------------------


def _typical(found: Answer) -> list[str]:
    counts = found.counts
    if counts is None or found.mfu is None:
        return []
    params = counts.active or counts.total
    family = family_of(found.gpu)
    rows = published(params, family) if family is not None else []
    mine = found.mfu if found.mfu_attention is None else found.mfu_attention
    label = f"{found.convention}, theirs with attention" if found.mfu_attention is None else "with attention"
    if not rows:
        return [_elsewhere(found, params)]
    low, high = min(one.low for one in rows), max(one.high for one in rows)
    place = "below" if mine < low else "above" if mine > high else "within"
    text = (
        f"{percent(mine)} ({label}) is {place} the {_range(low, high)} that others have published for about this size "
        f"on {family}: {'; '.join(_row(one) for one in rows)}. These are ranges of their runs, no limits"
    )
    notes = []
    if family is not None and found.gpu is not None and not found.gpu.upper().startswith(family):
        notes.append(f"{found.gpu} is read here by what is published for {family}")
    if found.dtype not in (None, "bf16", "fp16"):
        notes.append(f"the published runs are in bf16, this one in {found.dtype}: the ratios are not the same thing")
    if counts.active is not None and counts.active < counts.total:
        notes.append("these are dense models: routing and small experts keep a mixture of experts below them")
    return [text, *notes]


def _elsewhere(found: Answer, params: float) -> str:
    where = found.gpu or "this device"
    beside = [one for one in published(params, None) if one.family in ("A100", "H100")]
    text = f"nothing is published here for a model of this size on {where}"
    if beside:
        text += f"; elsewhere: {'; '.join(f'{one.family} {_row(one)}' for one in beside)}"
    return f"{text}. Devices with less memory bandwidth for their FLOP/s stay lower"


def _row(one: Published) -> str:
    return f"{_range(one.low, one.high)} {one.what} ({one.source})"


def _range(low: float, high: float) -> str:
    return f"{low * 100:.0f}%" if low == high else f"{low * 100:.0f} to {high * 100:.0f}%"


def _suspicious(question: Question, found: Answer) -> str | None:
    """Return that a result is above what anybody has published, and what to check; None where it is not."""
    if found.mfu is None:
        return None
    mine = found.mfu if found.mfu_attention is None else found.mfu_attention
    over = any(one.impossible and one.key in ("palm", "encoder-decoder") for one in found.alternatives)
    if mine <= SUSPICIOUS and not over:
        return None
    said = "with attention it is above 100%, which cannot be" if over else f"{percent(mine)} is suspicious"
    most = max(one.high for one in PUBLISHED)
    counts = found.counts
    size = "" if counts is None else f" ({whole(counts.active or counts.total)})"
    tokens = "" if found.tokens_per_step is None else f" ({whole(found.tokens_per_step)})"
    step_s = question.dt_s if question.dt_s is not None else found.step_s
    time = "" if step_s is None else f" ({step_s:.4g} s)"
    return (
        f"{said}: nothing that is published here for training is above {most:.0%}. Check before anything else N{size}, "
        f"the tokens of a step{tokens}, a step time{time} that ends before the device is done (no synchronisation), "
        f"and the number of devices ({found.devices:,})"
    )


# -- what to look at first ---------------------------------------------------------------------------------------------


class Culprit(NamedTuple):
    """Something to look at: the part of the time that it may cost at most, and what it is."""

    share: float
    what: str


def _of_run(known: Evidence) -> list[Culprit]:
    """Return what the evidence points to, by the share of time that it may cost, the largest first."""
    found = [*_waits(known), *_gpus(known), *_jitter(known)]
    return sorted(found, key=lambda one: -one.share)


def _waits(known: Evidence) -> Iterator[Culprit]:
    data, evaluation, stepping = known.data_wait, known.evaluation, known.stepping
    if data is not None and data >= DATA_WAIT:
        said = f"the log says that {percent(data)} of the step time is waiting for data"
        yield Culprit(data, f"the data loader: {said} (more workers, prefetching, faster storage)")
    if evaluation is not None and evaluation >= EVALUATION:
        said = f"{percent(evaluation)} of the printed step time is what the steps behind an evaluation took longer"
        yield Culprit(evaluation, f"the evaluations ({known.evaluations:,}): {said} (fewer, or on fewer batches)")
    if stepping is not None and 1 - stepping >= NOT_STEPPING:
        said = f"{percent(1 - stepping)} of the wall clock was no step that counts"
        causes = "start-up, evaluations, saves, restarts, steps done again"
        yield Culprit(1 - stepping, f"what happens between the steps: {said} ({causes})")


def _gpus(known: Evidence) -> Iterator[Culprit]:
    over = f"over {known.gpu_samples:,} samples"
    throttled, busy, low = known.throttled, known.utilisation, known.low
    if throttled is not None and throttled >= THROTTLED:
        why = f" ({', '.join(known.throttle)})" if known.throttle else ""
        said = f"the GPUs were throttled{why} in {percent(throttled)} of the time {over}"
        yield Culprit(throttled / 2, f"the clocks: {said} (cooling, power limit)")
    if busy is not None and busy < BUSY:
        said = f"they ran kernels {percent(busy)} of the time {over}"
        causes = "the loader, the host, other ranks; a profiler shows the gaps between kernels"
        yield Culprit(1 - busy, f"what the GPUs wait for: {said} ({causes})")
    elif low is not None and low >= LOW:
        said = (
            f"in {percent(low)} of {known.gpu_samples:,} samples the GPUs did less than half of what is usual for them"
        )
        yield Culprit(low / 2, f"the dips: {said} (evaluations, saves, data)")


def _jitter(known: Evidence) -> Iterator[Culprit]:
    usual, slow = known.median_s, known.slow_s
    if not usual or slow is None or slow < JITTER * usual:
        return
    said = f"one in twenty takes {slow:.3g} s and more, the middle one {usual:.3g} s"
    causes = "data, other processes, garbage collection, a slow rank"
    yield Culprit(min(slow / usual - 1, 1.0) / 20, f"the jitter of the steps: {said} ({causes})")


def _small(question: Question, found: Answer) -> Iterator[Culprit]:
    """Yield that a micro-step is too small for the device, by the time that it would take at the peak."""
    tokens = _micro_tokens(question, found)
    if tokens is None or found.flops_per_token is None or found.peak_flops is None:
        return
    seconds = tokens * found.flops_per_token / found.peak_flops
    if seconds < SMALL_S:
        said = f"a micro-step of {whole(tokens)} tokens on one device needs {seconds * 1e3:.2g} ms at the peak"
        fix = "a larger --batch, torch.compile, CUDA graphs"
        yield Culprit(0.0, f"the batch: {said}, so that launching kernels may take as long ({fix})")


def _micro_tokens(question: Question, found: Answer) -> float | None:
    if question.batch is not None and question.seq_len is not None and not printed_tokens_lead(question):
        return float(question.batch * question.seq_len)
    if found.tokens_per_step is None:
        return None
    return found.tokens_per_step / found.devices / (question.accumulate or 1)


def _nothing_found(known: Evidence) -> str:
    seen = [
        said
        for said, value in (
            ("waits for data", known.data_wait),
            ("evaluations", known.evaluation),
            ("time between steps", known.stepping),
            ("jitter", known.slow_s),
            ("GPU samples", known.utilisation),
        )
        if value is not None
    ]
    if not seen:
        return (
            "the log tells nothing of waits, evaluations or GPUs: a profiler over ten steps in the middle of the run "
            "shows the gaps between kernels"
        )
    return (
        f"nothing stands out in what is known ({', '.join(seen)}): profile the kernels themselves over ten steps "
        f"(attention implementation, unfused operations, communication)"
    )


def _about_the_count(found: Answer) -> list[str]:
    """Return what the convention leaves out, where that is much."""
    mfu, other = found.mfu, found.mfu_attention
    if mfu is None or other is None or other <= mfu * (1 + LONG):
        return []
    part = percent(1 - mfu / other)
    said = f"{found.convention} leaves out the attention, which is {part} of the work at this length"
    return [f"{said}: compare by the figure with attention"]

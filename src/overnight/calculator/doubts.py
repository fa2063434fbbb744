"""Why a result above 100% came out: each usual mistake is tried, and told where undoing it would fit.

Pure. Nothing is put right here: who has given the inputs has to say which of them is wrong.
"""

from __future__ import annotations

from math import ceil

from overnight.accelerators import DTYPES
from overnight.calculator import Impossible, Question
from overnight.calculator.device import Known
from overnight.calculator.numbers import near, peak, percent, whole
from overnight.calculator.speed import Speed, devices_of, printed_tokens_lead, tokens_of_batch
from overnight.flops import FlopsFigure

_FEW_DEVICES = 1e6  # more of them are no explanation


def impossible(question: Question, ratio: float, figure: FlopsFigure, speed: Speed, device: Known) -> Impossible:
    """Return what was checked of a result of ``ratio`` (above 1), the likeliest first."""
    reasons = [
        *_ranks(question, ratio),
        *_devices(question, ratio, speed),
        *_model(question, ratio, figure),
        *_steps(question, ratio),
        *_peaks(question, ratio, device),
    ]
    if not reasons:
        reasons.append("the step time may end before the GPU has done its work (no synchronisation), or be of less")
    return Impossible(ratio=ratio, reasons=tuple(reasons))


def _ranks(question: Question, ratio: float) -> list[str]:
    """Return that the accumulation may be of all ranks together, where the tokens were made with it."""
    made, accumulate = tokens_of_batch(question), question.accumulate or 1
    ranks = question.world_size or devices_of(question)[0]
    if made is None or question.tokens_per_second is not None or printed_tokens_lead(question):
        return []
    if question.tokens_per_step is not None and not near(question.tokens_per_step, made[0], 1e-9):
        return []
    if ranks == 1 or accumulate % ranks or ratio / ranks > 1:
        return []
    each = accumulate // ranks
    return [f"accumulate {accumulate:,} may be for all ranks (nanoGPT): {each:,} each, {percent(ratio / ranks)}"]


def _devices(question: Question, ratio: float, speed: Speed) -> list[str]:
    devices = speed.devices
    if question.per_device and devices > 1 and question.tokens_per_second is not None:
        found = ratio / devices
        if found <= 1:
            return [
                (
                    f"--per-device: if {whole(question.tokens_per_second)} tokens/s are of all {devices:,} devices "
                    f"already, it is {percent(found)}"
                )
            ]
        return []
    if question.per_device:
        return []
    if ratio > _FEW_DEVICES:
        return []
    least = ceil(ratio)
    if devices == 1:
        return [
            (
                f"tokens of all devices over the peak of one: with --devices {least:,} or more it fits "
                f"({percent(ratio / least)} with {least:,}{_eight(ratio, least)})"
            )
        ]
    return [f"more than {devices:,} devices: with {devices * least:,} it would be {percent(ratio / least)}"]


def _eight(ratio: float, least: int) -> str:
    return f", {percent(ratio / 8)} with 8" if least < 8 else ""


def _model(question: Question, ratio: float, figure: FlopsFigure) -> list[str]:
    counts, found = question.counts, []
    if counts is None:
        return []
    largest = int(counts.total / ratio)
    if counts.active is not None and counts.active < counts.total:
        if figure.flops_per_token >= 6 * counts.total:
            with_active = ratio * counts.active / counts.total
            found.append(
                f"all parameters of a mixture of experts instead of the {whole(counts.active)} active ones: with those "
                f"{percent(with_active)}"
            )
    elif counts.experts is None and counts.family is None:
        found.append("a mixture of experts counted whole: give --active-params, those that one token uses")
    if counts.trainable is None:
        fits = f"{percent(ratio * 4 / 6)} at the least" if ratio * 4 / 6 <= 1 else "though that alone does not fit"
        found.append(f"frozen weights (LoRA) counted as if they were trained: give --trainable-params ({fits})")
    found.append(
        f"another N: {whole(counts.total)} ({counts.source}) is used, and 100% would be {largest:,}; "
        f"is it this model, and not 1,000 times its size?"
        if ratio > 100
        else f"another N: {whole(counts.total)} ({counts.source}) is used, and 100% would be {largest:,}"
    )
    return found


def _steps(question: Question, ratio: float) -> list[str]:
    found = []
    if question.accumulate is not None and question.accumulate > 1:
        fits = ratio / question.accumulate
        found.append(
            f"the time of a micro-step over the tokens of a whole step: over {question.accumulate:,} it would be "
            f"{percent(fits)}"
        )
    if question.dt_s is not None and ratio >= 100 and ratio / 1000 <= 1:
        found.append(f"--dt in the wrong unit: as milliseconds taken for seconds it would be {percent(ratio / 1000)}")
    return found


def _peaks(question: Question, ratio: float, device: Known) -> list[str]:
    found: list[str] = []
    flops = device.flops
    if flops is None:
        return found
    row = device.accelerator
    for dtype in DTYPES:
        other = None if row is None else row.peak(dtype)
        if other is None or dtype == device.dtype:
            continue
        share = ratio * flops / (other.dense * device.share * 1e12)
        if share <= 1:
            found.append(
                f"another dtype: in {dtype} the peak is {other.dense * device.share:g} TFLOP/s, and it is "
                f"{percent(share)}"
            )
    if device.sparse_flops is not None:
        share = ratio * flops / device.sparse_flops
        if share <= 1:
            found.append(
                f"only the sparse peak ({peak(device.sparse_flops)} TFLOP/s) would fit ({percent(share)}), and "
                f"training does not compute sparsely: a figure that was made with it is not to be compared"
            )
    if question.peak_tflops is not None and row is None:
        found.append(f"another peak: {peak(flops)} TFLOP/s is given by hand; give --gpu and --dtype to compare it")
    return found

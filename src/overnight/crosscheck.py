"""Where two sources of one figure say different things: which, by how much, and why it may be.

Pure arithmetic on what the log said. Nothing is put right here: what leads stays, and the other is named beside it.
"""

from __future__ import annotations

from typing import Final

from overnight.events import Measure
from overnight.meter import Meter
from overnight.yardsticks.basis import Figures

_PADDED: Final = 4.0
"""Of a batch no more than so much is padding."""

_TWICE: Final = 1.9

APART: Final = 1.2
"""So many times another figure is another figure: printed step times are rounded, and arrivals are coarse."""


def disagreements(meter: Meter, stated_params: tuple[float, str] | None = None) -> list[str]:
    """Return a sentence for each two sources that disagree, with what leads.

    ``stated_params``: the parameters that the log itself speaks of, and the line.
    """
    found = [_of_time(meter), _of_tokens(meter), _of_rates(meter), _of_params(meter, stated_params)]
    return [one for one in found if one is not None]


def impossible(meter: Meter, measure: Measure, wall: float | None = None) -> str | None:
    """Return what is wrong with an MFU above 100%, as far as it can be told from here; None where none is.

    ``wall``: the MFU over all time.
    """
    found = {
        "MFU": measure.mfu,
        "MFU (avg)": measure.mfu_avg,
        "MFU (clean)": measure.mfu_clean,
        "MFU with attention": measure.mfu_attention,
        "MFU with attention (avg)": measure.mfu_attention_avg,
        "HFU": measure.hfu,
        "MFU over all time": wall,
    }
    above = {name: value for name, value in found.items() if value is not None and value > 1}
    if not above:
        return None
    name, value = next(iter(above.items()))
    figures = meter.figures
    why = (
        "a wrong N (all experts where a token uses some), the peak of another dtype or device, "
        "or a step time that ends before the device is done"
    )
    if figures.devices == 1:
        why = f"tokens of several GPUs over the peak of one (--devices), or {why}"
    elif figures.accumulate > 1 and value / figures.accumulate <= 1:
        why = f"a micro-step's time over the tokens of a step (accumulate is {figures.accumulate}), or {why}"
    elif figures.devices > 1 and value / figures.devices <= 1:
        why = f"tokens of all devices taken {figures.devices} times, or {why}"
    return f"{name} {value:.1%} cannot be: an input is wrong. Likely: {why}"


def _of_time(meter: Meter) -> str | None:
    latest = meter.arrivals.latest
    if latest is None:
        return None
    printed, arrived = latest
    if 1 / APART <= arrived / printed <= APART:
        return None
    figures, ratio = meter.figures, arrived / printed
    why = ""
    if figures.accumulate > 1 and _near(ratio, figures.accumulate):
        why = f": a micro-step's time, perhaps (accumulate is {figures.accumulate})"
    elif meter.advance.share > 1 and _near(ratio, 1 / meter.advance.share):
        why = f": each of {meter.advance.share} lines of a step prints the time of all of it, perhaps"
    elif _near(ratio, 1000.0) or _near(ratio, 0.001):
        why = ": another unit, perhaps"
    elif ratio > 1:
        why = ": it leaves out part of the step, or something between two steps is not in it"
    return (
        f"the printed step time, {printed:.4g} s, is not what passes between two steps, {arrived:.4g} s{why}; "
        f"the printed one is used"
    )


def _of_tokens(meter: Meter) -> str | None:
    """Of the tokens of a step as given and as the log tells them."""
    told, figures = meter.pace.told, meter.figures
    given = figures.tokens_per_step
    if told is None or given is None:
        return None
    tokens, leads = told
    if leads and meter.speed is not None and meter.step_s is not None:
        tokens = meter.speed * meter.step_s  # over the window: sequences are not all of one length
    if tokens <= 0 or 1 / APART <= given / tokens <= APART:
        return None
    source = figures.tokens_source or "--tokens-per-step"
    return (
        f"a step has {given:,.0f} tokens by {source} and {tokens:,.0f} by what the log prints"
        f"{_why(given / tokens, figures)}; the {'latter' if leads else 'former'} is used"
    )


def _of_rates(meter: Meter) -> str | None:
    """Of the tokens per second as counted here and as the program prints them."""
    said, speed, told = meter.said_tokens_per_s(), meter.speed, meter.pace.told
    if said is None or speed is None or 1 / APART <= speed / said <= APART:
        return None
    source = meter.figures.tokens_source or "--tokens-per-step"
    if told is not None and told[1]:
        source = "the tokens and times of its lines"
    return (
        f"tokens per second are {speed:,.0f} by {source} and {said:,.0f} as the log prints them"
        f"{_why(speed / said, meter.figures)}; the former is used"
    )


def _why(ratio: float, figures: Figures) -> str:
    """Return what may lie behind figures of which one is ``ratio`` times the other, "" where nobody can tell."""
    accumulate, devices = figures.accumulate, figures.devices
    for times, what in (
        (devices, f"one device's beside that of all {devices}"),
        (accumulate, f"a micro-step's beside that of a step (accumulate is {accumulate})"),
        (devices * accumulate, f"one device's of a micro-step beside all of a step ({devices} devices, {accumulate})"),
    ):
        if times > 1 and (_near(ratio, times) or _near(ratio, 1 / times)):
            return f": {what}, perhaps"
    most = max(ratio, 1 / ratio)
    if most > _TWICE and _near(most, round(most), 0.02):
        return f": {round(most)} micro-steps or devices that were not told of (--accumulate, --devices), perhaps"
    return ": padding, or tokens without a loss, is perhaps not counted in the log" if 1 < ratio < _PADDED else ""


def _of_params(meter: Meter, stated: tuple[float, str] | None) -> str | None:
    params = meter.figures.params
    if stated is None or params is None:
        return None
    count, line = stated
    # Programs leave embeddings out, and round; another model is further off.
    if count <= 0 or 1 / 1.5 <= params / count <= 1.5:
        return None
    ratio, devices = params / count, meter.figures.devices
    why = f": those of one of {devices} shards, perhaps" if devices > 1 and _near(ratio, devices, 0.35) else ""
    source = meter.figures.params_source or "--params"
    return f"the log speaks of {count:,.0f} parameters ({line}), {source} of {params:,}{why}; the latter is used"


def _near(value: float, wanted: float, within: float = 0.15) -> bool:
    return abs(value - wanted) <= within * wanted

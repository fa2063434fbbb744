"""The figures of a run, each with the sentence that says where it came from, or what would make it known.

Pure arithmetic and words on values. No default stands in for what nobody gave.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from overnight.flops import six_n, six_n_attention
from overnight.goodput import Goodput
from overnight.report.units import duration, finite, number, percent
from overnight.spec import RunSpec


class Figure(NamedTuple):
    """One figure: ``value`` None if unknown, and then ``provenance`` says what would make it known."""

    name: str
    label: str
    value: float | None
    text: str
    provenance: str

    def plain(self) -> dict[str, Any]:
        """Return it as the report value holds it."""
        text = "unknown" if self.value is None else self.text
        return {**self._asdict(), "text": text}


_TOKENS = "give --tokens-per-step, or print tokens"
_PARAMS = "give --params"
_PEAK = "give --peak-tflops"
_SHAPE = "give --layers, --seq-len and --width"
_TIME = "print the time of a step (dt)"


def figures(
    spec: RunSpec,
    origins: Mapping[str, str],
    good: Goodput,
    average: float | None,
    *,
    printed_tokens: bool,
    printed_rates: bool = False,
) -> list[Figure]:
    """Return all of them, in the order in which they are shown.

    ``average`` is the tokens per second of the whole run as ``status`` says it; without it what counts in the views
    gives it. ``origins`` says where each setting came from, ``printed_tokens`` that lines tell the tokens of a step,
    ``printed_rates`` that only tokens per second are printed, and neither a time nor a count.
    """
    speed = good.stepping_tokens_per_s if average is None else average
    flops, attention = six_n(spec.params), six_n_attention(spec.params, spec.layers, spec.seq_len, spec.width)
    peak = None if spec.peak_tflops is None else spec.peak_tflops * 1e12
    capacity = None if peak is None else peak * spec.devices
    step_s = good.productive_s / good.productive_steps if good.productive_s and good.productive_steps else None
    tokens = "tokens as printed" if printed_tokens else _given("tokens_per_step", spec.tokens_per_step, origins)
    told = good.told.partition(";")[0] or "step times as printed"
    how = f"{tokens}; {told}; an average over the whole run, saves and waits not in it"
    if printed_rates:
        how = "rates as printed; an average over the whole run, saves and waits not in it"
    over = f"over {_times(spec.devices)}{number(spec.peak_tflops)} TFLOP/s ({_origin('peak_tflops', origins)})"
    by = f"6N with N = {number(spec.params)} ({_origin('params', origins)})"
    beside = f"6N + 12*L*T*d with L = {number(spec.layers)}, T = {number(spec.seq_len)}, d = {number(spec.width)}"
    need_speed = None if speed is not None else _TOKENS if step_s is not None else f"{_TOKENS}; {_TIME}"
    need_params = None if flops is not None else _PARAMS
    need_peak = None if peak is not None else _PEAK
    need_shape = None if attention is not None else _SHAPE
    mfu = None if flops is None or speed is None or capacity is None else flops * speed / capacity
    with_attention = None if attention is None or speed is None or capacity is None else attention * speed / capacity
    tflops = None if flops is None or speed is None else flops * speed / spec.devices / 1e12
    return [
        _figure("tokens_per_second", "tokens/s", speed, rate(speed), how, need_speed),
        _figure("step_s", "step time", step_s, duration(step_s), _step_words(good), _TIME if step_s is None else None),
        _figure("tflops", "TFLOP/s", tflops, number(tflops, 5), f"{by}, of one device", need_params, need_speed),
        _figure("mfu", "MFU", mfu, percent(mfu), f"{by}, {over}", need_params, need_peak, need_speed),
        _figure(
            "mfu_attention", "MFU with attention", with_attention, percent(with_attention), f"{beside}; {over}",
            need_params, need_shape, need_peak, need_speed,
        ),
        _figure("params", "parameters", spec.params, number(spec.params), _origin("params", origins), need_params),
        _figure(
            "peak_flops", "peak", peak, f"{number(spec.peak_tflops)} TFLOP/s",
            f"of one device, dense, {_origin('peak_tflops', origins)}", need_peak,
        ),
        _figure("devices", "devices", spec.devices, number(spec.devices), _origin("devices", origins)),
        _figure(
            "tokens_per_step", "tokens/step", spec.tokens_per_step, number(spec.tokens_per_step),
            f"all devices together, {_origin('tokens_per_step', origins)}",
            None if spec.tokens_per_step is not None else "printed with each step" if printed_tokens else _TOKENS,
        ),
    ]  # fmt: skip


def _figure(name: str, label: str, value: float | None, text: str, provenance: str, *needs: str | None) -> Figure:
    wanted = "; ".join(dict.fromkeys(need for need in needs if need))
    return Figure(name, label, value, text, provenance if value is not None else wanted)


def rate(value: float | None) -> str:
    """Return tokens per second: 51,200, or 12.5."""
    known = finite(value)
    return number(value, 4) if known is None or not 100 <= abs(known) < 1e15 else f"{known:,.0f}"


def _step_words(good: Goodput) -> str:
    return f"mean of {number(good.productive_steps)} steps that count; {good.told.partition(';')[0]}"


def _times(devices: int) -> str:
    return "" if devices == 1 else f"{devices} x "


def _given(name: str, value: float | None, origins: Mapping[str, str]) -> str:
    return "rates as printed" if value is None else f"{number(value)} tokens a step ({_origin(name, origins)})"


def _origin(name: str, origins: Mapping[str, str]) -> str:
    """Return where a setting came from: "from --params", "from OVERNIGHT_PARAMS", "the default"."""
    said = origins.get(name)
    if not said:
        return "as asked for"
    return "the default" if said == "default" else f"from {said.removeprefix('flag ')}"

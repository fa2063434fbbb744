"""The figures of a run, each with the sentence that says what it was divided by and where that came from.

Pure arithmetic and words on values. No default stands in for what nobody gave: an unknown figure has the words of what
would make it known, and one that cannot be is said to be wrong, with the likely reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from overnight.flops import six_n, six_n_attention
from overnight.pacing.goodput import Goodput
from overnight.report.units import duration, finite, number, percent
from overnight.spec import RunSpec
from overnight.yardsticks import needs
from overnight.yardsticks.basis import Figures


class Figure(NamedTuple):
    """One figure: ``value`` None if unknown, and then ``provenance`` says what would make it known.

    ``impossible``: it comes out above what there is, so that an input is wrong; ``text`` does not show it plain then.
    """

    name: str
    label: str
    value: float | None
    text: str
    provenance: str
    impossible: bool = False

    def plain(self) -> dict[str, Any]:
        """Return it as the report value holds it; ``impossible`` only where it is so."""
        found = self._asdict()
        if not found.pop("impossible"):
            return {**found, "text": "unknown" if self.value is None else self.text}
        return {**found, "impossible": True}


class Speeds(NamedTuple):
    """Tokens per second of all devices together, None while unknown, and how they were known.

    ``average`` over all steps of the run, ``clean`` without the first ones after each start and those behind an
    evaluation or a save, ``wall`` over all the time that passed. ``useful`` is the part of the tokens that the log
    itself calls so. ``told``: how; ``needs``: what would make the average known.
    """

    average: float | None
    clean: float | None
    wall: float | None
    useful: float | None
    told: str
    needs: str


class Shares(NamedTuple):
    """Speeds over the peak: fractions, None while unknown. ``above`` is the largest of them that is more than 1."""

    mfu: float | None
    attention: float | None
    hardware: float | None
    clean: float | None
    wall: float | None

    @property
    def above(self) -> float | None:
        """The largest share that cannot be; None if each one can."""
        return max((one for one in self if one is not None and one > 1), default=None)


CLEAN = "wait for a step after the first 10 of an attempt"
GENERIC = "a wrong N, tokens of several devices over the peak of one, the peak of another dtype, or a wrong step time"


def speeds(one: Mapping[str, Any], spec: RunSpec, origins: Mapping[str, str], good: Goodput, **said: Any) -> Speeds:
    """Return the speeds of a run: as its status ``one`` has them, else as what counts in the views gives them.

    ``said``: ``tokens`` that lines tell the tokens of a step, ``rates`` that only tokens per second are printed, and
    neither a time nor a count; ``useful`` the part of the tokens that is so.
    """
    average = finite(one.get("tokens_per_second_avg"))
    wall = finite(one.get("tokens_per_second_wall"))
    average = good.stepping_tokens_per_s if average is None else average
    wall = good.overall_tokens_per_s if good.overall_tokens_per_s is not None else wall
    told = good.told.partition(";")[0] or "step times as printed"
    how = f"{_tokens(spec, origins, printed=said['tokens'])}; {told}"
    timed = good.productive_s is not None and bool(good.productive_steps)
    return Speeds(
        average=average,
        clean=finite(one.get("tokens_per_second_clean")),
        wall=wall,
        useful=said["useful"],
        told="rates as printed" if said["rates"] else how,
        needs=needs.TOKENS if timed else f"{needs.TOKENS}; print the time of a step (dt)",
    )


def flops_of(basis: Figures) -> tuple[float | None, float | None]:
    """Return FLOPs of a token by the headline, and with attention, as the meter counts them."""
    headline = basis.flops_per_token if basis.flops_per_token is not None else six_n(basis.params)
    if basis.flops_attention is not None or basis.attention_unknown:
        return headline, basis.flops_attention
    return headline, six_n_attention(basis.params, basis.layers, basis.seq_len, basis.width)


def shares(basis: Figures, speed: Speeds) -> Shares:
    """Return every ratio to the dense peak of all devices."""
    headline, attention = flops_of(basis)
    peak = None if basis.peak_flops is None else basis.peak_flops * basis.devices

    def over(flops: float | None, tokens_per_s: float | None) -> float | None:
        return None if flops is None or tokens_per_s is None or not peak else flops * tokens_per_s / peak

    return Shares(
        mfu=over(headline, speed.average),
        attention=over(attention, speed.average),
        hardware=over(basis.flops_hardware, speed.average),
        clean=over(headline, speed.clean),
        wall=over(headline, speed.wall),
    )


def figures(
    basis: Figures,
    spec: RunSpec,
    origins: Mapping[str, str],
    good: Goodput,
    speed: Speeds,
    *,
    printed_tokens: bool,
    tokens: float | None = None,
    reason: str = GENERIC,
) -> list[Figure]:
    """Return all of them, in the order in which they are shown.

    ``origins`` says where each setting came from, ``printed_tokens`` that lines tell the tokens of a step, ``tokens``
    how many if that is known, ``reason`` why a share above 100% is likely to have come out.
    """
    known = shares(basis, speed)
    told = _Told(basis, spec, origins, reason)
    return [
        *_rates(good, speed),
        *_of_mfu(basis, speed, known, told, good),
        *_divisors(basis, spec, told),
        _tokens_figure(basis, told, printed_tokens=printed_tokens, tokens=tokens),
    ]


class _Told:
    """The words beside the figures: by which count of FLOPs, over which peak."""

    def __init__(self, basis: Figures, spec: RunSpec, origins: Mapping[str, str], reason: str) -> None:
        self.reason = reason
        self.origins = origins
        self.params = _from(origins, "params", basis.params_source)
        self.devices = _from(origins, "devices", None)
        counts = spec.counts
        active = None if counts is None else counts.active
        n = basis.params if active is None else active
        self.by = f"{basis.convention} with N = {number(n)} ({self.params})"
        if active is not None and basis.params is not None and active < basis.params:
            self.by = (
                f"{basis.convention} with N = {number(active)} that one token uses of {number(basis.params)} "
                f"({self.params})"
            )
        shape = f"L = {number(basis.layers)}, T = {number(basis.seq_len)}, H*h = {number(basis.width)}"
        self.beside = f"{basis.convention_attention} with {shape}"
        if basis.flops_attention is not None:
            self.beside = f"{basis.convention_attention} with T = {number(basis.seq_len)}, layer by layer"
        self.peak = _peak_words(basis, spec, origins)
        brief = self.peak.partition(" (")[0].partition(", NVIDIA ")[0] if basis.peak_flops is not None else ""
        devices = f"; devices {self.devices}" if basis.devices > 1 or self.devices != "the default" else ""
        self.over = f"over {_times(basis.devices)}{_peak(basis)} TFLOP/s ({brief}{devices})"


def _rates(good: Goodput, speed: Speeds) -> list[Figure]:
    step_s = good.productive_s / good.productive_steps if good.productive_s and good.productive_steps else None
    padding = "" if speed.useful is None else "all tokens that are processed, padding too; "
    useful = None if speed.useful is None or speed.average is None else speed.useful * speed.average
    found = [
        _figure(
            "tokens_per_second", "tokens/s", speed.average, rate(speed.average),
            f"{padding}{speed.told}; an average over the whole run, saves and waits not in it", speed.needs,
        ),
    ]  # fmt: skip
    if useful is not None and speed.useful is not None:
        said = f"{percent(speed.useful)} of the tokens are no padding, or have a loss, as the log counts them"
        found.append(_figure("useful_tokens_per_second", "useful tokens/s", useful, rate(useful), said))
    if speed.clean is not None:
        said = "without the first 10 of each start and those behind an evaluation or a save"
        found.append(_figure("tokens_per_second_clean", "tokens/s (clean steps)", speed.clean, rate(speed.clean), said))
    if speed.wall is not None:
        said = "steps that count, over all the time that passed"
        found.append(_figure("tokens_per_second_wall", "tokens/s (all time)", speed.wall, rate(speed.wall), said))
    time = None if step_s is not None else needs.TIME.partition(",")[0].replace("dt", "the time of a step (dt)")
    return [*found, _figure("step_s", "step time", step_s, duration(step_s), _step_words(good), time)]


def _of_mfu(basis: Figures, speed: Speeds, known: Shares, told: _Told, good: Goodput) -> list[Figure]:
    headline, attention = flops_of(basis)
    tflops = None
    if headline is not None and speed.average is not None:
        tflops = headline * speed.average / basis.devices / 1e12
    by = None if headline is not None else needs.PARAMS
    peak = None if basis.peak_flops is not None else basis.peak_unknown or needs.PEAK
    fast = None if speed.average is not None else speed.needs
    shape = None if attention is not None else basis.attention_unknown or needs.SHAPE
    found = [
        _figure("tflops", "TFLOP/s", tflops, number(tflops, 5), f"{told.by}, of one device", by, fast),
        _share("mfu", "MFU", known.mfu, f"{told.by}, {told.over}; over all steps", told, by, peak, fast),
        _share(
            "mfu_attention", "MFU with attention", known.attention,
            f"{told.beside}, over the same peak; over all steps", told, by, shape, peak, fast,
        ),
    ]  # fmt: skip
    if basis.convention_hardware is not None:
        said = f"{basis.convention_hardware}: what is computed again is counted too; over the same peak, over all steps"
        found.append(_share("hfu", "HFU", known.hardware, said, told, by, peak, fast))
    clean = CLEAN if speed.clean is None and speed.average is not None else None
    if clean is None or known.mfu is not None:
        said = "of steps alone: not the first 10 of each start, nor those behind an evaluation or a save"
        found.append(_share("mfu_clean", "MFU (clean steps)", known.clean, said, told, by, peak, fast, clean))
    said = "steps that count over all the time that passed: start, evaluations, saves, waits, restarts are in it"
    unknown = (good.unknown or "its lines carry no step times").removeprefix("goodput is unknown: ")
    whole = None if speed.wall is not None or speed.average is None else unknown
    found.append(_share("mfu_wall", "MFU (all time)", known.wall, said, told, by, peak, fast, whole))
    return found


def _divisors(basis: Figures, spec: RunSpec, told: _Told) -> list[Figure]:
    """Return what was divided by, and where each came from."""
    headline, attention = flops_of(basis)
    notes = () if spec.counts is None else spec.counts.notes
    said = "; ".join((told.params, *(f"note: {note}" for note in notes)))
    found = [_figure("params", "parameters", basis.params, number(basis.params), said, needs.PARAMS)]
    active = None if spec.counts is None else spec.counts.active
    if active is not None and active != basis.params:
        found.append(_figure("params_active", "active parameters", active, number(active), "those that one token uses"))
    found.append(_figure("flops_per_token", "FLOPs/token", headline, number(headline), told.by, needs.PARAMS))
    if attention is not None:
        said = number(attention)
        found.append(_figure("flops_per_token_attention", "FLOPs with attention", attention, said, told.beside))
    dense = f"of one device: {told.peak}"
    found += [
        _figure(
            "peak_flops", "peak", basis.peak_flops, f"{_peak(basis)} TFLOP/s", dense, basis.peak_unknown or needs.PEAK
        ),
        _figure("devices", "devices", basis.devices, number(basis.devices), told.devices),
    ]
    return found


def _tokens_figure(basis: Figures, told: _Told, *, printed_tokens: bool, tokens: float | None) -> Figure:
    """Return the tokens of a step: as lines print them, where they do, otherwise as given."""
    given, name, label = basis.tokens_per_step, "tokens_per_step", "tokens/step"
    source = _from(told.origins, name, basis.tokens_source)
    if printed_tokens and tokens is not None:
        beside = (
            "" if given is None or abs(given - tokens) <= 1e-6 * given else f"; {number(given)} {source} is not used"
        )
        return _figure(name, label, tokens, number(tokens), f"all devices together, as the log prints them{beside}")
    printed = "; those printed with each step are used" if printed_tokens else ""
    wanted = None if given is not None else "printed with each step" if printed_tokens else needs.TOKENS
    return _figure(name, label, given, number(given), f"all devices together, {source}{printed}", wanted)


def _share(name: str, label: str, value: float | None, provenance: str, told: _Told, *needed: str | None) -> Figure:
    """Return a ratio to the peak; one above 100% as the error that it is."""
    if value is not None and value > 1:
        said = f"more than the hardware can do, so an input is wrong; likely: {told.reason} ({provenance})"
        return Figure(name, label, value, f"not possible: {percent(value)}", said, impossible=True)
    return _figure(name, label, value, percent(value), provenance, *needed)


def _figure(name: str, label: str, value: float | None, text: str, provenance: str, *wanted: str | None) -> Figure:
    said = "; ".join(dict.fromkeys(need for need in wanted if need))
    return Figure(name, label, value, text, provenance if value is not None else said)


def rate(value: float | None) -> str:
    """Return tokens per second: 51,200, or 12.5."""
    known = finite(value)
    return number(value, 4) if known is None or not 100 <= abs(known) < 1e15 else f"{known:,.0f}"


def _step_words(good: Goodput) -> str:
    steps = "1 step that counts" if good.productive_steps == 1 else f"{number(good.productive_steps)} steps that count"
    return f"mean of {steps}; {good.told.partition(';')[0]}"


def _times(devices: int) -> str:
    return "" if devices == 1 else f"{devices} x "


def _peak(basis: Figures) -> str:
    return number(None if basis.peak_flops is None else basis.peak_flops / 1e12)


def _peak_words(basis: Figures, spec: RunSpec, origins: Mapping[str, str]) -> str:
    """Return where the peak is from, without the number that stands before it.

    "dense bf16 of A100 SXM (not used: sparse 624), NVIDIA A100 datasheet; the device as its driver names it".
    """
    source = basis.peak_source or ""
    if ": " not in source:
        dtype = f", {basis.dtype}" if basis.dtype else ""
        return f"{_from(origins, 'peak_tflops', source)}, taken for dense{dtype}"
    named = "the device as its driver names it" if spec.peak_tflops is None else _from(origins, "gpu", None)
    return f"{source.partition(': ')[2]}; {named}, dtype {_from(origins, 'dtype', None)}"


def _tokens(spec: RunSpec, origins: Mapping[str, str], *, printed: bool) -> str:
    if printed:
        return "tokens as printed"
    if spec.tokens_per_step is None:
        return "rates as printed"
    return f"{number(spec.tokens_per_step)} tokens a step ({_from(origins, 'tokens_per_step', spec.tokens_source)})"


def _from(origins: Mapping[str, str], name: str, source: str | None) -> str:
    """Return where a value came from: "from --params", "from OVERNIGHT_PARAMS", "the default", or its own source."""
    said = origins.get(name) or source
    if not said:
        return "as asked for"
    return "the default" if said == "default" else f"from {said.removeprefix('flag ')}"

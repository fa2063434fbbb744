"""What was measured of a run, put together: figures, money, what disagrees, what the result means.

Pure: what the parts around it have found comes in, parts of the report value go out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from overnight.calculator import Evidence
from overnight.pacing.goodput import Goodput
from overnight.report.figures import GENERIC, Figure, Speeds, figures, shares, speeds
from overnight.report.known import Known
from overnight.report.meaning import Meaning, meaning
from overnight.report.money import costs
from overnight.report.pacing import Pacing
from overnight.report.units import finite
from overnight.spec import RunSpec
from overnight.yardsticks.sizing import figures_of, peak_seen


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of the report value. ``reasons``: why a figure above 100% came out, the likeliest first."""

    figures: list[Figure] = []
    cost: dict[str, Any]
    disagreements: list[str] = []
    reading: list[str] = []
    reasons: list[str] = []
    evidence: dict[str, Any] | None = None


def measured(
    known: Known,
    good: Goodput,
    pacing: Pacing | None,
    *,
    names: Sequence[str],
    records: int | None,
    gpus: Mapping[str, Any],
) -> Measured:
    """Return it all. ``names``: of what is printed; ``records``: progress lines; ``gpus``: what their samples came to.

    Without the settings of the run nothing can be divided by anything, and only what it has cost is known.
    """
    spec, one = known.spec, known.one
    if spec is None:
        return Measured(cost=_costs(known, good, None))
    devices = [gpu for gpu in (known.course.devices or {}).get("gpus") or () if isinstance(gpu, Mapping)]
    seen = peak_seen([dict(gpu) for gpu in devices], spec.dtype) if devices and spec.peak_tflops is None else None
    basis = figures_of(spec, seen)
    # A counter of all tokens leads only where the tokens of a step were not given.
    printed = "tokens" in names or ("tokens_total" in names and basis.tokens_per_step is None)
    rates = "tokens_per_s" in names and "dt_s" not in names and good.productive_s is None and not printed
    speed = speeds(
        one, spec, known.origins, good, tokens=printed, rates=rates, useful=None if pacing is None else pacing.useful
    )
    tokens = _printed_tokens(one, spec) if printed else None
    evidence = _evidence(known, good, pacing, speed, gpus, tokens_per_step=tokens)
    told = meaning(spec, basis, known.origins, evidence, devices, records=records)
    reasons = _reasons(one, told) if shares(basis, speed).above is not None else []
    return Measured(
        figures=figures(
            basis,
            spec,
            known.origins,
            good,
            speed,
            printed_tokens=printed,
            tokens=tokens,
            reason=(reasons or [GENERIC])[0],
        ),
        cost=_costs(known, good, speed.wall),
        disagreements=_disagreements(one, spec, devices, told),
        reading=list(told.reading),
        reasons=reasons,
        evidence=msgspec.to_builtins(evidence),
    )


def _printed_tokens(one: Mapping[str, Any], spec: RunSpec) -> float | None:
    """Return the tokens of a step where lines print them: of the latest steps on average, if those are known."""
    last, speed, step_s = (finite(one.get(name)) for name in ("tokens_per_step", "tokens_per_second", "dt"))
    if speed is None or step_s is None or (spec.accumulate or 1) > 1:
        return last
    mean = speed * step_s
    return last if last is not None and abs(mean - last) <= 1e-6 * last else float(round(mean))


def _evidence(
    known: Known,
    good: Goodput,
    pacing: Pacing | None,
    speed: Speeds,
    gpus: Mapping[str, Any],
    *,
    tokens_per_step: float | None,
) -> Evidence:
    printed = good.told.startswith("step times as printed")
    return Evidence(
        kind="log" if known.kind == "log" else "run",
        name=known.name,
        tokens_per_second=speed.clean or speed.average,
        tokens_source=speed.told,
        tokens_per_second_all=speed.average,
        tokens_per_step=tokens_per_step,
        clean=speed.clean is not None,
        step_s=good.productive_s / good.productive_steps if good.productive_s and good.productive_steps else None,
        useful_tokens_per_second=None if None in (speed.useful, speed.average) else _times(speed.useful, speed.average),
        wall_s=known.wall_s,
        stepping=good.goodput,
        **({} if pacing is None else pacing.fields(good.printed_s if printed else None)),
        **{**gpus, "throttle": tuple(gpus.get("throttle") or ())},
    )


def _times(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one * other


def _reasons(one: Mapping[str, Any], told: Meaning) -> list[str]:
    """Return why a share above 100% came out; the meter's own words where the calculator has none."""
    _, _, likely = str(one.get("mfu_trouble") or "").partition("Likely: ")
    return list(told.reasons) or [likely or GENERIC]


def _costs(known: Known, good: Goodput, tokens_per_s: float | None) -> dict[str, Any]:
    return costs(
        known.one, known.spec, known.origins, lost=good.lost_cost, wall_s=known.wall_s, tokens_per_s=tokens_per_s
    )


def _disagreements(
    one: Mapping[str, Any], spec: RunSpec, devices: Sequence[Mapping[str, Any]], told: Meaning
) -> list[str]:
    said = one.get("disagreements")
    found = [str(text) for text in said] if isinstance(said, (list, tuple)) else []
    if len(devices) > 1 and len(devices) != spec.devices and not any("--devices says" in text for text in found):
        found.append(
            f"the run is on {len(devices)} GPUs, and --devices says {spec.devices}: MFU is over the peak of "
            f"{spec.devices}"
        )
    return list(dict.fromkeys([*found, *told.disagreements]))

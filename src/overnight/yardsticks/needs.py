"""What would make an unknown figure known: the words beside every "unknown". Nothing is measured here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from overnight.yardsticks.basis import Figures

TOKENS: Final = "give --tokens-per-step, or --batch and --seq-len, or print tokens"
TIME: Final = "print dt, or wait for a second line with a higher step"
PARAMS: Final = "give --params, --config or --model"
PEAK: Final = "give --gpu and --dtype, or --peak-tflops"
DEVICE: Final = "give --gpu or --peak-tflops"
SHAPE: Final = "give --layers, --seq-len and --width"
PLAN: Final = "give --steps"
LINE: Final = "wait for a progress line"
NEXT: Final = "wait for the next progress line"
STEP: Final = "print the step"
LOSS: Final = "print the loss"
FINITE: Final = "no finite loss in the window"
CLEAN: Final = "wait for a step after the first 10 of this start"


class Stand(Protocol):
    """What is asked of a meter here."""

    records: int
    figures: Figures

    @property
    def pace_empty(self) -> bool:
        """Whether the window holds nothing."""

    @property
    def prints_dt(self) -> bool:
        """Whether the latest line had a step time."""

    @property
    def capacity(self) -> float | None:
        """The dense peak of all devices together, in FLOP/s."""


def needs(name: str, figures: Mapping[str, float | None], meter: Stand) -> str:
    """Return what would make the unknown figure ``name`` known."""
    waits = LINE if meter.records == 0 else None
    found: list[str | None]
    if name == "step":
        found = [waits or STEP]
    elif name == "loss":
        found = [waits or LOSS]
    elif name == "loss_avg":
        known = figures.get("loss") is not None
        found = [waits or (LOSS if not known else NEXT if meter.pace_empty else FINITE)]
    elif name == "dt_s":
        found = [waits or _time(figures, meter)]
    elif name == "eta_s":
        no_step = STEP if figures.get("step") is None else None
        no_plan = PLAN if meter.figures.steps is None else None
        found = [no_plan, waits or no_step or _time(figures, meter)]
    else:
        found = _of_speed(name, figures, meter, waits)
    return "; ".join(need for need in found if need)


def _of_speed(name: str, figures: Mapping[str, float | None], meter: Stand, waits: str | None) -> list[str | None]:
    given = meter.figures
    found: list[str | None] = []
    if given.params is None and given.flops_per_token is None and "tokens" not in name:
        found.append(PARAMS)
    known = given.attention_unknown is None and None not in (given.layers, given.seq_len, given.width)
    shapeless = given.flops_attention is None and not known
    if "attention" in name and shapeless:
        found.append(given.attention_unknown or SHAPE)
    if "mfu" in name and meter.capacity is None:
        found.append(given.peak_unknown or (PEAK if given.dtype is None else DEVICE))
    if "flops_per_token" not in name:
        speed = "tokens_per_second" + "".join(end for end in ("_avg", "_clean") if name.endswith(end))
        if figures.get(speed) is None:
            average = figures.get("tokens_per_second_avg")
            found.append(CLEAN if speed.endswith("_clean") and average is not None else _speed(figures, meter, waits))
    return found


def _time(figures: Mapping[str, float | None], meter: Stand) -> str | None:
    """Return what would make the step time known: where the last line had one, the next line will do."""
    if figures.get("dt_s") is not None:
        return None
    return NEXT if meter.pace_empty and meter.prints_dt else TIME


def _speed(figures: Mapping[str, float | None], meter: Stand, waits: str | None) -> str:
    no_tokens = None if meter.figures.tokens_per_step else TOKENS
    return "; ".join(need for need in (no_tokens, waits or _time(figures, meter)) if need)

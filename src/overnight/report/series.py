"""What the report shows of metrics.db: progress, charts thinned for drawing, what rewinds have superseded, goodput.

Everything comes through ``history.views``, in pieces; what is held grows neither with the log nor with its rewinds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from overnight.history.views import Chart, Span, Stretch, Summary
from overnight.pacing.goodput import SERIES

LABELS: dict[str, tuple[str, str]] = {
    "loss": ("loss", ""),
    "dt_s": ("step time", "s"),
    "tokens_per_s": ("tokens/s", "tokens/s"),
    "lr": ("learning rate", ""),
    "grad_norm": ("gradient norm", ""),
    "mfu": ("MFU as printed", "%"),
    "samples_per_s": ("samples/s", "samples/s"),
}
"""The series that are drawn where they are printed, in this order: label and unit."""

_RATES = frozenset({"tokens_per_s", "samples_per_s"})

POINTS = 2000
NONFINITE = 1000
MARKS = 200
PLACES = 100_000

_PARTS = 256  # of what one attempt lost
_OLDER = 20  # attempts whose lost part is drawn


class Reading(Protocol):
    """What is asked of ``history.views.Views``."""

    def spans(self) -> list[Span]:
        """Return every segment in the order of the log."""

    def names(self, kind: str = "train") -> list[str]:
        """Return the names of the series."""

    def summary(self, name: str, kind: str = "train") -> Summary:
        """Return a series in short."""

    def stretches(self, names: Sequence[str], kind: str = "train", *, rank: int | None = None) -> Iterator[Stretch]:
        """Yield every record in the order of the log."""

    def chart(
        self, name: str, kind: str = "train", *, low: float | None = None, high: float | None = None, points: int = 2000
    ) -> Chart:
        """Return a series thinned for drawing."""


class Superseded:
    """Looks at the records on their way to somebody else, and keeps the shape of what later attempts did again.

    ``per_device``: some print rates of one device.
    """

    def __init__(self, spans: Sequence[Span]) -> None:
        lost = [span for span in spans if math.isfinite(span.limit)][-_OLDER:]
        self.per_device = False
        self._spans = {(span.attempt, span.segment): span for span in lost}
        self._found: dict[tuple[int, int], dict[str, list[tuple[float, float, float]]]] = {}

    def watch(self, stretches: Iterator[Stretch]) -> Iterator[Stretch]:
        """Yield the stretches as they come."""
        for stretch in stretches:
            self.per_device = self.per_device or stretch.per_device
            if (stretch.span.attempt, stretch.span.segment) in self._spans and stretch.kept < len(stretch.x):
                self._keep(stretch)
            yield stretch

    def _keep(self, stretch: Stretch) -> None:
        key = (stretch.span.attempt, stretch.span.segment)
        series = self._found.setdefault(key, {})
        count = len(stretch.x) - stretch.kept
        size = max(1, -(-count // 64))
        for name, column in stretch.columns.items():
            if name in LABELS:
                parts = series.setdefault(name, [])
                for begin in range(stretch.kept, len(stretch.x), size):
                    some = column.values[begin : begin + size]
                    finite = some if math.isfinite(sum(some)) else [one for one in some if math.isfinite(one)]
                    if len(finite):
                        parts.append((stretch.x[begin], min(finite), max(finite)))
                while len(parts) > _PARTS:
                    parts[:] = [_joined(parts[at : at + 2]) for at in range(0, len(parts), 2)]

    def older(self, name: str) -> list[dict[str, Any]]:
        """Return what was superseded of one series, in the order of the log."""
        return [
            {
                "attempt": key[0],
                "x": [x for x, _, _ in series[name]],
                "low": [low for _, low, _ in series[name]],
                "high": [high for _, _, high in series[name]],
            }
            for key, series in sorted(self._found.items())
            if series.get(name)
        ]


def _joined(parts: Sequence[tuple[float, float, float]]) -> tuple[float, float, float]:
    return parts[0][0], min(low for _, low, _ in parts), max(high for _, _, high in parts)


def wanted(views: Reading) -> list[str]:
    """Return the series that one pass over all records has to bring for goodput and for what was superseded."""
    names, spans = views.names(), views.spans()
    drawn = list(LABELS) if any(math.isfinite(span.limit) for span in spans) else []
    return [name for name in dict.fromkeys([*SERIES, *drawn]) if name in names]


def places(views: Reading, kind: str) -> list[int]:
    """Return where in the log the records of a kind stand; the first hundred thousand."""
    found: list[int] = []
    for stretch in views.stretches([], kind) if views.names(kind) else ():
        found += stretch.offsets
        if len(found) >= PLACES:
            break
    return found[:PLACES]


def charts(
    views: Reading, lost: Superseded, verdicts: Sequence[dict[str, Any]], tokens_per_step: float | None
) -> list[dict[str, Any]]:
    """Return the charts: of the training series that were printed, of the evaluation loss, of the tokens per second."""
    names, found = views.names(), []
    spans = views.spans()
    marks = _marks(verdicts, spans)
    label = x_label(spans)
    for name, (title, unit) in LABELS.items():
        if name in names:
            of = " of one device" if lost.per_device and name in _RATES else ""
            chart = _chart(views.chart(name, points=POINTS), name, title + of, unit, lost.older(name))
            chart.update(_exactly(views.summary(name)))
        elif name == "tokens_per_s" and tokens_per_step and "dt_s" in names:
            chart = _inverse(
                _chart(views.chart("dt_s", points=POINTS), name, title, unit, lost.older("dt_s")), tokens_per_step
            )
        else:
            continue
        if chart["x"] or chart["nonfinite"]:
            found.append({**chart, "x_label": label, "marks": marks})
        if name == "loss" and "loss" in views.names("eval"):
            evaluated = _chart(views.chart("loss", "eval", points=POINTS), "eval_loss", "evaluation loss", "", [])
            if evaluated["x"]:
                evaluated.update(_exactly(views.summary("loss", "eval")))
                found.append({**evaluated, "x_label": label, "marks": []})
    return found


def _chart(chart: Chart, name: str, title: str, unit: str, older: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": name,
        "label": title,
        "unit": unit,
        "x_label": "step",
        "x": list(chart.x),
        "low": list(chart.low),
        "high": list(chart.high),
        "attempts": list(chart.attempts),
        "older": older,
        "nonfinite": [[x, value] for x, value in chart.nonfinite[:NONFINITE]],
        "marks": [],
    }


def _exactly(found: Summary) -> dict[str, Any]:
    """Return least and last of a series as they were printed: a part of a chart may hold many records."""
    return {"least": found.least, "least_x": _step(found.least_x), "last": found.last}


def _inverse(chart: dict[str, Any], tokens_per_step: float) -> dict[str, Any]:
    """Return tokens per second out of seconds per step: where one is least the other is largest."""
    found = {**chart, "nonfinite": []}
    for one in (found, *found["older"]):
        rows = [row for row in zip(one["x"], one["low"], one["high"], strict=True) if row[1] > 0]
        kept = [at for at, low in enumerate(one["low"]) if low > 0]
        one["x"] = [x for x, _, _ in rows]
        one["low"], one["high"] = (
            [tokens_per_step / high for _, _, high in rows],
            [tokens_per_step / low for _, low, _ in rows],
        )
        if "attempts" in one:
            one["attempts"] = [one["attempts"][at] for at in kept]
    return found


def x_label(spans: Sequence[Span]) -> str:
    """Return what the x axis counts: steps of all epochs together where each epoch counts anew."""
    if not any(span.first_step is not None for span in spans):
        return "epoch or record"
    return "total step" if counts_anew(spans) else "step"


def counts_anew(spans: Sequence[Span]) -> bool:
    """Say whether the program counts its steps anew, in each epoch for one."""
    return any(span.base for span in spans)


def place_of(verdict: dict[str, Any], spans: Sequence[Span]) -> float | None:
    """Return where a verdict stands on the x axis; None if it names no step."""
    step = verdict["step"]
    if step is None:
        return None
    offset, source = verdict["offset"], verdict["source"]
    beside = [one for one in spans if one.attempt == verdict["attempt"]]
    if offset is not None:
        beside = [one for one in beside if one.source == source and one.first_offset <= offset]
    return float(step) + (beside[-1].base if beside else 0.0)


def _marks(verdicts: Sequence[dict[str, Any]], spans: Sequence[Span]) -> list[dict[str, Any]]:
    found = [one for one in verdicts if one["step"] is not None and one["severity"] in ("warn", "critical")]
    return [
        {"x": _step(place_of(one, spans)), "severity": one["severity"], "text": one["text"]} for one in found[:MARKS]
    ]


def whole_range(spans: Sequence[Span], attempt: int) -> tuple[int, int] | None:
    """Return the first and the last step of an attempt, of all epochs together; None if it does not count anew."""
    own = [one for one in spans if one.attempt == attempt and one.first_step is not None]
    if not counts_anew(own):
        return None
    first = own[0].base + (own[0].first_step or 0)
    return int(first), int(max(one.base + (one.last_step or 0) for one in own))


def gains(spans: Sequence[Span]) -> dict[int, int]:
    """Return how many steps lie between two lines, for each attempt that prints several."""
    found: dict[int, int] = {}
    for one in spans:
        if one.first_step is not None and one.last_step is not None and one.records > 1:
            found.setdefault(one.attempt, max(1, round((one.last_step - one.first_step) / (one.records - 1))))
    return found


def last_good(views: Reading, verdicts: Sequence[dict[str, Any]]) -> tuple[float, float] | None:
    """Return (x, loss) of the last finite loss before the first verdict that it is not; None if there is neither."""
    sick = next((one for one in verdicts if one["rule"] == "nonfinite" and one["step"] is not None), None)
    if sick is None or "loss" not in views.names():
        return None
    place = place_of(sick, views.spans())
    # Below its step: what the log says of the same step may stand behind it, of another rank or after a rewind.
    end = None if place is None else math.nextafter(place, -math.inf)
    chart = views.chart("loss", high=end, points=POINTS)
    for _ in range(8):  # the last part holds several: look into it until it is one
        if chart.exact or not chart.x:
            break
        chart = views.chart("loss", low=chart.x[-1], high=end, points=POINTS)
    return (chart.x[-1], chart.high[-1]) if chart.x and chart.exact else None


def progress(views: Reading) -> dict[str, Any]:
    """Return how far the records come: over what counts, after any rewinds; None where nothing was printed."""
    spans, names = views.spans(), views.names()
    loss = views.summary("loss") if "loss" in names else None
    epoch = views.summary("epoch") if "epoch" in names else None
    steps = [span.last_step for span in spans if span.last_step is not None]
    last = next((span for span in reversed(spans) if span.last_step is not None), None)
    anew = last is not None and counts_anew(spans)
    return {
        "step": steps[-1] if steps else None,
        "step_in_all": int(last.base) + (last.last_step or 0) if last is not None and anew else None,
        "steps": None,
        "epoch": None if epoch is None else epoch.last,
        "records": sum(span.records for span in spans),
        "loss_first": None if loss is None else loss.first,
        "loss_last": None if loss is None else loss.last,
        "loss_least": None if loss is None else loss.least,
        "loss_least_step": None if loss is None else _step(loss.least_x),
        "eval": _eval(views),
    }


def _eval(views: Reading) -> dict[str, Any] | None:
    if "loss" not in views.names("eval"):
        return None
    found = views.summary("loss", "eval")
    if found.last is None:
        return None
    chart = views.chart("loss", "eval", points=POINTS)
    for _ in range(8):  # of many evaluations the last part holds several: look into it until it is one
        if chart.exact or not chart.x:
            break
        chart = views.chart("loss", "eval", low=chart.x[-1], points=POINTS)
    return {
        "name": "evaluation loss",
        "last": found.last,
        "last_step": _step(chart.x[-1]) if chart.x and chart.exact else None,
        "least": found.least,
        "least_step": _step(found.least_x),
    }


def _step(x: float | None) -> float | int | None:
    return int(x) if x is not None and x.is_integer() else x

"""What ``mfu`` finds in a run or a log: its pace, read once more from the log, and what its sensors have seen.

Only reads. A log that is gone leaves what the run's status says; sensors that never wrote leave nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from overnight import client, wiring
from overnight.calculator import Evidence
from overnight.calculator.busyness import Busyness
from overnight.calculator.observed import Observed, printed_tokens
from overnight.crosscheck import disagreements
from overnight.folder import RunFolder, sensor_file
from overnight.monitor import Monitor
from overnight.overall import whole
from overnight.past.rereading import NOTHING_KNOWN, Bounds, bounds_of, reread
from overnight.past.times import dated
from overnight.sensors import Gpu, GpuSample
from overnight.sensors.written import written
from overnight.spec import RunSpec

MOST_BYTES = 16 << 20
"""Of the sensors' file its end is read: a day of samples of eight GPUs."""


class Gathered(NamedTuple):
    """What was found: the evidence, remarks on what disagrees, and the run's GPUs as last seen."""

    evidence: Evidence
    remarks: tuple[str, ...]
    gpus: tuple[Gpu, ...] = ()


def gathered(subject: RunFolder | Path, spec: RunSpec) -> Gathered:
    """Return what a run or a log tells, measured under ``spec``. UsageError if a log cannot be read."""
    if not isinstance(subject, RunFolder):
        return _of_log(subject, spec)
    status = client.status(subject)
    log = Path(spec.log)
    sensed, gpus = _sensed(sensor_file(subject.path, "gpu"))
    if not log.is_file():
        remarks: tuple[str, ...]
        evidence, remarks = _of_status(subject, status), (f"the log {log} is gone: its status is all that is known",)
    else:
        elapsed = status.get("elapsed_s")
        wall_s = float(elapsed) if isinstance(elapsed, (int, float)) else None
        evidence, remarks = _read(Told("run", subject.name, log, bounds_of(subject, log), wall_s), spec)
    return Gathered(msgspec.structs.replace(evidence, **sensed), remarks, gpus)


def _of_log(path: Path, spec: RunSpec) -> Gathered:
    found = dated(path) if path.is_file() else None
    times, bounds = found or (None, NOTHING_KNOWN)
    began = None if times is None else times.attempts[0].started
    wall_s = None if times is None or began is None else times.until - began
    return Gathered(*_read(Told("log", path.name, path, bounds, wall_s), spec))


def _of_status(folder: RunFolder, status: client.Status) -> Evidence:
    numbers = {
        name: float(value)
        for name in ("tokens_per_second_clean", "tokens_per_second_avg", "tokens_per_second", "dt")
        if isinstance(value := status.get(name), (int, float))
    }
    clean, every = numbers.get("tokens_per_second_clean"), numbers.get("tokens_per_second_avg")
    return Evidence(
        kind="run",
        name=folder.name,
        tokens_per_second=clean or every or numbers.get("tokens_per_second"),
        tokens_source="its status",
        tokens_per_second_all=every,
        clean=clean is not None,
        step_s=numbers.get("dt"),
        needs="its log is gone, and its status has no speed: give --tokens-per-second",
    )


class Told(NamedTuple):
    """A log and how it is cut; ``wall_s``: the time that passed, None where nobody knows."""

    kind: Literal["run", "log"]
    name: str
    path: Path
    bounds: Bounds
    wall_s: float | None


def _read(log: Told, spec: RunSpec) -> tuple[Evidence, tuple[str, ...]]:
    """Return what a log says, read once more by a fresh monitor."""
    monitor = wiring.make_monitor(spec, lambda text: print(f"overnight: {text}", file=sys.stderr))
    observed = Observed()
    _feed(monitor, observed, log)
    meter, measure = monitor.meter, monitor.measure()
    clean, every = measure.tokens_per_second_clean, measure.tokens_per_second_avg
    best = clean or every or measure.tokens_per_second
    share = meter.useful.share()
    done = None if log.wall_s is None else whole(meter, log.wall_s)
    told, printed = monitor.hearing.stated, printed_tokens(meter)
    evidence = Evidence(
        kind=log.kind,
        name=log.name,
        tokens_per_second=best,
        tokens_source=_tokens_words(spec, meter.prints_dt, printed=printed),
        tokens_per_second_all=every,
        tokens_per_step=printed,
        clean=clean is not None,
        step_s=measure.dt_s,
        printed_tokens_per_second=meter.said_tokens_per_s(),
        printed_mfu=observed.mfu,
        printed_params=None if told is None else round(told[0]),
        useful_tokens_per_second=None if share is None or best is None else share * best,
        wall_s=log.wall_s,
        wall_tokens_per_second=None if done is None else done.tokens_per_second,
        stepping=None if done is None else done.goodput,
        median_s=observed.at(0.5),
        slow_s=observed.at(0.95),
        data_wait=observed.data_wait,
        evaluation=observed.evaluation,
        evaluations=observed.evaluations,
        needs=measure.unknown.get("tokens_per_second", "") or "give --tokens-per-second",
    )
    said = [one for one in disagreements(meter) if not one.startswith("tokens per second")]  # those are compared here
    if not meter.records:
        said.insert(0, f"no progress line was read in {log.path}: `overnight read {log.path}` shows what it is")
    return evidence, tuple(said)


def _feed(monitor: Monitor, observed: Observed, log: Told) -> None:
    attempt = None
    for outcome in reread(monitor, log.path, log.bounds):
        for entry in outcome.entries:
            if entry.attempt != attempt:
                if attempt is not None:
                    observed.begin_attempt()
                attempt = entry.attempt
            observed.take(entry.record)


def _tokens_words(spec: RunSpec, prints_dt: bool, *, printed: float | None) -> str:  # noqa: FBT001 - one fact
    told = printed is not None or spec.tokens_per_step is None
    tokens = "tokens as printed" if told else f"{spec.tokens_per_step:,.0f} tokens a step"
    return f"{tokens}, {'step times as printed' if prints_dt else 'times by the arrival of lines, or rates as printed'}"


# -- what the sensors have seen ----------------------------------------------------------------------------------------


def _sensed(path: Path) -> tuple[dict[str, Any], tuple[Gpu, ...]]:
    """Return the fields of the evidence that GPU samples give, and the run's GPUs as last seen."""
    busyness = Busyness()
    for sample in written(path, MOST_BYTES):
        if isinstance(sample, GpuSample):
            busyness.take(sample)
    return busyness.fields(), busyness.latest

"""Builds status.json: everything that ``ls`` and ``status`` show, from the run's state, figures and facts.

Pure assembly: values in, one plain dict out. Who is alive is not written here; whoever reads looks for himself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from overnight import crosscheck
from overnight.events import Measure, Verdict
from overnight.folder import utc
from overnight.monitor import Monitor
from overnight.overall import whole
from overnight.resumption.point import told_by_steps
from overnight.spec import RunSpec, cost, cost_per_billion_tokens
from overnight.states import RunState, exit_code

FORMAT = 1
SHOWN_VERDICTS = 50
LOST = {"path", "step", "lost_steps", "lost_s", "lost_cost"}


class Used(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has used so far and how long it has been silent; ``active_s`` is None before its command began."""

    active_s: float | None
    elapsed_s: float
    resume_in_s: float | None = None
    silent_s: float | None = None
    phase: str | None = None
    last_lines: list[str] | None = None


class Saves(msgspec.Struct, frozen=True, kw_only=True):
    """The newest save to go on from, the newest ones that were seen, and where the attempt that goes on was begun."""

    checkpoint: dict[str, Any] | None = None
    saves: list[dict[str, Any]] = []
    resume: dict[str, Any] | None = None


def verdict_line(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as status shows it."""
    return {
        "rule": verdict.rule,
        "severity": verdict.severity,
        "step": verdict.step,
        "text": verdict.text,
        "action": verdict.action,
        "at": None if verdict.at is None else utc(verdict.at),
        "attempt": verdict.attempt,
        "evidence": verdict.evidence,
    }


def build(
    *,
    spec: RunSpec,
    monitor: Monitor,
    state: RunState,
    attempts: Sequence[dict[str, Any]],
    verdicts: Sequence[Verdict],
    created_at: float | None,
    now: float,
    used: Used,
    keepers: dict[str, Any],
    saves: Saves,
    notes: Sequence[str],
    hooks: dict[str, Any] | None,
    engine: str,
    sensed: dict[str, Any],
) -> dict[str, Any]:
    """Return the whole snapshot; ``now`` in seconds since the epoch, ``sensed`` what sensors tell."""
    measure = monitor.measure()
    figures = _figures(spec, monitor, measure)
    overall = _overall(spec, monitor, measure, used.elapsed_s, sensed=sensed, unknown=figures["unknown"])
    live = attempts[-1] if attempts else {}
    return {
        "format": FORMAT,
        "name": spec.name,
        "state": state.state,
        "cause": state.order.cause if state.order and not state.ended else state.cause,
        "cause_text": state.order.text if state.order and not state.ended else state.cause_text,
        "attempt": state.attempt or None,
        "pid": live.get("pid"),
        **figures,
        **sensed,
        **overall,
        "started_at": live.get("started_at"),
        "created_at": None if created_at is None else utc(created_at),
        "updated_at": utc(now),
        **_ending(state, now),
        **_usage(spec, state, used, measure, now),
        "log": spec.log,
        "argv": list(spec.argv),
        "cwd": spec.cwd,
        "verdicts": [verdict_line(verdict) for verdict in verdicts[-SHOWN_VERDICTS:]],
        "verdict_count": len(verdicts),
        "supervisor": {"pid": keepers.get("supervisor")},
        **_saves(saves, attempts, monitor),
        "attempts": list(attempts),
        "notes": list(notes),
        "engine": engine,
        "limits": limits(spec),
        "hooks": hooks,
    }


def _saves(saves: Saves, attempts: Sequence[dict[str, Any]], monitor: Monitor) -> dict[str, Any]:
    """Return what is known of saves, and how the attempt that goes on was begun: its steps tell what is lost."""
    found, one = msgspec.structs.asdict(saves), saves.resume
    if one is None or not one.keys() >= LOST:
        return found
    firsts = {each.get("n"): each.get("first_step") for each in attempts}
    first, meter = firsts.get(one.get("attempt")), monitor.meter
    began = firsts.get(1) if 1 in firsts else 1  # of many attempts the oldest are not there: none begins below 1
    told = told_by_steps(one, first, began, meter.interval, step_s=meter.mean_step_s, folds=meter.advance.folds)
    return {**found, "resume": {**one, **{name: told[name] for name in LOST}}}


def _ending(state: RunState, now: float) -> dict[str, Any]:
    how = state.exit
    return {
        "ended_at": utc(how.at if how is not None and how.at is not None else now) if state.ended else None,
        "exit_code": how.exit_code if how else None,
        "signal": how.signal if how else None,
        "code": exit_code(state.state, state.cause) if state.ended else None,
    }


def _usage(spec: RunSpec, state: RunState, used: Used, measure: Measure, now: float) -> dict[str, Any]:
    # Nothing is saved by a plan that comes to its end later than the machine is given back, so it is the whole that is
    # forecast: what was used, and what the steps that are left will take.
    whole_s = None if measure.eta_s is None or state.ended else used.elapsed_s + measure.eta_s
    resume_in_s = used.resume_in_s if state.state == "backoff" else None
    return {
        "active_s": used.active_s,
        "elapsed_s": round(used.elapsed_s, 3),
        "cost": cost(spec, used.elapsed_s),
        "cost_forecast": cost(spec, whole_s),
        "restarts_used": state.restarts,
        "rollbacks_used": state.rollbacks,
        "backoff_until": None if resume_in_s is None else utc(now + resume_in_s),
        "phase": used.phase,
        "silent_s": None if used.silent_s is None else round(used.silent_s, 1),
        "last_lines": used.last_lines,
    }


def limits(spec: RunSpec) -> dict[str, Any]:
    """Return the limits in force, as status shows them: None where there is none."""
    return {
        "max_hours": spec.max_hours,
        "until": None if spec.until is None else utc(spec.until),
        "max_steps": spec.max_steps,
        "max_cost": spec.max_cost,
        "price": spec.price,
        "restarts": spec.restarts,
        "stall_s": spec.stall_s,
        "start_limit_s": spec.start_limit_s,
        "exit_limit_s": spec.exit_limit_s,
    }


def _overall(
    spec: RunSpec,
    monitor: Monitor,
    measure: Measure,
    elapsed_s: float,
    *,
    sensed: dict[str, Any],
    unknown: dict[str, str],
) -> dict[str, Any]:
    """Return what the run has come to over all its time, and what cannot be; what is ``unknown`` is added there."""
    meter = monitor.meter
    done = whole(meter, elapsed_s)
    speed, flops, capacity = done.tokens_per_second, measure.flops_per_token, meter.capacity
    found = {
        "goodput": done.goodput,
        "tokens_per_second_wall": speed,
        "mfu_wall": None if speed is None or flops is None or capacity is None else speed * flops / capacity,
    }
    late = done.unknown or "more time is printed than has passed: the printed step times are wrong"
    for name, value in found.items():
        if value is None:
            unknown[name] = measure.unknown.get("mfu_avg", late) if name == "mfu_wall" else late
    return {
        **found,
        "disagreements": [*sensed.get("disagreements", ()), *crosscheck.disagreements(meter, monitor.hearing.stated)],
        "mfu_trouble": crosscheck.impossible(meter, measure, found["mfu_wall"]),
        "cost_per_billion_tokens": cost_per_billion_tokens(spec.price, speed),
    }


def _figures(spec: RunSpec, monitor: Monitor, measure: Measure) -> dict[str, Any]:
    figures = monitor.figures
    told = monitor.meter.pace.told
    leads = told is not None and told[1]
    tokens_source = None if leads else figures.tokens_source
    if leads or (tokens_source is None and measure.tokens_per_second is not None):
        tokens_source = "as the log prints them"
    return {
        "step": measure.step,
        "steps": spec.steps,
        "epoch": monitor.meter.epoch,
        "loss": measure.loss,
        "loss_avg": measure.loss_avg,
        "dt": measure.dt_s,
        "step_s": monitor.meter.mean_step_s,
        "tokens_per_second": measure.tokens_per_second,
        "tokens_per_second_avg": measure.tokens_per_second_avg,
        "tokens_per_second_clean": measure.tokens_per_second_clean,
        "useful_tokens_per_second": measure.useful_tokens_per_second,
        "tflops": measure.tflops,
        "mfu": measure.mfu,
        "mfu_avg": measure.mfu_avg,
        "mfu_clean": measure.mfu_clean,
        "mfu_attention": measure.mfu_attention,
        "mfu_attention_avg": measure.mfu_attention_avg,
        "hfu": measure.hfu,
        "flops_per_token": measure.flops_per_token,
        "flops_per_token_attention": measure.flops_per_token_attention,
        "peak_flops": figures.peak_flops,
        "peak_source": figures.peak_source,
        "convention": None if measure.flops_per_token is None else figures.convention,
        "convention_hfu": None if measure.hfu is None else figures.convention_hardware,
        "convention_attention": None if measure.flops_per_token_attention is None else figures.convention_attention,
        "params": spec.params,
        "params_source": figures.params_source,
        "params_active": None if spec.counts is None else spec.counts.active,
        "tokens_per_step": told[0] if told is not None and leads else spec.tokens_per_step,
        "tokens_source": tokens_source,
        "dtype": spec.dtype,
        "gpu": spec.gpu,
        "devices": spec.devices,
        "eta_s": measure.eta_s,
        "records": measure.records,
        "grad_norm_nonfinite": monitor.meter.grad_norm_nonfinite,
        "unknown": {{"dt_s": "dt"}.get(name, name): needs for name, needs in measure.unknown.items()},
        "reader": monitor.sniffer.chosen,
        "window": spec.window,
    }

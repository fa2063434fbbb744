"""Builds status.json: everything that ``ls`` and ``status`` show, from the run's state, figures and facts.

Pure assembly: values in, one plain dict out. Who is alive is not written here; whoever reads looks for himself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from overnight.events import Measure, Verdict
from overnight.folder import utc
from overnight.lifecycle import RunState, exit_code
from overnight.monitor import Monitor
from overnight.spec import RunSpec

FORMAT = 1
SHOWN_VERDICTS = 50


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
    active_s: float | None,
    keepers: dict[str, Any],
    checkpoint: dict[str, Any] | None,
    notes: Sequence[str],
) -> dict[str, Any]:
    """Return the whole snapshot; ``now`` in seconds since the epoch, ``active_s`` seconds the command has run."""
    measure = monitor.measure()
    how = state.exit
    live = attempts[-1] if attempts else {}
    return {
        "format": FORMAT,
        "name": spec.name,
        "state": state.state,
        "cause": state.cause if state.ended else (state.order.cause if state.order else None),
        "cause_text": state.cause_text if state.ended else (state.order.text if state.order else None),
        "attempt": state.attempt or None,
        "pid": live.get("pid"),
        **_figures(spec, monitor, measure),
        "started_at": live.get("started_at"),
        "created_at": None if created_at is None else utc(created_at),
        "updated_at": utc(now),
        "ended_at": utc(how.at if how is not None and how.at is not None else now) if state.ended else None,
        "active_s": active_s,
        "log": spec.log,
        "argv": list(spec.argv),
        "cwd": spec.cwd,
        "exit_code": how.exit_code if how else None,
        "signal": how.signal if how else None,
        "code": exit_code(state.state, state.cause) if state.ended else None,
        "verdicts": [verdict_line(verdict) for verdict in verdicts[-SHOWN_VERDICTS:]],
        "verdict_count": len(verdicts),
        "supervisor": {"pid": keepers.get("supervisor")},
        "checkpoint": checkpoint,
        "attempts": list(attempts),
        "notes": list(notes),
    }


def _figures(spec: RunSpec, monitor: Monitor, measure: Measure) -> dict[str, Any]:
    return {
        "step": measure.step,
        "steps": spec.steps,
        "loss": measure.loss,
        "loss_avg": measure.loss_avg,
        "dt": measure.dt_s,
        "tokens_per_second": measure.tokens_per_second,
        "tokens_per_second_avg": measure.tokens_per_second_avg,
        "tflops": measure.tflops,
        "mfu": measure.mfu,
        "mfu_avg": measure.mfu_avg,
        "mfu_attention": measure.mfu_attention,
        "mfu_attention_avg": measure.mfu_attention_avg,
        "flops_per_token": measure.flops_per_token,
        "flops_per_token_attention": measure.flops_per_token_attention,
        "peak_flops": monitor.figures.peak_flops,
        "peak_source": monitor.figures.peak_source,
        "convention": None if measure.flops_per_token is None else "6N",
        "params": spec.params,
        "params_source": monitor.figures.params_source,
        "devices": spec.devices,
        "eta_s": measure.eta_s,
        "records": measure.records,
        "unknown": {{"dt_s": "dt"}.get(name, name): needs for name, needs in measure.unknown.items()},
        "reader": monitor.sniffer.chosen,
        "window": spec.window,
    }

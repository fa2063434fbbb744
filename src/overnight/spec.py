"""What was asked of a run: one frozen value, written once into run.json and read by everybody after that.

Only fields and their defaults live here; where a value came from (flag, environment, file) is ``settings.py``'s work.
Unknown is None. Names carry their units.
"""

from __future__ import annotations

from math import inf
from typing import Literal

import msgspec

from overnight.modelsize import Counts

LANGUAGE_MODEL_MAX_LOSS = 20.0
"""ln(V) of a 200,000-word vocabulary is 12.2: a language model with a loss above 20 has left any sane start behind."""

HOUR_S = 3600.0

StopSignal = Literal["auto", "int", "term"]
NonfiniteSignal = Literal["auto", "int", "term", "kill"]


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decides how a run is placed, read, measured, judged and ended."""

    name: str
    argv: tuple[str, ...]
    executable: str
    cwd: str
    log: str
    engine: str = "local"
    watched: bool = False  # started by hand: nothing of it is ours, and it cannot be started again
    # how it is ended
    grace_s: float = 60.0
    grace_max_s: float = 1800.0
    stop_signal: StopSignal = "auto"
    nonfinite_signal: NonfiniteSignal = "auto"
    # how it is read
    pattern: str | None = None
    line_buffered: bool = False
    sensors: Literal["on", "off"] = "on"
    sensor_interval_s: float = 10.0
    # how it is measured; ``*_source`` says in words where a number comes from, None for its own flag
    window: int = 10
    steps: int | None = None
    params: int | None = None
    params_source: str | None = None
    active_params: int | None = None
    trainable_params: int | None = None
    counts: Counts | None = None  # all that is known of the model's size, where more than its parameters is
    config: str | None = None
    model: str | None = None
    tokens_per_step: float | None = None
    tokens_source: str | None = None
    batch: int | None = None
    accumulate: int | None = None
    world_size: int | None = None
    gpu: str | None = None
    dtype: str | None = None
    peak_tflops: float | None = None
    peak_source: str | None = None
    devices: int = 1
    layers: int | None = None
    seq_len: int | None = None
    width: int | None = None
    heads: int | None = None
    head_size: int | None = None
    convention: str = "6n"
    recompute: Literal["none", "selective", "full"] = "none"
    vocab_size: int | None = None
    # how it is judged: an action per rule where it differs from the rule's own default, and named parameters
    max_loss: float | None = None
    actions: dict[str, str] = {}
    checkpoints: str | None = None
    stall_s: float | None = None  # None: learned from the run
    start_limit_s: float | None = None  # None: alerted at half an hour, never ended
    exit_limit_s: float | None = None  # None: as a stall
    # how far it may go
    max_hours: float | None = None
    until: float | None = None  # seconds since the epoch
    max_steps: int | None = None
    max_cost: float | None = None
    price: float | None = None  # per hour, of the whole machine
    price_source: str | None = None
    price_table: str | None = None
    # how it is started again
    restarts: int = 0
    backoff_s: float = 2.0
    resume_args: tuple[str, ...] = ()
    recover: bool = False
    rollbacks: int = 2
    rollback_steps: int = 10
    strict: bool = False  # a start under changed settings is refused
    # who is told
    on_event: tuple[str, ...] = ()
    on_end: tuple[str, ...] = ()
    hook_timeout_s: float = 60.0
    on_end_guard: Literal["auto", "off"] = "auto"
    report: Literal["end", "never"] = "end"

    def comes_again(self) -> bool:
        """Say whether the command may be started a second time, so that what it was started in has to be kept."""
        return self.recover or bool(self.restarts) or "rollback" in self.actions.values()

    def loss_limit(self) -> float | None:
        """Return the loss above which a run diverges: asked for, or a language model's; None: no limit."""
        if self.max_loss is None and (self.vocab_size is not None or self.tokens_per_step is not None):
            return LANGUAGE_MODEL_MAX_LOSS
        return self.max_loss


def cost(spec: RunSpec, seconds: float | None) -> float | None:
    """Return what ``seconds`` of the machine cost, in the currency of the price; None without a price."""
    return None if spec.price is None or seconds is None else spec.price * seconds / HOUR_S


def cost_per_billion_tokens(price_per_hour: float | None, tokens_per_second: float | None) -> float | None:
    """Return what 1e9 tokens cost at this speed: price / 3600 / tokens per second * 1e9. None where either is unknown.

    Over all the time that is paid for the speed is that of the whole run, waiting included. At 2.49 an hour and 131,072
    tokens/s it is 5.277.
    """
    if price_per_hour is None or tokens_per_second is None or not 0 < tokens_per_second < inf:
        return None
    return price_per_hour / HOUR_S / tokens_per_second * 1e9

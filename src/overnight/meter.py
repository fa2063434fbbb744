"""Records -> measures: tokens per second, TFLOP/s, MFU, loss average and time to go.

A window of the last records for what is shown now, running sums for the whole run. No clock, no file, no process: the
only times here are those printed in the log and the arrivals that come with each record. A figure that cannot be known
is None, and ``Measure.unknown`` names what would make it known; no default stands in for it.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Final

import msgspec

from overnight.events import Measure, Record
from overnight.flops import six_n, six_n_attention
from overnight.pacing.advance import Advance, Gains, Moved
from overnight.pacing.arrivals import Arrivals
from overnight.pacing.pace import Pace
from overnight.pacing.useful import Useful
from overnight.yardsticks.basis import Figures
from overnight.yardsticks.needs import needs

if TYPE_CHECKING:
    from overnight.batches import Batch

__all__ = ["Figures", "Meter"]

# Lines behind the latest step: ranks that print out of turn are not so far apart.
_FAR: Final = 10
_MOST_BEGINS: Final = 16

# A number this long is no step; it would fit neither into a float division nor into 64 bits of a snapshot.
_STEP_LIMIT: Final = 2**53

_SCALARS: Final = (
    "records",
    "segment",
    "step",
    "loss",
    "highest_step",
    "first_step",
    "last_step",
    "_rank",
    "_previous_step",
    "_anchor_step",
    "_anchor_at",
    "_arrival_dt_s",
)
_LATER: Final = {"grad_norm_nonfinite": 0, "highest_epoch": None, "epoch": None, "_begins": ()}
"""Scalars too, with what they are in a snapshot of a version that did not know them."""


class Meter:
    """Measures one run over all its attempts; ``add`` costs the same for the first record and the ten-millionth.

    Measured are train records of the lowest rank seen in the attempt (no rank counts as rank 0) that are not glued: a
    number that touches its neighbour may be wrong by a factor. Evaluations and strange records change nothing.

    ``records`` counts them; ``step`` and ``loss`` are the latest printed; ``highest_step`` is of the whole run,
    ``first_step`` and ``last_step`` of this attempt. ``segment`` rises whenever the step falls: the program
    went back to an earlier point (or a new attempt began), the window is emptied and the sums go on; ``fell_from`` is
    the step and ``epoch`` before the last fall that this object has seen. ``epoch`` is this attempt's latest.
    ``grad_norm_nonfinite`` counts records whose gradient norm is NaN or infinite, ``highest_epoch`` is the highest
    printed; both are of the whole run.
    """

    __slots__ = (
        "_anchor_at",
        "_anchor_step",
        "_arrival_dt_s",
        "_attention",
        "_begins",
        "_capacity",
        "_flops",
        "_gains",
        "_previous_step",
        "_rank",
        "advance",
        "arrivals",
        "epoch",
        "fell_from",
        "figures",
        "first_step",
        "grad_norm_nonfinite",
        "highest_epoch",
        "highest_step",
        "last_step",
        "loss",
        "pace",
        "records",
        "segment",
        "step",
        "useful",
    )

    def __init__(self, figures: Figures, window: int = 10) -> None:
        """Measure with ``figures`` over the last ``window`` records; ValueError if a window or devices is below 1."""
        if window < 1 or figures.devices < 1:
            message = f"window and devices must be at least 1, not {window} and {figures.devices}"
            raise ValueError(message)
        self.change(figures)
        self.advance = Advance(figures.accumulate)
        self.arrivals = Arrivals()
        self.useful = Useful(window)
        self.pace = Pace(figures.tokens_per_step, figures.devices, window)
        self._gains = Gains()
        self.records = 0
        self.segment = 0
        self.step: int | None = None
        self.loss: float | None = None
        self.highest_step: int | None = None
        self.first_step: int | None = None
        self.last_step: int | None = None
        self._rank: int | None = None
        self._previous_step: int | None = None
        self._anchor_step = 0
        self._anchor_at = 0.0
        self._arrival_dt_s: float | None = None
        self.grad_norm_nonfinite = 0
        self.highest_epoch: float | None = None
        self.epoch: float | None = None
        self.fell_from: tuple[int, float | None] | None = None
        self._begins: list[int] = []  # the first steps of this attempt's segments; replaced, never changed

    def change(self, figures: Figures) -> None:
        """Measure by other figures from now on: the device was seen, the plan was changed."""
        flops, attention = figures.flops_per_token, figures.flops_attention
        self.figures = figures
        self._flops = six_n(figures.params) if flops is None else flops
        plain = six_n_attention(figures.params, figures.layers, figures.seq_len, figures.width)
        self._attention = attention if attention is not None or figures.attention_unknown else plain
        self._capacity = figures.devices * figures.peak_flops if figures.peak_flops else None

    def interrupt(self) -> None:
        """Something else than training was announced, evaluated or saved since the last record."""
        self.advance.interrupt()
        self.arrivals.part()

    def add(self, record: Record) -> None:
        """Take in one record. Every statement here and in ``pace`` runs once per log line of the night."""
        if record.kind != "train" or record.glued:
            if record.kind == "eval":
                self.interrupt()
            return
        rank = record.rank or 0
        if rank != self._rank and not self._adopt(rank):
            return
        arrived_s, moved = self._move(record)
        self.pace.take(record, record.step, arrived_s, moved)
        self.arrivals.take(record.dt_s, record.at, moved)
        if record.extra:
            given = self.figures.tokens_per_step
            self.useful.take(record.extra, record.tokens, None if given is None else given * moved.part)
        if record.loss is not None:
            self.loss = record.loss
        self.records += 1
        norm, epoch = record.grad_norm, record.epoch
        if norm is not None and not -inf < norm < inf:
            self.grad_norm_nonfinite += 1
        if epoch is not None and -inf < epoch < inf:
            self._reach(epoch)

    def _move(self, record: Record) -> tuple[float | None, Moved]:
        """Note the step of a record; return the seconds per step by arrival, and what it stands for."""
        step, previous = record.step, self._previous_step
        arrived_s = None
        if step is not None and -_STEP_LIMIT < step < _STEP_LIMIT:
            arrived_s = self._advance(step, record.at)
        else:
            step = None
        if step is not None and previous is not None and step < previous:
            previous = None
        moved = self.advance.take(step, previous, self.interval)
        if moved.gain and self.advance.opening is not None and not moved.redone:
            self.pace.open(self.advance.opened(moved.gain) or 1, self.advance.share)
        return arrived_s, moved

    def is_far_behind(self, record: Record) -> bool:
        """Say whether a training record has a step where this attempt was long ago, and where none may begin anew.

        A program that counts anew in each epoch falls to 0, 1 or the first step of an earlier segment.
        """
        step, last = record.step, self.last_step
        if step is None or last is None or record.kind != "train":
            return False
        return 1 < step < last - _FAR * self.interval and step not in self._begins

    def follows(self, rank: int | None, step: int) -> bool:
        """Say whether a record of this rank and step would go on the segment."""
        previous = self._previous_step
        goes_on = previous is not None and previous < step < _STEP_LIMIT and (rank or 0) == self._rank
        return goes_on and self.advance.follows(step)

    def add_many(self, batch: Batch) -> None:
        """Take in the records of ``batch``, with the very result of adding them one by one.

        The first one ``follows``, the steps rise, the losses are finite, no number is NaN.
        """
        steps, columns, before = batch.steps, batch.columns, self._previous_step or 0
        arrived_s = self._advance(steps[0], batch.at)
        self._gains.take_many(steps)
        last = steps[-1]
        self._previous_step = self.step = self.last_step = last
        self.highest_step = max(last, last if self.highest_step is None else self.highest_step)
        gains, unclean = self.advance.take_many(steps, before)
        if self.advance.opening is not None:
            self.pace.open(self.advance.opened(gains[0]) or 1)
        self.pace.take_many(batch, arrived_s, gains, unclean)
        self.arrivals.take_many(columns.get("dt_s"), batch.at, gains, unclean)
        if batch.extra:
            self.useful.take_many(batch.extra, columns.get("tokens"), self.figures.tokens_per_step)
        self.loss = batch.loss[-1]
        self.records += len(steps)
        norms = columns.get("grad_norm")
        if norms is not None and not (min(norms) > -inf and max(norms) < inf):
            self.grad_norm_nonfinite += sum(not -inf < norm < inf for norm in norms)
        for epoch in columns.get("epoch", ()):
            if -inf < epoch < inf:
                self._reach(epoch)

    def _reach(self, epoch: float) -> None:
        self.epoch = epoch
        if self.highest_epoch is None or epoch > self.highest_epoch:
            self.highest_epoch = epoch

    def _adopt(self, rank: int) -> bool:
        """Say whether ``rank`` is to be measured from now on: it is the first seen, or lower than all seen so far."""
        if self._rank is not None:
            if rank > self._rank:
                return False
            # Another rank repeats the same steps: that is no new segment, but times between the two mean nothing.
            self.pace.part()
            self._previous_step = None
        self._rank = rank
        return True

    def _advance(self, step: int, at: float) -> float | None:
        """Note the step that was reached; return the seconds per step since the one before, by arrival."""
        previous = self._previous_step
        if previous is not None and step > previous:
            self._gains.take(step - previous)
            # An arrival is the last time mark: many records share one, and only the next mark tells how fast they came.
            if at > self._anchor_at:
                self._arrival_dt_s = (at - self._anchor_at) / (step - self._anchor_step)
                self._anchor_step, self._anchor_at = step, at
        elif previous is None or step < previous:
            if previous is not None:
                self.fell_from = (previous, self.epoch)
                self.new_segment()
                anew = step <= 1 or step in self._begins
                if self.advance.fall(step, previous, anew=anew, interval=self.interval):
                    self.pace.take_back()
            self._anchor_step, self._anchor_at, self._arrival_dt_s = step, at, None
            if step not in self._begins:
                self._begins = [*self._begins[1 - _MOST_BEGINS :], step]
        arrived_s = self._arrival_dt_s
        self._previous_step = self.step = self.last_step = step
        if self.first_step is None:
            self.first_step = step
        if self.highest_step is None or step > self.highest_step:
            self.highest_step = step
        return arrived_s

    def new_segment(self) -> None:
        """Begin a stretch of rising steps: the window is emptied, run sums and the learned interval stay."""
        self.segment += 1
        self.pace.part()
        self.arrivals.part()
        self.useful.part()
        self._previous_step = None

    def begin_attempt(self) -> None:
        """Begin an attempt, and with it a segment; which ranks print is learned anew, for a restart may change it."""
        self.new_segment()
        self.first_step = None
        self.last_step = None
        self.epoch = None
        self._rank = None
        self._begins = []
        self.advance.begin_attempt()

    @property
    def interval(self) -> int:
        """Steps between two progress lines: the most common one of late (the smallest of several), 1 while unknown."""
        return self._gains.common()

    @property
    def prints_dt(self) -> bool:
        """Say whether the latest line had a step time."""
        return self.pace.prints_dt

    @property
    def step_s(self) -> float | None:
        """Seconds per step over the window; None while unknown."""
        dt_s = self.pace.rolling()[0]
        return None if dt_s is None else dt_s * (self.advance.share if self.prints_dt else 1)

    @property
    def mean_step_s(self) -> float | None:
        """Mean seconds per step over the whole run, each step once, without what was no stepping; None: unknown."""
        return self.pace.mean_s()

    def measure(self) -> Measure:
        """Return every figure as of the last record, with a word for each one that is unknown."""
        (_, speed, loss_avg), dt_s = self.pace.rolling(), self.step_s
        average, clean = self.pace.average(), self.pace.clean()
        flops, attention, capacity = self._flops, self._attention, self._capacity
        figures: dict[str, float | None] = {
            "step": self.step,
            "loss": self.loss,
            "loss_avg": loss_avg,
            "dt_s": dt_s,
            "tokens_per_second": speed,
            "tokens_per_second_avg": average,
            "tokens_per_second_clean": clean,
            "tflops": _product(flops, speed, self.figures.devices * 1e12),
            "mfu": _product(flops, speed, capacity),
            "mfu_avg": _product(flops, average, capacity),
            "mfu_clean": _product(flops, clean, capacity),
            "mfu_attention": _product(attention, speed, capacity),
            "mfu_attention_avg": _product(attention, average, capacity),
            "flops_per_token": flops,
            "flops_per_token_attention": attention,
            "eta_s": self._eta_s(dt_s),
        }
        unknown = {name: needs(name, figures, self) for name, value in figures.items() if value is None}
        useful = _product(self.useful.share(), speed, 1.0)
        return msgspec.structs.replace(
            Measure(records=self.records, unknown=unknown, useful_tokens_per_second=useful),
            hfu=_product(self.figures.flops_hardware, speed, capacity),
            **figures,
        )

    @property
    def speed(self) -> float | None:
        """Tokens per second over the window; None while unknown."""
        return self.pace.rolling()[1]

    def said_tokens_per_s(self) -> float | None:
        """Return tokens per second as the program itself prints them, over the window and all devices."""
        return self.pace.said()

    @property
    def pace_empty(self) -> bool:
        """Say whether the window holds nothing."""
        return self.pace.empty

    @property
    def capacity(self) -> float | None:
        """The dense peak of all devices together, in FLOP/s; None while unknown."""
        return self._capacity

    @property
    def eta_s(self) -> float | None:
        """Seconds to the planned end at the pace of the window; None while unknown."""
        return self._eta_s(self.step_s)

    def _eta_s(self, dt_s: float | None) -> float | None:
        if self.figures.steps is None or self.step is None:
            return None
        left = self.figures.steps - self.step
        if left <= 0:
            return 0.0
        return None if dt_s is None else left * dt_s

    def snapshot(self) -> dict[str, Any]:
        """Return all that was learned as builtins (msgpack or JSON with NaN); figures and window size are not in it."""
        state: dict[str, Any] = {name: getattr(self, name) for name in (*_SCALARS, *_LATER)}
        state.update(self.pace.snapshot())
        state["advance"] = self.advance.snapshot()
        state["arrivals"] = self.arrivals.snapshot()
        state["useful"] = self.useful.snapshot()
        state["gains"] = self._gains.snapshot()
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Go on exactly where ``snapshot`` was taken."""
        for name in _SCALARS:
            setattr(self, name, state[name])
        for name, unknown in _LATER.items():
            setattr(self, name, state.get(name, unknown))
        self._begins = list(self._begins)
        self.pace.restore(state)
        self.advance = Advance.restore(state.get("advance"), self.highest_step, self.figures.accumulate)
        self.arrivals = Arrivals.restore(state.get("arrivals"))
        self.useful.restore(state.get("useful"))
        self._gains = Gains(state["gains"])


def _product(flops: float | None, speed: float | None, capacity: float | None) -> float | None:
    """Return flops * speed / capacity, None if one of them is unknown."""
    if flops is None or speed is None or capacity is None:
        return None
    return flops * speed / capacity

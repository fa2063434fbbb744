"""How fast the steps follow each other and how many tokens they have: the window and the sums behind every rate.

Only times, tokens, rates and losses of records that count; which do, and what their steps say, is decided elsewhere. No
clock, no file, no process. Many records at once give bit by bit what they give one by one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import reduce
from itertools import repeat
from math import inf
from operator import add, mul
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from overnight.counting import Counting

if TYPE_CHECKING:
    from overnight.batches import Batch
    from overnight.events import Record

_SUMS: Final = ("prints_dt", "_sum_tokens", "_sum_dt_s", "_rates", "_sum_inverse_rates")


class _Said(NamedTuple):
    """What a record of a batch says, with the names of ``Record``."""

    loss: float | None
    dt_s: float | None
    tokens: float | None
    tokens_total: float | None
    tokens_per_s: float | None
    per_device: bool


class Pace:
    """Times and tokens of one run; ``prints_dt`` says whether the latest line had a step time.

    ``tokens_per_step`` is of one step over all ``devices``, by which rates of one device are multiplied.
    """

    __slots__ = (
        "_counting", "_devices", "_rates", "_sum_dt_s", "_sum_inverse_rates", "_sum_tokens", "_tokens_per_step",
        "_window", "prints_dt",
    )  # fmt: skip

    def __init__(self, tokens_per_step: float | None, devices: int, window: int) -> None:
        self._tokens_per_step = tokens_per_step
        self._devices = devices
        # (dt in seconds, tokens of a step with known dt, printed rate of a step with neither, finite loss)
        self._window: deque[tuple[float | None, float | None, float | None, float | None]] = deque(maxlen=window)
        self.prints_dt = False
        self._sum_tokens = 0.0
        self._sum_dt_s = 0.0
        self._rates = 0
        self._sum_inverse_rates = 0.0
        self._counting = Counting()

    def take(self, said: Record | _Said, step: int | None, arrived_s: float | None) -> None:
        """Take in what one record says; ``arrived_s`` is the time of its step by arrival."""
        loss, dt, tokens = said.loss, said.dt_s, self._tokens_per_step
        if loss is not None and not -inf < loss < inf:
            loss = None
        rate = None
        if dt is None or tokens is None or said.tokens is not None or not 0 < dt < inf:
            dt, tokens, rate = self._pace(said, step, arrived_s)
        else:  # nearly every line of a night, and no more than what _pace does
            self.prints_dt = True
            if self._counting.rows:
                self._counting.pause()
        if dt is not None and tokens is not None:
            self._sum_tokens += tokens
            self._sum_dt_s += dt
        self._window.append((dt, tokens, rate, loss))

    def take_many(self, batch: Batch, arrived_s: float | None) -> None:
        """Take in the records of ``batch``, whose losses are finite and which has no NaN."""
        if self._take_plain(batch, arrived_s):
            return
        columns = (batch.columns.get(name, repeat(None)) for name in _Said._fields[1:-1])
        rows = map(_Said, batch.loss, *columns, repeat(batch.per_device))
        for said, step in zip(rows, batch.steps, strict=False):
            self.take(said, step, arrived_s)

    def _take_plain(self, batch: Batch, arrived_s: float | None) -> bool:
        """Take in times, tokens and losses of most logs, whose columns are whole; say False for all others."""
        dts, rates = batch.columns.get("dt_s"), batch.columns.get("tokens_per_s")
        known = self._tokens_per_step
        if "tokens" in batch.columns or not (dts is None or (min(dts) > 0 and max(dts) < inf)):
            return False
        tokens: Iterable[float] | None = None
        kept = self._window.maxlen or 0
        count = len(batch.steps)
        if dts is None and arrived_s is not None and 0 < arrived_s < inf:
            times = [arrived_s] * count
        elif dts is not None:
            times = dts
        else:
            return False
        if known is not None:
            tokens = repeat(known, count)
            shown: Iterable[float | None] = repeat(known, kept)
        elif rates is not None and not batch.per_device and "tokens_total" not in batch.columns:
            if not (min(rates) > 0 and max(rates) < inf):
                return False
            tokens = made = list(map(mul, rates, times))
            shown = made[-kept:]
        elif rates is None and "tokens_total" not in batch.columns:
            shown = repeat(None, kept)
        else:
            return False
        self.prints_dt = dts is not None
        self._counting.pause()
        if tokens is not None:
            self._sum_tokens = reduce(add, tokens, self._sum_tokens)
            self._sum_dt_s = reduce(add, times, self._sum_dt_s)
        self._window.extend(zip(times[-kept:], shown, repeat(None), batch.loss[-kept:], strict=False))
        return True

    def _pace(
        self, said: Record | _Said, step: int | None, arrived_s: float | None
    ) -> tuple[float | None, float | None, float | None]:
        """Return (dt, tokens, rate): seconds and tokens of the step, or if neither can be known the printed rate.

        A printed dt leads, even where it is useless (0, NaN): then this record says nothing about time. Where none is
        printed the arrival stands in for it, and a printed rate gives whichever of the two is missing. Tokens of the
        step that are printed lead; then the given ones; then what a counter of all tokens has gained.
        """
        printed, tokens, rate = said.dt_s, said.tokens, said.tokens_per_s
        self.prints_dt = printed is not None
        dt = arrived_s if printed is None else printed
        useless = dt is None or not 0 < dt < inf
        if useless:
            dt = None
        if tokens is not None or said.tokens_total is not None:
            tokens = self._tokens(said, step, dt)
        else:
            tokens = self._tokens_per_step
            self._counting.pause()
        if useless and printed is not None:
            return None, None, None
        if rate is None or (dt is not None and tokens is not None) or not 0 < rate < inf:
            return dt, tokens if dt is not None else None, None
        if said.per_device:
            rate *= self._devices
        if dt is not None:
            return dt, rate * dt, None
        if tokens is not None:
            return (tokens / rate, tokens, None) if tokens > 0 else (None, None, rate)
        self._rates += 1
        self._sum_inverse_rates += 1 / rate
        return None, None, rate

    def _tokens(self, said: Record | _Said, step: int | None, dt: float | None) -> float | None:
        """Return the tokens of the step from what is printed of them and what was given; None if nobody can know."""
        counting, given = self._counting, self._tokens_per_step
        tokens, total = said.tokens, said.tokens_total
        if tokens is not None and 0 < tokens < inf:
            if counting.counts(step, tokens, dt, (self._sum_tokens, self._sum_dt_s)):
                self._recount()
                total = tokens if total is None else total
            elif counting.totals is not True:
                return tokens
            else:
                total = tokens if total is None else total
        else:
            counting.pause()
        if given is not None or total is None or step is None or not 0 <= total < inf:
            return given
        return counting.gained(step, total)

    def _recount(self) -> None:
        """What was taken for the tokens of single steps is a counter: put right what was summed of it."""
        counting, given = self._counting, self._tokens_per_step
        (self._sum_tokens, self._sum_dt_s), rows = counting.before, counting.rows[:-1]
        losses = [loss for _, _, _, loss in self._window][-len(rows) :]
        for _ in losses:
            self._window.pop()
        counting.part()
        for place, (step, total, dt) in enumerate(rows):
            tokens = given if given is not None else counting.gained(step, total)
            if dt is None or tokens is None:
                tokens = None
            else:
                self._sum_tokens += tokens
                self._sum_dt_s += dt
            if place >= len(rows) - len(losses):
                self._window.append((dt, tokens, None, losses[place - len(rows)]))

    def part(self) -> None:
        """The steps do not go on from here: the window is emptied, the sums stay."""
        self._window.clear()
        self._counting.part()

    @property
    def empty(self) -> bool:
        """Say whether nothing was taken in since the steps last went back or an attempt began."""
        return not self._window

    def rolling(self) -> tuple[float | None, float | None, float | None]:
        """Return (dt, tokens per second, loss average) of the window, summed afresh so that no error piles up."""
        times = [dt for dt, _, _, _ in self._window if dt is not None]
        losses = [loss for _, _, _, loss in self._window if loss is not None]
        both = [(dt, tokens) for dt, tokens, _, _ in self._window if dt is not None and tokens is not None]
        rates = [rate for _, _, rate, _ in self._window if rate is not None]
        speed = None
        if both:
            speed = sum(tokens for _, tokens in both) / sum(dt for dt, _ in both)
        elif rates:
            # Steps of equal size: tokens over time is the harmonic mean, not the mean of the rates.
            speed = len(rates) / sum(1 / rate for rate in rates)
        return _mean(times), speed, _mean(losses)

    def average(self) -> float | None:
        """Return tokens per second of the whole run: all tokens over all step times; None before the first."""
        if self._sum_dt_s > 0:
            return self._sum_tokens / self._sum_dt_s
        return self._rates / self._sum_inverse_rates if self._rates else None

    def snapshot(self) -> dict[str, Any]:
        """Return all of it as builtins."""
        state: dict[str, Any] = {name: getattr(self, name) for name in _SUMS}
        state["window"] = list(self._window)
        state["counting"] = self._counting.snapshot()
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Go on exactly where ``snapshot`` was taken; an older version knew nothing of counters."""
        for name in _SUMS:
            setattr(self, name, state[name])
        self._window.clear()
        self._window.extend((dt, tokens, rate, loss) for dt, tokens, rate, loss in state["window"])
        self._counting = Counting.restore(state.get("counting"))


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None

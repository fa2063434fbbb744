"""How fast the steps follow each other and how many tokens they have: the window and the sums behind every rate.

Only times, tokens, rates and losses of records that count; which do, and what their steps say, is decided elsewhere. No
clock, no file, no process. Many records at once give bit by bit what they give one by one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import repeat
from math import inf
from operator import mul
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from overnight.pacing.advance import Moved
from overnight.pacing.arrivals import LEAST_DT_S, MOST_DT_S
from overnight.pacing.attemptsums import USUAL
from overnight.pacing.counting import Counting
from overnight.pacing.done import Done
from overnight.pacing.sums import all_between, plus
from overnight.pacing.usual import ODD

if TYPE_CHECKING:
    from overnight.batches import Batch
    from overnight.events import Record

_SUMS: Final = ("prints_dt", "_sum_tokens", "_sum_dt_s", "_rates", "_sum_inverse_rates")
_LATER_SUMS: Final = ("_odd_tokens", "_odd_dt_s")
"""Sums that an older snapshot has not; 0 then: of steps that are not clean (``Moved``)."""

_WHOLE: Final = Moved(1, redone=False, clean=True, part=1.0)


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

    ``tokens_per_step`` is of one step over all ``devices``, by which rates of one device are multiplied. ``told``: the
    tokens of one step as the log itself told last, by its lines or a counter, and whether these are what counts.
    """

    __slots__ = (
        *_LATER_SUMS, "_counting", "_devices", "_done", "_mixed", "_part", "_rates", "_said", "_sum_dt_s",
        "_sum_inverse_rates", "_sum_tokens", "_tokens_per_step", "_window", "prints_dt", "told",
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
        self._odd_tokens = self._odd_dt_s = 0.0
        self._done = Done()  # by the steps that a line stands for; the sums behind the average take each line once
        self._said: deque[float] = deque(maxlen=window)  # rates as printed, over all devices
        self._mixed: float | None = None  # the pace of the latest arrival, where something else was done before it
        self._part = 1.0  # of a step, that the record now taken in is
        self.told: tuple[float, bool] | None = None

    def take(self, said: Record | _Said, step: int | None, arrived_s: float | None, moved: Moved = _WHOLE) -> None:
        """Take in what one record says; ``arrived_s`` is the time of its step by arrival."""
        loss, dt, tokens = said.loss, said.dt_s, self._tokens_per_step
        if moved.part != 1.0 and dt is not None and tokens is not None:
            tokens *= moved.part
        if loss is not None and not -inf < loss < inf:
            loss = None
        rate = None
        counts = said.tokens is not None or said.tokens_total is not None
        if dt is None or tokens is None or counts or not LEAST_DT_S < dt < MOST_DT_S:
            self._part = moved.part
            dt, tokens, rate = self._pace(said, step, arrived_s, tokens)
        else:  # nearly every line of a night, and no more than what _pace does
            self.prints_dt = True
            if self._counting.rows:
                self._counting.pause()
        other = self._is_other(dt, arrived_s, moved)
        if dt is not None and tokens is not None:
            self._sum_up(dt, tokens, clean=moved.clean and not (other and said.dt_s is None))
        if said.dt_s is None and arrived_s is not None and (moved.interrupted or arrived_s != self._mixed):
            self._mixed = arrived_s if moved.interrupted else None
        if said.tokens_per_s is not None:
            self._said.append(said.tokens_per_s * (self._devices if said.per_device else 1))
        printed = said.dt_s is not None
        if moved.gain and not moved.redone:
            self._done.add(None if other else dt, tokens, moved.gain, printed=printed)
        elif not moved.redone:
            self._done.hold(dt, tokens, again=moved.part != 1.0 and printed, printed=printed)
        self._done.note(dt)
        self._window.append((dt, tokens, rate, loss))

    def _sum_up(self, dt: float, tokens: float, *, clean: bool) -> None:
        self._sum_tokens += tokens
        self._sum_dt_s += dt
        if not clean:
            self._odd_tokens += tokens
            self._odd_dt_s += dt

    def _is_other(self, dt: float | None, arrived_s: float | None, moved: Moved) -> bool:
        """Say whether more than a step lies in ``dt``."""
        if dt is None:
            return False
        if self.prints_dt:
            return self._done.recent.is_odd(dt, USUAL if moved.interrupted else ODD)
        behind = arrived_s is not None and arrived_s == self._mixed and not moved.interrupted
        return behind or self._done.recent.is_odd(dt, USUAL)

    def open(self, steps: int, share: int = 1) -> None:
        """The run's first line is now known to have stood for ``steps`` steps, as one of ``share`` micro-steps."""
        self._done.open(steps, share, self._tokens_per_step)

    def take_back(self) -> None:
        """The latest line was of a step that was never made."""
        self._done.take_back()

    def take_many(self, batch: Batch, arrived_s: float | None, gains: Sequence[int], unclean: int) -> None:
        """Take in the records of ``batch``, whose losses are finite and which has no NaN.

        Each has ``gains`` steps that are new; the first ``unclean`` are not clean.
        """
        if self._take_plain(batch, arrived_s, gains, unclean):
            return
        columns = (batch.columns.get(name, repeat(None)) for name in _Said._fields[1:-1])
        rows = map(_Said, batch.loss, *columns, repeat(batch.per_device))
        for place, (said, step) in enumerate(zip(rows, batch.steps, strict=False)):
            self.take(said, step, arrived_s, Moved(gains[place], redone=False, clean=place >= unclean, part=1.0))

    def _take_plain(self, batch: Batch, arrived_s: float | None, gains: Sequence[int], unclean: int) -> bool:
        """Take in times, tokens and losses of most logs, whose columns are whole; say False for all others."""
        rates, known, totals = (
            batch.columns.get("tokens_per_s"),
            self._tokens_per_step,
            batch.columns.get("tokens_total"),
        )
        times = self._plain_times(batch, arrived_s)
        if times is None or "tokens" in batch.columns or not self._is_plain(totals, rates, per_device=batch.per_device):
            return False
        each: list[float] | None = None
        if known is not None:
            each = [known] * len(times)
        elif rates is not None:
            each = list(map(mul, rates, times))
        self.prints_dt = "dt_s" in batch.columns
        if not self.prints_dt:
            self._mixed = None
        self._counting.pause()
        if totals is not None:
            self._follow(batch.steps, totals)
        self._done.add_many(times, each, gains)
        if each is not None:
            self._sum_tokens = plus(self._sum_tokens, each)
            self._sum_dt_s = plus(self._sum_dt_s, times)
            self._odd_tokens = plus(self._odd_tokens, each[:unclean])
            self._odd_dt_s = plus(self._odd_dt_s, times[:unclean])
        kept = self._window.maxlen or 0
        if rates is not None:
            self._said.extend(rate * (self._devices if batch.per_device else 1) for rate in rates[-kept:])
        shown: Iterable[float | None] = repeat(None, kept) if each is None else each[-kept:]
        self._window.extend(zip(times[-kept:], shown, repeat(None), batch.loss[-kept:], strict=False))
        return True

    def _plain_times(self, batch: Batch, arrived_s: float | None) -> Sequence[float] | None:
        """Return the seconds of each record where all of them are known and nothing else lies in one; else None."""
        dts = batch.columns.get("dt_s")
        if dts is not None:
            known = all_between(dts, LEAST_DT_S, MOST_DT_S)
            return dts if known and self._done.recent.are_plain(dts) else None
        odd = arrived_s is None or not LEAST_DT_S < arrived_s < MOST_DT_S or arrived_s == self._mixed
        recent = self._done.recent
        if arrived_s is None or odd or recent.few or recent.is_odd(arrived_s, USUAL):
            return None
        return [arrived_s] * len(batch.steps)

    def _is_plain(self, totals: Sequence[float] | None, rates: Sequence[float] | None, *, per_device: bool) -> bool:
        """Say whether counts of tokens and printed rates are such that each record has its tokens without them."""
        if self._tokens_per_step is not None:
            return totals is None or (min(totals) >= 0 and max(totals) < inf)
        return totals is None and (rates is None or (not per_device and min(rates) > 0 and max(rates) < inf))

    def _follow(self, steps: Sequence[int], totals: Sequence[float]) -> None:
        """Take in what a counter says beside given tokens: no more than its last gain is ever asked for."""
        risen = (place for place in range(len(steps) - 1, 0, -1) if totals[place] > totals[place - 1])
        for place in range(next(risen, 1) - 1, len(steps)):
            self._gained(steps[place], totals[place], leads=False)

    def _gained(self, step: int, total: float, *, leads: bool) -> float | None:
        """Return the tokens of a step by a counter, and note them."""
        gained = self._counting.gained(step, total)
        if gained:
            self.told = (gained, leads)
        return gained

    def _pace(
        self, said: Record | _Said, step: int | None, arrived_s: float | None, given: float | None
    ) -> tuple[float | None, float | None, float | None]:
        """Return (dt, tokens, rate): seconds and tokens of the step, or if neither can be known the printed rate.

        ``given``: the tokens of the step by the settings. A printed dt leads, even where it is useless (0, NaN): then
        this record says nothing about time. Where none is printed the arrival stands in for it, and a printed rate
        gives whichever of the two is missing. Tokens of the step that are printed lead; then the given ones; then what
        a counter of all tokens has gained.
        """
        printed, tokens, rate = said.dt_s, said.tokens, said.tokens_per_s
        self.prints_dt = printed is not None
        dt = arrived_s if printed is None else printed
        useless = dt is None or not LEAST_DT_S < dt < MOST_DT_S
        if useless:
            dt = None
        if tokens is not None or said.tokens_total is not None:
            tokens = self._tokens(said, step, dt)
        else:
            tokens = given
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
                whole = tokens / self._part if self._part else tokens
                self.told = (whole, True)
                return whole if said.dt_s is None else tokens
            else:
                total = tokens if total is None else total
        else:
            counting.pause()
        if total is None or step is None or not 0 <= total < inf:
            return given
        gained = self._gained(step, total, leads=given is None)
        if given is not None or gained is None:
            return given
        return gained if said.dt_s is None else gained * self._part

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
        # Of what was summed elsewhere the tokens were wrong: these few lines are left out.
        self._odd_tokens, self._odd_dt_s = self._sum_tokens, self._sum_dt_s
        self._done.forget_tokens()

    def part(self) -> None:
        """The steps do not go on from here: the window is emptied, the sums stay."""
        self._window.clear()
        self._said.clear()
        self._counting.part()
        self._done.part()

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

    def clean(self) -> float | None:
        """Return tokens per second over clean steps alone; None before the first."""
        seconds = self._sum_dt_s - self._odd_dt_s
        return (self._sum_tokens - self._odd_tokens) / seconds if seconds > 0 else None

    def done(self) -> tuple[float, float, int, int]:
        """Return (seconds, tokens, steps with known time, steps with known tokens) of the run, each step once."""
        return self._done.sums()

    def mean_s(self) -> float | None:
        """Return the mean seconds of a step over the whole run, without what was no stepping; None: unknown."""
        seconds, _, timed, _ = self._done.sums()
        return seconds / timed if timed else None

    def said(self) -> float | None:
        """Return tokens per second as the program prints them, over the window and all devices; None: it does not."""
        rates = [rate for rate in self._said if 0 < rate < inf]
        return len(rates) / sum(1 / rate for rate in rates) if rates else None

    def snapshot(self) -> dict[str, Any]:
        """Return all of it as builtins."""
        state: dict[str, Any] = {name: getattr(self, name) for name in (*_SUMS, *_LATER_SUMS)}
        state["window"] = list(self._window)
        state["done"] = self._done.snapshot()
        state["said"] = list(self._said)
        state["mixed"] = self._mixed
        state["told"] = None if self.told is None else list(self.told)
        state["counting"] = self._counting.snapshot()
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Go on exactly where ``snapshot`` was taken; an older version knew nothing of counters."""
        for name in _SUMS:
            setattr(self, name, state[name])
        for name in _LATER_SUMS:
            setattr(self, name, state.get(name, 0))
        self._done = Done.restore(state.get("done"), state)
        self._said = deque(state.get("said", ()), maxlen=self._said.maxlen)
        self._mixed, told = state.get("mixed"), state.get("told")
        self.told = None if told is None else (told[0], told[1])
        self._window.clear()
        self._window.extend((dt, tokens, rate, loss) for dt, tokens, rate, loss in state["window"])
        self._counting = Counting.restore(state.get("counting"))


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None

"""What the records of a run tell about its pace, one after the other: jitter, evaluations, waits for data.

Pure: no clock, no file. Only figures that a log prints are used; steps right after a start, and those with an
evaluation before them, are told apart from the others. Memory does not grow with the log.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from math import inf

from overnight.events import Record
from overnight.meter import Meter
from overnight.pacing.arrivals import LEAST_DT_S, MOST_DT_S

FIRST_STEPS = 10
"""So many steps after a start compile, fill caches and allocate."""

MOST = 1 << 16
DATA = frozenset(
    "data data_time data_t data_s data_ms data_wait data_wait_s data_wait_ms data_loading data_loading_time "
    "dataloading_time dataloader_time dataloader data_load_time batch_time_data time/data time/data_loading "
    "time_metrics/data_loading(s) data_loading(s)".split()
)
DATA_SHARES = frozenset(
    "data_loading(%) time_metrics/data_loading(%) time/data_loading(%) data_loading_pct data_pct data_wait_pct "
    "data_wait(%) data(%)".split()
)
"""Keys by which programs print how long a step waited for data: seconds (or ms), and percent of the step."""


class Observed:
    """Takes records in the order of the log, of the lowest rank; each figure is None while nothing tells it."""

    def __init__(self) -> None:
        self.evaluations = 0
        self.left_out = 0
        self.clean = 0
        self._times = array("d")
        self._every = 1
        self._first: int | None = None
        self._step: int | None = None
        self._rank: int | None = None
        self._evaluated = False
        self._odd: list[float] = []
        self._sum_s = 0.0
        self._data_s = self._data_of_s = 0.0
        self._mfu = self._mfus = 0.0

    def begin_attempt(self) -> None:
        """The command starts anew: its first steps are slow again."""
        self._first = self._step = self._rank = None
        self._evaluated = False

    def take(self, record: Record) -> None:
        """Take in one record."""
        if record.early or record.glued:
            return
        if record.kind == "eval":
            self.evaluations += 1
            self._evaluated = True
            return
        rank = record.rank or 0
        if self._rank is None or rank < self._rank:
            self._rank = rank
        if rank != self._rank:
            return
        odd, self._evaluated = self._evaluated, False
        step = record.step
        if step is not None and (self._first is None or (self._step is not None and step < self._step)):
            self._first = step
        early = step is None or self._first is None or step - self._first < FIRST_STEPS
        gain = 1 if step is None or self._step is None or step <= self._step else step - self._step
        self._step = step
        self._pace(record, gain, odd=odd, early=early)
        self._keys(record, early=odd or early)

    def _pace(self, record: Record, gain: int, *, odd: bool, early: bool) -> None:
        dt_s = record.dt_s
        if dt_s is None or not LEAST_DT_S < dt_s < MOST_DT_S:
            self.left_out += 1
            return
        if odd:
            self.left_out += 1
            self._odd.append(dt_s)
            if len(self._odd) > MOST:
                self._odd = self._odd[::2]
        elif early:
            self.left_out += 1
            return
        else:
            self.clean += 1
            if self.clean % self._every == 0:
                self._times.append(dt_s)
                if len(self._times) > MOST:
                    self._times, self._every = self._times[1::2], self._every * 2
            self._sum_s += dt_s * gain

    def _keys(self, record: Record, *, early: bool) -> None:
        mfu, dt_s = record.mfu, record.dt_s
        if mfu is not None and 0 < mfu < inf and not early:
            self._mfu += mfu / 100
            self._mfus += 1
        if record.extra and not early:
            self._data({key.lower(): one for key, one in record.extra.items() if isinstance(one, (int, float))}, dt_s)

    def _data(self, said: Mapping[str, float], dt_s: float | None) -> None:
        for key, value in said.items():
            if key in DATA_SHARES and 0 <= value <= 100:
                self._data_s += value / 100
                self._data_of_s += 1.0
                return
            if key in DATA and dt_s is not None and LEAST_DT_S < dt_s < MOST_DT_S:
                seconds = value / 1000 if "ms" in key.split("_") else value
                if 0 <= seconds <= dt_s * 1.02:
                    self._data_s += seconds
                    self._data_of_s += dt_s
                return

    # -- what came out -------------------------------------------------------------------------------------------------

    def at(self, part: float) -> float | None:
        """Return the clean step time (seconds) that so large a part of the steps stays below."""
        if len(self._times) < FIRST_STEPS:
            return None
        ordered = sorted(self._times)
        return ordered[min(len(ordered) - 1, int(part * len(ordered)))]

    @property
    def evaluation(self) -> float | None:
        """The part of all printed step time by which steps with an evaluation before them were longer than usual.

        None where no evaluation was printed, or no time.
        """
        usual = self.at(0.5)
        if usual is None or not self._odd:
            return None
        beyond = sum(max(0.0, one - usual) for one in self._odd)
        return beyond / (self._sum_s + sum(self._odd))

    @property
    def data_wait(self) -> float | None:
        """The part of the step time that was waiting for data, as printed."""
        return self._data_s / self._data_of_s if self._data_of_s > 0 else None

    @property
    def mfu(self) -> float | None:
        """The mean MFU (a fraction) that clean lines print."""
        return self._mfu / self._mfus if self._mfus else None


def printed_tokens(meter: Meter) -> float | None:
    """Return the tokens of one step as the log prints them, where these lead over what was given; None otherwise.

    Of the latest steps on average: the last batch of an epoch may be a small one.
    """
    told, speed, step_s = meter.pace.told, meter.speed, meter.step_s
    if told is None or not told[1]:
        return None
    if speed is None or step_s is None or meter.advance.share > 1:
        return told[0]
    mean = speed * step_s
    return told[0] if abs(mean - told[0]) <= 1e-6 * told[0] else float(round(mean))

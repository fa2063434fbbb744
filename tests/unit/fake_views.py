"""A metrics.db in memory for tests of what reads one: records as dicts in, the views of ``history.views`` out.

Slow and plain on purpose, and written without a look at how the real one does it; no test is here.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from overnight.history.views import Chart, Column, Span, Stretch, Summary

FIELDS = "loss dt_s tokens tokens_total tokens_per_s samples_per_s mfu lr grad_norm epoch non_pad data_time".split()
NAN = math.nan


class FakeViews:
    """Views of records that are dicts: attempt, segment, step, at, offset, kind and the fields of a record."""

    def __init__(self, records: Sequence[dict[str, Any]]) -> None:
        self.records = [{"attempt": 1, "segment": 1, "kind": "train", "at": 0.0, "offset": 0, **one} for one in records]
        self.closed = False

    def close(self) -> None:
        self.closed = True

    def _train(self, kind: str = "train") -> list[dict[str, Any]]:
        return [one for one in self.records if one["kind"] == kind]

    def spans(self) -> list[Span]:
        found: list[Span] = []
        for key in dict.fromkeys((one["attempt"], one["segment"]) for one in self._train()):
            some = [one for one in self._train() if (one["attempt"], one["segment"]) == key]
            steps = [one["step"] for one in some if one.get("step") is not None]
            found.append(
                Span(
                    attempt=key[0],
                    segment=key[1],
                    records=len(some),
                    first_step=steps[0] if steps else None,
                    last_step=steps[-1] if steps else None,
                    first_offset=some[0]["offset"],
                    last_offset=some[-1]["offset"],
                )
            )
        for at, span in enumerate(found):
            later = [one.first_step for one in found[at + 1 :] if one.first_step is not None]
            found[at] = msgspec.structs.replace(span, limit=float(min(later)) if later else math.inf)
        return found

    def names(self, kind: str = "train") -> list[str]:
        return [name for name in FIELDS if any(one.get(name) is not None for one in self._train(kind))]

    def _counting(self, name: str, kind: str) -> list[tuple[float, float, int]]:
        limits = {(span.attempt, span.segment): span.limit for span in self.spans()}
        return [
            (float(one["step"]), float(one[name]), one["attempt"])
            for one in self._train(kind)
            if one.get(name) is not None and (kind == "eval" or one["step"] < limits[one["attempt"], one["segment"]])
        ]

    def summary(self, name: str, kind: str = "train") -> Summary:
        rows = [row for row in self._counting(name, kind) if math.isfinite(row[1])]
        if not rows:
            return Summary(0, None, None, None, None, None)
        least = min(rows, key=lambda row: row[1])
        return Summary(len(rows), rows[0][1], rows[-1][1], least[1], least[0], max(row[1] for row in rows))

    def stretches(self, names: Sequence[str], kind: str = "train", *, rank: int | None = None) -> Iterator[Stretch]:
        assert rank is None
        for span in self.spans():
            rows = [
                one for one in self._train(kind) if (one["attempt"], one["segment"]) == (span.attempt, span.segment)
            ]
            steps = _column([one.get("step") for one in rows])
            yield Stretch(
                span,
                steps.values,
                steps,
                array("d", [one["at"] for one in rows]),
                array("q", [one["offset"] for one in rows]),
                {name: _column([one.get(name) for one in rows]) for name in names},
                sum(one["step"] is None or one["step"] < span.limit for one in rows),
                any(one.get("per_device") for one in rows),
            )

    def chart(
        self, name: str, kind: str = "train", *, low: float | None = None, high: float | None = None, points: int = 2000
    ) -> Chart:
        rows = [row for row in self._counting(name, kind) if (low is None or row[0] >= low)]
        rows = [row for row in rows if high is None or row[0] <= high]
        finite = [row for row in rows if math.isfinite(row[1])]
        size = max(1, -(-len(finite) // points))
        parts = [finite[begin : begin + size] for begin in range(0, len(finite), size)]
        return Chart(
            [part[0][0] for part in parts],
            [min(row[1] for row in part) for part in parts],
            [max(row[1] for row in part) for part in parts],
            [part[0][2] for part in parts],
            [(row[0], row[1]) for row in rows if not math.isfinite(row[1])],
            size == 1,
        )


def _column(values: Sequence[Any]) -> Column:
    missing = bytes(value is None for value in values)
    return Column(
        array("d", [NAN if value is None else float(value) for value in values]), missing if any(missing) else None
    )

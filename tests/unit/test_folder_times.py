"""Tests of the times in a run folder: ``utc`` writes them, ``epoch_of`` reads them, whatever somebody has put there."""

from __future__ import annotations

import pytest

from overnight.folder import utc
from overnight.moments import epoch_of


@pytest.mark.parametrize("at", [0.0, 1.5, 1796000000.123, 253402300799.0])
def test_what_is_written_is_read(at: float) -> None:
    assert epoch_of(utc(at)) == pytest.approx(at, abs=1e-3)


@pytest.mark.parametrize(
    "text",
    [None, "", "soon", 5, 5.0, True, [], "2026-13-01T00:00:00Z", "9" * 5000, "nan"],
)
def test_anything_else_is_no_time(text: object) -> None:
    assert epoch_of(text) is None

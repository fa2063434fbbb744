"""When a run may not go on: what may be poisoned, what is missing, what cannot be told to its command."""

from __future__ import annotations

from typing import Any

import pytest

from overnight.resumption.choice import Choice, Kind, PassedOver
from overnight.resumption.stranding import Circumstances, stranded

GOOD = Choice(path="/c/100.pt", step=100)


def without(*kinds: Kind) -> Choice:
    return Choice(passed_over=tuple(PassedOver(path="/c/x", step=1, why="so it is", kind=kind) for kind in kinds))


def over(*kinds: Kind, maker: str | None = "torch") -> Choice:
    return Choice(path="/c/100.pt", step=100, maker=maker, passed_over=without(*kinds).passed_over)


@pytest.mark.parametrize(
    ("choice", "now", "words"),
    [
        (GOOD, {}, None),
        (over("damaged"), {}, None),
        (over("load_failure"), {}, None),
        (over("unhealthy"), {"steered": True}, None),
        (over("unhealthy", maker="overnight"), {}, None),
        (over("unhealthy"), {}, "{checkpoint}"),
        (over("nonfinite"), {}, "poisoned"),
        (over("too_late"), {}, "poisoned"),
        (Choice(), {}, None),
        (without("damaged", "unreadable"), {}, None),
        (without("damaged", "load_failure"), {}, "so it is"),
        (without("unhealthy"), {"steered": True}, "so it is"),
        (Choice(), {"back": {"before": 91}}, "of a step before 91"),
        (Choice(), {"back": {"before": None}}, "no healthy save to roll back to"),
        (Choice(), {"missing": "/mnt/disk"}, "mounted"),
        (GOOD, {"missing": "/mnt/disk"}, None),
    ],
)
def test_it_goes_on_or_says_why_not(choice: Choice, now: dict[str, Any], words: str | None) -> None:
    found = stranded(choice, Circumstances(**now))
    assert found is None if words is None else words in (found or "")

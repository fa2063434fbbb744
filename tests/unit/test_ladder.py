"""The stop ladder at the boundary of every rung, with made-up times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overnight.stops.ladder import GROWTH_S, NEXT, Ladder, Look, talked

BEGAN = 1000.0


def ladder(**facts: object) -> Ladder:
    """Return a ladder with a grace of 60 s and at most 300 s."""
    return Ladder(**{"began": BEGAN, "grace_s": 60.0, "grace_max_s": 300.0, **facts})


def after(seconds: float, **seen: object) -> Look:
    """Return what is seen so long after the first signal; times in ``seen`` count from the first signal too."""
    moved = {name: BEGAN + value if name.endswith("_at") else value for name, value in seen.items()}
    return Look(now=BEGAN + seconds, **moved)


def rung(found: Ladder | None) -> str | None:
    """Return the rung climbed to, None for none."""
    return None if found is None else found.rung


@pytest.mark.parametrize(("seconds", "expected"), [(0.0, None), (59.99, None), (60.0, "kill"), (61.0, "kill")])
def test_grace_ends_in_a_kill(seconds: float, expected: str | None) -> None:
    assert rung(ladder().climb(after(seconds))) == expected
    assert rung(ladder(rung="other").climb(after(seconds))) == expected


@pytest.mark.parametrize(
    ("seconds", "seen", "expected"),
    [
        (30.0, {"catches": True}, None),
        (29.99, {"catches": False}, None),
        (30.0, {"catches": False}, "other"),
        (30.0, {"catches": False, "log_grew_at": -0.01}, "other"),
        (30.0, {"catches": False, "log_grew_at": 0.0}, None),
        (45.0, {"catches": False, "log_grew_at": 2.0}, None),
        (45.0, {"catches": False, "file_grew_at": 2.0}, None),  # it saved, 33 s ago: it is not deaf
        (45.0, {"catches": False, "file_grew_at": -20.0}, "other"),
    ],
)
def test_other_signal_at_half_the_grace_for_the_deaf_and_silent(
    seconds: float, seen: dict[str, object], expected: str | None
) -> None:
    assert rung(ladder().climb(after(seconds, **seen))) == expected


def test_other_signal_is_sent_once() -> None:
    higher = ladder().climb(after(30.0, catches=False))
    assert higher is not None
    assert higher.climb(after(31.0, catches=False)) is None
    assert rung(higher.climb(after(60.0, catches=False))) == "kill"


@pytest.mark.parametrize(
    ("seconds", "grew", "expected"),
    [
        (60.0, 60.0 - GROWTH_S + 0.01, None),
        (60.0, 60.0 - GROWTH_S, "kill"),
        (299.0, 298.0, None),
        (299.0, 298.0 - GROWTH_S, "kill"),
        (300.0, 300.0, "kill"),  # grace_max: whatever grows
    ],
)
def test_a_growing_file_extends_the_grace_up_to_grace_max(seconds: float, grew: float, expected: str | None) -> None:
    assert rung(ladder().climb(after(seconds, file_grew_at=grew))) == expected


def test_only_files_extend_the_grace_not_the_log() -> None:
    assert rung(ladder().climb(after(60.0, log_grew_at=59.9))) == "kill"


def test_grace_max_below_grace_wins() -> None:
    short = ladder(grace_max_s=20.0)
    assert short.climb(after(19.9)) is None
    assert rung(short.climb(after(20.0))) == "kill"


def test_impatience_climbs_one_rung_each() -> None:
    once = ladder().urged()
    higher = once.climb(after(1.0))
    assert rung(higher) == "other"
    assert higher is not None
    assert higher.impatience == 0
    assert higher.climb(after(1.1)) is None  # one request, one rung
    assert rung(higher.urged().climb(after(2.0))) == "kill"


def test_two_requests_are_two_rungs() -> None:
    twice = ladder().urged().urged()
    first = twice.climb(after(1.0))
    assert rung(first) == "other"
    assert first is not None
    assert rung(first.climb(after(1.0))) == "kill"


def test_impatience_waits_for_a_growing_save_and_is_not_forgotten() -> None:
    urged = ladder().urged()
    assert urged.climb(after(5.0, file_grew_at=4.9)) is None
    assert urged.climb(after(14.8, file_grew_at=4.9)) is None
    assert rung(urged.climb(after(14.9, file_grew_at=4.9))) == "other"


def test_at_once_waits_for_nothing() -> None:
    assert rung(ladder().urged(at_once=True).climb(after(0.0, file_grew_at=0.0))) == "kill"
    assert rung(ladder(rung="other").urged(at_once=True).climb(after(0.0, file_grew_at=0.0))) == "kill"


def test_nothing_is_above_a_kill() -> None:
    assert NEXT["kill"] == "kill"
    top = ladder(rung="kill")
    assert top.climb(after(1000.0)) is None
    assert top.urged(at_once=True).climb(after(0.0)) is None
    assert top.urged().climb(after(0.0)) is None


def test_a_growth_that_is_as_old_as_the_ladder_is_not_a_save() -> None:
    assert after(0.0, file_grew_at=-GROWTH_S).saving() is False
    assert after(0.0, file_grew_at=-GROWTH_S + 0.1).saving() is True
    assert after(0.0).saving() is False


@given(
    grace_s=st.floats(0.1, 600.0),
    extra_s=st.floats(0.0, 600.0),
    deaf=st.booleans(),
    urges=st.lists(st.floats(0.0, 600.0), max_size=4),
    growing_until_s=st.floats(0.0, 2000.0),
)
def test_whoever_asks_when_told_to_sees_the_end_in_time(
    *, grace_s: float, extra_s: float, deaf: bool, urges: list[float], growing_until_s: float
) -> None:
    """Follow ``next_look_s``: the kill comes, never before the grace without impatience, never after grace_max."""
    now, stage = BEGAN, Ladder(began=BEGAN, grace_s=grace_s, grace_max_s=grace_s + extra_s)
    seen = ["asked"]
    left = sorted(urges)
    for _ in range(20_000):
        while left and now - BEGAN >= left[0]:
            left.pop(0)
            stage = stage.urged()
        grew = min(now, BEGAN + growing_until_s) if growing_until_s else None
        higher = stage.climb(Look(now=now, file_grew_at=grew, catches=not deaf))
        if higher is not None:
            stage = higher
            seen.append(higher.rung)
        if stage.rung == "kill":
            break
        wait = stage.next_look_s(now)
        assert 0.0 < wait <= 0.5
        now += wait
    assert seen in (["asked", "kill"], ["asked", "other", "kill"])
    assert now - BEGAN <= grace_s + extra_s + 0.6
    if not urges:
        assert now - BEGAN >= grace_s - 1e-6


def test_a_hang_that_always_talked_is_not_answering() -> None:
    seen = after(30.0, log_grew_at=5.0)
    assert rung(ladder(hangs=True).climb(seen)) is None
    assert rung(ladder(hangs=True, talks=True).climb(seen)) == "other"
    assert rung(ladder(hangs=True, talks=True).climb(after(30.0, file_grew_at=5.0))) is None


@pytest.mark.parametrize(
    ("ago_s", "limits", "expected"),
    [(3.0, (3.0, None), False), (2.0, (3.0, None), True), (59.0, (None,), True), (61.0, (None,), False)],
)
def test_talked(ago_s: float, limits: tuple[float | None, ...], expected: bool) -> None:
    assert talked(BEGAN - ago_s, BEGAN, limits) == expected

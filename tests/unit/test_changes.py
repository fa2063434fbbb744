"""What may be changed of a run that is going on."""

from __future__ import annotations

from typing import Any

import pytest

from overnight.options import CHANGEABLE
from overnight.requests.changes import FIELDS, applied, changed
from overnight.spec import RunSpec

SPEC = RunSpec(name="n", argv=("true",), executable="/bin/true", cwd="/", log="/l", max_hours=8.0)


def test_a_change_is_another_spec_and_leaves_the_rest() -> None:
    found = changed(SPEC, {"max_hours": 12.0, "stall_s": 600.0, "actions": {"spike": "note"}})
    assert (found.max_hours, found.stall_s, found.actions) == (12.0, 600.0, {"spike": "note"})
    assert changed(found, {"max_hours": None, "actions": {"stall": "alert"}}).actions == {
        "spike": "note",
        "stall": "alert",
    }
    assert SPEC.max_hours == 8.0


def test_every_changeable_setting_is_a_field_of_the_spec() -> None:
    assert set(RunSpec.__struct_fields__) >= FIELDS
    assert len(FIELDS) == len(CHANGEABLE) + 2  # what rules ask for, and where a price comes from


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"argv": ("rm",)}, "argv cannot be changed"),
        ({"max_hours": "twelve"}, "the change cannot be made"),
        ({"actions": {"nonfinite": "explode"}}, "are not rules with an action"),
        ({"actions": ["nonfinite"]}, "are not rules with an action"),
        ({"max_cost": 40.0}, "needs a price"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        changed(SPEC, values)


def test_changes_are_applied_in_their_order_and_nonsense_is_passed_over() -> None:
    changes = [{"max_hours": 9.0}, {"nonsense": 1}, {"max_hours": 10.0, "price": 2.0}, {"max_cost": 4.0}]
    found = applied(SPEC, changes)
    assert (found.max_hours, found.price, found.max_cost) == (10.0, 2.0, 4.0)

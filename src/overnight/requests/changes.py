"""What may be changed of a run that is going on, and the spec that comes of it.

A change is a fact of its own in the journal: run.json stays as it was written, and whoever reads the run later applies
the changes in their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from overnight.options import BY_NAME, CHANGEABLE, RULES, actions_of
from overnight.spec import RunSpec

MAY_BE_0 = frozenset({"restarts", "rollbacks", "rollback_steps"})
FIELDS = frozenset({*(BY_NAME[name].field for name in CHANGEABLE), "actions", "price_source"})


def changed(spec: RunSpec, values: Mapping[str, Any]) -> RunSpec:
    """Return ``spec`` with other values (RunSpec field -> value); ValueError, one sentence, for what cannot be."""
    strange = sorted(set(values) - FIELDS)
    if strange:
        raise ValueError(f"{', '.join(strange)} cannot be changed while the run goes on")
    actions = values.get("actions", {})
    known = isinstance(actions, dict) and all(rule in RULES and to in actions_of(rule) for rule, to in actions.items())
    if not known:
        raise ValueError(f"actions {actions!r} are not rules with an action each")
    if "price" in values and "price_source" not in values:
        values = {**values, "price_source": None}
    wanted = {**msgspec.structs.asdict(spec), **values, "actions": {**spec.actions, **actions}}
    try:
        found = msgspec.convert(wanted, RunSpec)
    except msgspec.ValidationError as error:
        raise ValueError(f"the change cannot be made: {error}") from error
    numbers = {name: value for name, value in values.items() if isinstance(value, (int, float))}
    wrong = [name for name, value in numbers.items() if not (value > 0 or (name in MAY_BE_0 and value == 0))]
    if wrong:
        raise ValueError(f"{', '.join(wrong)} must be above zero")
    if found.max_cost is not None and found.price is None:
        raise ValueError("a limit on the cost needs a price: add --price, such as --price 2.49/h")
    if found.grace_s > found.grace_max_s:
        raise ValueError(f"grace ({found.grace_s:g} s) would be longer than grace-max ({found.grace_max_s:g} s)")
    if found.watched and found.comes_again():
        raise ValueError("what was started by hand cannot be started again: no restarts, no rollbacks")
    return found


def applied(spec: RunSpec, changes: Iterable[Mapping[str, Any]]) -> RunSpec:
    """Return ``spec`` after all changes; one that was edited into nonsense is passed over."""
    for values in changes:
        try:
            spec = changed(spec, values)
        except ValueError:
            continue
    return spec

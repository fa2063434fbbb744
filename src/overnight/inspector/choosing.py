"""Which checkpoint to resume from, and which run a folder belongs to.

Pure: findings in, findings or words out. Never by the time of a file and never by how a name sorts: by the step that
lies in a checkpoint, and for Overnight's own by the order that their manifests give. A name is asked last, and where
it decided that is said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from overnight.checkpoint import manifest as manifests
from overnight.inspector import naming
from overnight.inspector.findings import Found
from overnight.inspector.joining import NO_CHECKPOINT, NO_OPTIMIZER, ONLY_OPTIMIZER

OWN, INSIDE, BY_NAME, NOWHERE = 3, 2, 1, 0
"""Where it is said how far the training had come: by a manifest of ours, in the content, by the name, or not at all."""

NO_RESUME = (ONLY_OPTIMIZER, NO_CHECKPOINT)
"""Notes on what is a part of a checkpoint, or none."""

Rank = tuple[int, ...]
Series = tuple[str, int, str]
BY_EPOCH = "steps begin anew with each epoch here: the epoch counts first"


def name_of(found: Found) -> str:
    """Return the last part of a checkpoint's path."""
    return found.path.rpartition("/")[2]


def usable(found: Found) -> bool:
    """Say whether a training may resume from it: all there, nothing known against it, and more than an optimizer."""
    part = any(note in NO_RESUME for note in found.notes)
    return found.complete is True and not part and False not in (found.intact, found.finite, found.healthy)


def run_of(found: Sequence[Found], signed: str | None = None) -> str | None:
    """Return the run that a folder belongs to, None if none of Overnight's does.

    It is the one that the folder's lock was ``signed`` for, where it is there; else the one that was begun last.
    """
    known = [one for one in found if one.maker == "overnight" and isinstance(one.values.get("run"), str)]
    newest = max(known, key=lambda one: (one.values["run"] == signed, _begun(one)), default=None)
    return None if newest is None else str(newest.values["run"])


def _begun(found: Found) -> tuple[int, str, float]:
    number, saved = found.values.get("number"), found.values.get("saved")
    return number if isinstance(number, int) else 0, saved if isinstance(saved, str) else "", found.saved_at or 0.0


def with_owner(found: Sequence[Found], signed: str | None = None) -> list[Found]:
    """Return the same findings, each with ``own`` said where the folder belongs to a run of Overnight's."""
    run = run_of(found, signed)
    if run is None:
        return list(found)
    mine = [one for one in found if one.order is not None and _owned(one, run)]
    latest = max(mine, key=lambda one: one.order or (0, 0), default=None)
    return [replace(one, own=_owned(one, run), led=_led(one, latest)) for one in found]


def _led(found: Found, latest: Found | None) -> bool:
    """Say whether a run's checkpoint lies on the way to its latest one; see ``checkpoint.manifest.Manifest.led_to``."""
    if latest is None or latest.order is None or found.order is None:
        return True
    return manifests.leads(found.order, latest.order, latest.values.get("ancestors") or ())


def _owned(found: Found, run: str) -> bool | None:
    if found.maker == "overnight" and "run" not in found.values:
        return None  # its manifest cannot be read
    return found.maker == "overnight" and found.values["run"] == run


# -- the order -------------------------------------------------------------------------------------------------------


def source(found: Found) -> int:
    """Return where it is said how far the training had come."""
    if found.order is not None:
        return OWN
    if found.step is not None:
        return INSIDE
    return BY_NAME if naming.read(name_of(found)).sure else NOWHERE


def series(found: Found) -> Series:
    """Return what those saved by one line of one program share: maker, where the step is said, the form of the name."""
    return found.maker, source(found), naming.form(name_of(found))


def epoch_of(found: Found) -> float | None:
    """Return the epoch that lies in a checkpoint, or that its name says."""
    inside = found.values.get("epoch")
    if isinstance(inside, (int, float)) and not isinstance(inside, bool) and abs(inside) < 2**53:
        return inside
    return naming.read(name_of(found)).epoch


def step_of(found: Found) -> int | None:
    """Return the step that lies in a checkpoint, or that its name says."""
    return found.step if found.step is not None else naming.read(name_of(found)).number


def disagree(several: Sequence[Found]) -> bool:
    """Say whether, in one series, a later epoch has a smaller step: steps may begin anew with each epoch."""
    known = [(epoch, step) for one in several if None not in (epoch := epoch_of(one), step := step_of(one))]
    known.sort(key=lambda pair: (pair[0] or 0, pair[1] or 0))
    return any((after[1] or 0) < (before[1] or 0) for before, after in pairwise(known))


class _Order:
    """The order of what lies in one folder: each is ranked with a view to its neighbours."""

    def __init__(self, found: Sequence[Found]) -> None:
        groups: dict[Series, list[Found]] = {}
        for one in found:
            if usable(one) and source(one) in (INSIDE, BY_NAME):
                groups.setdefault(series(one), []).append(one)
        self.by_epoch: dict[Series, list[Found]] = {key: some for key, some in groups.items() if disagree(some)}
        self._highest = {key: max(step_of(one) or 0 for one in some) for key, some in self.by_epoch.items()}
        self._counted = {
            key for key, some in self.by_epoch.items() if all(one.values.get("counted") is not None for one in some)
        }

    def rank(self, found: Found) -> Rank:
        """Return what checkpoints are ordered by, the last one being the newest.

        Where no step lies inside, the name has to do, which counts less than any step that does. What is not as its
        neighbours are comes after those that are whole. Of two with the same step the one with an optimizer's state
        is preferred.
        """
        whole = 0 if NO_OPTIMIZER in found.notes else 1
        fit = int(found.problem is None)
        where = source(found)
        if where == OWN:
            return (OWN, int(found.led), *(found.order or (0, 0)))
        step = step_of(found)
        if step is None:
            return (where, fit, -1, 0, 0, whole)
        sure = 0 if where == INSIDE else naming.read(name_of(found)).sure
        key = series(found)
        if key in self._counted and isinstance(counted := found.values.get("counted"), int):
            return (where, fit, sure, counted, 0, whole)
        if key in self.by_epoch:
            return (where, fit, sure, self._highest[key], int(1000 * (epoch_of(found) or 0)), step, whole)
        return (where, fit, sure, step, 0, whole)


def newest_first(found: Sequence[Found]) -> list[Found]:
    """Return all, those of the folder's own run first, each group from the newest to the oldest."""
    order = _Order(found)
    return sorted(found, key=lambda one: (one.own is True, order.rank(one), _tie(one)), reverse=True)


def _tie(found: Found) -> tuple[int, str]:
    return (-len(found.path), found.path)  # only to come to the same answer every time


def candidates(found: Sequence[Found]) -> list[Found]:
    """Return what may be resumed from, newest first: of the own run where the folder has one, and of nothing else.

    Of several that tell nothing about their step, neither inside nor by their names, none can be called the newest.
    """
    good = [one for one in newest_first(found) if usable(one)]
    if run_of(found) is not None:
        return [one for one in good if one.own is True]
    inside = [one for one in good if source(one) >= INSIDE]
    named = _named([one for one in good if source(one) == BY_NAME])
    return [*inside, *named] or (good if len(good) == 1 else [])


def _named(good: Sequence[Found]) -> list[Found]:
    """Return those whose names say which is the newest: of lone numbers only those of the folder's main series."""
    sure = [one for one in good if naming.read(name_of(one)).sure > 1]
    if sure or not good:
        return sure
    counts = Counter(series(one) for one in good)
    most = max(counts.values())
    main = [one for one in good if counts[series(one)] == most]
    tops = {key: max(step_of(one) or 0 for one in main if series(one) == key) for key in map(series, main)}
    return main if len(set(tops.values())) == 1 else []


def newest(found: Sequence[Found]) -> Found | None:
    """Return the one to resume from; None if nothing healthy is there."""
    return next(iter(candidates(found)), None)


def about(found: Sequence[Found]) -> list[str]:
    """Return what is to be said of the choice: that a name made it, that epochs counted, that others belong to it."""
    top = newest(found)
    if top is None or top.order is not None:
        return []
    name, notes = name_of(top), []
    if source(top) == BY_NAME:
        notes.append(f"{name} was chosen for its name alone: no step lies in it")
    elif source(top) == NOWHERE:
        notes.append(f"{name} is the only good one: no step lies in it, and its name says none")
    if series(top) in _Order(found).by_epoch:
        notes.append(f"{BY_EPOCH} ({name})")
    others = [name_of(one) for one in found if one is not top and _partner(one, top)]
    if others:
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        notes.append(f"{', '.join(others[:3])}{more} may belong to {name}: the step is the same")
    return notes


def _partner(one: Found, top: Found) -> bool:
    same = step_of(top) is not None and step_of(one) == step_of(top) and one.complete is True
    return same and naming.stands_out(name_of(one)) in (None, "ema")


# -- the best --------------------------------------------------------------------------------------------------------


def best_of(found: Found) -> list[str]:
    """Return the names of the files that a checkpoint calls its best or its last one: of Lightning and of Trainer."""
    called = found.values.get("best")
    names = [one for one in called if isinstance(one, str)] if isinstance(called, tuple) else []
    value = found.values.get("best_model_checkpoint")
    if isinstance(value, str) and value:
        names.append(value.rstrip("/").rpartition("/")[2])
    return names


def kind(found: Found) -> tuple[str, object, str]:
    """Return what a prune counts together: the maker, the run where ours says one, and the form of the name."""
    if found.maker == "overnight":
        return found.maker, found.values.get("run"), ""
    return found.maker, None, naming.form(name_of(found))

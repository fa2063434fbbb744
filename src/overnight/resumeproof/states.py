"""Two checkpoints of one step, compared bit for bit: of which parts are they made, and which of these differ.

Reads through ``inspector`` and so without unpickling; neither torch nor numpy enters. What a difference means is said
by ``diagnosis``; which checkpoints are compared, by whoever ran the training.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path

import xxhash

from overnight.errors import FolderError
from overnight.inspector import contents, naming, walk
from overnight.inspector.contents import Leaf
from overnight.inspector.findings import Budget, Damage
from overnight.resumeproof.recognising import Groups
from overnight.resumeproof.vocabulary import held_by, words
from overnight.resumeproof.words import PartDifference, StateComparison

MOST_NAMES = 200_000
"""Values that are kept apart by name; of those beyond, each part keeps one digest of all."""
MOST_KEYS = 500
_DEEP = 5  # levels of a name within which the parts of a checkpoint are told apart
SHOWN = 8  # names of a part that are told
MANY = 16  # numbers that say more than counts do: an order, the state of a generator
BEYOND = "(all others)"
_LEVELS = 2

_NO_RESULT = re.compile(
    r"(saved|created|started|written|updated)_?(at|on)?|(.*_)?(time|times|timestamp|timestamps|date|datetime|elapsed|"
    r"duration|runtime|seconds|secs|walltime)|.*(time|elapsed|duration|took|trained|wait|stood)_(s|sec|secs|ms|ns)|"
    r"(.*_)?(path|paths|dir|folder|file|filename|hostname|host|pid|pids|uuid|run_id|user|cwd|argv|cmd|command)|"
    r"(.*_)?versions?|git_.*|commit|.*_per_(s|sec|second)|throughput|tokens_per_.*|mfu"
)
"""Last words of a name under which lies when, where, by whom or how fast, and no result of the training."""
_NOT_BELOW = re.compile(r"(.*_)?(versions|environment|environ|timings|timers)|time|times")
"""Names below which nothing is a result."""
_BUFFERS = frozenset(("running_mean", "running_var", "num_batches_tracked", "running_std", "n_averaged", "buffers"))
_WEIGHTS = frozenset(("weight", "bias", "kernel", "embedding", "gamma", "beta", "scale"))
_PARTS = {"data": "loader"}


def keys(path: Path) -> tuple[str, ...]:
    """Return the names of what lies in a checkpoint, dotted, the first two levels; at most 500.

    What is an optimizer, a scheduler or the like by what lies in it, and not by its name, has that word in front. Of
    the numbers nothing is read. FolderError if it cannot be read.
    """
    groups, names, fronts = Groups(), dict[str, str](), set[str]()
    try:
        for leaf in contents.leaves(path):
            groups.note(leaf.name, leaf.plain, dtype=leaf.dtype, shape=leaf.shape)
            levels = leaf.name.split(".")
            fronts.add(".".join(levels[:_LEVELS]))
            names.setdefault(".".join(levels[:_DEEP]), leaf.name)
            if len(fronts) >= MOST_KEYS:
                break
    except Damage as damage:
        raise FolderError(f"{path} cannot be looked into: {damage.clause}") from None
    found: dict[str, None] = {}
    for name in names.values():
        front, part = ".".join(name.split(".")[:_LEVELS]), groups.of(name)
        known = part is None or part == held_by(front) or (part == "rng" and held_by(front) == "data")
        found.setdefault(front if known else f"{part}.{front.partition('.')[0]}")
    return tuple(found)


def compare(reference: Path, other: Path, second: Path | None) -> StateComparison:
    """Compare the checkpoint of a resumed run, ``other``, with that of an unbroken one, every tensor and plain value.

    What differs between ``reference`` and ``second``, the same step of another unbroken run, is no fault of the resume
    and is left out, as are times, paths and versions. Values are equal if dtype, shape and every bit are. Each byte of
    the two or three is read once. FolderError if one cannot be read.
    """
    known, found = _read(reference), _read(other)
    noise = _unlike(known.values, _read(second).values) if second is not None else set()
    noise |= known.aside | found.aside
    compared = (known.values.keys() | found.values.keys()) - noise
    parts = _by_part(compared, known, found)
    apart = _by_part(_unlike(known.values, found.values) - noise, known, found)
    differences = tuple(
        PartDifference(
            part=part, names=_shown(names, known.values, found.values), count=len(names), of=len(parts[part])
        )
        for part, names in sorted(apart.items())
    )
    return StateComparison(
        step=_step(reference),
        equal=not differences,
        differences=differences,
        compared=len(compared),
        equal_parts=tuple(
            part for part, names in sorted(parts.items()) if part not in apart and _tells(part, names, known.rich)
        ),
        left_out=_left_out(_by_part(noise, known, found)),
    )


class _Values:
    """The digests of a checkpoint's values by name, their parts, and the names of what is no result."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.aside: set[str] = set()
        self.rich: set[str] = set()
        self.parts: dict[str, str] = {}
        self._groups = Groups()
        self._seen: dict[str, str] = {}

    def take(self, leaf: Leaf) -> None:
        name, part = leaf.name, self._part(leaf)
        digest = leaf.digest()
        if name not in self.values and len(self.values) >= MOST_NAMES:
            name = f"{part}.{BEYOND}"
            digest = xxhash.xxh3_128_digest(leaf.name.encode(errors="surrogatepass") + digest)
        if name in self.values:  # two values under one name, or all that came too late to have one
            digest = xxhash.xxh3_128_digest(self.values[name] + digest)
        self.values[name] = digest
        self.parts[name] = part
        self._groups.note(leaf.name, leaf.plain, dtype=leaf.dtype, shape=leaf.shape)
        if leaf.plain is None:  # a tensor, or many numbers in a row
            self.rich.add(name)
        if _no_result(leaf):
            self.aside.add(name)

    def settle(self) -> None:
        """Name the parts by what lies in them, where that says more than their names; once all is taken."""
        for name, part in self.parts.items():
            found = self._groups.of(name)
            if found is not None and not (found == "rng" and part == _PARTS["data"]):  # a sampler has generators, too
                self.parts[name] = found

    def _part(self, leaf: Leaf) -> str:
        part = part_of(leaf.name, tensor=leaf.tensor)
        return self._seen.setdefault(part, part)  # one object for each


def _read(path: Path) -> _Values:
    found = _Values()
    try:
        for leaf in contents.leaves(path):
            found.take(leaf)
    except Damage as damage:
        raise FolderError(f"{path} cannot be compared: {damage.clause}") from None
    found.settle()
    return found


def part_of(name: str, *, tensor: bool = False) -> str:
    """Return what a value belongs to, as people call it, else the first level of its name.

    model, buffers, optimizer, scheduler, scaler, ema, rng, loader.
    """
    levels = name.split(".")
    front = ".".join(levels[:_LEVELS])
    if "scaler" in words(levels[0]) or "scaler" in words(".".join(levels[1:2])):
        return "scaler"
    held = held_by(front)
    if held is None and tensor and _WEIGHTS & {levels[-1]}:
        held = "model"
    if held in (None, "model") and tensor and levels[-1] in _BUFFERS:
        return "buffers"
    return levels[0] if held is None else _PARTS.get(held, held)


def _no_result(leaf: Leaf) -> bool:
    if leaf.tensor:
        return False
    levels = leaf.name.lower().split(".")
    if _NO_RESULT.fullmatch(levels[-1]) or any(_NOT_BELOW.fullmatch(one) for one in levels[:-1]):
        return True
    return isinstance(leaf.plain, str) and leaf.plain.startswith("/")


def _tells(part: str, names: Collection[str], rich: Collection[str]) -> bool:
    """Say whether a part is more than counts; of data an order tells only together with the place in it."""
    much = sum(name in rich for name in names)
    if part == _PARTS["data"]:
        return len(names) >= MANY or 0 < much < len(names)
    return len(names) >= MANY or much > 0


def _unlike(one: Mapping[str, bytes], two: Mapping[str, bytes]) -> set[str]:
    return {name for name in one.keys() | two.keys() if one.get(name) != two.get(name)}


def _by_part(names: Collection[str], one: _Values, two: _Values) -> dict[str, list[str]]:
    found = defaultdict(list)
    for name in sorted(names):
        found[one.parts.get(name) or two.parts.get(name) or part_of(name)].append(name)
    return found


def _shown(names: list[str], one: Mapping[str, bytes], two: Mapping[str, bytes]) -> tuple[str, ...]:
    """Some of the names that differ, one of each kind first; those that only one of the two has say so."""
    few = _kinds([name for name in names if name in one and name in two])
    lacking = [f"{name} (missing)" for name in _kinds([name for name in names if name not in two])]
    more = [f"{name} (only in the resumed run)" for name in _kinds([name for name in names if name not in one])]
    return tuple([*lacking, *few, *more][:SHOWN])


def _kinds(names: list[str]) -> list[str]:
    """Return so many names as are shown, in order: of each last word the first one, then what comes first."""
    first = {name.rpartition(".")[2]: name for name in reversed(names)}
    chosen = dict.fromkeys([*sorted(first.values())[:SHOWN], *names[:SHOWN]])
    return sorted(list(chosen)[:SHOWN])


def _left_out(parts: Mapping[str, list[str]]) -> tuple[str, ...]:
    found: list[str] = []
    for part, names in sorted(parts.items()):
        found += names if len(names) <= SHOWN else [*names[: SHOWN - 1], f"{len(names) - SHOWN + 1:,} more of {part}"]
    return tuple(found)


def _step(path: Path) -> int:
    """The step of a checkpoint: what its content says, else the number in its name; -1 if nothing says it."""
    found = walk.look(path, Budget(0))
    step = None if found is None else found.step
    if step is None:
        step = naming.read(path.name).number
    return -1 if step is None else step

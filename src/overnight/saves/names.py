"""What the name of a file or folder says of a checkpoint: that it is one, which step or epoch it is of. Pure."""

from __future__ import annotations

import os
import re

from overnight.inspector import naming

FILE = re.compile(
    r"\.(pt|pth|ckpt|bin|safetensors|npz|npy|pkl|pickle|h5|hdf5|keras|msgpack|distcp|orbax|params|weights|index|model|tar|zip|th|t7|pdparams"
    r"|pdopt|joblib)(\.|$)|ckpt|checkpoint|^snapshot",
    re.IGNORECASE,
)
PLACE = re.compile(r"ckpt|checkpoint|^step|^epoch|^iter|global_step", re.IGNORECASE)
BESIDE = re.compile(r"^LOCK$|\.(lock|pid|log|out|err|csv|tsv|jsonl|txt|md|ya?ml|toml|py|sh)$|tfevents", re.IGNORECASE)
"""Files that lie among checkpoints and are none: the library's lock, a log, a table of metrics."""
UNFINISHED = re.compile(r"^\.|\.tmp$|\.part$|\.incomplete$|~$|^tmp|\.tmp\.", re.IGNORECASE)
NUMBER = re.compile(r"\d+")
OF_RANK = re.compile(
    r"(?:rank|shard|part|proc|process|worker|gpu|device|mp|tp|pp|dp|zero|world|states?|chunk|of|optim|optimizer|"
    r"scheduler|scaler|sampler|layer|block|expert)[-_=]?$",
    re.IGNORECASE,
)
LEAST_STEP = 10
"""Before the log has come so far, a small number in a name may well be the step."""


def number_in(name: str) -> tuple[int | None, str | None]:
    """Return the number in the name of a checkpoint and what it counts ("step", "epoch"), as far as the name says.

    Of several numbers the one that is called a step, else the one that is called an epoch, else the last that is of no
    rank or part. A loss, a date, and the number of a kind (``resnet50``) are none. See ``Counting`` for what is known
    from more than one name.
    """
    said = naming.read(name)
    for number, what in ((said.step, "step"), (said.epoch, "epoch")):
        if number is not None:
            return number, what
    counts = [number for number, word in zip(said.others, said.beside, strict=True) if not OF_RANK.search(word)]
    return next(reversed(counts or said.others), None), None


class Counting:
    """Which of several numbers counts in the names of one form: a constant (a size, the number of a run) never does.

    Of those that were seen to differ from name to name it is the largest: beside a step stand an epoch, a rank.
    """

    MOST = 64

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, ...], set[int]]] = {}

    def number_in(self, name: str) -> tuple[int | None, str | None]:
        """Return what the function of that name does, in the light of the names that were given before."""
        number, told = number_in(name)
        others, form = naming.read(name).others, naming.form(name)
        if told is not None or len(others) < 2:
            return number, told
        first, differing = self._known.setdefault(form, (others, set()))
        if len(first) != len(others):
            return number, None
        differing.update(place for place, one in enumerate(first) if one != others[place])
        while len(self._known) > self.MOST:
            del self._known[next(iter(self._known))]
        return max((others[place] for place in differing), default=number), None


def step_of(number: int | None, told: str | None, reached: int | None, before: int | None) -> int | None:
    """Return the step that a save is of: the ``number`` in its name if that fits, else what the log had ``reached``.

    A number far below that, which rises by no more than one from save to save, counts epochs (or the places of a
    rotation). ``before`` is the number of the save before, None for the first one.
    """
    if number is None or told == "epoch":
        return reached
    if told == "step" or reached is None or reached < LEAST_STEP:
        return number
    if before is None:
        return reached if 10 * number <= reached else number
    return reached if number - before <= 1 and 2 * number <= reached else number


def another(before: str, path: str) -> bool:
    """Say whether two paths are of two checkpoints by their names: a program that saves often leaves no pause between.

    Of files with the number of a rank or a part there are many in one.
    """
    name, known = os.path.basename(path), os.path.basename(before)
    if before == path or any(OF_RANK.search(name[: found.start()]) for found in NUMBER.finditer(name)):
        return False
    if NUMBER.search(name) and naming.form(name) == naming.form(known):
        return name != known
    number, other = number_in(name)[0], number_in(known)[0]
    return None not in (number, other) and number != other


def looks_like_save(path: str) -> bool:
    """Say whether a file has the name of a checkpoint, or lies in a folder that has."""
    folder, name = os.path.split(path)
    return bool(FILE.search(name) or (PLACE.search(os.path.basename(folder)) and not BESIDE.search(name)))

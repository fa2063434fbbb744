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

    Of several numbers the one that is called a step, else the one that is called an epoch, else the largest: beside it
    stand an epoch, a rank, the number of a series. A loss, a date, and the number of a kind (``resnet50``) are none.
    """
    said = naming.read(name)
    for number, what in ((said.step, "step"), (said.epoch, "epoch")):
        if number is not None:
            return number, what
    return max(said.others, default=None), None


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
    return bool(FILE.search(name) or PLACE.search(os.path.basename(folder)))

"""What the name of a file or folder says of a checkpoint: that it is one, which step or epoch it is of. Pure."""

from __future__ import annotations

import os
import re

FILE = re.compile(
    r"\.(pt|pth|ckpt|bin|safetensors|npz|npy|pkl|pickle|h5|hdf5|keras|msgpack|distcp|orbax|params|weights|index|model|tar)(\.|$)"
    r"|ckpt|checkpoint",
    re.IGNORECASE,
)
PLACE = re.compile(r"ckpt|checkpoint|^step|^epoch|^iter|global_step", re.IGNORECASE)
UNFINISHED = re.compile(r"^\.|\.tmp$|\.part$|\.incomplete$|~$|^tmp|\.tmp\.", re.IGNORECASE)
NUMBER = re.compile(r"\d+")
OF_STEP = re.compile(r"(?:step|iter|iteration)s?[-_=]?$", re.IGNORECASE)
OF_EPOCH = re.compile(r"(?:^|[^a-z])(?:epoch|ep)s?[-_=]?$", re.IGNORECASE)
OF_RANK = re.compile(
    r"(?:rank|shard|part|proc|process|worker|gpu|device|mp|tp|pp|dp|zero|world|states?|chunk|of|optim|optimizer|"
    r"scheduler|scaler|sampler|layer|block|expert)[-_=]?$",
    re.IGNORECASE,
)
SUFFIX = re.compile(r"\.h(?:df)?5$", re.IGNORECASE)
LEAST_STEP = 10
"""Before the log has come so far, a small number in a name may well be the step."""


def number_in(name: str) -> tuple[int | None, str | None]:
    """Return the number in the name of a checkpoint and what it counts ("step", "epoch"), as far as the name says.

    Of several numbers the one that is called a step, else the one that is called an epoch, else the last.
    """
    last: int | None = None
    told: dict[str, int] = {}
    for found in NUMBER.finditer(SUFFIX.sub("", name)):
        last, before = int(found[0]), name[: found.start()]
        if OF_STEP.search(before):
            told["step"] = last
        elif OF_EPOCH.search(before):
            told["epoch"] = last
    for what in ("step", "epoch"):
        if what in told:
            return told[what], what
    return last, None


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
    name = os.path.basename(path)
    number, known = number_in(name)[0], number_in(os.path.basename(before))[0]
    if before == path or None in (number, known) or number == known:
        return False
    return not any(OF_RANK.search(name[: found.start()]) for found in NUMBER.finditer(name))


def looks_like_save(path: str) -> bool:
    """Say whether a file has the name of a checkpoint, or lies in a folder that has."""
    folder, name = os.path.split(path)
    return bool(FILE.search(name) or PLACE.search(os.path.basename(folder)))

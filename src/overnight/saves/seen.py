"""One save as it was seen from outside: where, when, and what its name says. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Save(NamedTuple):
    """One finished save: its path (the folder where the checkpoint is one), the number in its name, seconds it took.

    ``told`` is what its name says of the number ("step", "epoch" or None), ``opened`` when its newest file was begun.
    """

    path: str
    number: int | None
    told: str | None
    seconds: float
    began: float
    ended: float
    opened: float

"""The words in which checks of a machine say what they found. No check is here, and nothing is looked at."""

from __future__ import annotations

from typing import Literal

import msgspec

Level = Literal["ok", "warning", "problem"]


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """What one check found: ``fix`` is what mends it, empty where nothing has to be mended."""

    check: str
    level: Level
    text: str
    fix: str = ""


def ok(check: str, text: str) -> Check:
    """Return a finding that needs nothing."""
    return Check(check=check, level="ok", text=text)


def warning(check: str, text: str, fix: str) -> Check:
    """Return a finding that costs something some day."""
    return Check(check=check, level="warning", text=text, fix=fix)


def problem(check: str, text: str, fix: str) -> Check:
    """Return a finding that may cost a run."""
    return Check(check=check, level="problem", text=text, fix=fix)

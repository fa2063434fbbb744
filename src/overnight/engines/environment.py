"""Gives the training the environment the user had: PATH is left alone unless we live in a tool environment of our own.

``uv tool``, ``uvx`` and ``pipx`` put their hidden environment's ``bin`` first, so that ``python`` would be ours.
Nothing else is changed, and nothing is read but the marks these tools leave beside an environment.
"""

from __future__ import annotations

import os
import re
from itertools import pairwise
from pathlib import Path

from overnight.errors import LaunchError

RECEIPTS = ("uv-receipt.toml", "pipx_metadata.json")
UV_BUCKET = re.compile(r"(?:archive|environments|builds)-v[0-9]+")
UV_BUILDS = re.compile(r"builds-v[0-9]+")


def clean_environment(environ: dict[str, str], *, prefix: Path, base_prefix: Path) -> dict[str, str]:
    """Return ``environ`` for the training, when we run from ``prefix`` (sys.prefix, sys.base_prefix).

    LaunchError under ``uv run --with``: that folder is deleted when ``uv run`` returns, and with it we would be.
    """
    if is_fleeting(prefix):
        raise LaunchError(
            f"{prefix} belongs to `uv run --with` and is deleted when that returns, so the run could not go on; "
            "install overnight into the project (`uv add --dev overnight`) or as a tool (`uv tool install overnight`)"
        )
    if not is_tool_environment(prefix, base_prefix):
        return dict(environ)
    cleaned = dict(environ)
    own = os.path.realpath(prefix / "bin")
    if "PATH" in cleaned:
        entries = cleaned["PATH"].split(os.pathsep)
        cleaned["PATH"] = os.pathsep.join(entry for entry in entries if not entry or os.path.realpath(entry) != own)
    if os.path.realpath(cleaned.get("VIRTUAL_ENV") or os.devnull) == os.path.realpath(prefix):
        del cleaned["VIRTUAL_ENV"]
    return cleaned


def is_fleeting(prefix: Path) -> bool:
    """Say whether ``prefix`` is the throw-away environment of one ``uv run --with``."""
    return any(UV_BUILDS.fullmatch(above) and name.startswith(".tmp") for above, name in pairwise(prefix.parts))


def is_tool_environment(prefix: Path, base_prefix: Path) -> bool:
    """Say whether uv or pipx made ``prefix`` to hold a tool: never a base prefix, conda's, or the user's venv."""
    if prefix == base_prefix or (prefix / "conda-meta").is_dir():
        return False
    if any((prefix / name).is_file() for name in RECEIPTS):
        return True
    # A CACHEDIR.TAG alone proves nothing (uv marks every venv, cargo its target/): a bucket must lie below it.
    return any((above / "CACHEDIR.TAG").is_file() and _below_a_bucket(prefix, above) for above in prefix.parents)


def _below_a_bucket(prefix: Path, cache: Path) -> bool:
    return UV_BUCKET.fullmatch(prefix.relative_to(cache).parts[0]) is not None

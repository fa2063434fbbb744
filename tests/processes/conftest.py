"""Fixtures of all process tests: an OVERNIGHT_HOME of one's own, runs in it, and nothing left of them afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from looking import Run, Runs


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return an OVERNIGHT_HOME that only this test uses."""
    return tmp_path / "home"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Return the folder in which the test's commands run."""
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def runs(home: Path, work: Path) -> Iterator[Runs]:
    """Return the command line bound to ``home``; at the end every run is ended and nothing of them may be left."""
    found = Runs(home, work)
    yield found
    found.end()


@pytest.fixture
def overnight(runs: Runs) -> Callable[..., Any]:
    """Return a function that runs one command line to its end: ``overnight("ls", "--json")``."""
    return runs.overnight


@pytest.fixture
def start(runs: Runs) -> Callable[..., Run]:
    """Return ``start(name, *command, flags=(), log="")``: a run, once its log contains ``log``."""
    return runs.start


@pytest.fixture
def wait(runs: Runs) -> Callable[..., int]:
    """Return ``wait(name, limit_s)``: the exit code of ``overnight wait``."""
    return lambda name, limit_s=30.0: runs.run(name).wait(limit_s)


@pytest.fixture
def status(runs: Runs) -> Callable[[str], dict[str, Any]]:
    """Return ``status(name)``: what ``status --json`` says."""
    return lambda name: runs.run(name).status


@pytest.fixture
def facts(runs: Runs) -> Callable[..., list[dict[str, Any]]]:
    """Return ``facts(name, kind=None)``: the lines of the journal."""
    return lambda name, kind=None: runs.run(name).facts(kind)

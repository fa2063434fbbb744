"""Engines by name, what is kept of them in the run folder, and the environment to start again with."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from overnight import launch, wiring
from overnight.engines import Handle, Placement, keepers_argv
from overnight.engines.tmux import Server, Tmux
from overnight.errors import FolderError, UsageError
from overnight.folder import RunFolder, write_json

MODULE = """
class Engine:
    def __init__(self, complain):
        self.name = "mine"
        complain("made")
    def attach(self, handle):
        return ("ssh", handle.place)
    def forget(self, handle, run_dir):
        (run_dir / "forgotten").write_text(handle.place)

def broken(complain):
    raise OSError("no such queue")
"""

Install = Callable[..., None]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "runs" / "night")
    made.create()
    return made


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a distribution with engines, as pip would leave it."""

    def install(**points: str) -> None:
        (tmp_path / "plug_engine.py").write_text(MODULE)
        info = tmp_path / "plug_engine-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plug_engine\nVersion: 1.0\n")
        lines = "".join(f"{name} = plug_engine:{what}\n" for name, what in points.items())
        (info / "entry_points.txt").write_text(f"[overnight.engines]\n{lines}")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "plug_engine", raising=False)

    return install


def no_complaints(text: str) -> None:
    raise AssertionError(text)


def test_every_built_in_has_the_name_it_is_listed_by() -> None:
    assert [wiring.make_engine(name, no_complaints).name for name in wiring.ENGINES] == ["local", "tmux"]


def test_an_engine_that_is_none_is_refused_with_those_there_are(install: Install) -> None:
    with pytest.raises(UsageError, match=r"^there is no engine 'slum'; engines are local, tmux$"):
        wiring.make_engine("slum", no_complaints)
    install(mine="Engine", other="broken")
    with pytest.raises(UsageError, match=r"engines are local, tmux, mine, other$"):
        wiring.make_engine("slum", no_complaints)


def test_an_entry_point_is_an_engine_and_is_told_where_to_complain(install: Install) -> None:
    install(mine="Engine")
    said: list[str] = []
    assert wiring.make_engine("mine", said.append).name == "mine"
    assert said == ["made"]


def test_a_broken_engine_is_named_and_nothing_takes_its_place(install: Install) -> None:
    install(other="broken")
    with pytest.raises(UsageError, match=r"plug-in other \(plug_engine:broken\).*no such queue"):
        wiring.make_engine("other", no_complaints)


def test_an_engine_is_asked_with_the_handle_of_engine_json(install: Install, folder: RunFolder) -> None:
    install(mine="Engine")
    handle = Handle(engine="mine", pid=0, start_ticks=0, boot_id="", place="job-7")
    write_json(folder.engine_json, msgspec.structs.asdict(handle))
    placed = launch.placed_by(folder)
    assert placed is not None
    assert placed[1] == handle
    assert launch.attach_words(folder) == ("ssh", "job-7")
    launch.forget(folder)
    assert (folder.path / "forgotten").read_text() == "job-7"


def test_an_old_run_has_no_handle_and_a_damaged_one_is_said_to_be(folder: RunFolder) -> None:
    assert launch.placed_by(folder) is None
    assert launch.attach_words(folder) is None
    launch.forget(folder)
    write_json(folder.engine_json, {"engine": "local", "pid": "many"})
    with pytest.raises(FolderError, match="is no handle"):
        launch.placed_by(folder)
    launch.forget(folder)
    assert launch.attach_words(folder) is None


def test_a_handle_of_a_later_version_is_read(folder: RunFolder) -> None:
    handle = Handle(engine="local", pid=os.getpid(), start_ticks=1, boot_id="x")
    write_json(folder.engine_json, {**msgspec.structs.asdict(handle), "colour": "green"})
    placed = launch.placed_by(folder)
    assert placed is not None
    assert placed[0].look(placed[1]) is False


def test_the_keepers_are_started_by_absolute_words(tmp_path: Path) -> None:
    words = keepers_argv(Placement(run_dir=tmp_path / "night", supervisor_argv=("/bin/true", "x"), env={}))
    assert words[0] == sys.executable
    assert Path(words[3]).is_file()
    assert words[-4:] == (str(tmp_path / "night"), "--", "/bin/true", "x")


def test_without_tmux_nothing_of_it_is_found_or_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Server({"PATH": str(tmp_path)}).panes("night") == []
    engine = wiring.make_engine("tmux", no_complaints)
    assert isinstance(engine, Tmux)
    handle = Handle(engine="tmux", pid=1, start_ticks=1, boot_id="x", place="night", details={"socket": "/none"})
    assert engine.attach(handle) is None
    engine.forget(handle, tmp_path)
    engine.check(Placement(run_dir=tmp_path / "night", supervisor_argv=(), env={"PATH": str(tmp_path)}))


def test_the_environment_comes_back_as_it_was_and_is_for_its_owner_only(folder: RunFolder) -> None:
    given = {"PATH": "/bin", "EMPTY": "", "LINES": "a\nb=c", "ODD": os.fsdecode(b"\xff\xfe"), "TOKEN": "ü"}
    launch.write_env(folder, given)
    assert launch.read_env(folder) == given
    assert stat.S_IMODE(folder.run_env.stat().st_mode) == 0o600
    launch.write_env(folder, {"PATH": "/usr/bin"})
    assert launch.read_env(folder) == {"PATH": "/usr/bin"}


def test_an_environment_that_was_not_kept(folder: RunFolder) -> None:
    with pytest.raises(FolderError, match=r"run\.env cannot be read: No such file"):
        launch.read_env(folder)

"""Whose python the training gets: the user's, whatever hidden environment Overnight itself lives in."""

from __future__ import annotations

from pathlib import Path

import pytest

from overnight.engines.environment import clean_environment
from overnight.errors import LaunchError


def made(prefix: Path) -> Path:
    (prefix / "bin").mkdir(parents=True)
    return prefix


def cleaned(prefix: Path, tmp_path: Path, **environ: str) -> dict[str, str]:
    return clean_environment({"KEPT": "1", **environ}, prefix=prefix, base_prefix=tmp_path / "base")


@pytest.mark.parametrize("receipt", ["uv-receipt.toml", "pipx_metadata.json"])
def test_a_tool_environment_leaves_path(tmp_path: Path, receipt: str) -> None:
    prefix = made(tmp_path / "tools" / "overnight")
    (prefix / receipt).touch()
    (tmp_path / "link").symlink_to(prefix / "bin")
    user = made(tmp_path / "venv")
    path = f"{prefix}/bin:{user}/bin::{tmp_path}/link:/usr/bin:{prefix}/bin/"
    seen = cleaned(prefix, tmp_path, PATH=path, VIRTUAL_ENV=str(prefix))
    assert seen == {"KEPT": "1", "PATH": f"{user}/bin::/usr/bin"}


def test_the_users_virtual_env_stays_although_we_are_a_tool(tmp_path: Path) -> None:
    prefix = made(tmp_path / "tools" / "overnight")
    (prefix / "uv-receipt.toml").touch()
    user = made(tmp_path / "venv")
    assert cleaned(prefix, tmp_path, VIRTUAL_ENV=str(user)) == {"KEPT": "1", "VIRTUAL_ENV": str(user)}


def test_uvx_lives_in_the_cache_of_uv(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "CACHEDIR.TAG").touch()
    prefix = made(tmp_path / "cache" / "archive-v0" / "XTSUitbW")
    assert cleaned(prefix, tmp_path, PATH=f"{prefix}/bin:/bin")["PATH"] == "/bin"


@pytest.mark.parametrize("marked", ["", "conda-meta"])
def test_the_users_own_environment_is_left_alone(tmp_path: Path, marked: str) -> None:
    # uv tags every venv it makes, and a folder above may be tagged by anybody.
    prefix = made(tmp_path / "project" / ".venv")
    (prefix / "CACHEDIR.TAG").touch()
    (tmp_path / "project" / "CACHEDIR.TAG").touch()
    if marked == "conda-meta":
        (prefix / marked).mkdir()
        (prefix / "uv-receipt.toml").touch()
    environ = {"PATH": f"{prefix}/bin:/bin", "VIRTUAL_ENV": str(prefix)}
    assert cleaned(prefix, tmp_path, **environ) == {"KEPT": "1", **environ}


def test_a_base_prefix_is_left_alone(tmp_path: Path) -> None:
    prefix = made(tmp_path / "base")
    (prefix / "uv-receipt.toml").touch()
    assert cleaned(prefix, tmp_path, PATH=f"{prefix}/bin") == {"KEPT": "1", "PATH": f"{prefix}/bin"}


def test_uv_run_with_is_refused_with_the_reason(tmp_path: Path) -> None:
    prefix = made(tmp_path / "cache" / "builds-v0" / ".tmpAbC12")
    with pytest.raises(LaunchError, match=r"uv run --with.*deleted.*uv tool install"):
        cleaned(prefix, tmp_path)


def test_the_given_environment_is_not_changed(tmp_path: Path) -> None:
    prefix = made(tmp_path / "tool")
    (prefix / "uv-receipt.toml").touch()
    environ = {"PATH": f"{prefix}/bin", "VIRTUAL_ENV": str(prefix)}
    clean_environment(environ, prefix=prefix, base_prefix=tmp_path)
    assert environ == {"PATH": f"{prefix}/bin", "VIRTUAL_ENV": str(prefix)}

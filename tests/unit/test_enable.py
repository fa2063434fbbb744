"""``overnight enable`` against fake systemctl, loginctl and crontab programs: what is installed, kept, said, undone."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from overnight import cli
from overnight.reboots import autostart

SYSTEMCTL = """
if mode == "down":
    sys.exit("Failed to connect to bus: No medium found")
if mode == "refuses" and "enable" in sys.argv:
    sys.exit("Failed to enable unit: Access denied")
"""
LOGINCTL = """
if mode == "down":
    sys.exit("Failed to get user: User ID 7 is not logged in or lingering")
print("Linger=" + mode)
"""
CRONTAB = """
table = folder / "table"
if mode == "denied":
    sys.exit("You (me) are not allowed to use this program (crontab)")
if sys.argv[1:] == ["-l"]:
    if not table.exists():
        sys.exit("no crontab for me")
    sys.stdout.write(table.read_text())
elif sys.argv[1:] == ["-"]:
    table.write_text(sys.stdin.read())
else:
    sys.exit("usage error")
"""


class Fakes:
    """Programs that note how they were called; none is there until it is put there."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.table = self.bin / "table"
        self.bin.mkdir()

    def put(self, name: str, body: str, mode: str) -> None:
        path = self.bin / name
        head = (
            f"#!{sys.executable} -IS\nimport pathlib, sys\nfolder = pathlib.Path({str(self.bin)!r})\nmode = {mode!r}\n"
        )
        note = f"with (folder / 'calls').open('a') as calls: print({name!r}, *sys.argv[1:], file=calls)\n"
        path.write_text(head + note + body)
        path.chmod(0o755)

    def systemd(self, mode: str = "up", linger: str = "yes") -> None:
        self.put("systemctl", SYSTEMCTL, mode)
        self.put("loginctl", LOGINCTL, linger)

    def cron(self, mode: str = "up") -> None:
        self.put("crontab", CRONTAB, mode)

    @property
    def calls(self) -> list[str]:
        path = self.bin / "calls"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fakes:
    found = Fakes(tmp_path)
    monkeypatch.setenv("PATH", str(found.bin))
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    for name in ("OVERNIGHT_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    return found


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    return tmp_path / "me" / ".config" / "systemd" / "user" / "overnight-recover.service"


Captured = pytest.CaptureFixture[str]


def test_a_unit_is_installed_where_the_users_manager_answers(fakes: Fakes, unit: Path, capsys: Captured) -> None:
    fakes.systemd()
    fakes.cron()
    assert cli.main(["enable"]) == 0
    assert str(unit) in capsys.readouterr().out
    lines = unit.read_text().splitlines()
    assert f"ExecStart={sys.executable} -I -m overnight recover" in lines
    assert {"Type=oneshot", "KillMode=process", "OOMPolicy=continue", "WantedBy=default.target"} <= set(lines)
    assert not [line for line in lines if line.startswith("Environment")]
    asked = [call for call in fakes.calls if call.startswith("systemctl")]
    assert asked[-2:] == ["systemctl --user daemon-reload", "systemctl --user enable overnight-recover.service"]
    assert not fakes.table.exists()
    assert stat.S_IMODE(unit.stat().st_mode) == 0o644


def test_the_home_is_named_when_it_was_chosen(
    fakes: Fakes, unit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.systemd()
    monkeypatch.setenv("OVERNIGHT_HOME", str(tmp_path / "a b%c"))
    assert cli.main(["enable"]) == 0
    assert f'Environment="OVERNIGHT_HOME={tmp_path}/a b%%c"' in unit.read_text().splitlines()
    monkeypatch.delenv("OVERNIGHT_HOME")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert cli.main(["enable"]) == 0
    assert f"Environment=OVERNIGHT_HOME={tmp_path}/state/overnight" in unit.read_text().splitlines()


@pytest.mark.parametrize(
    ("linger", "said"), [("no", "lingering is off"), ("down", "is unknown"), ("yes", None)]
)  # fmt: skip
def test_lingering_is_spoken_of_unless_it_is_on(fakes: Fakes, linger: str, said: str | None, capsys: Captured) -> None:
    fakes.systemd(linger=linger)
    assert cli.main(["enable"]) == 0
    out = capsys.readouterr().out
    assert ("loginctl enable-linger" in out) == (said is not None)
    assert said is None or said in out


@pytest.mark.parametrize("way", ["systemd", "cron", "neither"])
def test_what_it_cannot_do_is_always_said(fakes: Fakes, way: str, capsys: Captured) -> None:
    if way == "systemd":
        fakes.systemd()
    if way == "cron":
        fakes.cron()
    assert cli.main(["enable"]) == (1 if way == "neither" else 0)
    out = capsys.readouterr().out
    assert "encrypted home" in out
    assert "container without an init" in out


def test_a_crontab_line_takes_its_place_where_no_manager_answers(fakes: Fakes, unit: Path, capsys: Captured) -> None:
    fakes.systemd("down")
    fakes.cron()
    fakes.table.write_text("MAILTO=me\n5 4 * * * backup # overnight recover")
    assert cli.main(["enable"]) == 0
    assert "Failed to connect to bus" in capsys.readouterr().out
    assert not unit.exists()
    lines = fakes.table.read_text().splitlines()
    assert lines[:2] == ["MAILTO=me", "5 4 * * * backup # overnight recover"]
    assert lines[2] == autostart.MARK
    assert lines[3:] == [f"@reboot {sys.executable} -I -m overnight recover"]


def test_enabling_again_replaces_the_line_and_touches_no_other(
    fakes: Fakes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.cron()
    assert cli.main(["enable"]) == 0
    before, own = "@daily before\n", fakes.table.read_text()
    fakes.table.write_text(f"{before}{own}@reboot mine\n")
    monkeypatch.setenv("OVERNIGHT_HOME", str(tmp_path / "it's 5%"))
    assert cli.main(["enable"]) == 0
    lines = fakes.table.read_text().splitlines()
    assert lines[:3] == ["@daily before", "@reboot mine", autostart.MARK]
    assert len(lines) == 4
    # What cron hands to the shell: up to the first bare %, with \% as %.
    command = lines[3].removeprefix("@reboot ").replace("\\%", "%").partition(" -I ")[0]
    python = "import os; print(os.environ['OVERNIGHT_HOME'])"
    said = subprocess.run(["/bin/sh", "-c", f'{command} -c "{python}"'], capture_output=True, text=True, check=True)
    assert said.stdout == f"{tmp_path}/it's 5%\n"


def test_a_unit_takes_the_place_of_an_earlier_line(fakes: Fakes, unit: Path) -> None:
    fakes.cron()
    fakes.table.write_text("@daily mine\n")
    assert cli.main(["enable"]) == 0
    fakes.systemd()
    assert cli.main(["enable"]) == 0
    assert unit.exists()
    assert fakes.table.read_text() == "@daily mine\n"


def test_a_refused_unit_falls_back_to_cron_and_leaves_no_file(fakes: Fakes, unit: Path) -> None:
    fakes.systemd("refuses")
    fakes.cron()
    assert cli.main(["enable"]) == 0
    assert autostart.MARK in fakes.table.read_text()
    assert not unit.exists()


def test_a_crontab_that_cannot_be_read_is_not_written(fakes: Fakes, capsys: Captured) -> None:
    fakes.systemd("down")
    fakes.cron("denied")
    fakes.table.write_text("@daily mine\n")
    assert cli.main(["enable"]) == 1
    said = capsys.readouterr()
    assert "not allowed" in said.err
    assert "Failed to connect to bus" in said.err
    assert fakes.table.read_text() == "@daily mine\n"


def test_without_either_both_texts_are_printed(fakes: Fakes, capsys: Captured) -> None:
    assert cli.main(["enable"]) == 1
    said = capsys.readouterr()
    assert "systemctl is not installed" in said.err
    assert "crontab is not installed" in said.err
    assert autostart.unit_text() in said.out
    assert autostart.cron_text() in said.out


def test_print_installs_nothing(fakes: Fakes, unit: Path, capsys: Captured) -> None:
    fakes.systemd()
    fakes.cron()
    assert cli.main(["enable", "--print"]) == 0
    out = capsys.readouterr().out
    assert autostart.unit_text() in out
    assert autostart.cron_text() in out
    assert not unit.exists()
    assert fakes.calls == []


def test_remove_undoes_both_ways_and_may_be_asked_twice(fakes: Fakes, unit: Path, capsys: Captured) -> None:
    fakes.cron()
    fakes.table.write_text("@daily mine\n")
    cli.main(["enable"])
    with_line = fakes.table.read_text()
    fakes.systemd()
    cli.main(["enable"])
    fakes.table.write_text(with_line)  # somebody's backup came back
    wanted = unit.parent / "default.target.wants" / unit.name
    wanted.parent.mkdir()
    wanted.symlink_to(unit)
    capsys.readouterr()
    assert cli.main(["enable", "--remove"]) == 0
    assert fakes.table.read_text() == "@daily mine\n"
    assert not os.path.lexists(unit)
    assert not os.path.lexists(wanted)
    assert "systemctl --user disable overnight-recover.service" in fakes.calls
    assert str(unit) in capsys.readouterr().out
    assert cli.main(["enable", "--remove"]) == 0
    assert capsys.readouterr().out == "nothing was installed\n"

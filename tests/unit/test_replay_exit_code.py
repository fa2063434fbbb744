"""What ``replay --exit-code`` gives where a build depends on it: nothing read is nothing proved."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from overnight.cli import main
from overnight.quantities import RefusedError, hours

GOOD = "".join(f"step: {step}, loss: {3 - step / 10}\n" for step in range(1, 9))


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be in an empty folder, with no settings of anybody's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OVERNIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


UNREAD = {
    "empty": "",
    "another form": "".join(f"round {n} went well: 2.{n} points\n" for n in range(50)),
    "only evaluations": "".join(f"step {n}: val_loss 2.{n}\n" for n in range(1, 9)),
}


@pytest.mark.parametrize("log", UNREAD)
@pytest.mark.parametrize("json_too", [[], ["--json"]])
def test_a_log_without_a_record_passes_no_check(
    log: str, json_too: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("a.log").write_text(UNREAD[log])
    assert main(["replay", "a.log", "--max-loss", "12", "--exit-code", *json_too]) == 1
    said = capsys.readouterr()
    assert said.err == "overnight: no training record was read, so no rule has passed: exit code 1\n"
    assert main(["replay", "a.log", "--max-loss", "12", *json_too]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("text", "code"), [(GOOD, 0), (GOOD + "step: 9, loss: 13.5\nstep: 10, loss: 14\n", 1)])
def test_a_log_with_records_is_judged_by_its_rules(text: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.log").write_text(text)
    words = ["replay", "a.log", "--max-loss", "12", "--action", "divergence=stop", "--exit-code"]
    assert main(words) == code
    assert capsys.readouterr().err == ""


def test_what_is_no_text_is_refused_as_by_report(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.log").write_bytes(random.Random(7).randbytes(3000))
    for verb in ("report", "replay"):
        assert main([verb, "a.log"]) == 2
        assert "a.log is not text, so there is nothing to" in capsys.readouterr().err


def test_a_name_that_is_no_utf_8_is_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    name = os.fsdecode(b"b\xff.log")
    try:
        Path(name).write_text(GOOD)
    except OSError:
        pytest.skip("the file system takes no such name")
    assert main(["replay", name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["read"]["records"] == 8


@pytest.mark.parametrize(("end", "lines"), [("\n", 8), ("\r", 1), ("\r\n", 8)])
def test_an_unfinished_last_line_is_a_line(end: str, lines: int, capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.log").write_bytes(GOOD.replace("\n", end).encode())
    assert main(["replay", "a.log", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["log"]["lines"] == lines
    Path("a.log").write_bytes(GOOD.replace("\n", end).encode() + b"step: 9, loss: 2.0")
    assert main(["replay", "a.log", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["log"]["lines"] == (lines if end == "\r" else lines + 1)


def test_hours_that_no_run_lives_are_refused() -> None:
    assert hours("8000") == 8000.0
    for absurd in ("1e300", "1e6", 1e9):
        with pytest.raises(RefusedError, match="longer than ten years"):
            hours(absurd)

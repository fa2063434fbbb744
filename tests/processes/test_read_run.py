"""``read`` on a run: all its attempts, each read afresh, with the pattern that the run itself goes by."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """\
import pathlib, sys
for n in range(1, 8):
    print(f"it={n} L={3 - n / 10}", flush=True)
first = not pathlib.Path("once").exists()
pathlib.Path("once").touch()
print("it=8 L=2.", end="", flush=True) if first else None
sys.exit(first)
"""


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERNIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def overnight(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "overnight", *words], capture_output=True, text=True, check=False)


def test_a_run_is_read_over_all_its_attempts(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    regex = r"it=(?P<step>\d+) L=(?P<loss>[\d.]+)"
    overnight("run", "--name", "odd", "--restarts", "1", "--pattern", regex, "--", sys.executable, str(script))
    assert overnight("wait", "odd").returncode == 0
    done = overnight("read", "od", "--json")  # the beginning of its name is enough
    assert done.returncode == 0, done.stderr
    steps = [json.loads(line)["step"] for line in done.stdout.splitlines()]
    assert steps == [*range(1, 9), *range(1, 8)]
    told = " ".join(overnight("read", "odd").stdout.split())
    assert "is read by pattern: 15 training records" in told
    assert "Why: pattern has read 7 credible records in 7 lines of the last attempt." in told
    other = overnight("read", "odd", "--json", "--pattern", r"it=(?P<step>7)")
    assert [json.loads(line)["step"] for line in other.stdout.splitlines()] == [7, 7]

"""The report of logs that Overnight never launched: read as a run's is, and nothing claimed that is not in them."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from looking import Runs

SHARED = Path(__file__).parents[2].parent / "shared" / "cases" / "formats"


def value_of(runs: Runs, path: Path, *flags: object) -> dict[str, Any]:
    """Return what ``report --json`` prints of a log, once text and page could be made, too."""
    done = runs.overnight("report", path, *flags, "--json")
    assert done.returncode == 0, done.stderr
    text = runs.overnight("report", path, *flags)
    assert text.returncode == 0, text.stderr
    assert max(len(line) for line in text.stdout.splitlines()) <= 80
    assert "None" not in text.stdout
    assert not set("\x1b\x07\r\x00") & set(text.stdout)
    page = runs.overnight("report", path, *flags, "--html", "-")
    assert page.returncode == 0, page.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def lines(steps: Sequence[int], more: str = "") -> str:
    return "".join(f"step: {step}, loss: {4 * 0.99**step:.4f}, dt: 0.5{more}\n" for step in steps)


def test_a_plain_log(runs: Runs, work: Path) -> None:
    temporary, log = work / "temporary", work / "old.log"
    temporary.mkdir()
    runs.env["TMPDIR"] = str(temporary)
    log.write_text("start\n" + lines(range(1, 101)))
    found = value_of(runs, log, "--tokens-per-step", 1000, "--steps", 100)
    assert (found["kind"], found["name"], found["outcome"]["state"]) == ("log", "old.log", "unknown")
    assert found["outcome"]["code"] is None
    assert found["command"] == []
    assert (found["progress"]["step"], found["progress"]["records"]) == (100, 100)
    assert found["goodput"]["productive_s"] == pytest.approx(50.0)
    assert found["goodput"]["stepping_tokens_per_s"] == pytest.approx(2000.0)
    assert found["goodput"]["goodput"] is None
    assert "no wall clock" in found["goodput"]["unknown"]
    assert "it reached step 100 of 100, and the log says no more" in found["outcome"]["sentence"]
    assert found["log"]["reader"] is not None
    assert str(found["log"]["path"]) == str(log)
    assert list(temporary.iterdir()) == []


def test_a_log_that_rewinds_has_one_value_per_step(runs: Runs, work: Path) -> None:
    log = work / "rewound.log"
    log.write_text(lines(range(1, 117)) + "Traceback\n" + lines(range(81, 141)))
    found = value_of(runs, log)
    loss = next(one for one in found["charts"] if one["name"] == "loss")
    assert loss["x"] == list(range(1, 141))
    assert [(one["x"][0], one["x"][-1]) for one in loss["older"]] == [(81, 116)]
    assert (found["goodput"]["redone_steps"], found["goodput"]["productive_steps"]) == (36, 140)


def test_lines_with_times_give_the_wall_clock(runs: Runs, work: Path) -> None:
    log = work / "timed.log"
    log.write_text(
        "".join(
            f"[2026-11-29 23:{second // 60:02d}:{second % 60:02d}] step: {step}, loss: 3.0, dt: 1.0\n"
            for step, second in enumerate([*range(10), *range(20, 30), 39], 1)
        )
    )
    found = value_of(runs, log)
    assert found["goodput"]["wall_s"] == 39.0
    assert found["goodput"]["goodput"] == pytest.approx(21 / 39)
    assert found["times"]["started_at"] is None  # of which zone nobody knows


TRACE = 'Traceback (most recent call last):\n  File "train.py", line 9, in main\n    x()\n'


@pytest.mark.parametrize(
    ("end", "state", "said"),
    [
        ("Training completed.\n", "finished", "its log says that it came to its end"),
        ("{'train_runtime': '26.01', 'epoch': '2'}\n", "finished", "its log says"),
        ("saved checkpoint-000100.txt\n", "unknown", "does not stand in the log"),
        (
            'Traceback (most recent call last):\n  File "train.py", line 9, in main\n    x()\nRuntimeError: boom\n',
            "failed", "RuntimeError at train.py line 9: boom",
        ),
        (
            TRACE + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB.\n",
            "failed", "CUDA out of memory",
        ),
        (
            'Traceback (most recent call last):\n  File "train.py", line 9, in main\nRuntimeError: survived\n'
            + lines([101, 102]), "unknown", "does not stand in the log",
        ),
    ],
)  # fmt: skip
def test_the_outcome_is_what_the_last_lines_say(runs: Runs, work: Path, end: str, state: str, said: str) -> None:
    log = work / "any.log"
    log.write_text(lines(range(1, 101)) + end)
    found = value_of(runs, log)
    assert found["outcome"]["state"] == state
    assert said in found["outcome"]["sentence"]
    assert "exited with code" not in found["outcome"]["sentence"]


def test_a_nan_in_a_foreign_log(runs: Runs, work: Path) -> None:
    log = work / "sick.log"
    text = lines(range(1, 51)) + "step: 51, loss: nan, dt: 0.5, note: <script>alert(1)</script>\n"
    log.write_text(text)
    found = value_of(runs, log)
    (verdict,) = [one for one in found["timeline"] if one["kind"] == "verdict"]
    assert verdict["line"] == "step: 51, loss: nan, dt: 0.5, note: <script>alert(1)</script>"
    assert (verdict["offset"], verdict["at"]) == (text.index("step: 51"), None)
    page = runs.overnight("report", log, "--html", "-").stdout
    assert "<script>alert(1)" not in page
    assert "<script>alert(1)</script>" in runs.overnight("report", log).stdout
    noted = value_of(runs, log, "--action", "nonfinite=note")
    assert [one["severity"] for one in noted["timeline"] if one["kind"] == "verdict"]


NOISE = random.Random(4).randbytes(3_000_000)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("noise", NOISE),
        ("empty", b""),
        ("one long line", b"x" * 1_000_000),
        ("a long line in the middle", lines(range(1, 9)).encode() + b"y" * 1_000_000 + b"\n" + lines([9, 10]).encode()),
        ("nul bytes", b"\0" * 100_000),
        ("newlines", b"\n" * 100_000),
        ("escapes", b"\x1b[31m\x1b]0;owned\x07\x1b[2Jhello\r\n" * 50),
        ("words", b"hello\nworld\n"),
        ("half a line", b"step: 1, lo"),
        ("odd bytes", b"step: 1, loss: 2.0\nstep: 2, \xff\xfe loss: 1.0\n"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_whatever_a_file_holds(runs: Runs, work: Path, name: str, data: bytes) -> None:
    log = work / "odd.log"
    log.write_bytes(data)
    found = value_of(runs, log)
    assert found["outcome"]["state"] == "unknown"
    if name not in ("a long line in the middle", "odd bytes"):
        assert found["progress"] == dict.fromkeys(found["progress"])
        assert found["charts"] == []
        assert "no reader fits" in found["log"]["why"]


def test_a_log_of_carriage_returns(runs: Runs, work: Path) -> None:
    log = work / "bar.log"
    log.write_text("\r".join(["", *lines(range(1, 200)).splitlines()]))
    found = value_of(runs, log)
    assert (found["progress"]["step"], found["progress"]["records"]) == (199, 199)


def test_where_no_reader_fits_the_program_is_named(runs: Runs) -> None:
    log = SHARED / "real" / "keras-verbose1.log"
    if not log.exists():
        pytest.skip(f"{log} is not here")
    found = value_of(runs, log)
    assert found["progress"] == dict.fromkeys(found["progress"])
    assert "looks like a log of Keras" in found["log"]["why"]
    assert any("looks like a log of Keras" in one and "--pattern" in one for one in found["next"])


def test_a_learning_rate_that_never_stops_rising(runs: Runs, work: Path) -> None:
    log = work / "warm.log"
    log.write_text("".join(f"step: {n}, loss: 3.0, lr: {n * 1e-6:.3e}\n" for n in range(1, 181)))
    assert any("still rising at the end" in one for one in value_of(runs, log)["next"])


def test_files_that_cannot_be_read(runs: Runs, work: Path) -> None:
    def refused(path: Path) -> str:
        done = runs.overnight("report", path)
        assert done.returncode in (1, 2), done.stdout
        assert len(done.stderr.strip().splitlines()) == 1
        return done.stderr

    assert str(work) in refused(work)
    os.mkfifo(work / "pipe")
    assert "pipe" in refused(work / "pipe")
    assert "gone.log" in refused(work / "gone.log")
    done = runs.overnight("report", work / "pipe", "--pattern", "(")
    assert done.returncode == 2


def test_memory_does_not_grow_with_the_log(runs: Runs, work: Path) -> None:
    log = work / "long.log"
    with log.open("w") as stream:
        for begin in range(1, 400_001, 1000):
            stream.write(
                "".join(f"step: {n}, loss: {3 + n % 7 / 10:.4f}, dt: 0.25\n" for n in range(begin, begin + 1000))
            )
    code = (
        "import resource, sys; from overnight.cli import main; code = main(sys.argv[1:]); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "report", str(log), "--json"],
        env=runs.env, capture_output=True, text=True, check=True, cwd=work,
    )  # fmt: skip
    assert int(done.stderr.split()[-1]) < 120 * 1024
    value = json.loads(done.stdout)
    assert value["goodput"]["productive_s"] == pytest.approx(100_000.0)
    for chart in value["charts"]:
        assert len(chart["x"]) <= 2200
    assert len(done.stdout) < 1_500_000

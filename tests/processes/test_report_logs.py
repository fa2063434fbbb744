"""The report of logs that Overnight never launched: read as a run's is, and nothing claimed that is not in them."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from looking import Runs

NOISE = random.Random(4).randbytes(3_000_000)
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
    assert found["times"]["zone"] == "local"
    assert "its dates name no zone and were taken" in runs.overnight("report", log).stdout


def test_dates_stand_in_for_step_times_that_are_not_printed(runs: Runs, work: Path) -> None:
    log = work / "dated.log"
    begin = datetime(2026, 11, 29, 23, tzinfo=UTC)
    steps = [*range(1, 121), *range(101, 200)]
    rows = [
        f"{begin + timedelta(seconds=3 * at):%Y-%m-%dT%H:%M:%SZ} step: {step}, loss: {'nan' if step == 199 else 3.0}\n"
        for at, step in enumerate(steps)
    ]
    log.write_text("".join(rows))
    found = value_of(runs, log, "--tokens-per-step", 3000)
    good = found["goodput"]
    assert good["from"].startswith("the dates in the lines")
    assert good["productive_s"] == pytest.approx(3 * 199, rel=0.05)
    assert good["redone_steps"] == 20
    assert good["wall_s"] == 3 * 218
    figures = {one["name"]: one for one in found["figures"]}
    assert figures["step_s"]["value"] == pytest.approx(3.0, rel=0.05)
    assert figures["tokens_per_second"]["value"] == pytest.approx(1000, rel=0.1)
    assert found["times"]["started_at"] == "2026-11-29T23:00:00.000Z"
    assert found["times"]["zone"] == "printed"
    critical = [one for one in found["timeline"] if one["severity"] == "critical"]
    assert [one["at"] for one in critical] == ["2026-11-29T23:10:54.000Z"]
    assert "what happened (UTC)" in runs.overnight("report", log).stdout


def test_the_log_ends_with_each_bar_once(runs: Runs, work: Path) -> None:
    log = work / "bars.log"
    bar = "".join(f"\rEpoch 2/3:  {n}%|█  | {n}/100 [00:01<00:09, 9.1it/s, loss=2.{n}]" for n in range(100))
    log.write_text(lines(range(1, 41)) + bar + "\nsaving\n")
    assert value_of(runs, log)["last_lines"][-3:] == [
        lines([40]).strip(), "Epoch 2/3:  99%|█  | 99/100 [00:01<00:09, 9.1it/s, loss=2.99]", "saving",
    ]  # fmt: skip


def test_a_bar_with_its_loss_gets_a_pattern_that_reads_it(runs: Runs, work: Path) -> None:
    log = work / "bar.log"
    bar = "\r {n}%|█  | {n}/100 [00:01<00:09, 9.1it/s, loss={loss:.2f}]"
    log.write_text("".join(bar.format(n=n, loss=3 - n / 100) for n in range(1, 101)))
    why = value_of(runs, log)["log"]["why"]
    assert "it has a tqdm bar" in why
    pattern = re.search(r"--pattern '(.*)'", why)
    assert pattern is not None
    found = value_of(runs, log, "--pattern", pattern[1])
    assert (found["progress"]["step"], found["progress"]["records"]) == (100, 100)
    assert (found["progress"]["loss_first"], found["progress"]["loss_last"]) == (2.99, 2.0)


def test_steps_that_are_counted_anew_are_told_in_one_way(runs: Runs, work: Path) -> None:
    log = work / "epochs.log"
    log.write_text(
        "".join(
            f"Epoch [{epoch}/4], Step [{step}/150], Loss: {'nan' if (epoch, step) == (4, 120) else 5 - epoch}\n"
            for epoch in range(1, 5)
            for step in range(10, 151, 10)
        )
    )
    found = value_of(runs, log)
    assert (found["progress"]["step"], found["progress"]["step_in_all"]) == (150, 600)
    assert "step 150 of epoch 4 (600 in all)" in found["outcome"]["sentence"]
    loss = next(one for one in found["charts"] if one["name"] == "loss")
    assert (loss["x"][-1], loss["x_label"]) == (600, "total step")
    assert [(one["x"], one["severity"]) for one in loss["marks"]] == [(570, "critical")]
    assert (found["progress"]["loss_good"], found["progress"]["loss_good_step"]) == (1, 560)
    said = runs.overnight("report", log).stdout
    assert "150 of epoch 4 (600 in all)" in said
    assert "least 1 at total step 460" in said


def test_of_evaluations_alone_it_is_said_so(runs: Runs, work: Path) -> None:
    log = work / "evals.log"
    log.write_text("".join(f"iter {n}/1000 train_loss: 3.59 val_loss: 3.68\n" for n in range(0, 1000, 50)))
    found = value_of(runs, log)
    assert found["log"]["why"].startswith("only evaluations were read")
    assert "only evaluations were read" in found["outcome"]["sentence"]
    assert found["progress"]["eval"]["last"] == 3.68
    done = runs.overnight("read", log)
    assert done.stdout.startswith("Only evaluations were read from")


def test_what_is_no_text_is_refused(runs: Runs, work: Path) -> None:
    log = work / "model.pt"
    log.write_bytes(NOISE)
    done = runs.overnight("report", log)
    assert (done.returncode, done.stdout) == (2, "")
    assert "model.pt is not text" in done.stderr


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


@pytest.mark.parametrize(
    ("name", "data"),
    [
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
    # VmHWM, for ru_maxrss counts what the test's own process had before it became this one
    code = (
        "import re, sys; from overnight.cli import main; code = main(sys.argv[1:]); "
        "print(re.findall(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[0], file=sys.stderr); sys.exit(code)"
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

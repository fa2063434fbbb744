"""Rows A4-03, A4-04 and A4-06 through real runs: bars, streams without a newline, and what a terminal would obey.

The log stays as the training wrote it; the views are small, whole and harmless.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path

import pytest
from looking import PYTHON, Runs, until

FLOOD = """
import os, time
for metric in range(50):
    begin = metric * 2000
    bars = [
        f"\\r{at // 1000:3d}%|{'#' * (at // 10000):10}| {at}/100000 [00:09<00:11, 4999.00it/s]"
        for at in range(begin, begin + 2000)
    ]
    os.write(2, "".join(bars).encode())
    # by turns as tqdm.write prints it, behind the bar that stands there, and over it without a newline
    wiped = b"\\r" + b" " * 60 + b"\\r"
    line = b"step: %d, loss: %.3f, dt: 0.1" % (metric + 1, 3 - metric / 50)
    os.write(1, (wiped + line + b"\\n", b"\\n" + line + b"\\n", b"\\r" + line)[metric % 3])
    time.sleep(0.05)
os.write(2, b"\\r100%|##########| 100000/100000 [00:20<00:00, 5000.00it/s]\\n")
"""

ONLY_RETURNS = """
import sys, time
for step in range(1, 1000):
    sys.stdout.write(f"\\rstep {step} loss {2 + 1 / step:.4f}")
    sys.stdout.flush()
    time.sleep(1)
"""

ONLY_BARS = """
import sys, time
print("step: 1, loss: 3.5, dt: 0.1", flush=True)
for at in range(100000):
    sys.stderr.write(f"\\r{sys.argv[1]} {at % 100}%|####      | {at}/100000 [00:01<00:09, 9.9it/s]")
    time.sleep(0.1)
"""

TRICKS = {
    "title": "\x1b]0;owned\x07",
    "clipboard": "\x1b]52;c;cm0gLXJmIC8=\x07",
    "link": "\x1b]8;;http://evil\x1b\\click\x1b]8;;\x1b\\",
    "clear": "\x1b[2J\x1b[H",
    "answer": "\x1b[c\x1b[6n\x1bP$q\x1b\\",
    "c1": "\x9b31m\x90x\x9c",
    "bidi": "\u202egnp",
    "cut": "\x1b]52;c;",
}
NOISE = f"""
import os, sys, time
for number, trick in enumerate({[*TRICKS.values()]!r}):
    os.write(1, f"before{{number}} {{trick}} behind\\n".encode())
os.write(1, "step: 1, loss: 3.5, dt: 0.1\\n".encode("utf-16"))
os.write(1, b"\\xff\\xfe\\0\\0" + b"x" * (1 << 20) + b"\\r\\r\\n")
os.write(1, b"step: 2, loss: 3.25, dt: 0.1\\n")
time.sleep(float(sys.argv[1]))
message = {"cannot " + "".join(TRICKS.values()) + "go on"!r}
raise ValueError(message)
"""
HARMFUL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


def script(runs: Runs, source: str, *arguments: str) -> list[str]:
    path = runs.work / f"train-{abs(hash(source))}.py"
    path.write_text(source)
    return [PYTHON, str(path), *arguments]


def test_a4_03_a_flood_of_bars_leaves_every_metric_readable(runs: Runs) -> None:
    run = runs.start("flood", *script(runs, FLOOD), flags=["--steps", 50])
    assert run.wait(60) == 0
    assert len(run.log) > 5 << 20
    out = runs.overnight("logs", "flood").stdout
    assert len(out) < 100_000
    for metric in range(50):
        line = f"step: {metric + 1}, loss: {3 - metric / 50:.3f}, dt: 0.1"
        assert line in out.splitlines()
    assert out.splitlines()[-1].startswith("100%|##########| 100000/100000")
    raw = subprocess.run(["overnight", "logs", "--raw"], env=runs.env, capture_output=True, check=True).stdout
    assert raw == run.log
    lines = [json.loads(line) for line in runs.overnight("logs", "--json").stdout.splitlines()]
    assert [line["text"] for line in lines] == out.splitlines()
    assert all(raw[line["offset"] :].startswith(line["text"].encode()) for line in lines)
    assert (run.status["records"], run.status["step"]) == (50, 50)
    assert run.status["verdicts"] == []


def test_a4_04_a_step_a_second_without_any_newline_is_no_stall(runs: Runs) -> None:
    run = runs.start("returns", *script(runs, ONLY_RETURNS), flags=["--stall", "3s"])
    until(lambda: (run.status["step"] or 0) >= 6, "step 6, twice as long as the limit", 30)
    assert b"\n" not in run.log
    assert run.status["verdicts"] == []
    shown = runs.overnight("logs", "returns").stdout.splitlines()
    assert len(shown) == 1
    assert re.fullmatch(r"step \d+ loss 2\.\d+", shown[0])


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a4_03_a_bar_is_followed_at_a_pace_that_can_be_read(runs: Runs, form: list[str]) -> None:
    runs.start("bars", *script(runs, ONLY_BARS, "fit"), log=" 5/100000")
    began = time.monotonic()
    with subprocess.Popen(
        ["overnight", "logs", "bars", "-f", *form], env=runs.env, stdout=subprocess.PIPE, text=True
    ) as view:
        assert view.stdout is not None
        shown = [view.stdout.readline() for _ in range(5)]
        took = time.monotonic() - began
        view.terminate()
    texts = [json.loads(line)["text"] for line in shown] if form else [line.rstrip("\n") for line in shown]
    assert texts[0] == "step: 1, loss: 3.5, dt: 0.1"
    assert all(re.fullmatch(r"fit \d+%\|####      \| \d+/100000 .*", text) for text in texts[1:])
    assert took > 3.0, "four states of a bar"


def test_a_bar_is_drawn_in_place_on_a_terminal(runs: Runs) -> None:
    run = runs.start("bars", *script(runs, ONLY_BARS, "fit"), log=" 5/100000")
    view = runs.on_terminal("logs", "-f")
    until(lambda: view.shown.count(b"\r\x1b[Kfit ") > 5, "the bar moves")
    assert view.shown.startswith(b"step: 1, loss: 3.5, dt: 0.1\r\n")
    assert view.shown.count(b"\n") == 1
    run.stop("--now")
    assert view.wait() == 0
    assert re.search(rb"\r\x1b\[Kfit [^\r\n]*\r\n$", view.shown), "its last state stays"


@pytest.mark.parametrize("seconds", ["0", "600"])
def test_a4_06_nothing_that_a_training_prints_is_obeyed_by_a_terminal(runs: Runs, seconds: str) -> None:
    run = runs.start("noise", *script(runs, NOISE, seconds), log="step: 2")
    view = runs.on_terminal("attach", "noise")
    if seconds == "0":
        run.wait()
        view.wait()
    else:
        until(lambda: b"step: 2" in view.shown, "the view has shown it all")
    own = re.compile(rb"\r\x1b\[K|\r\n|\x1b\[\d*m")
    assert not HARMFUL.search(own.sub(b"\n", view.shown).decode("utf-8"))
    assert b"owned" not in view.shown
    for words in (["logs"], ["logs", "-n", "5"], ["status"], ["ls"], ["logs", "--json"], ["status", "--json"]):
        shown = runs.overnight(*words)
        assert shown.returncode == 0, shown.stderr
        assert not HARMFUL.search(shown.stdout)
        assert "owned" not in shown.stdout or words[-1] == "--json"
    lines = runs.overnight("logs").stdout.splitlines()
    assert sum(line.startswith("before") for line in lines) == len(TRICKS)
    assert "before2 click behind" in lines
    assert sum(len(line) for line in lines if set(line) == {"x"}) >= (1 << 20) - (1 << 17)
    assert run.status["step"] == 2
    raw = subprocess.run(["overnight", "logs", "--raw"], env=runs.env, capture_output=True, check=True).stdout
    assert raw == run.log


def test_a_log_of_a_gigabyte_would_be_viewed_in_little_memory(runs: Runs, tmp_path: Path) -> None:
    """Forty megabytes stand for it: one line of text without an end, and one of bars."""
    run = runs.start("long", "true")
    assert run.wait() == 0
    path = run.folder / "output.log"
    path.write_bytes(b"x" * (20 << 20) + b"\n" + b"\r 50%|####      | 5/10 [00:01<00:01, 9.9it/s]" * 450_000)
    measure = "import resource, subprocess, sys; code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL);"
    measure += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, code)"
    for words in (["logs", "long"], ["logs", "long", "-n", "3"], ["logs", "long", "--json"], ["attach", "long"]):
        said = subprocess.run(
            [PYTHON, "-c", measure, "overnight", *words], env=runs.env, capture_output=True, text=True, check=True
        )
        kib, code = map(int, said.stdout.split())
        assert code == 0
        assert kib < 60 * 1024, f"{words}: {kib} KiB"

"""``--watch`` as its viewers meet it: on a terminal that changes its size, into a pipe, until the end or Ctrl-C."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import termios
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from looking import Run, Runs, Terminal, toy, until

PIECE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+")


def screen(shown: bytes, columns: int, height: int) -> list[str]:
    """Return the lines that a terminal of this size shows after it was given these bytes."""
    rows, at, row = [""] * height, 0, 0
    for piece in PIECE.findall(shown.decode("utf-8", "replace")):
        if piece == "\x1b[H":
            row, at = 0, 0
        elif piece == "\x1b[2J":
            rows = [""] * height
        elif piece == "\x1b[K":
            rows[row] = rows[row][:at]
        elif piece == "\x1b[J":
            rows = [*rows[:row], rows[row][:at], *[""] * (height - row - 1)]
        elif piece == "\r":
            at = 0
        elif piece == "\n":
            if row == height - 1:
                rows = [*rows[1:], ""]
            row = min(row + 1, height - 1)
        elif not piece.startswith("\x1b"):
            assert at + len(piece) < columns, f"{piece!r} runs over the edge"
            rows[row] = rows[row][:at].ljust(at) + piece + rows[row][at + len(piece) :]
            at += len(piece)
    return [line.rstrip() for line in rows]


def resize(terminal: Terminal, columns: int, height: int) -> None:
    """Give the terminal another size; the kernel tells whoever is in its foreground."""
    fcntl.ioctl(terminal.master, termios.TIOCSWINSZ, struct.pack("HHHH", height, columns, 0, 0))


def shows(terminal: Terminal, what: Callable[[list[str]], Any], columns: int, height: int, said: str) -> list[str]:
    """Wait until the screen is as ``what`` wants it, and return it."""

    def look() -> list[str] | None:
        with contextlib.suppress(AssertionError):  # bytes of the old size, before the new one was known
            lines = screen(terminal.shown[terminal.shown.rfind(b"\x1b[2J") :], columns, height)
            return lines if what(lines) else None
        return None

    return until(look, f"{said}: {terminal.shown[-2500:]!r}", 20.0)


@pytest.fixture
def live(runs: Runs) -> Run:
    return runs.start("quiet", *toy("--steps", "100000", "--dt", "0.1"), log="step: 3")


def test_ls_is_redrawn_in_place_and_left_with_ctrl_c(runs: Runs, live: Run) -> None:
    terminal = runs.on_terminal("ls", "--watch", "--interval", "0.2")
    first = shows(terminal, lambda lines: "running" in lines[1], 80, 24, "the run is shown")
    assert first[0].split()[:2] == ["NAME", "STATE"]
    step = int(first[1].split()[2])
    later = shows(
        terminal, lambda lines: len(lines[1].split()) > 3 and int(lines[1].split()[2]) > step, 80, 24, "it moves"
    )
    assert [line for line in later if line] == later[:2], "one table, not one below the other"
    live.stop("--now")
    shows(terminal, lambda lines: "stopped (user)" in lines[1], 80, 24, "its end is shown, and the list goes on")
    terminal.type(b"\x03")
    assert terminal.wait() == 0
    assert b"Traceback" not in terminal.shown


def test_a_view_follows_the_size_of_its_terminal(runs: Runs, live: Run) -> None:
    for number in range(6):
        assert runs.start(f"short-{number}", "true").wait() == 0
    terminal = runs.on_terminal("ls", "--watch", "--interval", "1m")
    shows(terminal, lambda lines: lines[7].startswith("short-5"), 80, 24, "all are shown")
    resize(terminal, 100, 5)  # the interval is long: only the signal can make it look again
    small = shows(terminal, lambda lines: any("more lines" in line for line in lines), 100, 5, "it fits")
    assert small[0].startswith("NAME")
    assert small[1] == "... 4 more lines"
    assert [line.split()[0] for line in small[2:]] == ["short-3", "short-4", "short-5"]
    resize(terminal, 50, 30)
    shows(terminal, lambda lines: lines[7].startswith("short-5"), 50, 30, "nothing runs over a narrow edge")
    terminal.type(b"\x03")
    assert terminal.wait() == 0


def test_status_is_watched_until_the_end(runs: Runs, live: Run) -> None:
    terminal = runs.on_terminal("status", "quiet", "--watch", "--interval", "0.3")
    shows(terminal, lambda lines: lines[0] == "quiet: running", 80, 24, "the page is shown")
    assert runs.overnight("note", "quiet", "seen").returncode == 0
    shows(terminal, lambda lines: any("user: seen" in line for line in lines), 80, 24, "a note appears")
    live.stop("--now")
    assert terminal.wait() == 0
    last = terminal.shown[terminal.shown.rfind(b"\x1b[H") :].decode()
    assert "quiet: stopped (user)" in last
    assert last.endswith("\r\n"), "the shell's prompt comes below"


class Piped:
    """A command of ours whose output is read line by line."""

    def __init__(self, runs: Runs, *words: str) -> None:
        self.process = subprocess.Popen(
            ["overnight", *words],
            env=runs.env,
            cwd=runs.work,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.out = self.process.stdout


@pytest.fixture
def piped(runs: Runs) -> Iterator[Callable[..., Piped]]:
    started: list[Piped] = []

    def start(*words: str) -> Piped:
        started.append(Piped(runs, *words))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()


@pytest.mark.parametrize("verb", ["ls", "status"])
def test_json_is_a_document_for_each_change(live: Run, piped: Callable[..., Piped], verb: str) -> None:
    viewer = piped(verb, "--watch", "--json", "--interval", "0.1")
    found = [json.loads(viewer.out.readline()) for _ in range(3)]
    steps = [(one[0] if verb == "ls" else one)["step"] for one in found]
    assert steps == sorted(steps)
    assert steps[0] < steps[2]
    live.stop("--now")
    if verb == "status":
        rest = [json.loads(line) for line in viewer.out]
        assert rest[-1]["state"] == "stopped"
    else:
        viewer.process.send_signal(signal.SIGINT)
    assert viewer.process.wait(20) == 0


def test_a_pipe_gets_snapshots_one_after_the_other(live: Run, piped: Callable[..., Piped]) -> None:
    viewer = piped("status", "quiet", "--watch", "--interval", "0.1")
    until_second = (line for line in viewer.out if line.startswith("--- "))
    assert re.fullmatch(r"--- 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ ---\n", next(until_second))
    next(until_second)
    live.stop("--now")
    rest = viewer.out.read()
    assert "quiet: stopped (user)" in rest
    assert "\x1b" not in rest
    assert viewer.process.wait(20) == 0


def test_a_view_ends_when_nobody_reads_it_any_more(runs: Runs, piped: Callable[..., Piped]) -> None:
    assert runs.start("done", "true").wait() == 0
    viewer = piped("ls", "--watch", "--json", "--interval", "0.1")
    viewer.out.readline()
    viewer.out.close()  # nothing changes any more that could be printed
    assert viewer.process.wait(20) == 141


def cpu_s(pid: int) -> float:
    """Return the processor time that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("words", [["ls", "--watch"], ["status", "still", "--watch"]])
def test_a_view_at_rest_costs_little(runs: Runs, piped: Callable[..., Piped], words: Sequence[str]) -> None:
    """By processor time, so that a busy machine changes nothing."""
    runs.start("still", "sleep", "600", flags=["--action", "stall=note"])
    viewer = piped(*words)
    viewer.out.readline()
    before, waited = cpu_s(viewer.process.pid), 0
    with contextlib.suppress(subprocess.TimeoutExpired):
        waited = viewer.process.wait(6.0)
    assert waited == 0
    assert viewer.process.poll() is None
    assert cpu_s(viewer.process.pid) - before < 0.3, "5% of a core would be 0.3 s in these 6"

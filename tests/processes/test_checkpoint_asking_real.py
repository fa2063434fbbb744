"""Signals to real processes: a group that gets Ctrl-C, forked children, handlers that Python does not know of."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import pytest

PRELUDE = """
import faulthandler, os, select, signal, sys, time
from overnight.checkpoint.asking import Asking

def say(text):
    print("said:", text, flush=True)

def until(seen):
    end = time.monotonic() + 60
    while not seen():
        assert time.monotonic() < end
        time.sleep(0.002)

def all_sent():
    # What is pending arrives before this returns.
    assert os.read(0, 1) == b"."

asking = Asking(say=say)
"""


def run(script: str, *sent: int, group: bool = False) -> tuple[int, str]:
    """Run a script, send it the signals once it has printed "ready"; return its exit code and what it printed.

    Once all are sent, one byte comes to its stdin.
    """
    with subprocess.Popen(
        [sys.executable, "-c", PRELUDE + script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        printed = ""
        for line in process.stdout:
            printed += line
            if line == "ready\n":
                for number in sent:
                    (os.killpg if group else os.kill)(process.pid, number)
                with contextlib.suppress(BrokenPipeError):  # it has ended, as it should for some
                    os.write(process.stdin.fileno(), b".")
    return process.returncode, printed


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2])
def test_a_step_is_finished_whatever_comes(number: signal.Signals) -> None:
    code, printed = run(
        """
asking.listen()
print("ready", flush=True)
until(lambda: asking.asked)
print(asking.asked, asking.at <= time.monotonic(), "the rest of the step", flush=True)
""",
        number,
    )
    assert (code, printed) == (0, f"ready\n{number.name} True the rest of the step\n")


def test_a_hail_of_signals_breaks_nothing() -> None:
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2] * 100
    code, printed = run(
        """
asking.listen()
print("ready", flush=True)
until(lambda: asking.asked)
with open(os.devnull, "wb") as stream:
    while not select.select([0], [], [], 0)[0]:
        stream.write(b"x" * 1000)
all_sent()
print("saved", flush=True)
""",
        *numbers,
    )
    assert (code, printed) == (0, "ready\nsaved\n")


def test_afterwards_signals_do_what_they_did_before() -> None:
    script = """
asking.listen()
asking.unlisten()
print("ready", flush=True)
all_sent()
"""
    assert run(script, signal.SIGTERM)[0] == -signal.SIGTERM
    assert run(script, signal.SIGUSR1)[0] == -signal.SIGUSR1


def test_a_left_over_chain_passes_on_what_it_no_longer_wants() -> None:
    code, printed = run(
        """
asking.listen()
ours = signal.getsignal(signal.SIGTERM)
signal.signal(signal.SIGTERM, lambda *given: ours(*given))  # a library that chains to what it has found
asking.unlisten()
print("ready", flush=True)
all_sent()
""",
        signal.SIGTERM,
    )
    assert code == -signal.SIGTERM, printed


CHILD = """
asking.listen()
child = os.fork()
if child == 0:
    print("ready", flush=True)
    {child}
    os._exit(7)
{parent}
_, status = os.waitpid(child, 0)
print("child", os.waitstatus_to_exitcode(status), asking.asked, flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2])
def test_a_forked_worker_outlives_what_its_whole_group_gets(number: signal.Signals) -> None:
    """Ctrl-C and schedulers signal all; a data worker that died of it would take the training's save along."""
    code, printed = run(CHILD.format(child="all_sent()", parent="until(lambda: asking.asked)"), number, group=True)
    assert (code, printed) == (0, f"ready\nchild 7 {number.name}\n")


def test_a_forked_worker_can_be_ended_by_its_parent() -> None:
    """Process.terminate() is SIGTERM: a handler that only takes a note would make join() wait for ever."""
    parent = "all_sent(); os.kill(child, signal.SIGTERM)"
    code, printed = run(CHILD.format(child="time.sleep(60)", parent=parent))
    assert (code, printed) == (0, f"ready\nchild {-signal.SIGTERM} None\n")


def test_a_handler_that_python_does_not_know_of_is_left_alone() -> None:
    code, printed = run(
        """
faulthandler.register(signal.SIGUSR1, file=open(os.devnull, "w"))
asking.listen()
print("ready", flush=True)
all_sent()
asking.unlisten()
print("asked:", asking.asked, flush=True)
signal.raise_signal(signal.SIGUSR1)  # still not deadly
""",
        signal.SIGUSR1,
    )
    assert code == 0
    assert printed.splitlines()[0].startswith("said: SIGUSR1 already has a handler outside Python")
    assert "asked: None" in printed

"""One look at the GPUs by another process: what it says, that it may hang or die, and that there is never a second."""

from __future__ import annotations

import os
import sys
import time

import pytest
from looking import alive, until

from overnight.clocks import boot_clock
from overnight.sensors.gpulook import HANGS, GpuLook, Seen

pytestmark = pytest.mark.timeout(60)

LINE = '{"kind":"gpu","at":1.5,"gpus":[{"index":0,"processes":[]}]}'


def looks(code: str, limit_s: float = 20.0) -> tuple[GpuLook, Seen]:
    """Let another program be asked, and be the supervisor's loop until it is over."""
    look = GpuLook([sys.executable, "-I", "-S", "-c", code])
    look.limit_s = limit_s
    return look, ended(look)


def ended(look: GpuLook) -> Seen:
    seen = look.begin(boot_clock())
    while seen is None:
        wait_s = look.next_look_s(boot_clock())
        assert wait_s is not None
        began = boot_clock()
        seen = look.turn(boot_clock())
        assert boot_clock() - began < 1.0, "it must not wait"
        time.sleep(min(0.05, wait_s))
    assert look.next_look_s(boot_clock()) is None
    assert look.turn(boot_clock()) is None
    return seen


def test_the_last_line_is_the_sample() -> None:
    _, seen = looks(f"import time; print('warming up'); time.sleep(0.3); print('{LINE}')")
    assert seen.sample is not None
    assert (seen.sample.at, seen.sample.gpus[0].processes, seen.hangs) == (1.5, (), False)


def test_a_long_line_is_read_while_it_is_written() -> None:
    text = LINE.replace('"processes":[]', '"name":"\'+300000*\'x\'+\'","processes":[]')
    _, seen = looks(f"print('{text}')")
    assert seen.sample is not None
    assert len(seen.sample.gpus[0].name or "") == 300_000


@pytest.mark.parametrize("code", ["pass", "print('no json')", "import os; os.kill(os.getpid(), 9)"])
def test_one_that_says_nothing_is_a_trouble(code: str) -> None:
    _, seen = looks(code)
    assert seen.sample is None
    assert seen.trouble
    assert not seen.hangs


def test_a_sample_with_an_exit_status_is_a_sample() -> None:
    _, seen = looks('import sys; print(\'{"kind":"gpu","at":1,"trouble":"no driver"}\'); sys.exit(3)')
    assert seen.sample is not None
    assert seen.sample.trouble == "no driver"


def test_one_that_hangs_is_ended_and_another_may_follow() -> None:
    began = time.monotonic()
    look, seen = looks("import time; time.sleep(60)", limit_s=0.5)
    assert time.monotonic() - began < 20
    assert seen.hangs
    assert seen.trouble == f"{HANGS} within 0.5 s"
    assert look.stuck is not None
    gone = look.stuck
    until(lambda: not alive(gone), "it is killed")
    look.words[-1] = f"print('{LINE}')"
    look.limit_s = 20.0
    assert ended(look).sample is not None


def test_one_that_cannot_be_ended_is_followed_by_none() -> None:
    look, _ = looks(f"print('{LINE}')")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # stands for a process within the driver
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    look.stuck = child
    seen = look.begin(boot_clock())
    assert seen is not None
    assert seen.hangs
    assert str(child) in (seen.trouble or "")
    os.close(writing)
    until(lambda: look.begin(boot_clock()) is None, "it has ended")
    look.close()


def test_a_program_that_is_not_there_is_a_trouble() -> None:
    seen = GpuLook(["/no/such/python"]).begin(boot_clock())
    assert seen is not None
    assert "could be started: No such file" in (seen.trouble or "")
    assert not seen.hangs


def test_nothing_is_left_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for code in (f"print('{LINE}')", "pass"):
        looks(code)
    looks("import time; time.sleep(60)", limit_s=0.2)
    assert len(os.listdir("/proc/self/fd")) == before

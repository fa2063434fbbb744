"""The process that saves beside a training: what it survives, what it leaves behind, and that every byte arrives."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from looking import PYTHON, Run, alive, read, state_of, until

from overnight.checkpoint import staging
from overnight.checkpoint.errors import SaveError
from overnight.checkpoint.jobs import Job, Leaf, Outcome
from overnight.checkpoint.leaves import Apart, buffer
from overnight.checkpoint.link import Link
from overnight.targets import find_targets

np = pytest.importorskip("numpy")

SOURCE = Path(__file__).parents[2] / "src"
# Stands in for what writes checkpoints: a file of all bytes, under its name only when whole. While a file "hold" is in
# the folder it waits, having said by a file "begun" that it does.
STAND_IN = """
import os, time
from overnight.checkpoint.jobs import Outcome

def perform(job, data):
    folder = job.folder
    open(f"{folder}/begun", "w").close()
    while os.path.exists(f"{folder}/hold"):
        time.sleep(0.005)
    with open(f"{folder}/part", "wb") as out:
        for one in data:
            out.write(one)
    os.rename(f"{folder}/part", f"{folder}/step-{job.step}")
    return Outcome(step=job.step, path=f"{folder}/step-{job.step}", size=sum(map(len, data)))

def breaks(job, data):
    raise ZeroDivisionError("a fault of ours")
"""
# A training without a main guard. It says the writer's pid, and does what the test asks for in between.
TRAINING = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
from overnight.checkpoint.jobs import Job
from overnight.checkpoint.leaves import Apart
from overnight.checkpoint.link import Link

folder = sys.argv[1] if len(sys.argv) > 1 else FOLDER

def job_of(step, *values):
    apart = Apart()
    for at, value in enumerate(values):
        apart.tree(value, (at,))
    return Job(folder=folder, step=step, manifest={}, files=(), leaves=tuple(apart.leaves)), apart.live

lock = os.open(f"{folder}/LOCK", os.O_RDWR | os.O_CREAT)
link = Link(Path(folder), lock, perform="stand_in:perform")
job, live = job_of(7, np.arange(100_000))
"""
WHOLE = b"".join(number.to_bytes(8, "little") for number in range(100_000))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for checkpoints; the stand-in can be imported by this process and by its writers."""
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "stand_in.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(str(modules))
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    return folder


@pytest.fixture
def link(place: Path) -> Iterator[Link]:
    """Return a link to a writer that is not started yet; at the end it is closed and nothing of it is left."""
    before = handles()
    found = Link(place, None, perform="stand_in:perform")
    yield found
    (place / "hold").unlink(missing_ok=True)
    pid = found.pid
    found.close()
    assert pid is None or state_of(pid) == "", "a writer is left, or a zombie of it"
    assert handles() == before


def handles() -> list[str]:
    """Return what this process has open of the kinds that a link opens."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        if target.startswith(("socket:", "/memfd:overnight")):
            found.append(target)
    return sorted(found)


def job_of(place: Path, step: int, *values: Any) -> tuple[Job, list[Any]]:
    """Return a job that saves some values, and its live tensors."""
    apart = Apart()
    for at, value in enumerate(values):
        apart.tree(value, (at,))
    return Job(folder=str(place), step=step, manifest={}, files=(), leaves=tuple(apart.leaves)), apart.live


def outcome_of(link: Link) -> Outcome:
    """Wait for what became of a job."""
    found = link.wait(60)
    assert found is not None, "no outcome within a minute"
    return found


def held(link: Link, place: Path, step: int = 1) -> None:
    """Submit a job whose writing stands still until the file "hold" is removed, and return when it does."""
    (place / "hold").touch()
    link.submit(*job_of(place, step, np.arange(1000)))
    until((place / "begun").exists, "the writer begins", 60)


class Training:
    """A training in a process of its own."""

    def __init__(self, place: Path, then: str, *words: str, source: str = TRAINING) -> None:
        self.place = place
        path = f"{SOURCE}:{place.parent / 'modules'}"
        text = f"FOLDER = {str(place)!r}\n" + source + textwrap.dedent(then)
        if words:
            # Isolated or on the command line: no environment says where our sources are.
            text = f"import sys; sys.path[:0] = {path.split(':')!r}\n" + text
            command = [PYTHON, *words, "-c", text]
        else:
            (place.parent / "train.py").write_text(text)
            command = [PYTHON, str(place.parent / "train.py"), str(place)]
        self.process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def line(self) -> str:
        """Return the next line that it prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> str:
        """Return all else that it prints until it has ended."""
        return self.process.communicate(timeout=60)[0]

    def kill(self) -> None:
        """End it as nothing can prevent."""
        self.process.kill()
        if self.process.stdout is not None and not self.process.stdout.closed:
            self.process.communicate()


@pytest.fixture
def train(place: Path) -> Iterator[Callable[..., Training]]:
    """Return a function that starts a training; all of them are ended, and so are their writers."""
    started: list[Training] = []

    def start(then: str, *words: str, source: str = TRAINING) -> Training:
        started.append(Training(place, then, *words, source=source))
        return started[-1]

    yield start
    (place / "hold").unlink(missing_ok=True)
    for one in started:
        one.kill()


# --- what arrives -----------------------------------------------------------------------------------------------------


def test_every_kind_of_array_arrives_byte_for_byte(link: Link, place: Path) -> None:
    values = [
        np.arange(12, dtype="float64").reshape(3, 4).T,
        np.arange(20, dtype="int16")[::3],
        np.float32(2.5),
        np.zeros((0, 3)),
        np.array([True, False]),
        np.array([1 + 2j], dtype="complex128"),
        np.arange(5, dtype=">i4"),
        np.broadcast_to(np.arange(3), (2, 3)),
        np.array(7),
    ]
    job, live = job_of(place, 1, *values)
    assert link.submit(job, live) > 0
    assert link.busy == job
    outcome = outcome_of(link)
    assert link.busy is None
    assert (outcome.error, outcome.step) == (None, 1)
    little = [np.asarray(one).astype(np.asarray(one).dtype.newbyteorder("<")) for one in values]
    assert (place / "step-1").read_bytes() == b"".join(one.tobytes() for one in little)


def test_every_kind_of_tensor_arrives_byte_for_byte(link: Link, place: Path) -> None:
    torch = pytest.importorskip("torch")
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    values = [
        base,
        base.t(),
        base[1:3, 2:5],
        torch.arange(3).expand(5, 3),
        torch.tensor(3.5),
        torch.empty(0, 4),
        base.bfloat16(),
        base > 3,
        torch.randn(5, dtype=torch.complex64),
        torch.randn(5, dtype=torch.complex64).conj(),
        torch.randn(4, dtype=torch.complex128),
        torch.nn.Parameter(torch.randn(3, 3)),
        torch.tensor([1, 2], dtype=torch.uint16),
        torch.randn(6).to(torch.float8_e4m3fn),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.full((300_000,), 1.25),
        *(torch.full((3,), float(at)) for at in range(500)),
    ]
    for step, change in ((1, 0.0), (2, 1.0)):  # the second save copies to the places of the first
        with torch.no_grad():
            values[11].add_(change)
        job, live = job_of(place, step, *values)
        link.submit(job, live)
        assert outcome_of(link).error is None
        assert (place / f"step-{step}").read_bytes() == b"".join(bytes(buffer(one)) for one in live)
    assert (place / "step-1").read_bytes() != (place / "step-2").read_bytes()


def test_what_is_saved_is_the_state_at_the_call(link: Link, place: Path) -> None:
    torch = pytest.importorskip("torch")
    weights, array = torch.zeros(50_000), np.zeros(50_000)
    (place / "hold").touch()
    link.submit(*job_of(place, 1, weights, array))
    weights.add_(1.0)
    array += 1.0
    (place / "hold").unlink()
    assert outcome_of(link).error is None
    assert set((place / "step-1").read_bytes()) == {0}


def test_a_state_may_grow_and_shrink_between_saves(link: Link, place: Path) -> None:
    link.warm(10, torch=False)
    for step, size in enumerate((10, 3_000_000, 7, 6_000_000)):
        array = np.arange(size)
        link.submit(*job_of(place, step, array))
        assert outcome_of(link).error is None
        assert (place / f"step-{step}").read_bytes() == array.tobytes()


def test_a_default_device_of_the_training_changes_nothing(link: Link, place: Path) -> None:
    torch = pytest.importorskip("torch")
    values = torch.arange(5.0)
    torch.set_default_device("meta")
    try:
        link.submit(*job_of(place, 1, values))
    finally:
        torch.set_default_device(None)
    assert outcome_of(link).error is None
    assert (place / "step-1").read_bytes() == values.numpy().tobytes()


def test_an_outcome_is_told_once_and_waiting_has_a_limit(link: Link, place: Path) -> None:
    assert link.poll() is None
    assert link.wait() is None
    held(link, place)
    assert link.poll() is None
    assert link.wait(0.05) is None
    with pytest.raises(SaveError, match="step 2 cannot be saved while step 1 is being written"):
        link.submit(*job_of(place, 2, np.arange(3)))
    (place / "hold").unlink()
    found = until(link.poll, "an outcome")
    assert (found.step, found.error) == (1, None)
    assert link.poll() is None


def test_close_waits_for_the_job_in_flight(link: Link, place: Path) -> None:
    link.submit(*job_of(place, 5, np.arange(10)))
    link.close()
    assert (place / "step-5").exists()
    found = link.poll()
    assert found is not None
    assert (found.step, found.error) == (5, None)
    link.submit(*job_of(place, 6, np.arange(10)))  # and it can be used again
    assert outcome_of(link).step == 6


def test_it_writes_what_the_real_writing_writes(place: Path) -> None:
    torch = pytest.importorskip("torch")
    from overnight.checkpoint import manifest
    from overnight.checkpoint.jobs import FilePlan

    apart = Apart()
    state = {"a": torch.randn(20, 20), "b": torch.randn(7).bfloat16()}
    plans = (
        FilePlan(name="model.safetensors", form="safetensors", tree=apart.tree(state, ())),
        FilePlan(name="train_state.pt", form="torch", tree=apart.tree({"x": torch.arange(9), "lr": 0.5}, ())),
    )
    facts = {"step": 3, "run": "r", "reason": "asked"}
    link = Link(place, None)
    try:
        link.submit(Job(folder=str(place), step=3, manifest=facts, files=plans, leaves=tuple(apart.leaves)), apart.live)
        outcome = outcome_of(link)
    finally:
        link.close()
    assert outcome.error is None
    assert outcome.path is not None
    found = Path(outcome.path)
    manifest.check_content(found, manifest.read(found))
    loaded = torch.load(found / "train_state.pt", weights_only=True)
    assert torch.equal(loaded["x"], torch.arange(9))
    assert loaded["lr"] == 0.5


# --- the training dies ------------------------------------------------------------------------------------------------


def test_a_training_killed_right_after_a_submit_still_gets_its_checkpoint(
    place: Path, train: Callable[..., Training]
) -> None:
    then = "link.submit(job, live); print(link.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    training = train(then)
    pid = int(training.line())
    training.end()
    until(lambda: not alive(pid), "the writer ends by itself", 60)
    assert (place / "step-7").read_bytes() == WHOLE


def test_a_training_killed_during_a_write_still_gets_its_checkpoint(
    place: Path, train: Callable[..., Training]
) -> None:
    (place / "hold").touch()
    training = train("link.submit(job, live); print(link.pid, flush=True); time.sleep(100)")
    pid = int(training.line())
    until((place / "begun").exists, "the writer begins", 60)
    training.kill()
    assert alive(pid)
    (place / "hold").unlink()
    until(lambda: not alive(pid), "the writer ends by itself", 60)
    assert (place / "step-7").read_bytes() == WHOLE


def test_a_training_killed_while_it_copies_leaves_nothing(place: Path, train: Callable[..., Training]) -> None:
    then = """
    from overnight.checkpoint.staging import Arena
    link.warm(1 << 20, torch=False)
    copy = Arena.copy
    def dying(self, live, leaves):
        copy(self, live[:1], leaves[:1])
        print(link.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    Arena.copy = dying
    link.submit(*job_of(8, np.arange(50_000), np.arange(60_000)))
    """
    training = train(then)
    pid = int(training.line())
    training.end()
    until(lambda: not alive(pid), "the writer ends by itself", 60)
    assert sorted(path.name for path in place.iterdir()) == ["LOCK"]


def test_a_child_that_lives_on_does_not_keep_the_writer(place: Path, train: Callable[..., Training]) -> None:
    # Forked in C: no hook of Python closes anything in it.
    then = """
    import ctypes
    link.submit(job, live)
    link.wait()
    child = ctypes.PyDLL(None).fork()
    if child == 0:
        while True: time.sleep(1)
    print(link.pid, child, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    training = train(then)
    pid, child = map(int, training.line().split())
    try:
        until(lambda: not alive(pid), "the writer ends by itself", 60)
    finally:
        os.kill(child, signal.SIGKILL)


def test_the_lock_is_held_until_the_writer_has_ended(place: Path, train: Callable[..., Training]) -> None:
    import fcntl

    (place / "hold").touch()
    training = train("import fcntl; fcntl.flock(lock, fcntl.LOCK_EX); link.submit(job, live); print(flush=True)")
    training.line()
    until((place / "begun").exists, "the writer begins", 60)
    training.kill()
    with (place / "LOCK").open() as stream:
        with pytest.raises(BlockingIOError):
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (place / "hold").unlink()
        fcntl.flock(stream, fcntl.LOCK_EX)
    assert (place / "step-7").exists()


# --- the writer dies --------------------------------------------------------------------------------------------------


def test_a_writer_killed_while_busy_is_an_error_and_the_next_save_works(link: Link, place: Path) -> None:
    held(link, place, step=3)
    old = link.pid
    assert old is not None
    os.kill(old, signal.SIGKILL)
    outcome = outcome_of(link)
    assert outcome.step == 3
    assert outcome.error is not None
    assert f"was saving step 3 to {place} was ended by SIGKILL" in outcome.error
    assert link.busy is None
    assert state_of(old) == ""
    (place / "hold").unlink()
    link.submit(*job_of(place, 4, np.arange(10)))
    assert link.pid not in (None, old)
    assert outcome_of(link).error is None
    assert not (place / "step-3").exists()


@pytest.mark.parametrize("looked", [True, False])
def test_a_writer_killed_while_idle_costs_no_save(link: Link, place: Path, looked: bool) -> None:
    link.submit(*job_of(place, 1, np.arange(10)))
    assert outcome_of(link).error is None
    old = link.pid
    assert old is not None
    os.kill(old, signal.SIGKILL)
    until(lambda: not alive(old), "it is dead")
    if looked:
        outcome = until(link.poll, "its end is noticed")
        assert outcome.error is not None
        assert "had nothing to do" in outcome.error
    link.submit(*job_of(place, 2, np.arange(10)))
    found = outcome_of(link)
    assert (found.step, found.error) == (2, None)
    assert link.poll() is None


def test_a_fault_of_the_writer_is_told_with_its_last_words(place: Path) -> None:
    link = Link(place, None, perform="stand_in:breaks")
    link.submit(*job_of(place, 1, np.arange(10)))
    error = outcome_of(link).error
    assert error is not None
    assert "ended with exit code 1: ZeroDivisionError: a fault of ours" in error
    link.close()


def test_signals_to_all_around_it_do_nothing_to_it(place: Path, train: Callable[..., Training]) -> None:
    (place / "hold").touch()
    then = """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT):
        signal.signal(number, lambda *_: None)
    link.submit(job, live)
    os.killpg(0, signal.SIGTERM)
    print(link.pid, flush=True)
    while (outcome := link.wait(1)) is None: pass
    print(outcome.error)
    """
    training = train(then)
    pid = int(training.line())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT):
        os.killpg(training.process.pid, number)
        os.kill(pid, number)
    until((place / "begun").exists, "the writer begins", 60)
    assert os.getsid(pid) == pid
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(pid, number)
    (place / "hold").unlink()
    assert training.end().strip() == "None"
    assert (place / "step-7").read_bytes() == WHOLE


# --- how trainings are started ----------------------------------------------------------------------------------------

PLAIN = "link.submit(job, live); print(link.wait().error); link.close()"


@pytest.mark.parametrize("words", [(), ("-X", "dev"), ("-I",), ("-S", "-E")], ids=["script", "dev", "isolated", "bare"])
def test_any_way_to_start_python_will_do(place: Path, train: Callable[..., Training], words: tuple[str, ...]) -> None:
    # Without site-packages numpy must be found by the path that is handed over, as by the writer.
    path = f"import sys; sys.path += {[one for one in sys.path if 'site-packages' in one]!r}\n"
    training = train(PLAIN, *words, source=path + TRAINING)
    assert training.end().strip() == "None"
    assert (place / "step-7").read_bytes() == WHOLE


def test_it_works_in_an_interpreter_without_a_script(place: Path, train: Callable[..., Training]) -> None:
    source = "import sys; sys.argv = ['']; sys.path.insert(0, '')\n" + TRAINING
    training = train(PLAIN, "-X", "utf8", source=source)
    assert training.end().strip() == "None"
    assert (place / "step-7").read_bytes() == WHOLE


@pytest.mark.parametrize("missing", ["", "/nowhere/python"])
def test_without_an_interpreter_it_says_what_else_to_do(
    link: Link, place: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setattr(sys, "executable", missing)
    with pytest.raises(SaveError, match="async_=False"):
        link.submit(*job_of(place, 1, np.arange(10)))
    monkeypatch.undo()


def test_an_interpreter_that_is_none_is_an_error(link: Link, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/true")
    link.submit(*job_of(place, 1, np.arange(10)))
    error = outcome_of(link).error
    assert error is not None
    assert "was saving step 1" in error


def test_data_workers_keep_neither_socket_nor_lock_nor_memory(place: Path, train: Callable[..., Training]) -> None:
    then = """
    link.submit(job, live)
    link.wait()
    said, ours = os.pipe()
    if os.fork() == 0:
        links = [f"/proc/self/fd/{fd}" for fd in range(3, 40)]
        names = [os.readlink(one) for one in links if os.path.lexists(one)]
        bad = [name for name in names if "LOCK" in name or "memfd" in name or "socket:" in name]
        maps = "memfd" in open("/proc/self/maps").read()
        os.write(ours, repr((bad, maps)).encode())
        job, live = job_of(9, np.arange(100_000))
        link.submit(job, live)  # a child that goes on as the training has a writer of its own
        ok = link.wait().error
        os.write(ours, repr(ok).encode())
        link.close()
        os._exit(0)
    os.wait()
    print(os.read(said, 1000).decode())
    link.submit(job, live)
    print(link.wait().error)
    """
    training = train(then)
    assert training.end().split("\n")[:2] == ["([], False)None", "None"]
    assert (place / "step-9").read_bytes() == WHOLE


def test_two_hundred_saves_leave_nothing_open(link: Link, place: Path) -> None:
    job, live = job_of(place, 1, np.arange(100))
    link.submit(job, live)
    outcome_of(link)
    assert link.pid is not None
    here, there = len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/{link.pid}/fd"))
    for _ in range(200):
        link.submit(job, live)
        assert outcome_of(link).error is None
    assert (len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/{link.pid}/fd"))) == (here, there)


# --- memory -----------------------------------------------------------------------------------------------------------


def test_a_limit_of_file_sizes_is_a_save_error(link: Link, place: Path) -> None:
    link.submit(*job_of(place, 1, np.arange(10)))
    assert outcome_of(link).error is None
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(SaveError, match=r"ulimit -f.*async_=False"):
            link.submit(*job_of(place, 2, np.zeros(1 << 20)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    link.submit(*job_of(place, 3, np.zeros(1 << 20)))
    assert outcome_of(link).error is None


def test_a_limit_of_address_space_is_a_save_error(place: Path, train: Callable[..., Training]) -> None:
    then = """
    import resource
    from overnight.checkpoint.errors import SaveError
    array = np.zeros(64 << 20, dtype="uint8")
    link.submit(job, live); link.wait()
    size = int(open("/proc/self/statm").read().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (size + (32 << 20), -1))
    try: link.submit(*job_of(8, array))
    except SaveError as error: print(error)
    resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
    link.submit(*job_of(9, array)); print(link.wait().error)
    """
    said = train(then).end().splitlines()
    assert "0.07 GB of shared memory" in said[0]
    assert "async_=False" in said[0]
    assert said[1] == "None"


def test_memory_that_is_not_there_is_a_save_error(link: Link, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "free_memory", lambda: 100 << 20)
    with pytest.raises(SaveError, match=r"takes 0.13 GB of memory, and 0.10 GB are free; use async_=False"):
        link.submit(*job_of(place, 1, np.zeros(16_000_000)))
    link.submit(*job_of(place, 2, np.zeros(1_000_000)))
    assert outcome_of(link).error is None


def test_memory_that_runs_out_half_way_is_given_back(link: Link, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.posix_fallocate

    def short(fd: int, offset: int, length: int) -> None:
        if offset > 20 << 20:
            raise OSError(12, "Cannot allocate memory")
        real(fd, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", short)
    link.submit(*job_of(place, 1, np.zeros(10)))
    outcome_of(link)
    with pytest.raises(SaveError, match=r"beyond the memory that is free.*Cannot allocate memory"):
        link.submit(*job_of(place, 2, np.zeros(8_000_000)))
    assert "memfd:overnight-staging" not in Path("/proc/self/maps").read_text()
    monkeypatch.setattr(os, "posix_fallocate", real)
    link.submit(*job_of(place, 3, np.zeros(8_000_000)))
    assert outcome_of(link).error is None


def test_the_writer_takes_little_memory_beside_the_shared(link: Link, place: Path) -> None:
    size = 50_000_000
    link.submit(*job_of(place, 1, np.zeros(size, dtype="uint8")))
    assert outcome_of(link).error is None
    fields = dict(line.split(":", 1) for line in read(f"/proc/{link.pid}/status").decode().splitlines() if ":" in line)
    assert int(fields["RssAnon"].split()[0]) < 40_000, "it has made a copy"
    assert int(fields["VmHWM"].split()[0]) * 1024 < size + 60_000_000


def test_a_job_that_cannot_be_handed_over_is_a_save_error(link: Link, place: Path) -> None:
    job = Job(folder=str(place), step=1, manifest={"x": lambda: 0}, files=(), leaves=())
    with pytest.raises(SaveError, match="cannot be handed to another process"):
        link.submit(job, [])
    link.submit(*job_of(place, 2, np.arange(3)))
    assert outcome_of(link).error is None


def test_leaves_lie_apart_on_pages_of_their_own() -> None:
    assert staging.Arena.offsets([1, 4096, 0, 4097]) == [0, 4096, 8192, 8192, 16384]
    assert Leaf(kind="numpy", dtype="F32", shape=(), size=4).size == 4


# --- Overnight stops the training, not its writer ---------------------------------------------------------------------

STOPPED = """
def leave(*_):
    global asked
    asked = True
asked = False
signal.signal(signal.SIGTERM, leave)
link.submit(job, live)
print("writer", link.pid, flush=True)
while not asked: time.sleep(0.01)
print("asked", flush=True)
os.remove(f"{folder}/hold")
print("outcome", link.wait().error, flush=True)
link.close()
"""


def test_stop_signals_the_training_and_not_its_writer(place: Path, start: Callable[..., Run]) -> None:
    (place / "hold").touch()
    script = place.parent / "train.py"
    path = [str(SOURCE), str(place.parent / "modules")]
    script.write_text(f"import sys; sys.path[:0] = {path!r}\n{TRAINING}{STOPPED}")
    run = start("saves", PYTHON, str(script), str(place), log="writer ")
    until((place / "begun").exists, "the writer begins", 60)
    targets = find_targets(run.command)
    assert targets.pids == (run.command,)
    done = run.stop()
    assert done.returncode == 0, done.stderr
    run.wrote("outcome None")
    assert run.wait() in (0, 130, 143) or run.status["state"] == "stopped"
    assert (place / "step-7").read_bytes() == WHOLE


@pytest.mark.parametrize("deaf", [False, True])
def test_a_training_that_waits_for_a_child_is_still_the_training(
    place: Path, train: Callable[..., Training], deaf: bool
) -> None:
    """One that waits looks like a launcher; started with & in a script it ignores SIGINT just as its writer does."""
    then = f"""
    if {deaf}: signal.signal(signal.SIGINT, signal.SIG_IGN)
    link.submit(job, live); link.wait()
    print(link.pid, flush=True)
    os.waitpid(link.pid, 0)
    """
    training = train(then)
    pid = int(training.line())
    try:
        wchan = Path(f"/proc/{training.process.pid}/wchan")
        until(lambda: wchan.read_text().strip() in ("do_wait", "0"), "it waits")
        assert find_targets(training.process.pid).pids == (training.process.pid,)
    finally:
        training.kill()
        until(lambda: not alive(pid), "the writer ends by itself", 60)

"""The walk from a command to its training, on real trees: shells, wrappers, launchers, workers, ranks."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from overnight import processes
from overnight.clearing import kill_all
from overnight.targets import Program, choose_signal, find_targets, python_program

pytestmark = pytest.mark.timeout(90)

PYTHON = sys.executable
# A training: says where it is by a file of its pid, and waits as a step waits.
TRAIN = "import os,time\nopen(f'main.{os.getpid()}', 'w').close()\nwhile True: time.sleep(0.05)\n"
FORKS = """
import os, time
for _ in range(4):
    if os.fork() == 0:
        time.sleep(1000)
open(f'main.{os.getpid()}', 'w').close()
os.wait()
"""
POOL = """
import multiprocessing, os, time
def work(n):
    return n
if __name__ == '__main__':
    with multiprocessing.get_context('METHOD').Pool(2) as pool:
        pool.map(work, range(8))
        open(f'main.{os.getpid()}', 'w').close()
        pool.apply(time.sleep, (1000,))
"""
DEAF_CHILD = """
import os, subprocess, sys
text = "import signal,time; signal.signal(signal.SIGINT, signal.SIG_IGN); open('deaf', 'w').close(); time.sleep(1000)"
child = subprocess.Popen([sys.executable, '-c', text])
while not os.path.exists('deaf'):
    pass
open(f'main.{os.getpid()}', 'w').close()
child.wait()
"""
LOADER = """
import os, time, torch
from torch.utils.data import DataLoader, Dataset
class Rows(Dataset):
    def __len__(self): return 10**6
    def __getitem__(self, at): return torch.zeros(2)
if __name__ == '__main__':
    torch.set_num_threads(1)
    if 'RANK' in os.environ:
        import torch.distributed as dist
        dist.init_process_group('gloo')
        dist.barrier()
    for step, rows in enumerate(DataLoader(Rows(), batch_size=2, num_workers=2, multiprocessing_context='fork')):
        if step == 3: open(f'main.{os.getpid()}', 'w').close()
        time.sleep(0.02)
"""
HELPER = """
import os, subprocess
open(f'main.{os.getpid()}', 'w').close()
subprocess.run(['./nvidia-smi', '1000'])
"""


class Tree:
    """A command in a folder of its own, with the trainings that have said where they are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.command: subprocess.Popen[bytes] | None = None
        self.script("train.py", TRAIN)
        self.script("logger.py", "import sys\nfor line in sys.stdin: pass\n")

    def script(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(0o755)

    def start(self, argv: list[str], **env: str) -> int:
        with (self.folder / "log").open("wb") as log:
            self.command = subprocess.Popen(
                argv,
                cwd=self.folder,
                env={**os.environ, **env, "OVERNIGHT_RUN_DIR": str(self.folder)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self.command.pid

    def mains(self, count: int = 1, limit_s: float = 60.0) -> tuple[int, ...]:
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            found = sorted(int(path.suffix[1:]) for path in self.folder.glob("main.*"))
            if len(found) >= count:
                return tuple(found)
            time.sleep(0.01)
        pytest.fail(f"the training did not begin: {(self.folder / 'log').read_text()}")

    def expect(self, command: int, mains: tuple[int, ...]) -> None:
        """Fail unless the walk comes to ``mains``, at first sight or when the launchers settled, and stays."""
        end = time.monotonic() + 5
        while tuple(sorted(find_targets(command).pids)) != mains and time.monotonic() < end:
            time.sleep(0.02)
        for _ in range(3):
            assert tuple(sorted(find_targets(command).pids)) == mains, self.drawing(command)

    def drawing(self, command: int) -> str:
        pids = [command, *processes.descendants(command)]
        return "\n".join(f"{pid} {processes.cmdline(pid)} {processes.read_proc(pid, 'wchan')!r}" for pid in pids)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    made = Tree(tmp_path)
    yield made
    if made.command is not None:
        made.command.kill()  # first: a pool would replace its workers as fast as they are killed
        left = kill_all([made.command.pid], run_dir=tmp_path, limit_s=5).left
        made.command.wait()
        assert not left


SHELL_LINES = {
    "a next command": f"{PYTHON} train.py; echo next",
    "and": f"{PYTHON} train.py && echo next",
    "a pipe into tee": f"{PYTHON} train.py 2>&1 | tee -a x.log",
    "a pipe into a logger in python": f"{PYTHON} train.py 2>&1 | {PYTHON} logger.py; true",
    "a pipe into a loop": f"{PYTHON} train.py 2>&1 | while read line; do echo $line; done",
    "a subshell": f"(cd . && {PYTHON} train.py; true); true",
    "a background child and a trap": f"trap 'kill $child' TERM; {PYTHON} train.py & child=$!; wait",
    "a launcher in the background": f"timeout 1000 {PYTHON} train.py & wait; true",
    "a watcher beside it": f"while sleep 1; do date; done > watch.log & {PYTHON} train.py; true",
    "a shell within a shell": f"bash -c '{PYTHON} train.py; true'; true",
}


@pytest.mark.parametrize("line", SHELL_LINES.values(), ids=SHELL_LINES.keys())
@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_below_a_shell(tree: Tree, shell: str, line: str) -> None:
    command = tree.start([shell, "-c", line])
    mains = tree.mains()
    tree.expect(command, mains)
    found = find_targets(command)
    assert found.shells[0] == command, "the shell on the path is to be frozen"
    assert not set(found.pids) & set(found.shells)


def test_below_a_script_with_a_next_command(tree: Tree) -> None:
    tree.script("run.sh", f"#!/bin/bash\n{PYTHON} train.py\necho next\n")
    command = tree.start(["bash", "run.sh"])
    tree.expect(command, tree.mains())
    assert find_targets(command).shells == (command,)


WRAPPED = {
    "plain": [PYTHON, "train.py"],
    "env": ["env", "X=1", PYTHON, "train.py"],
    "nice": ["nice", "-n", "1", PYTHON, "train.py"],
    "nohup": ["nohup", PYTHON, "train.py"],
    "timeout": ["timeout", "1000", PYTHON, "train.py"],
    "setsid": ["setsid", "-w", PYTHON, "train.py"],
    "stdbuf": ["stdbuf", "-oL", PYTHON, "train.py"],
    "timeout in a shell in timeout": ["timeout", "1000", "sh", "-c", f"timeout 999 {PYTHON} train.py; true"],
    "os.system": [PYTHON, "-c", f"import os; os.system('{PYTHON} train.py')"],
    "os.system of two commands": [PYTHON, "-c", f"import os; os.system('{PYTHON} train.py; true')"],
    "timeout and os.system": ["timeout", "1000", PYTHON, "-c", f"import os; os.system('{PYTHON} train.py')"],
    "subprocess.run": [PYTHON, "-c", f"import subprocess; subprocess.run(['{PYTHON}', 'train.py'])"],
    "Popen and wait": [PYTHON, "-c", f"import subprocess; subprocess.Popen(['{PYTHON}', 'train.py']).wait()"],
    "a launcher that reads a pipe": [
        PYTHON,
        "-c",
        f"import subprocess; [0 for x in subprocess.Popen(['{PYTHON}', 'train.py'], stdout=-1).stdout]",
    ],
    "a launcher in a launcher": [
        PYTHON,
        "-c",
        f"import subprocess; subprocess.run(['{PYTHON}', '-c', \"import os; os.system('{PYTHON} train.py')\"])",
    ],
}


@pytest.mark.parametrize("argv", WRAPPED.values(), ids=WRAPPED.keys())
def test_below_a_wrapper(tree: Tree, argv: list[str]) -> None:
    command = tree.start(argv)
    tree.expect(command, tree.mains())


def test_below_a_shim_that_execs(tree: Tree) -> None:
    tree.script("python", f'#!/usr/bin/env bash\nset -e\nexec "{PYTHON}" "$@"\n')
    command = tree.start([str(tree.folder / "python"), "train.py"])
    assert tree.mains() == (command,)
    tree.expect(command, (command,))


def test_below_uv_run(tree: Tree) -> None:
    uv = Path(PYTHON).with_name("uv")
    if not uv.exists():
        pytest.skip("uv is not installed beside this Python")
    command = tree.start(
        [str(uv), "run", "--no-project", "--offline", "--python", PYTHON, "python", "train.py"],
        UV_CACHE_DIR=str(tree.folder / "cache"),
    )
    mains = tree.mains()
    assert mains != (command,), "uv stays as the parent"
    tree.expect(command, mains)


@pytest.mark.parametrize(
    "text",
    [
        FORKS,
        POOL.replace("METHOD", "spawn"),
        POOL.replace("METHOD", "fork"),
        POOL.replace("METHOD", "forkserver"),
        DEAF_CHILD,
    ],
    ids=["four forks", "spawn pool", "fork pool", "forkserver pool", "a child that ignores SIGINT"],
)
@pytest.mark.parametrize("wrapped", [False, True], ids=["alone", "below a shell"])
def test_workers_are_never_targets(tree: Tree, text: str, *, wrapped: bool) -> None:
    tree.script("train.py", text)
    command = tree.start(["sh", "-c", f"{PYTHON} train.py; true"] if wrapped else [PYTHON, "train.py"])
    tree.expect(command, tree.mains())


def test_a_helper_of_the_training_is_no_target(tree: Tree) -> None:
    sleep = shutil.which("sleep")
    assert sleep is not None
    shutil.copy(sleep, tree.folder / "nvidia-smi")
    tree.script("train.py", HELPER)
    command = tree.start([PYTHON, "train.py"])
    mains = tree.mains()
    end = time.monotonic() + 10
    while not processes.children(command) and time.monotonic() < end:
        time.sleep(0.01)
    tree.expect(command, mains)


def test_a_training_that_catches_sigterm_is_not_looked_through(tree: Tree) -> None:
    tree.script(
        "job.py",
        "import os,signal,subprocess,sys\nsignal.signal(signal.SIGTERM, lambda *a: None)\n"
        "open(f'main.{os.getpid()}', 'w').close()\n"
        "subprocess.run([sys.executable, '-c', 'import time; time.sleep(1000)'])\n",
    )
    command = tree.start([PYTHON, "job.py"])
    assert tree.mains() == (command,)
    tree.expect(command, (command,))


def test_sampling_can_be_left_out(tree: Tree) -> None:
    command = tree.start(WRAPPED["subprocess.run"])
    tree.mains()
    assert find_targets(command, sample=False).pids == (command,)


def test_nobody_below_a_shell_leaves_the_shell_and_nobody_at_all_nothing(tree: Tree) -> None:
    command = tree.start(["bash", "-c", "sleep 1000; true"])
    end = time.monotonic() + 10
    # Until it has executed `sleep` the child is a second bash.
    while time.monotonic() < end and ("sleep", "1000") not in map(processes.cmdline, processes.children(command)):
        time.sleep(0.01)
    assert find_targets(command).pids == (command,)
    assert find_targets(2**22 - 1).pids == ()


@pytest.mark.timeout(120)
def test_a_loader_of_torch(tree: Tree) -> None:
    pytest.importorskip("torch")
    tree.script("train.py", LOADER)
    command = tree.start([PYTHON, "train.py"])
    assert tree.mains() == (command,)
    assert len(processes.children(command)) >= 2
    tree.expect(command, (command,))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", ["torchrun", "module"])
def test_the_ranks_of_torchrun(tree: Tree, how: str) -> None:
    pytest.importorskip("torch")
    tree.script("train.py", LOADER)
    program = (
        [str(Path(PYTHON).with_name("torchrun"))] if how == "torchrun" else [PYTHON, "-m", "torch.distributed.run"]
    )
    command = tree.start(
        [
            *program,
            "--nproc-per-node",
            "2",
            "--master-addr",
            "127.0.0.1",
            "--master-port",
            str(free_port()),
            "train.py",
        ],
        GLOO_SOCKET_IFNAME="lo",
        OMP_NUM_THREADS="1",
    )
    mains = tree.mains(2)
    assert len(mains) == 2
    tree.expect(command, mains)
    found = find_targets(command)
    assert found.launchers == (command,)
    assert found.shells == ()


# --- which signal -----------------------------------------------------------------------------------------------------

SCRIPTS: dict[str, tuple[str, signal.Signals]] = {
    "no handler": ("", signal.SIGINT),
    "TERM only": ("signal.signal(signal.SIGTERM, print)", signal.SIGTERM),
    "both": ("signal.signal(signal.SIGTERM, print); signal.signal(signal.SIGINT, print)", signal.SIGINT),
    "TERM and KeyboardInterrupt": ("signal.signal(signal.SIGTERM, print)  # or KeyboardInterrupt", signal.SIGINT),
    "INT only": ("signal.signal(signal.SIGINT, print)", signal.SIGINT),
    "INT ignored": ("signal.signal(2, signal.SIG_IGN)", signal.SIGTERM),
    "INT ignored, TERM caught": ("signal.signal(2, signal.SIG_IGN); signal.signal(15, print)", signal.SIGTERM),
}


@pytest.mark.parametrize(("text", "wanted"), SCRIPTS.values(), ids=SCRIPTS.keys())
@pytest.mark.parametrize("how", ["script", "module", "command"])
def test_the_first_signal(tree: Tree, text: str, wanted: signal.Signals, how: str) -> None:
    whole = f"import os, signal, time\n{text}\n{TRAIN}"
    tree.script("job.py", whole)
    argv = {"script": ["-u", "job.py", "--lr", "1"], "module": ["-m", "job"], "command": ["-c", whole]}[how]
    command = tree.start([PYTHON, *argv])
    tree.mains()
    assert choose_signal(command) is wanted
    assert choose_signal(command, "int") is signal.SIGINT
    assert choose_signal(command, "term") is signal.SIGTERM


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("sleep 1000; true", signal.SIGTERM),
        ("trap 'exit 3' INT; sleep 1000; true", signal.SIGINT),
        ("trap 'exit 3' TERM INT; sleep 1000; true", signal.SIGTERM),
        ("trap 'exit 3' SIGTERM; sleep 1000; true", signal.SIGTERM),
    ],
)
def test_the_first_signal_of_a_shell(tree: Tree, text: str, wanted: signal.Signals) -> None:
    command = tree.start(["bash", "-c", text])
    end = time.monotonic() + 10
    while processes.cmdline(command) != ("bash", "-c", text) and time.monotonic() < end:
        time.sleep(0.01)  # until it has executed bash it is another Python
    assert choose_signal(command) is wanted


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("python train.py -m x", Program(kind="script", text="train.py")),
        ("python -u -W ignore -X dev train.py", Program(kind="script", text="train.py")),
        ("python -uWignore train.py", Program(kind="script", text="train.py")),
        ("python -um torch.distributed.run train.py", Program(kind="module", text="torch.distributed.run")),
        ("python -mtorch.distributed.run", Program(kind="module", text="torch.distributed.run")),
        ("python -Ic pass", Program(kind="command", text="pass")),
        ("python --check-hash-based-pycs always train.py", Program(kind="script", text="train.py")),
        ("python -", None),
        ("python", None),
        ("python -m", Program(kind="module", text="")),
    ],
)
def test_what_a_python_runs(line: str, wanted: Program | None) -> None:
    assert python_program(tuple(line.split())) == wanted


# --- reading /proc ----------------------------------------------------------------------------------------------------


def test_a_name_with_parentheses_and_newlines_is_read_right(tree: Tree) -> None:
    name = ") S 1 (a\nb"
    sleep = shutil.which("sleep")
    assert sleep is not None
    shutil.copy(sleep, tree.folder / name)
    command = tree.start([f"./{name}", "1000"])
    seen = processes.stat(command)
    end = time.monotonic() + 5
    while (seen is None or seen.comm != name) and time.monotonic() < end:
        seen = processes.stat(command)
    assert seen is not None
    assert (seen.comm, seen.ppid, seen.session) == (name, os.getpid(), command)


def _wait_until(look: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not look():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.parametrize("how", ["code", "signal"])
def test_the_exit_of_a_zombie_and_of_a_reaped_process(how: str) -> None:
    child = subprocess.Popen(
        [PYTHON, "-S", "-c", "import os,sys; sys.stdin.read(); " + ("os._exit(7)" if how == "code" else "os.abort()")],
        stdin=-1,
    )
    identity = processes.identify(child.pid)
    assert identity is not None
    handle = os.pidfd_open(child.pid)
    try:
        assert processes.is_alive(identity)
        assert processes.exit_of(handle, child.pid) is None
        assert child.stdin is not None
        child.stdin.close()
        _wait_until(lambda: not processes.is_alive(identity))
        wanted = (7, None) if how == "code" else (None, "SIGABRT")
        zombie = processes.exit_of(handle, child.pid)
        assert zombie is not None
        assert (zombie.exit_code, zombie.signal) == wanted
        child.wait()
        reaped = processes.exit_of(handle, child.pid)
        if tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 15):
            assert reaped is not None
            assert (reaped.exit_code, reaped.signal) == wanted
        assert not processes.is_alive(identity)
        assert processes.identify(child.pid) is None
    finally:
        child.wait()
        os.close(handle)


def test_another_boot_or_start_is_another_process() -> None:
    me = processes.identify(os.getpid())
    assert me is not None
    assert processes.is_alive(me)
    assert not processes.is_alive(processes.Identity(pid=me.pid, start_ticks=me.start_ticks + 1, boot_id=me.boot_id))
    assert not processes.is_alive(processes.Identity(pid=me.pid, start_ticks=me.start_ticks, boot_id="another"))
    assert not processes.send(me.pid, me.start_ticks + 1, signal.SIGKILL)


def test_signals_by_name() -> None:
    assert [processes.signal_name(number) for number in (2, 9, 11, 15)] == ["SIGINT", "SIGKILL", "SIGSEGV", "SIGTERM"]
    assert processes.signal_name(signal.SIGRTMIN + 3) == "SIGRTMIN+3"


def test_files_open_for_writing_are_seen_growing(tree: Tree) -> None:
    tree.script(
        "train.py",
        "import os,time\nr=open('train.py'); w=open('model.pt','wb',0); a=open('a.log','ab')\n"
        "u=open('gone','wb'); os.unlink('gone')\n"
        "w.write(b'x'*1000); open(f'main.{os.getpid()}','w').close()\nwhile not os.path.exists('go'): time.sleep(.01)\n"
        "w.write(b'x'*500); open('done','w').close(); time.sleep(1000)\n",
    )
    command = tree.start([PYTHON, "train.py"])
    tree.mains()
    files = processes.writable_files([command])
    log = str(tree.folder / "log")
    assert files == {str(tree.folder / "model.pt"): 1000, str(tree.folder / "a.log"): 0, log: 0}
    (tree.folder / "go").touch()
    _wait_until((tree.folder / "done").exists)
    assert processes.writable_files([command])[str(tree.folder / "model.pt")] == 1500

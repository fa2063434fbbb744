"""The fence of a resume proof, with real programs behind it: what they may do, what they may not, and what they say."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from overnight.resumeproof import fence
from overnight.resumeproof.denials import advice, denied

needs_fence = pytest.mark.skipif(not fence.available(), reason="this kernel has no Landlock, or it may not be used")
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

Try = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a folder that may be written to; beside it lies `mine`, which may not."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "empty").mkdir()
    (tmp_path / "mine" / "last.pt").write_text("precious")
    (tmp_path / "mine" / "second.pt").write_text("precious too")
    (tmp_path / "mine" / "third.pt").write_text("precious too")
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


@pytest.fixture
def trying(place: Path) -> Try:
    """Return a function that runs a command in the place, behind a fence."""

    def run(
        *command: str, allowed: Sequence[str] = (), code: int | None = None, **others: object
    ) -> subprocess.CompletedProcess[str]:
        argv = fence.fenced(command, [str(place), *allowed])
        done = subprocess.run(argv, cwd=place, capture_output=True, text=True, timeout=100, check=False, **others)  # type: ignore[call-overload]
        if code is not None:
            assert done.returncode == code, done.stderr
        return done

    return run


@pytest.fixture
def short() -> Iterator[Path]:
    """Return a folder for TMPDIR whose name is short enough for sockets in it."""
    with tempfile.TemporaryDirectory(prefix="ov-") as folder:
        yield Path(folder)


def look(folder: Path) -> dict[str, tuple[object, ...]]:
    """Return all that is in a folder, with bytes and times."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            path.lstat().st_ino,
            path.lstat().st_mtime_ns,
            path.read_bytes() if path.is_file() else None,
        )
        for path in [folder, *folder.rglob("*")]
    }


# -- what is allowed -------------------------------------------------------------------------------------------------


@needs_fence
def test_in_its_place_a_shell_may_do_everything(place: Path, trying: Try) -> None:
    script = """
        set -e
        mkdir -p a/b c
        echo one > a/b/x; echo two >> a/b/x
        mv a/b/x c/y                      # from one folder to another
        mkdir d; mv c d/c
        ln -s d/c/y link; ln d/c/y hard
        mkfifo pipe
        truncate -s 3 hard
        rm -r a; chmod 600 hard
        cat /etc/passwd > /dev/null       # reading is free
        echo x > /dev/shm/ov-fence-$$; rm /dev/shm/ov-fence-$$
    """
    trying("bash", "-c", script, code=0)
    assert (place / "d" / "c" / "y").read_text() == "one"
    assert not (place / "a").exists()


@needs_fence
def test_a_rename_from_one_allowed_folder_to_another(place: Path, tmp_path: Path, trying: Try) -> None:
    (tmp_path / "other").mkdir()
    (place / "x").write_text("x")
    (place / "folder").mkdir()
    code = "import os; os.rename('x', '../other/x'); os.rename('folder', '../other/folder'); os.link('../other/x', 'y')"
    trying(sys.executable, "-c", code, allowed=[str(tmp_path / "other")], code=0)
    assert (tmp_path / "other" / "x").read_text() == "x"
    assert (tmp_path / "other" / "folder").is_dir()


@needs_fence
def test_the_log_is_appended_to_by_name_too(place: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("first\n")
    argv = fence.fenced(
        ["bash", "-c", "echo second; echo third >> /dev/stderr; echo fourth >> /dev/stdout"], [str(log)]
    )
    with log.open("a") as stream:
        done = subprocess.run(argv, cwd=place, stdout=stream, stderr=stream, check=False)
    assert done.returncode == 0
    assert log.read_text().splitlines() == ["first", "second", "third", "fourth"]
    gone = fence.fenced(["rm", "-f", str(log)], [str(log)])
    assert subprocess.run(gone, capture_output=True, check=False).returncode != 0, (
        "a file to write to may not be removed"
    )


@needs_fence
def test_memory_and_pipes_are_no_files_of_the_user(trying: Try) -> None:
    code = """
import multiprocessing, os
from multiprocessing.shared_memory import SharedMemory
made = SharedMemory(create=True, size=10); made.close(); made.unlink()
handle = os.memfd_create('m')
open(f'/proc/self/fd/{handle}', 'w').write('x')
read, write = os.pipe()
open(f'/proc/self/fd/{write}', 'w').write('x')
def work(queue, lock):
    with lock:
        queue.put(os.getpid())
if __name__ == '__main__':
    context = multiprocessing.get_context('fork')
    queue, lock = context.Queue(), context.Lock()  # a semaphore of POSIX
    child = context.Process(target=work, args=(queue, lock))
    child.start(); print(queue.get(timeout=60) == child.pid); child.join()
"""
    assert trying(sys.executable, "-W", "ignore", "-c", code, code=0).stdout.split() == ["True"]


@needs_fence
def test_sqlite_works_in_the_place_only(place: Path, tmp_path: Path, trying: Try) -> None:
    code = """
import sqlite3, sys
made = sqlite3.connect(sys.argv[1]); made.execute('pragma journal_mode=wal'); made.execute('create table a (b)')
made.execute('insert into a values (1)'); made.commit(); made.close()
"""
    trying(sys.executable, "-c", code, "inside.db", code=0)
    assert (place / "inside.db").exists()
    done = trying(sys.executable, "-c", code, str(tmp_path / "mine" / "outside.db"), code=1)
    found = denied(done.stderr, allowed=[str(place)], cwd=str(place))
    assert found is not None
    assert found.path is None
    assert not (tmp_path / "mine" / "outside.db").exists()


# -- what is not -----------------------------------------------------------------------------------------------------

ATTEMPTS = """
import ctypes, json, os, shutil, socket, subprocess, sys
mine = sys.argv[1]
last = mine + '/last.pt'
libc = ctypes.CDLL(None, use_errno=True)
def mount():
    if libc.mount(mine.encode(), os.getcwd().encode(), None, 4096, None) != 0:
        raise OSError(ctypes.get_errno(), 'mount')
def unshare():
    if os.path.exists('/usr/bin/unshare'):
        subprocess.run(['unshare', '-r', '-m', 'sh', '-c', f'echo x > {last}'], check=True, stderr=subprocess.DEVNULL)
    else:
        raise OSError('no unshare')
tries = {
    'write': lambda: open(last, 'w'),
    'append': lambda: open(last, 'a'),
    'update': lambda: open(last, 'r+b'),
    'truncate': lambda: os.truncate(last, 0),
    'create': lambda: open(mine + '/create', 'x'),
    'remove': lambda: os.unlink(mine + '/second.pt'),
    'remove folder': lambda: os.rmdir(mine + '/empty'),
    'make folder': lambda: os.mkdir(mine + '/make folder'),
    'link': lambda: os.symlink('x', mine + '/link'),
    'pipe': lambda: os.mkfifo(mine + '/pipe'),
    'device': lambda: os.mknod(mine + '/device', 0o600 | 0o020000, os.makedev(1, 3)),
    'socket': lambda: socket.socket(socket.AF_UNIX).bind('../mine/s'),
    'rename in': lambda: (open('x', 'w').close(), os.rename('x', mine + '/rename in')),
    'rename over': lambda: (open('x', 'w').close(), os.replace('x', last)),
    'rename out': lambda: os.rename(mine + '/third.pt', 'stolen'),
    'hard link': lambda: os.link(last, 'shared'),
    'through a link': lambda: (os.symlink(last, 'l'), open('l', 'w')),
    'by the root of a process': lambda: open('/proc/self/root' + last, 'w'),
    'by the root of init': lambda: open('/proc/1/root' + last, 'w'),
    'by a handle': lambda: open(f'/proc/self/fd/{os.open(last, os.O_RDONLY)}', 'w'),
    'unnamed': lambda: os.open(mine, os.O_TMPFILE | os.O_WRONLY),
    'copy': lambda: shutil.copy(__file__, mine + '/copy'),
    'child': lambda: subprocess.run(['sh', '-c', f'echo x > {last}'], check=True, stderr=subprocess.DEVNULL),
    'session': lambda: subprocess.run(['sh', '-c', f'echo x > {last}'], check=True, stderr=-3, start_new_session=True),
    'mount': mount,
    'unshare': unshare,
    'fence of its own': lambda: subprocess.run(sys.argv[2:] + ['sh', '-c', f'echo x > {last}'], check=True, stderr=-3),
    'rename within': lambda: os.rename(last, mine + '/other'),
    'rename folder': lambda: os.rename(mine, mine + '2'),
}
if len(sys.argv) == 3:  # without a fence these would change more than the folder of the test
    del tries['mount'], tries['unshare']
done = []
for name, attempt in tries.items():
    try:
        attempt()
    except (OSError, subprocess.CalledProcessError):
        pass
    else:
        done.append(name)
print(json.dumps([len(tries), done]))
"""


@needs_fence
def test_a_script_that_tries_hard_writes_nowhere_else(place: Path, tmp_path: Path, trying: Try) -> None:
    before = look(tmp_path / "mine")
    (place / "try.py").write_text(ATTEMPTS)
    wider = fence.fenced([], [str(tmp_path)])
    tried, done = json.loads(trying(sys.executable, "try.py", str(tmp_path / "mine"), *wider, code=0).stdout)
    assert tried == 29
    assert done == []
    assert look(tmp_path / "mine") == before


@needs_fence
def test_the_attempts_do_succeed_without_a_fence(place: Path, tmp_path: Path) -> None:
    (place / "try.py").write_text(ATTEMPTS)
    argv = [sys.executable, "try.py", str(tmp_path / "mine"), "env"]
    done = subprocess.run(argv, cwd=place, capture_output=True, text=True, check=True)
    succeeded = set(json.loads(done.stdout)[1])
    assert {"write", "append", "truncate", "create", "remove", "make folder", "link", "pipe", "socket"} <= succeeded
    assert {"rename in", "rename over", "rename out", "copy", "child", "session", "fence of its own"} <= succeeded


@needs_fence
@pytest.mark.parametrize("known", [1, 2, 3, 7])
def test_an_older_kernel_takes_fewer_rights_and_still_fences(place: Path, tmp_path: Path, known: int) -> None:
    rights = fence.handled(known)
    assert bool(rights & fence.REFER) == (known >= 2)
    assert bool(rights & fence.TRUNCATE) == (known >= 3)
    assert rights.bit_length() <= {1: 13, 2: 14}.get(known, 15), "a right that such a kernel does not know is refused"
    assert not rights & 0b1101, "reading and executing stay free"
    code = f"""
import os, sys
sys.path.insert(0, {str(Path(fence.__file__).parent)!r})
import fence
fence.put_up([{str(place)!r}], known={known})
open('x', 'w').close()
os.mkdir('d')
for name, attempt in dict(
    write=lambda: open({str(tmp_path / "mine" / "last.pt")!r}, 'w'),
    truncate=lambda: os.truncate({str(tmp_path / "mine" / "last.pt")!r}, 4),
    move=lambda: os.rename('x', 'd/x'),
).items():
    try:
        attempt()
        print(name)
    except OSError:
        pass
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=place, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    expected = {"truncate"} if known == 1 else {"truncate", "move"} if known == 2 else {"move"}
    assert set(done.stdout.split()) == expected


# -- becoming the command --------------------------------------------------------------------------------------------


@needs_fence
@pytest.mark.parametrize("how", [[str(Path(fence.__file__))], ["-m", "overnight.resumeproof.fence"]])
def test_nothing_of_ours_is_left_after_exec(place: Path, how: list[str]) -> None:
    code = (
        "import json, os, signal; status = dict(one.split(':', 1) for one in open('/proc/self/status'));"
        "print(json.dumps([sorted(os.listdir('/proc/self/fd')), open('/proc/self/environ').read(), os.getcwd(), "
        "open('/proc/self/cmdline').read(), open(os.path.join('/proc', str(os.getppid()), 'comm')).read(), "
        "status['SigBlk'].strip(), os.umask(0), os.stat(0).st_ino, os.isatty(1)]))"
    )
    command = [sys.executable, "-I", "-S", "-c", code, "with blanks", ""]
    environ = {"PATH": os.environ["PATH"], "A": "1", "B": "x=y", "PYTHONPATH": "/nowhere"}
    seen = []
    for argv in (command, [sys.executable, "-I", *how, "--allow", str(place), "--", *command]):
        with (place / "stdin").open("w+") as stdin:
            done = subprocess.run(
                argv, cwd=place, env=environ, stdin=stdin, capture_output=True, text=True, check=True, pass_fds=[]
            )
        seen.append(json.loads(done.stdout))
    assert seen[0] == seen[1]
    assert "LC_CTYPE" not in seen[1][1]


@needs_fence
def test_inherited_handles_are_still_open(trying: Try) -> None:
    read, write = os.pipe()
    os.write(write, b"from outside")
    os.close(write)
    try:
        assert trying("cat", f"/proc/self/fd/{read}", pass_fds=[read], code=0).stdout == "from outside"
    finally:
        os.close(read)


@needs_fence
def test_no_signal_is_ignored_in_the_command(trying: Try) -> None:
    done = trying("grep", "SigIgn", "/proc/self/status", code=0)
    ignored = int(done.stdout.split()[1], 16)
    assert not ignored & (1 << (signal.SIGPIPE - 1))
    assert not ignored & (1 << (signal.SIGXFSZ - 1))


@needs_fence
def test_root_is_fenced_in_too_and_gains_nothing(trying: Try) -> None:
    status = dict(one.split(":", 1) for one in trying("cat", "/proc/self/status", code=0).stdout.splitlines())
    assert status["NoNewPrivs"].strip() == "1"
    assert int(status["Uid"].split()[0]) == os.getuid()


@needs_fence
def test_a_command_that_cannot_be_executed(place: Path, trying: Try) -> None:
    (place / "plain").write_text("echo hello\n")
    (place / "empty").write_text("echo hello\n")
    (place / "empty").chmod(stat.S_IRWXU)
    (place / "odd").write_text("#!/no/such/interpreter\n")
    (place / "odd").chmod(stat.S_IRWXU)
    assert "nosuchprogram: command not found" in trying("nosuchprogram", code=127).stderr
    assert trying("./nosuch", code=127).stderr == "./nosuch: No such file or directory\n"
    assert trying("./plain", code=126).stderr == "./plain: Permission denied\n"
    assert "put '#!/bin/sh'" in trying("./empty", code=126).stderr
    assert "names an interpreter in its first line that does not exist" in trying("./odd", code=127).stderr
    (place / "folder").mkdir()
    assert trying("./folder", code=126).stderr == "./folder: Permission denied\n"


@needs_fence
def test_it_is_found_on_the_path_as_a_shell_does(place: Path, trying: Try) -> None:
    for name, text in (("first", "no program"), ("second", "#!/bin/sh\necho second $1\n")):
        (place / name).mkdir()
        (place / name / "tool").write_text(text)
    (place / "second" / "tool").chmod(0o755)
    environ = {"PATH": f"{place}/first:second:/bin:/usr/bin"}
    assert trying("tool", "a", code=0, env=environ).stdout == "second a\n"
    done = trying("tool", env={"PATH": f"{place}/first"}, code=126)
    assert done.stderr == f"{place}/first/tool: Permission denied\n"


def test_wrong_use_runs_nothing() -> None:
    for words in ([], ["--"], ["--allow"], ["--allow", "x"], ["true"]):
        argv = [sys.executable, "-I", "-S", fence.__file__, *words]
        assert subprocess.run(argv, capture_output=True, check=False).returncode == 126, words


@needs_fence
def test_without_a_fence_nothing_is_started(place: Path) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(Path(fence.__file__).parent)!r})
import fence
fence.RESTRICT_SELF = 100000  # a kernel that does not have it
fence.main(['--', 'touch', 'made'])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 126
    assert "so touch was not started" in done.stderr
    assert not (place / "made").exists()


def test_it_needs_little_of_the_standard_library() -> None:
    """It starts in front of every run, as root's and as anybody's, with no site packages to be found."""
    argv = [sys.executable, "-I", "-S", "-X", "importtime", fence.__file__, "--", "true"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "ctypes" in loaded
    assert not {"subprocess", "json", "typing", "pathlib", "re", "msgspec", "overnight"} & loaded
    tree = ast.parse(Path(fence.__file__).read_text())
    names = {one.name for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names}
    assert names <= sys.stdlib_module_names


# -- what a refused write looks like ---------------------------------------------------------------------------------

PYTHON = {
    "open('{mine}/x', 'w')": "x",
    "import os; os.makedirs('{mine}/a/b')": "a",
    "import os; os.replace('x', '{mine}/x')": "x",
    "import os; os.replace('x', '../mine/x')": "x",
    "import shutil; shutil.move('x', '{mine}/moved')": "moved",
    "import shutil; shutil.rmtree('{mine}')": "",
    "import shutil; shutil.copytree('.', '{mine}/tree')": "tree",
    "import pathlib; pathlib.Path('{mine}/text').write_text('')": "text",
    "import logging; logging.FileHandler('{mine}/log')": "log",
    "import numpy; numpy.save('{mine}/x.npy', numpy.zeros(3))": "x.npy",
    "import sqlite3; sqlite3.connect('{mine}/x.db').execute('create table a (b)')": "x.db",
    "import torch; torch.save(1, '{mine}/x.pt')": "x.pt",
    "import torch; torch.save(1, open('{mine}/x.pt', 'wb'))": "x.pt",
    "import torch; import safetensors.torch as s; s.save_file(dict(a=torch.zeros(1)), '{mine}/x.safetensors')": "",
    "import torch, torch.distributed.checkpoint as d; d.save(dict(a=torch.zeros(1)), checkpoint_id='{mine}/d')": "d",
}


@needs_fence
@pytest.mark.parametrize("code", PYTHON)
def test_the_place_of_a_refused_write_is_found_in_what_python_says(
    place: Path, tmp_path: Path, trying: Try, code: str
) -> None:
    for needed in ("numpy", "torch", "safetensors"):
        if f"import {needed}" in code:
            pytest.importorskip(needed)
    (place / "x").write_text("x")
    (place / "train.py").write_text("print('step 1 loss 2.0')\n" + code.format(mine=tmp_path / "mine") + "\n")
    done = trying(sys.executable, "-W", "ignore", "train.py", code=1)
    found = denied(done.stdout + done.stderr + "and a line behind\n", allowed=[str(place)], cwd=str(place))
    assert found is not None, done.stderr
    assert found.path is not None
    where = tmp_path / "mine" / PYTHON[code]
    assert found.path == str(where) or ("safetensors" in code and found.path.startswith(str(where)))


SHELL = {
    "echo x > {mine}/x": "x",
    "echo x >> ../mine/x": "x",
    "mkdir {mine}/folder": "folder",
    "mkdir -p ../mine/folder/below": "folder",
    "touch {mine}/x": "x",
    "cp x {mine}/x": "x",
    "mv x {mine}/y": "y",
    "rm {mine}/last.pt": "last.pt",
    "cat x > ../mine/last.pt": "last.pt",
    "ln -s x {mine}/l": "l",
    "echo x | tee {mine}/t": "t",
    "sh -c 'echo x > {mine}/x'": "x",
    "truncate -s 0 {mine}/last.pt": "last.pt",
    "ln {mine}/last.pt shared": "last.pt",
    "echo x > '{mine}/two words'": "two words",
}


@needs_fence
@pytest.mark.parametrize("line", SHELL)
def test_the_place_of_a_refused_write_is_found_in_what_a_shell_says(
    place: Path, tmp_path: Path, trying: Try, line: str
) -> None:
    (place / "x").write_text("x")
    (place / "run.sh").write_text("#!/bin/bash\n" + line.format(mine=tmp_path / "mine") + "\n")
    done = trying("bash", "run.sh", env={**os.environ, "LC_ALL": "C"})
    found = denied(done.stderr, allowed=[str(place)], cwd=str(place))
    assert found is not None, done.stderr
    assert found.path == str(tmp_path / "mine" / SHELL[line]), done.stderr


def test_other_complaints_are_no_matter_of_the_fence(tmp_path: Path) -> None:
    inside = tmp_path / "place"
    inside.mkdir()
    for text in (
        "step 3 loss 2.1",
        "",
        f"PermissionError: [Errno 13] Permission denied: '{inside}/x'",
        "PermissionError: [Errno 13] Permission denied: '/proc/1/mem'",
        "PermissionError: [Errno 13] Permission denied: '/dev/nvidia9'",
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/x'",
    ):
        assert denied(text, allowed=[str(inside)], cwd=str(inside)) is None, text


def test_a_link_that_leads_out_is_named_by_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "big").mkdir()
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / "ckpt").symlink_to(tmp_path / "big")
    text = "PermissionError: [Errno 13] Permission denied: 'ckpt/last.pt'"
    found = denied(text, allowed=[str(tmp_path / "place")], cwd=str(tmp_path / "place"))
    assert found is not None
    assert found.path == str(tmp_path / "big" / "last.pt")


def test_the_advice_names_the_path_and_both_ways_out(tmp_path: Path) -> None:
    folder = str(tmp_path / "mine")
    assert advice("/data/ckpt", folder=folder) == (
        "the script writes to /data/ckpt, outside its working copy: use {workdir} in the command, such as "
        "--out {workdir}/ckpt, or --allow /data/ckpt if every run may write there"
    )
    assert "--allow /data/ckpt if" in advice("/data/ckpt/step_1.pt", folder=folder)
    assert "--allow" not in advice(f"{folder}/last.pt", folder=folder), "the folder itself is never to be allowed"
    assert "/data/out" in advice(None, folder=folder, suspects=["/data/out"])
    assert "{workdir}" in advice(None, folder=folder)


@needs_fence
@needs_torch
def test_torch_trains_saves_and_loads_data_behind_the_fence(place: Path, short: Path, trying: Try) -> None:
    code = """
import torch
from torch.utils.data import DataLoader, TensorDataset
if __name__ == '__main__':
    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 1)
    data = TensorDataset(torch.randn(16, 4), torch.randn(16, 1))
    for step, (x, y) in enumerate(DataLoader(data, batch_size=4, num_workers=2), 1):
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        torch.save({'model': model.state_dict(), 'step': step}, 'last.pt.tmp')
        import os; os.replace('last.pt.tmp', 'last.pt')
    print(torch.load('last.pt')['step'])
"""
    (place / "train.py").write_text(code)
    environ = {**os.environ, "TMPDIR": str(short)}
    done = trying(sys.executable, "-W", "ignore", "train.py", code=0, env=environ, allowed=[str(short)])
    assert done.stdout.split() == ["4"]


@needs_fence
def test_a_fence_within_a_fence_allows_what_both_allow(place: Path, tmp_path: Path, trying: Try) -> None:
    (place / "a").mkdir()
    inner = fence.fenced(["sh", "-c", f"touch a/x; touch y; touch {tmp_path}/mine/z"], [f"{place}/a", str(tmp_path)])
    trying(*inner)
    assert (place / "a" / "x").exists()
    assert not (tmp_path / "mine" / "z").exists()
    assert (place / "y").exists()

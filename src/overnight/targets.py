"""Which process of a command's tree is the training, and which signal it wants.

The first stop signal goes to the training itself: not to the shell, launcher or `torchrun` above it, and not to the
data workers below it. Everything is looked up at the moment of the signal, because wrappers exec away and ranks come
and go. Nothing is signalled here.
"""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import PurePosixPath
from typing import Literal

import msgspec

from overnight.processes import caught, children, cmdline, cwd, exe, ignored, read_proc, stat

SCRIPT_BYTES = 1 << 20
SAMPLES = 5
SAMPLE_GAP_S = 0.01
WAITS = frozenset({"do_wait", "pipe_read", "anon_pipe_read"})
DEPTH = 40  # deeper than any tree of wrappers; ends the walk if processes are replaced under our eyes

SHELLS = frozenset("sh bash dash zsh ksh ksh93 mksh ash fish csh tcsh rbash elvish nu".split())
# Programs that run another program and are not the training. By exe, script name or argv[0].
LAUNCHERS = frozenset(
    (
        # wrappers of one command
        "timeout env nice ionice nohup setsid stdbuf unbuffer chrt taskset numactl prlimit cpulimit time tini "
        "dumb-init catatonit docker-init sudo doas su runuser setpriv strace ltrace perf valgrind nsys ncu "
        "rocprof py-spy flock systemd-run systemd-inhibit script xvfb-run firejail bwrap apptainer singularity "
        "starter make gmake just task xargs parallel direnv dotenv chpst softlimit memray scalene unshare nsenter "
        "chroot faketime "
        # environments of Python
        "uv uvx conda mamba micromamba poetry pdm hatch rye pixi pipenv pyenv tox nox pipx "
        # several ranks
        "torchrun accelerate accelerate-launch deepspeed ds colossalai horovodrun composer mpirun mpiexec "
        "mpiexec.hydra orterun prterun hydra_pmi_proxy orted prted srun slurmstepd jsrun aprun flux torchx "
    ).split()
)
# Launchers that start their next command like a shell does; they may be frozen, for they drain no pipe.
SEQUENCERS = frozenset({"make", "gmake", "just", "xargs"})
LAUNCHER_MODULES = frozenset(
    (
        "torch.distributed.run torch.distributed.launch accelerate.commands.launch "
        "accelerate.commands.accelerate_cli accelerate deepspeed.launcher.runner deepspeed.launcher.launch "
        "deepspeed colossalai.cli horovod.runner horovod.runner.launch composer.cli.launcher "
        "oneccl_bindings_for_pytorch uv poetry pdm hatch pipenv conda tox nox memray scalene "
    ).split()
)
# Programs that stand beside a training or that it calls for a moment.
TOOLS = frozenset(
    (
        "tee cat grep egrep fgrep rg sed awk gawk mawk tail head less more ts tr cut sort uniq tqdm logger "
        "rotatelogs multilog svlogd pv gzip zstd xz pigz tar sleep wandb-core wandb-service gpu_stats tensorboard "
        "mlflow aim neptune nvidia-smi rocm-smi amd-smi nvitop nvtop gpustat dcgmi top htop iostat vmstat free df "
        "du ps lscpu lspci nproc uname hostname id git hg gcc g++ cc c++ cc1plus clang clang++ ld as nvcc ptxas "
        "cicc cudafe++ ninja cmake ldconfig which curl wget aws gsutil gcloud s3cmd rclone rsync scp ssh cp mv rm "
        "mkdir ln ffmpeg jupyter ray raylet gcs_server "
    ).split()
)
WORKER = re.compile(
    r"multiprocessing[.](?:spawn|forkserver|resource_tracker|semaphore_tracker)|compile_worker|"
    r"loky[.]backend|wandb[.-]service|torch/_inductor/|overnight[.]checkpoint[.]writer"
)
PYTHON = re.compile(r"(?:python|pypy)[0-9.]*t?d?")
PYTHON_OPTIONS_WITH_VALUE = frozenset({"W", "X"})
INTERRUPT = re.compile(rb"SIGINT|KeyboardInterrupt")
TRAP = re.compile(rb"""\btrap\s+(?:--\s+)?(?:'[^']*'|"[^"]*"|\S+)((?:\s+[A-Za-z0-9]+)+)""")


class Targets(msgspec.Struct, frozen=True, kw_only=True):
    """Whom to signal, and who stands above: shells (and ``make``: frozen, for they would go on), launchers (never)."""

    pids: tuple[int, ...]
    shells: tuple[int, ...] = ()
    launchers: tuple[int, ...] = ()


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """What a Python command line runs: a script, a module (``-m``) or a command (``-c``)."""

    kind: Literal["script", "module", "command"]
    text: str


def python_program(argv: tuple[str, ...]) -> Program | None:
    """Return what ``python [options] ...`` runs; None for standard input or an interactive one."""
    at = 1
    while at < len(argv):
        word = argv[at]
        if word in ("-", "--") or not word.startswith("-"):
            rest = argv[at + 1 :] if word == "--" else argv[at:]
            return Program(kind="script", text=rest[0]) if rest and rest[0] != "-" else None
        at += 1
        if word.startswith("--"):
            at += word == "--check-hash-based-pycs"
            continue
        for place, letter in enumerate(word[1:], 2):
            if letter not in "mc" and letter not in PYTHON_OPTIONS_WITH_VALUE:
                continue
            value = word[place:]
            if not value:
                value = argv[at] if at < len(argv) else ""
                at += 1
            if letter in "mc":
                return Program(kind="module" if letter == "m" else "command", text=value)
            break
    return None


class _Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One process at one moment: ``names`` are all the names by which it may be known."""

    pid: int
    argv: tuple[str, ...]
    names: frozenset[str]
    module: str | None

    @property
    def shell(self) -> bool:
        return bool(self.names & SHELLS)

    @property
    def launcher(self) -> bool:
        return not self.shell and (bool(self.names & LAUNCHERS) or self.module in LAUNCHER_MODULES)

    @property
    def tool(self) -> bool:
        return bool(self.names & TOOLS) or (self.module or "").partition(".")[0] in TOOLS


def _see(pid: int) -> _Seen | None:
    """Look at one process; None if it has ended."""
    known = stat(pid)
    argv = cmdline(pid)
    if known is None or known.dead or argv is None:
        return None
    program = exe(pid)
    called = PurePosixPath(argv[0]).name.removeprefix("-") if argv else known.comm
    # A shell or interpreter is known by its file; "sh" linked to busybox only by how it was called.
    names = {called} if program is None else {PurePosixPath(program).name, called}
    module = None
    if argv and any(PYTHON.fullmatch(name) for name in names):
        runs = python_program(argv)
        # argv[0] is free text of the caller for a Python; what counts is what it runs.
        names = set()
        if runs is not None and runs.kind == "script":
            names = {PurePosixPath(runs.text).name}
        elif runs is not None and runs.kind == "module":
            module = runs.text
    return _Seen(pid=pid, argv=argv, names=frozenset(names), module=module)


def _waits_for_a_child(pid: int) -> bool:
    """Say whether a program does nothing but wait: five looks, 10 ms apart, and it does not want SIGTERM itself."""
    if signal.SIGTERM in caught(pid):
        return False
    for look in range(SAMPLES):
        if look:
            time.sleep(SAMPLE_GAP_S)
        if (read_proc(pid, "wchan") or b"").decode("ascii", "replace").strip() not in WAITS:
            return False
    return True


def _main_like(parent: _Seen, child: _Seen) -> bool:
    """Say whether a child may be the training (or lead to it). Below a shell everything may but the tools of a pipe."""
    if child.tool:
        return False
    if parent.shell:
        return True
    if not child.argv or child.argv == parent.argv or WORKER.search(" ".join(child.argv)):
        return False
    if signal.SIGINT not in ignored(child.pid) or signal.SIGINT in ignored(parent.pid):
        return True  # ignored by both is inherited (a script's `&`) and says nothing
    # A program within os.system() ignores SIGINT too, and leads on; a worker has nobody below it.
    return any(_main_like(child, below) for below in map(_see, children(child.pid)) if below is not None)


def find_targets(command_pid: int, *, sample: bool = True) -> Targets:
    """Walk from the command down to the training process(es): several only if they are ranks.

    ``sample=False`` leaves out the 50 ms look at programs that seem to wait for a child (Python launchers).
    """
    shells: list[int] = []
    launchers: list[int] = []
    pids: list[int] = []
    empty_shells: list[int] = []
    first = _see(command_pid)
    waiting = [] if first is None else [(first, 0)]
    while waiting:
        here, depth = waiting.pop(0)
        below = _below(here, sample=sample) if depth < DEPTH else []
        if below:
            (shells if here.shell or here.names & SEQUENCERS else launchers).append(here.pid)
            waiting.extend((child, depth + 1) for child in below)
        elif here.shell and here.pid != command_pid:
            empty_shells.append(here.pid)
        else:
            pids.append(here.pid)
    # `train | while read line; do ...` has a shell of its own for the loop: it is a target of last resort.
    return Targets(pids=tuple(pids or empty_shells), shells=tuple(shells), launchers=tuple(launchers))


def leads_on(pid: int) -> bool:
    """Say whether a process is a shell or a launcher, so that the training may yet appear below it."""
    seen = _see(pid)
    return seen is not None and (seen.shell or seen.launcher)


def _below(here: _Seen, *, sample: bool) -> list[_Seen]:
    below = [child for child in map(_see, children(here.pid)) if child is not None and _main_like(here, child)]
    if here.shell:
        return _without_readers(below)
    if not below or here.launcher:
        return below
    return below if sample and _waits_for_a_child(here.pid) else []


def _without_readers(pipeline: list[_Seen]) -> list[_Seen]:
    """Leave out who reads what another candidate prints (`train.py | my_logger.py`): its end would break the pipe."""
    printed = {end for one in pipeline for end in (_descriptor(one.pid, 1), _descriptor(one.pid, 2)) if end}
    return [one for one in pipeline if _descriptor(one.pid, 0) not in printed]


def _descriptor(pid: int, number: int) -> str | None:
    try:
        name = os.readlink(f"/proc/{pid}/fd/{number}")
    except OSError:
        return None
    return name if name.startswith("pipe:") else None


def choose_signal(pid: int, setting: Literal["auto", "int", "term"] = "auto") -> signal.Signals:
    """Return the first signal for a training process.

    SIGTERM if it has a handler and its script names neither SIGINT nor KeyboardInterrupt, else SIGINT: every Python
    shows SIGINT as caught, SIGTERM only if a handler was installed.
    """
    if setting != "auto":
        return signal.SIGINT if setting == "int" else signal.SIGTERM
    seen = _see(pid)
    if seen is not None and seen.shell:
        # bash goes on after a SIGINT that its child survives, so only a trap of its own speaks for that signal.
        trapped = _traps(script_text(pid))
        return signal.SIGINT if b"INT" in trapped and b"TERM" not in trapped else signal.SIGTERM
    deaf = ignored(pid)
    if signal.SIGINT in deaf and signal.SIGTERM not in deaf:
        return signal.SIGTERM
    if signal.SIGTERM in caught(pid) and not INTERRUPT.search(script_text(pid)):
        return signal.SIGTERM
    return signal.SIGINT


def _traps(script: bytes) -> set[bytes]:
    numbers = {b"2": b"INT", b"15": b"TERM"}
    words = (word.upper().removeprefix(b"SIG") for found in TRAP.findall(script) for word in found.split())
    return {numbers.get(word, word) for word in words}


def script_text(pid: int) -> bytes:
    """Return the text a process was told to run, at most 1 MiB; empty if it cannot be found plainly."""
    argv = cmdline(pid) or ()
    seen = _see(pid)
    if seen is None or not argv:
        return b""
    if seen.shell:
        runs = _shell_program(argv)
    elif PYTHON.fullmatch(PurePosixPath(exe(pid) or argv[0]).name):
        runs = python_program(argv)
    else:
        return b""
    if runs is None:
        return b""
    if runs.kind == "command":
        return runs.text.encode("utf-8", "surrogateescape")[:SCRIPT_BYTES]
    if runs.kind == "script":
        return _read(pid, runs.text, f"{runs.text}/__main__.py")
    path = runs.text.replace(".", "/")
    return _read(pid, f"{path}.py", f"{path}/__main__.py", f"src/{path}.py", f"src/{path}/__main__.py")


def _shell_program(argv: tuple[str, ...]) -> Program | None:
    for at, word in enumerate(argv[1:], 1):
        if word.startswith("-") and not word.startswith("--") and word.endswith("c"):
            return Program(kind="command", text=argv[at + 1]) if at + 1 < len(argv) else None
        if not word.startswith(("-", "+")):
            return Program(kind="script", text=word)
    return None


def _read(pid: int, *paths: str) -> bytes:
    """Return the first of the files that is there, seen from the process's own folder."""
    folder = cwd(pid)
    for path in paths:
        place = PurePosixPath(folder or "/") / path
        if folder is None and not path.startswith("/"):
            continue
        try:
            with open(place, "rb") as stream:
                return stream.read(SCRIPT_BYTES)
        except OSError:
            continue
    return b""

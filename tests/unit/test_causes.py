"""Causes from exits and logs. The logs are those of real programs (torch 2.13, NCCL, JAX, Linux), paths renamed."""

from __future__ import annotations

from typing import get_type_hints

import pytest

from overnight.events import Exit
from overnight.exits.causes import LASTING, Finding, classify, describe
from overnight.exits.traces import MAX_COLUMNS, MAX_LINES, read
from overnight.states import FAILURES

FAILED = Exit(exit_code=1)
SITE = "/venv/lib/python3.11/site-packages"
STEPS = tuple(f"step: {step}, loss: 3.2, dt: 0.1" for step in range(20))


def trace(error: str, *frames: str, header: str = "Traceback (most recent call last):") -> tuple[str, ...]:
    """Return a traceback with the error, by default from line 42 of train.py."""
    body = frames or ('  File "/home/me/train.py", line 42, in main', "    loss.backward()", "    ^^^^^^^^^^^^^^^")
    return (header, *body, error)


def of_rank(rank: int, lines: tuple[str, ...]) -> tuple[str, ...]:
    """Return lines as torchrun marks them."""
    return tuple(f"[rank{rank}]: {line}" for line in lines)


def table(rank: int, exitcode: str, *, sent: str = "-15 (pid: 28675)  (SIGTERM)") -> tuple[str, ...]:
    """Return what torchrun prints at its end, when ``rank`` was the first that failed."""
    return (
        "W1129 19:59:35.999000 28672 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 28675",
        *trace(
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
            '  File "/venv/bin/torchrun", line 8, in <module>',
            "    sys.exit(main())",
            f'  File "{SITE}/torch/distributed/launcher/api.py", line 383, in launch_agent',
            "    raise ChildFailedError(",
        ),
        "=======================================================",
        "rank.py FAILED",
        "-------------------------------------------------------",
        "Failures:",
        "[1]:",
        "  time      : 2026-11-29_19:59:36",
        f"  rank      : {1 - rank} (local_rank: {1 - rank})",
        f"  exitcode  : {sent}",
        "-------------------------------------------------------",
        "Root Cause (first observed failure):",
        "[0]:",
        "  time      : 2026-11-29_19:59:35",
        "  host      : localhost",
        f"  rank      : {rank} (local_rank: {rank})",
        f"  exitcode  : {exitcode}",
        "  error_file: <N/A>",
        "  traceback : Signal 9 (SIGKILL) received by PID 28676",
        "=======================================================",
    )


PEER_LEFT = trace(
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
    "[127.0.0.1]:63682. This is typically caused by a remote worker crashing.",
    '  File "/home/me/rank.py", line 16, in <module>',
    "    d.all_reduce(t)",
)
WATCHDOG = (
    "[rank{0}]:[E1129 19:59:54.140069453 ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=4121, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600026 "
    "milliseconds before timing out."
)


# --- exits alone ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "target", "cause", "text"),
    [
        (Exit(exit_code=7), None, "crash", "exited with code 7"),
        (Exit(signal="SIGHUP"), None, "crash", "was ended by SIGHUP (terminal closed)"),
        (Exit(signal="SIGTERM"), None, "crash", "was ended by SIGTERM"),
        (Exit(signal="SIGSEGV"), None, "crash", "was ended by SIGSEGV"),
        (Exit(signal="SIGFPE"), None, "crash", "was ended by SIGFPE"),
        (Exit(signal="SIGBUS"), None, "crash", "was ended by SIGBUS"),
        (Exit(exit_code=139), Exit(exit_code=3), "crash", "exited with code 139"),
        (Exit(exit_code=139), None, "crash", "exited with code 139, as if a process below it was ended by SIGSEGV"),
        (Exit(exit_code=143), None, "crash", "exited with code 143, as if a process below it was ended by SIGTERM"),
        (Exit(exit_code=255), None, "crash", "exited with code 255"),
        (
            Exit(exit_code=139),
            Exit(signal="SIGSEGV"),
            "crash",
            "exited with code 139: the training process below it was ended by SIGSEGV",
        ),
        (
            Exit(exit_code=0),
            Exit(exit_code=5),
            "crash",
            "the command exited 0, but the training process below it exited with code 5",
        ),
        (Exit(exit_code=1), Exit(signal="SIGTERM"), "crash", "exited with code 1"),
        (Exit(), None, "unknown_kill", "ended while nobody could learn its exit status"),
        (Exit(text="the machine lost it"), None, "unknown_kill", "the machine lost it"),
        (
            Exit(exit_code=127),
            None,
            "usage",
            "exited with code 127, as a shell does that cannot execute a program",
        ),
    ],
)
def test_an_exit_alone(how: Exit, target: Exit | None, cause: str, text: str) -> None:
    found = classify(how, target, [])
    assert (found.cause, found.text) == (cause, text)


@pytest.mark.parametrize(
    ("how", "target", "begin"),
    [
        (Exit(signal="SIGKILL"), None, "was killed by SIGKILL from outside"),
        (Exit(exit_code=137), None, "exited with code 137, as if a process below it was killed by SIGKILL"),
        (
            Exit(exit_code=137),
            Exit(signal="SIGKILL"),
            "exited with code 137: the training process below it was killed by SIGKILL",
        ),
        (
            Exit(exit_code=1),
            Exit(signal="SIGKILL"),
            "exited with code 1: the training process below it was killed by SIGKILL",
        ),
    ],
)
def test_sigkill_is_lack_of_memory_only_with_proof(how: Exit, target: Exit | None, begin: str) -> None:
    found = classify(how, target, STEPS)
    assert found.cause == "unknown_kill"
    assert found.restartable
    assert found.text.startswith(begin)
    assert "may have done it" in found.text
    proven = classify(how, target, STEPS, "the counter of its control group rose by 1")
    assert proven.cause == "out_of_memory_host"
    assert proven.text.endswith(
        "was killed by the kernel for lack of memory: the counter of its control group rose by 1"
    )
    told = classify(how, target, STEPS, None, "Memory cgroup out of memory: Killed process 4711 (python) total-vm:9kB")
    assert told.cause == "out_of_memory_host"
    assert "Killed process 4711" in told.text


def test_memory_evidence_does_not_explain_another_end() -> None:
    assert classify(Exit(exit_code=7), None, STEPS, "the counter rose by 1").cause == "crash"
    assert classify(Exit(signal="SIGSEGV"), None, STEPS, "the counter rose by 1").cause == "crash"
    assert classify(FAILED, None, trace("ValueError: bad"), "the counter rose by 1").cause == "crash"


def test_a_worker_that_was_killed_is_lack_of_memory_with_proof() -> None:
    lines = trace("RuntimeError: DataLoader worker (pid(s) 28801) exited unexpectedly")
    assert classify(FAILED, None, lines).cause == "crash"
    assert classify(FAILED, None, lines, "the counter rose by 1").cause == "out_of_memory_host"


def test_a_signal_that_was_sent_explains_what_it_left_in_the_log() -> None:
    for name in ("SIGTERM", "SIGINT", "SIGHUP"):
        assert classify(Exit(signal=name), None, PEER_LEFT) == Finding(
            cause="crash",
            text=describe(Exit(signal=name)),
            restartable=True,
            lines=classify(FAILED, None, PEER_LEFT).lines,
        )


def test_an_unknown_status_is_not_tried_again() -> None:
    assert not classify(Exit(), None, STEPS).restartable


def test_describe_knows_every_kind_of_exit() -> None:
    assert describe(Exit()) == "ended with an unknown status"
    assert get_type_hints(Finding)["cause"] is str


# --- texts ------------------------------------------------------------------------------------------------------------

ERRORS = [
    ("out_of_memory_gpu", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total"),
    (
        "out_of_memory_gpu",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 79 GiB",
    ),
    ("out_of_memory_gpu", "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB"),
    ("out_of_memory_gpu", "RuntimeError: CUDA error: out of memory"),
    ("out_of_memory_gpu", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ("out_of_memory_gpu", "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to "),
    ("out_of_memory_gpu", "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor"),
    ("out_of_memory_host", "MemoryError"),
    ("out_of_memory_host", "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8.00 PiB for an array"),
    ("out_of_memory_host", "OSError: [Errno 12] Cannot allocate memory"),
    ("out_of_memory_host", "RuntimeError: [enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate"),
    ("out_of_memory_host", "RuntimeError: DataLoader worker (pid 28801) is killed by signal: Killed. "),
    ("out_of_memory_host", "RuntimeError: unable to write to file </torch_9>: No space left on device (28)"),
    ("out_of_memory_host", "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory."),
    ("disk_full", "OSError: [Errno 28] No space left on device: 'ckpt.pt'"),
    ("disk_full", "OSError: [Errno 122] Disk quota exceeded"),
    ("disk_full", "RuntimeError: PytorchStreamWriter failed writing file data/3: file write failed"),
    ("disk_full", "RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598"),
    ("disk_full", "safetensors_rust.SafetensorError: Error while serializing: I/O error: No space (os error 28)"),
    ("collective_timeout", "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 4000ms for recv"),
    ("collective_timeout", "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1333, remote"),
    ("collective_timeout", "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//"),
    ("import_error", "ModuleNotFoundError: No module named 'flash_attn'"),
    ("import_error", "ImportError: cannot import name 'x' from 'y' (/home/me/y.py)"),
    ("import_error", "OSError: libcudart.so.12: cannot open shared object file: No such file or directory"),
    ("import_error", "ImportError: /home/me/ext.so: undefined symbol: _ZN2at4_ops5zeros4callE"),
    ("load_failure", "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory"),
    ("load_failure", "_pickle.UnpicklingError: Weights only load failed. This file can still be loaded"),
    ("load_failure", "_pickle.UnpicklingError: pickle data was truncated"),
    ("load_failure", "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge"),
    ("load_failure", "ValueError: loaded state dict contains a parameter group that doesn't match the size of"),
    ("usage", "SyntaxError: '(' was never closed"),
    ("usage", "omegaconf.errors.ConfigAttributeError: Key 'lrr' is not in struct"),
    ("usage", "ValueError: Some specified arguments are not used by the HfArgumentParser: ['--foo']"),
    ("hardware", "RuntimeError: CUDA error: uncorrectable ECC error encountered"),
    ("hardware", "pynvml.NVMLError_GpuIsLost: GPU is lost"),
    ("crash", "RuntimeError: CUDA error: device-side assert triggered"),
    ("crash", "RuntimeError: CUDA error: an illegal memory access was encountered"),
    ("crash", "RuntimeError: CUDA error: unspecified launch failure"),
    ("crash", "KeyError: 'input_ids'"),
    ("crash", "FileNotFoundError: [Errno 2] No such file or directory: 'data.bin'"),
    ("crash", "AssertionError"),
    ("crash", "ValueError: the config says memory: out of it"),
]


@pytest.mark.parametrize(("cause", "error"), ERRORS)
def test_a_traceback_at_the_end_decides(cause: str, error: str) -> None:
    found = classify(FAILED, None, [*STEPS, *trace(error)])
    assert found.cause == cause
    assert "train.py line 42" in found.text
    assert found.restartable == (cause not in LASTING)
    assert found.lines[0] == "Traceback"
    assert found.lines[-1] == error.strip()
    assert "\n" not in found.text


@pytest.mark.parametrize(("cause", "error"), ERRORS)
def test_a_failure_that_was_survived_decides_nothing(cause: str, error: str) -> None:
    """An automatic choice of the batch size runs out of memory on purpose, and the training goes on."""
    found = classify(Exit(exit_code=3), None, [*trace(error), *STEPS])
    assert (found.cause, found.text) == ("crash", "exited with code 3")


def test_every_cause_is_one_of_the_table() -> None:
    assert {cause for cause, _ in ERRORS} <= FAILURES
    assert LASTING <= FAILURES


def test_the_last_traceback_counts() -> None:
    lines = [*trace("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"), *STEPS[:2]]
    assert classify(FAILED, None, lines).cause == "out_of_memory_gpu"
    assert classify(FAILED, None, [*lines, *trace("ValueError: bad batch")]).text == (
        "exited with code 1: ValueError at train.py line 42: bad batch"
    )


def test_what_an_error_came_of_tells_where_it_says_nothing_itself() -> None:
    came = "The above exception was the direct cause of the following exception:"
    first = trace("RuntimeError: DataLoader worker (pid 28801) is killed by signal: Killed. ")
    second = trace("RuntimeError: DataLoader worker (pid(s) 28801) exited unexpectedly")
    assert classify(FAILED, None, [*first, came, *second]).cause == "out_of_memory_host"
    assert classify(FAILED, None, [*first, "an unrelated line", *second]).cause == "crash"


def test_errors_of_destructors_do_not_hide_the_real_one() -> None:
    for before in ("Exception ignored in: <function A.__del__ at 0x7f>", "Exception ignored in atexit callback: <f>"):
        lines = [*trace("MemoryError"), before, *trace("AttributeError: 'NoneType' object has no attribute 'close'")]
        assert classify(FAILED, None, lines).cause == "out_of_memory_host"


def test_words_in_ordinary_lines_do_not_decide() -> None:
    config = [
        "{'on_error': 'CUDA out of memory', 'note': 'No space left on device'}",
        "on_oom: torch.OutOfMemoryError: CUDA out of memory",
        "INFO will retry on ModuleNotFoundError",
    ]
    found = classify(Exit(exit_code=3), None, [*config, *STEPS[:2], *config])
    assert found.cause == "crash"
    assert found.text == "exited with code 3"


def test_the_sentence_says_how_much_was_asked_for() -> None:
    lines = trace("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total of 79 GiB")
    assert classify(FAILED, None, lines).text == "CUDA out of memory at train.py line 42: tried to allocate 2.00 GiB"
    jax = "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 214 bytes."
    assert classify(FAILED, None, trace(jax)).text.endswith(": tried to allocate 214 bytes")


def test_a_checkpoint_of_another_shape() -> None:
    lines = [
        *trace("RuntimeError: Error(s) in loading state_dict for Linear:"),
        "\tsize mismatch for weight: copying a param with shape [2, 3] from checkpoint, the shape here is [2, 2].",
    ]
    found = classify(FAILED, None, lines)
    assert found.cause == "load_failure"
    assert "size mismatch for weight" in found.text
    assert not found.restartable


@pytest.mark.parametrize(
    "frame",
    [
        ('  File "/home/me/train.py", line 9, in main', '    model.load_state_dict(torch.load("a.pt")["model"])'),
        ('  File "/home/me/train.py", line 9, in load_checkpoint', "    x = state['model']"),
        (f'  File "{SITE}/torch/serialization.py", line 1626, in load', "    return _legacy_load("),
    ],
)
def test_a_key_that_a_checkpoint_lacks(frame: tuple[str, ...]) -> None:
    found = classify(FAILED, None, trace("KeyError: 'model'", *frame))
    assert found.cause == "load_failure"
    assert "KeyError: 'model'" in found.text


LIBRARY = "error while loading shared libraries: libc.so.9: cannot open shared object file: No such file or directory"


# --- what is no traceback ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "lines", "cause"),
    [
        (2, ("usage: train.py [-h] [--a A]", "train.py: error: unrecognized arguments: --foo"), "usage"),
        (2, ("usage: train.py [-h]", "train.py: error: batch size must divide"), "usage"),
        (2, ("Usage: train.py [OPTIONS]", "Try 'train.py --help' for help.", "Error: No such option: --foo"), "usage"),
        (2, ("python: can't open file '/home/me/nothere.py': [Errno 2] No such file or directory",), "usage"),
        (1, ("Could not override 'lrr'.", "Key 'lrr' is not in struct"), "usage"),
        (1, ('  File "/home/me/train.py", line 1', "    x = (", "SyntaxError: '(' was never closed"), "usage"),
        (127, ("sh: 1: foo_x: not found",), "usage"),
        (127, ("bash: line 1: foo_x: command not found",), "usage"),
        (126, ("sh: 1: ./train.sh: Permission denied",), "usage"),
        (1, ("python: No module named nothere",), "import_error"),
        (127, (f"./train: {LIBRARY}",), "import_error"),
        (1, ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.",), "out_of_memory_host"),
        (1, ("host:1:2 [0] enqueue.cc:9 NCCL WARN Cuda failure 'out of memory'",), "out_of_memory_gpu"),
        (2, (), "crash"),
        (2, ("ninja: error: build stopped",), "crash"),
        (1, ("train.py: error: something else",), "crash"),
    ],
)  # fmt: skip
def test_lines_of_the_shape_of_an_error(code: int, lines: tuple[str, ...], cause: str) -> None:
    found = classify(Exit(exit_code=code), None, lines)
    assert found.cause == cause
    assert found.lines == lines


def test_a_complaint_of_the_beginning_does_not_explain_a_crash() -> None:
    lines = ["ERROR: No module named 'flash_attn', using another attention", *STEPS[:3]]
    assert classify(Exit(signal="SIGSEGV"), None, lines).cause == "crash"
    assert classify(FAILED, None, [*lines, *trace("ValueError: bad")]).cause == "crash"


def test_a_fault_names_its_place() -> None:
    lines = [
        *STEPS,
        "Fatal Python error: Segmentation fault",
        "",
        "Current thread 0x00007fc8865bbb80 (most recent call first):",
        '  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at',
        '  File "/home/me/train.py", line 5 in main',
        "Extension modules: numpy, torch (total: 2)",
    ]
    found = classify(Exit(signal="SIGSEGV"), None, lines)
    assert found.cause == "crash"
    assert found.text == "was ended by SIGSEGV at train.py line 5 (Fatal Python error: Segmentation fault)"
    assert found.lines[0] == "Fatal Python error: Segmentation fault"
    assert not any(line.startswith("Extension") for line in found.lines)


def test_an_abort_says_why() -> None:
    aborts = Exit(signal="SIGABRT")
    assert classify(aborts, None, ["terminate called after throwing an instance of 'std::bad_alloc'"]).cause == (
        "out_of_memory_host"
    )
    lines = ["terminate called after throwing an instance of 'c10::Error'", "  what():  CUDA error: out of memory"]
    assert classify(aborts, None, lines).cause == "out_of_memory_gpu"
    lines = [
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        "  what():  [Rank 0] Process group watchdog thread terminated with exception: CUDA error: an illegal memory",
    ]
    assert classify(aborts, None, lines).cause == "crash"


def test_shared_memory_that_is_used_up() -> None:
    lines = [
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
        *trace("RuntimeError: DataLoader worker (pid 28854) is killed by signal: Bus error. It is possible that "
               "dataloader's workers are out of shared memory. Please try to raise your shared memory limit."),
    ]  # fmt: skip
    found = classify(FAILED, None, lines)
    assert found.cause == "out_of_memory_host"
    assert found.text.startswith("shared memory (/dev/shm) used up")
    assert classify(Exit(signal="SIGBUS"), None, lines[:1]).cause == "out_of_memory_host"


# --- the kernel's log -------------------------------------------------------------------------------------------------


def test_a_device_that_failed() -> None:
    kernel = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    found = classify(FAILED, None, trace("RuntimeError: CUDA error: unspecified launch failure"), None, kernel)
    assert found.cause == "hardware"
    assert found.text.startswith("the driver of GPU 0000:3b:00 reported Xid 79")
    assert not found.restartable
    assert classify(FAILED, None, [WATCHDOG.format(0)], None, kernel).cause == "hardware"
    oom = trace("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
    assert classify(FAILED, None, oom, None, kernel).cause == "out_of_memory_gpu"


def test_an_xid_that_a_program_can_cause_blames_no_device() -> None:
    kernel = "NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=python, Ch 00000008, MMU Fault"
    assert classify(FAILED, None, trace("RuntimeError: CUDA error: an illegal memory access"), None, kernel).cause == (
        "crash"
    )


def test_memory_of_the_machine_that_failed() -> None:
    kernel = "Memory failure: 0x12: Killing python:4711 due to hardware memory corruption"
    assert classify(Exit(signal="SIGBUS"), None, [], None, kernel).cause == "hardware"


# --- several ranks ----------------------------------------------------------------------------------------------------


def test_of_several_ranks_the_one_that_fell_by_itself_counts() -> None:
    oom = trace("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has")
    expected = "rank 1: CUDA out of memory at train.py line 42: tried to allocate 2.00 GiB"
    for lines in (
        [*STEPS, *of_rank(1, oom), *of_rank(0, PEER_LEFT), *table(1, "1 (pid: 28712) ")],
        [*STEPS, *of_rank(0, PEER_LEFT), *of_rank(1, oom), *table(1, "1 (pid: 28712) ")],
        [*STEPS, *of_rank(0, PEER_LEFT), *of_rank(1, oom)],
    ):
        found = classify(FAILED, None, lines)
        assert (found.cause, found.text) == ("out_of_memory_gpu", expected)
        assert found.lines[0] == "Traceback of rank 1"


def test_of_two_ranks_with_errors_of_their_own_the_launcher_knows_the_first() -> None:
    lines = [*of_rank(0, trace("ValueError: of the other")), *of_rank(1, trace("ValueError: bad batch"))]
    assert "rank 0: ValueError" in classify(FAILED, None, lines).text
    assert "rank 1: ValueError" in classify(FAILED, None, [*lines, *table(1, "1 (pid: 28712) ")]).text


def test_lines_of_two_ranks_that_are_mixed() -> None:
    one, other = of_rank(1, trace("ValueError: bad batch")), of_rank(0, PEER_LEFT)
    mixed = [line for pair in zip(one, (*other, ""), strict=False) for line in pair if line]
    assert classify(FAILED, None, mixed).text == "exited with code 1: rank 1: ValueError at train.py line 42: bad batch"


def test_without_marks_the_peer_that_was_left_does_not_count() -> None:
    lines = [*trace("ValueError: bad batch"), *PEER_LEFT]
    assert classify(FAILED, None, lines).text == "exited with code 1: ValueError at train.py line 42: bad batch"
    assert classify(FAILED, None, PEER_LEFT).cause == "collective_timeout"


def test_a_rank_that_was_killed_is_found_in_the_table() -> None:
    lines = [*STEPS, *of_rank(0, PEER_LEFT), *table(1, "-9 (pid: 28676)  (SIGKILL)")]
    found = classify(FAILED, None, lines)
    assert found.cause == "unknown_kill"
    assert found.text.startswith("exited with code 1: rank 1 (pid 28676) was killed by SIGKILL from outside")
    assert found.lines[-1] == "launcher: rank 1 (pid 28676) failed first, SIGKILL"
    assert not any("ChildFailedError" in line for line in found.lines)
    proven = classify(FAILED, None, lines, "its counter rose by 1")
    assert proven.cause == "out_of_memory_host"
    assert proven.text.startswith("exited with code 1: rank 1 (pid 28676) was killed by the kernel")


def test_a_rank_that_left_without_a_word() -> None:
    found = classify(FAILED, None, [*STEPS, *table(0, "5 (pid: 28723) ")])
    assert (found.cause, found.text) == ("crash", "exited with code 1: rank 0 (pid 28723) exited first, with code 5")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGSEGV", "rank 1 was"),
        ("[launch.py:325:sigkill_handler] ['python', 'train.py'] exits with return code = -11", "a process below it"),
        (
            "E1129 api.py:1002] failed (exitcode: -11) local_rank: 3 (pid: 28676) of binary: python",
            "rank 3 (pid 28676)",
        ),
        ("subprocess.CalledProcessError: Command '[x]' died with <Signals.SIGSEGV: 11>.", "a process below it was"),
        ("prterun noticed that process rank 1 with PID 0 on node n exited on signal 11", "a process below it was"),
        ("srun: error: node1: task 1: Segmentation fault", "rank 1 was"),
    ],
)
def test_other_launchers_say_it_in_their_own_words(line: str, text: str) -> None:
    found = classify(FAILED, None, [*STEPS, line])
    assert found.cause == "crash"
    assert "ended by SIGSEGV" in found.text
    assert text in found.text


def test_a_spawned_process_tells_for_itself() -> None:
    lines = [
        *trace(
            "torch.multiprocessing.spawn.ProcessRaisedException: ",
            f'  File "{SITE}/torch/multiprocessing/spawn.py", line 211, in join',
            "    raise ProcessRaisedException(msg, error_index, failed_process.pid)",
        ),
        "-- Process 0 terminated with the following error:",
        *trace("ValueError: in worker"),
    ]
    assert classify(FAILED, None, lines).text == "exited with code 1: ValueError at train.py line 42: in worker"


def test_a_traceback_within_the_launchers_table_is_read() -> None:
    told = (
        "  error_file: /tmp/torchelastic_d/none_b/attempt_0/1/error.json",
        "  traceback : Traceback (most recent call last):",
        f'    File "{SITE}/torch/distributed/elastic/multiprocessing/errors/__init__.py", line 367, in wrapper',
        "      return f(*args, **kwargs)",
        '    File "/home/me/rank.py", line 5, in main',
        "      raise MemoryError",
        "  MemoryError: bad batch",
        "  ",
    )
    lines = [*STEPS, *table(1, "1 (pid: 28676) ")[:-3], *told, "============"]
    found = classify(FAILED, None, lines)
    assert (found.cause, found.text) == ("out_of_memory_host", "out of host memory at rank.py line 5: bad batch")


def test_steps_of_other_ranks_within_a_traceback_are_passed_over() -> None:
    whole = trace("MemoryError")
    found = classify(FAILED, None, [*whole[:2], "step: 7, loss: 3.2, dt: 0.1", *whole[2:]])
    assert found.cause == "out_of_memory_host"
    assert found.lines[-1] == "MemoryError"


def test_the_rank_that_did_not_join_is_named() -> None:
    lines = of_rank(0, trace("RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 2000 ms"))
    found = classify(FAILED, None, [*STEPS, *lines, *table(0, "1 (pid: 28723) ")])
    assert found.cause == "collective_timeout"
    assert "rank 1 did not join" in found.text


def test_of_several_watchdogs_the_first_counts() -> None:
    lines = [*STEPS, *(WATCHDOG.format(rank) for rank in (3, 0, 1, 2))]
    for how in (Exit(signal="SIGABRT"), FAILED):
        found = classify(how, None, lines)
        assert found.cause == "collective_timeout"
        assert "ALLREDUCE, after 600 s" in found.text
        assert "rank 3 was the first to report it" in found.text


# --- for the eye ------------------------------------------------------------------------------------------------------


def test_lines_are_few_and_short_and_name_the_users_own_code() -> None:
    frames = []
    for number in range(30):
        place = f"/home/me/part{number}.py" if number % 3 == 0 else f"{SITE}/torch/nn/module.py"
        frames += [f'  File "{place}", line {number}, in call', f"    x = {'f' * 400}"]
    found = classify(FAILED, None, trace("\x1b[31mValueError: " + "bad " * 400, *frames))
    assert len(found.lines) <= MAX_LINES
    assert max(map(len, found.lines)) <= MAX_COLUMNS
    assert not any("\x1b" in line for line in (*found.lines, found.text))
    assert found.lines[0] == "Traceback"
    assert found.lines[-1].startswith("ValueError: bad")
    assert any("part27.py" in line for line in found.lines)
    assert "  ... 2 frames in site-packages" in found.lines
    assert len(found.text) < MAX_COLUMNS


def test_a_boxed_traceback_is_read() -> None:
    lines = [
        "╭───────────────────── Traceback (most recent call last) ─────────────────────╮",
        "│ /home/me/train.py:42 in main                                                │",
        "│                                                                             │",
        "│   41 │   loss = model(x)                                                    │",
        "│ ❱ 42 │   loss.backward()                                                    │",
        "╰─────────────────────────────────────────────────────────────────────────────╯",
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    ]
    assert classify(FAILED, None, lines).text == "CUDA out of memory at train.py line 42: tried to allocate 2.00 GiB"


def test_a_group_of_exceptions_is_read() -> None:
    lines = [
        "  + Exception Group Traceback (most recent call last):",
        '  |   File "/home/me/train.py", line 32, in <module>',
        '  |     raise ExceptionGroup("g",[MemoryError()])',
        "  | ExceptionGroup: g (1 sub-exception)",
        "  +-+---------------- 1 ----------------",
        "    | MemoryError",
        "    +------------------------------------",
    ]
    assert classify(FAILED, None, lines).cause == "out_of_memory_host"


@pytest.mark.parametrize("cut", range(0, 60, 7))
def test_any_part_of_a_log_is_read_without_an_error(cut: int) -> None:
    whole = [*STEPS, *of_rank(0, PEER_LEFT), *table(1, "-9 (pid: 28676)  (SIGKILL)"), "\x00\x1b[", "Traceback (most"]
    for how in (FAILED, Exit(signal="SIGKILL"), Exit(signal="SIGABRT"), Exit()):
        assert classify(how, None, whole[cut:]).cause in FAILURES
        assert classify(how, None, whole[:cut]).cause in FAILURES


@pytest.mark.parametrize(
    "piece", ["a.", "A", "Aa.Error ", "(pid=1) ", "[0]: ", "step ", ": ", "│", " ", "\x1b[", "0/1 [", "x: error: "]
)
def test_long_lines_take_no_long_time(piece: str) -> None:
    lines = [piece * (65_536 // len(piece))] * 20
    for end in ((), trace("ValueError: bad")):
        assert classify(FAILED, None, [*lines, *end]).cause in FAILURES


def test_a_log_that_begins_and_ends_within_tracebacks() -> None:
    came = "During handling of the above exception, another exception occurred:"
    lines = [came, *trace("KeyError: 'x'"), *trace("ValueError: bad")[:2], *trace("MemoryError")]
    assert classify(FAILED, None, lines).cause == "out_of_memory_host"
    assert classify(FAILED, None, lines[:-1]).text == "exited with code 1: KeyError at train.py line 42: 'x'"
    assert classify(FAILED, None, [*trace("MemoryError"), came]).cause == "out_of_memory_host"


def test_a_message_without_end_is_read_to_a_bound() -> None:
    lines = [*trace("RuntimeError: Error(s) in loading state_dict for GPT:"), *["\tsize mismatch for weight"] * 500]
    found = classify(FAILED, None, lines)
    assert found.cause == "load_failure"
    assert len(found.lines) <= MAX_LINES


def test_a_pipe_that_hides_the_end_of_the_training() -> None:
    lines = trace("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
    found = classify(Exit(exit_code=0), FAILED, lines)
    assert found.cause == "out_of_memory_gpu"
    assert found.text == (
        "the command exited 0, but the training process below it failed: "
        "CUDA out of memory at train.py line 42: tried to allocate 2.00 GiB"
    )


def test_nothing_at_all_is_read() -> None:
    assert read([]).lines == ()
    assert classify(FAILED, None, ["", "   "]).lines == ()


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("cat: write error: No space left on device", "disk_full"),
        ("cp: error writing 'ckpt.pt': No space left on device", "disk_full"),
        ("./train.sh: line 3: echo: write error: No space left on device", "disk_full"),
        (
            'called `Result::unwrap()` on an `Err` value: Os { code: 28, message: "No space left on device" }',
            "disk_full",
        ),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", "out_of_memory_gpu"),
        ("CUDA error: out of memory", "out_of_memory_gpu"),
        ("[CUDA ERROR] at file train.cu:12: out of memory", "out_of_memory_gpu"),
        ("if you see CUDA out of memory, lower the batch size", "crash"),
        ("alert when there is no space left on device: no", "crash"),
    ],
)
def test_last_words_of_programs_that_are_not_python(line: str, cause: str) -> None:
    found = classify(Exit(exit_code=1), None, ["step: 4, loss: 3.1, dt: 0.2", line])
    assert found.cause == cause


def test_a_rank_that_dies_of_a_signal_is_the_cause_though_another_says_that_its_peer_left() -> None:
    tail = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/w/ddp.py", line 9, in <module>
[rank0]:     dist.barrier()
[rank0]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1234

[rank0]: During handling of the above exception, another exception occurred:

[rank0]: Traceback (most recent call last):
[rank0]:   File "/w/ddp.py", line 9, in <module>
[rank0]:     dist.barrier()
[rank0]: RuntimeError: DataLoader worker (pid 18417) is killed by signal: Terminated.
============================================================
ddp.py FAILED
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_20:00:00
  rank      : 1 (local_rank: 1)
  exitcode  : -11 (pid: 4711)
  traceback : Signal 11 (SIGSEGV) received by PID 4711
============================================================""".splitlines()
    found = classify(Exit(exit_code=1), None, tail)
    assert found.cause == "crash"
    assert "rank 1 (pid 4711)" in found.text
    assert "SIGSEGV" in found.text

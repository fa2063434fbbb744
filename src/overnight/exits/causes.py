"""Why a command ended that nobody had asked to end: from its exit, the last lines of its log, and what the kernel says.

Pure: text and numbers in, one finding out. Where the text comes from is the work of ``postmortem.py``, what in a log is
a failure at all that of ``traces.py``. What cannot be known is called so: SIGKILL alone is no lack of memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from overnight.events import Exit
from overnight.exits.symptoms import (
    HARDWARE_XIDS,
    MEMORY_FAILURE,
    OOM_KILL,
    PEER_LEFT,
    SHELL_FILE,
    USAGE_LINE,
    XID,
    cause_of,
    loading,
)
from overnight.exits.traces import Mark, Root, Scene, Trace, fold, last_lines, read, signal_of

SIGNAL_CODES = 128
"""A shell whose child was ended by signal N exits with 128 + N."""

FATAL = frozenset({"SIGKILL", "SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL"})
SENT = frozenset({"SIGHUP", "SIGINT", "SIGTERM"})
WORDS = 200
NEAR_LINES = 60

_SYNTAX = re.compile(r"(?:SyntaxError|IndentationError|TabError)\b")
_SOURCE = re.compile(r'^\s*File "(?:[^"]*/)?([^"/]+)", line (\d+)$')

LASTING = frozenset({"usage", "import_error", "load_failure", "hardware"})
"""What another start does not mend: the same command, environment and checkpoint fail the same way again, and a device
that has failed needs a reset or another machine. A full disk, a lack of memory or a peer that was late may be over."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A cause, the sentence for it, whether another start may mend it, and the lines that tell (ten at most)."""

    cause: str
    text: str
    restartable: bool
    lines: tuple[str, ...] = ()


def describe(how: Exit) -> str:
    """Return a clause for an exit: "exited with code 7", "was ended by SIGHUP (terminal closed)"."""
    if how.signal == "SIGHUP":
        return "was ended by SIGHUP (terminal closed)"
    if how.signal is not None:
        return f"was ended by {how.signal}"
    if how.exit_code is None:
        return "ended with an unknown status"
    return f"exited with code {how.exit_code}"


def classify(
    how: Exit,
    target: Exit | None,
    tail: Sequence[str],
    memory: str | None = None,
    kernel: str | None = None,
    *,
    disk: str | None = None,
) -> Finding:
    """Return what is known about an end that was neither ours nor a success.

    ``target`` is the end of the training below a wrapper, ``tail`` the last lines of this attempt's log. ``memory`` is
    a sentence of evidence that the kernel killed for memory; ``kernel`` are lines of its log that concern this run.
    ``disk`` is a sentence if nothing more could be written into the log.
    """
    scene = read(tail)
    if how.exit_code is None and how.signal is None:
        text = how.text or "ended while nobody could learn its exit status"
        # Nobody knows whether it had finished: what may be complete is not done again.
        return Finding(cause="unknown_kill", text=text, restartable=False, lines=last_lines(scene))
    real, before = _real(how, target, scene.root)
    found = _judge(real, scene, memory, kernel or "")
    # Who cannot write its traceback any more ends without one; of the signals only SIGBUS comes of a full disk.
    silent = not scene.traces and not scene.marks and real.signal in (None, "SIGBUS")
    if disk is not None and found.cause == "crash" and silent:
        found = _finding("disk_full", f"{found.text}; {disk}", found.lines)
    if before and found.text.startswith(("was ", "exited ", "ended ")):
        return msgspec.structs.replace(found, text=f"{before} {found.text}")
    if how.exit_code == 0:
        return msgspec.structs.replace(found, text=f"{before} failed: {found.text}")
    return found


def _real(how: Exit, target: Exit | None, root: Root | None) -> tuple[Exit, str]:
    """Return the end that counts, and what to say before it: a wrapper's code stands for what happened below it."""
    if how.signal is not None or how.exit_code is None:
        return how, ""
    begin = f"{describe(how)}:" if how.exit_code else "the command exited 0, but"
    if root is not None and root.signal is not None:
        return Exit(signal=root.signal), f"{begin} {root.name}"
    below = f"{begin} the training process below it"
    if target is not None and target.signal is not None:
        if how.exit_code > SIGNAL_CODES or how.exit_code == 0 or target.signal in FATAL:
            return target, below
    elif how.exit_code == 0 and target is not None:
        return target, below
    named = signal_of(how.exit_code - SIGNAL_CODES) if how.exit_code > SIGNAL_CODES else None
    if named in FATAL | SENT and (target is None or target.signal == named):
        return Exit(signal=named), f"{describe(how)}, as if a process below it"
    return how, ""


def _judge(how: Exit, scene: Scene, memory: str | None, kernel: str) -> Finding:
    if how.signal == "SIGKILL":
        return _killed(memory, kernel, last_lines(scene))
    trace = _deciding(scene)
    if trace is not None and _followed(trace.rank, trace.text, scene.root):
        trace = None
    lines = last_lines(scene) if trace is None else fold(trace)
    if how.signal in SENT:
        return _finding("crash", describe(how), lines)
    cause, text, found = _from_text(how, scene, trace)
    device = _device(kernel)
    if device is not None and cause in ("crash", "collective_timeout"):
        return _finding("hardware", device, lines)
    if cause == "crash" and memory is not None and _worker_lost(scene):
        return _finding("out_of_memory_host", f"{describe(how)}: a process below it was killed, {memory}", lines)
    return _finding(cause, text, lines if found is None else fold(found))


def _finding(cause: str, text: str, lines: tuple[str, ...]) -> Finding:
    return Finding(cause=cause, text=text, restartable=cause not in LASTING, lines=lines)


def _killed(memory: str | None, kernel: str, lines: tuple[str, ...]) -> Finding:
    told = next((line for line in kernel.splitlines() if OOM_KILL.search(line)), None)
    evidence = memory or (None if told is None else f"its log says: {told.strip()}")
    if evidence is not None:
        return _finding("out_of_memory_host", f"was killed by the kernel for lack of memory: {evidence}", lines)
    text = (
        "was killed by SIGKILL from outside; "
        "the kernel's out-of-memory killer, another user or a scheduler may have done it"
    )
    return _finding("unknown_kill", text, lines)


def _device(kernel: str) -> str | None:
    """Return the sentence for a device that failed for certain, from the lines of the kernel's log."""
    for line in kernel.splitlines():
        xid = XID.search(line)
        if xid is not None and int(xid["code"]) in HARDWARE_XIDS:
            return f"the driver of GPU {xid['device']} reported Xid {xid['code']}: {_short(line[xid.end() :])}"
        if MEMORY_FAILURE.search(line):
            return f"the kernel reported a memory failure of this machine: {_short(line)}"
    return None


def _worker_lost(scene: Scene) -> bool:
    return any("exited unexpectedly" in trace.text or "killed by signal" in trace.text for trace in scene.traces)


# --- which failure counts ---------------------------------------------------------------------------------------------


def _deciding(scene: Scene) -> Trace | None:
    """Return the traceback that tells why: the last of its process; of several ranks the first that fell by itself.

    When one rank fails the others follow, and their tracebacks say no more than that a peer has left.
    """
    all_told = [trace for trace in scene.traces if not trace.launcher]
    told = [trace for trace in all_told if not trace.aside] or all_told
    last = list({trace.prefix: trace for trace in told}.values())
    if not last:
        return None
    first = sorted(last, key=lambda trace: trace.at)
    if scene.root is not None and scene.root.rank is not None:
        named = [trace for trace in first if trace.rank == scene.root.rank]
        first = named + [trace for trace in first if trace not in named]
    else:
        first.sort(key=lambda trace: trace.prefix == "" and len(first) > 1)  # what the parent of the ranks says of them
    for trace in first:
        if not PEER_LEFT.search(trace.text):
            return trace
    alone = [trace for trace in told if not PEER_LEFT.search(trace.text)]
    return alone[-1] if alone else first[0]


OWN_FAULT = frozenset({"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL"})
"""Signals that a process brings upon itself; not SIGABRT, by which a watchdog ends a rank that waits for another."""


def _followed(rank: int | None, text: str, root: Root | None) -> bool:
    """Say whether a rank only tells that a peer has left, while the launcher names another one that fell before it.

    Whatever it says, if that one fell over its own feet: what follows (a data worker that is ended, too) is no cause.
    """
    if root is None or not (root.exit_code or root.signal) or None in (rank, root.rank) or rank == root.rank:
        return False
    return root.signal in OWN_FAULT or PEER_LEFT.search(text) is not None


def _chain(scene: Scene, trace: Trace) -> Iterator[Trace]:
    """Yield a traceback and those it came of, the last first."""
    same = [one for one in scene.traces if one.prefix == trace.prefix and one.at <= trace.at]
    for one in reversed(same):
        yield one
        if not one.chained:
            return


def _from_text(how: Exit, scene: Scene, trace: Trace | None) -> tuple[str, str, Trace | None]:
    """Return cause and sentence as the log tells them, and the traceback that told; a crash if it tells nothing."""
    if trace is not None:
        for one in _chain(scene, trace):
            cause = cause_of(one.text) or loading(one)
            if cause is not None:
                return cause, _sentence(cause, one.text, f"{_who(one.rank)}%s{one.where}", scene), one
    for mark in _telling(how, scene, trace):
        cause = cause_of(mark.text)
        if cause is not None:
            return cause, _sentence(cause, mark.text, f"{_who(mark.rank)}%s", scene), None
    if how.exit_code is not None and trace is None:
        misused = _misused(how.exit_code, scene)
        if misused is not None:
            return "usage", misused, None
    return "crash", _crash(how, scene, trace), trace


def _telling(how: Exit, scene: Scene, trace: Trace | None) -> list[Mark]:
    """Return the lines of the shape of an error that may tell why, the last first.

    Beside a traceback only those after it: what a program wrote into its log before was survived. A program that was
    ended by a fault of its own says nothing about it, whatever it complained of; one that aborts itself says why.
    """
    if how.signal is not None and how.signal not in ("SIGABRT", "SIGBUS"):
        return []
    first = len(scene.lines) - NEAR_LINES if trace is None else trace.at
    near = [mark for mark in scene.marks if mark.at >= first or "Watchdog caught" in mark.text]
    return [mark for mark in reversed(near) if not _followed(mark.rank, mark.text, scene.root)]


def _misused(code: int, scene: Scene) -> str | None:
    """Return the sentence for a command that could not be understood; None if it was."""
    texts = [mark.text for mark in scene.marks]
    asked = any(line.lower().startswith("usage:") for line in scene.lines)
    for text in reversed(texts):
        if code in (126, 127) and SHELL_FILE.match(text):
            return f"{describe(Exit(exit_code=code))}: {_short(text)}"
        if code in (1, 2) and (USAGE_LINE.search(text) or (asked and code == 2 and ": error: " in text)):
            return f"wrong usage: {_short(text)}"
    if code in (126, 127):
        return f"{describe(Exit(exit_code=code))}, as a shell does that cannot execute a program"
    return None


# --- sentences --------------------------------------------------------------------------------------------------------


def _sentence(cause: str, text: str, place: str, scene: Scene) -> str:
    """Return one sentence; ``place`` is "rank 1: %s at train.py line 42"."""
    message = _short(_message(text))
    if _SYNTAX.match(text):
        at = next((found for line in reversed(scene.lines) if (found := _SOURCE.match(line))), None)
        where = f" at {at[1]} line {at[2]}" if at is not None and "%s at " not in place else ""
        return f"{place % 'wrong usage'}{where}: {_short(text)}"
    if cause == "out_of_memory_gpu":
        size = re.search(r"(?:[Tt]ried to allocate|trying to allocate|allocating) (\d[\d.,]* ?\w+)", text)
        kind = re.search(r"\b(CUDA|HIP|XPU|MPS)\b", text)
        of_cuda = re.search(r"\bCU(?:BLAS|DNN|SOLVER|SPARSE)|[Cc]uda|torch", text)
        what = f"{kind[1] if kind else 'CUDA' if of_cuda else 'GPU'} out of memory"
        return place % what + (f": tried to allocate {size[1]}" if size else f": {message}")
    if cause == "out_of_memory_host":
        if "killed by signal: Killed" in text:
            return f"{place % 'out of host memory'}: {message} (most likely by the kernel, for memory)"
        shared = "shared memory" in text or "</torch" in text
        return f"{place % ('shared memory (/dev/shm) used up' if shared else 'out of host memory')}: {message}"
    if cause == "collective_timeout":
        return _collective(text, place, scene)
    names = {
        "disk_full": "disk full",
        "hardware": "hardware failure",
        "import_error": "import failed",
        "load_failure": "a checkpoint could not be loaded",
        "usage": "wrong usage",
    }
    if cause == "load_failure" and len(message) < 20:
        message = _short(text)  # "KeyError: 'model'" needs its class to be understood
    return f"{place % names[cause]}: {message}"


def _collective(text: str, place: str, scene: Scene) -> str:
    """Return the sentence for a collective that failed: with the rank that did not join, else the first to report."""
    everything = "\n".join(scene.lines)
    absent = re.search(r"Ranks? ([\d, ]+) failed to pass monitoredBarrier", everything)
    first = re.search(r"\[(?:PG .*?)?Rank (\d+)\] .*?Watchdog caught collective operation timeout(.*)", everything)
    if absent is not None:
        return f"a collective operation timed out: rank {absent[1].strip(', ')} did not join the barrier"
    if first is not None:
        kind = re.search(r"OpType=(\w+)", first[2])
        limit = re.search(r"Timeout\(ms\)=(\d+)", first[2])
        details = [kind[1]] if kind else []
        details += [f"after {int(limit[1]) / 1000:g} s"] if limit else []
        about = f" ({', '.join(details)})" if details else ""
        return f"a collective operation timed out{about}: rank {first[1]} was the first to report it"
    if PEER_LEFT.search(text):
        return f"{place % 'a collective operation failed, its peer has left'}: {_short(_message(text))}"
    return f"{place % 'a collective operation timed out'}: {_short(_message(text))}"


def _crash(how: Exit, scene: Scene, trace: Trace | None) -> str:
    if how.signal is not None:
        fatal = next((line for line in scene.lines if "Fatal Python error:" in line), None)
        if fatal is None:
            return describe(how)
        frame = next((line for line in scene.lines[scene.lines.index(fatal) :] if _own_frame(line)), None)
        place = re.search(r'([^"/]+)", line (\d+)', frame or "")
        where = f" at {place[1]} line {place[2]}" if place else ""
        return f"{describe(how)}{where} ({_short(fatal)})"
    if trace is not None:
        kind = trace.error.partition(":")[0].rpartition(".")[2]
        message = _short(_message(trace.text))
        told = f"{kind}{trace.where}" + (f": {message}" if message and message != kind else "")
        return f"{describe(how)}: {_who(trace.rank)}{told}"
    if scene.root is not None and scene.root.exit_code:
        return f"{describe(how)}: {scene.root.name} exited first, with code {scene.root.exit_code}"
    return describe(how)


def _own_frame(line: str) -> bool:
    return re.search(r'^\s*File "', line) is not None and not re.search(r"/(?:site|dist)-packages/|/lib/python3", line)


def _who(rank: int | None) -> str:
    return "" if rank is None else f"rank {rank}: "


def _message(text: str) -> str:
    """Return what an error says, without its class; its continuation if the first line says nothing itself."""
    first, _, rest = text.partition("\n")
    said = re.sub(r"^\s*(?:what\(\):|(?:[A-Za-z_]\w*\.)*\w+:)\s*", "", first + " ").strip() or first.strip()
    if re.search(r":$|^Error\(s\) in loading", said) and rest:
        return f"{said} {rest}"
    return said


def _short(text: str) -> str:
    one = " ".join(text.split()).strip(" ,:")
    return one if len(one) <= WORDS else one[: WORDS - 3] + "..."

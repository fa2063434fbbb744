"""What the last lines of a log hold of a failure: tracebacks, the tables of launchers, lines of the shape of an error.

Pure: lines in, values out, nothing is judged here; which cause a text stands for is the question of ``causes.py``.
Written for text as it is printed by several processes at once: the lines of a traceback are told apart by the prefix
that ``torchrun`` and others put before each ("[rank1]: "), and whatever stands between them is passed over.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

MAX_LINES = 10
MAX_COLUMNS = 300
MAX_READ = 4000
MAX_MESSAGE = 30
MAX_LOOSE = 3
STALE_STEPS = 4
"""A failure that was followed by so many different steps was survived (one step may be printed by several ranks)."""

_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~]?)|[\x00-\x08\x0b-\x1f\x7f]"
)
_PREFIX = re.compile(r"\[(?:default)?(?:rank)?(?P<rank>\d+)\]:[ ]?|\((?:\w+[ ])?pid=\d+(?:, ip=[\w.:]+)?\)[ ]|\d+: ")
_HEADER = re.compile(r"^(?P<lead>.*?)(?P<word>Original |Exception Group )?Traceback \(most recent call last\)")
_FRAME = re.compile(r'^\s*File "(?P<path>[^"]+)", line (?P<line>\d+),?(?: in (?P<function>.*))?$')
_BOXED = re.compile(r"^│ (?P<path>\S+):(?P<line>\d+) in (?P<function>\S+)")
_ERROR = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:: |:?$)|^(?:[A-Za-z_]\w*\.)+\w+:(?: |$)")
_CHAIN = re.compile(r"^(?:During handling of the above exception|The above exception was the direct cause)")
_NESTED = re.compile(r"^(?:-- Process \d+ )?terminated with the following error|^-- Process \d+ terminated with")
_ASIDE = re.compile(r"^(?:Exception ignored in|Error in (?:atexit|sys\.)|Exception in thread)")
_WORDY = re.compile(r"^(?:RuntimeError|[\w.]*DistBackendError|[\w.]*XlaRuntimeError)\b|: ?$")
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3[\d.]*/|^<frozen ")
_PACKAGES = re.compile(r"/(?:site|dist)-packages/")
_LAUNCHER = re.compile(r"\bChildFailedError\b|^subprocess\.CalledProcessError: .*(?:died with|non-zero exit)")

_STEP = re.compile(r"^(?!\s|File |wandb:).*?\b(?:global_)?(?:step|iter(?:ation)?)\b\W{0,4}(\d[\d,]*)", re.IGNORECASE)
_BAR = re.compile(r"\b(\d+)/(?:\d+|\?) \[")
_LOSS = re.compile(r"^(?!\s|wandb:).*\bloss\b\W{0,4}(?:-?\d|nan|-?inf)", re.IGNORECASE)

SHAPED = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Timeout)\b(?::|$)"
    r"|^\s*what\(\):|^terminate called|^Fatal Python error:|^\[?[EF]\d{4} |^\s*\^?(?:ERROR|FATAL|Error|error)\b"
    r"|^.{0,80}\b(?:ERROR|FATAL|CRITICAL)\b|: (?:fatal )?error: |\bNCCL WARN\b|^HW Exception|^\w*RROR:"
    r"|^\S+: (?:line \d+: |\d+: )?.*(?:not found|No such file or directory|Permission denied)$|: can't open file "
    r"|: No module named \S+$|: symbol lookup error: |^(?:Could not override|Key '.*' is not in struct)"
    r"|: error while loading shared libraries: "
    r"|^(?:Primary|Cannot find primary) config|^Flags parsing error"
    # What programs that are not Python say last: `cat: write error: No space left on device`, a panic, an allocator.
    r"|: (?:No space left on device|Disk quota exceeded|Cannot allocate memory)\W*$|\bOs \{ code: (?:28|122)\b"
    r"|^\W?(?:CUDA|HIP|XPU)\b.{0,120}\bout of memory\b"
)

_ROOT = re.compile(r"^Root Cause \(first observed failure\)")
_FIELD = re.compile(r"^\s*(?P<name>rank|exitcode)\s*: (?P<number>-?\d+)(?:.*?\(pid: (?P<pid>\d+)\))?")
_TOLD = (
    re.compile(r"\bfailed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<rank>\d+) \(pid: (?P<pid>\d+)\)"),
    re.compile(r"\bprocess (?P<rank>\d+) terminated with signal (?P<name>SIG\w+)"),
    re.compile(r"\bexits with return code = (?P<code>-\d+)"),
    re.compile(r"\bdied with <Signals\.(?P<name>SIG\w+): \d+>"),
    re.compile(r"\bexited on signal (?P<number>\d+)"),
    re.compile(r"^srun: error: \S+: tasks? (?P<rank>\d+)\S*: (?P<word>Killed|Segmentation fault|Bus error|Aborted)"),
)
_WORDS = {"Killed": "SIGKILL", "Segmentation fault": "SIGSEGV", "Bus error": "SIGBUS", "Aborted": "SIGABRT"}


class Frame(NamedTuple):
    """One frame of a traceback; ``source`` is the line of code, if it was printed."""

    path: str
    line: int
    function: str
    source: str

    @property
    def own(self) -> bool:
        """Say whether the frame is of the user's own code, and not of Python or of an installed package."""
        return _LIBRARY.search(self.path) is None


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """One traceback. ``error`` is its last line, ``message`` what follows of it.

    ``prefix`` is what stood before each line, ``rank`` the number in it. ``chained``: it came of the traceback before
    it. ``aside``: of a destructor, an exit function or a thread, which end no program.
    """

    at: int
    prefix: str
    rank: int | None
    frames: tuple[Frame, ...]
    error: str
    message: tuple[str, ...]
    chained: bool
    aside: bool

    @property
    def text(self) -> str:
        """Return the error with all of its message."""
        return "\n".join((self.error, *self.message))

    @property
    def launcher(self) -> bool:
        """Say whether it only tells that a launched process failed, as those of torchrun and accelerate do."""
        return _LAUNCHER.search(self.error) is not None

    @property
    def where(self) -> str:
        """Return the place in the user's own code, as " at train.py line 42"; empty if none is in it."""
        own = next((frame for frame in reversed(self.frames) if frame.own), None)
        return "" if own is None else f" at {own.path.rpartition('/')[2]} line {own.line}"


class Root(msgspec.Struct, frozen=True, kw_only=True):
    """The process that a launcher names as the first that failed, and how it ended."""

    rank: int | None = None
    pid: int | None = None
    exit_code: int | None = None
    signal: str | None = None

    @property
    def name(self) -> str:
        """Return "rank 1 (pid 4711)", as much of it as is known."""
        who = "a process below it" if self.rank is None else f"rank {self.rank}"
        return who if self.pid is None else f"{who} (pid {self.pid})"


class Mark(NamedTuple):
    """A line outside of every traceback that has the shape of an error."""

    at: int
    rank: int | None
    text: str


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a log, after the last steps: its lines, and what was found in them, each in the order of the log."""

    lines: tuple[str, ...]
    traces: tuple[Trace, ...]
    marks: tuple[Mark, ...]
    root: Root | None


def read(tail: Sequence[str]) -> Scene:
    """Return what the last lines of a log hold of a failure that was not followed by more steps."""
    cleaned = [_ESCAPES.sub("", line[:MAX_READ]).rstrip() for line in tail]
    lines = [line for line in cleaned[_survived(cleaned) :] if line]
    rows = [_split(line) for line in lines]
    traces, inside = _traces(rows)
    marks = tuple(
        Mark(at, _rank(prefix), text)
        for at, (prefix, text) in enumerate(rows)
        if at not in inside and SHAPED.search(text) and not text.startswith("wandb:")
    )
    return Scene(lines=tuple(lines), traces=tuple(traces), marks=marks, root=_root([text for _, text in rows]))


def _survived(lines: Sequence[str]) -> int:
    """Return where the last few steps begin: a failure before them was not the end."""
    seen: set[str] = set()
    for at in range(len(lines) - 1, -1, -1):
        text = _split(lines[at])[1]
        step = _STEP.match(text) or _BAR.search(text)
        key = step[1] if step else text if _LOSS.match(text) else None
        if key is not None:
            seen.add(key)
            if len(seen) >= STALE_STEPS:
                return at
    return 0


def _split(line: str) -> tuple[str, str]:
    found = _PREFIX.match(line)
    return ("", line) if found is None else (found[0].strip(), line[found.end() :])


def _rank(prefix: str) -> int | None:
    digits = re.match(r"\[(?:default)?(?:rank)?(\d+)\]:|(\d+):$", prefix)
    return None if digits is None else int(digits[1] or digits[2])


class _Open:
    """A traceback that is being read."""

    def __init__(self, at: int, prefix: str, header: re.Match[str], before: str) -> None:
        self.at, self.prefix = at, prefix
        self.boxed = "╭" in header["lead"]
        self.barred = header["word"] == "Exception Group "
        lead = header["lead"]
        self.indent = 0 if self.boxed or lead.strip(" |+") else len(lead)
        if re.match(r"\s+traceback\s*: $", lead):  # in the table of torchrun
            self.indent = len(lead) - len(lead.lstrip())
        self.chained = bool(header["word"] == "Original " or _CHAIN.match(before) or _NESTED.match(before))
        self.aside = bool(_ASIDE.match(before))
        self.frames: list[Frame] = []
        self.error = ""
        self.message: list[str] = []
        self.loose = 0

    def take(self, text: str) -> bool:
        """Take the next line of this prefix in; False if it does not belong here any more."""
        if self.barred:
            text = re.sub(r"^[ |+-]+", lambda bars: " " * len(bars[0]), text)
        if self.boxed and not self.error and text[:1] in "│╰":
            found = _BOXED.match(text)
            if found is not None:
                self.frames.append(Frame(found["path"], int(found["line"]), found["function"], ""))
            return True
        deeper = len(text) - len(text.lstrip()) > self.indent
        return self._more(text, deeper=deeper) if self.error else self._frame(text, deeper=deeper)

    def _frame(self, text: str, *, deeper: bool) -> bool:
        found = _FRAME.match(text)
        if found is not None:
            self.frames.append(Frame(found["path"], int(found["line"]), found["function"] or "", ""))
        elif deeper:
            if self.frames and not self.frames[-1].source and not re.fullmatch(r"[\s~^]+", text):
                self.frames[-1] = self.frames[-1]._replace(source=text.strip())
        elif _ERROR.match(text.strip()):
            self.error = text.strip()
        return True  # of another process, unmarked: what belongs here may still come

    def _more(self, text: str, *, deeper: bool) -> bool:
        if _CHAIN.match(text) or _NESTED.match(text) or len(self.message) >= MAX_MESSAGE:
            return False
        if not deeper:
            # Messages of CUDA and NCCL go on in lines of their own, and nothing shows where they end.
            self.loose += 1
            told = _STEP.match(text) or SHAPED.search(text) or text.startswith(("wandb:", "==="))
            if self.loose > MAX_LOOSE or told or not _WORDY.search(self.error):
                return False
        self.message.append(text.strip())
        return True

    def done(self) -> Trace:
        return Trace(
            at=self.at,
            prefix=self.prefix,
            rank=_rank(self.prefix),
            frames=tuple(self.frames),
            error=self.error,
            message=tuple(self.message),
            chained=self.chained,
            aside=self.aside,
        )


def _traces(rows: Sequence[tuple[str, str]]) -> tuple[list[Trace], set[int]]:
    """Return the finished tracebacks in the order of their last lines, and the rows that are part of one."""
    going: dict[str, _Open] = {}
    before: dict[str, str] = {}
    found: list[Trace] = []
    inside: set[int] = set()
    for at, (prefix, text) in enumerate(rows):
        one = going.get(prefix)
        header = _HEADER.match(text)
        if header is not None or (one is not None and not one.take(text)):
            if one is not None and one.error:
                found.append(one.done())
            going.pop(prefix, None)
        elif one is not None:
            inside.add(at)
        if header is not None:
            going[prefix] = _Open(at, prefix, header, before.get(prefix, ""))
            inside.add(at)
        before[prefix] = text
    found += [one.done() for one in going.values() if one.error]
    return sorted(found, key=lambda trace: trace.at), inside


def _root(texts: Sequence[str]) -> Root | None:
    """Return whom the launcher names as the first that failed: from its last table, else from its last line."""
    for at in range(len(texts) - 1, -1, -1):
        if _ROOT.match(texts[at]):
            numbers: dict[str, int] = {}
            for text in texts[at + 1 : at + 9]:
                field = _FIELD.match(text)
                if field is not None:
                    numbers[field["name"]] = int(field["number"])
                    numbers["pid"] = int(field["pid"] or numbers.get("pid", 0))
            return _named(numbers.get("rank"), numbers.get("pid") or None, numbers.get("exitcode"))
    for text in reversed(texts):
        told = next((found for found in (pattern.search(text) for pattern in _TOLD) if found is not None), None)
        if told is not None:
            return _line_of_launcher(told.groupdict())
    return None


def _line_of_launcher(known: dict[str, str | None]) -> Root:
    rank, pid, code, number = (
        None if (digits := known.get(key)) is None else int(digits) for key in ("rank", "pid", "code", "number")
    )
    told = _named(rank, pid, code if number is None else -number)
    name = known.get("name") or _WORDS.get(known.get("word") or "")
    return told if name is None else msgspec.structs.replace(told, signal=name)


def _named(rank: int | None, pid: int | None, code: int | None) -> Root:
    if code is None or code >= 0:
        return Root(rank=rank, pid=pid, exit_code=code)
    return Root(rank=rank, pid=pid, signal=signal_of(-code))


def signal_of(number: int) -> str | None:
    """Return the name of a signal; None if there is none of this number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return None


# --- for the eye ------------------------------------------------------------------------------------------------------


def fold(trace: Trace) -> tuple[str, ...]:
    """Return a traceback in at most ten lines: the user's own frames whole, those of packages as their number."""
    head = "Traceback" if trace.rank is None else f"Traceback of rank {trace.rank}"
    end = [trace.error, *trace.message[:2]]
    body = list(_folded(trace.frames))
    room = MAX_LINES - 1 - len(end)
    if len(body) > room:
        body = [f"  ... {len(body) - room + 1} more", *body[len(body) - room + 1 :]]
    return tuple(line[:MAX_COLUMNS] for line in (head, *body, *end))


def _folded(frames: Sequence[Frame]) -> Iterator[str]:
    hidden: list[Frame] = []
    for frame in (*frames, None):
        if frame is not None and not frame.own:
            hidden.append(frame)
            continue
        if hidden:
            packaged = any(_PACKAGES.search(one.path) for one in hidden)
            noun = "frame" if len(hidden) == 1 else "frames"
            yield f"  ... {len(hidden)} {noun} in {'site-packages' if packaged else 'the standard library'}"
            hidden = []
        if frame is not None:
            source = f": {frame.source}" if frame.source else ""
            yield f'  File "{frame.path}", line {frame.line}, in {frame.function}{source}'


def last_lines(scene: Scene) -> tuple[str, ...]:
    """Return the last lines of the log, with what a launcher says at length in one line."""
    lines = list(scene.lines)
    launcher = next((trace.at for trace in scene.traces if trace.launcher), None)
    fatal = next((at for at, line in enumerate(lines) if "Fatal Python error:" in line), None)
    told: list[str] = []
    if scene.root is not None:
        how = scene.root.signal or f"exit code {scene.root.exit_code}"
        told = [f"launcher: {scene.root.name} failed first, {how}"]
    if fatal is not None:
        lines = [line for line in lines[fatal:] if not line.startswith("Extension modules:")][: MAX_LINES - len(told)]
    elif launcher is not None:
        lines = lines[:launcher]
    return tuple(line[:MAX_COLUMNS] for line in (*lines[len(told) - MAX_LINES :], *told))

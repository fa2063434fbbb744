"""Real runs for tests that kill, damage and fill: a home of its own, its runs, and what their files say.

Everything goes through the command line and the files of the run folder, as for any stranger. Nothing is asserted here
but that a thing waited for does happen; what is right is said by the tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from overnight.facts import Facts
from overnight.folder import RunFolder
from overnight.history.store import records_of
from overnight.intake.reading import Intake
from overnight.spec import RunSpec
from overnight.wiring import make_monitor

TOY = Path(__file__).parents[1] / "toy.py"
PATIENCE_S = 25.0
T = TypeVar("T")


def until(look: Callable[[], T], what: str, *, limit_s: float = PATIENCE_S, every_s: float = 0.02) -> T:
    """Return the first true value of ``look``; fail with ``what`` after ``limit_s`` seconds."""
    end = time.monotonic() + limit_s
    while True:
        value = look()
        if value:
            return value
        if time.monotonic() > end:
            pytest.fail(f"not within {limit_s:g} s: {what}")
        time.sleep(every_s)


def living(pid: int) -> bool:
    """Say whether a process lives; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in (b"Z", b"X")


def rss_kib(pid: int, field: str = "VmRSS") -> int:
    """Return the resident memory of a process in KiB, or its highest (``VmHWM``)."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition(f"{field}:")[2].split()[0])


def load(path: Path) -> dict[str, Any]:
    """Return a JSON file, empty if it is not there (yet)."""
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    return found


class Run:
    """One run by its folder."""

    def __init__(self, home: Home, name: str) -> None:
        self.home = home
        self.name = name
        self.path = home.path / "runs" / name

    def status(self) -> dict[str, Any]:
        """Return what `overnight status NAME --json` prints."""
        said = self.home.call("status", self.name, "--json")
        assert said.returncode == 0, said.stderr
        found: dict[str, Any] = json.loads(said.stdout)
        return found

    def snapshot(self) -> dict[str, Any]:
        """Return status.json as it lies on disk: cheap enough to be polled."""
        return load(self.path / "status.json")

    def until(self, look: Callable[[dict[str, Any]], Any], what: str, *, limit_s: float = PATIENCE_S) -> dict[str, Any]:
        """Return the first status on disk that ``look`` likes."""

        def liked() -> dict[str, Any] | None:
            seen = self.snapshot()
            return seen if seen and look(seen) else None

        found = until(liked, f"{self.name}: {what}", limit_s=limit_s)
        assert found is not None
        return found

    def wait(self, timeout_s: float = 40.0) -> int:
        """Return the exit code of `overnight wait`."""
        return self.home.call("wait", self.name, "--timeout", f"{timeout_s:g}s", timeout=timeout_s + 15).returncode

    def stop(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `overnight stop`."""
        return self.home.call("stop", self.name, *words, timeout=45)

    def pid(self, role: str) -> int:
        """Return the pid of the guard, shim or supervisor that shim.json names, 0 if it names none."""
        return int((load(self.path / "shim.json").get(role) or {}).get("pid") or 0)

    def child(self) -> int:
        """Return the pid of the command."""
        return int(load(self.path / "attempts/001/started.json").get("pid") or 0)

    def log(self) -> str:
        """Return the log as text."""
        return Path(load(self.path / "run.json")["spec"]["log"]).read_text(errors="replace")

    def facts(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Return the facts of the journal, of one kind if it is given."""
        found = [json.loads(line) for line in (self.path / "journal.jsonl").read_bytes().splitlines() if line]
        return [one for one in found if kind is None or one["fact"] == kind]

    def records(self) -> list[dict[str, object]]:
        """Return all records of metrics.db that came from a log; samples of the sensors have sources below 0."""
        return [one for one in records_of(self.path / "metrics.db") if int(str(one["source"])) >= 0]

    def steps(self) -> list[object]:
        """Return the steps of all records of metrics.db, in the order of the log."""
        return [one["step"] for one in self.records()]

    def verdicts(self) -> list[tuple[object, ...]]:
        """Return all verdicts of metrics.db, without the time at which they were made."""
        return verdicts_of(self.path / "metrics.db")

    def kill(self, *roles: str) -> None:
        """SIGKILL guard, shim, supervisor or "child", all as close together as can be."""
        pids = [self.child() if role == "child" else self.pid(role) for role in roles]
        assert all(pids), f"{self.name}: not all of {roles} are known: {pids}"
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    def gone(self) -> None:
        """Wait until supervisor, shim and guard have left."""
        pids = [self.pid(role) for role in ("supervisor", "shim", "guard")]
        until(lambda: not any(living(pid) for pid in pids if pid), f"the keepers of {self.name} leave")

    def clean_logs(self) -> None:
        """Assert that no traceback stands in a log of ours."""
        for log in ("supervisor.log", "shim.log"):
            path = self.path / log
            text = path.read_text(errors="replace") if path.exists() else ""
            assert "Traceback" not in text, f"{log}:\n{text}"


def verdicts_of(path: Path) -> list[tuple[object, ...]]:
    """Return all verdicts of a metrics.db, without the time at which they were made."""
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        columns = "attempt, source, offset, part, rule, severity, action, step, text, evidence"
        return db.execute(f"SELECT {columns} FROM verdicts ORDER BY source, offset, part, rule").fetchall()
    finally:
        db.close()


class Home:
    """One OVERNIGHT_HOME with its runs."""

    def __init__(self, path: Path) -> None:
        self.path = path / "home"
        self.work = path / "work"
        self.work.mkdir()
        unset = ("PYTHONUNBUFFERED", "PYTHONFAULTHANDLER", "COLUMNS", "LINES")
        given = os.environ.items()
        self.env = {name: value for name, value in given if not name.startswith("OVERNIGHT_") and name not in unset}
        self.env |= {"OVERNIGHT_HOME": str(self.path), "XDG_CONFIG_HOME": str(path / "config"), "NO_COLOR": "1"}
        self.env["OVERNIGHT_REPORT"] = "never"  # a process more for each of a thousand runs; tests of it say otherwise

    def call(
        self,
        *words: str,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float = 30,
        before: Sequence[str] = (),
    ) -> subprocess.CompletedProcess[str]:
        """Run `overnight WORDS` to its end, ``before`` it setpriv or the like."""
        return subprocess.run(
            [*before, sys.executable, "-m", "overnight", *words],
            env={**self.env, **(env or {})},
            cwd=cwd or self.work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=timeout,
            check=False,
        )

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """Start `overnight WORDS` and return it as it runs."""
        return subprocess.Popen(
            [sys.executable, "-m", "overnight", *words],
            env=self.env,
            cwd=self.work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def start(self, name: str, *command: str, options: Sequence[str] = (), env: dict[str, str] | None = None) -> Run:
        """Start a run of any command."""
        said = self.call("run", "--name", name, "--settle", "0.01s", *options, "--", *command, env=env)
        assert said.returncode == 0, said.stderr + said.stdout
        return Run(self, name)

    def toy(self, name: str, *switches: str, options: Sequence[str] = ()) -> Run:
        """Start a run of the toy trainer."""
        return self.start(name, sys.executable, str(TOY), *switches, options=options)

    def script(self, name: str, source: str, *arguments: str, options: Sequence[str] = ()) -> Run:
        """Start a run of a small Python script."""
        path = self.work / f"{name}.py"
        path.write_text(source)
        return self.start(name, sys.executable, str(path), *arguments, options=options)

    def processes(self) -> list[int]:
        """Return the processes that belong to a run of this home: by their environment or their command line."""
        mark = str(self.path).encode()
        found = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or int(entry) == os.getpid():
                continue
            try:
                environ = Path(f"/proc/{entry}/environ").read_bytes()
                words = Path(f"/proc/{entry}/cmdline").read_bytes()
            except OSError:
                continue
            if b"OVERNIGHT_RUN_DIR=" + mark + b"/" in environ or mark + b"/runs/" in words:
                found.append(int(entry))
        return found

    def stop_all(self) -> None:
        """Kill whatever is left of all runs: the keepers first, so that nothing is started again."""
        while True:
            left = self.processes()
            if not [pid for pid in left if living(pid)]:
                return
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)


def a_place(path: Path) -> Iterator[Home]:
    """Yield a home and end everything in it afterwards; for a fixture."""
    found = Home(path)
    try:
        yield found
    finally:
        found.stop_all()


def rebuild(run: Run, path: Path) -> tuple[list[dict[str, object]], list[tuple[object, ...]]]:
    """Return (records, verdicts) as they are found when the whole log is read again by one reader that is never killed.

    Of the journal only the time marks are kept: with the verdicts in it, it would tell the reader what to find.
    """
    folder = RunFolder(path / "rebuilt" / run.name)
    folder.create()
    shutil.copy(run.path / "run.json", folder.run_json)
    shutil.copytree(run.path / "attempts", folder.attempts, dirs_exist_ok=True)
    marks = [line for line in (run.path / "journal.jsonl").read_bytes().splitlines(keepends=True) if b'"mark"' in line]
    folder.journal.write_bytes(b"".join(marks))
    asked = load(folder.run_json)
    spec = msgspec.convert(asked["spec"], RunSpec)
    facts = Facts(folder)
    intake = Intake(folder, spec, make_monitor(spec, facts.note), facts, start=int(asked["log_start"]), pids=())
    orders = {number: load(folder.attempt(number).start_json)["position"] for number in folder.attempt_numbers()}
    intake.bounds = deque((source, offset, number) for number, (source, offset) in sorted(orders.items()))
    found = intake.read(clock=0.0)
    while intake.more:
        found += intake.read(clock=0.0)
    intake.flush()
    intake.close()
    facts.journal.close()
    return list(records_of(folder.metrics_db)), verdicts_of(folder.metrics_db)

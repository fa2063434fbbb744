"""Rows A2-03 and A2-04, and what our processes cost and leave alone: memory, wakeups, descriptors, the environment.

Budgets are asserted where they are promises (megabytes, wakeups), never times.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from runs import Home, Run, a_place, load, rss_kib, until

BUDGET_KIB = 55 * 1024
SUPERVISOR_KIB = 100 * 1024
QUIET_S = 5.0
WAKEUPS = 10

FLOOD = """
import os, sys
left, step = int(sys.argv[1]), 0
while left > 0:
    lines = []
    for _ in range(2000):
        step += 1
        lines.append(f"step: {step}, loss: 3.1234, dt: 0.0001 {'x' * 60}\\n")
    data = "".join(lines).encode()
    left -= len(data)
    os.write(1, data)
print(f"last {step}", flush=True)
"""

LOOK = """
import json, os, signal, sys
from pathlib import Path
fds = {}
for name in os.listdir("/proc/self/fd"):
    try:
        fds[name] = os.readlink(f"/proc/self/fd/{name}")
    except FileNotFoundError:
        pass  # the descriptor of the listing itself
status = Path("/proc/self/status").read_text()
lines = [line.split(":") for line in status.splitlines()]
# 32 and 33 belong to the C library: nobody can reset them, if whoever started the suite had them ignored.
usual = sum(1 << (number - 1) for number in signal.valid_signals())
masks = {name: int(value[0], 16) & usual for name, *value in lines if name in ("SigBlk", "SigIgn")}
look = {
    "fds": fds, "env": dict(os.environ), "cwd": os.getcwd(), "oom": int(Path("/proc/self/oom_score_adj").read_text()),
    "tty": os.isatty(0) or os.isatty(1), "sid": os.getsid(0), "masks": masks, "umask": os.umask(0), "argv": sys.argv,
}
Path(sys.argv[1]).write_text(json.dumps(look))
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Home]:
    yield from a_place(tmp_path)


def flood(place: Home, megabytes: int) -> None:
    run = place.script("flood", FLOOD, str(megabytes << 20))
    highest = 0
    while (seen := run.snapshot()).get("state") not in ("finished", "failed"):
        supervisor = run.pid("supervisor")
        if supervisor:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, IndexError):  # between look and end
                highest = max(highest, rss_kib(supervisor, "VmHWM"))
        time.sleep(0.02)
    assert run.wait() == 0, seen
    assert 0 < highest < SUPERVISOR_KIB, f"{highest} KiB"
    steps = int(run.log().rsplit("last ", 1)[1])
    assert run.steps() == list(range(1, steps + 1))
    run.clean_logs()


def test_a_flood_of_lines_leaves_the_supervisor_small(place: Home) -> None:
    flood(place, 20)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a2_03_two_hundred_megabytes_leave_the_supervisor_small(place: Home) -> None:
    flood(place, 200)


def look_inside(place: Home, *, env: dict[str, str] | None = None, options: tuple[str, ...] = ()) -> dict[str, object]:
    """Run a command that writes down what it was given."""
    answer = place.work / "answer.json"
    answer.unlink(missing_ok=True)
    script = place.work / "look.py"
    script.write_text(LOOK)
    name = f"look{len(list(place.work.iterdir()))}{len(env or {})}"
    # A descriptor and a variable of the caller's: the one is not passed on, the other is.
    run = place.start(
        name, sys.executable, str(script), str(answer), options=options, env={"MY_OWN": "kept", **(env or {})}
    )
    assert run.wait() == 0
    found: dict[str, object] = load(answer)
    return found | {"run": run}


def test_a2_03_the_child_is_offered_to_the_oom_killer_first(place: Home) -> None:
    run = place.toy("oom", "--steps", "100000")
    until(run.child, "a child")
    scores = {
        role: int(Path(f"/proc/{run.pid(role)}/oom_score_adj").read_text()) for role in ("guard", "shim", "supervisor")
    }
    child = Path(f"/proc/{run.child()}/oom_score_adj")
    until(lambda: int(child.read_text()) != scores["shim"], "its score")
    own = int(Path("/proc/self/oom_score_adj").read_text())
    assert set(scores.values()) == {own}
    assert int(child.read_text()) == min(1000, own + 10)


def test_a2_04_one_killed_leaves_the_other(place: Home) -> None:
    first = place.toy("first", "--steps", "100000", "--dt", "0.02")
    second = place.toy("second", "--steps", "100000", "--dt", "0.02")
    first.until(lambda seen: seen.get("records"), "records")
    seen = second.until(lambda seen: seen.get("records"), "records")
    keepers = [second.pid(role) for role in ("guard", "shim", "supervisor")]
    os.kill(first.child(), signal.SIGKILL)  # stands for the kernel's out-of-memory killer
    assert first.wait() == 100
    status = first.status()
    assert (status["state"], status["cause"], status["signal"]) == ("failed", "unknown_kill", "SIGKILL")
    assert "out-of-memory" in status["cause_text"]
    second.until(lambda now: now["records"] > seen["records"] + 10, "the other goes on")
    assert second.status()["state"] == "running"
    assert [second.pid(role) for role in ("guard", "shim", "supervisor")] == keepers


def test_the_child_inherits_nothing_of_ours(place: Home) -> None:
    handle = os.open(place.work / "callers", os.O_CREAT | os.O_RDWR)
    os.set_inheritable(handle, True)
    try:
        seen = look_inside(place)
    finally:
        os.close(handle)
    run = seen["run"]
    assert isinstance(run, Run)
    fds = seen["fds"]
    assert isinstance(fds, dict)
    log = str(run.path / "output.log")
    assert {"0": "/dev/null", "1": log, "2": log}.items() <= fds.items()
    assert [name for name in fds if int(name) > 2 and "/proc/" not in fds[name]] == []
    assert (seen["tty"], seen["cwd"]) == (False, str(place.work))
    assert seen["sid"] == run.child()
    masks = seen["masks"]
    assert isinstance(masks, dict)
    python_ignores = 1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1)
    assert masks == {"SigBlk": 0, "SigIgn": python_ignores}


def test_environment_of_the_child(place: Home) -> None:
    seen = look_inside(place)
    env, run = seen["env"], seen["run"]
    assert isinstance(env, dict)
    assert isinstance(run, Run)
    ours = {name: value for name, value in env.items() if name.startswith("OVERNIGHT_")}
    assert ours == {
        "OVERNIGHT_REPORT": "never",  # the tests' own
        "OVERNIGHT_HOME": str(place.path),
        "OVERNIGHT_RUN_ID": run.name,
        "OVERNIGHT_RUN_DIR": str(run.path),
        "OVERNIGHT_ATTEMPT": "1",
    }
    assert (env["PYTHONUNBUFFERED"], env["PYTHONFAULTHANDLER"], env["COLUMNS"]) == ("1", "1", "300")
    assert env["MY_OWN"] == "kept"
    assert env["PATH"] == place.env["PATH"]
    expected = {"PYTHONUNBUFFERED", "PYTHONFAULTHANDLER", "COLUMNS", "MY_OWN", "LC_CTYPE", *ours}
    assert set(env) - set(place.env) <= expected


def test_what_the_user_has_set_stays(place: Home) -> None:
    own = {"PYTHONUNBUFFERED": "", "COLUMNS": "77", "PYTHONFAULTHANDLER": "0"}
    env = look_inside(place, env=own)["env"]
    assert isinstance(env, dict)
    assert {name: env[name] for name in own} == own


def test_three_processes_cost_little(place: Home) -> None:
    run = place.toy("small", "--steps", "100000", "--dt", "0.01")
    run.until(lambda seen: (seen.get("records") or 0) > 300, "300 records")
    pids = {role: run.pid(role) for role in ("guard", "shim", "supervisor")}
    sizes = {role: rss_kib(pid) for role, pid in pids.items()}
    assert sum(sizes.values()) <= BUDGET_KIB, sizes


def switches(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().partition("voluntary_ctxt_switches:")[2].split()[0])


def test_at_rest_they_sleep(place: Home) -> None:
    """Nothing is written and nothing is due: no polling. The first seconds (settling, a commit) do not count."""
    run = place.toy("still", "--steps", "100000", "--dt", "0.01", "--hang-at", "20")
    run.until(lambda seen: seen.get("step") == 19, "the hang")
    pids = {role: run.pid(role) for role in ("guard", "shim", "supervisor")}
    time.sleep(2.0)  # the last commit, the last look at the saves
    before = {role: switches(pid) for role, pid in pids.items()}
    time.sleep(QUIET_S)
    woken = {role: switches(pid) - before[role] for role, pid in pids.items()}
    assert woken["guard"] == woken["shim"] == 0
    assert woken["supervisor"] <= WAKEUPS


def test_no_descriptor_is_gathered(place: Home) -> None:
    """Rotated logs, requests and saves come and go; the number of open files does not grow with them."""
    log = place.work / "turned.log"
    saves = place.work / "saves"
    switches = ["--steps", "100000", "--dt", "0.005", "--save-every", "20", "--checkpoints", str(saves)]
    run = place.toy("tidy", *switches, options=("--log", str(log)))
    run.until(lambda seen: seen.get("records"), "records")
    supervisor = run.pid("supervisor")

    def turn(times: int) -> int:
        for _ in range(times):
            with log.open("r+b") as stream:
                stream.truncate(0)
            (run.path / "inbox" / f"{time.time_ns()}-1-note.json").write_text(json.dumps({"kind": "hangup"}))
            time.sleep(0.05)
        until(lambda: not os.listdir(run.path / "inbox"), "requests are taken")
        return len(os.listdir(f"/proc/{supervisor}/fd"))

    first = turn(10)
    assert turn(40) <= first + 2
    assert run.pid("supervisor") == supervisor
    run.clean_logs()

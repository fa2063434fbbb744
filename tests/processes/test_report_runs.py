"""The morning report of real runs: however they ended, while they go on, and with files of theirs gone or damaged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from looking import PYTHON, Run, Runs, toy, until

pytestmark = pytest.mark.timeout(90)

Start = Callable[..., Run]

REWINDS = """\
import os, sys, time
number = int(os.environ["OVERNIGHT_ATTEMPT"])
first, last = {1: (1, 116), 2: (81, 100), 3: (81, 140)}[number]
for step in range(first, last + 1):
    time.sleep(0.005)
    print(f"step: {step}, loss: {4 * 0.995**step + number / 1000:.5f}, dt: 0.005", flush=True)
if number < 3:
    raise RuntimeError("boom <script>alert(1)</script>")
"""


def value_of(runs: Runs, *words: str) -> dict[str, Any]:
    """Return what ``report --json`` prints, once text and page could be made, too."""
    done = runs.overnight("report", *words, "--json")
    assert done.returncode == 0, done.stderr
    text = runs.overnight("report", *words)
    assert text.returncode == 0, text.stderr
    assert max(len(line) for line in text.stdout.splitlines()) <= 80
    assert "None" not in text.stdout
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def kinds(value: dict[str, Any]) -> set[str]:
    return {entry["kind"] for entry in value["timeline"]}


def chart(value: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in value["charts"] if one["name"] == name)


def test_a_run_that_finished(runs: Runs, start: Start) -> None:
    flags = ("--steps", 20, "--tokens-per-step", 1000, "--params", "1M", "--peak-tflops", 1, "--price", 3.6)
    run = start("night", *toy("--steps", 20, "--dt", 0.05), flags=flags)
    assert run.wait() == 0
    found = value_of(runs, "night")
    assert (found["kind"], found["name"], found["outcome"]["state"], found["outcome"]["code"]) == (
        "run", "night", "finished", 0,
    )  # fmt: skip
    assert "finished all 20 steps" in found["outcome"]["sentence"]
    good = found["goodput"]
    assert good["productive_s"] == pytest.approx(20 * 0.05)
    assert good["stepping_tokens_per_s"] == pytest.approx(20_000)
    assert good["goodput"] == pytest.approx(good["productive_s"] / good["wall_s"])
    assert good["overall_tokens_per_s"] == pytest.approx(20_000 * good["goodput"])
    assert chart(found, "loss")["x"] == list(range(1, 21))
    assert chart(found, "tokens_per_s")["low"] == pytest.approx([20_000.0] * 20)
    figures = {one["name"]: one for one in found["figures"]}
    assert figures["tokens_per_second"]["value"] == pytest.approx(run.status["tokens_per_second_avg"])
    assert figures["mfu"]["value"] == pytest.approx(run.status["mfu_avg"])
    assert "--params" in figures["mfu"]["provenance"]
    assert found["cost"]["spent"] == pytest.approx(run.status["cost"])
    assert found["last_lines"][-1].startswith("toy: longest step")
    assert found["log"]["lines"] == run.log.count(b"\n")


def test_the_report_is_made_at_the_end(runs: Runs, start: Start) -> None:
    run = start("night", *toy("--steps", 5), flags=("--report", "end"))
    assert run.wait() == 0
    html = until(lambda: (run.folder / "report.html").exists() and (run.folder / "report.html").read_text(), "a page")
    assert "finished" in html
    value = json.loads((run.folder / "report.json").read_bytes())
    assert value["progress"]["step"] == 5
    assert not list(run.folder.glob(".report*"))


def test_a_nan_is_shown_with_its_line_and_the_last_save_before_it(runs: Runs, start: Start, tmp_path: Path) -> None:
    saves = tmp_path / "saves"
    saves.mkdir()
    switches = ("--steps", 500, "--dt", 0.05, "--nan-at", 60, "--save-every", 25, "--checkpoints", saves)
    run = start("night", *toy(*switches), flags=("--checkpoints", saves))
    assert run.wait() == 104
    found = value_of(runs, "night")
    assert (found["outcome"]["state"], found["outcome"]["cause"]) == ("stopped", "nonfinite")
    (verdict,) = [entry for entry in found["timeline"] if entry["kind"] == "verdict"]
    assert (verdict["severity"], verdict["step"], verdict["line"]) == ("critical", 60, "step: 60, loss: nan, dt: 0.05")
    assert run.log[verdict["offset"] :].startswith(b"step: 60,")
    assert chart(found, "loss")["nonfinite"][0] == [60.0, "nan"]
    assert found["progress"]["loss_last"] == "nan"
    healthy = [one for one in found["checkpoints"] if one["step"] is not None and one["step"] < 60]
    advice = " ".join(found["next"])
    assert "loss is NaN at step 60" in advice
    assert (healthy[-1]["path"] in advice) if healthy else ("no save" in advice)


def test_three_attempts_that_rewind(runs: Runs, start: Start, work: Path) -> None:
    (work / "rewinds.py").write_text(REWINDS)
    flags = ("--steps", 140, "--restarts", 5, "--backoff", "0.1", "--tokens-per-step", 1000, "--price", 3600)
    run = start("night", PYTHON, "rewinds.py", flags=flags)
    assert run.wait() == 0
    found = value_of(runs, "night")
    loss = chart(found, "loss")
    assert loss["x"] == list(range(1, 141))
    assert loss["attempts"] == [1] * 80 + [3] * 60
    assert loss["low"][80] == pytest.approx(4 * 0.995**81 + 0.003, abs=1e-5)
    assert [(one["attempt"], one["x"][0], one["x"][-1]) for one in loss["older"]] == [(1, 81, 116), (2, 81, 100)]
    assert loss["older"][0]["low"][0] == pytest.approx(4 * 0.995**81 + 0.001, abs=1e-5)
    good = found["goodput"]
    assert good["productive_s"] == pytest.approx(140 * 0.005)
    assert (good["redone_steps"], good["lost_s"]) == (56, pytest.approx(56 * 0.005))
    assert good["lost_cost"] == pytest.approx(56 * 0.005)
    assert good["goodput"] == pytest.approx(good["productive_s"] / good["wall_s"])
    assert good["restart_s"] > 0.1
    assert [(one["attempt"], one["first_step"], one["last_step"], one["lost_steps"]) for one in good["parts"]] == [
        (1, 1, 116, 36), (2, 81, 100, 20), (3, 81, 140, 0),
    ]  # fmt: skip
    assert [one["state_words"] for one in found["attempts"]] == ["crash", "crash", "finished"]
    assert "boom <script>alert(1)</script>" in " ".join(found["attempts"][0]["lines"])
    assert "after 2 restarts" in found["outcome"]["sentence"]
    page = runs.overnight("report", "night", "--html", "-").stdout
    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_stopped_by_a_person_gave_up_and_a_hook_that_failed(runs: Runs, start: Start) -> None:
    stopped = start("stopped", *toy("--steps", 5000, "--handle", "both"), log="step: 5,")
    gave_up = start("gave-up", *toy("--dt", 0.01, "--crash-at", 10), flags=("--restarts", 9, "--backoff", "0.05"))
    hooked = start("hooked", *toy("--steps", 3), flags=("--on-end", "echo no network; exit 7"))
    assert stopped.stop().returncode in (0, 103)
    found = value_of(runs, "stopped")
    assert "was stopped on request at step" in found["outcome"]["sentence"]
    assert "request" in kinds(found)
    assert gave_up.wait() == 106
    found = value_of(runs, "gave-up")
    assert "gave up after 3 attempts" in found["outcome"]["sentence"]
    assert len(found["attempts"]) == 3
    assert "RuntimeError: crashed at step 10 as asked" in found["attempts"][0]["lines"][-1]
    assert "restart" in kinds(found)
    assert hooked.wait() == 108
    found = value_of(runs, "hooked")
    assert "1 hook failed" in found["outcome"]["sentence"]
    assert "did not get through" in " ".join(found["next"])


def test_a_stall_is_shown_with_what_hung(runs: Runs, start: Start) -> None:
    run = start("night", *toy("--steps", 5000, "--hang-at", 20), flags=("--stall", "3s", "--grace", "5s"))
    assert run.wait(60) == 104
    found = value_of(runs, "night")
    assert found["outcome"]["cause"] == "stall"
    assert any(proof["name"].endswith("summary.txt") and proof["text"] for proof in found["proofs"])
    assert any("stall:" in one for one in found["next"])
    assert all("ballast" not in proof["path"] for proof in found["proofs"])


def test_a_run_that_goes_on(runs: Runs, start: Start) -> None:
    start("night", *toy("--steps", 5000), flags=("--steps", 5000), log="step: 30,")
    found = value_of(runs, "night")
    assert found["outcome"]["state"] == "running"
    assert "still running after" in found["outcome"]["sentence"]
    assert f"as of {found['made_at']}" in found["outcome"]["sentence"]
    assert found["outcome"]["code"] is None
    assert found["attempts"][0]["state_words"] == "going on"
    assert value_of(runs)["name"] == "night"


@pytest.fixture
def ended(runs: Runs, start: Start) -> Run:
    run = start("night", *toy("--steps", 12, "--dt", 0.02), flags=("--steps", 12))
    assert run.wait() == 0
    return run


def append(run: Run, *facts: dict[str, Any]) -> None:
    """Write facts into a run's journal, as its supervisor would have."""
    with (run.folder / "journal.jsonl").open("a") as stream:
        for fact in facts:
            stream.write(json.dumps({"at": "2026-11-30T03:00:00.000Z", **fact}) + "\n")


def a_save(step: int, *, attempt: int = 1) -> dict[str, Any]:
    return {"fact": "saved", "seconds": 0.2, "path": f"/ck/<b>{step}</b>.pt", "step": step, "epoch": 1e9 + step,
            "attempt": attempt, "segment": 1}  # fmt: skip


def a_look(step: int, *, valid: bool, finite: bool | None, problem: str | None = None) -> dict[str, Any]:
    return {"fact": "checked", "path": f"/ck/<b>{step}</b>.pt", "step": step, "attempt": 1, "valid": valid,
            "finite": finite, "problem": problem, "maker": "torch", "check_s": 0.1}  # fmt: skip


def test_how_a_run_went_on_is_told_from_its_journal(runs: Runs, ended: Run) -> None:
    before = value_of(runs, "night")
    assert (before["resumes"], before["rollbacks"], before["checkpoint"], before["checkpoints"]) == ([], [], None, [])
    append(
        ended,
        *(one for step in (2, 4, 6) for one in (a_save(step), {**a_save(step), "path": None, "step": None})),
        a_look(2, valid=True, finite=True), a_look(4, valid=False, finite=None, problem="it is cut off"),
        {"fact": "sick", "attempt": 1, "segment": 1, "step": 5},
        {"fact": "backoff", "attempt": 1, "cause": "nonfinite", "text": "loss is NaN", "wait_s": 2.0, "until_s": 5.0,
         "boot_id": "b", "tries": 1, "reached": None,
         "rollback": {"rule": "nonfinite", "onset": 5, "before": 3, "last": 7, "skip": [3, 7]}},
        {"fact": "resume", "attempt": 2, "path": "/ck/<b>2</b>.pt", "step": 2, "maker": "torch", "skip": [[3, 7]],
         "passed_over": [{"path": "/ck/<b>4</b>.pt", "step": 4, "why": "it is cut off"}], "lost_steps": 5,
         "lost_s": 0.1, "lost_cost": None, "rollback": "nonfinite", "text": "attempt 2 goes on from step 2"},
        {"fact": "overlap", "attempt": 2, "since": 2, "compared": 10, "equal": 9, "text": "9/10, first difference 7: x",
         "first_difference": {"step": 7, "metric": "loss", "before": 2.0, "after": "nan"}},
        {"fact": "load_failure", "attempt": 3, "path": "/ck/<b>2</b>.pt", "step": 2, "text": "KeyError: <script>"},
        {"fact": "nobody knows this yet", "attempt": 3},
    )  # fmt: skip
    found = value_of(runs, "night")
    assert found["saves"] == {"count": 3, "seconds": pytest.approx(0.6), "beside": False}
    assert [(one["step"], one["valid"], one["healthy"]) for one in found["checkpoints"]] == [
        (2, True, True), (4, False, False), (6, None, False),
    ]  # fmt: skip
    assert found["checkpoint"] is None  # the last good one could not be loaded
    (resume,) = found["resumes"]
    assert (resume["step"], resume["skip"], resume["lost_steps"], resume["rollback"]) == (2, [[3, 7]], 5, "nonfinite")
    assert (resume["overlap"]["equal"], resume["overlap"]["compared"]) == (9, 10)
    (back,) = found["rollbacks"]
    assert (back["attempt"], back["before"], back["skip"], back["next_attempt"]) == (1, 3, [3, 7], 2)
    advice = " ".join(found["next"])
    assert "could not be loaded (KeyError: <script>)" in advice
    assert "9 of 10 steps equal, the first difference at step 7: loss 2 -> NaN" in advice
    told = " ".join(runs.overnight("report", "night").stdout.split())
    assert "how it went on 2 from step 2, /ck/<b>2</b>.pt, taken back by the rule nonfinite" in told
    assert "left out: steps 3 to 7" in told
    assert "overnight: " not in runs.overnight("status", "night").stderr
    page = runs.overnight("report", "night", "--html", "-").stdout
    assert "How it went on" in page
    assert "/ck/&lt;b&gt;2&lt;/b&gt;.pt" in page
    assert "<b>2" not in page
    assert "KeyError: <script>" not in page
    again = runs.overnight("replay", "night", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["rollbacks"] == []


@pytest.mark.parametrize("name", ["metrics.db", "status.json", "journal.jsonl", "output.log", "run.json"])
@pytest.mark.parametrize("how", ["gone", "damaged", "empty"])
def test_what_is_left_of_a_damaged_run_is_shown(runs: Runs, ended: Run, name: str, how: str) -> None:
    path = ended.folder / name
    for tail in ("-wal", "-shm"):
        Path(f"{path}{tail}").unlink(missing_ok=True)
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(b"\x00\xff{not what it was" * 40 if how == "damaged" else b"")
    found = value_of(runs, "night")
    assert found["name"] == "night"
    if name == "metrics.db":
        assert "reindex" in found["unknown"]["metrics"]
        assert found["charts"] == []
    elif name != "output.log":
        assert chart(found, "loss")["x"] == list(range(1, 13))
    if name != "journal.jsonl" or how == "damaged":
        assert found["outcome"]["state"] == "finished"
    if name == "status.json":
        assert "status" in found["unknown"]
    if name == "output.log" and how == "gone":
        assert "cannot be read" in found["unknown"]["log"]
    if name == "journal.jsonl" and how == "gone":
        assert "what happened when is not known" in found["unknown"]["course"]


def test_a_metrics_db_that_is_damaged_within(runs: Runs, ended: Run) -> None:
    assert runs.overnight("report", "night").returncode == 0
    path = ended.folder / "metrics.db"
    data = path.read_bytes()
    told = []
    for begin in (0, 4096, 8192, 16384, 24576):
        path.write_bytes(data[:begin] + b"\xa5" * 2048 + data[begin + 2048 :])
        found = value_of(runs, "night")
        assert found["outcome"]["state"] == "finished"
        told.append("metrics" in found["unknown"])
        whole = told[-1] or len(chart(found, "loss")["x"]) == found["progress"]["records"]
        assert whole, f"records are missing and nothing says so: damage at {begin}"
    assert told[0]
    assert not all(told)


def test_nothing_is_left_but_the_log(runs: Runs, ended: Run) -> None:
    for name in ("metrics.db", "status.json", "journal.jsonl", "run.json"):
        (ended.folder / name).unlink(missing_ok=True)
    found = value_of(runs, "night")
    assert found["outcome"]["state"] == "damaged"
    assert found["last_lines"]


def test_the_side_process_says_in_one_line_what_is_wrong(ended: Run, tmp_path: Path) -> None:
    def make(*words: object) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-I", "-m", "overnight.report.making", *map(str, words)]
        return subprocess.run(argv, capture_output=True, text=True, cwd="/", check=False, timeout=60)

    assert make(ended.folder).returncode == 0
    gone = make(tmp_path / "no-such-run")
    assert (gone.returncode, gone.stderr.count("\n")) == (1, 1)
    assert "no-such-run" in gone.stderr
    (ended.folder / "report.html").unlink()
    (ended.folder / "report.html").mkdir()
    taken = make(ended.folder)
    assert (taken.returncode, taken.stderr.count("\n")) == (1, 1)
    assert make().returncode == 2


def test_wrong_use(runs: Runs, ended: Run, work: Path) -> None:
    def refused(*words: str) -> str:
        done = runs.overnight("report", *words)
        assert done.returncode != 0
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
        return f"{done.returncode} {done.stderr}"

    assert refused("no-such-run").startswith("102 overnight: no run is called 'no-such-run'")
    assert refused("./no-such.log").startswith("2 overnight: ")
    assert refused("night", "--params", "1M").startswith("2 overnight report: --params: only for a log")
    assert refused("night", "--json", "--html", "-").startswith("2 ")
    assert refused("night", "--html", str(work)).startswith("2 overnight: --html ")
    assert refused("night", "--html", "/nonexistent/x.html").startswith("1 overnight: ")
    done = runs.overnight("report", "night", "--html", "page.html", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["name"] == "night"
    assert f"is in {work / 'page.html'}" in done.stderr
    assert (work / "page.html").read_text().startswith("<!DOCTYPE html>")


def test_a_run_s_name_wins_over_a_file_and_a_path_is_a_log(runs: Runs, ended: Run, work: Path) -> None:
    (work / "night").write_text("step: 1, loss: 2.0\nstep: 2, loss: 1.0\n")
    assert value_of(runs, "night")["kind"] == "run"
    found = value_of(runs, "./night")
    assert (found["kind"], found["name"], found["progress"]["step"]) == ("log", "night", 2)
    (work / "nigh").write_text("step: 1, loss: 2.0\n")
    assert value_of(runs, "nigh")["kind"] == "log"


def test_a_run_whose_keepers_were_killed(runs: Runs, start: Start) -> None:
    run = start("night", *toy("--steps", 5000), log="step: 5,")
    for role in ("guard", "shim", "supervisor"):
        subprocess.run(["kill", f"-{signal.SIGKILL.value}", str(run.pid(role))], check=True)
    found = value_of(runs, "night")
    assert found["outcome"]["state"] in ("running", "failed")


def test_a_log_that_is_a_pipe_is_not_waited_for(runs: Runs, ended: Run) -> None:
    log = ended.folder / "output.log"
    log.unlink()
    os.mkfifo(log)
    found = value_of(runs, "night")
    assert "a pipe or device, not a file" in found["unknown"]["log"]
    assert found["progress"]["step"] is not None

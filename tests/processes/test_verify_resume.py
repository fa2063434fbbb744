"""What a proof concludes about whole trainings, each with one fault: from scripts to the sentence, nothing replaced.

The scripts lie in ``tests/resume_scripts``: torch, numpy (which starts ten times as quickly), and the library's own.
How the verb is used is tested in ``test_verify_verb.py``, the pattern of each fault alone in tests/unit.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from overnight.processes import all_pids, environ

pytest.importorskip("numpy")
SCRIPTS = Path(__file__).parents[1] / "resume_scripts"
LIMIT_S = 280.0
FAULTS_S = 300
FEW = ("--stop-at", "50", "--until", "60")
"""Steps for the scripts that begin in no time; the default is 100 and 110."""


class Proof(NamedTuple):
    """A proof that was carried out, or refused: ``graceful`` and ``kill`` are its two variants."""

    code: int
    said: dict[str, Any]
    stderr: str

    def variant(self, how: str) -> dict[str, Any]:
        """Return what is said of the run that was stopped, or killed."""
        (found,) = [one for one in self.said["variants"] if one["how"] == how]
        assert isinstance(found, dict)
        return found

    @property
    def both(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What is said of the run that was stopped, and of the one that was killed."""
        return self.variant("graceful"), self.variant("kill")


Prove = Callable[..., Proof]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a folder with the scripts, and a checkpoint of the user's in it."""
    folder = tmp_path / "project"
    shutil.copytree(SCRIPTS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "ckpt").mkdir()
    (folder / "ckpt" / "mine.txt").write_text("of last week")
    return folder


@pytest.fixture
def prove(project: Path, tmp_path: Path) -> Prove:
    """Return a function that proves a script, and sees that nothing of the user's has changed and nothing is left."""

    def run(script: str, *switches: str, words: tuple[str, ...] = FEW, resume: str | None = "--resume") -> Proof:
        (tmp_path / "t").mkdir(exist_ok=True)
        given = {name: value for name, value in os.environ.items() if not name.startswith("OVERNIGHT_")}
        env = {**given, "OVERNIGHT_HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "t")}
        resumed = [] if resume is None else ["--resume-args", resume]
        argv = [sys.executable, "-m", "overnight", "verify-resume", "--json", "--quiet", *words, *resumed]
        before = digests(project)
        done = subprocess.run(
            [*argv, "--", sys.executable, script, *switches],
            cwd=project, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        assert digests(project) == before
        mark = str(tmp_path / "home")
        assert not [pid for pid in all_pids() if (environ(pid) or {}).get("OVERNIGHT_RUN_DIR", "").startswith(mark)]
        assert not list((tmp_path / "t").glob("ov-*"))
        return Proof(done.returncode, json.loads(done.stdout or "{}"), done.stderr)

    return run


def digests(folder: Path) -> dict[str, str]:
    """Return the digest of every file below a folder, bytecode left out."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.parent.name != "__pycache__"]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def resumed_at(variant: dict[str, Any]) -> int:
    """Return the step of the checkpoint that a run was resumed from."""
    step = variant["resumed_from"]["step"]
    assert isinstance(step, int)
    return step


def parts_of(variant: dict[str, Any]) -> set[str]:
    """Return the parts that differ in the last state that was compared."""
    return {one["part"] for one in variant["states"][-1]["differences"]}


# -- what passes -----------------------------------------------------------------------------------------------------


def exact(found: Proof) -> None:
    """Assert that a resume is exact to the last digit, and its states to the bit."""
    assert found.code == 0, found
    assert found.said["passed"] is True
    assert found.said["untouched"] is True
    for one in found.both:
        assert one["passed"] is True
        assert one["equal"] == one["compared"] > 0
        assert set(one["floor"].values()) == {0.0}
        assert all(state["equal"] and state["compared"] > 10 for state in one["states"])


def test_an_exact_resume_passes(prove: Prove) -> None:
    found = prove("quick.py")
    exact(found)
    stopped, killed = found.both
    again = any("tried again" in note for note in found.said["notes"])  # a slow machine: the signal came too late
    assert resumed_at(stopped) >= 50 or again  # where the signal caught it
    assert stopped["saved_on_signal"] is (None if resumed_at(stopped) % 20 == 0 else True)
    assert resumed_at(killed) == 40
    assert killed["equal"] >= 3 * 20  # loss, lr and grad_norm of the steps from 41 to 60
    assert [state["step"] for state in killed["states"]][-1] == 60


@pytest.mark.long
@pytest.mark.timeout(FAULTS_S)
@pytest.mark.parametrize(
    ("script", "switches"),
    [
        ("train.py", ()),
        ("train.py", ("--schedule", "lambda", "--save-as", "last", "--print", "loss")),
        ("train.py", ("--keep", "1")),
        ("quick.py", ("--print", "loss", "--digits", "3")),
    ],
)
def test_exact_resumes_of_other_kinds_pass(prove: Prove, script: str, switches: tuple[str, ...]) -> None:
    exact(prove(script, *switches, words=()))


@pytest.mark.long
@pytest.mark.timeout(FAULTS_S)
def test_a_checkpoint_can_be_named_in_the_command(prove: Prove) -> None:
    found = prove("quick.py", resume="--resume {checkpoint}")
    exact(found)


@pytest.mark.long
@pytest.mark.timeout(FAULTS_S)
@pytest.mark.parametrize("script", ["quick.py", "train.py"])
def test_noise_that_is_in_every_run_passes_and_its_floor_is_stated(prove: Prove, script: str) -> None:
    found = prove(script, "--bug", "nondeterministic")
    assert found.code == 0, found
    for one in found.both:
        assert one["passed"] is True
        assert one["floor"]["loss"] > 0.0
        assert "noise" in one["text"]
    exactly = prove(script, "--bug", "nondeterministic", words=(*FEW, "--tolerance", "exact"))
    assert exactly.code == 1


@pytest.mark.long
@pytest.mark.timeout(FAULTS_S)
@pytest.mark.parametrize("fault", ["no-signal-save", "no-handler"])
def test_a_script_that_saves_nothing_on_a_signal_is_told_so_and_judged_by_the_run_that_is_killed(
    prove: Prove, fault: str
) -> None:
    found = prove("quick.py", "--bug", fault)
    assert found.code == 0, found
    stopped, killed = found.both
    assert stopped["saved_on_signal"] is False
    assert killed["passed"] is True
    assert any("saves nothing when it is stopped" in note for note in found.said["notes"]), found.said["notes"]


# -- what fails, and why ---------------------------------------------------------------------------------------------


def failed(found: Proof, cause: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Assert that both variants fail for one cause; return them."""
    assert found.code == 1, found
    assert found.said["passed"] is False
    for one in found.both:
        assert (one["passed"], one["cause"]) == (False, cause), one
    return found.both


def drifts(found: Proof) -> None:
    """Assert that the first resumed step matches and later ones do not, by the optimizer."""
    for one in failed(found, "optimizer"):
        assert one["step"] > resumed_at(one) + 1
        assert one["metric"] in ("loss", "grad_norm")
        assert one["unbroken"] != one["resumed"]
        assert "optimizer" in one["text"]


def at_once(cause: str, *metrics: str) -> Callable[[Proof], None]:
    """Return what asserts that the very first resumed step differs."""

    def check(found: Proof) -> None:
        for one in failed(found, cause):
            assert one["step"] == resumed_at(one) + 1
            assert one["metric"] in (metrics or ("loss",))
            assert one["unbroken"] != one["resumed"]

    return check


def by_the_rate(found: Proof) -> None:
    """Assert that both rates are named, within the first steps."""
    for one in failed(found, "scheduler"):
        assert one["metric"] == "lr"
        assert one["step"] <= resumed_at(one) + 2
        assert one["unbroken"] != one["resumed"]


def silent(part: str, found: Proof) -> None:
    """Assert that no loss shows it, and the states do, by the part's name."""
    for one in failed(found, "ema_or_buffers"):
        assert one["equal"] == one["compared"]
        assert parts_of(one) == {part}


FAULTS: dict[str, tuple[tuple[str, ...], Callable[[Proof], object]]] = {
    "no-optimizer": (("no-optimizer",), drifts),
    "no-rng": (("no-rng",), at_once("rng")),
    "rng-late": (("rng-late",), at_once("rng")),
    "data-restart": (("data-restart",), at_once("data_order")),
    "epoch-reset": (("epoch-reset",), at_once("data_order")),
    "no-scheduler": (("no-scheduler",), by_the_rate),
    "lr-double": (("lr-double",), by_the_rate),
    "counter-ahead": (("counter-ahead",), lambda found: failed(found, "off_by_one")),
    "counter-behind": (("counter-behind",), lambda found: failed(found, "off_by_one")),
    # a batch that is left out is another one under the same step
    "data-ahead": (("data-ahead",), at_once("data_order")),
    "data-behind": (("data-behind",), at_once("data_order")),
    "not-resumed": (("not-resumed",), lambda found: failed(found, "not_resumed")),
    "weights-only": (("weights-only",), lambda found: failed(found, "not_resumed")),
    "no-ema": (("no-ema",), lambda found: silent("ema", found)),
    "no-buffers": (("no-buffers",), lambda found: silent("buffers", found)),
    "crash-at-load": (("crash-at-load",), lambda found: failed(found, "load_failure")),
}
NAMED_AT_ONCE = ("no-optimizer",)


@pytest.mark.parametrize("fault", NAMED_AT_ONCE)
def test_a_fault_is_named(prove: Prove, fault: str) -> None:
    bugs, check = FAULTS[fault]
    check(prove("quick.py", *(word for bug in bugs for word in ("--bug", bug))))


@pytest.mark.long
@pytest.mark.timeout(FAULTS_S)
@pytest.mark.parametrize("fault", [name for name in FAULTS if name not in NAMED_AT_ONCE])
def test_every_fault_is_named(prove: Prove, fault: str) -> None:
    bugs, check = FAULTS[fault]
    check(prove("quick.py", *(word for bug in bugs for word in ("--bug", bug))))


@pytest.mark.long
@pytest.mark.timeout(FAULTS_S)
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_of_a_script_with_torch_is_named(prove: Prove, fault: str) -> None:
    """From steps 100 to 110, as the verb does it by itself, and with what torch saves."""
    pytest.importorskip("torch")
    bugs, check = FAULTS[fault]
    switches = [word for bug in bugs for word in ("--bug", bug)]
    check(prove("train.py", *switches, "--save-every", "10", words=()))


@pytest.mark.long
@pytest.mark.timeout(FAULTS_S)
@pytest.mark.parametrize(
    ("fault", "part", "causes"),
    [
        ("no-optimizer", "optimizer", {"optimizer"}),
        ("no-rng", "rng", {"rng"}),
        ("no-scheduler", "scheduler", {"scheduler", "optimizer"}),  # no rate is printed
    ],
)
def test_faults_of_a_script_that_prints_nothing_but_its_loss(
    prove: Prove, fault: str, part: str, causes: set[str]
) -> None:
    found = prove("quick.py", "--bug", fault, "--print", "loss")
    assert found.code == 1
    for one in found.both:
        assert one["passed"] is False
        assert causes & {one["cause"], *one["also"]}, one
        assert part in parts_of(one)


@pytest.mark.long
@pytest.mark.timeout(FAULTS_S)
@pytest.mark.parametrize("part", ["optimizer", "rng", "scheduler", "loader"])
def test_a_part_that_was_never_saved_is_named_as_one_that_was_not_loaded(prove: Prove, part: str) -> None:
    cause = {"loader": "data_order"}.get(part, part)
    failed(prove("quick.py", "--no-save", part), cause)


@pytest.mark.long
@pytest.mark.timeout(FAULTS_S)
def test_weights_that_begin_anew_are_no_exact_resume(prove: Prove) -> None:
    found = prove("quick.py", "--bug", "no-weights")
    assert found.code == 1
    for one in found.both:
        assert one["passed"] is False
        assert one["step"] == resumed_at(one) + 1
        assert "model" in parts_of(one)


@pytest.mark.long
@pytest.mark.timeout(FAULTS_S)
def test_a_bias_beyond_the_noise_fails(prove: Prove) -> None:
    """Noise of 0.1 % in every run, and weights that are 40 % larger after a resume."""
    found = prove("quick.py", "--bug", "nondeterministic", "--bug", "biased")
    assert found.code == 1
    assert [one["passed"] for one in found.both] == [False, False]


SLOW = """
import os, time
import numpy as np
ROOT = "out"
start, average = 1, 0.0
if path := os.environ.get("OVERNIGHT_CHECKPOINT"):
    start = 1 + int(np.load(path)["step"])  # and the average is forgotten
for step in range(start, 31):
    average = 0.9 * average + step
    print(f"step {step} loss {3 - step / 100:.4f}", flush=True)
    time.sleep(0.02)
    if step % 5 == 0:
        try:
            time.sleep(0.4)  # it gathers what it saves
            os.makedirs(ROOT, exist_ok=True)
            np.savez(f"{ROOT}/ckpt-{step}.npz", step=step, weight=np.ones(3), **{"ema.average": average})
        except OSError:
            print("not saved")
"""


def test_the_save_of_the_last_step_is_waited_for(prove: Prove, project: Path) -> None:
    (project / "slow.py").write_text(SLOW)
    found = prove("slow.py", words=("--stop-at", "12", "--until", "15"), resume=None)
    killed = found.variant("kill")
    assert (found.code, killed["cause"]) == (1, "ema_or_buffers"), killed
    assert [state["step"] for state in killed["states"]] == [10, 15]


def test_a_script_that_goes_on_when_its_save_is_refused_is_told_where_it_writes(
    prove: Prove, project: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    folded = f'"{tmp_path}" + "/elsewhere"'
    (project / "slow.py").write_text(SLOW.replace('"out"', folded, 1))
    found = prove("slow.py", words=("--stop-at", "7", "--until", "9"), resume=None)
    assert found.code == 2, found
    assert f"the script names {elsewhere} and seems to write there" in found.stderr
    assert "use {workdir}" in found.stderr


@pytest.mark.long
@pytest.mark.timeout(FAULTS_S)
def test_where_no_state_of_the_resumed_run_was_compared_it_is_said(prove: Prove) -> None:
    """Saved at 30 and not again before 60: a lost average passes, and the proof says what it has not seen."""
    found = prove("quick.py", "--bug", "no-ema", "--save-every", "30", words=("--stop-at", "45", "--until", "55"))
    killed = found.variant("kill")
    assert killed["passed"] is True
    assert any("is not proved" in note for note in killed["notes"]), killed["notes"]
    seen = prove("quick.py", "--bug", "no-ema", "--save-every", "30", words=("--stop-at", "45", "--until", "60"))
    assert seen.variant("kill")["cause"] == "ema_or_buffers"
    right = prove("quick.py", "--save-every", "30", words=("--stop-at", "45", "--until", "60"))
    assert not [note for note in right.variant("kill")["notes"] if "is not proved" in note]


@pytest.mark.long
@pytest.mark.timeout(FAULTS_S)
@pytest.mark.parametrize("switches", [("--bug", "no-save"), ("--save-every", "0", "--bug", "no-signal-save")])
def test_a_script_that_saves_nothing_cannot_be_resumed(prove: Prove, switches: tuple[str, ...]) -> None:
    found = prove("quick.py", *switches)
    assert found.code == 1
    assert found.variant("kill")["passed"] is False
    assert found.variant("kill")["cause"] == "nothing_saved"


# -- what is refused -------------------------------------------------------------------------------------------------


def test_an_output_path_outside_of_the_working_copies_is_refused_before_anything_runs(
    prove: Prove, project: Path
) -> None:
    found = prove("quick.py", "--output", str(project / "ckpt"))
    assert found.code == 2
    assert f"{project / 'ckpt'}" in found.stderr
    assert "{workdir}" in found.stderr
    assert not found.said["parts"]
    inside = prove("quick.py", "--output", "{workdir}/out", words=(*FEW, "--checkpoints", "out"))
    exact(inside)


def test_an_output_path_in_the_source_is_refused_too(prove: Prove, project: Path) -> None:
    """The fence sees it where the command does not tell; the user's folder is left as it was."""
    source = (project / "loop.py").read_text()
    assert 'OUTPUT = "./ckpt"' in source
    (project / "loop.py").write_text(source.replace('OUTPUT = "./ckpt"', f'OUTPUT = "{project}/ckpt"'))
    found = prove("quick.py")
    assert found.code == 2
    assert str(project / "ckpt") in found.stderr
    assert "{workdir}" in found.stderr


# -- with the library ------------------------------------------------------------------------------------------------


def prove_library(prove: Prove, *switches: str, resume: str | None = None) -> Proof:
    """Prove the script that uses the library: it goes on by itself."""
    pytest.importorskip("torch")
    return prove("library.py", *switches, words=(), resume=resume)


def stopped_exactly(found: Proof) -> dict[str, Any]:
    """Return the run that was stopped, which the library does at the very step."""
    stopped = found.variant("graceful")
    assert stopped["exact"] is True
    assert stopped["stopped_at"] == resumed_at(stopped) == 100
    return stopped


@pytest.mark.long
@pytest.mark.timeout(FAULTS_S)
def test_c3_12_a_layer_that_is_never_trained_needs_no_entry_and_a_missing_weight_is_no_resume(prove: Prove) -> None:
    """Nothing of the optimizer lies there for the frozen layer, and the resume is exact; no weight may be missing."""
    found = prove_library(prove, "--frozen")
    exact(found)
    assert [state["step"] for state in stopped_exactly(found)["states"]][-1] == 110
    missing = prove_library(prove, resume="--grown")
    for one in failed(missing, "load_failure"):
        assert "grown" in one["text"]


@pytest.mark.long
@pytest.mark.timeout(FAULTS_S)
def test_c3_01_another_order_of_the_samples_fails_at_the_first_step(prove: Prove) -> None:
    found = prove_library(prove, "--forget", "loader")
    stopped, killed = failed(found, "data_order")
    stopped_exactly(found)
    assert (stopped["step"], stopped["metric"]) == (101, "sample_ids")
    assert (killed["step"], killed["metric"]) == (resumed_at(killed) + 1, "sample_ids")


@pytest.mark.long
@pytest.mark.timeout(FAULTS_S)
def test_c3_03_random_numbers_restored_too_early_are_named_while_all_else_is_equal(prove: Prove) -> None:
    found = prove_library(prove, "--rng-late")
    stopped, _ = failed(found, "rng")
    stopped_exactly(found)
    assert (stopped["step"], stopped["metric"]) == (101, "loss")
    at_stop = next(state for state in stopped["states"] if state["step"] == 100)
    assert at_stop["equal"]  # what was saved was right
    assert "rng" in parts_of(stopped)


@pytest.mark.long
@pytest.mark.timeout(FAULTS_S)
def test_c3_06_a_schedule_that_is_advanced_twice_is_named_with_both_rates(prove: Prove) -> None:
    found = prove_library(prove, "--lr-double")
    stopped, _ = failed(found, "scheduler")
    stopped_exactly(found)
    assert (stopped["step"], stopped["metric"]) == (101, "lr")
    assert stopped["unbroken"] > 2 * stopped["resumed"]
    assert "rate" in stopped["text"] or "lr" in stopped["text"]


@pytest.mark.long
@pytest.mark.timeout(FAULTS_S)
def test_an_average_that_is_lost_is_found_by_the_states_alone(prove: Prove) -> None:
    found = prove_library(prove, "--forget", "ema")
    silent("ema", found)

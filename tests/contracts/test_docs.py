"""The documentation says what there is, and nothing else: what a user can name is taken from the code and looked up.

Tables are read by their first column, so that a word in passing does not count as documentation. Where it can be done
the comparison goes both ways: what is documented must exist.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import io
import json
import lzma
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from overnight import (
    checkpoint,
    cli,
    client,
    errors,
    exporting,
    lifecycle,
    machine,
    options,
    proof,
    snapshot,
    states,
    wiring,
)
from overnight.accelerators.table import ACCELERATORS
from overnight.aftermath import lastlook
from overnight.batches import Entry
from overnight.calculator import Impossible, reading
from overnight.checkpoint import asking, manifest
from overnight.checkpoint import errors as checkpoint_errors
from overnight.checkpoint.checkpointer import Checkpointer
from overnight.cli.parser import HOOK_FAILED
from overnight.doctor import checks as doctor
from overnight.engines import Engine
from overnight.events import Record, Request, RuleAction, Severity, Verdict
from overnight.exits import causes, symptoms
from overnight.facts import Facts
from overnight.flops.conventions import CONVENTIONS
from overnight.folder import RunFolder, write_json
from overnight.history.store import History
from overnight.history.table import NUMBERS
from overnight.hooks import files as hookfiles
from overnight.hooks import guard
from overnight.hooks.folding import Fold
from overnight.hooks.starting import Hooks
from overnight.intake import instruments
from overnight.modelsize.config import FAMILIES
from overnight.modelsize.named import NAMED
from overnight.past.comparing import Pair
from overnight.readers import Reader, programs
from overnight.readers.fields import LOSSES, PLACE, field_of
from overnight.readers.pattern import Pattern
from overnight.reindexing import Rebuilt
from overnight.report.gather import of_run
from overnight.requests.changes import changed
from overnight.resumeproof import evidence
from overnight.resumeproof.words import Cause
from overnight.resumption import search
from overnight.rules import (
    CalmRule,
    collapse,
    diskspace,
    divergence,
    hardware,
    idle,
    memory,
    nonfinite,
    slowblocks,
    spike,
    stall,
    straggler,
    throttle,
)
from overnight.sensors import (
    Disk,
    Gpu,
    GpuProcess,
    GpuSample,
    HostSample,
    Xid,
    children,
    filling,
    following,
    sampling,
    series,
)
from overnight.spec import LANGUAGE_MODEL_MAX_LOSS, RunSpec
from overnight.stalls import dumps
from overnight.states import RunState
from overnight.supervision import comeback, publishing
from overnight.supervision.attempt import Attempt
from overnight.tail import Line
from overnight.yardsticks.pricing import price_of, read_prices

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "overnight"
HANDS = "supervision intake requests saves resumption stops aftermath stalls hooks reboots"
ROOMS_OF_A_RUN = (SOURCE, *(SOURCE / name for name in HANDS.split()))
"""Where the supervisor's verdicts, facts and events are made."""
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md")])

CODE = re.compile(r"`([^`]+)`")
HEADING = re.compile(r"^(#+) (.+)$", re.MULTILINE)
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


# -- reading the pages -----------------------------------------------------------------------------------------------


@cache
def page(name: str) -> str:
    return (DOCS / name).read_text()


def section(name: str, heading: str) -> str:
    """Return the text below a heading, up to the next one of its level or above."""
    text = page(name)
    found = [match for match in HEADING.finditer(text) if match[2] == heading]
    assert len(found) == 1, f"{name} has {len(found)} headings {heading!r}"
    level = len(found[0][1])
    end = next((match.start() for match in HEADING.finditer(text, found[0].end()) if len(match[1]) <= level), len(text))
    return text[found[0].end() : end]


def own_text(name: str, heading: str) -> str:
    """Return the text below a heading, up to the next heading of any level."""
    return HEADING.split(section(name, heading))[0]


def rows(text: str) -> list[list[str]]:
    """Return the cells of all table rows, without the heads and rules."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    found = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    rules = {at for at, cells in enumerate(found) if all(set(cell) <= {"-"} and cell for cell in cells)}
    return [cells for at, cells in enumerate(found) if at not in rules and at + 1 not in rules]


def table(text: str) -> dict[str, list[str]]:
    """Return {first code word of the first cell: the other cells}; a word that stands twice is an error."""
    found: dict[str, list[str]] = {}
    for cells in rows(text):
        words = CODE.findall(cells[0])
        assert words, f"the first cell {cells[0]!r} names nothing"
        assert words[0] not in found, f"{words[0]} is documented twice"
        found[words[0]] = cells[1:]
    return found


def blocks(text: str) -> list[str]:
    """Return the indented code blocks of a text, their indentation of four removed."""
    lines = [line[4:] if line.startswith("    ") else "" if not line else "\0" for line in text.splitlines()]
    return [block.strip("\n") for block in "\n".join(lines).split("\0") if block.strip("\n")]


def trees(*folders: Path) -> Iterator[tuple[Path, ast.Module]]:
    for folder in folders:
        for path in sorted(folder.glob("*.py")):
            yield path, ast.parse(path.read_text())


# -- verbs and flags -------------------------------------------------------------------------------------------------


def help_of(verb: str) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert cli.main([verb, "--help"]) == 0
    return re.sub(r"(?<=\w-)\n +", "", said.getvalue())  # a flag that was broken at its hyphen


def flags_offered(verb: str) -> set[str]:
    """Return the flags of a verb's help, the examples left out."""
    return set(FLAG.findall(help_of(verb).partition("examples:")[0])) - {"--help"}


def flags_documented(verb: str) -> set[str]:
    return {word for word in table(own_text("reference.md", verb)) if word.startswith("--")}


def setting_flags() -> set[str]:
    """Return the flags that ``run`` has for the documented settings; the actions share one."""
    return {"--action" if word.startswith("--action-") else word for word in table(section("reference.md", "Settings"))}


def test_every_verb_is_documented_and_no_other() -> None:
    assert list(table(own_text("reference.md", "Verbs"))) == list(cli.VERBS)


@pytest.mark.parametrize("verb", cli.VERBS)
def test_help_exits_0_and_names_exactly_the_documented_flags(verb: str) -> None:
    documented = flags_documented(verb) | (setting_flags() if verb == "run" else set())
    offered = flags_offered(verb)
    # `overnight run --log` is named in the help of other verbs too, and --on-end beside its guard
    named = {"--on-end"} if verb in ("run", "set") else setting_flags()
    assert offered - documented - named == set()
    assert documented - offered == set()


def test_the_settings_that_watch_and_set_take_are_documented() -> None:
    (said,) = re.findall(r"but not ((?:`--[a-z-]+`(?:,| and)?\s+)+`--[a-z-]+`)", own_text("reference.md", "watch"))
    assert setting_flags() - flags_offered("watch") == set(CODE.findall(said))
    assert flags_documented("set") == {options.BY_NAME[name].flag for name in options.CHANGEABLE} | {"--action"}


def test_what_doctor_and_check_look_at_is_documented(tmp_path: Path) -> None:
    looked = [one.check for one in doctor.examine(machine.Machine(root=tmp_path, home=tmp_path))]
    assert len(looked) == len(doctor.CHECKS)
    assert [word for word in table(own_text("reference.md", "doctor")) if not word.startswith("--")] == looked
    assert [word for word in table(own_text("reference.md", "check")) if not word.startswith("--")] == [*proof.NAMES]


def test_every_setting_is_documented_with_its_default_and_no_other() -> None:
    documented = table(section("reference.md", "Settings"))
    assert set(documented) == {setting.flag for setting in options.SETTINGS}
    for setting in options.SETTINGS:
        default = CODE.findall(documented[setting.flag][0])
        if setting.default in (None, ()):
            assert not default, f"{setting.flag} has no default, {default} is documented"
        else:
            assert [setting.parse(word) for word in default] == [setting.default], setting.flag


def test_choices_are_documented() -> None:
    documented = table(section("reference.md", "Settings"))
    choices = [setting for setting in options.SETTINGS if "|" in (setting.metavar or "")]
    assert len(choices) >= 5
    for setting in choices:
        assert CODE.findall(documented[setting.flag][1]) == (setting.metavar or "").split("|"), setting.flag


def test_every_environment_variable_is_documented() -> None:
    assert set(table(section("reference.md", "Environment"))) == {f"OVERNIGHT_{name}" for name in options.NOT_SETTINGS}


def test_the_settings_file_of_the_reference_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from overnight.settings import resolve

    (example,) = [block for block in blocks(section("reference.md", "Where settings come from")) if "=" in block]
    (tmp_path / "overnight.toml").write_text(example)
    environ = {"PATH": "/usr/bin:/bin", "XDG_CONFIG_HOME": str(tmp_path / "none")}
    resolved = resolve({}, ["true"], home=tmp_path / "home", environ=environ, cwd=tmp_path)
    assert resolved.spec.nonfinite_signal == "kill"
    assert resolved.spec.actions == {
        "nonfinite": "terminate",
        "divergence": "alert",
        "spike": "note",
        **{rule: re.findall(rf'rules\.{rule}\]\naction = "(\w+)"', example)[0] for rule in options.OF_THE_MACHINE},
    }
    assert (resolved.spec.max_loss, resolved.spec.max_hours, resolved.spec.stall_s) == (12, 8, 7200)
    assert (resolved.spec.restarts, len(resolved.spec.resume_args), len(resolved.spec.on_end)) == (3, 2, 2)
    assert set(table_keys(example)) == {*options.TABLES}, "each rule's table is shown"


def table_keys(toml: str) -> list[str]:
    return re.findall(r"^\[rules\.(\w+)\]", toml, re.MULTILINE)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_commands_in_the_pages_use_only_what_there_is(path: Path) -> None:
    text = re.sub(r"\\\n\s*", " ", path.read_text())
    for words in re.findall(r"^    +(?:\$ )?overnight (.+)$", text, re.MULTILINE):
        asked = re.sub(r"'[^']*'", "", words.partition(" -- ")[0].partition("#")[0])  # quoted words are somebody else's
        verb = asked.split()[0].rstrip(";")
        assert verb in cli.VERBS, f"{path.name}: overnight {words}"
        assert set(FLAG.findall(asked)) <= flags_offered(verb), f"{path.name}: overnight {words}"


def test_commands_are_found_in_the_pages() -> None:
    found = sum(len(re.findall(r"^    +(?:\$ )?overnight (.+)$", path.read_text(), re.MULTILINE)) for path in PAGES)
    assert found > 20


# -- rules and readers -----------------------------------------------------------------------------------------------


def bare_spec(**fields: object) -> RunSpec:
    known = {"name": "quiet", "argv": ("true",), "executable": "/bin/true", "cwd": "/", "log": "/tmp/output.log"}
    return msgspec.convert({**known, **fields}, RunSpec)


def no_complaints(text: str) -> None:
    raise AssertionError(text)


def rules_by_literal() -> set[str]:
    """Return the rules that are named where a verdict is made outside ``rules/``."""
    found = set()
    for _, tree in trees(*ROOMS_OF_A_RUN):
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            named: list[ast.expr] = []
            if isinstance(node.func, ast.Name) and node.func.id == "Verdict":
                named = [word.value for word in node.keywords if word.arg == "rule"]
            elif isinstance(node.func, ast.Attribute) and node.func.attr == "_verdict":
                named = node.args[:1]
            found |= {one.value for one in named if isinstance(one, ast.Constant)}
    return found


def test_every_rule_is_documented_with_its_action() -> None:
    documented = table(own_text("reference.md", "Rules").split("| Action |")[0])
    spec = bare_spec()
    records = wiring.make_rules(spec, no_complaints)
    known = [*records, *wiring.make_time_rules(spec), *wiring.sensor_rules(records, spec)]
    rules = {rule.name: rule for rule in known}.values()  # one may judge records and samples
    falls = {rule.name for rule in wiring.SEGMENT_RULES}
    assert set(documented) == {rule.name for rule in rules} | falls | rules_by_literal()
    made = {*wiring.RULES, *wiring.TIME_RULES, *wiring.SENSOR_RULES}
    assert {rule.name for rule in rules} == made == {*options.RULES}
    for rule in (*rules, *wiring.SEGMENT_RULES):
        assert CODE.findall(documented[rule.name][0]) == [rule.action], rule.name
    assert {documented[name][1] for name in falls} == {"note"}
    for rule in rules:
        # limits are no illness, a spike passes, and what the machine does spoils no weights
        warns = rule.name in {*states.LIMITS, "spike", *options.OF_THE_MACHINE} - {"hardware"}
        assert documented[rule.name][1] == ("warn" if warns else "critical"), rule.name


def test_the_thresholds_of_divergence_are_documented() -> None:
    row = table(own_text("reference.md", "Rules").split("| Action |")[0])["divergence"]
    assert f" {LANGUAGE_MODEL_MAX_LOSS:g} " in row[-1]
    why = section("reference.md", "Why healthy runs are not ended")
    assert f"only by {divergence.ARMED_AFTER} losses" in " ".join(why.split())


def test_how_long_a_search_for_a_save_may_take_is_documented() -> None:
    told = " ".join(section("reference.md", "Where the next attempt goes on").split())
    assert f"may take {search.LIMIT_S / 60:g} minutes" in told
    assert f"`recover` waits {comeback.SOON_S:g} s for it" in told


def minutes(seconds: float) -> str:
    return f"{seconds / 3600:g} h" if seconds >= 3600 else f"{seconds / 60:g} min"


def test_the_thresholds_of_the_other_rules_are_documented() -> None:
    documented = {name: cells[-1] for name, cells in table(own_text("reference.md", "Rules")).items()}
    for name, wanted in {
        "nonfinite": (f"{nonfinite.PATIENCE} lines running", f"on {nonfinite.GRADIENTS} records running"),
        "collapse": (
            f"within {collapse.NEAR:.0%} of",
            f"for {collapse.WINDOW} records",
            f"after {collapse.LEARNED} records {collapse.FELL:.0%} below",
        ),
        "spike": (
            f"{spike.RUNNING} more records above",
            f"the last {spike.WINDOW} plus {spike.SIGMAS:g} robust deviations, at least {spike.RISE:.0%}",
            f"{spike.WILD:g} times the median",
            f"the first {spike.FIRST} records",
        ),
    }.items():
        for words in wanted:
            assert words in documented[name], (name, words)


def test_the_thresholds_of_the_rules_on_the_machine_are_documented() -> None:
    documented = {name: cells[-1] for name, cells in table(own_text("reference.md", "Rules")).items()}
    slow, far, near = slowblocks, filling.SOON_S / 3600, filling.NEAR_S / 3600
    for name, wanted in {
        "slowdown": (
            f"the median of {slow.BLOCK} records",
            f"{1 + slow.STEEP:g} times for {slow.STEEP_BLOCKS * slow.BLOCK} records and {slow.STEEP_S:g} s",
            f"({slow.CLEAR_S:g} s where none were slow",
            f"{1 + slow.MILD:g} times for {slow.MILD_BLOCKS * slow.BLOCK} records and {slow.MILD_S:g} s",
            f"after {slow.SETTLED * slow.BLOCK} slow records",
        ),
        "straggler": (
            f"the median of {straggler.BLOCK} records of one rank more than {straggler.SLOW:g} times",
            f"for {straggler.BLOCKS} times {straggler.BLOCK} records and {straggler.SECONDS:g} s",
        ),
        "hardware": (f"({hardware.SAMPLES} samples",),
        "throttle": (f"for {throttle.LASTING_S:g} s",),
        "low_utilisation": (
            f"below {idle.LOW:.0%} in each of {idle.LASTING} minutes",
            f"above {idle.BUSY:.0%} for {idle.BACK} minutes",
        ),
        "memory_creep": (f"within {far:g} h, within {near:g} h", f"less than {memory.LOW:.0%} of the machine's"),
        "disk_space": (
            f"within {far:g} h, within {near:g} h",
            f"less than {diskspace.LOW:.0%} free, or room for fewer than {diskspace.LOW_INODES:,} files",
        ),
    }.items():
        for words in wanted:
            assert words in documented[name], (name, words)


def test_the_xids_that_end_a_run_are_documented() -> None:
    (said,) = re.findall(r"with the cause `hardware`: ([\d,\s]+ to \d+)\.", section("reference.md", "Xid"))
    *single, last = [word.strip() for word in said.split(",")]
    first, _, end = last.partition(" to ")
    assert {*map(int, single), *range(int(first), int(end) + 1)} == symptoms.HARDWARE_XIDS


def test_every_convention_is_documented_with_what_it_stands_for() -> None:
    documented = table(section("reference.md", "Conventions"))
    assert list(documented) == list(CONVENTIONS)
    for key, one in CONVENTIONS.items():
        assert (CODE.findall(documented[key][0])[:1] == [one.alias_of]) == (one.alias_of is not None), key


def test_how_much_is_known_of_accelerators_and_models_is_documented() -> None:
    assert f"The table has {len(ACCELERATORS)}\ndevices" in section("reference.md", "The peak")
    parameters = section("reference.md", "Parameters")
    assert f"{len(FAMILIES)} `model_type`s" in parameters
    assert f"{len(NAMED)} public models" in parameters


def test_every_series_of_the_sensors_is_documented() -> None:
    words = {word for cells in rows(own_text("reference.md", "Sensors")) for word in CODE.findall(cells[0])}
    words |= {f"host.{name}.full" for name in series.PRESSURES}
    words |= {f"disk.{holds}.{field}" for holds in ("log", "checkpoints", "run") for field in ("total", "inodes_free")}
    known = {f"gpuN.{name}" for name in series.GPU_FIELDS} | {f"host.{name}" for name in series.HOST_FIELDS}
    known |= {f"host.{name}.{part}" for name in series.PRESSURES for part in ("some", "full")}
    known |= {f"disk.{holds}.{field}" for holds in ("log", "checkpoints", "run") for field in series.DISK_FIELDS}
    gpu = Gpu(index=0, throttle=("thermal",), lost="x", processes=(GpuProcess(pid=1, memory=1, ours=True),))
    sample = GpuSample(at=0.0, gpus=(gpu,), xids=(Xid(code=79, at=0.0, index=0), Xid(code=79, at=0.0)))
    seen = {re.sub(r"^gpu0\.", "gpuN.", name) for name in series.flat(sample)}
    known |= {name.replace(".throttled.thermal", ".throttled.REASON") for name in seen}
    assert words - {".full", ".total", ".inodes_free", "own_memory"} == known | {"gpu.xid"}


def test_every_word_of_a_sample_is_documented() -> None:
    text = section("run-folder.md", "sensors")
    words = {word for cells in rows(text) for word in CODE.findall(cells[0])}
    kinds: tuple[type[msgspec.Struct], ...] = (GpuSample, Gpu)
    assert words == {"kind"} | {"host"} | {name for kind in kinds for name in kind.__struct_fields__}
    inside = {word for cells in rows(text) for word in CODE.findall(cells[1])}
    assert {*Xid.__struct_fields__, *GpuProcess.__struct_fields__} <= inside
    host = table(section("reference.md", "host"))
    assert {*host} == {*HostSample.__struct_fields__} - {"at"}
    assert {*Disk.__struct_fields__} <= {*CODE.findall(host["disks"][1])}
    assert {*table(section("reference.md", "gpus"))} == {*instruments.SHOWN}


def test_every_key_of_mfu_is_documented() -> None:
    shown = json.loads(said_of("mfu", "--params", "1M", "--seq-len", "8", "--layers", "1", "--width", "8", "--json"))
    documented = table(own_text("reference.md", "JSON of mfu"))
    assert set(documented) == set(shown)
    assert unsaid(documented, shown, free={"unknown", "model"}) == set()
    assert CODE.findall(documented["impossible"][1]) == [*Impossible.__struct_fields__]


COMMANDS = [
    (path.name, " ".join(words.split()))
    for path in PAGES
    for words in re.findall(r"^    +overnight (mfu .+)$", re.sub(r"\\\n\s*", " ", path.read_text()), re.MULTILINE)
]


@pytest.mark.parametrize("command", sorted({words for _, words in COMMANDS}))
def test_the_calculations_of_the_pages_come_out(command: str, log: str, tmp_path: Path) -> None:
    """Those of a run are left out, and the one that asks a driver."""
    assert Path(log).is_file()
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_layer": 12, "n_embd": 768}))
    words = shlex.split(command)
    if "here" in words or words[1] == "pretrain":
        pytest.skip("it needs a run, or a GPU")
    text = said_of(*words)
    assert ("MFU" in text) == ("--dtype" in words)
    assert "n/a" not in text or "--tokens-per-second" not in words


def test_the_price_tables_of_the_pages_are_read(tmp_path: Path) -> None:
    tables = [
        block
        for name, heading in (("reference.md", "Money"), ("how-to.md", "What a night costs"))
        for block in blocks(section(name, heading))
        if "h100-sxm = 2.49" in block
    ]
    assert len(tables) == 2
    for text in tables:
        (tmp_path / "prices.toml").write_text(text)
        prices = read_prices(tmp_path / "prices.toml")
        assert price_of(prices, ["H100 SXM"], 8).per_hour == pytest.approx(19.92)
        assert price_of(prices, ["NVIDIA A100-SXM4-80GB"]).per_hour == pytest.approx(1.29)


def test_the_figures_of_the_readme_are_those_that_mfu_gives() -> None:
    (shown,) = [block for block in blocks((ROOT / "README.md").read_text()) if block.startswith("tokens per second")]
    (command,) = {words for name, words in COMMANDS if name == "README.md"}
    said = " ".join(said_of(*shlex.split(command)).split())
    for line in shown.splitlines():
        begin, *_ = re.split(r"  \(dense|, \.\.\.", line)
        assert " ".join(begin.split()) in said, line


def test_the_thresholds_of_the_reading_are_documented() -> None:
    text = own_text("reference.md", "mfu")
    for words in (
        f"data wait of {reading.DATA_WAIT:.0%}",
        f"evaluations that take {reading.EVALUATION:.0%}",
        f"{reading.NOT_STEPPING:.0%} or more of the wall clock",
        f"takes {reading.JITTER:g} times the middle one",
        f"less than {reading.BUSY:.0%} of the time",
        f"in {reading.LOW:.0%} of the samples",
        f"throttled in {reading.THROTTLED:.0%} of the samples",
        f"less than {reading.SMALL_S * 1e3:g} ms at the peak",
    ):
        assert words in text, words


def test_the_thresholds_of_the_sensors_and_of_the_guard_are_documented() -> None:
    text = " ".join(section("reference.md", "Sensors").split())
    for words in (
        f"silent for {following.SILENT_SAMPLES:g} intervals",
        f"after {children.AGAIN_S:g} s, then {2 * children.AGAIN_S:g} s, up to {children.RARELY_S / 60:g} minutes",
        f"after {instruments.HOST_AFTER_S:g} s",
        f"A file of {sampling.PLENTY_BYTES >> 20} MiB",
    ):
        assert words in text, words
    assert f"every {guard.EVERY_S:g} s at most" in " ".join(section("reference.md", "What the end waits for").split())
    assert guard.UNKNOWN_S == 3600, "one hour is said"


def test_the_thresholds_of_stalls_are_documented() -> None:
    found = {cells[0]: cells[1:] for cells in rows(section("reference.md", "How a stall is told"))}
    gaps_alert, gaps_end = f"{stall.GAPS_ALERT:g} ", f"{stall.GAPS_END:g} "
    learned = found["after the second step"]
    assert minutes(stall.ALERT_S) in learned[1]
    assert gaps_alert in learned[1]
    assert minutes(stall.END_S) in learned[2]
    assert gaps_end in learned[2]
    announced = next(cells for name, cells in found.items() if name.startswith("announced"))
    assert minutes(stall.ANNOUNCED_ALERT_S) in announced[1]
    assert minutes(stall.ANNOUNCED_END_S) in announced[2]
    assert f"to {stall.BUSY:g} times" in next(cells for name, cells in found.items() if "log grows" in name)[2]
    assert minutes(stall.START_ALERT_S) in found["before the first step"][1]
    assert found["after the planned end"][1:] == [
        minutes(stall.EXIT_ALERT_S),
        f"{minutes(stall.END_S)}, or `--exit-limit`",
    ]


def test_what_a_log_may_announce_is_documented() -> None:
    known = set(re.findall(r"\(\?P<([a-z]+)[1-3]?>", (SOURCE / "announce.py").read_text()))
    assert len(known) > 5
    assert set(CODE.findall(table(own_text("reference.md", "Status JSON"))["phase"][1])) == known
    row = next(cells for cells in rows(section("reference.md", "How a stall is told")) if "announced by" in cells[0])
    assert set(re.findall(r"\w+ing\b", row[0])) == known


def test_every_rule_that_may_end_a_run_says_why_healthy_runs_are_not_ended() -> None:
    reasons = re.findall(r"^- \*\*`(\w+)`\*\*", section("reference.md", "Why healthy runs are not ended"), re.MULTILINE)
    assert reasons == [*options.RULES]


def test_every_action_and_severity_is_documented() -> None:
    actions = {*RuleAction.__args__}
    assert set(table("| Action |" + own_text("reference.md", "Rules").split("| Action |")[1])) == actions
    severity = table(section("reference.md", "verdicts"))["severity"]
    assert set(CODE.findall(severity[0])) == {*Severity.__args__}


def test_every_reader_is_documented_and_reads_the_lines_of_its_section() -> None:
    documented = list(table(own_text("reference.md", "Readers")))
    assert documented == [*wiring.READERS, Pattern.name]
    named = CODE.findall(table(own_text("reference.md", "Status JSON"))["reader"][1])
    assert named == documented
    for name, make in wiring.READERS.items():
        lines = "\n".join(blocks(section("reference.md", name))).splitlines()
        assert len(lines) >= 3, name
        reader = make()
        records: list[Record] = []
        for number, line in enumerate(lines):
            records += reader(Line(line, number), 0.0, 0) or ()
        records += getattr(reader, "flush", tuple)()
        told = {record.offset for record in records if record.step is not None and record.loss is not None}
        bars = {number for number, line in enumerate(lines) if "it/s]" in line}
        assert told == {*range(len(lines))} - bars, name


def test_the_fields_that_readers_understand_are_documented() -> None:
    documented = table(section("reference.md", "Fields"))
    places = {
        "reader",
        "source",
        "offset",
        "part",
        "at",
        "kind",
        "step",
        "extra",
        "glued",
        "per_device",
        "early",
        "strange",
    }
    assert set(documented) == {*Record.__struct_fields__} - places
    read = 0
    for field, cells in documented.items():
        if field in ("rank", "loss"):
            continue
        for name in CODE.findall(cells[0]):
            if not name.startswith("--"):
                meant = PLACE.get(field_of(name), field_of(name))
                assert meant == field, f"{name} is read as {meant!r}, not as {field}"
                read += 1
    assert read > 25
    order = [field_of(name) for name in CODE.findall(documented["loss"][0])]
    assert order == [name for name in LOSSES if name != "val_loss"]


def test_every_program_is_documented_with_its_reader_or_what_to_do() -> None:
    documented = table(own_text("reference.md", "Programs"))
    assert list(documented) == [program.name for program in programs.PROGRAMS]
    for program in programs.PROGRAMS:
        by, advice = documented[program.name]
        assert CODE.findall(by) == ([] if program.reader is None else [program.reader]), program.name
        assert program.reader is None or program.reader in wiring.READERS, program.name
        assert advice == program.advice, program.name


def methods_of(protocol: type) -> set[str]:
    known = {name for one in protocol.__mro__ for name in (*vars(one), *vars(one).get("__annotations__", ()))}
    return {name for name in known if not name.startswith("_") or name == "__call__"}


def test_the_contract_of_plug_ins_is_documented() -> None:
    reader, rule = (
        set(table(f"| {part}")) for part in re.split(r"(?m)^\| A (?=\w+ has)", section("reference.md", "Plug-ins"))[1:]
    )
    assert reader - {"flush", "holds", "block"} == methods_of(Reader)
    assert rule == methods_of(CalmRule)
    assert any(hasattr(make(), "flush") for make in wiring.READERS.values())
    assert any(hasattr(make(), "block") for make in wiring.READERS.values())


# -- what the verbs that look back print -----------------------------------------------------------------------------


LOG = "".join(f"step: {n}, loss: {'nan' if n == 40 else 4 - n / 100}, dt: 0.5, beta: 7\n" for n in range(1, 61))


def said_of(*words: str) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
        assert cli.main([*words]) == 0, words
    return said.getvalue()


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the path of a log in an empty home."""
    monkeypatch.setenv("OVERNIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.log").write_text(LOG)
    return str(tmp_path / "train.log")


def keys_below(value: object) -> set[str]:
    """Return the keys of an object, or of the objects of a list; empty for anything else."""
    parts = value if isinstance(value, list) else [value]
    return {key for part in parts if isinstance(part, dict) for key in part}


def unsaid(documented: dict[str, list[str]], shown: dict[str, object], *, free: set[str]) -> set[str]:
    """Return the keys one level down that the row of their parent does not name; ``free`` have names of their own."""
    return {
        f"{key}.{inside}"
        for key, value in shown.items()
        if key not in free
        for inside in keys_below(value) - set(CODE.findall(documented[key][1]))
    }


def test_every_key_of_a_report_is_documented(log: str) -> None:
    shown = json.loads(said_of("report", log, "--json", "--tokens-per-step", "100"))
    documented = table(own_text("reference.md", "Report JSON"))
    assert set(documented) == set(shown)
    assert shown["timeline"], "the NaN is in it"
    assert unsaid(documented, shown, free={"unknown", "limits"}) == set()
    assert {part for one in shown["goodput"]["parts"] for part in one} <= set(CODE.findall(documented["goodput"][1]))
    assert set(table(section("reference.md", "limits"))) == set(shown["limits"])
    assert documented["format"][0] == str(shown["format"])


def test_every_key_of_a_report_of_a_run_is_documented(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "quiet")
    a_status(folder)
    facts = Facts(folder)
    facts.saved(seconds=0.5, path="/tmp/ckpt_7.pt", step=7, at=1.0, attempt=1, segment=1)
    facts.say("backoff", attempt=1, cause="spike", text="it rose", wait_s=2.0, until_s=9.0, boot_id="b", tries=0,
              reached=None,
              rollback={"rule": "spike", "onset": 30, "before": 21, "last": 34, "skip": [21, 34]})  # fmt: skip
    passed = [{"path": "/tmp/ckpt_30.pt", "step": 30, "why": "unhealthy", "kind": "unhealthy"}]
    facts.say("resume", attempt=2, path="/tmp/ckpt_7.pt", step=7, maker="torch", skip=[[21, 34]], passed_over=passed,
              lost_steps=27, lost_s=1.0, lost_cost=None, rollback="spike", text="attempt 2 goes on")  # fmt: skip
    facts.say("overlap", attempt=2, since=7, compared=10, equal=10, first_difference=None, text="10/10 equal")
    facts.note("looks well")
    (folder.evidence / "check-1").mkdir(parents=True)
    (folder.evidence / "check-1" / "facts.json").write_text("{}")
    shown = of_run(folder, time.time())
    documented = table(own_text("reference.md", "Report JSON"))
    assert set(documented) == set(shown)
    assert shown["checkpoints"]
    assert shown["proofs"]
    assert shown["rollbacks"]
    (resumed,) = shown["resumes"]
    said = set(CODE.findall(documented["resumes"][1])) | set(table(section("reference.md", "resume")))
    assert {*resumed, *resumed["passed_over"][0]} <= said
    assert {*resumed["overlap"]} <= said | set(CODE.findall(table(section("reference.md", "resume"))["overlap"][1]))
    assert unsaid(documented, shown, free={"unknown", "limits"}) == set()


def test_every_key_of_a_replay_is_documented(log: str) -> None:
    shown = json.loads(said_of("replay", log, "--json", "--stall", "10m"))
    documented = table(own_text("reference.md", "Replay JSON"))
    only_runs = {key for key, cells in documented.items() if cells[1].startswith("runs only")}
    assert set(documented) - only_runs == set(shown)
    assert shown["end"]["rule"] == "nonfinite"
    assert unsaid(documented, shown, free={"unjudged"}) == set()
    assert set(shown["end"]["saved"]) <= set(CODE.findall(documented["end"][1]))


def test_every_key_of_a_replay_of_a_run_is_documented(tmp_path: Path) -> None:
    with lzma.open(ROOT / "tests" / "nights" / "run_nan" / "output.log.xz") as packed:
        text = packed.read()
    place = tmp_path / "run_nan"
    shutil.copytree(ROOT / "tests" / "nights" / "run_nan", place)
    (place / "output.log").write_bytes(text)
    asked = json.loads((place / "run.json").read_text())
    asked["spec"]["log"] = str(place / "output.log")
    (place / "run.json").write_text(json.dumps(asked))
    shown = json.loads(said_of("replay", str(place), "--json", "--max-loss", "99"))
    documented = table(own_text("reference.md", "Replay JSON"))
    assert set(documented) == set(shown)
    assert shown["changed"]
    assert unsaid(documented, shown, free={"unjudged", "changed"}) == set()
    (night,) = [one["night"] for one in shown["verdicts"] if one["ends"] and not one["after_end"]]
    assert set(night) <= set(CODE.findall(documented["verdicts"][1]))


def test_every_way_to_compare_with_a_night_is_documented() -> None:
    documented = table(own_text("reference.md", "Replay JSON"))
    known = set(re.findall(r'"([a-z ]+)"', (Pair.__doc__ or "")))
    assert len(known) == 9
    assert known <= set(CODE.findall(documented["verdicts"][1] + documented["night"][1]))


def test_every_key_of_a_read_record_is_documented(log: str) -> None:
    lines = [json.loads(line) for line in said_of("read", log, "--json").splitlines()]
    assert len(lines) == 60
    documented = table(own_text("reference.md", "read"))
    keys = [key for key in documented if not key.startswith("--")]
    assert all(list(line) == keys for line in lines)
    assert CODE.findall(documented["kind"][0]) == [*exporting.KINDS]


def test_the_columns_of_an_export_are_documented() -> None:
    found = {cells[0]: CODE.findall(cells[1]) for cells in rows(section("reference.md", "Columns of an export"))}
    assert found["one row per step"] == list(exporting.VIEW)
    assert found["`--all-attempts`"] == list(exporting.ALL)
    assert found["then, if any record has it"] == list(NUMBERS)
    asked = table(own_text("reference.md", "export"))
    assert CODE.findall(asked["--to"][0])[:3] == list(exporting.FORMS)
    assert CODE.findall(asked["--kind"][0]) == [*exporting.KINDS, "all", *exporting.SENSORS]


def test_the_keys_of_export_and_reindex_are_documented() -> None:
    said = CODE.findall(table(own_text("reference.md", "reindex"))["--json"][0])
    assert said == [*Rebuilt._fields, "file"]
    said = CODE.findall(table(own_text("reference.md", "export"))["--json"][0])
    written = re.search(r'json\.dumps\(\{("file".*?)\}\)', (SOURCE / "cli" / "history.py").read_text())
    assert written is not None
    assert said[1:] == re.findall(r'"(\w+)":', written[1])


def test_the_tables_of_metrics_db_are_documented(tmp_path: Path) -> None:
    path = tmp_path / "metrics.db"
    History(path).close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        made = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        (form,) = db.execute("PRAGMA user_version").fetchone()
    text = section("run-folder.md", "metrics.db")
    documented = {word for cells in rows(text) for word in CODE.findall(cells[0])}
    assert documented == {name for name in made if not name.startswith("sqlite_")}
    assert f"Form {form} (`PRAGMA user_version` is {form})" in text


def test_the_python_of_the_run_folder_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = [block for block in blocks(section("run-folder.md", "metrics.db")) if "Views" in block]
    monkeypatch.chdir(tmp_path)
    history = History(tmp_path / "metrics.db")
    entries = [Entry(Record(reader="keyvalue", offset=n, step=n, loss=1.0, dt_s=0.5), 1, 1) for n in range(1, 9)]
    history.commit(entries, [], state=b"")
    history.close()
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(text, {})
    assert said.getvalue() == "1 8 1.0\n"


def test_how_many_attempts_a_status_shows_is_documented() -> None:
    assert f"the newest {publishing.SHOWN_ATTEMPTS};" in table(own_text("reference.md", "Status JSON"))["attempts"][1]


def test_max_hours_reads_every_form_that_is_documented() -> None:
    words = CODE.findall(table(section("reference.md", "Settings"))["--max-hours"][1])
    read = [options.BY_NAME["max_hours"].parse(word) for word in words]
    assert read == [8, 7.5, 8, 1.5, 1.5, 48]


def test_the_picture_of_the_readme_is_a_small_png() -> None:
    (name,) = re.findall(r"!\[[^\]]+\]\((\S+\.png)\)", (ROOT / "README.md").read_text())
    data = (ROOT / name).read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(data) < 250_000


def test_the_pattern_of_the_how_to_reads_and_names_known_groups() -> None:
    text = section("how-to.md", "My script prints another kind of line")
    regex = re.findall(r"--pattern '([^']+)'", text)
    assert len(regex) == 1
    (record,) = Pattern(regex[0])(Line("it 7 of 9, nll=nan", 0), 0.0, 0) or ()
    assert record.step == 7
    assert record.loss != record.loss
    groups = CODE.findall(text.split("Groups that are understood:")[1].split(" At least")[0])
    assert {"step", "loss", "dt", "rank"} <= set(groups)
    for group in groups:
        regex_of_one = "^(?P<loss>[0-9])" if group == "loss" else f"(?P<loss>[0-9]) (?P<{group}>[0-9])"
        (record,) = Pattern(regex_of_one)(Line("3 4", 0), 0.0, 0) or ()
        assert record.extra is None, f"{group} is not understood"


# -- states, causes, exit codes --------------------------------------------------------------------------------------


def diagram() -> str:
    """Return the table of transitions as the architecture page shows it."""
    order = list(states.TRANSITIONS)
    width = max(map(len, order))
    lines = []
    for state, nexts in states.TRANSITIONS.items():
        words = [one for one in order if one in nexts]
        lines.append(f"{state:<{width}} -> {' '.join(words) or '(end)'}")
    return "\n".join(lines)


def test_the_state_diagram_is_the_table() -> None:
    assert diagram() in blocks(section("architecture.md", "States"))


def test_every_state_is_explained() -> None:
    assert list(table(section("architecture.md", "States"))) == list(states.TRANSITIONS)


def ends_documented() -> dict[tuple[str, str], int]:
    found = {}
    for cells in rows(section("exit-codes.md", "Ended runs")):
        state, cause = CODE.findall(cells[0])[0], (CODE.findall(cells[1]) or [cells[1]])[0]
        found[state, cause] = int(cells[2])
    return found


def test_every_end_has_its_documented_exit_code() -> None:
    for (state, cause), code in ends_documented().items():
        assert state in states.ENDED
        assert states.exit_code(state, cause) == code, (state, cause)
    assert {state for state, _ in ends_documented()} == states.ENDED


def test_every_cause_is_documented() -> None:
    causes = {cause for _, cause in ends_documented()} - {"the last cause"}
    known = {*states.FAILURES, *states.LIMITS, *options.RULES, "completed", "bad_teardown", "user", "preempted"}
    assert causes == known


def causes_given() -> set[str]:
    """Return the causes that a run can end with: words within the functions that decide, in a table, names of rules."""
    words: set[object] = {cause for cause, _ in symptoms._SHAPES}
    for name in ("lifecycle", "exits/causes"):
        tree = ast.parse((SOURCE / f"{name}.py").read_text())
        deciders = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        words |= {node.value for one in deciders for node in ast.walk(one) if isinstance(node, ast.Constant)}
    return {cause for _, cause in ends_documented() if cause in words} | {*options.RULES}


def test_causes_kept_for_later_are_those_that_nothing_gives() -> None:
    later = {CODE.findall(cells[1])[0] for cells in rows(section("exit-codes.md", "Kept for later versions"))}
    now = {cause for _, cause in ends_documented()} - {"the last cause"} - later
    assert later
    assert now == causes_given()
    assert later & causes_given() == set()


def test_every_cause_of_a_failure_says_how_it_is_known_and_whether_a_restart_follows() -> None:
    documented = table(section("reference.md", "Causes of a failure"))
    assert set(documented) == states.FAILURES
    for cause, (known_by, again) in documented.items():
        assert known_by, cause
        assert again.startswith(("yes", "no", "by [`recover`]")), cause
        assert again.startswith("no") == (cause in causes.LASTING), cause
    text = " ".join(section("reference.md", "Restarts").split())
    assert f"{lifecycle.MOST_TRIES} attempts in a row" in text
    assert f"at most {minutes(lifecycle.LONGEST_BACKOFF_S)}" in text


def exit_codes_of_the_code() -> set[int]:
    codes = {kind.exit_code for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)}
    codes |= {states.exit_code(*end) for end in ends_documented()}
    return codes | {cli.INTERRUPTED, cli.BROKEN_PIPE, HOOK_FAILED}


def test_every_exit_code_is_documented() -> None:
    others = {int(cells[0]) for cells in rows(section("exit-codes.md", "Everything else"))}
    assert others | set(ends_documented().values()) == exit_codes_of_the_code()


def test_the_help_names_every_exit_code_that_wait_gives() -> None:
    said = {int(code) for code in re.findall(r"\b\d+\b", cli.EPILOG)}
    ours = {code for code in exit_codes_of_the_code() if code < cli.INTERRUPTED}
    assert said == ours - {1}, "1 is for what the machine does, whatever was asked"


# -- status, journal, inbox, folder ----------------------------------------------------------------------------------


def a_verdict() -> Verdict:
    return Verdict(rule="nonfinite", severity="critical", action="terminate", text="loss is NaN", step=21, at=1e9)


def a_look_at_the_machine(folder: RunFolder, spec: RunSpec) -> dict[str, object]:
    """Return what sensors add to a status: of a machine of which nothing is known."""
    monitor, unasked = wiring.make_monitor(spec, no_complaints), cast("Any", None)
    off = msgspec.structs.replace(spec, sensors="off")
    seen = instruments.Instruments(
        folder, off, facts=Facts(folder), monitor=monitor, intake=unasked, progress=unasked, change=unasked
    )
    return seen.shown(time.time())


def a_status(folder: RunFolder) -> dict[str, object]:
    """Return what ``status --json`` shows of a run, built by the code that builds it."""
    folder.create()
    spec = bare_spec(name=folder.name)
    attempt = Attempt(1, folder=folder, spec=spec, wake=None, say=no_complaints)
    built = snapshot.build(
        spec=spec,
        monitor=wiring.make_monitor(spec, no_complaints),
        state=RunState(state="running", attempt=1),
        attempts=[attempt.line()],
        verdicts=[a_verdict()],
        created_at=time.time(),
        now=time.time(),
        used=snapshot.Used(active_s=None, elapsed_s=0.0),
        keepers={},
        saves=snapshot.Saves(),
        notes=(),
        hooks={"pending": 0, "failed": 0, "text": None, "held": None},
        engine=spec.engine,
        sensed=a_look_at_the_machine(folder, spec),
    )
    write_json(folder.run_json, {"spec": msgspec.structs.asdict(spec)})
    write_json(folder.status_json, built)
    return client.status(folder)


def test_every_field_of_status_is_documented(tmp_path: Path) -> None:
    shown = a_status(RunFolder(tmp_path / "quiet"))
    documented = table(own_text("reference.md", "Status JSON"))
    assert set(documented) == set(shown)
    assert set(client.FIELDS) <= set(documented)
    for part in ("verdicts", "attempts"):
        assert set(table(section("reference.md", part))) == set(shown[part][0]), part
    for part in ("limits", "hooks"):
        assert set(table(section("reference.md", part))) == set(shown[part]), part


def test_the_summary_of_hooks_has_the_documented_fields(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "quiet")
    folder.create()
    summary = Hooks(folder, bare_spec(on_end=("true",)), Facts(folder), dict).summary()
    assert set(table(section("reference.md", "hooks"))) == set(summary or ())


# -- hooks -----------------------------------------------------------------------------------------------------------


def parts_of_hooks() -> dict[str, dict[str, list[str]]]:
    """Return the tables below the heading Hooks by the head of their first column."""
    found = {}
    for part in re.split(r"(?m)^(?=\| \w+ \|)", section("reference.md", "Hooks"))[1:]:
        found[part.split("|")[1].strip()] = table(part)
    return found


def events_told() -> tuple[set[str], set[str]]:
    """Return the events that hooks are told of, and what is handed over with them, as literals of the code."""
    events: set[str] = set()
    details: set[str] = set()
    for _, tree in trees(*ROOMS_OF_A_RUN):
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            if node.func.attr in ("tell", "_payload", "_start_event"):
                parts = (
                    [node.args[0].body, node.args[0].orelse] if isinstance(node.args[0], ast.IfExp) else node.args[:1]
                )
                events |= {str(part.value) for part in parts if isinstance(part, ast.Constant)}
                details |= {word.arg for word in node.keywords if word.arg is not None}
    return events, details


def test_every_event_of_a_hook_is_documented() -> None:
    events, details = events_told()
    assert set(parts_of_hooks()["Event"]) == events
    assert len(events) >= 6
    assert details <= set(parts_of_hooks()["Field"])


def test_every_field_that_a_hook_reads_is_documented(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "quiet")
    documented = parts_of_hooks()["Field"]
    always = set(hookfiles.payload_of(folder, "verdict", {}, {}))
    at_end = set(hookfiles.payload_of(folder, "end", {}, {})) - always
    fold = Fold(limit=0)
    fold.offer("verdict", 0.0, {})
    extra = {"folded", "verdict", "wait_s", *(fold.flush() or ())}
    assert set(documented) == always | at_end | extra
    marked = {field for field, cells in documented.items() if cells[1].startswith("end")}
    assert marked == at_end


def test_what_a_hook_finds_in_its_environment_is_documented(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "quiet")
    given = hookfiles.environment(folder, "end-001-1")
    names = {name.decode() for name in given if name.startswith(b"OVERNIGHT_") and name not in os.environb}
    documented = table(section("reference.md", "Environment"))
    assert {name for name, cells in documented.items() if "hooks" in cells[0]} == names


def test_every_suffix_of_on_end_is_documented() -> None:
    assert list(parts_of_hooks()["WHEN"]) == list(hookfiles.OUTCOMES)


# -- journal, inbox, folder ------------------------------------------------------------------------------------------


def test_every_field_of_a_save_and_of_a_resume_is_documented(tmp_path: Path) -> None:
    facts = Facts(a_folder(tmp_path))
    facts.saved(seconds=0.5, path="/tmp/ckpt_7.pt", step=7, at=1.0, attempt=1, segment=1)
    best = facts.book.newest_good()
    assert best is not None
    shown = set(table(section("reference.md", "checkpoint")))
    assert shown == {*publishing.SHOWN_OF_BEST}
    assert shown | set(table(section("reference.md", "saves"))) == set(facts.book.line(best))
    resume = table(section("reference.md", "resume"))
    assert set(resume) == {*publishing.SHOWN_OF_RESUME, "overlap"}
    assert {*publishing.SHOWN_OF_OVERLAP} <= set(CODE.findall(resume["overlap"][1]))
    assert f"the newest {publishing.SHOWN_SAVES} saves" in table(own_text("reference.md", "Status JSON"))["saves"][1]


def a_folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "quiet")
    folder.create()
    return folder


def facts_said() -> dict[str, set[str]]:
    """Return every fact name that is passed to a ``say`` method as a literal, with the details that go with it."""
    found: dict[str, set[str]] = {}
    for path, tree in trees(*ROOMS_OF_A_RUN):
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            said = node.args[0]
            if isinstance(node.func, ast.Attribute) and node.func.attr == "say":
                assert isinstance(said, ast.Constant), f"{path.name}:{node.lineno}: a fact's name must be a literal"
                details = {word.arg for word in node.keywords if word.arg is not None}
                found.setdefault(str(said.value), set()).update(details)
    return found


def test_every_fact_is_documented_and_no_other() -> None:
    documented = table(section("reference.md", "Journal"))
    said = facts_said()
    assert set(documented) == set(said)
    for fact, details in said.items():
        assert details <= set(CODE.findall(documented[fact][1])), fact


def test_every_request_is_documented() -> None:
    documented = table(section("reference.md", "Inbox"))
    assert set(documented) == set(Request.__struct_fields__)
    kinds = next(field.type for field in msgspec.structs.fields(Request) if field.name == "kind").__args__
    assert set(CODE.findall(documented["kind"][0])) == {*kinds}
    (examples,) = [block for block in blocks(section("reference.md", "Inbox")) if block.startswith("{")]
    requests = [msgspec.json.decode(example, type=Request) for example in examples.splitlines()]
    assert [request.kind for request in requests] == [*kinds]
    for request in requests:
        assert changed(bare_spec(), request.values)


def test_every_file_of_a_run_folder_is_documented() -> None:
    folder = RunFolder(Path("/home/runs/quiet"))
    attempt = folder.attempt(1)
    paths = [value for one in (folder, attempt) for value in vars(one).values() if isinstance(value, Path)]
    names = {str(path.relative_to(folder.path)) for path in paths if path != folder.path}
    folders = {"attempts", "inbox", "owner", "evidence", "hooks"}
    names |= {str(path.relative_to(folder.path)) for path in hookfiles.files_of(folder, "KEY")}
    wanted = {f"{name}/" if name in folders else name for name in names if name != "attempts/001"}
    documented = table(section("run-folder.md", "Files"))
    others = {"metrics.damaged", "hooks/held.json", "evidence/stall-TIME-N/", "evidence/check-TIME/"}
    others |= {"sensors/", "sensors/gpu.jsonl", "sensors/host.jsonl", lastlook.CARDS}
    assert set(documented) == wanted | others


def test_every_file_of_a_stall_dump_and_of_a_check_is_documented(tmp_path: Path) -> None:
    assert re.fullmatch(r"stall-\w+-1", dumps._new_folder(tmp_path).name)
    text = section("run-folder.md", "evidence")
    documented = {word for cells in rows(text) for word in CODE.findall(cells[0])}
    written = set()
    for name in ("stalls/dumps", "stalls/stalldump", "proof", "rehearsal"):
        found = re.findall(r'"([\w.-]+\.(?:txt|log|json))"', (SOURCE / f"{name}.py").read_text())
        assert found, name
        written |= set(found)
    assert documented == written | {"PID-NAME.txt"}


def test_the_keys_of_hooks_are_documented() -> None:
    numbers = {"ATTEMPT": "001", "NUMBER": "000003", "M": "1", "N": "2"}
    keys = [
        "-".join(numbers.get(word, word) for word in key.split("-"))
        for key in table(section("run-folder.md", "hooks/KEY"))
    ]
    assert len(keys) == hookfiles.KEY.pattern.count("|") + 1
    assert all(hookfiles.KEY.fullmatch(key) for key in keys)


def test_the_format_versions_are_documented() -> None:
    text = section("run-folder.md", "Formats")
    assert f'"format": {snapshot.FORMAT}' in text
    assert table(own_text("reference.md", "Status JSON"))["format"][0] == str(snapshot.FORMAT)


def test_the_fields_of_stop_json_for_scripts_are_documented() -> None:
    documented = set(table(section("run-folder.md", "stop.json")))
    tree = ast.parse((SOURCE / "stops" / "orderfile.py").read_text())
    written = {
        key.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant)
    }
    assert {"cause", "save", "at"} == documented
    assert documented <= written


# -- the library and its files ---------------------------------------------------------------------------------------


def test_what_the_library_offers_is_documented() -> None:
    documented = table(section("checkpoints.md", "What it offers"))
    assert set(documented) == set(checkpoint.__all__)
    kinds = {name for name, kind in vars(checkpoint_errors).items() if isinstance(kind, type)}
    assert set(table(section("checkpoints.md", "Errors"))) == kinds <= set(documented)


def test_every_argument_of_the_checkpointer_is_documented_with_its_default() -> None:
    documented = table(section("checkpoints.md", "Checkpointer"))
    asked = {name: one for name, one in inspect.signature(Checkpointer).parameters.items() if name != "given"}
    assert list(documented) == list(asked)
    for name, one in asked.items():
        default = [] if one.default is inspect.Parameter.empty else [repr(one.default)]
        assert CODE.findall(documented[name][0]) == default, name


def test_every_method_and_property_of_the_checkpointer_is_documented() -> None:
    known = {name for name in vars(Checkpointer) if not name.startswith("_")}
    assert set(table(section("checkpoints.md", "Methods"))) == known | {"step", "resumed_from"}


def test_every_field_of_a_manifest_is_documented() -> None:
    made = json.loads(manifest.dump(manifest.Manifest(step=1, run="0" * 16, saved_at="", reason="end")))
    documented = table(section("checkpoints.md", "On disk"))
    known = {one.name for one in dataclasses.fields(manifest.Manifest)}
    assert set(documented) == set(made) == known | {"format", "maker", "digest"}
    assert documented["format"][0] == str(manifest.FORMAT)


def test_every_signal_and_variable_of_the_library_is_documented() -> None:
    assert [one.name for one in asking.SIGNALS] == rows(section("checkpoints.md", "The end"))[0][0].split(", ")
    text = "".join(path.read_text() for path in (SOURCE / "checkpoint").glob("*.py"))
    read = set(re.findall(r'environ\.get\("(OVERNIGHT_\w+)"', text))
    assert len(read) == 5
    assert set(table(section("checkpoints.md", "Environment"))) == read


def python_of(path: Path) -> list[str]:
    return [block for block in blocks(path.read_text()) if "overnight.checkpoint" in block]


# Seven trainings, each with a writer that imports torch: half a minute, and the others show the same in small.
HOW_TO = pytest.param("docs/how-to.md", marks=pytest.mark.long)


@pytest.mark.timeout(300)  # such a writer lets others go first
@pytest.mark.parametrize("name", ["README.md", "docs/quickstart.md", HOW_TO, "docs/checkpoints.md"])
def test_the_python_about_checkpoints_runs(tmp_path: Path, name: str) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("safetensors")
    first, *others = python_of(DOCS / "how-to.md")
    assert "def train_step" in first, "the pages' other blocks go on from it"
    mine = others if name.endswith("how-to.md") else blocks((ROOT / name).read_text())
    found = [block for block in mine if "overnight.checkpoint" in block or "safetensors.torch" in block]
    assert found
    script = tmp_path / "train.py"
    script.write_text("\n\n".join([first, *found]))
    environ = {key: value for key, value in os.environ.items() if not key.startswith("OVERNIGHT_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    made = [path.name for path in sorted((tmp_path / "checkpoints").glob("step-*"))]
    assert made == ["step-00000050", "step-00000100", "step-00000110"]


@pytest.fixture
def folder_of_checkpoints(tmp_path: Path) -> Path:
    """Return a folder with two checkpoints of a run, made without torch and without a process beside."""
    folder = tmp_path / "checkpoints"
    with Checkpointer(folder, every=1, async_=False, counter=7) as ckpt:
        assert list(ckpt.steps(2)) == [1, 2]
    return folder


def test_every_key_of_the_verb_checkpoints_is_documented(folder_of_checkpoints: Path) -> None:
    shown = json.loads(said_of("checkpoints", str(folder_of_checkpoints), "--json"))
    pruned = json.loads(
        said_of("checkpoints", str(folder_of_checkpoints), "--json", "--prune", "--keep-last", "1", "--dry-run")
    )
    assert len(pruned["removed"]) == 1
    whole, each = section("reference.md", "JSON of checkpoints").split("| Of each |")
    documented = table(whole)
    only_prune = {key for key, cells in documented.items() if cells[0].startswith("with `--prune`")}
    assert set(documented) - only_prune == set(shown)
    assert set(documented) == set(pruned)
    assert all(list(table("| Of each |" + each)) == list(one) for one in shown["checkpoints"])


def test_every_cause_and_every_key_of_a_resume_proof_is_documented() -> None:
    text = own_text("reference.md", "verify-resume")
    causes_shown = [cells[0].strip("`") for cells in rows(text) if not cells[0].startswith("`--")]
    assert sorted(causes_shown) == sorted(Cause.__args__)
    assert set(table(own_text("how-to.md", "verify-resume says FAIL"))) == {*Cause.__args__}
    whole, each = section("reference.md", "JSON of verify-resume").split("| Of each variant |")
    assert list(table(whole)) == list(evidence.document(evidence.Proof(command=("true",))))
    assert list(table("| Of each variant |" + each)) == list(evidence.Variant.__struct_fields__)
    documented = table(whole)
    assert {*evidence.Part.__struct_fields__} <= set(CODE.findall(documented["parts"][1]))


def test_every_maker_is_documented() -> None:
    documented = {word for word in table(own_text("reference.md", "checkpoints")) if not word.startswith("--")}
    known = re.search(r"``maker``: ([\w, ()]+)\.", (SOURCE / "inspector" / "findings.py").read_text())
    assert known is not None
    assert documented == set(re.findall(r"\w+", known[1].replace("(Hugging Face)", "")))


# -- the pages themselves --------------------------------------------------------------------------------------------


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_relative_link_leads_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if target.startswith(("http:", "https:", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        there = (path.parent / name).resolve() if name else path
        assert there.exists(), f"{path.name}: {target}"
        assert ROOT in (there, *there.parents), f"{path.name}: {target} leads out of the repository"
        if anchor:
            assert anchor in {slug(match[2]) for match in HEADING.finditer(there.read_text())}, f"{path.name}: {target}"


@pytest.mark.parametrize("path", sorted(DOCS.glob("*.md")), ids=lambda path: path.name)
def test_every_page_is_linked_from_the_readme(path: Path) -> None:
    assert f"](docs/{path.name})" in (ROOT / "README.md").read_text()


def test_the_engine_contract_is_documented() -> None:
    methods = [name for name, what in vars(Engine).items() if not name.startswith("_") and callable(what)]
    assert len(methods) > 4
    assert list(table(section("architecture.md", "The engine contract"))) == methods
    engines = CODE.findall(table(section("reference.md", "Settings"))["--engine"][1])
    assert engines == list(wiring.ENGINES)


def modules() -> set[str]:
    found = {path.name for path in SOURCE.glob("*.py")}
    return found | {f"{path.parent.name}/" for path in SOURCE.glob("*/__init__.py")}


def test_the_tree_of_the_readme_is_the_tree() -> None:
    text = (ROOT / "README.md").read_text()
    (tree,) = [block for block in blocks(text) if block.startswith("src/overnight/")]
    inside = "\n".join(line for line in tree.splitlines()[1:] if line.startswith("  ") or not line)
    named = [word for line in inside.splitlines() for word in re.findall(r"^[\w. /]+?(?=  |$)", line.strip())]
    words = [word for one in named for word in one.split()]
    assert sorted(words) == sorted(modules())
    for line in tree.splitlines():
        if line and not line.startswith(" "):
            assert (ROOT / line.split()[0]).is_dir(), line


def test_every_room_is_in_the_architecture() -> None:
    named = [word for cells in rows(section("architecture.md", "The rooms")) for word in CODE.findall(cells[0])]
    doors = {"__init__.py", "__main__.py"}
    assert sorted(named) == sorted(name.removesuffix(".py") for name in modules() - doors)


def test_python_in_the_pages_is_python() -> None:
    snippets = [
        block
        for path in PAGES
        for block in blocks(path.read_text())
        if re.match(r"(import|from|def) ", block) and "->" not in block
    ]
    assert len(snippets) >= 3
    for snippet in snippets:
        ast.parse(snippet)


def test_the_save_wanted_of_the_how_to_obeys_stop_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = [block for block in blocks(page("how-to.md")) if "def save_wanted" in block]
    scope: dict[str, object] = {}
    exec(text, scope)
    save_wanted = scope["save_wanted"]
    assert callable(save_wanted)
    for name in ("OVERNIGHT_RUN_DIR", "OVERNIGHT_ATTEMPT"):
        monkeypatch.delenv(name, raising=False)
    assert save_wanted() is True, "without Overnight"
    folder = RunFolder(tmp_path / "quiet")
    folder.create()
    folder.attempt(1).path.mkdir()
    monkeypatch.setenv("OVERNIGHT_RUN_DIR", str(folder.path))
    monkeypatch.setenv("OVERNIGHT_ATTEMPT", "1")
    assert save_wanted() is True, "before any order"
    for wanted in (True, False):
        folder.attempt(1).stop_json.write_text(json.dumps({"cause": "nonfinite", "save": wanted, "at": 1.0}))
        assert save_wanted() is wanted


def test_the_changelog_speaks_of_this_version() -> None:
    from overnight import __version__

    assert __version__ in (ROOT / "CHANGELOG.md").read_text()


def test_the_numbers_of_sniffing_are_documented() -> None:
    from overnight.readers import sniff

    text = " ".join(own_text("reference.md", "Readers").split())
    assert f"After {sniff.LOCK_AFTER_LINES} lines" in text
    assert f"if it has read {sniff.LOCK_AFTER_CREDIT} such records" in text
    assert f"takes over after {sniff.SWITCH_AFTER_CREDIT} records" in text

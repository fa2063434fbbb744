"""The rules of the house about who may import whom, read from the source text of every file, functions included."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import overnight

ROOT = Path(overnight.__file__).parent
PURE = (
    "errors events spec quantities flops readers meter rules announce states lifecycle monitor tail pacing "
    "batches calm earliness screen bars printable carrying overall crosscheck hearing accelerators "
    "yardsticks.basis yardsticks.needs yardsticks.sizing exits.causes exits.traces exits.symptoms "
    "stops.ladder hooks.folding "
    "sensors.forecast sensors.filling sensors.series sensors.placing"
).split()
PURE_FILES = (
    "resumption.overlap resumption.displacing resumption.expectation resumption.fitting resumption.point "
    "saves.seen saves.silences intake.rhythm resumeproof.epochs "
    "resumeproof.words resumeproof.diagnosis resumeproof.comparing resumeproof.noise resumeproof.curves "
    "resumeproof.averages resumeproof.clues resumeproof.patterns resumeproof.vocabulary resumeproof.wording "
    "resumeproof.recognising resumeproof.restored resumeproof.literals "
    "modelsize.adapters modelsize.gathering modelsize.tensornames modelsize.config modelsize.fields modelsize.tally "
    "modelsize.nesting modelsize.named modelsize.nanogpt modelsize.families calculator"
).split()
"""Files in rooms that are not pure as a whole."""
PURE_WORDS = {f"overnight.{room}" for room in "modelsize accelerators sensors yardsticks exits stops hooks".split()}
"""Packages whose own file holds words only, and which have files that are not pure."""
IMPURE = {"os", "time", "subprocess", "sqlite3", "socket", "threading", "pathlib"}
IMPLEMENTATIONS = ("overnight.readers.", "overnight.rules.", "overnight.engines.")


def module_of(path: Path) -> str:
    """Return the dotted name of a source file."""
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_of(path): path for path in sorted(ROOT.rglob("*.py"))}


def names_in(tree: ast.AST, module: str, *, package: bool) -> Iterator[str]:
    """Yield every dotted name that is imported anywhere in a file.

    ``from a import b`` is a.b if that is a file of ours, otherwise both; "a." and a variable is everything in a.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = module.split(".")[: len(module.split(".")) - node.level + package]
                base = ".".join([*above, *([node.module] if node.module else [])])
            full = [f"{base}.{alias.name}" for alias in node.names]
            yield from full
            if not all(name in FILES for name in full):
                yield base
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "__import__"):
            text = ast.unparse(node.args[0]) if node.args else ""
            begin = re.match(r"f?['\"]([\w.]*)", text)
            known = begin[1] if begin else ""
            inside = [name for name in FILES if known.endswith(".") and name.startswith(known)]
            yield from inside or [known or "<computed>"]


NAMES = {
    module: frozenset(names_in(ast.parse(path.read_text()), module, package=path.name == "__init__.py"))
    for module, path in FILES.items()
}


def ours(module: str) -> frozenset[str]:
    """Return the modules of ours that one imports itself; the packages above them are imported by Python, not by it."""
    return frozenset(name for name in NAMES[module] if name in FILES and name not in ("overnight", module))


def loaded(module: str) -> frozenset[str]:
    """Return what importing a module and calling everything in it may load: its imports, theirs, and their packages."""
    found: set[str] = set()
    todo = [module]
    while todo:
        name = todo.pop()
        if name in found:
            continue
        found.add(name)
        todo += ours(name)
        parts = name.split(".")
        todo += [".".join(parts[:count]) for count in range(2, len(parts))]
    return frozenset(found)


def within(*rooms: str) -> list[str]:
    """Return the modules of some rooms."""
    return [name for name in FILES if any(f"{name}.".startswith(f"overnight.{room}.") for room in rooms)]


def top(name: str) -> str:
    """Return the first part of a dotted name."""
    return name.partition(".")[0]


def test_the_reader_of_imports_sees_every_form() -> None:
    text = (
        "import a.b\nfrom c import d\nfrom . import e\nfrom .f import g\nfrom .. import h\n"
        "def run():\n import os\n if 1:\n  from pathlib import Path\nimportlib.import_module('k')\n__import__(name)\n"
        "__import__(f'overnight.cli.{verb}')\nfrom overnight.readers import sniff\n"
    )
    found = set(names_in(ast.parse(text), "overnight.room.file", package=False))
    assert found >= {"a.b", "c.d", "overnight.room.e", "overnight.room.f.g", "overnight.h", "os", "pathlib.Path", "k"}
    assert found >= {"<computed>", "overnight.cli.look", "overnight.readers.sniff"}
    assert not found & {"overnight.cli", "overnight.readers"}
    assert "overnight.room.e" in set(names_in(ast.parse("from . import e"), "overnight.room", package=True))


def test_there_is_something_to_look_at() -> None:
    assert {"overnight.supervisor", "overnight.readers.keyvalue", "overnight.cli", "overnight.shim"} <= set(FILES)
    assert "overnight.lifecycle" in ours("overnight.monitor")
    assert "overnight.readers.nanogpt" in loaded("overnight.supervisor")


def test_pure_rooms_know_no_clock_no_file_and_no_process() -> None:
    pure = {*within(*PURE, *PURE_FILES), *PURE_WORDS}
    bad = {(name, one) for name in pure for one in NAMES[name] if top(one) in IMPURE}
    assert not bad


def test_pure_rooms_reach_only_pure_rooms() -> None:
    pure = set(within(*PURE)) | PURE_WORDS
    bad = {(name, one) for name in pure for one in loaded(name) if one not in pure}
    assert not bad


@pytest.mark.parametrize("room", ["events", "flops", "tail", "errors", "spec"])
def test_the_ground_floor_imports_nothing_of_ours(room: str) -> None:
    words = ("overnight.modelsize",)  # what run.json holds of a model
    assert not {name for name in NAMES[f"overnight.{room}"] if top(name) == "overnight" and not name.startswith(words)}


def test_views_never_reach_the_doing_side() -> None:
    doing = set(within("supervisor", "launch", "engines"))
    assert doing
    bad = {(name, one) for name in within("web", "client", "report") for one in loaded(name) & doing}
    assert not bad


def test_only_wiring_imports_implementations() -> None:
    bad = {
        (name, one)
        for name in FILES
        for one in ours(name)
        if one.startswith(IMPLEMENTATIONS) and name != "overnight.wiring" and one.split(".")[1] != name.split(".")[1]
        and not _is_support(one)
    }  # fmt: skip
    assert not bad


def _is_support(name: str) -> bool:
    """Say whether a file of a room for plug-ins is one that its implementations share, and holds none itself."""
    return name in ("overnight.readers.sniff", "overnight.readers.programs") or name.startswith("overnight.engines.")


def test_implementations_do_not_know_each_other() -> None:
    implementations = {one for one in ours("overnight.wiring") if one.startswith(IMPLEMENTATIONS)}
    assert len(implementations) >= 6
    bad = {(name, one) for name in implementations for one in ours(name) & implementations}
    assert not bad


def test_only_wiring_lists_plug_ins() -> None:
    bad = {name for name in FILES if "importlib.metadata.entry_points" in NAMES[name]} - {"overnight.wiring"}
    assert not bad


def test_nothing_imports_the_command_line() -> None:
    cli = set(within("cli"))
    bad = {(name, one) for name in set(FILES) - cli for one in ours(name) & cli}
    assert {name for name, _ in bad} <= {"overnight.__main__"}


def test_the_shim_stands_alone() -> None:
    assert {top(name) for name in NAMES["overnight.shim"]} <= set(sys.stdlib_module_names)
    tree = ast.parse(FILES["overnight.shim"].read_text())
    tree.body = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    at_start = {top(name) for name in names_in(tree, "overnight.shim", package=False)}
    assert not {"subprocess", "json", "pathlib", "logging", "asyncio", "typing", "re"} & at_start  # it starts in 8 ms
    assert not {name for name in FILES if "overnight.shim" in NAMES[name]}


def test_the_checkpoint_library_is_sealed() -> None:
    """Nothing of ours goes in; torch and safetensors only inside functions."""
    for name in within("checkpoint"):
        assert all(f"{one}.".startswith("overnight.checkpoint.") for one in NAMES[name] if top(one) == "overnight")
        tree = ast.parse(FILES[name].read_text())
        tree.body = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
        first = {top(one) for one in names_in(tree, name, package=FILES[name].name == "__init__.py")}
        assert first <= {*sys.stdlib_module_names, "overnight"}


def test_the_package_itself_is_empty() -> None:
    assert not NAMES["overnight"]


def test_no_circle_anywhere() -> None:
    """At the top of files and inside functions together. Importing a.b runs a, but a needs a.b only if it says so."""
    waiting = {name: set(ours(name)) for name in FILES}
    while waiting:
        free = {name for name, needs in waiting.items() if not needs & waiting.keys()}
        assert free, f"in a circle or above one: {sorted(waiting)}"
        for name in free:
            del waiting[name]


def test_no_import_is_computed() -> None:
    assert not {name for name, names in NAMES.items() if "<computed>" in names}


def test_importing_the_views_loads_nothing_heavy() -> None:
    code = "import overnight.client, sys; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = set(done.stdout.split())
    assert not names & {"overnight.supervisor", "overnight.launch", "overnight.engines", "numpy", "torch", "asyncio"}

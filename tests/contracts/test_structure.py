"""What every file of the project has and has not: size, a first docstring, named errors, nothing of one machine."""

from __future__ import annotations

import ast
import getpass
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src" / "overnight").rglob("*.py"))
MAX_LINES = 400
MAX_FUNCTION_LINES = 50
FORBIDDEN = {"utils", "util", "common", "core", "manager", "base", "helpers", "helper", "handler", "types", "misc"}
TEXT = {"", *(f".{name}" for name in "py md toml txt cfg ini yml yaml json sh in js css html".split())}


def tracked() -> list[Path]:
    """Return every file that git tracks or would track."""
    argv = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip("not a work tree of git")
    paths = (ROOT / name.decode() for name in done.stdout.split(b"\0") if name)
    return sorted(path for path in paths if path.is_file())


def named(path: Path) -> str:
    """Return a path for a message."""
    return str(path.relative_to(ROOT))


def functions(path: Path) -> list[tuple[str, int]]:
    """Return each function of a file with its lines, docstring and decorators not counted."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0]
            doc = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
            docstring = (first.end_lineno or 0) - first.lineno + 1 if doc else 0
            found.append((node.name, (node.end_lineno or 0) - node.lineno + 1 - docstring))
    return found


def test_files_are_short() -> None:
    long = {named(path): len(path.read_text().splitlines()) for path in SOURCES}
    assert len(long) > 30
    # The shim may import nothing of ours, so that it cannot break under a run when the package is upgraded: it is one
    # file, and its limit is its own.
    assert long.pop("src/overnight/shim.py") <= 650
    assert not {name: count for name, count in long.items() if count > MAX_LINES}


def test_functions_are_short() -> None:
    counts = {f"{named(path)}:{name}": count for path in SOURCES for name, count in functions(path)}
    assert len(counts) > 200
    assert not {name: count for name, count in counts.items() if count > MAX_FUNCTION_LINES}


def test_no_file_is_called_nothing_in_particular() -> None:
    assert not [named(path) for path in tracked() if path.suffix == ".py" and path.stem.strip("_") in FORBIDDEN]
    folders = {part for path in SOURCES for part in path.relative_to(ROOT).parent.parts}
    assert not folders & FORBIDDEN


def test_every_file_says_first_what_it_is_for() -> None:
    python = [path for path in tracked() if path.suffix == ".py"]
    assert len(python) > 50
    missing = [named(path) for path in python if not (ast.get_docstring(ast.parse(path.read_text())) or "").strip()]
    assert not missing


def broad(handler: ast.ExceptHandler) -> bool:
    """Say whether an except clause catches what nobody has named."""
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(ast.unparse(kind) in ("Exception", "BaseException") for kind in kinds)


def reraises(handler: ast.ExceptHandler) -> bool:
    """Say whether an except clause hides nothing: it raises what was caught again, or a sentence that comes from it."""
    last = handler.body[-1]
    if not isinstance(last, ast.Raise):
        return False
    return last.exc is None or (last.cause is not None and ast.unparse(last.cause) == handler.name)


def test_broad_excepts_give_a_reason() -> None:
    """``except Exception`` only round a plug-in, a notifier or the outermost loop, and never without a word."""
    bad, seen = [], 0
    for path in SOURCES:
        lines = path.read_text().splitlines()
        for node in ast.walk(ast.parse("\n".join(lines))):
            if isinstance(node, ast.ExceptHandler) and broad(node) and not reraises(node):
                seen += 1
                if not re.search(r"# noqa: BLE001 - \w+ \w+", lines[node.lineno - 1]):
                    bad.append(f"{named(path)}:{node.lineno}")
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
                bad += [f"{named(path)}:{node.lineno}" for one in node.args if ast.unparse(one).endswith("Exception")]
    assert not bad
    assert seen <= 6


def test_ignores_name_what_they_ignore_and_why() -> None:
    bad = []
    for path in SOURCES:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.search(r"#\s*(type: ignore(?!\[)|noqa(?!: [A-Z]+[0-9]))", line):
                bad.append(f"{named(path)}:{number}")
    assert not bad


# Put together from pieces, so that this file does not hold what it looks for.
HOSTS = ["pypi." + "org", "files.python" + "hosted", "npmjs." + "org", "npmjs." + "com", "anaconda." + "org"]
HOSTS += ["index" + "-url", "extra-" + "index"]
PLACES = ["/wo" + "rk/", "/ro" + "ot/", "/mnt/" + "sandbox", ".library" + "/", "sub" + "agent"]
PLACES += [f"{place}/" for place in (ROOT, Path.home()) if len(place.parts) > 2]


@pytest.mark.parametrize("word", HOSTS)
def test_no_registry_is_named(word: str) -> None:
    assert not [named(path) for path in tracked() if path.suffix in TEXT and word in path.read_text(errors="replace")]


@pytest.mark.parametrize("word", PLACES)
def test_nothing_of_one_machine_is_named(word: str) -> None:
    found = []
    for path in tracked():
        if path.suffix in TEXT:
            lines = path.read_text(errors="replace").splitlines()
            found += [f"{named(path)}: {line.strip()[:80]}" for line in lines if word in line]
    assert not found


def test_no_login_name_is_named() -> None:
    user = getpass.getuser()
    if user in ("root", "user", "runner", "ci", "ubuntu", "admin", "test"):
        pytest.skip(f"{user!r} is a word of its own")
    pattern = re.compile(rf"\b{re.escape(user)}\b")
    files = [path for path in tracked() if path.suffix in TEXT]
    assert not [named(path) for path in files if pattern.search(path.read_text(errors="replace"))]

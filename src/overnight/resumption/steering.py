"""Whether a command goes on from the save that it is given, and saves only if it is wanted. Only looks."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from contextlib import suppress

from overnight.resumption.point import PLACE
from overnight.scripts import reached, uncommented
from overnight.spec import RunSpec

VARIABLE, LIBRARY = "OVERNIGHT_CHECKPOINT", "overnight"
IMPORTS = ("overnight.checkpoint", "from overnight import")
"""The library reads the variable."""
FOLDER, ORDER, WANTED = "OVERNIGHT_RUN_DIR", re.compile(r"(?:^|[/\\])stop\.json$"), "save_wanted"
"""What a script needs that reads the order to stop, and the function of the documentation that does."""
ORDER_NAME = "stop.json"
_SAID = re.compile(r"""(?:^|[\s"'/=(])stop\.json(?=$|[\s"');])""")


def steered(spec: RunSpec) -> bool:
    """Say whether the words of --resume-args, the command, or a script that it leads to take the save to go on from."""
    if any(PLACE in word for word in spec.resume_args) or any(VARIABLE in word for word in spec.argv):
        return True
    return any(_takes(path, data.decode("utf-8", "replace")) for path, data in reached(spec.argv, spec.cwd))


def asks(spec: RunSpec) -> bool:
    """Say whether a script that the command leads to seems to ask before it saves at a signal.

    Its text imports the library, or the texts together name the run's folder and read ``stop.json`` (or call what the
    documentation calls ``save_wanted``). What stands in a comment, or is part of another name, does not count.
    """
    inline = (("-c", word) for word in spec.argv if "\n" in word or ORDER_NAME in word)
    texts = [(path, data.decode("utf-8", "replace")) for path, data in reached(spec.argv, spec.cwd)]
    found: set[str] = set()
    for path, text in (*inline, *texts):
        found |= _asking(path, text)
    return "library" in found or {"folder", "order"} <= found or "wanted" in found


def _asking(path: str, text: str) -> set[str]:
    """Return which signs of asking a text has: "library", "folder", "order", "wanted"."""
    if not any(name in text for name in (*IMPORTS, FOLDER, ORDER_NAME, WANTED)):
        return set()
    tree = _tree(path, text)
    if tree is None:
        lines = uncommented(text)
        signs = {"library": IMPORTS, "folder": (FOLDER,), "wanted": (f"{WANTED}(",)}
        found = {sign for sign, names in signs.items() if any(name in line for name in names for line in lines)}
        return found | ({"order"} if any(_SAID.search(line) for line in lines) else set())
    found = {"library"} if any(_imports(tree)) else set()
    alone = _alone(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            found |= {"folder"} if FOLDER in node.value else set()
            found |= {"order"} if ORDER.search(node.value) else set()
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            found |= {"wanted"} if called == WANTED else set()
    return found


def _takes(path: str, text: str) -> bool:
    """Say whether a text names the variable or the library other than in a comment, or in a string that is only told.

    What is no Python of this version is looked at line by line.
    """
    if not any(name in text for name in (VARIABLE, *IMPORTS)):
        return False
    tree = _tree(path, text)
    if tree is not None:
        return any(_names(tree))
    return any(name in line for line in uncommented(text) for name in (VARIABLE, *IMPORTS))


def _tree(path: str, text: str) -> ast.Module | None:
    """Return a text as a program; None for what is no Python of this version."""
    if path == "-c" or path.endswith(".py") or text.startswith("#!"):
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a script's odd escapes
            return ast.parse(text)
    return None


def _alone(tree: ast.Module) -> set[int]:
    """Return the expressions that nothing is done with: docstrings."""
    return {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def _imports(tree: ast.Module) -> Iterator[bool]:
    """Yield, for each import of a program, whether it is of the library."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield any(f"{alias.name}.".startswith(f"{LIBRARY}.checkpoint.") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [alias.name for alias in node.names] if node.module == LIBRARY else []
            yield "checkpoint" in names or f"{node.module}.".startswith(f"{LIBRARY}.checkpoint.")


def _names(tree: ast.Module) -> Iterator[bool]:
    """Yield, for each node of a program that may name the variable or the library, whether it does."""
    yield from _imports(tree)
    alone = _alone(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield VARIABLE in node.value
        elif isinstance(node, (ast.Name, ast.Attribute)):
            yield VARIABLE in (node.id if isinstance(node, ast.Name) else node.attr)

"""Whether a command goes on from the save that it is given, and saves only if it is wanted. Only looks."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from contextlib import suppress

from overnight.resumption.point import PLACE
from overnight.scripts import reached, uncommented
from overnight.spec import RunSpec

VARIABLE, LIBRARY = "OVERNIGHT_CHECKPOINT", "overnight"
IMPORTS = ("overnight.checkpoint", "from overnight import")
"""The library reads the variable."""
ASKS = (*IMPORTS, "save_wanted", "stop.json")


def steered(spec: RunSpec) -> bool:
    """Say whether the words of --resume-args, the command, or a script that it leads to take the save to go on from."""
    if any(PLACE in word for word in spec.resume_args) or any(VARIABLE in word for word in spec.argv):
        return True
    return any(_takes(path, data.decode("utf-8", "replace")) for path, data in reached(spec.argv, spec.cwd))


def asks(spec: RunSpec) -> bool:
    """Say whether a script that the command leads to seems to ask before it saves at a signal."""
    return any(name.encode() in data for _, data in reached(spec.argv, spec.cwd) for name in ASKS)


def _takes(path: str, text: str) -> bool:
    """Say whether a text names the variable or the library other than in a comment, or in a string that is only told.

    What is no Python of this version is looked at line by line.
    """
    if not any(name in text for name in (VARIABLE, *IMPORTS)):
        return False
    if path.endswith(".py") or text.startswith("#!"):
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a script's odd escapes
            return any(_names(ast.parse(text)))
    return any(name in line for line in uncommented(text) for name in (VARIABLE, *IMPORTS))


def _names(tree: ast.Module) -> Iterator[bool]:
    """Yield, for each node of a program that may name the variable or the library, whether it does."""
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield any(f"{alias.name}.".startswith(f"{LIBRARY}.checkpoint.") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [alias.name for alias in node.names] if node.module == LIBRARY else []
            yield "checkpoint" in names or f"{node.module}.".startswith(f"{LIBRARY}.checkpoint.")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield VARIABLE in node.value
        elif isinstance(node, (ast.Name, ast.Attribute)):
            yield VARIABLE in (node.id if isinstance(node, ast.Name) else node.attr)

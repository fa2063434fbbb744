"""The texts that a Python file writes out, put together where it does so from pieces: ``ROOT + "/out"`` is one path.

Nothing is run: what is not written out is ``{}``. No clock, no file, no process.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Final

UNKNOWN: Final = "{}"
_JOINS: Final = frozenset(("join", "Path", "PurePath", "PosixPath", "joinpath"))
_SAME: Final = frozenset(("str", "fspath", "expanduser", "abspath", "normpath", "realpath"))


def texts_of(source: str) -> list[str]:
    """Return the texts of a file that are no docstrings, in order; its lines if it is no Python."""
    try:
        tree = ast.parse(source)
        names = _names(tree)
        return [found.removeprefix(UNKNOWN) for found in _texts(tree, names)]
    except (SyntaxError, ValueError, RecursionError):
        return source.splitlines()


def _texts(node: ast.AST, names: Mapping[str, str]) -> Iterator[str]:
    """Yield the texts below a node; of what is put together the whole, and not its pieces."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    found = None if isinstance(node, ast.Name) else _folded(node, names)
    if found is not None and found.strip(UNKNOWN):
        yield found
        return
    for child in ast.iter_child_nodes(node):
        yield from _texts(child, names)


def _names(tree: ast.AST) -> dict[str, str]:
    """Return what names stand for that are given one path, once and nowhere else."""
    given: dict[str, list[str | None]] = {}
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name, value = node.targets[0].id, _folded(node.value, known)
            given.setdefault(name, []).append(value)
            known.pop(name, None)
            if value is not None and value.startswith("/") and len(given[name]) == 1:
                known[name] = value
    return known


def _folded(node: ast.AST, names: Mapping[str, str]) -> str | None:
    """Return the text that an expression makes, as far as it is written out; None if it makes none that is known."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.JoinedStr):
        return "".join(_piece(one.value if isinstance(one, ast.FormattedValue) else one, names) for one in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Div)):
        left, right = _folded(node.left, names), _folded(node.right, names)
        if left is None and right is None:
            return None
        between = "/" if isinstance(node.op, ast.Div) else ""
        return f"{UNKNOWN if left is None else left}{between}{UNKNOWN if right is None else right}"
    if isinstance(node, ast.Call) and not node.keywords and node.args:
        return _called(node, names)
    return None


def _called(node: ast.Call, names: Mapping[str, str]) -> str | None:
    """Return the path that ``os.path.join`` or ``Path`` makes of its arguments."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in _SAME and len(node.args) == 1:
        return _folded(node.args[0], names)
    first = _folded(node.args[0], names)
    if name not in _JOINS or first is None or not first.startswith("/"):
        return None
    return "/".join([first.rstrip("/"), *(_piece(one, names) for one in node.args[1:])])


def _piece(node: ast.AST, names: Mapping[str, str]) -> str:
    found = _folded(node, names)
    return UNKNOWN if found is None else found

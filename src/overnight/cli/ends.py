"""What would happen at each end of a run: which --on-end command runs at which outcome, and what it would wait for now.

For ``run --explain`` and ``check``: only looks, starts none of the commands.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from overnight.cli.render import folded
from overnight.folder import RunFolder
from overnight.hooks import guard
from overnight.hooks.files import at_each_end
from overnight.printable import harmless
from overnight.spec import RunSpec

NOTHING = "nothing"


def at_ends(spec: RunSpec, folder: RunFolder, home: str) -> list[dict[str, Any]]:
    """Return {end, commands, held, text} for each outcome; empty for a run without --on-end.

    ``held`` is what its commands would wait for now, None for nothing; ``text`` says when they start.
    """
    if not spec.on_end:
        return []
    hold = None if spec.on_end_guard == "off" else guard.look_now(folder, home)
    found = []
    for end, commands in at_each_end(spec).items():
        held = hold.text if hold is not None and commands else None
        found.append({"end": end, "commands": list(commands), "held": held, "text": _when(spec, held, commands)})
    return found


def _when(spec: RunSpec, held: str | None, commands: tuple[str, ...]) -> str:
    if not commands:
        return "no --on-end command is for this end"
    if spec.on_end_guard == "off":
        return "at once, whatever else goes on here (--on-end-guard off)"
    return "at once, for nothing else goes on here now" if held is None else f"turning off would wait now: {held}"


def rows(found: list[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """Yield (name, commands, when they start), as ``run --explain`` shows its settings."""
    for one in found:
        yield f"end-{one['end']}", "; ".join(one["commands"]) or NOTHING, one["text"]


def lines(found: list[dict[str, Any]]) -> list[str]:
    """Return the same for people."""
    shown = []
    for one in found:
        commands = [harmless(text) for text in one["commands"]] or [NOTHING]
        shown += folded("; ".join(commands), " " * 18, first=f"  at {one['end']:<13}")
        if one["commands"]:
            shown += folded(one["text"], " " * 18)
    return shown

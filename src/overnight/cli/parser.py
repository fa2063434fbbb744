"""The argument parsers of all verbs: one look, one way to say what is wrong.

Nothing costly is imported here: ``ls`` must be quick.
"""

from __future__ import annotations

import argparse

from overnight.cli.verbs import HOOK_FAILED, INTERRUPTED, OTHERWISE, VERBS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import NoReturn

__all__ = ["HOOK_FAILED", "INTERRUPTED", "OTHERWISE", "VERBS", "Parser", "alike", "new_parser"]


def alike(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that somebody may have meant; None if none is near."""
    import difflib  # only when something is wrong: it costs 5 ms

    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=0.7)), None)


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """80 columns whatever the terminal; asking for its width would import shutil, 2 ms of ``ls``."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=80, max_help_position=26)


class Parser(argparse.ArgumentParser):
    """An argparse parser whose errors are one sentence with a hint, exit code 2; flags are never abbreviated."""

    def __init__(self, prog: str, description: str, epilog: str) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            formatter_class=HelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where to look, and exit with 2."""
        before, unknown, strange = message.partition("unrecognized arguments: ")
        if unknown and not before:
            near = alike(strange.split()[0].partition("=")[0], self._option_string_actions)
            message += f"; did you mean {near}?" if near else ""
        self.exit(2, f"{self.prog}: {message}; see `{self.prog} --help`\n")


def new_parser(verb: str, examples: str) -> Parser:
    """Return an empty parser for ``verb``, with its examples below the options."""
    return Parser(f"overnight {verb}", VERBS[verb][1], "examples:\n" + examples)

"""The argument parsers of all verbs: one look, one way to say what is wrong.

Nothing costly is imported here: ``ls`` must be quick.
"""

from __future__ import annotations

import argparse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import NoReturn

VERBS: dict[str, tuple[str, str]] = {
    "run": ("run", "start a training command that lives on when you leave"),
    "ls": ("look", "list all runs"),
    "status": ("look", "show one run: state, figures, verdicts"),
    "logs": ("logs", "print what the training wrote"),
    "attach": ("logs", "watch a run live; leaving does not disturb it"),
    "check": ("check", "prove that the run lives, grows and survives your logout"),
    "note": ("ask", "keep a sentence of yours with a run"),
    "set": ("ask", "change limits of a run that goes on"),
    "stop": ("end", "end a run gracefully and wait until it has ended"),
    "wait": ("end", "wait until a run has ended; the exit code says how"),
    "report": ("report", "show what happened to a run, or in any log"),
    "mfu": ("mfu", "work out FLOPs and MFU, by hand or for a run, and show how"),
    "replay": ("replay", "judge a finished run or log again, under any rules"),
    "checkpoints": ("checkpoints", "list, verify and prune checkpoints of any maker"),
    "verify-resume": ("verify", "prove that a resume is exact, by stopping and killing runs"),
    "read": ("read", "print what is read from a log, and by which reader"),
    "export": ("history", "write a run's records as CSV, JSON lines or Parquet"),
    "reindex": ("history", "build a run's metrics.db anew from its log and journal"),
    "recover": ("recover", "bring runs back that a reboot has interrupted"),
    "enable": ("recover", "let the machine run `overnight recover` when it starts"),
    "watch": ("watch", "watch a training that was started by hand"),
    "clean": ("end", "remove the folders of ended runs"),
    "doctor": ("doctor", "say what on this machine could end a run in the night"),
    "demo": ("demo", "show on this machine, in about a minute, what Overnight does"),
}

INTERRUPTED = 130

HOOK_FAILED = 108
"""The run finished, but a hook at its end failed."""


OTHERWISE = {"list": "ls", "ps": "ls", "kill": "stop", "tail": "logs", "log": "logs", "show": "status", "rm": "clean"}
"""What other tools call our verbs."""


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

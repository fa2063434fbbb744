"""The verbs by name, and the exit codes that belong to the command line alone.

Nothing is imported here: this is all that is loaded before a Ctrl-C is guarded against.
"""

from __future__ import annotations

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
    "clean": ("clean", "remove the folders of ended runs"),
    "doctor": ("doctor", "say what on this machine could end a run in the night"),
    "demo": ("demo", "show on this machine, in about a minute, what Overnight does"),
}

INTERRUPTED = 130

HOOK_FAILED = 108
"""The run finished, but a hook at its end failed."""


OTHERWISE = {"list": "ls", "ps": "ls", "kill": "stop", "tail": "logs", "log": "logs", "show": "status", "rm": "clean"}
"""What other tools call our verbs."""

SHOWING = frozenset("ls status logs attach report mfu replay checkpoints read export".split())
"""Verbs that are called for what they print: with standard output closed they have failed."""

BROKEN_PIPE = 141

EPILOG = """\
overnight run -- python train.py     start it; the terminal may be closed
overnight status                     how the latest run is doing
overnight VERB --help                options and examples of one verb

exit codes of wait, run --foreground and an early death: 0 finished,
100 failed, 101 wait timed out, 102 no such run, 103 stopped by a person,
104 by a health rule, 105 by a limit, 106 gave up, 107 preempted,
108 finished, but a hook failed, 2 wrong use
"""

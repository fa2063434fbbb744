"""The table of all settings of a run: the only list of them.

Flags, OVERNIGHT_* names, file keys, ``--explain`` and the docs follow it. How they are read stands in ``settings.py``;
nothing here opens a file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from overnight.quantities import Choice, count, duration_s, number, pattern, switch, text, tokens, wait_s

NOT_SETTINGS = frozenset({"HOME", "RUN_ID", "RUN_DIR", "ATTEMPT", "CHECKPOINT", "SKIP_STEPS", "STOP_AT", "ROLE"})
"""OVERNIGHT_* names that Overnight itself reads or hands to the training; never settings."""

RULES = ("nonfinite", "divergence", "wall_clock")
ACTIONS = ("note", "alert", "stop", "terminate")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting: ``parse`` raises ValueError (or KeyError) for what is not accepted, ``wants`` says what is."""

    name: str
    parse: Callable[[object], Any]
    wants: str
    help: str
    group: str
    default: Any = None
    metavar: str | None = None

    @property
    def flag(self) -> str:
        """Return the flag's name."""
        return "--" + self.label

    @property
    def label(self) -> str:
        """Return the name as people write it."""
        return self.name.replace("_", "-")


def path_text(raw: object) -> str:
    """Return a path as it was given, ``~`` resolved."""
    if not isinstance(raw, str) or not raw or "\0" in raw:
        raise ValueError(raw)
    return os.path.expanduser(raw)


_SECONDS = "a duration above zero such as 90s, 10m, 2h or 1h30m (a plain number is seconds)"
_WHOLE = "a whole number above zero such as 4, 124e6, 124M or 1.3B"
_ABOVE = "a number above zero such as 312 or 7.5"


def _duration(name: str, default: float, about: str, group: str = "end") -> Setting:
    return Setting(
        name=name, parse=duration_s, wants=_SECONDS, default=default, metavar="TIME", help=about, group=group
    )


def _count(name: str, about: str, default: int | None = None) -> Setting:
    return Setting(name=name, parse=count, wants=_WHOLE, default=default, metavar="N", help=about, group="measure")


def _choice(name: str, words: Sequence[str], default: str | None, about: str, group: str) -> Setting:
    wants = "one of " + ", ".join(words)
    return Setting(
        name=name, parse=Choice(*words), wants=wants, default=default, metavar="|".join(words), help=about, group=group
    )


def _number(name: str, about: str, group: str) -> Setting:
    return Setting(name=name, parse=number, wants=_ABOVE, metavar="X", help=about, group=group)


GROUPS = {
    "place": "the run",
    "end": "how it is ended",
    "read": "how its log is read",
    "measure": "how it is measured (what is not given is not guessed)",
    "judge": "when it should not go on",
}

SETTINGS: tuple[Setting, ...] = (
    Setting(name="name", parse=text, wants="text", metavar="NAME", group="place", help="its name (default: made up)"),
    Setting(
        name="log",
        parse=path_text,
        wants="a path",
        metavar="FILE",
        group="place",
        help="append the output to FILE (default: output.log in the run folder); a regular file, never truncated",
    ),
    Setting(
        name="settle",
        parse=wait_s,
        wants="a duration such as 2s or 1m; 0 does not wait",
        default=2.0,
        metavar="TIME",
        group="place",
        help="watch this long for an early death before returning",
    ),
    _duration("grace", 60.0, "time from the first signal to SIGKILL"),
    _duration("grace_max", 1800.0, "the most that a growing checkpoint may extend the grace to"),
    _choice("stop_signal", ("auto", "int", "term"), "auto", "first signal of a stop", "end"),
    _choice("nonfinite_signal", ("auto", "int", "term", "kill"), "auto", "signal for a run whose loss is NaN", "end"),
    Setting(
        name="pattern",
        parse=pattern,
        wants="a regular expression with named groups such as 'it (?P<step>\\d+) loss (?P<loss>\\S+)'",
        metavar="REGEX",
        group="read",
        help="regular expression with named groups that reads a progress line",
    ),
    Setting(
        name="line_buffered",
        parse=switch,
        wants="true or false",
        default=False,
        group="read",
        help="make C programs write whole lines at once (libstdbuf)",
    ),
    _count("window", "records in the rolling window", 10),
    _count("steps", "planned steps: ETA and ended_early; never a limit"),
    _count("params", "parameters of the model"),
    Setting(
        name="tokens_per_step", parse=tokens, wants=_WHOLE, metavar="N", group="measure",
        help="tokens per optimizer step, all devices together",
    ),
    _number("peak_tflops", "dense peak of one device in the dtype trained in, TFLOP/s", "measure"),
    _count("devices", "devices the run trains on", 1),
    _count("layers", "layers, for the attention term"),
    _count("seq_len", "sequence length, for the attention term"),
    _count("width", "model width, for the attention term"),
    _count("vocab_size", "vocabulary size; makes a loss above 20 a divergence"),
    _number("max_loss", "a loss above this is a divergence", "judge"),
    _number("max_hours", "end the run before this many hours, early enough for its save", "judge"),
    *(_choice(f"action_{rule}", ACTIONS, None, f"what {rule} asks for", "judge") for rule in RULES),
    Setting(
        name="checkpoints",
        parse=path_text,
        wants="a folder",
        metavar="DIR",
        group="end",
        help="folder the script saves to, to notice and time its saves (default: the working folder)",
    ),
)  # fmt: skip
BY_NAME = {setting.name: setting for setting in SETTINGS}
TABLES = {
    "nonfinite": {"action": "action_nonfinite", "signal": "nonfinite_signal"},
    "divergence": {"action": "action_divergence", "max_loss": "max_loss"},
    "wall_clock": {"action": "action_wall_clock", "max_hours": "max_hours"},
}

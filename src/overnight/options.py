"""The table of all settings of a run: the only list of them.

Flags, OVERNIGHT_* names, file keys, ``--explain`` and the docs follow it. How they are read stands in ``settings.py``;
nothing here opens a file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from overnight.quantities import (
    Choice,
    commands,
    count,
    duration_s,
    hours,
    interval_s,
    moment,
    money,
    number,
    pattern,
    price,
    switch,
    text,
    tflops,
    tokens,
    wait_s,
    whole,
    words,
)

NOT_SETTINGS = frozenset(
    "HOME RUN_ID RUN_DIR ATTEMPT CHECKPOINT SKIP_STEPS STOP_AT ROLE EVENT STATE CAUSE TEXT STEP LAST_CHECKPOINT".split()
)
"""OVERNIGHT_* names that Overnight itself reads or hands to the training and to hooks; never settings."""

RULES = (
    "nonfinite", "divergence", "collapse", "spike", "slowdown", "straggler", "stall", "hardware", "throttle",
    "low_utilisation", "memory_creep", "disk_space", "wall_clock", "until", "max_steps", "cost",
)  # fmt: skip
LIMITS = ("wall_clock", "until", "max_steps", "cost")
OF_THE_MACHINE = (
    "slowdown", "straggler", "hardware", "throttle", "low_utilisation", "memory_creep", "disk_space",
)  # fmt: skip
"""Rules on what no earlier save would mend."""
ACTIONS = ("note", "alert", "stop", "terminate", "rollback")


def actions_of(rule: str) -> tuple[str, ...]:
    """Return what a rule may ask for: neither a limit nor the machine is a trouble that lay in some steps."""
    return tuple(one for one in ACTIONS if one != "rollback" or rule not in (*LIMITS, *OF_THE_MACHINE))


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
    many: bool = False

    @property
    def field(self) -> str:
        """Return the name of its field in the spec, where it has one: durations are kept in seconds."""
        return f"{self.name}_s" if self.metavar == "TIME" else self.name

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


def _duration(name: str, default: float | None, about: str, group: str = "end") -> Setting:
    return Setting(
        name=name, parse=duration_s, wants=_SECONDS, default=default, metavar="TIME", help=about, group=group
    )


def _count(name: str, about: str, default: int | None = None, group: str = "measure") -> Setting:
    return Setting(name=name, parse=count, wants=_WHOLE, default=default, metavar="N", help=about, group=group)


def end_commands(raw: object) -> tuple[str, ...]:
    """Return the commands of ``--on-end``; ValueError for one that is nothing but its suffix."""
    from overnight.hooks.files import parse_on_end  # here, since few runs have one

    found = commands(raw)
    for one in found:
        parse_on_end(one)
    return found


def _commands(name: str, metavar: str, parse: Callable[[object], Any], about: str) -> Setting:
    wants = "a shell command"
    return Setting(
        name=name, parse=parse, wants=wants, default=(), metavar=metavar, group="tell", help=about, many=True
    )


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
    "limit": "how far it may go",
    "again": "how it is started again",
    "tell": "who is told",
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
        name="engine",
        parse=text,
        wants="one of local, tmux",
        default="local",
        metavar="local|tmux",
        group="place",
        help="tmux: also show it live in a tmux session of the run's name",
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
    _choice("sensors", ("on", "off"), "on", "GPU and host sensors beside the run", "read"),
    Setting(
        name="sensor_interval", parse=interval_s, wants="a duration of at least 1s", default=10.0, metavar="TIME",
        group="read", help="time between two looks at GPU and host, at least 1s",
    ),
    Setting(
        name="line_buffered",
        parse=switch,
        wants="true or false",
        default=False,
        group="read",
        help="make C programs write whole lines at once (stdbuf)",
    ),
    _count("window", "records in the rolling window", 10),
    _count("steps", "planned steps: ETA and ended_early; never a limit"),
    _count("params", "parameters of the model"),
    Setting(
        name="config", parse=path_text, wants="a path", metavar="FILE", group="measure",
        help="config.json, model folder or weights file that the parameters are counted from",
    ),
    Setting(
        name="model", parse=text, wants="the name of a public model", metavar="NAME", group="measure",
        help="a public model whose counts are known, such as gpt2 or Meta-Llama-3-8B",
    ),
    _count("active_params", "parameters that one token uses, of a mixture of experts"),
    _count("trainable_params", "parameters that are trained; the others are frozen (LoRA)"),
    Setting(
        name="tokens_per_step", parse=tokens, wants=_WHOLE, metavar="N", group="measure",
        help="tokens per optimizer step, all devices together",
    ),
    _count("batch", "sequences per device and micro-step: with --seq-len gives the tokens"),
    _count("accumulate", "micro-steps per optimizer step (default 1)"),
    _count("world_size", "data-parallel ranks (default: all devices)"),
    Setting(
        name="gpu", parse=text, wants="the name of an accelerator", metavar="NAME", group="measure",
        help="accelerator, such as h100-pcie (default: what the driver says)",
    ),
    _choice("dtype", ("bf16", "fp16", "tf32", "fp32", "fp8"), None, "what the training computes in", "measure"),
    Setting(
        name="peak_tflops", parse=tflops, wants=_ABOVE, metavar="X", group="measure",
        help="dense peak of one device in the dtype trained in, TFLOP/s",
    ),
    _count("devices", "devices the run trains on", 1),
    _count("layers", "layers, for the attention term"),
    _count("seq_len", "sequence length, for the attention term"),
    _count("width", "model width, for the attention term"),
    _count("heads", "attention heads, where heads * head size is not the width"),
    _count("head_size", "size of one attention head"),
    Setting(
        name="convention", parse=text, wants="one of those that `overnight mfu --help` lists", default="6n",
        metavar="KEY", group="measure", help="how FLOPs are counted in the headline (6n)",
    ),
    _choice(
        "recompute", ("none", "selective", "full"), "none",
        "activations recomputed: counts for HFU, never for MFU", "measure",
    ),
    _count("vocab_size", "vocabulary size; makes a loss above 20 a divergence and a return to ln(N) a collapse"),
    _number("max_loss", "a loss above this is a divergence", "judge"),
    _duration("stall", None, "end the run after this long without a new step (default: learned)", "judge"),
    _duration("start_limit", None, "end the run if its first step takes longer (default: only alert)", "judge"),
    _duration("exit_limit", None, "end a command that is still there so long after its last step", "judge"),
    Setting(
        name="max_hours", parse=hours, wants="a number of hours such as 8 or 7.5, or 8h, 90m", metavar="X",
        group="limit", help="end the run before this many hours, early enough for its save",
    ),
    Setting(
        name="until",
        parse=moment,
        wants="a time of day such as 07:30 or a date such as '2026-12-01 07:30'",
        metavar="WHEN",
        group="limit",
        help="end the run before 07:30, or '2026-12-01 07:30'",
    ),
    _count("max_steps", "end the run at this step", group="limit"),
    Setting(
        name="max_cost", parse=money, wants="an amount such as 40", metavar="X", group="limit",
        help="end the run before it has cost this much; needs --price",
    ),
    Setting(
        name="price", parse=price, wants="a price such as 2.49/h or 60/day", metavar="X/h", group="limit",
        help="what the machine costs per hour, e.g. 2.49/h",
    ),
    Setting(
        name="price_table", parse=path_text, wants="a TOML or CSV file", metavar="FILE", group="limit",
        help="prices per device and hour, for what the driver says is here",
    ),
    Setting(
        name="restarts", parse=whole, wants="a whole number such as 3, or 0", default=0, metavar="N", group="again",
        help="start it again up to N times after a failure that a restart may mend",
    ),
    _duration("backoff", 2.0, "wait before the first restart; doubles up to 5 minutes", "again"),
    Setting(
        name="resume_args", parse=words, wants="words such as '--resume latest'", default=(), metavar="'ARGS'",
        group="again", help="words added to the command from its second start on; {checkpoint} is where to go on",
    ),
    Setting(
        name="recover", parse=switch, wants="true or false", default=False, group="again",
        help="let `overnight recover` start it again after a reboot",
    ),
    Setting(
        name="rollbacks", parse=whole, wants="a whole number such as 2, or 0", default=2, metavar="N", group="again",
        help="how often a rule with the action rollback may take it back; then it is stopped",
    ),
    Setting(
        name="rollback_steps", parse=whole, wants="a whole number such as 100, or 0", default=10, metavar="N",
        group="again", help="a rollback goes back at least so many steps before the trouble",
    ),
    Setting(
        name="strict", parse=switch, wants="true or false", default=False, group="again",
        help="refuse to go on from an earlier run's saves under changed settings",
    ),
    _commands(
        "on_event", "CMD", commands,
        "shell command for a verdict, restart, end or near limit (JSON on stdin); repeatable",
    ),
    _commands(
        "on_end", "CMD[:WHEN]", end_commands,
        "shell command at the end; WHEN: success, failure, limit, stopped or always (default); repeatable",
    ),
    _duration("hook_timeout", 60.0, "time a hook may take", "tell"),
    _choice(
        "on_end_guard", ("auto", "off"), "auto",
        "auto: --on-end waits while other work is on this machine", "tell",
    ),
    _choice("report", ("end", "never"), "end", "when report.html is made in the run folder", "tell"),
    *(_choice(f"action_{rule}", actions_of(rule), None, f"what {rule} asks for", "judge") for rule in RULES),
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
    "collapse": {"action": "action_collapse", "vocab_size": "vocab_size"},
    "spike": {"action": "action_spike"},
    **{rule: {"action": f"action_{rule}"} for rule in OF_THE_MACHINE},
    "stall": {
        "action": "action_stall",
        "limit": "stall",
        "start_limit": "start_limit",
        "exit_limit": "exit_limit",
    },
    "wall_clock": {"action": "action_wall_clock", "max_hours": "max_hours"},
    "until": {"action": "action_until", "until": "until"},
    "max_steps": {"action": "action_max_steps", "max_steps": "max_steps"},
    "cost": {"action": "action_cost", "max_cost": "max_cost", "price": "price"},
}

CHANGEABLE = (
    "max_hours", "until", "max_steps", "max_cost", "price", "stall", "start_limit", "exit_limit", "restarts", "backoff",
    "max_loss", "steps", "grace", "grace_max", "rollbacks", "rollback_steps", "on_end_guard",
)  # fmt: skip
"""What ``overnight set`` may change in a run that is going on, beside what a rule asks for (``--action``)."""

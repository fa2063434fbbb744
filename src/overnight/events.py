"""The words that cross the disk or a room's door: frozen, keyword-only values and nothing else.

No clock, no file, no process, no import of ours. Floats may be NaN or infinite inside the program; ``jsonable`` turns
them into the strings "nan", "inf" and "-inf" on the way to JSON, where ``null`` only ever means "unknown".
"""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

Severity = Literal["note", "warn", "critical"]
RuleAction = Literal["note", "alert", "stop", "terminate", "rollback"]


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one log line said about one training step, untouched.

    ``step`` is the optimizer step as printed; ``dt_s`` seconds per step; ``mfu`` percent as printed; ``source`` and
    ``offset`` the place of the line's first byte; ``part`` counts the records of one line; ``at`` the arrival in
    seconds since the epoch; ``glued`` says that a number touches a neighbouring record and must not trigger anything.
    ``tokens`` are those of this step, ``tokens_total`` all that the program has counted so far. ``per_device``: the
    rates are of one device, as printed. ``early``: released before all of it is known (a NaN waits for nothing); the
    whole record of the same place follows if the log goes on. ``strange``: a training record on a line that begins as
    no line before it, or whose loss is no number and whose step lies far behind: it may be a sentence that only looks
    like progress. It is ``glued`` too, so that it is stored and shown and not measured; only ``nonfinite`` judges it.
    """

    reader: str
    source: int = 0
    offset: int = 0
    part: int = 0
    at: float = 0.0
    kind: Literal["train", "eval", "gpu", "host"] = "train"
    rank: int | None = None
    step: int | None = None
    loss: float | None = None
    dt_s: float | None = None
    tokens: float | None = None
    tokens_total: float | None = None
    tokens_per_s: float | None = None
    samples_per_s: float | None = None
    mfu: float | None = None
    lr: float | None = None
    grad_norm: float | None = None
    epoch: float | None = None
    extra: dict[str, float | str] | None = None
    glued: bool = False
    per_device: bool = False
    early: bool = False
    strange: bool = False


class Measure(msgspec.Struct, frozen=True, kw_only=True):
    """What we compute from records, over the window unless a name says run or avg. ``mfu`` is a fraction."""

    step: int | None = None
    loss: float | None = None
    loss_avg: float | None = None
    dt_s: float | None = None
    tokens_per_second: float | None = None
    tokens_per_second_avg: float | None = None
    tokens_per_second_clean: float | None = None
    useful_tokens_per_second: float | None = None
    tflops: float | None = None
    mfu: float | None = None
    mfu_avg: float | None = None
    mfu_clean: float | None = None
    mfu_attention: float | None = None
    mfu_attention_avg: float | None = None
    hfu: float | None = None
    flops_per_token: float | None = None
    flops_per_token_attention: float | None = None
    eta_s: float | None = None
    records: int = 0
    unknown: dict[str, str] = {}


VERDICT_KEY = ("attempt", "source", "offset", "part", "rule")

VerdictKey = tuple[int, int, int, int, str]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule found.

    (``attempt``, ``source``, ``offset``, ``part``, ``rule``) is its key: writing it twice is harmless.
    """

    rule: str
    severity: Severity
    action: RuleAction
    text: str
    step: int | None = None
    at: float | None = None
    attempt: int = 1
    source: int = 0
    offset: int = -1
    part: int = 0
    evidence: dict[str, Any] = {}

    @property
    def key(self) -> VerdictKey:
        """Return what makes it the same verdict when it is found again: the values of ``VERDICT_KEY``."""
        return (self.attempt, self.source, self.offset, self.part, self.rule)


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """How a process ended: ``exit_code`` or ``signal`` by name; both None when nobody could learn it."""

    exit_code: int | None = None
    signal: str | None = None
    at: float | None = None
    text: str | None = None

    @property
    def bad(self) -> bool:
        """Say whether it is known to have ended badly: by a signal, or with another code than 0."""
        return self.signal is not None or self.exit_code not in (0, None)


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request from the inbox.

    ``stop``: ``by`` is "user", "scheduler" or "shutdown", ``now`` asks to kill at once. ``note``: ``text`` is to be
    remembered. ``set``: ``values`` are RunSpec fields with their new values. ``recover``: go on after a reboot.
    """

    kind: Literal["stop", "note", "set", "recover"]
    by: str = "user"
    now: bool = False
    at: float | None = None
    text: str = ""
    values: dict[str, Any] = {}


class StopOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Why the run is being ended and whether a save is wanted; this is what stop.json carries.

    ``by`` is "rule", or who has asked for it: "user", "scheduler", "shutdown". ``place`` is the (source, offset, part)
    of the record that a rule has found something in. ``rollback``: the run is to go on from a save before ``onset``,
    the first step of the trouble, as far as that is known.
    """

    cause: str
    save: bool
    at: float
    text: str = ""
    now: bool = False
    by: str = "rule"
    place: tuple[int, int, int] | None = None
    rollback: bool = False
    onset: int | None = None


def jsonable(value: Any) -> Any:
    """Return ``value`` as plain JSON types, non-finite floats as "nan", "inf" or "-inf"."""
    if value is None or isinstance(value, (str, int)):  # most are
        return value
    if isinstance(value, float):
        if math.isnan(value):
            return "nan"
        if math.isinf(value):
            return "inf" if value > 0 else "-inf"
        return value
    if isinstance(value, dict):
        return {key: jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    if isinstance(value, msgspec.Struct):
        return jsonable(msgspec.structs.asdict(value))
    return value

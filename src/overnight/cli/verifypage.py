"""Turns a resume proof into text for people, at most 80 columns: while it goes on, and when it is over.

Text only: nothing is run, read or decided here.
"""

from __future__ import annotations

import math
import os
import shlex
import time

from overnight.cli.render import figure, folded, red, span
from overnight.printable import harmless
from overnight.resumeproof.evidence import unseen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TextIO

    from overnight.resumeproof.evidence import Part, Proof, Variant
    from overnight.resumeproof.trial import Told

WIDTH = 80
EVERY_S = 0.2
NAMES = {"graceful": "stopped", "kill": "killed"}
LABEL = 12
COMMAND_LINES = 4
MOST = 12


class Progress:
    """A line for each part: on a terminal with the step as it goes on, else one when it begins and one at its end."""

    def __init__(self, stream: TextIO | None, *, quiet: bool) -> None:
        self._stream = None if quiet else stream
        self._live = self._stream is not None and self._stream.isatty()
        self._name: str | None = None
        self._began = self._shown_at = 0.0

    def __call__(self, told: Told) -> None:
        """Show how far a part is."""
        now = time.monotonic()
        if told.name != self._name:
            self._name, self._began, self._shown_at = told.name, now, 0.0
            if not self._live:
                self._write(f"{told.name}: to step {told.goal}\n")
        if told.over is not None:
            end = "\r\x1b[K" if self._live else ""
            self._write(f"{end}{told.name}: {harmless(told.over)} ({_time(now - self._began)})\n")
            self._name = None
        elif told.hint is not None:
            end = "\r\x1b[K" if self._live else ""
            self._write(f"{end}{told.name}: {harmless(told.hint)}\n")
        elif self._live and now - self._shown_at >= EVERY_S:
            self._shown_at = now
            at = "starting" if told.step is None else f"step {told.step}/{told.goal}"
            self._write(f"\r\x1b[K{told.name}: {at}")

    def end(self) -> None:
        """Rub out the line of a part that did not come to its end."""
        if self._live and self._name is not None:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:  # nobody looks any more
            self._stream = None


def proof_text(proof: Proof, *, colours: bool = False) -> str:
    """Return the whole result; its first line begins with PASS, FAIL or REFUSED."""
    shown = folded(shlex.join(proof.command), " " * 6)[:COMMAND_LINES]
    lines = [_first(proof, colours=colours), *shown, "", *_parts(proof.parts)]
    for one in proof.variants:
        lines += ["", *_variant(one)]
    lines += ["", *_rest(proof)]
    return "\n".join(lines).rstrip()


def _first(proof: Proof, *, colours: bool) -> str:
    if proof.refused is not None:
        return red("\n".join(folded(proof.refused, "         ", "REFUSED  ")), colours=colours)
    what = "the resume is exact" if all(one.passed is not False for one in proof.variants) else "no exact resume"
    noisy = proof.passed and any(proof.floor.values())
    if proof.changed:
        what = "your folder was changed"
    elif not proof.passed and what == "the resume is exact":
        what = "no resume was seen"
    word = "PASS" if proof.passed else "FAIL"
    what = "all is within the floor" if noisy and not proof.changed else what
    blind = [NAMES[one.how] for one in proof.variants if one.passed and unseen(one.resumed_from, one.states)]
    if proof.passed and blind:
        what = f"all that is printed is {'within the floor' if noisy else 'equal'}, but no state saved after resuming "
        what += f"was compared ({', '.join(blind)})"
    said = f"{what}: stopped at step {proof.stop_at}, compared up to step {proof.until}"
    text = "\n".join(folded(said, " " * 6, f"{word}  ")) if blind else f"{word}  {said}"
    return text if proof.passed else red(text, colours=colours)


def _parts(parts: tuple[Part, ...]) -> list[str]:
    if not parts:
        return []
    rows = [(one.name, _steps(one), _time(one.seconds), harmless(one.ended)) for one in parts]
    heads = ("RUN", "STEPS", "TIME", "HOW IT ENDED")
    widths = [max(len(row[at]) for row in (heads, *rows)) for at in range(3)]
    found = []
    for row in (heads, *rows):
        front = f"  {row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:>{widths[2]}}  "
        room = WIDTH - len(front)
        found.append(front + (row[3] if len(row[3]) <= room else row[3][: room - 1] + "…"))
    return found


def _time(seconds: float) -> str:
    return span(seconds) if seconds >= 60 else f"{seconds:.1f}s"


def _steps(part: Part) -> str:
    return "-" if part.first_step is None else f"{part.first_step}-{part.last_step}"


def _variant(one: Variant) -> list[str]:
    word = "PASS" if one.passed else "FAIL" if one.passed is False else "-"
    cause = f" ({one.cause})" if one.cause else ""
    found = folded(f"{word}{cause}: {one.text}", " " * LABEL, _label(NAMES[one.how]))
    if one.resumed_from is not None:
        step = "a step nobody tells" if one.resumed_from.step is None else f"step {one.resumed_from.step}"
        at = "" if one.stopped_at is None else f", stopped at {one.stopped_at}" + (" exactly" if one.exact else "")
        found += _row("from", f"{os.path.basename(one.resumed_from.path)} ({step}{at})")
    found += _row("values", _values(one))
    equal = [state for state in one.states if state.equal]
    if equal and one.cause not in ("nothing_saved", "not_resumed"):  # of a run that begins anew it says nothing
        steps, count = ", ".join(str(state.step) for state in equal), sum(state.compared for state in equal)
        many = "the one value is equal" if count == 1 else f"all {count} tensors and values are equal"
        left = max(len(state.left_out) for state in equal)
        but = f"; {left} more left out, which differ between the unbroken runs or are times" if left else ""
        found += _row("states", f"step{'s' if len(equal) > 1 else ''} {steps}: {many}, bit by bit{but}")
    for state in (one for one in one.states if not one.equal):
        differing = "; ".join(f"{part.part}: {part.count} of {part.of} differ" for part in state.differences)
        found += _row("states", f"step {state.step}: {differing or 'not equal'}")
    return found


def _values(one: Variant) -> str:
    """Say how many values are equal; of a run that began anew that is no good sign, and not told as one."""
    if not one.compared:
        return "none could be compared"
    known = f"{one.equal} of {one.compared} equal" + (" or within the floor" if any(one.floor.values()) else "")
    equal = one.equal == one.compared
    if one.cause == "nothing_saved" or (one.cause == "not_resumed" and equal):
        return f"nothing was resumed: {known}" + (", as of any run that begins anew" if equal else "")
    return known


def changes_text(proof: Proof) -> list[str]:
    """Return what of the user's files has changed, for stderr, where a proof has no other text."""
    shown = [f"changed during the proof: {harmless(said)}" for said in proof.changed[:MOST]]
    left = len(proof.changed) - MOST
    return [*shown, f"and {left} more changed"] if left > 0 else shown


def _rest(proof: Proof) -> list[str]:
    found = []
    if proof.variants:
        found += _row("floor", _floor(proof.floor))
    if proof.left_out:
        found += _row("left out", "; ".join(f"{name}: {why}" for name, why in list(proof.left_out.items())[:MOST]))
    for note in proof.notes:
        found += _row("note", note)
    if proof.untouched:
        found += _row("untouched", "nothing in your folder has changed")
    for said in proof.changed[:MOST]:
        found += _row("CHANGED", said)
    if len(proof.changed) > MOST:
        found += _row("CHANGED", f"and {len(proof.changed) - MOST} more")
    if proof.evidence is not None:
        found += _row("evidence", proof.evidence)
        found += _row("", f"OVERNIGHT_HOME={shlex.quote(proof.evidence)} overnight report killed")
    return found


def _floor(floor: Mapping[str, float]) -> str:
    loose = {name: value for name, value in floor.items() if value}
    if not loose:
        return "none: every value has to be equal as printed"
    exact = len(floor) - len(loose)
    others = "; the other one has to be equal" if exact == 1 else f"; the other {exact} have to be equal"
    more = (others if exact else "") + "; a large floor proves little"
    words = [f"{name} {'any' if math.isinf(value) else figure(value, 3)}" for name, value in list(loose.items())[:MOST]]
    return f"a step may differ by {', '.join(words)}{more}"


def _row(label: str, text: str) -> list[str]:
    return folded(text, " " * LABEL, _label(label))


def _label(text: str) -> str:
    return f"  {text:<{LABEL - 2}}"

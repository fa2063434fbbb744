"""The progress line: one per step, exact, and cheap enough to be printed at every step.

    step: 12, loss: 2.0625, dt: 0.051, tokens: 32768

Overnight's general reader reads it; nothing here knows Overnight. No file is written, and what stdout does with the
line never ends a training.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from overnight.checkpoint.errors import UsageError
from overnight.checkpoint.leaves import class_of

_BETWEEN = re.compile(r"[\s,;|:=\x00-\x1f\x7f]+")


class Telemetry:
    """Makes the lines, and remembers when the last one was made: ``dt`` is measured between two of them."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._step = 0
        self._names: dict[str, str] = {}
        self._told = False

    def begin(self, step: int) -> None:
        """Take in that the step behind ``step`` begins now, so that the first line has a ``dt``, too."""
        self._step = step
        self._at = time.perf_counter()

    def line(self, step: int, figures: Mapping[str, Any]) -> str:
        """Return the line of a step: loss, dt, then the other figures in their order.

        Numbers are printed so that reading them gives the very same number; tensors and arrays of one element are
        numbers. ``dt`` is in seconds per step; if it is not given, it is measured since the line before, which may be
        several steps old, and left out where there was none. A loss that is not given or None is printed as None; other
        figures that are None are left out.
        UsageError for what is neither number nor text.
        """
        now = time.perf_counter()
        before, self._at = self._at, now
        steps, self._step = step - self._step, step
        text = f"step: {step}"
        if "loss" in figures:
            loss = figures["loss"]
            text += f", loss: {loss!r}" if type(loss) is float else f", loss: {printed('loss', loss)}"
        elif not any(name.endswith("loss") for name in figures):
            text += ", loss: None"  # a reader of logs takes a line without any loss for a remark, not for a step
        if "dt" not in figures and before is not None and steps > 0:
            text += f", dt: {(now - before) / steps:.6g}"
        elif figures.get("dt") is not None:
            text += f", dt: {printed('dt', figures['dt'])}"
        for name, value in figures.items():
            kind = type(value)
            if kind is int or kind is float:
                if name not in _FIRST:
                    text += f"{self._names.get(name) or self._named(name)}{value!r}"
            elif name not in _FIRST and value is not None:
                text += f"{self._names.get(name) or self._named(name)}{printed(name, value)}"
        return text

    def report(self, step: int, figures: Mapping[str, Any]) -> None:
        """Print the line of a step at once. A stdout that is closed or full loses the line and nothing else."""
        text = self.line(step, figures) + "\n"
        stream = sys.stdout
        try:
            stream.write(text)
            stream.flush()
        except (OSError, ValueError, AttributeError) as error:  # gone, full; closed by the script; None
            self._lost(stream, error)

    def _named(self, name: str) -> str:
        """Return what stands before a value of that name; names never change, so it is kept."""
        made = self._names[name] = f", {_BETWEEN.sub('_', str(name)) or '_'}: "
        return made

    def _lost(self, stream: Any, error: Exception) -> None:
        """Let a stdout whose reader is gone lead nowhere.

        Otherwise the script's next print would raise as well, and Python's last flush would turn exit 0 into 120.
        """
        if isinstance(error, OSError):
            with suppress(OSError, ValueError):
                handle = stream.fileno()
                if error.errno == errno.EPIPE or (error.errno == errno.EIO and stat.S_ISCHR(os.fstat(handle).st_mode)):
                    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
                    os.dup2(nowhere, handle)
                    os.close(nowhere)
        if not self._told:
            self._told = True
            with suppress(OSError):  # straight to the handle: a stderr that is gone as well keeps nothing to flush
                os.write(2, f"overnight: a progress line could not be printed ({error}); training goes on\n".encode())


_FIRST = frozenset({"loss", "dt"})


def printed(name: str, value: Any) -> str:
    """Return a figure as it is printed: the shortest text of exactly that number, or one word."""
    if value is None:
        return "None"
    if isinstance(value, str):
        return _BETWEEN.sub("_", value.strip()) or "_"
    item = getattr(value, "item", None)
    try:
        number = item() if callable(item) else value
        if isinstance(number, int):
            return str(int(number))
        return repr(float(number))
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"the figure {name!r} is a {class_of(value)} and no single number ({error}); report its mean"
        ) from None

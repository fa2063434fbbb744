"""Text from logs, names and paths as it may be shown: nothing that moves a cursor, colours or reorders.

Pure text in, text out. What is shown where, and how much of it, is decided elsewhere.
"""

from __future__ import annotations

import re

# Kept as text: `re` compiles them on first use and remembers; `ls` of plain names never needs them.
_ESCAPE = (
    r"\x1b\[[0-?]*[ -/]*(?:[@-~]|$)"  # CSI: colours, cursor
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)"  # OSC, DCS, SOS, PM, APC: titles, links
    r"|\x1b[ -/]*[0-~]?"  # the two-byte rest
)
_HARMFUL = "[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]"


STRANGE = "[\x00-\x08\x0e-\x1a\x1c-\x1f\ufffd]"
"""Signs that no text has: of a picture or an archive they are far more than one in ten."""


def harmless(text: str) -> str:
    """Return one line of text without anything that moves a cursor, colours or reorders."""
    if text.isprintable():
        return text
    return _mask(re.sub(_ESCAPE, "", text).replace("\0", "").replace("\n", " "))


def _mask(text: str) -> str:
    return re.sub(_HARMFUL, "\N{REPLACEMENT CHARACTER}", text)


def clean_line(line: bytes) -> str:
    """Return a log line as a person should see it: bars collapsed to their last state, control characters harmless."""
    text = line.decode("utf-8", "replace")
    if text.isprintable():
        return text
    text = re.sub(_ESCAPE, "", text.replace("\0", ""))
    frames = [frame for frame in text.rstrip("\r\n").split("\r") if frame]
    return _mask(_rub_out(frames[-1])) if frames else ""


def _rub_out(frame: str) -> str:
    """Carry out backspaces: what comes after one is written over what stood before it."""
    if "\b" not in frame:
        return frame
    cells: list[str] = []
    at = 0
    for sign in frame:
        if sign == "\b":
            at = max(0, at - 1)
            continue
        cells[at : at + 1] = [sign]
        at += 1
    return "".join(cells)

"""Tells what of a line that was written over is worth keeping: a bar's earlier state is not, any other text is.

Pure: two byte strings in, yes or no out. No terminal, no file; where the frames come from is ``screen``'s.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# What changes between two states of one thing: numbers, signs, the glyphs of bars and spinners (U+2000 to U+2FFF).
_CHANGING = bytes(byte for byte in range(128) if not chr(byte).isalpha() and byte not in b"{}") + b"\xe2"
_CHANGING += bytes(range(0x80, 0xC0))

ALIKE, ALIKE_BYTES = 0.6, 4
"""Two frames whose words begin alike for this share of the shorter one, and so many bytes, are states of one thing."""

LONGEST_BAR = 2000

_GLYPHS = "━╸╺─╌█▏▎▍▌▋▊▉▐░▒▓■□▰▱▪▫●○◉◯⬛⬜⣀-⣿"
_BAR = re.compile(
    rf"\d%\s?\||[\[(|][=#>.*~o\s-]{{3,}}[\])|]|[{_GLYPHS}]{{3,}}"
    r"|(?<!\w)\d{1,15}[A-Za-z]{0,8} ?\[\d+:\d\d"
)
"""A bar by its looks: 40%|, [===>...], five blocks in a row, or what a bar of unknown length shows: 12it [00:01."""

_TQDM = re.compile(r"\d%\s?\||(?<!\w)\d{1,15}[A-Za-z]{0,8} ?\[\d+:\d\d")
_TQDM_END = re.compile(r"(?:\]|\||\d/\d+)\s*$")

_BESIDE = (
    r"[\s|,;:()\[\]<>/=#.*+~?•·-]+"
    rf"|[{_GLYPHS}⠀-⣿…—]+"
    r"|\d[\d.,_]*(?:e[+-]?\d+)?[a-zA-Zµμ%]{0,12}(?:/[a-zA-Zµμ]{1,12})?"
    r"|(?:eta|elapsed|remaining|left|of|at|in|steps?|its?|items?|batch(?:es)?|epochs?|samples?|s|ms|nan|inf)\b"
    r"|[A-Za-z_][\w./@-]*\s?[=:]\s?[^\s,\]|{}]+"
)
_REST = re.compile(rf"(?:{_BESIDE})*+", re.IGNORECASE)
_COUNT_ALONE = re.compile(r"[\s\[(|/\\-]*(?:\d+(?:\.\d+)?\s?%|\d+\s?/\s?\d+)[\s\])|.]*")


def words_of(frame: bytes) -> bytes:
    """Return what two states of one bar have in common: its words without numbers, signs and glyphs."""
    return frame.translate(None, _CHANGING)


def alike(one: bytes, two: bytes) -> bool:
    """Say whether two frames, given by their words, are states of one thing."""
    if one == two:
        return True
    least = min(len(one), len(two))
    same = 0
    while same < least and one[same] == two[same]:
        same += 1
    return same >= ALIKE_BYTES and same >= ALIKE * least


def only_a_bar(frame: bytes) -> bool:
    """Say whether a frame shows a bar, a spinner's place or a count, and nothing beside it that anybody would miss."""
    if len(frame) > LONGEST_BAR:
        return False
    text = frame.decode("utf-8", "replace")
    if _COUNT_ALONE.fullmatch(text) or not any(map(str.isalnum, text)):  # a percentage, a table's border
        return True
    found = _BAR.search(text)
    if found is None or "{" in text[: found.start()]:
        return False
    if _TQDM.search(text) and not _TQDM_END.search(text):
        return False  # text that was printed behind a bar that stood there
    return _REST.fullmatch(text, found.end()) is not None


def folded(lines: Iterable[str]) -> list[str]:
    """Return lines without those that are only an earlier state of the bar that comes next."""
    found: list[str] = []
    for line in lines:
        new = line.encode("utf-8", "replace")
        if found and found[-1].strip() and only_a_bar(new):
            last = found[-1].encode("utf-8", "replace")
            if only_a_bar(last) and alike(words_of(last), words_of(new)):
                found.pop()
        found.append(line)
    return found


def superseded(frame: bytes, by: bytes) -> bool:
    """Say whether ``frame``, which ``by`` was written over, has nothing to say any more."""
    return alike(words_of(frame), words_of(by)) or only_a_bar(frame)

"""The answer of ``mfu`` as text: the working line by line, other conventions, what is odd, what it means.

Pure text in, text out, at most ``WIDTH`` columns where a word allows it.
"""

from __future__ import annotations

import textwrap

from overnight.cli.render import WIDTH
from overnight.printable import harmless

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from overnight.calculator import Alternative, Answer, Line

LABEL = 20
KEY, FLOPS, TERA, PART = 18, 18, 10, 12
TIED = "\N{NO-BREAK SPACE}"


def text(found: Answer) -> list[str]:
    """Return the lines of the page."""
    out = [one for line in found.working for one in _line(line)]
    out += [one for name, label in _SHOWN_UNKNOWN if name in found.unknown for one in _unknown(label, found, name)]
    if found.alternatives:
        out += ["", *_table(found.alternatives)]
    if found.impossible is not None:
        out += ["", "above 100%: an input is wrong. What was checked:", *_bullets(found.impossible.reasons)]
    if found.disagreements:
        out += ["", "sources that disagree, and other odd things:", *_bullets(found.disagreements)]
    if found.reading:
        out += ["", "what it means:", *_bullets(found.reading)]
    return out


_SHOWN_UNKNOWN = (
    ("tokens_per_second", "tokens per second"),
    ("flops_per_token", "FLOPs per token"),
    ("peak_flops", "peak of one device"),
    ("mfu", "MFU"),
)


def _line(line: Line) -> Iterable[str]:
    if line.name == "note":  # a sentence, perhaps with names out of a file
        return _hanging(line.label, harmless(line.result))
    result = line.result.replace(" ", TIED)
    said = f"{line.working} = {result}" if line.working else result
    return _hanging(line.label, f"{said}  ({harmless(line.source)})" if line.source else said)


def _unknown(label: str, found: Answer, name: str) -> Iterable[str]:
    if name == "mfu" and found.impossible is not None:
        return ()
    if name == "mfu":
        missing = [said for other, said in _SHOWN_UNKNOWN if other in found.unknown and other != name]
        return _hanging(label, f"n/a without {', '.join(missing)}")
    return _hanging(label, f"n/a: {harmless(found.unknown[name])}")


def _hanging(label: str, said: str) -> list[str]:
    lines = textwrap.wrap(
        said,
        width=WIDTH,
        initial_indent=f"{label:<{LABEL}} ",
        subsequent_indent=" " * (LABEL + 3),
        break_long_words=True,
        break_on_hyphens=False,
    )
    return [one.replace(TIED, " ") for one in lines]


def _bullets(sentences: Iterable[str]) -> list[str]:
    return [
        one
        for sentence in sentences
        for one in textwrap.wrap(
            harmless(sentence),
            width=WIDTH,
            initial_indent="- ",
            subsequent_indent="  ",
            break_long_words=True,
            break_on_hyphens=False,
        )
    ]


def _table(rows: Sequence[Alternative]) -> Iterable[str]:
    yield f"{'by other conventions':<{KEY}}{'FLOPs/token':>{FLOPS - 2}}{'TFLOP/s':>{TERA}}{'MFU':>{PART}}"
    for one in rows:
        flops = f"{one.flops_per_token:,.0f}"
        tera = "-" if one.tflops is None else f"{one.tflops:,.2f}"
        start = f"{one.key:<{KEY}}{flops:>{FLOPS}}{tera:>{TERA}}{_part(one):>{PART}}"
        told = one.convention + (f" ({one.note})" if one.note else "")
        if len(start) + 2 + len(told) <= WIDTH:
            yield f"{start}  {told}"
        else:
            yield start
            yield from textwrap.wrap(told, width=WIDTH, initial_indent="    ", subsequent_indent="    ")


def _part(one: Alternative) -> str:
    if one.impossible:
        return ">100%"
    if one.hfu is not None:
        return f"HFU {one.hfu * 100:.2f}%"
    return "-" if one.mfu is None else f"{one.mfu * 100:.2f}%"

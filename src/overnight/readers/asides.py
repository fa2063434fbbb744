"""What sets a line apart in a log that trains on other lines: `Test: step 5`, `split=dev`, `best: step 5`.

The same words are names of loggers, of experiments and of places. Nothing here may be asked before the log has given a
training record without them: where every line begins so, the line is the training's.
"""

from __future__ import annotations

import re
from functools import lru_cache

from overnight.readers.counters import COLON
from overnight.readers.prefix import LEVEL

SPLIT_NAMES = frozenset("mode split phase stage set subset section loop".split())
"""Names whose value may say that a line is of an evaluation."""

_OF_DATA = r"(?:[ _-](?:set|split|data))"
_SPLIT = rf"(?:(?:test|dev){_OF_DATA}?|testing|(?:held[ -]?out|holdout){_OF_DATA}?)"
_SPLIT_OF_EVALUATION = re.compile(
    rf"(?<![A-Za-z])(?:{'|'.join(sorted(SPLIT_NAMES))}){COLON}['\"]?"
    r"(?:eval|evaluation|val|valid|validation|test|testing|dev)(?:[_-]?(?:set|split|data|[0-9]{1,6}))?"
    r"(?![\w/-]|\.\w)",
    re.IGNORECASE,
)
# Between the step and the loss: `step: 5 (held-out), loss: 2`
_PIECE = re.compile(rf"(?:^|[|(,;:\[>])[ \t]{{0,8}}{_SPLIT}[ \t]{{0,8}}[|),;:\]>]", re.IGNORECASE)
# Right before the step, never the value or a part of a longer name
_HEADING = re.compile(
    rf"(?<![\w/.@:=-])(?P<word>{_SPLIT}(?P<end>:[ \t]{{1,8}}|[ \t]{{0,8}}[|][ \t]{{0,8}})"
    rf"|(?:dev|(?:test|dev){_OF_DATA}|(?:held[ -]?out|holdout){_OF_DATA}?)[ \t]{{1,8}})$",
    re.IGNORECASE,
)
_TOLD = re.compile(
    r"(?<![\w/.@:=-])(?P<word>(?:best|expected|example(?: output)?|saved|saving|resum(?:e|ed|ing)|restor(?:ed|ing)"
    r"|load(?:ed|ing)|(?:checkpoint|ckpt)-[0-9]{1,12}|early[ -]stopp(?:ed|ing)|roll(?:ed|ing)?[ -]?back)"
    r"(?P<end>:[ \t]{1,4})|(?:sanity[ -]check(?:ing)?|dry[ -]run)(?::[ \t]{1,4}|[ \t]{1,4}))$",
    re.IGNORECASE,
)
_SENTENCE = re.compile(
    r"(?<![\w/.@:=-])(?:(?:early[ -])?stopp(?:ed|ing)(?: early)?|roll(?:ed|ing)?[ -]?back)"
    r" (?:at|to|from|after)(?: the)?[ \t]{1,4}$",
    re.IGNORECASE,
)
_OF_ANOTHER_LOOP = re.compile(r"(?<![\w/.-])(?:denois(?:e|ing)|sampling|generation)[ \t_]{1,4}$", re.IGNORECASE)
_HINTS = (
    *("best", "expected", "example", "sav", "resum", "restor", "load", "checkpoint", "ckpt", "stop", "back", "check"),
    *("dry", "denois", "sampling", "generation"),
)
# The comment of a line of a traceback; not `[trainer.py:120] # step: 5`
_CODE = re.compile(r"(?:[ ][-+*/|&]?=[ ]|\w\()[^#]{0,200}[ \t]{2}(?:#|//)[ \t]")
# A level, a date or a time at the end: what comes next may be the name of a logger
_STAMP = re.compile(
    rf"(?:(?<![A-Za-z])(?i:{LEVEL})|(?<!\w\[)(?<![\w=:.,/-])(?=[0-9.,]{{0,12}}[:./-]|[0-9]{{4}})[0-9][0-9.,:/TZ+-]*)$"
)
_CLOSES = " \t-|:,])"
_OUTPUT_OF = re.compile(r"(?<!\S)std(?:out|err) [FP]$")
_TAGGED = re.compile(r"[\])]:$|^\s{0,8}[0-9]{1,6}:$")
_LONGEST = 48


@lru_cache(maxsize=1)  # many records may be glued into one line, and each of them asks
def may_be_apart(text: str) -> bool:
    """Say whether a line may hold a word for data kept for evaluations: quick, and wrong only in one direction."""
    lower = text.lower()
    return any(word in lower for word in ("test", "dev", "held", "hold", "val"))


def is_headed(before: str) -> bool:
    """Say whether the words right before a step are a heading that names data kept for evaluations."""
    return _stands_alone(_HEADING, before)


def names_split(words: str) -> bool:
    """Say whether a name and its value, as ``split=dev``, tell of an evaluation."""
    return ("=" in words or ":" in words) and _SPLIT_OF_EVALUATION.search(words) is not None


def is_piece(words: str) -> bool:
    """Say whether one piece of the words between step and loss is the name of data kept for evaluations."""
    return _PIECE.search(words) is not None


def only_tells(before: str, *, loss: bool) -> bool:
    """Say whether the words right before a step tell of one that is over, or of no step of the training.

    ``loss``: the line has a loss, which the steps of a sampler have not.
    """
    tail = before[-_LONGEST:].lower()
    if not any(word in tail for word in _HINTS) and "#" not in before and "//" not in before:
        return False  # nearly every line of a night
    begin = max(0, len(before) - _LONGEST)
    return (
        _stands_alone(_TOLD, before)
        or _SENTENCE.search(before, begin) is not None
        or (not loss and _OF_ANOTHER_LOOP.search(before, begin) is not None)
        or (("#" in before or "//" in before) and _CODE.search(before) is not None)
    )


def _stands_alone(heading: re.Pattern[str], before: str) -> bool:
    """Say whether ``before`` ends with a heading that is no logger's name, no value and no word of a longer name."""
    found = heading.search(before, max(0, len(before) - _LONGEST))
    if found is None:
        return False
    lead = before[: found.start()].rstrip(" \t")
    if not lead:
        return True
    word = found["word"].rstrip(" \t:|")
    nobody = word[0].isupper() or " " in word  # no logger is called so
    named = not nobody and _STAMP.search(lead.rstrip(_CLOSES)) is not None
    last = lead[-1]
    if last == "-":  # `%(name)s - %(levelname)s - ` has named the logger, which no colon follows
        return lead[-2:-1] in {"", " ", "\t", "-"}
    if last == "|":
        return not (named and "|" in (found["end"] or ""))
    if last == ":":
        return (_TAGGED.search(lead) is not None and not named) or (nobody and _STAMP.search(lead[:-1]) is not None)
    if last in "])>,;":
        return not named
    return _OUTPUT_OF.search(lead) is not None or (nobody and _STAMP.search(lead) is not None)

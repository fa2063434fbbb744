"""The words that count steps, and the words round them which say that a line is no progress of training.

Only text is judged here; what the numbers behind the words mean is none of this file's business.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from overnight.readers.numbers import WHOLE

SPACE = r"[ \t]{0,32}"
COLON = rf"{SPACE}[:=]{SPACE}"

_STEPS = (
    r"(?i:(?P<word>(?:(?:global|train|training|optimizer|optim|current)[ _])?steps?"
    r"|(?:(?:train|training|current)[ _])?(?:iterations?|iters?)"
    r"|num_updates|updates?|micro[ _]?(?:step|batch)|batch(?:[ _](?:idx|index|no|num|number))?))"
)
_STEP = re.compile(
    rf"{_STEPS}(?:(?P<colon>{COLON})|[ \t]{{1,16}}|(?=\[))#?(?P<bracket>\[[ ]{{0,8}})?"
    rf"(?P<step>{WHOLE}(?:\.0+(?![0-9]))?)(?![\w%]|[.,][0-9])"
    rf"(?:(?:[ ]?/[ ]{{0,16}}|[ ]of[ ])(?P<total>{WHOLE})(?!\w|[.,][0-9]))?"
    r"(?(bracket)[ ]{0,4}\])(?:[ ]?\([ ]{0,4}(?P<percent>[0-9.]{1,8})[ ]?%\))?"
)
# Where to look: a search for these is ten times as fast as one for all that may stand before them.
_CORE = re.compile("[sS]tep|STEP|[iI]ter|ITER|[uU]pdate|UPDATE|[bB]atch|BATCH")
_BEFORE_CORE = re.compile(r"(?i:(?:global|train|training|optimizer|optim|current|micro)[ _]|num_)$")

_RANKS = {"global_step": 4, "iteration": 2, "iter": 2}
_COUNTS_OTHER_THINGS = re.compile(
    r"(?<![A-Za-z])(?i:skipped|nan|total|max|maximum|num|number|of|warmup|accumulation|accum|per|every|each|remaining"
    r"|optimization|decay|n|decoder|diffusion)[ \t_]{1,4}$"
)
# `loss: nan step: 60`, `grad_norm nan step 60`: there it is a number
_NAN_OF_ANOTHER = re.compile(
    r"(?:[:=][ \t]{0,16}|(?i:loss|norm|nll|lr|rate|ppl|perplexity|mfu|dt|time|acc|accuracy|kl|entropy|reward|grad)"
    r"[ \t]{1,16})[-+'\"\[(*`]{0,4}(?i:nan)['\"\])*`]{0,4}[ \t]{1,16}$"
)
_EVAL_WORDS = re.compile(
    r"(?<![A-Za-z/.])(?:eval|evaluate|evaluating|evaluation|val|valid|validate|validating|validation)(?![A-Za-z/.])"
    r"|(?<![A-Za-z/.])(?:test|testing)[\s\]]{1,8}$",
    re.IGNORECASE,
)
# sentences about a step that is over: they repeat its numbers and are no progress
_RETELLING = re.compile(
    r"(?<![A-Za-z])(?:checkpoint|saved|saving|resum\w{1,8}|restor\w{1,8}|load\w{1,8}|skip\w{0,8}|best|previous|prior"
    r"|ended|crashed|namespace|overflow|note|if|when)(?![A-Za-z])",
    re.IGNORECASE,
)
# What looks like a logger's name and is none: `checkpoint: step: 5, loss: 2`; and what is program text, not output
_RETELLER = re.compile(r"(?<![A-Za-z])(?:checkpoint|ckpt|note|overflow|previous)[:=]? ?$", re.IGNORECASE)
_PROGRAM_TEXT = re.compile(
    r"(?<![A-Za-z])(?:print\w{0,8}|info|debug|warning|write|format|log)\([rf]{0,2}['\"]", re.IGNORECASE
)
# An update that a loss scaler or the script itself has left out says nothing about the weights. A count of them does.
_LEFT_OUT = re.compile(r"(?<![A-Za-z])skipp(?:ed|ing)(?![A-Za-z])(?![ \w]{0,32}[:=])", re.IGNORECASE)
_BROKEN = re.compile(r"(?i:step|iter|iteration)[ \t]{0,8}[:=]?[ \t]{0,8}[0-9][0-9,]{0,20}[A-Za-z]")
_COMMENT = re.compile(r"\s{0,64}(?:#|//)")
_BAR_END = re.compile(r"(?:it/s|s/it|\?)[^\[\]]{0,200}\]")
_LONGEST_BAR = 400
_LONGEST_RETELLER = 48


class Counter(NamedTuple):
    """A step word without plural and spaces, how much it speaks for the optimizer step, and whether it is a plural."""

    word: str
    rank: int
    plural: bool

    @property
    def plain(self) -> bool:
        """Say whether it is the word ``step`` itself, which needs no other proof."""
        return self.word == "step" and not self.plural


MICRO = 2
"""The rank of an iteration, of which an optimizer step may take several."""


def counter_of(mark: re.Match[str]) -> Counter:
    """Return which counter one of ``step_marks`` is."""
    printed = re.sub(r"[ _]+", "_", mark["word"].lower())
    word = printed.removesuffix("s")
    base = word.removeprefix("training_").removeprefix("train_").removeprefix("current_")
    rank = 1 if base.startswith(("batch", "micro")) else _RANKS.get(base, MICRO + 1)
    return Counter(word, rank, printed != word)


def may_count(text: str) -> bool:
    """Say whether there may be a step in ``text``: quick, and wrong only in one direction."""
    if "oss" not in text and ":" not in text and "=" not in text and "/" not in text and "OSS" not in text:
        return False
    return (
        "tep" in text
        or "iter" in text
        or "Iter" in text
        or "pdate" in text
        or "atch" in text
        or "STEP" in text
        or "ITER" in text
        or "BATCH" in text
        or "UPDATE" in text
    )


def step_marks(text: str) -> list[re.Match[str]]:
    """Return all step words with their numbers: groups word, colon, step, total, percent.

    What counts other things, such as how many steps were skipped, is left out.
    """
    found: list[re.Match[str]] = []
    at = 0
    for core in _CORE.finditer(text):
        start = core.start()
        if start < at:
            continue
        before = _BEFORE_CORE.search(text[max(at, start - 12) : start])
        mark = _STEP.match(text, start if before is None else start - len(before[0]))
        if mark is None or _counts_other_things(text[max(0, mark.start() - 64) : mark.start()]):
            continue
        found.append(mark)
        at = mark.end()
    return found


def _counts_other_things(before: str) -> bool:
    """Say whether the words before a step word make it a count of something else."""
    return _COUNTS_OTHER_THINGS.search(before, max(0, len(before) - 24)) is not None and not (
        _NAN_OF_ANOTHER.search(before)
    )


def is_said(mark: re.Match[str]) -> bool:
    """Say whether a step stands in a sentence without any loss: ``step 5 of the preparation``. It spares the parse."""
    if mark["colon"] is not None or mark["total"] is not None:
        return False
    text, end = mark.string, mark.end()
    return text[end : end + 1] == " " and text[end + 1 : end + 2].isalpha() and "oss" not in text and "OSS" not in text


def after_bar(text: str, begin: int, end: int) -> int:
    """Return where the text behind the last whole progress bar in ``text[begin:end]`` begins; ``begin`` without one."""
    at = begin
    for bar in _BAR_END.finditer(text, max(begin, end - _LONGEST_BAR), end):
        at = bar.end()
    return at


def is_evaluation(words: str) -> bool:
    """Say whether words outside the fields tell of an evaluation."""
    return _EVAL_WORDS.search(words) is not None


def is_retold(before: str, sentence: str) -> bool:
    """Say whether what stands before the step only speaks of one: saved, resumed from, or what would be done."""
    return (
        _RETELLING.search(sentence) is not None
        or _RETELLER.search(before, max(0, len(before) - _LONGEST_RETELLER)) is not None
        or ("(" in before and _PROGRAM_TEXT.search(before) is not None)
        or (("#" in before or "//" in before) and _COMMENT.match(before) is not None)
    )


def is_left_out(text: str, begin: int, end: int) -> bool:
    """Say whether what stands behind the step takes it back."""
    return _LEFT_OUT.search(text, begin, end) is not None


def has_broken_step(text: str, begin: int, end: int) -> bool:
    """Say whether a step in ``text[begin:end]`` has lost its end to another writer: ``step: 1loss: 2``."""
    return _BROKEN.search(text, begin, end) is not None

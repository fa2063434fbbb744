"""The fields of one record's text: every form in which a name and a number stand together, with their places.

What a field is for a record (which loss counts, which time) is decided elsewhere; nothing is remembered from line to
line.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from overnight.readers.asides import SPLIT_NAMES
from overnight.readers.counters import COLON, SPACE
from overnight.readers.fields import PLACE, UNIT, exponent_of, field_of, field_value, is_measured, is_other_word
from overnight.readers.numbers import CLOSERS, NUMBER, PRINTED, UNSIGNED, VALUE_END, parse_number, unwrapped

_WORD = r"[A-Za-z_][A-Za-z0-9_/.-]{0,63}+"
# what a rate, or a time of one, is counted in
EACH = r"[A-Za-z]{1,9}+(?:(?:/|[ ]per[ ])[A-Za-z]{1,9}+){1,2}"
_NO_NAME = rf"(?![A-Za-z0-9_/]|[ ]per[ ]|(?:[ ]?[\[(][A-Za-z/]{{1,16}}[\])])?{SPACE}[:=])"
# `310ms/step`, `1.2M tok/s`; in `loss: 2.1 tok/s 1200` it is the name of the next number
_PER = rf"[ ]?(?:[kKMGBT][ ]?)?{EACH}{_NO_NAME}(?![ \t]{{1,16}}[-+]?[0-9.])"
AMOUNT = rf"(?P<number>{PRINTED})(?:(?P<per>{_PER})|[ ]?(?P<unit>{UNIT})(?!{SPACE}[:=]){VALUE_END}|{VALUE_END})"
_BARE_AMOUNT = rf"(?P<bare_number>{PRINTED})(?:(?P<bare_per>{_PER})|[ ]?(?P<bare_unit>{UNIT}){VALUE_END}|{VALUE_END})"
_TEXT = rf"(?P<text>(?!{_WORD}{SPACE}[:=])[^\s,;|]*(?:,[0-9][^\s,;|]*)*)"
_BARE_NAME = (
    r"(?i:(?:(?:train|training|val|valid|validation|eval|test|lm|total|avg|mean)[ _])?loss|lr|learning[ _]rate"
    r"|(?:total[ _])?(?:grad[ _]?)?norm|gnorm|dt|(?:iter|step)[ _]time|time|took|mfu"
    r"|(?:tok|tokens|samples|it)/s(?:ec)?"
    r"|(?:(?:num|total|consumed)_)?tokens(?:_(?:seen|consumed|total|processed|so_far))?)"
)
_FIELD = re.compile(
    r"(?<![A-Za-z0-9_/.-])(?=[-+.0-9A-Za-z_])(?:"
    # `epoch 3`, `Epoch: 1/10`, `Epoch [1/10]`
    r"(?=[A-Za-z_])(?:(?P<epoch_name>(?i:epoch|ep))(?P<epoch_colon>[ \t]{0,8}[:=])?[ \t]{0,8}\[?"
    rf"(?P<epoch>{UNSIGNED})(?:/[ ]{{0,4}}[0-9]{{1,9}}\]?)?(?=[\]\s;:|)}}-]|,(?![0-9])|$)"
    # `loss: 2.31`, `elapsed time per iteration (ms): 843.7`, `grad_norm:p2 3.4`, `note: text`
    rf"|(?P<key>{_WORD}(?:[ \t]{{1,4}}{_WORD}){{0,4}}(?:[ ]?[\[(][A-Za-z/]{{1,16}}[\])])?){COLON}"
    rf"(?:(?:p[0-9][ ]{{1,4}})?{AMOUNT}|{_TEXT})"
    # `loss 2.31`
    rf"|(?P<bare>{_BARE_NAME})[ \t]{{1,16}}{_BARE_AMOUNT})"
    # `48.9% bf16 MFU`, `0.85 sec/step`, `1,095,326 tok/s`, `118.70 ms`
    rf"|(?<![\w,+])(?P<loose>{NUMBER})(?:[ ]?%[ ](?P<mfu>(?:[A-Za-z0-9]{{1,8}}[ ])?(?i:mfu)(?!\w))"
    rf"|[ ]?(?P<of_unit>[kKMGBT])?[ ]?(?P<of>{EACH}){_NO_NAME}"
    r"|[ ]?(?P<spent>ms|us|µs|μs)(?=[ ]{0,4}(?:[|,;)\]]|$))))"
)
_UNKEPT = re.compile(r"\([-+]?[0-9.]{1,20}[%z]?\)|(?<![\w:.])[0-9]{1,3}(?::[0-9]{2}){1,2}(?![\w:.])")
# A number whose unit we do not know, or that is only a part, or of many: `2 min 3 s`, `took 3.1 s for 10 steps`
_OF_A_UNIT = re.compile(rf"[ ](?!{_WORD}{SPACE}[:=]){UNIT}(?![A-Za-z0-9_.-])")
_AND_MORE = re.compile(r"[ ]?[0-9.]{1,10}[ ]?(?:m|s|min|mins|minutes?|sec|secs|seconds?)(?![A-Za-z0-9_/])")
_OF_SEVERAL = re.compile(
    r"[ ]?(?:/|(?:for|per|over|in)[ ])(?:the[ ])?(?:last[ ])?(?!1[ ])[0-9][0-9,]{0,12}[ ]?"
    r"(?:steps|its?|iters?|iterations|batches|updates)(?![A-Za-z])"
)
_SCALED = re.compile(rf"[ ]?(?:(?P<unit>[kKMGBT])[ ]?)?(?P<each>{EACH})")
# Of `memory: 47.6 GB loss: 2.1` the first word is no part of the name.
_UNIT_OF_THE_LAST = re.compile(
    r"(?:[kKMGT]i?B(?:/s)?|bytes|[kMG]?W|[°º]?[CF]|[MG]Hz|[TGP]?FLOPs?|[TGP]?FLOPS|[TGP]FLOP/s|tokens|toks?|samples|seqs?"
    r"|hours?|hrs?|h|days?|d|minutes?|mins?|m|secs?|seconds?|s|ms|us|it/s|s/it)[ \t]{1,4}"
)
_NEARLY_A_NUMBER = re.compile(r"[-+]?[0-9]+,[0-9,]*[0-9]")
_ALPHABETIC = re.compile(r"[A-Za-z]+[ \t]{0,16}$")
_PLAIN = frozenset("0123456789-+.")
_MOST_UNKNOWN = 256
_LONGEST_TEXT = 256
_NO_UNIT = "?"
"""Stands for a unit that is none of ours."""


class Found(NamedTuple):
    """One field: what it means ("" for an unknown name), its printed name, its value, and the place of the value.

    ``exponent`` is the power of ten in the value, ``text`` says that the value is none but text, ``exact`` that another
    number at this place would be read alike, ``whole`` that it must be digits alone; ``start`` is where the field
    begins in the line.
    """

    field: str
    key: str
    value: float | str | None
    begin: int
    end: int
    start: int
    exponent: int = 0
    text: bool = False
    exact: bool = True
    whole: bool = False


class Fields:
    """The fields of ``text[begin:end]`` in their order.

    ``open_end`` is where the last value ends if something right behind it could still belong to it, otherwise None;
    ``last`` is the last field. ``known`` leaves out every unknown name. ``gaps`` are the places between the fields.
    """

    __slots__ = ("_texts", "end", "found", "gaps", "last", "open_end")

    def __init__(self, text: str, begin: int, end: int, *, known: bool = False) -> None:
        """Find them all."""
        self.found: list[Found] = []
        self.gaps: list[tuple[int, int]] = []
        self._texts: list[tuple[int, int]] = []
        self.open_end: int | None = begin
        self.last: Found | None = None
        self.end = end
        unknown = 0
        at = begin
        for match in _FIELD.finditer(text, begin, end):
            # a NaN is a word, too, and no part of a sentence
            one = _one(match, at if self.last is not None and not self.last.text else begin)
            if one is None:
                continue
            self.gaps.append((at, one.start))
            at = match.end()
            self.last = one
            self.open_end = None if _is_closed(match) else at
            unknown += not one.field
            if one.text:  # a name without a value is a word of its own: `Validation: step 5`; and so is `split=dev`
                whole = one.end == one.begin or one.key.lower() in SPLIT_NAMES
                self._texts.append((one.start if whole else one.begin, one.end))
            if one.field or (not known and unknown <= _MOST_UNKNOWN):
                self.found.append(one)
        self.gaps.append((at, end))

    def words(self, text: str, until: int | None = None) -> str:
        """Return what stands between the fields and as text in them, all of it or only what is before ``until``."""
        until = self.end if until is None else until
        places = sorted([*self.gaps, *self._texts])
        return "|".join(text[begin : min(end, until)] for begin, end in places if begin < until)

    def between(self, text: str, until: int) -> str:
        """Return what stands between the fields before ``until``, each piece on a line."""
        return "\n".join(text[begin : min(end, until)] for begin, end in self.gaps if begin < until)

    def unkept(self, text: str) -> list[tuple[int, int]]:
        """Return the places of averages, z-scores, percentages and clocks that belong to no field."""
        return [match.span() for begin, end in self.gaps for match in _UNKEPT.finditer(text, begin, end)]


def _one(match: re.Match[str], low: int) -> Found | None:
    """Return the field that ``match`` is; None when its words are part of a sentence, which begins at ``low``."""
    text, start = match.string, match.start()
    if match["key"] is not None:
        return _keyed(match)
    if match["epoch"] is not None:
        if match["epoch_colon"] is None and _word_before(text, low, start) not in {"", "train", "training"}:
            return None
        found = _number(match, "epoch", match["epoch_name"], "epoch", None)
        return found._replace(whole=match["epoch"].isdigit())
    if match["bare"] is not None:
        if _word_before(text, low, start):
            return None
        field, unit = measured(field_of(match["bare"]), match, "bare_")
        return _number(match, field, match["bare"], "bare_number", unit)
    if match["mfu"] is not None:
        return _number(match, "mfu", "mfu", "loose", "%")
    if match["spent"] is not None:
        if _word_before(text, low, start) not in {"", "took"} or text[max(0, start - 1) : start] in {":", "="}:
            return None
        return _number(match, "spent", "took", "loose", match["spent"])
    field = field_of(match["of"])
    return _number(match, field, match["of"], "loose", match["of_unit"]) if field else None


def _keyed(match: re.Match[str]) -> Found:
    """Return the field of a name with a colon or an equals sign."""
    key, number = match["key"], match["number"]
    field, start = field_of(key), match.start()
    if not field and " " in key and match.string[start - 2 : start - 1].isdigit():
        words = _UNIT_OF_THE_LAST.match(key)
        if words is not None:
            field, key, start = field_of(key[words.end() :]), key[words.end() :], start + words.end()
    if number is not None:
        field, unit = measured(field, match, "")
    if field:
        if number is None:
            begin = match.start("text")
            return Found(field, key, None, begin, match.end(), start, exact=False)
        return _number(match, field, key, "number", unit)._replace(start=start)
    begin, end = match.span("text" if number is None else "number")
    end = match.end() if match["per"] is None else end
    value = parse_number(number) if match["unit"] is None else None
    if value is not None:
        return Found("", key, value, begin, end, start)
    end = min(end, begin + _LONGEST_TEXT)
    text = match.string[begin:end]
    # `12,34` is no number, but with other digits it is one
    return Found("", key, text, begin, end, start, text=True, exact=_NEARLY_A_NUMBER.match(text) is None)


def measured(field: str, match: re.Match[str], group: str) -> tuple[str, str | None]:
    """Return the field and the unit of a number, of which what stands behind it may say more than its name."""
    per, unit = match[f"{group}per"], match[f"{group}unit"]
    if per is None:
        text, end = match.string, match.end()
        if is_measured(field) and text[end : end + 1] not in ",|":
            rest = _OF_A_UNIT if unit is None else _AND_MORE if unit[0] in "hm" else None
            if rest is not None and rest.match(text, end) is not None:
                return field, _NO_UNIT
            if PLACE.get(field) == "dt_s" and _OF_SEVERAL.match(text, end) is not None:
                return field, _NO_UNIT
        if field and is_other_word(field, unit) and match.end(f"{group}number") < match.start(f"{group}unit"):
            return field, None
        return field, unit
    scaled = _SCALED.fullmatch(per)
    named = "" if scaled is None else field_of(scaled["each"])
    if scaled is not None and named:
        return named, scaled["unit"]
    return field, _NO_UNIT if is_measured(field) else None


def _number(match: re.Match[str], field: str, key: str, group: str, unit: str | None) -> Found:
    """Return a known field whose number is ``group`` of ``match``."""
    printed = match[group]
    value = field_value(field, printed, unit)
    exponent = exponent_of(field, unit)
    begin, end = match.span(group)
    if exponent is None or field == "steps_per_s":
        return Found(field, key, value, begin, end, match.start(), exact=False)
    if not (printed[0] in _PLAIN and printed[-1] in _PLAIN):
        inner = unwrapped(printed)
        if inner is None:
            return Found(field, key, value, begin, end, match.start(), exact=False)
        begin, end = begin + inner.start("number"), begin + inner.end("number")
    return Found(field, key, value, begin, end, match.start(), exponent)


def _is_closed(match: re.Match[str]) -> bool:
    """Say whether nothing behind the value could still belong to it."""
    if match["loose"] is not None or match["unit"] or match["bare_unit"]:
        return True
    number = match["number"] or match["bare_number"]
    return number is not None and number[-1] in CLOSERS


def _word_before(text: str, low: int, at: int) -> str:
    """Return the word that stands between ``low`` and ``at``, directly before it, in lower case; "" for none."""
    before = _ALPHABETIC.search(text[max(low, at - 32) : at])
    return "" if before is None else before[0].strip().lower()

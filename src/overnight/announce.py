"""What a line that is no record says about the silence to come: that one begins, or that one is over.

Pure and cheap: it is asked for every line of a log that no reader understood. Words of the usual programs stand here;
what follows from a silence is decided elsewhere. In doubt a line says nothing.
"""

from __future__ import annotations

import re
from typing import Final

_MOST: Final = 400  # bytes of a line that are looked at: prefixes, the words, the beginning of a bar
_BEFORE: Final = 40  # bytes before a word that may take it back

# Most lines hold none of these and are done with: 2 us for one of 100 bytes. `x in line` word by word takes 8 us.
_HINT = re.compile(
    rb"sav|eval|valid|sanity|predict|load|compil|checkpoint|tracing|warm|tuning|autotune|captur|tokeni|processing"
    rb"|pushing|pushed|writing|written|wrote|dumping|serializing|staging|creating|taking|fetching|restor|resum"
    rb"|building|preparing|generating|template|adding|\bmap\b|pack|grouping|filter|flatten|snapshot|\btest|\bval\b"
)

# Errors, warnings and lines of a traceback tell of a word, not that its work begins.
_TROUBLE = re.compile(
    rb"Traceback|(?:Error|Exception|Warning)\b|\b(?:ERROR|FATAL|CRITICAL)\b|\b(?i:error|exception):"
    rb"|\b(?i:failed|failure)\b|^\s*File \"|^\s+(?:at|in|raise|return|warnings\.warn)\b"
)

_BAR = re.compile(rb"[0-9]{1,3}%\s?\||: \|\s|[0-9]+/(?:[0-9]+|\?) \[[0-9:]+<|[0-9] examples(?: \[|/s)")

# The description of a progress bar; what it counts is the announced work.
_BAR_OF = re.compile(
    rb"(?:^|[\s\]])(?:(?P<evaluating>(?:eval\w*|val\w*|test(?:ing)?|predict\w*|sanity\b[\w ]*)(?: dataloader [0-9]+)?)"
    rb"|(?P<preparing>map|filter|tokeni\w+|packing|running tokenizer[\w ]*|generating \w+ split)"
    rb"|(?P<saving>writing[\w ]*|flatten\w*|creating parquet[\w ]*)"
    rb"|(?P<uploading>processing files|new data upload|upload[\w ]*))(?: \([^()]{1,40}\))?:"
)

# What is done, as a word that ends in -ing. Not within paths, options and longer words.
_DOING = re.compile(
    rb"(?<![\w/.\-])(?:"
    rb"(?P<evaluating>evaluating|validating|sanity checking|running (?:the |an? )?(?:\w+ )?(?:eval(?:uation)?"
    rb"|validation|prediction|test|sanity check)s?\b|testing (?=dataloader))"
    rb"|(?P<saving>saving|checkpointing|(?:writing|dumping|serializing|staging|creating|taking)(?: [\w-]+){0,4}"
    rb" (?:checkpoint|snapshot|weights|model|state|states|state_dict|optimizer)s?\b)"
    rb"|(?P<compiling>compiling|jit.compiling|tracing|warming up|auto-?tuning|capturing"
    rb"|building (?:extension|kernel|engine|cuda))"
    rb"|(?P<loading>loading|restoring|resuming)"
    rb"|(?P<downloading>downloading|fetching)"
    rb"|(?P<preparing>(?:pre-?)?tokeni[sz]ing|pre-?processing|packing|grouping texts|applying chat template"
    rb"|(?:building|preparing|generating|creating)(?: [\w,./-]+){0,6} (?:data ?sets?|data ?loaders?|split"
    rb"|vocab(?:ulary)?|ind(?:ex|ices))\b|adding eos to)"
    rb"|(?P<uploading>uploading|pushing)"
    rb")(?![\w=/\-])"
)

# The same as a noun, which needs a sign that it begins now.
_TOPIC = (
    rb"(?:(?P<evaluating{0}>eval(?:uation)?|validation|sanity check)|(?P<saving{0}>checkpoint(?:ing)?|save)"
    rb"|(?P<compiling{0}>(?:cuda ?)?graph capture|compilation|compile|warm-?up|autotune|autotuning|tracing)"
    rb"|(?P<loading{0}>(?:data|model|checkpoint) loading)|(?P<downloading{0}>download)"
    rb"|(?P<preparing{0}>tokenization|preprocessing)|(?P<uploading{0}>upload))"
)
_STARTING = re.compile(
    rb"(?<![\w/.\-])(?:start(?:ing|ed|s)?|begin(?:ning|s)?|began|entering|performing|doing|triggering)"
    rb"(?: (?:the|an?|to|of|async|asynchronous|periodic|final|full|intermediate|model)){0,3} "
    + _TOPIC.replace(b"{0}", b"1")
    + rb"(?![\w=/\-])"
    rb"|(?:^|[\]:>*#=|-] ?|\s\s)"
    + _TOPIC.replace(b"{0}", b"2")
    + rb"(?: (?:is|has|was))?(?: (?:start(?:s|ed|ing)|begins|began|begun|in progress|(?:at|on|for|of) [\w-]+)"
    rb"| ?(?:\.\.\.|\*\*|==|--|dataloader [0-9]+:|(?:set )?(?:epoch|step) [0-9]+ ?(?:\.|$))|: +[0-9]{1,3}%| ?$)"
    rb"|(?P<saving3>(?:checkpoint|snapshot|model|weights) (?:is|are) (?:now )?being (?:written|saved))"
    rb"|(?P<compiling3>\btorch\.compile\b|\bautotune \w+\(|\bcuda ?graphs? captur(?:e|ing)\b)"
    rb"|(?P<uploading3>^\s*upload [0-9]+ (?:lfs )?files)"
)

# Before such a word: it is talked of, it is a setting, it is not done; or it is over.
_NOT_NOW = re.compile(
    rb"(?:\b(?:not|no|never|without|skip(?:s|ped|ping)?|disabl(?:e|ed|es|ing)|consider|avoid|before|for|when|while|by|if"
    rb"|of|instead|after|during|enabl(?:e|ed|es|ing)|supports?|data|gradient|activation|memory|time|lazy|selective|full"
    rb"|recommend(?:ed)?|try|about|resume|until|next|last|previous)|n't)[ :]+(?:the |using )?$"
)
_OVER_BEFORE = re.compile(
    rb"\b(?:finished|done|completed?|ended|end of|finishing|stopped|succeeded|successfully)(?: (?:with|in|at))?"
    rb"(?: the| all)? $"
)
# Behind it, by match().
_OVER_BEHIND = re.compile(
    rb".{0,200}?(?<![\w/.\-])(?:(?:done|finished|completed?|succeeded|successful(?:ly)?|ended|over|took|ok)\b"
    rb"|in (?:~|about )?[0-9.]+ ?(?:s|ms|secs?|seconds?|m|min|minutes?)\b)"
)
_SETTING = re.compile(
    rb"\s*(?:[=:]\s*(?:true|false|none|null|yes|no|['\"]|[-+]?[0-9.]+\s*$)"
    rb"|(?:time|rate|speed|interval|steps?|frequency|strategy|memory|vram|space|enabled|disabled|skipped|wall)\b"
    rb"|[^(]{0,60}?\b(?:is|are) (?:enabled|disabled|not|off|on|skipped)\b)"
)

_RESULT = re.compile(
    rb"(?<![\w/.\-])(?:eval|val|valid|validation|evaluation|test)[ _/.-]{1,2}(?:set |lm )?"
    rb"(?:loss(?:es)?|acc(?:uracy)?|ppl|perplexity|bpb|score|f1|bleu|wer|metrics?|results?|runtime|reward)\b"
)
_ENDED = re.compile(
    rb"(?<![\w/.\-])(?:eval(?:uation)?|validation|checkpoint(?:ing)?|compilation|compile|graph capture|warm-?up"
    rb"|autotune|tokenization|preprocessing|download|upload|save)"
    rb"(?: [\w#/.-]+){0,6}? (?:is |was |has |)(?:done|finished|completed?|took|ended|over)\b"
    rb"|\b(?:finished|done|completed|end of)(?: with)?(?: the)?(?: \w+)? (?:eval(?:uation)?|validation|checkpoint"
    rb"|compilation|graph capture|warm-?up|tokenization|preprocessing|download|upload)s?\b"
)
_DID = re.compile(
    rb"(?<![\w/.\-])(?:saved|wrote|evaluated|validated|compiled|loaded|restored|downloaded|tokeni[sz]ed|preprocessed"
    rb"|uploaded|pushed|captured)(?![\w=/\-])"
)
# Before it: said of a part only (the silence of the rest goes on), or of what is to come.
_NOT_DONE = re.compile(
    rb"\b(?:will|can|could|should|must|may|might|not|never|be|being|to|already|lazily|was|were|from|a|last|previous)"
    rb"(?: be)? $|n't $|\b(?:config\w*|tokenizer(?: config)?(?: file)?|special tokens(?: file)?|model weights"
    rb"|chat template|vocab\w*|processor|optimizer\w*|scheduler\w*) $"
)


def announced(line: bytes) -> str | None:
    """Return the silence that a line announces, "" for a line that says such work is over, None for neither.

    One of "evaluating", "saving", "compiling", "loading", "downloading", "preparing", "uploading".
    """
    line = line[:_MOST]
    low = line.lower()
    if _HINT.search(low) is None or _TROUBLE.search(line) is not None:
        return None
    bar = _BAR.search(low)
    if bar is not None:
        of = _BAR_OF.search(low, 0, bar.end()) or _DOING.search(low, 0, bar.end())
        return None if of is None else of.lastgroup
    for words in (_DOING, _STARTING):
        for found in words.finditer(low):
            said = _said(low, found)
            if said is not None:
                return said
    return "" if _over(low) else None


def _said(low: bytes, found: re.Match[bytes]) -> str | None:
    """Return what a word for work that goes on means where it stands."""
    before = low[max(0, found.start() - _BEFORE) : found.start()]
    if _OVER_BEFORE.search(before) is not None:
        return ""
    if _NOT_NOW.search(before) is not None or _SETTING.match(low, found.end()) is not None:
        return None
    if found.lastgroup is None or _OVER_BEHIND.match(low, found.end()) is not None:
        return ""
    return found.lastgroup.rstrip("123")


def _over(low: bytes) -> bool:
    """Say whether a line without such a word tells the end or the result of some work."""
    if _RESULT.search(low) is not None or _ENDED.search(low) is not None:
        return True
    did = _DID.search(low)
    return did is not None and _NOT_DONE.search(low[max(0, did.start() - _BEFORE) : did.start()]) is None

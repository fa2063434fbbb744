"""tqdm's progress bars: the frames in a line, and which of them cannot be the bar of a training."""

from __future__ import annotations

import re
from typing import NamedTuple

# `Train:   7%|▋  | 1/14 [00:00<00:02,  6.48it/s]`; behind a wrapped line only `  | 1/14 [00:00<` may be left
_FRAME = re.compile(
    r"(?:(?P<percent>[0-9]{1,3})%(?:\|[^|]{0,400}\|)?|^[^|{%]{0,400}\||^)[ ]{1,4}"
    r"(?P<n>[0-9]{1,15})/(?P<total>[0-9]{1,15})[ ]\[(?:[0-9]{1,4}:)?[0-9]{2}:[0-9]{2}<(?P<rest>[^\]]{0,300}\]?)"
)
_RATE = re.compile(r"[0-9.?][ ]?(?:(?P<rate>[A-Za-zµ]{1,24})/s|s/(?P<time>[A-Za-z]{1,24}))")
_STEPS = frozenset({"it", "step", "steps", "iter", "iters", "batch", "batches", "update", "updates"})
_TITLE = re.compile(r"(?P<title>[^\[\]{}|]{1,80}):[ ]{0,4}$")
_OTHER = re.compile(
    r"(?<![a-z])(?:eval|valid|val(?![a-z])|test|predict|map|filter|download|upload|load|writ|sav(?:e|ing)|token(?!s/)"
    r"|generat|prepar|pack|process|preprocess|convert|fetch|extract|check|shard|merg|adding|apply|truncat|build|creat"
    r"|comput|sort|flatten|cast|quantiz|encod|read|files?(?![a-z])|sampl|rollout|inference|captur|compil|warm|pars)",
    re.IGNORECASE,
)


class Frame(NamedTuple):
    """One state of a bar: ``n`` of ``total``, and where its text begins and ends in the line."""

    begin: int
    end: int
    n: int
    total: int


def find_frames(text: str, begin: int = 0, end: int | None = None) -> list[Frame]:
    """Return the frames in ``text[begin:end]`` that may be of a training, in their order.

    Left out are bars that count something else than steps (``examples/s``, ``MB/s``) and bars whose title names another
    work (``Writing model shards``, ``Evaluating``, ``Map``).
    """
    end = len(text) if end is None else end
    found = []
    last = begin
    for match in _FRAME.finditer(text, begin, end):
        first = match.start()
        title = _TITLE.search(text, max(last, first - 84), first)
        last = match.end()
        rate = _RATE.search(match["rest"])
        unit = None if rate is None else rate["rate"] or rate["time"]
        if unit is not None and unit not in _STEPS:
            continue
        if title is not None and _OTHER.search(title["title"]):
            continue
        found.append(Frame(first, match.end(), int(match["n"]), int(match["total"])))
    return found

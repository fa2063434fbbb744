"""What lines say that are no records: a silence that begins, one that is over, how many parameters the model has.

Pure: bytes of lines come in, and what was heard stays until the training moves on. What follows is decided elsewhere.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from overnight.announce import announced

_MOST: Final = 300
_SHOWN: Final = 80
_PLACES: Final = 8
_BETWEEN: Final = 3
_SIZES: Final = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12, "million": 1e6, "billion": 1e9}

# As in: number of parameters: 123.65M; 875M params; params 875M; Total params = 8,030,261,248.
_DIGITS = r"(?P<{0}>\d[\d,_]{{0,24}}(?:\.\d+)?(?:e\+?\d{{1,2}})?)"
_SIZE = r"(?P<{0}_size>million|billion|[kmbgt]\b)"
_WORD = r"(?:model |total |all |num(?:ber of)?[ _]|# ?(?:of )?|n_)*param(?:eter)?s?"
# Of one rank of several, as Megatron prints it: on (tensor, pipeline) model parallel rank (0, 0).
_OF_WHAT = r"(?:[ _]count)?(?: \([^()]*\)| on [^:=]{1,80})?"
_BEFORE = rf"\b{_WORD}{_OF_WHAT}\s*[:=]\s*{_DIGITS.format('a')} ?{_SIZE.format('a')}?"
_BESIDE = rf"\b{_WORD} {_DIGITS.format('b')} ?{_SIZE.format('b')}"
_BEHIND = rf"{_DIGITS.format('c')} ?{_SIZE.format('c')}? {{1,8}}(?:total |model )?param(?:eter)?s?\b"
_STATED = re.compile(f"{_BEFORE}|{_BESIDE}|{_BEHIND}", re.IGNORECASE)
_PARTIAL = re.compile(r"trainable|active|non-?embed|decay|frozen|learnable|tensors", re.IGNORECASE)
_ALL = re.compile(r"\ball param(?:eter)?s?\s*[:=].*", re.IGNORECASE)  # of PEFT, behind those that are trained


# As in: Saving model checkpoint to /data/run7/checkpoint-500; checkpoint saved at "../out/step 300.pt" (3.2 s).
_WROTE = re.compile(
    r"\b(?:sav(?:e|es|ed|ing)|writ(?:e|es|ing|ten)|wrote|dump(?:s|ed|ing)|stor(?:ed|ing)|serializ(?:ed|ing))\b",
    re.IGNORECASE,
)
_WHAT = re.compile(
    r"checkpoint|ckpt|snapshot|weights|\bmodels?\b|\bstates?\b|state_?dict|optimi[sz]er|\bnetwork\b", re.IGNORECASE
)
_OTHER = re.compile(
    r"\b(?:logs?|logging|traces?|profil\w+|data|datasets?|metrics?|predictions?|samples?|images?|figures?|plots?|videos?"
    r"|tensorboard|events?|configs?|configuration|tokeni[sz]ers?|vocab\w*|results?|reports?|caches?|arg(?:ument)?s|summary"
    r"|outputs|generations?|processors?|histor(?:y|ies)|statistics|stats|cards?|graphs?|hparams|hyperparameters"
    r"|rollouts?|embeddings|features|activations|audio)\b",
    re.IGNORECASE,
)
_ASIDE = re.compile(r"\([^()]*\)|\[[^\[\]]*\]")  # (val_loss improved), [rank0]
_WITH_SLASH = re.compile(r"\S*/\S*")
_LEADS_OUT = r"(?:\.\.)?/(?!/)"
_PATH = re.compile(
    r"(?:^|[\s=(\[]|(?<=path):|(?<=to):|(?<=at):|(?<=in):|(?<=file):|(?<=dir):|(?<=saved):|(?<=checkpoint):|(?<=model):)"
    rf"""(?:"({_LEADS_OUT}[^"]+)"|'({_LEADS_OUT}[^']+)'|`({_LEADS_OUT}[^`]+)`|({_LEADS_OUT}[^\s'"`,;()\[\]<>|]+))"""
)
_READ = re.compile(
    r"\bfrom(?: the)?[\s:=]*$|\b(?:load(?:s|ed|ing)?|read(?:s|ing)?|restor(?:e[sd]?|ing)|resum(?:e[sd]?|ing)"
    r"|remov(?:e[sd]?|ing)|delet(?:e[sd]?|ing)|init(?:iali[sz]\w*)?|finetun\w+|cannot|unable|fail(?:s|ed|ure|ing)?)\b[^/]*$",
    re.IGNORECASE,
)
_NO_SAVE = re.compile(r"\.(?:json[l5]?|ya?ml|txt|log|csv|tsv|png|jpe?g|svg|pdf|html|toml|py|parquet|arrow|wav|mp4)$")
_SAVE = re.compile(
    r"\.(?:pth?|ckpt|safetensors|keras|distcp|pth?\.tar)$"
    r"|(?:checkpoint|ckpt|step|iter(?:ation)?|epoch)[-_=]?\d+[^/]*$",
    re.IGNORECASE,
)


class Hearing:
    """What was heard in one run.

    ``places``: the paths outside the working folder that lines speak of as saved to, until somebody takes them.

    ``phase``: the silence that was announced since the training moved last; ``heard`` counts announcements (from this
    object's beginning). ``stated``: (parameters, the words) where the log itself speaks of the model's size.
    """

    __slots__ = ("heard", "phase", "places", "stated")

    def __init__(self) -> None:
        self.heard = 0
        self.phase: str | None = None
        self.stated: tuple[float, str] | None = None
        self.places: deque[str] = deque(maxlen=_PLACES)

    def take(self, text: str) -> bool:
        """Take in a line that is no record; say whether it announced something, or its end."""
        said = announced(text.encode("utf-8", "replace"))
        place = saved_to(text) if said in ("saving", "", None) else None
        if place is not None and place not in self.places:
            self.places.append(place)
        if said is not None:
            self.phase = said or None
            self.heard += 1
            return True
        if self.stated is None:
            self.stated = stated_params(text)
        return False

    def snapshot(self) -> list[Any]:
        """Return what the next line needs, as builtins."""
        return [self.phase, None if self.stated is None else list(self.stated)]

    def restore(self, state: list[Any]) -> None:
        """Go on where ``snapshot`` was taken; what was counted goes on."""
        phase, stated = state
        self.phase, self.stated = phase, None if stated is None else (float(stated[0]), str(stated[1]))


def saved_to(text: str) -> str | None:
    """Return the path that a line speaks of as one that a checkpoint is saved to; None for any other line.

    Only those that lead out of the working folder, for that is watched anyway: absolute ones, and those that begin so.
    """
    if "/" not in text:
        return None
    line = text[:_MOST]
    if _WROTE.search(line) is None:  # most lines are done with here
        return None
    paths = list(_PATH.finditer(line))
    spoken = _spoken(line, paths) if paths else ""
    wrote = _WROTE.search(spoken)
    if wrote is None:
        return None
    at = 0
    for found in paths:
        before = spoken[at : found.start()]
        since = max((verb.end() for verb in _WROTE.finditer(before)), default=0)
        behind = found.start() >= wrote.end()
        beside = behind or len(spoken[found.end() : wrote.start()].split()) <= _BETWEEN
        if beside and _READ.search(before[since:]) is None:
            path = next(part for part in found.groups() if part is not None)
            return _save_of(path.rstrip(".:/"), spoken[: found.start()] if behind else spoken)
        at = found.end()
    return None


def _spoken(line: str, paths: Sequence[re.Match[str]]) -> str:
    """Return a line with blanks in the place of its paths: a word within one says nothing of what is done with it."""
    for found in paths:
        line = line[: found.start()] + " " * (found.end() - found.start()) + line[found.end() :]
    return _WITH_SLASH.sub(lambda one: " " * len(one[0]), line)


def _save_of(path: str, spoken: str) -> str | None:
    """Return the path if what is said of it, without any path, speaks of a checkpoint, and its name of nothing else."""
    said = _ASIDE.sub(" ", spoken)
    if not path or _NO_SAVE.search(path) is not None or _OTHER.search(said) is not None:
        return None
    sure = _WHAT.search(said) is not None
    return path if sure or _SAVE.search(path) is not None else None


def stated_params(text: str) -> tuple[float, str] | None:
    """Return how many parameters a line says that the model has, with the words; None for any other line.

    A part of them (trainable, active, without embeddings) is not what is asked for.
    """
    line = text[:_MOST]
    if "param" not in line.lower():
        return None
    every = _ALL.search(line)
    found = _STATED.search(line if every is None else every[0])
    if found is None or (every is None and _PARTIAL.search(line) is not None):
        return None
    name = next(one for one in "abc" if found[one] is not None)
    number = float(found[name].replace(",", "").replace("_", ""))
    count = number * _SIZES[(found[f"{name}_size"] or "").lower()]
    return (count, found[0].strip()[:_SHOWN]) if 1000 <= count < 1e14 else None

"""What the name of a checkpoint says: a step, an epoch, a lone number, or that it is none of a series.

Pure, and the last resort: a name is asked only where nothing inside tells how far the training had come.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

FILES = (".pt", ".pth", ".ckpt", ".safetensors", ".bin", ".npz", ".zip", ".tar", ".pkl", ".pickle")
"""Ends of names of files that may hold a state."""
STEP_FOLDER = re.compile(r"(?:checkpoint|ckpt|step|global_step|iter|epoch)[-_=]?\d{1,18}", re.IGNORECASE)
STANDS_OUT = frozenset(
    "best last final latest ema swa avg average averaged mean init initial pretrained base export exported merged "
    "release keep kept backup good teacher top".split()
)
"""Words that set a checkpoint apart from a series: it is kept for what it is, and not for when it was saved."""
ASIDE = frozenset("vocab vocabulary tokenizer tokens config args arguments hparams dataset data labels stats".split())
"""Words for what lies beside checkpoints and is none."""
_STEPS = frozenset(
    "step steps globalstep iter iters iteration iterations it its update updates timestep timesteps".split()
)
_EPOCHS = frozenset("epoch epochs ep".split())
_COUNT = re.compile(
    r"(?P<before>(?:global[-_]?)?[A-Za-z]+)?(?P<glue>[-_=.\s]*)(?P<number>\d+(?:\.\d+)*(?:e-?\d+)?)"
    r"(?:[-_]?(?P<after>steps|iters|iterations|epochs|updates)(?![A-Za-z]))?"
)
_TIME = re.compile(
    r"(?<!\d)(?:"
    r"(?:19|20)\d\d[-_.]?(?:0[1-9]|1[0-2])[-_.]?(?:0[1-9]|[12]\d|3[01])"  # a day, and perhaps its hour
    r"(?:[-_T. ]*(?:[01]\d|2[0-3])[-_.:h]?[0-5]\d(?:[-_.:m]?[0-5]\d)?)?"
    r"|1[5-9]\d{8}(?:\d{3})?"  # seconds or milliseconds since the epoch
    r")(?!\d)"
)
_SUFFIX = re.compile(
    r"(?:\.(?:pt|pth|ckpt|safetensors|bin|npz|zip|tar|pkl|pickle|model|state|h5|hdf5))+$", re.IGNORECASE
)
_WORD = re.compile(r"[a-z]+")
_GLUED = frozenset("checkpoint ckpt model weights net g d opt optim optimizer state iter step epoch ema save".split())
"""Words after which a number without anything between is a count: ``ckpt100``, but not ``fp16``, ``v2``, ``gpt2``."""


@dataclass(frozen=True, kw_only=True)
class Named:
    """What a name says: numbers after a word for a step or an epoch, and all others that may be a count."""

    step: int | None = None
    epoch: int | None = None
    others: tuple[int, ...] = ()

    @property
    def number(self) -> int | None:
        """The one number that orders a series of such names, None if there is none or more than one."""
        if self.step is not None:
            return self.step
        if self.epoch is not None:
            return self.epoch
        return self.others[0] if len(self.others) == 1 else None

    @property
    def sure(self) -> int:
        """How sure that is: 3 a step, 2 an epoch, 1 a lone number, 0 nothing."""
        return 3 if self.step is not None else 2 if self.epoch is not None else 1 if self.number is not None else 0


def stem(name: str) -> str:
    """Return a name without the ends that only tell its form: ``model_5.pth.tar`` is ``model_5``."""
    return _SUFFIX.sub("", name)


@lru_cache(maxsize=1 << 14)
def read(name: str) -> Named:
    """Return what the name of a checkpoint says.

    A number with a point in it (a loss, a version) is no count; nor is one of a date, unless it is called a step.
    """
    steps, epochs, others = [], [], []
    times = [one.span() for one in _TIME.finditer(stem(name))]
    for match in _COUNT.finditer(stem(name)):
        text = match["number"]
        if not text.isdigit() or len(text) > 18:
            continue
        number = int(text)
        words = {(match["before"] or "").lower().replace("_", "").replace("-", ""), (match["after"] or "").lower()}
        if words & _STEPS:
            steps.append(number)
        elif words & _EPOCHS:
            epochs.append(number)
        elif any(begin <= match.start("number") < end for begin, end in times):
            continue
        elif not match["before"] or match["glue"] or words & _GLUED:
            others.append(number)
    if len(steps) > 1 or len(epochs) > 1:
        return Named(others=(*steps, *epochs, *others))
    return Named(step=steps[0] if steps else None, epoch=epochs[0] if epochs else None, others=tuple(others))


@lru_cache(maxsize=1 << 14)
def form(name: str) -> str:
    """Return the name with all its numbers taken out: those of one series are the same."""
    return re.sub(r"\d+(?:\.\d+)*(?:e-?\d+)?", "#", stem(name)) + name[len(stem(name)) :]


def words(name: str) -> frozenset[str]:
    """Return the words of a name, in small letters."""
    return frozenset(_WORD.findall(stem(name).lower()))


def stands_out(name: str) -> str | None:
    """Return the word in a name that sets it apart from a series (``best``, ``last``, ``ema``), None if none does."""
    return min(words(name) & STANDS_OUT, default=None)

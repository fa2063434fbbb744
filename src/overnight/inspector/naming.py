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
    r"20[1-4]\d(?P<between>[-_.]?)(?:0[1-9]|1[0-2])(?P=between)(?:0[1-9]|[12]\d|3[01])"  # a day, perhaps its hour:
    # with something between hour and minute, with seconds, or behind a T. Else four digits are as well a count.
    r"(?:(?:[-_. ]*(?:[01]\d|2[0-3])(?:[-_.:h][0-5]\d(?:[-_.:m]?[0-5]\d)?|(?!0000)[0-5]\d[-_.:m]?[0-5]\d)"
    r"|[-_. ]*[Tt][-_. ]*(?:[01]\d|2[0-3])(?:[-_.:h]?[0-5]\d(?:[-_.:m]?[0-5]\d)?)?)(?!\d))?"
    r"|(?P<clock>1[5-9]\d{8}(?:\d{3})?)"  # seconds or milliseconds since the epoch
    r")(?!\d)"
)
_SUFFIX = re.compile(
    r"(?:\.(?:pt|pth|ckpt|safetensors|bin|npz|zip|tar|pkl|pickle|model|state|h5|hdf5))+$", re.IGNORECASE
)
_WORD = re.compile(r"[a-z]+")
_GLUED = frozenset("checkpoint ckpt model weights net g d opt optim optimizer state iter step epoch ema save".split())
"""Words after which a number without anything between is a count: ``ckpt100``, but not ``fp16``, ``v2``, ``gpt2``."""
_ROUND = 1000
"""A clock's reading ends in three noughts once in a thousand; a large count that was planned nearly always does."""
_AMOUNT = re.compile(r"[-_. ]*(?:tok|samples?|examples?|frames?|words?|bytes|games?|images?|seen)", re.IGNORECASE)
_AMOUNT_BEFORE = re.compile(
    r"(?:tok(?:en)?s?|samples?|examples?|frames?|words?|bytes|games?|images?|seen)[-_=. ]*$", re.IGNORECASE
)
_LETTER = r"(?<![A-Za-z])"
_STEP_BEFORE = re.compile(
    _LETTER + rf"(?:global[-_]?)?(?:{'|'.join(sorted(_STEPS | _EPOCHS, key=len, reverse=True))})[-_=.\s]*$",
    re.IGNORECASE,
)
_STEP_BEHIND = re.compile(r"[-_]?(?:steps|iters|iterations|epochs|updates)(?![A-Za-z])", re.IGNORECASE)
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, kw_only=True)
class Named:
    """What a name says: numbers after a word for a step or an epoch, and all others that may be a count.

    ``beside``: the word before each of the others, in small letters, "" where none is.
    """

    step: int | None = None
    epoch: int | None = None
    others: tuple[int, ...] = ()
    beside: tuple[str, ...] = ()

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
    times = _times(stem(name))
    for match in _COUNT.finditer(stem(name)):
        text = match["number"]
        if not text.isdigit() or len(text) > 18:
            continue
        number = int(text)
        before = (match["before"] or "").lower()
        words = {before.replace("_", "").replace("-", ""), (match["after"] or "").lower()}
        if words & _STEPS:
            steps.append((number, before))
        elif words & _EPOCHS:
            epochs.append((number, before))
        elif any(begin <= match.start("number") < end for begin, end in times):
            continue
        elif not match["before"] or match["glue"] or words & _GLUED:
            others.append((number, before))
    if len(steps) > 1 or len(epochs) > 1:
        others = [*steps, *epochs, *others]
        steps, epochs = [], []
    return Named(
        step=steps[0][0] if steps else None,
        epoch=epochs[0][0] if epochs else None,
        others=tuple(number for number, _ in others),
        beside=tuple(word for _, word in others),
    )


def _times(name: str) -> list[tuple[int, int]]:
    """Return where the dates and readings of a clock lie in a name."""
    return [one.span() for one in _TIME.finditer(name) if one["clock"] is None or not _amount(name, one)]


def _amount(name: str, clock: re.Match[str]) -> bool:
    """Say whether what may be seconds since the epoch is rather an amount: a round one, or one of tokens."""
    if int(clock["clock"]) % _ROUND == 0:
        return True
    return bool(_AMOUNT.match(name, clock.end()) or _AMOUNT_BEFORE.search(name[: clock.start()]))


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


class Alike:
    """The names of one folder that are known to be of one series or another, by their forms: it says what else is.

    Of a form only numbers that count may differ: those that are called a step or an epoch, those of a folder that is
    called after its step (``checkpoint-500``), and those that differ among the names that are known. So ``run7-20``
    is like ``run7-10`` once ``run7-30`` is known, and ``run8-20`` never is.
    """

    MOST = 64

    def __init__(self) -> None:
        self._forms: dict[tuple[str, ...], tuple[tuple[str, ...], set[int]]] = {}

    def add(self, name: str) -> bool:
        """Take in a name; say whether it is like none that was known."""
        texts, numbers = _parts(name)
        known = self._forms.get(texts)
        if known is None:
            self._forms[texts] = numbers, _counting(name, texts)
            while len(self._forms) > self.MOST:
                del self._forms[next(iter(self._forms))]
            return True
        different = {place for place, number in enumerate(known[0]) if number != numbers[place]} - known[1]
        known[1].update(different)
        return bool(different)

    def like(self, name: str) -> bool:
        """Say whether a name is known, or like those that are."""
        texts, numbers = _parts(name)
        known = self._forms.get(texts)
        return known is not None and all(
            number == numbers[place] or place in known[1] for place, number in enumerate(known[0])
        )


def _parts(name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what stands between the numbers of a name, and these."""
    return tuple(_DIGITS.split(name)), tuple(_DIGITS.findall(name))


def _counting(name: str, texts: tuple[str, ...]) -> set[int]:
    """Return which of the numbers of a name count by what it says itself."""
    if STEP_FOLDER.fullmatch(stem(name)):
        return {0}
    return {
        place
        for place, one in enumerate(_DIGITS.finditer(name))
        if _STEP_BEFORE.search(texts[place] if place else name[: one.start()])
        or (_STEP_BEHIND.match(texts[place + 1]) and not texts[place].endswith("."))
    }

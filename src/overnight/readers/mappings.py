"""Records that come as a mapping of names to values: what a Python dict and a JSON object have in common.

Names and values become the fields of a ``Record``. No text of a line is taken apart here, and nothing is remembered.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from overnight.events import Record
from overnight.readers.counters import is_evaluation
from overnight.readers.fields import EVAL_WORDS, PLACE, UNIT, field_of, field_value
from overnight.readers.numbers import PRINTED, parse_number, parse_whole
from overnight.readers.pairs import EACH

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from overnight.tail import Line

FLOATS = frozenset("loss dt_s tokens tokens_total tokens_per_s samples_per_s mfu lr grad_norm epoch".split())
"""The fields of ``Record`` that hold a number."""

_OTHER_LOSSES = ("reduced_loss", "lm_loss")
_TAKEN = FLOATS | {"train_loss", "val_loss", "dt_ms", "dt_us", "rank", *_OTHER_LOSSES}

# Names that only mappings use, over what every reader knows.
_OWN: Mapping[str, str] = {
    "total_loss": "train_loss",
    "num_tokens": "tokens_total",
    "total_tokens": "tokens_total",
    "num_input_tokens_seen": "tokens_total",
    "consumed_tokens": "tokens_total",
    "wps": "tokens_per_s",
    "train_speed(s/it)": "dt_s",
    "s/it": "dt_s",
    "sec/step": "dt_s",
    "time_per_step": "dt_s",
    "perf/time_per_step": "dt_s",
    "ups": "rate",
    "it/s": "rate",
    "train_speed(iter/s)": "rate",
    "steps_per_second": "rate",
    "steps_per_sec": "rate",
    "throughput": "throughput",
    "time": "time",
}
# In order of preference: the first that is there counts.
_STEPS = (
    "step global_step current_steps num_updates global_step/max_steps iteration iter _step steps train_step"
    " optimizer_step global_steps trainer/global_step train/global_step train/step valid_num_updates"
).split()
_STEP_RANK: Mapping[str, int] = {name: rank for rank, name in enumerate(_STEPS)}
# Words in front of a name that change nothing about it.
_AROUND = tuple(
    "train/ training/ train_ train. metrics/ stats/ scalars/ logs/ log/ data/ losses/ optim/ optimizer/ perf/".split()
)
# Names of a mapping that holds the whole record, where what is round it is a logger's.
_WRAPPERS = frozenset(
    "metrics stats scalars logs log data message msg payload fields extra record event body values entry result"
    " content".split()
)
_OF_A_RECORD = frozenset({"step", "loss", "train_loss", "val_loss", *_OTHER_LOSSES})
_PER_DEVICE = re.compile(r"tok\w*.{0,24}?(?:per_sec|/s|_s_).{0,12}?(?:gpu|device)", re.IGNORECASE)
_AMOUNT = re.compile(rf"(?P<number>{PRINTED})(?:[ ]?(?:(?P<unit>{UNIT})|(?P<scale>[kKMGBT])?[ ]?(?P<each>{EACH})))?")
_COUNT = re.compile(r"(?P<step>[0-9][0-9,]{0,20})(?:[ ]?/[ ]?(?P<total>[0-9][0-9,]{0,20}))?")
_MOST_EXTRA = 256
_LONGEST_TEXT = 256
_LONGEST_NAME = 128
_LONGEST_WORDS = 32
_NO_NAME = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_NO_TEXT = re.compile("[\x00\ud800-\udfff]")
_LARGEST_STEP = 10**18
_MOST_RANKS = 10**9
# Names under which a mapping says what it is about: of any of its words, or as a whole (a name may have any words).
_ABOUT = frozenset("mode split phase stage event kind type prefix set subset section loop msg message".split())
_ABOUT_WHOLE = frozenset("name dataset data_split dataset_name split_name eval_name state".split())
_WHOLE_NAMES = EVAL_WORDS - {"test"} | {"test_set", "eval_set", "dev_set", "validation_set", "val_set", "evaluating"}
_FLAGS = frozenset("is_eval is_evaluation is_val is_valid is_validation is_test evaluating eval evaluation".split())
_SAID = {"true": True, "false": False}
_TRAINING_FLAGS = frozenset("is_train is_training training train".split())
_SELF = _ABOUT | _ABOUT_WHOLE | _FLAGS | _TRAINING_FLAGS
_SELF_IN_ANY_CASE = _SELF | {name.capitalize() for name in _SELF} | {name.upper() for name in _SELF}
_EVAL_BEFORE = re.compile(r"(?<![A-Za-z0-9/._-])(?:test|testing|dev)(?![A-Za-z0-9/._-])[^{}]{0,24}$", re.IGNORECASE)
# Right before a mapping: it is what a callback holds, a configuration, or what was best, and tells no progress.
_NO_PROGRESS = re.compile(
    r"(?:(?<![A-Za-z])state|(?<![\w./-])(?:config\w{0,8}|args|arguments|hparams|hyperparameters|defaults?|example|sample"
    r"|expected|checkpoint|ckpt|best|sav(?:ed|ing)|resum\w{2,4}|restor\w{1,4}|load(?:ed|ing)|previous|early ?stopping"
    r"|summary))(?![\w-])[^{}\]|]{0,16}$",
    re.IGNORECASE,
)
_HELD_OUT_BEFORE = re.compile(
    r"(?<![A-Za-z0-9/._=-])(?:held[ -]?out|holdout)(?:[ _-](?:set|split|data))?[\s:|>-]{0,8}$", re.IGNORECASE
)
_DEEPEST = 4


class Place(NamedTuple):
    """Where and when a record was printed, as in ``Record``."""

    at: float
    source: int
    part: int


class Reading(NamedTuple):
    """What a mapping says. ``values`` are fields of ``Record``; ``named`` are the fields that were there, also as None.

    ``kind`` is None where no loss was named at all; ``total`` the planned number of steps.
    """

    kind: Literal["train", "eval"] | None
    step: int | None
    total: int | None
    rank: int | None
    values: dict[str, float]
    extra: dict[str, float | str]
    named: frozenset[str]
    per_device: bool


def read_pairs(pairs: Iterable[tuple[str, Any]], wrapper: str = "") -> Reading:
    """Return what pairs of printed names and values (numbers, texts, None) mean.

    Of a field named twice the first counts. Names that begin with a word for an evaluation are of that evaluation: of
    them only a loss is a field of ours. Names mean what they mean without ``wrapper`` in front of them.
    """
    counted = _Counter()
    found: dict[str, float | None] = {}
    extra: dict[str, float | str] = {}
    eval_name = ""
    per_device = False
    for printed, value in pairs:
        key = printed if printed.isprintable() and len(printed) <= _LONGEST_NAME else _sane(printed)
        plain = key.removeprefix(wrapper) if wrapper else key
        field = meaning_of(plain)
        if field == "step":
            counted.take(plain, value)
            continue
        name = "dt_s" if field in {"dt_ms", "dt_us"} else field
        if not field or name in found:
            _keep(extra, key, value)
            continue
        found[name] = number_of(field if field in _TAKEN else "", value)
        if field == "val_loss":
            eval_name = key
        elif field == "tokens_per_s":
            per_device = _PER_DEVICE.search(key) is not None
    _settle(found, extra)
    kind, loss = _loss_of(found, stepless=counted.step is None)
    values = {name: number for name, number in found.items() if name in FLOATS and number is not None}
    values.pop("loss", None)
    if loss and (number := found[loss]) is not None:
        values["loss"] = number
    for name in {"loss", "train_loss", "val_loss", *_OTHER_LOSSES} - {loss}:
        if (number := found.get(name)) is not None:
            extra[eval_name if name == "val_loss" else name] = number
    if kind == "eval" and eval_name not in ("eval_loss", "val_loss"):
        extra["eval_name"] = eval_name
    rank = whole_of(found.get("rank"))
    return Reading(
        kind=kind,
        step=counted.step,
        total=counted.total,
        rank=rank[0] if rank is not None and rank[0] < _MOST_RANKS else None,
        values=values,
        extra=extra,
        named=frozenset(found),
        per_device=per_device,
    )


def record_of(
    reading: Reading, line: Line, *, reader: str, kind: Literal["train", "eval"], rank: int | None, place: Place
) -> Record:
    """Return the record of one mapping; ``rank`` is what stands in front of it, if it names none itself."""
    extra = reading.extra
    if reading.total is not None:
        extra.setdefault("total_steps", float(reading.total))
    return Record(
        reader=reader,
        source=place.source,
        offset=line.offset,
        part=place.part,
        at=place.at,
        kind=kind,
        rank=rank if reading.rank is None else reading.rank,
        step=reading.step,
        extra=extra or None,
        per_device=reading.per_device,
        **reading.values,  # type: ignore[arg-type]  # its keys are names of float fields, which the checker cannot know
    )


def is_of_evaluation(before: str, content: dict[str, Any]) -> bool:
    """Say whether the words before a mapping, or what it says about itself, make it an evaluation's."""
    if before and any(told.search(before) for told in (_EVAL_BEFORE, _HELD_OUT_BEFORE)):
        return True
    if before and is_evaluation(before):
        return True
    if _SELF_IN_ANY_CASE.isdisjoint(content):  # nearly every line of a night
        return False
    for key in _SELF_IN_ANY_CASE & content.keys():
        name, value = key.lower(), content[key]
        if isinstance(value, str):
            if len(value) > _LONGEST_WORDS:
                continue
            said = value.strip().lower()
            if name in _ABOUT and not EVAL_WORDS.isdisjoint(re.split(r"[^a-z]+", said)):
                return True
            if name in _ABOUT_WHOLE and re.sub(r"[ -]", "_", said) in _WHOLE_NAMES:
                return True
        flag = _SAID.get(value.strip().lower()) if isinstance(value, str) else value
        if (name in _FLAGS and flag is True) or (name in _TRAINING_FLAGS and flag is False):
            return True
    return False


def unwrapped(content: dict[str, Any], depth: int = 0) -> tuple[str, dict[str, Any]]:
    """Return the path of the record in ``{"message": {"step": 5, ...}}``, here "message/", and all that it says.

    A mapping that names a step or a loss itself is the record, whatever it holds: its path is "".
    """
    wrappers = [key for key, value in content.items() if isinstance(value, dict) and key.lower() in _WRAPPERS]
    if not wrappers or depth >= _DEEPEST or _is_record(content):
        return "", content
    for key in wrappers:
        path, inner = unwrapped(content[key], depth + 1)
        if path or _is_record(inner):
            return f"{key}/{path}", {**content, **inner}
    return "", content


def _is_record(content: dict[str, Any]) -> bool:
    """Say whether a mapping itself names a step or a loss."""
    return any(meaning_of(key) in _OF_A_RECORD for key, value in content.items() if not isinstance(value, dict))


def is_no_progress(before: str) -> bool:
    """Say whether the words right before a mapping say that it tells of something else than the training's progress."""
    return bool(before) and _NO_PROGRESS.search(before) is not None


def _sane(name: str) -> str:
    """Return a name that any text column and any terminal can carry."""
    return _NO_NAME.sub("\ufffd", name[:_LONGEST_NAME])


def flat(content: dict[str, Any], path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield names and values: those of a mapping itself, then those of mappings inside, with a path for a name."""
    inner: list[tuple[str, dict[str, Any]]] = []
    for key, value in content.items():
        if isinstance(value, dict):
            inner.append((f"{path}{key}/", value))
        else:
            yield path + key, value
    if depth < _DEEPEST:
        for name, value in inner:
            yield from flat(value, name, depth + 1)


class _Counter:
    """The step of a mapping: of several names for it the preferred one counts."""

    def __init__(self) -> None:
        self.step: int | None = None
        self.total: int | None = None
        self._best = len(_STEPS) + 1

    def take(self, key: str, value: Any) -> None:
        """Take in a value under a name for a step."""
        order = _STEP_RANK.get(key.lower(), len(_STEPS))
        counted = whole_of(value) if order < self._best else None
        if counted is not None:
            (self.step, self.total), self._best = counted, order


@lru_cache(maxsize=4096)
def meaning_of(key: str) -> str:
    """Return what a name means: "step", a field as ``field_of`` has it, "rate" (steps a second), ... or ""."""
    name = key.strip().lower()
    if name in _STEP_RANK:
        return "step"
    if name in _OWN:
        return _OWN[name]
    words = re.split(r"[_/. -]+", name)
    if words[0] in EVAL_WORDS:
        return "val_loss" if words[-1] == "loss" else ""
    field = field_of(key)
    if field in _TAKEN:
        return field
    if _PER_DEVICE.search(name):
        return "tokens_per_s"
    for prefix in _AROUND:
        if name.startswith(prefix) and len(name) > len(prefix):
            return meaning_of(name[len(prefix) :])
    return ""


def number_of(field: str, value: Any) -> float | None:
    """Return a value as the float that is printed, in the unit of ``Record`` for ``field`` (""): None if it is none."""
    if isinstance(value, list):
        value = value[0] if value and all(one == value[0] for one in value) else None  # one rate for each group
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (int, float)):
        if field in {"dt_ms", "dt_us"}:
            return field_value(field, repr(value), None)
        try:
            number = float(value)
        except OverflowError:
            return None
        return None if field == "mfu" and number < 0 else number
    if not isinstance(value, str):
        return None
    found = _AMOUNT.fullmatch(value.strip())
    if found is None:
        return None
    printed, unit, each = found["number"], found["unit"], found["each"]
    if each is not None:  # `310 ms/step`, `1.2M tok/s`
        said = field_of(each)
        same = PLACE.get(said, said) == PLACE.get(field, field) != ""
        return field_value(said, printed, found["scale"]) if same else None
    return field_value(field, printed, unit)


def whole_of(value: Any) -> tuple[int, int | None] | None:
    """Return a step and the planned steps of ``5``, ``5.0``, ``"5"`` or ``"5/40"``; None if it is no step."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return (int(value), None) if 0 <= value < _LARGEST_STEP and value == value // 1 else None
    if not isinstance(value, str):
        return None
    found = _COUNT.fullmatch(value.strip())
    step = parse_whole(value.strip() if found is None else found["step"])
    return None if step is None else (step, None if found is None else parse_whole(found["total"]))


def _loss_of(found: dict[str, float | None], *, stepless: bool) -> tuple[Literal["train", "eval"] | None, str]:
    """Return whether the fields are of training or of an evaluation, and which is the loss."""
    if "loss" in found:
        return "train", "loss"
    # `train_loss` beside `val_loss` is how evaluations print both; a line for each epoch has nothing but these
    if "train_loss" in found and ("val_loss" not in found or stepless):
        return "train", "train_loss"
    if "val_loss" in found:
        return "eval", "val_loss"
    other = next((name for name in _OTHER_LOSSES if name in found), "")
    return ("train" if other else None), other


def _settle(found: dict[str, float | None], extra: dict[str, float | str]) -> None:
    """Give names that mean something only beside others their field, and turn a rate of steps into a time."""
    throughput, time, rate = found.pop("throughput", None), found.pop("time", None), found.pop("rate", None)
    if throughput is not None:
        if "tokens_total" in found:
            found.setdefault("tokens_per_s", throughput)
        else:
            extra.setdefault("throughput", throughput)
    if time is not None:
        if "data_time" in extra:
            found.setdefault("dt_s", time)
        else:
            extra.setdefault("time", time)
    if rate is not None and rate > 0 and found.get("dt_s") is None:
        found["dt_s"] = 1.0 / rate


def _keep(extra: dict[str, float | str], key: str, value: Any) -> None:
    """Keep what is no field of ours: a number if it is one, otherwise the beginning of its text."""
    if len(extra) >= _MOST_EXTRA or key in extra:
        return
    number = parse_number(value) if isinstance(value, str) else number_of("", value)
    if number is not None:
        extra[key] = number
    elif isinstance(value, str):
        extra[key] = _NO_TEXT.sub("\ufffd", value[:_LONGEST_TEXT])

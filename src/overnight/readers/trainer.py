"""Hugging Face Trainer, and what is built on it (TRL, axolotl, unsloth, LLaMA-Factory, ms-swift): dicts beside a bar.

``{'loss': '4.05', 'grad_norm': '1.002', 'learning_rate': '0.0005', 'epoch': '0.04167'}`` names no step. It stands in
tqdm's bar, which is drawn anew right behind the dict; the frame before it is stale. So a record waits for that frame;
only what is not finite waits for nothing, and comes a second time when its step is known.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from overnight.events import Record
from overnight.readers.bars import Frame, find_frames
from overnight.readers.counters import after_bar
from overnight.readers.dicts import find_dicts
from overnight.readers.joining import Opened, joined, opening, whole
from overnight.readers.leading import counted
from overnight.readers.mappings import (
    Place,
    Reading,
    flat,
    is_no_progress,
    is_of_evaluation,
    read_pairs,
    record_of,
    unwrapped,
)
from overnight.readers.prefix import strip_prefix

if TYPE_CHECKING:
    from overnight.tail import Line

_MOST_HELD = 64  # ranks that print without a bar
_MOST_TOTALS = 32
_NEEDED = frozenset({"epoch", "lr", "grad_norm"})


class _Held(msgspec.Struct):
    """A record that waits for its step.

    ``likely`` is the frame right behind it, if that bar stood before it as well, but is not the training's so far.
    """

    record: Record
    likely: tuple[int, int] | None = None
    direct: bool = True  # no frame has come yet


class _Memory(msgspec.Struct):
    """All that the next line depends on.

    ``total`` is that of the training's bar, ``totals`` those of all bars seen, the latest last. ``touching`` names the
    rank (-1: none) of the training dict that was the whole of the last line. ``barless``: dicts came and no bar.
    ``opened`` is a dict that goes on on the next line.
    """

    held: list[_Held] = []
    total: int | None = None
    totals: list[int] = []
    dicts: bool = False
    framed: bool = False
    barless: bool = False
    touching: int | None = None
    opened: Opened | None = None


class Trainer:
    """Reads the dicts that Trainer's callbacks print, each with the step of its bar, or None where no bar tells it.

    The training's bar is the one that stands before and behind a training dict; others (an evaluation's) are told from
    it by their total. Two training dicts on lines that touch were not printed beside a bar but buffered: no frame
    behind them means anything.
    """

    name = "trainer"
    always = frozenset({"loss"})

    def __init__(self) -> None:
        """Begin without anything held back."""
        self._memory = _Memory()

    def __call__(self, line: Line, at: float, source: int) -> tuple[Record, ...] | None:
        """Return the records that are whole with this line; () while one waits, None when the line is not Trainer's."""
        memory = self._memory
        if memory.opened is not None:
            memory.opened = joined(memory.opened, line, source)
            full = None if memory.opened is None else whole(memory.opened)
            if memory.opened is not None and full is None:
                return None
            memory.opened, line = None, full or line
        opened = opening(line, source, "'") if "{" in line.text else None
        if opened is not None:
            memory.opened, line = opened
        return self._read(line, at, source)

    def holds(self, source: int, offset: int) -> bool:
        """Say whether a record of the line at ``offset`` is held back, or a dict that begins there is not whole yet."""
        memory = self._memory
        places = [(one.record.source, one.record.offset) for one in memory.held]
        if memory.opened is not None:
            places.append((memory.opened.source, memory.opened.offset))
        return (source, offset) in places

    def _read(self, line: Line, at: float, source: int) -> tuple[Record, ...] | None:
        text = line.text
        memory = self._memory
        dicts = find_dicts(text) if "{'" in text else []
        if not dicts:
            memory.touching = None
            if "<" not in text:
                return None
            told = self._frames(find_frames(text))
            return None if told is None else tuple(told)
        ready: list[Record] = []
        place, part, mine, touched = 0, 0, False, memory.touching
        for begin, end, content in dicts:
            frames = find_frames(text, place, begin)
            ready += self._frames(frames) or []
            before, place = frames[-1].end if frames else place, end
            if "train_runtime" in content and "loss" not in content:
                ready += self._end_of_training()
                mine = True
                continue
            words = text[after_bar(text, before, begin) : begin] if before < begin else ""
            wrapper, about = unwrapped(content)
            reading = counted(read_pairs(flat(content), wrapper), words)
            if not _is_progress(reading) or is_no_progress(words):
                mine = mine or "epoch" in reading.named
                continue
            mine = memory.dicts = True
            rank = strip_prefix(text, before, begin)[0]
            evaluating = reading.kind == "eval" or is_of_evaluation(words, about)
            kind: Literal["train", "eval"] = "eval" if evaluating else "train"
            here = Place(at, source, part)
            record = record_of(reading, line, reader=self.name, kind=kind, rank=rank, place=here)
            part += 1
            ready += self._take(record, touched)
            touched = _key(record.rank) if kind == "train" else None
        more = self._frames(find_frames(text, place))
        memory.touching = touched if more is None and mine and not text[place:].strip() else None
        ready += more or []
        return tuple(ready) if ready or mine or more is not None else None

    def flush(self) -> tuple[Record, ...]:
        """Return what is still held back: no more lines will come."""
        return tuple(self._release(self._memory.held))

    def snapshot(self) -> dict[str, Any] | None:
        """Return what the next line depends on; None before anything was seen."""
        state: dict[str, Any] = msgspec.to_builtins(self._memory)
        return None if self._memory == _Memory() else state

    def restore(self, state: Any) -> None:
        """Go on from a snapshot."""
        self._memory = _Memory() if state is None else msgspec.convert(state, _Memory, strict=False)

    def _take(self, record: Record, touched: int | None) -> list[Record]:
        """Hold ``record`` back if a frame may tell its step; return what this makes ready."""
        memory = self._memory
        training = record.kind == "train"
        ready = self._release([one for one in memory.held if one.record.rank == record.rank])
        buffered = training and touched == _key(record.rank)
        memory.barless = not memory.framed and (memory.barless or buffered or bool(ready))
        if record.step is not None or buffered or memory.barless or len(memory.held) >= _MOST_HELD:
            return [*ready, record]
        memory.held.append(_Held(record))
        if not _finite(record):
            ready.append(msgspec.structs.replace(record, early=True))
        return ready

    def _frames(self, frames: list[Frame]) -> list[Record] | None:
        """Take in the bars of a piece of line; None when there is none, or it may as well be another program's."""
        if not frames:
            return None
        memory = self._memory
        ready: list[Record] = []
        for frame in frames:
            if memory.held:
                ready += self._told(frame)
            if frame.total in memory.totals:
                memory.totals.remove(frame.total)
            memory.totals = [*memory.totals[1 - _MOST_TOTALS :], frame.total]
            memory.framed = True
            memory.barless = False
        return ready if memory.dicts else None

    def _told(self, frame: Frame) -> list[Record]:
        """Give the records that wait the step of this frame, if it is the training's bar."""
        memory = self._memory
        if memory.total is not None and frame.total == memory.total:
            full = frame.n == frame.total and all(one.record.kind == "eval" and one.direct for one in memory.held)
            if not full:
                return self._release(memory.held, frame)
            # maybe an evaluation's own bar, which may be as long: then the training's is drawn right behind it
            for one in memory.held:
                one.likely, one.direct = (frame.n, frame.total), False
            return []
        known = not memory.totals or frame.total in memory.totals
        training = any(one.record.kind == "train" for one in memory.held)
        if memory.total is None and frame.n and known and training:
            memory.total = frame.total
            return self._release(memory.held, frame)
        if memory.total is None and not training and frame.n < frame.total and frame.total in memory.totals:
            return self._release(memory.held, frame)  # of an evaluation, whose own bar is full by now
        for one in memory.held:
            if one.direct and one.record.kind == "train" and frame.n and memory.totals[-1:] == [frame.total]:
                one.likely = (frame.n, frame.total)
            one.direct = False
        return []

    def _release(self, which: list[_Held], frame: Frame | None = None) -> list[Record]:
        """Return the records of ``which`` with the step that is known by now, and hold them no longer.

        Where no frame of the training's bar came, another bar that stood before and behind a training dict is it now.
        """
        memory = self._memory
        ready = []
        for one in which:
            told = one.likely if frame is None else (frame.n, frame.total)
            if frame is None and told is not None:
                memory.total = told[1]
            ready.append(one.record if told is None else _stepped(one.record, *told))
        memory.held = [one for one in memory.held if one not in which]
        return ready

    def _end_of_training(self) -> list[Record]:
        """A training has ended; another in the same log has a bar of its own."""
        ready = self._release(self._memory.held)
        self._memory.total = None
        self._memory.totals = []
        return ready


def _is_progress(reading: Reading) -> bool:
    """Say whether a dict tells how the training goes: not a configuration, and not a figure of the user's own."""
    if reading.kind == "eval":
        return "loss" in reading.values or "epoch" in reading.named
    if reading.kind == "train" and "loss" in reading.values:
        return reading.step is not None or not _NEEDED.isdisjoint(reading.named)
    # without a loss, or with None for one: an optimizer step all the same
    return "epoch" in reading.values and "lr" in reading.named and (reading.kind == "train" or len(reading.named) > 2)


def _stepped(record: Record, step: int, total: int) -> Record:
    return msgspec.structs.replace(record, step=step, extra={**(record.extra or {}), "total_steps": float(total)})


def _finite(record: Record) -> bool:
    return all(value is None or math.isfinite(value) for value in (record.loss, record.grad_norm))


def _key(rank: int | None) -> int:
    return -1 if rank is None else rank

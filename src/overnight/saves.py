"""Notices the checkpoints that a training writes, and measures how long a save takes: from outside, without a library.

A file counts as a checkpoint by its name or by the name of its folder; how good it is inside is not looked at here. A
save is measured twice and the larger figure counts: from the first file created to the last one closed or renamed, and,
since a program may be busy long before it opens a file, by the silence in the log around it.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from inotify_simple import INotify, flags

MAX_FOLDERS = 256
MAX_ENTRIES = 4000
MAX_DEPTH = 3
QUIET_S = 1.0
LEAST_SILENCE_S = 0.2
MAX_NOISE = 2000

SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "wandb", "mlruns", "venv", "proc", "sys"})
FILE = re.compile(
    r"\.(pt|pth|ckpt|bin|safetensors|npz|npy|pkl|pickle|h5|hdf5|keras|msgpack|distcp|orbax|params|weights|index|model|tar)(\.|$)"
    r"|ckpt|checkpoint",
    re.IGNORECASE,
)
PLACE = re.compile(r"ckpt|checkpoint|^step|^epoch|^iter|global_step", re.IGNORECASE)
UNFINISHED = re.compile(r"^\.|\.tmp$|\.part$|\.incomplete$|~$|^tmp|\.tmp\.", re.IGNORECASE)
NUMBER = re.compile(r"\d+")


class Save(NamedTuple):
    """One finished save: its path (the folder where the checkpoint is one), the step in its name, seconds it took."""

    path: str
    step: int | None
    seconds: float
    began: float
    ended: float


class Saves:
    """Watches the folder of the checkpoints (or the working folder) a few levels deep."""

    def __init__(self, root: Path, *, skip: tuple[Path, ...] = ()) -> None:
        self.inotify = INotify()
        self.skip = {str(path) for path in skip}
        self.folders: dict[int, tuple[str, int]] = {}
        self.entries = 0
        self.began: float | None = None
        self.ended: float | None = None
        self.path: str | None = None
        self.noise: dict[int, int] = {}
        self.root = str(root)
        self._watch(self.root, 0)

    def absorb(self, now: float) -> bool:
        """Take in what happened to the watched folders; True if it has to do with a save."""
        matters = False
        for event in self.inotify.read(timeout=0):
            if event.mask & flags.IGNORED:  # the folder is gone, its watch is free again
                self.folders.pop(event.wd, None)
                continue
            place = self.folders.get(event.wd)
            if place is None:
                continue
            folder, depth = place
            path = f"{folder}/{event.name}"
            if event.mask & flags.ISDIR:
                self._folder(path, depth, event.mask, now)
                matters = True
            elif FILE.search(event.name) or PLACE.search(os.path.basename(folder)):
                self._file(path, event.mask, now)
                self.noise.pop(event.wd, None)
                matters = True
            else:
                self._heard_noise(event.wd)
        return matters

    def look(self, now: float, *, at_last: bool = False) -> Save | None:
        """Return a save once it has been over for a second; ``at_last``: nobody is left to write, so it is over now."""
        self.absorb(now)
        return self._finished(now, quiet_s=0.0 if at_last else QUIET_S)

    def _heard_noise(self, watch: int) -> None:
        """Stop watching a folder in which much happens and no checkpoint is ever written."""
        self.noise[watch] = self.noise.get(watch, 0) + 1
        if self.noise[watch] > MAX_NOISE:
            self.noise.pop(watch)
            with contextlib.suppress(OSError):
                self.inotify.rm_watch(watch)

    def next_look_s(self, now: float) -> float | None:
        """Return when ``look`` wants to be called though nothing happens; None if it does not."""
        return None if self.ended is None else max(0.01, self.ended + QUIET_S - now)

    def _folder(self, path: str, depth: int, mask: int, now: float) -> None:
        if depth + 1 <= MAX_DEPTH:
            self._watch(path, depth + 1)
            self._missed(path, now)
        if PLACE.search(os.path.basename(path)):
            if mask & flags.MOVED_TO:
                self._file(path, mask, now)
            elif self.began is None:
                self.began = now

    def _missed(self, folder: str, now: float) -> None:
        """Take in the files that were made between the folder and the watch on it; nobody tells about those."""
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_file() and (FILE.search(entry.name) or PLACE.search(os.path.basename(folder))):
                    # Under a name that is not yet its own it is still to be renamed, and that will be told.
                    self._file(entry.path, flags.CREATE if UNFINISHED.search(entry.name) else flags.CLOSE_WRITE, now)

    def _file(self, path: str, mask: int, now: float) -> None:
        if self.began is None:
            self.began = now
        if mask & (flags.CLOSE_WRITE | flags.MOVED_TO):
            self.ended = now
            final = self._final(path)
            if final is not None:
                self.path = final
        else:
            self.ended = None  # another file of the same save was begun

    def _final(self, path: str) -> str | None:
        """Return the checkpoint that a file belongs to; None while its name says that it is unfinished."""
        folder, name = os.path.split(path)
        parts = [*os.path.relpath(folder, self.root).split("/"), name]
        if any(UNFINISHED.search(part) for part in parts if part != "."):
            return None
        if folder != self.root and PLACE.search(os.path.basename(folder)) and NUMBER.search(os.path.basename(folder)):
            return folder
        return path

    def _finished(self, now: float, *, quiet_s: float) -> Save | None:
        if self.began is None or self.ended is None or now - self.ended < quiet_s:
            return None
        began, ended, path = self.began, self.ended, self.path
        self.began = self.ended = self.path = None
        if path is None:
            return None
        numbers = NUMBER.findall(os.path.basename(path))
        return Save(path, int(numbers[-1]) if numbers else None, ended - began, began, ended)

    def _watch(self, path: str, depth: int) -> None:
        name = os.path.basename(path)
        hidden = depth > 0 and name.startswith(".") and not name.startswith(".tmp")
        if path in self.skip or hidden or (depth > 0 and name in SKIPPED) or len(self.folders) >= MAX_FOLDERS:
            return
        try:
            mask = flags.CREATE | flags.CLOSE_WRITE | flags.MOVED_TO | flags.ONLYDIR | flags.DONT_FOLLOW
            self.folders[self.inotify.add_watch(path, mask)] = (path, depth)
            if depth >= MAX_DEPTH:
                return
            with os.scandir(path) as entries:
                for entry in entries:
                    self.entries += 1
                    if self.entries > MAX_ENTRIES:
                        return
                    if entry.is_dir(follow_symlinks=False):
                        self._watch(entry.path, depth + 1)
        except OSError:
            return  # gone again, not ours to read, or no watches left: fewer saves are seen, nothing else


def looks_like_save(path: str) -> bool:
    """Say whether a file has the name of a checkpoint, or lies in a folder that has."""
    folder, name = os.path.split(path)
    return bool(FILE.search(name) or PLACE.search(os.path.basename(folder)))


class Silences:
    """The long gaps between the steps of a log, and the saves that lie in them. Times are of the boot clock.

    A save is known only some time after it was over, a gap only with the step behind it: whichever comes last matches.
    """

    def __init__(self) -> None:
        self.step: int | None = None
        self.at: float | None = None
        self.gaps: deque[tuple[float, float, float]] = deque(maxlen=16)
        self.saves: list[Save] = []

    def stepped(self, step: int | None, now: float, step_s: float | None) -> None:
        """Take in that the log has come to ``step``; calling it again for the same step changes nothing."""
        if step == self.step:
            return
        if self.at is not None:
            steps = 1 if step is None or self.step is None else step - self.step
            found_s = silence_s(gap_s=now - self.at, steps=steps, step_s=step_s)
            if found_s >= LEAST_SILENCE_S:
                self.gaps.append((self.at, now, found_s))
        self.at, self.step = now, step

    def saved(self, save: Save) -> None:
        """Take in a save."""
        self.saves.append(save)

    def around_saves(self) -> list[float]:
        """Return the seconds of every silence that a save lies in, each once."""
        known = [save for save in self.saves if self.at is not None and save.ended <= self.at]
        self.saves = [save for save in self.saves if save not in known]
        found = [gap for gap in self.gaps if any(gap[0] <= save.ended <= gap[1] for save in known)]
        for gap in found:
            self.gaps.remove(gap)
        return [gap[2] for gap in found]


class SaveWatch:
    """All that is noticed about saves: each goes to ``saved`` with its seconds, and with path and step if new."""

    def __init__(self, root: Path, *, skip: tuple[Path, ...], saved: Callable[..., None]) -> None:
        self.saves = Saves(root, skip=skip)
        self.silences = Silences()
        self.saved = saved

    def saving(self) -> bool:
        """Say whether a save was begun and is not over yet."""
        return self.saves.began is not None and self.saves.ended is None

    def look(self, now: float, step: int | None, step_s: float | None, *, at_last: bool = False) -> bool:
        """Tell a save that is over, and how long the log was silent around it; True if there was one."""
        self.silences.stepped(step, now, step_s)
        save = self.saves.look(now, at_last=at_last)
        if save is not None:
            self.silences.saved(save)
            named = save.step if save.step is not None else step
            self.saved(seconds=save.seconds, path=save.path, step=named)
        for seconds in self.silences.around_saves():
            self.saved(seconds=seconds)
        return save is not None


def silence_s(*, gap_s: float, steps: int, step_s: float | None) -> float:
    """Return how much of a gap between two records was not spent stepping."""
    return max(0.0, gap_s - steps * (step_s or 0.0))

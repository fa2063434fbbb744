"""Notices the checkpoints that a training writes, and measures how long a save takes: from outside, without a library.

A file counts as a checkpoint by its name or by the name of its folder; how good it is inside is not looked at here. A
save is measured twice and the larger figure counts: from the first file created to the last one closed or renamed, and,
since a program may be busy long before it opens a file, by the silence in the log around it. What is written before the
first step of an attempt is no save of it: data caches and downloads have such names, too, and can take hours.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections import deque
from collections.abc import Callable
from pathlib import Path

from inotify_simple import INotify, flags

from overnight.inspector.naming import stands_out
from overnight.saves.elsewhere import Elsewhere
from overnight.saves.names import NUMBER, PLACE, UNFINISHED, Counting, another, looks_like_save, step_of
from overnight.saves.seen import Save
from overnight.saves.silences import Silences

MAX_FOLDERS = 256
MAX_ENTRIES = 4000
MAX_DEPTH, MAX_NEW_DEPTH = 3, 8
"""So deep is looked at first, and into what is made later: programs name folders by date and time."""
ELSEWHERE_DEPTH = MAX_NEW_DEPTH - 3
"""Of folders that the log names: what lies in them is not looked through, what is made in them is, so much deeper."""
QUIET_S = 1.0
MAX_NOISE = 2000
MAX_REACHED = 16
EARLY = float("-inf")

SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "wandb", "mlruns", "venv", "proc", "sys"})


class Saves:
    """Watches the folder of the checkpoints (or the working folder) a few levels deep.

    The folder need not be there yet, and may be removed, replaced and made again.
    """

    def __init__(self, root: Path, *, skip: tuple[Path, ...] = ()) -> None:
        self.inotify = INotify()
        self.skip = {str(path) for path in skip}
        self.folders: dict[int, tuple[str, int]] = {}
        self.entries = 0
        self.began: float | None = None
        self.ended: float | None = None
        self.path: str | None = None
        self.opened_at: float | None = None  # when the newest of its files was begun, as far as that was told
        # How it stood when the newest file was begun, and when that was: it may be the first one of another save.
        self.before: tuple[float, float | None] | None = None
        self.next_began = 0.0
        self.over: deque[Save] = deque()
        self.noise: dict[int, int] = {}
        self.opened: set[str] = set()  # and the two below: files whose end may still be told
        self.early: set[str] = set()
        self.disregarded: set[str] = set()
        self.root = str(root)
        self.elsewhere = Elsewhere()
        self.counting = Counting()
        self._watch(self.root, 0)
        self.rooted = bool(self.folders)

    def absorb(self, now: float) -> bool:
        """Take in what happened to the watched folders; True if it has to do with a save."""
        matters = False
        for event in self.inotify.read(timeout=0):
            if event.mask & flags.IGNORED:  # the folder is gone, its watch is free again
                _, depth = self.folders.pop(event.wd, ("", None))
                if depth == 0:
                    self._let_go()
                continue
            place = self.folders.get(event.wd)
            if place is None:
                continue
            folder, depth = place
            if event.mask & flags.MOVE_SELF:  # the root has another name now, and so have all files in it
                self._let_go()
                continue
            path = f"{folder}/{event.name}"
            if not self._owns(path):
                self._heard_noise(event.wd)
            elif event.mask & flags.ISDIR:
                self._folder(path, depth, event.mask, now)
                matters = True
            elif looks_like_save(path):
                self._file(path, event.mask, now)
                self.noise.pop(event.wd, None)
                matters = True
            else:
                self._heard_noise(event.wd)
        return matters

    def look(self, now: float, *, at_last: bool = False) -> Save | None:
        """Return a save once it has been over for a second; ``at_last``: nobody is left to write, so it is over now."""
        self.absorb(now)
        return self.next_over(now, at_last=at_last)

    def next_over(self, now: float, *, at_last: bool = False) -> Save | None:
        """Return the same of what was absorbed before: each look at what happened is a call to the kernel."""
        if not self.rooted and self.root not in self.skip and os.path.isdir(self.root):
            self._watch_new(self.root, 0, now)
            self.rooted = bool(self.folders)
            for folder in self.elsewhere.folders:
                self._watch(folder, ELSEWHERE_DEPTH)
        if self.over:
            return self.over.popleft()
        return self._finished(now, quiet_s=0.0 if at_last else QUIET_S)

    def also(self, path: str, now: float) -> None:
        """Watch for a save that the log speaks of, which may lie elsewhere; take in what is there of it."""
        path = os.path.realpath(path)
        if not self.rooted or self._watched_anyway(path):
            return
        found = self.elsewhere.hear(path)
        if found is None or not found[2]:
            return
        folder, path, _ = found
        if folder not in {place for place, _ in self.folders.values()}:
            self._watch(folder, ELSEWHERE_DEPTH)
        if os.path.isfile(path):
            self._file(path, flags.CLOSE_WRITE, now)
            self.opened.add(path)  # it may well be open still
        elif path != folder and os.path.isdir(path):
            self._watch(path, ELSEWHERE_DEPTH + 1)
            self._missed(path, now)

    def _watched_anyway(self, path: str) -> bool:
        """Say whether a path lies in a folder that is watched without being told."""
        inside = {os.path.realpath(place) for place, _ in self.folders.values() if self.elsewhere.of(place) is None}
        return path in inside or os.path.dirname(path) in inside

    def _owns(self, path: str) -> bool:
        """Say whether a path may be of this run: elsewhere only what the log has named, and what is like it."""
        return not self.elsewhere.folders or self.elsewhere.owns(path)

    def all_early(self) -> None:
        """Take in that nothing which was opened up to now can be a save."""
        self.early |= self.opened
        self.opened.clear()

    def disregard(self, before: float) -> None:
        """Forget what was begun up to ``before``; nor will the end of a file that is early be taken for a save."""
        if self.began is not None and self.began <= before:
            self.began = self.ended = self.path = self.opened_at = self.before = None
        self.over = deque(save for save in self.over if save.began > before)
        self.disregarded |= self.early
        self.early.clear()

    def _let_go(self) -> None:
        for watch in list(self.folders):
            with contextlib.suppress(OSError):
                self.inotify.rm_watch(watch)
        self.folders.clear()
        self.noise.clear()
        self.entries = 0
        self.rooted = False

    def _heard_noise(self, watch: int) -> None:
        """Stop watching a folder in which much happens and no checkpoint is ever written."""
        self.noise[watch] = self.noise.get(watch, 0) + 1
        if self.noise[watch] > MAX_NOISE:
            self.noise.pop(watch)
            self.folders.pop(watch, None)  # at once, so that its end is not taken for that of the folder
            with contextlib.suppress(OSError):
                self.inotify.rm_watch(watch)

    def next_look_s(self, now: float) -> float | None:
        """Return when ``look`` wants to be called though nothing happens; None if it does not."""
        if self.over:
            return 0.01
        return None if self.ended is None else max(0.01, self.ended + QUIET_S - now)

    def _folder(self, path: str, depth: int, mask: int, now: float) -> None:
        if depth + 1 <= MAX_NEW_DEPTH:
            self._watch_new(path, depth + 1, now)
        # A folder that is only made begins no save: a script may make `ckpt` hours before it first saves into it.
        if mask & flags.MOVED_TO and PLACE.search(os.path.basename(path)):
            self._file(path, mask, now)

    def _watch_new(self, path: str, depth: int, now: float) -> None:
        known = set(self.folders)
        self._watch(path, depth, MAX_NEW_DEPTH)
        for watch in self.folders.keys() - known:
            self._missed(self.folders[watch][0], now)

    def _missed(self, folder: str, now: float) -> None:
        """Take in the files that were made between the folder and the watch on it; nobody tells about those."""
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_file() and looks_like_save(entry.path):
                    # Under a name that is not yet its own it is still to be renamed, and that will be told.
                    self._file(entry.path, flags.CREATE if UNFINISHED.search(entry.name) else flags.CLOSE_WRITE, now)
                    self.opened.add(entry.path)  # it may well be open still

    def _file(self, path: str, mask: int, now: float) -> None:
        over = mask & (flags.CLOSE_WRITE | flags.MOVED_TO)
        if over and path in self.disregarded:
            self.disregarded.discard(path)
            return
        if over and path in self.early:
            self.early.discard(path)
            self.began = EARLY
        if not over and _is_link(path):
            return  # nobody writes through a new name for an old file, so that no end of it would be told
        if self.began is None:
            self.began = now
        if self.ended is not None and not over:
            self.before, self.next_began = (self.ended, self.opened_at), now
        was = self.ended, self.opened_at
        # Who writes over an old file makes none, and who renames one has made it before.
        if not over or self.opened_at is None or (mask & flags.CLOSE_WRITE and path not in self.opened):
            self.opened_at = now
        if over:
            self.opened.discard(path)
            self.ended = now
            final = self._final(path)
            if final is not None and (self._cut(final, was, now) or self._rather(final)):
                self.path = final
        else:
            self.opened.add(path)
            self.early.discard(path)
            self.disregarded.discard(path)
            self.ended = None  # another file of the same save was begun

    def _rather(self, final: str) -> bool:
        """Say whether a save is told by this name: by that of a ``last`` or ``ema`` only if it has no other."""
        return self.path is None or _plain(final) or not _plain(self.path)

    def _cut(self, final: str, was: tuple[float | None, float | None], now: float) -> bool:
        """Let the save before be over if ``final``, which has its name now, is of another one; say whether it is.

        ``was``: how it stood before that; a file that comes from elsewhere was never seen to be begun.
        """
        if self.path is None or self.began is None or not another(self.path, final):
            return False
        ended, opened = was if self.before is None else self.before
        if ended is None:
            return False
        if self.began != EARLY:
            self.over.append(self._save(self.path, self.began, ended, opened))
        self.began, self.before = now if self.before is None else self.next_began, None
        return True

    def _final(self, path: str) -> str | None:
        """Return the checkpoint that a file belongs to; None while its name says that it is unfinished."""
        folder, name = os.path.split(path)
        root = self.elsewhere.of(folder) or self.root
        parts = [*os.path.relpath(folder, root).split("/"), name]
        if any(UNFINISHED.search(part) for part in parts if part != "."):
            return None
        if folder != root and PLACE.search(os.path.basename(folder)) and NUMBER.search(os.path.basename(folder)):
            return folder
        return path

    def _save(self, path: str, began: float, ended: float, opened: float | None) -> Save:
        when = ended if opened is None else opened
        return Save(path, *self.counting.number_in(os.path.basename(path)), ended - began, began, ended, when)

    def _finished(self, now: float, *, quiet_s: float) -> Save | None:
        if self.began is None or self.ended is None or now - self.ended < quiet_s:
            return None
        began, ended, path, opened = self.began, self.ended, self.path, self.opened_at
        self.began = self.ended = self.path = self.opened_at = self.before = None
        return None if path is None else self._save(path, began, ended, opened)

    def _watch(self, path: str, depth: int, deepest: int = MAX_DEPTH) -> None:
        name = os.path.basename(path)
        hidden = depth > 0 and name.startswith(".") and not name.startswith(".tmp")
        if path in self.skip or hidden or (depth > 0 and name in SKIPPED) or len(self.folders) >= MAX_FOLDERS:
            return
        try:
            mask = flags.CREATE | flags.CLOSE_WRITE | flags.MOVED_TO | flags.ONLYDIR
            # The root may well be a link to another disk; below it links may lead in circles.
            mask |= flags.DONT_FOLLOW if depth > 0 else flags.MOVE_SELF
            self.folders[self.inotify.add_watch(path, mask)] = (path, depth)
            if depth >= deepest:
                return
            with os.scandir(path) as entries:
                for entry in entries:
                    self.entries += 1
                    if self.entries > MAX_ENTRIES:
                        return
                    if entry.is_dir(follow_symlinks=False):
                        self._watch(entry.path, depth + 1, deepest)
        except OSError:
            return  # gone again, not ours to read, or no watches left: fewer saves are seen, nothing else


def _plain(path: str) -> bool:
    """Say whether a name is that of a checkpoint of a series, and of none that is kept beside it."""
    return stands_out(os.path.basename(path)) is None


def _is_link(path: str) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISLNK(found.st_mode) or found.st_nlink > 1


class SaveWatch:
    """All that is noticed about saves: each goes to ``saved`` with its seconds, and with path and step if new."""

    def __init__(self, root: Path, *, skip: tuple[Path, ...], saved: Callable[..., None]) -> None:
        self.saves = Saves(root, skip=skip)
        self.silences = Silences()
        self.saved = saved
        self.without_step_at: float | None = None
        self.reached: dict[float, int | None] = {}  # the step that the log had come to when a file was begun
        self.number: int | None = None

    def saving(self) -> bool:
        """Say whether a save was begun and is not over yet."""
        return self.saves.began is not None and self.saves.ended is None

    def calm(self) -> bool:
        """Say whether no save is going on, or was over a moment ago."""
        return self.saves.began is None and not self.saves.over

    def look(
        self,
        now: float,
        step: int | None,
        step_s: float | None,
        *,
        stepping: bool,
        at_last: bool = False,
        at_once: bool = False,
    ) -> bool:
        """Tell a save that is over, and how long the log was silent around it; True if something like one is over.

        ``stepping``: a step of this attempt was read. What was begun up to the last look without one is no save; what
        was begun between that look and the one that has seen the step may be: one may come directly behind the other.
        ``at_once``: what is closed by now is told without a wait for more of it.
        """
        if stepping:
            self._step_seen()
            self.silences.stepped(step, now, step_s)
        else:
            self.without_step_at = now
            self.silences.pause()
        self.saves.absorb(now)
        self._note_step(step)
        found = False
        while (save := self.saves.next_over(now, at_last=at_last or at_once)) is not None:
            found = True
            if stepping:
                self._tell(save, step, now)
            self._note_step(step)
        self._note_step(step)
        for seconds in self.silences.around_saves():
            self.saved(seconds=seconds)
        if not stepping:
            self.saves.all_early()
        if at_last:  # what was begun and is not over will never be, and the way to the next attempt is no silence
            self.saves.disregard(now)
            self.silences.pause()
        return found

    def _tell(self, save: Save, step: int | None, now: float) -> None:
        self.silences.saved(save)
        reached = self.reached.get(save.opened, step)
        step = step_of(save.number, save.told, reached, self.number)
        self.saved(seconds=save.seconds, path=save.path, step=step, ago_s=max(0.0, now - save.ended))
        self.number = save.number if save.number is not None else self.number

    def _note_step(self, step: int | None) -> None:
        """Remember how far the log had come when a file of a save was begun: it goes on while that is written."""
        at = self.saves.opened_at
        if at is not None and at not in self.reached:
            self.reached[at] = step
            if len(self.reached) > MAX_REACHED:
                del self.reached[next(iter(self.reached))]

    def _step_seen(self) -> None:
        before, self.without_step_at = self.without_step_at, None
        if before is not None:
            self.saves.disregard(before)

"""Reads a sensor's file as it grows: whole lines become samples, each exactly once. For the supervisor: never waits.

What a sensor leaves when it is killed, or a person when he edits the file, is passed over: half lines, lines that are
no sample, lines without an end. Who writes the file does not enter here.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from overnight.sensors import Sample

PIECE_BYTES = 256 << 10
"""Read in one turn at most. A line that is longer is passed over: a sample of a hundred GPUs has a tenth of that."""

BEHIND_BYTES = 8 << 20
"""More than sensors can have written while nobody looked, for they end with the supervisor: something runs wild."""

LAST_BYTES = 64 << 10
BAD = (msgspec.MsgspecError, UnicodeDecodeError, ValueError, RecursionError)


class SampleFile:
    """One file, which may not be there. ``place`` is the byte up to which it was taken in.

    ``latest``: the last sample; ``size``: of the file at the last look; ``more``: there is more to be read at once;
    ``unreadable``: how many lines were no sample.
    """

    behind_bytes = BEHIND_BYTES

    def __init__(self, path: Path, place: int = 0) -> None:
        self.path = os.fspath(path)
        self.place = max(0, place)
        self.latest: Sample | None = None
        self.size = 0
        self.more = False
        self.unreadable = 0
        self._file: tuple[int, int] | None = None
        self._done = (-1, -1, -1)
        self._inside = False  # the place is within a line that is passed over
        self._decode = msgspec.json.Decoder(Sample).decode

    def take(self) -> list[tuple[int, Sample]]:
        """Return the samples of the whole lines that are new, each with the offset of its line."""
        self.more = False
        try:
            look = os.stat(self.path)
            if (look.st_dev, look.st_ino, look.st_size) == self._done:
                return []
            handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError:
            return []
        try:
            return self._read(handle)
        except OSError:  # no file, or a disk that is gone
            return []
        finally:
            os.close(handle)

    def _read(self, handle: int) -> list[tuple[int, Sample]]:
        look = os.fstat(handle)
        file, self.size = (look.st_dev, look.st_ino), look.st_size
        if self._file is None:
            self._find(handle)
        elif self._file != file or self.size < self.place or not self._at_begin(handle):
            self.place, self._inside = 0, False  # another file, or an emptied one
        self._file = file
        if self.size - self.place > self.behind_bytes:
            self.place, self._inside = self.size - PIECE_BYTES, True
            self.unreadable += 1
        data = os.pread(handle, PIECE_BYTES, self.place)
        self.more = len(data) == PIECE_BYTES
        self._done = (*file, self.place + len(data))
        return self._cut(data)

    def _at_begin(self, handle: int) -> bool:
        return self.place == 0 or self._inside or os.pread(handle, 1, self.place - 1) == b"\n"

    def _find(self, handle: int) -> None:
        """Find the place that an earlier supervisor has come to, and the last sample before it."""
        if self.place > self.size:
            self.place = 0
        before = os.pread(handle, min(LAST_BYTES, self.place), max(0, self.place - LAST_BYTES))
        self._inside = bool(before) and not before.endswith(b"\n")
        for line in reversed(before.split(b"\n")):
            sample = self._sample(line)
            if sample is not None:
                self.latest = sample
                break

    def _cut(self, data: bytes) -> list[tuple[int, Sample]]:
        """Return the samples of a piece that begins at the place, and move the place behind its last whole line."""
        first = 0
        if self._inside:
            first = data.find(b"\n") + 1
            if not first:
                self.place += len(data)
                return []
            self._inside = False
        end = data.rfind(b"\n") + 1
        if end <= first and first == 0 and self.more:  # a line that is longer than a piece
            self.unreadable += 1
            self.place, self._inside = self.place + len(data), True
            return []
        found = []
        at = self.place + first
        for line in data[first:end].splitlines(keepends=True):
            sample = self._sample(line)
            if sample is not None:
                found.append((at, sample))
            elif line.strip():
                self.unreadable += 1
            at += len(line)
        self.place = at
        if found:
            self.latest = found[-1][1]
        return found

    def _sample(self, line: bytes) -> Sample | None:
        if not line.startswith(b"{"):
            return None
        try:
            return self._decode(line)
        except BAD:
            return None

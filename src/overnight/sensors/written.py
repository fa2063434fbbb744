"""Reads what the sensors of a run have written, for those who look back: every whole line once, nothing is followed.

A file that is not there holds nothing. Half a line, a line of a newer version or one that was edited is passed over.
The supervisor, which takes lines in as they come, has ``lines``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from overnight.errors import FolderError
from overnight.sensors import Sample
from overnight.sensors.lines import BAD, PIECE_BYTES

MOST_BYTES = 64 << 20
"""Of a longer file the end is read. A sensor writes half as often beyond 32 MiB, so this is more than any night."""


def written(path: Path, most_bytes: int = MOST_BYTES) -> Iterator[Sample]:
    """Yield the samples of a file in its order. FolderError if it is there and cannot be read."""
    decode = msgspec.json.Decoder(Sample).decode
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - most_bytes))
            if size > most_bytes:
                stream.readline(PIECE_BYTES)
            while line := stream.readline(PIECE_BYTES):
                if line.endswith(b"\n"):
                    try:
                        yield decode(line)
                    except BAD:
                        continue
    except FileNotFoundError:
        return
    except OSError as error:
        raise FolderError(f"{path} cannot be read: {error.strerror}") from error

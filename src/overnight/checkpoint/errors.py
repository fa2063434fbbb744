"""What can go wrong with a checkpoint; each message is one sentence that names the thing, the path, the next step."""

from __future__ import annotations


class CheckpointError(Exception):
    """A checkpoint cannot be saved, found, read or used."""


class SaveError(CheckpointError):
    """A save failed; what was there before is untouched, and the next save is tried as if this one had not been."""


class LockedError(CheckpointError):
    """Another training writes to the folder."""


class DamagedError(CheckpointError):
    """A checkpoint, or a file of one, is not as it was written."""


class StoppedError(CheckpointError):
    """A stop was asked for and no batch is to be had any more; the ``with`` block takes it in, and saves."""


class UsageError(CheckpointError, ValueError):
    """A value handed over makes no sense."""

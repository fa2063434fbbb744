"""The small tree of errors a person may see. Every message names the thing, the path and the next step.

Nothing else of ours is imported here; an error that is not in this tree is a defect and may show a traceback.
"""


class OvernightError(Exception):
    """Base of all errors that are told to the user as one sentence, without a traceback."""

    exit_code = 1


class UsageError(OvernightError):
    """What was asked cannot be done as asked: wrong flag, wrong name, missing command (exit code 2)."""

    exit_code = 2


class NoSuchRunError(OvernightError):
    """The named run does not exist (exit code 102)."""

    exit_code = 102


class WaitTimeoutError(OvernightError):
    """``wait --timeout`` ran out before the run ended (exit code 101)."""

    exit_code = 101


class FolderError(OvernightError):
    """A run folder cannot be read or written: permissions, a full disk, or an edit by hand (exit code 1)."""


class LaunchError(OvernightError):
    """The run's processes could not be placed (exit code 1)."""

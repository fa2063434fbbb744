"""The side process that a supervisor starts at the end of a run: report.html and report.json into its folder.

``python -I -m overnight.report.making RUNFOLDER``. Polite (nice 10) and never long (60 s), and whatever goes wrong is
one line on stderr and the exit code 1: a report that cannot be made changes nothing about the run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

from overnight.errors import OvernightError

LIMIT_S = 50
NICE = 10


class TooLongError(OvernightError):
    """The report took longer than it may."""


def make(path: Path) -> None:
    """Write report.html and report.json of the run in ``path``, each at once or not at all. OvernightError, OSError."""
    from overnight.folder import RunFolder, encode_json, write_atomic
    from overnight.report.gather import of_run
    from overnight.report.page import page

    folder = RunFolder(path)
    value = of_run(folder, time.time())
    write_atomic(folder.report_json, encode_json(value))
    write_atomic(folder.report_html, page(value).encode("utf-8", "backslashreplace"))


def main(words: list[str]) -> int:
    """Make the report of the run whose folder is the only word; return 0, or 1 after one line on stderr."""
    if len(words) != 1:
        print("overnight: the report needs the folder of one run", file=sys.stderr)  # noqa: T201 - its only voice
        return 2
    with contextlib.suppress(OSError):
        os.nice(NICE)
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(LIMIT_S)
    try:
        make(Path(words[0]))
    except (OvernightError, OSError) as error:
        said = str(error)
    except Exception as error:  # noqa: BLE001 - the outermost loop of a side process: one line, never a traceback
        said = repr(error)
    else:
        return 0
    print(f"overnight: no report of {words[0]}: {' '.join(said.split())}", file=sys.stderr)  # noqa: T201 - as above
    return 1


def _too_long(_number: int, _frame: object) -> None:
    raise TooLongError(f"it took longer than {LIMIT_S} s")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A side process that tells which processes of a run still hold the GPUs' device files, until none does.

Run as ``python -I -m overnight.aftermath.vacancy RUNDIR PARENT FILE...``. It prints one line of JSON whenever that
changes, an array of holders; the last one is empty. With ``--all FILE...`` it tells all holders, once, as one object.
Nothing is signalled here. A process that hangs in a driver may hold up whoever reads what /proc tells of it, so a
supervisor lets this process look.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from overnight.sensors.holders import Held, holders, sentences
from overnight.sensors.sampling import end_with_parent

LOOK_S = 0.25
LOOKS = 2
"""Who is seen only once is just about to end: a data worker whose training is gone."""


def told(held: Held, *, of_run: bool = True) -> list[dict[str, Any]]:
    """Return the run's holders (or all) for a line, each with its sentence."""
    found = held.of_run() if of_run else held.holders
    if not found:
        return []
    return [
        {
            "pid": one.pid,
            "start_ticks": one.start_ticks,
            "command": one.command,
            "paths": list(one.paths),
            "state": one.state,
            "user": one.user,
            "text": text,
        }
        for one, text in zip(found, sentences(held, of_run=of_run), strict=True)
    ]


def watch(run_dir: Path, paths: Sequence[str]) -> None:
    """Print who holds the files whenever that changes, and return when nobody of the run does."""
    before: list[dict[str, Any]] = []
    seen: dict[tuple[int, int], int] = {}
    while True:
        now = told(holders(paths, run_dir))
        seen = {key: seen.get(key, 0) + 1 for key in ((one["pid"], one["start_ticks"]) for one in now)}
        lasting = [one for one in now if seen[one["pid"], one["start_ticks"]] >= LOOKS]
        if not now or (lasting and lasting != before):  # an empty list says that nobody is left
            print(json.dumps(now and lasting), flush=True)  # noqa: T201 - a pipe
        if not now:
            return
        before = lasting
        time.sleep(LOOK_S)


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a program of its own."""
    words = sys.argv[1:] if argv is None else argv
    if words[0] == "--all":
        held = holders(words[1:])
        print(json.dumps({"holders": told(held, of_run=False), "sentences": sentences(held)}))  # noqa: T201 - a pipe
        return 0
    run_dir, parent, *paths = words
    end_with_parent(int(parent))
    watch(Path(run_dir), paths)
    return 0


if __name__ == "__main__":
    sys.exit(main())

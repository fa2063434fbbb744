"""The process that looks into one save beside the training: whether its content is good, told in one line of JSON.

Run as ``python -I -m overnight.resumption.looking``; stdin is one object: ``parent``, ``path``, ``fellow`` (the name of
a good save of the same series, or null), ``others`` (paths) and ``idle``. A large save is read only when nobody else
wants the machine. The line also says which of the others are gone.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import msgspec

from overnight.inspector import side
from overnight.inspector.findings import Budget
from overnight.resumption.judging import Judged, judge


def main() -> int:
    """Look at what stdin names."""
    asked = json.loads(sys.stdin.buffer.read())
    side.end_with_parent(asked["parent"])
    path = asked["path"]
    if asked["idle"] and side.marked(Path(path)).size > side.SMALL:
        side.step_back()
    judged, seconds = look(path, asked["fellow"])
    gone = [one for one in asked["others"] if side.marked(Path(one)).inode is None]
    line = {"path": path, "check_s": seconds, "gone": gone, **msgspec.structs.asdict(judged)}
    os.write(1, json.dumps(line).encode() + b"\n")
    return 0


def look(path: str, fellow: str | None = None) -> tuple[Judged, float]:
    """Return what the whole content of a path says, and the seconds of a processor that it took."""
    checked = side.checked(path, Budget())
    return judge(checked, fellow), checked.seconds


if __name__ == "__main__":
    sys.exit(main())

"""``overnight demo``: real training on this machine's CPU, and everything that matters in a night done to it.

Only the door is here, light to import. What happens is in ``stages.py``, what is trained in ``train.py``.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path


def run_demo(directory: Path | None = None, *, keep: bool = False) -> int:
    """Run all stages; return 0, 1 if one of them failed, 2 if it cannot begin, 130 if it was interrupted.

    It works in ``directory``, which must be new or empty, or in a new temporary folder. The folder is removed at the
    end unless ``keep`` is set or a stage failed.
    """
    if importlib.util.find_spec("numpy") is None:
        where = "in the checkout `pip install '.[demo]'`, or `uv tool install '.[demo]'`"
        print(f"overnight: the demo trains with numpy, which is not installed: {where}", file=sys.stderr)
        return 2
    ours = directory is None or not directory.exists()
    try:
        folder = _prepared(directory)
    except OSError as error:
        print(f"overnight: the demo cannot work in {directory}: {error.strerror or error}", file=sys.stderr)
        return 2
    # With several threads the last bit of a sum may change; BLAS reads this when numpy is imported, just below.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from overnight.demo.stages import play

    code = play(folder, keep=keep)
    if code in (0, 130) and not keep:
        for entry in folder.iterdir():
            shutil.rmtree(entry, ignore_errors=True)
        if ours:
            shutil.rmtree(folder, ignore_errors=True)
    return code


def _prepared(directory: Path | None) -> Path:
    """Return the absolute folder to work in; OSError if it cannot be made or holds something already."""
    if directory is None:
        return Path(tempfile.mkdtemp(prefix="overnight-demo-"))
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise FileExistsError("it is not empty; name a new folder")
    return directory.resolve()

"""Which rules about GPUs and the machine a replay can ask, and why not others: by the samples that a night has left.

Files are only looked at; what the rules find in the samples is not judged here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from overnight.sensors.archive import kinds_in, samples
from overnight.sensors.placing import Kind

JUDGED_BY: Final[dict[str, tuple[Kind, ...]]] = {
    "hardware": ("gpu",),
    "throttle": ("gpu",),
    "low_utilisation": ("gpu",),
    "memory_creep": ("gpu", "host"),
    "disk_space": ("host",),
}
"""Rules that judge what sensors told, and which of them; one that has none of its sensors cannot be asked."""

WORDS: Final[dict[Kind, str]] = {"gpu": "GPUs", "host": "the machine"}


def unsensed(run_dir: Path | None, *, untimed: str | None) -> dict[str, str]:
    """Return the rules that nothing can be told to, each with the reason.

    ``run_dir`` is None for a log that was never a run's. ``untimed``: why nobody knows when a line was written, so that
    no sample stands beside it.
    """
    if run_dir is None:
        return dict.fromkeys(JUDGED_BY, "a log alone does not have what sensors told")
    kinds = kinds_in(run_dir)
    if kinds and untimed is not None:
        return dict.fromkeys(JUDGED_BY, untimed)
    return {
        rule: f"there are no samples of {' or '.join(WORDS[kind] for kind in needed)}"
        for rule, needed in JUDGED_BY.items()
        if not kinds.intersection(needed)
    }


def last_sample(run_dir: Path | None, rule: str) -> float:
    """Return the time of the last sample that a rule was asked with, seconds since the epoch; 0 for none.

    When an attempt has ended its GPUs are looked at once more: what is found then stands in no file.
    """
    if run_dir is None:
        return 0.0
    return max((one.at for kind in JUDGED_BY.get(rule, ()) for _, one in samples(run_dir, kind)), default=0.0)

"""A checkpoint of GPT-2 124M with AdamW's moments (1.49 GB), by Overnight, by what people use instead, and the limits.

Each saver has a process of its own with the same state and the same small training beside it; all use the torch of the
peers' environment, and they are taken in turns, round after round. Seconds are per GB of state (1e9 bytes). Each save
begins with all earlier ones on the disk. Unless --folder says otherwise, everything is written to the disk that build/
lies on. Each single figure is in build/bench/checkpoints.json.

    python bench/checkpoints.py [--size 0.1] [--rounds 2] [--folder DIR] [--only WORD ...]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from side import PEERS, spread, table

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent / "src"
RESULTS = HERE.parent / "build" / "bench"
LIMIT_S = 3600.0
"""Seconds after which one process is given up."""

SYNC, ASYNC = "overnight, async_=False", "overnight, async"
TORCH, PROCESS = "torch.save", "DCP async_save, process, kept stager"
SAVERS = (
    TORCH,
    "safetensors save_file",
    "DCP save",
    "DCP async_save, thread, kept stager",
    PROCESS,
    "Lightning AsyncCheckpointIO",
    ASYNC,
    SYNC,
    "limit: copy into warm memory",
    "limit: O_DIRECT write and fsync",
)
FSYNC = {
    TORCH: "the bench",
    "safetensors save_file": "the bench",
    "DCP save": "itself (files)",
    "DCP async_save, thread, kept stager": "itself (files)",
    PROCESS: "itself (files)",
    "Lightning AsyncCheckpointIO": "the bench; it never does",
    ASYNC: "itself",
    SYNC: "itself",
    "limit: O_DIRECT write and fsync": "itself",
}

Found = dict[str, list[dict[str, Any]]]
"""What the processes of each saver have written down."""


def once(python: Path, saver: str, folder: Path, *words: str) -> dict[str, Any] | None:
    """Run one saver in a process of its own; return its figures, None if what it needs is not installed."""
    place, out = folder / "saves", folder / "figures.json"
    place.mkdir()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OVERNIGHT_")}
    # Lightning writes to the folder for temporary files first: on the same disk, moving it from there is a rename.
    environ |= {"PYTHONPATH": str(SOURCE), "TMPDIR": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    argv = [str(python), str(HERE / "checkpoint_trainer.py"), "--saver", saver, "--folder", str(place)]
    started = subprocess.Popen(
        [*argv, "--out", str(out), *words],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = started.communicate(timeout=LIMIT_S)
    except BaseException:
        os.killpg(started.pid, signal.SIGKILL)
        started.communicate()
        raise
    finally:
        shutil.rmtree(place, ignore_errors=True)
    if started.returncode != 0:
        raise RuntimeError(f"{saver} ended with {started.returncode}:\n{said}")
    found: dict[str, Any] | None = json.loads(out.read_text())
    return found


def turns(python: Path, savers: Sequence[str], folder: Path, rounds: int, words: Sequence[str]) -> Found:
    """Run the savers in turns, each in a new process each time.

    Those that are not installed are left out, and so is a peer that fails, which is told; RuntimeError if ours does.
    """
    found: Found = {}
    for number in range(rounds):
        for saver in savers:
            load = os.getloadavg()[0]
            print(f"  round {number + 1} of {rounds}, load {load:.1f}: {saver}", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(prefix="checkpoints-", dir=folder, ignore_cleanup_errors=True) as place:
                try:
                    figures = once(python, saver, Path(place), *words)
                except RuntimeError as error:
                    if saver in (SYNC, ASYNC):
                        raise
                    print(f"left out: {error}", file=sys.stderr, flush=True)
                    continue
            if figures is not None:
                found.setdefault(saver, []).append(figures)
    return found


class Tables:
    """The figures as tables; each has the budget and whether it is met beside what it is for."""

    def __init__(self, found: Found) -> None:
        self.found = found
        first = next(iter(found.values()))[0]
        self.size = first["size"] / 1e9

    def values(self, saver: str, phase: str, what: str, *, warm: bool = True) -> list[float]:
        """Return one figure of all saves of a saver, without the first of each process (or of those alone)."""
        if phase == "training":
            saves = [
                one
                for figures in self.found.get(saver, [])
                for at, one in enumerate(figures.get(phase, []))
                if (at > 0) is warm
            ]
        else:
            saves = [one for figures in self.found.get(saver, []) for one in figures.get(phase, [])]
        return [one[what] for one in saves if one[what] is not None]

    def per_gb(self, *asked: str, warm: bool = True) -> list[float]:
        """Return what :meth:`values` does, in seconds per GB."""
        return [one / self.size for one in self.values(*asked, warm=warm)]

    def verdict(self, ours: Sequence[float], budgets: Sequence[tuple[float, Sequence[float], str]]) -> str:
        """Return the budgets and whether the median of ours keeps them."""
        said = []
        for factor, others, words in budgets:
            if ours and others:
                kept = statistics.median(ours) <= factor * statistics.median(others)
                said.append(f"{words}: {'met' if kept else 'NOT met'}")
        return "; ".join(said)

    def blocked(self) -> list[dict[str, Any]]:
        """How long a save keeps the training."""
        torch, process = (self.per_gb(one, "training", "kept_s") for one in (TORCH, PROCESS))
        rows = []
        for saver in self.found:
            warm = self.per_gb(saver, "training", "kept_s")
            if warm:
                asked = [(0.30, torch, "<= 0.30 of torch.save"), (1.0, process, "<= DCP, process")]
                rows.append(
                    {
                        "training kept by": saver,
                        "s/GB, warm (min-max)": spread(warm, 3),
                        "s/GB, first save": spread(self.per_gb(saver, "training", "kept_s", warm=False), 3),
                        "of torch.save": _of(torch, warm),
                        "budget": self.verdict(warm, asked if saver == ASYNC else []),
                    }
                )
        return rows

    def during(self) -> list[dict[str, Any]]:
        """What a step of the training takes while a checkpoint is written."""
        rows = []
        for saver in self.found:
            saves = [
                one
                for figures in self.found[saver]
                for one in figures.get("training", [])[1:]
                if one["during_s"] is not None
            ]
            if saves:
                ratios = [one["during_s"] / one["quiet_s"] for one in saves]
                done = self.per_gb(saver, "training", "done_s")
                rows.append(
                    {
                        "a step during a write by": saver,
                        "quiet step ms": spread([one["quiet_s"] * 1000 for one in saves], 0),
                        "median step ms": spread([one["during_s"] * 1000 for one in saves], 0),
                        "of a quiet one": spread(ratios),
                        "longest step ms": f"{max(one['during_largest_s'] for one in saves) * 1000:.0f}",
                        "steps": sum(one["steps"] for one in saves),
                        "written after s/GB": spread(done, 1) if len(done) == len(saves) else "longer than was waited",
                        "budget": self.verdict(ratios, [(2.0, [1.0], "<= 2 of a quiet one")] if saver == ASYNC else []),
                    }
                )
        return rows

    def durable(self) -> list[dict[str, Any]]:
        """How long it takes until a checkpoint is on the disk and has a digest; the training rests."""
        torch = self.per_gb(TORCH, "durable", "durable_s")
        factors = {SYNC: (1.0, torch, "<= torch.save + fsync"), ASYNC: (1.5, torch, "<= 1.5 of torch.save + fsync")}
        rows = []
        for saver in self.found:
            taken = self.per_gb(saver, "durable", "durable_s")
            if taken:
                verified = self.per_gb(saver, "durable", "verified_s")
                rows.append(
                    {
                        "on the disk by": saver,
                        "says so after s/GB": spread(self.per_gb(saver, "durable", "done_s")),
                        "fsynced after s/GB": spread(taken),
                        "with a digest after s/GB": spread(verified),
                        "fsync by": FSYNC[saver],
                        "fsynced, of torch.save + fsync": _of(torch, taken),
                        "budget": self.verdict(verified, [factors[saver]] if saver in factors else []),
                    }
                )
        return rows

    def memory(self) -> list[dict[str, Any]]:
        """What a saver holds beside the training at its peak, in parts of the state."""
        rows = []
        for saver, all_of in self.found.items():
            held = [figures["memory"] for figures in all_of if "memory" in figures]
            if held:
                most = {what: max(one[what] for one in held) / 1e6 for what in ("trainer", "others", "shared")}
                rows.append(
                    {
                        "peak memory beside the state by": saver,
                        "trainer MB": f"{most['trainer']:,.0f}",
                        "its other processes MB": f"{most['others']:,.0f}",
                        "shared MB, once": f"{most['shared']:,.0f}",
                        "sum, of the state": f"{sum(most.values()) / 1000 / self.size:.2f} x",
                    }
                )
        return rows

    def loading(self) -> list[dict[str, Any]]:
        """How long it takes to have the state back in the model and the optimizer."""
        times: dict[str, dict[str, list[float]]] = {}
        for all_of in self.found.values():
            for figures in all_of:
                for way, tries in figures["loads"].items():
                    for one in tries:
                        for where, seconds in one.items():
                            times.setdefault(way, {}).setdefault(where, []).append(seconds / self.size)
        plain = times.get("torch.load", {"disk_s": [], "memory_s": []})
        return [
            {
                "loaded by": way,
                "s/GB from the disk": spread(taken["disk_s"]),
                "of torch.load": _of(plain["disk_s"], taken["disk_s"]),
                "s/GB from the page cache": spread(taken["memory_s"]),
                "of torch.load, from the page cache": _of(plain["memory_s"], taken["memory_s"]),
            }
            for way, taken in times.items()
        ]

    def all(self) -> dict[str, list[dict[str, Any]]]:
        """Return the tables that have rows, by their titles."""
        makers: list[Callable[[], list[dict[str, Any]]]] = [
            self.blocked,
            self.during,
            self.durable,
            self.memory,
            self.loading,
        ]
        made = {(maker.__doc__ or "").strip(): maker() for maker in makers}
        return {title: rows for title, rows in made.items() if rows}


def _of(base: Sequence[float], values: Sequence[float]) -> str:
    return f"{statistics.median(values) / statistics.median(base):.2f} x" if base else "-"


def python_of_savers() -> Path:
    """Return the peers' Python if torch is there, else this one: then some savers are left out."""
    there = PEERS.exists() and any(PEERS.parent.parent.glob("lib/python*/site-packages/torch"))
    return PEERS if there else Path(sys.executable)


def measure(
    *,
    quick: bool,
    size: float | None = None,
    rounds: int | None = None,
    folder: Path | None = None,
    savers: Sequence[str] = SAVERS,
) -> dict[str, list[dict[str, Any]]]:
    """Return the tables by their titles. ``quick`` takes a fiftieth of the state, and one round."""
    size = size or (0.02 if quick else 1.0)
    place = folder or RESULTS
    for one in (place, RESULTS):
        one.mkdir(parents=True, exist_ok=True)
    needed, free = 4 * 1.5e9 * size, shutil.disk_usage(place).free
    if free < needed:
        raise SystemExit(
            f"{place} has {free / 1e9:.1f} GB free and this needs {needed / 1e9:.1f}; name another --folder"
        )
    words = ["--size", str(size)]
    words += ["--saves", "2", "--idle", "1", "--loads", "1", "--quiet-s", "0.5"] if quick else []
    found = turns(python_of_savers(), savers, place, rounds or (1 if quick else 2), words)
    (RESULTS / "checkpoints.json").write_text(json.dumps(found, indent=1) + "\n")
    return Tables(found).all()


def main() -> int:
    """Measure this section alone, as asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a fiftieth of the state, and few saves")
    parser.add_argument("--size", type=float, help="part of GPT-2's state (1 is all of it)")
    parser.add_argument("--rounds", type=int, help="processes of each saver")
    parser.add_argument("--folder", type=Path, help="where to write (build/bench)")
    parser.add_argument(
        "--only", nargs="*", default=[""], metavar="WORD", help="savers with one of these in their names"
    )
    asked = parser.parse_args()
    savers = [one for one in SAVERS if any(word in one for word in asked.only)]
    tables = measure(quick=asked.quick, size=asked.size, rounds=asked.rounds, folder=asked.folder, savers=savers)
    for title, rows in tables.items():
        print(f"### {title}\n\n{table(rows)}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""``make bench``: Overnight, what people use instead, and the machine's own limits, measured in turns in one run.

Seconds on a shared machine mean little; what is printed are ratios between things measured side by side, with their
spread. Results go to build/bench/ as Markdown and JSON, with the facts of the machine.

    python bench/run.py [--quick] [SECTION ...]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import chart
import checkpoints
import latency
import listing
import pipeline
import reading
import rest
import restart
from side import Table, table

SECTIONS = {
    "latency": latency,
    "rest": rest,
    "listing": listing,
    "pipeline": pipeline,
    "reading": reading,
    "chart": chart,
    "restart": restart,
    "checkpoints": checkpoints,
}
RESULTS = Path(__file__).resolve().parent.parent / "build" / "bench"


def machine() -> dict[str, Any]:
    """Return what a reader must know about the machine to read the figures."""
    memory = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    model = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return {
        "cores": os.cpu_count(),
        "processor": model[0] if model else platform.machine(),
        "memory_gib": round(int(memory.split()[1]) / (1 << 20), 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def tables(found: Table | dict[str, Table]) -> str:
    """Return what a section has measured: one table, or several, each under its title."""
    if isinstance(found, dict):
        return "\n\n".join(f"### {title}\n\n{table(rows)}" for title, rows in found.items())
    return table(found)


def main() -> int:
    """Run the sections asked for and write the results down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], help="all if none is named")
    parser.add_argument("--quick", action="store_true", help="few tries: shows that it works, not what it costs")
    asked = parser.parse_args()
    results: dict[str, Any] = {"machine": machine()}
    text = [f"# Bench\n\n{json.dumps(results['machine'])}\n"]
    for name in asked.sections or list(SECTIONS):
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        section = SECTIONS[name]
        found = section.measure(quick=asked.quick)
        results[name] = found
        text.append(f"## {name}\n\n{(section.__doc__ or '').strip()}\n\n{tables(found)}\n")
        print(text[-1], flush=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "bench.json").write_text(json.dumps(results, indent=1) + "\n")
    (RESULTS / "bench.md").write_text("\n".join(text))
    print(f"written to {RESULTS}/bench.md and bench.json", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

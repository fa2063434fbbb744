"""Records the nights anew: ``python tests/nights/record.py [NAME ...]``; ``--expect`` only writes what is expected.

Each training runs for real on this machine. Its log is packed into ``NAME/output.log.xz``; of a night that was launched
the run's own files are kept beside it, without anything of this machine. ``expected.json`` is what a replay finds; it
is only written if all that must be found is found, so that it can be trusted as far as ``nights.py``.
"""

# ruff: noqa: T201 - a script, which prints

from __future__ import annotations

import argparse
import json
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from reading import complaints, expectation, unpacked

from nights import HERE, NIGHTS, PYTHON, REWINDS, Night

MADE_UP = "/home/me/nights"
KEPT = ("run.json", "status.json", "journal.jsonl")
OF_ATTEMPT = ("start.json", "started.json", "exit.json", "stop.json")


def command_of(night: Night, work: Path) -> list[str]:
    """Return the command line, its places filled in."""
    places = {"{work}": str(work), "{rewinds}": REWINDS}
    words = [str(word) for word in night.command]
    for place, text in places.items():
        words = [word.replace(place, text) for word in words]
    return words


def record_log(night: Night, work: Path) -> bytes:
    """Run a training and return what it prints."""
    env = {**os.environ, "PYTHONUNBUFFERED": ""}
    done = subprocess.run(command_of(night, work), stdout=subprocess.PIPE, env=env, cwd=work, check=False)
    return done.stdout


def record_run(night: Night, work: Path, kept: Path) -> bytes:
    """Launch a training under ``overnight run``, wait for its end, keep the files of the run; return its log."""
    home = work / "home"
    env = {**os.environ, "OVERNIGHT_HOME": str(home), "XDG_CONFIG_HOME": str(work / "none")}
    overnight = [PYTHON, "-m", "overnight"]
    told = ["run", "--name", night.name, "--settle", "0.1s", *(night.launched or ()), "--"]
    subprocess.run([*overnight, *told, *command_of(night, work)], env=env, cwd=work, check=True)
    subprocess.run([*overnight, "wait", night.name], env=env, cwd=work, check=False)
    folder = home / "runs" / night.name
    hidden = {
        str(home): f"{MADE_UP}/home",
        str(work): f"{MADE_UP}/place",
        PYTHON: "/usr/bin/python3",
        str(HERE.parents[1]): f"{MADE_UP}/overnight",
        os.uname().nodename: "nights",
    }
    files = [Path(name) for name in KEPT]
    files += [one.relative_to(folder) for one in sorted(folder.glob("attempts/*/*.json")) if one.name in OF_ATTEMPT]
    for name in files:
        source = folder / name
        if source.exists():
            text = source.read_text()
            for real, made_up in hidden.items():
                text = text.replace(real, made_up)
            (kept / name).parent.mkdir(parents=True, exist_ok=True)
            (kept / name).write_text(without_machine(text))
    return (folder / "output.log").read_bytes()


def without_machine(text: str) -> str:
    """Return the lines of a JSON file without the identities of this machine, its boots and its control groups."""
    lines = []
    for line in text.splitlines():
        fact: dict[str, Any] = json.loads(line)
        for name, made_up in (("boot_id", "0" * 36), ("machine_id", "0" * 32), ("memory", None)):
            if name in fact:
                fact[name] = made_up
        lines.append(json.dumps(fact))
    return "\n".join(lines) + "\n"


def expect(night: Night, folder: Path) -> bool:
    """Write what a replay finds, if all that must be found is found."""
    with tempfile.TemporaryDirectory() as scratch:
        found = expectation(night, unpacked(folder, Path(scratch)))
    wrong = complaints(night, found)
    for text in wrong:
        print(f"{night.name}: {text}", file=sys.stderr)
    path = folder / "expected.json"
    old = json.loads(path.read_text()) if path.exists() else None
    if not wrong:
        path.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{night.name}: {'as before' if old == found else 'written'}, {len(found['timeline'])} verdicts")
    return not wrong


def readme() -> str:
    """Return the page that says how each night was recorded."""
    lines = [
        "# Recorded nights",
        "",
        "Logs of real trainings on a CPU, with what a replay has to find in them. `record.py` records them anew,",
        "`nights.py` lists them. Under what each was recorded and judged stands in its `expected.json`.",
        "",
        "| Night | How it was recorded | Must be found |",
        "|---|---|---|",
    ]
    for night in NIGHTS.values():
        must = ", ".join(f"{one.rule} -> {one.action} at step {one.first} to {one.last}" for one in night.must)
        what = "nothing that ends it" if night.healthy else must or "nothing"
        if night.ends:
            what += f"; ended by {night.ends}"
        launched = "" if night.launched is None else f" (`overnight run {' '.join(night.launched)}`)"
        lines.append(f"| `{night.name}` | {night.how}{launched} | {what} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Record what was named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--expect", action="store_true", help="keep the logs, write expected.json only")
    asked = parser.parse_args()
    well = True
    for name in asked.names or NIGHTS:
        night, folder = NIGHTS[name], HERE / name
        if not asked.expect:
            work = Path(tempfile.mkdtemp(prefix="night-"))
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            log = record_log(night, work) if night.launched is None else record_run(night, work, folder)
            (folder / "output.log.xz").write_bytes(lzma.compress(log, preset=9 | lzma.PRESET_EXTREME))
            shutil.rmtree(work)
        well = expect(night, folder) and well
    (HERE / "README.md").write_text(readme())
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())

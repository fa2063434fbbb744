"""Reads recorded nights: unpacks them, replays them, says what is found. Used by the tests and by ``record.py``."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

from nights import Night
from overnight.cli.replay import replayed_words


def unpacked(folder: Path, place: Path) -> Path:
    """Unpack a night into ``place`` and return its log, or the folder of its run, which is told where the log is."""
    log = place / "output.log"
    log.write_bytes(lzma.decompress((folder / "output.log.xz").read_bytes()))
    if not (folder / "run.json").exists():
        return log
    for path in sorted(folder.rglob("*.json*")):
        target = place / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    asked = json.loads((place / "run.json").read_text())
    asked["spec"]["log"] = str(log)
    (place / "run.json").write_text(json.dumps(asked))
    return place


def told(place: Path, *flags: str) -> dict[str, Any]:
    """Return what ``overnight replay --json`` would print of an unpacked night."""
    return replayed_words([str(place), *flags])


def expectation(night: Night, place: Path) -> dict[str, Any]:
    """Return what is kept of a replay: nothing that depends on where the files lie."""
    found = told(place, *night.flags)
    names = ("rule", "severity", "action", "step", "attempt", "line", "after_end")
    return {
        "how": night.how,
        "flags": list(night.flags),
        "launched": None if night.launched is None else list(night.launched),
        "healthy": night.healthy,
        "reader": found["log"]["reader"],
        "records": found["read"]["records"],
        "evals": found["read"]["evals"],
        "segments": found["read"]["segments"],
        "steps": found["read"]["steps"],
        "dt_s": None if found["read"]["dt_s"] is None else round(found["read"]["dt_s"], 1),
        "timeline": [
            {name: one[name] for name in names} | {"night": one["night"] and one["night"]["how"]}
            for one in found["verdicts"]
        ],
        "missing": [one["rule"] for one in (found["night"] or {"missing": []})["missing"]],
        "end": None if found["end"] is None else {name: found["end"][name] for name in ("rule", "step", "then")},
    }


def complaints(night: Night, found: dict[str, Any]) -> list[str]:
    """Return what is not as ``nights.py`` says that it must be."""
    wrong = []
    ended = None if found["end"] is None else found["end"]["rule"]
    if ended != night.ends:
        wrong.append(f"ended by {ended}, not by {night.ends}")
    for must in night.must:
        alike = [
            one
            for one in found["timeline"]
            if (one["rule"], one["action"]) == (must.rule, must.action)
            and (must.first is None or (one["step"] is not None and must.first <= one["step"] <= (must.last or 0)))
        ]
        if not alike:
            wrong.append(f"not found: {must}")
    if not found["records"]:
        wrong.append("nothing was read")
    return wrong

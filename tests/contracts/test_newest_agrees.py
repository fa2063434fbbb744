"""The library and the inspector name the same newest checkpoint, whatever lies in a folder of ours."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from checkpoint_folders import own
from overnight.checkpoint import newest
from overnight.inspector import checking


def spoiled(path: Path, how: str, dice: random.Random) -> None:
    """Do to a checkpoint what disks and people do."""
    weights, manifest = path / "model.safetensors", path / "MANIFEST.json"
    data = bytearray(weights.read_bytes())
    if how == "flip":
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        weights.write_bytes(data)
    elif how == "cut":
        weights.write_bytes(data[: dice.randrange(len(data))])
    elif how == "gone":
        weights.unlink()
    elif how == "no manifest":
        manifest.unlink()
    elif how == "manifest":
        text = bytearray(manifest.read_bytes())
        text[dice.randrange(len(text))] ^= 1 << dice.randrange(8)
        manifest.write_bytes(text)
    elif how == "elsewhere":
        other = path.parent.parent / f"other-{path.parent.name}-{path.name}"
        path.rename(other)
        path.symlink_to(other)
    elif how == "neighbour":
        (path.parent / f"link-{path.name}").symlink_to(path.name)


@pytest.mark.parametrize("seed", range(30))
def test_library_and_inspector_agree(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    folder = tmp_path / "out"
    folder.mkdir()
    ways = ["good"] * 6 + ["nan", "sick", "flip", "cut", "gone", "no manifest", "manifest", "elsewhere", "neighbour"]
    for at in range(dice.randint(1, 8)):
        number, generation, step = dice.randint(1, 3), dice.randint(0, 2), dice.choice((0, 5, 50, 100, 1000, 123456789))
        how = dice.choice(ways)
        path = own(
            folder, step, run=f"run{number}", number=number, generation=generation, finite=how != "nan",
            healthy=how not in ("nan", "sick"), name=dice.choice((f"step-{step:08d}.{at + 2}", f"x{at}")),
            ancestors=[[earlier, dice.choice((5, 100))] for earlier in range(generation)],
        )  # fmt: skip
        spoiled(path, how, dice)
    if dice.random() < 0.3:  # a checkpoint of another run may have been copied here
        (folder / "LOCK").write_text(json.dumps({"run": f"run{dice.randint(1, 3)}"}))
    if dice.random() < 0.3:
        own(folder / "nested", 7)
    theirs, found = newest(folder), checking.look(str(folder), limit=None).newest
    assert (None if theirs is None else str(theirs)) == (None if found is None else found.path)
    shutil.rmtree(folder)

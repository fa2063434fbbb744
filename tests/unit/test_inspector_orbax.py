"""Folders of orbax, laid out as orbax-checkpoint 0.12.8 does; its manifest and its node are real ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from overnight.inspector import choosing, orbax, walk
from overnight.inspector.findings import Budget, Found
from overnight.sweep import each

MANIFEST = bytes.fromhex(
    "0cdb3a2a7200000000000000000128b52ffd2057b9020030fa3263be7e0eb01987630537fb607400800880c2d72f04010000"
    "0000012200642f36356432313538633436626461346436313430626565383130396533326231320101000000e80208e802f3"
    "119cd24bdf65b1ec18005cccb35c"
)
NODE = bytes.fromhex(
    "0cdb20deab00000000000000000128b52ffd20b5850400a2491f209025eaff9fd9e291b6c9b07713286bac249220677486ca"
    "b0fbd536bb5e37415a9101ff72e1961cea52e9a7071ccfaab835ebdb65185e99cde6d85dc9d30f0be07875ce534f37fe92d3"
    "691facad66ba2cf51415f0ab8deed3d5ebe778b50ee1b9752bbba5214f0302f826608c821c228a022799f331084e5f0f0a82"
    "0805001f0b20c28c2593c86ade5fd152660a87eb20"
)

COMMITTED = 1_796_005_402_512_278_231
TREE = {"tree_metadata": {"('params', 'w')": {}, "('step',)": {}}, "use_ocdbt": True}


def database(path: Path) -> None:
    (path / "d").mkdir(parents=True)
    (path / "manifest.ocdbt").write_bytes(MANIFEST)
    (path / "d" / "65d2158c46bda4d6140bee8109e32b12").write_bytes(NODE)


def step(folder: Path, name: str, *, item: str = "default", committed: int | None = COMMITTED) -> Path:
    path = folder / name
    database(path / item)
    database(path / item / "ocdbt.process_0")
    (path / item / "_METADATA").write_text(json.dumps(TREE))
    about = {"item_handlers": {item: "a.Handler"}, "init_timestamp_nsecs": 1, "commit_timestamp_nsecs": committed}
    (path / "_CHECKPOINT_METADATA").write_text(json.dumps(about))
    return path


def look(path: Path) -> Found:
    found = walk.look(path, Budget())
    assert found is not None
    assert found.maker == "orbax"
    return found


def test_crc32c_is_the_one_of_the_standard() -> None:
    assert orbax.crc32c(b"123456789") == 0xE3069283
    assert orbax.crc32c(b"") == 0


def test_a_finalized_step(tmp_path: Path) -> None:
    found = look(step(tmp_path, "15"))
    assert (found.complete, found.problem, found.step, found.saved_at) == (True, None, 15, COMMITTED / 1e9)
    assert found.intact is None
    assert "cannot be seen" in found.notes[0]


def test_a_temporary_folder_is_no_checkpoint(tmp_path: Path) -> None:
    step(tmp_path, "5")
    step(tmp_path, "10")
    step(tmp_path, "15.orbax-checkpoint-tmp", committed=None)
    step(tmp_path, "20.orbax-checkpoint-tmp-1234")
    seen = walk.survey(tmp_path, Budget(), each)
    assert sorted(Path(one.path).name for one in seen.found) == ["10", "5"]
    assert choosing.newest(seen.found).step == 10  # type: ignore[union-attr]
    assert "15.orbax-checkpoint-tmp" in seen.notes[0]


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        ("default/_METADATA", "default/_METADATA missing"),
        ("default/manifest.ocdbt", "default/manifest.ocdbt missing"),
        ("default/ocdbt.process_0/manifest.ocdbt", "default/ocdbt.process_0/manifest.ocdbt missing"),
        ("default/d/65d2158c46bda4d6140bee8109e32b12", "default/d is empty"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, gone: str, said: str) -> None:
    path = step(tmp_path, "15")
    (path / gone).unlink()
    assert (look(path).complete, look(path).problem) == (False, said)


def test_a_missing_item_is_named(tmp_path: Path) -> None:
    path = step(tmp_path, "15", item="state")
    (path / "state").rename(tmp_path / "elsewhere")
    assert look(path).problem == "state missing"


def test_a_save_that_was_not_committed(tmp_path: Path) -> None:
    found = look(step(tmp_path, "15", committed=None))
    assert found.problem == "_CHECKPOINT_METADATA says that the save was not committed"


@pytest.mark.parametrize("name", ["manifest.ocdbt", "d/65d2158c46bda4d6140bee8109e32b12"])
def test_every_flipped_bit_of_a_manifest_and_of_a_node_is_found(tmp_path: Path, name: str) -> None:
    path = step(tmp_path, "15")
    target = path / "default" / name
    whole = target.read_bytes()
    for at in range(12 if name.startswith("d/") else 0, len(whole), 7):  # what does not begin as a node is not known
        target.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        found = look(path)
        assert False in (found.intact, found.complete), at
        assert name in str(found.problem)


@pytest.mark.parametrize("name", ["manifest.ocdbt", "d/65d2158c46bda4d6140bee8109e32b12"])
def test_every_cut_is_found(tmp_path: Path, name: str) -> None:
    path = step(tmp_path, "15")
    target = path / "default" / name
    whole = target.read_bytes()
    for length in range(0, len(whole), 13):
        target.write_bytes(whole[:length])
        if 0 < length < 12 and name.startswith("d/"):
            continue  # nothing tells what these few bytes were
        found = look(path)
        assert False in (found.intact, found.complete), length


def test_a_node_after_values_is_found_and_checked(tmp_path: Path) -> None:
    path = step(tmp_path, "15")
    target = path / "default" / "d" / "values"
    values = bytes(range(1, 256)) * 100
    target.write_bytes(values + NODE)
    assert look(path).problem is None
    target.write_bytes(values + NODE[:-5])
    assert look(path).problem == "default/d/values is cut off"
    target.write_bytes(values + NODE[:60] + b"\0" + NODE[61:])
    assert look(path).problem == "default/d/values is damaged: its CRC differs"


def test_a_tail_of_zeros_is_found(tmp_path: Path) -> None:
    path = step(tmp_path, "15")
    (path / "default" / "d" / "values").write_bytes(b"\x28\xb5\x2f\xfd" * 4096 + bytes(16384))
    assert look(path).problem == "default/d/values ends in zeros"


def test_arrays_in_folders_of_their_own(tmp_path: Path) -> None:
    path = step(tmp_path, "15")
    item = path / "default"
    (item / "manifest.ocdbt").unlink()
    (item / "_METADATA").write_text(json.dumps({**TREE, "use_ocdbt": False}))
    for name in ("params.w", "step"):
        (item / name).mkdir()
        (item / name / ".zarray").write_text("{}")
    assert (look(path).complete, look(path).problem) == (True, None)
    (item / "step" / ".zarray").unlink()
    assert look(path).problem == "default/step missing"


def test_absurd_claims_are_read_to_a_limit_only(tmp_path: Path) -> None:
    path = step(tmp_path, "15")
    claim = (1 << 62).to_bytes(8, "little")
    (path / "default" / "manifest.ocdbt").write_bytes(MANIFEST[:4] + claim + MANIFEST[12:])
    assert look(path).problem == "default/manifest.ocdbt is cut off"
    (path / "default" / "_METADATA").write_text('{"tree_metadata": ' + "[" * 200_000)
    assert False in (look(path).complete, look(path).intact)

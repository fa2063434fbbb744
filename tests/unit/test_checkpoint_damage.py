"""A checkpoint that is not, bit for bit, what was written is found, said by its name, and the one before is chosen."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_checkpoints import chosen, names, save, saved

from overnight.checkpoint import errors, load, manifest, newest, reading

QUICK = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@dataclass(frozen=True)
class Folder:
    """Three checkpoints; the last one is damaged by each test, and put back afterwards."""

    path: Path
    files: dict[str, bytes]  # of the last one

    @property
    def last(self) -> Path:
        return self.path / "step-00000150"

    @property
    def before(self) -> Path:
        return self.path / "step-00000100"

    def restore(self) -> None:
        shutil.rmtree(self.last)
        self.last.mkdir()
        for name, data in self.files.items():
            (self.last / name).write_bytes(data)

    def write(self, name: str, data: bytes) -> None:
        (self.last / name).write_bytes(data)

    def at(self, place: int) -> tuple[str, int]:
        """Return the file that has the byte number ``place`` of all bytes of the checkpoint, and where in it."""
        for name, data in self.files.items():
            if place < len(data):
                return name, place
            place -= len(data)
        raise AssertionError(place)

    @property
    def size(self) -> int:
        return sum(map(len, self.files.values()))


@pytest.fixture(params=[False, True], ids=["numpy", "torch"], scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    if request.param:
        pytest.importorskip("torch")
    path = tmp_path_factory.mktemp("checkpoints")
    for step in (50, 100, 150):
        figures = {"progress": {"trained_s": 1e-05 + 0.1 * step}, "metrics": {"loss": 2e-07 * step}}
        saved(path, step, torch=request.param, **figures)
    return Folder(path, {one.name: one.read_bytes() for one in sorted((path / "step-00000150").iterdir())})


@pytest.fixture(autouse=True)
def as_before(folder: Folder) -> Iterator[None]:
    yield
    folder.restore()


def assert_found(folder: Folder, file: str) -> str:
    """Assert that the damage is found wherever one looks, by name, and that the one before is chosen; return why."""
    assert newest(folder.path) == folder.before
    path, said = chosen(folder.path)
    assert path == folder.before
    (line,) = said
    assert line.startswith(f"passed over {folder.last.name}: ")
    assert file in line
    with pytest.raises(errors.CheckpointError, match="step-00000150"):
        chosen(folder.path, folder.last)
    assert load(folder.path).path == folder.before
    return line


def test_undamaged_it_is_chosen(folder: Folder) -> None:
    assert newest(folder.path) == folder.last
    assert chosen(folder.path) == (folder.last, [])
    found = load(folder.last)
    assert found.step == found.parts["optimizer"]["t"] == 150
    assert set(found.parts["model"]["w"].tolist()) == set(found.parts["optimizer"]["m"].ravel().tolist()) == {150.0}


@QUICK
@given(data=st.data())
def test_one_bit_anywhere(folder: Folder, data: st.DataObject) -> None:
    name, place = folder.at(data.draw(st.integers(0, folder.size - 1), label="byte"))
    bit = data.draw(st.integers(0, 7), label="bit")
    changed = bytearray(folder.files[name])
    changed[place] ^= 1 << bit
    folder.write(name, changed)
    assert_found(folder, name)
    folder.restore()


def test_every_bit_of_the_manifest(folder: Folder) -> None:
    """Also those that change a number's writing and not its value, as 1e-05 and 1E-05."""
    whole = folder.files[manifest.NAME]
    assert b"e-05" in whole
    assert manifest.parse(whole).step == 150
    for place in range(len(whole)):
        for bit in range(8):
            changed = bytearray(whole)
            changed[place] ^= 1 << bit
            with pytest.raises(errors.DamagedError):
                manifest.parse(bytes(changed))


@QUICK
@given(data=st.data())
def test_cut_off_at_any_length(folder: Folder, data: st.DataObject) -> None:
    name, length = folder.at(data.draw(st.integers(0, folder.size - 1), label="length"))
    folder.write(name, folder.files[name][:length])
    assert_found(folder, name)
    folder.restore()


@QUICK
@given(data=st.data())
def test_bytes_put_in_or_taken_out(folder: Folder, data: st.DataObject) -> None:
    name, place = folder.at(data.draw(st.integers(0, folder.size - 1), label="byte"))
    more = data.draw(st.binary(min_size=1, max_size=5000), label="more")
    whole = folder.files[name]
    changed = data.draw(st.sampled_from([whole[:place] + more + whole[place:], whole[:place] + more, more, b""]))
    if changed == whole:
        return
    folder.write(name, changed)
    assert_found(folder, name)
    folder.restore()


def test_the_last_quarter_is_zeros(folder: Folder) -> None:
    """What a power cut leaves of a file that was never synced: its size, and zeros."""
    for name, whole in folder.files.items():
        keep = len(whole) * 3 // 4
        folder.write(name, whole[:keep] + bytes(len(whole) - keep))
        assert_found(folder, name)
        folder.restore()
        folder.write(name, bytes(len(whole)))
        assert_found(folder, name)
        folder.restore()


def test_a_page_of_zeros_in_the_middle(folder: Folder) -> None:
    for name, whole in folder.files.items():
        at = random.randrange(len(whole) // 2)
        holed = whole[:at] + bytes(min(512, len(whole) - at)) + whole[at + 512 :]
        assert holed != whole
        folder.write(name, holed)
        assert_found(folder, name)
        folder.restore()


def test_a_file_is_missing(folder: Folder) -> None:
    for name in folder.files:
        (folder.last / name).unlink()
        assert_found(folder, name)
        folder.restore()


def test_the_file_of_another_checkpoint(folder: Folder) -> None:
    """Each file of the one before fits by its size and its form; together they would be a mixture of two steps."""
    for name, whole in folder.files.items():
        other = (folder.before / name).read_bytes()
        assert other != whole
        folder.write(name, other)
        assert newest(folder.path) == folder.before
        path, said = chosen(folder.path)
        assert path == folder.before
        assert any(line.startswith("passed over step-00000150: ") for line in said) or name == manifest.NAME
        folder.restore()


def _folder_there(path: Path) -> None:
    path.mkdir()


def _pipe_there(path: Path) -> None:
    os.mkfifo(path)


def _link_to_nothing(path: Path) -> None:
    path.symlink_to("gone")


def _link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("put", [_folder_there, _pipe_there, _link_to_nothing, _link_to_itself, _endless])
def test_something_else_under_the_name(folder: Folder, put: Callable[[Path], None]) -> None:
    for name in folder.files:
        (folder.last / name).unlink()
        put(folder.last / name)
        assert_found(folder, name)
        folder.restore()


@pytest.mark.parametrize(
    "text",
    [
        b"", b"null", b"[]", b"{}", b'"x"', b"[" * 100_000, b'{"digest": 1}', b"1" * 10_000, b"\xff\xfe", b"NaN",
        b'{"digest": "x", "format": 1, "maker": "overnight", "files": {"../../etc/passwd": {}}}',
    ],
)  # fmt: skip
def test_a_manifest_that_is_none(folder: Folder, text: bytes) -> None:
    folder.write(manifest.NAME, text)
    assert_found(folder, manifest.NAME)


def test_a_manifest_that_names_files_elsewhere_is_not_followed(folder: Folder) -> None:
    """Its digest is right: somebody made it so. Nothing outside the checkpoint is looked at."""
    known = manifest.read(folder.last)
    for name in ("../step-00000100/model.safetensors", "/etc/passwd", "..", "", "a/b"):
        facts = manifest.FileFacts(size=1, xxh3_128="0" * 32)
        changed = manifest.Manifest(**{**known.__dict__, "files": {**known.files, name: facts}})
        folder.write(manifest.NAME, manifest.dump(changed))
        assert_found(folder, "of a wrong kind as its files")


def test_all_three_are_damaged(folder: Folder, tmp_path: Path) -> None:
    """Beginning anew would bury them: it is refused, and the newest one's fault is named."""
    place = tmp_path / "checkpoints"
    shutil.copytree(folder.path, place)
    for path in place.iterdir():
        (path / "model.safetensors").write_bytes(b"")
    assert newest(place) is None
    with pytest.raises(errors.CheckpointError, match=r"none can be used \(step-00000150: model\.safetensors has"):
        chosen(place)
    assert chosen(place, resume=False)[0] is None


def test_manifests_of_all_are_damaged(folder: Folder, tmp_path: Path) -> None:
    place = tmp_path / "checkpoints"
    shutil.copytree(folder.path, place)
    for path in place.iterdir():
        (path / manifest.NAME).write_bytes(b"{")
    with pytest.raises(errors.CheckpointError, match=r"none can be used .*MANIFEST\.json"):
        chosen(place)


def test_an_older_one_that_is_damaged_does_not_matter(folder: Folder) -> None:
    whole = (folder.before / "model.safetensors").read_bytes()
    (folder.before / "model.safetensors").write_bytes(whole[:-1])
    assert chosen(folder.path) == (folder.last, [])
    (folder.before / "model.safetensors").write_bytes(whole)


def test_damage_after_the_list_was_made_is_found_by_reading(folder: Folder) -> None:
    """A file in a wrong form is never guessed at."""
    known = manifest.read(folder.last)
    assert reading.read_parts(folder.last, known)["optimizer"]["t"] == 150
    folder.write("model.safetensors", folder.files["model.safetensors"][:100])
    with pytest.raises(errors.CheckpointError, match=r"model\.safetensors"):
        reading.read_parts(folder.last, known)


def test_a_disk_that_lies_is_found_by_reading_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was just written gets no name, the one before stays, and the sentence says where to look."""
    saved(tmp_path, 50)
    real = manifest.check_content

    def damage(path: Path, known: manifest.Manifest) -> None:
        if known.step == 100:
            with (path / "model.safetensors").open("r+b") as stream:
                stream.seek(-1, os.SEEK_END)
                stream.write(b"\x01")
        real(path, known)

    monkeypatch.setattr(manifest, "check_content", damage)
    outcome = save(tmp_path, 100, read_back=True)
    assert outcome.error is not None
    assert ": read back, model.safetensors is not as it was written" in outcome.error
    assert outcome.path is None
    assert names(tmp_path) == ["step-00000050"]
    assert save(tmp_path, 150, read_back=True).error is None
    assert names(tmp_path) == ["step-00000050", "step-00000150"]

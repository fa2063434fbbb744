"""A disk that is full in the middle of one file, in a process of its own that may mount one: DirectFile says so."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

FULL = """
    import sys, errno
    from pathlib import Path
    from overnight.checkpoint.direct import DirectFile
    folder, direct = Path(sys.argv[1]), sys.argv[2] == "direct"
    (folder / "ballast").write_bytes(b"b" * (3 << 20))

    def plain():
        out = DirectFile(folder / "one", direct=direct)
        try:
            for _ in range(4):
                out.write(b"x" * 6_000_001)
            out.finish()
        except OSError as error:
            assert error.errno == errno.ENOSPC == out.failed.errno and error.filename == str(out.path)
            out.abandon()
            return
        raise AssertionError("16 MB took 24")

    def by_torch():
        import torch
        out = DirectFile(folder / "one", direct=direct)
        try:
            torch.save({str(at): torch.ones(1_500_000) for at in range(4)}, out)
            out.finish()
        except (OSError, RuntimeError):
            assert out.failed.errno == errno.ENOSPC
            out.abandon()
            return
        raise AssertionError("16 MB took 24")

    work = {"plain": plain, "torch": by_torch}[sys.argv[3]]
    work()
    (folder / "one").unlink()
    with DirectFile(folder / "two", direct=direct) as out:  # what was freed can be used, by the same process
        out.write(b"y" * 9_000_000)
        assert out.finish().size == 9_000_000
    assert (folder / "two").read_bytes() == b"y" * 9_000_000
    print("as it should be")
"""


@pytest.mark.parametrize(
    ("work", "mode"),
    [
        ("plain", "direct"),
        ("plain", "buffered"),
        ("torch", "direct"),
        pytest.param("torch", "buffered", marks=pytest.mark.long),
    ],
)
def test_a_full_disk_is_named_and_no_disaster(tmp_path: Path, mode: str, work: str) -> None:
    if work == "torch":
        pytest.importorskip("torch")
    (tmp_path / "script.py").write_text(textwrap.dedent(FULL))
    (tmp_path / "small").mkdir()
    inside = 'mount -t tmpfs -o size=16m none "$1" || exit 99; exec "$2" "$3" "$1" "$4" "$5"'
    command = ["unshare", "-rm", "sh", "-c", inside, "sh", str(tmp_path / "small"), sys.executable]
    command += [str(tmp_path / "script.py"), mode, work]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if done.returncode == 99 or done.stderr.startswith("unshare:"):
        pytest.skip(f"no small disk can be mounted here: {done.stderr.strip()}")
    assert done.stdout == "as it should be\n", done.stderr
    assert done.returncode == 0

"""What a proof leaves when it is killed: a side process ends its runs, and the next proof removes what lies about.

The side process waits for the end of a pipe, which the kernel closes whatever ends the verb. Until then it holds
nothing but the standard library, so what it needs is imported late. A proof that ends by itself clears up without it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterable, Sequence
    from typing import Self

LOCK = "proof.lock"
"""In the folder of the working copies: locked while their proof lives; in it stands where the runs of it lie."""

PREFIX = "ov-"
LONGEST_HOME = 4096
ROUNDS, AGAIN_S = 2, 1.0
"""A run may be half launched when the verb is killed: it is looked for once more."""


class Minder:
    """Watches over a proof within ``with``; ``home`` is where its runs lie, ``roots`` where its working copies are.

    With ``keep`` the copies are the user's to remove.
    """

    def __init__(self, home: str, roots: Sequence[str], *, keep: bool) -> None:
        self.home = home
        self.roots = [] if keep else [root for root in dict.fromkeys(roots) if root]
        self._locks: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        import subprocess

        sweep(dict.fromkeys(os.path.dirname(root) for root in self.roots))
        with contextlib.suppress(OSError):  # a full disk: then nobody finds them later
            self._locks += [_lock(root, self.home) for root in self.roots]
        words = [sys.executable, "-I", "-m", "overnight.resumeproof.minding", self.home, *self.roots]
        environ = {**os.environ, "OVERNIGHT_ROLE": "proof"}
        with contextlib.suppress(OSError):  # no process to be had: the limit of time of the runs is left
            self._process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/",
                env=environ, start_new_session=True,
            )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):  # somebody has killed it
                self._process.stdin.write(b".")
                self._process.stdin.close()
            self._process.wait()
        for handle in self._locks:
            os.close(handle)


def sweep(parents: Iterable[str]) -> None:
    """End the runs and remove the working copies of proofs of this user that were killed, in these folders."""
    for parent in parents:
        with contextlib.suppress(OSError), os.scandir(parent) as entries:
            found = [one.path for one in entries if one.name.startswith(PREFIX) and one.is_dir(follow_symlinks=False)]
            for root in found:
                _clear_dead(root)


def _clear_dead(root: str) -> None:
    try:
        if os.lstat(root).st_uid != os.getuid():
            return
        handle = os.open(os.path.join(root, LOCK), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:  # none of a proof, or it is kept, or gone meanwhile
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        home = os.fsdecode(os.pread(handle, LONGEST_HOME, 0))
        clear(home, [root])
    except OSError:  # it lives
        return
    finally:
        os.close(handle)


def _lock(root: str, home: str) -> int:
    """Put the lock into a folder: nobody ever finds it there unlocked while its proof lives."""
    path = os.path.join(root, LOCK)
    handle = os.open(f"{path}.new", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(handle, os.fsencode(home))
        os.rename(f"{path}.new", path)
    except OSError:
        os.close(handle)
        raise
    return handle


def clear(home: str, roots: Iterable[str]) -> None:
    """End all runs of a proof at once, with their keepers, and remove its working copies."""
    from pathlib import Path

    from overnight import launch
    from overnight.errors import OvernightError
    from overnight.folder import RunFolder
    from overnight.resumeproof import copying

    runs = Path(home, "runs")
    for number in range(ROUNDS if os.path.isabs(home) and runs.is_dir() else 0):
        if number:
            time.sleep(AGAIN_S)
        with contextlib.suppress(OSError):
            for path in runs.iterdir():
                with contextlib.suppress(OvernightError, OSError):
                    launch.revoke(RunFolder(path))
    for root in roots:
        copying.remove(root)


def main() -> int:
    """Run as ``python -m overnight.resumeproof.minding HOME ROOT...`` with a pipe of the proof as standard input."""
    if not os.read(0, 1):
        clear(sys.argv[1], sys.argv[2:])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

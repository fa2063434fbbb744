"""What a machine says about itself: small files below a root, the answers of programs, who and where we are.

Only asks, and never longer than a moment. With another root than / it is a tree of files, for tests: no program is run
then and nothing of this machine is mixed in. What an answer means is ``doctor``'s to say.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

ANSWERS_WITHIN_S = 5.0
CAP_SYS_PTRACE = 19
PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37

TIME_ERROR = 5
TIMEX_BYTES = 256
"""struct timex has 208 bytes on 64-bit machines; all of them zero asks for nothing to be changed."""

_OCTAL = re.compile(r"\\([0-7]{3})")


class Machine:
    """One machine as a process of one user sees it; ``home`` is the folder of all runs (OVERNIGHT_HOME)."""

    def __init__(
        self,
        root: Path = Path("/"),
        *,
        home: Path = Path("/nonexistent"),
        environ: Mapping[str, str] | None = None,
        user: str | None = None,
        uid: int | None = None,
    ) -> None:
        self.root = root
        self.real = root == Path("/")
        self.home = home
        self.environ = dict(os.environ if environ is None and self.real else environ or {})
        # A tree says nothing about who looks at it: an ordinary user, unless it is said.
        self.uid = uid if uid is not None else os.geteuid() if self.real else 1000
        self.user = user if user is not None else _login_name(self.uid) if self.real else "user"

    def path(self, name: str) -> Path:
        """Return where ``name`` (absolute, as on the machine) lies below the root."""
        return self.root / name.lstrip("/")

    def exists(self, name: str) -> bool:
        """Say whether a file is there."""
        return os.path.lexists(self.path(name))

    def text(self, name: str) -> str | None:
        """Return the text of a small file; None if it is not there or not ours to read."""
        try:
            return self.path(name).read_text(errors="replace")
        except OSError:
            return None

    def number(self, name: str) -> int | None:
        """Return the whole number in a file; None if there is none."""
        try:
            return int((self.text(name) or "").strip())
        except ValueError:
            return None

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, in order; empty if it cannot be listed."""
        try:
            return sorted(os.listdir(self.path(folder)))
        except OSError:
            return []

    def program(self, name: str) -> str | None:
        """Return where a program is on the user's PATH; None if it is not."""
        if self.real:
            return shutil.which(name, path=self.environ.get("PATH", os.defpath))
        found = [f"{folder}/{name}" for folder in ("/usr/local/bin", "/usr/bin", "/bin")]
        return next((path for path in found if self.exists(path)), None)

    def answer(self, *argv: str) -> str | None:
        """Return what a program prints; None if it is not there, fails, or takes too long."""
        if not self.real or self.program(argv[0]) is None:
            return None
        try:
            done = subprocess.run(
                argv,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=ANSWERS_WITHIN_S,
                check=False,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    def status(self, field: str) -> str | None:
        """Return a field of /proc/self/status."""
        for line in (self.text("/proc/self/status") or "").splitlines():
            name, _, value = line.partition(":")
            if name == field:
                return value.strip()
        return None

    def capable(self, number: int) -> bool:
        """Say whether we have a capability."""
        try:
            return bool(int(self.status("CapEff") or "0", 16) >> number & 1)
        except ValueError:
            return False

    def cgroups(self) -> list[str]:
        """Return the control groups we are in, as paths."""
        lines = (self.text("/proc/self/cgroup") or "").splitlines()
        return [line.split(":", 2)[2] for line in lines if line.count(":") >= 2]

    def mounts(self) -> list[tuple[str, str, str]]:
        """Return (mount point, type, options of the mount and of the file system) of all that is mounted."""
        found = []
        for line in (self.text("/proc/self/mountinfo") or "").splitlines():
            fields, _, rest = line.partition(" - ")
            words, more = fields.split(" "), rest.split(" ")
            if len(words) >= 6 and len(more) >= 3:
                point = _OCTAL.sub(lambda octal: chr(int(octal[1], 8)), words[4])
                found.append((point, more[0], f"{words[5]},{more[2]}"))
        return found

    def filesystem(self, path: str) -> str | None:
        """Return the type of the file system that holds a path; None if nobody says."""
        best, kind = "", None
        for point, one, _ in self.mounts():
            if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
                best, kind = point, one
        return kind

    def container(self) -> str | None:
        """Return the kind of container we are in ("docker", "kubernetes", ...); None if it does not look like one."""
        if "KUBERNETES_SERVICE_HOST" in self.environ:
            return "kubernetes"
        if self.exists("/run/.containerenv"):
            return "podman"
        if self.exists("/.dockerenv"):
            return "docker"
        return self.environ.get("container") or None

    # -- what can only be tried -------------------------------------------------------------------------------------

    def synchronized(self) -> bool | None:
        """Say whether a time service holds the clock right; None if nobody knows."""
        said = self.answer("timedatectl", "show", "-p", "NTPSynchronized", "--value")
        if said in ("yes", "no"):
            return said == "yes"
        if not self.real:
            return None
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(TIMEX_BYTES))
        return None if state < 0 else state != TIME_ERROR

    def pidfd(self) -> bool:
        """Say whether a pidfd can be had, as far as can be tried."""
        if not self.real:
            return True
        try:
            os.close(os.pidfd_open(os.getpid()))
        except OSError:
            return False
        return True

    def subreaper(self) -> bool:
        """Say whether a process may become one that orphans come to, as far as can be tried."""
        if not self.real:
            return True
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        was = ctypes.c_int(0)
        if prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(was), 0, 0, 0) != 0:
            return False
        return bool(prctl(PR_SET_CHILD_SUBREAPER, was.value, 0, 0, 0) == 0)


def _login_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)

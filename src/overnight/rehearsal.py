"""A logout, rehearsed for real: a login shell on a terminal of its own, which watches the run and is hung up.

Whoever was started here is ended here; nothing of the run is touched.
"""

from __future__ import annotations

import os
import pwd
import select
import shlex
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from typing import Any, Self

from overnight import processes
from overnight.folder import RunFolder
from overnight.processes import Identity
from overnight.proof import Check, Person, Steps, lines_of, see

SHOWS_S = 20.0  # a login shell that reads its start files, then the viewer
LEAVES_S = 5.0
LOOK_S = 0.02
SETTLE_S = 0.2
SHOWN_BYTES = 1 << 16
SHELLS = frozenset("sh bash dash zsh ksh mksh ash fish csh tcsh".split())  # these know -i and -c
PLAIN_SHELL = "/bin/sh"
MARK = "_OVERNIGHT_CHECK"  # whoever carries it was started here; a name with another beginning would be a setting

# A step between: default signals (`nohup overnight check` ignores SIGHUP), the terminal as the controlling one, and the
# "-" by which login and sshd tell a shell that it is a login shell.
BECOME_A_LOGIN = """\
import fcntl, os, signal, sys, termios
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, ())
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], ["-" + os.path.basename(sys.argv[1]), *sys.argv[2:]])
"""


class Logout:
    """Logs in, watches the run, is cut off, and looks whether the run has noticed."""

    def __init__(self, folder: RunFolder, interval_s: float) -> None:
        self.folder = folder
        self.interval_s = interval_s

    def __call__(self, steps: Steps, before: Sequence[Person], risen: Check) -> tuple[Check, dict[str, bytes]]:
        """Return the check and what was seen. Of a log whose steps had not ``risen`` before none are awaited after."""
        tried: list[dict[str, Any]] = []
        for shell in dict.fromkeys((_user_shell(), PLAIN_SHELL)):  # a plain one if the user's shows nothing
            with Login(shell, self.folder) as login:
                watched = login.watches(SHOWS_S)
                members = [one.line() for who in login.members() if (one := see("login", who)) is not None]
                login.hang_up()
                forced, left = login.leave(LEAVES_S)
            seen = {"shell": shell, "terminal": login.terminal, "watched": watched, "shell_exit": login.process.poll()}
            tried.append({**seen, "members": members, "killed_later": forced, "left": left})
            if watched:
                break
        after = [one for one in (see(one.role, one.identity) for one in before) if one is not None]
        why = self._broken(before, after, tried[-1])
        facts = {"logins": tried, "before": [one.line() for one in before], "after": [one.line() for one in after]}
        if why is None and not risen.ok:
            why = "the run survived a hang-up, but its steps had not risen before it, so nothing tells that it goes on"
        text = f"{login.shell} on {login.terminal} watched it and was hung up: that shell and its viewer are gone"
        if why is None:
            why, more = self._goes_on(steps)
            facts |= more
            text += f", its {len(after)} processes are the same, and step {more['step_after']} came after it"
        check = Check(name="disconnect", ok=why is None, text=why or text, facts=facts)
        return check, {"processes-after.txt": lines_of(after), "terminal.txt": login.shown}

    def _broken(self, before: Sequence[Person], after: Sequence[Person], login: dict[str, Any]) -> str | None:
        """Return what went wrong up to the hang-up and with the processes, None if nothing did."""
        if not login["watched"]:
            command = f"`overnight attach {self.folder.name}`"
            return f"{login['shell']} as a login shell did not show {command} within {SHOWS_S:g} s: see terminal.txt"
        same = {(one.identity.pid, one.session) for one in after}
        lost = [f"{one.role} (pid {one.identity.pid})" for one in before if (one.identity.pid, one.session) not in same]
        if lost:
            return f"after a hang-up {' and '.join(lost)} did not live on as before"
        return f"of the login that was hung up {login['left']} could not be ended" if login["left"] else None

    def _goes_on(self, steps: Steps) -> tuple[str | None, dict[str, Any]]:
        """Wait for a step after the hang-up; return why there was none, and the figures."""
        first = last = steps.look()
        began = time.monotonic()

        def grown() -> bool:
            nonlocal last
            last = steps.look()
            return steps.grew(first, last)

        ended = steps.wait(self.interval_s, grown)
        seconds = time.monotonic() - began
        facts = {"step_at_hangup": first.step, "step_after": last.step, "seconds_after": seconds}
        if steps.grew(first, last):
            return None, facts
        return f"after a hang-up {ended or f'no new step came within {seconds:.3g} s (step {last.step})'}", facts


def _user_shell() -> str:
    try:
        shell = pwd.getpwuid(os.geteuid()).pw_shell
    except KeyError:  # a container's user without a name
        return PLAIN_SHELL
    return shell if os.path.basename(shell) in SHELLS and os.access(shell, os.X_OK) else PLAIN_SHELL


class Login:
    """A login shell in a session and on a terminal of its own, in which ``overnight attach`` runs."""

    def __init__(self, shell: str, folder: RunFolder) -> None:
        self.shell = shell
        self.mark = f"{os.getpid()}-{time.time_ns()}"
        self.shown = b""
        # Start files may set an OVERNIGHT_HOME of their own, and may print: what the viewer shows comes after the mark.
        home = f"OVERNIGHT_HOME={folder.path.parent.parent}"
        viewer = shlex.join(["env", home, sys.executable, "-P", "-m", "overnight", "attach", folder.name])
        script = f"printf '%s\\n' {self.mark}; {viewer}; exit"
        env = {name: value for name, value in os.environ.items() if not name.startswith("OVERNIGHT_")}
        self.master: int | None
        self.master, slave = os.openpty()
        try:
            termios.tcsetwinsize(slave, (24, 80))
            self.terminal = os.ttyname(slave)
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", BECOME_A_LOGIN, shell, "-i", "-c", script],
                stdin=slave,
                stdout=slave,
                stderr=slave,
                cwd="/",
                env={"TERM": "xterm", **env, MARK: self.mark},
                start_new_session=True,
            )
        except OSError:
            os.close(self.master)
            raise
        finally:
            os.close(slave)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()
        self.leave(0.0)

    def watches(self, limit_s: float) -> bool:
        """Wait until the viewer lives and has shown something; False if it does not come to that."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end and self._read(SETTLE_S):
            if self.shown.partition(self.mark.encode())[2].strip():
                self._read(SETTLE_S)  # one that only complains has left by then
                if len(self.members()) > 1:
                    return True
        return False

    def _read(self, limit_s: float) -> bool:
        """Take in what is shown within a moment; False once everybody has left the terminal."""
        if self.master is None:
            return False
        look = select.poll()
        look.register(self.master, select.POLLIN)
        if look.poll(1000 * limit_s):
            try:
                self.shown = (self.shown + os.read(self.master, SHOWN_BYTES))[-SHOWN_BYTES:]
            except OSError:  # EIO: nobody has the other end open
                return False
        return self.process.poll() is None

    def members(self) -> list[Identity]:
        """Return the living processes of the session."""
        found = [known for known in map(processes.stat, processes.all_pids()) if known is not None and not known.dead]
        seen = [processes.identify(known.pid) for known in found if known.session == self.process.pid]
        return [one for one in seen if one is not None]

    def hang_up(self) -> None:
        """Let the terminal go: the kernel sends SIGHUP to the shell and to the viewer in its foreground."""
        if self.master is not None:
            os.close(self.master)
            self.master = None

    def leave(self, limit_s: float) -> tuple[list[int], list[int]]:
        """Wait until nothing of the login is left; return the pids that had to be killed for it, and those still there.

        What start files have put into the background is ended too: nobody but this rehearsal wanted it.
        """
        end = time.monotonic() + limit_s
        while (living := self._living()) and time.monotonic() < end:
            time.sleep(LOOK_S)
        forced = sorted(one.pid for one in living)
        end = time.monotonic() + LEAVES_S
        while (living := self._living()) and time.monotonic() < end:
            for one in living:
                processes.send(one.pid, one.start_ticks, signal.SIGKILL)
            time.sleep(LOOK_S)
        return forced, sorted(one.pid for one in living)

    def _living(self) -> list[Identity]:
        self.process.poll()  # reaps the shell
        mark = f"{MARK}={self.mark}".encode()
        given = ((pid, (processes.read_proc(pid, "environ") or b"").split(b"\0")) for pid in processes.all_pids())
        marked = [processes.identify(pid) for pid, words in given if mark in words]
        found = [*self.members(), *(one for one in marked if one is not None)]
        return [one for one in dict.fromkeys(found) if processes.is_alive(one)]

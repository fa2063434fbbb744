"""Places a run as another engine does, and shows it live in a tmux session of the run's name.

The pane is only a viewer (``overnight attach --pane``): killed in any way, with its server too, it takes nothing of the
training with it, and Ctrl-C in it is a request to stop. The session is marked with the run's folder and stays with
the outcome until the run is cleaned or another run of that name takes its place. What belongs to anybody else in tmux
is never touched, and what tmux cannot do is a complaint, never the end of a launch.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from overnight.engines import Engine, Handle, Placement
from overnight.errors import UsageError

ANSWERS_WITHIN_S = 5.0

MARK = "@overnight_run"
"""The user option of our sessions; its value is the run's folder."""

VIEWER_MARK = "--pane"
"""The word by which a pane's command is known as our viewer: a user may have put panes of their own beside it."""

PANE_FORMAT = f"#{{pane_id}}\t#{{pane_dead}}\t#{{{MARK}}}\t#{{pane_start_command}}"


class Tmux:
    """The engine ``tmux``; ``keepers`` is the engine that places the processes."""

    name = "tmux"

    def __init__(self, complain: Callable[[str], None], keepers: Engine) -> None:
        self.complain = complain
        self.keepers = keepers

    def check(self, placement: Placement) -> None:
        """Refuse a name that a session of somebody else, or of a run that goes on in another home, has already."""
        self.keepers.check(placement)
        server = Server(placement.env)
        if server.program is not None and (obstacle := _obstacle(server, placement.run_dir)) is not None:
            raise UsageError(f"{obstacle}; choose another --name, or leave out --engine tmux")

    def start(self, placement: Placement) -> Handle:
        """Place the keepers, then the session. Without tmux the keepers are all there is, and it is said."""
        handle = self.keepers.start(placement)
        name = placement.run_dir.name
        try:
            socket = _show(Server(placement.env), placement)
        except _RefusedError as error:
            self.complain(
                f"{error}: {name} runs without a tmux session, by the engine {handle.engine} alone; "
                f"`overnight attach {name}` shows it"
            )
            return handle
        return msgspec.structs.replace(handle, engine=self.name, place=name, details={"socket": socket})

    def look(self, handle: Handle) -> bool | None:
        """Say whether the guard is alive; the session says nothing about that."""
        return self.keepers.look(handle)

    def stop(self, handle: Handle, run_dir: Path) -> None:
        """Do what the placing engine does: the pane has no part in it."""
        self.keepers.stop(handle, run_dir)

    def attach(self, handle: Handle) -> tuple[str, ...] | None:
        """Return the tmux command that shows the session, as it must be typed from here; None if there is none now."""
        name = str(handle.place)
        socket = handle.details.get("socket", "")
        if not any(pane.viewer for pane in Server(os.environ, socket).panes(name)):
            return None
        # No "=" before the name here: zsh would take the word for a command's path. An exact name goes first anyway.
        if os.environ.get("TMUX", "").partition(",")[0] == socket:
            return ("tmux", "switch-client", "-t", name)  # attach refuses to nest
        elsewhere = socket and os.path.realpath(socket) != os.path.realpath(_usual_socket(os.environ))
        return ("tmux", *(("-S", socket) if elsewhere else ()), "attach", "-t", name)

    def forget(self, handle: Handle, run_dir: Path) -> None:
        """Close the pane that shows the outcome, and with it the session unless the user has panes of their own there.

        A session of the same name on the server of another socket than the handle's is not ours and stays.
        """
        server = Server(os.environ, handle.details.get("socket", ""))
        for pane in server.panes(str(handle.place)):
            if pane.viewer and pane.run_dir == str(run_dir):
                server.call("kill-pane", "-t", pane.id)
        self.keepers.forget(handle, run_dir)


class Pane(NamedTuple):
    """One pane of a session: its id, whether its program has ended, the session's mark, the program's command line."""

    id: str
    dead: bool
    run_dir: str
    command: str

    @property
    def viewer(self) -> bool:
        """Say whether the pane is one that we made."""
        return bool(self.run_dir) and VIEWER_MARK in self.command


class _RefusedError(Exception):
    """What tmux would not do, as a clause."""


class Server:
    """The user's tmux server, as TMUX and TMUX_TMPDIR in ``env`` name it, or the one that listens at ``socket``."""

    def __init__(self, env: Mapping[str, str], socket: str = "") -> None:
        self.env = dict(env)
        self.socket = socket
        within = env.get("TMUX", "").partition(",")[0]
        if within and not os.path.exists(within):  # of before a reboot: tmux would not even make the folder for it
            del self.env["TMUX"]
        self.program = shutil.which("tmux", path=env.get("PATH", os.defpath))

    def call(self, *words: str) -> str:
        """Carry out tmux commands, a ";" between two of them, and return what they print; _RefusedError otherwise."""
        if self.program is None:
            raise _RefusedError("tmux is not on PATH")
        place = ("-S", self.socket) if self.socket else ()
        try:
            done = subprocess.run(
                [self.program, "-u", *place, *words],  # -u: in the C locale it would print "_" for a tab or an umlaut
                env=self.env,
                cwd="/",
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=ANSWERS_WITHIN_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise _RefusedError(f"tmux does not answer within {ANSWERS_WITHIN_S:g} s") from error
        except OSError as error:
            raise _RefusedError(f"{self.program} cannot be started ({error.strerror})") from error
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise _RefusedError(f"tmux refuses ({said[0] if said else f'exit code {done.returncode}'})")
        return done.stdout

    def panes(self, name: str) -> list[Pane]:
        """Return the panes of the session of exactly this name; none without such a session, server or tmux."""
        try:
            found = self.call("list-panes", "-s", "-t", f"={name}:", "-F", PANE_FORMAT)
        except _RefusedError:
            return []
        rows = (line.split("\t", 3) for line in found.splitlines())
        return [Pane(row[0], row[1] == "1", row[2], row[3]) for row in rows if len(row) == 4]


def await_viewer(env: Mapping[str, str]) -> None:
    """Have the server that ``env`` of a pane names see the end of that pane's program, which comes within a second.

    tmux 3.3a now and then misses it until another child of its ends: 2 in 30 panes of a Python that exits with 3 were
    dead with a status that nobody had asked for. So another child ends a second later.
    """
    socket = env.get("TMUX", "").partition(",")[0]
    if socket:
        with contextlib.suppress(_RefusedError):
            Server(env, socket).call("run-shell", "-b", "sleep 1")


def _obstacle(server: Server, run_dir: Path) -> str | None:
    """Return why a session of the run's name may not be made or replaced; None if it may."""
    name = run_dir.name
    panes = server.panes(name)
    others = [pane for pane in panes if not pane.viewer]
    if panes and len(others) == len(panes):
        return f"a tmux session is called {name!r} already and is none of Overnight's"
    if others:
        return f"the tmux session {name!r} of an earlier run holds panes of yours as well"
    if any(not pane.dead and pane.run_dir != str(run_dir) for pane in panes):
        return f"a tmux session is called {name!r} already and shows the run in {panes[0].run_dir}"
    return None


def _show(server: Server, placement: Placement) -> str:
    """Make the session, in the place of an earlier run's, and return the path of its server's socket."""
    name = placement.run_dir.name
    obstacle = _obstacle(server, placement.run_dir)
    if obstacle is not None:
        raise _RefusedError(obstacle)
    for pane in server.panes(name):
        server.call("kill-pane", "-t", pane.id)
    cwd = placement.cwd.replace("#", "##")  # tmux expands formats in it
    made = ("new-session", "-d", "-P", "-F", "#{socket_path}", "-s", name, "-c", cwd, "--", *placement.viewer_argv)
    session = f"={name}:"
    # One call: no viewer can end, and no configuration close its session, before it is to stay with the outcome.
    return server.call(
        *map(_literal, made), ";",
        "set-option", "-w", "-t", session, "remain-on-exit", "on", ";",
        "set-option", "-t", session, "destroy-unattached", "off", ";",
        "set-option", "-t", session, MARK, _literal(str(placement.run_dir)),
    ).strip()  # fmt: skip


def _literal(word: str) -> str:
    """Return a word as tmux takes it for itself: a ";" at its end would end the command."""
    return f"{word[:-1]}\\;" if word.endswith(";") else word


def _usual_socket(env: Mapping[str, str]) -> str:
    """Return the socket of the server that a bare ``tmux`` in this environment talks to."""
    within = env.get("TMUX", "").partition(",")[0]
    return within or os.path.join(env.get("TMUX_TMPDIR") or "/tmp", f"tmux-{os.geteuid()}", "default")  # noqa: S108

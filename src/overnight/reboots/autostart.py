"""Lets the machine run `overnight recover` by itself when it starts: a unit of the user's systemd, or a crontab line.

Everything goes through systemctl, loginctl and crontab, as a person would do it. Nothing is read from or written to a
run folder, and nothing needs another user's rights.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from overnight.client import find_home
from overnight.errors import OvernightError
from overnight.folder import write_atomic

UNIT = "overnight-recover.service"
MARK = "# overnight: brings runs back after a reboot; `overnight enable --remove` takes this line and the next away"
ASK_S = 30.0

INITS = frozenset({"systemd", "init", "runit", "s6-svscan", "openrc-init", "launchd"})


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What was done, or why it could not be (``way`` is None); each ``limit`` says what this does not do."""

    way: str | None
    lines: tuple[str, ...]
    limits: tuple[str, ...] = ()


class RefusedError(OvernightError):
    """A program of the system has refused; the sentence is what it said."""


# -- the two texts -----------------------------------------------------------------------------------------------------


def unit_text(environ: Mapping[str, str] = os.environ) -> str:
    """Return the unit: the trainings it leaves behind stay when it is over, and when one of them needs too much."""
    home = _home(environ)
    given = "" if home is None else f"Environment={_unit_word(f'OVERNIGHT_HOME={home}')}\n"
    command = " ".join(_unit_word(word).replace("$", "$$") for word in _command())
    return (
        "[Unit]\n"
        "Description=Bring training runs back that a reboot has interrupted (overnight)\n"
        "\n"
        "[Service]\n"
        "Type=oneshot\n"
        f"{given}"
        f"ExecStart={command}\n"
        "KillMode=process\n"
        "OOMPolicy=continue\n"
        "\n"
        "[Install]\n"
        "WantedBy=default.target\n"
    )


def cron_text(environ: Mapping[str, str] = os.environ) -> str:
    """Return the crontab's two lines: the mark, and what cron is to run. A bare ``%`` would end cron's command."""
    home = _home(environ)
    words = [*([] if home is None else [f"OVERNIGHT_HOME={shlex.quote(home)}"]), *map(shlex.quote, _command())]
    return f"{MARK}\n@reboot {' '.join(words)}\n".replace("%", "\\%")


def unit_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Return where the user's own units lie."""
    base = environ.get("XDG_CONFIG_HOME") or ""
    return Path(base if os.path.isabs(base) else os.path.expanduser("~/.config"), "systemd", "user", UNIT)


def _command() -> list[str]:
    return [sys.executable, "-I", "-m", "overnight", "recover"]


def _home(environ: Mapping[str, str]) -> str | None:
    """Return the home to be named, if it is not the one that is found without any environment."""
    if not (environ.get("OVERNIGHT_HOME") or environ.get("XDG_STATE_HOME")):
        return None
    return os.path.abspath(find_home(environ))


def _unit_word(word: str) -> str:
    """Return a word as systemd reads it: in quotes where it must be, ``%`` doubled, control characters escaped."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    escaped = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in escaped)
    return f'"{escaped}"' if escaped != word or not word or any(char in word for char in " '\t;") else word


# -- installing --------------------------------------------------------------------------------------------------------


def install() -> Done:
    """Install the unit where a user manager answers, else the crontab line; again is harmless."""
    reasons = []
    try:
        return _install_unit()
    except (RefusedError, OSError) as error:
        reasons.append(f"no systemd user unit: {error}")
    try:
        _write_crontab(_without_ours(_crontab()) + cron_text())
    except (RefusedError, OSError) as error:
        reasons.append(f"no crontab line: {error}")
        return Done(way=None, lines=tuple(reasons), limits=_limits(None))
    return Done(
        way="cron", lines=(f"installed an @reboot line in your crontab ({reasons[0]})",), limits=_limits("cron")
    )


def remove() -> Done:
    """Take away whatever ``install`` has made, in either way."""
    lines = []
    path = unit_path()
    if path.exists():
        with contextlib.suppress(RefusedError):  # no user manager now: without its file the unit is gone all the same
            _ask("systemctl", "--user", "disable", UNIT)
        path.unlink()
        (path.parent / "default.target.wants" / UNIT).unlink(missing_ok=True)
        with contextlib.suppress(RefusedError):
            _ask("systemctl", "--user", "daemon-reload")
        lines.append(f"removed {path}")
    with contextlib.suppress(RefusedError):  # no cron here, so nothing of ours in it
        table = _crontab()
        if _without_ours(table) != table:
            _write_crontab(_without_ours(table))
            lines.append("removed the @reboot line from your crontab")
    return Done(way="removed", lines=tuple(lines) or ("nothing was installed",))


def _install_unit() -> Done:
    _ask("systemctl", "--user", "show-environment")  # answers only if the user's manager does
    path = unit_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, os.fsencode(unit_text()), mode=0o644)
    try:
        _ask("systemctl", "--user", "daemon-reload")
        _ask("systemctl", "--user", "enable", UNIT)
    except RefusedError:
        path.unlink()  # cron is tried next, and both must not do it one day
        raise
    lines = [f"installed {path}"]
    with contextlib.suppress(RefusedError, OSError):  # a line of an earlier time would do it twice
        table = _crontab()
        if _without_ours(table) != table:
            _write_crontab(_without_ours(table))
            lines.append("removed the @reboot line from your crontab: the unit takes its place")
    return Done(way="systemd", lines=tuple(lines), limits=_limits("systemd"))


def _crontab() -> str:
    """Return the user's crontab, empty if there is none. RefusedError rather than a guess: it is written back."""
    try:
        return _ask("crontab", "-l")
    except RefusedError as error:
        said = str(error)
        if "no crontab for" in said or ("can't open" in said and "No such file" in said):  # cron's, and busybox's
            return ""
        raise


def _write_crontab(text: str) -> None:
    _ask("crontab", "-", given=text)


def _without_ours(table: str) -> str:
    """Return a crontab without our two lines; whatever else is in it stays as it is."""
    kept: list[str] = []
    ours = False
    for line in table.splitlines(keepends=True):
        if ours and line.startswith("@reboot ") and "overnight recover" in line:
            ours = False
            continue
        ours = line.rstrip("\n") == MARK
        if not ours:
            kept.append(line)
    if kept and not kept[-1].endswith("\n"):
        kept[-1] += "\n"  # cron ignores a last line without an end, and ours would be glued to it
    return "".join(kept)


# -- what it cannot do -------------------------------------------------------------------------------------------------


def _limits(way: str | None) -> tuple[str, ...]:
    found = []
    if way == "systemd":
        found += _lingering()
    if way == "cron":
        found.append("cron may start before a network disk is mounted: run `overnight recover` by hand then")
    found.append("an encrypted home folder is closed until you log in: nothing in it is brought back before that")
    first = _first_process()
    if first is not None and first not in INITS:
        found.append(
            f"this looks like a container without an init (process 1 is {first}): nothing is run at its start "
            f"unless its entry point does; let that run `overnight recover`"
        )
    else:
        found.append("a container without an init runs nothing at its start: let its entry point run it")
    return tuple(found)


def _lingering() -> list[str]:
    user = _user()
    hint = f"`loginctl enable-linger {user}` starts it with the machine"
    try:
        said = _ask("loginctl", "show-user", user, "--property=Linger").strip()
    except RefusedError:
        said = ""  # logind does not know a user who is not logged in
    if said == "Linger=yes":
        return []
    if said == "Linger=no":
        return [f"lingering is off for {user}: the unit starts only when you log in, and ends with you; {hint}"]
    return [f"whether lingering is on for {user} is unknown: without it the unit starts only when you log in; {hint}"]


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _first_process() -> str | None:
    try:
        return Path("/proc/1/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _ask(*words: str, given: str | None = None) -> str:
    """Run one program of the system and return what it prints; RefusedError with its own words if it fails."""
    try:
        done = subprocess.run(
            words,
            input=given,
            stdin=subprocess.DEVNULL if given is None else None,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=ASK_S,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except FileNotFoundError:
        raise RefusedError(f"{words[0]} is not installed") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RefusedError(f"{words[0]} cannot be run: {error}") from error
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())
        raise RefusedError(f"`{' '.join(words)}` failed: {said or f'exit code {done.returncode}'}")
    return done.stdout

"""A working place of its own for every run of a proof, so that no run sees another's files or touches the user's.

With ``{workdir}`` in the command that is an empty folder in its place; else a copy of the working folder. Here are the
refusals that come before anything runs, the environment, and the removal at the end. What is run in it, and when, is
decided elsewhere; the user's folder is only read.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import tempfile
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

import msgspec

from overnight.errors import UsageError
from overnight.report.units import size as bytes_words
from overnight.resumeproof import copying, fence
from overnight.resumeproof.absolutes import (
    STATE,
    WORKDIR,
    Ground,
    check_command,
    for_output,
    mapped,
    outputs,
    texts,
    written_by,
)
from overnight.resumeproof.denials import advice, denied
from overnight.saves.names import PLACE

MAX_COPY_BYTES = 2 << 30
MARGIN_BYTES = 64 << 20
MOST_NEIGHBOURS = 1000
LONGEST_TMP = 60
"""A socket's path has 108 characters, and programs put some 40 behind TMPDIR."""

OFFLINE = {"WANDB_MODE": "disabled", "HF_HUB_OFFLINE": "1"}
"""No run of a proof may appear in an account of the user's, or wait for the network."""
OUTER = tuple(
    f"OVERNIGHT_{name}"
    for name in (
        "RUN_ID RUN_DIR ATTEMPT ROLE EVENT STATE CAUSE TEXT STEP LAST_CHECKPOINT CHECKPOINT SKIP_STEPS STOP_AT"
    ).split()
)
"""What a run that the proof was started in may have given it; none of its own runs is a part of that."""

CACHES = {
    "XDG_CACHE_HOME": "~/.cache",
    "HF_HOME": None,
    "HF_HUB_CACHE": None,
    "HF_DATASETS_CACHE": None,
    "TORCH_HOME": None,
    "TORCH_EXTENSIONS_DIR": None,
    "TORCHINDUCTOR_CACHE_DIR": "{tmp}/torchinductor_{user}",
    "TRITON_CACHE_DIR": "~/.triton/cache",
    "CUDA_CACHE_PATH": "~/.nv/ComputeCache",
    "NUMBA_CACHE_DIR": None,
    "MPLCONFIGDIR": "~/.config/matplotlib",
    "CUPY_CACHE_DIR": "~/.cupy/kernel_cache",
    "JAX_COMPILATION_CACHE_DIR": None,
    "KERAS_HOME": "~/.keras",
    "PYTHONPYCACHEPREFIX": None,
}
"""Caches that programs write to and that are no results: variable, and where it lies if that is not set (None: in
another of these, or nowhere). One that is not there yet is made for the proof alone, and all its runs share it."""
HOMES = ("~/.triton", "~/.nv")
"""Beside those caches, where the same programs keep a little more."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where one run works: ``cwd``, its ``argv``, what to set in and to take out of its environment (``unset`` first).

    ``workdir`` is its own folder, where its checkpoints must be (the copy, or what stands for {workdir}); ``allowed``
    are all the folders that it may write to; empty if it is not fenced in.
    """

    name: str
    cwd: str
    argv: tuple[str, ...]
    environ: Mapping[str, str]
    unset: tuple[str, ...]
    workdir: str
    tmp: str
    allowed: tuple[str, ...]


class Workplace:
    """All the places of one proof. UsageError if the command cannot be tried in places of its own, with what to do.

    ``cwd`` is the user's folder, ``environ`` the user's environment, ``allow`` and ``leave_out`` what --allow and
    --leave-out say, ``skip`` folders below ``cwd`` that are no part of it (the evidence), ``places`` how many there
    will be at a time. Nothing is made before ``__enter__``; after ``__exit__`` nothing is left unless ``keep``.
    ``notes`` are sentences for the user, more of them after each ``fresh``.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        cwd: str,
        environ: Mapping[str, str],
        resume_args: Sequence[str] = (),
        leave_out: Sequence[str] = (),
        allow: Sequence[str] = (),
        skip: Sequence[str] = (),
        max_copy: int = MAX_COPY_BYTES,
        places: int = 4,
        keep: bool = False,
    ) -> None:
        self.argv = tuple(argv)
        self.environ = environ
        self.keep = keep
        self.notes: list[str] = []
        self.folder = os.path.realpath(cwd)
        self.copied = not any(WORKDIR in word for word in argv)
        self.leave_out, self.skip = tuple(leave_out), tuple(skip)
        self.allow = tuple(_allowed(path, cwd) for path in allow)
        self.parent = os.path.realpath(tempfile.gettempdir())
        self.root = self.tmp_root = ""
        self.made = 0
        self.stamps: dict[str, tuple[int, int]] = {}
        self._choose_fence()
        self.caches, self.missing = self._find_caches()
        names = tuple(dict.fromkeys([os.path.abspath(cwd), *_same(environ.get("PWD"), self.folder)]))
        self.ground = Ground(
            folder=self.folder, names=names, allowed=self.allow, copied=self.copied, fenced=self.fenced
        )
        self.all_words = (*self.argv, *resume_args)
        check_command(self.all_words, self.ground)
        self.suspects = self._suspects()
        if self.suspects and not self.fenced:
            raise UsageError(
                f"the script names {self.suspects[0]} and may write there, which nothing can prevent on this machine "
                f"(no Landlock): use {{workdir}} in the command for all that it writes, or --allow that folder if "
                f"every run may write there"
            )
        if self.copied:
            self._check_size(max_copy, places)

    # -- before anything runs ----------------------------------------------------------------------------------------

    def _choose_fence(self) -> None:
        self.fenced = fence.available()
        if not self.fenced:
            self.notes.append("no run is fenced in: this kernel has no Landlock, so only the command was looked at")
        elif fence.inside(self.folder, fence.OPEN):
            self.fenced = False
            self.notes.append(f"no run is fenced in: {self.folder} lies where every program may write")
        elif fence.version() < 2:
            self.notes.append("this kernel lets no run rename a file from one folder to another (Linux before 5.19)")
        if any(fence.inside(self.folder, [one]) for one in self.allow):
            self.notes.append("--allow holds the folder itself: the runs may write to its files")

    def _find_caches(self) -> tuple[list[str], list[str]]:
        """Return the caches that are there, and the variables of those that are not."""
        home = self.environ.get("HOME") or os.path.expanduser("~")
        found, missing = [path.replace("~", home, 1) for path in HOMES], []
        for name, usual in CACHES.items():
            path = self.environ.get(name)
            if not path and usual:
                path = usual.format(tmp=self.parent, user=_user())
            if not path:
                continue
            path = os.path.abspath(path.replace("~", home, 1) if path.startswith("~/") else path)
            if not os.path.isdir(path):
                missing.append(name)
            elif fence.inside(self.folder, [path]):
                self.notes.append(f"{name} ({path}) holds the folder itself, so no run may write there")
            else:
                found.append(path)
        return [path for path in found if os.path.isdir(path) and not fence.inside(self.folder, [path])], missing

    def _suspects(self) -> tuple[str, ...]:
        """Return the paths that the script's text names and that it may write to."""
        return tuple(one for path in texts(self.argv, self.folder) for one in written_by(path, self.ground))

    def selection(self) -> copying.Selection:
        """Return what goes into a copy."""
        skip = [*self.skip, *(path for path in (self.root, self.tmp_root) if path)]
        return copying.Selection(self.folder, leave_out=self.leave_out, skip=skip, own=self._stays_behind)

    def _stays_behind(self, relative: str) -> bool:
        """Say whether a folder is one of Overnight's checkpoints that no run needs to begin with."""
        full = os.path.join(self.folder, relative)
        return copying.is_own(full) and for_output(self.all_words, lambda word: self._names(word, full)) is not False

    def _names(self, word: str, full: str) -> bool:
        """Say whether a word of the command names a folder, or something in it: a checkpoint to begin with."""
        path = os.path.normpath(os.path.join(self.folder, word))
        return path == full or path.startswith(full + "/")

    def _check_size(self, max_copy: int, places: int) -> None:
        selection = self.selection()
        found = copying.count(selection, lambda path: STATE.search(path) is not None)
        self.ground = msgspec.structs.replace(self.ground, linked=found.linked)
        out = (
            "put {workdir} in the command for the folder that it writes to (nothing is copied then), leave out what it "
            "does not need with --leave-out GLOB"
        )
        largest = ", ".join(f"{path} {bytes_words(size)}" for path, size in found.largest)
        if not found.whole:
            raise UsageError(f"{self.folder} has more than {copying.MOST_ENTRIES:,} files to copy for each run: {out}")
        if found.size > max_copy:
            raise UsageError(
                f"{self.folder} has {bytes_words(found.size)} to copy for each run, more than --max-copy "
                f"{bytes_words(max_copy)} (largest: {largest}): {out}, or raise --max-copy"
            )
        look = os.statvfs(self.parent)
        free, wanted = look.f_bavail * look.f_frsize, found.size * places + MARGIN_BYTES
        if free < wanted:
            raise UsageError(
                f"{places} copies of {self.folder} need {bytes_words(wanted)} in {self.parent}, which has "
                f"{bytes_words(free)} free (largest: {largest}): {out}, or set TMPDIR to a folder on a larger disk"
            )
        if selection.own_left_out:
            self.notes.append(f"Overnight's checkpoints in {_some(selection.own_left_out)} are not in the copies")
        if found.saves:
            self.notes.append(
                f"the copies have the checkpoints in {_some(found.saves)}: a script that goes on from what it finds "
                f"begins there; --leave-out {found.saves[0] if found.saves[0] != '.' else 'GLOB'} begins anew"
            )

    # -- the places --------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.root = self.tmp_root = os.path.realpath(tempfile.mkdtemp(prefix="ov-", dir=self.parent))
        if len(self.root) > LONGEST_TMP and os.access("/tmp", os.W_OK | os.X_OK):  # noqa: S108 - mkdtemp is safe
            self.tmp_root = os.path.realpath(tempfile.mkdtemp(prefix="ov-", dir="/tmp"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def fresh(self, name: str) -> Place:
        """Return a new place; UsageError if it cannot be made (a full disk)."""
        self.made += 1
        workdir = os.path.join(self.root, str(self.made), os.path.basename(self.folder) if self.copied else "w")
        tmp = os.path.join(self.tmp_root, f"t{self.made}")
        try:
            os.makedirs(tmp, mode=0o700)
            if self.copied:
                self._fill(workdir, name)
            else:
                os.makedirs(workdir, mode=0o700)
            given = self._environment(workdir, tmp)
        except OSError as error:
            raise UsageError(
                f"no working copy can be made in {self.root}: {error.strerror}; free some space, or set TMPDIR to a "
                f"folder on another disk"
            ) from error
        own = (os.path.dirname(workdir), tmp, os.path.join(self.root, "cache"))
        cwd = workdir if self.copied else self.folder
        return Place(
            name=name,
            cwd=cwd,
            argv=self._in_place(workdir, self.argv),
            environ=given,
            unset=tuple(one for one in OUTER if one in self.environ),
            workdir=workdir,
            tmp=tmp,
            allowed=(*own, *self.caches, *self.allow) if self.fenced else (),
        )

    def words(self, place: Place, words: Sequence[str]) -> tuple[str, ...]:
        """Return words (those of --resume-args) as they are in a place, as was done with ``argv``."""
        return self._in_place(place.workdir, words)

    def _in_place(self, workdir: str, words: Sequence[str]) -> tuple[str, ...]:
        """Return words with {workdir} replaced, and with paths into the user's folder led to its copy."""
        led = (mapped(word, self.ground, workdir) for word in words) if self.copied else words
        return tuple(word.replace(WORKDIR, workdir) for word in led)

    def command(self, place: Place, words: Sequence[str], *, log: str) -> list[str]:
        """Return the command line that runs ``words`` in a place, its output going to the file ``log``: fenced in."""
        return fence.fenced(words, [*place.allowed, log]) if self.fenced else list(words)

    def refused(self, place: Place, log_tail: str | Sequence[str]) -> str | None:
        """Return what to tell the user if the last lines of a run's log show a write that the fence has refused."""
        if not self.fenced:
            return None
        found = denied(log_tail, allowed=place.allowed, cwd=place.cwd)
        return None if found is None else advice(found.path, folder=self.folder, suspects=self.suspects)

    def astray(self) -> str | None:
        """Return what to tell the user of a script that saved nothing in its place, and names another one for it.

        A script that goes on when a write is refused need not print a word of it.
        """
        found = outputs(self.suspects, self.ground) if self.fenced else []
        return f"nothing was saved: {advice(None, folder=self.folder, suspects=found)}" if found else None

    def remove(self, place: Place) -> None:
        """Remove a place that is not needed any more."""
        copying.remove(os.path.dirname(place.workdir))
        copying.remove(place.tmp)

    def close(self) -> None:
        """Remove all places; what is kept is said in ``notes``."""
        roots = dict.fromkeys(path for path in (self.root, self.tmp_root) if path)
        if self.root and self.keep:
            self.notes.append(f"the working copies are kept in {self.root}; remove them when they are not needed")
            del roots[self.root]
        for path in roots:
            copying.remove(path)
        self.notes += [f"{path} could not be removed; remove it by hand" for path in roots if os.path.lexists(path)]
        self.root = self.tmp_root = ""

    def _fill(self, workdir: str, name: str) -> None:
        os.makedirs(os.path.dirname(workdir), mode=0o700)
        selection = self.selection()
        done = copying.copy(selection, workdir)
        if self.fenced:
            self._link_neighbours(os.path.dirname(workdir))
        else:
            self._cut_links(workdir)
        if done.missing:
            self.notes.append(f"not in the copy {name}, since it could not be read: {_some(done.missing)}")
        if done.special and self.made == 1:
            self.notes.append(f"pipes, sockets and devices are not copied: {_some(done.special)}")
        if self.made == 1:
            self.stamps = done.stamps
            return
        paths = self.stamps.keys() | done.stamps.keys()
        changed = sorted(path for path in paths if self.stamps.get(path) != done.stamps.get(path))
        if changed:
            self.notes.append(f"the copy {name} differs from the first one, since {_some(changed)} changed meanwhile")

    def _link_neighbours(self, above: str) -> None:
        """Put links beside a copy, so that ``../data`` leads to what it leads to from the user's folder."""
        parent = os.path.dirname(self.folder)
        with contextlib.suppress(OSError), os.scandir(parent) as found:
            for _, one in zip(range(MOST_NEIGHBOURS), found, strict=False):
                if one.path not in (self.folder, self.root, self.tmp_root):
                    os.symlink(one.path, os.path.join(above, one.name))

    def _cut_links(self, workdir: str) -> None:
        """Take links to checkpoints elsewhere out of a copy: without a fence a run would write over the user's."""
        for entry in list(copying.Selection(workdir).entries()):
            here = os.path.join(workdir, entry.path)
            if entry.kind == "symlink" and not fence.inside(here, [workdir]) and PLACE.search(os.path.basename(here)):
                os.unlink(here)
                self.notes.append(
                    f"the link {entry.path} to {os.readlink(os.path.join(self.folder, entry.path))} "
                    f"is not in the copies: a run would write there"
                )

    def _environment(self, workdir: str, tmp: str) -> dict[str, str]:
        given = {"TMPDIR": tmp, "WANDB_DIR": tmp, **OFFLINE}
        for name in self.missing:
            given[name] = os.path.join(self.root, "cache", name.lower())
            os.makedirs(given[name], mode=0o700, exist_ok=True)
        os.makedirs(os.path.join(self.root, "cache"), mode=0o700, exist_ok=True)
        usual = CACHES["TORCHINDUCTOR_CACHE_DIR"]  # lies in TMPDIR, which is another one now
        if usual and "TORCHINDUCTOR_CACHE_DIR" not in {*self.environ, *given}:
            given["TORCHINDUCTOR_CACHE_DIR"] = usual.format(tmp=self.parent, user=_user())
        if not self.fenced:
            given["PYTHONDONTWRITEBYTECODE"] = "1"  # a linked environment is the user's own
        if self.copied and "PWD" in self.environ:
            given["PWD"] = workdir
        if self.copied and self.environ.get("PYTHONPATH"):
            entries = self.environ["PYTHONPATH"].split(os.pathsep)
            given["PYTHONPATH"] = os.pathsep.join(mapped(one, self.ground, workdir) for one in entries)
        return given


def _allowed(path: str, cwd: str) -> str:
    full = os.path.realpath(os.path.join(cwd, os.path.expanduser(path)))
    if not os.path.isdir(full):
        raise UsageError(f"--allow {path}: {full} is not a folder; make it first, or leave the flag out")
    return full


def _same(path: str | None, folder: str) -> list[str]:
    """Return another name of the folder, as a shell keeps it in PWD, if it is one."""
    return [path] if path and os.path.isabs(path) and os.path.realpath(path) == folder else []


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in many containers
        return str(os.getuid())


def _some(paths: Sequence[str] | Mapping[str, None]) -> str:
    known = list(paths)
    return ", ".join(known[:3]) + (f" and {len(known) - 3} more" if len(known) > 3 else "")

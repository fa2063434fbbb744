"""Finds the save to go on from while the training is down: reads what lies there, newest first, until one is good.

Run as ``python -I -m overnight.resumption.search``: stdin is one object (folders, what the facts know, what is wanted),
stdout lines, each a Choice as far as is known by then; the last one counts. The supervisor's side of it waits for
nothing: a disk that hangs costs the limit, and then the facts alone decide.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from overnight.clocks import boot_clock
from overnight.resumption.child import Child
from overnight.resumption.choice import FITS, Candidate, Choice, Kind, PassedOver, Wanted, of_book, ranked
from overnight.resumption.known import GONE, UNKNOWN_FORM, BookState, SavesBook

if TYPE_CHECKING:
    from overnight.inspector.findings import Found  # loaded in the process that looks, and there only: 6 MB
    from overnight.resumption.judging import Judged

LIMIT_S = 600.0
MOST_FOLDERS = 16
MOST_LOOKED = 1000
"""Entries of one folder that are looked at: those that were seen being saved, and the last that were written."""
MOST_PASSED = 20
MAKERS_OF_FOLDERS = ("overnight", "trainer", "accelerate", "dcp", "orbax")
AGAIN = 3
AGAIN_S = 1.0
LOOK_S = 0.05
MODULE = "overnight.resumption.search"


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the process is asked."""

    parent: int
    folders: tuple[str, ...]
    book: BookState
    wanted: Wanted


class Search:
    """One search, as the supervisor sees it. ``choice`` is there once ``done`` says so; it may name no path.

    ``error`` says why not all was looked at, where that is so. ``handle`` is a pipe to be watched, or None.
    """

    def __init__(self, folders: Sequence[str], book: SavesBook, wanted: Wanted, *, limit_s: float = LIMIT_S) -> None:
        self.choice: Choice | None = None
        self.error: str | None = None
        self.limit_s = limit_s
        self._book, self._wanted = book, wanted
        self._last: Choice | None = None
        self._child: Child | None = None
        self._began = boot_clock()
        if not folders and not book.saves:
            self.choice = Choice()
            return
        asked = Asked(parent=os.getpid(), folders=tuple(folders), book=book.state(), wanted=wanted)
        try:
            self._child = Child(MODULE, json.dumps(msgspec.to_builtins(asked)).encode())
        except OSError as error:
            self._give_up(f"no process could be started that looks at the saves: {error.strerror}")

    @property
    def handle(self) -> int | None:
        """The pipe of the process."""
        return None if self._child is None else self._child.handle

    def done(self) -> bool:
        """Say whether it is over; never blocks."""
        child = self._child
        if child is None:
            return self.choice is not None
        ended = child.ended()
        for line in child.lines():
            self._last = _parsed(line) or self._last
        late = boot_clock() - self._began >= self.limit_s
        if not ended and not late:
            return False
        self.close()
        if not ended:
            self._give_up(f"the saves could not be looked at within {self.limit_s:g} s")
        elif child.code or self._last is None:
            self._give_up(f"the process that looks at the saves ended with {child.code}")
        else:
            self.choice = self._last
        return True

    def next_look_s(self) -> float:
        """Return when ``done`` wants to be asked again."""
        return LOOK_S if boot_clock() - self._began < 20 * LOOK_S else 10 * LOOK_S

    def close(self) -> None:
        """End the process."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def _give_up(self, error: str) -> None:
        """Take the best that is known by now."""
        self.error = error
        note = f"{error}; what was chosen was not verified"
        found = self._last
        self.choice = (
            of_book(self._book, self._wanted, note)
            if found is None
            else msgspec.structs.replace(found, notes=(*found.notes, note))
        )


def folders_of(spec_checkpoints: str | None, book: SavesBook, cwd: str) -> list[str]:
    """Return where to look: the folder that was named, and those in which saves were seen, the newest first."""
    places = [] if spec_checkpoints is None else [os.path.join(cwd, spec_checkpoints)]
    places += [os.path.dirname(os.path.join(cwd, save.path)) for save in reversed(book.saves)]
    return list(dict.fromkeys(os.path.normpath(place) for place in places))[:MOST_FOLDERS]


def _parsed(line: bytes) -> Choice | None:
    try:
        return msgspec.convert(json.loads(line), Choice)
    except (ValueError, msgspec.ValidationError):  # it was killed within a line
        return None


# -- inside the process ----------------------------------------------------------------------------------------------


def main() -> int:
    """Find the save to go on from; each line is what is known by then."""
    from overnight.inspector import side

    asked = msgspec.convert(json.loads(sys.stdin.buffer.read()), Asked)
    side.end_with_parent(asked.parent)
    for choice in find(asked.folders, SavesBook(asked.book), asked.wanted):
        _say(choice)
    return 0


def _say(choice: Choice) -> None:
    data = memoryview(json.dumps(msgspec.to_builtins(choice)).encode() + b"\n")
    while data:
        data = data[os.write(1, data) :]


def find(folders: Sequence[str], book: SavesBook, wanted: Wanted) -> Iterator[Choice]:
    """Yield what is known of the choice, time and again; the last one is verified, or says that it is not."""
    from overnight.inspector import choosing

    found, notes = survey(folders, book)
    every = _last_resorts_last(ranked(found, book, wanted))
    about = choosing.about(found)
    passed: list[PassedOver] = []

    def chosen(one: Candidate | None, *more: str) -> Choice:
        told = [*notes, *more] if one is None else [*notes, *more, *_said_of(one, about)]
        beyond = len(passed) - MOST_PASSED
        if beyond > 0:
            told.append(f"{beyond} more saves were passed over")
        return Choice(
            path=None if one is None else one.path,
            step=None if one is None else one.step,
            maker=None if one is None else one.maker,
            passed_over=tuple(passed[:MOST_PASSED]),
            notes=tuple(dict.fromkeys(told)),
        )

    for at, one in enumerate(every):
        if one.passed is not None:
            passed.append(one.passed)
            continue
        yield chosen(one)  # should the time be over before its content is known
        if not one.told:
            yield chosen(one, f"{os.path.basename(one.path)} was not checked: {UNKNOWN_FORM}")
            return
        why, kind = content(one)
        if why is None:
            yield chosen(one)
            return
        passed.append(PassedOver(path=one.path, step=one.step, why=why, kind=kind))
        yield chosen(next((later for later in every[at + 1 :] if later.passed is None), None))
    yield chosen(None)


def _last_resorts_last(every: Sequence[Candidate]) -> list[Candidate]:
    """Return them with what is in doubt behind all others of this run that can be checked."""
    first = [one for one in every if one.group >= FITS and (one.doubtful is None or one.passed is not None)]
    return [*first, *(one for one in every if one not in first)]


def _said_of(one: Candidate, about: Sequence[str]) -> list[str]:
    name = os.path.basename(one.path)
    told = [f"{name} is the best that is left, but not as it should be: {one.doubtful}"] if one.doubtful else []
    if one.group < FITS and one.told:
        told.append(f"{name} was not seen being saved by this run, and there is nothing else to go on from")
    return told + [note for note in about if note.startswith(f"{name} was chosen")]


def content(one: Candidate) -> tuple[str | None, Kind]:
    """Return what the whole content of a candidate says against it, None if nothing."""
    from overnight.resumption.looking import look

    for turn in range(AGAIN):
        judged, _ = look(one.path)
        if not judged.again or turn == AGAIN - 1:
            break
        time.sleep(AGAIN_S)  # whoever still writes to it may be about to end
    return _against(judged, one)


def _against(judged: Judged, one: Candidate) -> tuple[str | None, Kind]:
    if judged.valid is True or (judged.valid is False and one.doubtful is not None and judged.finite is not False):
        return None, "damaged"
    kind: Kind = "nonfinite" if judged.finite is False else "damaged" if judged.valid is False else "unreadable"
    if judged.problem == GONE:
        kind = "damaged"
    return judged.problem or "it is damaged", kind


def survey(folders: Sequence[str], book: SavesBook) -> tuple[list[Found], list[str]]:
    """Return what lies in the folders, and what the facts name besides; nothing of the content is read."""
    from overnight.checkpoint import lock
    from overnight.errors import UsageError
    from overnight.inspector import choosing, walk
    from overnight.inspector.findings import Budget

    found: dict[str, Found] = {}
    notes: list[str] = []
    for place in dict.fromkeys(os.path.realpath(folder) for folder in folders):
        named = next(folder for folder in folders if os.path.realpath(folder) == place)
        if not os.path.lexists(named):
            continue
        try:
            seen = walk.survey(Path(named), Budget(0), _some(book, notes))
        except UsageError as error:
            notes.append(str(error).partition("; ")[0])
            continue
        for one in choosing.with_owner(seen.found, lock.signed_run(Path(named))):
            found.setdefault(one.path, one)
    for save in book.saves:
        covered = save.path in found or any(save.path.startswith(f"{path}/") for path in found)
        if not covered and os.path.exists(save.path):
            found[save.path] = walk.look(Path(save.path), Budget(0)) or _unknown(save.path)
    return _not_twice(list(found.values()), book), notes


def _not_twice(found: Sequence[Found], book: SavesBook) -> list[Found]:
    """Return them without folders in which a save was seen that is a checkpoint by itself, and without its files else.

    Files that lie together are one checkpoint where their maker saves folders, or the folder is called after the step.
    """
    from overnight.inspector import naming

    files: set[str] = set()
    folders: set[str] = set()
    for one in found:
        name = os.path.basename(one.path)
        for save in book.saves:
            if not save.path.startswith(f"{one.path}/"):
                continue
            number = naming.read(name).number
            named = naming.STEP_FOLDER.fullmatch(name) or (number is not None and number == save.step)
            (folders if named or one.maker in MAKERS_OF_FOLDERS else files).add(one.path)
    return [one for one in found if one.path not in files and not any(one.path.startswith(f"{it}/") for it in folders)]


def _unknown(path: str) -> Found:
    from overnight.inspector.findings import Found

    at = None
    with contextlib.suppress(OSError):
        at = os.stat(path).st_mtime
    return Found(path=path, maker="unknown", saved_at=at)


def _some(book: SavesBook, notes: list[str]) -> Callable[[Sequence[Path], Callable[[Path], Found | None]], Any]:
    """Return how the entries of a folder are looked at: of very many only those that may matter."""
    from overnight.sweep import each

    def looked(paths: Sequence[Path], look: Callable[[Path], Found | None]) -> list[Found | None]:
        if len(paths) <= MOST_LOOKED:
            return each(paths, look)
        known = {save.path for save in book.saves}
        last = set(sorted(paths, key=_written_at)[-MOST_LOOKED:])
        kept = [path for path in paths if str(path) in known or path in last]
        notes.append(f"{len(paths) - len(kept)} older files in {paths[0].parent} were not looked at")
        return each(kept, look)

    return looked


def _written_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


if __name__ == "__main__":
    sys.exit(main())

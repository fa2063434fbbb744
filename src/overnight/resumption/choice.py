"""Which save a run goes on from: what lies on the disk, together with what the run's facts know of it.

Pure: findings and facts in, an order out; content is read elsewhere, in this order, until one is good. Whose a save is
that nobody saw being made is told by its time, how far it had come by its content, and by its name last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from overnight.inspector import naming
from overnight.resumption.known import GONE, KnownSave, SavesBook, Spot, lineage, spot

if TYPE_CHECKING:
    from overnight.inspector.findings import Found  # what judges findings is loaded where some are judged: 6 MB

LATER_S, SOON_S = 5.0, 0.5
"""A file that was written so long after its save was seen to be over has been written again since; or may have been."""
AROUND_S = 2.0
FITS, UNTOLD, BEFORE_RUN = 2, 1, 0
"""Groups: saves of this run, those of it whose form nobody can check, and what was there before the run began."""

UNLOADED = "an attempt that was given it ended before its first step"

Kind = Literal["damaged", "nonfinite", "unhealthy", "too_late", "load_failure", "unreadable"]


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What is looked for: a save of a step below ``before``, if that is not None.

    ``attempts``: (number, began, ended) of each, in seconds since the epoch. ``first``: the first step that the run has
    printed, so that no save of an older run that lies beyond it is taken for one of this run's history. ``own``: the
    folder that is the run's, by each of its names; elsewhere, where others may save too, only what was seen being
    saved, and what is like that, is looked at. Empty: every folder is its own.
    """

    before: int | None = None
    attempts: tuple[tuple[int, float, float | None], ...] = ()
    first: int | None = None
    own: tuple[str, ...] = ()


class PassedOver(msgspec.Struct, frozen=True, kw_only=True):
    """A save that was not taken, and why, as a clause.

    ``kind``: "damaged", "nonfinite", "unhealthy" (saved in trouble, or perhaps), "too_late" (for a rollback),
    "load_failure", "unreadable".
    """

    path: str
    step: int | None
    why: str
    kind: Kind = "damaged"


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The save to go on from, or None; what was passed over for it, newest first; and what is to be said of it."""

    path: str | None = None
    step: int | None = None
    maker: str | None = None
    passed_over: tuple[PassedOver, ...] = ()
    notes: tuple[str, ...] = ()


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One save in its place. ``passed``: why it is out of the question, None if it is not.

    ``told``: its form is known, so that its content can be checked. ``doubtful``: it is whole, but not as it should be.
    """

    path: str
    step: int | None
    maker: str | None
    group: int
    told: bool
    passed: PassedOver | None
    doubtful: str | None = None


def order(found: Sequence[Found], book: SavesBook, wanted: Wanted) -> tuple[list[Candidate], list[PassedOver]]:
    """Return what may be resumed from, newest first, and what may not; content has to decide among the first."""
    every = ranked(found, book, wanted)
    return [one for one in every if one.passed is None], [one.passed for one in every if one.passed is not None]


def ranked(found: Sequence[Found], book: SavesBook, wanted: Wanted) -> list[Candidate]:
    """Return all that could be meant, newest first: also what is out of the question, each in its place.

    Overnight's own come first, in the order that their manifests give; then the run's others in the order of its
    history; then those of unknown form; then what was there before.
    """
    from overnight.inspector import choosing
    from overnight.inspector.joining import NO_CHECKPOINT, ONLY_OPTIMIZER

    sights = [
        _Sight(one, book, wanted, place)
        for place, one in enumerate(choosing.newest_first(found))
        if one.own is not False and NO_CHECKPOINT not in one.notes and ONLY_OPTIMIZER not in one.notes
    ]
    alike = _alike(book)
    sights = [
        one for one in sights if one.save is not None or one.found.own is True or _of_run(one.path, wanted.own, alike)
    ]
    older = {one.path for one in choosing.candidates([one.found for one in sights if one.group == BEFORE_RUN])}
    sights = [one for one in sights if one.matters() and (one.group != BEFORE_RUN or one.path in older)]
    generation = max((one.found.order[0] for one in sights if one.found.order is not None), default=0)
    depth = {place: at for at, place in enumerate(lineage([one.spot() for one in sights], book.resumed))}
    ranks = [(one.rank(generation), depth[place]) for place, one in enumerate(sights)]
    return [sights[place].candidate() for place in sorted(range(len(sights)), key=ranks.__getitem__, reverse=True)]


def of_book(book: SavesBook, wanted: Wanted, note: str) -> Choice:
    """Return the newest save that nothing is known against, from the facts alone: nothing could be looked at."""
    passed: list[PassedOver] = []
    for place in reversed(lineage([spot(one) for one in book.saves], book.resumed)):
        save = book.saves[place]
        if save.problem == GONE:
            continue
        out = against(save, book, wanted)
        if out is None:
            return Choice(
                path=save.path, step=save.step, maker=_maker(save.maker), passed_over=tuple(passed), notes=(note,)
            )
        passed.append(out)
    return Choice(passed_over=tuple(passed), notes=(note,))


def against(save: KnownSave, book: SavesBook, wanted: Wanted) -> PassedOver | None:
    """Return what the facts know against a save, None if nothing."""

    def out(kind: Kind, why: str) -> PassedOver:
        return PassedOver(path=save.path, step=save.step, why=why, kind=kind)

    if save.load_failure is not None:
        return out("load_failure", f"{UNLOADED}: {save.load_failure}")
    if save.finite is False:
        return out("nonfinite", save.problem or "a number in it is not finite")
    if save.valid is False:
        return out("damaged", save.problem or "it is damaged")
    why = _ill(book, save.attempt, save.segment, save.step, save.at)
    if why is not None:
        return out("unhealthy", why)
    why = _late(save.step, wanted)
    return None if why is None else out("too_late", why)


def _ill(book: SavesBook, attempt: int, segment: int | None, step: int | None, at: float | None) -> str | None:
    """Return why a save may be poisoned; None if it is healthy."""
    healthy = book.in_health(attempt, segment, step, at)
    if healthy is True:
        return None
    sick = [first for key, first in book.sick.items() if key[0] == attempt and segment in (None, key[1])]
    begun = [first for first in sick if step is None or first <= step]
    if healthy is None:
        return f"its step is not known, and there was trouble from step {min(sick)} on" if sick else (
            "its step is not known, and a rollback went back behind some saves"
        )  # fmt: skip
    if begun:
        return f"saved after the trouble at step {min(begun)} had begun"
    return "left behind by a rollback to an earlier step"


def _late(step: int | None, wanted: Wanted) -> str | None:
    if wanted.before is None:
        return None
    if step is None:
        return f"its step is not known, and one below {wanted.before} is wanted"
    return None if step < wanted.before else f"too near the trouble: one of a step below {wanted.before} is wanted"


def _maker(maker: str | None) -> str | None:
    return None if maker == "unknown" else maker


class _Sight:
    """One finding and what the book knows of it: whose it is, how far it had come, and what is against it."""

    def __init__(self, found: Found, book: SavesBook, wanted: Wanted, place: int) -> None:
        from overnight.inspector import choosing

        self.found, self.path, self.place = found, found.path, place
        self.book, self.wanted = book, wanted
        self.save = known_of(found, book)
        at = found.saved_at
        if self.save is not None and at is not None and at > self.save.at + LATER_S:
            self.save = None  # it was written again, and nobody saw it
        save = self.save
        self.at = save.at if save is not None else at or 0.0
        self.partner = _saved_with(found, book) if save is None else None
        self.attempt = save.attempt if save is not None else _attempt_of(at, self.partner, wanted)
        self.segment = save.segment if save is not None else None if self.partner is None else self.partner.segment
        again = save is not None and at is not None and at > save.at + SOON_S and found.step is not None
        self.step = save.step if save is not None and save.step is not None and not again else self._step()
        self.usable = choosing.usable(found)
        self.broken = _broken(found)
        self.told = self.usable or self.broken
        self.group = self._group()

    def _group(self) -> int:
        if self.found.own is True:
            return FITS
        if self.save is None and self.attempt == 0 and self.wanted.attempts:
            return BEFORE_RUN
        if self.save is None and self.step is None:
            return UNTOLD
        return FITS if self.told else UNTOLD

    def matters(self) -> bool:
        """Say whether it may be a save of this run, or one that the run has come from."""
        if self.group == BEFORE_RUN:
            first = self.wanted.first
            return self.step is not None and first is not None and self.step <= first
        return self.told or self.save is not None or _unreadable(self.found)

    def _step(self) -> int | None:
        """Return the step of what nobody saw: what lies inside, what the name says, that of what was saved with it."""
        if self.found.step is not None:
            return self.found.step
        name = self.path.rpartition("/")[2]
        named = naming.read(name)
        if named.step is not None or (named.sure == 1 and not _misled(self.path, self.book)):
            return named.number
        return None if self.partner is None else self.partner.step

    def rank(self, generation: int) -> tuple[int, ...]:
        """Return what counts before the run's history: the group, and the order that manifests of ours give.

        One of ours whose manifest is lost stands where its name says, in the newest ``generation``.
        """
        order = self.found.order
        if order is None and self.found.maker == "overnight" and self.step is not None:
            order = generation, self.step
        if order is not None:
            return (FITS + 1, int(self.found.led), *order)
        return (self.group,)

    def spot(self) -> Spot:
        """Return where it stands; of two of the same step what is no extra and ranks higher by itself is preferred."""
        if self.group == BEFORE_RUN:  # nobody knows in which order those were saved but by what lies in them
            return Spot(0, -self.place, None, self.at)
        if self.save is None and self.step is None:
            return Spot(-1, 0, None, self.at)
        stands_out = naming.stands_out(self.path.rpartition("/")[2]) is not None
        segment = self.segment if self.segment is not None else self._segment()
        return Spot(self.attempt, segment, self.step, self.at, (int(not stands_out), -self.place))

    def _segment(self) -> int:
        """Return the segment in whose time it was saved."""
        mine = [one for one in self.book.saves if one.attempt == self.attempt]
        before = [one.segment for one in mine if one.at <= self.at + AROUND_S]
        return max(before, default=min((one.segment for one in mine), default=0))

    def candidate(self) -> Candidate:
        """Return it in its place."""
        return Candidate(
            path=self.path,
            step=self.step,
            maker=_maker(self.found.maker),
            group=self.group,
            told=self.told,
            passed=self._against(),
            doubtful=self.found.problem if self.usable else None,
        )

    def _against(self) -> PassedOver | None:
        seen = self._of_facts()
        if self.usable and self.found.problem is not None and seen is not None and seen.kind == "damaged":
            seen = None  # it may be all there is: see ``doubtful``
        looks = self._of_looks()
        return looks if seen is None or (seen.kind == "damaged" and looks is not None) else seen

    def _of_looks(self) -> PassedOver | None:
        found = self.found
        if self.broken:
            kind: Kind = "nonfinite" if found.finite is False else "unhealthy" if found.healthy is False else "damaged"
            return self._out(kind, found.problem or "it is damaged")
        if _unreadable(found):
            return self._out("unreadable", found.problem or "it cannot be read")
        fellow = None if self.told or found.complete is not None else self.book.fellow(self.path)
        if fellow is not None:
            return self._out("damaged", f"it is not of the form that {fellow.path.rpartition('/')[2]} has")
        return None

    def _of_facts(self) -> PassedOver | None:
        if self.save is not None:
            save = msgspec.structs.replace(self.save, step=self.step, path=self.path)
            return against(save, self.book, self.wanted)
        failure = self.book.failures.get(self.path)
        if failure is not None and self.book.of(self.path) is None:
            return self._out("load_failure", f"{UNLOADED}: {failure}")
        why = _ill(self.book, self.attempt, self.segment, self.step, self.found.saved_at)
        if why is not None:
            return self._out("unhealthy", why)
        why = _late(self.step, self.wanted)
        return None if why is None else self._out("too_late", why)

    def _out(self, kind: Kind, why: str) -> PassedOver:
        return PassedOver(path=self.path, step=self.step, why=why, kind=kind)


def _broken(found: Found) -> bool:
    """Say whether it is known to be bad; see ``judging`` for what is of no known form."""
    if found.maker == "unknown":
        named = found.path.endswith(naming.FILES)
        return found.complete is False and (not found.size_bytes or named)
    return False in (found.complete, found.intact, found.finite, found.healthy)


def _unreadable(found: Found) -> bool:
    return found.complete is None and found.problem is not None and "cannot be read" in found.problem


def known_of(found: Found, book: SavesBook) -> KnownSave | None:
    """Return the newest save that is this one, or a file of it, or of which this is a file."""
    exact = book.of(found.path)
    if exact is not None:
        return exact
    inside = [one for one in book.saves if one.path.startswith(f"{found.path}/")]
    return inside[-1] if inside else None


def _saved_with(found: Found, book: SavesBook) -> KnownSave | None:
    """Return the save in whose time another file of the same folder was written."""
    if found.saved_at is None:
        return None
    folder = found.path.rpartition("/")[0]
    for one in reversed(book.saves):
        if one.path.rpartition("/")[0] == folder and found.saved_at - (one.at - one.seconds) >= -AROUND_S and (
            found.saved_at <= one.at + AROUND_S
        ):  # fmt: skip
            return one
    return None


def _attempt_of(at: float | None, partner: KnownSave | None, wanted: Wanted) -> int:
    """Return the attempt in whose time something was written; 0: before the first one. Unknown times are the last's."""
    if partner is not None:
        return partner.attempt
    begun = [number for number, began, _ in wanted.attempts if at is None or began <= at]
    return max(begun, default=0)


def _alike(book: SavesBook) -> dict[str, naming.Alike]:
    """Return which names are like those of the saves that were seen, for each folder in which some were."""
    found: dict[str, naming.Alike] = {}
    for one in book.saves:
        folder, _, name = one.path.rpartition("/")
        found.setdefault(folder, naming.Alike()).add(name)
    return found


def _of_run(path: str, own: Sequence[str], alike: Mapping[str, naming.Alike]) -> bool:
    """Say whether what nobody saw being saved may be of this run by its place, and elsewhere by its name."""
    folder, _, name = path.rpartition("/")
    if not own or any(f"{path}/".startswith(f"{one.rstrip('/')}/") for one in own):
        return True
    return folder in alike and alike[folder].like(name)


def _misled(path: str, book: SavesBook) -> bool:
    """Say whether the lone numbers in the names of this series are known to count something else than steps."""
    folder, _, name = path.rpartition("/")
    for one in book.saves:
        where, _, called = one.path.rpartition("/")
        alike = where == folder and naming.form(called) == naming.form(name)
        if alike and one.step is not None and naming.read(called).number not in (None, one.step):
            return True
    return False

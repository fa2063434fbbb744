"""What a training script uses: one object that resumes, counts the steps, saves, and ends in time.

The loop is the script's own. At the end of each step, the boundary, this looks whether a save is due or a stop was
asked for; between two boundaries it does nothing. How a save is made is in ``saving``, where to resume in ``resuming``.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from overnight.checkpoint import environment, lock, parts, publish, resuming, retention, rng
from overnight.checkpoint import manifest as manifests
from overnight.checkpoint.account import Account
from overnight.checkpoint.asking import Asking
from overnight.checkpoint.errors import CheckpointError, SaveError, StoppedError, UsageError
from overnight.checkpoint.given import Given
from overnight.checkpoint.interval import Interval
from overnight.checkpoint.loader import LoaderPosition
from overnight.checkpoint.manifest import Manifest
from overnight.checkpoint.saving import How, Saver, room_for
from overnight.checkpoint.speaking import say, warn
from overnight.checkpoint.telemetry import Telemetry

TRIES, TRY_AGAIN_S = 3, 2.0
"""The last save of a run is tried so often: what it would lose is everything since the one before."""


class Checkpointer:
    """Saves and resumes one training in one folder.

    ``every``: steps between two saves, a time ("10m"), "auto" (see ``interval``), or None. ``keep_last``: how many are
    kept (None: all), ``keep_best`` of them by ``metric`` ("min" or "max" of what ``report`` was given), ``keep_every``:
    each step that is a multiple is kept for good. ``resume``: True goes on from the newest good checkpoint of the
    folder's run, False begins a run of its own beside it, a path names the one to go on from. ``strict``: a changed
    environment or config is an error, not a sentence. ``async_=False`` saves in the training itself. ``read_back``:
    each save is read again before it counts. ``config``: settings, compared on resume: a dict, a dataclass, or what
    argparse returns. ``timeout_s``: how long
    others wait for a save at most, if they do.

    Parts are handed over by name: anything with ``state_dict`` and ``load_state_dict``, random generators, arrays and
    tensors (restored in place), dicts and lists of these, plain values (in ``values`` from then on).

    Raises UsageError for values that make no sense, LockedError if another training writes there, CheckpointError.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        every: int | str | None = "auto",
        keep_last: int | None = 3,
        keep_best: int | None = None,
        metric: str | None = None,
        mode: str = "min",
        keep_every: int | None = None,
        resume: bool | str | os.PathLike[str] = True,
        strict: bool = False,
        async_: bool = True,
        read_back: bool = False,
        overhead: float = 0.01,
        config: Any = None,
        timeout_s: float | None = None,
        loader: Any = None,
        **given: Any,
    ) -> None:
        try:
            self.folder = Path(os.path.abspath(folder))  # a script may change its current folder
        except OSError as error:
            raise UsageError(f"{folder}: the current folder is gone; give an absolute path") from error
        self.keep = retention.asked_for(last=keep_last, best=keep_best, metric=metric, mode=mode, every=keep_every)
        self.how = How(beside=async_, keep=self.keep, read_back=read_back, timeout_s=timeout_s)
        self.every, self.overhead = every, overhead
        Interval(every, overhead=overhead)  # a wrong value is refused here, not after the model was loaded
        if not isinstance(resume, (bool, str, os.PathLike)):
            raise UsageError(f"resume cannot be {resume!r}: give True, False, or the path of a checkpoint")
        if timeout_s is not None and not timeout_s > 0:
            raise UsageError(f"timeout_s cannot be {timeout_s!r}: give seconds, or None")
        self.resume, self.strict = resume, strict
        self.config = manifests.plain(config, "config")
        environment.refuse_ranks()
        self._given = Given(given, loader, say=say)
        self._asking = Asking(say=say)
        if self._given.position is not None:
            self._given.position.stopping = self._asking.asked_by_now
        self._telemetry = Telemetry()
        self._open = False
        self._drawn = 0
        self._wanted = self._looping = self._told_data = False
        self._stop = False
        self._within: int | None = None  # the step that is going on, whose state belongs to no step yet
        self.step = 0
        self.resumed_from: Path | None = None

    # -- beginning and end -------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Take the folder, listen for signals, and restore the newest good checkpoint into the parts."""
        if self._open:
            raise UsageError("this Checkpointer is in use already: make another one")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            publish.sync_folder(self.folder.parent)
        except OSError as error:
            raise CheckpointError(
                f"{self.folder} cannot be made: {error.strerror}; mend the path or its permissions"
            ) from error
        self._pid, self._stop = os.getpid(), False
        self._lock = lock.take(self.folder, say=say)
        try:
            publish.sweep(self.folder)
            publish.probe(self.folder)
            self._asking.listen()
            self._saver = Saver(self.folder, self._lock, self.how, say=say, warn=warn)
            self._restore()
            lock.sign(self._lock, self._start.run)
        except BaseException:
            self._asking.unlisten()
            os.close(self._lock)
            raise
        self._open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """Let the save in flight become a checkpoint, whatever has happened, and let go of the folder."""
        if not self._open or os.getpid() != self._pid:
            return False
        self._open = False
        # The step that was begun has drawn nothing, so all is as it was at its boundary.
        ended = isinstance(error, StoppedError) and self._drawn == self.loader.total
        if self._within is not None and error is None:
            warn(
                f"the loop was left within step {self._within}: what was trained since the save of step "
                f"{self._saver.saved} is not saved; end the loop with stop(), which saves"
            )
        try:
            if ended:
                self._within = None
                self._finish()
            self._saver.close()
        finally:
            self._asking.unlisten()
            os.close(self._lock)
        if error is None or ended:
            self._saver.raise_pending()
        return ended

    def _restore(self) -> None:
        start = resuming.choose(self.folder, resume=self.resume, say=say, new_run=secrets.token_hex(8))
        self._start = start
        exempt = self._given.not_finite()
        self._account = Account(given=self._given, config=self.config, exempt=exempt)
        self._saved_rng: Mapping[str, Any] | None = None
        known = start.manifest
        if start.entry is None or known is None:
            say(f"no checkpoint in {self.folder}: training begins at step 1")
        else:
            self._go_on(start.entry, known)
        self._interval = Interval(
            self.every,
            overhead=self.overhead,
            failures=self._account.failures,
            trained_s=self._account.trained_s,
        )
        self._saver.saved = self.step
        for sentence in self._given.gaps():
            say(sentence)

    def _go_on(self, entry: Any, known: Manifest) -> None:
        changed = resuming.differences(known, self._account.facts(), environment.versions(), self.config)
        if changed and self.strict:
            raise CheckpointError(
                f"{entry.path.name} was made under other conditions: {'; '.join(changed)}; "
                f"put them back, or go on without strict=True"
            )
        saved = resuming.restore(entry, self._given, say=say)
        self.step, self.resumed_from = known.step, entry.path
        self._account.go_on(known)
        self._saved_rng = saved.get("rng")
        say(f"resumed from {entry.path}: step {known.step} is done")
        for one in changed:
            say(f"changed since step {known.step}: {one}")
        idle = parts.untrained(self._given.parts.get("model"), self._given.parts.get("optimizer"))
        if idle:
            say(f"the optimizer holds nothing for {len(idle)} parameters that were never trained: {parts.some(idle)}")

    # -- the loop ----------------------------------------------------------------------------------------------------

    def steps(self, last: int) -> Iterator[int]:
        """Yield the steps that are left up to ``last``; the first one is 1, or the one after the resumed checkpoint.

        Ends at the first boundary after a stop was asked for (a signal, ``stop()``, OVERNIGHT_STOP_AT), and saves
        durably before it ends. Raises SaveError if that last save fails however often it is tried.
        """
        if type(last) is not int or last < 0:
            raise UsageError(f"steps() cannot go up to {last!r}: give the number of the last step")
        self._look_in()
        if self._within is not None:
            raise self._left()
        self._prepare()
        if self.step >= last:
            say(f"nothing is left to do: step {self.step} is done, and {last} were asked for")
            return
        if self._ending():
            say(f"nothing is left to do: step {self.step} is done, and a stop was asked for")
        self._interval.begin(self.step, time.monotonic())
        self._telemetry.begin(self.step)
        self._looping = True
        try:
            yield from self._each(last)
        finally:
            self._looping = False
        self._finish()

    def _each(self, last: int) -> Iterator[int]:
        while self.step < last and not self._ending():
            if self._asking.skip(self.step + 1):
                self._skip()
                continue
            self._drawn = 0 if self._given.position is None else self._given.position.total
            self._asking.guard_workers()
            self._within = self.step + 1
            yield self._within
            self._look_in()
            self._within = None
            self.step += 1
            if self._given.position is not None:
                self._look_at_data()
                self._account.batches_per_step = self._given.position.total - self._drawn
            if self.step < last and not self._ending():
                self._boundary()

    def _look_at_data(self) -> None:
        if self._given.position is not None and self._given.position.total == 0 and not self._told_data:
            self._told_data = True
            warn(
                f"step {self.step} took nothing from ckpt.loader: draw batches by next(ckpt.loader), or their place in "
                f"the data is not saved"
            )

    def _look_in(self) -> None:
        """Refuse to go on where the folder is not, or no longer, this training's."""
        if not self._open:
            raise UsageError("use it within `with Checkpointer(...) as ckpt:`, which takes the folder and resumes")
        if os.getpid() != self._pid:
            raise UsageError("this is a forked child: the steps and the folder belong to the process that began them")

    def _left(self) -> UsageError:
        return UsageError(
            f"the loop was left within step {self._within}, so what is there now belongs to no step: "
            f"end the loop with stop(), which saves"
        )

    def _prepare(self) -> None:
        """The iterator first, random numbers after it: making one draws from them, as it did in the run before."""
        self._account.begin()
        if self._given.position is not None:
            self._given.position.begin()
        if self._saved_rng is not None:
            for sentence in rng.restore(self._saved_rng, self._given.generators):
                say(sentence)
            self._saved_rng = None
        size = self._saver.warm(self._given.part_states())
        if warning := room_for(self.folder, size, self.keep, self._start.run):
            warn(warning)
        self._sized = False

    def _ending(self) -> bool:
        at = self._asking.stop_at
        return self._stop or self._asking.asked is not None or (at is not None and self.step >= at)

    def _skip(self) -> None:
        """Leave a step out whose data are not to be seen: they are drawn and dropped."""
        self.step += 1
        for _ in range(self._account.batches_per_step if self._given.position is not None else 0):
            next(self.loader)
        say(f"step {self.step} is left out, as OVERNIGHT_SKIP_STEPS says")
        if not self._ending():
            self._boundary()

    def _boundary(self) -> None:
        self._saver.poll()
        self._count_costs()
        now = time.monotonic()
        if self._wanted or self._interval.due(self.step, now):
            self._interval.started(self.step, now)
            self._save("asked" if self._wanted else "interval")
            self._wanted = False
            self._count_costs()
        elif not self._sized:
            with contextlib.suppress(CheckpointError):  # the next save says it
                self._saver.warm(self._given.part_states())  # optimizers have their moments since the first step
        self._sized = True

    def _count_costs(self) -> None:
        for cost in self._saver.costs:
            self._interval.saved(cost.step, time.monotonic(), stall_s=cost.stall_s, write_s=cost.write_s)
        self._saver.costs.clear()

    def _finish(self) -> None:
        asked = self._asking.asked
        if asked is not None:
            say(f"{asked} came: step {self.step} was finished")
        if asked is not None and not self._asking.save_wanted():
            say("not saving: the order to stop says that this state is not wanted")
            self._saver.wait()
            self._saver.pending = None
            return
        if self._too_late():
            return
        for left in reversed(range(TRIES)):
            if self.step not in (self._saver.saved, self._saver.flying):
                # The last try needs nobody else: a writer that is killed for want of memory would be each time.
                self._save("stop" if self._ending() else "end", beside=left > 0)
            self._saver.wait()
            if self._saver.saved == self.step:
                return
            if left:
                time.sleep(TRY_AGAIN_S)
        self._saver.raise_pending()

    def _too_late(self) -> bool:
        """Say whether there is time for the save in flight only, and let it end then."""
        left_s, flying = self._asking.grace_left_s(), self._saver.flying
        if left_s is None or flying in (None, self.step) or 2 * self._saver.longest_s < left_s:
            return False
        say(f"{left_s:.0f} s are left, so the save of step {flying} that is in flight is the last one")
        self._saver.wait()
        return True

    # -- what a script may ask for -----------------------------------------------------------------------------------

    @property
    def loader(self) -> LoaderPosition:
        """The loader, endless over epochs, whose position is saved: ``next(ckpt.loader)``."""
        if self._given.position is None:
            raise UsageError("no loader was handed over: Checkpointer(..., loader=loader)")
        return self._given.position

    @property
    def stopped(self) -> str | None:
        """The signal that asked for the end, None if none came."""
        return self._asking.asked

    @property
    def values(self) -> dict[str, Any]:
        """Plain values that were handed over, as they are now; what is put here is in the next save."""
        return self._given.values

    def stop(self) -> None:
        """End at the next boundary, after a durable save."""
        self._stop = True

    def report(self, step: int, **figures: Any) -> None:
        """Print the step's line; figures are numbers, or tensors of one element. The last ones go into each save."""
        self._account.note(figures)
        self._telemetry.report(step, figures)

    def save(self) -> None:
        """Save at the end of the step that is going on; after the loop at once, and durably.

        Raises SaveError for a save after the loop that fails, UsageError if the loop was left within a step. In a step
        ``wait()`` waits for earlier saves only.
        """
        self._look_in()
        if self._within is None:
            if not self._account.begun:
                raise UsageError("save() belongs behind a step: nothing has been trained yet")
            self._save("asked")
            self.wait()
        elif self._looping:
            self._wanted = True
        else:
            raise self._left()

    def wait(self) -> None:
        """Wait until every save is durable; SaveError if one has failed since this was last asked."""
        self._saver.wait()
        self._saver.raise_pending()

    # -- one save ----------------------------------------------------------------------------------------------------

    def _save(self, reason: str, *, beside: bool = True) -> None:
        self._saver.save(self._given.states(), self._account.draft(self.step, self._start, reason), beside=beside)


__all__ = ["Checkpointer", "SaveError"]

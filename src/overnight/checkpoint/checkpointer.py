"""What a training script uses: one object that resumes, counts the steps, saves, and ends in time.

The loop is the script's own. At the end of each step, the boundary, this looks whether a save is due or a stop was
asked for; between two boundaries it does nothing. How a save is made is in ``saving``, where to resume in ``resuming``.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from overnight.checkpoint import environment, lock, parts, publish, resuming, retention, rng
from overnight.checkpoint.asking import Asking
from overnight.checkpoint.errors import CheckpointError, SaveError, UsageError
from overnight.checkpoint.given import Given
from overnight.checkpoint.interval import Interval
from overnight.checkpoint.loader import LoaderPosition
from overnight.checkpoint.manifest import Manifest
from overnight.checkpoint.saving import How, Saver, room_for
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
    each save is read again before it counts. ``config``: plain settings, compared on resume. ``timeout_s``: how long
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
        config: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
        loader: Any = None,
        **given: Any,
    ) -> None:
        self.folder = Path(os.path.abspath(folder))  # a script may change its current folder
        self.keep = retention.asked_for(last=keep_last, best=keep_best, metric=metric, mode=mode, every=keep_every)
        self.how = How(beside=async_, keep=self.keep, read_back=read_back, timeout_s=timeout_s)
        self.every, self.overhead = every, overhead
        Interval(every, overhead=overhead)  # a wrong value is refused here, not after the model was loaded
        self.resume, self.strict = resume, strict
        self.config = None if config is None else dict(config)
        _refuse_ranks()
        self._given = Given(given, loader, say=_say)
        self._asking = Asking(say=_say)
        self._telemetry = Telemetry()
        self._figures: dict[str, Any] = {}
        self._open = False
        self._stop = self._wanted = self._looping = False
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
        except OSError as error:
            raise CheckpointError(
                f"{self.folder} cannot be made: {error.strerror}; mend the path or its permissions"
            ) from error
        self._pid = os.getpid()
        self._lock = lock.take(self.folder, say=_say)
        try:
            publish.sweep(self.folder)
            self._asking.listen()
            self._saver = Saver(self.folder, self._lock, self.how, say=_say, warn=_warn)
            self._restore()
        except BaseException:
            self._asking.unlisten()
            os.close(self._lock)
            raise
        self._open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Let the save in flight become a checkpoint, whatever has happened, and let go of the folder."""
        if not self._open or os.getpid() != self._pid:
            return
        self._open = False
        if self._within is not None and error is None:
            _warn(
                f"the loop was left within step {self._within}: what was trained since the save of step "
                f"{self._saver.saved} is not saved; end the loop with stop(), which saves"
            )
        try:
            self._saver.close()
        finally:
            self._asking.unlisten()
            os.close(self._lock)

    def _restore(self) -> None:
        start = resuming.choose(self.folder, resume=self.resume, say=_say, new_run=secrets.token_hex(8))
        self._start = start
        self._exempt = tuple(parts.not_finite(self._given.parts.get("model")))
        self._saved_rng: Mapping[str, Any] | None = None
        self._progress: dict[str, Any] = {"epoch": 0, "trained_s": 0.0, "failures": 0, "batches_per_step": 1}
        known = start.manifest
        if start.entry is None or known is None:
            _say(f"no checkpoint in {self.folder}: training begins at step 1")
        else:
            self._go_on(start.entry, known)
        self._interval = Interval(
            self.every,
            overhead=self.overhead,
            failures=self._progress["failures"],
            trained_s=self._progress["trained_s"],
        )
        self._saver.saved = self.step
        self._warn_of_gaps()

    def _go_on(self, entry: Any, known: Manifest) -> None:
        changed = resuming.differences(known, self._facts(), environment.versions(), self.config)
        if changed and self.strict:
            raise CheckpointError(
                f"{entry.path.name} was made under other conditions: {'; '.join(changed)}; "
                f"put them back, or go on without strict=True"
            )
        saved = resuming.restore(entry, self._given, say=_say)
        self.step, self.resumed_from = known.step, entry.path
        self._progress.update(known.progress)
        self._progress["failures"] += known.reason not in ("stop", "end")
        self._exempt = tuple(known.exempt)
        self._saved_rng = saved.get("rng")
        _say(f"resumed from {entry.path}: step {known.step} is done")
        for one in changed:
            _say(f"changed since step {known.step}: {one}")
        idle = parts.untrained(self._given.parts.get("model"), self._given.parts.get("optimizer"))
        if idle:
            _say(f"the optimizer holds nothing for {len(idle)} parameters that were never trained: {parts.some(idle)}")

    def _warn_of_gaps(self) -> None:
        if "model" in self._given.parts and "optimizer" not in self._given.parts:
            _say("only the model was handed over, no optimizer state: a resume will not be exact")

    # -- the loop ----------------------------------------------------------------------------------------------------

    def steps(self, last: int) -> Iterator[int]:
        """Yield the steps that are left up to ``last``; the first one is 1, or the one after the resumed checkpoint.

        Ends at the first boundary after a stop was asked for (a signal, ``stop()``, OVERNIGHT_STOP_AT), and saves
        durably before it ends. Raises SaveError if that last save fails however often it is tried.
        """
        if not self._open:
            raise UsageError("use it as `with Checkpointer(...) as ckpt:` first: that takes the folder and resumes")
        self._prepare()
        if self.step >= last:
            _say(f"nothing is left to do: step {self.step} of {last} is done")
            return
        self._began = time.monotonic()
        self._interval.begin(self.step, self._began)
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
            drawn = 0 if self._given.position is None else self._given.position.total
            self._within = self.step + 1
            yield self._within
            self._within = None
            self.step += 1
            if self._given.position is not None:
                self._per_step = self._given.position.total - drawn
            if self.step < last and not self._ending():
                self._boundary()

    def _prepare(self) -> None:
        """The iterator first, random numbers after it: making one draws from them, as it did in the run before."""
        self._per_step = self._progress["batches_per_step"]
        if self._given.position is not None:
            self._given.position.begin()
        if self._saved_rng is not None:
            for sentence in rng.restore(self._saved_rng, self._given.generators):
                _say(sentence)
            self._saved_rng = None
        size = self._saver.warm(self._given.part_states())
        if warning := room_for(self.folder, size, self.keep, self._start.run):
            _warn(warning)
        self._sized = False

    def _ending(self) -> bool:
        at = self._asking.stop_at
        return self._stop or self._asking.asked is not None or (at is not None and self.step >= at)

    def _skip(self) -> None:
        """Leave a step out whose data are not to be seen: they are drawn and dropped."""
        self.step += 1
        for _ in range(self._per_step if self._given.position is not None else 0):
            next(self.loader)
        _say(f"step {self.step} is left out, as OVERNIGHT_SKIP_STEPS says")

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
            self._saver.warm(self._given.part_states())  # optimizers have their moments since the first step
        self._sized = True

    def _count_costs(self) -> None:
        for cost in self._saver.costs:
            self._interval.saved(cost.step, time.monotonic(), stall_s=cost.stall_s, write_s=cost.write_s)
        self._saver.costs.clear()

    def _finish(self) -> None:
        asked = self._asking.asked
        if asked is not None:
            _say(f"{asked} came: step {self.step} was finished")
        if asked is not None and not self._asking.save_wanted():
            _say("not saving: the order to stop says that this state is not wanted")
            self._saver.wait()
            return
        if self._too_late():
            return
        for left in reversed(range(TRIES)):
            if self.step not in (self._saver.saved, self._saver.flying):
                self._save("stop" if self._ending() else "end")
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
        _say(f"{left_s:.0f} s are left, so the save of step {flying} that is in flight is the last one")
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
        self._figures.update(figures)
        self._telemetry.report(step, figures)

    def save(self) -> None:
        """Save at the end of the step that is going on; after the loop at once. ``wait()`` waits until it is durable.

        Raises SaveError for a save after the loop that fails, UsageError if the loop was left within a step.
        """
        if not self._open:
            raise UsageError("use it as `with Checkpointer(...) as ckpt:` first")
        if self._within is None:
            self._save("asked")
            self._saver.raise_pending()
        elif self._looping:
            self._wanted = True
        else:
            raise UsageError(
                f"the loop was left within step {self._within}, so what is there now belongs to no step: "
                f"end the loop with stop(), which saves"
            )

    def wait(self) -> None:
        """Wait until every save is durable; SaveError if one has failed since this was last asked."""
        self._saver.wait()
        self._saver.raise_pending()

    # -- one save ----------------------------------------------------------------------------------------------------

    def _facts(self) -> dict[str, Any]:
        return environment.facts(loader=self._given.loader, world_size=environment.world_size())

    def _save(self, reason: str) -> None:
        metrics = {name: value for name, one in self._figures.items() if (value := _number(one)) is not None}
        self._figures.clear()
        now = time.monotonic()
        began = getattr(self, "_began", now)
        progress = {**self._progress, "trained_s": self._progress["trained_s"] + now - began}
        progress["batches_per_step"] = self._per_step
        progress["epoch"] = 0 if self._given.position is None else self._given.position.epoch
        draft = Manifest(
            step=self.step,
            run=self._start.run,
            number=self._start.number,
            generation=self._start.generation,
            ancestors=self._start.ancestors,
            saved_at="",
            reason=reason,
            metrics=metrics,
            progress=progress,
            exempt=self._exempt,
            healthy=_is_finite(metrics.get("loss", 0.0)),
            environment=self._facts(),
            versions=environment.versions(),
            config=self.config,
        )
        self._saver.save(self._given.states(), draft)


def _number(value: Any) -> float | None:
    with contextlib.suppress(TypeError, ValueError, RuntimeError):
        number = value.item() if hasattr(value, "item") else value
        return number if type(number) is int else float(number)
    return None


def _is_finite(value: float) -> bool:
    return value - value == 0


def _refuse_ranks() -> None:
    if environment.world_size() > 1:
        raise CheckpointError(
            f"this training has {environment.world_size()} ranks, and checkpoints of several are not written yet; "
            f"save with torch.distributed.checkpoint meanwhile"
        )


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(text, flush=True)  # noqa: T201 - the log is where a training says things


def _warn(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(f"warning: {text}", file=sys.stderr, flush=True)  # noqa: T201 - as above


__all__ = ["Checkpointer", "SaveError"]

"""The trainer's side of a save: the state is taken apart, handed to whoever writes, and what became of it is told.

Knows nothing of steps, signals or intervals: it is told when to save, and says what the save cost.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from overnight.checkpoint import asking, listing, lock, parts, publish, writing
from overnight.checkpoint.errors import CheckpointError, SaveError
from overnight.checkpoint.jobs import Job, Keep, Outcome
from overnight.checkpoint.leaves import Apart
from overnight.checkpoint.link import Link
from overnight.checkpoint.manifest import Manifest

SAY_AFTER_S = 60.0

NEAR = 0.8
"""A save that takes so much of the time that others wait for it is warned about."""


@dataclass(frozen=True, kw_only=True)
class How:
    """How saves are made: beside the training or in it, what is kept, whether each is read again."""

    beside: bool
    keep: Keep
    read_back: bool
    timeout_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a save cost: ``stall_s`` the training stood still for it, ``write_s`` until it was durable."""

    step: int
    stall_s: float
    write_s: float


class Saver:
    """Makes the saves of one run in one folder; the newest finished one is ``saved``."""

    def __init__(
        self, folder: Path, lock_handle: int, how: How, *, say: Callable[[str], None], warn: Callable[[str], None]
    ) -> None:
        self.folder = folder
        self.lock = lock_handle
        self.how = how
        self.say = say
        self.warn = warn
        self.link = Link(folder, lock_handle) if how.beside else None
        self.saved: int | None = None  # the step of the newest save that became a checkpoint
        self.pending: str | None = None  # why the last save failed, until it was raised or one has succeeded
        self.costs: list[Cost] = []  # of finished saves, to be taken by whoever decides when the next one is due
        self.longest_s = 0.0
        self._stalls: dict[int, float] = {}
        self._told_wait = self._told_within = self._told_grace = False

    @property
    def flying(self) -> int | None:
        """The step of the save in flight, None if there is none."""
        return None if self.link is None or self.link.busy is None else self.link.busy.step

    def warm(self, states: Mapping[str, Any]) -> int:
        """Have the writer and its memory ready before the first save; return the bytes of the state as it is now."""
        apart = Apart()
        parts.plan(states, apart)
        size = sum(leaf.size for leaf in apart.leaves)
        if self.link is not None:
            try:
                self.link.warm(size, torch="torch" in sys.modules)
            except SaveError as error:
                self.warn(
                    f"no process can be started to save beside the training: {error}"
                )  # the next save tries again
        return size

    def save(self, states: Mapping[str, Any], draft: Manifest, *, beside: bool = True) -> None:
        """Save beside the training, or at once; a save that fails is told and remembered, never raised here."""
        began = time.monotonic()
        try:
            if not lock.held(self.lock, self.folder):
                lock.take_again(self.lock, self.folder, say=self.say)
            job, live = self._job(states, draft)
        except CheckpointError as error:
            self._settle(Outcome(step=draft.step, error=str(error)))
            return
        started_s = 0.0
        if self.link is not None and self.link.busy is not None:
            started_s = self._wait_for(self.link.busy.step)
        outcome = None
        if self.link is None or not beside or not self._submit(job, live):
            outcome = writing.perform(job, live=live)
        self._stalls[draft.step] = time.monotonic() - began - started_s
        if outcome is not None:
            self._settle(outcome)

    def _job(self, states: Mapping[str, Any], draft: Manifest) -> tuple[Job, list[Any]]:
        apart = Apart()
        files, about, arrays = parts.plan(states, apart)
        draft = replace(draft, parts=about, arrays=arrays, keep=asdict(self.how.keep))
        job = Job(
            folder=str(self.folder),
            step=draft.step,
            manifest={key: value for key, value in asdict(draft).items() if key != "files"},
            files=files,
            leaves=parts.judged(states, apart, draft.exempt),
            keep=self.how.keep,
            read_back=self.how.read_back,
        )
        return job, apart.live

    def _submit(self, job: Job, live: Sequence[Any]) -> bool:
        """Hand a job to the writer; False, told once, where that cannot be: then the training itself saves."""
        assert self.link is not None
        try:
            self.link.submit(job, live)
        except (SaveError, RuntimeError, TypeError, ValueError) as error:  # the latter three: of tensors, or of CUDA
            if not self._told_within:
                self._told_within = True
                self.warn(f"the training itself saves, and waits for it, as long as this is so: {error}")
            return False
        return True

    def _wait_for(self, step: int) -> float:
        """Let the save in flight end first: each of them must become a checkpoint, or none would be new.

        Return the seconds of it that no later save will cost: the first one also waits for the writer to start.
        """
        assert self.link is not None
        began, first = time.monotonic(), not self.longest_s
        self.wait()
        waited_s = time.monotonic() - began
        if not self._told_wait and waited_s > 0.05 and not first:
            self._told_wait = True
            self.say(
                f"training waited {waited_s:.1f} s for the save of step {step}: writing takes longer than the time "
                f"between two saves; save more seldom, or with every='auto'"
            )
        return waited_s if first else 0.0

    def poll(self) -> None:
        """Take in what has become of the save in flight, without waiting."""
        if self.link is not None:
            self._hear(self.link.poll())

    def wait(self) -> None:
        """Wait until nothing is in flight; who is waited for is said if it is long."""
        while self.link is not None and (flying := self.link.busy) is not None:
            outcome = self.link.wait(SAY_AFTER_S)
            if outcome is None and self.link.busy is not None:
                self.say(f"waiting for the save of step {flying.step} by process {self.link.pid} (ckpt-writer)")
            self._hear(outcome)

    def raise_pending(self) -> None:
        """Raise SaveError for a save that failed since this was last asked."""
        reason, self.pending = self.pending, None
        if reason is not None:
            raise SaveError(reason)

    def close(self) -> None:
        """Let the writer finish and end."""
        if self.link is not None:
            self.wait()
            self.link.close()

    def _hear(self, outcome: Outcome | None) -> None:
        """Take in what the link says; a writer that died with nothing to do has lost nothing."""
        if outcome is not None and outcome.error is not None and outcome.step not in self._stalls:
            self.warn(outcome.error)
        elif outcome is not None:
            self._settle(outcome)

    def _settle(self, outcome: Outcome) -> None:
        stall_s = self._stalls.pop(outcome.step, 0.0)
        if outcome.error is not None:
            self.pending = f"the save of step {outcome.step} failed: {outcome.error}"
            self.warn(self.pending)
            return
        self.saved, self.pending = outcome.step, None
        self.longest_s = max(self.longest_s, outcome.seconds)
        self.costs.append(Cost(step=outcome.step, stall_s=stall_s, write_s=outcome.seconds))
        name = Path(outcome.path or "").name
        size = publish.in_words(outcome.size)
        self.say(f"saved {name}: {size} in {outcome.seconds:.2f} s, training stood {stall_s:.2f} s")
        if not outcome.finite:
            self.warn(f"{name} holds NaN or infinity: it is never resumed from, and takes no good one's place")
        for note in outcome.notes:
            self.warn(note)
        self._compare(outcome)

    def _compare(self, outcome: Outcome) -> None:
        """Say where a save takes longer than others, or whoever ends this training, would wait for it."""
        granted_s = asking.granted_s()
        if granted_s is not None and NEAR * granted_s < outcome.seconds and not self._told_grace:
            self._told_grace = True
            self.warn(
                f"a save takes {outcome.seconds:.1f} s and a stop leaves {granted_s:g} s: the last save may be lost; "
                f"give `overnight run` a --grace of twice as long as a save"
            )
        if self.how.timeout_s is not None and outcome.seconds >= NEAR * self.how.timeout_s:
            share = outcome.seconds / self.how.timeout_s
            self.warn(
                f"the save of step {outcome.step} took {outcome.seconds:.1f} s, {share:.0%} of the "
                f"{self.how.timeout_s:g} s after which others give up waiting"
            )


def room_for(folder: Path, size: int, keep: Keep, run: str) -> str | None:
    """Say how many checkpoints of ``size`` bytes the disk must hold if it cannot; CheckpointError if not even one fits.

    One more than are kept: the new one is whole before an old one goes. Those that the run has already are among them.
    """
    free = publish.free_bytes(folder)
    one = int(writing.ROOM * size)
    count = (keep.last or 1) + 1 + (keep.best if keep.metric else 0)
    sizes = f"{publish.in_words(size)} each, {publish.in_words(free)} free"
    held = sum(entry.manifest.size for entry in listing.of_run(listing.entries(folder), run) if entry.manifest)
    if one > free and not held:  # a training that was started again goes on, though it cannot save for now
        raise CheckpointError(
            f"{folder} has no room for a single checkpoint ({sizes}): free some space, or give a folder on another disk"
        )
    if one * count > free + held:
        return (
            f"{folder} will not hold {count} checkpoints ({count - 1} kept and one being written; {sizes}): "
            f"saves will fail when it is full; free some space or keep fewer"
        )
    return None

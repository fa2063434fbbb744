"""A GPU of the run that is broken: it does not answer any more, or the driver tells of a fault of the device.

What a program can cause as well (a bad address, an assertion) is only told. How hot or busy a GPU is belongs to other
families.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, NamedTuple

from overnight.events import RuleAction, Verdict
from overnight.exits.symptoms import HARDWARE_XIDS, cause_of
from overnight.rules import Memory, in_sample, milder, spoken
from overnight.sensors import Gpu, GpuSample, Sensed, Xid

SAMPLES: Final = 2
"""Samples without an answer, where the driver's words do not speak of the device: one call may fail for any reason."""

AGAIN_S: Final = 3600.0
"""Seconds without an event of the driver of one number and device, after which the next one is told again."""

MOST_XIDS: Final = 64
"""Pairs of device and number that are told; a device that fails in more ways has been told of."""

_LOST = ("is lost", "gpu_is_lost", "fallen off", "requires reset", "reset required")
_MEANING: Final = {
    13: "graphics engine exception",
    31: "memory page fault",
    43: "the channel was reset",
    45: "the channel was removed",
    48: "double-bit ECC error",
    61: "internal micro-controller breakpoint",
    62: "internal micro-controller halt",
    63: "row remapping was recorded",
    64: "row remapping failed to be recorded",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    92: "high rate of single-bit ECC errors",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "the GPU's system processor does not answer",
    120: "error of the GPU's system processor",
}


FATAL_XIDS: Final = frozenset({48, 79, 95})
"""A double-bit error, a GPU that fell off the bus, an error that was not contained: no program on it goes on."""

STILL_S: Final = 30.0
STILL_STEPS: Final = 5.0
STILL_GAPS: Final = 2.0
"""Without a step for so long, for so many usual steps and so many of the longest gaps, and without a file that grows, a
run is taken to stand still."""

ANNOUNCED_S: Final = 1800.0
"""An evaluation or a save that the log has announced may take so long."""

DOUBT_S: Final = 600.0
"""A fault with which the steps have gone on for so long is no longer taken for the reason when they stop."""


class _Found(NamedTuple):
    """What is told of a device; ``broken``: it is the device's fault.

    ``sure``: it is certainly the run's, and no run goes on with it; otherwise the steps tell whether this one does.
    """

    broken: bool
    text: str
    evidence: dict[str, Any]
    sure: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Hardware:
    """A GPU of the run that is lost or faulty: critical, by default ``stop``, with a save.

    Ended at once is a run whose own GPU is lost in the driver's own words for it, or reports an Xid after which no
    program goes on (48, 79, 95). Other faults of a device (it does not answer, another Xid that speaks of it, more
    uncorrectable ECC errors than before, a row that could not be remapped), and every fault of a GPU of which nobody
    can say whose it is, are an alert while the steps go on, and the run's end once they do not. Such a run is not
    started again by itself: the device would be the same.

    It does not kill healthy runs: GPUs that are known not to be the run's are not judged. It only alerts for Xids that
    a program can cause as well (13, 31, 43, 45, ...), for a row that waits to be remapped, for a device that is listed
    no more, for an event of which nobody can say whose it is, and for what was so before the run. What was told of a
    device is told again only after it was well, an Xid only after an hour without it.
    """

    name: ClassVar[str] = "hardware"

    action: RuleAction = "stop"

    def fresh(self) -> Memory:
        """Return a memory without a device.

        Per index, "ours.N" says whose it last was, "lost.N" counts samples without an answer, "gone.N" those without
        it, "ecc.N", "failed.N" and "pending.N" what it said last. "xid.DEVICE.CODE" is when it was told last.
        ``part`` counts what was told. ``doubt`` is the sentence of a fault with which the steps still went on.
        """
        return {"part": 0, "listed": [], "trouble": 0, "xids": 0, "doubt": None}

    def on_sample(self, sensed: Sensed, memory: Memory, /) -> Sequence[Verdict]:
        """Return a verdict for each new fault in this sample."""
        sample = sensed.sample
        if not isinstance(sample, GpuSample):
            return ()
        found: list[_Found] = []
        for gpu in sample.gpus:
            if gpu.ours is not None:
                memory[f"ours.{gpu.index}"] = gpu.ours
            if memory.get(f"ours.{gpu.index}") is not False:
                found += _faults(gpu, memory)
        found += _events(sample, sensed.active_s, memory)
        found += _absences(sample, memory)
        still = _stands_still(sensed)
        weighed = [_weighed(one, sensed, memory, still=still) for one in found]
        told = [self._verdict(sensed, one, memory) for one in weighed]
        late = _grown(sensed, memory, still=still)
        return told if late is None else [*told, self._verdict(sensed, late, memory)]

    def _verdict(self, sensed: Sensed, found: _Found, memory: Memory) -> Verdict:
        return in_sample(
            self, sensed, memory, found.text, severity="critical" if found.broken else "warn",
            action=self.action if found.broken else milder(self.action), evidence=found.evidence,
        )  # fmt: skip


def _stands_still(sensed: Sensed) -> bool:
    """Say whether no step has come for so long that a fault may be the reason; before the first one nobody knows."""
    usual_s = max(STILL_STEPS * (sensed.step_s or 0.0), STILL_GAPS * (sensed.gap_s or 0.0))
    least_s = max(STILL_S, usual_s, ANNOUNCED_S if sensed.phase is not None else 0.0)
    writes = sensed.file_s is not None and sensed.file_s < STILL_S  # a save that grows, or lines that are no steps
    return sensed.moved_s is None or (sensed.moved_s >= least_s and not writes)


def _weighed(found: _Found, sensed: Sensed, memory: Memory, *, still: bool) -> _Found:
    """Return a fault as an alert where the run goes on with it, and remember it for when that changes."""
    if not found.broken or found.sure or still:
        return found
    memory["doubt"], memory["doubt_at"] = found.text, sensed.active_s
    memory["doubt_device"], memory["doubt_xid"] = found.evidence.get("device"), found.evidence.get("xid")
    return found._replace(broken=False, text=f"{found.text}; the steps go on")


def _grown(sensed: Sensed, memory: Memory, *, still: bool) -> _Found | None:
    """Return the fault with which the steps went on for a while, and now do not; it is forgotten if they do."""
    text = memory.get("doubt")
    if text is None:
        return None
    if not still:
        if sensed.active_s - memory["doubt_at"] > DOUBT_S:
            memory["doubt"] = None
        return None
    memory["doubt"] = None
    evidence = {"device": memory["doubt_device"], "uuid": None, "bus_id": None, "xid": memory["doubt_xid"]}
    return _Found(True, f"{text}; no step since {sensed.moved_s or 0.0:.0f} s", evidence)


def _is_own(index: int | None, memory: Memory) -> bool:
    return index is not None and memory.get(f"ours.{index}") is True


def _named(gpu: Gpu) -> str:
    """Return a GPU for a sentence: "GPU 0 (NVIDIA A100-SXM4-80GB, 00000000:3B:00.0)"."""
    more = ", ".join(word for word in (gpu.name, gpu.bus_id) if word)
    return f"GPU {gpu.index}" + (f" ({more})" if more else "")


def _of(gpu: Gpu, **more: Any) -> dict[str, Any]:
    return {"device": gpu.index, "uuid": gpu.uuid, "bus_id": gpu.bus_id, "xid": None} | more


def _definite(words: str) -> bool:
    """Say whether the driver's words speak of a device that is gone, and not of a call that failed."""
    return cause_of(words) == "hardware" or any(one in words.lower() for one in _LOST)


def _faults(gpu: Gpu, memory: Memory) -> list[_Found]:
    """Return what one GPU says of itself that it did not say before."""
    key = f"lost.{gpu.index}"
    if gpu.lost is not None:
        before = memory.get(key, 0)
        least = 1 if _definite(gpu.lost) else SAMPLES
        memory[key] = SAMPLES if before + 1 >= least else before + 1
        if before >= SAMPLES or memory[key] < SAMPLES:
            return []
        sure = _definite(gpu.lost) and _is_own(gpu.index, memory)
        return [_Found(True, f"{_named(gpu)} is lost: {gpu.lost}", _of(gpu, lost=gpu.lost), sure)]
    if memory.get(key) and memory.get("doubt_device") == gpu.index and memory.get("doubt_xid") is None:
        memory["doubt"] = None  # it answers again
    memory[key] = 0
    return [one for one in (_ecc(gpu, memory), _failed(gpu, memory), _pending(gpu, memory)) if one is not None]


def _ecc(gpu: Gpu, memory: Memory) -> _Found | None:
    """Return that memory errors which nothing could correct have come; where they are counted anew, so are ours."""
    count, key = gpu.ecc_uncorrected, f"ecc.{gpu.index}"
    if count is None:
        return None
    before = memory.get(key)
    memory[key] = count
    if before is None or count <= before:
        return None
    text = f"{_named(gpu)} has {count - before} new uncorrectable memory (ECC) error{'s' * (count - before > 1)}"
    return _Found(True, f"{text}, {count} in all", _of(gpu, ecc_uncorrected=count, before=before))


def _failed(gpu: Gpu, memory: Memory) -> _Found | None:
    failed, key = gpu.remap_failed, f"failed.{gpu.index}"
    if failed is None:
        return None
    before = memory.get(key)
    memory[key] = failed
    if not failed or before:
        return None
    text = f"{_named(gpu)} could not replace a faulty row of its memory"
    if before is None:
        return _Found(False, f"{text} some time before this run: it should be exchanged", _of(gpu, remap_failed=True))
    return _Found(True, f"{text}: it has to be exchanged", _of(gpu, remap_failed=True))


def _pending(gpu: Gpu, memory: Memory) -> _Found | None:
    pending, key = gpu.remap_pending, f"pending.{gpu.index}"
    if pending is None:
        return None
    before = memory.get(key)
    memory[key] = pending
    if not pending or before:
        return None
    text = f"{_named(gpu)} waits for a reset to replace a faulty row of its memory: reset it after this run"
    return _Found(False, text, _of(gpu, remap_pending=True))


def _events(sample: GpuSample, active_s: float, memory: Memory) -> list[_Found]:
    """Return the driver's events that are new; those from before the run, which a kernel log keeps, are not ours."""
    found = []
    for xid in sample.xids:
        gpu = _device_of(xid, sample.gpus)
        whose = _whose(xid, gpu, sample.gpus, memory)
        if whose is False or xid.at < sample.at - active_s - AGAIN_S / 60:
            continue
        place = gpu.index if gpu is not None else xid.index if xid.index is not None else (xid.device or "unknown")
        key = f"xid.{place}.{xid.code}"
        before = memory.get(key)
        if before is None and memory["xids"] >= MOST_XIDS:
            continue
        memory["xids"] += before is None
        memory[key] = max(xid.at, before or 0.0)
        if before is None or xid.at - before >= AGAIN_S:
            sure = xid.code in FATAL_XIDS and gpu is not None and _is_own(gpu.index, memory)
            found.append(_event(xid, gpu, certain=whose is True)._replace(sure=sure))
    return found


def _event(xid: Xid, gpu: Gpu | None, *, certain: bool) -> _Found:
    device = f"GPU {xid.device or xid.index or 'of unknown place'}" if gpu is None else _named(gpu)
    meaning = xid.text or _MEANING.get(xid.code, "")
    text = f"{device} reports Xid {xid.code}" + (f": {meaning}" if meaning else "")
    hardware = xid.code in HARDWARE_XIDS
    if not hardware:
        text += "; the program may have caused it"
    elif not certain:
        text += "; it may be none of this run's"
    evidence: dict[str, Any] = {"device": xid.index, "uuid": None, "bus_id": xid.device}
    evidence = evidence if gpu is None else _of(gpu)
    return _Found(hardware and certain, text, evidence | {"xid": xid.code, "xid_at": xid.at})


def _device_of(xid: Xid, gpus: Sequence[Gpu]) -> Gpu | None:
    """Return the GPU an event is of: by its bus id, of which NVML and the kernel print different lengths."""
    if xid.device is not None:
        place = _short(xid.device)
        return next((gpu for gpu in gpus if gpu.bus_id is not None and _short(gpu.bus_id) == place), None)
    return next((gpu for gpu in gpus if gpu.index == xid.index), None)


def _short(bus_id: str) -> tuple[str, ...]:
    """Return what identifies a place on the bus: "00000000:3B:00.0" and "0000:3b:00" are one."""
    parts = bus_id.lower().removeprefix("pci:").partition(".")[0].split(":")
    return (parts[0].lstrip("0"), *parts[1:]) if len(parts) > 2 else ("", *parts)


def _whose(xid: Xid, gpu: Gpu | None, gpus: Sequence[Gpu], memory: Memory) -> Literal[True, False] | None:
    """Say whether an event is the run's to judge: False for another's device, None where nobody can say.

    A device of which nobody knows whose it is counts as the run's, as everywhere here.
    """
    index = gpu.index if gpu is not None else xid.index if xid.device is None else None
    if index is not None:
        return memory.get(f"ours.{index}") is not False
    others = [one for one in gpus if memory.get(f"ours.{one.index}") is False]
    if xid.device is not None and gpus and all(one.bus_id is not None for one in gpus):
        return False  # of a device that was taken from this machine's view: a container sees only its own
    return None if others or not gpus else True


def _absences(sample: GpuSample, memory: Memory) -> list[_Found]:
    """Return GPUs that are listed no more, and a driver that tells nothing at all any more."""
    listed: list[int] = memory["listed"]
    if sample.trouble is not None:
        memory["trouble"] += 1
        mine = [index for index in listed if memory.get(f"ours.{index}") is not False]
        if memory["trouble"] != SAMPLES or not mine:
            return []
        # One device that is gone may take the whole driver along, and then nobody can say which one it is.
        certain = _definite(sample.trouble) and len(mine) == len(listed)
        text = f"the driver does not answer any more: {sample.trouble} (it had {spoken(len(listed))} GPUs)"
        evidence = {"device": mine[0] if len(listed) == 1 else None, "uuid": None, "bus_id": None, "xid": None}
        return [_Found(certain, text, evidence | {"trouble": sample.trouble})]
    memory["trouble"] = 0
    now = {gpu.index for gpu in sample.gpus}
    found = []
    for index in listed:
        key = f"gone.{index}"
        memory[key] = 0 if index in now else memory.get(key, 0) + 1
        if memory[key] == SAMPLES and memory.get(f"ours.{index}") is not False:
            evidence = {"device": index, "uuid": None, "bus_id": None, "xid": None}
            found.append(_Found(False, f"GPU {index} is not listed by the driver any more", evidence))
    memory["listed"] = sorted({*listed, *now})
    return found

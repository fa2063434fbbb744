"""GPU and host as the supervisor sees them: takes in what the sensors write, has it judged, stored and shown.

The sensors are processes of their own; whatever happens to them, this costs a turn a few system calls. Which device the
run is on is learned here too, and with it the peak and the price, where nobody has given them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from overnight.accelerators import DevicePeak
from overnight.clocks import boot_clock
from overnight.events import Verdict, jsonable
from overnight.facts import Facts
from overnight.folder import RunFolder, utc
from overnight.intake.catchup import Catchup
from overnight.intake.reading import Intake
from overnight.monitor import Monitor
from overnight.progress import Progress
from overnight.requests.changes import changed
from overnight.rules import milder
from overnight.sensors import Gpu, GpuSample, HostSample, Sample, Sensed
from overnight.sensors.following import Sensing
from overnight.spec import RunSpec
from overnight.yardsticks.sizing import peak_seen

HOST_AFTER_S = 5.0
"""A run that is over sooner is not worth a process that measures the machine."""

OLD_S = 120.0
"""A sample this old is stored and no longer acted upon: a supervisor that came late reads what was written before."""

UNASKED_S = 1.0

PATIENCE = 0.125
"""Part of the time between two samples that a new one may wait for a line of the log, to be taken in along with it."""

BESIDE = ("gpus", "gpu_trouble", "host", "sensors")

SAME = 0.02
"""Part of a peak by which two figures of one device may differ: some tables round."""

SHOWN = (
    "index", "name", "utilisation", "memory_used", "memory_total", "temperature_c", "power_w", "power_limit_w",
    "sm_clock_mhz", "throttle", "ours", "lost",
)  # fmt: skip


class Instruments:
    """The sensors of one run. ``change`` is called with the spec when the device was seen, so that figures follow."""

    def __init__(
        self,
        folder: RunFolder,
        spec: RunSpec,
        *,
        facts: Facts,
        monitor: Monitor,
        intake: Intake,
        progress: Progress,
        change: Callable[[RunSpec], None],
    ) -> None:
        self.spec = spec
        self.facts = facts
        self.monitor = monitor
        self.intake = intake
        self.progress = progress
        self.change = change
        self.peak: DevicePeak | None = None
        self.devices: dict[str, Any] = {}
        self.on = spec.sensors == "on"
        self.patience_s = PATIENCE * spec.sensor_interval_s
        places = monitor.remembered.get("sensors")
        self.overdue = False
        # What was measured before, where no database has it any more.
        self.catchup: Catchup | None = None
        if self.on and not isinstance(places, dict):
            self.catchup = Catchup(folder.path, facts=facts, monitor=monitor, intake=intake)
        disks = {"log": Path(spec.log), "checkpoints": Path(spec.checkpoints or spec.cwd), "run": folder.path}
        self.sensing = Sensing(
            folder.path,
            every_s=spec.sensor_interval_s,
            host_after_s=HOST_AFTER_S,
            disks=disks,
            places=places if isinstance(places, dict) else {},
            say=facts.note,
        )
        if facts.devices is not None:
            self._learn(facts.devices)

    # -- the supervisor's turn ---------------------------------------------------------------------------------------

    def turn(self, now: float, *, active_s: float) -> list[Verdict]:
        """Take in what the sensors have written since the last time; return what the rules find in it."""
        self.overdue = False
        if not self.on or self.intake.catching_up:  # where the run stood then is learned from the log
            return []
        if self.catchup is not None:
            return self._catch_up(self.catchup)
        found: list[Verdict] = []
        taken = self.sensing.turn(now)
        for one in taken:
            self.intake.sampled(one.sample, one.offset)
            if isinstance(one.sample, GpuSample):
                self._see(one.sample)
            if time.time() - one.sample.at <= OLD_S:
                found += self.monitor.sense(self._sensed(one.sample, active_s))
        if taken:
            self._remember()
        return found

    def _remember(self) -> None:
        """Keep up to where the files are taken in; what is printed from now on came later, and a time mark says so."""
        self.monitor.remembered["sensors"] = self.sensing.places
        self.intake.dirty = self.intake.mark_due = True

    def _catch_up(self, catchup: Catchup) -> list[Verdict]:
        found = catchup.turn(young_s=OLD_S)
        if catchup.done:
            for kind, place in catchup.places.items():
                self.sensing.files[kind].place = place
            self.catchup = None
            self._remember()
        return found

    def at_end(self, samples: Sequence[GpuSample] | None, active_s: float) -> list[Verdict]:
        """Take in what the sensors wrote up to an attempt's end, and ``samples`` of after it (None: nobody asked)."""
        if not self.on or samples is None:
            return []
        self.sensing.next_at = 0.0
        found = self.turn(boot_clock(), active_s=active_s)
        if self.monitor.plan().reached():
            # It had done all it was to do: what is found is told, and ends nothing.
            return [msgspec.structs.replace(one, severity="warn", action=milder(one.action)) for one in found]
        for sample in samples:
            found += self.monitor.sense(self._sensed(sample, active_s))
        return found

    def beside(self, verdict: Verdict) -> Verdict:
        """Return a stall's verdict with what GPU and host said last: what explains it is gone in the morning."""
        if verdict.rule != "stall":
            return verdict
        told = {name: one for name, one in self.shown(time.time()).items() if name in BESIDE and one is not None}
        return msgspec.structs.replace(verdict, evidence={**verdict.evidence, **jsonable(told)})

    def next_look_s(self, now: float) -> float | None:
        """Return when ``turn`` wants to be called though nothing happens; None if it does not."""
        if not self.on:
            return None
        wait_s = self.sensing.next_look_s(now) if self.catchup is None else 0.0
        if wait_s > 0:
            return wait_s
        was, self.overdue = self.overdue, True
        return UNASKED_S if was else 0.0  # while a stop is under way nobody calls it

    def close(self) -> None:
        """End the sensors, and store what they have written last."""
        self.sensing.close()
        if not self.on:
            return
        while self.catchup is not None:
            self._catch_up(self.catchup)
            self.intake.commit()
        for file in self.sensing.files.values():
            for offset, sample in file.take():
                self.intake.sampled(sample, offset)
        self._remember()

    def _sensed(self, sample: Sample, active_s: float) -> Sensed:
        meter = self.monitor.meter
        return Sensed(
            sample=sample,
            active_s=active_s,
            step=meter.last_step,
            step_s=meter.step_s,
            moved_s=None if meter.last_step is None else self.progress.silent_s(),
            phase=self.monitor.hearing.phase,
            file_s=self.progress.untouched_s(),
            gap_s=self.progress.largest_gap_s,
        )

    # -- the device --------------------------------------------------------------------------------------------------

    def _see(self, sample: GpuSample) -> None:
        """Note which GPUs the run is on, once it is known and whenever it changes."""
        own = [gpu for gpu in sample.gpus if gpu.ours and (gpu.name or gpu.arch) and gpu.lost is None]
        if not own:
            return
        told = {
            "gpus": [
                {
                    "index": gpu.index,
                    "name": gpu.name or "",
                    "uuid": gpu.uuid,
                    "units": gpu.units,
                    "memory": gpu.memory_total,
                    "arch": gpu.arch,
                }
                for gpu in own
            ],
            "maker": sample.maker,
            "driver": sample.driver,
        }
        known = {gpu.get("uuid") or gpu.get("index") for gpu in (self.devices.get("gpus") or [])}
        if {gpu["uuid"] or gpu["index"] for gpu in told["gpus"]} - known:  # type: ignore[union-attr,index]
            self.facts.say("devices", attempt=self.monitor.attempt, **told)
            self._learn(told)
            self.change(self.spec)

    def _learn(self, told: dict[str, Any]) -> None:
        """Take the peak and the price of the devices, where nobody has given them."""
        self.devices = told
        gpus = told["gpus"]
        self.peak = peak_seen(gpus, self.spec.dtype)
        # A price that was looked up is looked up anew: the run may be on more devices than were seen at first.
        priced = [values for values in self.facts.changes if "price" in values]
        looked_up = bool(priced) and priced[-1].get("price_source") is not None
        if self.spec.price_table is not None and (self.spec.price is None or looked_up):
            self._look_up_price([str(gpu["name"]) for gpu in gpus])

    def _look_up_price(self, names: Sequence[str]) -> None:
        from overnight.yardsticks.pricing import price_of, read_prices

        try:
            found = price_of(read_prices(Path(str(self.spec.price_table))), names, len(names))
        except (OSError, ValueError) as error:
            self.facts.note(f"the price is unknown: {error}")
            return
        if found.per_hour is None:
            self.facts.note(f"the price is unknown: {found.said}")
            return
        if found.per_hour == self.spec.price:
            return
        values = {"price": found.per_hour, "price_source": found.said}
        self.facts.say("set", values=values)
        self.spec = changed(self.spec, values)
        self.facts.note(f"price {found.per_hour:g}/h: {found.said}")

    # -- the status --------------------------------------------------------------------------------------------------

    def _age(self, kind: str, sample: Sample | None, at: float) -> dict[str, Any] | None:
        """Return when a sensor has told something last, and what is wrong if that is long ago; None: there is none."""
        stale = self.sensing.stale(kind, at) if self.on else None
        if sample is None and stale is None:
            return None
        return {"at": None if sample is None else utc(sample.at), "stale": stale}

    def _disagreements(self) -> list[str]:
        """Return a sentence for what the driver says otherwise than the settings."""
        found, gpus = [], self.devices.get("gpus") or []
        seen = None if self.peak is None else self.peak.flops
        given = None if self.spec.peak_tflops is None else self.spec.peak_tflops * 1e12
        if seen is not None and given is not None and abs(given - seen) > SAME * seen:
            source = f"--gpu {self.spec.gpu}" if self.spec.gpu is not None else self.spec.peak_source or "--peak-tflops"
            found.append(
                f"the peak by {source} is {given / 1e12:g} TFLOP/s, and that of the device which the driver names "
                f"({gpus[0]['name']}, {self.spec.dtype}) {seen / 1e12:g}; the former is used"
            )
        count = len(gpus)
        if count > 1 and count != self.spec.devices:
            said = f"the run is on {count} GPUs, and --devices says {self.spec.devices}"
            found.append(f"{said}: MFU is over the peak of {self.spec.devices}")
        return found

    def shown(self, at: float) -> dict[str, Any]:
        """Return what status shows of GPU and host at ``at`` (seconds since the epoch)."""
        gpu, host = self.sensing.latest("gpu"), self.sensing.latest("host")
        return {
            "gpus": None
            if not isinstance(gpu, GpuSample)
            else [_gpu(one) for one in gpu.gpus if one.ours is not False],
            "gpu_trouble": gpu.trouble if isinstance(gpu, GpuSample) else None,
            "host": None if not isinstance(host, HostSample) else _host(host),
            "sensors": {kind: self._age(kind, sample, at) for kind, sample in (("gpu", gpu), ("host", host))},
            "disagreements": self._disagreements(),
        }


def _gpu(gpu: Gpu) -> dict[str, Any]:
    return {name: getattr(gpu, name) for name in SHOWN}


def _host(host: HostSample) -> dict[str, Any]:
    return {name: one for name, one in msgspec.to_builtins(host).items() if name not in ("kind", "at")}

"""Names to callables: the only room that lists implementations.

Built-ins stand in literal tables, then come entry points. A plug-in that cannot be loaded is named and
skipped; it never keeps a run from starting.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from overnight.accelerators import DevicePeak
from overnight.engines import Engine
from overnight.errors import UsageError
from overnight.monitor import Monitor
from overnight.readers import Reader
from overnight.readers.jsonlines import JsonLines
from overnight.readers.keyvalue import KeyValue
from overnight.readers.nanogpt import NanoGPT
from overnight.readers.pattern import Pattern
from overnight.readers.trainer import Trainer
from overnight.rules import RecordRule, SegmentRule, SensorRule, TimeRule
from overnight.rules.collapse import Collapse
from overnight.rules.diskspace import DiskSpace
from overnight.rules.divergence import Divergence
from overnight.rules.hardware import Hardware
from overnight.rules.idle import LowUtilisation
from overnight.rules.limits import Cost, Until, WallClock
from overnight.rules.memory import MemoryCreep
from overnight.rules.nonfinite import Nonfinite
from overnight.rules.rewind import Rewind
from overnight.rules.slowdown import Slowdown
from overnight.rules.spike import Spike
from overnight.rules.stall import Stall
from overnight.rules.steps import MaxSteps
from overnight.rules.straggler import Straggler
from overnight.rules.throttle import Throttle
from overnight.spec import RunSpec
from overnight.states import Plan
from overnight.yardsticks.sizing import figures_of

READERS: dict[str, Callable[[], Reader]] = {
    "nanogpt": NanoGPT,
    "trainer": Trainer,
    "jsonlines": JsonLines,
    "keyvalue": KeyValue,  # the general one last: of equals the first counts
}


Action = dict[str, Any]
"""The keyword ``action``, or nothing where the rule's own default stands."""


def _nonfinite(spec: RunSpec, action: Action) -> RecordRule:
    return Nonfinite(signal=spec.nonfinite_signal, **action)


def _divergence(spec: RunSpec, action: Action) -> RecordRule:
    return Divergence(max_loss=spec.loss_limit(), asked=spec.max_loss is not None, **action)


def _collapse(spec: RunSpec, action: Action) -> RecordRule:
    return Collapse(vocab_size=spec.vocab_size, **action)


def _spike(_spec: RunSpec, action: Action) -> RecordRule:
    return Spike(**action)


def _slowdown(_spec: RunSpec, action: Action) -> RecordRule:
    return Slowdown(**action)


def _straggler(_spec: RunSpec, action: Action) -> RecordRule:
    return Straggler(**action)


def _max_steps(spec: RunSpec, action: Action) -> RecordRule:
    return MaxSteps(max_steps=spec.max_steps, **action)


def _stall(spec: RunSpec, action: Action) -> TimeRule:
    return Stall(limit_s=spec.stall_s, start_limit_s=spec.start_limit_s, exit_limit_s=spec.exit_limit_s, **action)


def _wall_clock(spec: RunSpec, action: Action) -> TimeRule:
    return WallClock(max_s=None if spec.max_hours is None else spec.max_hours * 3600.0, **action)


def _until(spec: RunSpec, action: Action) -> TimeRule:
    return Until(at=spec.until, **action)


def _cost(spec: RunSpec, action: Action) -> TimeRule:
    return Cost(max_cost=spec.max_cost, price=spec.price, **action)


RULES: dict[str, Callable[[RunSpec, Action], RecordRule]] = {
    "nonfinite": _nonfinite,
    "divergence": _divergence,
    "collapse": _collapse,
    "spike": _spike,
    "slowdown": _slowdown,
    "straggler": _straggler,
    "max_steps": _max_steps,
}

TIME_RULES: dict[str, Callable[[RunSpec, Action], TimeRule]] = {
    "stall": _stall,
    "wall_clock": _wall_clock,
    "until": _until,
    "cost": _cost,
}


SENSOR_RULES: dict[str, Callable[..., SensorRule]] = {
    "hardware": Hardware,
    "throttle": Throttle,
    "low_utilisation": LowUtilisation,
    "memory_creep": MemoryCreep,
    "disk_space": DiskSpace,
}
"""Beside them a record rule may judge sensors too; it is asked as both."""

SEGMENT_RULES: tuple[SegmentRule, ...] = (Rewind(),)
"""They only note, and nobody sets what they ask for."""


# Imported only when one is made: a supervisor needs none, and subprocess alone would cost it 2.4 MB all night.
def _local(_complain: Callable[[str], None]) -> Engine:
    from overnight.engines.local import Local

    return Local()


def _tmux(complain: Callable[[str], None]) -> Engine:
    from overnight.engines.local import Local
    from overnight.engines.tmux import Tmux

    return Tmux(complain, keepers=Local())


ENGINES: dict[str, Callable[[Callable[[str], None]], Engine]] = {"local": _local, "tmux": _tmux}


def make_engine(name: str, complain: Callable[[str], None]) -> Engine:
    """Return the engine of this name, a built-in or the entry point called so; UsageError if there is none.

    ``complain`` gets a sentence for each thing that the engine cannot do as asked and does without. A plug-in that
    cannot be loaded is no reason to place the run somewhere else: it is an error.
    """
    if name in ENGINES:
        return ENGINES[name](complain)
    known = {}
    if _any_plugin():
        from importlib.metadata import entry_points

        known = {point.name: point for point in entry_points(group="overnight.engines")}
    if name not in known:
        raise UsageError(f"there is no engine {name!r}; engines are {', '.join([*ENGINES, *sorted(known)])}")
    try:
        engine: Engine = known[name].load()(complain)
    except Exception as error:
        where = f"the plug-in {name} ({known[name].value}) in overnight.engines"
        raise UsageError(f"{where} cannot be loaded: {error}; mend it or choose another --engine") from error
    return engine


def reader_makers(spec: RunSpec, complain: Callable[[str], None]) -> list[Callable[[], Reader]]:
    """Return what makes fresh readers: only the user's pattern if one was given, otherwise every candidate."""
    if spec.pattern is not None:
        return [partial(Pattern, spec.pattern)]
    return [*READERS.values(), *_plugins("overnight.readers", READERS, complain)]


def make_rules(spec: RunSpec, complain: Callable[[str], None]) -> list[RecordRule]:
    """Return every rule that judges records, with its parameters and its action."""
    found = [make(spec, _action(spec, name)) for name, make in RULES.items()]
    return found + [make() for make in _plugins("overnight.rules", {*RULES, *TIME_RULES, *SENSOR_RULES}, complain)]


def make_time_rules(spec: RunSpec) -> list[TimeRule]:
    """Return every rule that judges time, with its parameters and its action."""
    return [make(spec, _action(spec, name)) for name, make in TIME_RULES.items()]


def sensor_rules(rules: Sequence[RecordRule], spec: RunSpec) -> list[SensorRule]:
    """Return every rule that judges what sensors tell; ``rules`` may have some that do so besides."""
    own = [make(**_action(spec, name)) for name, make in SENSOR_RULES.items()]
    return [*(rule for rule in rules if isinstance(rule, SensorRule) and not isinstance(rule, Guarded)), *own]


def _action(spec: RunSpec, name: str) -> Action:
    return {"action": spec.actions[name]} if name in spec.actions else {}


def _policy(spec: RunSpec) -> Plan:
    return Plan(
        restarts=spec.restarts,
        backoff_s=spec.backoff_s,
        rollbacks=spec.rollbacks,
        rollback_steps=spec.rollback_steps,
    )


def make_monitor(spec: RunSpec, complain: Callable[[str], None]) -> Monitor:
    """Return the pure heart of one run."""
    makers, rules = reader_makers(spec, complain), make_rules(spec, complain)
    return Monitor(
        make_readers=lambda: [make() for make in makers],
        rules=rules,
        time_rules=make_time_rules(spec),
        segment_rules=SEGMENT_RULES,
        sensor_rules=sensor_rules(rules, spec),
        figures=figures_of(spec),
        window=spec.window,
        policy=_policy(spec),
    )


def change_monitor(
    monitor: Monitor, spec: RunSpec, complain: Callable[[str], None], seen: DevicePeak | None = None
) -> None:
    """Let a monitor go on under a spec that was changed while the run goes on; what rules remember stays.

    ``seen``: the peak of the device that was seen, where none was given.
    """
    rules = make_rules(spec, complain)
    monitor.sensor_rules = tuple(sensor_rules(rules, spec))
    monitor.change(rules, make_time_rules(spec), figures_of(spec, seen))
    monitor.policy = _policy(spec)


def _plugins(group: str, taken: Collection[str], complain: Callable[[str], None]) -> list[Callable[[], Any]]:
    """Return the makers of a group's plug-ins; each is made once on trial, and may not take a built-in's name."""
    if not _any_plugin():
        return []
    # Imported only where there is something to find: it costs 12 ms and 3 MB, in a process that lives all night.
    from importlib.metadata import entry_points

    found: list[Callable[[], Any]] = []
    for point in entry_points(group=group):
        said = f"the plug-in {point.name} ({point.value}) in {group}"
        try:
            make = point.load()
            name = str(make().name)
        except Exception as error:  # noqa: BLE001 - a stranger's code may raise anything; it must not end a night
            complain(f"{said} cannot be loaded and is skipped: {error}")
            continue
        if name in taken:
            complain(f"{said} has the name of a built-in, {name}, and is skipped")
            continue
        found.append(partial(Guarded, make, said, complain))
    return found


class Guarded:
    """A plug-in's reader or rule that cannot end a night: the first time it raises it is named, and asked no more."""

    def __init__(self, make: Callable[[], Any], said: str, complain: Callable[[str], None]) -> None:
        self.inner = make()
        self.name = str(self.inner.name)
        self.said = said
        self.complain = complain
        self.broken = False

    def __getattr__(self, name: str) -> Any:
        """Hand on what else a reader or rule has: always, action, fresh, snapshot, restore."""
        return getattr(self.inner, name)

    def __call__(self, *words: Any) -> Any:
        """Call the plug-in; None from one that has raised."""
        return self._ask(self.inner, words)

    def flush(self) -> Any:
        """Return what a reader has held back; nothing from one that holds nothing, or has raised."""
        held = getattr(self.inner, "flush", None)
        return () if held is None else self._ask(held, ()) or ()

    def _ask(self, what: Callable[..., Any], words: tuple[Any, ...]) -> Any:
        if self.broken:
            return None
        try:
            return what(*words)
        except Exception as error:  # noqa: BLE001 - a stranger's code may raise anything; it must not end a night
            self.broken = True
            self.complain(f"{self.said} failed and is asked no more: {error!r}")
            return None


def _any_plugin() -> bool:
    """Say whether any installed distribution offers a plug-in of ours."""
    for place in sys.path:
        for listed in Path(place or ".").glob("*.dist-info/entry_points.txt"):
            try:
                if b"[overnight." in listed.read_bytes():
                    return True
            except OSError:
                continue
    return False

"""A machine with NVIDIA GPUs for a test: builds nvml_stub.c into a libnvidia-ml.so.1 and writes what it answers.

    stub = nvml.Stub(tmp_path / "nvml")                        # skips the test where there is no C compiler
    stub.write([nvml.card(0), nvml.card(1, temperature=91, throttle=("thermal",))])
    subprocess.run(..., env={**os.environ, **stub.environ()})  # LD_LIBRARY_PATH: whatever loads NVML finds the stub
    stub.change(1, temperature=60)                             # the program goes on: each call reads the state anew
    stub.lose(1)                                               # every call for that card: GPU_IS_LOST
    stub.xid(0, 79)                                            # an event for whoever waits for one
    stub.sleep(60, "nvmlDeviceGetUtilizationRates")            # the call takes 60 s; no name: every call
    stub.fail(nvml.DRIVER_NOT_LOADED, "nvmlInitWithFlags")     # the call fails; with card=1 only for that card
    stub.heal()                                                # no failures, no sleeping

A value that is None is "not supported". ``Stub(folder, without=("nvmlDeviceGetMemoryInfo_v2",))`` is the library of an
old driver, which does not have these functions. The real library must not be reached by mistake: ``environ()`` puts the
stub's folder first. Nothing but the stub's state may enter here; what overnight makes of it is the tests' business.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).with_name("nvml_stub.c")
NAME = "libnvidia-ml.so.1"

NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, GPU_IS_LOST, RESET_REQUIRED = 3, 4, 9, 15, 16
LIB_RM_VERSION_MISMATCH, UNKNOWN = 18, 999

REASONS = {
    "idle": 0x1,
    "app_clocks": 0x2,
    "power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "thermal": 0x20,
    "hw_thermal": 0x40,
    "power_brake": 0x80,
    "display_clocks": 0x100,
}
"""Why clocks are lowered, by name: the bits of nvmlClocksEventReasons."""

_CARD: dict[str, Any] = {
    "name": "NVIDIA A100-SXM4-80GB",
    "cores": 6912,
    "capability": "8.0",
    "mig": 0,
    "utilisation": 97,
    "memory_busy": 41,
    "memory_total": 80 << 30,
    "memory_used": 40 << 30,
    "memory_reserved": 600 << 20,
    "temperature": 60,
    "threshold.1": 90,
    "power_mw": 312_500,
    "power_limit_mw": 400_000,
    "clock.1": 1395,
    "max_clock.1": 1410,
    "ecc.0.0": 0,
    "ecc.1.0": 0,
    "remapped": "0 0 0 0",
    "links": 12,
    "events": 0x8 | 0x1,
}


def card(index: int, **values: Any) -> dict[str, Any]:
    """Return the state of one card: a healthy A100 at work, but for what is given.

    By the words of a test: ``utilisation``, ``memory_busy`` (percent), ``memory_total``, ``memory_used`` (bytes),
    ``temperature``, ``slowdown`` (C), ``power``, ``power_limit`` (W), ``clock``, ``max_clock`` (MHz), ``throttle``
    (names in REASONS), ``ecc_corrected``, ``ecc_uncorrected``, ``remapped`` (corrected, uncorrected, pending, failed),
    ``retired`` (pages of cause 0, of cause 1, pending), ``links`` (how many), ``links_down`` (their numbers),
    ``link_errors`` (of each counter of each link), ``mig``, ``slices`` (dicts with uuid, name, units, memory_total,
    memory_used, instance), ``compute``, ``graphics``, ``mps``: processes, each a pid or (pid, bytes or None) or
    (pid, bytes, instance). Any other key goes into the state as it is.
    """
    state = {
        **_CARD,
        "uuid": f"GPU-{index:08x}-0000-4000-8000-0123456789ab",
        "bus_id": f"00000000:{0x10 * (index + 1) + 1:02X}:00.0",
        "minor": index,
    }
    return {**state, **_translated({"throttle": (), "link_errors": 0, **values}, state)}


_NAMES = {
    "slowdown": "threshold.1",
    "clock": "clock.1",
    "max_clock": "max_clock.1",
    "ecc_corrected": "ecc.0.0",
    "ecc_uncorrected": "ecc.1.0",
}


def _translated(values: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in values.items():
        if name in ("power", "power_limit"):
            made[f"{name}_mw"] = None if value is None else round(value * 1000)
        elif name == "throttle":
            made["reasons"] = None if value is None else sum(REASONS[one] for one in value)
        elif name == "remapped":
            made[name] = None if value is None else " ".join(str(int(one)) for one in value)
        elif name == "retired":
            made.update({f"retired.{key}": one for key, one in zip(("0", "1", "pending"), value, strict=True)})
        elif name in ("compute", "graphics", "mps"):
            made[name] = [_process(one) for one in value]
        elif name == "slices":
            made[name] = len(value)
            made.update({f"slice.{at}.{key}": one for at, each in enumerate(value) for key, one in each.items()})
        elif name in ("link_errors", "links_down"):
            continue
        else:
            made[_NAMES.get(name, name)] = value
    if "link_errors" in values or "links_down" in values or "links" in values:
        made.update(_links(values.get("links", state.get("links")), values))
    return made


def _process(one: Any) -> str:
    pid, memory, *instance = (one, 1 << 30) if isinstance(one, int) else one
    return " ".join([str(pid), "-" if memory is None else str(memory), *map(str, instance)])


def _links(count: int | None, values: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for link in range(count or 0):
        made[f"link.{link}"] = int(link not in values.get("links_down", ()))
        made.update({f"link.{link}.errors.{counter}": values.get("link_errors", 0) for counter in range(4)})
    return made


class Stub:
    """The library in a folder of its own, with the state that it answers from."""

    def __init__(self, folder: Path, *, without: Iterable[str] = ()) -> None:
        """Build it; ``without`` names functions that this driver's library does not have."""
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            pytest.skip("no C compiler is here to build a stand-in for NVIDIA's library with")
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.library = folder / NAME
        self.state = folder / "state"
        words = [compiler, "-O1", "-shared", "-fPIC", f"-Wl,-soname,{NAME}", "-o", str(self.library), str(SOURCE)]
        hidden = list(without)
        if hidden:
            script = folder / "hidden"
            script.write_text("{ global: *; local: " + " ".join(f"{name};" for name in hidden) + " };\n")
            words.append(f"-Wl,--version-script,{script}")
        built = subprocess.run([*words, "-ldl", "-lpthread"], capture_output=True, text=True, check=False)
        if built.returncode:
            pytest.skip(f"the stand-in for NVIDIA's library cannot be built here: {built.stderr.strip()}")
        self.cards: list[dict[str, Any]] = []
        self.rules: dict[str, int] = {}
        self.xids: list[tuple[int, int]] = []
        self.driver: str | None = "550.54.15"
        self.write()

    def environ(self) -> dict[str, str]:
        """Return what a program's environment needs, so that the program finds this library and no other."""
        before = os.environ.get("LD_LIBRARY_PATH")
        return {"LD_LIBRARY_PATH": f"{self.folder}:{before}" if before else str(self.folder)}

    def write(self, gpus: Iterable[Mapping[str, Any]] | None = None, *, driver: str | None = None) -> None:
        """Put this state in place at once, so that no call sees half of it. ``gpus`` as ``card`` makes them."""
        if gpus is not None:
            self.cards = [dict(one) for one in gpus]
        self.driver = driver or self.driver
        lines = [f"count={len(self.cards)}", *([f"driver={self.driver}"] if self.driver else [])]
        for index, state in enumerate(self.cards):
            for key, value in state.items():
                many = value if isinstance(value, list) else None
                lines += [f"{index}.{key}.{at}={one}" for at, one in enumerate(many or ())]
                if many is None and value is not None:
                    lines.append(f"{index}.{key}={int(value) if isinstance(value, bool) else value}")
        lines += [f"{key}={value}" for key, value in self.rules.items()]
        lines += [f"xid.{number}={index} {code}" for number, (index, code) in enumerate(self.xids)]
        fresh = self.state.with_suffix(".new")
        fresh.write_text("\n".join(lines) + "\n")
        fresh.replace(self.state)

    def change(self, index: int, **values: Any) -> None:
        """Change what one card answers, by the words of ``card``."""
        state = self.cards[index]
        state.update(_translated(values, state))
        self.write()

    def fail(self, code: int, function: str | None = None, *, card: int | None = None) -> None:
        """Let a function fail, for all cards or one; without a function every call for that card."""
        assert function is not None or card is not None
        self.rules[".".join(str(one) for one in (card, "fail", function) if one is not None)] = code
        self.write()

    def lose(self, index: int) -> None:
        """Let a card fall off the bus."""
        self.fail(GPU_IS_LOST, card=index)

    def sleep(self, seconds: float, function: str | None = None) -> None:
        """Let a function take that long, or every one."""
        self.rules["sleep" if function is None else f"sleep.{function}"] = round(seconds * 1000)
        self.write()

    def heal(self) -> None:
        """Take back all failures and sleeps."""
        self.rules = {}
        self.write()

    def xid(self, index: int, code: int) -> None:
        """Tell of an error event of a card, to whoever has asked for events before."""
        self.xids.append((index, code))
        self.write()

"""A sensor of many illnesses: ``sensor_script.py MODE RUNDIR --every S ... --parent PID``. Good ones end with it."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import msgspec

from overnight.sensors import GpuSample, HostSample
from overnight.sensors.sampling import append, end_with_parent, keep_sampling

parser = argparse.ArgumentParser()
parser.add_argument("mode")
parser.add_argument("run_dir", type=Path)
parser.add_argument("--every", type=float)
parser.add_argument("--disk", action="append")
parser.add_argument("--parent", type=int)
words = parser.parse_args()
kind, _, mode = words.mode.partition("-")
path = words.run_dir / "sensors" / f"{kind}.jsonl"
with path.with_suffix(".starts").open("a") as starts:
    starts.write(f"{os.getpid()}\n")


def sample() -> bytes:
    maker = GpuSample if kind == "gpu" else HostSample
    return msgspec.json.encode(maker(at=time.time()))


def raw(data: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(handle, data)
    os.close(handle)


if mode == "good":
    end_with_parent(words.parent)
    keep_sampling(path, sample, every_s=words.every, parent=words.parent)
elif mode == "dies":
    sys.exit(1)
elif mode == "nothing":
    append(path, msgspec.json.encode(GpuSample(at=time.time(), trouble="the NVIDIA driver is not loaded")))
    sys.exit(3)
elif mode == "deaf":
    for number in range(1, 65):
        if number not in (signal.SIGKILL, signal.SIGSTOP, 32, 33):
            signal.signal(number, signal.SIG_IGN)
    append(path, sample())
    while True:
        time.sleep(100)
elif mode == "mute":
    while True:
        time.sleep(100)
elif mode == "halves":
    while True:
        line = sample() + b"\n"
        raw(line[:7])
        time.sleep(words.every / 2)
        raw(line[7:])
        time.sleep(words.every / 2)
elif mode == "garbage":
    raw(b'\x00\xff\xfe\n\n{"kind":"host"}\n[1,2]\n{"kind":"moon","at":1}\n' + b"[" * 100_000 + b"\nnull\n{\n")
    raw(b'{"kind":"host","at":"today"}\n{"kind":"host","at":1e999}\n' + b'{"kind":' * 30_000 + b"\n")
    raw(sample() + b"\r\n")
    raw(b"x" * 700_000 + b"\n" + sample() + b"\n" + b"half a line, and the process dies")
    sys.exit(7)
elif mode == "wild":
    while True:
        raw(b"y" * (4 << 20))
        time.sleep(0.05)

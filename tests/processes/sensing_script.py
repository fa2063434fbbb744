"""A supervisor that does nothing but follow its sensors: ``sensing_script.py RUNDIR OUT GPUCOMMAND...``.

One line a turn that has taken something: up to where each file was taken, and the offsets.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from overnight.clocks import boot_clock
from overnight.sensors.following import Sensing, default_commands

run_dir, out = Path(sys.argv[1]), Path(sys.argv[2])
lines = out.read_text().splitlines() if out.exists() else []
commands = {"host": default_commands()["host"], "gpu": sys.argv[3:]}
sensing = Sensing(
    run_dir,
    every_s=0.05,
    host_after_s=0.0,
    disks={"log": run_dir},
    places=json.loads(lines[-1])["places"] if lines else {},
    say=lambda text: sys.stderr.write(text + "\n"),
    commands=commands,
    gpu_likely=lambda: True,
)
handle = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
while True:
    taken = sensing.turn(boot_clock())
    if taken:
        found = [(one.source, one.offset) for one in taken]
        os.write(handle, json.dumps({"places": sensing.places, "taken": found}).encode() + b"\n")
    time.sleep(min(0.02, sensing.next_look_s(boot_clock())))

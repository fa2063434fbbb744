"""A toy trainer with one switch per fault, for tests: ``python tests/toy.py --steps 20 --dt 0.05 --handle int``.

Standard library only, no import of ours, no learning: it prints ``step: 12, loss: 3.7662, dt: 0.05`` every ``--dt``
seconds and misbehaves exactly as asked. All that a test may want to know is printed in lines that start with ``toy:``
(the pid of every child, a stop.json seen when a signal came, the longest step). Whatever it leaves behind ends by
itself after ``LEFT_S`` seconds, so that a failed test litters for a while, not for ever.

A checkpoint is ``checkpoint-000012.txt``, whole if its last line is ``end``; it is written beside its name and renamed.
With ``--save-form safetensors`` it is a real file of that form: ``weight`` and ``optimizer.exp_avg``, 64 KiB each, with
the step in its metadata. All that a resumed toy knows is the file it was given: NaN in it makes every loss NaN.
"""

import argparse
import json
import math
import os
import random
import resource
import signal
import socket
import sys
import threading
import time
from array import array
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from types import FrameType

LEFT_S = 900
# A supervisor may read a script's source to see which signal it means to handle. This one handles what its switches
# say, so the interrupt signal goes without its name here.
INT, TERM = signal.Signals(2), signal.Signals(15)


def parse() -> argparse.Namespace:
    """Read the switches."""
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--dt", type=float, default=0.05, help="seconds per step")
    p.add_argument("--rate", type=float, help="steps per second by an absolute timetable, instead of --dt")
    p.add_argument("--start-loss", type=float, default=4.0, help="falls by 0.5%% a step, or by --decay")
    p.add_argument("--decay", type=float, default=0.995, help="what the loss is multiplied with at each step")
    p.add_argument("--noise", type=float, default=0.0, help="so much up or down, the same whenever a step is made")
    # health: from this step on. diverge: loss is 25 and doubles from there
    # ends: crash (raise), hang (for ever, whatever signal is handled) and segv come before the line of the step is
    # printed, exit (with --exit-code) and quit-quietly after it
    for fault in ("nan", "inf", "diverge", "crash", "hang", "segv", "exit", "quit-quietly"):
        p.add_argument(f"--{fault}-at", type=int, metavar="STEP")
    p.add_argument("--exit-code", type=int, default=0)
    p.add_argument("--hang-how", choices=["sleep", "busy", "warn", "lock"], default="sleep", help="warn: busy too")
    p.add_argument("--start-sec", type=float, default=0.0, help="silent for so long before the first step")
    p.add_argument("--silent-at", type=int, metavar="STEP", help="silent before this step, after --announce")
    p.add_argument("--silent-sec", type=float, default=0.0)
    p.add_argument("--announce", metavar="TEXT", help="printed before the silence of --silent-at")
    p.add_argument("--linger-sec", type=float, default=0.0, help="still there for so long after the last step and save")
    p.add_argument("--segv-after-end", action="store_true", help="die of SIGSEGV after the last step and save")
    p.add_argument("--kill-self", metavar="SIG", help="die of this signal (HUP, KILL) at --kill-self-at")
    p.add_argument("--kill-self-at", type=int, default=3)
    p.add_argument("--spawn", type=int, default=0, metavar="N", help="forked workers that ignore INT and stay")
    p.add_argument("--spawn-setsid", action="store_true", help="a double-forked child in its own session")
    p.add_argument("--spawn-zombies", type=int, default=0, metavar="N", help="orphans that die at once, to be reaped")
    p.add_argument("--leave-child", action="store_true", help="leave a `sleep` behind at the end")
    p.add_argument("--hold-port", type=int, metavar="P", help="listen on 127.0.0.1:P; forked workers hold it too")
    # signals
    p.add_argument("--handle", choices=["int", "term", "both", "none"], default="none", help="stop well: see `stop`")
    p.add_argument("--signals", type=Path, metavar="FILE", help="append 'SIGTERM <time.monotonic_ns()>' for each")
    p.add_argument("--obey-stop-json", action="store_true", help="skip the final save if stop.json says save: false")
    p.add_argument("--checkpoints", type=Path, metavar="DIR")
    p.add_argument("--save-every", type=int, default=0, metavar="N")
    p.add_argument("--save-sec", type=float, default=0.0, help="the file grows for so long")
    p.add_argument("--save-silent-sec", type=float, default=0.0, help="nothing grows for so long before that")
    p.add_argument("--resume", action="store_true", help="go on from the newest whole checkpoint")
    # the log. ansi: colours; bufout: never flush (PYTHONUNBUFFERED still does); cr: \r before each record and never a
    # newline; two-writes: text and newline by two write calls
    for flag in ("ansi", "bufout", "cr", "two-writes", "ignore-int", "ignore-term"):
        p.add_argument(f"--{flag}", action="store_true")
    p.add_argument("--bars", type=int, default=0, metavar="N", help="frames of a \r progress bar before each step")
    p.add_argument("--rank", type=int, metavar="R", help="'[rankR]: ' before each record")
    add_saves(p)
    add_resumes(p)
    return p.parse_args()


def add_saves(p: argparse.ArgumentParser) -> None:
    """Add the switches about what lies in a checkpoint, and which are kept."""
    p.add_argument("--save-form", choices=["txt", "safetensors"], default="txt")
    p.add_argument("--save-truncated-from", type=int, metavar="STEP", help="half of each save is missing from here on")
    p.add_argument("--save-nan-from", type=int, metavar="STEP", help="NaN in each from here on, and none is truncated")
    p.add_argument("--keep", type=int, metavar="N", help="delete its own oldest checkpoints after each save")
    p.add_argument("--no-signal-save", action="store_true", help="end at a handled signal without a save")


def add_resumes(p: argparse.ArgumentParser) -> None:
    """Add the switches about going on from a checkpoint; what goes wrong then, and what is left out."""
    p.add_argument("--resume-env", action="store_true", help="go on from OVERNIGHT_CHECKPOINT if it is there")
    p.add_argument("--resume-from", type=Path, metavar="FILE", help="go on from this one; one that is broken crashes")
    p.add_argument("--crash-at-load", metavar="PART", help="exit 1 while loading what has this in its path")
    p.add_argument("--fresh-on-resume", action="store_true", help="load, and begin with step 1 without a word")
    p.add_argument("--jump-on-resume", type=float, default=0.0, metavar="X", help="each loss is higher by X then")
    p.add_argument("--lr-print", action="store_true", help="print lr too: 0.001, falling by 0.2%% a step")
    p.add_argument("--lr-jump-on-resume", type=float, default=1.0, metavar="F", help="each lr is F times as high then")
    p.add_argument("--overlap-noise", type=int, metavar="STEP", help="this one step's loss is 1.5 times as high then")
    p.add_argument("--spike-at", type=int, metavar="STEP", help="loss is --spike-loss for --spike-lasts steps")
    p.add_argument("--spike-loss", type=float, default=8.0)
    p.add_argument("--spike-lasts", type=int, metavar="N", help="for ever, if it is not given")
    p.add_argument("--honour-skip", action="store_true", help="leave out the steps of OVERNIGHT_SKIP_STEPS (a-b)")
    p.add_argument(
        "--faults-in", type=int, metavar="N", help="what is asked for a step happens in attempts 1 to N only"
    )


def in_order(path: Path) -> int:
    """Return the step in the name of a checkpoint."""
    return int(path.stem.split("-")[1])


class Toy:
    """The trainer: switches, the note that a signal handler leaves, and the longest step."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.noted: str | None = None
        self.longest_s = 0.0
        self.loaded: Path | None = None
        self.poisoned = False  # what was loaded holds NaN
        self.spared: list[int] = []  # first and last of the steps that were left out: what is asked for them is gone

    def say(self, text: str) -> None:
        """Print one line about the toy itself."""
        # In a log of \r frames the last record has no end of its own: a line that touches it garbles its number.
        print(f"\ntoy: {text}" if self.options.cr else f"toy: {text}", flush=not self.options.bufout)

    def record(self, step: int, dt: float) -> None:
        """Print the progress line of a step in the shape asked for."""
        o = self.options
        loss = self.loss(step)
        bold, green, off = ("\x1b[1m", "\x1b[32m", "\x1b[0m") if o.ansi else ("", "", "")
        rank = "" if o.rank is None else f"[rank{o.rank}]: "
        rate = 1e-3 * 0.998**step * (o.lr_jump_on_resume if self.loaded else 1.0)
        lr = f", lr: {rate:.6g}" if o.lr_print else ""
        text = f"{rank}{bold}step:{off} {step}, {green}loss: {loss:.4f}{off}{lr}, dt: {dt:g}"
        for n in range(o.bars):
            sys.stdout.write(f"\r{100 * n // o.bars:3d}%|{'#' * (20 * n // o.bars):20s}| {n}/{o.bars}\r")
        end = "" if o.cr or o.two_writes else "\n"
        print(f"\r{text}" if o.cr else text, end=end, flush=not o.bufout or o.two_writes)
        if o.two_writes:
            os.write(1, b"\n")

    def loss(self, step: int) -> float:
        """Return the loss of a step: a function of the step, the switches and what was loaded."""
        o = self.options
        loss: float = o.start_loss * o.decay**step + o.noise * random.Random(step).uniform(-1, 1)
        if self.loaded:
            loss = (loss + o.jump_on_resume) * (1.5 if step == o.overlap_noise else 1.0)
        if self.has_come(o.spike_at, step) and step < o.spike_at + (o.spike_lasts or math.inf):
            loss = o.spike_loss
        if self.has_come(o.diverge_at, step):
            loss = 25.0 * 2.0 ** min(1000, step - o.diverge_at)
        for at, odd in ((o.inf_at, "inf"), (o.nan_at, "nan")):
            loss = float(odd) if self.has_come(at, step) else loss
        return math.nan if self.poisoned else loss

    def has_come(self, at: int | None, step: int) -> bool:
        """Say whether a fault that begins at a step and stays is there at another."""
        if at is None or step < at or not self.faulty():
            return False
        return not (self.spared and self.spared[0] <= at <= self.spared[1])

    def faulty(self) -> bool:
        """Say whether this attempt is one of those in which faults happen."""
        return self.options.faults_in is None or int(os.environ.get("OVERNIGHT_ATTEMPT", "1")) <= self.options.faults_in

    def listen(self) -> None:
        """Set dispositions. A signal neither handled nor ignored keeps its own, for that is what a stop looks at.

        With ``--signals`` INT and SIGCONT are always recorded, TERM only if it is handled or ignored; an ignored signal
        is then caught by a handler that does nothing else.
        """
        o = self.options
        for number, name in ((INT, "int"), (TERM, "term")):
            ignored = getattr(o, f"ignore_{name}")
            if ignored and not o.signals:
                signal.signal(number, signal.SIG_IGN)
            elif ignored or o.handle in (name, "both") or (o.signals and number == INT):
                signal.signal(number, self.heard)
        if o.signals:
            signal.signal(signal.SIGCONT, self.heard)

    def heard(self, number: int, frame: FrameType | None) -> None:
        """Write the signal down, then leave a note for the loop, do nothing, or do what Python does by itself."""
        o, at, name = self.options, time.monotonic_ns(), signal.Signals(number).name
        if o.signals:
            with o.signals.open("a") as stream:
                stream.write(f"{name} {at}\n")
        short = name.removeprefix("SIG").lower()
        if number == signal.SIGCONT or getattr(o, f"ignore_{short}"):
            return
        if o.handle not in (short, "both"):
            signal.default_int_handler(number, frame)
        self.noted = name

    def stop(self, step: int) -> None:
        """End well after a handled signal: five lines, a checkpoint, exit 0. The step has been finished by now."""
        for line in range(1, 6):
            self.say(f"{self.noted} came, finishing after step {step} ({line}/5)")
        attempt = os.environ.get("OVERNIGHT_ATTEMPT", "").zfill(3)
        path = Path(os.environ.get("OVERNIGHT_RUN_DIR", "/nonexistent"), "attempts", attempt, "stop.json")
        order = json.loads(path.read_text()) if path.exists() else {}
        if order:
            self.say(f"stop.json {json.dumps(order, sort_keys=True)}")
        wanted = not self.options.obey_stop_json or order.get("save") is not False
        if wanted and not self.options.no_signal_save:
            self.save(step)
        self.leave(0)

    def save(self, step: int) -> None:
        """Write a checkpoint in growing pieces and rename it, if ``--checkpoints`` was given."""
        o = self.options
        if o.checkpoints is None:
            return
        time.sleep(o.save_silent_sec)
        o.checkpoints.mkdir(parents=True, exist_ok=True)
        path = o.checkpoints / f"checkpoint-{step:06d}.{o.save_form}"
        cut = o.save_truncated_from is not None and step >= o.save_truncated_from
        nan = o.save_nan_from is not None and step >= o.save_nan_from
        with (temporary := path.with_suffix(".tmp")).open("wb", buffering=0) as stream:
            write = self.write_txt if o.save_form == "txt" else self.write_safetensors
            write(stream, step, cut=cut and not nan, nan=nan)
            os.fsync(stream.fileno())
        temporary.replace(path)
        self.say(f"saved {path.name}")
        for old in self.saved()[: -o.keep] if o.keep else []:
            old.unlink()

    def write_txt(self, stream: FileIO, step: int, *, cut: bool, nan: bool) -> None:
        """Write a step, filling that grows, and ``end``."""
        stream.write(f"step {step}\n".encode())
        stream.write(f"left out {self.spared[0]} {self.spared[1]}\n".encode() if self.spared else b"")
        stream.write(b"nan\n" if nan else b"")
        for _ in self.growing():
            stream.write(b"x" * 4095 + b"\n")
        stream.write(b"" if cut else b"end\n")

    def write_safetensors(self, stream: FileIO, step: int, *, cut: bool, nan: bool) -> None:
        """Write two tensors of numbers that depend on the step; half of the bytes, if it is to be cut."""
        count = 1 << 14
        numbers = [array("f", (math.sin(step + n) + sign for n in range(count))) for sign in (2, -2)]
        numbers[0][count // 3] = math.nan if nan else numbers[0][count // 3]
        names, size = ("weight", "optimizer.exp_avg"), 4 * count
        header: dict[str, object] = {
            name: {"dtype": "F32", "shape": [count], "data_offsets": [at * size, (at + 1) * size]}
            for at, name in enumerate(names)
        }
        header["__metadata__"] = {"step": str(step), "left_out": " ".join(map(str, self.spared))}
        told = json.dumps(header).encode()
        told += b" " * (-len(told) % 8)
        data = len(told).to_bytes(8, "little") + told + b"".join(one.tobytes() for one in numbers)
        data = data[: len(data) // 2] if cut else data
        at = 0
        for _ in self.growing():  # as much as there is time for, and the rest at once
            at += stream.write(data[at : at + 4096])
        while at < len(data):
            at += stream.write(data[at:])

    def growing(self) -> Iterator[None]:
        """Yield about ten times a second until a save has taken as long as it was told to."""
        until = time.monotonic() + self.options.save_sec
        while (left := until - time.monotonic()) > 0:
            yield
            time.sleep(min(0.1, left))

    def saved(self) -> list[Path]:
        """Return its own checkpoints, the newest last."""
        folder = self.options.checkpoints
        return sorted(folder.glob("checkpoint-*[0-9].*[!p]"), key=in_order) if folder and folder.is_dir() else []

    def newest(self) -> Path | None:
        """Return the newest whole checkpoint."""
        return next((path for path in reversed(self.saved()) if self.read(path) is not None), None)

    def read(self, path: Path) -> dict[str, str] | None:
        """Return what a checkpoint says (step, left_out, nan), None if it is not whole."""
        data = path.read_bytes()
        if path.suffix == ".txt":
            lines = data.decode(errors="replace").splitlines()
            if not data.endswith(b"end\n") or not lines[0].startswith("step "):
                return None
            left_out = next((line.removeprefix("left out ") for line in lines if line.startswith("left out ")), "")
            return {"step": lines[0].split()[1], "left_out": left_out, "nan": "yes" if "nan" in lines else ""}
        size = int.from_bytes(data[:8], "little")
        try:
            header = json.loads(data[8 : 8 + size])
        except ValueError:
            return None
        said = dict(header.pop("__metadata__", {}))
        if len(data) != 8 + size + max(one["data_offsets"][1] for one in header.values()):
            return None
        numbers = array("f", data[8 + size :])
        return {**said, "nan": "yes" if any(map(math.isnan, numbers)) else ""}

    def load(self) -> int:
        """Load what it is to go on from, and return its step; 0 if there is nothing."""
        o = self.options
        given = os.environ.get("OVERNIGHT_CHECKPOINT") if o.resume_env else None
        path = o.resume_from or (Path(given) if given else self.newest() if o.resume else None)
        if path is None:
            return 0
        if o.crash_at_load and o.crash_at_load in str(path):
            raise RuntimeError(f"cannot load {path} as asked")
        said = self.read(path)
        if said is None:
            raise RuntimeError(f"cannot load {path}: it is not whole")
        self.loaded, self.poisoned = path, bool(said["nan"])
        self.spared = [int(one) for one in said.get("left_out", "").split()]
        if o.fresh_on_resume:
            return 0
        if not o.resume:  # whose lines were there before others looked for what is loaded
            self.say(f"loaded {path.name}, going on after step {said['step']}")
        return int(said["step"])

    def fork(self, kind: str, *, orphan: bool = False, lives_s: float = LEFT_S) -> None:
        """Fork a child that sleeps; an orphan is forked twice, by a middle process that is gone when this returns."""
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            if kind == "setsid":
                os.setsid()
            if orphan and os.fork():
                os._exit(0)
            signal.signal(INT, signal.SIG_IGN)
            signal.signal(TERM, signal.SIG_DFL)
            os.write(1, f"toy: child {os.getpid()} {kind}\n".encode())
            time.sleep(lives_s)
            os._exit(0)
        if orphan:
            os.waitpid(pid, 0)

    def start(self) -> None:
        """Set the signals, take the port, then start the children (who inherit both)."""
        self.listen()
        o = self.options
        if o.hold_port is not None:
            self.socket = socket.create_server(("127.0.0.1", o.hold_port))
        for _ in range(o.spawn):
            self.fork("worker")
        if o.spawn_setsid:
            self.fork("setsid", orphan=True)
        for _ in range(o.spawn_zombies):
            self.fork("zombie", orphan=True, lives_s=0.05)

    def faults(self, step: int) -> None:
        """Do what was asked for this step before its line is printed."""
        o = self.options
        if not self.faulty():
            return
        if step == o.segv_at:
            self.die(signal.SIGSEGV)
        if o.kill_self and step == o.kill_self_at:
            self.die(signal.Signals[f"SIG{o.kill_self.upper().removeprefix('SIG')}"])
        if step == o.crash_at:
            raise RuntimeError(f"crashed at step {step} as asked")
        if step == o.silent_at:
            if o.announce:
                print(o.announce, flush=not o.bufout)
            time.sleep(o.silent_sec)
        if step == o.hang_at:
            self.hang(o.hang_how)

    @staticmethod
    def hang(how: str) -> None:
        """Come no further, in one of the ways in which trainings do not."""
        lock, until, told = threading.Lock(), time.monotonic() + LEFT_S, 0.0
        if how == "lock":
            lock.acquire()
            lock.acquire(timeout=LEFT_S)
        while how in ("busy", "warn") and (now := time.monotonic()) < until:
            if how == "warn" and now > told + 0.25:
                told = now
                print("UserWarning: the queue is empty, trying again", flush=True)
        time.sleep(max(0.0, until - time.monotonic()))
        sys.exit("toy: nobody ended the hang")

    @staticmethod
    def die(number: signal.Signals) -> None:
        """Die of a signal, without a core file."""
        sys.stdout.flush()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), number)

    def leave(self, code: int) -> None:
        """Exit, leaving behind what was asked for."""
        if self.options.leave_child:
            self.say(f"child {os.spawnlp(os.P_NOWAIT, 'sleep', 'sleep', str(LEFT_S))} left")
        self.say(f"longest step {self.longest_s:.4f} s")
        sys.exit(code)

    def train(self) -> None:
        """Go through the steps; each sleeps first, then prints, then saves."""
        o = self.options
        time.sleep(o.start_sec)
        first = self.load()
        skip = os.environ.get("OVERNIGHT_SKIP_STEPS") if o.honour_skip else None
        if skip:
            self.spared = [int(one) for one in skip.split("-")]
            self.say(f"leaving out steps {skip}")
        dt = 1 / o.rate if o.rate else o.dt
        began = before = time.monotonic()
        for step in range(first + 1, o.steps + 1):
            if skip and self.spared[0] <= step <= self.spared[1]:
                began -= dt if o.rate else 0.0  # the timetable goes on after them
                continue
            self.faults(step)
            time.sleep(max(0.0, began + (step - first) * dt - time.monotonic()) if o.rate else dt)
            self.record(step, dt)
            now = time.monotonic()
            self.longest_s, before = max(self.longest_s, now - before), now
            if o.save_every and step % o.save_every == 0:
                self.save(step)
            if self.noted:
                self.stop(step)
            if step in (o.exit_at, o.quit_quietly_at) and self.faulty():
                self.leave(o.exit_code)
        if not o.save_every or o.steps % o.save_every:
            self.save(o.steps)
        if o.segv_after_end:
            self.die(signal.SIGSEGV)
        time.sleep(o.linger_sec)
        self.leave(0)


if __name__ == "__main__":
    toy = Toy(parse())
    toy.start()
    toy.train()

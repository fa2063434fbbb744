"""Report values to draw, as ``report`` makes them: a rich night, a bare log, an unknown run, hostile texts.

No test is here. The numbers are made by arithmetic, not by chance, so that a picture is the same every time.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&lt;\x1b[31m\u202e\r\x00]]>--></style></title>"
BEGAN = datetime(2026, 11, 28, 22, 3, 11, tzinfo=UTC).timestamp()


def at(seconds: float) -> str:
    """Return a time of the night as RFC 3339."""
    return datetime.fromtimestamp(BEGAN + seconds, tz=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def loss(step: float) -> float:
    """Return a loss as a small language model has it at a step."""
    return 2.9 + 8.1 / (1 + step / 260) ** 0.75 + 0.06 * math.sin(step * 1.7) + 0.04 * math.sin(step * 0.37)


def curve(span: tuple[int, int, int], attempt: int, form: Any, width: float) -> dict[str, list[Any]]:
    """Return the parts of a chart over some steps."""
    steps = list(range(*span))
    middle = [form(step) for step in steps]
    return {
        "x": steps,
        "low": [one - width * (1 + 0.4 * math.sin(step)) for one, step in zip(middle, steps, strict=True)],
        "high": [one + width * (1 + 0.5 * math.cos(step)) for one, step in zip(middle, steps, strict=True)],
        "attempts": [attempt] * len(steps),
    }


def joined(*pieces: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Return pieces one after the other."""
    return {key: [one for piece in pieces for one in piece[key]] for key in ("x", "low", "high", "attempts")}


def _charts() -> list[dict[str, Any]]:
    marks = [
        {"x": 11600, "severity": None, "text": "attempt 2 from here, back from step 11,600 to 8,000"},
        {"x": 12600, "severity": "warn", "text": "loss rose to 9.4 within 3 records"},
        {"x": 14020, "severity": "critical", "text": "loss is NaN at step 14,020"},
        {"x": 14000, "severity": None, "text": "attempt 3 from here"},
    ]

    def spiky(step: float) -> float:
        return loss(step) + (5.5 * math.exp(-(((step - 12620) / 60) ** 2)) if step > 11000 else 0)

    def speed(step: float) -> float:
        return 131_000 - (42_000 if 9800 < step < 10400 else 0) + 900 * math.sin(step / 170)

    def pieces(form: Any, width: float) -> dict[str, Any]:
        return {
            **joined(
                curve((0, 8000, 16), 1, form, width),
                curve((8000, 14000, 16), 2, form, width),
                curve((14000, 15500, 16), 3, form, width),
                curve((16400, 19984, 16), 3, form, width),
            ),
            "older": [
                {**curve((8000, 11616, 16), 1, lambda step: form(step) * 1.015, width), "attempt": 1},
                {**curve((14000, 14020, 10), 2, form, width), "attempt": 2},
            ],
            "marks": marks,
            "x_label": "step",
        }

    drawn = [
        ("loss", "Loss", "nats", spiky, 0.12, [[14020, "nan"]]),
        ("dt", "Step time", "s", lambda step: 65536 / speed(step), 0.012, []),
        ("tokens_per_second", "Tokens per second", "tokens/s", speed, 1800.0, []),
        (
            "grad_norm",
            "Gradient norm",
            "",
            lambda step: 10 ** (2.5 * math.exp(-step / 3000) - 1 + spiky(step) / 9),
            0.01,
            [],
        ),
    ]
    return [
        {"name": name, "label": label, "unit": unit, "nonfinite": bad, **pieces(form, width)}
        for name, label, unit, form, width, bad in drawn
    ]


def _entry(seconds: float, kind: str, text: str, **more: Any) -> dict[str, Any]:
    blank = dict.fromkeys(("severity", "attempt", "step", "rule", "source", "offset", "line"))
    return {"at": at(seconds), "kind": kind, "text": text, **blank, **more}


def _timeline() -> list[dict[str, Any]]:
    return [
        _entry(0, "attempt", "attempt 1 started", attempt=1),
        _entry(4100, "save", "ckpt/step-008000.pt saved in 9 s", attempt=1, step=8000),
        _entry(
            6010,
            "verdict",
            "no new step for 31 min, and nothing was announced",
            severity="critical",
            rule="stall",
            attempt=1,
            step=11600,
            source=0,
            offset=1_203_455,
            line="step 11600 | loss 3.3121 | lr 2.91e-04 | dt 498.11ms | tok/s 131,570",
        ),
        _entry(6050, "restart", "attempt 2 after 40 s of back-off, from ckpt/step-008000.pt", attempt=2, step=8000),
        _entry(
            8400,
            "verdict",
            "loss rose to 9.4 within 3 records, 24 times the usual scatter",
            severity="warn",
            rule="spike",
            attempt=2,
            step=12600,
            source=0,
            offset=1_901_220,
            line="step 12600 | loss 9.4120 | lr 2.77e-04 | dt 501.90ms | tok/s 130,575",
        ),
        _entry(9000, "hook", "notify-send told of the warning", attempt=2),
        _entry(
            9650,
            "verdict",
            "loss is NaN at step 14,020",
            severity="critical",
            rule="nonfinite",
            attempt=2,
            step=14020,
            source=0,
            offset=2_213_900,
            line="step 14020 | loss nan | lr 2.61e-04 | dt 499.02ms | tok/s 131,329",
        ),
        _entry(9700, "restart", "attempt 3 after 50 s of back-off, from ckpt/step-014000.pt", attempt=3, step=14000),
        _entry(11000, "request", "overnight set pretrain --max-hours 9, asked by anna on gpu-17", attempt=3),
        _entry(11400, "set", "max_hours is 9 (was 8)", attempt=3),
        _entry(14020, "end", "exit code 0 at step 19,999 of 20,000", attempt=3, step=19999),
    ]


def _attempts() -> list[dict[str, Any]]:
    rows = [
        (1, 0, 6010, 0, 11600, "ended by Overnight", "stall", "no new step for 31 min", None, "SIGKILL"),
        (2, 6050, 9652, 8000, 14020, "ended by Overnight", "nonfinite", "loss is NaN at step 14,020", 0, None),
        (3, 9702, 14020, 14000, 19999, "finished", "completed", "exit code 0, the planned end was reached", 0, None),
    ]
    keys = ("n", "started_at", "ended_at", "first_step", "last_step", "state_words", "cause", "cause_text", "exit_code")
    return [
        {
            **dict(zip(keys, (row[0], at(row[1]), at(row[2]), *row[3:9]), strict=True)),
            "signal": row[9],
            "seconds": float(row[2] - row[1]),
            "lines": ["[rank0]: waiting for all_reduce (1,800 s)", '  File "train.py", line 311, in step']
            if row[0] == 1
            else [],
        }
        for row in rows
    ]


def _saves() -> list[dict[str, Any]]:
    marks = ("valid", "healthy", "problem", "load_failure", "finite", "attempt")
    rows = [
        (2000, True, True, None, None, True, 1),
        (8000, True, True, None, None, True, 1),
        (10_000, False, True, "model.safetensors ends after 1,048,576 of 2,097,152 bytes", None, None, 1),
        (11_000, True, True, None, "RuntimeError: Error(s) in loading state_dict for Model: size mismatch", True, 1),
        (14_000, None, True, "it is not of a form that can be checked", None, None, 2),
        (
            14_015,
            False,
            False,
            "NaN in 3 of 148 tensors, the first in model.layers.0.attention.wq.weight",
            None,
            False,
            2,
        ),
        (19_999, True, True, None, None, True, 3),
    ]
    return [
        {
            "step": step,
            "path": f"/home/me/projects/small-lm/ckpt/step-{step:06d}.pt",
            "at": at(step * 0.6),
            "seconds": 9.2,
            **dict(zip(marks, row, strict=True)),
        }
        for step, *row in rows
    ]


def _resumes() -> list[dict[str, Any]]:
    saves = {one["step"]: one for one in _saves()}
    why = {10_000: "its content is damaged", 11_000: "could not be loaded", 14_015: "unhealthy"}
    names = ("attempt", "step", "lost_steps", "lost_s", "lost_cost", "rollback", "skip", "overlap")
    rows: list[tuple[int, int, int, float, float | None, str | None, list[list[int]], dict[str, Any] | None]] = [
        (2, 8000, 3600, 1800.0, 1.245, None, [], {
            "since": 8000, "compared": 3600, "equal": 3599,
            "text": "3,599/3,600, first difference 9,207: loss 3.1 -> 3.4",
            "first_difference": {"step": 9207, "metric": "loss", "before": 3.1, "after": 3.4},
        }),
        (3, 14_000, 20, 10.0, 0.007, "nonfinite", [[14_011, 14_021]], {
            "since": 14_000, "compared": 10, "equal": 10, "text": "10/10 equal", "first_difference": None,
        }),
    ]  # fmt: skip
    return [
        {
            **dict(zip(names, row, strict=True)),
            "at": at(6000.0 * (row[0] - 1)),
            "path": saves[row[1]]["path"],
            "maker": "torch",
            "text": f"attempt {row[0]} goes on from step {row[1]}",
            "passed_over": [
                {"path": saves[step]["path"], "step": step, "why": said} for step, said in why.items() if row[1] < step
            ],
        }
        for row in rows
    ]


def _figures() -> list[dict[str, Any]]:
    rows = [
        (
            "tokens_per_second",
            "Tokens per second",
            128_412.0,
            "128.4k",
            "run average; 65,536 tokens per step from the log",
        ),
        ("mfu", "MFU", 0.313, "31.3%", "6N over 312 TFLOP/s from --peak-tflops"),
        (
            "mfu_attention",
            "MFU with attention",
            0.361,
            "36.1%",
            "PaLM convention, from 12 layers, 12 heads of 64, 1,024 tokens",
        ),
        ("tflops", "TFLOP/s", 97.798, "97.8", "model FLOPs, per device"),
        ("params", "Parameters", 124_356_864, "124,356,864", "from --params, embeddings not counted"),
        ("peak", "Peak", 312e12, "312 TFLOP/s", "from --peak-tflops; dense, bf16"),
        (
            "devices",
            "Devices",
            None,
            "unknown",
            "--devices would make it known, or a line of the log that names the world size",
        ),
    ]
    return [dict(zip(("name", "label", "value", "text", "provenance"), row, strict=True)) for row in rows]


def _hardware() -> dict[str, Any]:
    gpus = [
        {
            "index": index, "name": "NVIDIA A100-SXM4-80GB", "uuid": f"GPU-{index}",
            "bus_id": f"00000000:{index}1:00.0", "units": 108, "memory_total": 80 << 30,
            "power_limit_w": 400.0, "samples": 1402, "utilisation_mean": 0.97,
            "power_mean_w": 371.2, "temperature_most_c": 91.0 if index else 74.0, "memory_most": 61 << 30,
            "throttled": 0.021 * index, "throttle": ["thermal"] * index, "lost": None, "lost_at": None,
        }
        for index in range(2)
    ]  # fmt: skip

    def drawn(name: str, label: str, unit: str, form: Any) -> dict[str, Any]:
        hours = [step / 100 for step in range(390)]
        return {
            "name": name, "label": label, "unit": unit, "x_label": "hour", "x": hours,
            "low": [form(hour) for hour in hours], "high": [form(hour) * 1.06 for hour in hours], "attempts": [],
            "older": [], "nonfinite": [], "zero": BEGAN, "x_s": 3600.0,
            "marks": [
                {"x": 0.0, "severity": None, "text": "attempt 1 began, pid 4711"},
                {"x": 2.4, "severity": "warn", "text": "GPU 1 has been throttled (thermal) for 1m: 91 C"},
            ],
        }  # fmt: skip

    return {
        "gpus": gpus, "certain": True, "driver": "550.54.15", "maker": "nvidia", "trouble": None,
        "notes": ["the kernel's log is not readable (/dev/kmsg: not permitted), so Xid lines in it are not seen"],
        "xids": [{"at": at(8000), "code": 43, "device": "0000:11:00", "index": 0, "text": "GPU stopped processing"}],
        "more_xids": 0, "samples": {"gpu": 1402, "host": 1401}, "stale": {},
        "host": {
            "processors": 64, "cpu_mean": 0.31, "memory_total": 512 << 30, "memory_least": 41 << 30,
            "rss_most": 39 << 30,
            "disks": [{"mount": "/data", "holds": ["log", "checkpoints"], "free": 88 << 30, "total": 1 << 40}],
        },
        "charts": [
            drawn("gpu_utilisation", "GPU utilisation, least to largest of 2", "%", lambda hour: 90 + math.sin(hour)),
            drawn("gpu_temperature_c", "GPU temperature, least to largest of 2", "°C", lambda hour: 60 + 4 * hour),
            drawn("host_memory_available", "host memory available", "GiB", lambda hour: 470 - 90 * hour),
        ],
    }  # fmt: skip


def rich() -> dict[str, Any]:
    """Return the value of a night with three attempts, a rewind, a stall and a NaN."""
    return {
        "format": 1,
        "made_at": at(14_100),
        "kind": "run",
        "name": "pretrain",
        "outcome": {
            "state": "finished",
            "cause": "completed",
            "sentence": "pretrain reached its planned end, step 19,999 of 20,000, in attempt 3, after a stall and NaN.",
            "text": "exit code 0, the planned end was reached",
            "exit_code": 0,
            "signal": None,
            "code": 0,
        },
        "command": [
            "torchrun",
            "--nproc-per-node",
            "8",
            "train.py",
            "--config",
            "configs/small.toml",
            "--note",
            'it\'s "late"',
        ],
        "cwd": "/home/me/projects/small-lm",
        "host": "gpu-17",
        "engine": "tmux",
        "log": {
            "path": "/home/me/.local/state/overnight/runs/pretrain/output.log",
            "bytes": 3_401_221,
            "reader": "nanogpt",
            "why": "38 of the first 40 lines have its shape",
            "lines": 41_022,
        },
        "times": {
            "created_at": at(-2),
            "started_at": at(0),
            "ended_at": at(14_020),
            "elapsed_s": 14_022.4,
            "active_s": 13_932.0,
        },
        "progress": {
            "step": 19_999,
            "steps": 20_000,
            "epoch": 1.31,
            "records": 25_620,
            "loss_first": 10.9861,
            "loss_last": 3.1204,
            "loss_least": 3.0871,
            "loss_least_step": 19_730,
            "eval": {"name": "val loss", "last": 3.2011, "last_step": 19_500, "least": 3.1987, "least_step": 19_000},
        },
        "figures": _figures(),
        "reading": [
            "36.10% (with attention) is within the 29 to 49% that others have published for about this size on A100",
            "look first at the data loader: the log says that 12.00% of the step time is waiting for data",
        ],
        "disagreements": ["tokens per second are 262,144 by --tokens-per-step and 131,072 as the log prints them"],
        "reasons": [],
        "hardware": _hardware(),
        "goodput": {
            "goodput": 0.681,
            "productive_s": 9_549.0,
            "wall_s": 14_022.4,
            "stepping_tokens_per_s": 131_000.0,
            "overall_tokens_per_s": 89_211.0,
            "redone_steps": 3_620,
            "lost_s": 1_810.0,
            "lost_cost": 1.25,
            "restart_s": 190.0,
            "from": "time marks of the journal",
            "unknown": None,
            "parts": [
                {
                    "attempt": 1,
                    "first_step": 0,
                    "last_step": 11600,
                    "productive_s": 4000.0,
                    "lost_steps": 3600,
                    "lost_s": 1800.0,
                },
                {
                    "attempt": 2,
                    "first_step": 8000,
                    "last_step": 14020,
                    "productive_s": 3000.0,
                    "lost_steps": 20,
                    "lost_s": 10.0,
                },
                {
                    "attempt": 3,
                    "first_step": 14000,
                    "last_step": 19999,
                    "productive_s": 2549.0,
                    "lost_steps": 0,
                    "lost_s": 0.0,
                },
            ],
        },
        "limits": {
            "max_hours": 9.0,
            "until": at(36_000),
            "max_steps": None,
            "max_cost": 40.0,
            "price": 2.49,
            "restarts": 5,
            "stall_s": 1800.0,
            "start_limit_s": 1800.0,
            "exit_limit_s": None,
        },
        "cost": {
            "spent": 9.698,
            "price": 2.49,
            "price_source": "--price",
            "lost": 1.25,
            "forecast": None,
            "per_billion_tokens": 7.7532,
            "idle": 1.245,
            "idle_s": 1800.0,
        },
        "attempts": _attempts(),
        "timeline": _timeline(),
        "resumes": _resumes(),
        "rollbacks": [
            {
                "attempt": 2,
                "at": at(9_652),
                "rule": "nonfinite",
                "onset": 14_020,
                "before": 14_011,
                "last": 14_021,
                "skip": [14_011, 14_021],
                "text": "loss is NaN at step 14,020",
                "next_attempt": 3,
            }
        ],
        "checkpoint": _saves()[-1],
        "checkpoints": _saves(),
        "proofs": [
            {
                "name": "stall-001-stacks.txt",
                "path": "/home/me/.local/state/overnight/runs/pretrain/evidence/stall-001-stacks.txt",
                "text": 'Process 4711\nThread 4711 (idle): "MainThread"\n    all_reduce (torch/distributed.py:2501)\n',
            }
        ],
        "last_lines": [
            f"step {step} | loss {loss(step):.4f} | lr 1.00e-05 | dt 499.{step % 97:02d}ms | tok/s 131,3{step % 89:02d}"
            for step in range(19_990, 20_000)
        ]
        + ["saving ckpt/step-019999.pt", "done."],
        "charts": _charts(),
        "next": [
            "Loss became NaN at step 14,020 of attempt 2: `overnight logs pretrain --grep nan`.",
            "Attempt 1 hung for 31 min in all_reduce: evidence/stall-001-stacks.txt has its stacks.",
            "3,620 steps were done twice; saving more often than every 6,000 steps would have kept most of them.",
        ],
        "unknown": {"devices": "--devices, or a line of the log that names the world size"},
    }


def failed() -> dict[str, Any]:
    """Return the value of a run that gave up after crashes, with few records."""
    value = rich()
    value["name"] = "a-run-with-a-name-that-is-as-long-as-a-name-may-be-0123456789-abc"
    value["outcome"] = {
        "state": "gave_up",
        "cause": "out_of_memory_gpu",
        "sentence": "It gave up at step 12 of 20,000: three attempts came no further, a device had no memory left.",
        "text": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB",
        "exit_code": 1,
        "signal": None,
        "code": 106,
    }
    few = {"x": [0, 3, 6, 9, 12], "low": [10.98, 9.7, 9.2, 8.4, 8.1], "high": [10.98, 9.7, 9.2, 8.4, 8.1]}
    value["charts"] = [
        {
            "name": "loss",
            "label": "Loss",
            "unit": "nats",
            "x_label": "step",
            "attempts": [1, 1, 1, 2, 3],
            **few,
            "older": [],
            "nonfinite": [],
            "marks": [{"x": 12, "severity": "critical", "text": "out of memory"}],
        }
    ]
    return value


def bare() -> dict[str, Any]:
    """Return the value of a log that Overnight never launched and that no reader fits."""
    value = dict.fromkeys(rich())
    return {
        **value,
        "format": 1,
        "made_at": at(0),
        "kind": "log",
        "name": "train.log",
        "command": [],
        "figures": [],
        "limits": {},
        "outcome": {
            **dict.fromkeys(("state", "cause", "text", "exit_code", "signal", "code")),
            "sentence": "Nothing is known about how it ended: no reader fits this log yet.",
        },
        "log": {
            "path": "/data/train.log",
            "bytes": 120,
            "reader": None,
            "why": "no reader fits its first lines",
            "lines": 3,
        },
        "times": dict.fromkeys(("created_at", "started_at", "ended_at", "elapsed_s", "active_s")),
        "progress": dict.fromkeys(
            ("step", "steps", "epoch", "records", "loss_first", "loss_last", "loss_least", "loss_least_step", "eval")
        ),
        "goodput": {
            **dict.fromkeys(rich()["goodput"]),
            "unknown": "The log has no times: --dt would help.",
            "parts": [],
        },
        "cost": dict.fromkeys(("spent", "price", "lost")),
        "attempts": [],
        "resumes": [],
        "rollbacks": [],
        "timeline": [],
        "checkpoint": None,
        "checkpoints": [],
        "proofs": [],
        "charts": [],
        "next": [],
        "last_lines": ["Epoch 1 done", "Epoch 2 done", "bye"],
        "unknown": {"step": "a --pattern that names the step", "loss": "a --pattern that names the loss"},
    }


def blank() -> dict[str, Any]:
    """Return the value of a run of which nothing at all is known: every field is null."""
    return {**dict.fromkeys(rich()), "format": 1, "kind": "run", "name": "lost"}


def hostile(value: Any, text: str = HOSTILE) -> Any:
    """Return a value in which every text, keys of figures and times included, is ``text``."""
    if isinstance(value, dict):
        return {key: hostile(one, text) for key, one in value.items()}
    if isinstance(value, list):
        return [hostile(one, text) for one in value]
    return text if isinstance(value, str) else value

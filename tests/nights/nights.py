"""The list of recorded nights: how each was made, under which rules it is judged, and what must be found in it.

What must be found was decided before the recording, from what the training was told to do. It is written here by hand
and is never taken from what the rules say.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
TABLES, GAMES, WORDS = (HERE / "trainings" / f"{name}.py" for name in ("tables", "games", "words"))
TOY, GPT = HERE.parent / "toy.py", HERE.parents[1] / "examples" / "train_gpt.py"
PYTHON = sys.executable


@dataclass(frozen=True, kw_only=True)
class Must:
    """A verdict that has to be found: its rule and action, and the steps between which it has to come."""

    rule: str
    action: str
    first: int | None = None
    last: int | None = None


@dataclass(frozen=True, kw_only=True)
class Night:
    """One recorded training. ``launched``: it ran under ``overnight run`` with these options, and its folder is kept.

    ``flags`` are the rules under which it is judged. ``healthy``: nothing in it may end it, and what alerts is false.
    ``ends``: the rule that ends it; None: no rule may.
    """

    name: str
    how: str
    command: tuple[object, ...]
    flags: tuple[str, ...] = ()
    launched: tuple[str, ...] | None = None
    healthy: bool = False
    ends: str | None = None
    must: tuple[Must, ...] = ()


def _table(kind: str, *words: object) -> tuple[object, ...]:
    return (PYTHON, TABLES, kind, *words)


HEALTHY = (
    Night(name="classifier", how="10 classes, a tenth of the labels wrong", command=_table("classifier")),
    Night(name="finetune", how="little left to learn; the loss falls below 0.01", command=_table("finetune")),
    Night(name="waves", how="each pass over the data ends with its hardest part", command=_table("waves")),
    Night(name="thousands", how="squared errors from 70,000 down to hundreds", command=_table("thousands")),
    Night(name="tails", how="noise with heavy tails: single enormous losses", command=_table("tails")),
    Night(name="scaler", how="a loss scaler that begins far too high", command=_table("scaler", "--steps", 12000)),
    Night(name="epochs", how="steps are counted anew in each of five epochs", command=_table("epochs")),
    Night(
        name="objects",
        how="a JSON object every fifth step, without a step time",
        command=_table("classifier", "--json", "--every", 5, "--seed", 3),
    ),
    Night(
        name="dated",
        how="a date before each line, some seconds of training",
        command=_table("classifier", "--dates", "--steps", 10000, "--seed", 2),
    ),
    Night(name="policy", how="a policy gradient: the loss wanders about 0", command=(PYTHON, GAMES, "policy")),
    Night(name="gan", how="two networks against each other: no loss falls", command=(PYTHON, GAMES, "gan")),
    Night(
        name="bytes",
        how="a language model as nanoGPT prints, an evaluation every 500 steps",
        command=(PYTHON, WORDS, "--steps", 25000, "--eval-every", 500),
        flags=("--vocab-size", "128"),
    ),
    Night(
        name="edge",
        how="gradient descent at a rate just below too high",
        command=(PYTHON, WORDS, "--sgd", "--lr", 0.8, "--plain", "--steps", 12000),
        flags=("--vocab-size", "128"),
    ),
    Night(
        name="ranks",
        how="two ranks print each step",
        command=(PYTHON, WORDS, "--plain", "--rank", 0, "--steps", 6000),
        flags=("--vocab-size", "128"),
    ),
    Night(
        name="demo",
        how="overnight's own demo model in numpy",
        command=(PYTHON, "-m", "overnight.demo.train", "--steps", 3000, "--checkpoints", "{work}/demo"),
        flags=("--vocab-size", "128"),
    ),
    Night(
        name="gpt",
        how="examples/train_gpt.py in torch, one layer",
        command=(
            PYTHON, GPT, "--steps", 3000, "--layers", 1, "--width", 32, "--context", 16, "--batch", 8,
            "--save-every", 1000, "--checkpoints", "{work}/gpt",
        ),
        flags=("--vocab-size", "128"),
    ),
)  # fmt: skip

SICK = (
    Night(
        name="weight_nan",
        how="a weight becomes NaN before step 2,500",
        command=(PYTHON, WORDS, "--steps", 3000, "--nan-at", 2500),
        ends="nonfinite",
        must=(Must(rule="nonfinite", action="terminate", first=2500, last=2501),),
    ),
    Night(
        name="demo_nan",
        how="the demo model, a weight becomes NaN before step 300",
        command=(
            PYTHON, "-m", "overnight.demo.train", "--steps", 330, "--nan-at", 300, "--checkpoints", "{work}/demo_nan",
        ),
        ends="nonfinite",
        must=(Must(rule="nonfinite", action="terminate", first=300, last=301),),
    ),
    Night(
        name="hidden_nan",
        how="the script prints 0 where the loss is NaN, from step 2,000 on; the gradient norm tells",
        command=(PYTHON, WORDS, "--steps", 2100, "--nan-at", 2000, "--hide", "--plain"),
        ends="nonfinite",
        must=(Must(rule="nonfinite", action="terminate", first=2000, last=2003),),
    ),
    Night(
        name="scaler_stuck",
        how="a loss scaler whose gradients overflow from step 3,000 on",
        command=_table("scaler", "--steps", 4000, "--stuck-at", 3000),
        ends="nonfinite",
        must=(Must(rule="nonfinite", action="terminate", first=3015, last=3025),),
    ),
    Night(
        name="eval_nan",
        how="an evaluation without a batch from step 1,500 on: NaN, and the training is well",
        command=(PYTHON, WORDS, "--steps", 3000, "--eval-every", 500, "--empty-eval-at", 1500),
        must=(Must(rule="nonfinite", action="alert", first=1500, last=1500),),
    ),
    Night(
        name="diverges",
        how="a rate 10,000 times too high from step 2,000 on",
        command=(PYTHON, WORDS, "--sgd", "--lr", 0.5, "--steps", 2500, "--ruin-at", 2000, "--plain"),
        flags=("--tokens-per-step", "256"),
        ends="divergence",
        must=(Must(rule="divergence", action="terminate", first=2000, last=2010),),
    ),
    Night(
        name="collapse",
        how="all weights shrink to nothing at step 3,000: every byte is as likely again",
        command=(PYTHON, WORDS, "--steps", 3500, "--forget-at", 3000),
        flags=("--vocab-size", "128"),
        ends="collapse",
        must=(Must(rule="collapse", action="stop", first=3015, last=3040),),
    ),
    Night(
        name="frozen",
        how="one batch and a learning rate of 0: the loss is constant, which no rule tells yet",
        command=_table("classifier", "--frozen", "--steps", 3000),
    ),
    Night(
        name="odd_batches",
        how="30 batches of noise at step 4,000, then all is well",
        command=(PYTHON, WORDS, "--steps", 6000, "--odd-at", 4000, "--plain"),
        must=(
            Must(rule="spike", action="alert", first=4000, last=4012),
            Must(rule="spike", action="note", first=4030, last=4200),
        ),
    ),
)  # fmt: skip

LAUNCHED = (
    Night(
        name="run_restarts",
        how="killed by SIGHUP at step 60 in each attempt, resumed from step 50; two restarts",
        command=(PYTHON, TOY, "--steps", 100, "--dt", 0.1, "--kill-self", "HUP", "--kill-self-at", 60,
                 "--checkpoints", "{work}/restarts", "--save-every", 25, "--resume"),
        launched=("--restarts", "2", "--backoff", "1s", "--steps", "100"),
    ),
    Night(
        name="run_nan",
        how="NaN at step 40 of a run that is launched; ended by the rule that night",
        command=(PYTHON, WORDS, "--steps", 400, "--nan-at", 40, "--plain", "--slow", 0.1),
        launched=("--price", "2.5/h"),
        ends="nonfinite",
        must=(Must(rule="nonfinite", action="terminate", first=40, last=41),),
    ),
    Night(
        name="run_unheeded",
        how="NaN at step 60, and the night had nonfinite=note: it went on for 200 steps more",
        command=(PYTHON, WORDS, "--steps", 260, "--nan-at", 60, "--plain", "--slow", 0.1),
        launched=("--price", "2.5/h", "--action", "nonfinite=note"),
        flags=("--action", "nonfinite=terminate"),
        ends="nonfinite",
        must=(Must(rule="nonfinite", action="terminate", first=60, last=61),),
    ),
    Night(
        name="run_hangs",
        how="hangs before step 100 for good; --stall 20s ends it, then it is started once more",
        command=(PYTHON, TOY, "--steps", 200, "--dt", 0.1, "--hang-at", 100),
        launched=("--stall", "20s", "--restarts", "1", "--backoff", "1s", "--grace", "2s"),
        ends="stall",
        must=(Must(rule="stall", action="stop", first=99, last=99),),
    ),
    Night(
        name="run_hours",
        how="a limit of 36 s on the wall clock",
        command=(PYTHON, TOY, "--steps", 2000, "--dt", 0.1, "--handle", "int"),
        launched=("--max-hours", "0.01"),
        ends="wall_clock",
        must=(Must(rule="wall_clock", action="stop", first=300, last=365),),
    ),
    Night(
        name="run_rewinds",
        how="a rewind within one attempt: stops at 116, goes on from 80",
        command=(PYTHON, "-c", "{rewinds}"),
        launched=("--steps", "160"),
        must=(Must(rule="rewind", action="note", first=80, last=80),),
    ),
)  # fmt: skip

REWINDS = """\
import math, random, time
random.seed(1)
for step in [*range(1, 117), *range(80, 161)]:
    time.sleep(0.02)
    print(f"step: {step}, loss: {4 * math.exp(-step / 80) + random.gauss(0, 0.02):.4f}, dt: 0.02", flush=True)
"""

NIGHTS = {
    night.name: night for night in (*(Night(**{**vars(one), "healthy": True}) for one in HEALTHY), *SICK, *LAUNCHED)
}

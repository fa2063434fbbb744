"""The training programs whose logs are known: how to tell them, what reads them today, what to do where nothing does.

This is the seam for further readers: a program whose ``reader`` is None is one that still waits for its own. Whoever
writes it adds the file, its line in ``wiring.READERS``, and its name here. Only text is looked at; no reader is
imported, and nothing here decides which reader reads a log. One weak sign is never enough: a program is told by a line
that only it prints, or by two lines of a shape that only it has.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

ENOUGH_LINES = 4000
"""So many lines from the beginning of a log are as good as all of them."""

_LONGEST = 2000
_TWICE = 2


class Program(NamedTuple):
    """One training program.

    ``shape`` is a regular expression for its progress lines, two of which tell it; ``mark`` one for a line that tells
    it alone. ``reader`` is what reads its log today, None if nothing does; ``advice`` is then one sentence on what to
    do, and ``pattern`` a regular expression for ``--pattern`` that reads what can be read of it line by line.
    ``plain``: it is no program, but a way of printing that many scripts have.
    """

    name: str
    shape: str
    mark: str | None
    reader: str | None
    advice: str = ""
    pattern: str | None = None
    plain: bool = False


_N = r"[-+]?(?:[0-9][0-9,.]*(?:[eE][-+]?[0-9]+)?|nan|inf|NAN|INF)"
_HF = r"\{'(?:loss|train_loss)': .{0,4000}'learning_rate': .{0,4000}'epoch': "
# Of several losses that of training, at the begin of its field: neither val_loss nor "val loss".
_LOSS = r"(?:.*?[^A-Za-z_/ -])?[ -]*(?:[Tt]rain\w*[ _/]|avg_)?[Ll]oss[\s:=]*"
_BAR_LOSS = r".*?, (?:train_|avg_)?[Ll]oss="
_EPOCH = r"poch\W*"
# Steps, or places within an epoch: more than one line for each epoch.
_BETWEEN = (
    r".*(?:(?:[Ss]teps?|[Ii]ter(?:ation)?s?|[Bb]atch(?:es)?)[\s:=\[#]*[0-9]"
    rf"|{_EPOCH}[0-9]+(?:/[0-9]+)?[\])]?[\s:,|-]*[\[(] *[0-9]+/[0-9]+)"
)
_LINES = "it prints its figures over several lines, which no reader joins yet"

# The special ones before those they are built on: the first that is told counts.
PROGRAMS: tuple[Program, ...] = (
    Program(
        "nanochat", rf"step [0-9]{{5}}(?:/[0-9]+)? .*\| loss: {_N} \| lrm: ", r"nanochat\.common - INFO", "keyvalue"
    ),
    Program(
        "llm.c train_gpt2.cu", rf"step +[0-9]+/[0-9]+ \| loss {_N} \([^)]*z\)\| norm {_N} ", None, "keyvalue"
    ),
    Program("llm.c main.log", rf"^s:[0-9]+ (?:trl|tel|eval):{_N}", None, None,
        "give --pattern, or read what the program prints instead of its main.log",
        r"^s:(?P<step>\d+) trl:(?P<loss>\S+)(?: lr:(?P<lr>\S+) norm:(?P<grad_norm>\S+))?"),
    Program("llm.c train_gpt2.c or .py", rf"step +[0-9]+(?:/[0-9]+ \|)?:? train loss {_N} (?:\(took|\| norm)", None,
        "keyvalue"),
    Program("build-nanogpt", rf"step +[0-9]+ \| loss: {_N} \| lr {_N} \| norm: ?{_N} \| dt: ", None, "keyvalue"),
    Program("modded-nanogpt", r"step:[0-9]+/[0-9]+ (?:\w+_loss:\S+ )?train_time:\S+ step_avg:", None, "keyvalue"),
    Program("nanoGPT", rf"^iter [0-9]+: loss {_N}, time {_N}ms, mfu ", None, "nanogpt"),
    Program("litGPT", rf"Epoch [0-9]+ \| iter [0-9]+ step [0-9]+ \| loss train: {_N}", None, "keyvalue"),
    Program("torchtitan", rf"\[titan\] .* step: +[0-9]+ +loss: +{_N} +grad_norm: ", None, "keyvalue"),
    Program("torchtune", rf"Step [0-9]+ \| loss:{_N} lr:{_N} ", None, "keyvalue"),
    Program("NeMo", rf"Training epoch [0-9]+, iteration [0-9]+/[0-9]+ \| lr: {_N} \|", None, "keyvalue"),
    Program("GPT-NeoX", r"samples/sec: .* iteration +[0-9]+/ *[0-9]+ \| elapsed time per iteration \(ms\)", None,
        "keyvalue"),
    Program("Megatron-DeepSpeed", r" iteration +[0-9]+/ *[0-9]+ \|.*elapsed time per iteration.*\(tgs\):", None,
        "keyvalue"),
    Program("Megatron-LM", r" iteration +[0-9]+/ *[0-9]+ \|.*elapsed time per iteration \(ms\):", None, "keyvalue"),
    Program("DeepSpeed pipeline", rf"^steps: [0-9]+ loss: {_N} iter time \(s\): ", None, "keyvalue"),
    Program("Megatron-SWIFT", r"\{'(?:loss|lm loss)'.*'iteration': '[0-9]+/[0-9]+'", None, "trainer"),
    Program("ms-swift", r"\{'loss': .*'global_step/max_steps': '[0-9]+/[0-9]+'", None, "trainer"),
    Program("axolotl", r"\{'loss': .*'(?:memory/max_active \(GiB\)|tokens/train_per_sec_per_gpu)': ",
        r"\[axolotl\.[a-z_.:0-9]+\]", "trainer"),
    Program("unsloth", r"Unsloth .{0,40}Fast .{0,40}(?:patching|finetuning)", r"^ *==\(\(=+\)\)==", "trainer"),
    Program("LLaMA-Factory", r'"current_steps": [0-9]+, "total_steps": [0-9]+', r"\[INFO\|.{0,60}llamafactory\.",
        "jsonlines"),
    Program("TRL", r"\{'loss': .*'(?:num_tokens|completions/mean_length|rewards/[a-z_]+|mean_token_accuracy)': ",
        None, "trainer"),
    Program("Hugging Face Trainer", _HF, r"\{'train_runtime': .*'train_samples_per_second': .*'train_loss': ",
        "trainer"),
    Program("fairseq with JSON", r'\| INFO \| train(?:_inner)? \| \{"epoch"', None, "jsonlines"),
    Program("fairseq", r"\| (?:INFO|WARNING) \| train(?:_inner)? \| epoch [0-9]+", None, "keyvalue"),
    Program("MaxText", rf"completed step: [0-9]+, seconds: {_N}, TFLOP/s/device: ", None, "keyvalue"),
    Program("levanter", r"Progress on:train \S+it/\S+ rate:\S+ remaining:", None, None,
        "give --pattern; its steps have three digits only", r"postfix:loss=(?P<loss>[^,\s]+)"),
    Program("OLMo-core", r"^ {4}(?:throughput/device/TPS|train/CE loss|train/CrossEntropyLoss|optim/LR \(group 0\))=",
        r"\[step=[0-9]+/[0-9]+,epoch=[0-9]+", None,
        f"{_LINES}: let the script print a telemetry line of its own, step: 5, loss: 2.1"),
    Program("Composer", r"^\s*(?:Train|Eval) (?:loss/train|metrics/|throughput/|time/|lr-)\S*: ",
        r"^\[(?:epoch=[0-9]+\]\[)?batch=[0-9]+/[0-9]+\]:$", None,
        f"{_LINES}: let a callback print a telemetry line of its own, step: 5, loss: 2.1"),
    Program("EasyLM", r"^ ?\{?'(?:accuracy|gradient_norm|learning_rate|param_norm)': \S+,$", None, "trainer"),
    Program("PaddleNLP", r"loss: \S+, learning_rate: \S+, global_step: [0-9]+, interval_runtime: ", None, "keyvalue"),
    Program("xtuner", r"\[XTuner\]\[RANK [0-9]+\].* Step [0-9]+/[0-9]+ ", None, "keyvalue"),
    Program("verl", r"step:[0-9]+ - (?:\S+:\S+ - ){0,200}?(?:actor|critic|perf|global_seqlen)/\S+:", None, "keyvalue"),
    Program("timm", r"Train: [0-9]+ \[ *[0-9]+/[0-9]+ \( *[0-9]+%\)\] +Loss: ", None, None,
        "give --pattern; its step begins anew in each epoch",
        r"Train: (?P<epoch>\d+) \[ *(?P<step>\d+)/\d+.*?Loss: *(?P<loss>\S+) .*?Time: *(?P<dt>[\d.]+)s"),
    Program("mmengine", r"mmengine - INFO - (?:Epoch|Iter)\(train\) +\[", None, None,
        "give --pattern, or read the JSON lines that it writes to vis_data, whose steps do not begin anew",
        r"(?:Epoch|Iter)\(train\) .*?\[ *(?P<step>\d+)/ *\d+\] .*?lr: (?P<lr>\S+) .*? time: (?P<dt>\S+) .*?"
        r" loss: (?P<loss>\S+)"),
    Program("detectron2", r"d2\.utils\.events\]: .*iter: [0-9]+ .*total_loss: ", None, "keyvalue"),
    Program("Keras", rf"^ *[0-9]+/[0-9]+ (?:\S+ [0-9]+m?s {_N}[mu]?s/step|- [0-9]+m?s - {_N}[mu]?s/(?:step|epoch)) - ",
        None, None, "give --pattern with verbose=1; its step begins anew in each epoch",
        r"^ *(?P<step>\d+)/\d+ .*? - loss: (?P<loss>\S+)"),
    Program("ultralytics", r"^ +[0-9]+/[0-9]+ +[0-9.]+G +[0-9.]+ .*: [0-9]+% .* [0-9]+/[0-9]+ ",
        r"Epoch +GPU_mem +box_loss +cls_loss", None,
        "give --pattern for the first of its losses; its results.csv has one row for each epoch",
        r"^ +(?P<epoch>\d+)/\d+ +[\d.]+G +(?P<loss>\S+) .*%\D+(?P<step>\d+)/\d+ "),
    Program("Lightning", r"Epoch [0-9]+: +[0-9]+%\|.*v_num=", r"lightning/(?:pytorch|fabric)/|PyTorch Lightning", None,
        "give --pattern with its tqdm bar (rich writes no bar into a file), or let a callback print step: 5, loss: 2.1",
        r"Epoch (?P<epoch>\d+): .*\| (?P<step>\d+)/\d+ \[.*?loss(?:_step)?=(?P<loss>[^,\]]+)"),
    Program("fastai", r"^[0-9]+ +[0-9.]+ +[0-9.]+ .*[0-9]{2}:[0-9]{2} *$",
        r"^epoch +train_loss +valid_loss .*time *$", None,
        "give --pattern; it prints a row for each epoch and no step",
        r"^(?P<epoch>\d+) +(?P<loss>[\d.]+|nan|inf) +\S+ .*\d\d:\d\d *$"),
    Program("DeepSpeed engine", r"\[Rank [0-9]+\] step=[0-9]+, skipped=[0-9]+, lr=\[", None, None,
        "DeepSpeed prints no loss: let the script print one, step: 5, loss: 2.1, or give --pattern for steps alone",
        r"\] step=(?P<step>\d+), skipped=(?P<skipped>\d+), lr=\[(?P<lr>[^,\]]+)"),
    Program("ColossalAI", r"Epoch [0-9]+: +[0-9]+%\|.*(?:, Loss=|train/loss=)", None, None,
        "give --pattern; its step begins anew in each epoch",
        r"Epoch (?P<epoch>\d+): .*\| (?P<step>\d+)/\d+ \[.*?[lL]oss=(?P<loss>[^,\]]+)"),
    Program("Accelerate examples", r"__main__ - (?:INFO - )?epoch [0-9]+: .*(?:perplexity|eval_loss|accuracy)", None,
        None, "its training loss goes to trackers only: let the script print step: 5, loss: 2.1"),
    Program("a tqdm bar", rf"%\|.*\| *[0-9]+/[0-9]+ \[{_BAR_LOSS}", None, None,
        "give --pattern, which reads step and loss from the bar",
        rf"(?:{_EPOCH}(?P<epoch>\d+).*?)?%\|.*\| *(?P<step>\d+)/\d+ \[{_BAR_LOSS}(?P<loss>[^,\]\s]+)", plain=True),
    Program("one line for each epoch", rf"^(?!{_BETWEEN}).{{0,80}}{_EPOCH}[0-9]+(?![.0-9]){_LOSS}{_N}", None, None,
        "give --pattern, which takes the epoch for how far it is; no step is printed",
        rf"{_EPOCH}(?P<epoch>\d+){_LOSS}(?P<loss>[-+\w.]+)", plain=True),
)  # fmt: skip


def recognise(lines: Iterable[str]) -> Program | None:
    """Return the program that has printed ``lines`` (of them the first ``ENOUGH_LINES``); None if none is certain."""
    counts = dict.fromkeys(PROGRAMS, 0)
    for seen, line in enumerate(lines):
        if seen >= ENOUGH_LINES:
            break
        text = line[:_LONGEST]
        for program, shape, mark in _compiled():
            if counts[program] < _TWICE:
                if mark is not None and mark.search(text):
                    counts[program] = _TWICE
                elif shape.search(text):
                    counts[program] += 1
    return next((program for program, count in counts.items() if count >= _TWICE), None)


@lru_cache(maxsize=1)
def _compiled() -> tuple[tuple[Program, re.Pattern[str], re.Pattern[str] | None], ...]:
    return tuple((one, re.compile(one.shape), None if one.mark is None else re.compile(one.mark)) for one in PROGRAMS)

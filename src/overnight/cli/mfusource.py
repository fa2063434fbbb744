"""Where ``mfu`` has its inputs from: flags, the files that they name, and what a run or a log knows of itself.

A run's log is read once more, as it was read in the night, under what the flags say; nothing is changed. Flags lead.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from overnight import client
from overnight.calculator import Question
from overnight.calculator.size import Declared, counted
from overnight.cli.mfuevidence import Gathered, gathered
from overnight.cli.subject import find_subject
from overnight.errors import UsageError
from overnight.folder import RunFolder
from overnight.modelsize import Counts
from overnight.sensors import Gpu
from overnight.spec import RunSpec

HERE = "here"
DECLARED = ("params", "active_params", "trainable_params", "layers", "width", "heads", "head_size", "vocab_size")
TAKEN = (
    "tokens_per_step", "batch", "seq_len", "accumulate", "world_size", "devices", "gpu", "dtype", "peak_tflops",
    "convention", "recompute", "vocab_size", "price",
)  # fmt: skip
"""Fields of a run's spec that are inputs here, under the same names."""


def by_hand(asked: Mapping[str, Any], *, per_device: bool) -> Question:
    """Return the question that flags alone ask. UsageError for a file or a name that gives nothing."""
    counts, remarks = _counts(asked, None, {})
    sources = {_field(name): f"--{name.replace('_', '-')}" for name in asked}
    values = {name: asked[name] for name in (*TAKEN, "tokens_per_second", "target_len") if name in asked}
    if "dt" in asked:
        values["dt_s"] = asked["dt"]
    values.update(_seen_here(asked, sources))
    question = Question(counts=counts, per_device=per_device, sources=sources, remarks=tuple(remarks), **values)
    return _with_block(question, asked)


def of_subject(what: str | None, asked: Mapping[str, Any], *, per_device: bool) -> Question:
    """Return the question of a run (None: the latest) or a log, in which flags lead."""
    subject = find_subject(what)
    if isinstance(subject, RunFolder):
        spec, origins = _asked_of(subject)
    else:
        from overnight import settings

        resolved = settings.resolve({}, (), home=client.find_home())
        spec, origins = resolved.spec, resolved.origins
        for text in resolved.warnings:
            print(f"overnight: {text}", file=sys.stderr)
    question = _joined(spec, origins, asked, per_device=per_device, run=isinstance(subject, RunFolder))
    found = gathered(subject, _as_measured(spec, question))
    if question.dt_s is not None and question.tokens_per_step is not None:  # what was given leads beside that time
        told = [one.replace("; the latter is used", "; with --dt the former is used") for one in found.remarks]
        found = found._replace(remarks=tuple(told))
    return _with_gpus(msgspec.structs.replace(
        question, evidence=found.evidence, remarks=(*question.remarks, *found.remarks)
    ), found)  # fmt: skip


def _field(name: str) -> str:
    return "dt_s" if name == "dt" else name


def _asked_of(folder: RunFolder) -> tuple[RunSpec, dict[str, str]]:
    from overnight.folder import read_json
    from overnight.requests.asked import in_force

    spec = in_force(folder)
    origins = (read_json(folder.run_json) or {}).get("origins")
    return spec, {str(key): str(said) for key, said in origins.items()} if isinstance(origins, dict) else {}


# -- the model ---------------------------------------------------------------------------------------------------------


def _counts(
    asked: Mapping[str, Any], spec: RunSpec | None, origins: Mapping[str, str]
) -> tuple[Counts | None, list[str]]:
    """Return the counts, and what disagrees: what flags name, laid over what a file, a name or the run tells."""
    found, remarks = _named(asked), []
    declared = {name: asked[name] for name in DECLARED if name in asked}
    source = "--params"
    if spec is not None:
        for name in DECLARED:
            value = getattr(spec, name)
            if name in declared or value is None or (name == "params" and (found is not None or spec.counts)):
                continue
            if name in ("params", "layers", "width", "heads", "head_size") and found is not None:
                continue
            declared[name] = value
            if name == "params":
                source = f"{spec.params_source}, of the run" if spec.params_source else _said("params", origins)
        if found is None:
            found = spec.counts
        elif spec.params is not None and spec.params != found.total:
            remarks.append(f"parameters: {found.total:,} ({found.source}) is used; the run has {spec.params:,}")
    if "params" in asked:
        source = "--params"
    try:
        counts, odd = counted(Declared(source=source, **declared), found)
    except ValueError as error:
        raise UsageError(str(error)) from error
    return counts, [*remarks, *odd]


def _named(asked: Mapping[str, Any]) -> Counts | None:
    if "config" in asked:
        from overnight.modelsize.files import from_path

        return from_path(Path(asked["config"]))
    if "model" in asked:
        from overnight.modelsize.named import from_name

        try:
            return from_name(asked["model"])
        except ValueError as error:
            raise UsageError(f"--model {asked['model']!r}: {error}") from error
    return _nanogpt(asked["nanogpt"]) if "nanogpt" in asked else None


NANOGPT = ("n_layer", "n_head", "n_embd", "block_size", "vocab_size", "bias")


def _nanogpt(text: str) -> Counts:
    """Return the counts of a set as nanoGPT writes it: 'n_layer=12 n_head=12 ... bias=False'."""
    from overnight.modelsize.nanogpt import from_nanogpt

    pairs = (part.partition("=") for part in text.replace(",", " ").split())
    values = {name.strip().removeprefix("--"): value.strip() for name, _, value in pairs}
    missing = [name for name in NANOGPT if name not in values]
    odd = [name for name in values if name not in NANOGPT]
    if missing or odd:
        raise UsageError(
            f"--nanogpt {'lacks ' + ', '.join(missing) if missing else 'does not know ' + ', '.join(odd)}: give "
            f"'n_layer=12 n_head=12 n_embd=768 block_size=1024 vocab_size=50304 bias=False'"
        )
    bias = {"true": True, "1": True, "false": False, "0": False}.get(values.pop("bias").lower())
    try:
        numbers = {name: int(value.replace("_", "")) for name, value in values.items()}
        if bias is None:
            raise UsageError("--nanogpt: bias is True or False")
        return from_nanogpt(**numbers, bias=bias)
    except ValueError as error:
        raise UsageError(f"--nanogpt cannot be {text!r}: {error}") from error


def _with_block(question: Question, asked: Mapping[str, Any]) -> Question:
    """Take nanoGPT's block size for the length of its sequences, which it is; others may train below their context."""
    counts = question.counts
    if question.seq_len is not None or counts is None or "nanogpt" not in asked:
        return question
    sources = {**question.sources, "seq_len": "block_size of --nanogpt"}
    return msgspec.structs.replace(question, seq_len=counts.context, sources=sources)


# -- a run's own inputs ------------------------------------------------------------------------------------------------


def _joined(
    spec: RunSpec, origins: Mapping[str, str], asked: Mapping[str, Any], *, per_device: bool, run: bool
) -> Question:
    counts, remarks = _counts(asked, spec, origins)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name in TAKEN:
        if name in asked:
            values[name], sources[name] = asked[name], f"--{name.replace('_', '-')}"
        elif _is_given(name, spec, origins, asked, run=run):
            values[name], sources[name] = getattr(spec, name), _source(name, spec, origins)
    if asked.keys() & {"batch", "accumulate", "world_size", "seq_len"} and "tokens_per_step" not in asked:
        values.pop("tokens_per_step", None)  # what the run had was of other sizes
    for name in ("tokens_per_second", "target_len"):
        if name in asked:
            values[name], sources[name] = asked[name], f"--{name.replace('_', '-')}"
    if "dt" in asked:
        values["dt_s"], sources["dt_s"] = asked["dt"], "--dt"
    values.update(_seen_here(asked, sources))
    question = Question(counts=counts, per_device=per_device, sources=sources, remarks=tuple(remarks), **values)
    return _with_block(question, asked)


def _is_given(name: str, spec: RunSpec, origins: Mapping[str, str], asked: Mapping[str, Any], *, run: bool) -> bool:
    """Say whether a run, or the settings around a log, give an input that no flag does."""
    if getattr(spec, name) is None or (origins.get(name, "") == "default" and not (run and name == "devices")):
        return False
    if name == "peak_tflops":  # one that follows from the device is looked up again
        return not asked.keys() & {"gpu", "dtype"} and (spec.gpu is None or spec.dtype is None)
    return True


def _said(name: str, origins: Mapping[str, str]) -> str:
    said = origins.get(name, "")
    return f"{said.removeprefix('flag ')} of the run" if said else "as the run was asked"


def _source(name: str, spec: RunSpec, origins: Mapping[str, str]) -> str:
    own = {"tokens_per_step": spec.tokens_source, "peak_tflops": spec.peak_source, "price": spec.price_source}.get(name)
    return f"{own}, of the run" if own else _said(name, origins)


def _as_measured(spec: RunSpec, question: Question) -> RunSpec:
    """Return the spec under which the log is read once more: tokens and devices as they are counted here."""
    from overnight.calculator.speed import devices_of, speed_of

    tokens = speed_of(question).tokens_per_step
    return msgspec.structs.replace(
        spec,
        tokens_per_step=tokens,
        devices=devices_of(question)[0],
        accumulate=question.accumulate,
        seq_len=question.seq_len,
    )


# -- the device --------------------------------------------------------------------------------------------------------


def _seen_here(asked: Mapping[str, Any], sources: dict[str, str]) -> dict[str, Any]:
    """Return what this machine's driver says of its GPUs, if ``--gpu here`` asks for that. UsageError if nothing."""
    if asked.get("gpu") != HERE:
        return {}
    from overnight.sensors.gpu import look

    sample = look()
    gpus = [one for one in sample.gpus if one.lost is None]
    if not gpus:
        raise UsageError(f"--gpu here: {sample.trouble or 'this machine shows no GPU'}; give --gpu NAME")
    names = sorted({one.name or "" for one in gpus})
    if len(names) > 1:
        raise UsageError(f"--gpu here: this machine has several kinds ({', '.join(names)}); give --gpu NAME")
    sources["gpu"] = "what this machine's driver says"
    return _described(gpus[0])


def _described(gpu: Gpu) -> dict[str, Any]:
    memory = gpu.memory_total
    return {
        "gpu": gpu.name or "",
        "gpu_units": gpu.units,
        "gpu_memory_gb": None if memory is None else memory / 1e9,
        "gpu_arch": gpu.arch,
    }


def _with_gpus(question: Question, found: Gathered) -> Question:
    """Take the device from the run's sensors where nothing else names it; compare their number with the devices."""
    gpus = found.gpus
    if not gpus:
        return question
    remarks = list(question.remarks)
    if question.devices is not None and len(gpus) != question.devices:
        remarks.append(
            f"devices: {question.devices:,} ({question.source('devices')}) is used; the sensors see {len(gpus):,} GPUs "
            f"of this run: give --devices {len(gpus)} if all of them work for it here"
        )
    question = msgspec.structs.replace(question, remarks=tuple(remarks))
    names = {one.name for one in gpus}
    if question.gpu is not None or question.peak_tflops is not None or len(names) != 1:
        return question
    sources = {**question.sources, "gpu": "the run's sensors"}
    return msgspec.structs.replace(question, sources=sources, **_described(gpus[0]))

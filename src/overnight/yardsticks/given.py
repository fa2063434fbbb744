"""What the figures of a run are divided by: model size, tokens of a step, peak, price; from the settings.

Reads the files that are named there, and nothing else. What was given by its own setting leads; another source that
says something else is named in a warning. Unknown stays None.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from overnight.errors import UsageError
from overnight.modelsize import Counts


def derive(values: dict[str, Any], origins: dict[str, str], here: str) -> tuple[dict[str, Any], list[str]]:
    """Complete ``values`` and ``origins`` with what follows from others; return more fields of the spec, and warnings.

    ``here``: the folder that paths are relative to. UsageError for a file or a name that gives nothing.
    """
    warnings: list[str] = []
    more: dict[str, Any] = {"counts": _model(values, origins, here, warnings)}
    _check_convention(values, origins, more["counts"], warnings)
    _tokens(values, origins, warnings)
    more["peak_source"] = _peak(values, origins, warnings)
    more["price_source"] = _price(values, origins, here, warnings)
    for name in ("params", "tokens_per_step"):
        source = "params_source" if name == "params" else "tokens_source"
        more[source] = None if values[name] is None else _said(origins[name])
    if values["price"] is not None and more["price_source"] is None:
        more["price_source"] = _said(origins["price"])
    return more, warnings


def _said(origin: str) -> str:
    return origin.removeprefix("flag ")


def _check_convention(
    values: dict[str, Any], origins: dict[str, str], counts: Counts | None, warnings: list[str]
) -> None:
    """Refuse a convention that there is not, or one that what is given is not enough for.

    Without any parameters nothing can be counted, and whoever shows that says so. What makes the figure wrong for this
    model is a warning.
    """
    key = values["convention"]
    if key == "6n" and counts is None:
        return
    from overnight.flops.conventions import figure_of, headline

    asked = f"convention {key!r} ({origins['convention']})"
    try:
        known = counts or Counts(total=1, source="--params")
        leading = headline(known, values["seq_len"], key)
        lacks = figure_of(key, known, seq_len=values["seq_len"])
    except ValueError as error:
        raise UsageError(f"{asked}: {error}") from error
    if counts is not None and isinstance(lacks, str):
        raise UsageError(f"{asked} cannot be counted: {lacks}")
    if counts is not None and leading is not None and leading.note:
        warnings.append(f"{asked}: {leading.note}")


# -- the model ---------------------------------------------------------------------------------------------------------


def _model(values: dict[str, Any], origins: dict[str, str], here: str, warnings: list[str]) -> Counts | None:
    """Return what is known of the model's size beyond single numbers; the single numbers that follow are filled in."""
    found = _counted(values, origins, here)
    if found is None:
        heads, size = values["heads"], values["head_size"]
        if values["width"] is None and heads is not None and size is not None:
            values["width"], origins["width"] = heads * size, "heads * head size"
        by_numbers = values["params"] is not None and (
            values["active_params"] is not None
            or values["trainable_params"] is not None
            or (values["convention"], values["recompute"]) != ("6n", "none")
        )
        if not by_numbers:
            return None
    from overnight.calculator.size import Declared, counted

    names = ("params", "active_params", "trainable_params", "layers", "width", "heads", "head_size", "vocab_size")
    source = "--params" if values["params"] is None else _said(origins["params"])
    try:
        counts, remarks = counted(Declared(**{name: values[name] for name in names}, source=source), found)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if counts is None:
        return None
    warnings += remarks
    told = {"params": counts.total, "layers": counts.layers, "vocab_size": counts.vocab_size, "width": _width(counts)}
    for name, known in told.items():
        if values[name] is None and known is not None:
            values[name], origins[name] = known, counts.source if found is None or name == "params" else found.source
    return counts


def _counted(values: dict[str, Any], origins: dict[str, str], here: str) -> Counts | None:
    config, model = values["config"], values["model"]
    if config is not None and model is not None:
        raise UsageError(
            f"config ({origins['config']}) and model ({origins['model']}) both say how large the model is; give one"
        )
    if config is not None:
        from overnight.modelsize.files import from_path

        return from_path(Path(os.path.join(here, config)))
    if model is not None:
        from overnight.modelsize.named import from_name

        try:
            return from_name(model)
        except ValueError as error:
            raise UsageError(f"model {model!r} ({origins['model']}): {error}") from error
    return None


def _width(counts: Counts) -> int | None:
    """Return the numbers that the attention of one layer multiplies per token: heads * head size."""
    if counts.heads is not None and counts.head_size is not None:
        return counts.heads * counts.head_size
    return counts.width


# -- the tokens --------------------------------------------------------------------------------------------------------


def _tokens(values: dict[str, Any], origins: dict[str, str], warnings: list[str]) -> None:
    batch, length = values["batch"], values["seq_len"]
    parts = [name for name in ("batch", "accumulate", "world_size") if values[name] is not None]
    _devices(values, origins, warnings)
    if batch is None or length is None:
        if parts and values["tokens_per_step"] is None:
            missing = "batch" if batch is None else "seq-len"
            named = ", ".join(name.replace("_", "-") for name in parts)
            warnings.append(f"the tokens of a step do not follow from {named} alone: give {missing} too")
        return
    micro, ranks = values["accumulate"] or 1, values["world_size"] or values["devices"]
    product = batch * length * micro * ranks
    said = f"batch {batch:,} * seq-len {length:,} * accumulate {micro:,} * {_ranks(values, ranks)}"
    given = values["tokens_per_step"]
    if given is None:
        values["tokens_per_step"], origins["tokens_per_step"] = float(product), said
    elif given != product:
        warnings.append(
            f"tokens-per-step {given:,.0f} ({origins['tokens_per_step']}) and {said} = {product:,} disagree; "
            f"the given number is used"
        )


def _devices(values: dict[str, Any], origins: dict[str, str], warnings: list[str]) -> None:
    """Each data-parallel rank has a device at least: tokens of all ranks over the peak of one would be no MFU."""
    ranks, devices = values["world_size"], values["devices"]
    if ranks is None or ranks <= devices:
        return
    if origins["devices"] == "default":
        values["devices"], origins["devices"] = ranks, "one for each of world-size"
        return
    warnings.append(
        f"world-size {ranks:,} ({origins['world_size']}) is more than devices {devices:,} ({origins['devices']}): "
        f"figures are over the peak of {devices:,}"
    )


def _ranks(values: dict[str, Any], ranks: int) -> str:
    if values["world_size"] is not None:
        return f"world-size {ranks:,}"
    return "1 device" if ranks == 1 else f"{ranks:,} devices, each taken for a data-parallel rank"


# -- the peak and the price --------------------------------------------------------------------------------------------


def _peak(values: dict[str, Any], origins: dict[str, str], warnings: list[str]) -> str | None:
    """Return the words for where the peak comes from; a peak by name is filled in."""
    gpu, dtype, given = values["gpu"], values["dtype"], values["peak_tflops"]
    if gpu is None:
        return None if given is None else _said(origins["peak_tflops"])
    from overnight.calculator import Question
    from overnight.calculator.device import peak_for

    sources = {name: _said(origins[name]) for name in ("gpu", "dtype", "peak_tflops")}
    peak = peak_for(Question(gpu=gpu, dtype=dtype, peak_tflops=given, sources=sources))
    if peak.accelerator is None and given is None:
        raise UsageError(f"gpu {gpu!r} ({origins['gpu']}): {peak.needs}")
    warnings += peak.disagreements
    if given is not None:
        return sources["peak_tflops"]
    if peak.flops is None:
        warnings.append(f"gpu ({origins['gpu']}): the peak is unknown: {peak.needs}")
        return None
    values["peak_tflops"], origins["peak_tflops"] = peak.flops / 1e12, f"gpu {gpu}, dtype {dtype}"
    return peak.source


def _price(values: dict[str, Any], origins: dict[str, str], here: str, warnings: list[str]) -> str | None:
    """Return the words for a price from a table; None where it was given, or waits for the devices."""
    table = values["price_table"]
    if table is None:
        return None
    from overnight.yardsticks.pricing import price_of, read_prices

    path = Path(os.path.join(here, table))
    values["price_table"] = str(path)
    prices = read_prices(path)
    if values["price"] is not None:
        warnings.append(f"price-table ({origins['price_table']}) is not used: price ({origins['price']}) comes first")
        return None
    if values["gpu"] is None:
        return None  # whoever sees the devices looks them up
    found = price_of(prices, [values["gpu"]], values["devices"])
    if found.per_hour is None:
        raise UsageError(f"price-table ({origins['price_table']}): {found.said}")
    values["price"], origins["price"] = found.per_hour, found.said
    return found.said


def unused(values: dict[str, Any], origins: dict[str, str]) -> Iterator[str]:
    """Yield a warning for each of these settings that does nothing as it stands."""
    derived = origins["peak_tflops"] == f"gpu {values['gpu']}, dtype {values['dtype']}"
    if values["dtype"] is not None and values["peak_tflops"] is not None and not derived:
        yield f"dtype ({origins['dtype']}) is only shown: peak-tflops ({origins['peak_tflops']}) is what counts"
    if values["convention"] != "6n" and values["params"] is None:
        yield f"convention ({origins['convention']}) does nothing without --params, --config or --model"
    if values["recompute"] != "none" and values["params"] is None:
        yield f"recompute ({origins['recompute']}) does nothing without --params, --config or --model"

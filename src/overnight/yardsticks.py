"""What the figures of a run are divided by: model size, tokens of a step, peak, price; from the settings.

Reads the files that are named there, and nothing else. What was given by its own setting leads; another source that
says something else is named in a warning. Unknown stays None.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from overnight.errors import UsageError
from overnight.modelsize import Counts

_TOLERANCE = 0.005
"""Two sources of the parameters that are nearer than this say the same, one of them rounded."""


def derive(values: dict[str, Any], origins: dict[str, str], here: str) -> tuple[dict[str, Any], list[str]]:
    """Complete ``values`` and ``origins`` with what follows from others; return more fields of the spec, and warnings.

    ``here``: the folder that paths are relative to. UsageError for a file or a name that gives nothing.
    """
    warnings: list[str] = []
    more: dict[str, Any] = {"counts": _model(values, origins, here, warnings)}
    _check_convention(values, origins, more["counts"])
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


def _check_convention(values: dict[str, Any], origins: dict[str, str], counts: Counts | None) -> None:
    """Refuse a convention that there is not, or one that what is given is not enough for."""
    key, given = values["convention"], values["params"] is not None
    if key == "6n":
        return
    from overnight.flops.conventions import figure_of, headline

    asked = f"convention {key!r} ({origins['convention']})"
    known = counts or Counts(total=values["params"] or 1, source="--params", layers=values["layers"])
    try:
        headline(known, values["seq_len"], key)
        lacks = figure_of(key, known, seq_len=values["seq_len"])
    except ValueError as error:
        raise UsageError(f"{asked}: {error}") from error
    if given and counts is not None and isinstance(lacks, str):
        raise UsageError(f"{asked}: {lacks}")


# -- the model ---------------------------------------------------------------------------------------------------------


def _model(values: dict[str, Any], origins: dict[str, str], here: str, warnings: list[str]) -> Counts | None:
    """Return what is known of the model's size beyond single numbers; the single numbers that follow are filled in."""
    counts = _counted(values, origins, here)
    if counts is None:
        heads, size = values["heads"], values["head_size"]
        if values["width"] is None and heads is not None and size is not None:
            values["width"], origins["width"] = heads * size, "heads * head size"
        return _by_hand(values)
    given = values["params"]
    if given is None:
        values["params"], origins["params"] = counts.total, counts.source
    elif abs(given - counts.total) > _TOLERANCE * counts.total:
        warnings.append(
            f"params {given:,} ({origins['params']}) and {counts.source} ({counts.total:,}) disagree; "
            f"the given number is used"
        )
        counts = msgspec.structs.replace(counts, total=given, active=None, matmul=None, active_matmul=None)
    elif given != counts.total:
        counts = msgspec.structs.replace(counts, total=given)
    for name, known in (("layers", counts.layers), ("vocab_size", counts.vocab_size), ("width", _width(counts))):
        if values[name] is None and known is not None:
            values[name], origins[name] = known, counts.source
    given_too = {"active": values["active_params"], "trainable": values["trainable_params"]}
    return msgspec.structs.replace(counts, **{name: one for name, one in given_too.items() if one is not None})


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


def _by_hand(values: dict[str, Any]) -> Counts | None:
    """Return the counts that flags alone give, where they say more than ``--params``."""
    active, trainable = values["active_params"], values["trainable_params"]
    if values["params"] is None or (active is None and trainable is None):
        return None
    return Counts(
        total=values["params"], source="--params", active=active, trainable=trainable, layers=values["layers"],
        width=values["width"], heads=values["heads"], head_size=values["head_size"], vocab_size=values["vocab_size"],
    )  # fmt: skip


def _width(counts: Counts) -> int | None:
    """Return the numbers that the attention of one layer multiplies per token: heads * head size."""
    if counts.heads is not None and counts.head_size is not None:
        return counts.heads * counts.head_size
    return counts.width


# -- the tokens --------------------------------------------------------------------------------------------------------


def _tokens(values: dict[str, Any], origins: dict[str, str], warnings: list[str]) -> None:
    batch, length = values["batch"], values["seq_len"]
    parts = [name for name in ("batch", "accumulate", "world_size") if values[name] is not None]
    if batch is None or length is None:
        if parts and values["tokens_per_step"] is None:
            missing = "batch" if batch is None else "seq-len"
            named = ", ".join(name.replace("_", "-") for name in parts)
            warnings.append(f"{named} do not give the tokens of a step without {missing}")
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


def _ranks(values: dict[str, Any], ranks: int) -> str:
    if values["world_size"] is not None:
        return f"world-size {ranks:,}"
    return "1 device" if ranks == 1 else f"{ranks:,} devices, each taken for a data-parallel rank"


# -- the peak and the price ----------------------------------------------------------------------------------------------


def _peak(values: dict[str, Any], origins: dict[str, str], warnings: list[str]) -> str | None:
    """Return the words for where the peak comes from; a peak by name is filled in."""
    gpu, dtype = values["gpu"], values["dtype"]
    if values["peak_tflops"] is not None:
        return _said(origins["peak_tflops"])
    if gpu is None:
        return None
    from overnight.accelerators.naming import match
    from overnight.accelerators.peaks import peak_of

    found = match(gpu)
    if found.accelerator is None:
        near = f"; did you mean {', '.join(found.closest)}?" if found.closest else ""
        raise UsageError(f"gpu {gpu!r} ({origins['gpu']}): {found.said}{near}")
    peak = peak_of(found, dtype)
    if peak.flops is None:
        warnings.append(f"gpu ({origins['gpu']}): the peak is unknown: {peak.source}")
        return None
    values["peak_tflops"], origins["peak_tflops"] = peak.flops / 1e12, f"gpu {gpu}, dtype {dtype}"
    return peak.source


def _price(values: dict[str, Any], origins: dict[str, str], here: str, warnings: list[str]) -> str | None:
    """Return the words for a price from a table; None where it was given, or waits for the devices."""
    table = values["price_table"]
    if table is None:
        return None
    from overnight.pricing import price_of, read_prices

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
    if values["dtype"] is not None and values["peak_tflops"] is not None and origins["peak_tflops"][:4] == "flag":
        yield f"dtype ({origins['dtype']}) is only shown: peak-tflops ({origins['peak_tflops']}) is what counts"

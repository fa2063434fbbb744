"""What a run has cost: so far, for work done again, for a billion tokens, since its end; and whose price it is.

Pure arithmetic on values, and their words. The currency is the price's own, which nobody named.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from overnight.report.units import amount, duration, finite, number
from overnight.spec import HOUR_S, RunSpec, cost_per_billion_tokens

LEAST_IDLE_S: Final = 60.0
"""A machine that has been idle for less is not worth a word."""


def costs(
    one: Mapping[str, Any],
    spec: RunSpec | None,
    origins: Mapping[str, str],
    *,
    lost: float | None,
    wall_s: float | None,
    tokens_per_s: float | None,
) -> dict[str, Any]:
    """Return the part of the report value; None where it is not known.

    ``one`` is a status; where it has no cost (a log) it is that of ``wall_s``, the seconds that passed.
    ``tokens_per_s`` is over all of that time, so that saves, restarts and steps done again are paid for.
    """
    price = None if spec is None else spec.price
    spent = finite(one.get("cost"))
    if spent is None and price is not None and wall_s is not None:
        spent = price * wall_s / HOUR_S
    ended = one.get("ended_at") is not None
    return {
        "spent": spent,
        "price": price,
        "price_source": None if price is None else _source(spec, origins),
        "lost": lost,
        "forecast": None if ended else finite(one.get("cost_forecast")),
        "per_billion_tokens": cost_per_billion_tokens(price, tokens_per_s),
        "idle": finite(one.get("idle_cost")),
        "idle_s": finite(one.get("idle_s")),
    }


def _source(spec: RunSpec | None, origins: Mapping[str, str]) -> str:
    said = None if spec is None else spec.price_source
    return str(said or origins.get("price") or "as asked for").removeprefix("flag ")


def rows(cost: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the lines about money, as (label, text); none without a price."""
    price, spent = finite(cost.get("price")), finite(cost.get("spent"))
    if price is None and spent is None:
        return []
    found = []
    if spent is not None:
        forecast = finite(cost.get("forecast"))
        end = "" if forecast is None else f", {amount(forecast)} expected at the end"
        found.append(("cost", amount(spent) + end))
    lost = finite(cost.get("lost"))
    if lost:
        found.append(("lost", f"{amount(lost)} of it for steps that were done again"))
    each = finite(cost.get("per_billion_tokens"))
    if each is not None:
        found.append(("tokens", f"{amount(each)} for a billion tokens, over all the time that passed"))
    idle = finite(cost.get("idle"))
    if idle is not None and (finite(cost.get("idle_s")) or 0.0) >= LEAST_IDLE_S:
        since = duration(cost.get("idle_s"))
        found.append(("idle", f"{amount(idle)} since nothing runs here any more ({since}): the machine still costs"))
    if price is not None:
        source = cost.get("price_source")
        found.append(("price", f"{number(price)} an hour" + (f" (from {source})" if source else "")))
    return found

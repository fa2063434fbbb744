"""What a machine costs per hour by a table of the user's own, and what tokens and lost work cost at a price.

No price is known here, and none is guessed: a device that the table does not name has none. The currency is whatever
the table's is. Prices are per hour; times in seconds, tokens and their speed those of all devices together.
"""

from __future__ import annotations

import csv
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from overnight.accelerators import Match
from overnight.accelerators.naming import match
from overnight.errors import UsageError
from overnight.folder import read_regular
from overnight.quantities import MOST, price

CSV_SUFFIXES = frozenset({".csv", ".tsv"})
MOST_BYTES = 1 << 20
TABLES = ("prices", "price", "devices")
DEVICE_HEADS = frozenset("device gpu name accelerator key".split())
_SIGNS = re.compile(r"[^0-9a-z.]+")


class PriceRow(msgspec.Struct, frozen=True, kw_only=True):
    """What one device of this name costs an hour."""

    device: str
    per_hour: float


class PriceTable(msgspec.Struct, frozen=True, kw_only=True):
    """A user's prices; ``source`` is the file they stand in."""

    rows: tuple[PriceRow, ...]
    source: str


class Priced(msgspec.Struct, frozen=True, kw_only=True):
    """The price of all devices together, per hour; None where it is not known. ``said``: of which row, or why not."""

    per_hour: float | None
    said: str


# -- the table ---------------------------------------------------------------------------------------------------------


def read_prices(path: Path) -> PriceTable:
    """Read a table from a file: CSV by its name (.csv, .tsv), else TOML. UsageError, one sentence, for what is none."""
    try:
        data = read_regular(path)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"the price table {path} cannot be read: {error.strerror}; check --price-table") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the price table {path} is no text ({error}); it has to be TOML or CSV") from error
    if len(data) > MOST_BYTES:
        raise UsageError(f"the price table {path} has {len(data)} bytes; that is no table of prices")
    return parse(text, source=str(path), as_csv=path.suffix.lower() in CSV_SUFFIXES)


def parse(text: str, *, source: str, as_csv: bool) -> PriceTable:
    """Return the table that a text holds; UsageError for a line that is none, or a device that is named twice."""
    rows = [PriceRow(device=name, per_hour=cost) for name, cost in (_of_csv if as_csv else _of_toml)(text, source)]
    seen: dict[str, str] = {}
    for row in rows:
        before = seen.setdefault(_plain(row.device), row.device)
        if before is not row.device:
            raise UsageError(f"the price table {source} names {row.device!r} twice; keep one of the two lines")
    if not rows:
        raise UsageError(f"the price table {source} holds no price; write lines such as h100-sxm = 2.49")
    return PriceTable(rows=tuple(rows), source=source)


def _of_toml(text: str, source: str) -> Iterator[tuple[str, float]]:
    try:
        found: Mapping[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"the price table {source} is not valid TOML: {error}; a line is h100-sxm = 2.49") from error
    for name, value in found.items():
        if isinstance(value, dict) and name in TABLES:
            yield from ((one, _price(cost, f"for {one!r} in {source}")) for one, cost in value.items())
        else:
            yield name, _price(value, f"for {name!r} in {source}")


def _of_csv(text: str, source: str) -> Iterator[tuple[str, float]]:
    numbered = [
        (number, line)
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    lines = [line for _, line in numbered]
    between = next((sign for sign in "\t;," if lines and sign in lines[0]), ",")
    at, width, first = (0, 1), 2, True
    reader = csv.reader(lines, delimiter=between, skipinitialspace=True)
    for cells in reader:
        place = f"line {numbered[reader.line_num - 1][0]} of {source}"
        words = [cell.strip() for cell in cells]
        if first and (heads := _heads(words)) is not None:
            at, width = heads, len(words)
        elif any(words[width:]):
            raise UsageError(
                f"the price table has more columns than two in {place}; write device,price with a "
                f"decimal point (1.29, not 1,29)"
            )
        elif len(words) <= max(at) or not words[at[0]]:
            raise UsageError(f"the price table has no device and price in {place}; write device,price")
        else:
            yield words[at[0]], _price(words[at[1]], f"in {place}")
        first = False


def _heads(words: Sequence[str]) -> tuple[int, int] | None:
    """Return which columns hold device and price, where a first line says so."""
    plain = [word.lower() for word in words]
    device = next((at for at, word in enumerate(plain) if word in DEVICE_HEADS), None)
    cost = next((at for at, word in enumerate(plain) if "price" in word or "hour" in word or word == "cost"), None)
    return None if device is None or cost is None or device == cost else (device, cost)


def _price(raw: object, place: str) -> float:
    """Return a price; what is none is not repeated, for it may be a secret that stands in the wrong file."""
    try:
        return price(raw)
    except (ValueError, OverflowError):
        found = "a table" if isinstance(raw, dict) else "no price"
        raise UsageError(
            f"the price table has {found} {place}; write one per hour and device above zero, at most {MOST:g}, "
            f"such as 2.49 or 2.49/h (names with a dot in quotation marks)"
        ) from None


# -- a price -----------------------------------------------------------------------------------------------------------


def price_of(table: PriceTable, names: Sequence[str], devices: int = 1) -> Priced:
    """Return what ``devices`` devices cost an hour. ``names``: what they are called, one for all or one for each.

    A row counts for a device of just its name, for one that is the same accelerator, and for all forms of a family that
    it names ("h100"); the closest one is taken. A part of a device (MIG) has the price of a row of just its name only.
    """
    if not names:
        return Priced(per_hour=None, said=f"no device is known that {table.source} could price: give --gpu or --price")
    if len(names) not in (1, devices):
        said = f"{len(names)} devices are named and the run uses {devices}, so it is not known which to pay for"
        return Priced(per_hour=None, said=f"{said}: give --price or --devices")
    counted = Counter(names if len(names) > 1 else {names[0]: devices})
    known = [(name, count, _row_of(table, name)) for name, count in counted.items()]
    for _, _, row in known:
        if isinstance(row, str):
            return Priced(per_hour=None, said=row)
    parts = [(count, row, name) for name, count, row in known if not isinstance(row, str)]
    said = " + ".join(f"{count} x {row.per_hour:g}/h ({row.device})" for count, row, _ in parts)
    return Priced(per_hour=sum(count * row.per_hour for count, row, _ in parts), said=f"{said} from {table.source}")


def _row_of(table: PriceTable, name: str) -> PriceRow | str:
    """Return the row that counts for a device, or why there is none."""
    meant = match(name)
    ranked = [(rank, row) for row in table.rows if (rank := _rank(row, name, meant)) is not None]
    if not ranked:
        return _none_for(table, name, meant)
    best = max(rank for rank, _ in ranked)
    found = [row for rank, row in ranked if rank == best]
    if len({row.per_hour for row in found}) > 1:
        both = " and ".join(repr(row.device) for row in found[:3])
        return f"{table.source} has different prices for {name!r}: {both}; keep one of them, or give --price"
    return found[0]


def _rank(row: PriceRow, name: str, meant: Match) -> tuple[int, int] | None:
    """Return how close a row is to a device, the higher the closer; None if it is not for it."""
    if _plain(row.device) == _plain(name):
        return 3, 0
    if meant.accelerator is None or meant.share != 1.0:
        return None
    of_row = match(row.device)
    if of_row.share != 1.0:
        return None
    if of_row.accelerator is None:
        family = set(_plain(row.device).split()) if meant.accelerator.key in of_row.closest else set()
    elif of_row.accelerator.key == meant.accelerator.key:
        return 2, 0
    else:
        family = set(of_row.accelerator.key.split("-"))
    return (1, len(family)) if family and family < set(meant.accelerator.key.split("-")) else None


def _none_for(table: PriceTable, name: str, meant: Match) -> str:
    if meant.accelerator is not None and meant.share != 1.0:
        what = f"{name!r} is a part of {meant.accelerator.name}, and {table.source} has no row of just that name"
    elif meant.accelerator is not None:
        what = f"{table.source} has no price for {name!r} ({meant.accelerator.key})"
    else:
        what = f"{table.source} has no price for {name!r}"
    near = [row.device for row in table.rows if _key(meant) in match(row.device).closest]
    hint = f" (its row {near[0]!r} means no accelerator for certain)" if near else ""
    return f"{what}{hint}; add a row, or give --price"


def _key(meant: Match) -> str:
    return "" if meant.accelerator is None else meant.accelerator.key


def _plain(name: str) -> str:
    """Return a name by its words alone: neither case nor what stands between them matters."""
    return " ".join(_SIGNS.sub(" ", name.lower()).split())

"""The verbs ``export`` and ``reindex``: what was read of a run as a file for other programs; metrics.db built anew."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from overnight import client
from overnight.cli.parser import new_parser
from overnight.errors import UsageError

EXPORT_EXAMPLES = """\
  overnight export --to csv             one row per step of the latest run
  overnight export quiet --to jsonl | jq .loss
  overnight export quiet --to parquet -o q.parquet
  overnight export quiet --to csv --all-attempts --kind all -o all.csv
  overnight export quiet --to csv --kind gpu -o gpu.csv
"""

REINDEX_EXAMPLES = """\
  overnight reindex quiet                        from its log and its journal
  overnight reindex quiet --log /archive/q.log   the log lies elsewhere now
"""


def export(words: list[str]) -> int:
    """Write a run's records to a file or to standard output."""
    parser = new_parser("export", EXPORT_EXAMPLES)
    parser.add_argument("name", nargs="?", metavar="NAME", help="a run, or the beginning of its name (default: latest)")
    parser.add_argument("--to", required=True, choices=["csv", "jsonl", "parquet"], help="the form")
    parser.add_argument("-o", "--output", metavar="FILE", help="a file (default: standard output; not for parquet)")
    parser.add_argument(
        "--kind",
        choices=["train", "eval", "all", "gpu", "host"],
        default="train",
        help="which records; all: train and eval; gpu, host: what the sensors told, a row per sample (default: train)",
    )
    parser.add_argument(
        "--all-attempts",
        action="store_true",
        help="every record with its place, of all ranks, also what was done again after a rewind",
    )
    parser.add_argument("--json", action="store_true", help="with -o: say what was written as one object")
    args = parser.parse_args(words)
    if args.to == "parquet" and args.output is None:
        raise UsageError("--to parquet needs a file: add -o FILE")
    if args.json and args.output is None:
        raise UsageError("--json goes with -o FILE only; --to jsonl writes the records as JSON")
    folder = client.find(client.find_home(), args.name)
    from overnight import exporting
    from overnight.history.completeness import behind
    from overnight.history.views import Views
    from overnight.printable import harmless

    if behind(folder):
        said = f"not all of the log of {folder.name} is stored: `overnight reindex {folder.name}` reads it again"
        print(harmless(f"overnight: {said}"), file=sys.stderr)
    kinds = exporting.KINDS if args.kind == "all" else (args.kind,)
    with Views(folder.metrics_db) as views:
        what = exporting.export(views, kinds, every=args.all_attempts)
        if args.output is None:
            if args.to == "jsonl":
                exporting.write_jsonl(what, sys.stdout)
            else:
                exporting.write_csv(what, sys.stdout, harmless if sys.stdout.isatty() else str)
            return 0
        path = Path(args.output)
        count = exporting.to_file(what, path, args.to)
        columns = list(what.columns.types)
    told = harmless(f"{count} rows of {len(columns)} columns in {path}")
    if args.json:
        told = json.dumps({"file": str(path.absolute()), "rows": count, "columns": columns})
    print(told, file=sys.stderr if _is_stdout(path) else sys.stdout)
    return 0


def _is_stdout(path: Path) -> bool:
    """Say whether a file is what standard output leads to, such as ``/dev/stdout``."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(1))
    except OSError:
        return False


def reindex(words: list[str]) -> int:
    """Build a run's metrics.db anew."""
    parser = new_parser("reindex", REINDEX_EXAMPLES)
    parser.add_argument("name", metavar="NAME", help="a run that has ended, or the beginning of its name")
    parser.add_argument("--log", metavar="FILE", help="where its log lies now (default: where the run wrote it)")
    parser.add_argument("--json", action="store_true", help="print one object: records, samples, kept, ...")
    args = parser.parse_args(words)
    folder = client.find(client.find_home(), args.name)
    from overnight import reindexing
    from overnight.printable import harmless

    found = reindexing.reindex(folder, None if args.log is None else Path(args.log))
    if args.json:
        print(json.dumps({**found._asdict(), "file": str(folder.metrics_db)}))
        return 0
    kept = f", {found.kept} of them kept from log files that are gone" if found.kept else ""
    lost = f" ({found.lost} fewer than were stored: the log, read now, does not give them)" if found.lost else ""
    told = f", {found.samples} samples of sensors" if found.samples else ""
    print(
        harmless(
            f"{folder.name}: {found.records} records{kept}{lost}{told}, {found.verdicts} verdicts"
            f" in {folder.metrics_db}"
        )
    )
    return 0

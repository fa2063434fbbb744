"""The verb ``read``: what is read from a log, and why by this reader."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys

from overnight.cli.parser import new_parser
from overnight.cli.render import WIDTH
from overnight.events import jsonable
from overnight.printable import harmless
from overnight.quantities import quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from overnight.cli.logsource import LogSource
    from overnight.cli.reading import Found, LowestRank
    from overnight.events import Record

EXAMPLES = """\
  overnight read train.log            what is read from it, and by which reader
  overnight read pretrain --all       every record of the run named pretrain
  overnight read train.log --json | jq .loss
  ssh box cat train.log | overnight read -
  overnight read odd.log --pattern 'it=(?P<step>\\d+) L=(?P<loss>\\S+)'
"""

SHOWN = 5
MOST_RANKS = 16
LONGEST_COUNT = 9
FIELDS = ("loss", "dt_s", "tokens_per_s", "samples_per_s", "mfu", "lr", "grad_norm", "epoch")


def read(words: list[str]) -> int:
    """Print what is read from a log, and by which reader."""
    parser = new_parser("read", EXAMPLES)
    parser.add_argument("what", metavar="LOG|RUN", help="a file, a run or the beginning of its name, - for stdin")
    parser.add_argument("--json", action="store_true", help="print one object a line for each record")
    parser.add_argument("--pattern", metavar="REGEX", help="read with this expression with named groups instead")
    parser.add_argument("--all", action="store_true", help="print every record, not only the first and last ones")
    about = f"print so many of the first and of the last records (default: {SHOWN})"
    parser.add_argument("-n", type=_count, metavar="N", help=about)
    args = parser.parse_args(words)
    from overnight.cli.logsource import opened

    with opened(args.what, args.pattern) as log:
        return _as_json(log) if args.json else _as_text(log, shown=SHOWN if args.n is None else args.n, whole=args.all)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of records; give a whole number such as 20")
    if len(text.lstrip("0")) > LONGEST_COUNT:
        raise argparse.ArgumentTypeError(f"{text[:40]} is too large a number of records; --all prints every one")
    return int(text.lstrip("0") or "0")


def _as_json(log: LogSource) -> int:
    """Print the records of the lowest rank as they come, and on stderr what else there is to say."""
    from overnight.cli.reading import Found, LowestRank, read_records

    found, lowest = Found(), LowestRank()
    for records in _let_through(read_records(log.stream, log.makers, log.bounds, found), lowest):
        _print_lines(records)
    for sentence in _remarks(lowest):
        print(f"overnight: {sentence}", file=sys.stderr)
    if not found.fits:
        print(f"overnight: {_misfit(log, found)}", file=sys.stderr)
    return 0 if found.fits else 1


def _print_lines(records: list[Record]) -> None:
    if not records:
        return
    for record in records:
        values = {"kind": record.kind, "step": record.step, **{name: getattr(record, name) for name in FIELDS}}
        try:
            line = json.dumps(values, allow_nan=False)
        except ValueError:
            line = json.dumps(jsonable(values), allow_nan=False)
        print(line)
    sys.stdout.flush()


def _as_text(log: LogSource, *, shown: int, whole: bool) -> int:
    """Print what is read in a few sentences, and the records, of many the first and the last ones."""
    from overnight.cli.reading import Found, LowestRank, read_records
    from overnight.cli.recordtable import Excerpt

    with contextlib.ExitStack() as on:
        if whole:
            log.keep(on)
        found, lowest, excerpt = Found(), LowestRank(), Excerpt(shown, whole=whole)
        for records in _let_through(read_records(log.stream, log.makers, log.bounds, found), lowest):
            excerpt.add(records)
        if not found.fits:
            print(_wrapped(_begun(_misfit(log, found))))
            _print_nearest(found)
            return 1
        for sentence in _sentences(log, found, lowest):
            print(_wrapped(sentence))
        print()
        if not whole:
            print("\n".join(excerpt.lines()))
            return 0
        print(excerpt.table.head())
        log.again()
        for records in _let_through(read_records(log.stream, log.makers, log.bounds, Found()), LowestRank()):
            for record in records:
                print(excerpt.table.row(record))
    return 0


def _let_through(blocks: Iterator[list[Record]], lowest: LowestRank) -> Iterator[list[Record]]:
    for records in blocks:
        yield lowest(records)
    yield lowest((), ended=True)


def _sentences(log: LogSource, found: Found, lowest: LowestRank) -> Iterator[str]:
    """Yield what is read by whom, why, of which program, and of which ranks."""
    reader = found.chosen or found.readers.most_common(1)[0][0]
    steps = "" if found.first_step is None else f" (step {found.first_step:,} to {found.last_step:,})"
    evals = f" and {_counted(found.records['eval'], 'record')} of evaluations" if found.records["eval"] else ""
    trained = f"{_counted(found.records['train'], 'training record')}{steps}{evals}"
    yield f"{harmless(log.name)} is read by {reader}: {trained} in {_counted(found.lines, 'line')}."
    last = " of the last attempt" if len(log.bounds.attempts) > 1 else ""
    yield f"Why: {found.why}{last}."
    others = [f"{name} {count:,}" for name, count in found.readers.most_common() if name != reader]
    if others:
        yield f"Other readers have told records as well: {', '.join(others)}."
    if found.first_step is None and found.records["train"]:
        yield "No step is printed; only the epoch says how far it is."
    program = found.program()
    if program is not None and not program.plain:
        yield f"It looks like the log of {program.name}."
    for sentence in _remarks(lowest):
        yield f"{_begun(sentence)}."


def _remarks(lowest: LowestRank) -> Iterator[str]:
    """Yield what is to be known of the other ranks: that they print, and the first NaN of each."""
    if len(lowest.ranks) > 1:
        ranks = sorted(lowest.ranks)
        named = ", ".join(map(str, ranks[:MOST_RANKS])) + (", ..." if len(ranks) > MOST_RANKS else "")
        late = "; it turned up late, and records of another stand before it" if lowest.late else ""
        yield f"ranks {named} print; shown is rank {lowest.lowest}{late}"
    for rank, record in sorted(lowest.sick.items())[:MOST_RANKS]:
        if rank != lowest.lowest:
            has = {"loss": record.loss, "gradient norm": record.grad_norm}
            said = " and ".join(f"{name} {jsonable(value)}" for name, value in has.items() if value is not None)
            where = "" if record.step is None else f" at step {record.step:,}"
            yield f"rank {rank} has {said}{where} (byte {record.offset:,} of the log)"


def _misfit(log: LogSource, found: Found) -> str:
    """Return in a sentence or two why there is nothing to show, and what to do."""
    name = harmless(log.name)
    if not found.size:
        return f"{name} is empty: nothing has been written into it yet"
    if not found.text:
        return f"{name} is not text, so that no reader fits; give a log, unpacked if it was packed"
    said = f"no reader fits {name} yet: no training record was found in {_counted(found.lines, 'line')}"
    if found.records["eval"]:
        evals = _counted(found.records["eval"], "record")
        said = f"only evaluations were read from {name}, {evals} in {_counted(found.lines, 'line')}"
        said += ": no rule judges the loss between them"
    if log.pattern is not None:
        return f"no line of {name} matches --pattern {quoted(log.pattern)}; without it the known shapes are tried"
    program = found.program()
    if program is None or program.reader is not None:
        seen = "" if program is None else f" in what looks like the log of {program.name}"
        return f"{said}{seen}; give --pattern, or let the script print lines such as step: 5, loss: 2.1"
    looks = f"it has {program.name}" if program.plain else f"it looks like the log of {program.name}"
    advice = f"{said}; {looks}: {program.advice}"
    return advice if program.pattern is None else f"{advice}; for example --pattern '{program.pattern}'"


def _begun(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:] if sentence.startswith(("no ", "rank", "only ")) else sentence


def _print_nearest(found: Found) -> None:
    lines = found.nearest() if found.text else []
    if lines:
        print("\nThe lines that look most like progress:")
    for line in lines:
        print(f"  {harmless(line)[: WIDTH - 2]}")


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _wrapped(sentence: str) -> str:
    """Return a sentence in lines of 80 columns; a pattern is not broken, so that it can be copied."""
    import textwrap

    head, quote, rest = sentence.partition(" '")
    lines = textwrap.fill(head, WIDTH, break_long_words=False, break_on_hyphens=False)
    return f"{lines}\n  '{rest}" if quote else lines

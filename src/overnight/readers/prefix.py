"""What stands before a record: dates, levels, logger names and rank tags. Nothing behind them is judged here."""

from __future__ import annotations

import re

_CLOCK = r"[0-9]{1,2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?"
DATE = (
    r"(?:"
    rf"[0-9]{{4}}[-/.][0-9]{{2}}[-/.][0-9]{{2}}(?:(?:T|[ ]{{1,2}}){_CLOCK})?[ ]?(?:Z|[-+][0-9]{{2}}:?[0-9]{{2}})?"
    rf"|[0-9]{{2}}/[0-9]{{2}}(?:/[0-9]{{2,4}})?[ ]{_CLOCK}"
    rf"|(?:[A-Z][a-z]{{2}}[ ])?[A-Z][a-z]{{2}}[ ]{{1,2}}[0-9]{{1,2}}[ ]{_CLOCK}(?:[ ][0-9]{{4}})?"
    rf"|{_CLOCK}"
    r")"
)
_RANK_WORD = r"[rR](?:ank|ANK)"
_TAG = (
    # torchrun and elastic, DeepSpeed, mpirun --tag-output, Ray actors
    rf"\[(?:{_RANK_WORD}|default)[ _:=]?(?P<rank1>[0-9]{{1,6}})\](?::|(?=\s)|$)?"
    r"|\[[0-9]{1,6},(?P<rank2>[0-9]{1,6})\]<std(?:out|err)>:?"
    r"|\([A-Za-z_][A-Za-z0-9_.:]{0,63} (?:[a-z]+=[A-Za-z0-9_.:-]{1,64}[, ]{0,2}){0,3}pid=[0-9]{1,10}[^()\n]{0,64}\)"
)
LEVEL = r"(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL|NOTICE|TRACE|SUCCESS)"
# words that begin a progress line and are therefore never the name of a logger
_KEYS = r"(?:[A-Za-z]*_?(?:step|steps|iter|iteration|loss)|epoch|lr|dt|mfu)"
_VALUE = r"(?:[-+.0-9]|['\"\[(*]{0,3}(?i:nan|inf(?:inity)?)(?![A-Za-z0-9_]))"  # what makes `Loss: nan` no name
_NAME = r"[A-Za-z_<][A-Za-z0-9_.<>-]{0,63}"
_PIECE = re.compile(
    rf"{_TAG}"
    rf"|\[{DATE}\]|\({DATE}\)|{DATE}(?=[\s|:\],-]|$)"
    r"|[IWEF][0-9]{4} [0-9:.]{8,18} +[0-9]{1,10} [A-Za-z0-9_./-]{1,128}:[0-9]{1,7}\]"  # absl and glog
    rf"|\[\s{{0,8}}{LEVEL}\s{{0,8}}\]|{LEVEL}(?=[\s:|\],-]|$)"
    r"|std(?:out|err) [FP](?=\s)"  # a container's log as Kubernetes keeps it
    rf"|{_RANK_WORD}[ _:=]{{0,2}}(?P<rank3>[0-9]{{1,6}})\s?(?:[:|\]]|-\s)"
    r"|(?P<rank4>[0-9]{1,6}): (?=\S|$)"  # srun --label
    rf"|\[(?!{_KEYS}[ =:\]]){_NAME}(?:[:][A-Za-z0-9_.<>-]{{1,64}}){{0,3}}\]"
    rf"|(?!{_KEYS}\s*[-:|]){_NAME}(?::[A-Za-z0-9_<>]{{1,64}}:[0-9]{{1,7}})?(?::(?![/=])(?!\s*{_VALUE})|\s+[-|]\s)"
)
_TAGS = re.compile(rf"{_TAG}|\[?{DATE}")
_GAP = re.compile(r"[\s|:,-]{0,64}")
_MOST_PIECES = 16
_FARTHEST = 200


def strip_prefix(text: str, begin: int = 0, end: int | None = None) -> tuple[int | None, int]:
    """Return the rank that the prefix of ``text[begin:end]`` names (None if it names none) and where the rest begins.

    The last of several rank tags counts: the outer ones belong to launchers.
    """
    end = len(text) if end is None else end
    rank: int | None = None
    at = begin
    for _ in range(_MOST_PIECES):
        piece = _PIECE.match(text, _skip_gap(text, at, end), end)
        if piece is None:
            break
        if piece.lastgroup is not None:
            rank = int(piece[piece.lastgroup])
        at = piece.end()
    return rank, _skip_gap(text, at, end)


def prefix_before(text: str, low: int, at: int) -> tuple[int | None, int]:
    """Return the rank and the begin of the prefix that ends exactly at ``at`` and begins at ``low`` or later.

    For records in the middle of a line: what stands there belongs to the earlier record unless it is wholly a prefix.
    """
    for tag in _TAGS.finditer(text, max(low, at - _FARTHEST), at):
        rank, rest = strip_prefix(text, tag.start(), at)
        if rest == at:
            return rank, tag.start()
    return None, at


def _skip_gap(text: str, at: int, end: int) -> int:
    gap = _GAP.match(text, at, end)
    return at if gap is None else gap.end()

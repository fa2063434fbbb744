"""The date at the begin of a log line, as ``logging`` and its like write it, as seconds since the epoch.

The one place that tells the date of a line from a date that a line only mentions.

Pure: bytes in, a number out. Which line is looked at, and what the times are good for, is decided elsewhere.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from typing import ClassVar, NamedTuple

_CLOCK = rb"(?P<h>[0-9]{2}):(?P<mi>[0-9]{2}):(?P<s>[0-9]{2})(?:[.,](?P<f>[0-9]{1,9}))?"
_ZONE = rb"[ ]?(?P<zone>Z|UTC|[-+][0-9]{2}:?[0-9]{2})?"
_MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
# Behind the begin of the line there may be tags, levels and names, but nothing that looks like a value.
_LEAD = rb"[^0-9=]{0,60}"
_RANK = rb"(?:\[[A-Za-z_.:-]{0,24}[0-9]{1,6}\]:?)?"  # launchers put it before all that a process prints
_YEAR = rb"(?P<y>(?:19|20)[0-9]{2})"
_FORMS = (
    re.compile(
        _RANK + rb"(?:" + _LEAD + rb"[\[( \"']|)" + _YEAR + rb"[-/.](?P<mo>[0-9]{2})[-/.](?P<d>[0-9]{2})[T ]{1,2}"
        + _CLOCK + _ZONE
    ),
    re.compile(
        _RANK + rb"(?:" + _LEAD + rb"[\[( ]|)(?P<mo>[0-9]{2})/(?P<d>[0-9]{2})/" + _YEAR + rb"[ ]" + _CLOCK + _ZONE
    ),
    re.compile(
        _RANK + rb"[ ]?(?:[A-Z][a-z]{2}[ ])?(?P<name>" + "|".join(_MONTHS).encode() + rb")[ ]{1,2}(?P<d>[0-9]{1,2})[ ]"
        + _CLOCK + rb"[ ]" + _YEAR + _ZONE
    ),
)  # fmt: skip
_BRACKETS = re.compile(rb"\([^()]*\)|\[[^\[\]]*\]|\{[^{}]*\}")
_SENTENCE = re.compile(rb"[a-z]{2,} [a-z]{2,}")
_WORD = re.compile(rb"[^\s\[\](){}\"',:;|<>]+")
_SPACE = re.compile(rb"\s+")


class _Seen(NamedTuple):
    """A date: its form, what stands before it (its words are all one), the moment, and that no zone is printed."""

    form: re.Pattern[bytes]
    lead: bytes
    at: float
    local: bool


class Dates:
    """Reads the dates of one log. In which form and behind what they stand ``learn`` finds out, or else the first one.

    A date within a sentence is only mentioned there. Only dates with a year are read: without one nobody knows when a
    night was.

    ``missed`` is for whoever finds a long stretch without any; ``newest`` is the latest time read so far; ``local``
    says that one without a zone was taken for local time.
    """

    WIDTH: ClassVar[int] = 120
    """Bytes of a line in which its date has to stand."""

    LONE_S: ClassVar[float] = 86400.0
    """A first date so far from all others, which rise, is none of when the line was written."""

    JITTER_S: ClassVar[float] = 60.0
    """Several writers, and clocks that are set: what goes back by more is no time of this log's lines."""

    def __init__(self) -> None:
        self.form: re.Pattern[bytes] | None = None
        self.leads: frozenset[bytes] = frozenset()
        self.lone: float | None = None
        self.missed = False
        self.local = False
        self.newest = 0.0

    def learn(self, lines: Sequence[bytes], more: Sequence[bytes] = ()) -> int:
        """Learn where the dates stand from the first lines of a log; return how many of ``lines`` carry one there.

        ``more`` are lines from further on.
        """
        some = [self._look(line, _FORMS) for line in lines]
        seen = [one for one in (*some, *(self._look(line, _FORMS) for line in more)) if one is not None]
        if not seen:
            return 0
        self.form = Counter(one.form for one in seen).most_common(1)[0][0]
        leads = Counter(one.lead for one in seen if one.form is self.form)
        (usual, _), total = leads.most_common(1)[0], leads.total()
        # Two loggers may put it in brackets or not.
        beside = {lead for lead, many in leads.items() if many >= 2 and many * 4 >= total and lead.count(b"A") < 2}
        self.leads = frozenset({usual, *beside})
        times = [one.at for one in some if one is not None and one.form is self.form and one.lead in self.leads]
        rising = all(after >= before - self.JITTER_S for before, after in pairwise(times[1:]))
        if len(times) > 2 and rising and abs(times[1] - times[0]) > self.LONE_S:
            self.lone = times.pop(0)
        return len(times)

    def read(self, line: bytes) -> float | None:
        """Return the time of a line; None if it carries none. A date without a zone is local time."""
        seen = self._look(line, _FORMS if self.form is None else (self.form,))
        if seen is None or (self.leads and seen.lead not in self.leads) or seen.at == self.lone:
            return None
        if not self.leads:
            self.form, self.leads = seen.form, frozenset({seen.lead})
        self.local = self.local or seen.local
        self.newest = max(self.newest, seen.at)
        return seen.at

    def _look(self, line: bytes, forms: Sequence[re.Pattern[bytes]]) -> _Seen | None:
        line = line[: self.WIDTH]
        for form in forms:
            found = form.match(line)
            if found is None:
                continue
            parts = {name: text for name, text in found.groupdict().items() if text is not None}
            begin = min(found.start(name) for name in parts)
            lead = line[:begin]
            at = None if _SENTENCE.search(_BRACKETS.sub(b"", lead)) else self._epoch(parts)
            if at is not None:
                return _Seen(form, _SPACE.sub(b" ", _WORD.sub(b"A", lead)), at, "zone" not in parts)
        return None

    def _epoch(self, parts: dict[str, bytes]) -> float | None:
        month = _MONTHS.index(parts["name"].decode()) + 1 if "name" in parts else int(parts["mo"])
        micros = int(parts.get("f", b"0").ljust(6, b"0")[:6])
        zone = None
        try:
            if parts.get("zone"):
                zone = _zone(parts["zone"].decode())
            clock = int(parts["h"]), int(parts["mi"]), int(parts["s"])
            return datetime(int(parts["y"]), month, int(parts["d"]), *clock, micros, tzinfo=zone).timestamp()
        except (ValueError, OverflowError, OSError):
            return None


def _zone(text: str) -> timezone:
    """Return the zone of ``Z``, ``UTC`` or ``+05:30``."""
    if text in ("Z", "UTC"):
        return UTC
    digits = text[1:].replace(":", "")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return timezone(offset if text[0] == "+" else -offset)

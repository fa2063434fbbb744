"""The date at the begin of a log line, as ``logging`` and its like write it, as seconds since the epoch.

Pure: bytes in, a number out. Which line is looked at, and what the times are good for, is decided elsewhere.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import ClassVar

_CLOCK = rb"(?P<h>[0-9]{2}):(?P<mi>[0-9]{2}):(?P<s>[0-9]{2})(?:[.,](?P<f>[0-9]{1,9}))?"
_ZONE = rb"[ ]?(?P<zone>Z|UTC|[-+][0-9]{2}:?[0-9]{2})?"
_MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
# Behind the begin of the line there may be tags, levels and names, but nothing that looks like a value.
_LEAD = rb"[^0-9=]{0,60}"
_YEAR = rb"(?P<y>(?:19|20)[0-9]{2})"
_FORMS = (
    re.compile(
        rb"(?:" + _LEAD + rb"[\[( \"']|)" + _YEAR + rb"[-/.](?P<mo>[0-9]{2})[-/.](?P<d>[0-9]{2})[T ]{1,2}"
        + _CLOCK + _ZONE
    ),
    re.compile(rb"(?:" + _LEAD + rb"[\[( ]|)(?P<mo>[0-9]{2})/(?P<d>[0-9]{2})/" + _YEAR + rb"[ ]" + _CLOCK + _ZONE),
    re.compile(
        rb"(?:[A-Z][a-z]{2}[ ])?(?P<name>" + "|".join(_MONTHS).encode() + rb")[ ]{1,2}(?P<d>[0-9]{1,2})[ ]"
        + _CLOCK + rb"[ ]" + _YEAR + _ZONE
    ),
)  # fmt: skip


class Dates:
    """Reads the dates of one log; the first form that fits a line is the log's form from then on.

    Only dates with a year are read: without one nobody knows when a night was.

    ``missed`` is for whoever finds a long stretch without any; ``newest`` is the latest time read so far.
    """

    WIDTH: ClassVar[int] = 120
    """Bytes of a line in which its date has to stand."""

    JITTER_S: ClassVar[float] = 60.0
    """Several writers, and clocks that are set: what goes back by more is no time of this log's lines."""

    def __init__(self) -> None:
        self.form: re.Pattern[bytes] | None = None
        self.missed = False
        self.newest = 0.0

    def read(self, line: bytes) -> float | None:
        """Return the time of a line; None if it carries none. A date without a zone is local time."""
        line = line[: self.WIDTH]
        for form in _FORMS if self.form is None else (self.form,):
            found = form.match(line)
            if found is None:
                continue
            at = self._epoch({name: text for name, text in found.groupdict().items() if text is not None})
            if at is not None:
                self.form = form
                self.newest = max(self.newest, at)
                return at
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

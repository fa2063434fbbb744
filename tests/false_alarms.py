"""Says at the end of a test run how often the rules would have alarmed somebody over the healthy nights.

``tests/conftest.py`` takes the hook from here: of several processes of pytest only the one that prints has to know it.
"""

from __future__ import annotations

from typing import Any

RECORDS_A_DAY = 86_400


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print false alarms a day, from what the tests of the nights have found."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, ())]
    nights = [value for report in reports for name, value in report.user_properties if name == "healthy_night"]
    if not nights:
        return
    alarms = sum(one[1] for one in nights)
    records, seconds = sum(one[2] for one in nights), sum(one[3] for one in nights)
    days = records / RECORDS_A_DAY
    terminalreporter.write_sep("-", "false alarms")
    terminalreporter.write_line(
        f"{alarms} over {len(nights)} healthy nights of {records:,} records: {alarms / days:.2f} a day, where a day is "
        f"{RECORDS_A_DAY:,} records (a line a second; the recorded trainings took {seconds / 60:.1f} min by printed dt)"
    )
    terminalreporter.write_line(", ".join(f"{name} {count}" for name, count, *_ in nights if count) or "none alarmed")

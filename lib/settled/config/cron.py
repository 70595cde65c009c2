"""Check a crontab line for a sweep: five fields, UTC, weekdays by name.

A numeric weekday is refused: 0 is Sunday to crontab and Monday to our scheduler, so it would be wrong for somebody.
"""

import datetime
import re
from typing import Final

WEEKDAYS: Final = "mon, tue, wed, thu, fri, sat, sun"
_EXAMPLE: Final = "for example 30 3 * * mon-fri"
_A_DAY: Final = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)  # any; the next leap day is near


def check_cron(line: str) -> str:
    """Return the line with single spaces. Raises ValueError that says what is wrong and what would be right."""
    # Here, not above: most programs read settings without a crontab line, and the scheduler is slow to import.
    from apscheduler.triggers.cron import CronTrigger

    fields = line.split()
    if len(fields) != 5:
        raise ValueError(f"has {len(fields)} fields, but a crontab line has 5 (minute, hour, day, month, weekday), {_EXAMPLE}")
    weekday = fields[4]
    if re.search(r"\d", weekday):
        raise ValueError(f"names weekdays by number ({weekday}), but 0 is Sunday to some and Monday to others; use {WEEKDAYS}, {_EXAMPLE}")
    try:
        trigger = CronTrigger.from_crontab(" ".join(fields), timezone=datetime.UTC)
    except ValueError as error:
        raise ValueError(f"is not a crontab line: {error}; {_EXAMPLE}") from error
    if trigger.get_next_fire_time(None, _A_DAY) is None:
        raise ValueError(f"names a day that never comes, so the sweep would never run; {_EXAMPLE}")
    return " ".join(fields)

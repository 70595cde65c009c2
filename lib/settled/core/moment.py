"""A moment on three clocks, and what may be said of the time between two of them.

Horizons need the least time that surely passed, windows the most that may have passed. Wall-clock steps and suspends
must make neither of them wrong.
"""

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, NamedTuple

SECOND_US: Final = 1_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_FIRST: Final = datetime.min.replace(tzinfo=UTC)
_LAST: Final = datetime.max.replace(tzinfo=UTC)


class Moment(NamedTuple):
    """One instant: CLOCK_REALTIME and CLOCK_BOOTTIME in microseconds, and the boot that the latter belongs to."""

    wall_us: int
    boot_us: int
    boot_id: str


def utc_us(value: object, name: str, undone: str) -> int:
    """Return a datetime as microseconds UTC. Raises ValueError for one without a zone, or that UTC has no year for.

    An error calls it `name` and ends with `undone`, the sentence on what was not done.
    """
    if not isinstance(value, datetime):
        raise ValueError(f"{name} must be an aware datetime, not {value!r}. {undone}")
    if value.tzinfo is None or value.utcoffset() is None:
        raise ValueError(f"{name} must be an aware datetime: {value!r} says no zone. {undone}")
    try:
        return (value.astimezone(UTC) - _EPOCH) // _MICROSECOND  # whole numbers: a float would round the last day over
    except OverflowError:
        raise ValueError(f"{name} {value.isoformat()} is outside the years 1 to 9999 in UTC. {undone}") from None


@lru_cache(maxsize=64)  # what was just submitted was created, updated and falls due at one time
def at(wall_us: int) -> datetime:
    """Return stored microseconds as an aware time in UTC; beyond the calendar its first or last moment, so that a list always shows."""
    try:
        return _EPOCH + timedelta(microseconds=wall_us)
    except OverflowError:
        return _FIRST if wall_us < 0 else _LAST


def surely_elapsed_us(since: Moment, now: Moment) -> int:
    """Return a lower bound of the time from `since` to `now`: boot time under one boot, else the time since the boot."""
    if since.boot_id == now.boot_id:
        return max(0, now.boot_us - since.boot_us)
    return now.boot_us


def possibly_elapsed_us(since: Moment, now: Moment, wall_highest_us: int) -> int | None:
    """Return an upper bound of the time from `since` to `now`, or None where nothing bounds it.

    `wall_highest_us` is the highest wall clock ever stored: a clock below it was set back, and across a reboot nothing
    else tells how long the machine was away.
    """
    if since.boot_id == now.boot_id:
        return max(0, now.boot_us - since.boot_us)
    if now.wall_us < max(wall_highest_us, since.wall_us):
        return None
    return max(now.wall_us - since.wall_us, now.boot_us)  # a clock set back before it was passed still cannot deny the time since the boot

"""How many short attempts may wait for a place, so that one commit carries the next ones before a place is free.

A place is a runner process or a thread. A deadline counts from the claim, so nothing that takes its time may wait behind something
that takes its time: waiting is allowed only while attempts have been far shorter than any deadline, and none under way is longer.
"""

from collections.abc import Iterable
from typing import Final

SHORT_US: Final = 20_000
WAITING_PER_RUNNER_MAX: Final = 7
WAITING_PER_THREAD_MAX: Final = 32
TIMEOUT_US_MIN: Final = 50 * SHORT_US  # of whatever may wait: what it loses by it is then no part that counts
_MEMORY: Final = 8


class Pace:
    """The typical length of recent attempts: a longer one counts at once, shorter ones bring it down slowly."""

    def __init__(self, waiting_max: int = WAITING_PER_RUNNER_MAX) -> None:
        """`waiting_max` bounds what may wait for one place."""
        self._waiting_max = waiting_max
        self._typical_us: int | None = None

    def ran(self, took_us: int) -> None:
        """Note how long an attempt took in its place."""
        known = self._typical_us
        if known is None or took_us > known:
            self._typical_us = took_us
        else:
            self._typical_us = known - (known - took_us) // _MEMORY

    def may_wait(self, places: int, under_way_us: Iterable[int]) -> int:
        """Return how many attempts may wait for `places`, whose attempts under way have taken `under_way_us` so far."""
        if self._typical_us is None or self._typical_us > SHORT_US or any(age_us > SHORT_US for age_us in under_way_us):
            return 0
        return places * min(self._waiting_max, SHORT_US // max(1, self._typical_us))

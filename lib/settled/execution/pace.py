"""How many short attempts may wait for a place, so that one commit carries the next ones before a place is free.

A place is a runner process or a thread. A deadline counts from the claim, so nothing that takes its time may wait behind something
that takes its time: waiting is allowed only while attempts have been far shorter than any deadline, and none under way is longer.
"""

from collections.abc import Iterable
from typing import Final

SHORT_US: Final = 20_000
WAITS_US: Final = 2 * SHORT_US  # of others' time, at most, for one that waits: enough that no place is idle until the next commit
WAITING_PER_RUNNER_MAX: Final = 128
WAITING_PER_THREAD_MAX: Final = 32
TIMEOUT_US_MIN: Final = 50 * SHORT_US  # of whatever may wait: what it loses by it is then a small part
LONG_US: Final = 5 * SHORT_US
EVEN_AFTER: Final = 256  # attempts in a row that were not long: in less regular company nothing waits behind one certain attempt
EVEN_AT_FIRST: Final = 32
_MEMORY: Final = 8


class Pace:
    """The mean length of recent attempts, of which one that is not short counts in full at once."""

    def __init__(self, waiting_max: int = WAITING_PER_RUNNER_MAX) -> None:
        """`waiting_max` bounds what may wait for one place."""
        self._waiting_max = waiting_max
        self._typical_us: int | None = None
        self._timeout_us_min = TIMEOUT_US_MIN
        self._even = EVEN_AFTER - EVEN_AT_FIRST

    def takes(self, timeout_us: int) -> None:
        """Note how much time an attempt has that is to run in these places."""
        self._timeout_us_min = min(self._timeout_us_min, timeout_us)

    def ran(self, took_us: int) -> None:
        """Note how long an attempt took in its place."""
        self._even = 0 if took_us > LONG_US else self._even + 1
        known = self._typical_us
        if known is None or took_us > SHORT_US:
            self._typical_us = max(took_us, known or 0)
        else:
            # What waits behind many waits for the sum of them: a short one that a busy machine held up is no reason to doubt them all.
            self._typical_us = known - (known - took_us) // _MEMORY

    def may_wait(self, places: int, under_way_us: Iterable[int]) -> int:
        """Return how many attempts may wait for `places`, whose attempts under way have taken `under_way_us` so far."""
        if self._timeout_us_min < TIMEOUT_US_MIN:
            return 0
        if self._typical_us is None or self._typical_us > SHORT_US or any(age_us > SHORT_US for age_us in under_way_us):
            return 0
        return places * min(self._waiting_max, WAITS_US // max(1, self._typical_us))

    def may_wait_in_hand(self, under_way_us: Iterable[int]) -> int:
        """Return how many attempts may wait behind one certain attempt, which no other place can take from there without being told."""
        return self.may_wait(1, under_way_us) if self._even >= EVEN_AFTER else 0

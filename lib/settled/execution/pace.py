"""How many short attempts may wait for a runner, so that one commit can carry the next ones before a runner is free.

A deadline counts from the claim, so nothing that takes its time may wait behind something that takes its time: waiting is
allowed only while attempts have been far shorter than any deadline, and none under way is longer than that.
"""

from collections.abc import Iterable
from typing import Final

SHORT_US: Final = 20_000
WAITING_PER_RUNNER_MAX: Final = 7
_MEMORY: Final = 8


class Pace:
    """The typical length of recent attempts: a longer one counts at once, shorter ones bring it down slowly."""

    def __init__(self) -> None:
        self._typical_us: int | None = None

    def ran(self, took_us: int) -> None:
        """Note how long an attempt took, from its hand-over to its report."""
        known = self._typical_us
        if known is None or took_us > known:
            self._typical_us = took_us
        else:
            self._typical_us = known - (known - took_us) // _MEMORY

    def may_wait(self, runners: int, under_way_us: Iterable[int]) -> int:
        """Return how many attempts may wait for `runners`, whose attempts under way have taken `under_way_us` so far."""
        if self._typical_us is None or self._typical_us > SHORT_US or any(age_us > SHORT_US for age_us in under_way_us):
            return 0
        return runners * min(WAITING_PER_RUNNER_MAX, SHORT_US // max(1, self._typical_us))

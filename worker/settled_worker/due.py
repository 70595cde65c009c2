"""By which wall clock rows are due: one that never falls back while this process lives.

A clock that was set back must not delay what waits by the size of the step; one that was set forward may at most make a
retry or a probe early, which the bounds (judged on the boot clock) do not care about.
"""

import threading

from settled.clock import Clock
from settled.core.moment import Moment


class DueClock:
    """Follows the wall clock forward, and the boot clock where the wall clock was set back."""

    def __init__(self, clock: Clock) -> None:
        self._last: Moment = clock.now()
        self._due_us = self._last.wall_us
        self._lock = threading.Lock()

    def wall_us(self, now: Moment) -> int:
        """Return the wall clock by which rows are due at `now`."""
        with self._lock:
            passed = max(0, now.boot_us - self._last.boot_us)
            self._due_us = max(now.wall_us, self._due_us + passed)
            if passed:
                self._last = now
            return self._due_us

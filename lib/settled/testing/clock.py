"""A clock that moves only when it is told to.

Promise: the clocks of a machine keep their relations. Time that passes moves all of them, a suspend leaves CLOCK_MONOTONIC
where it is, a step of the wall clock moves nothing else, and a reboot starts the boot clock anew under another boot ID.
"""

import itertools
from typing import Final

from settled.clock import SystemClock
from settled.core.moment import SECOND_US, Moment

WALL_START_US: Final = 1_800_000_000_000_000
BOOT_START_US: Final = 1_000_000_000


class VirtualClock:
    """Implements settled.clock.Clock. `boot_id` is the machine's own where real incarnations are examined by it."""

    def __init__(self, *, wall_us: int = WALL_START_US, boot_id: str = "b00700000000") -> None:
        self._wall_us, self._boot_us, self._monotonic_us = wall_us, BOOT_START_US, BOOT_START_US
        self._boot_id = boot_id
        self._boots = itertools.count(1)

    def now(self) -> Moment:
        """Return this instant."""
        return Moment(self._wall_us, self._boot_us, self._boot_id)

    def monotonic_us(self) -> int:
        """Return the time that passed while the machine was awake, in microseconds."""
        return self._monotonic_us

    def advance(self, seconds: float) -> Moment:
        """Let time pass; return the new instant."""
        self._monotonic_us += self._forward_us(seconds)
        return self.suspend(seconds)

    def suspend(self, seconds: float) -> Moment:
        """Let the machine sleep: the wall and boot clocks go on, CLOCK_MONOTONIC does not."""
        passed_us = self._forward_us(seconds)
        self._wall_us += passed_us
        self._boot_us += passed_us
        return self.now()

    def step_wall(self, seconds: float) -> Moment:
        """Set the wall clock forward or, with a negative number, back."""
        self._wall_us += round(seconds * SECOND_US)
        return self.now()

    def reboot(self, *, away_seconds: float = 30.0) -> Moment:
        """Start the machine anew: another boot ID, the boot clock at its start, the wall clock ahead by the time away."""
        self._wall_us += self._forward_us(away_seconds)
        self._boot_us = self._monotonic_us = 0
        self._boot_id = f"b007{next(self._boots):08x}"
        return self.now()

    @staticmethod
    def _forward_us(seconds: float) -> int:
        if seconds < 0:
            raise ValueError(f"time does not run back: {seconds} seconds. Use step_wall for the wall clock")
        return round(seconds * SECOND_US)


class MovableClock:
    """The machine's clocks, moved on by a test: for applications whose handlers really run, with deadlines of real time."""

    def __init__(self) -> None:
        self._machine = SystemClock()
        self._passed_us = self._wall_step_us = 0

    def now(self) -> Moment:
        """Return this instant."""
        now = self._machine.now()
        return now._replace(wall_us=now.wall_us + self._passed_us + self._wall_step_us, boot_us=now.boot_us + self._passed_us)

    def monotonic_us(self) -> int:
        """Return the time that passed while the machine was awake, in microseconds."""
        return self._machine.monotonic_us() + self._passed_us

    def advance(self, seconds: float) -> None:
        """Let time pass on every clock. Raises ValueError for a negative number."""
        if seconds < 0:
            raise ValueError(f"time does not run back: {seconds} seconds. Use step_wall for the wall clock")
        self._passed_us += round(seconds * SECOND_US)

    def step_wall(self, seconds: float) -> None:
        """Set the wall clock forward or, with a negative number, back."""
        self._wall_step_us += round(seconds * SECOND_US)

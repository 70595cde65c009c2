"""How this service stands, as its manager is told: starting, ready, reloading, draining; and that it lives.

Promise: READY is said once, after the first good tick. WATCHDOG is said by the loop that claims and renews, and by nothing else;
once something is found unwell it is not said again, so that the manager ends what cannot end itself.
"""

from typing import Final

from settled.clock import Clock
from settled.core.moment import SECOND_US
from settled_worker.notify import Notifier, status

_PINGS_PER_WATCHDOG: Final = 3
_STATUS_US: Final = 5 * SECOND_US
_EXTENSION_US: Final = 15 * SECOND_US
_EXTEND_US: Final = 2 * SECOND_US


class Standing:
    """What was told, and when."""

    def __init__(self, notifier: Notifier, clock: Clock) -> None:
        self._notifier, self._clock = notifier, clock
        watchdog_us = notifier.watchdog_us
        self._ping_us = None if watchdog_us is None else watchdog_us // _PINGS_PER_WATCHDOG
        self._pinged_us = self._status_us = self._extended_us = -(10**18)
        self._shown = ""
        self.is_ready = False
        self.is_unwell = False

    @property
    def ping_seconds(self) -> float | None:
        """How long the loop may sleep at most; None where nobody waits for a ping."""
        return None if self._ping_us is None else self._ping_us / SECOND_US

    def ready(self, text: str) -> None:
        """Say READY, once."""
        self.is_ready = True
        self._tell("READY=1", text)

    def waiting(self, text: str) -> None:
        """Say why it is not ready yet, or for what it waits."""
        if text != self._shown:
            self._tell("", text)

    def alive(self) -> None:
        """Ping, as often as the watchdog needs it."""
        now_us = self._clock.monotonic_us()
        if self._ping_us is not None and not self.is_unwell and now_us - self._pinged_us >= self._ping_us:
            self._pinged_us = now_us
            self._notifier.say("WATCHDOG=1")

    def wants_status(self) -> bool:
        """Whether it is time to show how many wait and run."""
        return self.is_ready and self._clock.monotonic_us() - self._status_us >= _STATUS_US

    def show(self, text: str) -> None:
        """Show a status, where it differs from the last."""
        self._status_us = self._clock.monotonic_us()
        if text != self._shown:
            self._tell("", text)

    def reloading(self) -> None:
        """Say that the settings are being read again."""
        self._notifier.say("RELOADING=1", f"MONOTONIC_USEC={self._clock.monotonic_us()}")

    def reloaded(self, text: str) -> None:
        """Say that this is over, whatever came of it."""
        self._tell("READY=1" if self.is_ready else "", text)

    def draining(self, running: int) -> None:
        """Ask for more time before the manager's limit, again and again while something still ends in good order."""
        now_us = self._clock.monotonic_us()
        if now_us - self._extended_us < _EXTEND_US:
            return
        first = self._extended_us < 0
        self._extended_us = now_us
        self._tell("STOPPING=1" if first else "", f"draining: {running} running", f"EXTEND_TIMEOUT_USEC={_EXTENSION_US}")

    def unwell(self, why: str) -> None:
        """Ping no more, and say why."""
        self.is_unwell = True
        self._tell("", f"unwell: {why}")

    def _tell(self, first: str, text: str, *more: str) -> None:
        self._shown = text
        self._notifier.say(*filter(None, (first, status(text), *more)))

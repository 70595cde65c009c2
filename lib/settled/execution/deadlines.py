"""Keep the deadlines of all attempts in this process: one thread that sleeps until the earliest and then lets the executors look.

Promise: noticing a deadline costs a comparison unless it is the earliest, and neither a busy event loop, nor a stuck
handler, nor a locked ledger delays the report that an attempt's time is over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from settled.clock import boot_us
from settled.logs import get_log

NEVER_US: Final = 2**63 - 1
_SLEEP_SECONDS_MAX: Final = 5.0  # a sleep is measured without the time of a suspend, a deadline with it

Expire = Callable[[int], int]

log = get_log("settled.execution")


class Deadlines:
    """Calls every registered `expire(now_us)` when the earliest deadline has come. Each returns when it wants to look again."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._wake_us = NEVER_US
        self._expire: list[Expire] = []
        self._thread: threading.Thread | None = None
        self._closing = False

    def register(self, expire: Expire) -> None:
        with self._changed:
            self._expire.append(expire)

    def notice(self, deadline_us: int) -> None:
        """Make sure that somebody looks at `deadline_us`. Call it after the run is where `expire` finds it."""
        if deadline_us >= self._wake_us:
            return
        with self._changed:
            # Kept even when that run ends early: one needless look then replaces a wake-up per attempt.
            self._wake_us = min(self._wake_us, deadline_us)
            if self._thread is None and not self._closing:
                self._thread = threading.Thread(target=self._keep, name="settled-deadlines", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()

    def _keep(self) -> None:
        while self._sleep_until_due():
            # Set before looking: what starts while we look sees an infinite wake time and wakes us again.
            self._wake_us = NEVER_US
            for expire in tuple(self._expire):
                self.notice(self._ask(expire))

    def _sleep_until_due(self) -> bool:
        with self._changed:
            while not self._closing:
                if self._wake_us == NEVER_US:
                    self._changed.wait()
                    continue
                left_us = self._wake_us - boot_us()
                if left_us <= 0:
                    return True
                self._changed.wait(min(left_us / 1_000_000, _SLEEP_SECONDS_MAX))
            return False

    def _ask(self, expire: Expire) -> int:
        try:
            return expire(boot_us())
        except Exception:  # a fault in one executor must not end the deadlines of the others
            log.exception("execution.deadline_look_failed")
            return boot_us() + 1_000_000

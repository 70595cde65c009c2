"""What a worker knows of itself, gathered for those who ask: whether it lives, and whether it is ready for work."""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from settled.clock import Clock
from settled.core.moment import SECOND_US
from settled.logs import lines_lost
from settled.store.ledger import Ledger
from settled_worker.schedule import RunLog
from settled_worker.watching.counting import Values


class Sign(NamedTuple):
    """An answer to a yes-or-no question; `why` in one sentence."""

    good: bool
    why: str


@dataclass(slots=True, kw_only=True)
class Signs:
    """Attributes that the loop sets and other threads read. Times are monotonic microseconds."""

    clock: Clock
    ledger: Ledger
    runs: RunLog
    hung_seconds: Callable[[], float]
    version: str
    ticked_us: int | None = None
    ticked_wall_us: int | None = None
    started_wall_us: int = 0
    trouble: str | None = "starting"
    ailment: str | None = None
    ready: bool = False
    draining: bool = False
    running: int = 0
    abandoned: int = 0

    def lives(self) -> Sign:
        """Whether the process lives and its loops go on. A worker whose store is away lives."""
        if self.ailment is not None:
            return Sign(False, self.ailment)
        if self.ticked_us is None:
            return Sign(True, "starting")
        silent = (self.clock.monotonic_us() - self.ticked_us) / SECOND_US
        if silent > self.hung_seconds():
            return Sign(False, f"its loop has not come round for {silent:.0f} s")
        return Sign(True, "it lives, and its loops go on")

    def is_ready(self) -> Sign:
        """Whether it claims work: after the first good tick, the store writable, not draining."""
        lives = self.lives()
        if not lives.good:
            return lives
        if self.draining:
            return Sign(False, "draining")
        if not self.ready:
            return Sign(False, self.trouble or "starting")
        if self.trouble is not None:
            return Sign(False, self.trouble)
        if not os.access(self.ledger.path, os.W_OK):
            return Sign(False, f"the ledger {self.ledger.path} cannot be written by this user")
        return Sign(True, "ready")

    def values(self) -> Values:
        """Return the gauges and counters of this worker that nobody counts elsewhere."""
        runs: dict[tuple[str, ...], float] = {(name,): float(count) for name, count in dict(self.runs.count).items()}
        failed: dict[tuple[str, ...], float] = {(name,): float(self.runs.errors.get(name, 0)) for name in dict(self.runs.count)}
        return {
            "settled_build_info": {(self.version,): 1.0},
            "settled_worker_start_time_seconds": {(): self.started_wall_us / SECOND_US},
            "settled_worker_last_tick_time_seconds": {(): (self.ticked_wall_us or 0) / SECOND_US},
            "settled_worker_ready": {(): float(self.is_ready().good)},
            "settled_handlers_running": {(): self.running},
            "settled_handlers_abandoned": {(): self.abandoned},
            "settled_sweep_runs_total": runs,
            "settled_sweep_errors_total": failed,
            "settled_sweep_last_run_time_seconds": {(name,): us / SECOND_US for name, us in dict(self.runs.last_wall_us).items()},
            "settled_log_lines_lost_total": {(): lines_lost()},
        }


class Held:
    """Keep an answer for a moment, so that many who ask cost as much as one."""

    def __init__(self, make: Callable[[], bytes], clock: Clock, seconds: float) -> None:
        self._make, self._clock, self._us = make, clock, int(seconds * SECOND_US)
        self._lock = threading.Lock()
        self._made_us: int | None = None
        self._answer = b""

    def __call__(self) -> bytes:
        """Return the answer, made anew where the last one is old; while somebody makes it, others get the last one."""
        if not self._lock.acquire(blocking=self._made_us is None):
            return self._answer
        try:
            if self._made_us is None or self._clock.monotonic_us() - self._made_us >= self._us:
                self._answer, self._made_us = self._make(), self._clock.monotonic_us()
            return self._answer
        finally:
            self._lock.release()

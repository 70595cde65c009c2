"""An App whose process ends itself, or waits to be ended, at one named point; and the three ways in which a host fails it.

Promise: worker, runner and store are the product's own and know nothing of this: it is handed in from outside, as the App that
resolves contracts and as the ledger that hands out transactions.
"""

import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from settled.app import App
from settled.clock import SystemClock
from settled.core.limits import DEFAULTS
from settled.core.moment import SECOND_US, Moment
from settled.core.words import EventType
from settled.store.ledger import Ledger
from settled.store.reads import written_types
from settled.store.scope import Scope
from settled_worker.testing.reaching import Watch, WatchedContract

HOST_SECONDS: Final = 1.0
BUSY_TIMEOUT_SECONDS: Final = 0.3
CLOCK_STEP_SECONDS: Final = -3600.0

ENDS: Final = frozenset(
    {
        EventType.RETURNED,
        EventType.REJECTED,
        EventType.NOT_SENT,
        EventType.TIMED_OUT,
        EventType.RAISED,
        EventType.CRASHED,
        EventType.RESULT_NOT_STORABLE,
        EventType.POSTCONDITION_FAILED,
        EventType.AWAITING_PROBE,
    }
)
ANSWERS: Final = frozenset(
    {EventType.PROBE_COMMITTED, EventType.PROBE_ABSENT, EventType.PROBE_PENDING, EventType.PROBE_UNKNOWN}
)
WRITES: Final[Mapping[str, Collection[EventType]]] = {
    "submit": {EventType.SUBMITTED},
    "claim": {EventType.DISPATCHED},
    "end": ENDS,
    "takeover": {EventType.LEASE_LOST, EventType.NEVER_ENTERED, EventType.FENCED},
    "answer": ANSWERS,
}
"""The durable writes of an operation's life, by the events that they record."""


def end_at(point: str, when: str, types: Collection[EventType]) -> None:
    """Be before or after a commit. Where it is the point, this process ends as a process ends that is killed."""
    for name, wanted in WRITES.items():
        if point == f"{when} {name}" and not set(wanted).isdisjoint(types):
            os.kill(os.getpid(), signal.SIGKILL)


class SteppedClock(SystemClock):
    """The machine's clocks, whose wall clock somebody sets back."""

    step_us = 0

    def now(self) -> Moment:
        """Return this instant."""
        now = super().now()
        return now._replace(wall_us=now.wall_us + self.step_us)


class WatchedScope(Scope):
    """A transaction that tells of its commit, before and after."""

    __slots__ = ()
    _ledger: "WatchedLedger"

    def _commit(self) -> None:
        types = written_types(self._transaction) if self._writes else frozenset()
        end_at(self._ledger.watch.point, "before", types)
        super()._commit()
        if types:
            end_at(self._ledger.watch.point, "after", types)
            self._ledger.happened()


class WatchedLedger(Ledger):
    """The same ledger, watched."""

    def __init__(self, ledger: Ledger, watch: Watch, clock: SteppedClock) -> None:
        super().__init__(str(ledger.path), limits=ledger.limits, monotonic_us=clock.monotonic_us)
        self.watch, self._clock = watch, clock
        self._failed = False

    def write(self) -> Scope:
        """Run one write transaction."""
        return WatchedScope(self, writes=True)

    def happened(self) -> None:
        """After the first event of this process its host fails it, once."""
        hosts: Mapping[str, Callable[[], None]] = {"busy": self._lock_for_a_while, "full": self._fill_the_disk, "clock": self._step_clock}
        if self._failed or self.watch.host not in hosts:
            return
        self._failed = True
        hosts[self.watch.host]()

    def _lock_for_a_while(self) -> None:
        """Another program holds the write lock for longer than anybody waits."""

        def hold() -> None:
            pooled = self.engine().raw_connection()
            try:
                pooled.cursor().execute("BEGIN IMMEDIATE")
                time.sleep(HOST_SECONDS)
                pooled.cursor().execute("ROLLBACK")
            finally:
                pooled.close()

        threading.Thread(target=hold, name="host-busy", daemon=True).start()

    def _fill_the_disk(self) -> None:
        """No file of this process may grow for a while."""
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        log = self.path.with_name(self.path.name + "-wal")
        size = max(log.stat().st_size if log.exists() else self.path.stat().st_size, 1)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))

        def free() -> None:
            time.sleep(HOST_SECONDS)
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

        threading.Thread(target=free, name="host-full", daemon=True).start()

    def _step_clock(self) -> None:
        self._clock.step_us = round(CLOCK_STEP_SECONDS * SECOND_US)


class WatchedApp(App):
    """The user's contracts on a ledger of the certification's own."""

    def __init__(self, theirs: App, database: Path, *, terms: Mapping[str, Mapping[str, Any]], watch: Watch | None = None) -> None:
        clock = SteppedClock()
        limits = replace(DEFAULTS, busy_timeout_seconds=BUSY_TIMEOUT_SECONDS)
        super().__init__(str(database), clock=clock, codec=theirs.shell.codec, limits=limits)
        self._watch = watch or Watch()
        for contract in theirs.contracts.values():
            self.register(contract)
        self.shell.overrides.update({name: dict(change) for name, change in terms.items()})
        if watch is not None:
            self.shell.ledger = WatchedLedger(self.shell.ledger, watch, clock)

    def contract(self, name: str) -> Any:
        """Return a contract, watched where this process has a point."""
        found = super().contract(name)
        return WatchedContract(found, self._watch) if self._watch.point else found

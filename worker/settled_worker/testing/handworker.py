"""A worker whose every step is a call: claim, run to the first report of each handler, record, sweep.

Promise: pump, sweeps, executors, recorder and ledger are the worker's own; only the order of steps and the time belong to the test.
"""

import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self

from settled.app import App
from settled.core.moment import SECOND_US
from settled.core.words import Isolation
from settled.execution.job import Report
from settled.execution.pool import Execution
from settled.operation import Operation
from settled.presence import Presence
from settled.steps.reconcile import Asking
from settled.steps.recover import Examiner
from settled_worker.pump import Pump
from settled_worker.sweeps import Sweeper, Swept

_LOOK_SECONDS: Final = 0.005
RUN_SECONDS_MAX: Final = 60.0


class HandWorker:
    """One worker over an App, without threads or timers of its own. `with` closes it; its clock is the App's."""

    def __init__(self, app: App, *, slots: int = 8, contracts: Sequence[str] | None = None) -> None:
        shell = app.shell
        self.app, self._clock, self._slots = app, shell.clock, slots
        self._presence = Presence(shell, kind="worker", contracts=tuple(contracts or app.contracts), slots=2 * slots)
        self._arrived: list[Report] = []
        self._lock = threading.Lock()
        self._execution: Execution | None = None
        self._pump = Pump(shell=shell, me=self._presence.id, slots=self._presence, room=self._room, journal=self)
        self._sweeper = Sweeper(
            shell=shell, examiner=Examiner(shell), me=self._presence.id, ask=self._ask, probe_room=lambda: shell.limits.probe_slots
        )

    def turn(self) -> int:
        """Claim what is due, let it run to its first report, record it. Returns how many handlers were started."""
        started = self._step()
        self._record()
        return started

    def sweep(self, name: str) -> Swept:
        """Run one sweep, and record the answers of the probes that it started."""
        swept = self._sweeper.run(name)
        self._record()
        return swept

    def settle(self, operation_id: str, *, seconds: float = 3600.0, step: float = 1.0) -> Operation:
        """Turn and sweep until the operation is settled, quarantined, or `seconds` of the App's clock are over; return it.

        The clock is advanced by `step` seconds between rounds: it must be one that a test moves.
        """
        for _ in range(max(1, round(seconds / step))):
            self.turn()
            for name in ("leases", "reconcile", "escalate"):
                self.sweep(name)
            operation = self.app.get(operation_id)
            if operation.settled or operation.next_action.value == "ask_human":
                break
            self._clock.advance(step)  # type: ignore[attr-defined]
        return self.app.get(operation_id)

    def close(self) -> None:
        """Stop what runs and leave the ledger."""
        if self._execution is not None:
            self._execution.close(kill=True)
            self._execution.join(self.app.shell.limits.busy_timeout_seconds)
        self._presence.close()

    def settled(self, settled: Sequence[Any]) -> None:
        """Be the pump's journal: nothing is told."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # ------------------------------------------------------------------ the parts

    def _executing(self) -> Execution:
        if self._execution is None:
            shell = self.app.shell
            reference = None
            if any(one.has_handler and one.isolation == Isolation.PROCESS for one in self.app.contracts.values()):
                reference = self.app.module_reference()
            self._execution = Execution(
                resolve=self.app.contract,
                arrived=self._take,
                clock=shell.clock.now,
                app_ref=reference,
                slots=self._slots,
                process_slots=min(self._slots, shell.limits.process_runners_max),
                probe_slots=shell.limits.probe_slots,
                redact=self.app.redact,
                recorder=self._presence.recorder,
                incarnation=self._presence.incarnation,
            )
        return self._execution

    def _room(self, isolation: Isolation) -> int:
        return self._executing().free(isolation)

    def _step(self) -> int:
        with self._lock:
            arrived, self._arrived = self._arrived, []
        starts = self._pump.step(self._clock.now(), arrived)
        for job in starts.jobs:
            self._executing().start(job)
        for key in starts.stops:
            self._executing().stop(key)
        return len(starts.jobs)

    def _record(self) -> None:
        """Wait for the first report of each that runs, and record it without claiming anew."""
        until_us = self.app.shell.clock.monotonic_us() + RUN_SECONDS_MAX * SECOND_US
        while self._owed():
            if self.app.shell.clock.monotonic_us() > until_us:
                raise TimeoutError(f"a handler or probe gave no report within {RUN_SECONDS_MAX:.0f} seconds. Declare a shorter timeout")
            time.sleep(_LOOK_SECONDS)
            self._record_arrived()
        self._record_arrived()

    def _record_arrived(self) -> None:
        with self._lock:
            if not self._arrived:
                return
        claiming, self._pump.claiming = self._pump.claiming, False
        try:
            self._step()
        finally:
            self._pump.claiming = claiming

    def _owed(self) -> bool:
        return bool(self._pump.flights or self._pump.asking or self._pump.owes)

    def _take(self, report: Report) -> None:
        with self._lock:
            self._arrived.append(report)

    def _ask(self, asking: Sequence[Asking]) -> None:
        self._pump.asks(asking)
        for one in asking:
            self._executing().start(one.job)

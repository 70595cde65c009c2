"""The worker process: a loop around the pump, its executors, its sweeps, and the signals that end it.

SIGTERM or SIGINT: claim no more, let running handlers end for a while, record, leave. A second one: stop them now.
"""

import os
import select
import signal
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Final

from settled.app import App
from settled.config.settings import Settings
from settled.core.errors import ConfigurationError, LedgerUnavailableError, SettledError
from settled.core.moment import SECOND_US
from settled.core.words import Isolation
from settled.doorbell import Doorbell
from settled.execution.job import Report
from settled.execution.pool import Execution
from settled.logs import get_log
from settled.presence import Presence
from settled.steps.recover import Examiner
from settled.steps.reconcile import Asking
from settled_worker.due import DueClock
from settled_worker.journal import LogJournal
from settled_worker.pump import Pump, Starts
from settled_worker.schedule import RunLog, Schedule
from settled_worker.sweeps import Sweeper

log = get_log("settled.worker")
_STORE_PAUSE_SECONDS: Final = 0.2
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@dataclass(slots=True)
class Wake:
    """A pipe that any thread, and a signal handler, may write to in order to wake the loop."""

    reader: int = -1
    writer: int = -1
    reports: deque[Report] = field(default_factory=deque)
    signals: int = 0

    def open(self) -> None:
        """Make the pipe; neither end ever blocks."""
        self.reader, self.writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def arrived(self, report: Report) -> None:
        """Take a report; only the first of a batch has to wake the loop."""
        self.reports.append(report)
        if len(self.reports) == 1:
            self.ring()

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Count a signal. Nothing else is safe inside a handler."""
        self.signals += 1
        self.ring()

    def ring(self) -> None:
        """Wake the loop; a full pipe wakes it just as well."""
        try:
            os.write(self.writer, b"!")
        except (BlockingIOError, OSError):
            return

    def drain(self) -> None:
        """Take what woke the loop."""
        try:
            while os.read(self.reader, 512):
                pass
        except (BlockingIOError, OSError):
            return

    def take(self) -> list[Report]:
        """Return the reports that have come."""
        return [self.reports.popleft() for _ in range(len(self.reports))]

    def close(self) -> None:
        """Close both ends."""
        os.close(self.reader)
        os.close(self.writer)


class Worker:
    """One worker process over one ledger. `run` returns its exit code."""

    def __init__(self, app: App, settings: Settings, *, app_reference: str, once: bool = False, paused: bool = False) -> None:
        self._app, self._settings, self._once = app, settings, once
        self._shell, self._clock = app.shell, app.shell.clock
        self._limits = self._shell.limits
        self._app_reference = app_reference
        self._wake = Wake()
        self._due = DueClock(self._clock)
        self._paused = paused
        self._seen_boot_us = 0

    def run(self) -> int:
        """Work until a signal says otherwise. Raises ConfigurationError for what no retry can mend."""
        check_contracts(self._app)
        self._shell.ledger.engine()
        self._wake.open()
        before = {number: signal.signal(number, self._wake.on_signal) for number in _SIGNALS}
        self._start()
        try:
            self._work()
            self._drain()
            return 0
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._leave()

    # ------------------------------------------------------------------ life

    def _start(self) -> None:
        workers = self._settings.worker
        self._presence = Presence(
            self._shell, kind="worker", contracts=tuple(self._app.contracts), slots=workers.slots + self._limits.probe_slots
        )
        runners = workers.process_runners or min(self._limits.process_runners_max, 2 * (os.cpu_count() or 1))
        self._execution = Execution(
            resolve=self._app.contract,
            arrived=self._wake.arrived,
            clock=self._clock.now,
            app_ref=self._app_reference,
            slots=workers.slots,
            process_slots=runners,
            probe_slots=self._limits.probe_slots,
            recorder=self._presence.recorder,
            incarnation=self._presence.incarnation,
        )
        self._pump = Pump(
            shell=self._shell,
            me=self._presence.id,
            slots=self._presence,
            room=self._room,
            journal=LogJournal(),
            claiming=not self._paused,
        )
        self._sweeper = Sweeper(
            shell=self._shell,
            examiner=Examiner(self._shell, lease_seconds=workers.lease_seconds),
            me=self._presence.id,
            ask=self._ask,
            probe_room=self._execution.free_probes,
        )
        self._runs = RunLog(self._shell.ledger, self._clock)
        self._schedule = Schedule(self._settings.sweeps, self._runs, self._sweeper.run)
        self._bell = self._hang_bell()
        log.info(
            "worker.started",
            database=str(self._shell.ledger.path),
            incarnation=self._presence.incarnation.id,
            contracts=sorted(self._app.contracts),
            paused=self._paused,
        )

    def _work(self) -> None:
        if self._once:
            for name in ("leases", "reconcile", "escalate"):
                self._runs.run(name, lambda name=name: self._sweeper.run(name))  # type: ignore[misc]
        else:
            self._runs.run("leases", self._sweeper.leases)  # a dead worker's rows are examined before anything else
            self._schedule.start()
        rung = True
        while not self._wake.signals:
            busy = self._tick(rung=rung)
            if self._once and not busy and self._is_done():
                return
            rung = self._sleep(0.0 if busy else self._pause())

    def _tick(self, *, rung: bool) -> bool:
        """Do one step where there may be something to do; return whether another one should follow at once."""
        now = self._clock.now()
        self._presence.beat()
        self._tell_alive(now.boot_us)
        arrived = self._wake.take()
        due_us = self._due.wall_us(now)
        try:
            if not (arrived or rung or self._pump.owes or self._is_due(due_us)):
                return False
            starts = self._pump.step(now, arrived, due_us=due_us)
            arrived = []
        except LedgerUnavailableError as error:
            log.warning("worker.store_unavailable", error=str(error), owed=self._pump.owes)
            self._sleep(_STORE_PAUSE_SECONDS)
            return False
        self._begin(starts)
        return bool(starts.jobs) and bool(self._wake.reports) or self._pump.owes > 0

    def _begin(self, starts: Starts) -> None:
        for job in starts.jobs:
            self._execution.start(job)
        for key in starts.stops:
            self._execution.stop(key)

    def _drain(self) -> None:
        """Claim no more; wait for what runs, then stop it; record all of it."""
        self._pump.claiming = False
        self._schedule.close()
        until_us = self._clock.monotonic_us() + int(self._settings.worker.drain_seconds * SECOND_US)
        signals = self._wake.signals
        log.info("worker.draining", running=len(self._pump.flights))
        while self._busy() and self._clock.monotonic_us() < until_us and self._wake.signals <= signals:
            self._tick(rung=False)
            self._sleep(0.05)
        if self._busy():
            self._stop_now()

    def _stop_now(self) -> None:
        """Stop what still runs; its outcome is unknown, and says that the worker was stopped."""
        self._pump.shut_down()
        log.warning("worker.stopping_handlers", running=len(self._pump.flights))
        self._execution.close(kill=True)
        until_us = self._clock.monotonic_us() + int((self._limits.drain_seconds) * SECOND_US)
        while self._busy() and self._clock.monotonic_us() < until_us:
            self._tick(rung=False)
            self._sleep(0.02)

    def _leave(self) -> None:
        self._schedule.close()
        self._execution.close(kill=True)
        self._execution.join(self._limits.busy_timeout_seconds)
        left_behind = self._execution.abandoned > 0 or bool(self._pump.flights)
        if self._bell is not None:
            self._bell.close()
        self._presence.close(keep_files=left_behind)
        self._wake.close()
        log.info("worker.ended", left_behind=left_behind)

    # ------------------------------------------------------------------ questions

    def _busy(self) -> bool:
        return bool(self._pump.flights or self._pump.asking or self._pump.owes or self._wake.reports)

    def _is_done(self) -> bool:
        return not self._busy() and not self._is_due(self._due.wall_us(self._clock.now()))

    def _is_due(self, due_us: int) -> bool:
        if not self._pump.claiming:
            return False
        following = self._pump.next_due_us()
        return following is not None and following <= due_us

    def _room(self, isolation: Isolation) -> int:
        if self._execution.abandoned >= self._settings.worker.abandoned_max:
            return 0
        return self._execution.free(isolation)

    def _pause(self) -> float:
        """Sleep until the next row falls due, at most one poll."""
        poll = self._settings.worker.poll_seconds
        if not self._pump.claiming:
            return poll
        following = self._pump.next_due_us()
        if following is None:
            return poll
        left = (following - self._due.wall_us(self._clock.now())) / SECOND_US
        return min(poll, max(left, 0.0)) if left > 0 else poll

    def _sleep(self, seconds: float) -> bool:
        """Wait for a bell, a report or a signal; return whether a bell was rung."""
        readers: list[int] = [self._wake.reader]
        if self._bell is not None:
            readers.append(self._bell.fileno())
        ready, _, _ = select.select(readers, [], [], seconds)
        if self._wake.reader in ready:
            self._wake.drain()
        return self._bell is not None and self._bell.fileno() in ready and self._bell.drain() > 0

    def _ask(self, asking: Sequence[Asking]) -> None:
        self._pump.asks(asking)
        for one in asking:
            self._execution.start(one.job)

    def _tell_alive(self, boot_us: int) -> None:
        """Keep the row of this incarnation fresh, seldom."""
        if boot_us - self._seen_boot_us < self._limits.worker_row_seconds * SECOND_US:
            return
        try:
            if self._seen_boot_us:
                self._presence.seen()
            self._seen_boot_us = boot_us
        except SettledError as error:
            log.warning("worker.row_not_refreshed", error=str(error))

    def _hang_bell(self) -> Doorbell | None:
        try:
            return Doorbell.listen(self._presence.run_directory, self._presence.incarnation.id)
        except ConfigurationError as error:
            log.warning("worker.no_doorbell", error=str(error))
            return None


def check_contracts(app: App) -> None:
    """Refuse contracts that this worker could never run. Raises ConfigurationError naming the first."""
    for name, contract in app.contracts.items():
        try:
            terms = contract.terms
        except ValueError as error:
            raise ConfigurationError(f"contract {name!r} cannot be used: {error}. Nothing was started.") from error
        if contract.has_handler and terms.isolation == Isolation.PROCESS:
            _check_importable(name, contract.handler)


def _check_importable(name: str, handler: object) -> None:
    qualified = getattr(handler, "__qualname__", "")
    if "<lambda>" in qualified or "<locals>" in qualified:
        raise ConfigurationError(
            f"the handler of {name!r} ({qualified}) is defined inside a function, so that no runner can import it. "
            f"Nothing was started. Define it at the top of a module, or declare isolation='thread'"
        )



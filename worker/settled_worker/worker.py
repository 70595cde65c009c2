"""The worker process: a loop around the pump, its executors, its sweeps, and the signals that end it.

SIGTERM or SIGINT: claim no more, let running handlers end for a while, record, leave. A second one: stop them now.
SIGHUP: read the settings again, or, where this was started at a terminal, leave like for SIGTERM.
"""

import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from settled.app import App
from settled.config.settings import Settings, unknown_limits_of
from settled.core.errors import LedgerUnavailableError
from settled.core.moment import SECOND_US
from settled.core.words import Isolation
from settled.execution.job import End, Report
from settled.execution.pool import Execution
from settled.logs import get_log
from settled.presence import Presence
from settled.steps.reconcile import Asking
from settled.steps.recover import Examiner
from settled.steps.rules import publish_rules
from settled_worker.capacity import Capacity
from settled_worker.care import LOOK_SECONDS, Care
from settled_worker.checks import check_contracts
from settled_worker.due import DueClock
from settled_worker.ears import Ears
from settled_worker.escalation import escalation_of
from settled_worker.hang import EXIT_UNWELL, HangGuard
from settled_worker.journal import LogJournal
from settled_worker.notify import Notifier
from settled_worker.pump import Pump, Starts
from settled_worker.reload import read_again
from settled_worker.schedule import RunLog, Schedule
from settled_worker.standing import Standing
from settled_worker.sweeps import Sweeper
from settled_worker.telling import Telling
from settled_worker.terms import overrides_of, retention_of
from settled_worker.wake import Wake
from settled_worker.watching.signs import Signs
from settled_worker.watching.watch import Watch, our_version

log = get_log("settled.worker")
_YOUNG_OBJECTS_MAX: Final = 10_000
_STORE_PAUSE_SECONDS: Final = 0.2
_STORE_WAIT_SECONDS: Final = 1.0
_ENDING: Final = (signal.SIGTERM, signal.SIGINT)
_SIGNALS_TO_STOP_NOW: Final = 2
_RUNNERS_AHEAD: Final = 2  # ready before the first claim; more are started as they are needed
_GATHER_SECONDS: Final = 0.0003
_GATHER_LOOKS: Final = 4
_GATHER_LOOKS_AHEAD: Final = 20  # while others wait for the places that become free: none of these stays empty meanwhile
_READY_LOOK_SECONDS: Final = 0.05
_FINDING: Final = ("leases", "reconcile", "escalate")


class Worker:
    """One worker process over one ledger. `run` returns its exit code."""

    def __init__(
        self,
        app: App,
        settings: Settings,
        *,
        app_reference: str,
        once: bool = False,
        paused: bool = False,
        read_settings: Callable[[], Settings] | None = None,
    ) -> None:
        """`read_settings` reads the settings anew for a reload; without it there is none."""
        self._app, self._settings, self._once = app, settings, once
        self._shell, self._clock = app.shell, app.shell.clock
        self._limits = self._shell.limits
        self._app_reference = app_reference
        self._wake = Wake()
        self._ears = Ears(self._wake)
        self._due = DueClock(self._clock)
        self._paused = paused
        self.left_behind = False
        self._read = read_settings
        self._standing = Standing(Notifier.from_environment(os.environ), self._clock)
        self._hang = HangGuard(lambda: self._settings.worker.hung_seconds)

    def run(self) -> int:
        """Work until a signal says otherwise. Raises ConfigurationError for what no retry can mend."""
        check_contracts(self._app)
        self._runs = RunLog(self._shell.ledger, self._clock)
        self._watch = Watch(self._settings, self._signs(), self._app.contracts)
        self._wake.open()
        before = {number: signal.signal(number, self._wake.on_signal) for number in _ENDING}
        at_terminal = sys.stderr is not None and sys.stderr.isatty()  # which is gone when it hangs up: nobody reloads that way
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._wake.on_signal if at_terminal else self._wake.on_reload)
        try:
            self._watch.start()  # before the ledger is open: who waits for it shall be told so
            if not self._open():
                return 0
            self._start()
            # A batch makes thousands of objects that all die with it: looking for garbage less often, and never among what is there
            # from the start, saves a tenth of an effect's time.
            gc.freeze()
            gc.set_threshold(_YOUNG_OBJECTS_MAX, *gc.get_threshold()[1:])
            try:
                self._work()
                self._drain()
            finally:
                self._leave()
            return EXIT_UNWELL if self._care.ailment else 0
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._watch.close()
            self._wake.close()
            self._hang.close()

    def _signs(self) -> Signs:
        return Signs(
            clock=self._clock,
            ledger=self._shell.ledger,
            runs=self._runs,
            hung_seconds=lambda: self._settings.worker.hung_seconds,
            version=our_version(),
            started_wall_us=self._clock.now().wall_us,
        )

    # ------------------------------------------------------------------ life

    def _open(self) -> bool:
        """Open the ledger and become present in it; wait where it cannot be written now. Return False when asked to end meanwhile."""
        # In the recorder. Short attempts wait in it for a thread, and those that ended are freed only once that is recorded.
        slots, told = 2 * (self._settings.worker.slots + self._limits.batch_max), False
        while not self._wake.signals:
            try:
                publish_rules(self._shell)
                self._presence = Presence(self._shell, kind="worker", contracts=tuple(self._app.contracts), slots=slots)
                return True
            except LedgerUnavailableError as error:
                if self._once:
                    raise
                if not told:
                    log.warning("worker.waits_for_store", error=str(error))
                told = True
                self._watch.signs.trouble = f"waiting for the store: {error}"
                self._standing.waiting(self._watch.signs.trouble)
                self._ears.sleep(_STORE_WAIT_SECONDS)
        return False

    def _start(self) -> None:
        workers = self._settings.worker
        runners = workers.process_runners or min(self._limits.process_runners_max, 2 * (os.cpu_count() or 1))
        self._execution = Execution(
            resolve=self._app.contract,
            arrived=self._wake.arrived,
            clock=self._clock.now,
            app_ref=self._app_reference,
            slots=workers.slots,
            process_slots=runners,
            probe_slots=self._limits.probe_slots,
            redact=self._app.redact,
            recorder=self._presence.recorder,
            incarnation=self._presence.incarnation,
        )
        self._telling = Telling(self._shell, self._presence)
        self._capacity = Capacity(self._app, self._execution, self._clock, workers.abandoned_max)
        self._pump = Pump(
            shell=self._shell,
            me=self._presence.id,
            slots=self._presence,
            room=self._capacity.room,
            refuses=self._capacity.refuses,
            journal=LogJournal(self._watch.moved),
            claiming=not self._paused,
        )
        self._escalation = escalation_of(self._app, self._settings, self._presence.id)
        self._sweeper = Sweeper(
            shell=self._shell,
            examiner=Examiner(self._shell, lease_seconds=workers.lease_seconds),
            me=self._presence.id,
            ask=self._ask,
            probe_room=self._execution.free_probes,
            tell=self._escalation.tick,
            retain=lambda: retention_of(self._settings),
            heard=self._watch.moved,
        )
        self._schedule = Schedule(self._settings.sweeps, self._runs, self._sweeper.run)
        self._care = Care(self._standing, self._shell.ledger, self._clock, self._runs, self._schedule, paused=self._paused)
        self._ears.hang_bell(self._presence.run_directory, self._presence.incarnation.id)
        if any(one.has_handler and one.isolation == Isolation.PROCESS for one in self._app.contracts.values()):
            self._execution.warm_up(min(runners, _RUNNERS_AHEAD))
        log.info(
            "worker.started",
            database=str(self._shell.ledger.path),
            incarnation=self._presence.incarnation.id,
            contracts=sorted(self._app.contracts),
            paused=self._paused,
        )
        if self._shell.ledger.misplaced:
            log.error(
                "worker.ledger_is_a_copy",
                database=str(self._shell.ledger.path),
                differs=list(self._shell.ledger.misplaced),
                then="nothing is dispatched from it; run: settled db adopt --reason …",
            )

    def _work(self) -> None:
        if self._once:
            self._work_once()
            return
        self._hang.start()
        self._runs.run("leases", self._sweeper.leases)  # a dead worker's rows are examined before anything else
        self._schedule.start()
        self._escalation.start()
        rung = True
        while not (self._wake.signals or self._care.ailment):
            if self._wake.reloads:
                self._reload()
            busy = self._tick(rung=rung)
            self._care.look(len(self._pump.flights), self._settings.worker.hung_seconds)
            self._show_signs()
            rung = self._ears.sleep(0.0 if busy else self._pause())

    def _show_signs(self) -> None:
        """Let those who look at this worker see how it is. Plain assignments: nobody who looks can hold this up."""
        signs, now = self._watch.signs, self._clock
        signs.ticked_us, signs.ticked_wall_us = now.monotonic_us(), now.now().wall_us
        signs.ready, signs.draining = self._standing.is_ready, bool(self._wake.signals)
        signs.ailment, signs.trouble = self._care.ailment, self._care.trouble or self._telling.unwritable
        signs.running, signs.abandoned = len(self._pump.flights), self._execution.abandoned

    def _reload(self) -> None:
        """Read the settings again; what is wrong with them is said, and the old ones stay in force."""
        self._wake.reloads = 0
        self._standing.reloading()
        self._settings, said = read_again(self._read, self._settings)
        self._capacity.abandoned_max = self._settings.worker.abandoned_max
        self._shell.overrides = overrides_of(self._settings)
        self._schedule.follow(self._settings.sweeps)
        self._shell.ledger.unknown_limits = unknown_limits_of(self._settings.contracts)
        self._escalation.follow(self._settings.escalation)
        self._standing.reloaded(said or self._care.summary(len(self._pump.flights)))

    def _work_once(self) -> None:
        """Sweep and dispatch in turns until a round of sweeps finds nothing due: each may leave something to the other."""
        while not self._wake.signals:
            found = self._sweep_once()
            rung = True
            while not self._wake.signals:
                busy = self._tick(rung=rung)
                if not busy and self._is_done():
                    break
                rung = self._ears.sleep(0.0 if busy else self._pause())
            if not found:
                self._escalation.flush()
                return

    def _sweep_once(self) -> bool:
        """Run the sweeps that find work; return whether they found some. A row that no sweep can move is no work."""
        leases, reconcile, escalate = (self._runs.run(name, partial(self._sweeper.run, name)) for name in _FINDING)
        return bool(leases.moved or reconcile.examined or escalate.moved)

    def _tick(self, *, rung: bool) -> bool:
        """Do one step where there may be something to do; return whether another one should follow at once."""
        now = self._clock.now()
        self._presence.beat()
        self._hang.step()
        self._telling.alive(now.boot_us)
        self._telling.paused(self._pump.paused)
        arrived = self._gather()
        due_us = self._due.wall_us(now)
        try:
            if not (arrived or rung or self._pump.owes or self._is_due(due_us) or self._pump.stop_wanted()):
                self._care.ticked()
                return False
            starts = self._pump.step(now, arrived, due_us=due_us)
            self._care.ticked()
            arrived = []
        except LedgerUnavailableError as error:
            log.warning("worker.store_unavailable", error=str(error), owed=self._pump.owes)
            self._care.ticked(f"the store cannot be written: {error}")
            self._ears.sleep(_STORE_PAUSE_SECONDS)
            return False
        self._begin(starts)
        self._capacity.tell_refused(self._presence.id)
        return (bool(starts.jobs) and bool(self._wake.reports)) or self._pump.owes > 0

    def _gather(self) -> list[Report]:
        """Take the reports that have come. While several handlers run, wait a moment for more: one commit carries them all."""
        running = len(self._pump.flights)
        enough, is_ahead = running // 2, running > self._settings.worker.slots
        for _ in range(_GATHER_LOOKS_AHEAD if is_ahead else _GATHER_LOOKS):
            if not 0 < len(self._wake.reports) < enough:
                break
            time.sleep(_GATHER_SECONDS)
        reports = self._wake.take()
        self._watch.ended(reports)
        return reports

    def _begin(self, starts: Starts) -> None:
        self._watch.started(starts.jobs)
        for job in starts.jobs:
            self._execution.start(job)
        for key in starts.stops:
            self._execution.stop(key)

    def _drain(self) -> None:
        """Claim no more; wait for what runs, then stop it; record all of it."""
        self._pump.claiming = False
        self._show_signs()
        self._care.stay(len(self._pump.flights))
        self._schedule.close(wait=self._care.ailment is None)
        until_us = self._clock.monotonic_us() + int(self._settings.worker.drain_seconds * SECOND_US)
        log.info("worker.draining", running=len(self._pump.flights))
        while self._busy() and self._clock.monotonic_us() < until_us and self._wake.signals < _SIGNALS_TO_STOP_NOW:
            self._tick(rung=False)
            self._show_signs()
            self._care.stay(len(self._pump.flights))
            self._ears.sleep(0.05)
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
            self._show_signs()
            self._care.stay(len(self._pump.flights))
            self._ears.sleep(0.02)

    def _leave(self) -> None:
        self._schedule.close(wait=self._care.ailment is None)
        self._execution.close(kill=True)
        self._execution.join(self._limits.busy_timeout_seconds)
        self.left_behind = self._execution.abandoned > 0 or bool(self._pump.flights) or self._care.ailment is not None
        self._ears.close()
        self._care.close()
        self._escalation.close()
        self._presence.close(code_left=self.left_behind)
        log.info("worker.ended", left_behind=self.left_behind)

    # ------------------------------------------------------------------ questions

    def _busy(self) -> bool:
        return bool(self._pump.flights or self._pump.asking or self._pump.owes or self._wake.reports)

    def _is_done(self) -> bool:
        try:
            return not self._busy() and not self._is_due(self._due.wall_us(self._clock.now()))
        except LedgerUnavailableError:
            return False

    def _is_due(self, due_us: int) -> bool:
        if not self._pump.claiming:
            return False
        following = self._pump.next_due_us()
        return following is not None and following <= due_us

    def _pause(self) -> float:
        """Sleep until the next row falls due, at most one poll."""
        poll = min(self._settings.worker.poll_seconds, self._standing.ping_seconds or LOOK_SECONDS, LOOK_SECONDS)
        if not self._pump.claiming:
            return poll
        try:
            following = self._pump.next_due_us()
        except LedgerUnavailableError:
            return poll  # the next tick meets the same error, where it is told and waited for
        if following is None:
            return poll
        left = (following - self._due.wall_us(self._clock.now())) / SECOND_US
        if left > 0:
            return min(poll, left)
        return poll if self._capacity.room(Isolation.PROCESS) else min(poll, _READY_LOOK_SECONDS)

    def _ask(self, asking: Sequence[Asking]) -> None:
        self._pump.asks(asking)
        for one in asking:
            try:
                self._execution.start(one.job)
            except Exception as error:  # noqa: BLE001 - its answer is that there is none, so that its hold is given up
                failed = Report(job=one.job, end=End.RAISED, error_class=type(error).__name__, ended=self._clock.now())
                self._wake.arrived(failed)

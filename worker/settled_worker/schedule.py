"""Run the sweeps on their schedules with APScheduler, in UTC, each at most once at a time.

Promise: a missed run is made up once, an error is counted and logged and the next run comes on time, and each sweep
leaves a stamp that shows when it last came through.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from apscheduler.events import EVENT_JOB_MAX_INSTANCES, EVENT_JOB_MISSED, JobExecutionEvent
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from settled.clock import Clock
from settled.config.settings import SweepSettings, SweepsSettings
from settled.core.errors import LedgerUnavailableError
from settled.core.moment import SECOND_US
from settled.execution.leftovers import OUR_THREADS
from settled.logs import get_log
from settled.store.ledger import Ledger
from settled.store.sweep_runs import record_run
from settled_worker.sweeps import SWEEPS, Swept

log = get_log("settled.sweeps")
# A run without anything to tell is stored this often, so that an idle worker seldom writes.
_QUIET_RUN_STORED_US: Final = 60 * SECOND_US


@dataclass(slots=True)
class RunLog:
    """Remembers runs: in memory each, in the ledger what has something to tell and now and then a quiet one.

    `running` has the sweeps under way, each with the monotonic time at which it began; `count` and `errors` since the start.
    """

    ledger: Ledger
    clock: Clock
    last_us: dict[str, int] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    running: dict[str, int] = field(default_factory=dict)
    count: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    last_wall_us: dict[str, int] = field(default_factory=dict)
    _stored_us: dict[str, int] = field(default_factory=dict)

    def run(self, name: str, sweep: Callable[[], Swept]) -> Swept:
        """Run a sweep once. Errors of the store and of our own are logged and counted, never raised."""
        started = self.clock.now()
        note = None
        self.running[name] = self.clock.monotonic_us()
        try:
            swept = sweep()
        except LedgerUnavailableError as error:
            swept, note = Swept(errors=1), str(error)
            log.warning("sweep.store_unavailable", sweep=name, error=str(error))
        except Exception as error:  # a sweep must outlive whatever it meets
            swept, note = Swept(errors=1), f"{type(error).__name__}: {error}"
            log.exception("sweep.failed", sweep=name)
        finally:
            self.running.pop(name, None)
        ended = self.clock.now()
        self.failures[name] = self.failures.get(name, 0) + 1 if note else 0
        self.last_us[name] = self.clock.monotonic_us()
        self.last_wall_us[name] = ended.wall_us
        self.count[name] = self.count.get(name, 0) + 1
        self.errors[name] = self.errors.get(name, 0) + swept.errors
        quiet = not (swept.moved or swept.errors)
        if quiet and ended.boot_us - self._stored_us.get(name, -_QUIET_RUN_STORED_US) < _QUIET_RUN_STORED_US:
            return swept
        self._stored_us[name] = ended.boot_us
        try:
            with self.ledger.write() as transaction:
                record_run(transaction, name, started.wall_us, ended.wall_us, swept.examined, swept.moved, swept.errors, note)
        except Exception as error:  # noqa: BLE001 - the run itself is done
            log.warning("sweep.run_not_stored", sweep=name, error=str(error))
        return swept


class Schedule:
    """The running schedule of one worker."""

    def __init__(self, settings: SweepsSettings, runs: RunLog, sweep: Callable[[str], Swept]) -> None:
        self._runs, self._sweep = runs, sweep
        self._scheduler = BackgroundScheduler(
            jobstores={"default": MemoryJobStore()},
            executors={"default": ThreadPoolExecutor(len(SWEEPS), {"thread_name_prefix": f"{OUR_THREADS}sweep"})},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
            timezone="UTC",
        )
        self._scheduler.add_listener(self._note, EVENT_JOB_MISSED | EVENT_JOB_MAX_INSTANCES)
        self.skipped = 0
        self._closed = threading.Event()
        self._following: dict[str, SweepSettings] = {}
        self.follow(settings)

    def start(self) -> None:
        """Start all schedules. Its threads bear our name, or one that begins later would be taken for what a handler left behind."""
        self._scheduler.start()
        thread: Any = getattr(self._scheduler, "_thread", None)
        if thread is not None:
            thread.name = f"{OUR_THREADS}schedule"

    def follow(self, settings: SweepsSettings) -> None:
        """Take over schedules; one that did not change keeps its next run."""
        for name in SWEEPS:
            chosen: SweepSettings = getattr(settings, name)
            before, self._following[name] = self._following.get(name), chosen
            if chosen == before:
                continue
            if before is not None and before.enabled:
                self._scheduler.remove_job(name)
            if chosen.enabled:
                self._scheduler.add_job(self._run, trigger_of(chosen), args=[name], id=name, name=name)

    def close(self, *, wait: bool = True) -> None:
        """Stop; a sweep that is running ends first, unless it hangs and nobody should `wait` for it."""
        self._closed.set()
        if self._scheduler.running:
            self._scheduler.shutdown(wait=wait)

    @property
    def alive(self) -> bool:
        """Whether the scheduler's own thread lives."""
        thread: Any = getattr(self._scheduler, "_thread", None)
        return bool(self._scheduler.running and thread is not None and thread.is_alive())

    def _run(self, name: str) -> None:
        if not self._closed.is_set():
            self._runs.run(name, lambda: self._sweep(name))

    def _note(self, event: JobExecutionEvent) -> None:
        self.skipped += 1
        log.warning("sweep.late", sweep=event.job_id, skipped=self.skipped)


def trigger_of(settings: SweepSettings) -> IntervalTrigger | CronTrigger:
    """Return the trigger of a checked setting."""
    if settings.cron is not None:
        return CronTrigger.from_crontab(settings.cron, timezone="UTC")
    return IntervalTrigger(seconds=settings.every_seconds, timezone="UTC")

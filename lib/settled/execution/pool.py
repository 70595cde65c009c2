"""Route each job to the executor of its isolation, and know how much room is left: the one door to this package.

Promise: executors start when first needed, handlers and probes have room of their own, so that neither starves the other,
and every job that was taken gets its report, whatever its executor does.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from typing import Any, Final, assert_never

from settled.clock import monotonic_us
from settled.core.errors import ConfigurationError
from settled.core.limits import DEFAULTS
from settled.core.words import Isolation
from settled.execution.aio import AsyncExecutor
from settled.execution.calling import Caller
from settled.execution.classify import keep_text
from settled.execution.deadlines import Deadlines
from settled.execution.incarnation import Incarnation
from settled.execution.job import Arrived, End, Executor, Job, Key, Kind, ReadClock, Redact, Report, Resolve
from settled.execution.process import ProcessExecutor
from settled.execution.recorder import Recorder
from settled.execution.thread import ThreadExecutor
from settled.logs import get_log

log = get_log("settled.execution")

# Threads keep handlers and probes apart; runners and the loop serve both, and the room is bounded here.
_Place = tuple[Isolation, Kind]


class Execution:
    """Runs the attempts of one process. `arrived` is called from any thread and must not block."""

    def __init__(
        self,
        *,
        resolve: Resolve,
        arrived: Arrived,
        clock: ReadClock,
        app_ref: str | None = None,
        slots: int = DEFAULTS.slots,
        process_slots: int = DEFAULTS.process_runners_max,
        probe_slots: int = DEFAULTS.probe_slots,
        redact: Redact = keep_text,
        recorder: Recorder | None = None,
        incarnation: Incarnation | None = None,
        runner_options: dict[str, Any] | None = None,
    ) -> None:
        """`app_ref` is MODULE:APP, which runners import; without it nothing runs in processes."""
        self._resolve, self._arrived, self._app_ref = resolve, arrived, app_ref
        self._slots, self._process_slots, self._probe_slots = slots, process_slots, probe_slots
        self._recorder, self._incarnation = recorder, incarnation
        self._clock, self._caller, self._runner_options = clock, Caller(clock=clock, redact=redact), runner_options or {}
        self._deadlines: Final = Deadlines()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._executors: dict[_Place, Executor] = {}
        self._routes: dict[tuple[Kind, int, int], Executor] = {}
        self._handlers: Counter[Isolation] = Counter()
        self._probes = 0
        self._telling = 0  # reports that have left their executor and not yet reached `arrived`
        self._probes_waiting: deque[Job] = deque()
        self._closed = False

    def free(self, isolation: Isolation) -> int:
        """Return how many more handlers of this isolation may be claimed."""
        room = self._slots - self._handlers.total()
        may_wait = self._may_wait(isolation)
        if self._handlers[isolation] == self._handlers.total():  # what waits for a place would keep the slots from the others
            room += may_wait
        if isolation is Isolation.PROCESS:  # without an app to import none may be claimed: it could never be entered
            room = min(room, self._process_slots + may_wait - self._handlers[isolation]) if self._app_ref else 0
        return max(0, room)

    def free_probes(self) -> int:
        """Return how many more probes would start at once. More may be started: they wait, within their time limit."""
        return max(0, self._probe_slots - self._probes - len(self._probes_waiting))

    def warm_up(self, runners: int) -> None:
        """Let runners import the app before the first attempt needs one. Does nothing without an app."""
        if self._app_ref is None:
            return
        with self._lock:
            executor = self._executor(Isolation.PROCESS, Kind.HANDLER)
        if isinstance(executor, ProcessExecutor):
            executor.warm_up(runners)

    @property
    def ready_runners(self) -> int:
        """Count the runners that have imported the app."""
        return sum(executor.ready for executor in self._distinct() if isinstance(executor, ProcessExecutor))

    @property
    def running(self) -> int:
        """Count the jobs whose first report is still to come."""
        return len(self._routes) + len(self._probes_waiting)

    @property
    def abandoned(self) -> int:
        """Count the attempts that were given up and whose code has not ended."""
        return sum(executor.abandoned for executor in self._distinct())

    def abandoned_of(self, contract: str) -> int:
        """Count the abandoned attempts of one contract."""
        return sum(executor.abandoned_of(contract) for executor in self._distinct())

    def start(self, job: Job) -> None:
        """Start `job` without waiting for it. Raises ConfigurationError for a process without an app, RuntimeError after close."""
        key = job.key
        with self._lock:
            if self._closed:
                raise RuntimeError(f"attempt {job.attempt} of operation {job.operation_id!r} was not started: execution is closed")
            if key in self._routes:
                raise ValueError(f"attempt {job.attempt} of operation {job.operation_id!r} is running already. It was not started again.")
            if job.kind is Kind.PROBE and self._probes >= self._probe_slots:
                self._probes_waiting.append(job)
                return
            executor = self._admit(job, key)
        self._hand_over(job, executor)

    def stop(self, key: tuple[Kind, int, int]) -> bool:
        """End one run because a person said so; its report says STOPPED. False: it is not running here."""
        with self._lock:
            executor = self._routes.get(key)
            waiting = next((job for job in self._probes_waiting if job.key == key), None)
            if waiting is not None:
                self._probes_waiting.remove(waiting)
        if executor is not None:
            executor.stop(key)
        elif waiting is not None:
            self._say(self._caller.never_entered(waiting)._replace(end=End.STOPPED))
        return executor is not None or waiting is not None

    def close(self, *, kill: bool = False) -> None:
        """Take no more work. With `kill`, end what runs; else it ends and reports as usual."""
        with self._lock:
            self._closed = True
            waiting = list(self._probes_waiting)
            self._probes_waiting.clear()
        for job in waiting:
            self._say(self._caller.never_entered(job, "execution was closed"))
        for executor in self._distinct():
            executor.close(kill=kill)

    def join(self, seconds: float) -> bool:
        """Wait after `close` until every first report is out and every runner has ended; False if that takes longer.

        After a close with `kill`, runners that have not ended by then are killed together with their supervisor.
        """
        until_us = monotonic_us() + int(seconds * 1_000_000)
        with self._changed:
            self._changed.wait_for(self._is_told, seconds)
        # Also where reports are missing: a supervisor that does not answer holds them back.
        processes = [executor for executor in self._distinct() if isinstance(executor, ProcessExecutor)]
        ended = [executor.join(max(0, until_us - monotonic_us()) / 1_000_000) for executor in processes]
        over = all(ended) and self._is_told()
        if over:
            self._deadlines.close()
        return over

    def _is_told(self) -> bool:
        return not self._routes and not self._telling

    def _may_wait(self, isolation: Isolation) -> int:
        executor = self._executors.get((isolation, Kind.HANDLER))
        return executor.may_wait if isinstance(executor, ProcessExecutor | ThreadExecutor) else 0

    def _admit(self, job: Job, key: Key) -> Executor:
        """Count `job` in and return its executor. Called with the lock held."""
        executor = self._executor(job.isolation, job.kind)
        self._routes[key] = executor
        if job.kind is Kind.PROBE:
            self._probes += 1
        else:
            self._handlers[job.isolation] += 1
        return executor

    def _hand_over(self, job: Job, executor: Executor) -> None:
        try:
            executor.start(job)
        except Exception as error:
            log.exception("execution.start_failed", operation_id=job.operation_id, attempt=job.attempt)
            self._take(self._caller.never_entered(job, f"{type(error).__name__}: {error}"))

    def _take(self, report: Report) -> None:
        """Receive a report of an executor, pass it on, and give the room it leaves to the next probe."""
        job = report.job
        following: tuple[Job, Executor] | None = None
        with self._lock:
            self._telling += 1
            if not report.late and self._routes.pop(job.key, None) is not None:
                if job.kind is Kind.PROBE:
                    self._probes -= 1
                    if self._probes_waiting:
                        next_job = self._probes_waiting.popleft()
                        following = next_job, self._admit(next_job, next_job.key)
                else:
                    self._handlers[job.isolation] -= 1
        self._say(report)
        with self._lock:
            self._telling -= 1
            if self._closed:  # before that nobody waits for it
                self._changed.notify_all()
        if following is not None:
            self._hand_over(*following)

    def _say(self, report: Report) -> None:
        try:
            self._arrived(report)
        except Exception:
            log.exception("execution.report_not_taken", operation_id=report.job.operation_id, end=report.end.value)

    def _distinct(self) -> list[Executor]:
        return list({id(executor): executor for executor in list(self._executors.values())}.values())

    def _executor(self, isolation: Isolation, kind: Kind) -> Executor:
        place = isolation, kind
        if place not in self._executors:
            made = self._open(isolation, kind)
            for shared in [place] if isolation is Isolation.THREAD else [(isolation, each) for each in Kind]:
                self._executors[shared] = made
        return self._executors[place]

    def _open(self, isolation: Isolation, kind: Kind) -> Executor:
        mark = None if self._incarnation is None else self._incarnation.id
        shared: dict[str, Any] = {
            "resolve": self._resolve,
            "arrived": self._take,
            "caller": self._caller,
            "deadlines": self._deadlines,
            "recorder": self._recorder,
            "incarnation": mark,
        }
        match isolation:
            case Isolation.THREAD:
                return ThreadExecutor(slots=self._slots if kind is Kind.HANDLER else self._probe_slots, name=kind.value, **shared)
            case Isolation.ASYNC:
                return AsyncExecutor(**shared)
            case Isolation.PROCESS:
                return self._open_processes()
            case other:
                assert_never(other)

    def _open_processes(self) -> ProcessExecutor:
        if self._app_ref is None:
            raise ConfigurationError(
                "process isolation needs the app as MODULE:APP, which runners import. Nothing was sent. Give --app or SETTLED_APP."
            )
        return ProcessExecutor(
            app_reference=self._app_ref,
            arrived=self._take,
            clock=self._clock,
            slots=self._process_slots + self._probe_slots,
            handler_slots=self._process_slots,
            recorder=self._recorder,
            lock_fd=None if self._incarnation is None else self._incarnation.lock_fd,
            cgroup=None if self._incarnation is None else self._incarnation.cgroup,
            **self._runner_options,
        )

"""Decide which runner takes which attempt, and what each end means for the attempt. Owned by one thread.

Promise: an attempt is handed to a runner only after the supervisor holds its deadline, and each attempt that was taken gets
exactly one report. What a runner said before it died counts; what it did not say is judged from the flight recorder, under
the slot's lock, never from silence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

import structlog

from settled.clock import boot_us
from settled.core.errors import ConfigurationError
from settled.execution.calling import Caller
from settled.execution.crew import Crew, RunnerLimits, Watch
from settled.execution.endings import Silence, keeps_runner, silent, spoken, spoken_and_over
from settled.execution.job import End, Job, Kind, ReadClock, Report
from settled.execution.link import SupervisorLink
from settled.execution.pace import Pace
from settled.execution.recorder import Phase
from settled.execution.runner_end import RunnerEnd, State, Told
from settled.execution.wire import WireError

log = structlog.get_logger("settled.execution")

DEADLINE_MARGIN_US: Final = 5_000  # a runner whose attempt ended this close to its deadline may be about to get TERM


class RevokeRecorder(Protocol):
    """The part of the flight recorder that is asked when a runner died without a word."""

    @property
    def path(self) -> Path: ...
    def revoke(self, slot: int, row: int, attempt: int, *, announces_sending: bool = False) -> Phase | None: ...


class Fleet:
    """The attempts that wait for a runner and those that run in one."""

    def __init__(
        self,
        *,
        app_reference: str,
        clock: ReadClock,
        limits: RunnerLimits,
        say: Callable[[Report], None],
        watch: Watch,
        recorder: RevokeRecorder | None = None,
        lock_fd: int | None = None,
        cgroup: Path | None = None,
    ) -> None:
        """`lock_fd`, the lock of the incarnation, is held open by the supervisor and every runner; `cgroup` holds their groups."""
        path = None if recorder is None else recorder.path
        self._crew = Crew(
            app_reference=app_reference, limits=limits, watch=watch, listener=self, recorder=path, lock_fd=lock_fd, cgroup=cgroup
        )
        self._app_reference, self._clock, self._limits, self._say, self._recorder = app_reference, clock, limits, say, recorder
        self._caller = Caller(clock=clock)
        self._waiting: deque[Job] = deque()
        self._pace = Pace()
        self._kept = 0  # as many runners as were needed at once are kept ready
        self._is_start_failing = False  # then none is started ahead, only for an attempt
        self._is_closing = False
        self.dismiss, self.forget_in_child, self.lose_supervisor = (
            self._crew.dismiss,
            self._crew.forget_in_child,
            self._crew.lose_supervisor,
        )

    # What the executor asks for.

    def take(self, job: Job) -> None:
        """Let `job` wait for a runner."""
        self._waiting.append(job)

    def warm_up(self, count: int) -> None:
        """Keep `count` runners ready, within the slots."""
        self._kept = max(self._kept, min(count, self._limits.slots))

    def stop(self, key: tuple[Kind, int, int]) -> None:
        """End one attempt: TERM now, KILL after its grace. Does nothing for an attempt that has ended."""
        for job in [job for job in self._waiting if job.key == key]:
            self._waiting.remove(job)
            self._say(replace(self._caller.never_entered(job), end=End.STOPPED))
        for runner in self._crew.all(State.BUSY):
            if runner.job is not None and runner.job.key == key and not runner.is_stopping:
                self._crew.stop(runner, runner.job.kill_grace_us, runner.job.kill_boot_us)

    def close(self, *, kill: bool) -> None:
        """Take no more; with `kill`, end everything that runs as stopped, and what waits as never entered."""
        self._is_closing = True
        if not kill:
            return
        while self._waiting:
            self._say(self._caller.never_entered(self._waiting.popleft()))
        for runner in self._crew.all(State.BUSY):
            runner.is_stopping = True
            self._crew.end(runner)

    @property
    def is_over(self) -> bool:
        """Whether it was closed and every report is out."""
        return self._is_closing and not self._waiting and all(runner.job is None for runner in self._crew.all())

    @property
    def ready(self) -> int:
        """Count the runners that have imported the app."""
        return len(self._crew.all(State.IDLE, State.BUSY))

    @property
    def may_wait(self) -> int:
        """How many attempts may wait for a runner without missing anything: some while all are short, else none."""
        now_us = boot_us()
        busy = self._crew.all(State.BUSY)
        return self._pace.may_wait(self.ready, [now_us - runner.handed_boot_us for runner in busy])

    # Each turn of the thread.

    def look(self, now_us: int) -> None:
        """Do what is due, then hand out what waits."""
        for job in [job for job in self._waiting if _enter_by(job) <= now_us]:
            self._waiting.remove(job)
            self._say(self._caller.never_entered(job, "its time was over before a runner was free or ready"))
        self._crew.look(now_us)
        while self._hand_out():
            pass

    def next_look_boot_us(self) -> int | None:
        """Return the moment at which `look` is due, None where nothing is."""
        return min([*map(_enter_by, self._waiting), *self._crew.due_boot_us()], default=None)

    def _hand_out(self) -> bool:
        """Hand one attempt out or start one runner; False when there is nothing to do now."""
        active = len(self._crew.all(State.STARTING, State.IDLE, State.BUSY))
        is_failing = self._is_start_failing or any(runner.attempts == 0 for runner in self._crew.all(State.ENDING))
        is_missing = active < self._kept and not self._is_closing and not is_failing
        # Those that may wait for a runner need none of their own.
        is_needed = len(self._crew.all(State.STARTING)) < len(self._waiting) - self.may_wait and active < self._runners_max()
        idle = self._crew.all(State.IDLE)
        if not is_missing and not (self._waiting and (idle or is_needed)):
            return False
        try:
            link = self._crew.supervisor()
            if link.pending:
                return False  # it stopped reading: until it holds what it was told, nothing new may begin
            if self._waiting and idle:
                return self._hand(link, idle[-1])
            self._crew.spawn()
        except (OSError, ConfigurationError) as error:
            self.on_start_failed(f"no process could be started: {error}. Nothing was sent. See: settled doctor")
            return bool(self._waiting)
        self._kept = max(self._kept, active + 1)
        return True

    def _runners_max(self) -> int:
        limits = self._limits
        if limits.handler_slots is None or any(job.kind is Kind.PROBE for job in self._waiting):
            return limits.slots
        return min(limits.slots, limits.handler_slots)

    def _hand(self, link: SupervisorLink, runner: RunnerEnd) -> bool:
        """Hand the first waiting attempt to `runner`; False where the supervisor did not take its deadline."""
        job = self._waiting[0]
        link.arm(runner.number, job.deadline_boot_us, job.kill_boot_us)
        if link.line.at_end:
            self.lose_supervisor("its socket is closed")
            return True
        if link.pending:
            return False
        self._waiting.popleft()
        try:
            runner.hand(job, give_up_boot_us=job.kill_boot_us + self._limits.patience_us)
        except (WireError, ValueError) as error:
            link.disarm(runner.number)
            self._say(self._caller.never_entered(job, f"it cannot be handed to a runner: {error}"))
            return True
        if runner.line.pending:
            self._crew.watch(runner)
        return True

    # What the crew tells.

    def on_told(self, runner: RunnerEnd, told: Told) -> None:
        """A runner has said how its attempt ended."""
        if not keeps_runner(told.report):
            runner.report = told.report  # said once the runner is dead
            self._crew.end(runner)
            return
        job = told.report.job
        self._pace.ran(boot_us() - runner.handed_boot_us)
        runner.job = runner.give_up_boot_us = None
        # The supervisor is told first, or a slow listener could bring this deadline down on the next attempt.
        if runner.is_stopping or boot_us() + DEADLINE_MARGIN_US >= job.deadline_boot_us:
            self._crew.end(runner)
        elif runner.attempts >= self._limits.runner_attempts_max or told.bytes_max > self._limits.runner_bytes_max:
            self._crew.retire(runner)
        elif runner.state is State.BUSY:
            runner.state = State.IDLE
            self._crew.disarm(runner)
        self._is_start_failing = False
        self._say(spoken(told.report))

    def on_over(self, runner: RunnerEnd, how: str, *, is_buried: bool) -> None:
        """A runner says nothing any more: say what became of its attempt."""
        if runner.attempts == 0:
            self._is_start_failing = True  # an app that ends its process by itself must not keep us starting runners
        job, runner.job = runner.job, None
        if job is None:
            return
        self._pace.ran(boot_us() - runner.handed_boot_us)
        if runner.report is not None:
            self._say(spoken_and_over(runner.report, is_buried=is_buried, ended=self._clock()))
            return
        seen = Silence(
            marks=runner.marks,
            is_stopping=runner.is_stopping,
            is_buried=is_buried,
            is_overdue=boot_us() >= job.deadline_boot_us,
            phase=self._revoke(job),
            how=f"the runner process {how}",
            ended=self._clock(),
        )
        self._say(silent(job, seen))

    def on_start_failed(self, why: str) -> None:
        """No runner came of a start: tell one of those who wait, so that each start has one answer."""
        self._is_start_failing = True
        log.error("execution.runner_not_started", app=self._app_reference, error=why)
        if self._waiting:
            refused = self._caller.never_entered(self._waiting.popleft(), why)
            self._say(replace(refused, error_class=ConfigurationError.__name__))

    def _revoke(self, job: Job) -> Phase | None:
        if self._recorder is None or job.slot is None:
            return None
        try:
            return self._recorder.revoke(job.slot, job.row, job.attempt, announces_sending=job.announces_sending)
        except Exception:  # a recorder that cannot be asked proves nothing
            log.exception("execution.revoke_failed", operation_id=job.operation_id, attempt=job.attempt)
            return None


def _enter_by(job: Job) -> int:
    """Return the last moment at which `job` may be entered."""
    return job.deadline_boot_us if job.enter_by_boot_us is None else min(job.enter_by_boot_us, job.deadline_boot_us)

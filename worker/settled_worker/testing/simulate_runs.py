"""Handlers and probes of a simulated host: each goes on by small steps, and dies where its process or its machine dies.

Promise: entry and sending are contested in the real flight recorder, what the code gave is judged by the executors' own code,
and what left the machine goes on without it.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from settled.core.words import FenceBasis, Isolation
from settled.execution.calling import Caller
from settled.execution.context import AttemptRevoked, Marks, context_for
from settled.execution.endings import Silence, keeps_runner, silent, spoken, spoken_and_over
from settled.execution.job import End, Job, Kind, Report
from settled.execution.recorder import Recorder
from settled.testing.faults import Fault
from settled_worker.testing.simulate_world import Exchange, World

_HOW: Final = "was ended by SIGKILL"


@dataclass(slots=True, kw_only=True, eq=False)
class Run:
    """One attempt, or one probe, on the host. `tell` takes its report to its worker, which may be gone."""

    job: Job
    world: World
    recorder: Recorder
    tell: Callable[[Report], None]
    entered: bool = False
    exchange: Exchange | None = None
    given_up: bool = False
    stalled: bool = False  # it waits for something of its own, and does nothing meanwhile
    over: bool = False
    told: str = "claimed"
    marks: Marks = field(default_factory=Marks)
    _slept: bool = False
    _report: Report | None = None

    @property
    def in_process(self) -> bool:
        """Whether it has a process of its own, which outlives the worker and can be killed."""
        return self.job.isolation is Isolation.PROCESS

    @property
    def sent(self) -> bool:
        """Whether a request of it left."""
        return self.exchange is not None

    @property
    def has_read(self) -> bool:
        """Whether it is a probe that has read, and not answered yet."""
        return self.job.kind is Kind.PROBE and self._report is not None

    def go(self, choice: int) -> None:
        """Do the next thing: enter, send, take the answer; or, for a probe, read and answer."""
        if self.job.kind is Kind.PROBE:
            self._probe(choice)
        elif not self.entered:
            self._enter()
        elif self.exchange is None and not self._falls_asleep(choice // 8):
            self._send(choice)
        elif self.exchange is None:
            self.told = "falls asleep"
        elif self.exchange.done:
            self._end()
        else:
            self.told = "waits for its answer"

    def _falls_asleep(self, choice: int) -> bool:
        self.stalled, self._slept = not self._slept and self.world.falls_asleep(self.job, choice), True
        return self.stalled

    # ------------------------------------------------------------------ a handler's steps

    def _enter(self) -> None:
        job, now_us = self.job, self.world.clock.now().boot_us
        by_us = job.deadline_boot_us if job.enter_by_boot_us is None else min(job.enter_by_boot_us, job.deadline_boot_us)
        assert job.slot is not None
        if now_us <= by_us and self.recorder.enter(job.slot, job.row, job.attempt, by_us, lambda: now_us):
            self.entered, self.told = True, "enters"
            return
        self._say(self._caller.never_entered(job))
        self.over, self.told = True, "may not enter"

    def _send(self, choice: int) -> None:
        job = self.job
        assert job.slot is not None
        if job.announces_sending and not self.recorder.sending(job.slot, job.row, job.attempt):
            revoked = AttemptRevoked(job.operation_id, job.attempt, "another process has taken the operation over")
            self.exchange = Exchange(contract=job.contract, reference="", key=None, request={}, fault=Fault.NONE, done=True)
            self.exchange.answer = _raises(revoked)
            self.told = "may not send"
            self._end()
            return
        self.marks.sending = job.announces_sending
        self.exchange = self.world.send(job, json.loads(job.arguments), choice)
        self.told = f"sends ({self.exchange.fault})"

    def _end(self) -> None:
        job = self.job
        self.world.serving = self.exchange
        report = self._caller.call(job, self.world.contracts[job.contract], context_for(job, self.marks), self.marks)
        self.over, self.told = True, f"ends: {report.end}"
        if self.in_process:
            report = spoken(report) if keeps_runner(report) else spoken_and_over(report, is_buried=True, ended=self.world.clock.now())
        elif report.fence is None:
            report = report._replace(fence=FenceBasis.RAISED)
        if report.fence is FenceBasis.RETURNED and not self.given_up and job.slot is not None:
            self.recorder.returned(job.slot, job.row, job.attempt, announces_sending=job.announces_sending)
        self._say(report._replace(late=True) if self.given_up else report)

    # ------------------------------------------------------------------ a probe's steps

    def _probe(self, choice: int) -> None:
        if self._report is None:
            job = self.job
            self.world.troubled_reads(job.contract, choice)
            self._report = self._caller.call(job, self.world.contracts[job.contract], context_for(job, self.marks), self.marks)
            self.told = "reads, and falls asleep" if self._falls_asleep(choice // 8) else "reads"
            return
        answer = self._report.answer
        self.over, self.told = True, f"answers: {answer.status if answer is not None else self._report.error_class}"
        self._say(self._report._replace(ended=self.world.clock.now()))

    # ------------------------------------------------------------------ its end by others

    @property
    def limit_us(self) -> int | None:
        """When its own timer acts, on the boot clock; None where nothing acts any more."""
        if self.over or self.given_up:
            return None
        return self.job.kill_boot_us if self.in_process else self.job.deadline_boot_us

    def expire(self) -> None:
        """Let its time be over: a process is killed, a thread is given up and goes on."""
        if self.in_process:
            self.kill(is_overdue=True)
        else:
            self.give_up(End.TIMED_OUT)

    def stop(self) -> None:
        """Stop it because a person said so."""
        if self.in_process:
            self.kill(is_stopping=True)
        else:
            self.give_up(End.STOPPED)

    def give_up(self, end: End) -> None:
        """Wait for it no longer. Code that was entered goes on and reports late."""
        if self.over or self.given_up:
            return
        self.given_up = True
        if self.entered or self.job.kind is Kind.PROBE:
            self._say(self._caller.interrupted(self.job, end, self.marks))
            self.over = self.job.kind is Kind.PROBE
            return
        self.over = True
        report = self._caller.never_entered(self.job)
        self._say(report._replace(end=End.STOPPED) if end is End.STOPPED else report)

    def kill(self, *, is_stopping: bool = False, is_overdue: bool = False) -> None:
        """Kill its process; what is known of it then is told."""
        job = self.job
        if self.over:
            return
        self.over = True
        phase = None
        if job.slot is not None:
            phase = self.recorder.revoke(job.slot, job.row, job.attempt, announces_sending=job.announces_sending)
        stop = {"is_stopping": is_stopping, "is_unwanted": is_stopping}
        facts: dict[str, Any] = {**stop, "is_overdue": is_overdue, "phase": phase, "how": _HOW}
        self._say(silent(job, Silence(marks=self.marks, is_buried=True, ended=self.world.clock.now(), **facts)))

    @property
    def _caller(self) -> Caller:
        return Caller(clock=self.world.clock.now)

    def _say(self, report: Report) -> None:
        self.tell(report)


def _raises(error: BaseException) -> Callable[[], dict[str, Any]]:
    def answer() -> dict[str, Any]:
        raise error

    return answer

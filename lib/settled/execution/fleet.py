"""Decide which runner takes which attempts, and what each end means for an attempt. Owned by one thread.

Promise: an attempt is handed to a runner only after the supervisor holds a deadline that is not later than its own, and each
attempt that was taken gets exactly one report. What a runner said before it died counts; what it did not say is judged from the
flight recorder, under the slot's lock, never from silence. While attempts are short a runner has several in hand and enters one
after the other: what becomes of the one that runs never costs those behind it more than another claim.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from settled.clock import boot_us
from settled.core.errors import ConfigurationError
from settled.execution.calling import Caller
from settled.execution.contest import Contest, RevokeRecorder
from settled.execution.context import Marks
from settled.execution.crew import Crew, RunnerLimits, Watch
from settled.execution.endings import Silence, keeps_runner, silent, spoken, spoken_and_over
from settled.execution.handing import BEHIND_US_MAX, HANDED_MAX, Share, deal, enter_by
from settled.execution.job import End, Job, Kind, ReadClock, Report
from settled.execution.pace import SHORT_US, Pace
from settled.execution.recorder import Phase
from settled.execution.runner_end import RunnerEnd, State, Told
from settled.execution.waiting import Waiting
from settled.execution.wire import WireError
from settled.logs import get_log

log = get_log("settled.execution")

DEADLINE_MARGIN_US: Final = 5_000  # a runner whose attempt ended this close to its deadline may be about to get TERM


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
        self._app_reference, self._clock, self._limits, self._say = app_reference, clock, limits, say
        self._contest = Contest(recorder)
        self._caller = Caller(clock=clock)
        self._waiting = Waiting()
        self._pace = Pace()
        self._looked_boot_us, self._seen_ages_us = 0, list[int]()  # of what was under way when everything said until then had been heard
        self._kept = 0  # as many runners as were needed at once are kept ready
        self._is_start_failing = False  # then none is started ahead, only for an attempt
        self._is_closing = self._is_killing = False
        self.dismiss, self.forget_in_child, self.lose_supervisor = (
            self._crew.dismiss,
            self._crew.forget_in_child,
            self._crew.lose_supervisor,
        )

    # What the executor asks for.

    def take(self, job: Job) -> None:
        """Let `job` wait for a runner."""
        if job.kind is Kind.HANDLER:
            self._pace.takes(job.timeout_us)
        self._waiting.add(job)

    def warm_up(self, count: int) -> None:
        """Keep `count` runners ready, within the slots."""
        self._kept = max(self._kept, min(count, self._limits.slots))

    def stop(self, key: tuple[Kind, int, int]) -> None:
        """End one attempt: TERM now, KILL after its grace. Does nothing for an attempt that has ended."""
        waiting = self._waiting.remove(key)
        if waiting is not None:
            self._say_unwanted(waiting)
        for runner in self._crew.all(State.BUSY):
            if any(job.key == key for job in runner.in_hand):
                self._stop_in(runner, key)

    def close(self, *, kill: bool) -> None:
        """Take no more; with `kill`, end everything that runs as stopped, and what waits as never entered."""
        self._is_closing = True
        if not kill:
            return
        self._is_killing = True
        while self._waiting:
            self._say(self._caller.never_entered(self._waiting.take()))
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
        return self._pace.may_wait(self.ready, self._seen_ages_us)

    @property
    def is_crowded(self) -> bool:
        """Whether much is about to be said, so that it is better heard together."""
        return any(len(runner.behind) > 1 for runner in self._crew.all())

    # Each turn of the thread.

    def look(self, now_us: int) -> None:
        """Do what is due, then hand out what waits."""
        for job in self._waiting.remove_overdue(now_us):
            self._say(self._caller.never_entered(job, "its time was over before a runner was free or ready"))
        self._crew.look(now_us)
        for runner in self._crew.all(State.BUSY):
            if runner.behind and runner.is_slow_from_boot_us <= now_us:
                self._relieve(runner, now_us)
        self._seen_ages_us, self._looked_boot_us = self._ages_us(now_us), now_us
        while self._hand_out():
            pass
        self._crew.disarm_idle()

    def next_look_boot_us(self) -> int | None:
        """Return the moment at which `look` is due, None where nothing is."""
        busy = self._crew.all(State.BUSY)
        slow = [runner.is_slow_from_boot_us for runner in busy if runner.behind]
        slow += [runner.began_boot_us + SHORT_US for runner in busy if runner.began_boot_us + SHORT_US > self._looked_boot_us]
        waiting = [] if self._waiting.due_boot_us is None else [self._waiting.due_boot_us]
        return min([*waiting, *slow, *self._crew.due_boot_us()], default=None)

    def _relieve(self, runner: RunnerEnd, now_us: int) -> None:
        """What it runs takes its time: nothing goes on waiting behind it."""
        self._crew.listen(runner)
        if runner.is_slow_from_boot_us <= now_us:
            runner.is_slow_from_boot_us = now_us + BEHIND_US_MAX  # until it is looked at again, where one was not to be had back
            self._take_back(runner, "the attempt ahead of it took too long")

    def _hand_out(self) -> bool:
        """Hand attempts out or start one runner; False when there is nothing to do now."""
        active = len(self._crew.all(State.STARTING, State.IDLE, State.BUSY))
        shares = self._deal()
        if not shares and not self._is_missing(active) and not self._is_needed(active):
            return False
        try:
            link = self._crew.supervisor()
            if link.pending:
                return False  # it stopped reading: until it holds what it was told, nothing new may begin
            if shares:
                return self._hand(shares)
            self._crew.spawn()
        except (OSError, ConfigurationError) as error:
            self.on_start_failed(f"no process could be started: {error}. Nothing was sent. See: settled doctor")
            return bool(self._waiting)
        self._kept = max(self._kept, active + 1)
        return True

    def _is_missing(self, active: int) -> bool:
        """Whether fewer runners are there than are kept ready."""
        is_failing = self._is_start_failing or any(runner.attempts == 0 for runner in self._crew.all(State.ENDING))
        return active < self._kept and not self._is_closing and not is_failing

    def _is_needed(self, active: int) -> bool:
        """Whether some wait for a runner that is not there. Those that may wait for one need none of their own."""
        waiting = len(self._waiting) + sum(len(runner.behind) for runner in self._crew.all())
        starting = len(self._crew.all(State.STARTING))
        return bool(self._waiting) and starting < waiting - self.may_wait and active < self._runners_max()

    def _runners_max(self) -> int:
        limits = self._limits
        if limits.handler_slots is None or any(job.kind is Kind.PROBE for job in self._waiting):
            return limits.slots
        return min(limits.slots, limits.handler_slots)

    def _deal(self) -> list[Share]:
        """Choose who gets what of that which waits."""
        if not self._waiting:
            return []
        now_us, attempts_max = boot_us(), self._limits.runner_attempts_max
        able = [runner for runner in reversed(self._crew.all(State.IDLE, State.BUSY)) if self._is_able(runner, now_us)]
        if not able:
            return []
        ahead = self._pace.may_wait_in_hand(self._ages_us(now_us)) if self._contest.is_held else 0
        shares = [Share(runner, min(1 + ahead, HANDED_MAX, attempts_max - runner.attempts)) for runner in able]
        return deal(self._waiting, shares, now_us)

    def _is_able(self, runner: RunnerEnd, now_us: int) -> bool:
        """Whether it may be handed more."""
        if runner.state is State.BUSY:
            return not runner.is_stopping and runner.job is not None and not runner.line.pending
        if runner.armed_boot_us is not None and runner.armed_boot_us[0] - DEADLINE_MARGIN_US <= now_us:
            self._crew.end(runner)  # the deadline of an earlier attempt is upon it
            return False
        return True

    def _ages_us(self, now_us: int) -> list[int]:
        return [now_us - runner.began_boot_us for runner in self._crew.all(State.BUSY)]

    def _hand(self, shares: list[Share]) -> bool:
        """Hand each its share; False where the supervisor did not take the deadlines."""
        for share in shares:
            self._crew.keep_time(share.runner, share.runner.job or share.jobs[0])
        if not self._crew.is_told():
            return not self._crew.has_supervisor  # lost: another one is started
        for _ in range(sum(len(share.jobs) for share in shares)):
            self._waiting.take()
        for share in shares:
            self._hand_share(share.runner, share.jobs)
        return True

    def _hand_share(self, runner: RunnerEnd, jobs: list[Job]) -> None:
        for job in jobs:
            try:
                runner.hand(job, enter_by(job, runner.job))
            except (WireError, ValueError) as error:
                self._say(self._caller.never_entered(job, f"it cannot be handed to a runner: {error}"))
        if runner.job is None:
            self._crew.rest(runner)
        else:
            self._crew.push(runner)

    # Taking back.

    def _take_back(self, runner: RunnerEnd, why: str) -> bool:
        """Take back what waits behind the first in hand; False where one of those is entered already, and so the first has ended."""
        behind, runner.behind = runner.behind, deque()
        is_entered = False
        for job in behind:
            phase = self._contest.revoke(job)
            if phase is Phase.CLAIMED:
                self._say(self._caller.never_entered(job, why))
            else:  # None: it cannot be had back now
                runner.behind.append(job)
                is_entered = is_entered or phase is not None
        return not is_entered

    def _stop_in(self, runner: RunnerEnd, key: tuple[Kind, int, int]) -> None:
        """Stop one of those that `runner` has in hand."""
        waiting = next((job for job in runner.behind if job.key == key), None)
        if waiting is not None and self._contest.revoke(waiting) is Phase.CLAIMED:
            runner.behind.remove(waiting)
            self._say_unwanted(waiting)
            return
        self._crew.listen(runner)  # what is entered is the first by then: those ahead of it told their ends before
        if any(job.key == key for job in runner.in_hand):
            runner.unwanted.add(key)
            self._stop_unwanted(runner)

    def _stop_unwanted(self, runner: RunnerEnd) -> None:
        """Stop the first in hand if a person said so. First of all nothing behind it may be entered: TERM would hit that instead."""
        first = runner.job
        if first is None or first.key not in runner.unwanted or runner.is_stopping or runner.state is not State.BUSY:
            return
        if self._take_back(runner, "the attempt ahead of it was stopped together with its runner"):
            self._crew.stop(runner, first.kill_grace_us, first.kill_boot_us)

    def _say_unwanted(self, job: Job) -> None:
        self._say(self._caller.never_entered(job)._replace(end=End.STOPPED))

    # What the crew tells.

    def on_told(self, runner: RunnerEnd, told: Told) -> None:
        """A runner has said how the first in its hands ended."""
        report = told.report
        if not keeps_runner(report):
            runner.report = report  # said once the runner is dead
            self._crew.end(runner)
            return
        self._pace.ran(max(0, report.ended.boot_us - runner.began_boot_us))
        runner.go_on(report.ended.boot_us)
        # The supervisor is told first, or a slow listener could bring this deadline down on the next attempt.
        self._use_further(runner, report.job, told.bytes_max)
        self._is_start_failing = False
        self._say(spoken(report))

    def _use_further(self, runner: RunnerEnd, ended: Job, bytes_max: int) -> None:
        """Let a runner go on with what is behind, rest, or leave."""
        if runner.state is not State.BUSY:
            return
        is_idle, is_used_up = runner.job is None, bytes_max > self._limits.runner_bytes_max
        held_us = ended.deadline_boot_us if runner.armed_boot_us is None else runner.armed_boot_us[0]
        if runner.is_stopping or (is_idle and boot_us() + DEADLINE_MARGIN_US >= held_us):
            self._crew.end(runner)
        elif is_used_up or (is_idle and runner.attempts >= self._limits.runner_attempts_max):
            self._crew.retire(runner)  # what it still has in hand it does not enter: that is found once it is gone
        elif is_idle:
            self._crew.rest(runner)
        else:
            self._crew.go_on(runner)
            self._stop_unwanted(runner)

    def on_over(self, runner: RunnerEnd, how: str, *, is_buried: bool) -> None:
        """A runner says nothing any more: say what became of the first in its hands, and of those that waited there."""
        if runner.attempts == 0:
            self._is_start_failing = True  # an app that ends its process by itself must not keep us starting runners
        job, behind, runner.job = runner.job, list(runner.behind), None
        runner.behind.clear()
        if job is None:
            return
        self._pace.ran(boot_us() - runner.began_boot_us)
        # Nobody can enter any more what waited in a runner that is buried: it may go to another.
        untouched = [each for each in behind if is_buried and not self._is_killing and self._contest.is_untouched(each)]
        self._waiting.put_back(untouched)
        for each in behind:
            if each not in untouched:
                self._say(self._judge_silence(runner, each, Marks(), how, is_buried=is_buried))
        if runner.report is not None:
            self._say(spoken_and_over(runner.report, is_buried=is_buried, ended=self._clock()))
        else:
            self._say(self._judge_silence(runner, job, runner.marks, how, is_buried=is_buried))

    def _judge_silence(self, runner: RunnerEnd, job: Job, marks: Marks, how: str, *, is_buried: bool) -> Report:
        seen = Silence(
            marks=marks,
            is_stopping=runner.is_stopping,
            is_unwanted=job.key in runner.unwanted,
            is_buried=is_buried,
            is_overdue=boot_us() >= job.deadline_boot_us,
            phase=self._contest.revoke(job, announces_sending=job.announces_sending),
            how=f"the runner process {how}",
            ended=self._clock(),
        )
        return silent(job, seen)

    def on_start_failed(self, why: str) -> None:
        """No runner came of a start: tell one of those who wait, so that each start has one answer."""
        self._is_start_failing = True
        log.error("execution.runner_not_started", app=self._app_reference, error=why)
        if self._waiting:
            refused = self._caller.never_entered(self._waiting.take(), why)
            self._say(refused._replace(error_class=ConfigurationError.__name__))

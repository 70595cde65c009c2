"""Know which attempts run in this process, and who may speak for each: its own end, its deadline, or a person's stop.

Promise: each attempt gets exactly one first report, whoever comes first, and at most one late one. A report that the code
was never entered is true: entry is contested here and, where there is a flight recorder, under the slot's lock.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

from settled.clock import boot_us
from settled.core.words import FenceBasis
from settled.execution.calling import Caller
from settled.execution.context import Marks, ProbeContext, context_for
from settled.execution.deadlines import NEVER_US, Deadlines
from settled.execution.job import Arrived, End, Job, Kind, Report
from settled.execution.pace import WAITING_PER_THREAD_MAX, Pace
from settled.logs import get_log

LINGER_LOOK_US: Final = 500_000
LINGERS: Final = frozenset({End.RAISED, End.NEEDS_REVIEW})  # a rejected or unsent attempt is closed and needs no fence
LINGERING_MAX: Final = 256  # beyond it an attempt's fence simply stays unproven: the safe side

log = get_log("settled.execution")


class EntryRecorder(Protocol):
    """The part of the flight recorder that contests entry and sending."""

    def enter(self, slot: int, row: int, attempt: int, enter_by_us: int, now_us: Callable[[], int]) -> bool: ...
    def sending(self, slot: int, row: int, attempt: int) -> bool: ...
    def returned(self, slot: int, row: int, attempt: int, *, announces_sending: bool) -> None: ...


class Run:
    """One attempt under way in this process."""

    __slots__ = ("entered", "entered_boot_us", "given_up", "job", "key", "marks", "withdrawn")

    def __init__(self, job: Job) -> None:
        self.job, self.key = job, job.key
        self.marks = Marks()
        self.entered = False  # the code may have been called
        self.entered_boot_us = 0
        self.given_up = False  # the first report went out without the code having ended
        self.withdrawn = False  # it may not be entered any more, and the report of that is on its way


class Lingering:
    """An attempt that raised and left something running: its fence waits until nothing is left."""

    __slots__ = ("is_left", "report")

    def __init__(self, report: Report, is_left: Callable[[], bool]) -> None:
        self.report, self.is_left = report, is_left


class Runs:
    """The attempts of one executor. `gave_up` is told of each run whose code goes on without us."""

    def __init__(
        self,
        *,
        caller: Caller,
        arrived: Arrived,
        deadlines: Deadlines,
        recorder: EntryRecorder | None,
        gave_up: Callable[[Run], None],
    ) -> None:
        self._caller, self._arrived, self._deadlines, self._recorder, self._gave_up = caller, arrived, deadlines, recorder, gave_up
        self._lock = threading.Lock()
        self._running: dict[tuple[Kind, int, int], Run] = {}
        self._lingering: list[Lingering] = []
        self._abandoned: Counter[str] = Counter()
        self._pace = Pace(WAITING_PER_THREAD_MAX)
        deadlines.register(self.expire)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def abandoned(self) -> int:
        return sum(self._abandoned.values())

    def abandoned_of(self, contract: str) -> int:
        return self._abandoned[contract]

    def may_wait(self, places: int) -> int:
        """Return how many more attempts than `places` may be taken, to wait their turn: some while all are short, else none."""
        now_us = boot_us()
        with self._lock:
            entered_us = [run.entered_boot_us for run in self._running.values()]
        return self._pace.may_wait(places, [now_us - since_us for since_us in entered_us if since_us])

    def add(self, job: Job) -> Run:
        """Take charge of `job`. Raises ValueError for an attempt that is already here."""
        run = Run(job)
        with self._lock:
            if run.key in self._running:
                raise ValueError(f"attempt {job.attempt} of operation {job.operation_id!r} is running already. It was not started again.")
            self._running[run.key] = run
            self._pace.takes(job.timeout_us)
        self._deadlines.notice(job.deadline_boot_us)
        return run

    def refuse(self, run: Run, why: str) -> None:
        """Report that `run` could not be entered at all. A run given up before was reported as never entered already."""
        with self._lock:
            if run.given_up:
                return
            del self._running[run.key]
        self._say(self._caller.never_entered(run.job, why))

    def enter(self, run: Run) -> bool:
        """Contest the entry. False: the code must not be called, and the report of that is out."""
        job = run.job
        with self._lock:
            if run.given_up or run.withdrawn:
                return False  # never entered, and reported so
            run.entered = True
        run.entered_boot_us = boot_us()
        allowed = self._is_allowed(job, run.entered_boot_us)
        if allowed and not run.given_up:
            return True
        self.end(run, self._caller.never_entered(job))
        return False

    def context(self, run: Run) -> ProbeContext:
        """Return the `ctx` for the code of `run`."""
        return context_for(run.job, run.marks, ask_sending=lambda: self._may_send(run.job), given_up=lambda: run.given_up)

    def end(self, run: Run, report: Report, *, is_left: Callable[[], bool] | None = None) -> bool:
        """Send the report of an ended run; return False when it was late. `is_left` says whether something of it still runs."""
        if report.fence is None and (is_left is None or not is_left()):
            report = report._replace(fence=FenceBasis.RAISED)
        with self._lock:
            in_time = not run.given_up
            if in_time:
                del self._running[run.key]
            else:
                self._abandoned[run.job.contract] -= 1
        if in_time and run.entered_boot_us:
            self._pace.ran(boot_us() - run.entered_boot_us)
        if in_time and report.fence is FenceBasis.RETURNED:
            self._note_return(run.job)
        self._say(report if in_time else report._replace(late=True))
        if is_left is not None and report.fence is None and report.end in LINGERS:
            self._linger(report, is_left)
        return in_time

    def expire(self, now_us: int) -> int:
        """Give up every run whose deadline has come; return the next moment at which to look, NEVER_US for none."""
        with self._lock:
            due = [run for run in self._running.values() if run.job.deadline_boot_us <= now_us]
        for run in due:
            self._give_up(run, End.TIMED_OUT)
        self._look_at_lingering()
        with self._lock:
            earliest = min((run.job.deadline_boot_us for run in self._running.values()), default=NEVER_US)
            return min(earliest, now_us + LINGER_LOOK_US) if self._lingering else earliest

    def stop(self, key: tuple[Kind, int, int]) -> bool:
        """Give up one run because a person said so. False: it is not here."""
        run = self._running.get((key[0], key[1], key[2]))
        return run is not None and self._give_up(run, End.STOPPED)

    def stop_all(self) -> None:
        """Give up every run, for a shutdown. What waits goes first, or it would be entered in the places that the others leave."""
        with self._lock:
            runs = sorted(self._running.values(), key=lambda run: run.entered)
            for run in runs:
                run.withdrawn = not run.entered
        for run in runs:
            self._give_up(run, End.NEVER_ENTERED if run.withdrawn else End.STOPPED)

    def _give_up(self, run: Run, end: End) -> bool:
        with self._lock:
            if run.given_up or self._running.get(run.key) is not run:
                return False
            run.given_up = True
            del self._running[run.key]
            entered = run.entered
            if entered:
                self._abandoned[run.job.contract] += 1
        if entered:
            self._pace.ran(boot_us() - run.entered_boot_us if run.entered_boot_us else run.job.timeout_us)
            self._say(self._caller.interrupted(run.job, end, run.marks))
            self._gave_up(run)  # not before: what it ends reports late, and the first report must be out by then
            return True
        report = self._caller.never_entered(run.job)
        # A person's stop stays a stop: what was never entered by itself would be dispatched again.
        self._say(report._replace(end=End.STOPPED) if end is End.STOPPED else report)
        return True

    def _is_allowed(self, job: Job, now_us: int) -> bool:
        enter_by_us = job.deadline_boot_us if job.enter_by_boot_us is None else min(job.enter_by_boot_us, job.deadline_boot_us)
        if now_us > enter_by_us:
            return False
        if self._recorder is None or job.slot is None:
            return True
        try:
            return self._recorder.enter(job.slot, job.row, job.attempt, enter_by_us, boot_us)
        except Exception:  # without the slot nobody may enter: another process may be believing that nobody did
            log.exception("execution.entry_failed", operation_id=job.operation_id, attempt=job.attempt)
            return False

    def _note_return(self, job: Job) -> None:
        if self._recorder is None or job.slot is None:
            return
        try:
            self._recorder.returned(job.slot, job.row, job.attempt, announces_sending=job.announces_sending)
        except Exception:  # a note for whoever comes after a crash; without it that attempt is only looked at longer
            log.exception("execution.return_not_noted", operation_id=job.operation_id, attempt=job.attempt)

    def _may_send(self, job: Job) -> bool:
        if self._recorder is None or job.slot is None:
            return True
        return self._recorder.sending(job.slot, job.row, job.attempt)

    def _linger(self, report: Report, is_left: Callable[[], bool]) -> None:
        with self._lock:
            if len(self._lingering) < LINGERING_MAX:
                self._lingering.append(Lingering(report._replace(end=End.RAISED, late=True), is_left))
        self._deadlines.notice(boot_us() + LINGER_LOOK_US)

    def _look_at_lingering(self) -> None:
        with self._lock:
            waiting = list(self._lingering)
        gone = [each for each in waiting if not each.is_left()]
        if not gone:
            return
        with self._lock:
            self._lingering = [each for each in self._lingering if each not in gone]
        for each in gone:
            self._say(each.report._replace(fence=FenceBasis.RAISED, ended=self._caller.now()))

    def _say(self, report: Report) -> None:
        try:
            self._arrived(report)
        except Exception:  # the one who is told must not take the thread of the attempts with it
            log.exception("execution.report_not_taken", operation_id=report.job.operation_id, end=report.end.value)


class Counting:
    """What an executor whose code runs in this process says of its attempts."""

    _runs: Runs

    @property
    def running(self) -> int:
        return self._runs.running

    @property
    def abandoned(self) -> int:
        return self._runs.abandoned

    def abandoned_of(self, contract: str) -> int:
        """Count the abandoned attempts of one contract."""
        return self._runs.abandoned_of(contract)

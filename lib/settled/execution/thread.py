"""Run attempts in daemon threads of this process: quick, but only our waiting is bounded, never the code itself.

Promise: an attempt that outlasts its deadline is reported at once, without a fence; its thread gives its place to a fresh
one, and what becomes of the code is reported late.
"""

from __future__ import annotations

import contextvars
import threading
from queue import SimpleQueue

from settled.execution.calling import Caller
from settled.execution.deadlines import Deadlines
from settled.execution.job import Arrived, Job, Kind, Report, Resolve
from settled.execution.leftovers import OUR_THREADS, watch_for_leftovers
from settled.execution.runs import Counting, EntryRecorder, Run, Runs
from settled.logs import get_log

log = get_log("settled.execution")


class ThreadExecutor(Counting):
    """Threads on demand, at most `slots` that have not been abandoned, used again and again."""

    def __init__(
        self,
        *,
        resolve: Resolve,
        arrived: Arrived,
        caller: Caller,
        deadlines: Deadlines,
        slots: int,
        recorder: EntryRecorder | None = None,
        incarnation: str | None = None,
        name: str = "thread",
    ) -> None:
        self._resolve, self._caller = resolve, caller
        self._slots, self._incarnation, self._name = slots, incarnation, name
        self._queue: SimpleQueue[Run | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._places = 0  # threads that take work
        self._closed = False
        self._runs = Runs(caller=caller, arrived=arrived, recorder=recorder, gave_up=self._leave_place, deadlines=deadlines)

    @property
    def may_wait(self) -> int:
        """How many attempts may be started beyond the threads that are free."""
        return self._runs.may_wait(self._slots)

    def start(self, job: Job) -> None:
        """Hand `job` to a thread. More jobs than slots wait, and may find their deadline over: then they never enter."""
        if self._closed:
            raise RuntimeError(f"attempt {job.attempt} of operation {job.operation_id!r} was not started: the executor is closed")
        run = self._runs.add(job)
        self._queue.put(run)
        if self._places < self._slots and self._runs.running > self._places:
            self._add_place()

    def stop(self, key: tuple[Kind, int, int]) -> None:
        """Stop waiting for one attempt because a person said so. The code cannot be stopped and goes on."""
        self._runs.stop(key)

    def close(self, *, kill: bool) -> None:
        """Take no more work. With `kill`, stop waiting for what runs; else it ends and reports as usual."""
        self._closed = True
        if kill:
            self._runs.stop_all()
        with self._lock:
            places = self._places
        for _ in range(places):
            self._queue.put(None)

    def _add_place(self) -> None:
        with self._lock:
            if self._places >= self._slots:
                return
            thread = threading.Thread(target=self._serve, name=f"{OUR_THREADS}{self._name}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the system has no thread left: the run waits for a place, bounded by its deadline
                log.warning("execution.no_thread", error=str(error), places=self._places)
                return
            self._places += 1

    def _leave_place(self, run: Run) -> None:
        """Give the place of an abandoned thread to a fresh one."""
        with self._lock:
            self._places -= 1
        if not self._queue.empty():
            self._add_place()

    def _serve(self) -> None:
        while (run := self._queue.get()) is not None:
            # A context of its own: what one attempt binds to a context variable must not reach the next.
            if not contextvars.Context().run(self._serve_one, run):
                return

    def _serve_one(self, run: Run) -> bool:
        """Run one attempt; return False when this thread has lost its place meanwhile."""
        job = run.job
        try:
            contract = self._resolve(job.contract)
        except Exception as error:  # noqa: BLE001 - an unknown contract is no reason to end the thread
            self._runs.refuse(run, f"{type(error).__name__}: {error}")
            return True
        if not self._runs.enter(run):
            return not (run.entered and run.given_up)
        report: Report = self._caller.call(job, contract, self._runs.context(run), run.marks)
        if report.fence is not None:
            return self._runs.end(run, report)
        return self._runs.end(run, report, is_left=watch_for_leftovers(run.entered_boot_us, self._incarnation))

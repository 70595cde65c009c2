"""Run one job for a caller that waits for it, and for nobody else.

Promise: whatever interrupts the waiting thread stops the code and is handed back beside the report, so that the end is
recorded first and the interrupt passed on after it.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from settled.execution.job import Arrived, Job, Key, Kind, Report
from settled.execution.pool import Execution

STOP_LOOK_SECONDS: Final = 0.25
STOPPED_PATIENCE_SECONDS: Final = 10.0
_INTERRUPTS: Final[dict[str, type[BaseException]]] = {
    "KeyboardInterrupt": KeyboardInterrupt,
    "SystemExit": SystemExit,
    "CancelledError": asyncio.CancelledError,
}


class Ran(NamedTuple):
    """The report of a job, the interrupt that is to be passed on once it is recorded, and whether a person had it stopped."""

    report: Report
    interrupt: BaseException | None
    by_person: bool


class Calls:
    """The jobs that callers of this process wait for. A report that nobody waits for goes to `late`."""

    def __init__(self, late: Arrived) -> None:
        self._late = late
        self._lock = threading.Lock()
        self._waiting: dict[Key, queue.SimpleQueue[Report]] = {}

    def arrived(self, report: Report) -> None:
        """Take a report from an executor, on any thread."""
        with self._lock:
            answers = None if report.late else self._waiting.pop(report.job.key, None)
        if answers is not None:
            answers.put(report)
        else:
            self._late(report)

    def knows(self, row: int, attempt: int) -> bool:
        """Whether a caller waits for this attempt's handler."""
        with self._lock:
            return Key(Kind.HANDLER, row, attempt) in self._waiting

    def run(self, execution: Execution, job: Job, stop_wanted: Callable[[], bool] | None = None) -> Ran:
        """Start the job and wait for its report; `stop_wanted` is asked now and then until it says yes."""
        answers: queue.SimpleQueue[Report] = queue.SimpleQueue()
        key = job.key
        with self._lock:
            self._waiting[key] = answers
        interrupt: BaseException | None = None
        try:
            try:
                execution.start(job)
            except Exception:
                raise
            except BaseException as error:  # noqa: BLE001 - the handler may have begun: as for an interrupt of the wait
                interrupt = error
                execution.stop(job.key)
            return self._wait(execution, job, answers, stop_wanted, interrupt)
        finally:
            self._leave(key, answers)

    def _wait(
        self,
        execution: Execution,
        job: Job,
        answers: queue.SimpleQueue[Report],
        stop_wanted: Callable[[], bool] | None,
        interrupt: BaseException | None,
    ) -> Ran:
        by_person = False
        while True:
            try:
                report = _next(answers, _patience(job, stop_wanted is not None and not by_person, interrupt))
                if report is not None:
                    return Ran(report, interrupt or interrupt_of(report), by_person)
                if interrupt is not None:
                    break
                if stop_wanted is not None and stop_wanted():
                    by_person = True
                    execution.stop(job.key)
            except BaseException as error:  # noqa: BLE001 - KeyboardInterrupt and its like: record first, then pass it on
                interrupt = error
                execution.stop(job.key)
        raise interrupt

    def _leave(self, key: Key, answers: queue.SimpleQueue[Report]) -> None:
        """Where an interrupt hit before the wait, or twice: the report, when it comes, is for `late`, and not lost."""
        with self._lock:
            self._waiting.pop(key, None)
        if not answers.empty():
            self._late(answers.get())


def _patience(job: Job, looks: bool, interrupt: BaseException | None) -> float | None:
    """Return how many seconds to wait for a report before something else is to be done; None = until it comes."""
    if interrupt is not None:  # what is stopped ends within its grace; whoever interrupts must not wait for ever
        return job.kill_grace_us / 1_000_000 + STOPPED_PATIENCE_SECONDS
    return STOP_LOOK_SECONDS if looks else None


def _next(answers: queue.SimpleQueue[Report], seconds: float | None) -> Report | None:
    try:
        return answers.get(timeout=seconds)
    except queue.Empty:
        return None


def interrupt_of(report: Report) -> BaseException | None:
    """Return the cancellation or exit that ended the code itself."""
    kind = _INTERRUPTS.get(report.interrupt or "")
    if kind is None:
        return None
    text = report.error_text or ""
    return SystemExit(int(text)) if kind is SystemExit and text.isdecimal() else kind(text)

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

from settled.execution.job import Arrived, Job, Key, Report
from settled.execution.pool import Execution

STOP_LOOK_SECONDS: Final = 0.25
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

    def run(self, execution: Execution, job: Job, stop_wanted: Callable[[], bool] | None = None) -> Ran:
        """Start the job and wait for its report; `stop_wanted` is asked now and then until it says yes."""
        answers: queue.SimpleQueue[Report] = queue.SimpleQueue()
        with self._lock:
            self._waiting[job.key] = answers
        interrupt: BaseException | None = None
        by_person = False
        execution.start(job)
        while True:
            try:
                report = answers.get(timeout=None if stop_wanted is None or by_person else STOP_LOOK_SECONDS)
                return Ran(report, interrupt or interrupt_of(report), by_person)
            except queue.Empty:
                if stop_wanted is not None and stop_wanted():
                    by_person = True
                    execution.stop(job.key)
            except BaseException as error:  # noqa: BLE001 - KeyboardInterrupt and its like: record first, then pass it on
                interrupt = error
                execution.stop(job.key)


def interrupt_of(report: Report) -> BaseException | None:
    """Return the cancellation or exit that ended the code itself."""
    kind = _INTERRUPTS.get(report.interrupt or "")
    if kind is None:
        return None
    text = report.error_text or ""
    return SystemExit(int(text)) if kind is SystemExit and text.isdecimal() else kind(text)

"""Read what one runner says: the worker's end of its socket, and the attempt that it has in hand.

Promise: only words about the attempt in hand count, each of its exact shape; a runner that says anything else is not listened
to any further. What a thread left behind by an earlier attempt says is passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from settled.clock import boot_us
from settled.execution.context import Marks
from settled.execution.endings import may_be_said
from settled.execution.job import Job, Report
from settled.execution.wire import Line, Message, WireError, job_to_wire, report_from_wire


class State(Enum):
    """What a runner can be used for."""

    STARTING = auto()
    IDLE = auto()
    BUSY = auto()
    ENDING = auto()  # no more attempts; the supervisor's `gone` is awaited


@dataclass(frozen=True, slots=True)
class Ready:
    """The app was imported, or why it was not."""

    error: str | None


@dataclass(frozen=True, slots=True)
class Told:
    """The end of the attempt in hand, as the runner saw it."""

    report: Report
    bytes_max: int  # the most memory that the runner has held


@dataclass(slots=True, eq=False)
class RunnerEnd:
    """One runner as the worker knows it."""

    number: int
    line: Line
    give_up_boot_us: int | None  # when the supervisor's word on it is overdue
    state: State = State.STARTING
    job: Job | None = None
    marks: Marks = field(default_factory=Marks)
    report: Report | None = None  # what it said, held back until it is dead
    is_stopping: bool = False
    is_believed: bool = True  # until it says something that cannot be understood
    attempts: int = 0
    handed_boot_us: int = 0

    def hand(self, job: Job, give_up_boot_us: int) -> None:
        """Put `job` into its hands. Raises WireError or ValueError, and then it has not got it."""
        self.line.send({"job": job_to_wire(job)})
        self.state, self.job, self.marks = State.BUSY, job, Marks()
        self.attempts += 1
        self.give_up_boot_us, self.handed_boot_us = give_up_boot_us, boot_us()

    def listen(self) -> Iterator[Ready | Told]:
        """Yield what it has said meanwhile; announcements go to `marks`. Raises WireError at nonsense, `line.at_end` after the last."""
        try:
            for message in self.line.receive() if self.is_believed else ():
                word = self._understand(message)
                if word is not None:
                    yield word
        except WireError:
            self.is_believed, self.line.at_end = False, True
            raise

    def _understand(self, message: Message) -> Ready | Told | None:
        job = self.job
        if "ready" in message:
            return Ready(None if message["ready"] is True else str(message.get("error_text")))
        if job is None or message.get("key") != list(job.key):
            return None
        if "report" in message:
            report, bytes_max = report_from_wire(message["report"], job), message.get("rss_bytes_max")
            if not may_be_said(report) or type(bytes_max) is not int:
                raise WireError(f"a runner cannot end an attempt as {report.end.value}")
            return Told(report, bytes_max)
        if message.get("sending") is True:
            self.marks.sending = True
        elif type(message.get("provider_operation_id")) is str:
            self.marks.provider_operation_id = message["provider_operation_id"]
        return None

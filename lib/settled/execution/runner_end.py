"""Read what one runner says: the worker's end of its socket, and the attempts that it has in hand.

Promise: a runner enters what it was handed one by one, in that order, and only words about the first that has not ended count,
each of its exact shape; a runner that says anything else is not listened to any further. What a thread left behind by an earlier
attempt says is passed over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from settled.clock import boot_us
from settled.execution.context import Marks
from settled.execution.endings import may_be_said
from settled.execution.handing import BEHIND_US_MAX
from settled.execution.job import Job, Kind, Report
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
    """The end of the first attempt in hand, as the runner saw it."""

    report: Report
    bytes_max: int  # the most memory that the runner has held


@dataclass(slots=True, eq=False)
class RunnerEnd:
    """One runner as the worker knows it."""

    number: int
    line: Line
    give_up_boot_us: int | None  # when the supervisor's word on it is overdue
    armed_boot_us: tuple[int, int] | None  # when the supervisor TERMs and KILLs it, unless it is told otherwise before
    state: State = State.STARTING
    job: Job | None = None  # the first in hand: it may be running
    behind: deque[Job] = field(default_factory=deque)  # handed too: none is entered before all ahead of it have ended
    marks: Marks = field(default_factory=Marks)  # of the first
    began_boot_us: int = 0  # when the first could begin: it was handed, and the one before it had ended
    is_slow_from_boot_us: int = 0  # from then on nothing goes on waiting behind the first
    report: Report | None = None  # what it said of the first, held back until it is dead
    unwanted: set[tuple[Kind, int, int]] = field(default_factory=set)  # those in hand that a person wants stopped
    is_stopping: bool = False
    is_believed: bool = True  # until it says something that cannot be understood
    attempts: int = 0

    @property
    def in_hand(self) -> tuple[Job, ...]:
        """What it was handed and has not ended, in this order."""
        return () if self.job is None else (self.job, *self.behind)

    def hand(self, job: Job, enter_by_boot_us: int) -> None:
        """Queue `job` for its hands; the next push takes it there. Raises WireError or ValueError, and then it will not get it."""
        self.line.queue({"job": job_to_wire(job, enter_by_boot_us)})
        self.attempts += 1
        if self.job is None:
            self.state = State.BUSY
            self._begin(job, boot_us())
        else:
            self.behind.append(job)

    def go_on(self, ended_boot_us: int) -> None:
        """The first has ended: what was handed next is the first now."""
        self._begin(self.behind.popleft() if self.behind else None, max(self.began_boot_us, ended_boot_us))

    def _begin(self, job: Job | None, now_us: int) -> None:
        self.job, self.marks = job, Marks()
        self.began_boot_us, self.is_slow_from_boot_us = now_us, now_us + BEHIND_US_MAX

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
        if job is None or self.report is not None or message.get("key") != [job.kind, job.row, job.attempt]:
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

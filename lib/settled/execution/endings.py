"""Judge how an attempt in a runner process ended, and what that proves. Pure: facts in, Report out.

Promise: what a runner said counts as it was said; silence is never read as "nothing happened", unless the flight recorder's
slot was taken away from the attempt under its lock.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Final

from settled.core.moment import Moment
from settled.core.words import FenceBasis
from settled.execution.context import Marks
from settled.execution.job import End, Job, Kind, Report
from settled.execution.recorder import Phase

# After any other end something of the attempt may be left in the runner: it is killed before the fence is written.
KEEPS_RUNNER: Final = frozenset({End.RETURNED, End.ANSWERED, End.REJECTED, End.NOT_SENT, End.NEVER_ENTERED})
_SPOKEN_FENCES: Final = {
    End.RETURNED: FenceBasis.RETURNED,
    End.ANSWERED: FenceBasis.RETURNED,
    End.RESULT_NOT_STORABLE: FenceBasis.RETURNED,
    End.REJECTED: FenceBasis.RAISED,
    End.NOT_SENT: FenceBasis.RAISED,
    End.NEEDS_REVIEW: FenceBasis.RAISED,
    End.RAISED: FenceBasis.RAISED,
    End.NEVER_ENTERED: FenceBasis.NEVER_ENTERED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """What is known of an attempt whose runner died, or was given up, without having told its end."""

    marks: Marks
    is_stopping: bool  # a person or a fast stop of the service ended its runner
    is_unwanted: bool  # a person asked for the end of this attempt
    is_buried: bool  # the supervisor has said that nothing of the runner is left
    is_overdue: bool  # its deadline had come
    phase: Phase | None  # what revoking the slot came to; None = nothing may be concluded
    how: str
    ended: Moment


def keeps_runner(report: Report) -> bool:
    """Whether the runner may take another attempt after this end."""
    is_accepted = report.job.kind is Kind.PROBE or report.postcondition is not False
    return report.end in KEEPS_RUNNER and is_accepted


def may_be_said(report: Report) -> bool:
    """Whether a runner can end so: the other ends are ours to say."""
    is_probe = report.job.kind is Kind.PROBE
    return report.end in _SPOKEN_FENCES and not report.late and (report.end is End.ANSWERED) <= is_probe


def spoken(report: Report) -> Report:
    """Return what the runner said with its fence, for an end after which nothing need be killed."""
    fence = _SPOKEN_FENCES[report.end]
    return report if report.fence is fence else report._replace(fence=fence)


def spoken_and_over(report: Report, *, is_buried: bool, ended: Moment) -> Report:
    """Return what the runner said, its fence taken after the reaping; without a fence where nobody saw it dead."""
    return report._replace(fence=_SPOKEN_FENCES[report.end] if is_buried else None, ended=ended)


def silent(job: Job, seen: Silence) -> Report:
    """Return the report of an attempt that told nothing."""
    end, fence = _judge(job, seen)
    return Report(
        job=job,
        end=end,
        error_text=seen.how[: job.error_text_max],
        provider_operation_id=seen.marks.provider_operation_id,
        fence=fence,
        sending=seen.marks.sending,
        ended=seen.ended,
    )


def _judge(job: Job, seen: Silence) -> tuple[End, FenceBasis | None]:
    fence = FenceBasis.PROCESS_KILLED if seen.is_buried else None
    if seen.phase is Phase.CLAIMED:
        # A person's stop stays a stop: what was never entered by itself would be dispatched again.
        return (End.STOPPED if seen.is_unwanted else End.NEVER_ENTERED), FenceBasis.NEVER_ENTERED
    if seen.is_stopping:
        return End.STOPPED, fence
    if seen.phase is Phase.ENTERED and job.announces_sending and not seen.marks.sending:
        return End.NOT_SENT, fence  # revoked before ctx.sending(): nothing left this machine, and nothing can
    if seen.is_overdue:
        return End.TIMED_OUT, fence
    return End.CRASHED, fence


def describe_status(status: object) -> str:
    """Say how a process ended, from the status that its parent was given."""
    if type(status) is not int:
        return "ended in a way that nobody saw"
    if status >= 0:
        return f"ended by itself with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"

"""Decide which attempt may wait in the hands of a runner that still has another one. Pure: jobs in, answers out.

Promise: what waits there can be taken back, and loses no part of its time that counts, whoever else stops working. The deadline
that the supervisor holds is that of the first in hand; those behind it are due at the same time or little later, and none of them
is entered shortly before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from settled.execution.job import Job
from settled.execution.pace import LONG_US, SHORT_US, TIMEOUT_US_MIN

if TYPE_CHECKING:
    from settled.execution.runner_end import RunnerEnd

HANDED_MAX: Final = 32  # to one runner: enough for a few turns of the worker's thread; the rest can go to any runner
BEHIND_US_MAX: Final = LONG_US  # behind one that takes longer nothing goes on waiting
LAST_ENTRY_US: Final = TIMEOUT_US_MIN // 4
ARGUMENTS_MAX: Final = 8_192  # longer ones go alone, so that the socket takes at once what is handed
_PART_THAT_COUNTS: Final = TIMEOUT_US_MIN // SHORT_US


def enter_by(job: Job, first: Job | None = None) -> int:
    """Return the last moment at which `job` may be entered, in the hands of a runner behind `first` where that is given."""
    own = job.deadline_boot_us if job.enter_by_boot_us is None else min(job.enter_by_boot_us, job.deadline_boot_us)
    return own if first is None or first is job else min(own, first.deadline_boot_us - LAST_ENTRY_US)


def fits_behind(job: Job, first: Job, now_us: int) -> bool:
    """Whether `job` may be handed to a runner whose first in hand is `first`, still to end.

    Both need a slot in the flight recorder, or nobody could take `job` back and say that it was never entered.
    """
    if job.slot is None or first.slot is None or len(job.arguments) > ARGUMENTS_MAX:
        return False
    loses_us = job.deadline_boot_us - first.deadline_boot_us, job.kill_boot_us - first.kill_boot_us
    return min(loses_us) >= 0 and max(loses_us) <= job.timeout_us // _PART_THAT_COUNTS and now_us < enter_by(job, first)


class Share:
    """What one runner is to be handed: as much as lets it have `most` in hand, and one where it has nothing."""

    __slots__ = ("_first", "_most", "count", "jobs", "runner")

    def __init__(self, runner: RunnerEnd, most: int) -> None:
        self.runner, self._first, self._most = runner, runner.job, most
        self.count = 0 if runner.job is None else 1 + len(runner.behind)
        self.jobs: list[Job] = []

    def takes(self, job: Job, now_us: int) -> bool:
        """Whether `job` may be added."""
        return self._first is None or (self.count < self._most and fits_behind(job, self._first, now_us))

    def add(self, job: Job) -> None:
        self._first = self._first or job
        self.jobs.append(job)
        self.count += 1


def deal(waiting: Iterable[Job], shares: Sequence[Share], now_us: int) -> list[Share]:
    """Deal out what waits, each in its turn to the runner that has the fewest in hand; stop at the first that fits nowhere."""
    for job in waiting:
        share = min(shares, key=_count)
        if not share.takes(job, now_us):
            able = [other for other in shares if other.takes(job, now_us)]
            if not able:
                break
            share = min(able, key=_count)
        share.add(job)
    return [share for share in shares if share.jobs]


_count: Final = attrgetter("count")

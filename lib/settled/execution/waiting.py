"""Keep the attempts that wait for any runner, in their order, and know when one of them has waited too long.

Promise: what may no longer be entered is found at its time by one comparison for a look, not by one for each that waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from settled.execution.handing import enter_by
from settled.execution.job import Job, Kind


class Waiting:
    """The attempts that no runner has in hand."""

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()
        self.due_boot_us: int | None = None  # never later than the first moment at which one of them may not be entered any more

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs)

    def add(self, job: Job) -> None:
        self._jobs.append(job)
        self._look_by(job)

    def put_back(self, jobs: Sequence[Job]) -> None:
        """Let these wait again, before all others."""
        self._jobs.extendleft(reversed(jobs))
        for job in jobs:
            self._look_by(job)

    def take(self) -> Job:
        """Return the first, which waits no more."""
        return self._jobs.popleft()

    def remove(self, key: tuple[Kind, int, int]) -> Job | None:
        """Return the one of this key, which waits no more; None where it does not wait."""
        job = next((job for job in self._jobs if job.key == key), None)
        if job is not None:
            self._jobs.remove(job)
        return job

    def remove_overdue(self, now_us: int) -> list[Job]:
        """Return those that may not be entered any more; they wait no more."""
        if self.due_boot_us is None or now_us < self.due_boot_us:
            return []
        overdue = [job for job in self._jobs if enter_by(job) <= now_us]
        self._jobs = deque(job for job in self._jobs if enter_by(job) > now_us)
        self.due_boot_us = min(map(enter_by, self._jobs), default=None)
        return overdue

    def _look_by(self, job: Job) -> None:
        by_us = enter_by(job)
        self.due_boot_us = by_us if self.due_boot_us is None else min(self.due_boot_us, by_us)

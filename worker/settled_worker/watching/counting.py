"""Count what this worker does, in memory, by few labels.

Promise: the number of label values is bounded whatever contracts there are, and counting neither waits nor raises.
"""

import threading
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from settled.core.fold import Event
from settled.core.moment import SECOND_US
from settled.core.row import Row
from settled.core.words import EventType, FenceBasis
from settled.execution.job import Job, Kind, Report
from settled_worker.watching.names import BUCKETS, OTHER

Labels = tuple[str, ...]
Values = dict[str, dict[Labels, float]]
_LEASES_LOST = (EventType.LEASE_LOST, EventType.CRASHED)


class Contracts:
    """The contracts that have a label of their own: those declared here first, then as they come, until the limit."""

    def __init__(self, declared: Iterable[str], most: int) -> None:
        self._most = most
        self._own = set(sorted(declared)[:most])

    def label(self, contract: str) -> str:
        """Return the label of a contract."""
        if contract in self._own:
            return contract
        if len(self._own) < self._most:
            self._own.add(contract)
            return contract
        return OTHER


class Durations:
    """One histogram: how many fell into each bucket, the last for what is longer than all, and their sum."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.seconds += seconds


class Counting:
    """The counters. Called from the loop and from sweeps; read from elsewhere."""

    def __init__(self, contracts: Contracts) -> None:
        self.contracts = contracts
        self._lock = threading.Lock()
        self._counts: defaultdict[str, Counter[Labels]] = defaultdict(Counter)
        self._durations: defaultdict[str, Durations] = defaultdict(Durations)

    def started(self, jobs: Iterable[Job]) -> None:
        """Count attempts that are handed to handlers."""
        with self._lock:
            for job in jobs:
                self._counts["settled_attempts_started_total"][(self.contracts.label(job.contract),)] += 1

    def ended(self, reports: Iterable[Report]) -> None:
        """Count how handlers ended. A second report of an attempt that was given up counts no time."""
        with self._lock:
            for report in reports:
                if report.job.kind is not Kind.HANDLER or report.late:
                    continue
                contract = self.contracts.label(report.job.contract)
                self._counts["settled_attempts_ended_total"][contract, report.end.value] += 1
                if report.fence is FenceBasis.PROCESS_KILLED:
                    self._counts["settled_runners_killed_total"][(contract,)] += 1
                self._durations[contract].add(max(0, report.ended.boot_us - report.job.claimed_boot_us) / SECOND_US)

    def moved(self, row: Row, events: Sequence[Event]) -> None:
        """Count the move of one operation."""
        if not events:
            return
        with self._lock:
            contract = self.contracts.label(row.contract)
            self._counts["settled_outcomes_total"][contract, row.status.value] += 1
            if any(event.type in _LEASES_LOST for event in events):
                self._counts["settled_leases_lost_total"][(contract,)] += 1

    def values(self) -> Values:
        """Return every counter by metric and labels."""
        with self._lock:
            return {name: dict(counts) for name, counts in self._counts.items()}

    def durations(self) -> dict[str, tuple[list[int], float]]:
        """Return the buckets and the sum of each contract, in seconds."""
        with self._lock:
            return {contract: (list(one.counts), one.seconds) for contract, one in self._durations.items()}

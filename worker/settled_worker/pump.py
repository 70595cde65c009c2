"""One step of the worker: record what has ended and claim what is due, in one transaction; say what to start.

Promise: `step` reads no clock, starts nothing and sleeps never, so that the same code runs under a worker and under a
seeded simulation. What could not be recorded is kept and recorded by a later step; nothing is claimed meanwhile.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from settled.core.errors import LedgerUnavailableError
from settled.core.moment import Moment
from settled.core.paused import NOTHING, Paused
from settled.core.row import Row
from settled.core.words import Isolation
from settled.execution.job import End, Job, Kind, Report
from settled.shell import Shell
from settled.steps.claim import Claimed, Refuses, claim_due, open_contracts, waits_to_be_withdrawn
from settled.steps.ends import Ended, Settled, record_ends
from settled.steps.jobs import handler_job
from settled.steps.reconcile import Asking, record_answer
from settled.store.pauses import read_paused
from settled.store.reads import ARGUMENTS, read_payload, read_row
from settled.store.transaction import Transaction
from settled.store.waiting import find_leased, find_stop_requested, next_due_us
from settled_worker.ports import Journal, Room, Slots


class Flight(NamedTuple):
    """An attempt of ours under way: its row as the claim left it, and its recorder slot."""

    row: Row
    slot: int


class Starts(NamedTuple):
    """What a step wants done: jobs to start, and keys of handlers that a person wants stopped."""

    jobs: Sequence[Job]
    stops: Sequence[tuple[Kind, int, int]]


@dataclass(slots=True, kw_only=True)
class Pump:
    """The state of one worker between steps. `me` is its incarnation's row."""

    shell: Shell
    me: int
    slots: Slots
    room: Room
    journal: Journal
    refuses: Refuses | None = None
    claiming: bool = True
    paused: Paused = NOTHING
    flights: dict[tuple[int, int], Flight] = field(default_factory=dict)
    asking: dict[tuple[int, int], Asking] = field(default_factory=dict)
    _pending: deque[Report] = field(default_factory=deque)
    _stopping: set[tuple[int, int]] = field(default_factory=set)
    _shutting_down: bool = False
    _in_doubt: bool = False
    _ends_first: bool = False

    def step(self, now: Moment, arrived: Iterable[Report], *, due_us: int | None = None) -> Starts:
        """Record and claim once. Raises LedgerUnavailableError where the store cannot be written; call again then.

        `due_us` is the wall clock by which rows are due, where it must not fall back with the system's clock.
        """
        self._pending.extend(arrived)
        batch = [self._pending[index] for index in range(min(len(self._pending), self.shell.limits.batch_max))]
        taken: list[tuple[int, int, int]] = []
        claiming = False
        try:
            with self.shell.ledger.write() as transaction:
                settled = self._record(transaction, batch, now)
                claimed = self._again(transaction, now) if self._in_doubt and self.claiming else []
                claiming = True  # until the slots are written: a claim that fails must not keep what has ended from being recorded
                # What is taken up again holds slots that are still counted as free.
                if self.claiming and not claimed and not (self._ends_first and batch):
                    self.shell.ledger.together.take_along(transaction)  # what is due at once is claimed by the same commit
                    due = now.wall_us if due_us is None else due_us
                    rooms = {isolation: self.room(isolation) for isolation in self._isolations()}
                    free = min(self.slots.free_slots, max(rooms.values(), default=0))  # of all isolations together
                    claimed = claim_due(self.shell, transaction, self.me, rooms.__getitem__, free, now, due, self.refuses)
                    self.paused = read_paused(transaction)
                for one in claimed:
                    taken.append((self.slots.take_slot(one.row.id, one.row.attempt), one.row.id, one.row.attempt))
                claiming = False
                stops = self._stops(transaction) if self.flights else []
        except BaseException as error:
            for slot, row, attempt in taken:
                self.slots.give_slot(slot, row, attempt)
            self._in_doubt = self._in_doubt or bool(taken) or isinstance(error, LedgerUnavailableError)
            self._ends_first = claiming
            raise
        self._in_doubt = self._ends_first = False
        for _ in batch:
            self._pending.popleft()
        self._forget(batch)
        jobs = [self._take_off(one, slot, now) for one, (slot, _, _) in zip(claimed, taken, strict=True)]
        self.journal.settled(settled)
        return Starts(jobs, stops)

    def asks(self, asking: Iterable[Asking]) -> None:
        """Expect the answers of probes that a sweep holds and starts."""
        for one in asking:
            self.asking[one.job.row, one.job.attempt] = one

    def shut_down(self) -> None:
        """Claim no more, and record what is stopped from now on as stopped by the shutdown."""
        self.claiming, self._shutting_down = False, True

    def stop_wanted(self) -> bool:
        """Whether a person wants a handler of ours stopped that is not being stopped yet."""
        if not self.flights:
            return False
        with self.shell.ledger.read() as transaction:
            wanted = set(find_stop_requested(transaction, self.me))
        return any(key[0] in wanted and key not in self._stopping for key in self.flights)

    def next_due_us(self) -> int | None:
        """Return when something to claim falls due, by the wall clock; None where nothing waits but what is paused."""
        with self.shell.ledger.read() as transaction:
            self.paused = read_paused(transaction)
            if waits_to_be_withdrawn(self.shell, transaction):
                return 0
            return next_due_us(transaction, open_contracts(self.shell, transaction, self.refuses))

    @property
    def owes(self) -> int:
        """How many reports are still to be recorded."""
        return len(self._pending)

    # ------------------------------------------------------------------ one transaction

    def _record(self, transaction: Transaction, batch: Sequence[Report], now: Moment) -> list[Settled]:
        ended = [self._ended(transaction, report) for report in batch if report.job.kind is Kind.HANDLER]
        settled = record_ends(self.shell, transaction, ended, now)
        for report in batch:
            # An answer that comes after its probe was given up is none: that probe has been counted, and another may hold the row.
            if report.job.kind is Kind.PROBE and not report.late:
                row, events = record_answer(self.shell, transaction, report, self.me, now)
                settled.append(Settled(row, events))
        return settled

    def _ended(self, transaction: Transaction, report: Report) -> Ended:
        key = (report.job.row, report.job.attempt)
        flight = self.flights.get(key)
        row = flight.row if flight is not None else read_row(transaction, report.job.row)
        interruption = "shutdown" if self._shutting_down and report.end is End.STOPPED else None
        return Ended(row, report, by_person=key in self._stopping and report.end is End.STOPPED, interruption=interruption)

    def _again(self, transaction: Transaction, now: Moment) -> list[Claimed]:
        """Take up claims whose commit was not acknowledged: the rows show whether they are ours, and no handler was started.

        One that repeats an open attempt is given no time to enter: it ends as never entered, and is claimed anew by the
        guarantee as it then stands.
        """
        found = []
        for row in find_leased(transaction, self.me, 0, self.shell.limits.batch_max):
            if (row.id, row.attempt) in self.flights:
                continue
            stored = read_payload(transaction, row.id, ARGUMENTS)
            if stored is not None and row.contract in self.shell.contracts:
                terms = self.shell.terms_here(row.contract)
                enter_by = now.boot_us - 1 if row.open_attempts > 1 else None
                found.append(Claimed(row, self.shell.codec.decode(stored), terms, enter_by))
        return found

    def _isolations(self) -> set[Isolation]:
        """Return the isolations that contracts here have: nobody needs to know how much room the others would have."""
        return {Isolation(contract.isolation) for contract in self.shell.contracts.values()}

    def _stops(self, transaction: Transaction) -> list[tuple[Kind, int, int]]:
        wanted = set(find_stop_requested(transaction, self.me))
        keys = [key for key in self.flights if key[0] in wanted and key not in self._stopping]
        self._stopping.update(keys)
        return [(Kind.HANDLER, *key) for key in keys]

    # ------------------------------------------------------------------ between steps

    def _take_off(self, claimed: Claimed, slot: int, now: Moment) -> Job:
        self.flights[claimed.row.id, claimed.row.attempt] = Flight(claimed.row, slot)
        return handler_job(claimed, slot, now, self.shell.limits)

    def _forget(self, batch: Sequence[Report]) -> None:
        for report in batch:
            key = (report.job.row, report.job.attempt)
            if report.job.kind is Kind.PROBE:
                if not report.late:
                    self.asking.pop(key, None)
                continue
            flight = self.flights.pop(key, None)
            self._stopping.discard(key)
            if flight is not None:
                self.slots.give_slot(flight.slot, *key)

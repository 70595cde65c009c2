"""The sweeps: scheduled passes over rows that wait. Each is one function that does its whole work once.

Promise: a sweep never raises out of its schedule, one bad row never ends a batch, and its last run can be seen.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from settled.core.case import Case
from settled.core.decide_claim import decide_deadline
from settled.core.decide_unknown import decide_escalation
from settled.core.errors import LedgerStateError
from settled.core.fold import Event
from settled.core.moment import SECOND_US
from settled.core.row import Row
from settled.shell import Shell
from settled.steps.derive import derive_waiting
from settled.steps.escalate import Escalated
from settled.steps.forgotten import clear_files, end_forgotten
from settled.steps.readable import put_aside
from settled.steps.reconcile import Asking, prepare_probes
from settled.steps.recover import Examiner, recover_leases
from settled.steps.retain import FOR_EVER, Retention, forget_old, purge_old
from settled.store import waiting
from settled.store.inbox import find_older, take
from settled.store.maintenance import checkpoint
from settled.store.reads import read_row
from settled.store.transaction import Transaction
from settled.store.writer import Move, record
from settled_worker.due import DueClock
from settled_worker.journal import log, log_moves

SWEEPS: Final = ("leases", "reconcile", "escalate", "checkpoint", "retention")
Ask = Callable[[Sequence[Asking]], None]


class Swept(NamedTuple):
    """What one run did."""

    examined: int = 0
    moved: int = 0
    errors: int = 0


@dataclass(slots=True, kw_only=True)
class Sweeper:
    """The sweeps of one process. `me` is its incarnation; `ask` starts probes, whose answers arrive elsewhere; `tell` drives ladders;
    `heard` hears of each move once it is recorded.
    """

    shell: Shell
    examiner: Examiner
    me: int
    ask: Ask
    probe_room: Callable[[], int]
    tell: Callable[[], Escalated] = lambda: Escalated(0, 0)
    retain: Callable[[], Retention] = lambda: FOR_EVER
    heard: Callable[[Row, Sequence[Event]], None] = log_moves
    _due: DueClock = field(init=False)
    _forgotten_us: int = field(init=False, default=0)  # by the monotonic clock: when to look for them again

    def __post_init__(self) -> None:
        """Follow the clock from here on."""
        self._due = DueClock(self.shell.clock)

    def run(self, name: str) -> Swept:
        """Run a sweep once by its name."""
        return {
            "leases": self.leases,
            "reconcile": self.reconcile,
            "escalate": self.escalate,
            "checkpoint": self.checkpoint,
            "retention": self.retention,
        }[name]()

    def leases(self) -> Swept:
        """Take over from owners that are gone or lost their lease; find missing fences, and now and then who died owning nothing."""
        moved = recover_leases(self.shell, self.examiner, self.me)
        for row, events in moved:
            self.heard(row, events)
        now_us = self.shell.clock.monotonic_us()
        if now_us >= self._forgotten_us:  # not at each run: a child that such a worker left alive is looked for in all of /proc
            self._forgotten_us = now_us + round(self.shell.limits.lease_seconds * SECOND_US)
            end_forgotten(self.shell, self.examiner, self.me)
        return Swept(len(moved), len(moved))

    def reconcile(self) -> Swept:
        """Start the probes that are due, and decide for unknown outcomes without a probe."""
        derived = derive_waiting(self.shell)
        names = tuple(self.shell.contracts)
        room = self.probe_room()
        with self.shell.ledger.read() as transaction:
            next_us = waiting.next_probe_us(transaction, names)
        now = self.shell.clock.now()
        due_us = self._due.wall_us(now)
        if next_us is None or next_us > due_us or room < 1:
            return Swept(derived, derived)
        errors = 0
        with self.shell.ledger.write() as transaction:
            asking: list[Asking] = []
            moved: list[tuple[Row, Sequence[Event]]] = []
            rows = waiting.find_probe_due(transaction, names, due_us, min(room, self.shell.limits.batch_max))
            for row in rows:
                try:
                    prepared = prepare_probes(self.shell, transaction, [row], self.me, now)
                except LedgerStateError as error:
                    errors += 1
                    log.error("sweep.row_left_alone", sweep="reconcile", operation_id=row.operation_id, error=str(error))
                    put_aside(transaction, row, now.wall_us)
                    continue
                asking += prepared.asking
                moved += prepared.moved
        for row, events in moved:
            self.heard(row, events)
        self.ask(asking)
        return Swept(len(rows) + derived, len(moved) + derived, errors)

    def escalate(self) -> Swept:
        """Open an incident of what has been unknown for too long; end what is past its deadline; take the next steps of ladders."""
        late = self._decide_each(waiting.find_escalating, decide_escalation, "escalate")
        expired = self._decide_each(waiting.find_expired, decide_deadline, "escalate")
        told = self.tell()
        return Swept(
            late.examined + expired.examined + told.examined,
            late.moved + expired.moved + told.moved,
            late.errors + expired.errors,
        )

    def checkpoint(self) -> Swept:
        """Move the write-ahead log back into the database, and tell of a reader that keeps it from that."""
        done = checkpoint(self.shell.ledger)
        if done.behind and done.log_bytes > self.shell.limits.wal_bytes_max:
            log.warning("sweep.log_held_back", sweep="checkpoint", log_bytes=done.log_bytes, pages_behind=done.behind)
        return Swept(1)

    def retention(self) -> Swept:
        """Remove texts, closed incidents, and evidence for nobody, that are older than is kept; then files of incarnations long gone."""
        kept, batches_max = self.retain(), self.shell.limits.purge_batches_max
        purged = purge_old(self.shell, kept, batches_max=batches_max)
        forgotten = forget_old(self.shell, kept, batches_max=batches_max)
        dropped, cleared = self._drop_evidence(), clear_files(self.shell, self.me)
        if purged.purged or dropped or forgotten:
            log.info("sweep.purged", sweep="retention", operations=purged.purged, evidence=dropped, incidents=forgotten)
        return Swept(purged.examined + dropped + cleared + forgotten, purged.purged + dropped + cleared + forgotten)

    def _drop_evidence(self) -> int:
        """Give up evidence that has waited too long for an operation that nobody submitted."""
        before_us = self._due.wall_us(self.shell.clock.now()) - round(self.shell.limits.inbox_seconds * SECOND_US)
        with self.shell.ledger.read() as transaction:
            old = find_older(transaction, before_us, self.shell.limits.batch_max)
        if old:
            with self.shell.ledger.write() as transaction:
                take(transaction, old)
        return len(old)

    def _decide_each(
        self,
        find: Callable[[Transaction, int, int], list[Row]],
        decide: Callable[[Case], Iterable[Event]],
        sweep: str,
    ) -> Swept:
        """Decide for every row that `find` returns, each in a transaction of its own after the first look."""
        now = self.shell.clock.now()
        with self.shell.ledger.read() as transaction:
            rows = find(transaction, self._due.wall_us(now), self.shell.limits.batch_max)
        moved = errors = 0
        for seen in rows:
            try:
                with self.shell.ledger.write() as transaction:
                    row = read_row(transaction, seen.id)
                    events = tuple(decide(self.shell.full_case(transaction, row, self.shell.clock.now())))
                    done = record(transaction, [Move(row, events)])[0] if events else None
            except LedgerStateError as error:
                errors += 1
                log.error("sweep.row_left_alone", sweep=sweep, operation_id=seen.operation_id, error=str(error))
                continue
            if done is not None and done.row is not None:
                moved += 1
                self.heard(done.row, events)
        return Swept(len(rows), moved, errors)

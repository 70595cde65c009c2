"""Run an operation in the caller's own process, under the same protocol as a worker.

The caller is an incarnation: registered, locked, recorded, beating. A crash of it needs no worker: any later call for the
same operation ID finds the lease lost and goes on from what is proved.
"""

import queue
import threading
from typing import TYPE_CHECKING, Final

from settled.core.errors import ConfigurationError, LedgerUnavailableError, OperationInProgressError
from settled.core.moment import Moment
from settled.core.row import Row
from settled.core.words import Isolation, Status
from settled.execution.job import End, Job, Key, Kind, Report
from settled.execution.pool import Execution
from settled.operation import Operation
from settled.presence import Presence
from settled.shell import Shell
from settled.steps import show
from settled.steps.claim import Claimed, claim_one
from settled.steps.ends import Ended, record_ends
from settled.steps.jobs import handler_job
from settled.steps.reconcile import prepare_probes, record_answer
from settled.steps.recover import Examiner, recover_row
from settled.steps.resolve import must_find
from settled.steps.submit import Order, store_orders
from settled.store.ledger import Transaction
from settled.store.reads import ARGUMENTS, read_payload, read_row
from settled.store.waiting import count_abandoned, count_running

if TYPE_CHECKING:
    from settled.app import App

RECORD_TRIES_MAX: Final = 5
_PASSED_ON: Final = {"KeyboardInterrupt": KeyboardInterrupt, "SystemExit": SystemExit}


class Inline:
    """The part of an App that runs handlers and probes in this process. Made at the first `execute` or `reconcile`."""

    def __init__(self, app: "App") -> None:
        self._app = app
        self._shell: Shell = app.shell
        self._examiner = Examiner(self._shell)
        self._lock = threading.Lock()
        self._presence: Presence | None = None
        self._execution: Execution | None = None
        self._waiting: dict[Key, queue.SimpleQueue[Report]] = {}

    def close(self) -> None:
        """End what runs here, honestly, and leave the ledger."""
        with self._lock:
            if self._execution is not None:
                self._execution.close(kill=True)
                self._execution.join(self._shell.limits.drain_seconds)
                self._execution = None
            if self._presence is not None:
                self._presence.close()
                self._presence = None

    def execute(self, order: Order) -> Operation:
        """Store the request and claim it in one transaction, run it, record its end; or return what is known."""
        presence = self._present()
        self._check_runnable(order)
        slot, claimed, now = None, None, self._shell.clock.now()
        try:
            with self._shell.ledger.write() as transaction:
                stored = store_orders(self._shell, transaction, [order], now)[0]
                claimed = self._claim(transaction, stored.row, now)
                if claimed is not None:
                    slot = presence.take_slot(claimed.row.id, claimed.row.attempt)
        except BaseException:
            self._shell.forget_uncommitted()
            if slot is not None:
                presence.give_slot(slot)
            raise
        if claimed is not None:
            return self._run(claimed, slot, now, created=stored.created)
        if stored.created:
            return show.after_submit(self._shell, stored)
        return self._known(order, stored.row)

    def reconcile(self, operation_id: str) -> Operation:
        """Ask the probe once, where an answer can mean something."""
        row = self.recover(operation_id)
        if row.status is Status.DISPATCHED:
            raise OperationInProgressError(operation_id, row.attempt)
        probed = row.status in (Status.OUTCOME_UNKNOWN, Status.QUARANTINED)
        if probed or (row.status is Status.PREPARED and row.open_attempts):
            self._app.contract(row.contract)
            self._ask(row)
        return self._app.get(operation_id)

    def recover(self, operation_id: str) -> Row:
        """Run the leases step for one row and return it."""
        with self._shell.ledger.read() as transaction:
            row = must_find(transaction, operation_id)
        me = None if self._presence is None else self._presence.id
        return recover_row(self._shell, self._examiner, row, me)

    # ------------------------------------------------------------------ claim and run

    def _check_runnable(self, order: Order) -> None:
        contract = order.contract
        if contract is None or not contract.has_handler:
            raise ConfigurationError(f"contract {order.name!r} has no handler in this process. Nothing was stored. Use submit, and a worker")
        if contract.isolation == Isolation.PROCESS:
            self._app.module_reference()
            if getattr(contract.handler, "__module__", "") == "__main__":
                raise ConfigurationError(
                    f"the handler of {order.name!r} is defined in __main__, which a runner cannot import. Nothing was sent. "
                    f"Put it into a module, or declare isolation='thread'"
                )

    def _claim(self, transaction: Transaction, row: Row, now: Moment) -> Claimed | None:
        """Claim the row where it is due, held by nothing, and within its contract's concurrency."""
        if row.status is not Status.PREPARED or row.reason is not None or not row.derived:
            return None
        if row.due_us is not None and row.due_us > now.wall_us:
            return None
        terms = self._shell.contracts.get(row.contract)
        if terms is None:
            return None
        limit = terms.terms.concurrency
        if limit is not None and count_running(transaction, row.contract) + count_abandoned(transaction, row.contract) >= limit:
            return None
        stored = read_payload(transaction, row.id, ARGUMENTS)
        assert self._presence is not None and stored is not None
        return claim_one(self._shell, transaction, self._presence.id, row, self._shell.codec.decode(stored), now)

    def _run(self, claimed: Claimed, slot: int | None, now: Moment, *, created: bool) -> Operation:
        job = handler_job(claimed, slot, now, self._shell.limits)
        report, interrupt = self._wait_for(job)
        row = self._record(Ended(claimed.row, report))
        if slot is not None:
            self._present().give_slot(slot)
        with self._shell.ledger.read() as transaction:
            op = show.full_snapshot(self._shell, transaction, row, created=created)
        if interrupt is not None:
            raise interrupt
        passed_on = _PASSED_ON.get(report.error_class or "")
        if report.end is End.RAISED and passed_on is not None:
            raise passed_on(report.error_text or "")
        return op

    def _wait_for(self, job: Job) -> tuple[Report, BaseException | None]:
        """Start the job and wait for its report; an interrupt of this thread stops the handler and is passed on later."""
        answers: queue.SimpleQueue[Report] = queue.SimpleQueue()
        with self._lock:
            self._waiting[job.key] = answers
        execution = self._executing()
        execution.start(job)
        interrupt: BaseException | None = None
        while True:
            try:
                return answers.get(), interrupt
            except BaseException as error:  # noqa: BLE001 - KeyboardInterrupt and its like: record first, then pass it on
                interrupt = error
                execution.stop(job.key)

    def _arrived(self, report: Report) -> None:
        with self._lock:
            answers = self._waiting.pop(report.job.key, None) if not report.late else None
        if answers is not None:
            answers.put(report)
        elif report.job.kind is Kind.HANDLER:
            self._late(report)

    def _late(self, report: Report) -> None:
        """Keep what a handler said after it was given up."""
        with self._shell.ledger.write() as transaction:
            row = read_row(transaction, report.job.row)
            record_ends(self._shell, transaction, [Ended(row, report)], self._shell.clock.now())

    def _record(self, ended: Ended) -> Row:
        """Record an end, and try again for a while: the handler has run, and nothing may repeat it."""
        for tried in range(1, RECORD_TRIES_MAX + 1):
            try:
                with self._shell.ledger.write() as transaction:
                    return record_ends(self._shell, transaction, [ended], self._shell.clock.now())[0].row
            except LedgerUnavailableError as error:
                if tried == RECORD_TRIES_MAX:
                    raise self._not_recorded(ended, error) from error
                show.sleep(min(0.05 * 2**tried, 1.0))
        raise AssertionError("unreachable")

    @staticmethod
    def _not_recorded(ended: Ended, error: LedgerUnavailableError) -> LedgerUnavailableError:
        report, row = ended.report, ended.row
        return LedgerUnavailableError(
            f"operation {row.operation_id!r} was dispatched (attempt {row.attempt}) and its handler ended as {report.end.value}, "
            f"but that could not be recorded: {error} It stays unknown until it is probed. Do not repeat it.",
            operation_id=row.operation_id,
            attempt=row.attempt,
            observed=report.end.value,
            output=report.output,
            provider_operation_id=report.provider_operation_id,
        )

    # ------------------------------------------------------------------ known already

    def _known(self, order: Order, row: Row) -> Operation:
        """Return what is known of a repeated request, after one look at its owner and one probe where that can help."""
        row = self.recover(order.operation_id)
        if row.status is Status.OUTCOME_UNKNOWN and self._shell.contracts[row.contract].has_probe:
            self._ask(row)
            with self._shell.ledger.read() as transaction:
                row = must_find(transaction, order.operation_id)
        now, slot, claimed = self._shell.clock.now(), None, None
        if row.status is Status.PREPARED and row.attempt:
            presence = self._present()
            with self._shell.ledger.write() as transaction:
                row = must_find(transaction, order.operation_id)
                claimed = self._claim(transaction, row, now)
                if claimed is not None:
                    slot = presence.take_slot(claimed.row.id, claimed.row.attempt)
        return self._app.get(order.operation_id) if claimed is None else self._run(claimed, slot, now, created=False)

    def _ask(self, row: Row) -> None:
        """Hold the row, ask its probe, record the answer. Somebody else's hold is respected."""
        presence = self._present()
        with self._shell.ledger.write() as transaction:
            fresh = read_row(transaction, row.id)
            prepared = prepare_probes(self._shell, transaction, [fresh], presence.id, self._shell.clock.now())
        for asking in prepared.asking:
            report, interrupt = self._wait_for(asking.job)
            with self._shell.ledger.write() as transaction:
                record_answer(self._shell, transaction, report, asking.started, presence.id, self._shell.clock.now())
            if interrupt is not None:
                raise interrupt

    # ------------------------------------------------------------------ presence

    def _present(self) -> Presence:
        with self._lock:
            if self._presence is None:
                limits = self._shell.limits
                self._presence = Presence(self._shell, kind="caller", contracts=(), slots=limits.slots)
                self._presence.beat_in_background(limits.beat_seconds)
            return self._presence

    def _executing(self) -> Execution:
        presence = self._present()
        with self._lock:
            if self._execution is None:
                limits = self._shell.limits
                needs_runner = any(contract.isolation == Isolation.PROCESS for contract in self._app.contracts.values())
                reference = self._app.module_reference() if needs_runner else None
                self._execution = Execution(
                    resolve=self._app.contract,
                    arrived=self._arrived,
                    clock=self._shell.clock.now,
                    app_ref=reference,
                    slots=limits.slots,
                    process_slots=limits.process_runners_max,
                    probe_slots=limits.probe_slots,
                    recorder=presence.recorder,
                    incarnation=presence.incarnation,
                )
            return self._execution



"""Run an operation in the caller's own process, under the same protocol as a worker.

The caller is an incarnation: registered, locked, recorded, beating. A crash of it needs no worker: any later call for the
same operation ID finds the lease lost and goes on from what is proved.
"""

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

from settled.core.errors import (
    ConfigurationError,
    ContractNotFoundError,
    LedgerUnavailableError,
    OperationInProgressError,
    SettledError,
)
from settled.core.moment import Moment
from settled.core.row import Row
from settled.core.words import Isolation, Status
from settled.execution.calls import Calls
from settled.execution.job import Job
from settled.execution.pool import Execution
from settled.execution.recorder import Phase
from settled.operation import Operation
from settled.presence import Presence
from settled.shell import Shell
from settled.steps import show
from settled.steps.claim import Claimed, claim_one, may_start, store_dispatched
from settled.steps.ends import Ended
from settled.steps.jobs import handler_job
from settled.steps.owing import Owing, not_read_back
from settled.steps.rates import note_starts
from settled.steps.reconcile import prepare_probes
from settled.steps.recover import Examiner, end_unstarted, recover_row
from settled.steps.resolve import must_find
from settled.steps.submit import Order, store_orders
from settled.store.reads import ARGUMENTS, read_payload, read_row
from settled.store.requests import Stored
from settled.store.transaction import Transaction
from settled.store.waiting import find_stop_requested

if TYPE_CHECKING:
    from settled.app import App


_Found = tuple[Stored, Claimed | None]


class _Taken(NamedTuple):
    stored: Stored
    claimed: Claimed | None
    slot: int | None


class _Call:
    """One call on its way to a dispatch.

    `mine` is what it has claimed: until it is over, no other call takes that for a dispatch that was left behind. `slots` are those of
    the flight recorder that it has taken for it.
    """

    __slots__ = ("mine", "now", "order", "presence", "slots")

    def __init__(self, order: Order, now: Moment, presence: Presence) -> None:
        self.order, self.now, self.presence = order, now, presence
        self.mine: list[tuple[int, int]] = []
        self.slots: list[int] = []

    def undone(self) -> None:
        """Give back the slots: what they were taken for is not recorded."""
        while self.slots:
            self.presence.give_slot(self.slots.pop(), *self.mine[-1])


_Take = Callable[[Transaction, Sequence[_Call]], list[_Taken]]


class Inline:
    """The part of an App that runs handlers and probes in this process. Made at the first `execute` or `reconcile`."""

    def __init__(self, app: "App") -> None:
        self._app = app
        self._shell: Shell = app.shell
        self._examiner = Examiner(self._shell)
        self._lock = threading.Lock()
        self._presence: Presence | None = None
        self._execution: Execution | None = None
        self._owing = Owing(self._shell, self._give_slot)
        self._calls = Calls(self._owing.take_late)
        self._taking: set[tuple[int, int]] = set()  # attempts that a call of ours dispatches at this moment, from before its commit on
        self._asked: set[int] = set()
        self._room: SimpleQueue[None] = SimpleQueue()  # callers beyond the recorder's slots wait
        for _ in range(self._shell.limits.slots):
            self._room.put(None)
        self.pid = os.getpid()

    def close(self) -> None:
        """End what runs here, honestly, and leave the ledger."""
        with self._lock:
            left = False
            if self._execution is not None:
                self._execution.close(kill=True)
                left = not self._execution.join(self._shell.limits.drain_seconds) or self._execution.abandoned > 0
                self._execution = None
            with suppress(SettledError):  # what stays owed is found by the leases sweep: unknown, and never repeated
                self._owing.settle()
            if self._presence is not None:
                self._presence.close(code_left=left)
                self._presence = None

    def execute(self, order: Order) -> Operation:
        """Store the request and claim it in one transaction, run it, record its end; or return what is known."""
        self._check_runnable(order)
        self._executing()  # whatever may be missing is missing before the claim
        with suppress(LedgerUnavailableError):
            self._owing.settle()
        now = self._shell.clock.now()
        stored = self._take_and_run(order, now, self._store_and_claim)
        if isinstance(stored, Operation):
            return stored
        return show.after_submit(self._shell, stored) if stored.created else self._known(order)

    def reconcile(self, operation_id: str) -> Operation:
        """Ask the probe once, where an answer can mean something."""
        row = self.recover(operation_id)
        if row.status is Status.DISPATCHED:
            raise OperationInProgressError(operation_id, row.attempt)
        probed = row.status in (Status.OUTCOME_UNKNOWN, Status.QUARANTINED)
        if probed or (row.status is Status.PREPARED and row.open_attempts):
            if self._app.contract(row.contract).isolation == Isolation.PROCESS:
                self._app.module_reference()  # a probe that no runner could import would be no answer, and spend one
            self._ask(row)
        return self._app.get(operation_id)

    def recover(self, operation_id: str) -> Row:
        """Run the leases step for one row and return it."""
        with suppress(LedgerUnavailableError):
            self._owing.settle()
        with self._shell.ledger.read() as transaction:
            row = must_find(transaction, operation_id)
        presence = self._presence
        if presence is None:
            return recover_row(self._shell, self._examiner, row, None)
        if row.status is Status.DISPATCHED and row.lease_owner == presence.id:
            return self._recover_own(presence, row)
        return recover_row(self._shell, self._examiner, row, presence.id)

    def _recover_own(self, presence: Presence, row: Row) -> Row:
        """Find out whether a dispatch of ours is under way: an interrupt, or a commit that failed and was done, may have left it.

        Entry is contested here too: what is revoked before it entered will not enter, even if its thread is about to start it.
        """
        is_in_hand = (row.id, row.attempt) in self._taking or self._calls.knows(row.id, row.attempt)
        if is_in_hand or self._owing.knows(row.id, row.attempt):
            return row  # whatever its slot says: it may be torn, or overwritten by a runner that was given up
        slot = presence.recorder.find(row.id, row.attempt)
        if slot is None:
            return end_unstarted(self._shell, row)
        if presence.recorder.revoke(slot, row.id, row.attempt) is not Phase.CLAIMED:
            return row
        ended = end_unstarted(self._shell, row)
        presence.give_slot(slot, row.id, row.attempt)
        return ended

    # ------------------------------------------------------------------ claim and run

    def _take_and_run(self, order: Order, now: Moment, take: _Take) -> Operation | Stored:
        """Find or store the operation; run it where that has claimed it, else return what was found."""
        call = _Call(order, now, self._present())
        self._room.get()
        try:
            taken = self._shell.ledger.together.write_alike(take, call, call.undone)
            return taken.stored if taken.claimed is None else self._run(taken, now, order)
        finally:
            self._taking.difference_update(call.mine)
            self._room.put(None)

    def _check_runnable(self, order: Order) -> None:
        contract = order.contract
        if contract is None or not contract.has_handler:
            raise ConfigurationError(f"contract {order.name!r} has no handler here. Nothing was stored. Use submit, and a worker")
        if self._app.contracts.get(order.name) is not contract:
            raise ContractNotFoundError(order.name, tuple(self._app.contracts))
        if contract.isolation == Isolation.PROCESS:
            self._app.module_reference()
            if getattr(contract.handler, "__module__", "") == "__main__":
                raise ConfigurationError(
                    f"the handler of {order.name!r} is defined in __main__, which a runner cannot import. Nothing was sent. "
                    f"Put it into a module, or declare isolation='thread'"
                )

    def _store_and_claim(self, transaction: Transaction, calls: Sequence[_Call]) -> list[_Taken]:
        """Store the orders as dispatched where nothing stands against it; else store or find them, and claim what may start."""
        presence = calls[0].presence
        dispatched = store_dispatched(self._shell, transaction, presence.id, [(call.order, call.now) for call in calls])
        found = [one or self._stored_and_claimed(transaction, call) for call, one in zip(calls, dispatched, strict=True)]
        return self._with_slots(calls, found)

    def _stored_and_claimed(self, transaction: Transaction, call: _Call) -> _Found:
        stored = store_orders(self._shell, transaction, [call.order], call.now)[0]
        return stored, self._claim(transaction, stored, call)

    def _find_and_claim(self, transaction: Transaction, calls: Sequence[_Call]) -> list[_Taken]:
        rows = [must_find(transaction, call.order.operation_id) for call in calls]
        found = [(stored := Stored(row, False), self._claim(transaction, stored, call)) for call, row in zip(calls, rows, strict=True)]
        return self._with_slots(calls, found)

    def _with_slots(self, calls: Sequence[_Call], found: Sequence[_Found]) -> list[_Taken]:
        """Take a slot for whatever was claimed, and write it: before the commit. Leaves none where one is missing."""
        try:
            return [_Taken(stored, claimed, self._slot(call, claimed)) for call, (stored, claimed) in zip(calls, found, strict=True)]
        except BaseException:
            for call in calls:
                call.undone()
                self._taking.difference_update(call.mine)
                call.mine.clear()
            raise

    def _slot(self, call: _Call, claimed: Claimed | None) -> int | None:
        if claimed is None:
            return None
        row, attempt = claimed.row.id, claimed.row.attempt
        call.mine.append((row, attempt))
        self._taking.add((row, attempt))
        slot = call.presence.take_slot(row, attempt)
        call.slots.append(slot)
        return slot

    def _claim(self, transaction: Transaction, stored: Stored, call: _Call) -> Claimed | None:
        row, order, now = stored.row, call.order, call.now
        if not may_start(self._shell, transaction, row, now):
            return None
        arguments = order.arguments if stored.created else self._arguments(transaction, row)
        claimed = claim_one(self._shell, transaction, call.presence.id, row, arguments, now)
        if claimed is not None:
            note_starts(self._shell, transaction, [row.contract], now)
        return claimed

    def _arguments(self, transaction: Transaction, row: Row) -> str:
        body = read_payload(transaction, row.id, ARGUMENTS)
        assert body is not None
        return self._shell.codec.decode(body)

    def _run(self, taken: "_Taken", now: Moment, order: Order) -> Operation:
        claimed, slot, created = taken.claimed, taken.slot, taken.stored.created
        assert claimed is not None
        job = handler_job(claimed, slot, now, self._shell.limits)
        ran = self._calls.run(self._executing(), job, lambda: self._stop_wanted(job))
        ended = self._owing.record(Ended(claimed.row, ran.report, by_person=ran.by_person), slot)
        if ran.interrupt is not None:
            raise ran.interrupt
        row, events = ended.row, (*taken.stored.events, *claimed.events, *ended.events)
        knows_all = created and row.sequence == len(events) and not claimed.terms.sensitive_fields
        if knows_all and row.status is Status.CONFIRMED:
            return show.known_snapshot(row, events, ran.report.output, order.metadata)
        try:
            with self._shell.ledger.read() as transaction:
                return show.full_snapshot(self._shell, transaction, row, created=created)
        except LedgerUnavailableError as error:
            raise not_read_back(row, ran.report, error) from error

    def _stop_wanted(self, job: Job) -> bool:
        """Return whether a person asked for this handler to be stopped, here or from another process."""
        try:
            with self._shell.ledger.read() as transaction:
                return job.row in find_stop_requested(transaction, self._present().id)
        except LedgerUnavailableError:
            return False  # asked again soon

    # ------------------------------------------------------------------ known already

    def _known(self, order: Order) -> Operation:
        """Return what is known of a repeated request, after one look at its owner and one probe where that can help."""
        row = self.recover(order.operation_id)
        if row.status is Status.OUTCOME_UNKNOWN and self._shell.contracts[row.contract].has_probe:
            self._ask(row)
            with self._shell.ledger.read() as transaction:
                row = must_find(transaction, order.operation_id)
        if row.status is Status.PREPARED and row.attempt:
            now = self._shell.clock.now()
            ran = self._take_and_run(order, now, self._find_and_claim)
            if isinstance(ran, Operation):
                return ran
        return self._app.get(order.operation_id)

    def _ask(self, row: Row) -> None:
        """Ask the probe of a row, unless another thread of this process is asking it."""
        with self._lock:
            if row.id in self._asked:
                return
            self._asked.add(row.id)
        try:
            self._ask_alone(row)
        finally:
            with self._lock:
                self._asked.discard(row.id)

    def _ask_alone(self, row: Row) -> None:
        """Hold the row, ask its probe, record the answer. Another incarnation's hold is respected."""
        presence = self._present()
        self._executing()  # whatever may be missing is missing before the hold
        with self._shell.ledger.write() as transaction:
            fresh = read_row(transaction, row.id)
            prepared = prepare_probes(self._shell, transaction, [fresh], presence.id, self._shell.clock.now())
        for asking in prepared.asking:
            ran = self._calls.run(self._executing(), asking.job)
            self._owing.answer(ran.report, presence.id)
            if ran.interrupt is not None:
                raise ran.interrupt

    # ------------------------------------------------------------------ presence

    def _give_slot(self, slot: int, row: int, attempt: int) -> None:
        if self._presence is not None:
            self._presence.give_slot(slot, row, attempt)

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
                reference = None
                with suppress(ConfigurationError):  # told to whoever executes a handler that needs it
                    reference = self._app.module_reference()
                self._execution = Execution(
                    resolve=self._app.contract,
                    arrived=self._calls.arrived,
                    clock=self._shell.clock.now,
                    app_ref=reference,
                    slots=limits.slots,
                    process_slots=limits.process_runners_max,
                    probe_slots=limits.probe_slots,
                    redact=self._app.redact,
                    recorder=presence.recorder,
                    incarnation=presence.incarnation,
                )
            return self._execution



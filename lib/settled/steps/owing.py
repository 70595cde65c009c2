"""Record the ends of a caller's attempts, and keep those that the store does not take yet.

Promise: the handler has run, so an end is never dropped while this process lives; its recorder slot stays taken until the
end is recorded, and nothing may repeat the effect meanwhile.
"""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from settled.core.errors import LedgerUnavailableError
from settled.core.row import Row
from settled.execution.job import Kind, Report
from settled.shell import Shell
from settled.steps import show
from settled.steps.ends import Ended, Settled, record_ends
from settled.steps.reconcile import record_answer
from settled.store.reads import read_row
from settled.store.transaction import Transaction

TRIES_MAX: Final = 5


class _Owed(NamedTuple):
    record: Callable[[], object]
    slot: int | None
    row: int
    attempt: int


class Owing:
    """What this process still owes the ledger. `give_slot` frees a recorder slot."""

    def __init__(self, shell: Shell, give_slot: Callable[[int, int, int], None]) -> None:
        self._shell, self._give_slot = shell, give_slot
        self._owed: list[_Owed] = []
        self._settling = threading.Lock()

    def record(self, ended: Ended, slot: int | None) -> Settled:
        """Record an end, and try again for a while. Raises LedgerUnavailableError with what was observed; it is owed then."""
        for tried in range(1, TRIES_MAX + 1):
            try:
                settled = self._record(ended)
                break
            except LedgerUnavailableError as error:
                if tried == TRIES_MAX:
                    self._owed.append(_Owed(partial(self._record, ended), slot, ended.row.id, ended.row.attempt))
                    raise _not_recorded(ended, error) from error
                show.sleep(min(0.05 * 2**tried, 1.0))
            except BaseException:  # an interrupt of this thread: perhaps recorded, perhaps not; the second time is harmless
                self._owed.append(_Owed(partial(self._record, ended), slot, ended.row.id, ended.row.attempt))
                raise
        if slot is not None:
            self._give_slot(slot, ended.row.id, ended.row.attempt)
        return settled

    def take_late(self, report: Report) -> None:
        """Record what a handler said after it was given up, or after its caller had gone."""
        if report.job.kind is not Kind.HANDLER:
            return
        slot = None if report.late else report.job.slot
        try:
            self._record_late(report)
        except LedgerUnavailableError:
            self._owed.append(_Owed(partial(self._record_late, report), slot, report.job.row, report.job.attempt))
            return
        if slot is not None:
            self._give_slot(slot, report.job.row, report.job.attempt)

    def answer(self, report: Report, worker: int) -> None:
        """Record a probe's answer, which also gives up its hold. Raises LedgerUnavailableError; it is owed then."""
        record = partial(self._record_answer, report, worker)
        try:
            record()
        except BaseException:
            self._owed.append(_Owed(record, None, report.job.row, report.job.attempt))
            raise

    def knows(self, row: int, attempt: int) -> bool:
        """Whether an end of this attempt is still to be recorded."""
        return any((one.row, one.attempt) == (row, attempt) and one.slot is not None for one in list(self._owed))

    def settle(self) -> None:
        """Record what is owed. Raises LedgerUnavailableError; what is left stays owed then."""
        with self._settling:
            while self._owed:
                first = self._owed[0]
                first.record()
                del self._owed[0]
                if first.slot is not None:
                    self._give_slot(first.slot, first.row, first.attempt)

    def _record(self, ended: Ended) -> Settled:
        return self._shell.ledger.together.write_alike(self._record_all, ended)

    def _record_all(self, transaction: Transaction, ended: Sequence[Ended]) -> list[Settled]:
        return record_ends(self._shell, transaction, ended, self._shell.clock.now())

    def _record_answer(self, report: Report, worker: int) -> None:
        with self._shell.ledger.write() as transaction:
            record_answer(self._shell, transaction, report, worker, self._shell.clock.now())

    def _record_late(self, report: Report) -> Row:
        with self._shell.ledger.write() as transaction:
            row = read_row(transaction, report.job.row)
            return record_ends(self._shell, transaction, [Ended(row, report)], self._shell.clock.now())[0].row


def not_read_back(row: Row, report: Report, error: LedgerUnavailableError) -> LedgerUnavailableError:
    """Return the error of an end that was recorded, where the ledger then failed to show it."""
    text = f"operation {row.operation_id!r} was dispatched (attempt {row.attempt}) and is recorded as {row.status}"
    then = f"Do not repeat it. See: settled op show {row.operation_id}"
    return _with_facts(row, report, f"{text}, but could not be read back: {error} {then}")


def _not_recorded(ended: Ended, error: LedgerUnavailableError) -> LedgerUnavailableError:
    report, row = ended.report, ended.row
    text = f"operation {row.operation_id!r} was dispatched (attempt {row.attempt}) and its handler ended as {report.end.value}"
    then = "It is kept and recorded when the ledger answers. Do not repeat it."
    return _with_facts(row, report, f"{text}, but that could not be recorded: {error} {then}")


def _with_facts(row: Row, report: Report, text: str) -> LedgerUnavailableError:
    return LedgerUnavailableError(
        text,
        operation_id=row.operation_id,
        attempt=row.attempt,
        observed=report.end.value,
        output=report.output,
        provider_operation_id=report.provider_operation_id,
    )

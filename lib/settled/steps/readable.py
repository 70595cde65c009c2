"""Read what a decision needs of a row, or leave a corrupt one alone.

Promise: a row whose history cannot be read is never interpreted, is told of, and stands in nobody's way.
"""

from typing import Final

from settled.core.case import Case
from settled.core.errors import LedgerStateError, PayloadKeyError
from settled.core.moment import SECOND_US, Moment
from settled.core.row import Row
from settled.logs import get_log
from settled.shell import Shell
from settled.store.transaction import Transaction
from settled.store.waiting import reschedule

log = get_log("settled.steps")
_LOOK_AGAIN_US: Final = 60 * SECOND_US


def readable_case(shell: Shell, transaction: Transaction, row: Row, now: Moment) -> Case | None:
    """Return the case of a row, None where what is stored of it is corrupt."""
    try:
        return shell.full_case(transaction, row, now)
    except LedgerStateError as error:
        log.error("operation.left_alone", operation_id=row.operation_id, error=str(error))
        return None


def readable_text(shell: Shell, row: Row, stored: str) -> str | None:
    """Return a stored text as it was before the codec, None where its key is not known here."""
    try:
        return shell.codec.decode(stored)
    except PayloadKeyError as error:
        log.error("operation.left_alone", operation_id=row.operation_id, error=str(error))
        return None


def put_aside(transaction: Transaction, row: Row, due_us: int) -> None:
    """Look at a corrupt row again later, so that it does not take the place of others in every batch."""
    reschedule(transaction, row, due_us + _LOOK_AGAIN_US)

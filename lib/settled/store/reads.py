"""Read rows, events and payloads. A corrupt row is never interpreted: LedgerStateError names it."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

import sqlalchemy as sa

from settled.core.canonical import fingerprint_of
from settled.core.errors import LedgerStateError
from settled.core.fold import NO_DATA, Event
from settled.core.history import History, fold_history
from settled.core.row import Row
from settled.core.words import SETTLED, EventType, Status
from settled.store.prepared import named
from settled.store.schema import event, evidence_inbox, operation, payload, seal, tally
from settled.store.transaction import Transaction

ROW_COLUMNS: Final = tuple(operation.c[name] for name in Row._fields)
_STATUS_AT: Final = Row._fields.index("status")
_FINGERPRINT_AT: Final = Row._fields.index("fingerprint")
ARGUMENTS: Final = 0
METADATA: Final = -1


def to_row(values: Sequence[Any]) -> Row:
    """Return a stored row. Raises LedgerStateError for a value that no writer of ours wrote."""
    made = list(values)
    try:
        made[_STATUS_AT] = Status(made[_STATUS_AT])
    except ValueError:
        raise LedgerStateError(str(values[1]), "status", repr(values[_STATUS_AT])) from None
    made[_FINGERPRINT_AT] = fingerprint_of(made[_FINGERPRINT_AT])
    made[-1] = bytes(made[-1])
    return Row._make(made)


def find_row(transaction: Transaction, operation_id: str) -> Row | None:
    """Return the row of an operation ID."""
    found = transaction.run(_by_operation_id, operation_id=operation_id).fetchone()
    return None if found is None else to_row(found)


def read_status(transaction: Transaction, operation_id: str) -> str | None:
    """Return the status of an operation ID as it is stored, None where there is no such operation."""
    found = transaction.run(_status_of, operation_id=operation_id).fetchone()
    return None if found is None else str(found[0])


def read_row(transaction: Transaction, row_id: int) -> Row:
    """Return the row of an internal key that is known to exist."""
    return to_row(transaction.run(_by_id, id=row_id).fetchone())


def find_by_reference(transaction: Transaction, provider_reference: str) -> list[Row]:
    """Return the rows that carry a provider reference, oldest first."""
    return [to_row(found) for found in transaction.run(_by_reference, provider_reference=provider_reference).fetchall()]


def read_events(transaction: Transaction, row: Row) -> list[Event]:
    """Return the events of an operation in order. Raises LedgerStateError for one that cannot be read."""
    found = transaction.run(_events_of, operation=row.id).fetchall()
    return [to_event(row.operation_id, values) for values in found]


def read_history(transaction: Transaction, row: Row) -> History:
    """Return the folded history of an operation."""
    return fold_history(read_events(transaction, row))


def read_trace(transaction: Transaction, row_id: int) -> str | None:
    """Return the traceparent of whoever submitted an operation, None where there was none."""
    found = transaction.run(_first_event, operation=row_id).fetchone()
    data = json.loads(found[0]) if found is not None and found[0] is not None else {}
    return data.get("trace") if isinstance(data, dict) else None


def read_payload(transaction: Transaction, row_id: int, part: int) -> str | None:
    """Return a stored text, None where it was never stored or has been purged."""
    found = transaction.run(_payload_of, operation=row_id, part=part).fetchone()
    return None if found is None else str(found[0])


def highest_wall_us(transaction: Transaction) -> int:
    """Return the highest wall clock ever stored, 0 for none."""
    found = transaction.run(_highest_wall).fetchone()
    return 0 if found is None else int(found[0])


def list_rows(transaction: Transaction, statuses: Iterable[Status], limit: int) -> list[Row]:
    """Return rows of any of `statuses`, newest update first. The cost does not grow with the rows that are not shown."""
    found = [
        to_row(values)
        for status in statuses
        for values in transaction.run(_listed, status=status.value, limit=limit).fetchall()
    ]
    found.sort(key=lambda row: (-row.updated_us, -row.id))
    return found[:limit]


def find_unsettled(transaction: Transaction, after_id: int, limit: int) -> list[Row]:
    """Return rows that are not settled, in key order above `after_id`. Walks the whole table: for rare work only."""
    return [to_row(found) for found in transaction.run(_unsettled, after_id=after_id, limit=limit).fetchall()]


def counts(transaction: Transaction) -> dict[str, dict[str, int]]:
    """Return how many operations each contract has in each status, from the tally."""
    found: dict[str, dict[str, int]] = {}
    for contract, status, count in transaction.run(_counted).fetchall():
        if count:
            found.setdefault(contract, {})[status] = count
    return found


def oldest(transaction: Transaction, status: Status) -> int | None:
    """Return when the row of `status` that was updated longest ago was updated, in microseconds."""
    found = transaction.run(_oldest, status=status.value).fetchone()
    return None if found is None else int(found[0])


def inbox_of(transaction: Transaction, provider_reference: str) -> list[tuple[int, str, int, str]]:
    """Return waiting evidence for a reference: id, source, arrival, and its text as the codec wrote it."""
    found = transaction.run(_inbox_of, provider_reference=provider_reference).fetchall()
    return [(row[0], row[1], row[2], row[3]) for row in found]


def to_event(operation_id: str, values: Sequence[Any]) -> Event:
    """Return a stored event. Raises LedgerStateError for one that no writer of ours wrote."""
    try:
        data = json.loads(values[4]) if values[4] is not None else NO_DATA
        if not isinstance(data, dict):
            raise ValueError("not a map")
        return Event(EventType(values[0]), Status(values[1]), values[2], values[3], data)
    except ValueError as error:
        raise LedgerStateError(operation_id, "event.data" if "is not a valid" not in str(error) else "event", str(error)) from None


def _by_operation_id() -> sa.ClauseElement:
    return sa.select(*ROW_COLUMNS).where(operation.c.operation_id == named("operation_id"))


def _status_of() -> sa.ClauseElement:
    return sa.select(operation.c.status).where(operation.c.operation_id == named("operation_id"))


def _by_id() -> sa.ClauseElement:
    return sa.select(*ROW_COLUMNS).where(operation.c.id == named("id"))


def _by_reference() -> sa.ClauseElement:
    column = operation.c.provider_reference
    return sa.select(*ROW_COLUMNS).where(column == named("provider_reference"), column.is_not(None)).order_by(operation.c.id)


def _events_of() -> sa.ClauseElement:
    column = event.c
    wanted = (column.type, column.status, column.attempt, column.at_us, column.data, column.hash, column.seal)
    return sa.select(*wanted).where(column.operation == named("operation")).order_by(column.sequence)


def _first_event() -> sa.ClauseElement:
    column = event.c
    return sa.select(column.data).where(column.operation == named("operation"), column.sequence == sa.literal_column("1"))


def _unsettled() -> sa.ClauseElement:
    unsettled: list[sa.ColumnElement[str]] = [sa.literal_column(f"'{status.value}'") for status in Status if status not in SETTLED]
    rows = sa.select(*ROW_COLUMNS).where(operation.c.id > named("after_id"), operation.c.status.in_(unsettled))
    return rows.order_by(operation.c.id).limit(named("limit"))


def _payload_of() -> sa.ClauseElement:
    return sa.select(payload.c.body).where(payload.c.operation == named("operation"), payload.c.part == named("part"))


def _highest_wall() -> sa.ClauseElement:
    return sa.select(seal.c.at_us).order_by(seal.c.id.desc()).limit(sa.literal_column("1"))


def _listed() -> sa.ClauseElement:
    rows = sa.select(*ROW_COLUMNS).where(operation.c.status == named("status"))
    return rows.order_by(operation.c.updated_us.desc(), operation.c.id.desc()).limit(named("limit"))


def _oldest() -> sa.ClauseElement:
    rows = sa.select(operation.c.updated_us).where(operation.c.status == named("status"))
    return rows.order_by(operation.c.updated_us).limit(sa.literal_column("1"))


def _counted() -> sa.ClauseElement:
    return sa.select(tally.c.contract, tally.c.status, tally.c.count).order_by(tally.c.contract, tally.c.status)


def _inbox_of() -> sa.ClauseElement:
    column = evidence_inbox.c
    return (
        sa.select(column.id, column.source, column.at_us, column.body)
        .where(column.provider_reference == named("provider_reference"))
        .order_by(column.id)
    )


def written_types(transaction: Transaction) -> frozenset[EventType]:
    """Return the types of the events that this transaction has written so far."""
    if not transaction.sealing.id:
        return frozenset()
    return frozenset(EventType(found[0]) for found in transaction.run(_types_under, seal=transaction.sealing.id).fetchall())


def _types_under() -> sa.ClauseElement:
    return sa.select(event.c.type).where(event.c.seal == named("seal")).distinct()

"""Keep incidents beside the moves that open and close them, in the same transaction, with the first row of the outbox.

Promise: the one writer of moves calls `note_incidents`, so that no quarantine, conflict or suspected duplicate is
committed without the notification that tells of it. Which channel it takes is chosen later, by whoever delivers.
"""

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Dialect

from settled.core.fold import Event
from settled.core.incidents import Attention, IncidentKind, decide_incidents
from settled.core.ladder import Incident
from settled.core.row import Row
from settled.store.outbox import want
from settled.store.prepared import named, upsert
from settled.store.schema import incident
from settled.store.transaction import Transaction

_c = incident.c
_COLUMNS: Final = tuple(_c[name] for name in Incident._fields)
_OPEN: Final = sa.text("incident.closed_us IS NULL")


def note_incidents(transaction: Transaction, seen: Row, row: Row, events: Sequence[Event]) -> None:
    """Open, close and mark what a recorded move means for incidents."""
    change = decide_incidents(seen, row, events)
    at_us = row.updated_us
    for kind in change.closes:
        transaction.run(_close_kind, known=row.id, wanted=kind, closed_us=at_us, closed_by=change.closed_by)
    for opening in change.opens:
        facts = {"operation": row.id, "contract": row.contract, "queue": row.queue, "risk": row.risk}
        _open(transaction, facts | {"kind": opening.kind, "reason": opening.reason}, at_us)
    for one in change.said:
        _attend(transaction, row.id, one)


def open_for_contract(transaction: Transaction, contract: str, queue: str, risk: str, kind: IncidentKind, reason: str, at_us: int) -> bool:
    """Open an incident of a whole contract; False where one of this kind is open."""
    last = last_of_contract(transaction, contract, kind)
    if last is not None and last.closed_us is None:
        return False
    facts = {"operation": None, "contract": contract, "queue": queue, "risk": risk, "kind": kind, "reason": reason}
    return _open(transaction, facts, at_us)


def last_of_contract(transaction: Transaction, contract: str, kind: IncidentKind) -> Incident | None:
    """Return the latest incident of a whole contract."""
    found = transaction.run(_last_of_contract, contract=contract, kind=kind).fetchone()
    return None if found is None else Incident._make(found)


def close_one(transaction: Transaction, incident_id: int, by: str, at_us: int) -> None:
    """Close an open incident."""
    transaction.run(_close, known=incident_id, closed_us=at_us, closed_by=by)


def find_due(transaction: Transaction, now_us: int, limit: int) -> list[Incident]:
    """Return open incidents whose ladder is to be looked at, earliest first."""
    return [Incident._make(row) for row in transaction.run(_due, now_us=now_us, limit=limit).fetchall()]


def find_open(transaction: Transaction, limit: int) -> list[Incident]:
    """Return open incidents, oldest first."""
    return [Incident._make(row) for row in transaction.run(_all_open, limit=limit).fetchall()]


def find_open_of_contracts(transaction: Transaction) -> list[Incident]:
    """Return the open incidents of whole contracts."""
    return [Incident._make(row) for row in transaction.run(_open_of_contracts).fetchall()]


def count_open(transaction: Transaction) -> int:
    """Return how many incidents are open."""
    return int(transaction.run(_count_open).fetchone()[0])


def of_operation(transaction: Transaction, row_id: int) -> list[Incident]:
    """Return every incident that an operation has had, oldest first."""
    return [Incident._make(row) for row in transaction.run(_of_operation, operation=row_id).fetchall()]


def climbed(transaction: Transaction, seen: Incident, taken: int, due_us: int | None) -> bool:
    """Note that steps were taken and the snooze is over; False where somebody else has looked or spoken meanwhile."""
    values = {"known": seen.id, "seen_taken": seen.taken, "seen_due_us": seen.due_us, "taken": taken, "due_us": due_us}
    return bool(transaction.run(_climbed, **values).rowcount == 1)


def _open(transaction: Transaction, facts: dict[str, Any], at_us: int) -> bool:
    made = transaction.run(_insert, opened_us=at_us, taken=1, due_us=at_us, **facts).fetchone()
    if made is None:  # one of this kind is open
        return False
    want(transaction, int(made[0]), step=0, number=0, at_us=at_us)
    return True


def _attend(transaction: Transaction, row_id: int, said: Attention) -> None:
    values = {"acknowledged_us": said.at_us if said.acknowledged else None, "acknowledged_by": said.by if said.acknowledged else None}
    transaction.run(_mark, known=row_id, snoozed_us=said.snoozed_us, due_us=said.snoozed_us, **values)
    if said.assigned_to is not None:
        transaction.run(_assign, known=row_id, assigned_to=said.assigned_to)
    if said.acknowledged:  # what no move can settle is settled by whoever has looked at it
        kind = IncidentKind.DUPLICATE_SUSPECTED
        transaction.run(_close_kind, known=row_id, wanted=kind, closed_us=said.at_us, closed_by="acknowledged")


def _insert(dialect: Dialect) -> sa.ClauseElement:
    names = ("operation", "contract", "queue", "risk", "kind", "reason", "opened_us", "taken", "due_us")
    row = upsert(incident, dialect).values({name: named(name) for name in names})
    return row.on_conflict_do_nothing().returning(_c.id)


def _close_kind() -> sa.ClauseElement:
    rows = sa.update(incident).where(_c.operation == named("known"), _c.kind == named("wanted"), _OPEN)
    return rows.values(closed_us=named("closed_us"), closed_by=named("closed_by"), due_us=sa.null())


def _close() -> sa.ClauseElement:
    row = sa.update(incident).where(_c.id == named("known"), _OPEN)
    return row.values(closed_us=named("closed_us"), closed_by=named("closed_by"), due_us=sa.null())


def _mark() -> sa.ClauseElement:
    names = ("acknowledged_us", "acknowledged_by", "snoozed_us", "due_us")
    return sa.update(incident).where(_c.operation == named("known"), _OPEN).values({name: named(name) for name in names})


def _assign() -> sa.ClauseElement:
    return sa.update(incident).where(_c.operation == named("known"), _OPEN).values(assigned_to=named("assigned_to"))


def _due() -> sa.ClauseElement:
    rows = sa.select(*_COLUMNS).where(_c.due_us.is_not(None), _c.due_us <= named("now_us"))
    return rows.order_by(_c.due_us).limit(named("limit"))


def _all_open() -> sa.ClauseElement:
    return sa.select(*_COLUMNS).where(_OPEN).order_by(_c.opened_us).limit(named("limit"))


def _open_of_contracts() -> sa.ClauseElement:
    return sa.select(*_COLUMNS).where(sa.text("incident.closed_us IS NULL AND incident.operation IS NULL"))


def _count_open() -> sa.ClauseElement:
    return sa.select(sa.func.count()).select_from(incident).where(_OPEN)


def _of_operation() -> sa.ClauseElement:
    return sa.select(*_COLUMNS).where(_c.operation == named("operation")).order_by(_c.id)


def _last_of_contract() -> sa.ClauseElement:
    rows = sa.select(*_COLUMNS).where(_c.contract == named("contract"), _c.kind == named("kind"), _c.operation.is_(None))
    return rows.order_by(_c.opened_us.desc(), _c.id.desc()).limit(sa.literal_column("1"))


def _climbed() -> sa.ClauseElement:
    row = sa.update(incident).where(_c.id == named("known"), _c.taken == named("seen_taken"), _c.due_us == named("seen_due_us"))
    return row.values(taken=named("taken"), due_us=named("due_us"), snoozed_us=sa.null())

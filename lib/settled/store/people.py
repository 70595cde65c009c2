"""Find what waits for a person: by risk, then by age, and what one person has proposed to another."""

from typing import Final, NamedTuple

import sqlalchemy as sa

from settled.core.row import Row
from settled.core.words import EventType, Reason, Status
from settled.store.prepared import named
from settled.store.reads import ROW_COLUMNS, to_row
from settled.store.schema import event, operation
from settled.store.transaction import Transaction

_c = operation.c
_RISKS: Final = ("financial", "high", "medium", "low")


class Selection(NamedTuple):
    """Which of the waiting operations are meant; None means any. `before_us`: waiting since before then."""

    contract: str | None = None
    risk: str | None = None
    reason: str | None = None
    before_us: int | None = None


def find_for_people(transaction: Transaction, selection: Selection, limit: int) -> list[Row]:
    """Return quarantined operations and those that their contract keeps unknown: the highest risk first, then the longest wait."""
    return [to_row(found) for found in transaction.run(_for_people, **selection._asdict(), limit=limit).fetchall()]


def find_proposed(transaction: Transaction) -> set[int]:
    """Return the keys of undecided operations of which anything was ever proposed."""
    return {row[0] for row in transaction.run(_proposed).fetchall()}


def since_us(row: Row) -> int:
    """Return since when an operation waits: since its outcome is unknown, else since it was moved last."""
    return row.updated_us if row.unknown_since_us is None else row.unknown_since_us


def _for_people() -> sa.ClauseElement:
    waiting = sa.or_(
        _c.status == sa.literal_column(f"'{Status.QUARANTINED.value}'"),
        sa.and_(
            _c.status == sa.literal_column(f"'{Status.OUTCOME_UNKNOWN.value}'"),
            _c.reason == sa.literal_column(f"'{Reason.KEPT_UNKNOWN.value}'"),
        ),
    )
    since = sa.func.coalesce(_c.unknown_since_us, _c.updated_us)
    rows = sa.select(*ROW_COLUMNS).where(waiting)
    for column, name in ((_c.contract, "contract"), (_c.risk, "risk"), (_c.reason, "reason")):
        rows = rows.where(sa.or_(named(name).is_(None), column == named(name)))
    rows = rows.where(sa.or_(named("before_us").is_(None), since < named("before_us")))
    rank = sa.case(*((_c.risk == sa.literal_column(f"'{risk}'"), sa.literal_column(str(at))) for at, risk in enumerate(_RISKS)))
    return rows.order_by(sa.func.coalesce(rank, sa.literal_column("9")), since, _c.id).limit(named("limit"))


def _proposed() -> sa.ClauseElement:
    column = event.c
    proposed = column.type == sa.literal_column(f"'{EventType.PROPOSED.value}'")
    undecided = _c.status.in_([sa.literal_column(f"'{one.value}'") for one in (Status.OUTCOME_UNKNOWN, Status.QUARANTINED)])
    joined = sa.join(event, operation, _c.id == column.operation)
    return sa.select(column.operation).select_from(joined).where(proposed, undecided).distinct()

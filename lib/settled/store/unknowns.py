"""Count unknown outcomes of the contracts that have a limit, and pause a contract that makes too many, at once.

Promise: the pause is written in the transaction that records the outcome which is one too many, so that no claim behind it
slips through. Only a person resumes; from then on only what becomes unknown later counts.
"""

from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Dialect

from settled.core.fold import Event
from settled.core.incidents import IncidentKind
from settled.core.row import Row
from settled.core.too_many import UnknownLimit, decide_seen, decide_too_many
from settled.core.words import Reason
from settled.store import incidents, pauses
from settled.store.prepared import named, upsert
from settled.store.schema import end_count, operation, pause
from settled.store.transaction import Transaction

ITSELF: Final = "settled"
_UNKNOWN: Final = sa.text("operation.status IN ('outcome_unknown', 'quarantined')")
_NOT_QUARANTINED: Final = sa.text("operation.status = 'outcome_unknown'")


def watch(transaction: Transaction, before: Row, row: Row, events: Sequence[Event]) -> None:
    """Count what a recorded move means for its contract's limit; pause the contract where it is reached."""
    limit = transaction.unknown_limits.get(row.contract)
    if limit is None:
        return
    seen = decide_seen(before, row, events)
    at_us = row.updated_us
    if seen.ended and limit.rate_max is not None:
        bucket_us = at_us - at_us % limit.bucket_us
        transaction.run(_count, contract=row.contract, bucket_us=bucket_us, ended=1, lost=int(seen.lost))
        transaction.run(_forget, known=row.contract, before_us=at_us - 2 * limit.window_us)
    if seen.became_unknown and row.contract not in pauses.read_paused(transaction).contracts:
        _judge(transaction, row, limit, at_us)


def close_resumed(transaction: Transaction, at_us: int) -> int:
    """Close the incidents of contracts that a person has resumed; return how many."""
    paused = _paused_by_us(transaction)
    over = [one for one in incidents.find_open_of_contracts(transaction) if one.contract not in paused]
    for one in over:
        incidents.close_one(transaction, one.id, "resumed", at_us)
    return len(over)


def any_resumed(transaction: Transaction) -> bool:
    """Whether `close_resumed` would close anything."""
    found = incidents.find_open_of_contracts(transaction)
    return bool(found) and bool({one.contract for one in found} - _paused_by_us(transaction))


def oldest_unknown_us(transaction: Transaction, contract: str) -> int | None:
    """Return since when the outcome of a contract is unknown that has been so for longest; what is in quarantine is left out."""
    found = transaction.run(_oldest_unknown, contract=contract).fetchone()
    return None if found is None else int(found[0])


def _judge(transaction: Transaction, row: Row, limit: UnknownLimit, at_us: int) -> None:
    since_us = transaction.run(_resumed, contract=row.contract).fetchone()[0] or 0
    found = transaction.run(_open_unknown, contract=row.contract, since_us=since_us, limit=limit.open_max or 1).fetchone()
    from_us = max(since_us, at_us - limit.window_us)
    ended, lost = transaction.run(_ends, contract=row.contract, from_us=from_us).fetchone()
    why = decide_too_many(limit, int(found[0]), int(ended), int(lost))
    if why is None:
        return
    pauses.add(
        transaction, "contract", row.contract, reason=Reason.TOO_MANY_UNKNOWN, actor=ITSELF, os_user=ITSELF, principal=ITSELF, at_us=at_us
    )
    kind = IncidentKind.TOO_MANY_UNKNOWN
    last = incidents.last_of_contract(transaction, row.contract, kind)
    if last is not None and last.closed_us is None:
        incidents.close_one(transaction, last.id, "resumed", at_us)
    incidents.open_for_contract(transaction, row.contract, row.queue, row.risk, kind, why, at_us)


def _paused_by_us(transaction: Transaction) -> set[str]:
    found: Sequence[pauses.PauseRow] = pauses.active(transaction)
    return {one.name for one in found if one.scope == "contract" and one.reason == Reason.TOO_MANY_UNKNOWN}


def _count(dialect: Dialect) -> sa.ClauseElement:
    names = ("contract", "bucket_us", "ended", "lost")
    row = upsert(end_count, dialect).values({name: named(name) for name in names})
    added = {name: end_count.c[name] + row.excluded[name] for name in ("ended", "lost")}
    return row.on_conflict_do_update(index_elements=[end_count.c.contract, end_count.c.bucket_us], set_=added)


def _forget() -> sa.ClauseElement:
    return sa.delete(end_count).where(end_count.c.contract == named("known"), end_count.c.bucket_us < named("before_us"))


def _ends() -> sa.ClauseElement:
    ended, lost = (sa.func.coalesce(sa.func.sum(column), 0) for column in (end_count.c.ended, end_count.c.lost))
    return sa.select(ended, lost).where(end_count.c.contract == named("contract"), end_count.c.bucket_us > named("from_us"))


def _resumed() -> sa.ClauseElement:
    lifted = sa.select(sa.func.max(pause.c.lifted_us)).where(pause.c.scope == "contract", pause.c.name == named("contract"))
    return lifted.where(pause.c.reason == Reason.TOO_MANY_UNKNOWN.value)


def _open_unknown() -> sa.ClauseElement:
    _c = operation.c
    rows = sa.select(_c.id).where(_UNKNOWN, _c.contract == named("contract"), _c.unknown_since_us > named("since_us"))
    return sa.select(sa.func.count()).select_from(rows.limit(named("limit")).subquery())


def _oldest_unknown() -> sa.ClauseElement:
    _c = operation.c
    rows = sa.select(_c.unknown_since_us).where(_UNKNOWN, _c.contract == named("contract"), _c.unknown_since_us.is_not(None))
    rows = rows.where(_NOT_QUARANTINED).order_by(_c.unknown_since_us).limit(sa.literal_column("1"))
    return rows.with_hint(operation, "INDEXED BY ix_operation_unknown", "sqlite")

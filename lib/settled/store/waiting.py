"""Find rows that wait: for a claim, a probe, an owner that is gone, a fence, an escalation.

Every query walks a partial index, so that its cost depends on what is found and never on settled history. The tests
assert the query plans.
"""

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from settled.core.paused import NOTHING, Paused
from settled.core.row import Row
from settled.core.words import Status
from settled.store.prepared import named
from settled.store.reads import ROW_COLUMNS, to_row
from settled.store.schema import any_of, operation, pause, payload
from settled.store.transaction import Transaction

_c = operation.c
_READY = sa.text("operation.status = 'prepared' AND operation.reason IS NULL")
_PROBE_DUE = sa.text("operation.due_us IS NOT NULL AND operation.status IN ('outcome_unknown', 'quarantined')")
_LEASED = sa.text("operation.status = 'dispatched'")
_OPEN = any_of(Status.PREPARED, Status.OUTCOME_UNKNOWN, Status.QUARANTINED, of="operation.status")
_UNFENCED = sa.text(f"operation.unfenced > 0 AND {_OPEN}")
_ESCALATE = sa.text("operation.escalate_us IS NOT NULL AND operation.status = 'outcome_unknown'")
_DEADLINE = sa.text("operation.deadline_us IS NOT NULL AND operation.status = 'prepared'")
_REOPENED = sa.text("operation.open_attempts > 0 AND operation.status = 'prepared' AND operation.reason IS NULL")
_UNDERIVED = sa.text("operation.derived = 0 AND operation.status = 'prepared' AND operation.reason IS NULL")


def find_ready(
    transaction: Transaction, contracts: Iterable[str], now_us: int, limit: int, paused: Paused = NOTHING
) -> list[tuple[Row, str]]:
    """Return due prepared rows of `contracts` with their arguments: higher priority first, then due time, then age.

    Of `paused` only the queues are looked at; paused contracts are for the caller to leave out. One seek for each priority in
    use of each contract, then only rows that are returned.
    """
    lanes = [(-priority, contract) for contract in contracts for priority in _priorities(transaction, contract)]
    found: list[tuple[Row, str]] = []
    statement = _ready_in_open_queues if paused.queues else _ready
    for level in sorted({priority for priority, _ in lanes}):
        ready: list[tuple[Row, str]] = []
        for priority, contract in lanes:
            if priority == level:
                values = {"contract": contract, "priority": -level, "now_us": now_us, "limit": limit - len(found)}
                ready += [(to_row(one[:-1]), one[-1]) for one in transaction.run(statement, **values).fetchall()]
        ready.sort(key=lambda pair: (pair[0].due_us or 0, pair[0].id))
        found += ready[: limit - len(found)]
        if len(found) >= limit:
            break
    return found


def next_due_us(transaction: Transaction, contracts: Iterable[str]) -> int | None:
    """Return when the next prepared row of `contracts` falls due, None where none waits."""
    due = [
        transaction.run(_first_due, contract=contract, priority=priority).fetchone()[0]
        for contract in contracts
        for priority in _priorities(transaction, contract)
    ]
    return min(due, default=None)


def find_reopened(transaction: Transaction, contract: str, limit: int) -> list[Row]:
    """Return rows of a contract that wait for a dispatch while an earlier attempt is open, in key order."""
    return [to_row(row) for row in transaction.run(_reopened, contract=contract, limit=limit).fetchall()]


def count_running(transaction: Transaction, contract: str) -> int:
    """Return how many handlers of dispatched operations of a contract may run in this ledger: earlier attempts without a fence, too."""
    return int(transaction.run(_running, contract=contract).fetchone()[0])


def count_abandoned(transaction: Transaction, contract: str) -> int:
    """Return how many attempts of a contract were given up and may still run, of operations that are not dispatched."""
    return int(transaction.run(_abandoned, contract=contract).fetchone()[0])


def find_probe_due(transaction: Transaction, contracts: Iterable[str], now_us: int, limit: int) -> list[Row]:
    """Return rows whose outcome is to be probed now, held by nobody, earliest first."""
    found: list[Row] = []
    for contract in contracts:
        rows = transaction.run(_probe_due, contract=contract, now_us=now_us, limit=limit).fetchall()
        found += [to_row(row) for row in rows]
    found.sort(key=lambda row: (row.due_us or 0, row.id))
    return found[:limit]


def next_probe_us(transaction: Transaction, contracts: Iterable[str]) -> int | None:
    """Return when the next probe of `contracts` is due, None where none waits."""
    found = [transaction.run(_next_probe, contract=contract).fetchone() for contract in contracts]
    return min((row[0] for row in found if row is not None), default=None)


def lease_owners(transaction: Transaction) -> list[int]:
    """Return the incarnations that own a dispatched row."""
    return [row[0] for row in transaction.run(_owners).fetchall()]


def find_leased(transaction: Transaction, owner: int, after_id: int, limit: int) -> list[Row]:
    """Return the dispatched rows of an owner with a key above `after_id`, in key order."""
    return [to_row(row) for row in transaction.run(_leased, owner=owner, after_id=after_id, limit=limit).fetchall()]


def find_stop_requested(transaction: Transaction, owner: int) -> list[int]:
    """Return the keys of an owner's rows whose handler a person wants stopped."""
    return [row[0] for row in transaction.run(_stop_requested, owner=owner).fetchall()]


def find_unfenced(transaction: Transaction, after_id: int, limit: int) -> list[Row]:
    """Return rows with an attempt whose fence may still be found, in key order above `after_id`."""
    return [to_row(row) for row in transaction.run(_unfenced, after_id=after_id, limit=limit).fetchall()]


def find_repeated(transaction: Transaction) -> list[Row]:
    """Return the dispatched rows with an earlier attempt that is open beside the running one; as few as run at a time."""
    return [to_row(row) for row in transaction.run(_repeated).fetchall()]


def find_escalating(transaction: Transaction, now_us: int, limit: int) -> list[Row]:
    """Return rows that have been unknown for too long."""
    return [to_row(row) for row in transaction.run(_escalating, now_us=now_us, limit=limit).fetchall()]


def find_expired(transaction: Transaction, now_us: int, limit: int) -> list[Row]:
    """Return prepared rows whose deadline is over, the held ones included."""
    return [to_row(row) for row in transaction.run(_expired, now_us=now_us, limit=limit).fetchall()]


def find_underived(transaction: Transaction, contract: str, limit: int) -> list[tuple[Row, str]]:
    """Return rows that were submitted by name, with their arguments: first what is due first."""
    found = transaction.run(_underived, contract=contract, limit=limit).fetchall()
    return [(to_row(row[:-1]), row[-1]) for row in found]


def hold_for_probe(transaction: Transaction, rows: Iterable[Row], worker: int) -> list[Row]:
    """Take rows for a probe, so that no two probe at once; return those that were got. The version stays."""
    statement = transaction.statements[_hold]
    return [row for row in rows if statement.run_many(transaction.cursor, [_guard(row) | {"worker": worker, "mine": worker}]) == 1]


def release_probe(transaction: Transaction, row_ids: Iterable[int], worker: int) -> None:
    """Give up the holds of a worker on these rows."""
    values = [{"seen_id": row_id, "worker": worker} for row_id in row_ids]
    if values:
        transaction.statements[_release].run_many(transaction.cursor, values)


def release_all_probes(transaction: Transaction, worker: int) -> int:
    """Give up every hold of an incarnation that is gone; return how many there were."""
    return int(transaction.run(_release_all, worker=worker).rowcount)


def probe_owner(transaction: Transaction, row_id: int) -> int | None:
    """Return who holds a row for a probe."""
    found = transaction.run(_probe_owner, id=row_id).fetchone()
    return None if found is None else found[0]


def probe_owners(transaction: Transaction) -> list[int]:
    """Return the incarnations that hold a row for a probe."""
    return [row[0] for row in transaction.run(_probe_owners).fetchall()]


def reschedule(transaction: Transaction, row: Row, due_us: int) -> None:
    """Move the next look at a row, without an event: scheduling is a hint and no part of what is known."""
    transaction.statements[_reschedule].run(transaction.cursor, _guard(row) | {"due_us": due_us})


def _guard(row: Row) -> dict[str, object]:
    return {"seen_id": row.id, "seen_sequence": row.sequence}


def _priorities(transaction: Transaction, contract: str) -> list[int]:
    """Return the priorities in use among a contract's ready rows, highest first, by one seek each."""
    found = []
    row = transaction.run(_highest_priority, contract=contract).fetchone()
    while row is not None:
        found.append(row[0])
        row = transaction.run(_next_priority, contract=contract, priority=row[0]).fetchone()
    return found


def _one(statement: sa.Select[tuple[int]]) -> sa.Select[tuple[int]]:
    return statement.limit(sa.literal_column("1"))


def _along(index: str, rows: sa.Select[Any]) -> sa.Select[Any]:
    """Name the index to walk; SQLite refuses the statement if it cannot serve."""
    return rows.with_hint(operation, f"INDEXED BY {index}", "sqlite")


def _highest_priority() -> sa.ClauseElement:
    return _one(sa.select(_c.priority).where(_READY, _c.contract == named("contract")).order_by(_c.priority.desc()))


def _next_priority() -> sa.ClauseElement:
    below = sa.select(_c.priority).where(_READY, _c.contract == named("contract"), _c.priority < named("priority"))
    return _one(below.order_by(_c.priority.desc()))


def _first_due() -> sa.ClauseElement:
    lane = sa.select(_c.due_us).where(_READY, _c.contract == named("contract"), _c.priority == named("priority"))
    return _one(lane.order_by(_c.due_us))


def _ready() -> sa.ClauseElement:
    return _lane()


def _ready_in_open_queues() -> sa.ClauseElement:
    stopped = sa.select(pause.c.id).where(pause.c.lifted_us.is_(None), pause.c.scope == sa.literal_column("'queue'"))
    return _lane().where(~stopped.where(pause.c.name == _c.queue).exists())


def _lane() -> sa.Select[Any]:
    joined = sa.join(operation, payload, (payload.c.operation == _c.id) & (payload.c.part == sa.literal_column("0")))
    lane = (
        sa.select(*ROW_COLUMNS, payload.c.body)
        .select_from(joined)
        .where(_READY, _c.contract == named("contract"), _c.priority == named("priority"), _c.due_us <= named("now_us"))
    )
    return lane.where(_c.derived == sa.literal_column("1")).order_by(_c.due_us, _c.id).limit(named("limit"))


def _reopened() -> sa.ClauseElement:
    rows = sa.select(*ROW_COLUMNS).where(_REOPENED, _c.contract == named("contract")).order_by(_c.id).limit(named("limit"))
    return _along("ix_operation_reopened", rows)


def _running() -> sa.ClauseElement:
    # A handed-off attempt has no fence to wait for: of those, the row's own counts alone.
    handlers = sa.case((_c.unfenced > sa.literal_column("1"), _c.unfenced), else_=sa.literal_column("1"))
    rows = sa.select(sa.func.coalesce(sa.func.sum(handlers), sa.literal_column("0"))).where(_LEASED, _c.contract == named("contract"))
    return _along("ix_operation_leased", rows)


def _abandoned() -> sa.ClauseElement:
    attempts = sa.func.coalesce(sa.func.sum(_c.unfenced), sa.literal_column("0"))
    return sa.select(attempts).where(_UNFENCED, _c.contract == named("contract"))


def _probe_due() -> sa.ClauseElement:
    rows = sa.select(*ROW_COLUMNS).where(_PROBE_DUE, _c.contract == named("contract"), _c.due_us <= named("now_us"))
    return rows.where(_c.probe_owner.is_(None)).order_by(_c.due_us, _c.id).limit(named("limit"))


def _next_probe() -> sa.ClauseElement:
    return _one(sa.select(_c.due_us).where(_PROBE_DUE, _c.contract == named("contract")).order_by(_c.due_us))


def _owners() -> sa.ClauseElement:
    return _along("ix_operation_leased", sa.select(_c.lease_owner).where(_LEASED).distinct())


def _leased() -> sa.ClauseElement:
    rows = sa.select(*ROW_COLUMNS).where(_LEASED, _c.lease_owner == named("owner"), _c.id > named("after_id"))
    return rows.order_by(_c.id).limit(named("limit"))


def _stop_requested() -> sa.ClauseElement:
    return sa.select(_c.id).where(_LEASED, _c.lease_owner == named("owner"), _c.reason.is_not(None))


def _unfenced() -> sa.ClauseElement:
    rows = sa.select(*ROW_COLUMNS).where(_UNFENCED, _c.id > named("after_id")).order_by(_c.id).limit(named("limit"))
    return _along("ix_operation_unfenced", rows)


def _escalating() -> sa.ClauseElement:
    rows = sa.select(*ROW_COLUMNS).where(_ESCALATE, _c.escalate_us <= named("now_us"))
    return _along("ix_operation_escalate", rows.order_by(_c.escalate_us).limit(named("limit")))


def _expired() -> sa.ClauseElement:
    rows = sa.select(*ROW_COLUMNS).where(_DEADLINE, _c.deadline_us <= named("now_us"))
    return _along("ix_operation_deadline", rows.order_by(_c.deadline_us).limit(named("limit")))


def _repeated() -> sa.ClauseElement:
    return sa.select(*ROW_COLUMNS).where(_LEASED, _c.open_attempts > sa.literal_column("1"))


def _underived() -> sa.ClauseElement:
    joined = sa.join(operation, payload, (payload.c.operation == _c.id) & (payload.c.part == sa.literal_column("0")))
    rows = sa.select(*ROW_COLUMNS, payload.c.body).select_from(joined).where(_UNDERIVED, _c.contract == named("contract"))
    return rows.order_by(_c.due_us, _c.id).limit(named("limit"))


def _hold() -> sa.ClauseElement:
    mine_or_free = sa.or_(_c.probe_owner.is_(None), _c.probe_owner == named("mine"))  # a hold of ours that was left behind
    seen = sa.update(operation).where(_c.id == named("seen_id"), _c.sequence == named("seen_sequence"), mine_or_free)
    return seen.values(probe_owner=named("worker"))


def _release() -> sa.ClauseElement:
    held = sa.update(operation).where(_c.id == named("seen_id"), _c.probe_owner == named("worker"))
    return held.values(probe_owner=sa.null())


def _release_all() -> sa.ClauseElement:
    return sa.update(operation).where(_c.probe_owner.is_not(None), _c.probe_owner == named("worker")).values(probe_owner=sa.null())


def _probe_owner() -> sa.ClauseElement:
    return sa.select(_c.probe_owner).where(_c.id == named("id"))


def _probe_owners() -> sa.ClauseElement:
    return sa.select(_c.probe_owner).where(_c.probe_owner.is_not(None)).distinct()


def _reschedule() -> sa.ClauseElement:
    seen = sa.update(operation).where(_c.id == named("seen_id"), _c.sequence == named("seen_sequence"))
    return seen.values(due_us=named("due_us"))

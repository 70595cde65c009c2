"""Remember incarnations: who may own a row, which contracts they serve, and the lock that proves them dead.

A row says when an incarnation was last seen; whether it still lives is for its lock to say, never for this table.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple

import sqlalchemy as sa

from settled.store.prepared import named
from settled.store.schema import worker
from settled.store.transaction import Transaction

Kind = Literal["worker", "caller", "sweep"]


class WorkerFacts(NamedTuple):
    """What identifies one incarnation. `process_started` is in clock ticks since the boot; it and `pid_namespace` are 0 where the
    system does not tell."""

    incarnation: str
    kind: Kind
    boot_id: str
    pid: int
    process_started: int
    pid_namespace: int
    lock_path: str
    lock_device: int
    lock_inode: int
    cgroup: str | None = None  # where its runners have control groups of their own


class WorkerRow(NamedTuple):
    """One row of `worker`. `ended_us` is set where it ended orderly or was found dead."""

    id: int
    incarnation: str
    kind: str
    boot_id: str
    pid: int
    process_started: int
    pid_namespace: int
    lock_path: str
    lock_device: int
    lock_inode: int
    cgroup: str | None
    contracts: tuple[str, ...]
    started_us: int
    seen_us: int
    ended_us: int | None


_COLUMNS: Final = tuple(worker.c[name] for name in WorkerRow._fields)
_CONTRACTS_AT: Final = WorkerRow._fields.index("contracts")


def register(transaction: Transaction, facts: WorkerFacts, contracts: Iterable[str], at_us: int) -> int:
    """Store a new incarnation with the contracts it serves; return its id."""
    listed = json.dumps(sorted(contracts), ensure_ascii=False, separators=(",", ":"))
    row = facts._asdict() | {"contracts": listed, "started_us": at_us, "seen_us": at_us}
    return int(transaction.run(_insert, **row).fetchone()[0])


def seen(transaction: Transaction, worker_id: int, at_us: int) -> None:
    """Note that an incarnation was at work at this time."""
    transaction.run(_seen, known=worker_id, seen_us=at_us)


def ended(transaction: Transaction, worker_id: int, at_us: int) -> None:
    """Note that an incarnation is over; the first time counts."""
    transaction.run(_ended, known=worker_id, ended_us=at_us)


def live(transaction: Transaction) -> list[WorkerRow]:
    """Return the incarnations that are not known to be over, oldest first."""
    return [_to_worker(values) for values in transaction.run(_live).fetchall()]


def find(transaction: Transaction, ids: Iterable[int]) -> dict[int, WorkerRow]:
    """Return incarnations by id; an id that is not stored is left out."""
    found = {worker_id: transaction.run(_by_id, id=worker_id).fetchone() for worker_id in ids}
    return {worker_id: _to_worker(values) for worker_id, values in found.items() if values is not None}


def of_incarnations(transaction: Transaction, incarnations: Iterable[str]) -> list[WorkerRow]:
    """Return incarnations by their random ids; an id that is not stored is left out."""
    found = (transaction.run(_by_incarnation, incarnation=one).fetchone() for one in incarnations)
    return [_to_worker(values) for values in found if values is not None]


def _to_worker(values: Sequence[Any]) -> WorkerRow:
    made = list(values)
    made[_CONTRACTS_AT] = tuple(json.loads(made[_CONTRACTS_AT]))
    return WorkerRow._make(made)


def _insert() -> sa.ClauseElement:
    names = (*WorkerFacts._fields, "contracts", "started_us", "seen_us")
    return sa.insert(worker).values({name: named(name) for name in names}).returning(worker.c.id)


def _seen() -> sa.ClauseElement:
    return sa.update(worker).where(worker.c.id == named("known")).values(seen_us=named("seen_us"))


def _ended() -> sa.ClauseElement:
    open_row = sa.update(worker).where(worker.c.id == named("known"), worker.c.ended_us.is_(None))
    return open_row.values(ended_us=named("ended_us"))


def _live() -> sa.ClauseElement:
    return sa.select(*_COLUMNS).where(worker.c.ended_us.is_(None)).order_by(worker.c.id)


def _by_id() -> sa.ClauseElement:
    return sa.select(*_COLUMNS).where(worker.c.id == named("id"))


def _by_incarnation() -> sa.ClauseElement:
    return sa.select(*_COLUMNS).where(worker.c.incarnation == named("incarnation"))

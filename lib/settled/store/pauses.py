"""Keep what is paused: a contract, a queue, or everything; who did it, why and when, and who lifted it.

Promise: a claim reads in its own transaction what is paused, once, and a ledger without pauses pays one look into an empty
index for it. What was lifted stays as a record.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

import sqlalchemy as sa

from settled.core.paused import NOTHING, Paused
from settled.store.prepared import named
from settled.store.schema import operation, pause, tally, terms
from settled.store.transaction import Transaction

Scope = Literal["all", "contract", "queue"]


class PauseRow(NamedTuple):
    """One row of `pause`. `name` is blank for everything; the `lifted` facts are None while it is in force."""

    id: int
    scope: str
    name: str
    reason: str
    actor: str
    os_user: str
    principal: str
    at_us: int
    lifted_us: int | None
    lifted_by: str | None
    lifted_os_user: str | None
    lifted_principal: str | None
    lifted_reason: str | None


_COLUMNS: Final = tuple(pause.c[name] for name in PauseRow._fields)


def read_paused(transaction: Transaction) -> Paused:
    """Return what is paused, read once in each transaction."""
    known = transaction.paused
    if known is None:
        found = transaction.run(_paused).fetchall()
        known = transaction.paused = _paused_of(found) if found else NOTHING
    return known


def active(transaction: Transaction) -> list[PauseRow]:
    """Return the pauses in force, oldest first."""
    return [PauseRow._make(row) for row in transaction.run(_active).fetchall()]


def history(transaction: Transaction, after_id: int, limit: int) -> list[PauseRow]:
    """Return pauses, lifted ones too, with a key above `after_id`, oldest first."""
    return [PauseRow._make(row) for row in transaction.run(_history, after_id=after_id, limit=limit).fetchall()]


def latest(transaction: Transaction, limit: int) -> list[PauseRow]:
    """Return pauses, lifted ones too, latest first."""
    return [PauseRow._make(row) for row in transaction.run(_latest, limit=limit).fetchall()]


def add(transaction: Transaction, scope: Scope, name: str, *, reason: str, actor: str, os_user: str, principal: str, at_us: int) -> None:
    """Pause."""
    transaction.run(_insert, scope=scope, name=name, reason=reason, actor=actor, os_user=os_user, principal=principal, at_us=at_us)
    transaction.paused = None


def lift(
    transaction: Transaction, found: Sequence[PauseRow], *, reason: str, actor: str, os_user: str, principal: str, at_us: int
) -> list[PauseRow]:
    """Lift pauses in force; return them as they are then."""
    facts: dict[str, Any] = {
        "lifted_us": at_us, "lifted_by": actor, "lifted_os_user": os_user, "lifted_principal": principal, "lifted_reason": reason
    }  # fmt: skip
    for one in found:
        transaction.run(_lift, known=one.id, **facts)
    transaction.paused = None
    return [one._replace(**facts) for one in found]


def known_contracts(transaction: Transaction) -> set[str]:
    """Return every contract that ever had an operation here."""
    return {row[0] for row in transaction.run(_tallied).fetchall()}


def known_terms(transaction: Transaction) -> list[str]:
    """Return every stored snapshot of terms as its text."""
    return [row[0] for row in transaction.run(_bodies).fetchall()]


def queue_is_used(transaction: Transaction, queue: str) -> bool:
    """Whether any operation was ever put into this queue. Walks the table: for rare questions of people only."""
    return transaction.run(_of_queue, queue=queue).fetchone() is not None


def _paused_of(found: Sequence[Sequence[Any]]) -> Paused:
    return Paused(
        any(scope == "all" for scope, _ in found),
        frozenset(name for scope, name in found if scope == "contract"),
        frozenset(name for scope, name in found if scope == "queue"),
    )


def _paused() -> sa.ClauseElement:
    return sa.select(pause.c.scope, pause.c.name).where(pause.c.lifted_us.is_(None))


def _active() -> sa.ClauseElement:
    return sa.select(*_COLUMNS).where(pause.c.lifted_us.is_(None)).order_by(pause.c.id)


def _history() -> sa.ClauseElement:
    return sa.select(*_COLUMNS).where(pause.c.id > named("after_id")).order_by(pause.c.id).limit(named("limit"))


def _latest() -> sa.ClauseElement:
    return sa.select(*_COLUMNS).order_by(pause.c.id.desc()).limit(named("limit"))


def _insert() -> sa.ClauseElement:
    return sa.insert(pause).values({name: named(name) for name in PauseRow._fields[1:8]})


def _lift() -> sa.ClauseElement:
    open_pause = sa.update(pause).where(pause.c.id == named("known"), pause.c.lifted_us.is_(None))
    return open_pause.values({name: named(name) for name in PauseRow._fields[8:]})


def _tallied() -> sa.ClauseElement:
    return sa.select(tally.c.contract).distinct()


def _bodies() -> sa.ClauseElement:
    return sa.select(terms.c.body)


def _of_queue() -> sa.ClauseElement:
    return sa.select(operation.c.id).where(operation.c.queue == named("queue")).limit(sa.literal_column("1"))

"""Keep evidence for a provider reference that no operation has yet. Bounded: a stranger must not be able to fill the disk."""

from collections.abc import Iterable

import sqlalchemy as sa

from settled.core.limits import DEFAULTS
from settled.store.prepared import named
from settled.store.schema import evidence_inbox
from settled.store.transaction import Transaction


def keep(
    transaction: Transaction,
    provider_reference: str,
    source: str,
    at_us: int,
    body: str,
    *,
    inbox_max: int = DEFAULTS.inbox_max,
    per_reference_max: int = DEFAULTS.inbox_per_reference_max,
) -> bool:
    """Store one piece of evidence; return False, with nothing stored, where the inbox or this reference has no room."""
    mine = transaction.run(_count_of, provider_reference=provider_reference).fetchone()[0]
    if mine >= per_reference_max or transaction.run(_count).fetchone()[0] >= inbox_max:
        return False
    transaction.run(_insert, provider_reference=provider_reference, source=source, at_us=at_us, body=body)
    return True


def take(transaction: Transaction, ids: Iterable[int]) -> None:
    """Remove evidence that an operation has got, or that retention gives up."""
    values = [{"id": one} for one in ids]
    if values:
        transaction.statements[_delete].run_many(transaction.cursor, values)


def find_older(transaction: Transaction, before_us: int, limit: int) -> list[int]:
    """Return ids of evidence that has waited since before `before_us`, oldest first."""
    return [row[0] for row in transaction.run(_older, before_us=before_us, limit=limit).fetchall()]


def _count() -> sa.ClauseElement:
    return sa.select(sa.func.count()).select_from(evidence_inbox)


def _count_of() -> sa.ClauseElement:
    held = evidence_inbox.c.provider_reference == named("provider_reference")
    return sa.select(sa.func.count()).select_from(evidence_inbox).where(held)


def _insert() -> sa.ClauseElement:
    names = ("provider_reference", "source", "at_us", "body")
    return sa.insert(evidence_inbox).values({name: named(name) for name in names})


def _delete() -> sa.ClauseElement:
    return sa.delete(evidence_inbox).where(evidence_inbox.c.id == named("id"))


def _older() -> sa.ClauseElement:
    rows = sa.select(evidence_inbox.c.id).where(evidence_inbox.c.at_us < named("before_us"))
    return rows.order_by(evidence_inbox.c.id).limit(named("limit"))

"""Small facts of the whole ledger, by key."""

import sqlalchemy as sa

from settled.store.prepared import named
from settled.store.schema import meta
from settled.store.transaction import Transaction


def read_note(transaction: Transaction, key: str) -> str | None:
    """Return the value of a key."""
    found = transaction.run(_value, key=key).fetchone()
    return None if found is None else str(found[0])


def write_note(transaction: Transaction, key: str, value: str) -> None:
    """Set the value of a key."""
    if transaction.run(_change, known=key, value=value).rowcount == 0:
        transaction.run(_add, key=key, value=value)


def _value() -> sa.ClauseElement:
    return sa.select(meta.c.value).where(meta.c.key == named("key"))


def _change() -> sa.ClauseElement:
    return sa.update(meta).where(meta.c.key == named("known")).values(value=named("value"))


def _add() -> sa.ClauseElement:
    return sa.insert(meta).values(key=named("key"), value=named("value"))

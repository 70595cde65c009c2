"""Small facts of the whole ledger, by key."""

import json
from collections.abc import Mapping
from typing import Any, Final

import sqlalchemy as sa

from settled.store.prepared import named
from settled.store.schema import meta
from settled.store.transaction import Transaction

_MARKED: Final = "restored_marked"


def read_note(transaction: Transaction, key: str) -> str | None:
    """Return the value of a key."""
    found = transaction.run(_value, key=key).fetchone()
    return None if found is None else str(found[0])


def write_note(transaction: Transaction, key: str, value: str) -> None:
    """Set the value of a key."""
    if transaction.run(_change, known=key, value=value).rowcount == 0:
        transaction.run(_add, key=key, value=value)


def note_adoption(transaction: Transaction, facts: Mapping[str, Any]) -> None:
    """Keep who took the ledger over, when and why, beside earlier adoptions."""
    number = 1
    while read_note(transaction, f"adoption:{number}") is not None:
        number += 1
    write_note(transaction, f"adoption:{number}", json.dumps(facts, sort_keys=True, ensure_ascii=False))


def read_adoptions(transaction: Transaction) -> list[dict[str, Any]]:
    """Return who took the ledger over, the first time first."""
    found: list[dict[str, Any]] = []
    while (text := read_note(transaction, f"adoption:{len(found) + 1}")) is not None:
        found.append(json.loads(text))
    return found


def note_restoration(transaction: Transaction, facts: Mapping[str, Any]) -> None:
    """Keep where the ledger was restored from, when and why, and that its operations are marked already."""
    number = 1
    while read_note(transaction, f"restoration:{number}") is not None:
        number += 1
    write_note(transaction, f"restoration:{number}", json.dumps(facts, sort_keys=True, ensure_ascii=False))
    write_note(transaction, _MARKED, "yes")


def take_restored(transaction: Transaction) -> bool:
    """Return whether a restoration has marked the operations already, and forget it: the next adoption is of another copy."""
    marked = read_note(transaction, _MARKED) == "yes"
    if marked:
        write_note(transaction, _MARKED, "no")
    return marked


def _value() -> sa.ClauseElement:
    return sa.select(meta.c.value).where(meta.c.key == named("key"))


def _change() -> sa.ClauseElement:
    return sa.update(meta).where(meta.c.key == named("known")).values(value=named("value"))


def _add() -> sa.ClauseElement:
    return sa.insert(meta).values(key=named("key"), value=named("value"))

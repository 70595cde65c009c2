"""Count operations by contract and status: each seal carries the changes of its transaction, and each 64th adds those of 64 to the tally.

Promise: the tally and the changes of the seals since the last fold are the exact counts at every moment. A transaction that is rolled
back gives its seal's id to the next one, so that each window of seals is folded once. What cannot be read of a damaged seal changes
nothing here, and stops nobody: the audit names it.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Dialect

from settled.core.canonical import compact_json
from settled.store.prepared import Statements, named, upsert
from settled.store.schema import seal, tally

FOLD: Final = 64  # how many seals are folded together: a commit in so many writes the tally, and a reader reads fewer seals than these
Counts = dict[tuple[str, str], int]
_TALLY: Final = tuple(column.name for column in tally.c)


def changes_text(counts: Mapping[tuple[str, str], int]) -> str | None:
    """Return what a seal says of the counts of its transaction, None where none has changed."""
    changes: dict[str, dict[str, int]] = {}
    for (contract, status), change in counts.items():
        if change:
            of = changes.get(contract)
            if of is None:
                changes[contract] = {status: change}
            else:
                of[status] = change
    return compact_json(changes) if changes else None


def fold(cursor: Any, statements: Statements, seal_id: int) -> None:
    """Add to the tally what the seals up to this one have changed since the last fold. It is the last of its window, and written."""
    texts = statements[_window].run(cursor, {"after": seal_id - FOLD}).fetchall()
    moved = [(contract, status, change) for (contract, status), change in _summed(texts).items() if change]
    if moved:
        statements[_move_tally].run_rows(cursor, _TALLY, moved)


def counted(cursor: Any, statements: Statements) -> Counts:
    """Return the counts as the last seal left them, in one read transaction. The cost does not grow with history."""
    counts: Counts = {(contract, status): count for contract, status, count in statements[_tallied].run(cursor, {}).fetchall()}
    for key, change in _summed(statements[_unfolded].run(cursor, {}).fetchall()).items():
        counts[key] = counts.get(key, 0) + change
    return counts


def _summed(texts: Iterable[tuple[str]]) -> Counts:
    summed: Counts = {}
    for (text,), times in Counter(texts).items():  # most seals say the same few things
        for key, change in _changes(text):
            summed[key] = summed.get(key, 0) + change * times
    return summed


def _changes(text: str) -> list[tuple[tuple[str, str], int]]:
    try:
        changes = [((contract, status), change) for contract, of in json.loads(text).items() for status, change in of.items()]
    except (ValueError, AttributeError):
        return []
    return [one for one in changes if type(one[1]) is int]


def _window() -> sa.ClauseElement:
    return sa.select(seal.c.counts).where(seal.c.id > named("after"), seal.c.counts.is_not(None))


def _unfolded() -> sa.ClauseElement:
    last = sa.select(sa.func.max(seal.c.id)).scalar_subquery()
    size = sa.literal_column(str(FOLD), seal.c.id.type)
    return sa.select(seal.c.counts).where(seal.c.id > last // size * size, seal.c.counts.is_not(None))


def _tallied() -> sa.ClauseElement:
    return sa.select(tally.c.contract, tally.c.status, tally.c.count)


def _move_tally(dialect: Dialect) -> sa.ClauseElement:
    added = upsert(tally, dialect).values(contract=named("contract"), status=named("status"), count=named("count"))
    return added.on_conflict_do_update(
        index_elements=[tally.c.contract, tally.c.status], set_={"count": tally.c.count + added.excluded.count}
    )

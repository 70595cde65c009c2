"""Write stored texts anew, each by one UPDATE guarded by the text that was seen: for another key, never for another content."""

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from settled.store.ledger import Ledger
from settled.store.prepared import named
from settled.store.schema import agent_run, agent_step, evidence_inbox, payload

Change = Callable[[str], str | None]


class _Place(NamedTuple):
    """A column of texts, and the key of its table."""

    table: sa.Table
    column: str
    key: tuple[str, ...]


PLACES: Final = (
    _Place(payload, "body", ("operation", "part")),
    _Place(evidence_inbox, "body", ("id",)),
    _Place(agent_run, "task", ("run_id",)),
    _Place(agent_run, "output", ("run_id",)),
    _Place(agent_step, "arguments", ("run_id", "number")),
    _Place(agent_step, "result", ("run_id", "number")),
)


def rewrite(ledger: Ledger, change: Change, progress: Callable[[int, int], None] | None = None) -> tuple[int, int]:
    """Write each text as `change` wants it, None leaves it; return how many were looked at and how many were written.

    In short transactions, so that workers go on; one that was interrupted is gone on with by calling it again.
    """
    looked_at = written = 0
    for place in PLACES:
        for page in _pages(ledger, place):
            found = [(row, change(row[-1])) for row in page if row[-1] is not None]
            changed = [(row, text) for row, text in found if text is not None]
            if changed:
                written += _write(ledger, place, changed)
            looked_at += len(page)
            if progress is not None:
                progress(looked_at, written)
    return looked_at, written


def _pages(ledger: Ledger, place: _Place) -> Iterator[list[tuple[Any, ...]]]:
    columns = [place.table.c[name] for name in (*place.key, place.column)]
    keys = columns[:-1]
    after: tuple[Any, ...] | None = None
    while True:
        rows = sa.select(*columns).order_by(*keys).limit(ledger.limits.batch_max)
        if after is not None:
            rows = rows.where(sa.tuple_(*keys) > sa.tuple_(*(sa.literal(value) for value in after)))
        with ledger.read() as transaction:
            compiled = rows.compile(dialect=transaction.statements.dialect)
            values = [compiled.params[name] for name in compiled.positiontup or ()]
            page = [tuple(row) for row in transaction.cursor.execute(str(compiled), values).fetchall()]
        if not page:
            return
        yield page
        after = page[-1][:-1]


def _write(ledger: Ledger, place: _Place, changed: list[tuple[tuple[Any, ...], str]]) -> int:
    column = place.table.c[place.column]
    seen = [place.table.c[name] == named(f"key_{name}") for name in place.key]
    statement = sa.update(place.table).where(*seen, column == named("seen")).values({place.column: named("new")})
    with ledger.write() as transaction:
        compiled = statement.compile(dialect=transaction.statements.dialect)
        rows = []
        for row, text in changed:
            values = {**{f"key_{name}": value for name, value in zip(place.key, row, strict=False)}, "seen": row[-1], "new": text}
            rows.append([values[name] for name in compiled.positiontup or ()])
        transaction.cursor.execute("PRAGMA secure_delete=ON").fetchall()
        try:
            transaction.cursor.executemany(str(compiled), rows)
            return int(transaction.cursor.rowcount)
        finally:
            transaction.cursor.execute("PRAGMA secure_delete=OFF").fetchall()

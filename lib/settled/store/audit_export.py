"""Export what an auditor needs to verify a ledger with twenty lines of their own: events, seals, and the head.

Promise: no arguments and no outputs leave the ledger this way. Rows are read in pages; what is recorded meanwhile is left out.
"""

from collections.abc import Iterator
from typing import Any, Final

import sqlalchemy as sa

from settled.store.audit import head
from settled.store.audit_seals import read_seals
from settled.store.ledger import Ledger
from settled.store.notes import read_adoptions
from settled.store.pauses import history
from settled.store.prepared import named
from settled.store.schema import event, operation

SCHEME: Final = "settled audit 1"
_PAGE: Final = 1024


def export(ledger: Ledger) -> Iterator[dict[str, Any]]:
    """Yield one map per line: the head, the events in the order of operations, pauses and adoptions, the seals in the order of time."""
    last = head(ledger)
    yield {"kind": "head", "scheme": SCHEME, "seal": last.seal_id, "head": last.hex}
    key, sequence = -1, 0
    while True:
        with ledger.read() as transaction:
            page = transaction.run(_page, after=key, sequence=sequence, limit=_PAGE).fetchall()
        for row in page:
            if row[9] <= last.seal_id:
                yield {"kind": "event", **dict(zip(_NAMES, row[1:8], strict=True)), "hash": bytes(row[8]).hex(), "seal": row[9]}
        if not page:
            break
        key, sequence = page[-1][0], page[-1][2]
    after_id = 0
    while True:
        with ledger.read() as transaction:
            pauses = history(transaction, after_id, _PAGE)
        yield from ({"kind": "pause", **one._asdict()} for one in pauses)
        if not pauses:
            break
        after_id = pauses[-1].id
    with ledger.read() as transaction:
        yield from ({"kind": "adoption", **one} for one in read_adoptions(transaction))
    for one in read_seals(ledger, last.seal_id):
        yield {"kind": "seal", "id": one.id, "at_us": one.at_us, "events": one.events, "head": one.head.hex()}


_NAMES: Final = ("operation_id", "sequence", "type", "status", "attempt", "at_us", "data")


def _page() -> sa.ClauseElement:
    column = event.c
    wanted = (column.operation, operation.c.operation_id, column.sequence, column.type, column.status, column.attempt)
    later = sa.tuple_(column.operation, column.sequence) > sa.tuple_(named("after"), named("sequence"))
    return (
        sa.select(*wanted, column.at_us, column.data, column.hash, column.seal)
        .select_from(sa.outerjoin(event, operation, operation.c.id == column.operation))
        .where(later)
        .order_by(column.operation, column.sequence)
        .limit(named("limit"))
    )

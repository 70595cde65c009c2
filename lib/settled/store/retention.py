"""Purge the texts of settled operations by age. Identity, fingerprint, events and chain stay for ever.

Promise: only texts of operations that are settled in the very transaction are removed, in short transactions, and what is
removed is overwritten in the file. A watermark for each group of contracts keeps a sweep from walking the same history again.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import sqlalchemy as sa

from settled.core.words import SETTLED
from settled.store.agent_runs import clear_run_texts, find_finished_runs
from settled.store.ledger import Ledger
from settled.store.notes import read_note, write_note
from settled.store.prepared import named
from settled.store.schema import operation, payload
from settled.store.transaction import Transaction

_c = operation.c
_STATUSES: Final = tuple(sorted(status.value for status in SETTLED))


class Group(NamedTuple):
    """Contracts whose texts are kept equally long. `contracts` None: all but those in `others`. `name` names its watermark."""

    name: str
    before_us: int
    contracts: frozenset[str] | None
    others: frozenset[str] = frozenset()

    def has(self, contract: str) -> bool:
        """Whether a contract belongs to it."""
        return contract not in self.others if self.contracts is None else contract in self.contracts


class Purged(NamedTuple):
    """How many operations were looked at, and of how many texts were removed (or would be)."""

    examined: int
    purged: int


def purge(
    ledger: Ledger,
    group: Group,
    *,
    batches_max: int | None = None,
    from_the_start: bool = False,
    dry_run: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Purged:
    """Remove arguments and outputs of what was settled, and last updated, before `group.before_us`.

    At most `batches_max` batches are examined. `from_the_start` ignores the watermark, `dry_run` removes nothing.
    """
    examined = purged = batches = 0
    for status in _STATUSES:
        key = f"purged:{group.name}:{status}"
        after_us, after_id = (0, 0) if from_the_start or dry_run else _read_mark(ledger, key)
        while batches_max is None or batches < batches_max:
            batches += 1
            with ledger.read() as transaction:
                page = _page_of(transaction, status, after_us, after_id, group.before_us, ledger.limits.batch_max)
                ids = [row_id for row_id, contract, _ in page if group.has(contract)]
                ids = [row_id for row_id in ids if transaction.run(_has_texts, operation=row_id).fetchone() is not None]
            if not page:
                break
            after_id, _, after_us = page[-1]
            examined += len(page)
            purged += len(ids) if dry_run else _remove(ledger, ids, None if from_the_start else (key, f"{after_us}:{after_id}"))
            if progress is not None:
                progress(examined, purged)
    return Purged(examined, purged)


def purge_runs(ledger: Ledger, before_us: int) -> int:
    """Remove the texts of agents' runs that ended, and were last touched, before `before_us`: a bounded number; return of how many."""
    with ledger.read() as transaction:
        if not find_finished_runs(transaction, before_us, 1):
            return 0
    with _overwriting(ledger) as transaction:
        return clear_run_texts(transaction, before_us, ledger.limits.batch_max)


def has_arguments(transaction: Transaction, row_id: int) -> bool:
    """Whether the arguments of an operation are still there."""
    return transaction.run(_arguments_of, operation=row_id).fetchone() is not None


def _remove(ledger: Ledger, ids: Collection[int], mark: tuple[str, str] | None) -> int:
    """Remove the texts of these operations, those that are settled still, and move the watermark with them."""
    removed = 0
    with _overwriting(ledger) as transaction:
        for row_id in ids:
            removed += transaction.run(_delete, operation=row_id).rowcount > 0
        if mark is not None:
            write_note(transaction, *mark)
    return removed


@contextmanager
def _overwriting(ledger: Ledger) -> Iterator[Transaction]:
    """Run a write transaction in which what is removed is overwritten, not only forgotten."""
    with ledger.write() as transaction:
        transaction.cursor.execute("PRAGMA secure_delete=ON").fetchall()
        try:
            yield transaction
        finally:
            transaction.cursor.execute("PRAGMA secure_delete=OFF").fetchall()


def _read_mark(ledger: Ledger, key: str) -> tuple[int, int]:
    with ledger.read() as transaction:
        found = read_note(transaction, key)
    at_us, _, row_id = (found or "0:0").partition(":")
    return int(at_us), int(row_id)


def _page_of(
    transaction: Transaction, status: str, after_us: int, after_id: int, before_us: int, limit: int
) -> list[tuple[int, str, int]]:
    values = {"status": status, "after_us": after_us, "after_id": after_id, "before_us": before_us, "limit": limit}
    return [(row[0], row[1], row[2]) for row in transaction.run(_settled_page, **values).fetchall()]


def _settled_page() -> sa.ClauseElement:
    later = sa.tuple_(_c.updated_us, _c.id) > sa.tuple_(named("after_us"), named("after_id"))
    rows = sa.select(_c.id, _c.contract, _c.updated_us).where(_c.status == named("status"), later, _c.updated_us < named("before_us"))
    return rows.order_by(_c.updated_us, _c.id).limit(named("limit"))


def _has_texts() -> sa.ClauseElement:
    mine = sa.select(payload.c.part).where(payload.c.operation == named("operation"), payload.c.part >= sa.literal_column("0"))
    return mine.limit(sa.literal_column("1"))


def _arguments_of() -> sa.ClauseElement:
    return sa.select(payload.c.part).where(payload.c.operation == named("operation"), payload.c.part == sa.literal_column("0"))


def _delete() -> sa.ClauseElement:
    settled: list[sa.ColumnElement[str]] = [sa.literal_column(f"'{status}'") for status in _STATUSES]
    still = sa.select(_c.id).where(_c.id == payload.c.operation, _c.status.in_(settled)).exists()
    return sa.delete(payload).where(payload.c.operation == named("operation"), payload.c.part >= sa.literal_column("0"), still)

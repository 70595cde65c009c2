"""Audit the seals: does each cover exactly the events of its transaction, and does each follow the one before?

Events lie in the order of operations, seals in the order of time. They are brought together in a scratch database of the
driver's own, which spills to disk, so that an audit needs no memory that grows with the ledger.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from settled.store.findings import Findings
from settled.store.ledger import Ledger
from settled.store.prepared import named
from settled.store.schema import event, operation, seal
from settled.store.sealing import GENESIS, seal_head

_PAGE: Final = 2048


class Seal(NamedTuple):
    """One row of `seal`."""

    id: int
    at_us: int
    events: int
    head: bytes


def audit_seals(ledger: Ledger, findings: Findings, last: int, expected: tuple[int, str] | None) -> None:
    """Check the seals up to `last`, and that `expected` (a seal id and its head in hex, kept elsewhere) is one of them."""
    scratch = ledger.module().connect("", isolation_level=None)
    try:
        _collect(ledger, scratch, last, findings)
        found = groupby(scratch.execute("SELECT seal, hash, at_us FROM covered ORDER BY seal, hash"), key=lambda row: row[0])
        _compare(read_seals(ledger, last), _hashes(found), findings, expected)
    finally:
        scratch.close()
    if expected is not None and expected[0] == 0 and expected[1] != GENESIS.hex():
        findings.add("the head that was kept elsewhere, of before the first seal, is not where every ledger begins")
    if expected is not None and expected[0] > last:
        findings.add(f"seal {expected[0]} is missing: the ledger ends at seal {last}, before a head that was kept elsewhere")


def read_seals(ledger: Ledger, last: int) -> Iterator[Seal]:
    """Yield the seals up to `last` in order, read in pages."""
    after = -1
    while True:
        with ledger.read() as transaction:
            page = transaction.run(_seals, after=after, last=last, limit=_PAGE).fetchall()
        if not page:
            return
        yield from (Seal(row[0], row[1], row[2], bytes(row[3])) for row in page)
        after = page[-1][0]


def _collect(ledger: Ledger, scratch: Any, last: int, findings: Findings) -> None:
    scratch.execute("CREATE TABLE covered (seal INTEGER, hash BLOB, at_us INTEGER)")
    operation_id, sequence, lost = -1, 0, None
    while True:
        with ledger.read() as transaction:
            page = transaction.run(_events_after, after=operation_id, sequence=sequence, limit=_PAGE).fetchall()
        if not page:
            return
        scratch.execute("BEGIN")
        scratch.executemany("INSERT INTO covered VALUES (?, ?, ?)", [(row[2], row[3], row[4]) for row in page if row[2] <= last])
        scratch.execute("COMMIT")
        for row in page:
            if row[5] is None and row[0] != lost:
                lost = row[0]
                findings.add(f"events of an operation that is not there (key {lost})", None, row[1])
        operation_id, sequence = page[-1][0], page[-1][1]


def _hashes(found: Iterable[tuple[int, Iterable[Any]]]) -> Iterator[tuple[int, list[bytes], int]]:
    for seal_id, rows in found:
        covered = list(rows)
        yield seal_id, [bytes(row[1]) for row in covered], max(row[2] for row in covered)


def _compare(
    seals: Iterable[Seal], covered: Iterator[tuple[int, list[bytes], int]], findings: Findings, expected: tuple[int, str] | None
) -> None:
    previous, previous_at_us, wanted = GENESIS, 0, 1
    nothing: tuple[int, list[bytes], int] = (1 << 63, [], 0)
    following = next(covered, nothing)
    for one in seals:
        if one.id != wanted:
            findings.add(f"seals {wanted} to {one.id - 1} are missing")
        while following[0] < one.id:
            findings.add(f"{len(following[1])} events name seal {following[0]}, which is not there")
            following = next(covered, nothing)
        hashes, at_us = (following[1], following[2]) if following[0] == one.id else ([], 0)
        if following[0] == one.id:
            following = next(covered, nothing)
        if len(hashes) != one.events:
            findings.add(f"seal {one.id} covers {one.events} events, {len(hashes)} are there")
        elif one.id == wanted and seal_head(previous, hashes) != one.head:
            findings.add(f"seal {one.id} does not match its events and the seal before it")
        if one.at_us != max(previous_at_us, at_us):
            findings.add(f"the time of seal {one.id} is not the latest of its events")
        if expected is not None and expected[0] == one.id and expected[1] != one.head.hex():
            findings.add(f"seal {one.id} is not the one whose head was kept elsewhere")
        previous, previous_at_us, wanted = one.head, one.at_us, one.id + 1


def _seals() -> sa.ClauseElement:
    columns = (seal.c.id, seal.c.at_us, seal.c.events, seal.c.head)
    return sa.select(*columns).where(seal.c.id > named("after"), seal.c.id <= named("last")).order_by(seal.c.id).limit(named("limit"))


def _events_after() -> sa.ClauseElement:
    column = event.c
    joined = sa.outerjoin(event, operation, operation.c.id == column.operation)
    later = sa.tuple_(column.operation, column.sequence) > sa.tuple_(named("after"), named("sequence"))
    return (
        sa.select(column.operation, column.sequence, column.seal, column.hash, column.at_us, operation.c.id)
        .select_from(joined)
        .where(later)
        .order_by(column.operation, column.sequence)
        .limit(named("limit"))
    )

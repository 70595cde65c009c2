"""Audit a whole ledger: chains, folds, stored texts, seals, counts, stored terms, and the database file itself.

Promise: it reads and changes nothing, in short transactions of bounded memory, and answers with what is wrong instead of
stopping at it. A head that was kept elsewhere also finds a history that was cut or rewritten as a whole.
"""

import hashlib
from collections.abc import Callable
from typing import NamedTuple

import sqlalchemy as sa

from settled.store.audit_operations import audit_operations
from settled.store.audit_seals import audit_seals
from settled.store.bodies import Decode
from settled.store.findings import Finding, Findings
from settled.store.ledger import Ledger
from settled.store.prepared import named
from settled.store.reads import counts
from settled.store.schema import operation, seal, terms
from settled.store.sealing import GENESIS
from settled.store.transaction import Transaction

__all__ = ["Finding", "Head", "head", "verify"]


class Head(NamedTuple):
    """The last seal and its head in hex: one line that, kept elsewhere, pins all history before it."""

    seal_id: int
    hex: str


def head(ledger: Ledger) -> Head:
    """Return the head of the audit, from one row; the seal id is 0 where nothing was ever recorded."""
    with ledger.read() as transaction:
        return _head(transaction)


def verify(
    ledger: Ledger,
    progress: Callable[[int], None] | None = None,
    *,
    expected: tuple[int, str] | None = None,
    findings_max: int | None = None,
    decode: Decode = str,
) -> list[Finding]:
    """Return what is wrong with the ledger, nothing where all is as recorded.

    `progress` is told how many operations were looked at; `expected` is a head that was kept elsewhere. At most
    `findings_max` findings (default: the limit of a list) are returned. `decode` is the codec's.
    """
    findings = Findings(ledger.limits.list_max if findings_max is None else findings_max)
    module = ledger.module()
    # What is recorded while the audit runs is left to the next one: everything up to this seal can change no more.
    last = head(ledger).seal_id
    with findings.instead_of_errors(module, "the file"):
        _audit_file(ledger, findings)
    with findings.instead_of_errors(module, "an operation"):
        audit_operations(ledger, findings, progress, decode)
    with findings.instead_of_errors(module, "the events and seals"):
        audit_seals(ledger, findings, last, expected)
    with findings.instead_of_errors(module, "the tally"):
        _audit_tally(ledger, findings)
    with findings.instead_of_errors(module, "the stored terms"):
        _audit_terms(ledger, findings)
    return findings


def _audit_file(ledger: Ledger, findings: Findings) -> None:
    with ledger.read() as transaction:
        for (answer,) in transaction.cursor.execute("PRAGMA integrity_check(100)").fetchall():
            if answer != "ok":
                findings.add(f"the database file: {answer}")
        for row in transaction.cursor.execute("PRAGMA foreign_key_check").fetchall():
            findings.add(f"the database file: a row of {row[0]} refers to nothing in {row[2]}")


def _audit_tally(ledger: Ledger, findings: Findings) -> None:
    with ledger.read() as transaction:
        kept = {(contract, status): count for contract, of in counts(transaction).items() for status, count in of.items()}
        counted = {(row[0], row[1]): row[2] for row in transaction.run(_counted_rows).fetchall()}
    for key in sorted(kept.keys() | counted.keys()):
        if kept.get(key, 0) != counted.get(key, 0):
            findings.add(f"the tally of {key[0]} {key[1]} says {kept.get(key, 0)}, there are {counted.get(key, 0)}")


def _audit_terms(ledger: Ledger, findings: Findings) -> None:
    after = 0
    while True:
        with ledger.read() as transaction:
            page = transaction.run(_terms_after, after=after, limit=ledger.limits.batch_max).fetchall()
        if not page:
            return
        for terms_id, digest, body in page:
            if hashlib.sha256(body.encode()).hexdigest() != digest:
                findings.add(f"the stored terms {terms_id} are not the ones that were stored")
        after = page[-1][0]


def _head(transaction: Transaction) -> Head:
    found = transaction.run(_last_head).fetchone()
    return Head(0, GENESIS.hex()) if found is None else Head(int(found[0]), bytes(found[1]).hex())


def _last_head() -> sa.ClauseElement:
    return sa.select(seal.c.id, seal.c.head).order_by(seal.c.id.desc()).limit(sa.literal_column("1"))


def _counted_rows() -> sa.ClauseElement:
    return sa.select(operation.c.contract, operation.c.status, sa.func.count()).group_by(operation.c.contract, operation.c.status)


def _terms_after() -> sa.ClauseElement:
    return sa.select(terms.c.id, terms.c.digest, terms.c.body).where(terms.c.id > named("after")).order_by(terms.c.id).limit(named("limit"))

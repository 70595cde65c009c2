"""Keep snapshots of terms, addressed by their content: the same terms are stored once, whoever brings them."""

import hashlib
from collections.abc import Iterable

import sqlalchemy as sa
from sqlalchemy.engine import Dialect

from settled.core.terms import Terms
from settled.store.prepared import named, upsert
from settled.store.schema import terms
from settled.store.transaction import Transaction


def keep_terms(transaction: Transaction, text: str) -> int:
    """Return the id of the snapshot with this text, storing it where it is new."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    found = transaction.run(_id_of, digest=digest).fetchone()
    if found is None:
        found = transaction.run(_insert, digest=digest, body=text).fetchone()
    if found is None:  # a database with several writers: another one stored it in between
        found = transaction.run(_id_of, digest=digest).fetchone()
    return int(found[0])


def read_terms(transaction: Transaction, ids: Iterable[int]) -> dict[int, Terms]:
    """Return the snapshots of these ids; one that is not stored is left out."""
    found = {terms_id: transaction.run(_body_of, id=terms_id).fetchone() for terms_id in ids}
    return {terms_id: Terms.from_text(row[0]) for terms_id, row in found.items() if row is not None}


def _id_of() -> sa.ClauseElement:
    return sa.select(terms.c.id).where(terms.c.digest == named("digest"))


def _body_of() -> sa.ClauseElement:
    return sa.select(terms.c.body).where(terms.c.id == named("id"))


def _insert(dialect: Dialect) -> sa.ClauseElement:
    added = upsert(terms, dialect).values(digest=named("digest"), body=named("body"))
    return added.on_conflict_do_nothing(index_elements=[terms.c.digest]).returning(terms.c.id)

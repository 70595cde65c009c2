"""Forget incidents that were closed long ago, and what people were told of them. The events of operations tell of both for ever.

Promise: what is open, and what has not arrived, is never forgotten; each batch is one short transaction.
"""

import sqlalchemy as sa

from settled.store.ledger import Ledger
from settled.store.outbox import UNDONE
from settled.store.prepared import named
from settled.store.schema import incident, notification
from settled.store.transaction import Transaction

_i, _n = incident.c, notification.c


def forget_incidents(ledger: Ledger, before_us: int, *, batches_max: int) -> int:
    """Forget what was closed, and told, before a moment, at most so many batches; return how many incidents and digests."""
    forgotten = 0
    for _ in range(batches_max):
        with ledger.read() as transaction:
            incidents, digests = _old(transaction, before_us, ledger.limits.batch_max)
        if not incidents and not digests:
            break
        with ledger.write() as transaction:
            for one in incidents:
                if transaction.run(_forget, known=one, before_us=before_us).rowcount == 1:
                    transaction.run(_forget_told, known=one)
                    forgotten += 1
            forgotten += sum(transaction.run(_forget_digest, known=one).rowcount for one in digests)
    return forgotten


def _old(transaction: Transaction, before_us: int, limit: int) -> tuple[list[int], list[int]]:
    values = {"before_us": before_us, "limit": limit}
    incidents = [row[0] for row in transaction.run(_closed_before, **values).fetchall()]
    return incidents, [row[0] for row in transaction.run(_digests_before, **values).fetchall()]


def _undone() -> sa.Exists:
    return sa.select(_n.id).where(_n.incident == _i.id, UNDONE).exists()


def _closed_before() -> sa.ClauseElement:
    rows = sa.select(_i.id).where(sa.text("incident.closed_us IS NOT NULL"), _i.closed_us < named("before_us"), ~_undone())
    return rows.order_by(_i.closed_us).limit(named("limit"))


def _forget() -> sa.ClauseElement:
    closed = sa.text("incident.closed_us IS NOT NULL")
    return sa.delete(incident).where(_i.id == named("known"), closed, _i.closed_us < named("before_us"), ~_undone())


def _forget_told() -> sa.ClauseElement:
    return sa.delete(notification).where(_n.incident == named("known"))


def _alone() -> sa.ColumnElement[bool]:
    """Whether no notification of an incident that is still kept was told by a digest."""
    member = notification.alias("member")
    return ~sa.select(member.c.id).where(member.c.digest.is_not(None), member.c.digest == _n.id).exists()


def _digests_before() -> sa.ClauseElement:
    rows = sa.select(_n.id).where(sa.text("notification.kind = 'digest' AND notification.state = 'delivered'"))
    return rows.where(_n.delivered_us < named("before_us"), _alone()).order_by(_n.delivered_us).limit(named("limit"))


def _forget_digest() -> sa.ClauseElement:
    told = sa.text("notification.kind = 'digest' AND notification.state = 'delivered'")
    return sa.delete(notification).where(_n.id == named("known"), told, _alone())

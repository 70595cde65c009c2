"""The outbox: notifications from the moment they are wanted until they have arrived.

Promise: a notification keeps its delivery ID, whoever sends it and however often; one owner at a time has it in hand, and
what a dead owner had in hand is sent again.
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from settled.core.ladder import Incident, Told, Traffic
from settled.store.prepared import named
from settled.store.schema import incident, notification, operation
from settled.store.transaction import Transaction

_c = notification.c
_UNDELIVERED: Final = sa.text("notification.state IN ('wanted', 'pending', 'sending')")
UNDONE: Final = sa.text("notification.state IN ('wanted', 'grouped', 'pending', 'sending')")


class Wanted(NamedTuple):
    """One notification without a channel, its incident, and the operation ID where it is about one."""

    id: int
    delivery_id: str
    step: int
    number: int
    created_us: int
    incident: Incident
    operation_id: str | None


class Notification(NamedTuple):
    """One row of the outbox. `body` is the JSON text that is sent, chosen once."""

    id: int
    delivery_id: str
    incident: int | None
    step: int
    number: int
    kind: str
    state: str
    channel: str | None
    created_us: int
    attempts: int
    delivered_us: int | None
    body: str | None
    error: str | None


class Undelivered(NamedTuple):
    """What one channel has not taken yet. `channel` None: not routed, because no worker has looked."""

    channel: str | None
    notifications: int
    oldest_us: int
    attempts: int
    error: str | None


_COLUMNS: Final = tuple(_c[name] for name in Notification._fields)


def want(transaction: Transaction, incident_id: int, *, step: int, number: int, at_us: int) -> None:
    """Put a notification of an incident into the outbox; a channel is chosen later."""
    kind = "reminder" if number else "incident"
    values = {"delivery_id": secrets.token_hex(16), "kind": kind, "state": "wanted", "created_us": at_us, "due_us": at_us}
    transaction.run(_insert, incident=incident_id, step=step, number=number, channel=None, body=None, **values)


def find_wanted(transaction: Transaction, now_us: int, limit: int) -> list[Wanted]:
    """Return what waits for a channel, oldest first."""
    size = len(Incident._fields)
    return [
        Wanted._make((*row[:5], Incident._make(row[5 : 5 + size]), row[5 + size]))
        for row in transaction.run(_wanted, now_us=now_us, limit=limit).fetchall()
    ]


def told_of(transaction: Transaction, incident_id: int) -> dict[int, Told]:
    """Return what was wanted of an incident so far, by step."""
    found = transaction.run(_told, incident=incident_id).fetchall()
    return {step: Told(count, last_us, not undone) for step, count, last_us, undone in found}


def traffic_of(transaction: Transaction, channel: str, since_us: int) -> Traffic:
    """Return what a channel has had since a moment, and what it has queued."""
    singles = transaction.run(_singles, channel=channel, since_us=since_us).fetchone()[0]
    queued, digests = transaction.run(_queued, channel=channel).fetchone()
    last = transaction.run(_last_digest, channel=channel).fetchone()[0]
    return Traffic(int(singles), int(queued), last, bool(digests))


def send_alone(transaction: Transaction, wanted_id: int, channel: str, body: str, at_us: int) -> None:
    """Give a wanted notification its channel and its text."""
    transaction.run(_route, known=wanted_id, channel=channel, body=body, created_us=at_us, due_us=at_us)


def send_together(transaction: Transaction, wanted: Iterable[int], delivery_id: str, channel: str, body: str, at_us: int) -> None:
    """Put one digest into the outbox that speaks of many."""
    values = {"delivery_id": delivery_id, "kind": "digest", "state": "pending", "created_us": at_us, "due_us": at_us}
    made = transaction.run(_insert, incident=None, step=0, number=0, channel=channel, body=body, **values)
    digest = int(made.fetchone()[0])
    transaction.statements[_group].run_many(transaction.cursor, [{"known": one, "digest": digest} for one in wanted])


def put_off(transaction: Transaction, wanted_id: int, due_us: int) -> None:
    """Look at a wanted notification again later."""
    transaction.run(_put_off, known=wanted_id, due_us=due_us)


def withdraw(transaction: Transaction, notification_id: int) -> None:
    """Give up what nobody needs to hear any more: its incident was settled or acknowledged first."""
    transaction.run(_withdraw, known=notification_id)


def channels_due(transaction: Transaction, now_us: int) -> list[str]:
    """Return the channels for which something is due."""
    return [row[0] for row in transaction.run(_channels_due, now_us=now_us).fetchall()]


def claim_next(transaction: Transaction, channel: str, owner: int, now_us: int) -> Notification | None:
    """Take the next due notification of a channel into the hand of an incarnation; None where there is none."""
    found = transaction.run(_next, channel=channel, now_us=now_us).fetchone()
    if found is None or transaction.run(_claim, known=found[0], new_owner=owner).rowcount != 1:
        return None
    return Notification._make(found)._replace(state="sending", attempts=found[Notification._fields.index("attempts")] + 1)


def arrived(transaction: Transaction, notification_id: int, owner: int, at_us: int) -> bool:
    """Note that a notification was taken by its channel, with all that it speaks of; False where it is in another hand."""
    if transaction.run(_arrived, known=notification_id, owner_then=owner, at_us=at_us).rowcount != 1:
        return False
    transaction.run(_members_arrived, digest_then=notification_id, at_us=at_us)
    return True


def failed(transaction: Transaction, notification_id: int, owner: int, due_us: int, error: str) -> None:
    """Note that a try failed, and when the next one is due."""
    transaction.run(_failed, known=notification_id, owner_then=owner, due_us=due_us, error=error)


def owners(transaction: Transaction) -> list[int]:
    """Return the incarnations that have something in hand."""
    return [row[0] for row in transaction.run(_owners).fetchall()]


def release_all(transaction: Transaction, owner: int) -> int:
    """Give back what an incarnation had in hand: it is gone, and whether it had sent, nobody knows."""
    return int(transaction.run(_release_all, owner_then=owner).rowcount)


def release_channel(transaction: Transaction, owner: int, channel: str) -> int:
    """Give back what one loop of an incarnation had in hand when it broke off."""
    return int(transaction.run(_release_channel, owner_then=owner, channel_then=channel).rowcount)


def undelivered(transaction: Transaction) -> list[Undelivered]:
    """Return what has not arrived, by channel, the oldest first."""
    return [Undelivered._make(row) for row in transaction.run(_undelivered).fetchall()]


def of_incidents(transaction: Transaction, incidents: Sequence[int]) -> list[Notification]:
    """Return every notification of these incidents, in the order in which they were wanted."""
    return [Notification._make(row) for one in incidents for row in transaction.run(_of_incident, incident=one).fetchall()]


_FILLED: Final = ("delivery_id", "incident", "step", "number", "kind", "state", "channel", "created_us", "due_us", "body")


def _insert() -> sa.ClauseElement:
    values: Mapping[str, Any] = {name: named(name) for name in _FILLED}
    return sa.insert(notification).values({**values, "attempts": 0}).returning(_c.id)


def _wanted() -> sa.ClauseElement:
    told = (_c.id, _c.delivery_id, _c.step, _c.number, _c.created_us)
    joined = sa.join(notification, incident, incident.c.id == _c.incident)
    joined = joined.outerjoin(operation, operation.c.id == incident.c.operation)
    rows = sa.select(*told, *(incident.c[name] for name in Incident._fields), operation.c.operation_id).select_from(joined)
    rows = rows.where(sa.text("notification.state = 'wanted'"), _c.due_us <= named("now_us"))
    return rows.order_by(_c.due_us, _c.id).limit(named("limit"))


def _told() -> sa.ClauseElement:
    undone = sa.func.max(sa.case((UNDONE, 1), else_=0))
    rows = sa.select(_c.step, sa.func.max(_c.number) + 1, sa.func.max(_c.created_us), undone)
    return rows.where(_c.incident == named("incident")).group_by(_c.step)


def _singles() -> sa.ClauseElement:
    rows = sa.select(sa.func.count()).select_from(notification)
    return rows.where(_c.channel == named("channel"), _c.kind != "digest", _c.created_us > named("since_us"))


def _queued() -> sa.ClauseElement:
    digests = sa.func.coalesce(sa.func.sum(sa.case((_c.kind == "digest", 1), else_=0)), 0)
    rows = sa.select(sa.func.count(), digests).select_from(notification)
    return rows.where(_UNDELIVERED, _c.channel == named("channel"))


def _last_digest() -> sa.ClauseElement:
    return sa.select(sa.func.max(_c.created_us)).where(_c.channel == named("channel"), _c.kind == "digest")


def _route() -> sa.ClauseElement:
    row = sa.update(notification).where(_c.id == named("known"), _c.state == "wanted")
    values = {name: named(name) for name in ("channel", "body", "created_us", "due_us")}
    return row.values({**values, "state": "pending"})


def _group() -> sa.ClauseElement:
    row = sa.update(notification).where(_c.id == named("known"), _c.state == "wanted")
    return row.values(state="grouped", digest=named("digest"))


def _put_off() -> sa.ClauseElement:
    return sa.update(notification).where(_c.id == named("known"), _c.state == "wanted").values(due_us=named("due_us"))


def _withdraw() -> sa.ClauseElement:
    row = sa.update(notification).where(_c.id == named("known"), _UNDELIVERED)
    return row.values(state="withdrawn", owner=sa.null())


def _channels_due() -> sa.ClauseElement:
    rows = sa.select(_c.channel).where(_UNDELIVERED, _c.state == "pending")
    return rows.where(_c.due_us <= named("now_us")).distinct()


def _next() -> sa.ClauseElement:
    rows = sa.select(*_COLUMNS).where(_UNDELIVERED, _c.state == "pending")
    rows = rows.where(_c.channel == named("channel"), _c.due_us <= named("now_us")).order_by(_c.due_us, _c.id)
    return rows.limit(sa.literal_column("1"))


def _claim() -> sa.ClauseElement:
    row = sa.update(notification).where(_c.id == named("known"), _c.state == "pending")
    return row.values(state="sending", owner=named("new_owner"), attempts=_c.attempts + 1)


def _arrived() -> sa.ClauseElement:
    row = sa.update(notification).where(_c.id == named("known"), _c.state == "sending", _c.owner == named("owner_then"))
    return row.values(state="delivered", delivered_us=named("at_us"), owner=sa.null(), error=sa.null())


def _members_arrived() -> sa.ClauseElement:
    rows = sa.update(notification).where(_c.digest == named("digest_then"), _c.state == "grouped")
    return rows.values(state="delivered", delivered_us=named("at_us"))


def _failed() -> sa.ClauseElement:
    row = sa.update(notification).where(_c.id == named("known"), _c.state == "sending", _c.owner == named("owner_then"))
    return row.values(state="pending", owner=sa.null(), due_us=named("due_us"), error=named("error"))


def _owners() -> sa.ClauseElement:
    return sa.select(_c.owner).where(sa.text("notification.state = 'sending'")).distinct()


def _release_all() -> sa.ClauseElement:
    rows = sa.update(notification).where(sa.text("notification.state = 'sending'"), _c.owner == named("owner_then"))
    return rows.values(state="pending", owner=sa.null())


def _release_channel() -> sa.ClauseElement:
    rows = sa.update(notification).where(sa.text("notification.state = 'sending'"), _c.owner == named("owner_then"))
    return rows.where(_c.channel == named("channel_then")).values(state="pending", owner=sa.null())


def _undelivered() -> sa.ClauseElement:
    rows = sa.select(_c.channel, sa.func.count(), sa.func.min(_c.created_us), sa.func.max(_c.attempts), sa.func.max(_c.error))
    return rows.where(_UNDELIVERED).group_by(_c.channel).order_by(sa.func.min(_c.created_us))


def _of_incident() -> sa.ClauseElement:
    return sa.select(*_COLUMNS).where(_c.incident == named("incident")).order_by(_c.id)

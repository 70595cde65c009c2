"""When an operation is an incident: what opens one, what closes it, and what people said about it.

Promise: it follows from the row before and after a move and from the move's events alone, so that the one writer of moves
can keep incidents beside them and no path can forget one.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from settled.core.fold import Event
from settled.core.row import Row
from settled.core.words import EventType, Reason, Status


class IncidentKind(StrEnum):
    """Why people are told. An operation has at most one open incident of a kind."""

    QUARANTINED = "quarantined"
    CONFLICT = "conflict"
    KEPT_UNKNOWN = "kept_unknown"
    HELD = "held"
    DUPLICATE_SUSPECTED = "duplicate_suspected"
    TOO_MANY_UNKNOWN = "too_many_unknown"


class Opening(NamedTuple):
    """An incident to open: its kind and the reason that the row shows."""

    kind: IncidentKind
    reason: str


class Attention(NamedTuple):
    """What a person said: `acknowledged` stops the ladder, `snoozed_us` stops it until then, `assigned_to` names who cares."""

    by: str
    at_us: int
    acknowledged: bool
    assigned_to: str | None = None
    snoozed_us: int | None = None


class Change(NamedTuple):
    """What a move means for incidents: kinds to close with the event that did it, those to open, what people said."""

    closes: tuple[IncidentKind, ...] = ()
    closed_by: str = ""
    opens: tuple[Opening, ...] = ()
    said: tuple[Attention, ...] = ()


# What waits in `prepared` for a person who mends something; an approval is asked for by the request itself.
_HELD = (Reason.NOT_SENT_LIMIT, Reason.CONTRACT_MISMATCH)

_DECIDED = (EventType.OPERATOR_CONFIRMED, EventType.OPERATOR_REJECTED, EventType.OPERATOR_RETRY_AUTHORIZED)


def decide_incidents(seen: Row, row: Row, events: Iterable[Event]) -> Change:
    """Return what the move from `seen` to `row` by `events` opens and closes."""
    happened = tuple(events)
    before, after = _standing(seen), _standing(row)
    same = before is not None and after is not None and before.kind is after.kind
    closes: tuple[IncidentKind, ...] = () if before is None or same else (before.kind,)
    if any(event.type in _DECIDED for event in happened):
        closes += (IncidentKind.DUPLICATE_SUSPECTED,)  # no evidence can settle it; whoever decided has looked
    opens: tuple[Opening, ...] = () if after is None or same else (after,)
    if any(event.data.get("duplicate") for event in happened):
        opens += (Opening(IncidentKind.DUPLICATE_SUSPECTED, IncidentKind.DUPLICATE_SUSPECTED),)
    said = tuple(one for event in happened if (one := _attention(event)) is not None)
    return Change(closes, happened[-1].type if happened else "", opens, said)


def _standing(row: Row) -> Opening | None:
    """Return the incident that a row is by where it stands; None where automatic work goes on or is done."""
    if row.reason is None:
        return None
    if row.reason in (Reason.CONFLICTING_EVIDENCE, Reason.EVIDENCE_BEFORE_DISPATCH):
        return Opening(IncidentKind.CONFLICT, row.reason)
    if row.status is Status.QUARANTINED:
        return Opening(IncidentKind.QUARANTINED, row.reason)
    if row.reason == Reason.KEPT_UNKNOWN:
        return Opening(IncidentKind.KEPT_UNKNOWN, row.reason)
    return Opening(IncidentKind.HELD, row.reason) if row.reason in _HELD else None


def _attention(event: Event) -> Attention | None:
    data = event.data
    match event.type:
        case EventType.ACKNOWLEDGED:
            return Attention(data["actor"], event.at_us, True)
        case EventType.ASSIGNED:
            return Attention(data["actor"], event.at_us, True, assigned_to=data["assigned_to"])
        case EventType.SNOOZED:
            return Attention(data["actor"], event.at_us, False, snoozed_us=data["until_us"])
        case _:
            return None

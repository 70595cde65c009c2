"""The row as the fold of its events: `advance` is the only place where an event changes a state.

The guarded writer stores what `advance` returns, so a row equals the fold of its events by construction, and
`settled db check` folds them again. Scheduling (`due_us`) is a hint that may be moved without an event.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from settled.core.row import Row
from settled.core.transition import ENDS_UNKNOWN, check_transition
from settled.core.words import EventType as E
from settled.core.words import Reason, Status


class Event(NamedTuple):
    """What happened: its type, the status after it, the attempt it speaks of, wall-clock time, and facts (strict JSON)."""

    type: E
    status: Status
    attempt: int
    at_us: int
    data: Mapping[str, Any]


_AT: Final = {name: index for index, name in enumerate(Row._fields)}
_STATUS, _SEQUENCE, _UPDATED, _VERSION, _CHAIN = _AT["status"], _AT["sequence"], _AT["updated_us"], _AT["version"], _AT["chain"]
_DUE, _REASON, _LEASE_OWNER, _KEPT = _AT["due_us"], _AT["reason"], _AT["lease_owner"], _AT["kept"]
_ESCALATE, _UNKNOWN_SINCE = _AT["escalate_us"], _AT["unknown_since_us"]
_OPEN_ATTEMPTS, _DUPLICATE = _AT["open_attempts"], _AT["duplicate_suspected"]
_OVER: Final = frozenset({Status.CONFIRMED, Status.REJECTED, Status.CANCELLED})
NO_DATA: Final[Mapping[str, Any]] = {}
NOT_FOLDED: Final = ("due_us", "chain")  # scheduling, and what the writer computes


def advance(row: Row, event: Event, chain: bytes | None = None) -> Row:
    """Return the row after `event`. Raises TransitionRefusedError for a move that the table does not list.

    `chain` is the hash of the last event, where the writer has computed it; without it the row keeps the one it had.
    """
    check_transition(row.operation_id, row.status, event.type, event.status)
    moved = event.status is not row.status
    data = event.data
    values: list[Any] = list(row)
    values[_STATUS], values[_SEQUENCE], values[_UPDATED] = event.status, row.sequence + 1, event.at_us
    if chain is not None:
        values[_CHAIN] = chain
    if moved or data.get("news"):
        values[_VERSION] = row.version + 1
    if moved:
        values[_DUE], values[_REASON] = data.get("due"), None
        if row.status is Status.DISPATCHED:
            values[_LEASE_OWNER], values[_KEPT] = None, 0
        if event.status is Status.OUTCOME_UNKNOWN:
            _put(values, _becomes_unknown(row, event))
        elif event.status in _OVER:
            values[_ESCALATE] = None
    change = _CHANGES.get(event.type)
    if change is not None:
        _put(values, change(row, event))
    if moved and event.status is Status.PREPARED and not values[_OPEN_ATTEMPTS]:
        values[_UNKNOWN_SINCE] = values[_ESCALATE] = None  # nothing of it is unknown any more
    if data.get("duplicate"):
        values[_DUPLICATE] = 1
    return Row._make(values)


def _put(values: list[Any], changes: Mapping[str, Any]) -> None:
    """Put changes into the values of a row by the names of their columns."""
    for name, value in changes.items():
        values[_AT[name]] = value


def _becomes_unknown(row: Row, event: Event) -> dict[str, Any]:
    since = row.unknown_since_us if row.unknown_since_us is not None else event.at_us
    return {
        "unknown_since_us": since,
        "escalate_us": since + event.data["unknown_age_max"] if "unknown_age_max" in event.data else row.escalate_us,
    }


def _dispatched(row: Row, event: Event) -> dict[str, Any]:
    return {
        "attempt": event.attempt,
        "lease_owner": event.data["worker"],
        "terms": event.data["terms"],
        "open_attempts": row.open_attempts + 1,
        "unfenced": row.unfenced + (0 if event.data.get("handoff") else 1),
        "kept": 0,
    }


def _returned(row: Row, event: Event) -> dict[str, Any]:
    return _fence(row, event) | (_confirm(row, event) if _moves(row, event) else {})


def _closed_by_its_end(row: Row, event: Event) -> dict[str, Any]:
    return _closed_one(row, handed_off=bool(event.data.get("handoff"))) | _error(row, event)


def _ended_unknown(row: Row, event: Event) -> dict[str, Any]:
    return _fence(row, event) | _error(row, event) | (_retain(row, event) if _moves(row, event) else {})


def _confirming(row: Row, event: Event) -> dict[str, Any]:
    if _moves(row, event):
        return _confirm(row, event)
    if not event.data.get("confirms") or row.status is Status.CONFIRMED:
        return {}
    kept = {"kept": row.kept + 1} if row.status is Status.DISPATCHED else {}
    return kept | _retain(row, event)


def _probe_unknown(row: Row, event: Event) -> dict[str, Any]:
    return {"probes_spent": row.probes_spent + 1} if event.data.get("spent") else {}


def _late_rejected(row: Row, event: Event) -> dict[str, Any]:
    return _closed_one(row, handed_off=not event.data.get("unfenced")) if event.data.get("closes") else {}


def _all_closed(_row: Row, _event: Event) -> dict[str, Any]:
    return {"open_attempts": 0, "unfenced": 0}


def _fenced(row: Row, _event: Event) -> dict[str, Any]:
    return {"unfenced": row.unfenced - 1}


def _stopped_for_a_reason(_row: Row, event: Event) -> dict[str, Any]:
    reason = event.data["reason"]
    return {"reason": reason, "due_us": None, "escalate_us": None} if reason == Reason.KEPT_UNKNOWN else {"reason": reason}


def _stop_requested(_row: Row, _event: Event) -> dict[str, Any]:
    return {"reason": Reason.STOP_REQUESTED}


def _freed(_row: Row, event: Event) -> dict[str, Any]:
    return {"reason": None, "due_us": event.data.get("due")}


def _derived(_row: Row, event: Event) -> dict[str, Any]:
    return {"derived": 1, "terms": event.data["terms"]}


def _operator_confirmed(row: Row, event: Event) -> dict[str, Any]:
    return _confirm(row, event) | {"settled_by": "operator"}


def _operator_rejected(row: Row, event: Event) -> dict[str, Any]:
    return _all_closed(row, event) | {"settled_by": "operator", "error": event.data["reason_given"]}


def _retry_authorized(row: Row, event: Event) -> dict[str, Any]:
    return _all_closed(row, event) | {"settled_by": None, "probes_spent": 0, "unknown_since_us": None, "escalate_us": None}


def _restored(row: Row, event: Event) -> dict[str, Any]:
    return {"attempt": event.attempt, "open_attempts": row.open_attempts + 1}


# What each event type changes beyond the status. A type that is not here changes nothing more.
_CHANGES: Final[Mapping[E, Callable[[Row, Event], dict[str, Any]]]] = {
    E.DERIVED: _derived,
    E.DISPATCHED: _dispatched,
    E.RETURNED: _returned,
    E.EVIDENCE_MERGED: _returned,
    E.REJECTED: _closed_by_its_end,
    E.NEVER_ENTERED: _closed_by_its_end,
    E.NOT_SENT: _closed_by_its_end,
    **dict.fromkeys(ENDS_UNKNOWN, _ended_unknown),
    E.PROBE_COMMITTED: _confirming,
    E.LATE_RETURN: _confirming,
    E.PROBE_UNKNOWN: _probe_unknown,
    E.PROBE_ABSENT: _all_closed,
    E.LATE_REJECTED: _late_rejected,
    E.FENCED: _fenced,
    E.STOP_REQUESTED: _stop_requested,
    E.QUARANTINED: _stopped_for_a_reason,
    E.HELD: _stopped_for_a_reason,
    E.RELEASED: _freed,
    E.APPROVED: _freed,
    E.OPERATOR_CONFIRMED: _operator_confirmed,
    E.OPERATOR_REJECTED: _operator_rejected,
    E.OPERATOR_RETRY_AUTHORIZED: _retry_authorized,
    E.RESTORED: _restored,
}


def _moves(row: Row, event: Event) -> bool:
    return event.status is not row.status


def _closed_one(row: Row, *, handed_off: bool) -> dict[str, Any]:
    """A closed attempt needs no fence any more; one that was handed off never counted as unfenced."""
    return {"open_attempts": row.open_attempts - 1, "unfenced": row.unfenced - (0 if handed_off else 1)}


def _fence(row: Row, event: Event) -> dict[str, Any]:
    return {"unfenced": row.unfenced - 1} if event.data.get("fence") else {}


def _error(row: Row, event: Event) -> dict[str, Any]:
    """Behind a merged confirmation the end's error is history: the operation has none."""
    return {"error": event.data["error"]} if event.data.get("error") and row.status is not Status.CONFIRMED else {}


def _retain(row: Row, event: Event) -> dict[str, Any]:
    """The first provider operation ID is retained; another one beside it is perhaps a second effect."""
    return {"provider_operation_id": event.data["id"]} if row.provider_operation_id is None and event.data.get("id") else {}


def _confirm(row: Row, event: Event) -> dict[str, Any]:
    """Take output and provider operation ID of what confirms."""
    shown = {"output_part": event.data.get("part", row.sequence + 1)} if event.data.get("out") else {}
    return {"error": None} | _retain(row, event) | shown

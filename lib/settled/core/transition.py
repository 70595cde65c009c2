"""The transition table: what may follow a status. Nothing else in the project repeats it."""

from collections.abc import Mapping
from typing import Final

from settled.core.errors import TransitionRefusedError
from settled.core.words import EventType as E
from settled.core.words import Status as S

Targets = tuple[S, ...]
_EVERY: Final = tuple(S)
_UNSETTLED: Final = (S.PREPARED, S.DISPATCHED, S.OUTCOME_UNKNOWN, S.QUARANTINED)

# The ends of an attempt that prove nothing. After a merged confirmation the same event is kept and moves nothing.
ENDS_UNKNOWN: Final = (
    E.TIMED_OUT, E.RAISED, E.CRASHED, E.LEASE_LOST, E.STOPPED, E.RESULT_NOT_STORABLE, E.POSTCONDITION_FAILED, E.AWAITING_PROBE,
)  # fmt: skip
# What is recorded beside a status without moving it.
_NOTES: Final = (E.ACKNOWLEDGED, E.ASSIGNED, E.SNOOZED, E.PROPOSED, E.DECLINED, E.FENCED)
_EVIDENCE: Final = (E.PROBE_COMMITTED, E.PROBE_PENDING, E.PROBE_UNKNOWN, E.LATE_RETURN, E.LATE_REJECTED)


def _table() -> Mapping[tuple[S | None, E], Targets]:
    table: dict[tuple[S | None, E], Targets] = {
        (None, E.SUBMITTED): (S.PREPARED,),
        (S.PREPARED, E.DERIVED): (S.PREPARED,),
        (S.PREPARED, E.CANCELLED): (S.CANCELLED,),
        (S.PREPARED, E.EXPIRED): (S.CANCELLED,),
        (S.PREPARED, E.APPROVED): (S.PREPARED,),
        (S.PREPARED, E.DISPATCHED): (S.DISPATCHED,),
        (S.PREPARED, E.RETRY_WITHDRAWN): (S.OUTCOME_UNKNOWN,),
        (S.PREPARED, E.HELD): (S.PREPARED,),
        (S.PREPARED, E.RELEASED): (S.PREPARED,),
        (S.DISPATCHED, E.STOP_REQUESTED): (S.DISPATCHED,),
        (S.DISPATCHED, E.EVIDENCE_MERGED): (S.CONFIRMED,),
        (S.DISPATCHED, E.RETURNED): (S.CONFIRMED,),
        (S.DISPATCHED, E.REJECTED): (S.OUTCOME_UNKNOWN, S.PREPARED, S.REJECTED),
        (S.DISPATCHED, E.NEVER_ENTERED): (S.PREPARED,),  # provably not sent: safe to dispatch again
        (S.DISPATCHED, E.NOT_SENT): (S.PREPARED,),
        (S.OUTCOME_UNKNOWN, E.PROBE_ABSENT): (S.PREPARED, S.REJECTED),
        (S.OUTCOME_UNKNOWN, E.KEY_RETRY): (S.PREPARED,),
        (S.OUTCOME_UNKNOWN, E.HELD): (S.OUTCOME_UNKNOWN,),
        (S.OUTCOME_UNKNOWN, E.RELEASED): (S.OUTCOME_UNKNOWN,),
    }
    for status in _EVERY:
        table |= {(status, event): (status,) for event in (*_NOTES, *_EVIDENCE)}
    for event in ENDS_UNKNOWN:
        table[S.DISPATCHED, event] = (S.OUTCOME_UNKNOWN,)  # not PREPARED: it may have happened
    for event in (*ENDS_UNKNOWN, E.RETURNED, E.REJECTED, E.NEVER_ENTERED, E.NOT_SENT):
        table[S.CONFIRMED, event] = (S.CONFIRMED,)  # the end's own event behind evidence_merged
    for status in (S.PREPARED, S.OUTCOME_UNKNOWN, S.QUARANTINED):
        for event in (E.PROBE_COMMITTED, E.LATE_RETURN):
            table[status, event] = (S.CONFIRMED, status)
    table[S.OUTCOME_UNKNOWN, E.LATE_REJECTED] = (S.PREPARED, S.REJECTED, S.OUTCOME_UNKNOWN)
    table[S.QUARANTINED, E.LATE_REJECTED] = (S.REJECTED, S.QUARANTINED)  # never PREPARED: quarantine dispatches nothing
    for status in (S.OUTCOME_UNKNOWN, S.CONFIRMED, S.REJECTED, S.CANCELLED, S.PREPARED):
        table[status, E.QUARANTINED] = (S.QUARANTINED,)
    for status in (S.OUTCOME_UNKNOWN, S.QUARANTINED):
        table[status, E.OPERATOR_CONFIRMED] = (S.CONFIRMED,)
        table[status, E.OPERATOR_REJECTED] = (S.REJECTED,)
        table[status, E.OPERATOR_RETRY_AUTHORIZED] = (S.PREPARED,)
    for status in _UNSETTLED:
        table[status, E.RESTORED] = (S.OUTCOME_UNKNOWN,)
    return table


TRANSITIONS: Final[Mapping[tuple[S | None, E], Targets]] = _table()


def check_transition(operation_id: str, status: S | None, event: E, target: S) -> None:
    """Raise TransitionRefusedError unless the table lists `target` for (`status`, `event`)."""
    if target not in TRANSITIONS.get((status, event), ()):
        raise TransitionRefusedError(operation_id, status or "absent", event, f"the table has no move to {target}")

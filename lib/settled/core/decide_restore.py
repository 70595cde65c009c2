"""What a ledger that is a copy must believe of its unsettled operations: each may have been dispatched since the copy."""

from settled.core.case import Case
from settled.core.decide_unknown import quarantine
from settled.core.fold import Event
from settled.core.words import EventType, Reason, Status

_UNSETTLED = (Status.PREPARED, Status.DISPATCHED, Status.OUTCOME_UNKNOWN, Status.QUARANTINED)


def decide_restored(case: Case, reason: str, os_user: str, principal: str, highest_attempt: int = 0) -> tuple[Event, ...]:
    """Count one more open attempt without any fence, numbered above every one that is known; none for a settled operation.

    `highest_attempt` is the highest number that a flight recorder knows. A contradiction stays one: only a person leaves it.
    """
    row = case.row
    if row.status not in _UNSETTLED:
        return ()
    data = {
        "reason_given": reason,
        "os_user": os_user,
        "principal": principal,
        "due": case.now.wall_us,
        "boot": case.boot,
        "unknown_age_max": case.terms.unknown_age_max_us,
        "news": True,
    }
    number = max(row.attempt, highest_attempt) + 1
    restored = case.event(EventType.RESTORED, Status.OUTCOME_UNKNOWN, attempt=number, data=data)
    if row.reason == Reason.CONFLICTING_EVIDENCE:
        return restored, quarantine(case.after([restored]), Reason.CONFLICTING_EVIDENCE)
    return (restored,)

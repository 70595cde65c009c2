"""What an end means that arrives after its attempt was given up: evidence, never a silent flip."""

from typing import Any

from settled.core.case import Case
from settled.core.correlate import with_output
from settled.core.decide_end import End, EndFacts
from settled.core.decide_evidence import may_be_fenced, news_of, settles
from settled.core.decide_unknown import quarantine, retry_wait_us
from settled.core.fold import Event
from settled.core.guarantee import budget_left, unattended_allowed
from settled.core.history import Attempt
from settled.core.words import FAILED_STATUSES, EventType, Reason, Status


def decide_late(case: Case, number: int, facts: EndFacts) -> tuple[Event, ...]:
    """Return the events of an end that arrives after the attempt was given up: evidence, never a silent flip."""
    attempt = case.history.attempt(number)
    if attempt is None:
        return ()
    events: list[Event] = []
    if facts.fence is not None and may_be_fenced(case, attempt):
        events.append(case.event(EventType.FENCED, attempt=number, data={"fence": facts.fence, "boot": case.boot}))
    after = case.after(events)
    match facts.end:
        case End.RETURNED | End.RESULT_NOT_STORABLE:
            return (*events, *_late_return(after, number, facts))
        case End.REJECTED | End.NOT_SENT:
            return (*events, *_late_rejection(after, number, facts))
        case _:
            return tuple(events)


def _late_return(case: Case, number: int, facts: EndFacts) -> tuple[Event, ...]:
    met = facts.postcondition is not False and facts.end is End.RETURNED
    by_probe = any(terms.confirm_on == "probe" for terms in case.binding_terms())
    data: dict[str, Any] = {"boot": case.boot}
    if met and not by_probe:
        data["confirms"] = True
    for name, value in (("out", facts.output_digest), ("id", facts.provider_operation_id)):
        if value is not None:
            data[name] = value
    if data.get("confirms") and settles(case):
        return (case.event(EventType.LATE_RETURN, Status.CONFIRMED, attempt=number, data=with_output(case, data)),)
    kept = case.event(EventType.LATE_RETURN, attempt=number, data={**data, **news_of(case, data)})
    if case.row.status in FAILED_STATUSES or (case.row.status is Status.PREPARED and not case.row.open_attempts):
        return kept, quarantine(case.after([kept]), Reason.CONFLICTING_EVIDENCE)
    return (kept,)


def _late_rejection(case: Case, number: int, facts: EndFacts) -> tuple[Event, ...]:
    attempt = case.history.attempt(number)
    if attempt is None:
        return ()
    data: dict[str, Any] = {"boot": case.boot, "retryable": facts.retryable}
    if facts.error:
        data["error"] = facts.error
    if facts.end is End.NOT_SENT:
        data["not_sent"] = True
    status = case.row.status
    conflict = case.row.reason == Reason.CONFLICTING_EVIDENCE
    if status is Status.CONFIRMED:
        return _late_rejection_of_confirmed(case, attempt, data)
    if not attempt.open or conflict:
        return (case.event(EventType.LATE_REJECTED, attempt=number, data=data),)
    if attempt.returned:
        return _rejected_after_a_return(case, number, data)
    data |= _closing(case, attempt)
    last = case.row.open_attempts == 1
    match status:
        case Status.OUTCOME_UNKNOWN if last:
            retryable = facts.retryable or facts.end is End.NOT_SENT
            if retryable and budget_left(case) and unattended_allowed(case):
                data |= {"due": case.now.wall_us + retry_wait_us(case), "basis": "rejected_retryable"}
                return (case.event(EventType.LATE_REJECTED, Status.PREPARED, attempt=number, data=data),)
            return (case.event(EventType.LATE_REJECTED, Status.REJECTED, attempt=number, data=data),)
        case Status.QUARANTINED if last:
            return (case.event(EventType.LATE_REJECTED, Status.REJECTED, attempt=number, data=data),)
        case _:
            return (case.event(EventType.LATE_REJECTED, attempt=number, data={**data, "news": True}),)


def _rejected_after_a_return(case: Case, number: int, data: dict[str, Any]) -> tuple[Event, ...]:
    """An attempt that returned is closed by a confirmation or a person only; its own rejection contradicts it."""
    event = case.event(EventType.LATE_REJECTED, attempt=number, data={**data, "news": True})
    if case.row.status is not Status.OUTCOME_UNKNOWN:
        return (event,)
    return event, quarantine(case.after([event]), Reason.CONFLICTING_EVIDENCE)


def _late_rejection_of_confirmed(case: Case, attempt: Attempt, data: dict[str, Any]) -> tuple[Event, ...]:
    """The confirmation may belong to any attempt that is still open; when none is left, it is contradicted."""
    if not attempt.open:
        return (case.event(EventType.LATE_REJECTED, attempt=attempt.number, data=data),)
    closing = {**data, **_closing(case, attempt), "news": True}
    event = case.event(EventType.LATE_REJECTED, attempt=attempt.number, data=closing)
    after = case.after([event])
    return (event,) if after.row.open_attempts else (event, quarantine(after, Reason.CONFLICTING_EVIDENCE))


def _closing(case: Case, attempt: Attempt) -> dict[str, Any]:
    """A closed attempt that was counted as unfenced needs no fence any more."""
    return {"closes": True} | ({"unfenced": True} if may_be_fenced(case, attempt) else {})

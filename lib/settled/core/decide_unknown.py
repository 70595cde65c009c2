"""What happens next to an operation whose outcome is unknown: a probe, a key retry, or a person."""

from collections.abc import Mapping
from typing import Any

from settled.core.backoff import backoff_us
from settled.core.case import Case
from settled.core.fold import Event
from settled.core.guarantee import Guarantee, key_verdict
from settled.core.words import EventType, Reason, Status


def with_follow_up(case: Case, events: list[Event]) -> tuple[Event, ...]:
    """Return `events` and, where they leave the outcome unknown, what follows at once in the same transaction."""
    after = case.after(events)
    if after.row.status is not Status.OUTCOME_UNKNOWN or after.row.reason is not None:
        return tuple(events)
    return (*events, *decide_unattended(after))


def decide_unattended(case: Case) -> tuple[Event, ...]:
    """Decide for an unknown outcome without any new answer: retry by the key, go to people, or leave it to the next probe.

    A contract that is not registered here is never judged.
    """
    if case.current is None:
        return ()
    if _has_probe(case):
        return ()  # the probe is asked first
    if deadline_passed(case):
        return give_up(case, Reason.DEADLINE_SPENT)
    match key_verdict(case).guarantee:
        case Guarantee.HOLDS:
            return () if case.held else (decide_key_retry(case),)
        case Guarantee.WAIT_FOR_FENCE:
            return ()
        case _:
            return give_up(case, Reason.RESTORED if case.history.restored else Reason.NO_PROBE)


def decide_key_retry(case: Case) -> Event:
    """Build the move back to prepared under the key guarantee; the attempt stays open."""
    wait = retry_wait_us(case)
    return case.event(
        EventType.KEY_RETRY,
        Status.PREPARED,
        data={"basis": "key_guarantee", "due": case.now.wall_us + wait, "boot": case.boot},
    )


def give_up(case: Case, reason: Reason) -> tuple[Event, ...]:
    """End automatic work: quarantine, or hold where the contract's policy keeps the unknown."""
    if case.terms.unknown_outcome == "keep_unknown" and reason is not Reason.CONFLICTING_EVIDENCE:
        if case.row.reason == Reason.KEPT_UNKNOWN:
            return ()
        return (case.event(EventType.HELD, data={"reason": Reason.KEPT_UNKNOWN, "because": reason}),)
    return (quarantine(case, reason),)


def quarantine(case: Case, reason: Reason, data: Mapping[str, Any] | None = None) -> Event:
    """Build the move to quarantine. Only an age limit leaves probes going on."""
    goes_on = reason is Reason.UNKNOWN_TOO_LONG and case.row.due_us is not None
    due = {"due": case.row.due_us} if goes_on else {}
    return case.event(EventType.QUARANTINED, Status.QUARANTINED, data={"reason": reason, **due, **(data or {})})


def decide_escalation(case: Case) -> tuple[Event, ...]:
    """Decide for a row whose `escalate_us` has come: nothing stays unknown past its age limit without a person told."""
    if case.row.status is not Status.OUTCOME_UNKNOWN:
        return ()
    return give_up(case, Reason.UNKNOWN_TOO_LONG)


def deadline_passed(case: Case) -> bool:
    """Return whether the caller's deadline is over by the wall clock."""
    return case.row.deadline_us is not None and case.now.wall_us >= case.row.deadline_us


def retry_wait_us(case: Case) -> int:
    """Return the backoff before the next attempt, in microseconds."""
    terms = case.terms
    return backoff_us(
        max(1, case.row.attempt),
        initial_us=terms.retry_initial_us,
        factor=terms.retry_factor,
        cap_us=terms.retry_cap_us,
        jitter=terms.retry_jitter,
        draw=case.draw,
    )


def probe_wait_us(case: Case, asked: int) -> int:
    """Return the wait before the next probe after `asked` answers, in microseconds."""
    terms = case.terms
    return backoff_us(
        max(1, asked),
        initial_us=terms.probe_initial_us,
        factor=terms.probe_factor,
        cap_us=terms.probe_cap_us,
        jitter=terms.probe_jitter,
        draw=case.draw,
    )


def _has_probe(case: Case) -> bool:
    return any(terms.has_probe for terms in case.binding_terms())

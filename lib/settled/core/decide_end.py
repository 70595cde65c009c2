"""What the end of an attempt means: the handler returned, refused, failed, or was lost.

An end and the merge of what was kept meanwhile are one decision, a kept confirmation first.
"""

from enum import StrEnum
from typing import Any, NamedTuple, assert_never

from settled.core.case import Case
from settled.core.correlate import first_shown, is_second_id, returned_output
from settled.core.decide_unknown import give_up, quarantine, retry_wait_us, with_follow_up
from settled.core.fold import Event
from settled.core.guarantee import budget_left, unattended_allowed
from settled.core.moment import Moment
from settled.core.words import EventType, FenceBasis, Reason, Status


class End(StrEnum):
    """How an attempt's local code ended."""

    RETURNED = "returned"
    REJECTED = "rejected"
    NOT_SENT = "not_sent"
    NEVER_ENTERED = "never_entered"
    NEEDS_REVIEW = "needs_review"
    RAISED = "raised"
    TIMED_OUT = "timed_out"
    CRASHED = "crashed"
    LEASE_LOST = "lease_lost"
    STOPPED = "stopped"
    RESULT_NOT_STORABLE = "result_not_storable"


class EndFacts(NamedTuple):
    """What is known when an attempt ends. `output_digest` is set where an output is stored with the event.

    `fenced` is the moment of the fence where it differs from now; `by_person` tells a person's stop from a shutdown.
    """

    end: End
    fence: FenceBasis | None = None
    fenced: Moment | None = None
    postcondition: bool | None = None
    output_digest: str | None = None
    provider_operation_id: str | None = None
    error: str | None = None
    retryable: bool = False
    by_person: bool = False
    interruption: str | None = None


def decide_end(case: Case, facts: EndFacts) -> tuple[Event, ...]:
    """Return the events of an attempt's end, the follow-up for an unknown outcome included."""
    if case.row.kept:
        merged = _merge_kept(case, facts)
        if merged is not None:
            return merged
    events = [_end_event(case, facts)]
    if events[0].status is Status.CONFIRMED:
        return tuple(events)  # nothing follows, and this is what nearly every attempt comes to
    if case.row.kept and case.after(events).row.open_attempts == 0:
        events.append(quarantine(case.after(events), Reason.CONFLICTING_EVIDENCE))
        return tuple(events)
    if facts.end is End.NEEDS_REVIEW:
        return (*events, *give_up(case.after(events), Reason.NEEDS_REVIEW))
    return with_follow_up(case, [*events, *_not_sent_limit(case.after(events), facts)])


def _end_event(case: Case, facts: EndFacts) -> Event:
    match facts.end:
        case End.RETURNED:
            return _returned(case, facts)
        case End.REJECTED:
            return _rejected(case, facts)
        case End.NOT_SENT | End.NEVER_ENTERED:
            due = {"due": case.now.wall_us + (retry_wait_us(case) if facts.end is End.NOT_SENT else 0)}
            return case.event(EventType(facts.end), Status.PREPARED, data=_data(case, facts, due))
        case End.NEEDS_REVIEW:
            return _unknown(case, facts, EventType.RAISED)
        case (
            End.RAISED | End.TIMED_OUT | End.CRASHED | End.LEASE_LOST | End.STOPPED | End.RESULT_NOT_STORABLE
        ):
            return _unknown(case, facts, EventType(facts.end))
        case other:
            assert_never(other)


def _returned(case: Case, facts: EndFacts) -> Event:
    if facts.postcondition is False:
        return _unknown(case, facts, EventType.POSTCONDITION_FAILED)
    if any(terms.confirm_on == "probe" for terms in case.binding_terms()):
        return _unknown(case, facts, EventType.AWAITING_PROBE)
    return case.event(EventType.RETURNED, Status.CONFIRMED, data=returned_output(case, _data(case, facts)))


def _rejected(case: Case, facts: EndFacts) -> Event:
    if case.row.open_attempts > 1:
        return _unknown(case, facts, EventType.REJECTED)
    if facts.retryable and budget_left(case) and unattended_allowed(case):
        data = _data(case, facts, {"due": case.now.wall_us + retry_wait_us(case), "basis": "rejected_retryable"})
        return case.event(EventType.REJECTED, Status.PREPARED, data=data)
    return case.event(EventType.REJECTED, Status.REJECTED, data=_data(case, facts))


def _unknown(case: Case, facts: EndFacts, kind: EventType) -> Event:
    extra = {"due": case.now.wall_us, "unknown_age_max": case.terms.unknown_age_max_us}
    return case.event(kind, Status.OUTCOME_UNKNOWN, data=_data(case, facts, extra))


def _not_sent_limit(case: Case, facts: EndFacts) -> tuple[Event, ...]:
    """Hold a row whose attempts keep failing before anything is sent; with an open attempt withdraw the retry instead."""
    if facts.end not in (End.NOT_SENT, End.NEVER_ENTERED) or case.row.status is not Status.PREPARED:
        return ()
    if case.history.unsent_in_a_row() < case.terms.not_sent_attempts_max:
        return ()
    if case.row.open_attempts == 0:
        return (case.event(EventType.HELD, data={"reason": Reason.NOT_SENT_LIMIT}),)
    data = {"reason": Reason.BUDGET, "due": case.now.wall_us, "boot": case.boot}
    return (case.event(EventType.RETRY_WITHDRAWN, Status.OUTCOME_UNKNOWN, data=data),)


def _merge_kept(case: Case, facts: EndFacts) -> tuple[Event, ...] | None:
    """Let a kept confirmation settle the operation first; the end's own event then moves nothing.

    None where every attempt would be closed: the confirmation then contradicts the closing.
    """
    kept = case.history.confirmations[-case.row.kept :]
    own_closes = facts.end in (End.REJECTED, End.NOT_SENT, End.NEVER_ENTERED)
    if not kept or (own_closes and case.row.open_attempts <= 1):
        return None
    shown = first_shown(case, kept)
    part = {"part": shown.sequence, "out": shown.data["out"]} if shown is not None else {}
    merged = case.event(EventType.EVIDENCE_MERGED, Status.CONFIRMED, data={"source": kept[0].source, "boot": case.boot, **part})
    after = case.after([merged])
    kind = EventType.RAISED if facts.end is End.NEEDS_REVIEW else EventType(facts.end)
    twice = facts.end is End.RETURNED and is_second_id(after, facts.provider_operation_id)
    return merged, after.event(kind, data=_data(case, facts, {"duplicate": True} if twice else {}))


def _was_handed_off(case: Case) -> bool:
    """By the terms of the dispatch: a redeployment meanwhile changes nothing about who does the sending."""
    stored = case.stored.get(case.row.terms) if case.row.terms is not None else None
    return (stored or case.terms).handed_off


def _data(case: Case, facts: EndFacts, extra: dict[str, Any] | None = None) -> dict[str, Any]:
    data: dict[str, Any] = {"boot": case.boot}
    if _was_handed_off(case):
        data["handoff"] = True
    elif facts.fence is not None:
        data["fence"] = facts.fence
        if facts.fenced is not None:
            data["fence_boot"] = [facts.fenced.boot_us, facts.fenced.boot_id]
    if facts.output_digest is not None:
        data["out"] = facts.output_digest
    if facts.provider_operation_id is not None:
        data["id"] = facts.provider_operation_id
    if facts.error is not None:
        data["error"] = facts.error
    if facts.interruption is not None:
        data["interruption"] = facts.interruption
    if facts.end is End.REJECTED:
        data["retryable"] = facts.retryable
    if facts.by_person:
        data["by_person"] = True
    return data | extra if extra else data

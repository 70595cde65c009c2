"""Whether a prepared operation may be dispatched now. Checked in the claim's own transaction (invariant I1)."""

from dataclasses import replace
from typing import Any, NamedTuple

from settled.core.case import Case
from settled.core.decide_unknown import deadline_passed, quarantine, with_follow_up
from settled.core.fold import Event
from settled.core.guarantee import Guarantee, key_verdict
from settled.core.words import EventType, Reason, Status


class Claim(NamedTuple):
    """The events of a claim, and whether the handler may start; `enter_by_boot_us` bounds the entry."""

    events: tuple[Event, ...]
    dispatches: bool
    enter_by_boot_us: int | None = None


def decide_claim(case: Case, worker: int, terms_id: int, *, held: bool = False) -> Claim:
    """Dispatch, expire, or withdraw a retry whose basis has lapsed while it waited.

    `held` says that the contract, its queue or everything is paused; a row that is held with a reason of its own waits too.
    """
    held = held or case.held or case.row.reason is not None
    if case.row.open_attempts == 0:
        if deadline_passed(case):
            return Claim((_expired(case),), False)
        return Claim((), False) if held else Claim((_dispatched(case, worker, terms_id),), True)
    case = replace(case, held=held)
    verdict = key_verdict(case)
    withdrawn = _withdrawal(case, verdict.guarantee, held)
    if withdrawn is not None:
        event = case.event(
            EventType.RETRY_WITHDRAWN, Status.OUTCOME_UNKNOWN, data={"reason": withdrawn, "due": case.now.wall_us, "boot": case.boot}
        )
        return Claim(with_follow_up(case, [event]), False)
    return Claim((_dispatched(case, worker, terms_id),), True, verdict.enter_by_boot_us)


def decide_deadline(case: Case) -> tuple[Event, ...]:
    """Decide for a prepared row whose deadline is over, held or not: what was never sent is cancelled, the rest is unknown."""
    if case.row.status is not Status.PREPARED or not deadline_passed(case):
        return ()
    if case.row.open_attempts == 0:
        return (_expired(case),)
    data = {"reason": Reason.DEADLINE, "due": case.now.wall_us, "boot": case.boot}
    return with_follow_up(case, [case.event(EventType.RETRY_WITHDRAWN, Status.OUTCOME_UNKNOWN, data=data)])


def _withdrawal(case: Case, guarantee: Guarantee, held: bool) -> Reason | None:
    if held:
        return Reason.HELD
    if deadline_passed(case):
        return Reason.DEADLINE
    match guarantee:
        case Guarantee.HOLDS:
            return None
        case Guarantee.NO_BUDGET:
            return Reason.BUDGET
        case _:
            return Reason.KEY_WINDOW


def _dispatched(case: Case, worker: int, terms_id: int) -> Event:
    data: dict[str, Any] = {"boot": case.boot, "terms": terms_id, "worker": worker}
    if case.terms.handed_off:
        data["handoff"] = True
    return case.event(EventType.DISPATCHED, Status.DISPATCHED, attempt=case.row.attempt + 1, data=data)


def _expired(case: Case) -> Event:
    if case.row.reason == Reason.EVIDENCE_BEFORE_DISPATCH:  # FAILED would be false: something says that it happened
        return quarantine(case, Reason.CONFLICTING_EVIDENCE)
    return case.event(EventType.EXPIRED, Status.CANCELLED, data={"boot": case.boot})

"""Whether the provider's idempotency key allows another dispatch while an earlier attempt is open."""

from enum import StrEnum
from typing import NamedTuple

from settled.core.case import Case
from settled.core.moment import possibly_elapsed_us
from settled.core.words import EventType, Isolation, Reason

_NEVER_REPEATED_AFTER = (
    EventType.AWAITING_PROBE, EventType.POSTCONDITION_FAILED, EventType.RESULT_NOT_STORABLE, EventType.RETURNED,
)  # fmt: skip


class Guarantee(StrEnum):
    """What the key allows now."""

    HOLDS = "holds"
    WAIT_FOR_FENCE = "wait_for_fence"  # it would hold, but a process of an earlier attempt may be alive
    NO_KEY = "no_key"
    NO_BUDGET = "no_budget"
    NOT_UNATTENDED = "not_unattended"
    AFTER_RETURN = "after_return"
    ISOLATION = "isolation"
    WINDOW_OVER = "window_over"


class KeyVerdict(NamedTuple):
    """The verdict, and the boot-clock microsecond until which an entry stays inside the window (None: no stated end)."""

    guarantee: Guarantee
    enter_by_boot_us: int | None = None


def key_verdict(case: Case) -> KeyVerdict:
    """Judge the key guarantee by the terms stored at each open dispatch and the current ones.

    The last byte must fall inside the window: now + timeout + kill grace + network drain + margin <= first dispatch +
    window. A finite window is never trusted in thread or async isolation, where code may send after it.
    """
    if not _guaranteed(case):
        return KeyVerdict(Guarantee.NO_KEY)
    refusal = _refused_by_history(case)
    if refusal is not None:
        return KeyVerdict(refusal)
    window = _window(case)
    if window.guarantee is not Guarantee.HOLDS:
        return window
    if _a_process_may_be_alive(case):
        return KeyVerdict(Guarantee.WAIT_FOR_FENCE, window.enter_by_boot_us)
    return window


def budget_left(case: Case) -> bool:
    """Return whether the contract's lifetime budget allows one more attempt."""
    unsent_too_often = case.history.unsent_in_a_row() >= case.terms.not_sent_attempts_max
    return case.history.spent_attempts() < case.terms.max_attempts and not unsent_too_often


def unattended_allowed(case: Case) -> bool:
    """Return whether anything may dispatch without a person: not after a stop, an authorized retry, a restore or a kept unknown."""
    history = case.history
    left_to_people = history.stopped_by_person or history.retry_authorized or history.restored
    return not left_to_people and case.row.reason != Reason.KEPT_UNKNOWN


def _guaranteed(case: Case) -> bool:
    binding = case.binding_terms()
    return case.row.provider_key is not None and case.current is not None and all(terms.key_guaranteed for terms in binding)


def _refused_by_history(case: Case) -> Guarantee | None:
    if not unattended_allowed(case):
        return Guarantee.NOT_UNATTENDED
    opened = case.history.open_attempts
    if any(attempt.returned or attempt.end in _NEVER_REPEATED_AFTER for attempt in opened):
        return Guarantee.AFTER_RETURN
    if not budget_left(case):
        return Guarantee.NO_BUDGET
    return None


def _window(case: Case) -> KeyVerdict:
    binding = case.binding_terms()
    finite = [terms.window_us for terms in binding if terms.window_us is not None]
    if not finite:
        return KeyVerdict(Guarantee.HOLDS)
    if any(terms.isolation != Isolation.PROCESS for terms in binding):
        return KeyVerdict(Guarantee.ISOLATION)
    first = case.history.first_dispatch
    elapsed = possibly_elapsed_us(first, case.now, case.wall_highest_us) if first is not None else None
    if elapsed is None:
        return KeyVerdict(Guarantee.WINDOW_OVER)
    needed = (
        max(terms.timeout_us for terms in binding)
        + max(terms.kill_grace_us for terms in binding)
        + max(terms.network_drain_us for terms in binding)
        + max(terms.key_margin_us for terms in binding)
    )
    left = min(finite) - needed - elapsed
    return KeyVerdict(Guarantee.HOLDS, case.now.boot_us + left) if left >= 0 else KeyVerdict(Guarantee.WINDOW_OVER)


def _a_process_may_be_alive(case: Case) -> bool:
    for attempt in case.history.open_attempts:
        terms = case.terms_of(attempt) or case.terms
        if terms.isolation == Isolation.PROCESS and not terms.handed_off and attempt.fence is None:
            return True
    return False

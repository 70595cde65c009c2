"""What a probe's answer, a provider's notice or a fence found later means, whatever the status meanwhile."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from settled.core.case import Case
from settled.core.correlate import is_second_id, with_output
from settled.core.decide_unknown import (
    deadline_passed,
    decide_key_retry,
    give_up,
    probe_wait_us,
    quarantine,
    retry_wait_us,
)
from settled.core.evidence import ProbeResult, ProbeStatus
from settled.core.fold import Event
from settled.core.guarantee import Guarantee, budget_left, key_verdict, unattended_allowed
from settled.core.history import Attempt
from settled.core.moment import Moment, surely_elapsed_us
from settled.core.terms import bounds_us
from settled.core.words import FAILED_STATUSES, EventType, Reason, Status, Weakness


class Answer(NamedTuple):
    """A probe's answer with what the shell knows of it.

    `started` is when the probe began; `postcondition` None where there is none or it was not asked; `output_digest` is
    set where an output will be stored with the event. `source` is "probe" or who sent the notice.
    """

    result: ProbeResult
    started: Moment
    postcondition: bool | None = None
    output_digest: str | None = None
    source: str = "probe"


class Absence(NamedTuple):
    """What an absence is worth: None counts; `wait_us` is how long a probe that is too early must still wait."""

    weakness: Weakness | None
    wait_us: int = 0


def decide_after_probe(case: Case, answer: Answer) -> tuple[Event, ...]:
    """Return the events of one probe answer or notice."""
    weakness = _weakness(case, answer.result)
    if weakness is not None:
        return _unusable(case, answer, weakness)
    match answer.result.status:
        case ProbeStatus.COMMITTED:
            return _committed(case, answer)
        case ProbeStatus.NOT_COMMITTED:
            return _absent(case, answer)
        case ProbeStatus.PENDING:
            return _pending(case, answer)
        case ProbeStatus.UNKNOWN:
            return _unusable(case, answer, None)


def judge_absence(case: Case, started: Moment) -> Absence:
    """Judge a healthy, bound, terminal absence by when its probe started: strictly after every open attempt's fence + bounds."""
    bounds = bounds_us(case.binding_terms())
    waits = []
    for attempt in case.history.open_attempts:
        since = quiet_since(case, attempt)
        if since is None:
            return Absence(Weakness.NO_FENCE)
        waits.append(bounds - surely_elapsed_us(since, started))
    longest = max(waits, default=-1)
    return Absence(Weakness.TOO_EARLY, longest) if longest >= 0 else Absence(None)


def quiet_since(case: Case, attempt: Attempt) -> Moment | None:
    """Return since when an attempt's local code can send no more; for a hand-off, since its recorded end; None = not known."""
    if attempt.restored:
        return None
    terms = [one for one in (case.terms_of(attempt), case.current) if one is not None]
    if any(one.handed_off for one in terms):
        return attempt.ended
    return attempt.fenced if attempt.fence is not None else None


def decide_fence(case: Case, number: int, basis: str, fenced: Moment) -> tuple[Event, ...]:
    """Return the event of a fence that was found later, none where the attempt has one or can have none."""
    attempt = case.history.attempt(number)
    if attempt is None or not may_be_fenced(case, attempt):
        return ()
    return (case.event(EventType.FENCED, attempt=number, data={"fence": basis, "boot": [fenced.boot_us, fenced.boot_id]}),)


# ------------------------------------------------------------------ what an answer is worth


def _weakness(case: Case, result: ProbeResult) -> Weakness | None:
    """Decisive answers must be storable, healthy and echo the stored reference."""
    if result.status in (ProbeStatus.PENDING, ProbeStatus.UNKNOWN):
        return None
    if not result.storable:
        return Weakness.NOT_STORABLE
    if not result.healthy:
        return Weakness.UNHEALTHY
    asked = case.row.provider_reference
    if asked is None and any(terms.has_reference for terms in case.binding_terms()):
        return Weakness.REFERENCE_MISSING
    if asked is not None and result.reference != asked:
        return Weakness.REFERENCE_MISMATCH
    if result.status is ProbeStatus.NOT_COMMITTED and not result.terminal:
        return Weakness.NOT_TERMINAL
    return None


def _facts(case: Case, answer: Answer, extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    result = answer.result
    data: dict[str, Any] = {"boot": case.boot, "answer": result.status}
    if answer.source != "probe":
        data["source"] = answer.source
    for name, value in (
        ("id", result.provider_operation_id),
        ("reference", result.reference),
        ("error", result.error_class),
        ("evidence", dict(result.evidence) or None),
        ("healthy", result.healthy or None),
        ("terminal", result.terminal or None),
        ("out", answer.output_digest),
    ):
        if value is not None:
            data[name] = value
    return data | dict(extra or {})


# ------------------------------------------------------------------ committed


def _committed(case: Case, answer: Answer) -> tuple[Event, ...]:
    met = answer.postcondition is not False
    data = _facts(case, answer, {"confirms": True} if met else {"postcondition": False})
    status = case.row.status
    if met and settles(case):
        return (case.event(EventType.PROBE_COMMITTED, Status.CONFIRMED, data=with_output(case, data)),)
    kept = case.event(EventType.PROBE_COMMITTED, data={**data, **news_of(case, data)})
    after = case.after([kept])
    if status in FAILED_STATUSES or (status is Status.PREPARED and case.row.attempt and not case.row.open_attempts):
        return kept, quarantine(after, Reason.CONFLICTING_EVIDENCE)
    if status is Status.PREPARED and not case.row.attempt:
        if case.row.reason == Reason.EVIDENCE_BEFORE_DISPATCH:
            return (kept,)
        return kept, after.event(EventType.HELD, data={"reason": Reason.EVIDENCE_BEFORE_DISPATCH})
    if status is Status.OUTCOME_UNKNOWN:
        return kept, *give_up(after, Reason.POSTCONDITION_FAILED)
    return (kept,)


def settles(case: Case) -> bool:
    """A confirmation settles while an attempt is open, but a conflict is left by a person only."""
    match case.row.status:
        case Status.OUTCOME_UNKNOWN:
            return True
        case Status.QUARANTINED:
            return case.row.reason != Reason.CONFLICTING_EVIDENCE
        case Status.PREPARED:
            return case.row.open_attempts > 0
        case _:
            return False


def news_of(case: Case, data: Mapping[str, Any]) -> dict[str, Any]:
    """Say whether evidence changes what is known; a second provider operation ID is perhaps a second effect."""
    twice = is_second_id(case, data.get("id")) and not case.row.duplicate_suspected
    news = twice or case.row.status is not Status.CONFIRMED
    return ({"news": True} if news else {}) | ({"duplicate": True} if twice else {})


# ------------------------------------------------------------------ absent


def _absent(case: Case, answer: Answer) -> tuple[Event, ...]:
    status = case.row.status
    absence = judge_absence(case, answer.started)
    if status is Status.CONFIRMED and absence.weakness is None:
        noted = case.event(EventType.PROBE_UNKNOWN, data=_facts(case, answer, {"absence_observed": True, "news": True}))
        return noted, quarantine(case.after([noted]), Reason.CONFLICTING_EVIDENCE)
    if answer.source != "probe":  # a notice does not say when it was read; it may be older than what it denies
        return _unusable(case, answer, Weakness.UNDATED)
    if absence.weakness is not None or status is not Status.OUTCOME_UNKNOWN:
        return _unusable(case, answer, absence.weakness, absence.wait_us)
    if any(attempt.returned for attempt in case.history.open_attempts):
        noted = case.event(
            EventType.PROBE_UNKNOWN,
            data=_facts(case, answer, {"absence_observed": True, "why": Weakness.AFTER_RETURN, "news": True}),
        )
        return noted, quarantine(case.after([noted]), Reason.CONFLICTING_EVIDENCE)
    if budget_left(case) and unattended_allowed(case):
        due = {"due": case.now.wall_us + retry_wait_us(case), "basis": "terminal_absence"}
        return (case.event(EventType.PROBE_ABSENT, Status.PREPARED, data=_facts(case, answer, due)),)
    return (case.event(EventType.PROBE_ABSENT, Status.REJECTED, data=_facts(case, answer)),)


# ------------------------------------------------------------------ no decision


def _pending(case: Case, answer: Answer) -> tuple[Event, ...]:
    asked = sum(1 for seen in case.history.observations if seen.type in (EventType.PROBE_PENDING, EventType.PROBE_UNKNOWN))
    data = _facts(case, answer, {"due": case.now.wall_us + probe_wait_us(case, asked + 1)})
    event = case.event(EventType.PROBE_PENDING, data=data)
    if case.row.status is Status.OUTCOME_UNKNOWN and case.row.reason is None and deadline_passed(case):
        return event, *give_up(case.after([event]), Reason.DEADLINE_SPENT)
    return (event,)


def _unusable(case: Case, answer: Answer, weakness: Weakness | None, wait_us: int = 0) -> tuple[Event, ...]:
    """Keep an answer that decides nothing; retry by the key, ask again later, or give up when the budget is spent."""
    early = weakness is Weakness.TOO_EARLY
    waiting = case.row.status is Status.OUTCOME_UNKNOWN and case.row.reason is None
    asked = sum(1 for seen in case.history.observations if seen.type in (EventType.PROBE_PENDING, EventType.PROBE_UNKNOWN))
    due = case.now.wall_us + (wait_us + 1 if early else probe_wait_us(case, asked + 1))
    extra: dict[str, Any] = {"due": due} if case.row.due_us is not None or waiting else {}
    if weakness is not None:
        extra["why"] = weakness
    if answer.result.status is ProbeStatus.NOT_COMMITTED:
        extra["absence_observed"] = True
    if waiting and not early and answer.source == "probe":
        extra["spent"] = True
    event = case.event(EventType.PROBE_UNKNOWN, data=_facts(case, answer, extra))
    if not waiting:
        return (event,)
    after = case.after([event])
    return event, *_after_unusable(after, early)


def _after_unusable(case: Case, early: bool) -> tuple[Event, ...]:
    if deadline_passed(case):
        return give_up(case, Reason.DEADLINE_SPENT)
    guarantee = key_verdict(case).guarantee
    if guarantee is Guarantee.HOLDS:
        return () if case.held else (decide_key_retry(case),)
    if early or case.row.probes_spent < case.terms.probe_attempts_max:
        return ()
    return give_up(case, Reason.PROBE_BUDGET_SPENT)


def may_be_fenced(case: Case, attempt: Attempt) -> bool:
    """Whether a fence may still be found: for an open attempt of this ledger that was not handed off."""
    terms = case.terms_of(attempt)
    handed_off = terms is not None and terms.handed_off
    return attempt.open and attempt.fence is None and not attempt.restored and not handed_off

"""Whether a prepared operation may be dispatched now."""

from collections.abc import Callable

import pytest

from settled.core.decide_claim import decide_claim, decide_deadline
from settled.core.decide_end import End
from settled.core.decide_operator import decide_authorize_retry
from settled.core.evidence import ProbeResult
from settled.core.row import outcome_of
from settled.core.terms import Terms
from settled.core.words import EventType as E
from settled.core.words import FenceBasis, Reason, Status
from tests.lib.core.builders import DAY, HOUR, Life, at, committed, decision, guaranteed, prepared_row, terms, unknown

GONE = FenceBasis.PROCESS_KILLED
CONFIRMATIONS: tuple[Callable[[Life], object], ...] = (lambda life: life.probe(committed()), lambda life: life.late(1, End.RETURNED))


def retrying(current: Terms, ended_at: float = 60) -> Life:
    """Return an operation that waits, prepared, for its second dispatch under the key guarantee."""
    life = Life(current).dispatch().wait(ended_at)
    life.end(End.TIMED_OUT, GONE)
    if life.row.status is Status.OUTCOME_UNKNOWN:
        life.probe(ProbeResult.unknown())
    assert (life.row.status, life.row.open_attempts) == (Status.PREPARED, 1)
    return life


def claim(life: Life, *, held: bool = False) -> tuple[bool, list[E]]:
    decided = decide_claim(life.case, 7, 1, held=held)
    return decided.dispatches, life.happen(decided.events)


def test_a_claim_raises_the_attempt_and_stores_owner_and_terms() -> None:
    life = Life(terms())
    life.stored[1] = terms()
    assert claim(life) == (True, [E.DISPATCHED])
    row = life.row
    assert (row.status, row.attempt, row.lease_owner, row.terms, row.due_us) == (Status.DISPATCHED, 1, 7, 1, None)
    assert (row.open_attempts, row.unfenced) == (1, 1)


@pytest.mark.promise("S98")
@pytest.mark.parametrize("probed", [True, False])
def test_a_retry_whose_window_has_closed_while_it_waited_goes_back_to_unknown(probed: bool) -> None:
    life = retrying(guaranteed(window=HOUR, key_margin=300, has_probe=probed), ended_at=50 * 60)
    life.now = at(56 * 60)
    dispatches, kinds = claim(life)
    assert not dispatches
    assert kinds == [E.RETRY_WITHDRAWN] + ([] if probed else [E.QUARANTINED])
    withdrawn = next(event for event in life.events if event.type is E.RETRY_WITHDRAWN)
    assert withdrawn.data["reason"] == Reason.KEY_WINDOW
    assert outcome_of(life.row.status, life.row.open_attempts) == "UNKNOWN"
    if probed:
        assert life.row.due_us == life.now.wall_us  # probed next


@pytest.mark.promise("S98")
def test_a_claim_inside_the_window_says_until_when_the_handler_may_be_entered() -> None:
    life = retrying(guaranteed(window=HOUR, key_margin=300))
    decided = decide_claim(life.case, 7, 1)
    assert decided.dispatches
    assert (decided.events[0].data["worker"], decided.events[0].data["terms"]) == (7, 1)
    assert decided.enter_by_boot_us == at(HOUR - 333).boot_us


@pytest.mark.promise("S98", "P42")
def test_a_retry_is_withdrawn_when_its_budget_was_lowered_while_it_waited() -> None:
    life = retrying(guaranteed())
    life.current = guaranteed(max_attempts=1)
    assert claim(life) == (False, [E.RETRY_WITHDRAWN, E.QUARANTINED])
    assert life.events[-2].data["reason"] == Reason.BUDGET


@pytest.mark.promise("S83", "S98")
def test_a_retry_is_withdrawn_when_the_guarantee_was_taken_back_while_it_waited() -> None:
    life = retrying(guaranteed())
    life.current = terms(has_key=True, max_attempts=3)
    assert claim(life) == (False, [E.RETRY_WITHDRAWN, E.QUARANTINED])


@pytest.mark.promise("S98", "S38")
@pytest.mark.parametrize("probed", [True, False])
def test_a_retry_that_meets_a_pause_goes_back_to_unknown_and_stays_there(probed: bool) -> None:
    life = retrying(guaranteed(has_probe=probed))
    assert claim(life, held=True) == (False, [E.RETRY_WITHDRAWN])
    assert life.events[-1].data["reason"] == Reason.HELD
    assert (life.row.status, life.row.reason) == (Status.OUTCOME_UNKNOWN, None)


@pytest.mark.promise("S38")
def test_what_was_never_sent_waits_out_a_pause() -> None:
    life = Life(terms())
    assert claim(life, held=True) == (False, [])
    life.case_changes["held"] = True
    assert claim(life) == (False, [])
    life.case_changes["held"] = False
    assert claim(life) == (True, [E.DISPATCHED])


@pytest.mark.promise("S36")
def test_a_deadline_ends_what_was_never_sent() -> None:
    life = Life(terms(), row=prepared_row(deadline_us=at(10).wall_us))
    assert decide_claim(life.wait(9).case, 7, 1).dispatches
    assert claim(life.wait(1)) == (False, [E.EXPIRED])
    assert (life.row.status, life.row.attempt) == (Status.CANCELLED, 0)


@pytest.mark.promise("S36", "S98")
def test_a_deadline_does_not_fail_what_may_have_happened() -> None:
    life = Life(guaranteed(has_probe=True), row=prepared_row(deadline_us=at(100).wall_us)).dispatch().wait(60)
    life.end(End.TIMED_OUT, GONE)
    life.probe(ProbeResult.unknown())
    assert claim(life.wait(40)) == (False, [E.RETRY_WITHDRAWN])
    assert life.events[-1].data["reason"] == Reason.DEADLINE
    assert life.row.status is Status.OUTCOME_UNKNOWN
    assert life.probe(ProbeResult.unknown()) == [E.PROBE_UNKNOWN, E.QUARANTINED]
    assert life.row.reason == Reason.DEADLINE_SPENT


@pytest.mark.parametrize("reason", [Reason.AWAITING_APPROVAL, Reason.CONTRACT_MISMATCH, Reason.NOT_SENT_LIMIT])
def test_a_row_that_is_held_with_a_reason_is_not_dispatched_but_expires(reason: Reason) -> None:
    life = Life(terms(), row=prepared_row(deadline_us=at(10).wall_us))
    life.happen([life.case.event(E.HELD, data={"reason": reason})])
    assert claim(life) == (False, [])
    assert claim(life.wait(10)) == (False, [E.EXPIRED])


@pytest.mark.promise("S107")
@pytest.mark.parametrize("postcondition", [None, True, False])
def test_evidence_before_any_dispatch_stops_the_dispatch_and_is_not_failed_by_a_deadline(postcondition: bool | None) -> None:
    life = Life(terms(), row=prepared_row(deadline_us=at(10).wall_us))
    assert life.probe(committed(), source="webhook", postcondition=postcondition) == [E.PROBE_COMMITTED, E.HELD]
    assert (life.row.status, life.row.reason) == (Status.PREPARED, Reason.EVIDENCE_BEFORE_DISPATCH)
    assert life.probe(committed(), source="webhook") == [E.PROBE_COMMITTED]  # told once
    assert claim(life) == (False, [])
    assert claim(life.wait(10)) == (False, [E.QUARANTINED])
    assert (life.row.status, life.row.reason, life.row.attempt) == (Status.QUARANTINED, Reason.CONFLICTING_EVIDENCE, 0)


@pytest.mark.promise("P45")
def test_confirming_evidence_wins_over_a_claim() -> None:
    for confirm in CONFIRMATIONS:
        life = retrying(guaranteed())
        confirm(life)
        assert (life.row.status, life.row.attempt) == (Status.CONFIRMED, 1)


@pytest.mark.promise("P45")
def test_confirming_evidence_contradicts_a_closing_while_the_next_dispatch_waits() -> None:
    for confirm in CONFIRMATIONS:
        life = Life(terms(max_attempts=3)).dispatch()
        life.end(End.REJECTED, FenceBasis.RETURNED, retryable=True)
        confirm(life)
        assert (life.row.status, life.row.reason, life.row.attempt) == (Status.QUARANTINED, Reason.CONFLICTING_EVIDENCE, 1)


@pytest.mark.promise("P53")
def test_an_authorized_retry_is_dispatched_beyond_the_budget_and_after_it_nothing_unattended() -> None:
    life = unknown(guaranteed(max_attempts=1))
    life.happen(decide_authorize_retry(life.wait(1).case, decision(life), nothing_can_arrive=False, accept_second_effect=False))
    assert claim(life) == (True, [E.DISPATCHED])
    life.current = guaranteed(max_attempts=9)
    assert life.end(End.TIMED_OUT, GONE) == [E.TIMED_OUT, E.QUARANTINED]
    assert (life.row.attempt, life.row.status) == (2, Status.QUARANTINED)


@pytest.mark.promise("S137")
@pytest.mark.parametrize("has_probe", [True, False])
def test_after_a_stop_by_a_person_no_budget_and_no_key_dispatch_again(has_probe: bool) -> None:
    life = Life(guaranteed(has_probe=has_probe, probe_attempts_max=1)).dispatch()
    life.end(End.STOPPED, GONE, by_person=True)
    if has_probe:
        assert life.wait(DAY).probe(ProbeResult.unknown()) == [E.PROBE_UNKNOWN, E.QUARANTINED]
    assert (life.row.status, life.row.attempt) == (Status.QUARANTINED, 1)


@pytest.mark.promise("S36")
@pytest.mark.parametrize(
    ("reason", "kinds", "status"),
    [
        (None, [E.EXPIRED], Status.CANCELLED),
        (Reason.AWAITING_APPROVAL, [E.EXPIRED], Status.CANCELLED),
        (Reason.EVIDENCE_BEFORE_DISPATCH, [E.QUARANTINED], Status.QUARANTINED),
    ],
)
def test_a_deadline_ends_a_row_that_nobody_claims_held_or_not(reason: Reason | None, kinds: list[E], status: Status) -> None:
    life = Life(terms(), row=prepared_row(deadline_us=at(10).wall_us))
    if reason is not None:
        life.happen([life.case.event(E.HELD, data={"reason": reason})])
    assert decide_deadline(life.wait(9).case) == ()
    assert life.happen(decide_deadline(life.wait(1).case)) == kinds
    assert life.row.status is status
    assert life.row.reason == (Reason.CONFLICTING_EVIDENCE if status is Status.QUARANTINED else None)
    assert decide_deadline(life.case) == ()


@pytest.mark.promise("S36", "S98")
def test_a_deadline_takes_a_waiting_retry_back_to_unknown_without_a_claim() -> None:
    life = Life(guaranteed(), row=prepared_row(deadline_us=at(100).wall_us)).dispatch().wait(60)
    life.end(End.TIMED_OUT, GONE)
    assert life.happen(decide_deadline(life.wait(40).case)) == [E.RETRY_WITHDRAWN, E.QUARANTINED]
    assert life.events[-2].data["reason"] == Reason.DEADLINE
    assert (life.row.reason, life.row.open_attempts) == (Reason.DEADLINE_SPENT, 1)

"""The row is the fold of its events, and the history of an operation is the fold of them too."""

import pytest

from settled.core.decide_end import End
from settled.core.decide_operator import decide_authorize_retry
from settled.core.evidence import ProbeResult
from settled.core.fold import NOT_FOLDED, Event, advance
from settled.core.history import EMPTY, fold_history, outcome_of_attempt
from settled.core.row import Row, outcome_of
from settled.core.words import EventType as E
from settled.core.words import FenceBasis, Outcome, Reason, Status
from tests.lib.core.builders import DIGEST, Life, absent, at, committed, decision, dispatched, guaranteed, prepared_row, terms, unknown

GONE = FenceBasis.PROCESS_KILLED


def folded(life: Life) -> Row:
    """Fold all events of a life again, from the submission."""
    row = life.submitted
    for event in life.events:
        row = advance(row, event)
    return row


def two_attempts_and_a_person() -> Life:
    life = unknown(guaranteed(has_probe=True)).wait(1)
    life.probe(ProbeResult.pending())
    life.probe(ProbeResult.unknown(), source="webhook")
    life.wait(2).dispatch().wait(1)
    life.end(End.RAISED, FenceBasis.RAISED, error="boom")
    life.wait(5).probe(committed(), postcondition=False)
    facts = {"nothing_can_arrive": True, "accept_second_effect": True}
    life.happen(decide_authorize_retry(life.case, decision(life), **facts))
    life.wait(1).dispatch().end(End.RETURNED, FenceBasis.RETURNED, output_digest=DIGEST, provider_operation_id="pay-1")
    life.wait(1).probe(committed(provider_operation_id="pay-2"), source="webhook")
    return life


def test_folding_all_events_again_gives_the_same_row_but_for_its_schedule() -> None:
    life = two_attempts_and_a_person()
    again, now = folded(life)._asdict(), life.row._asdict()
    assert {name for name in again if again[name] != now[name]} <= set(NOT_FOLDED)
    assert (life.row.status, life.row.attempt, life.row.sequence) == (Status.CONFIRMED, 3, 1 + len(life.events))
    assert fold_history(life.events, EMPTY, 1) == life.case.history


@pytest.mark.promise("S88")
def test_the_version_grows_by_moves_and_news_alone() -> None:
    life = two_attempts_and_a_person()
    status, version = Status.PREPARED, 1
    row = life.submitted
    for event in life.events:
        version += 1 if event.status is not status or event.data.get("news") else 0
        status, row = event.status, advance(row, event)
        assert row.version == version


@pytest.mark.parametrize("kind", [E.ACKNOWLEDGED, E.ASSIGNED, E.SNOOZED, E.PROPOSED, E.DECLINED])
def test_a_note_changes_nothing_but_the_sequence_and_the_time(kind: E) -> None:
    row = unknown(terms()).row
    noted = advance(row, Event(kind, row.status, row.attempt, at(99).wall_us, {"actor": "ana"}))
    assert noted == row._replace(sequence=row.sequence + 1, updated_us=at(99).wall_us)


@pytest.mark.promise("S104")
@pytest.mark.parametrize(
    ("end", "closes"),
    [
        (End.RETURNED, False), (End.REJECTED, True), (End.NOT_SENT, True), (End.NEVER_ENTERED, True), (End.RAISED, False),
        (End.TIMED_OUT, False), (End.CRASHED, False), (End.LEASE_LOST, False), (End.STOPPED, False), (End.RESULT_NOT_STORABLE, False),
        (End.NEEDS_REVIEW, False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("fence", [None, *FenceBasis])
def test_an_end_closes_its_attempt_only_if_it_surely_had_no_effect_whatever_its_fence(
    end: End, closes: bool, fence: FenceBasis | None
) -> None:
    life = dispatched(terms(has_probe=True))
    life.end(end, fence)
    (attempt,) = life.case.history.attempts
    assert attempt.open is not closes
    assert life.row.open_attempts == (0 if closes else 1)
    assert life.row.unfenced == (1 if fence is None and not closes else 0)
    assert attempt.fence == fence


@pytest.mark.promise("P12", "D01")
@pytest.mark.parametrize(
    ("status", "open_attempts", "outcome"),
    [
        (Status.PREPARED, 0, None), (Status.PREPARED, 1, "UNKNOWN"),
        (Status.DISPATCHED, 1, "UNKNOWN"), (Status.OUTCOME_UNKNOWN, 1, "UNKNOWN"),
        (Status.QUARANTINED, 1, "UNKNOWN"), (Status.QUARANTINED, 0, "UNKNOWN"), (Status.CONFIRMED, 1, "CONFIRMED"),
        (Status.REJECTED, 0, "FAILED"), (Status.CANCELLED, 0, "FAILED"),
    ],
)  # fmt: skip
def test_the_outcome_is_shown_by_status_and_open_attempts(status: Status, open_attempts: int, outcome: str | None) -> None:
    assert outcome_of(status, open_attempts) == outcome


def test_release_and_approval_free_a_held_row_and_set_its_time() -> None:
    for kind in (E.RELEASED, E.APPROVED):
        life = Life(terms())
        life.happen([life.case.event(E.HELD, data={"reason": Reason.AWAITING_APPROVAL})])
        assert life.row.reason == Reason.AWAITING_APPROVAL
        life.happen([life.case.event(kind, data={"due": at(5).wall_us})])
        assert (life.row.reason, life.row.due_us, life.row.version) == (None, at(5).wall_us, 1)


def test_a_derivation_stores_the_terms_that_it_was_made_by() -> None:
    life = Life(terms(), row=prepared_row(derived=0))
    life.happen([life.case.event(E.DERIVED, data={"terms": 4})])
    assert (life.row.derived, life.row.terms) == (1, 4)


def test_the_history_tells_of_each_attempt_how_it_ended_and_what_is_proved() -> None:
    life = two_attempts_and_a_person()
    attempts = life.case.history.attempts
    told = [(one.number, one.end, one.fence, one.closed_by, outcome_of_attempt(one), one.interruption) for one in attempts]
    assert told == [
        (1, "timed_out", "process_killed", "operator_asserted", Outcome.FAILED, "timeout"),
        (2, "raised", "raised", "operator_asserted", Outcome.FAILED, "exception"),
        (3, "returned", "returned", None, Outcome.CONFIRMED, None),
    ]


@pytest.mark.promise("S42")
def test_no_observation_is_ever_dropped() -> None:
    life = two_attempts_and_a_person()
    kinds = [seen.type for seen in life.case.history.observations]
    assert kinds == [
        E.TIMED_OUT, E.PROBE_PENDING, E.PROBE_UNKNOWN, E.RAISED, E.PROBE_COMMITTED, E.OPERATOR_RETRY_AUTHORIZED, E.RETURNED,
        E.PROBE_COMMITTED,
    ]  # fmt: skip
    assert [seen.sequence for seen in life.case.history.observations] == sorted(seen.sequence for seen in life.case.history.observations)


def test_a_settled_row_of_a_rejection_by_a_counted_absence_has_nothing_open() -> None:
    life = unknown(terms(has_probe=True)).wait(1)
    life.probe(absent())
    row = life.row
    assert (row.status, row.open_attempts, row.unfenced, row.escalate_us, row.lease_owner) == (Status.REJECTED, 0, 0, None, None)

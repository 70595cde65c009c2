"""What the end of an attempt means."""

from typing import Any

import pytest

from settled.core.decide_end import End
from settled.core.errors import EffectRejected
from settled.core.evidence import ProbeResult
from settled.core.row import outcome_of
from settled.core.terms import Terms
from settled.core.words import EventType as E
from settled.core.words import FenceBasis, Reason, Status
from tests.lib.core.builders import DIGEST, Life, at, committed, dispatched, guaranteed, terms, unknown

GONE, BACK = FenceBasis.PROCESS_KILLED, FenceBasis.RETURNED


def second_attempt(current: Terms | None = None) -> Life:
    """Return an operation whose second attempt runs under the key guarantee while the first is open."""
    life = unknown(current or guaranteed(has_probe=True)).wait(1)
    assert life.probe(ProbeResult.unknown()) == [E.PROBE_UNKNOWN, E.KEY_RETRY]
    return life.wait(2).dispatch()


def test_an_accepted_return_confirms_and_keeps_its_output() -> None:
    life = dispatched(terms())
    assert life.end(End.RETURNED, BACK, postcondition=True, output_digest=DIGEST, provider_operation_id="pay-1") == [E.RETURNED]
    row = life.row
    assert (row.status, row.output_part, row.provider_operation_id, row.lease_owner) == (Status.CONFIRMED, row.sequence, "pay-1", None)
    assert life.case.history.observations[-1].source == "handler_return"


@pytest.mark.parametrize("end", [End.RAISED, End.TIMED_OUT, End.CRASHED, End.LEASE_LOST, End.STOPPED, End.RESULT_NOT_STORABLE])
@pytest.mark.parametrize("max_attempts", [1, 3])
def test_an_end_that_proves_nothing_leaves_the_outcome_unknown(end: End, max_attempts: int) -> None:
    life = dispatched(terms(has_probe=True, max_attempts=max_attempts))
    assert life.end(end, GONE, error="boom") == [E(end)]
    row = life.row
    assert (row.status, row.open_attempts, row.error, row.due_us) == (Status.OUTCOME_UNKNOWN, 1, "boom", life.now.wall_us)
    assert outcome_of(row.status, row.open_attempts) == "UNKNOWN"
    assert row.escalate_us == life.now.wall_us + life.case.terms.unknown_age_max_us


@pytest.mark.promise("P33", "D07")
@pytest.mark.parametrize(
    ("changes", "facts", "event"),
    [
        ({}, {"postcondition": False}, E.POSTCONDITION_FAILED),
        ({"confirm_on": "probe"}, {}, E.AWAITING_PROBE),
        ({"confirm_on": "probe"}, {"postcondition": True}, E.AWAITING_PROBE),
        ({"confirm_on": "probe"}, {"postcondition": False}, E.POSTCONDITION_FAILED),
    ],
)
def test_a_return_that_is_not_accepted_is_only_evidence(changes: dict[str, Any], facts: dict[str, Any], event: E) -> None:
    life = dispatched(guaranteed(has_probe=True, **changes))
    assert life.end(End.RETURNED, BACK, **facts) == [event]
    attempt = life.case.history.attempts[0]
    assert (life.row.status, attempt.open, attempt.fence, attempt.execution) == (Status.OUTCOME_UNKNOWN, True, BACK, "UNKNOWN")


@pytest.mark.promise("S83")
def test_a_return_is_only_evidence_if_the_terms_of_its_dispatch_or_the_current_ones_say_so() -> None:
    for before, after in (("probe", "return"), ("return", "probe")):
        life = dispatched(terms(has_probe=True, confirm_on=before))
        life.current = terms(has_probe=True, confirm_on=after)
        assert life.end(End.RETURNED, BACK) == [E.AWAITING_PROBE]


@pytest.mark.promise("P31", "D05", "D11")
@pytest.mark.parametrize(
    ("retryable", "max_attempts", "status"),
    [(False, 3, Status.REJECTED), (True, 1, Status.REJECTED), (True, 2, Status.PREPARED)],
)
def test_a_definitive_rejection_closes_the_attempt_and_is_repeated_only_with_budget_and_a_basis(
    retryable: bool, max_attempts: int, status: Status
) -> None:
    life = dispatched(terms(max_attempts=max_attempts))
    assert life.end(End.REJECTED, BACK, retryable=retryable, error="declined") == [E.REJECTED]
    assert (life.row.status, life.row.open_attempts, life.row.unfenced) == (status, 0, 0)
    assert outcome_of(life.row.status, 0) == ("FAILED" if status is Status.REJECTED else None)
    if status is Status.PREPARED:
        assert life.row.due_us == life.now.wall_us + life.case.terms.retry_initial_us


@pytest.mark.promise("P31", "D05")
@pytest.mark.parametrize("retryable", [1, "yes", None])
def test_whether_a_rejection_is_retryable_is_exactly_true_or_false(retryable: Any) -> None:
    with pytest.raises(TypeError, match="retryable"):
        EffectRejected("declined", retryable=retryable)


@pytest.mark.promise("D08")
@pytest.mark.parametrize("retryable", [True, False])
def test_a_rejection_never_hides_an_earlier_attempt_that_is_open(retryable: bool) -> None:
    life = second_attempt()
    assert life.end(End.REJECTED, BACK, retryable=retryable) == [E.REJECTED]
    assert (life.row.status, life.row.open_attempts) == (Status.OUTCOME_UNKNOWN, 1)
    assert life.probe(committed()) == [E.PROBE_COMMITTED]
    assert life.row.status is Status.CONFIRMED


@pytest.mark.parametrize("end", [End.REJECTED, End.NOT_SENT])
def test_an_attempt_that_is_closed_without_a_fence_needs_none_any_more(end: End) -> None:
    life = dispatched(terms(isolation="thread"))
    life.end(end, None)
    assert (life.row.open_attempts, life.row.unfenced) == (0, 0)


def test_what_was_provably_not_sent_is_dispatched_again_after_a_wait() -> None:
    life = dispatched(terms(max_attempts=1))
    assert life.end(End.NOT_SENT, BACK) == [E.NOT_SENT]
    assert (life.row.status, life.row.open_attempts) == (Status.PREPARED, 0)
    assert life.row.due_us == life.now.wall_us + life.case.terms.retry_initial_us
    life.wait(1).dispatch()
    assert life.end(End.RETURNED, BACK) == [E.RETURNED]
    assert (life.row.status, life.row.attempt) == (Status.CONFIRMED, 2)


@pytest.mark.promise("S51")
def test_attempts_that_are_never_sent_are_bounded_and_then_held() -> None:
    life = Life(terms(not_sent_attempts_max=3))
    assert [life.dispatch().end(End.NOT_SENT, BACK) for _ in range(3)] == [[E.NOT_SENT], [E.NOT_SENT], [E.NOT_SENT, E.HELD]]
    assert (life.row.status, life.row.reason, life.row.attempt) == (Status.PREPARED, Reason.NOT_SENT_LIMIT, 3)


@pytest.mark.promise("S98")
def test_an_open_attempt_is_not_held_behind_unsent_ones_but_goes_back_to_unknown() -> None:
    life = second_attempt(guaranteed(has_probe=True, not_sent_attempts_max=1, max_attempts=9))
    assert life.end(End.NOT_SENT, BACK) == [E.NOT_SENT, E.RETRY_WITHDRAWN]
    assert (life.row.status, life.row.open_attempts) == (Status.OUTCOME_UNKNOWN, 1)
    assert life.events[-1].data["reason"] == Reason.BUDGET


@pytest.mark.promise("S41")
def test_what_needs_review_goes_to_a_person_even_under_a_guarantee() -> None:
    life = dispatched(guaranteed(has_probe=True))
    assert life.end(End.NEEDS_REVIEW, BACK, error="two customers match") == [E.RAISED, E.QUARANTINED]
    assert (life.row.status, life.row.reason, life.row.error) == (Status.QUARANTINED, Reason.NEEDS_REVIEW, "two customers match")


def test_what_needs_review_is_kept_where_the_contract_keeps_its_unknowns() -> None:
    life = dispatched(guaranteed(unknown_outcome="keep_unknown"))
    assert life.end(End.NEEDS_REVIEW, BACK) == [E.RAISED, E.HELD]
    assert (life.row.status, life.row.reason) == (Status.OUTCOME_UNKNOWN, Reason.KEPT_UNKNOWN)


def test_an_id_that_was_reported_before_the_attempt_was_lost_is_retained() -> None:
    life = dispatched(terms(has_probe=True))
    life.end(End.TIMED_OUT, GONE, provider_operation_id="ch_1")
    assert (life.row.status, life.row.provider_operation_id) == (Status.OUTCOME_UNKNOWN, "ch_1")


@pytest.mark.promise("D42", "S07", "D43")
def test_a_return_that_names_another_id_than_the_retained_one_confirms_and_withholds_its_output() -> None:
    life = dispatched(guaranteed())
    life.end(End.TIMED_OUT, GONE, provider_operation_id="ch_1")
    life.wait(2).dispatch().end(End.RETURNED, BACK, provider_operation_id="ch_2", output_digest=DIGEST)
    row = life.row
    assert (row.status, row.provider_operation_id, row.duplicate_suspected, row.output_part) == (Status.CONFIRMED, "ch_1", 1, None)


# ------------------------------------------------------------------ what was kept meanwhile


@pytest.mark.promise("S103")
@pytest.mark.parametrize(
    ("end", "facts"),
    [
        (End.REJECTED, {"retryable": True}), (End.REJECTED, {}), (End.NOT_SENT, {}), (End.NEVER_ENTERED, {}), (End.TIMED_OUT, {}),
        (End.CRASHED, {}), (End.NEEDS_REVIEW, {}), (End.RETURNED, {"postcondition": False}),
    ],
)  # fmt: skip
def test_a_kept_confirmation_is_merged_first_and_the_end_moves_nothing(end: End, facts: dict[str, Any]) -> None:
    life = second_attempt()
    assert life.late(1, End.RETURNED, output_digest=DIGEST, provider_operation_id="pay-1") == [E.LATE_RETURN]
    assert (life.row.status, life.row.kept, life.row.attempt) == (Status.DISPATCHED, 1, 2)
    kept_at, version = life.row.sequence, life.row.version
    kinds = life.end(end, BACK, error="lost", provider_operation_id="other", **facts)
    assert kinds[0] is E.EVIDENCE_MERGED
    assert len(kinds) == 2
    assert [event.status for event in life.events[-2:]] == [Status.CONFIRMED, Status.CONFIRMED]
    row = life.row
    assert (row.status, row.output_part, row.provider_operation_id, row.kept) == (Status.CONFIRMED, kept_at, "pay-1", 0)
    assert row.version >= version + 1
    assert row.error is None  # a confirmed operation has none
    assert row.open_attempts == len(life.case.history.open_attempts)
    assert life.events[-2].data["source"] == "late_return"


@pytest.mark.promise("S103", "D42")
@pytest.mark.parametrize(("own", "twice"), [("pay-1", 0), ("pay-2", 1), (None, 0)])
def test_the_ids_of_a_kept_confirmation_and_the_own_return_are_compared(own: str | None, twice: int) -> None:
    life = second_attempt()
    life.late(1, End.RETURNED, provider_operation_id="pay-1")
    assert life.end(End.RETURNED, BACK, provider_operation_id=own) == [E.EVIDENCE_MERGED, E.RETURNED]
    assert (life.row.status, life.row.provider_operation_id, life.row.duplicate_suspected) == (Status.CONFIRMED, "pay-1", twice)


@pytest.mark.promise("D42", "S07")
def test_two_kept_confirmations_with_different_ids_are_perhaps_two_effects() -> None:
    life = second_attempt()
    life.late(1, End.RETURNED, provider_operation_id="pay-1", output_digest=DIGEST)
    first = life.row.sequence
    life.probe(committed(provider_operation_id="pay-2", output=1), output_digest=DIGEST)
    life.end(End.TIMED_OUT, GONE)
    row = life.row
    assert (row.status, row.provider_operation_id, row.duplicate_suspected) == (Status.CONFIRMED, "pay-1", 1)
    assert row.output_part == first


@pytest.mark.promise("D43")
def test_a_kept_output_is_withheld_where_another_id_is_retained() -> None:
    life = unknown(guaranteed(), provider_operation_id="ch_0").wait(2).dispatch()
    life.late(1, End.RETURNED, provider_operation_id="pay-1", output_digest=DIGEST)
    life.end(End.TIMED_OUT, GONE)
    row = life.row
    assert (row.status, row.provider_operation_id, row.output_part) == (Status.CONFIRMED, "ch_0", None)
    assert row.duplicate_suspected == 1


@pytest.mark.promise("S103", "D41")
@pytest.mark.parametrize("end", [End.REJECTED, End.NOT_SENT])
def test_a_kept_confirmation_contradicts_an_end_that_closes_every_attempt(end: End) -> None:
    life = dispatched(terms(has_probe=True, max_attempts=3))
    assert life.probe(committed()) == [E.PROBE_COMMITTED]
    assert life.row.status is Status.DISPATCHED
    kinds = life.end(end, BACK, retryable=True)
    assert kinds == [E(end), E.QUARANTINED]
    assert (life.row.status, life.row.reason) == (Status.QUARANTINED, Reason.CONFLICTING_EVIDENCE)


@pytest.mark.promise("P44")
def test_a_probe_of_an_earlier_attempt_leaves_the_running_one_alone() -> None:
    life = second_attempt()
    before = life.row
    assert life.probe(committed(provider_operation_id="pay-1")) == [E.PROBE_COMMITTED]
    row = life.row
    assert (row.status, row.attempt, row.lease_owner) == (before.status, before.attempt, before.lease_owner)
    assert row.version == before.version + 1


@pytest.mark.parametrize(
    ("changes", "end", "facts", "kept"),
    [
        ({}, End.REJECTED, {"error": "declined"}, {"fence": "returned", "error": "declined", "retryable": False}),
        ({}, End.NOT_SENT, {}, {"fence": "returned", "due": at(1).wall_us}),
        ({}, End.NEVER_ENTERED, {"interruption": "lease_lost"}, {"fence": "returned", "interruption": "lease_lost", "due": at(0).wall_us}),
        ({"dispatch": "handoff"}, End.RETURNED, {}, {"handoff": True}),
    ],
)
def test_what_is_kept_of_an_end(changes: dict[str, Any], end: End, facts: dict[str, Any], kept: dict[str, Any]) -> None:
    life = dispatched(terms(**changes))
    life.end(end, FenceBasis.RETURNED, **facts)
    told = next(event for event in life.events if event.type.value == end.value)
    assert dict(told.data) == {"boot": life.case.boot, **kept}

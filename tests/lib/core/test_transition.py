"""Every pair of a status and an event has a listed target or a refusal."""

from itertools import product

import pytest

from settled.core.case import Case
from settled.core.errors import TransitionRefusedError
from settled.core.fold import Event, advance
from settled.core.transition import TRANSITIONS, check_transition
from settled.core.words import EventType as E
from settled.core.words import Status as S
from tests.lib.core.builders import START_US, Life, at, prepared_row, terms

ENDS_WITHOUT_OUTCOME = (
    "timed_out", "raised", "crashed", "lease_lost", "stopped", "result_not_storable", "postcondition_failed", "awaiting_probe",
)  # fmt: skip
ANYWHERE = ("acknowledged", "assigned", "snoozed", "proposed", "declined", "fenced", "probe_pending", "probe_unknown")
ALL = tuple(str(status) for status in S)


def expected() -> dict[tuple[str, str], set[str]]:
    """The table of docs/promises.md, chapter 3, written out a second time and in another shape: by event."""
    table: dict[tuple[str, str], set[str]] = {}

    def may(event: str, sources: str, *targets: str) -> None:
        for source in sources.split():
            table.setdefault((source, event), set()).update(targets or (source,))

    for event in ANYWHERE:
        may(event, " ".join(ALL))
    may("probe_committed", " ".join(ALL))
    may("late_return", " ".join(ALL))
    may("late_rejected", " ".join(ALL))
    for event in ("probe_committed", "late_return"):
        may(event, "prepared outcome_unknown quarantined", "confirmed")
    may("late_rejected", "outcome_unknown", "prepared", "rejected")
    may("late_rejected", "quarantined", "rejected")
    may("cancelled", "prepared", "cancelled")
    may("expired", "prepared", "cancelled")
    may("dispatched", "prepared", "dispatched")
    may("retry_withdrawn", "prepared", "outcome_unknown")
    may("returned", "dispatched", "confirmed")
    may("rejected", "dispatched", "outcome_unknown", "prepared", "rejected")
    may("never_entered", "dispatched", "prepared")
    may("not_sent", "dispatched", "prepared")
    for event in ENDS_WITHOUT_OUTCOME:
        may(event, "dispatched", "outcome_unknown")
    may("evidence_merged", "dispatched", "confirmed")
    for event in ("returned", "rejected", "never_entered", "not_sent", *ENDS_WITHOUT_OUTCOME):
        may(event, "confirmed")  # behind evidence_merged
    may("probe_absent", "outcome_unknown", "prepared", "rejected")
    may("key_retry", "outcome_unknown", "prepared")
    may("quarantined", "outcome_unknown confirmed rejected cancelled prepared", "quarantined")
    may("operator_confirmed", "outcome_unknown quarantined", "confirmed")
    may("operator_rejected", "outcome_unknown quarantined", "rejected")
    may("operator_retry_authorized", "outcome_unknown quarantined", "prepared")
    may("restored", "prepared dispatched outcome_unknown quarantined", "outcome_unknown")
    for event in ("held", "released"):
        may(event, "prepared outcome_unknown")
    may("approved", "prepared")
    may("derived", "prepared")
    may("stop_requested", "dispatched")
    return table


EXPECTED = expected()
WITH_FACTS = {"worker": 7, "terms": 1, "reason": "no_probe", "reason_given": "said so"}


@pytest.mark.promise("S21")
@pytest.mark.parametrize(("status", "event"), list(product(S, E)), ids=lambda value: str(value))
def test_each_pair_of_status_and_event_moves_to_a_listed_target_or_is_refused_with_the_row_unchanged(status: S, event: E) -> None:
    row = prepared_row(status=status, attempt=1, open_attempts=1, unfenced=1, kept=0)
    before = tuple(row)
    for target in S:
        happened = Event(event, target, 1, START_US, WITH_FACTS)
        if str(target) in EXPECTED.get((str(status), str(event)), set()):
            assert advance(row, happened).status is target
        else:
            with pytest.raises(TransitionRefusedError) as refused:
                advance(row, happened)
            assert (refused.value.operation_id, refused.value.status, refused.value.wanted) == (row.operation_id, status, event)
        assert tuple(row) == before


@pytest.mark.promise("S21")
def test_only_a_submission_makes_a_row() -> None:
    assert {pair: targets for pair, targets in TRANSITIONS.items() if pair[0] is None} == {(None, E.SUBMITTED): (S.PREPARED,)}
    with pytest.raises(TransitionRefusedError, match="absent"):
        check_transition("op", None, E.DISPATCHED, S.DISPATCHED)
    for status in S:
        with pytest.raises(TransitionRefusedError):
            check_transition("op", status, E.SUBMITTED, S.PREPARED)


def test_nothing_but_a_claim_starts_a_handler() -> None:
    starts = {pair for pair, targets in TRANSITIONS.items() if S.DISPATCHED in targets and pair[0] is not S.DISPATCHED}
    assert starts == {(S.PREPARED, E.DISPATCHED)}


@pytest.mark.promise("P43")
def test_only_a_person_sends_something_out_of_quarantine() -> None:
    back = {event for (status, event), targets in TRANSITIONS.items() if status is S.QUARANTINED and S.PREPARED in targets}
    assert back == {E.OPERATOR_RETRY_AUTHORIZED}


def test_the_events_of_a_case_carry_its_moment_and_attempt() -> None:
    case: Case = Life(terms(), now=at(5)).case
    happened = case.event(E.ACKNOWLEDGED)
    assert happened == Event(E.ACKNOWLEDGED, S.PREPARED, 0, at(5).wall_us, {})

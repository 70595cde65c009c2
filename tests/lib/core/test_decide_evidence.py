"""What a probe's answer, a notice or a late end means, whatever the status meanwhile."""

from typing import Any

import pytest

from settled.core.decide_end import End
from settled.core.decide_evidence import judge_absence
from settled.core.decide_operator import decide_cancel
from settled.core.decide_unknown import decide_escalation
from settled.core.evidence import ProbeResult
from settled.core.fold import Event
from settled.core.moment import SECOND_US
from settled.core.words import EventType as E
from settled.core.words import FenceBasis, Reason, Status, Weakness
from tests.lib.core.builders import DAY, DIGEST, HOUR, Life, absent, at, committed, dispatched, guaranteed, terms, unknown

GONE = FenceBasis.PROCESS_KILLED
CONFLICT = (Status.QUARANTINED, Reason.CONFLICTING_EVIDENCE)


def probed(**changes: Any) -> Life:
    """Return an operation that timed out and waits for its probe."""
    return unknown(terms(**{"has_probe": True, **changes})).wait(1)


def last(life: Life) -> Event:
    return life.events[-1]


def where(life: Life) -> tuple[Status, str | None]:
    return life.row.status, life.row.reason


# ------------------------------------------------------------------ committed


@pytest.mark.promise("P34")
def test_a_bound_committed_answer_settles_without_a_dispatch() -> None:
    life = probed()
    life.probe(committed(provider_operation_id="pay-1", output={"a": 1}), output_digest=DIGEST, postcondition=True)
    row = life.row
    assert (row.status, row.provider_operation_id, row.output_part, row.attempt) == (Status.CONFIRMED, "pay-1", row.sequence, 1)
    assert [event.type for event in life.events] == [E.DISPATCHED, E.TIMED_OUT, E.PROBE_COMMITTED]


@pytest.mark.promise("P35")
@pytest.mark.parametrize("policy", ["quarantine", "keep_unknown"])
def test_committed_with_an_unmet_postcondition_goes_to_a_person(policy: str) -> None:
    life = probed(unknown_outcome=policy)
    life.probe(committed(), postcondition=False)
    if policy == "quarantine":
        assert where(life) == (Status.QUARANTINED, Reason.POSTCONDITION_FAILED)
    else:
        assert where(life) == (Status.OUTCOME_UNKNOWN, Reason.KEPT_UNKNOWN)


@pytest.mark.promise("P36", "D38", "D39")
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (committed(output={1, 2}), Weakness.NOT_STORABLE),
        (committed(reference=None), Weakness.REFERENCE_MISMATCH),
        (committed(reference="INV-7"), Weakness.REFERENCE_MISMATCH),
        (committed(healthy=False), Weakness.UNHEALTHY),
        (ProbeResult.unknown(), None),
        (ProbeResult.failed("TimeoutError"), None),
    ],
)
def test_what_is_no_usable_answer_is_kept_and_asked_again(answer: ProbeResult, why: Weakness | None) -> None:
    life = probed()
    assert life.probe(answer) == [E.PROBE_UNKNOWN]
    assert (last(life).data.get("why"), last(life).data["answer"]) == (why, str(answer.status))
    assert last(life).data.get("error") == answer.error_class
    assert last(life).data["due"] == life.now.wall_us + life.case.terms.probe_initial_us
    assert (life.row.status, life.row.probes_spent) == (Status.OUTCOME_UNKNOWN, 1)


@pytest.mark.promise("D38")
@pytest.mark.parametrize("answer", [committed(), absent(), committed(reference=None)])
def test_a_row_without_the_reference_that_its_contract_has_takes_no_decisive_answer(answer: ProbeResult) -> None:
    life = unknown(terms(has_probe=True), provider_reference=None).wait(1)
    assert life.probe(answer) == [E.PROBE_UNKNOWN]
    assert last(life).data["why"] == Weakness.REFERENCE_MISSING


@pytest.mark.promise("D38")
def test_a_contract_without_a_reference_is_not_asked_for_one() -> None:
    life = unknown(terms(has_probe=True, has_reference=False), provider_reference=None).wait(1)
    assert life.probe(committed(reference=None)) == [E.PROBE_COMMITTED]


@pytest.mark.promise("P43", "D41")
def test_quarantine_may_be_confirmed_but_an_absence_closes_nothing_there() -> None:
    life = unknown(terms()).wait(DAY)
    assert where(life) == (Status.QUARANTINED, Reason.NO_PROBE)
    assert life.probe(absent()) == [E.PROBE_UNKNOWN]
    assert (last(life).data["absence_observed"], life.row.open_attempts) == (True, 1)
    assert life.probe(committed()) == [E.PROBE_COMMITTED]
    assert life.row.status is Status.CONFIRMED


@pytest.mark.promise("D41", "D49", "S06")
def test_only_a_person_leaves_a_contradiction() -> None:
    life = probed()
    life.probe(absent())
    assert life.row.status is Status.REJECTED
    assert life.late(1, End.RETURNED) == [E.LATE_RETURN, E.QUARANTINED]
    assert where(life) == CONFLICT
    life.probe(committed())
    life.probe(committed(), source="webhook")
    life.probe(absent())
    life.probe(ProbeResult.pending())
    life.late(1, End.RETURNED)
    life.late(1, End.REJECTED)
    assert where(life) == CONFLICT
    assert sum(1 for seen in life.case.history.observations if seen.confirms) == 4


@pytest.mark.promise("D41", "S06")
def test_what_contradicts_a_settled_outcome_brings_it_back_to_a_person() -> None:
    cancelled = Life(terms())
    cancelled.happen(decide_cancel(cancelled.case, "ana", "changed my mind", "root"))
    cancelled.probe(committed(), source="webhook")
    assert where(cancelled) == CONFLICT
    confirmed = probed()
    confirmed.probe(committed())
    version = confirmed.row.version
    assert confirmed.probe(absent()) == [E.PROBE_UNKNOWN, E.QUARANTINED]
    assert where(confirmed) == CONFLICT
    noted = confirmed.events[-2].data
    assert (noted["absence_observed"], noted["answer"], confirmed.row.version) == (True, "not_committed", version + 2)


@pytest.mark.promise("D41")
@pytest.mark.parametrize("status", [Status.OUTCOME_UNKNOWN, Status.CONFIRMED])
def test_a_notice_that_it_is_absent_does_not_say_when_it_was_read_and_closes_nothing(status: Status) -> None:
    life = probed(max_attempts=3)
    if status is Status.CONFIRMED:
        life.probe(committed())
    due = life.row.due_us
    kinds = life.wait(1).probe(absent(), source="webhook")
    noted = next(event for event in life.events if event.data.get("source") == "webhook")
    assert (noted.type, noted.data["absence_observed"]) == (E.PROBE_UNKNOWN, True)
    if status is Status.CONFIRMED:  # it may be older than what it denies, and still a person should look
        assert kinds == [E.PROBE_UNKNOWN, E.QUARANTINED]
        return
    assert (kinds, noted.data["why"]) == ([E.PROBE_UNKNOWN], Weakness.UNDATED)
    assert (life.row.status, life.row.open_attempts, life.row.probes_spent, life.row.due_us) == (status, 1, 0, due)
    too_weak = probed(network_drain=HOUR)
    too_weak.probe(committed())
    too_weak.probe(absent())
    assert too_weak.row.status is Status.CONFIRMED


@pytest.mark.promise("D42", "S07")
def test_a_second_confirmation_with_another_id_is_perhaps_a_second_effect() -> None:
    life = probed()
    life.probe(committed(provider_operation_id="pay-1"))
    version = life.row.version
    life.probe(committed(provider_operation_id="pay-1"), source="webhook")
    life.probe(committed(), source="webhook")
    assert (life.row.duplicate_suspected, life.row.version) == (0, version)
    life.probe(committed(provider_operation_id="pay-2"), source="webhook")
    life.late(1, End.RETURNED, provider_operation_id="pay-3")
    row = life.row
    assert (row.status, row.provider_operation_id, row.duplicate_suspected, row.version) == (Status.CONFIRMED, "pay-1", 1, version + 1)
    assert {seen.provider_operation_id for seen in life.case.history.observations if seen.confirms} == {"pay-1", "pay-2", "pay-3", None}


@pytest.mark.promise("D43")
@pytest.mark.parametrize(
    ("retained", "seen", "shown"),
    [("pay-1", "pay-1", True), ("pay-1", "pay-2", False), ("pay-1", None, False), (None, "pay-1", True), (None, None, True)],
)
def test_an_output_is_shown_only_if_it_belongs_to_the_retained_id(retained: str | None, seen: str | None, shown: bool) -> None:
    life = unknown(terms(has_probe=True), provider_operation_id=retained).wait(1)
    life.probe(committed(provider_operation_id=seen, output=1), output_digest=DIGEST)
    assert life.row.status is Status.CONFIRMED
    assert (life.row.output_part is not None) is shown
    assert last(life).data.get("withheld", False) is not shown
    assert life.row.duplicate_suspected == (1 if retained and seen and retained != seen else 0)


@pytest.mark.promise("D43")
def test_two_missing_ids_never_match() -> None:
    life = dispatched(terms(has_probe=True))
    life.probe(committed(output=1), output_digest=DIGEST)
    life.probe(committed(output=2), output_digest=DIGEST)
    life.end(End.TIMED_OUT, GONE)
    assert (life.row.status, life.row.output_part) == (Status.CONFIRMED, None)


# ------------------------------------------------------------------ no decision


@pytest.mark.promise("P40")
def test_pending_waits_even_under_a_guarantee_and_spends_no_budget() -> None:
    life = unknown(guaranteed(has_probe=True, probe_attempts_max=1)).wait(1)
    waits = []
    for _ in range(3):
        assert life.probe(ProbeResult.pending()) == [E.PROBE_PENDING]
        waits.append(last(life).data["due"] - life.now.wall_us)
    assert [wait / SECOND_US for wait in waits] == [2, 4, 8]
    assert (life.row.status, life.row.attempt, life.row.probes_spent) == (Status.OUTCOME_UNKNOWN, 1, 0)


@pytest.mark.promise("P41")
def test_without_a_usable_answer_the_key_permits_a_retry() -> None:
    for answer in (ProbeResult.unknown(), ProbeResult.failed("TypeError"), absent(healthy=False)):
        life = unknown(guaranteed(has_probe=True)).wait(1)
        assert life.probe(answer) == [E.PROBE_UNKNOWN, E.KEY_RETRY]
        assert (life.row.status, life.row.open_attempts) == (Status.PREPARED, 1)


@pytest.mark.promise("S49")
def test_a_spent_probe_budget_ends_automatic_work_after_growing_waits() -> None:
    life = probed(probe_attempts_max=5)
    waits = []
    for _ in range(5):
        life.probe(ProbeResult.unknown())
        waits += [event.data["due"] - life.now.wall_us for event in life.events[-2:] if event.type is E.PROBE_UNKNOWN][-1:]
    assert [wait / SECOND_US for wait in waits] == [2, 4, 8, 16, 32]
    assert where(life) == (Status.QUARANTINED, Reason.PROBE_BUDGET_SPENT)


@pytest.mark.promise("S49")
@pytest.mark.parametrize("answer", [ProbeResult.unknown(), ProbeResult.pending()])
def test_a_passed_deadline_ends_it_first(answer: ProbeResult) -> None:
    life = unknown(terms(has_probe=True), deadline_us=at(10).wall_us)
    life.now = at(10)
    life.probe(answer)
    assert where(life) == (Status.QUARANTINED, Reason.DEADLINE_SPENT)


def test_a_notice_of_somebody_else_spends_no_probe_budget() -> None:
    life = probed(probe_attempts_max=1)
    assert life.probe(ProbeResult.unknown(), source="webhook") == [E.PROBE_UNKNOWN]
    assert life.row.probes_spent == 0
    assert life.case.history.observations[-1].source == "webhook"


# ------------------------------------------------------------------ what is kept of an answer

SECOND = SECOND_US
FOUND = {"answer": "committed", "reference": "INV-1042", "healthy": True}
GONE_FOR_GOOD = {"answer": "not_committed", "reference": "INV-1042", "healthy": True, "terminal": True}


@pytest.mark.parametrize(
    ("answer", "facts", "changes", "kept", "status"),
    [
        (committed(provider_operation_id="pay-1", evidence={"page": 2}), {"postcondition": True, "output_digest": DIGEST}, {},
         {**FOUND, "id": "pay-1", "evidence": {"page": 2}, "out": DIGEST, "confirms": True}, Status.CONFIRMED),
        (committed(), {"postcondition": False}, {}, {**FOUND, "postcondition": False, "news": True}, Status.QUARANTINED),
        (absent(), {}, {}, GONE_FOR_GOOD, Status.REJECTED),
        (absent(), {}, {"max_attempts": 2}, {**GONE_FOR_GOOD, "basis": "terminal_absence", "due": at(2).wall_us}, Status.PREPARED),
        (absent(healthy=False), {}, {},
         {"answer": "not_committed", "reference": "INV-1042", "terminal": True, "why": "unhealthy", "absence_observed": True, "spent": True,
          "due": at(3).wall_us}, Status.OUTCOME_UNKNOWN),
        (absent(), {}, {"network_drain": 120},
         {**GONE_FOR_GOOD, "why": "too_early", "absence_observed": True, "due": at(120).wall_us + 1}, Status.OUTCOME_UNKNOWN),
        (ProbeResult.failed("TypeError"), {}, {}, {"answer": "unknown", "error": "TypeError", "spent": True, "due": at(3).wall_us},
         Status.OUTCOME_UNKNOWN),
        (ProbeResult.pending(), {"source": "webhook"}, {}, {"answer": "pending", "source": "webhook", "due": at(3).wall_us},
         Status.OUTCOME_UNKNOWN),
    ],
    ids=["found", "found and not as it must be", "gone", "gone, to be repeated", "unhealthy", "too early", "failed", "pending, told"],
)  # fmt: skip
def test_what_is_kept_of_an_answer(
    answer: ProbeResult, facts: dict[str, Any], changes: dict[str, Any], kept: dict[str, Any], status: Status
) -> None:
    life = probed(**changes)
    life.probe(answer, **facts)
    told = next(event for event in life.events if "answer" in event.data)
    assert (dict(told.data), life.row.status) == ({**kept, "boot": life.case.boot}, status)


@pytest.mark.promise("S102")
def test_an_absence_after_a_return_is_kept_as_the_contradiction_that_it_is() -> None:
    life = dispatched(terms(has_probe=True, confirm_on="probe")).wait(1)
    life.end(End.RETURNED, FenceBasis.RETURNED)
    version = life.row.version
    assert life.wait(1).probe(absent()) == [E.PROBE_UNKNOWN, E.QUARANTINED]
    kept = {**GONE_FOR_GOOD, "absence_observed": True, "why": "after_return", "news": True, "boot": life.case.boot}
    assert (dict(life.events[-2].data), where(life), life.row.version) == (kept, CONFLICT, version + 2)


def test_an_answer_to_what_is_settled_asks_for_no_other_and_spends_nothing() -> None:
    for life in (probed(), probed()):
        life.probe(committed())
        assert life.probe(ProbeResult.unknown()) == [E.PROBE_UNKNOWN]
        assert dict(last(life).data) == {"answer": "unknown", "boot": life.case.boot}


def test_a_probe_goes_on_in_quarantine_only_where_only_the_age_was_the_reason() -> None:
    aged = probed()
    aged.happen(decide_escalation(aged.case))
    due = aged.row.due_us
    assert where(aged) == (Status.QUARANTINED, Reason.UNKNOWN_TOO_LONG) and due is not None
    aged.probe(ProbeResult.unknown())
    assert last(aged).data["due"] == aged.now.wall_us + 2 * SECOND
    spent = probed(probe_attempts_max=1)
    spent.probe(ProbeResult.unknown())
    assert (where(spent), spent.row.due_us) == ((Status.QUARANTINED, Reason.PROBE_BUDGET_SPENT), None)
    spent.probe(ProbeResult.unknown())
    assert "due" not in last(spent).data


def test_what_was_asked_too_early_ends_nothing_although_the_budget_was_lowered_meanwhile() -> None:
    life = probed(network_drain=120, probe_attempts_max=5)
    life.probe(ProbeResult.unknown())
    life.probe(ProbeResult.unknown())
    life.current = terms(has_probe=True, network_drain=120, probe_attempts_max=1)
    assert life.probe(absent()) == [E.PROBE_UNKNOWN]
    assert life.probe(ProbeResult.unknown()) == [E.PROBE_UNKNOWN, E.QUARANTINED]


def test_an_effect_that_is_not_as_it_must_be_leaves_a_waiting_retry_as_it_is() -> None:
    life = unknown(guaranteed())
    assert life.row.status is Status.PREPARED
    assert life.probe(committed(), source="webhook", postcondition=False) == [E.PROBE_COMMITTED]
    assert where(life) == (Status.PREPARED, None)


def test_an_absence_needs_to_wait_for_nothing_where_no_attempt_is_open() -> None:
    assert judge_absence(Life(terms()).case, at(0)) == (None, 0)

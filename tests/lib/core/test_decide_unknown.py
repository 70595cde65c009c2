"""What follows an unknown outcome without any new answer: the probe, the key, or a person."""

from typing import Any

import pytest

from settled.core.decide_end import End
from settled.core.decide_restore import decide_restored
from settled.core.decide_unknown import decide_escalation, decide_unattended
from settled.core.evidence import ProbeResult
from settled.core.guarantee import unattended_allowed
from settled.core.moment import SECOND_US
from settled.core.terms import Terms
from settled.core.words import EventType as E
from settled.core.words import FenceBasis, Reason, Status
from tests.lib.core.builders import DAY, Life, absent, at, committed, dispatched, guaranteed, terms, unknown

GONE = FenceBasis.PROCESS_KILLED


@pytest.mark.promise("P41")
@pytest.mark.parametrize(
    ("current", "follows", "status"),
    [
        (terms(), [E.QUARANTINED], Status.QUARANTINED),
        (terms(unknown_outcome="keep_unknown"), [E.HELD], Status.OUTCOME_UNKNOWN),
        (terms(has_probe=True), [], Status.OUTCOME_UNKNOWN),
        (guaranteed(), [E.KEY_RETRY], Status.PREPARED),
        (guaranteed(has_probe=True), [], Status.OUTCOME_UNKNOWN),  # the probe is asked first
        (guaranteed(max_attempts=1), [E.QUARANTINED], Status.QUARANTINED),
    ],
    ids=["nothing", "kept", "probe", "key", "probe and key", "key without budget"],
)
def test_the_end_of_an_attempt_and_what_follows_are_decided_at_once(current: Terms, follows: list[E], status: Status) -> None:
    life = dispatched(current)
    assert life.end(End.TIMED_OUT, GONE) == [E.TIMED_OUT, *follows]
    assert (life.row.status, life.row.open_attempts) == (status, 1)
    if status is Status.QUARANTINED:
        assert life.row.reason == Reason.NO_PROBE
    if status is Status.PREPARED:
        assert life.row.due_us == life.now.wall_us + current.retry_initial_us
        assert life.row.provider_key == life.submitted.provider_key


@pytest.mark.promise("P41", "S83")
@pytest.mark.parametrize(("stored", "current"), [(True, False), (False, True), (True, True)])
def test_there_is_no_probe_only_where_neither_the_stored_nor_the_current_terms_have_one(stored: bool, current: bool) -> None:
    life = dispatched(terms(has_probe=stored))
    life.current = terms(has_probe=current)
    assert life.end(End.CRASHED, GONE) == [E.CRASHED]


@pytest.mark.promise("S117")
def test_a_contract_that_is_not_registered_here_is_never_judged() -> None:
    life = dispatched(terms())
    life.current = None
    assert life.end(End.LEASE_LOST, GONE) == [E.LEASE_LOST]
    assert decide_unattended(life.wait(DAY).case) == ()
    life.current = terms()
    assert life.happen(decide_unattended(life.case)) == [E.QUARANTINED]


def test_a_key_retry_waits_for_the_fence_and_follows_it() -> None:
    life = dispatched(guaranteed())
    assert life.end(End.LEASE_LOST, None) == [E.LEASE_LOST]
    assert decide_unattended(life.case) == ()
    life.late(1, End.CRASHED, fence=FenceBasis.PROCESS_GONE)
    assert life.happen(decide_unattended(life.case)) == [E.KEY_RETRY]


@pytest.mark.promise("S38")
def test_while_a_contract_is_paused_no_retry_is_decided_on() -> None:
    life = dispatched(guaranteed())
    life.case_changes["held"] = True
    assert life.end(End.TIMED_OUT, GONE) == [E.TIMED_OUT]
    assert decide_unattended(life.case) == ()
    life.case_changes["held"] = False
    assert life.happen(decide_unattended(life.case)) == [E.KEY_RETRY]
    probing = unknown(guaranteed(has_probe=True, probe_attempts_max=1))
    probing.case_changes["held"] = True
    assert probing.probe(ProbeResult.unknown()) == [E.PROBE_UNKNOWN]  # it would have been a retry, so that nothing is given up either


@pytest.mark.promise("P42")
def test_the_retry_budget_is_for_life() -> None:
    life = Life(guaranteed(max_attempts=3))
    for number in (1, 2, 3):
        life.wait(600).dispatch()
        kinds = life.end(End.TIMED_OUT, GONE)
        assert kinds == [E.TIMED_OUT, E.KEY_RETRY if number < 3 else E.QUARANTINED]
    assert (life.row.status, life.row.attempt, life.row.reason) == (Status.QUARANTINED, 3, Reason.NO_PROBE)


@pytest.mark.promise("D10")
def test_without_a_guarantee_an_unknown_outcome_is_not_dispatched_again_whatever_budget_is_left() -> None:
    life = unknown(terms(max_attempts=3))
    assert life.row.status is Status.QUARANTINED
    probed = unknown(terms(has_probe=True, max_attempts=3, probe_attempts_max=2))
    assert probed.wait(DAY).probe(ProbeResult.unknown()) == [E.PROBE_UNKNOWN]
    assert probed.probe(ProbeResult.unknown()) == [E.PROBE_UNKNOWN, E.QUARANTINED]
    assert probed.row.attempt == 1


@pytest.mark.promise("S49")
def test_a_deadline_that_has_passed_ends_automatic_work() -> None:
    life = dispatched(guaranteed(), deadline_us=at(10).wall_us).wait(10)
    assert life.end(End.TIMED_OUT, GONE) == [E.TIMED_OUT, E.QUARANTINED]
    assert life.row.reason == Reason.DEADLINE_SPENT


@pytest.mark.promise("S109")
@pytest.mark.parametrize("policy", ["quarantine", "keep_unknown"])
def test_nothing_stays_unknown_past_its_age_without_a_person_told(policy: str) -> None:
    life = unknown(terms(has_probe=True, unknown_outcome=policy))
    assert life.row.escalate_us == at(DAY).wall_us
    for _ in range(3):
        life.wait(3600).probe(ProbeResult.pending())
    assert life.row.escalate_us == at(DAY).wall_us  # counted from the first unknown
    life.now = at(DAY)
    kinds = life.happen(decide_escalation(life.case))
    if policy == "quarantine":
        assert kinds == [E.QUARANTINED]
        assert (life.row.reason, life.row.attempt) == (Reason.UNKNOWN_TOO_LONG, 1)
        assert life.row.due_us is not None  # probes go on
    else:
        assert kinds == [E.HELD]
        assert (life.row.reason, life.row.escalate_us, life.row.due_us) == (Reason.KEPT_UNKNOWN, None, None)
    assert life.happen(decide_escalation(life.case)) == []


@pytest.mark.promise("S62")
def test_a_kept_unknown_is_given_up_once_and_not_dispatched() -> None:
    life = unknown(guaranteed(unknown_outcome="keep_unknown", max_attempts=1))
    assert life.row.reason == Reason.KEPT_UNKNOWN
    assert life.events[-1].data["because"] == Reason.NO_PROBE
    life.current = guaranteed(unknown_outcome="keep_unknown")  # a redeployment brings budget
    assert decide_unattended(life.case) == ()
    assert life.probe(ProbeResult.unknown()) == [E.PROBE_UNKNOWN]
    assert life.row.status is Status.OUTCOME_UNKNOWN


@pytest.mark.promise("S113")
@pytest.mark.parametrize("current", [terms(), guaranteed()])
def test_a_restored_row_without_a_probe_goes_to_a_person(current: Terms) -> None:
    life = Life(current).restore()
    assert (life.row.status, life.row.attempt, life.row.open_attempts, life.row.unfenced) == (Status.OUTCOME_UNKNOWN, 1, 1, 0)
    assert life.happen(decide_unattended(life.case)) == [E.QUARANTINED]
    assert life.row.reason == Reason.RESTORED


@pytest.mark.promise("S113")
def test_a_restored_attempt_is_numbered_above_any_known_and_open_beside_it() -> None:
    life = dispatched(terms(has_probe=True)).restore()
    assert (life.row.status, life.row.attempt, life.row.open_attempts, life.row.lease_owner) == (Status.OUTCOME_UNKNOWN, 2, 2, None)


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.OUTCOME_UNKNOWN])
def test_only_an_unknown_outcome_is_escalated_by_its_age(status: Status) -> None:
    life = Life(terms())
    facts: dict[str, Any] = {"status": status, "escalate_us": 1, "attempt": 1}
    assert decide_escalation(Life(terms(), row=life.row._replace(**facts)).case) == ()


@pytest.mark.promise("S113")
@pytest.mark.parametrize(("highest", "number"), [(0, 2), (1, 2), (5, 6)])
def test_a_copy_counts_one_more_attempt_above_every_number_that_is_known(highest: int, number: int) -> None:
    life = dispatched(terms(has_probe=True))
    life.happen(decide_restored(life.case, "a copy", "root", "uid:0", highest))
    row = life.row
    assert (row.status, row.attempt, row.open_attempts, row.unfenced) == (Status.OUTCOME_UNKNOWN, number, 2, 1)
    assert dict(life.events[-1].data) == {
        "reason_given": "a copy", "os_user": "root", "principal": "uid:0", "due": life.now.wall_us, "boot": life.case.boot,
        "unknown_age_max": DAY * SECOND_US, "news": True,
    }  # fmt: skip
    assert life.case.history.restored and not unattended_allowed(life.case)


@pytest.mark.promise("S113")
def test_a_copy_takes_what_it_shows_as_never_sent_for_dispatched_once() -> None:
    life = Life(terms(has_probe=True))
    life.happen(decide_restored(life.case, "a copy", "root", "uid:0"))
    assert (life.row.status, life.row.attempt, life.row.open_attempts) == (Status.OUTCOME_UNKNOWN, 1, 1)


@pytest.mark.promise("S113", "D41")
def test_a_copy_leaves_a_contradiction_to_a_person_and_what_is_settled_alone() -> None:
    life = unknown(terms(has_probe=True)).wait(1)
    life.probe(committed())
    assert decide_restored(life.case, "a copy", "root", "uid:0") == ()
    life.wait(1).probe(absent())
    assert life.happen(decide_restored(life.case, "a copy", "root", "uid:0")) == [E.RESTORED, E.QUARANTINED]
    assert (life.row.status, life.row.reason, life.row.open_attempts) == (Status.QUARANTINED, Reason.CONFLICTING_EVIDENCE, 2)

"""What a person may decide, and from when."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from settled.core.case import Case
from settled.core.decide_claim import decide_claim
from settled.core.decide_end import End
from settled.core.decide_operator import (
    Decision,
    decide_authorize_retry,
    decide_cancel,
    decide_confirm,
    decide_reject,
    decide_stop_request,
)
from settled.core.errors import TransitionRefusedError
from settled.core.fold import Event
from settled.core.row import outcome_of
from settled.core.words import EventType as E
from settled.core.words import FenceBasis, Reason, Status
from tests.lib.core.builders import (
    DAY,
    DIGEST,
    HOUR,
    Life,
    absent,
    at,
    committed,
    decision,
    dispatched,
    guaranteed,
    prepared_row,
    terms,
    unknown,
)

Events = tuple[Event, ...]
GONE = FenceBasis.PROCESS_KILLED


def confirm(case: Case, said: Decision, output: str | None = None, id_: str | None = None) -> Events:
    return decide_confirm(case, said, output_digest=output, provider_operation_id=id_)


def reject(case: Case, said: Decision, assert_it: bool = False) -> Events:
    return decide_reject(case, said, nothing_can_arrive=assert_it)


def authorize(case: Case, said: Decision, assert_it: bool = False, accept: bool = False) -> Events:
    return decide_authorize_retry(case, said, nothing_can_arrive=assert_it, accept_second_effect=accept)


VERBS: dict[str, Callable[..., Events]] = {"confirm": confirm, "reject": reject, "authorize-retry": authorize}
WAITING: dict[str, Callable[..., Events]] = {name: VERBS[name] for name in ("reject", "authorize-retry")}


@pytest.mark.promise("P49")
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("status", [status for status in Status if status not in (Status.OUTCOME_UNKNOWN, Status.QUARANTINED)])
def test_a_person_decides_only_where_a_person_must(verb: str, status: Status) -> None:
    life = Life(terms(), row=prepared_row(status=status, attempt=1))
    with pytest.raises(TransitionRefusedError, match=f"is {status}: {verb} is refused") as refused:
        VERBS[verb](life.case, decision(life), **({} if verb == "confirm" else {"assert_it": True}))
    assert refused.value.exit_code == 4


@pytest.mark.promise("S63")
@pytest.mark.parametrize("verb", VERBS)
def test_a_decision_is_bound_to_the_version_that_the_person_saw(verb: str) -> None:
    life = unknown(terms()).wait(1)
    life.row = life.row._replace(version=8)
    stale = Life(terms(), row=life.row).case
    with pytest.raises(TransitionRefusedError, match="you decided on version 7, it is now version 8"):
        VERBS[verb](stale, decision(life, expected_version=7))


@pytest.mark.promise("S63", "S88")
def test_probes_that_bring_nothing_leave_the_version_that_a_person_saw() -> None:
    life = unknown(terms(has_probe=True, probe_attempts_max=100)).wait(1)
    seen = decision(life)
    for _ in range(10):
        life.wait(1).probe(absent(healthy=False))
    assert life.row.version == seen.expected_version
    assert life.happen(reject(life.case, seen)) == [E.OPERATOR_REJECTED]


WHO = {"actor": "ana", "reason_given": "looked it up", "os_user": "root", "principal": "uid:0"}
SEEN = {"evidence_reference": "INC-7", "seen_version": 3}
SURE = {"assert_nothing_can_arrive": True}


@pytest.mark.parametrize(
    ("decide", "kept"),
    [
        (lambda case, said: confirm(case, said), SEEN),
        (lambda case, said: confirm(case, said, DIGEST, "pay-1"), {**SEEN, "out": DIGEST, "id": "pay-1"}),
        (lambda case, said: reject(case, said, True), {**SEEN, **SURE}),
        (lambda case, said: authorize(case, said, True, True),
         {**SEEN, **SURE, "accept_second_effect": True, "basis": "operator", "due": at(1).wall_us}),
    ],
    ids=["confirm", "confirm with its result", "reject", "authorize-retry"],
)  # fmt: skip
def test_a_decision_keeps_who_decided_why_and_what_was_seen(decide: Callable[[Case, Decision], Events], kept: dict[str, Any]) -> None:
    life = unknown(terms(has_probe=True)).wait(1)
    said = decision(life, os_user="root", principal="uid:0")
    assert said.expected_version == SEEN["seen_version"]
    life.happen(decide(life.case, said))
    assert dict(life.events[-1].data) == {**WHO, **kept, "boot": life.case.boot}


@pytest.mark.parametrize("ask", [decide_cancel, decide_stop_request])
def test_calling_off_and_stopping_keep_who_asked_and_why(ask: Callable[..., Events]) -> None:
    life = Life(terms()) if ask is decide_cancel else dispatched(terms())
    life.happen(ask(life.case, "ana", "looked it up", "root", "uid:0"))
    assert dict(life.events[-1].data) == {**WHO, "boot": life.case.boot}
    life.now = at(0)
    nobody = Life(terms()) if ask is decide_cancel else dispatched(terms())
    assert ask(nobody.case, "ana", "looked it up", "root")[0].data["principal"] == ""


STARTED = ("cancel", "its handler has been started", "To stop the handler: settled op stop invoice:INV-1042:capture")
NEVER_SENT = ("cancel", "only what was never sent can be called off", "")
MAY_RUN = "attempt 1 may still run (it has no fence), so that its effect can still arrive"
ONLY_UNKNOWN = "only an unknown or quarantined operation is decided by a person"
OLD_VIEW = "you decided on version 2, it is now version 3"
LOOK_AGAIN = "Look again before you decide: settled op show invoice:INV-1042:capture"
ASSERT_IT = "Wait, or assert it: --assert-nothing-can-arrive"


@pytest.mark.promise("S134", "D47")
@pytest.mark.parametrize(
    ("ask", "status", "wanted", "why", "then"),
    [
        (lambda case: decide_cancel(case, "ana", "why", "root"), Status.DISPATCHED, *STARTED),
        (lambda case: decide_cancel(case, "ana", "why", "root"), Status.OUTCOME_UNKNOWN, *NEVER_SENT),
        (lambda case: decide_stop_request(case, "ana", "why", "root"), Status.OUTCOME_UNKNOWN, "stop", "no handler is running", ""),
        (lambda case: reject(case, seen(case)), Status.OUTCOME_UNKNOWN, "reject", MAY_RUN, ASSERT_IT),
        (lambda case: authorize(case, seen(case)), Status.OUTCOME_UNKNOWN, "authorize-retry", MAY_RUN, ASSERT_IT),
        (lambda case: confirm(case, seen(case)), Status.DISPATCHED, "confirm", ONLY_UNKNOWN, ""),
        (lambda case: reject(case, seen(case, -1)), Status.OUTCOME_UNKNOWN, "reject", OLD_VIEW, LOOK_AGAIN),
    ],
    ids=["cancel what runs", "cancel what is unknown", "stop what has ended", "reject what may run", "repeat what may run",
         "confirm what runs", "decide by an old view"],
)  # fmt: skip
def test_a_refusal_says_what_was_refused_why_and_what_to_do(
    ask: Callable[[Case], Events], status: Status, wanted: str, why: str, then: str
) -> None:
    life = dispatched(terms(isolation="thread", has_probe=True))
    if status is Status.OUTCOME_UNKNOWN:
        life.end(End.TIMED_OUT)
    with pytest.raises(TransitionRefusedError) as refused:
        ask(life.case)
    assert (refused.value.operation_id, refused.value.status, refused.value.wanted, refused.value.why) == (
        "invoice:INV-1042:capture", status, wanted, why,
    )  # fmt: skip
    assert str(refused.value).endswith(f"Nothing was changed. {then or 'See: settled op explain invoice:INV-1042:capture'}")


def seen(case: Case, ago: int = 0) -> Decision:
    return Decision(actor="ana", reason="why", evidence_reference="INC-7", expected_version=case.row.version + ago)


def test_confirm_keeps_output_and_id_never_waits_and_closes_nothing() -> None:
    life = dispatched(terms(network_drain=DAY, isolation="thread"))
    life.end(End.TIMED_OUT, None)
    assert life.happen(confirm(life.case, decision(life), DIGEST, "pay-1")) == [E.OPERATOR_CONFIRMED]
    row = life.row
    assert (row.status, row.output_part, row.provider_operation_id, row.settled_by) == (Status.CONFIRMED, row.sequence, "pay-1", "operator")


@pytest.mark.promise("D42")
def test_confirm_with_another_id_than_the_retained_one_says_so() -> None:
    life = dispatched(terms())
    life.end(End.TIMED_OUT, GONE, provider_operation_id="ch_1")
    life.happen(confirm(life.case, decision(life), None, "ch_2"))
    assert (life.row.provider_operation_id, life.row.duplicate_suspected) == ("ch_1", 1)


def test_reject_closes_every_open_attempt_by_assertion_and_a_late_return_then_contradicts_it() -> None:
    life = unknown(terms()).wait(1)
    life.happen(reject(life.case, decision(life)))
    row = life.row
    assert (row.status, row.open_attempts, row.unfenced, row.error, row.settled_by) == (Status.REJECTED, 0, 0, "looked it up", "operator")
    assert life.case.history.attempts[0].closed_by == "operator_asserted"
    assert life.late(1, End.RETURNED) == [E.LATE_RETURN, E.QUARANTINED]
    assert life.row.reason == Reason.CONFLICTING_EVIDENCE


@pytest.mark.promise("P53")
def test_authorize_retry_prepares_one_more_attempt_with_nothing_open() -> None:
    life = unknown(terms()).wait(1)
    life.happen(authorize(life.case, decision(life)))
    row = life.row
    assert (row.status, row.open_attempts, row.due_us, row.unknown_since_us) == (Status.PREPARED, 0, life.now.wall_us, None)
    assert outcome_of(row.status, row.open_attempts) is None
    assert all(attempt.closed_by == "operator_asserted" for attempt in life.case.history.attempts)


@pytest.mark.promise("S121")
@pytest.mark.parametrize(
    "observe",
    [
        lambda life: life.probe(committed(), postcondition=False),
        lambda life: life.late(1, End.RETURNED, postcondition=False),
        lambda life: (life.happen(reject(life.case, decision(life), True)), life.late(1, End.RETURNED)),
        lambda life: (life.happen(reject(life.case, decision(life), True)), life.probe(committed())),
    ],
    ids=["committed, postcondition not met", "late return, not accepted", "late return after a rejection", "committed after a rejection"],
)
def test_a_retry_is_not_authorized_against_a_confirmation(observe: Callable[[Life], Any]) -> None:
    life = unknown(terms()).wait(1)
    observe(life)
    assert life.row.status is Status.QUARANTINED
    with pytest.raises(TransitionRefusedError) as refused:
        authorize(life.case, decision(life), assert_it=True)
    assert str(refused.value) == (
        "operation 'invoice:INV-1042:capture' is quarantined: authorize-retry is refused, an observation says that the effect happened. "
        "Nothing was changed. Confirm it instead, or accept a second effect explicitly: --accept-second-effect"
    )
    assert life.happen(authorize(life.case, decision(life), assert_it=True, accept=True)) == [E.OPERATOR_RETRY_AUTHORIZED]
    assert life.events[-1].data["accept_second_effect"] is True


@pytest.fixture
def away_from_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "XXX-9")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.promise("S134")
@pytest.mark.parametrize("verb", WAITING)
def test_a_person_waits_until_nothing_can_arrive_any_more(verb: str, away_from_utc: None) -> None:
    life = unknown(terms(network_drain=120))
    for seconds in (119, 120):
        life.now = at(seconds)
        with pytest.raises(TransitionRefusedError) as refused:
            WAITING[verb](life.case, decision(life))
        assert refused.value.wanted == verb
        assert "attempt 1 (process_killed) may still arrive until 2027-01-15T08:02:00Z" in str(refused.value)  # the start + 120 s
        assert "--assert-nothing-can-arrive" in str(refused.value)
    life.now = at(121)
    assert len(WAITING[verb](life.case, decision(life))) == 1


@pytest.mark.promise("S134")
@pytest.mark.parametrize("verb", WAITING)
def test_what_may_still_run_is_never_waited_out_but_may_be_asserted(verb: str) -> None:
    for life in (unknown(terms(isolation="thread"), fence=None), Life(terms()).restore()):
        life.now = at(3650 * DAY)
        with pytest.raises(TransitionRefusedError, match="attempt 1 may still run"):
            WAITING[verb](life.case, decision(life))
        kinds = life.happen(WAITING[verb](life.case, decision(life), True))
        assert len(kinds) == 1
        assert life.events[-1].data["assert_nothing_can_arrive"] is True
        assert [attempt.fence for attempt in life.case.history.attempts] == [FenceBasis.OPERATOR_ASSERTED]


@pytest.mark.promise("S134")
@pytest.mark.parametrize("verb", WAITING)
def test_a_hand_off_is_waited_out_from_its_recorded_end(verb: str) -> None:
    life = dispatched(terms(dispatch="handoff", commit_horizon=HOUR)).wait(20)
    life.end(End.RAISED, FenceBasis.RAISED)
    life.now = at(20 + HOUR)
    with pytest.raises(TransitionRefusedError, match=r"attempt 1 \(its recorded end\)"):
        WAITING[verb](life.case, decision(life))
    life.now = at(21 + HOUR)
    assert len(WAITING[verb](life.case, decision(life))) == 1


@pytest.mark.promise("S134")
@pytest.mark.parametrize("verb", WAITING)
def test_each_open_attempt_is_waited_for(verb: str) -> None:
    life = unknown(guaranteed(network_drain=120)).wait(100)  # the first attempt is quiet by 120 s
    life.dispatch().wait(50)
    life.end(End.TIMED_OUT, GONE)
    assert life.row.status is Status.PREPARED
    life.current = terms(has_key=True, network_drain=120)
    life.wait(1)
    assert life.happen(decide_claim(life.case, 7, 1).events) == [E.RETRY_WITHDRAWN, E.QUARANTINED]
    with pytest.raises(TransitionRefusedError, match="attempt 2"):
        WAITING[verb](life.case, decision(life))
    life.now = at(271)
    assert len(WAITING[verb](life.case, decision(life))) == 1


@pytest.mark.promise("D47")
def test_what_was_never_sent_can_be_called_off() -> None:
    life = Life(terms())
    life.happen(decide_cancel(life.case, "ana", "changed my mind", "root"))
    assert (life.row.status, outcome_of(life.row.status, 0)) == (Status.CANCELLED, "FAILED")


@pytest.mark.promise("D47")
@pytest.mark.parametrize("status", [status for status in Status if status is not Status.PREPARED])
def test_nothing_else_can_be_called_off(status: Status) -> None:
    life = Life(terms(), row=prepared_row(status=status, attempt=1))
    with pytest.raises(TransitionRefusedError, match="settled op stop" if status is Status.DISPATCHED else "cancel is refused"):
        decide_cancel(life.case, "ana", "changed my mind", "root")


@pytest.mark.promise("D47")
def test_a_waiting_retry_with_an_open_attempt_cannot_be_called_off() -> None:
    life = unknown(guaranteed())
    assert (life.row.status, life.row.open_attempts) == (Status.PREPARED, 1)
    with pytest.raises(TransitionRefusedError, match=r"cancel is refused, an earlier attempt may have taken effect\. Nothing"):
        decide_cancel(life.case, "ana", "changed my mind", "root")


@pytest.mark.promise("S107")
def test_calling_off_what_evidence_says_has_happened_goes_to_a_person() -> None:
    life = Life(terms())
    life.probe(committed(), source="webhook")
    life.happen(decide_cancel(life.case, "ana", "changed my mind", "root"))
    assert (life.row.status, life.row.reason) == (Status.QUARANTINED, Reason.CONFLICTING_EVIDENCE)
    assert (life.events[-1].data["actor"], life.events[-1].data["reason_given"]) == ("ana", "changed my mind")
    life.happen(reject(life.case, decision(life)))
    assert life.row.status is Status.REJECTED


@pytest.mark.parametrize("status", list(Status))
def test_only_a_running_handler_is_asked_to_stop(status: Status) -> None:
    case = Life(terms(), row=prepared_row(status=status, attempt=1)).case
    if status is Status.DISPATCHED:
        (asked,) = decide_stop_request(case, "ana", "wrong customer", "root")
        assert (asked.type, asked.status) == (E.STOP_REQUESTED, Status.DISPATCHED)
    else:
        with pytest.raises(TransitionRefusedError, match="no handler is running"):
            decide_stop_request(case, "ana", "wrong customer", "root")

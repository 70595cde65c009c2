"""What an end means that arrives after its attempt was given up, and a fence that is found later."""

from typing import Any

import pytest

from settled.core.decide_end import End
from settled.core.decide_evidence import decide_fence
from settled.core.evidence import ProbeResult
from settled.core.moment import SECOND_US
from settled.core.words import EventType as E
from settled.core.words import FenceBasis, Reason, Status
from tests.lib.core.builders import DIGEST, Life, absent, at, committed, dispatched, guaranteed, terms, unknown

GONE = FenceBasis.PROCESS_KILLED
CONFLICT = (Status.QUARANTINED, Reason.CONFLICTING_EVIDENCE)


def probed(**changes: Any) -> Life:
    """Return an operation that timed out and waits for its probe."""
    return unknown(terms(**{"has_probe": True, **changes})).wait(1)


def where(life: Life) -> tuple[Status, str | None]:
    return life.row.status, life.row.reason


@pytest.mark.promise("S43")
@pytest.mark.parametrize("policy", [{"has_probe": True}, {}], ids=["from outcome_unknown", "from quarantined"])
@pytest.mark.parametrize("postcondition", [True, False])
def test_a_late_return_is_evidence_and_settles_if_the_postcondition_holds(policy: dict[str, Any], postcondition: bool) -> None:
    life = unknown(terms(isolation="thread", **policy), fence=None)
    before = life.row.status
    kinds = life.late(1, End.RETURNED, fence=FenceBasis.RETURNED, postcondition=postcondition, output_digest=DIGEST)
    assert kinds == [E.FENCED, E.LATE_RETURN]
    assert life.row.unfenced == 0
    assert life.row.status is (Status.CONFIRMED if postcondition else before)
    assert (life.row.output_part is not None) is postcondition


@pytest.mark.promise("S43")
def test_a_late_return_is_that_of_its_own_attempt_whichever_came_last() -> None:
    life = unknown(guaranteed(has_probe=True)).wait(1)
    life.probe(ProbeResult.unknown())
    life.wait(2).dispatch().end(End.TIMED_OUT, GONE)
    assert life.late(1, End.RETURNED) == [E.LATE_RETURN]
    assert life.row.status is Status.CONFIRMED
    assert [attempt.returned for attempt in life.case.history.attempts] == [True, False]


@pytest.mark.promise("S43", "D07")
def test_a_late_return_confirms_nothing_where_the_probe_decides() -> None:
    life = unknown(terms(has_probe=True, confirm_on="probe", isolation="thread"), fence=None)
    assert life.late(1, End.RETURNED) == [E.LATE_RETURN]
    assert life.row.status is Status.OUTCOME_UNKNOWN


@pytest.mark.promise("S105")
@pytest.mark.parametrize(
    ("end", "facts", "max_attempts", "status"),
    [
        (End.REJECTED, {}, 3, Status.REJECTED),
        (End.REJECTED, {"retryable": True}, 3, Status.PREPARED),
        (End.REJECTED, {"retryable": True}, 1, Status.REJECTED),
        (End.NOT_SENT, {}, 3, Status.PREPARED),
    ],
)
@pytest.mark.parametrize("fence", [None, FenceBasis.RAISED])
def test_a_late_rejection_of_the_last_open_attempt_is_decided_like_a_rejection(
    end: End, facts: dict[str, Any], max_attempts: int, status: Status, fence: FenceBasis | None
) -> None:
    life = unknown(terms(has_probe=True, isolation="thread", max_attempts=max_attempts), fence=None)
    life.late(1, end, fence=fence, **facts)
    assert (life.row.status, life.row.open_attempts, life.row.unfenced) == (status, 0, 0)


@pytest.mark.parametrize(
    ("end", "facts", "kept", "closed_by"),
    [
        (End.REJECTED, {"error": "declined"}, {"retryable": False, "error": "declined"}, "rejected"),
        (End.REJECTED, {"error": "", "retryable": True}, {"retryable": True, "basis": "rejected_retryable"}, "rejected"),
        (End.NOT_SENT, {}, {"retryable": False, "not_sent": True, "basis": "rejected_retryable"}, "not_sent"),
    ],
)
def test_a_late_rejection_keeps_what_was_told_and_when_the_next_attempt_is_due(
    end: End, facts: dict[str, Any], kept: dict[str, Any], closed_by: str
) -> None:
    life = probed(max_attempts=3)
    life.late(1, end, **facts)
    due = {"due": life.now.wall_us + SECOND_US} if "basis" in kept else {}
    assert dict(life.events[-1].data) == {"boot": life.case.boot, "closes": True, **kept, **due}
    assert life.case.history.attempts[0].closed_by == closed_by


@pytest.mark.promise("S105")
@pytest.mark.parametrize(
    ("max_attempts", "retryable", "status"),
    [(3, True, Status.PREPARED), (3, False, Status.REJECTED), (2, False, Status.QUARANTINED)],
)
def test_the_attempt_that_was_open_longest_is_closed_by_its_own_late_rejection(max_attempts: int, retryable: bool, status: Status) -> None:
    life = unknown(guaranteed(has_probe=status is not Status.QUARANTINED, max_attempts=max_attempts)).wait(1)
    if life.row.status is Status.OUTCOME_UNKNOWN:
        life.probe(ProbeResult.unknown())
    life.wait(2).dispatch().end(End.REJECTED, FenceBasis.RETURNED)
    if status is Status.QUARANTINED:
        assert life.row.status is status
        status = Status.REJECTED
    life.late(1, End.REJECTED, retryable=retryable)
    assert (life.row.status, life.row.open_attempts) == (status, 0)
    assert [attempt.closed_by for attempt in life.case.history.attempts] == ["rejected", "rejected"]


@pytest.mark.promise("D41")
def test_a_late_rejection_leaves_a_contradiction_to_a_person() -> None:
    life = probed()
    life.probe(committed())
    life.wait(1).probe(absent())
    version = life.row.version
    assert (where(life), life.row.open_attempts) == (CONFLICT, 1)
    assert life.late(1, End.REJECTED) == [E.LATE_REJECTED]
    assert (where(life), life.row.open_attempts, life.row.version) == (CONFLICT, 1, version)


@pytest.mark.promise("S105")
def test_a_late_rejection_moves_nothing_while_another_attempt_is_open() -> None:
    life = unknown(guaranteed(has_probe=True)).wait(1)
    life.probe(ProbeResult.unknown())
    life.wait(2).dispatch().end(End.TIMED_OUT, GONE)
    version = life.row.version
    assert life.late(1, End.REJECTED) == [E.LATE_REJECTED]
    assert (life.row.status, life.row.open_attempts, life.row.version) == (Status.OUTCOME_UNKNOWN, 1, version + 1)
    assert life.late(1, End.REJECTED) == [E.LATE_REJECTED]  # told twice
    assert (life.row.open_attempts, life.row.version) == (1, version + 1)


@pytest.mark.promise("S105", "P43")
def test_a_late_retryable_rejection_out_of_quarantine_dispatches_nothing() -> None:
    life = unknown(terms(max_attempts=3, isolation="thread"), fence=None)
    assert life.row.status is Status.QUARANTINED
    assert life.late(1, End.REJECTED, retryable=True) == [E.LATE_REJECTED]
    assert life.row.status is Status.REJECTED


@pytest.mark.promise("S137")
@pytest.mark.parametrize(("end", "facts"), [(End.REJECTED, {"retryable": True}), (End.NOT_SENT, {})])
def test_after_a_stop_by_a_person_a_late_rejection_settles(end: End, facts: dict[str, Any]) -> None:
    life = dispatched(terms(has_probe=True, max_attempts=3, isolation="thread"))
    life.end(End.STOPPED, None, by_person=True)
    life.late(1, end, **facts)
    assert life.row.status is Status.REJECTED


@pytest.mark.promise("S62")
def test_a_late_retryable_rejection_of_a_kept_unknown_settles() -> None:
    life = unknown(terms(unknown_outcome="keep_unknown", max_attempts=3, isolation="thread"), fence=None)
    life.late(1, End.REJECTED, retryable=True)
    assert life.row.status is Status.REJECTED


@pytest.mark.promise("S105", "D41")
def test_a_late_rejection_contradicts_a_confirmation_when_no_other_attempt_can_have_brought_it() -> None:
    confirmed = probed()
    confirmed.late(1, End.RETURNED)
    confirmed.late(1, End.REJECTED, error="declined")
    assert where(confirmed) == CONFLICT
    version = confirmed.row.version
    assert confirmed.late(1, End.REJECTED, error="declined") == [E.LATE_REJECTED]  # told twice
    assert (confirmed.events[-1].data["error"], confirmed.row.version) == ("declined", version)

    closed_later = unknown(guaranteed(has_probe=True)).wait(1)
    closed_later.probe(ProbeResult.unknown())
    closed_later.wait(2).dispatch().end(End.REJECTED, FenceBasis.RETURNED)
    closed_later.probe(committed())
    assert closed_later.row.status is Status.CONFIRMED
    assert closed_later.late(2, End.REJECTED, retryable=True) == [E.LATE_REJECTED]  # closed before: it denies nothing
    assert (closed_later.events[-1].data["retryable"], closed_later.row.status) == (True, Status.CONFIRMED)
    closed_later.late(1, End.REJECTED)  # now both attempts were refused, and yet it is there
    assert where(closed_later) == CONFLICT


@pytest.mark.promise("S105")
def test_a_late_rejection_leaves_a_confirmation_alone_while_another_attempt_can_have_brought_it() -> None:
    life = unknown(guaranteed(has_probe=True)).wait(1)
    life.probe(ProbeResult.unknown())
    life.wait(2).dispatch().end(End.TIMED_OUT, GONE)
    life.probe(committed())
    for _ in range(2):  # told twice
        assert life.late(1, End.REJECTED) == [E.LATE_REJECTED]
        assert (life.row.status, life.row.open_attempts) == (Status.CONFIRMED, 1)
    assert life.late(2, End.REJECTED) == [E.LATE_REJECTED, E.QUARANTINED]
    assert (where(life), life.row.open_attempts) == (CONFLICT, 0)


@pytest.mark.promise("S102")
def test_a_late_rejection_does_not_close_an_attempt_that_returned() -> None:
    life = dispatched(terms(has_probe=True, confirm_on="probe"))
    life.end(End.RETURNED, FenceBasis.RETURNED)
    version = life.row.version
    assert life.late(1, End.REJECTED, error="declined") == [E.LATE_REJECTED, E.QUARANTINED]
    assert (where(life), life.row.open_attempts, life.row.version) == (CONFLICT, 1, version + 2)
    assert life.events[-2].data["error"] == "declined"


@pytest.mark.promise("S102")
def test_of_two_attempts_the_one_that_returned_is_not_closed_by_its_late_rejection() -> None:
    life = unknown(guaranteed(has_probe=True, isolation="thread"), fence=None).wait(1)
    life.probe(ProbeResult.unknown())
    life.wait(2).dispatch()
    life.late(1, End.RETURNED, postcondition=False)
    version = life.row.version
    assert life.late(1, End.REJECTED) == [E.LATE_REJECTED]  # attempt 2 is under way: it moves nothing
    assert (life.row.status, life.row.open_attempts, life.row.version) == (Status.DISPATCHED, 2, version + 1)


def test_a_late_end_of_an_attempt_that_nobody_knows_is_dropped() -> None:
    assert probed().late(2, End.RETURNED) == []


def test_a_fence_is_recorded_once_and_only_where_one_can_be() -> None:
    life = unknown(terms(has_probe=True), End.LEASE_LOST, None)
    assert life.row.unfenced == 1
    version = life.row.version
    assert life.happen(decide_fence(life.case, 1, FenceBasis.PROCESS_GONE, at(9))) == [E.FENCED]
    attempt = life.case.history.attempts[0]
    assert (attempt.fence, attempt.fenced and attempt.fenced.boot_us, attempt.open) == ("process_gone", at(9).boot_us, True)
    assert (life.row.unfenced, life.row.version) == (0, version)
    assert decide_fence(life.case, 1, FenceBasis.HOST_REBOOTED, at(9)) == ()
    assert decide_fence(life.case, 2, FenceBasis.PROCESS_GONE, at(9)) == ()
    for other in (dispatched(terms(dispatch="handoff")), Life(terms()).restore()):
        assert decide_fence(other.case, 1, FenceBasis.PROCESS_GONE, at(9)) == ()


@pytest.mark.promise("P39")
def test_a_fence_of_one_attempt_says_nothing_about_another() -> None:
    life = unknown(guaranteed(has_probe=True, isolation="thread"), fence=None).wait(1)
    life.probe(ProbeResult.unknown())
    life.wait(2).dispatch().end(End.RAISED, FenceBasis.RAISED)
    assert [attempt.fence for attempt in life.case.history.attempts] == [None, "raised"]
    assert life.row.unfenced == 1
    life.happen(decide_fence(life.case, 1, FenceBasis.PROCESS_GONE, at(9)))
    assert [attempt.fence for attempt in life.case.history.attempts] == ["process_gone", "raised"]

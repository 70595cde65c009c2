"""Random lives of an operation keep the invariants of the design, whatever happens in whatever order."""

from collections import Counter
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from settled.core.case import Case
from settled.core.decide_operator import decide_authorize_retry
from settled.core.fold import Event, advance
from settled.core.guarantee import Guarantee, key_verdict
from settled.core.history import EMPTY, fold_history
from settled.core.row import Row
from settled.core.words import EventType as E
from settled.core.words import FenceBasis, Reason, Status
from tests.lib.core.builders import Life, decision, guaranteed, unknown
from tests.lib.core.drive import Drive, fence_may_be_found

CONFIRMING = (E.RETURNED, E.EVIDENCE_MERGED, E.PROBE_COMMITTED, E.LATE_RETURN, E.OPERATOR_CONFIRMED)
FAILING = (E.REJECTED, E.LATE_REJECTED, E.PROBE_ABSENT, E.OPERATOR_REJECTED, E.CANCELLED, E.EXPIRED)
UNATTENDED_BASES = ("key_guarantee", "terminal_absence", "rejected_retryable")
BATCHES, BATCH, STEPS = 5, 500, 24


def check_event(before: Case, event: Event, after: Row) -> None:
    """I1, I2 and I3 for one event, and that nothing is dispatched that was left to a person."""
    history = before.history
    if event.type is E.DISPATCHED:
        assert not history.open_attempts or key_verdict(before).guarantee is Guarantee.HOLDS
        assert before.row.reason is None
        assert event.attempt == before.row.attempt + 1
    moved = event.status is not before.row.status
    if moved and event.status is Status.CONFIRMED:
        assert event.type in CONFIRMING
    if moved and event.status in (Status.REJECTED, Status.CANCELLED):
        assert event.type in FAILING
        assert after.open_attempts == 0
    if moved and event.status is Status.PREPARED and event.data.get("basis") in UNATTENDED_BASES:
        assert not (history.stopped_by_person or history.retry_authorized or history.restored)
        assert before.row.reason != Reason.KEPT_UNKNOWN
    if before.row.status is Status.QUARANTINED and moved:
        to_people = before.row.reason == Reason.CONFLICTING_EVIDENCE
        assert event.type.startswith(("operator_", "restored")) or (not to_people and event.status in (Status.CONFIRMED, Status.REJECTED))
    news = bool(event.data.get("news"))
    assert after.version == before.row.version + (1 if moved or news else 0)


def check_row(life: Life) -> None:
    """The counts of the row are those of its history, and the schema would take it."""
    row, history = life.row, life.case.history
    assert row.open_attempts == len(history.open_attempts)
    assert row.unfenced == sum(fence_may_be_found(life.stored, attempt) for attempt in history.attempts)
    assert row.attempt == max((attempt.number for attempt in history.attempts), default=0)
    assert (row.lease_owner is not None) is (row.status is Status.DISPATCHED)
    assert row.kept == 0 or row.status is Status.DISPATCHED
    if row.status in (Status.CONFIRMED, Status.REJECTED):
        assert row.attempt > 0 or row.settled_by == "operator"
    if row.status is Status.CONFIRMED:
        assert row.error is None
        assert any(seen.confirms for seen in history.observations)
    check_somebody_acts_next(row)


def check_somebody_acts_next(row: Row) -> None:
    """I4: an unsettled row has an owner, a time, or a reason that people see."""
    match row.status:
        case Status.PREPARED:
            assert row.due_us is not None or row.reason is not None
        case Status.OUTCOME_UNKNOWN:
            assert row.escalate_us is not None or row.reason == Reason.KEPT_UNKNOWN
        case Status.QUARANTINED:
            assert row.reason is not None


def check_whole(life: Life) -> None:
    """I6: folding all events again, in one go, gives the row and the history that grew step by step."""
    row = life.submitted
    for event in life.events:
        row = advance(row, event)
    assert row == life.row
    assert fold_history(life.events, EMPTY, life.submitted.sequence) == life.case.history


def run(random: Random, seen: Counter[str]) -> None:
    drive = Drive(random)
    for _ in range(STEPS):
        before, known = drive.life.case, len(drive.life.events)
        seen[drive.step()] += 1
        for event in drive.life.events[known:]:
            moment = drive.life.case  # the step decided with this clock and these terms
            case = Case(
                row=before.row, history=before.history, now=moment.now, current=moment.current, stored=moment.stored,
                wall_highest_us=moment.wall_highest_us, held=moment.held, draw=moment.draw,
            )  # fmt: skip
            before = case.after([event])
            check_event(case, event, before.row)
            seen[event.type] += 1
            seen[f"to {event.status}"] += event.status is not case.row.status
        check_row(drive.life)
    check_whole(drive.life)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_histories_keep_the_invariants(batch: int) -> None:
    seen: Counter[str] = Counter()
    for number in range(BATCH):
        seed = batch * BATCH + number
        try:
            run(Random(seed), seen)
        except BaseException as error:
            error.add_note(f"seed {seed}: repeat it with run(Random({seed}), Counter())")
            raise
    assert_everything_happens(seen)


def assert_everything_happens(seen: Counter[str]) -> None:
    """A drive that never reaches a state shows nothing about it."""
    never_driven = {E.SUBMITTED, E.DERIVED, E.ACKNOWLEDGED, E.ASSIGNED, E.SNOOZED, E.PROPOSED, E.DECLINED}
    assert {kind for kind in E if not seen[kind]} <= never_driven
    assert {status for status in Status if not seen[f"to {status}"]} == set()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.randoms(use_true_random=False))
def test_histories_that_hypothesis_looks_for_keep_them_too(random: Random) -> None:
    run(random, Counter())


def test_the_checks_can_fail() -> None:
    life = unknown(guaranteed(max_attempts=1)).wait(1)
    before = life.case
    forged = before.event(E.OPERATOR_RETRY_AUTHORIZED, Status.PREPARED, data={"basis": "key_guarantee", "due": 0})
    life.happen(decide_authorize_retry(before, decision(life), nothing_can_arrive=True, accept_second_effect=False))
    life.dispatch()
    with pytest.raises(AssertionError):
        check_event(life.case, forged._replace(type=E.DISPATCHED, status=Status.DISPATCHED), life.row)
    life.row = life.row._replace(unfenced=0)
    with pytest.raises(AssertionError):
        check_row(life)
    assert FenceBasis.PROCESS_KILLED in {attempt.fence for attempt in life.case.history.attempts}

"""Workers that are killed for real, at exact points; the shop's own ledger says what was charged."""

import signal

import pytest

from settled import Outcome, Status
from tests.conftest import eventually
from tests.lib.execution.outside import kill
from tests.worker.services import ISOLATIONS, LEASE, Place, fresh

AFTER_THE_COMMIT = ["submitted", "dispatched", "lease_lost", "probe_committed"]


@ISOLATIONS
def test_a_worker_that_is_not_killed_charges_once(here: Place, isolation: str) -> None:
    reference = fresh()
    one = here.submit(f"charge_{isolation}", reference)
    worker = here.worker()
    (op,) = here.settled(one)
    assert op.status is Status.CONFIRMED and here.charges()[reference] == 1
    assert here.story(one) == ["submitted", "dispatched", "returned"]
    worker.stop()


@pytest.mark.promise("S97", part="killed between slot and commit: the row is prepared, attempts 0")
def test_killed_between_the_slot_and_the_commit_nothing_was_claimed(here: Place) -> None:
    reference = fresh()
    one = here.submit("charge_thread", reference)
    assert here.worker(point="after-slot").ended() == -signal.SIGKILL
    assert (here.app.get(one).status, here.app.get(one).attempts) == (Status.PREPARED, 0)
    here.worker()
    assert here.settled(one)[0].attempts == 1
    assert here.story(one) == ["submitted", "dispatched", "returned"] and here.charges()[reference] == 1


@pytest.mark.promise("S01", part="killed between claim and entry")
@ISOLATIONS
def test_killed_after_the_claim_it_was_never_entered_and_is_dispatched_again(here: Place, isolation: str) -> None:
    reference = fresh()
    one = here.submit(f"charge_{isolation}", reference)
    assert here.worker(point="after-claim").ended() == -signal.SIGKILL
    assert here.app.get(one).status is Status.DISPATCHED and not here.lines("calls")
    here.worker()
    (op,) = here.settled(one)
    assert (op.status, op.attempts) == (Status.CONFIRMED, 2)
    assert here.story(one) == ["submitted", "dispatched", "never_entered", "dispatched", "returned"]
    assert here.lines("calls") == {reference: 1} and here.charges()[reference] == 1
    assert not here.lines("probes")


@pytest.mark.promise("S01", part="killed while a runner had several in hand: those behind the one that ran never entered")
def test_killed_while_a_runner_has_several_in_hand_only_the_one_that_ran_is_unknown(here: Place) -> None:
    for number in range(10):  # how many are claimed ahead depends on how quick this machine has been
        worker = here.worker(settings={"SETTLED_WORKER__PROCESS_RUNNERS": "1"}).ready()
        quick = here.app.submit_many([("append_process", {"reference": fresh()}) for _ in range(200)])
        here.settled(*(op.operation_id for op in quick))
        last = [{"reference": f"r-{number}", "kills": worker.pid}, *({"reference": fresh()} for _ in range(20))]
        killer, *others = here.app.submit_many([("append_process", one) for one in last])
        assert worker.ended() == -signal.SIGKILL
        behind = [op.operation_id for op in others if here.app.get(op.operation_id).status is Status.DISPATCHED]
        if behind:
            break
    assert behind and here.app.get(killer.operation_id).status is Status.DISPATCHED
    here.worker()
    assert {op.status for op in here.settled(*(op.operation_id for op in others))} == {Status.CONFIRMED}
    assert [here.story(one) for one in behind] == [["submitted", "dispatched", "never_entered", "dispatched", "returned"]] * len(behind)
    assert here.app.get(killer.operation_id).outcome is Outcome.UNKNOWN
    assert set(here.lines("lines").values()) == {1}


@ISOLATIONS
def test_killed_in_the_handler_before_the_effect_only_a_proved_absence_repeats_it(here: Place, isolation: str) -> None:
    reference = fresh()
    one = here.submit(f"charge_{isolation}", reference, hold="before")
    worker = here.worker()
    here.marked(f"entered-{reference}")
    worker.kill()
    here.mark(f"go-{reference}")
    here.worker()
    (op,) = here.settled(one)
    assert (op.status, op.attempts) == (Status.CONFIRMED, 2)
    assert [kind for kind in here.story(one) if kind != "fenced"] == [
        *["submitted", "dispatched", "lease_lost", "probe_absent", "dispatched", "returned"]
    ]
    assert here.app.events(one)[2].data["fence"] == "process_gone"
    assert here.lines("calls") == {reference: 2} and here.charges()[reference] == 1


@pytest.mark.promise("S01", part="killed after it was entered")
@pytest.mark.promise("P28")
@ISOLATIONS
def test_killed_after_the_commit_it_is_confirmed_by_the_probe(here: Place, isolation: str) -> None:
    reference = fresh()
    one = here.submit(f"charge_{isolation}", reference, hold="after")
    worker = here.worker()
    here.marked(f"entered-{reference}")
    eventually(lambda: here.charges().get(reference))
    worker.kill()
    here.worker()
    (op,) = here.settled(one)
    assert (op.status, op.attempts) == (Status.CONFIRMED, 1)
    assert here.story(one) == AFTER_THE_COMMIT
    assert here.lines("calls") == {reference: 1} and here.charges()[reference] == 1


@pytest.mark.promise("P46")
def test_a_handler_that_ends_its_worker_after_the_commit_has_one_effect(here: Place) -> None:
    reference = fresh()
    one = here.submit("charge_thread", reference, hold="exit")
    assert here.worker().ended() == 73
    here.worker()
    (op,) = here.settled(one)
    events = here.app.events(one)
    assert [event.type for event in events] == AFTER_THE_COMMIT
    assert [event.status for event in events] == [Status.PREPARED, Status.DISPATCHED, Status.OUTCOME_UNKNOWN, Status.CONFIRMED]
    assert (op.outcome, op.attempts, here.charges()[reference]) == (Outcome.CONFIRMED, 1, 1)


@ISOLATIONS
def test_killed_after_the_return_and_before_the_record_it_is_confirmed_by_the_probe(here: Place, isolation: str) -> None:
    reference = fresh()
    one = here.submit(f"charge_{isolation}", reference)
    assert here.worker(point="before-record").ended() == -signal.SIGKILL
    assert here.app.get(one).status is Status.DISPATCHED and here.charges()[reference] == 1
    here.worker()
    here.settled(one)
    assert here.story(one) == AFTER_THE_COMMIT
    assert here.lines("calls") == {reference: 1} and here.charges()[reference] == 1


@ISOLATIONS
def test_killed_between_the_record_and_the_next_start_neither_is_lost_or_repeated(here: Place, isolation: str) -> None:
    first, second = fresh(), fresh()
    ids = [here.submit(f"charge_{isolation}", reference) for reference in (first, second)]
    one_slot = {"SETTLED_WORKER__SLOTS": "1"}
    assert here.worker(point="after-record", settings=one_slot).ended() == -signal.SIGKILL
    assert [here.app.get(one).status for one in ids] == [Status.CONFIRMED, Status.DISPATCHED]  # one transaction did both
    here.worker()
    here.settled(*ids)
    assert [here.app.get(one).attempts for one in ids] == [1, 2]
    assert here.story(ids[1]) == ["submitted", "dispatched", "never_entered", "dispatched", "returned"]
    assert here.lines("calls") == {first: 1, second: 1}
    assert [here.charges()[reference] for reference in (first, second)] == [1, 1]


@pytest.mark.promise("S92", part="a runner that outlives its worker: no fence and no repetition while it lives")
@pytest.mark.promise("S31", part="a left-over child holds the lock: taken over after the lease, not before")
def test_a_runner_that_outlives_its_worker_is_waited_for(here: Place) -> None:
    reference = fresh()
    one = here.submit("charge_process", reference, hold="before")
    worker = here.worker()
    here.marked(f"entered-{reference}")
    kill(worker.pid)
    here.worker(settings=LEASE)
    here.becomes(one, Status.OUTCOME_UNKNOWN)
    assert here.app.events(one)[2].type == "lease_lost" and "fence" not in here.app.events(one)[2].data
    eventually(lambda: here.lines("probes")[reference] >= 1 and "probe_unknown" in here.story(one))
    assert next(event for event in here.app.events(one) if event.type == "probe_unknown").data["why"] == "no_fence"
    assert here.app.get(one).attempts == 1
    here.mark(f"go-{reference}")
    (op,) = here.settled(one)
    assert (op.status, op.attempts) == (Status.CONFIRMED, 1)
    assert here.lines("calls") == {reference: 1} and here.charges()[reference] == 1

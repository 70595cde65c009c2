"""The pump, driven by hand: what one step claims and what the next one records."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from settled import App, Outcome, ProbeResult, Status
from settled.core.errors import LedgerUnavailableError
from settled.execution.job import End, Report
from settled.execution.recorder import Phase
from settled.execution.recorder_file import FREE
from settled.store import audit
from settled.testing import VirtualClock
from settled_worker.due import DueClock
from tests.conftest import eventually, is_free
from tests.worker.conftest import MakeHand
from tests.worker.faults import failing_commits
from tests.worker.harness import Hand, K, answered, declare, dies, ended, events_of, make_app, returned, row_of, story, submit, timed_out


@pytest.mark.promise("S126", part="from submit to confirmed on one thread, without a real clock")
def test_a_step_claims_and_the_next_one_records_the_return(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app)
    (one,) = submit(app, 1)
    worker = hand()
    job = worker.start()
    assert app.get(one).status is Status.DISPATCHED and app.get(one).in_progress
    clock.advance(2)
    assert worker.step(returned(job, clock.now(), {"id": "ch_1"})).jobs == []
    op = app.get(one)
    assert (op.status, op.outcome, op.result(), op.attempts) == (Status.CONFIRMED, Outcome.CONFIRMED, {"id": "ch_1"}, 1)
    assert story(app, one) == ["submitted", "dispatched", "returned"]


@pytest.mark.promise("S43")
@pytest.mark.parametrize("retried", [False, True])
def test_a_return_is_late_evidence_once_its_attempt_was_given_up_whether_it_says_so_or_not(
    app: App, clock: VirtualClock, hand: MakeHand, retried: bool
) -> None:
    declare(app, **(K if retried else {"outcome_probe": lambda arguments: ProbeResult.unknown()}))
    (one,) = submit(app, 1)
    worker = hand()
    job = worker.start()
    worker.step(timed_out(job, clock.now()))
    if retried:
        clock.advance(60)
        assert worker.start().attempt == 2
    worker.step(returned(job, clock.now(), {"id": "ch_1"}))
    assert story(app, one)[-1] == "late_return"
    assert app.get(one).status is (Status.DISPATCHED if retried else Status.CONFIRMED)
    assert audit.verify(app.ledger) == [] and not worker.pump.owes


def drive(folder: Path) -> list[list[Any]]:
    """Run one fixed story with a bit of everything in a fresh ledger; return all events."""
    clock = VirtualClock()
    app = make_app(folder, clock)
    declare(app, **K)
    declare(app, "mail", outcome_probe=lambda arguments: ProbeResult.unknown())
    ids = submit(app, 1, 2, 3) + submit(app, 1, 2, contract="mail", priority=5)
    worker = Hand(app, slots=3)
    first = worker.step().jobs
    clock.advance(1.25)
    again = worker.step(returned(first[0], clock.now(), {"a": 1}), timed_out(first[1], clock.now()), timed_out(first[2], clock.now())).jobs
    clock.advance(3)
    worker.sweep("reconcile")
    clock.advance(0.5)
    last = worker.step(
        answered(worker.probes[0], clock.now(), ProbeResult.committed()), *(returned(job, clock.now()) for job in again)
    ).jobs
    clock.advance(0.5)
    worker.step(*(returned(job, clock.now()) for job in last))
    told = [[one, *events_of(app, one)] for one in ids]
    worker.close()
    app.close()
    return told


@pytest.mark.promise("S126")
def test_two_equal_drives_write_equal_event_logs(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    threads = set(threading.enumerate())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "sleep", lambda seconds: pytest.fail(f"somebody slept for {seconds} s"))
        first, second = drive(tmp_path / "a"), drive(tmp_path / "b")
    assert first == second and threads.issuperset(threading.enumerate())
    assert {event.status for _, *events in first for event in events} >= {Status.DISPATCHED, Status.OUTCOME_UNKNOWN, Status.CONFIRMED}


def write_transactions(app: App) -> int:
    return audit.head(app.ledger).seal_id


@pytest.mark.promise("S33")
def test_two_hundred_effects_in_fifty_slots_need_at_most_a_hundred_commits(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app)
    ids = [op.operation_id for op in app.submit_many([("pay", {"n": number}) for number in range(200)])]
    worker, before = hand(slots=50), write_transactions(app)
    arrived: list[Report] = []
    while (jobs := worker.step(*arrived).jobs) or arrived:
        assert len(jobs) <= 50
        for job in jobs:  # what a handler finds when it starts
            row = row_of(app, job.operation_id)
            assert (row.status, row.attempt, row.lease_owner) == (Status.DISPATCHED, 1, worker.presence.id)
        arrived = [returned(job, clock.now()) for job in jobs]
    assert worker.calls == 200
    assert {app.get(one).status for one in ids} == {Status.CONFIRMED}
    assert write_transactions(app) - before <= 100


@pytest.mark.promise("S97")
def test_no_more_is_claimed_than_there_are_recorder_slots(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app)
    ids = submit(app, *range(10))
    worker = hand(slots=10, recorder_slots=4)
    assert len(worker.step().jobs) == 4
    assert [app.get(one).status for one in ids] == [Status.DISPATCHED] * 4 + [Status.PREPARED] * 6
    assert worker.step().jobs == []
    phases = [worker.presence.recorder.read(slot) for slot in range(4)]
    assert sorted((seen.row, seen.attempt, seen.phase) for seen in phases if seen) == [(row, 1, Phase.CLAIMED) for row in range(1, 5)]
    with failing_commits(app.ledger, after=False), pytest.raises(LedgerUnavailableError):
        hand(slots=2).step()
    assert [app.get(one).attempts for one in ids[4:]] == [0] * 6
    dying = hand(slots=2)
    dying.presence.take_slot(5, 1)  # written, and then killed before the commit
    dies(dying)
    fresh = hand(slots=6)
    fresh.sweep("leases")
    assert [(app.get(one).status, app.get(one).attempts) for one in ids[4:]] == [(Status.PREPARED, 0)] * 6
    assert [job.attempt for job in fresh.step().jobs] == [1] * 6 and dying.presence.free_slots == 3


@pytest.mark.promise("S97", part="a claim whose commit fails leaves the row untouched and the slot free")
def test_a_claim_that_does_not_commit_leaves_the_row_and_frees_the_slot(app: App, hand: MakeHand) -> None:
    declare(app)
    (one,) = submit(app, 1)
    worker = hand(slots=1, recorder_slots=1)
    with failing_commits(app.ledger, after=False), pytest.raises(LedgerUnavailableError):
        worker.step()
    assert (app.get(one).status, app.get(one).attempts) == (Status.PREPARED, 0)
    assert worker.presence.free_slots == 1 and worker.presence.recorder.read(0) == FREE
    assert worker.start().attempt == 1


def test_a_wish_to_stop_is_found_by_looking_even_where_no_bell_is_heard(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app)
    (one,) = submit(app, 1)
    worker = hand()
    job = worker.start()
    assert not worker.pump.stop_wanted()
    app.stop(one, actor="ana", reason="wrong card", wait=0)
    assert worker.pump.stop_wanted()
    assert worker.step().stops == [job.key]
    assert not worker.pump.stop_wanted()
    worker.step(ended(job, End.STOPPED, clock.now(), fence="process_killed"))
    assert story(app, one)[:4] == ["submitted", "dispatched", "stop_requested", "stopped"]


def test_a_contract_that_this_worker_refuses_for_now_waits_and_is_no_reason_to_wake(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app)
    declare(app, "other")
    (one,), (two,) = submit(app, 1), submit(app, 2, contract="other")
    refused = {"pay"}
    worker = hand(refuses=refused.__contains__)
    assert worker.start().operation_id == two
    assert worker.pump.next_due_us() is None
    refused.clear()
    assert worker.start().operation_id == one


def test_a_wall_clock_that_was_set_back_delays_nothing_that_is_due(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app)
    due = DueClock(clock)
    (one,) = submit(app, 1, delay=10)
    clock.step_wall(-86_400)
    clock.advance(10)
    assert hand().step(due_us=due.wall_us(clock.now())).jobs[0].operation_id == one


@pytest.mark.promise("S33", part="a submission that waits for the turn is stored by the worker's commit, and claimed by it")
def test_a_step_stores_and_claims_what_another_process_waits_to_store(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app)
    first, second = (make_app(app.ledger.path.parent, clock, name=app.ledger.path.name) for _ in range(2))
    declare(first)
    submit(first, 1)  # from now on its terms are known to be stored
    worker = hand()
    worker.step(returned(worker.start(), clock.now()))
    before = write_transactions(app)
    gate = app.ledger.run_directory / "turn.next"
    with ThreadPoolExecutor() as pool:
        with second.ledger.write():
            step = pool.submit(worker.step)
            eventually(lambda: not is_free(gate))
            told = pool.submit(first.submit, "pay", {"n": 2})
            eventually(lambda: len(second.ledger.board.waiting()) == 1)
        (job,) = step.result(20).jobs
        op = told.result(20)
    assert (op.created, op.status, job.operation_id) == (True, Status.PREPARED, op.operation_id)
    assert write_transactions(app) == before + 1
    worker.step(returned(job, clock.now()))
    assert app.get(op.operation_id).status is Status.CONFIRMED and audit.verify(app.ledger) == []
    first.close()
    second.close()

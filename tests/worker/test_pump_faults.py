"""The pump when the store fails it: lost commits, refused outcomes, a full or locked file, rows that nobody can read."""

from contextlib import suppress
from pathlib import Path

import pytest

from settled import App, Outcome, Status
from settled.core.errors import LedgerUnavailableError
from settled.execution.job import End
from settled.steps.submit import check_order, posted
from settled.store.board import Board
from settled.testing import VirtualClock
from tests.lib.store.ledgers import another_program
from tests.worker.conftest import MakeHand
from tests.worker.faults import damage, failing_commits, full
from tests.worker.harness import K, declare, ended, make_app, returned, row_of, story, submit, timed_out


@pytest.mark.promise("D45")
def test_a_claim_whose_acknowledgement_was_lost_is_read_back_and_started_once(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app)
    ids = submit(app, *range(10))
    worker = hand(slots=4)
    with failing_commits(app.ledger, after=True), pytest.raises(LedgerUnavailableError):
        worker.step()
    assert worker.calls == 0 and app.get(ids[0]).status is Status.DISPATCHED
    jobs = worker.step().jobs  # more is ready than there are slots: the four that are ours come first
    assert [job.operation_id for job in jobs] == ids[:4]
    while jobs:
        jobs = worker.step(*(returned(job, clock.now()) for job in jobs)).jobs
    assert worker.calls == 10
    assert {(app.get(one).status, app.get(one).attempts) for one in ids} == {(Status.CONFIRMED, 1)}


@pytest.mark.promise("D45", part="the commit was not done: nothing is started, the operation stays as it was")
def test_a_claim_that_was_lost_with_its_commit_starts_nothing(app: App, hand: MakeHand) -> None:
    declare(app)
    (one,) = submit(app, 1)
    worker = hand()
    for _ in range(3):
        with failing_commits(app.ledger, after=False), pytest.raises(LedgerUnavailableError):
            worker.step()
    assert worker.calls == 0 and app.get(one).attempts == 0


def test_a_key_retry_whose_acknowledgement_was_lost_is_judged_anew_before_it_enters(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app, isolation="process", provider_idempotency_window=3600, key_margin=300, **K)
    (one,) = submit(app, 1)
    worker = hand()
    worker.step(timed_out(worker.start(), clock.now()))
    clock.advance(2)
    with failing_commits(app.ledger, after=True), pytest.raises(LedgerUnavailableError):
        worker.step()
    (job,) = worker.step().jobs
    assert job.attempt == 2 and job.enter_by_boot_us is not None and job.enter_by_boot_us < clock.now().boot_us
    third = worker.start(ended(job, End.NEVER_ENTERED, clock.now(), fence="never_entered"))
    assert third.attempt == 3 and third.enter_by_boot_us is not None and third.enter_by_boot_us > clock.now().boot_us
    assert app.get(one).attempts == 3


@pytest.mark.promise("D46", part="what others want stored has no room: what has ended is recorded, and what is due is claimed")
def test_texts_of_others_that_do_not_fit_keep_a_worker_from_nothing(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app)
    one, two = submit(app, 1, 2)
    worker = hand(slots=1)
    job = worker.start()
    path = next(app.ledger.run_directory.glob("board.*"))
    others = [Board(path) for _ in range(8)]
    orders = [check_order(app.contract("pay"), "pay", {"n": n, "x": "y" * 7000}, limits=app.shell.limits) for n in range(10, 18)]
    for other, order in zip(others, orders, strict=True):
        post = posted(app.shell, [order], clock.now())
        assert post is not None and other.pin(post.text()) is not None
    with full(app):
        reports = [returned(job, clock.now())]
        started: list[str] = []
        for _ in range(4):
            with suppress(LedgerUnavailableError):
                started += [one.operation_id for one in worker.step(*reports).jobs]
            reports = []
        assert app.get(one).status is Status.CONFIRMED
        assert started == [two]
    for other in others:
        other.close()


@pytest.mark.promise("S99")
def test_one_outcome_that_the_store_refuses_does_not_stop_the_other_nineteen(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app)
    ids = submit(app, *range(20))
    worker = hand(slots=20)
    jobs = worker.step().jobs
    poisoned = "NEW.part > 0 AND NEW.body LIKE '%poison%'"
    refuse = f"CREATE TRIGGER refuse BEFORE INSERT ON payload WHEN {poisoned} BEGIN SELECT RAISE(ABORT, 'no'); END"
    another_program(app.ledger.path, refuse)
    reports = [returned(job, clock.now(), "poison" if job.operation_id == ids[7] else "fine") for job in jobs]
    worker.step(*reports)
    assert [app.get(one).status for one in ids if one != ids[7]] == [Status.CONFIRMED] * 19
    bad = app.get(ids[7])
    assert bad.outcome is Outcome.UNKNOWN and bad.status is Status.QUARANTINED  # no probe, and a result never allows a key retry
    assert story(app, ids[7]) == ["submitted", "dispatched", "result_not_storable", "quarantined"]
    assert [one.row.operation_id for one in worker.heard.all if one.error is not None] == [ids[7]]
    another_program(app.ledger.path, "DROP TRIGGER refuse")
    (after,) = submit(app, 99)
    worker.step(returned(worker.start(), clock.now()))
    assert app.get(after).status is Status.CONFIRMED


@pytest.mark.promise("S100", part="a full store: outcomes are kept and nothing is claimed until it has room again")
def test_a_full_store_keeps_the_outcomes_and_claims_nothing(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app)
    ids = submit(app, *range(6))
    worker = hand(slots=3)
    jobs = worker.step().jobs
    with full(app):
        reports = [returned(job, clock.now(), {"long": "x" * 200_000}) for job in jobs]
        with pytest.raises(LedgerUnavailableError, match="full"):
            worker.step(*reports)
        for _ in range(3):
            with pytest.raises(LedgerUnavailableError):
                worker.step()
        assert worker.calls == 3 and worker.pump.owes == 3
        assert [app.get(one).status for one in ids] == [Status.DISPATCHED] * 3 + [Status.PREPARED] * 3
    jobs = worker.step().jobs
    assert [app.get(one).status for one in ids] == [Status.CONFIRMED] * 3 + [Status.DISPATCHED] * 3
    worker.step(*(returned(job, clock.now()) for job in jobs))
    assert worker.calls == 6 and {app.get(one).attempts for one in ids} == {1}


@pytest.mark.promise("S100", part="a locked store: outcomes are kept and nothing is claimed until it is free")
def test_a_locked_store_keeps_the_outcomes_and_claims_nothing(tmp_path: Path, clock: VirtualClock, hand: MakeHand) -> None:
    app = make_app(tmp_path, clock, name="locked.db", busy_timeout_seconds=0.05)
    declare(app)
    one, two = submit(app, 1, 2)
    worker = hand(app=app, slots=1)
    job = worker.start()
    other = app.engine().raw_connection()
    other.cursor().execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerUnavailableError, match="busy"):
        worker.step(returned(job, clock.now(), "done"))
    with pytest.raises(LedgerUnavailableError):
        worker.step()
    assert worker.pump.owes == 1 and worker.calls == 1
    other.driver_connection.rollback()  # type: ignore[union-attr]
    other.close()
    following = worker.start()
    assert app.get(one).result() == "done" and following.operation_id == two
    worker.step(returned(following, clock.now()))
    app.close()


@pytest.mark.damages_the_ledger
def test_a_row_that_cannot_be_read_does_not_stop_the_pump(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app, **K)
    bad, good = submit(app, 1, 2)
    worker = hand()
    first, second = worker.step().jobs
    worker.step(timed_out(first, clock.now()), timed_out(second, clock.now()))
    damage(app, bad)
    clock.advance(2)
    third = worker.start()
    assert third.operation_id == good
    worker.step(returned(third, clock.now()))
    assert app.get(good).status is Status.CONFIRMED
    assert row_of(app, bad).status is Status.PREPARED


@pytest.mark.damages_the_ledger
def test_an_end_of_a_row_that_cannot_be_read_is_told_and_the_others_are_recorded(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app)
    bad, good = submit(app, 1, 2)
    worker = hand()
    jobs = worker.step().jobs
    damage(app, bad)
    worker.step(*(timed_out(job, clock.now()) for job in jobs))
    assert app.get(good).status is Status.QUARANTINED
    assert [one.row.operation_id for one in worker.heard.all if one.error is not None] == [bad]
    assert worker.step().jobs == []


def test_more_reports_than_a_batch_holds_are_all_recorded(tmp_path: Path, clock: VirtualClock, hand: MakeHand) -> None:
    app = make_app(tmp_path, clock, name="small.db", batch_max=2)
    declare(app)
    ids = submit(app, *range(5))
    worker = hand(app=app)
    jobs = [job for _ in range(3) for job in worker.step().jobs]
    worker.step(*(returned(job, clock.now()) for job in jobs))
    assert worker.pump.owes == 3
    worker.step()
    worker.step()
    assert {app.get(one).status for one in ids} == {Status.CONFIRMED} and worker.pump.owes == 0
    app.close()

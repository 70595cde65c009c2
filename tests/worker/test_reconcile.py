"""Who holds a probe, rows that keep no others waiting, and evidence before anything was sent."""

from pathlib import Path

import pytest

from settled import App, ProbeResult, Status
from settled.execution.job import End, Report
from settled.store import sweep_runs
from settled.testing import VirtualClock
from settled_worker.schedule import RunLog
from settled_worker.sweeps import Swept
from tests.worker.conftest import Lost, MakeHand
from tests.worker.faults import damage
from tests.worker.harness import (
    Hand,
    answered,
    declare,
    dies,
    entered,
    events_of,
    in_seconds,
    make_app,
    row_of,
    silent,
    story,
    submit,
)


def ask_when_due(app: App, one: str, worker: Hand, clock: VirtualClock, answer: ProbeResult) -> float:
    """Wait until the next probe is due, answer it, and return how long that was, in seconds."""
    began = clock.now().wall_us
    due = row_of(app, one).due_us
    assert due is not None
    clock.advance(max(0.0, (due - began) / 1e6))
    worker.step(answered(worker.probe(), clock.now(), answer))
    return (clock.now().wall_us - began) / 1e6


@pytest.mark.promise("S111")
def test_a_probes_hold_dies_with_its_incarnation(app: App, clock: VirtualClock, lost: Lost, hand: MakeHand) -> None:
    one, prober = lost()
    before = app.get(one).version
    prober.probe()
    other = hand()
    op = app.get(one)
    assert (op.status, op.version, op.reconciling) == (Status.OUTCOME_UNKNOWN, before, True)
    clock.advance(60)
    other.sweep("leases")
    other.sweep("reconcile")
    assert other.probes == []  # never two at once
    dies(prober)
    other.sweep("reconcile")
    assert other.probes == [] and app.get(one).reconciling
    other.sweep("leases")
    assert not app.get(one).reconciling
    other.step(answered(other.probe(), clock.now(), ProbeResult.committed()))
    assert app.get(one).status is Status.CONFIRMED and len(other.probes) == 1


@pytest.mark.damages_the_ledger
@pytest.mark.promise("S53", part="one bad row never ends a batch, and the run is recorded with its errors")
def test_one_bad_row_never_ends_a_batch_of_probes(app: App, clock: VirtualClock, lost: Lost) -> None:
    _, worker = lost(numbers=10)
    damage(app, "pay:4")
    runs = RunLog(app.ledger, clock)
    assert runs.run("reconcile", worker.sweeper.reconcile) == Swept(examined=10, moved=0, errors=1)
    assert len(worker.probes) == 9
    failing = worker.probes[2]
    there = [answered(job, clock.now(), ProbeResult.committed()) for job in worker.probes if job is not failing]
    worker.step(Report(job=failing, end=End.RAISED, ended=clock.now(), error_class="KeyError"), *there)
    assert len(app.list(status="confirmed")) == 8
    raised = app.get(failing.operation_id)
    assert raised.status is Status.OUTCOME_UNKNOWN and events_of(app, failing.operation_id)[-1].data["error"] == "KeyError"
    assert runs.run("reconcile", worker.sweeper.reconcile).errors == 0  # the bad row is put aside, not met each second
    with app.ledger.read() as transaction:
        assert [run.errors for run in sweep_runs.history(transaction, "reconcile", 10)] == [1]


def test_an_operation_whose_arguments_are_gone_is_not_looked_at_again_and_again(app: App, clock: VirtualClock, lost: Lost) -> None:
    one, worker = lost()
    with app.ledger.write() as transaction:
        transaction.cursor.execute("DELETE FROM payload WHERE operation = 1")
    worker.sweep("reconcile")
    due = row_of(app, one).due_us
    assert worker.probes == [] and due is not None and due > clock.now().wall_us
    assert not app.get(one).reconciling


@pytest.mark.promise("S117")
def test_two_apps_on_one_ledger_leave_each_others_rows_alone(tmp_path: Path, clock: VirtualClock, hand: MakeHand) -> None:
    pays, mails = make_app(tmp_path, clock, name="shared.db"), make_app(tmp_path, clock, name="shared.db")
    declare(pays)
    declare(mails, "mail")
    declare(mails, "probed", outcome_probe=silent, isolation="process")
    unprobed, probed = submit(mails, 1, contract="mail") + submit(mails, 1, contract="probed")
    payer, mailer = hand(app=pays), hand(app=mails)
    for number, job in enumerate(mailer.step().jobs, 1):
        entered(mailer, number)
        assert job.attempt == 1
    waiting = submit(mails, 2, contract="mail")[0]
    dies(mailer)
    payer.sweep("leases")  # whose owner is dead is seen by all; what it means for a contract only where it is registered
    seen = {one: row_of(pays, one) for one in (unprobed, probed, waiting)}
    assert [row.status for row in seen.values()] == [Status.OUTCOME_UNKNOWN, Status.OUTCOME_UNKNOWN, Status.PREPARED]
    for _ in range(3):
        clock.advance(60)
        for name in ("leases", "reconcile", "escalate"):
            payer.sweep(name)
        assert payer.step().jobs == [] and payer.probes == []
    assert {one: row_of(pays, one) for one in seen} == seen
    again = hand(app=mails)
    assert again.start().operation_id == waiting
    assert again.probe().operation_id == probed
    assert mails.get(unprobed).reason == "no_probe"
    pays.close()
    mails.close()


def referenced(app: App) -> None:
    declare(app, provider_reference=lambda a: f"ref:{a['n']}")


COMMITTED = ProbeResult.committed(reference="ref:1")


@pytest.mark.promise("S107", part="held, and never confirmed by itself over sweeps and another worker")
@pytest.mark.promise("S135", part="committed evidence for a reference that nobody knows yet")
@pytest.mark.parametrize("early", [False, True], ids=["after the submission", "before it"])
def test_a_confirmation_before_any_dispatch_stops_the_dispatch(early: bool, app: App, clock: VirtualClock, hand: MakeHand) -> None:
    referenced(app)
    if early:
        assert app.add_evidence(provider_reference="ref:1", source="webhook", result=COMMITTED) is None
        assert app.list() == []
    (one,) = submit(app, 1)
    if not early:
        app.add_evidence(operation_id=one, source="webhook", result=COMMITTED)
    for worker in (hand(), hand()):
        for name in ("leases", "reconcile", "escalate"):
            worker.sweep(name)
        assert worker.step().jobs == []
        clock.advance(3600)
    op = app.get(one)
    assert (op.status, op.reason, op.attempts) == (Status.PREPARED, "evidence_before_dispatch", 0)


@pytest.mark.promise("S107", part="a deadline makes it no failure, but a conflict for a person")
def test_a_deadline_of_a_confirmed_but_never_sent_operation_is_a_conflict(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    referenced(app)
    one = submit(app, 1, deadline=in_seconds(clock, 5))[0]
    app.add_evidence(operation_id=one, source="webhook", result=COMMITTED)
    clock.advance(6)
    hand().sweep("escalate")
    assert (app.get(one).status, app.get(one).reason) == (Status.QUARANTINED, "conflicting_evidence")


@pytest.mark.promise("S135", part="an answer that is not committed is attached, and the operation is dispatched")
def test_early_evidence_that_confirms_nothing_is_attached_and_stops_nothing(app: App, hand: MakeHand) -> None:
    referenced(app)
    app.add_evidence(provider_reference="ref:1", source="webhook", result=ProbeResult.pending(reference="ref:1"))
    (one,) = submit(app, 1)
    assert story(app, one) == ["submitted", "probe_pending"]
    assert hand().start().operation_id == one


@pytest.mark.promise("S135", part="attached by the derivation of a request by name")
def test_early_evidence_is_attached_when_a_reference_is_derived(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    app.add_evidence(provider_reference="ref:1", source="webhook", result=COMMITTED)
    agent = App(app.ledger.path, clock=clock)
    agent.submit("pay", {"n": 1}, operation_id="x")
    referenced(app)
    worker = hand()
    worker.sweep("reconcile")
    assert worker.step().jobs == [] and app.get("x").reason == "evidence_before_dispatch"
    agent.close()


@pytest.mark.promise("S135", part="a submission that is rolled back leaves it in the inbox")
def test_early_evidence_waits_on_when_the_submission_is_rolled_back(app: App, hand: MakeHand) -> None:
    referenced(app)
    app.add_evidence(provider_reference="ref:1", source="webhook", result=COMMITTED)
    with app.engine().connect() as connection:
        assert app.submit("pay", {"n": 1}, connection=connection).reason == "evidence_before_dispatch"
        connection.rollback()
    assert app.list() == []
    (one,) = submit(app, 1)
    assert app.get(one).reason == "evidence_before_dispatch" and hand().step().jobs == []

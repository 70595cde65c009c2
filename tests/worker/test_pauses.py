"""What is paused is not dispatched, by no worker and by no caller; what runs goes on, and so do probes."""

from pathlib import Path
from typing import Any

import pytest

from settled import App, ContractNotFoundError, Outcome, ProbeResult, Status
from settled.core.errors import PauseRefusedError, QueueNotFoundError
from settled.core.limits import DEFAULTS
from settled.testing import VirtualClock
from tests.conftest import eventually
from tests.worker.conftest import MakeHand
from tests.worker.harness import K, answered, declare, events_of, returned, silent, story, submit, timed_out
from tests.worker.services import Place, fresh

SAID = {"actor": "ana", "reason": "INC-7"}


@pytest.mark.promise("S38", part="a contract: its rows wait, others go on, resume lets them go; the history stays")
def test_a_paused_contract_is_not_dispatched_until_it_is_resumed(app: App, hand: MakeHand) -> None:
    declare(app)
    declare(app, "mail")
    worker = hand()
    app.pause("pay", **SAID)
    paid, mailed = *submit(app, 1), *submit(app, 1, contract="mail")
    assert [job.contract for job in worker.step().jobs] == ["mail"]
    assert worker.pump.next_due_us() is None
    waits = app.get(paid)
    assert (waits.status, waits.attempts, waits.waits_for) == (Status.PREPARED, 0, "paused")
    assert {one.operation_id: one.waits_for for one in app.list()} == {paid: "paused", mailed: "handler"}
    (lifted,) = app.resume("pay", actor="bo", reason="mended")
    assert (lifted.actor, lifted.reason, lifted.resumed_by, lifted.resumed_reason) == ("ana", "INC-7", "bo", "mended")
    assert app.pauses() == [] and app.pauses(lifted=True) == [lifted]
    assert [job.operation_id for job in worker.step().jobs] == [paid]


@pytest.mark.promise("S38", part="a queue, and everything")
@pytest.mark.parametrize("scope", [{"queue": "slow"}, {}])
def test_a_queue_and_everything_can_be_paused(app: App, hand: MakeHand, scope: dict[str, str]) -> None:
    declare(app, queue="slow")
    declare(app, "mail")
    submit(app, 1)
    submit(app, 1, contract="mail")
    app.pause(**scope, **SAID)
    worker = hand()
    assert [job.contract for job in worker.step().jobs] == (["mail"] if scope else [])
    app.resume(**scope, **SAID)
    assert [job.contract for job in worker.step().jobs] == (["pay"] if scope else ["mail", "pay"]) or worker.calls == 2
    assert worker.calls == 2


def test_operations_of_a_paused_queue_keep_no_others_of_their_contract_waiting(app: App, hand: MakeHand) -> None:
    """A contract that moved to another queue has operations of both."""
    declare(app, queue="old")
    submit(app, *range(20))
    app.contracts.clear()
    declare(app, queue="new")
    submit(app, 99)
    app.pause(queue="old", **SAID)
    worker = hand(slots=4)
    assert [job.operation_id for job in worker.step().jobs] == ["pay:99"]
    app.resume(queue="old", **SAID)
    assert len(worker.step().jobs) == 3


@pytest.mark.promise("S38", part="with an open attempt: retry_withdrawn {held}, unknown, probed")
@pytest.mark.promise("S98", part="held")
def test_a_retry_that_a_pause_finds_waiting_is_withdrawn_and_probed(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app, outcome_probe=silent, **K)
    (one,) = submit(app, 1)
    worker = hand()
    worker.step(timed_out(worker.start(), clock.now()))
    worker.step(answered(worker.probe(), clock.now(), ProbeResult.unknown()))
    assert (story(app, one)[-1], app.get(one).status) == ("key_retry", Status.PREPARED)
    app.pause("pay", **SAID)
    assert worker.pump.next_due_us() == 0  # it does not wait until its backoff is over
    assert worker.step().jobs == []
    withdrawn = next(event for event in events_of(app, one) if event.type == "retry_withdrawn")
    assert withdrawn.data["reason"] == "held"
    op = app.get(one)
    assert (op.status, op.outcome, op.attempts) == (Status.OUTCOME_UNKNOWN, Outcome.UNKNOWN, 1)
    assert worker.pump.next_due_us() is None
    clock.advance(3600)
    worker.step(answered(worker.probe(), clock.now(), ProbeResult.unknown()))
    assert app.get(one).status is Status.OUTCOME_UNKNOWN  # no key retry is decided on under a pause
    app.resume("pay", **SAID)
    clock.advance(3600)
    worker.step(answered(worker.probe(), clock.now(), ProbeResult.unknown()))
    clock.advance(3600)
    assert [job.attempt for job in worker.step().jobs] == [2]


@pytest.mark.promise("S38", part="running handlers and probes go on")
def test_what_runs_when_the_pause_comes_is_recorded(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app, outcome_probe=silent)
    one, two = submit(app, 1, 2)
    worker = hand()
    jobs = {job.operation_id: job for job in worker.step().jobs}
    app.pause(**SAID)
    worker.step(returned(jobs[one], clock.now(), "paid"), timed_out(jobs[two], clock.now()))
    assert app.get(one).result() == "paid"
    worker.step(answered(worker.probe(), clock.now(), ProbeResult.committed()))
    assert app.get(two).status is Status.CONFIRMED


@pytest.mark.promise("S38", part="execute")
def test_a_caller_does_not_dispatch_what_is_paused(tmp_path: Path) -> None:
    called: list[Any] = []
    app = App(tmp_path / "real.db")  # on the machine's own clock: handlers really run
    app.create_database()
    declare(app, handler=lambda arguments: called.append(arguments))
    app.pause("pay", **SAID)
    assert app.execute("pay", {"n": 1}).status is Status.PREPARED
    assert app.execute("pay", {"n": 1}).waits_for == "paused"
    assert called == []
    app.resume("pay", **SAID)
    assert app.execute("pay", {"n": 2}).status is Status.CONFIRMED
    app.close()


def test_a_pause_of_what_nobody_knows_is_refused(app: App) -> None:
    declare(app, queue="slow")
    with pytest.raises(ContractNotFoundError, match="pay"):
        app.pause("pai", **SAID)
    with pytest.raises(QueueNotFoundError, match="slow"):
        app.pause(queue="slwo", **SAID)
    with pytest.raises(TypeError):
        app.pause("pay", "slow", **SAID)
    for blank in ({"actor": " ", "reason": "x"}, {"actor": "x", "reason": ""}):
        with pytest.raises(ValueError):
            app.pause("pay", **blank)
    assert app.pauses(lifted=True) == []
    with pytest.raises(PauseRefusedError, match="not paused"):
        app.resume("pay", **SAID)


def test_each_person_and_reason_is_a_pause_of_its_own_and_one_resume_lifts_them(app: App) -> None:
    declare(app)
    first = app.pause("pay", **SAID)
    assert app.pause("pay", **SAID) == first
    app.pause("pay", actor="bo", reason="INC-8")
    app.pause(**SAID)
    assert [(one.scope, one.actor) for one in app.pauses()] == [("contract", "ana"), ("contract", "bo"), ("all", "ana")]
    assert len(app.resume("pay", **SAID)) == 2
    assert [one.scope for one in app.pauses()] == ["all"]


@pytest.mark.parametrize("statement", ["DELETE FROM pause", "UPDATE pause SET reason = 'other'", "UPDATE pause SET lifted_us = 5"])
def test_the_history_of_pauses_cannot_be_rewritten(app: App, statement: str) -> None:
    app.pause(**SAID)
    app.resume(**SAID)
    with pytest.raises(Exception, match="pause"), app.ledger.write() as transaction:
        transaction.cursor.execute(statement)


def test_a_pause_costs_a_claim_one_look(app: App, hand: MakeHand) -> None:
    """However many operations a batch has, what is paused is read once in each transaction."""
    declare(app)
    submit(app, *range(8))
    worker = hand()
    with app.ledger.read() as transaction:
        driver = transaction.cursor.connection
    asked: list[str] = []
    driver.set_trace_callback(asked.append)
    worker.step()
    driver.set_trace_callback(None)
    assert DEFAULTS.batch_max > 8 == worker.calls
    assert sum("FROM pause" in statement for statement in asked) == 1


@pytest.mark.promise("S38", part="a worker that is at work, and what it says of it")
def test_people_pause_and_resume_a_worker_that_is_at_work(here: Place) -> None:
    worker = here.worker().ready()
    done = here.settled_command("pause", "--contract", "charge_thread", "--reason", "INC-7")
    assert done.returncode == 0, done.stderr
    waits, goes = here.submit("charge_thread", fresh()), here.submit("charge_process", fresh())
    here.settled(goes)
    eventually(lambda: worker.told("worker.pauses_changed"))
    assert "INC-7" in worker.told("worker.pauses_changed")[0]["paused"][0]
    assert here.app.get(waits).status is Status.PREPARED
    assert here.settled_command("resume", "--contract", "charge_thread", "--reason", "mended").returncode == 0
    assert here.settled(waits)[0].outcome is Outcome.CONFIRMED
    worker.stop()

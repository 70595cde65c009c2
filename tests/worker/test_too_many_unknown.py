"""A contract that makes too many unknown outcomes is paused in the transaction of the one that is too many; a person resumes it."""

from collections.abc import Callable

import pytest

from settled import App, ProbeResult
from settled.core.incidents import IncidentKind
from settled.core.ladder import Incident
from settled.core.too_many import UnknownLimit
from settled.execution.job import End, Job, Report
from settled.store import incidents
from settled.testing import VirtualClock
from tests.worker.harness import Hand, answered, declare, ended, returned, silent, story, submit, timed_out
from tests.worker.test_ladder import deliver, plan, said, tick

MakeHand = Callable[..., Hand]


def last_incident(app: App, contract: str = "pay") -> Incident | None:
    with app.ledger.read() as transaction:
        return incidents.last_of_contract(transaction, contract, IncidentKind.TOO_MANY_UNKNOWN)


def watched(app: App, **limit: object) -> None:
    app.ledger.unknown_limits = {"pay": UnknownLimit(**limit)}  # type: ignore[arg-type]


def paused(app: App) -> list[tuple[str, str, str]]:
    return [(one.name, one.reason, one.actor) for one in app.pauses()]


def lost(worker: Hand, job: Job) -> Report:
    return timed_out(job, worker.clock.now())


@pytest.mark.promise("S12")
def test_the_third_open_unknown_pauses_the_contract_and_nothing_slips_through(app: App, hand: MakeHand, clock: VirtualClock) -> None:
    watched(app, open_max=3)
    declare(app, isolation="process", outcome_probe=silent)
    declare(app, "other")
    ids = submit(app, 1, 2, 3, 4)
    worker = hand(slots=1, probe_room=1)
    job = worker.start()
    for _ in range(2):
        job = worker.start(lost(worker, job))
    assert paused(app) == []
    assert worker.step(lost(worker, job)).jobs == []  # not even in the transaction of the third's end
    assert paused(app) == [("pay", "too_many_unknown", "settled")]
    assert worker.calls == 3 and story(app, ids[3]) == ["submitted"]
    submit(app, 1, contract="other")
    other = worker.start()
    assert other.contract == "other"
    incident = last_incident(app)
    assert incident is not None and incident.reason == "3 open unknown outcomes, limit 3"
    tick(app, plan())
    assert "contract pay is paused (3 open unknown outcomes, limit 3)" in (deliver(app)[0].body or "")
    worker.step(returned(other, clock.now()), answered(worker.probe(), clock.now(), ProbeResult.committed()))
    assert app.get(ids[0]).status == "confirmed"  # probes go on
    assert paused(app) != []  # and only a person resumes
    app.resume("pay", actor="ana", reason="the bank is back")
    assert worker.start().operation_id == ids[3]
    tick(app, plan())
    closed = last_incident(app)
    assert closed is not None and closed.closed_by == "resumed"


def test_after_a_resume_only_what_becomes_unknown_later_counts(app: App, hand: MakeHand, clock: VirtualClock) -> None:
    watched(app, open_max=2)
    declare(app, isolation="process", outcome_probe=silent)
    submit(app, *range(9))
    worker = hand(slots=4)
    worker.step(*(lost(worker, job) for job in worker.step().jobs))  # two trip it, two more were under way
    assert len(app.pauses()) == 1
    clock.advance(10)
    app.resume("pay", actor="ana", reason="looked")
    clock.advance(1)
    jobs = worker.step().jobs
    worker.step(lost(worker, jobs[0]))
    assert app.pauses() == []  # five are open, one of them since the resume
    worker.step(lost(worker, jobs[1]))
    assert [one.reason for one in app.pauses()] == ["too_many_unknown"]
    tick(app, plan())
    assert said(deliver(app)) == [("log", 0, 0)] * 2  # both pauses were told, the first although it is over


@pytest.mark.promise("S12", part="rejections do not count")
def test_rejections_do_not_count(app: App, hand: MakeHand, clock: VirtualClock) -> None:
    watched(app, open_max=1, rate_max=0.1, window_us=60_000_000, sample_min=1)
    declare(app)
    submit(app, *range(5))
    worker = hand()
    worker.step(*(ended(job, End.REJECTED, clock.now(), retryable=False) for job in worker.step().jobs))
    assert app.pauses() == []


def test_a_rate_pauses_only_beyond_its_share_and_with_enough_to_go_by(app: App, hand: MakeHand, clock: VirtualClock) -> None:
    watched(app, rate_max=0.2, window_us=120_000_000, sample_min=10)
    declare(app, isolation="process", outcome_probe=silent)
    submit(app, *range(40))
    worker = hand(slots=1)
    job = worker.start()
    job = worker.start(lost(worker, job))  # 1 of 1, but one is no sample
    for _ in range(9):
        job = worker.start(returned(job, clock.now()))
    job = worker.start(lost(worker, job))  # 2 of 11
    assert app.pauses() == []
    clock.advance(400)  # the window has gone by, and with it what was good
    for _ in range(8):
        job = worker.start(returned(job, clock.now()))
    job = worker.start(lost(worker, job))  # 1 of 9
    job = worker.start(lost(worker, job))  # 2 of 10: not more than a fifth
    assert app.pauses() == []
    assert worker.step(lost(worker, job)).jobs == []  # 3 of 11
    incident = last_incident(app)
    assert incident is not None and incident.reason == "3 of the last 11 outcomes unknown, limit 20%"


def test_an_inline_call_is_held_by_the_same_limit(app: App, hand: MakeHand) -> None:
    watched(app, open_max=1)
    declare(app, outcome_probe=silent)
    submit(app, 1)
    worker = hand()
    worker.step(lost(worker, worker.start()))
    assert app.execute("pay", {"n": 2}).attempts == 0

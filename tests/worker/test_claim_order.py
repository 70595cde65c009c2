"""In which order, until when, how fast and by whom ready operations are claimed."""

from pathlib import Path
from typing import Any

import pytest

from settled import App, EffectContract, Outcome, ProbeResult, Status
from settled.execution.job import Report
from settled.store import waiting
from settled.store.prepared import built
from settled.testing import VirtualClock
from tests.worker.conftest import MakeHand
from tests.worker.harness import Hand, K, answered, declare, events_of, in_seconds, returned, row_of, story, submit, timed_out


@pytest.mark.promise("S35", part="order and delay; the query plan is shown by the store's own tests")
def test_ready_rows_go_by_priority_then_due_time_then_submission(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app)
    declare(app, "other")
    later = submit(app, 1, delay=60)
    plain = submit(app, 2)
    clock.advance(1)
    mixed = submit(app, 3, contract="other") + submit(app, 4)
    urgent = submit(app, 5, contract="other", priority=9)
    worker = hand()
    assert [job.operation_id for job in worker.step().jobs] == urgent + plain + mixed
    clock.advance(58.9)
    assert worker.step().jobs == []
    clock.advance(0.2)
    assert [job.operation_id for job in worker.step().jobs] == later


@pytest.mark.promise("S35", part="among equals the earlier due goes first, whatever was submitted first and under which contract")
def test_what_fell_due_earlier_goes_first_over_all_contracts(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app)
    declare(app, "other")
    last, first = submit(app, 1, delay=10)[0], submit(app, 2, contract="other")[0]
    middle = submit(app, 3, delay=5)[0]
    clock.advance(20)
    assert [job.operation_id for job in hand().step().jobs] == [first, middle, last]


@pytest.mark.promise("S36", part="with no open attempt")
def test_a_deadline_ends_what_was_never_sent(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app)
    one = submit(app, 1, deadline=in_seconds(clock, 5))[0]
    clock.advance(5)
    worker = hand()
    assert worker.step().jobs == []
    assert (app.get(one).status, app.get(one).outcome) == (Status.CANCELLED, Outcome.FAILED)
    assert story(app, one) == ["submitted", "expired"]


@pytest.mark.promise("S36", part="with an open attempt")
@pytest.mark.promise("S98", part="deadline")
def test_a_deadline_takes_an_open_attempt_back_to_unknown(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app, **K)
    one = submit(app, 1, deadline=in_seconds(clock, 5))[0]
    worker = hand()
    worker.step(timed_out(worker.start(), clock.now()))
    assert app.get(one).status is Status.PREPARED
    clock.advance(5)
    assert worker.step().jobs == []
    assert app.get(one).outcome is Outcome.UNKNOWN and app.get(one).attempts == 1
    withdrawn = events_of(app, one)[4]
    assert (withdrawn.type, withdrawn.status, withdrawn.data["reason"]) == ("retry_withdrawn", Status.OUTCOME_UNKNOWN, "deadline")


@pytest.mark.promise("S98", part="key_window")
def test_a_retry_that_waited_past_the_window_is_withdrawn_and_probed(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    asked = [ProbeResult.unknown(), ProbeResult.committed()]
    limits: dict[str, Any] = {"timeout": 30, "kill_grace": 3, "provider_idempotency_window": 3600, "key_margin": 300}
    declare(app, isolation="process", outcome_probe=lambda arguments: asked[0], **limits, **K)
    (one,) = submit(app, 1)
    worker = hand()
    job = worker.start()
    clock.advance(50 * 60)
    worker.step(timed_out(job, clock.now()))
    worker.step(answered(worker.probe(), clock.now(), asked[0]))
    assert story(app, one)[-1] == "key_retry"
    clock.advance(6 * 60)
    assert worker.step().jobs == []
    assert events_of(app, one)[-1].data["reason"] == "key_window"
    op = app.get(one)
    assert (op.status, op.outcome, op.attempts) == (Status.OUTCOME_UNKNOWN, Outcome.UNKNOWN, 1)
    worker.step(answered(worker.probe(), clock.now(), asked[1]))
    assert app.get(one).status is Status.CONFIRMED and worker.calls == 1


@pytest.mark.promise("S98", part="budget")
def test_a_retry_whose_budget_was_lowered_meanwhile_is_withdrawn(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app, **K)
    (one,) = submit(app, 1)
    worker = hand()
    worker.step(timed_out(worker.start(), clock.now()))
    app.shell.overrides["pay"] = {"max_attempts": 1}
    clock.advance(2)
    assert worker.step().jobs == []
    withdrawn = events_of(app, one)[4]
    assert (withdrawn.type, withdrawn.data["reason"]) == ("retry_withdrawn", "budget")
    assert app.get(one).outcome is Outcome.UNKNOWN


@pytest.mark.promise("S37", part="concurrency: dispatched and abandoned are counted in the claim, over all workers")
def test_concurrency_holds_over_two_workers_and_counts_abandoned_handlers(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app, concurrency=2, unknown_outcome="keep_unknown")
    declare(app, "free")
    submit(app, *range(10))
    submit(app, *range(5), contract="free")
    one, two = hand(slots=20), hand(slots=20)

    def under_way() -> int:
        rows = [row_of(app, f"pay:{number}") for number in range(10)]
        return sum(row.status is Status.DISPATCHED or row.unfenced > 0 for row in rows)

    jobs = [*one.step().jobs, *two.step().jobs]
    assert len([job for job in jobs if job.contract == "free"]) == 5  # not slowed by the other's limit
    mine = [job for job in jobs if job.contract == "pay"]
    assert len(mine) == 2 and under_way() == 2
    one.step(timed_out(mine[0], clock.now()))  # its thread goes on: no fence
    assert two.step().jobs == [] and under_way() == 2
    late = one.start(returned(mine[1], clock.now()))
    assert under_way() == 2
    one.step(returned(mine[0], clock.now(), late=True))
    assert under_way() == 2 and late.contract == "pay"


@pytest.mark.promise("S37", part="concurrency: a retry beside an earlier attempt that may still run counts twice")
def test_an_operation_that_is_retried_beside_its_abandoned_handler_takes_two_places(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    """Two handlers of it may run: a third one of another operation would be one too many."""
    declare(app, concurrency=2, **K)
    one = submit(app, 0)[0]
    worker = hand(slots=20)
    first = worker.start()
    worker.step(timed_out(first, clock.now()))  # its thread goes on: no fence
    clock.advance(60)
    second = worker.start()
    assert (second.operation_id, second.attempt, row_of(app, one).unfenced) == (one, 2, 2)
    other = submit(app, 1)[0]
    assert worker.step().jobs == []
    assert [job.operation_id for job in worker.step(returned(second, clock.now())).jobs] == [other]


@pytest.mark.promise("S37", part="rate_limit, over two workers")
def test_ten_starts_at_two_a_second_take_four_seconds(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app, rate_limit=2)
    declare(app, "free")
    submit(app, *range(10))
    submit(app, *range(6), contract="free")
    workers = [hand(slots=20), hand(slots=20)]
    starts: list[float] = []
    began = clock.now().boot_us
    free = 0
    while len(starts) < 10:
        for worker in workers:
            for job in worker.step().jobs:
                if job.contract == "pay":
                    starts.append((clock.now().boot_us - began) / 1e6)
                else:
                    free += 1
        assert free == 6  # all in the first round
        clock.advance(0.05)
    assert starts[-1] - starts[0] >= 4.0
    assert all(sum(at <= other < at + 1 for other in starts) <= 3 for at in starts)


@pytest.mark.promise("S15", part="a worker that has the contract derives key and reference before the claim")
def test_a_request_by_name_is_derived_before_it_is_claimed(app: App, tmp_path: Path, clock: VirtualClock, hand: MakeHand) -> None:
    agent = App(app.ledger.path, clock=clock)
    with pytest.raises(ValueError, match="operation_id"):
        agent.submit("pay", {"n": 1})
    assert agent.submit("pay", {"n": 1}, operation_id="x").status is Status.PREPARED
    declare(app, provider_reference=lambda a: f"ref:{a['n']}", **K)
    worker = hand()
    assert worker.step().jobs == []  # nothing is known of it yet
    worker.sweep("reconcile")
    job = worker.start()
    assert (job.operation_id, job.idempotency_key, job.provider_reference) == ("x", "key:1", "ref:1")
    assert agent.get("x").provider_reference == "ref:1"
    agent.close()


@pytest.mark.promise("S15", part="a request by name that cannot be derived is held")
def test_a_request_by_name_that_does_not_fit_its_contract_is_held(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    agent = App(app.ledger.path, clock=clock)
    agent.submit("pay", {"wrong": 1}, operation_id="x")
    declare(app, **K)
    worker = hand()
    worker.sweep("reconcile")
    assert worker.step().jobs == []
    op = agent.get("x")
    assert (op.status, op.reason, op.attempts) == (Status.PREPARED, "contract_mismatch", 0)
    agent.close()


@pytest.mark.promise("S19", part="an operation of a contract without a handler here is left as it is until a worker has one")
def test_a_worker_leaves_alone_what_it_has_no_handler_for(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    contract = EffectContract(name="mail", operation_id=lambda a: f"mail:{a['n']}", isolation="thread")
    app.register(contract)
    declare(app)
    (mail,), (pay,) = submit(app, 1, contract="mail"), submit(app, 1)
    stranger = App(app.ledger.path, clock=clock)  # knows no contract at all
    worker, other = hand(), hand(app=stranger)
    assert [job.operation_id for job in worker.step().jobs] == [pay]
    for name in ("leases", "reconcile", "escalate"):
        worker.sweep(name)
        other.sweep(name)
    assert other.step().jobs == []
    assert (app.get(mail).status, app.get(mail).attempts, story(app, mail)) == (Status.PREPARED, 0, ["submitted"])
    app.handler(contract)(lambda arguments: None)
    assert worker.start().operation_id == mail


@pytest.mark.promise("S35")
def test_a_long_history_changes_neither_the_order_nor_the_way_to_what_is_ready(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app)
    worker = hand(slots=50)
    submit(app, *range(1000, 1200))
    jobs = worker.step().jobs
    while jobs:  # a history of settled rows
        jobs = worker.step(*(returned(job, clock.now()) for job in jobs)).jobs
    later = submit(app, 1, delay=60)
    first, second = submit(app, 2), submit(app, 3)
    due_later, urgent = submit(app, 4, delay=1), submit(app, 5, priority=1)
    clock.advance(1)
    assert [job.operation_id for job in worker.step().jobs] == urgent + first + second + due_later
    clock.advance(58.9)
    assert worker.step().jobs == []
    with app.ledger.read() as transaction:
        for build in (waiting._ready, waiting._first_due, waiting._highest_priority):
            text = str(built(build, app.engine().dialect).compile(dialect=app.engine().dialect))
            plan = transaction.cursor.execute(f"EXPLAIN QUERY PLAN {text}", [None] * text.count("?")).fetchall()
            assert plan and all("INDEX ix_operation_ready" in step[3] for step in plan if step[3].split()[1] == "operation"), plan
    clock.advance(0.1)
    assert [job.operation_id for job in worker.step().jobs] == later


@pytest.mark.promise("S37")
def test_concurrency_and_rate_hold_together_per_contract_over_all_workers(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app, concurrency=2, rate_limit=2, unknown_outcome="keep_unknown")
    declare(app, "free")
    submit(app, *range(10))
    submit(app, *range(10), contract="free")
    workers = [hand(slots=20), hand(slots=20)]
    began = clock.now().boot_us
    starts: list[float] = []

    def step(worker: Hand, *reports: Report) -> int:
        """Return how many of the other contract were started."""
        jobs = worker.step(*reports).jobs
        starts.extend((clock.now().boot_us - began) / 1e6 for job in jobs if job.contract == "pay")
        rows = [row_of(app, f"pay:{number}") for number in range(10)]
        assert sum(row.status is Status.DISPATCHED or row.unfenced > 0 for row in rows) <= 2
        return sum(job.contract == "free" for job in jobs)

    assert [step(worker) for worker in workers] == [10, 0]  # at once: not slowed by the other's limits
    while len(starts) < 10:
        clock.advance(0.1)
        for worker in workers:
            mine = [job for job in worker.jobs if job.key in worker.running and job.contract == "pay"]
            step(worker, *(returned(job, clock.now()) for job in mine[:1]))
    assert starts[-1] - starts[0] >= 4.0 and {app.get(f"pay:{number}").attempts for number in range(10)} == {1}

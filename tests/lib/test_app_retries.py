"""When an operation is dispatched again, and on what basis."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from settled import (
    EffectRejected,
    NotSent,
    Outcome,
    ProbeResult,
    RetryPolicy,
    Status,
)
from tests.lib.apps.bench import ABSENT, ARGUMENTS, KEY, OPERATION_ID, Bench, Calls, attempts, guaranteed
from tests.lib.store.ledgers import another_program


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield from Bench.opened(tmp_path)


@pytest.mark.promise("P31", "D05", "D11", "D10")
def test_a_retryable_rejection_is_tried_again_with_a_backoff_while_budget_is_left(bench: Bench) -> None:
    calls = Calls(EffectRejected("busy", retryable=True))
    effect = bench.effect(calls, retry=attempts(3))
    worker = bench.worker()
    effect.submit(ARGUMENTS)
    for attempt in (1, 2):
        assert worker.turn() == 1
        op = bench.app.get(OPERATION_ID)
        assert (op.status, op.outcome, op.attempts) == (Status.PREPARED, None, attempt)
        assert worker.turn() == 0  # the backoff
        bench.clock.advance(10)
    assert worker.turn() == 1
    op = bench.app.get(OPERATION_ID)
    assert (op.status, op.attempts, calls.count) == (Status.REJECTED, 3, 3)
    assert bench.types() == ["submitted", *["dispatched", "rejected"] * 3]
    assert [one["decision"] for one in op.attempt_records] == ["retry", "retry", "stop"]
    assert [one["basis"] for one in op.attempt_records] == ["rejected_retryable", "rejected_retryable", None]


@pytest.mark.promise("D10", "D11")
def test_one_attempt_in_a_life_settles_a_retryable_rejection_and_a_terminal_absence(bench: Bench) -> None:
    refused = bench.effect(Calls(EffectRejected("busy", retryable=True)), name="refused")
    assert bench.app.execute(refused, ARGUMENTS, operation_id="refused").status is Status.REJECTED
    absent = bench.effect(Calls(OSError()), name="absent", outcome_probe=lambda: ABSENT)
    bench.app.execute(absent, ARGUMENTS, operation_id="absent")
    assert bench.app.reconcile("absent").status is Status.REJECTED


@pytest.mark.promise("S51", part="NotSent; an attempt that was never entered is shown with the recorder")
def test_provably_unsent_attempts_spend_no_budget_and_are_bounded(bench: Bench) -> None:
    calls = Calls(NotSent("dns"))
    effect = bench.effect(calls, retry=RetryPolicy(max_attempts=1, not_sent_attempts_max=10, jitter=0))
    effect.submit(ARGUMENTS)
    worker = bench.worker()
    for _ in range(15):
        worker.turn()
        bench.clock.advance(400)
    op = bench.app.get(OPERATION_ID)
    assert (op.status, op.reason, op.attempts, calls.count) == (Status.PREPARED, "not_sent_limit", 10, 10)


def unusable() -> dict[str, Callable[[], Any]]:
    def raises() -> None:
        raise PermissionError("401")

    return {
        "unknown": lambda: ProbeResult.unknown(),
        "raises": raises,
        "wrong type": lambda: True,
        "unhealthy": lambda: ProbeResult.not_committed(terminal=True, healthy=False),
        "not terminal": lambda: ProbeResult.not_committed(healthy=True),
        "nothing": lambda: None,
    }


@pytest.mark.promise("P41", "D39", "P73", "P47")
@pytest.mark.parametrize("kind", [*unusable(), "no probe"])
def test_without_a_usable_answer_the_key_guarantee_permits_a_replay_with_the_same_key(bench: Bench, kind: str) -> None:
    calls = Calls(ConnectionResetError(), "done")
    terms = guaranteed() if kind == "no probe" else guaranteed() | {"outcome_probe": unusable()[kind]}
    bench.effect(calls, **terms).submit(ARGUMENTS)
    worker = bench.worker()
    worker.turn()
    worker.reconcile()
    op = bench.app.get(OPERATION_ID)
    assert (op.status, op.outcome, bench.types()[-1]) == (Status.PREPARED, Outcome.UNKNOWN, "key_retry")
    bench.clock.advance(10)
    assert worker.turn() == 1
    op = bench.app.get(OPERATION_ID)
    assert (op.status, op.attempts, calls.count, calls.keys) == (Status.CONFIRMED, 2, 2, {KEY})
    assert (op.attempt_records[0]["decision"], op.attempt_records[0]["basis"]) == ("retry", "key_guarantee")


@pytest.mark.promise("P42")
def test_the_budget_is_for_life(bench: Bench) -> None:
    calls = Calls(ConnectionResetError())
    bench.effect(calls, **guaranteed(3)).submit(ARGUMENTS)
    for _ in range(4):
        app = bench.again()
        effect = bench.effect(calls, app=app, **guaranteed(3))
        worker = bench.worker(app)
        for _ in range(2):
            effect.execute(ARGUMENTS)
            worker.turn()
            worker.reconcile()
            bench.clock.advance(400)
    op = bench.app.get(OPERATION_ID)
    assert (op.status, op.attempts, calls.count) == (Status.QUARANTINED, 3, 3)


@pytest.mark.promise("P42", part="a budget that was lowered while a retry waited")
def test_a_retry_whose_budget_was_lowered_meanwhile_is_withdrawn(bench: Bench) -> None:
    calls = Calls(ConnectionResetError())
    bench.effect(calls, **guaranteed(3)).submit(ARGUMENTS)
    bench.worker().turn()
    assert bench.types()[-1] == "key_retry"
    lowered = bench.again()
    bench.effect(calls, app=lowered, **guaranteed(1))
    bench.clock.advance(60)
    assert bench.worker(lowered).turn() == 0
    op = bench.app.get(OPERATION_ID)
    assert bench.types()[4:] == ["retry_withdrawn", "quarantined"]
    assert [dict(event.data)["reason"] for event in bench.app.events(OPERATION_ID)[4:]] == ["budget", "no_probe"]
    assert (op.status, calls.count) == (Status.QUARANTINED, 1)


@pytest.mark.promise("D12", "D10", part="no unknown is repeated by itself")
def test_an_unknown_outcome_without_a_guarantee_is_never_repeated_by_itself(bench: Bench) -> None:
    calls = Calls(ConnectionResetError())
    bench.effect(calls, retry=attempts(3), outcome_probe=lambda: ProbeResult.unknown()).submit(ARGUMENTS)
    worker = bench.worker()
    for _ in range(20):
        worker.turn()
        worker.reconcile()
        worker.leases()
        worker.sweeper.escalate()
        bench.clock.advance(3600)
    assert (bench.app.get(OPERATION_ID).status, calls.count) == (Status.QUARANTINED, 1)


@pytest.mark.promise("S83", part="the key guarantee")
@pytest.mark.parametrize("stored", [True, False])
def test_a_key_retry_must_be_allowed_by_the_stored_and_by_the_current_terms(bench: Bench, stored: bool) -> None:
    calls = Calls(ConnectionResetError())
    with_key = guaranteed()
    without = with_key | {"provider_idempotency_guaranteed": False}
    answer = [ProbeResult.unknown()]
    bench.effect(calls, **(with_key if stored else without), outcome_probe=lambda: answer[0]).submit(ARGUMENTS)
    bench.worker().turn()
    redeployed = bench.again()
    bench.effect(calls, app=redeployed, **(without if stored else with_key), outcome_probe=lambda: answer[0])
    worker = bench.worker(redeployed)
    worker.reconcile()
    bench.clock.advance(60)
    assert worker.turn() == 0
    assert (bench.app.get(OPERATION_ID).status, calls.count) == (Status.OUTCOME_UNKNOWN, 1)


@pytest.mark.promise("S83", "P37", part="the horizon of the stored and of the current terms, to the second")
@pytest.mark.parametrize(("stored", "current"), [(60, 0), (0, 60), (60, 60)])
def test_an_absence_waits_for_the_longer_of_the_stored_and_the_current_horizon(bench: Bench, stored: int, current: int) -> None:
    bench.clock.freeze()
    calls = Calls(ConnectionResetError(), "done")
    common: dict[str, Any] = {"outcome_probe": lambda: ABSENT, "retry": attempts(2)}
    bench.effect(calls, commit_horizon=stored, **common).submit(ARGUMENTS)
    bench.worker().turn()
    redeployed = bench.again()
    bench.effect(calls, app=redeployed, commit_horizon=current, **common)
    for seconds, expected in ((59, "probe_unknown"), (1, "probe_unknown"), (0.000001, "probe_absent")):
        bench.clock.advance(seconds)
        redeployed.reconcile(OPERATION_ID)
        assert bench.types()[-1] == expected
    assert bench.app.get(OPERATION_ID).attempt_records[0]["basis"] == "terminal_absence"
    bench.clock.advance(60)
    bench.worker(redeployed).turn()
    op = bench.app.get(OPERATION_ID)
    assert (op.status, op.attempts, calls.count) == (Status.CONFIRMED, 2, 2)


@pytest.mark.promise("P37", part="the default drain, to the second")
def test_by_default_an_absence_counts_strictly_after_two_minutes(bench: Bench) -> None:
    bench.clock.freeze()
    drain = timedelta(seconds=120)
    effect = bench.effect(Calls(OSError()), network_drain=drain, outcome_probe=lambda: ABSENT, retry=attempts(2))
    bench.app.execute(effect, ARGUMENTS)
    for seconds, why in ((119, "too_early"), (1, "too_early"), (1, None)):
        bench.clock.advance(seconds)
        bench.app.reconcile(OPERATION_ID)
        last = bench.app.events(OPERATION_ID)[-1]
        assert (last.type, last.data.get("why")) == ("probe_unknown" if why else "probe_absent", why)
    assert another_program(bench.app.ledger.path, "SELECT probes_spent FROM operation") == [[0]]


@pytest.mark.promise("S83", part="one row of terms for a thousand attempts; no_probe only where neither has a probe")
def test_the_terms_of_many_attempts_are_stored_once(bench: Bench) -> None:
    effect = bench.effect(lambda: None, operation_id=lambda a: f"op-{a['n']}")
    bench.app.submit_many([(effect, {"n": n}) for n in range(1000)])
    worker = bench.worker()
    while worker.turn():
        pass
    look = "SELECT count(*), count(DISTINCT terms) FROM operation WHERE status = 'confirmed'"
    assert another_program(bench.app.ledger.path, look) == [[1000, 1]]
    assert another_program(bench.app.ledger.path, "SELECT count(*) FROM terms") == [[1]]


@pytest.mark.promise("S83", part="no_probe only where neither has a probe")
def test_a_probe_that_was_taken_away_is_still_waited_for(bench: Bench) -> None:
    bench.effect(Calls(OSError()), outcome_probe=lambda: ProbeResult.unknown()).submit(ARGUMENTS)
    bench.worker().turn()
    redeployed = bench.again()
    bench.effect(Calls(OSError()), app=redeployed)
    worker = bench.worker(redeployed)
    worker.reconcile()
    assert (bench.app.get(OPERATION_ID).status, bench.types()[-1]) == (Status.OUTCOME_UNKNOWN, "raised")

"""What people call off, stop, approve or deny before and while a handler runs."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from settled import (
    EffectRejected,
    NotSent,
    Outcome,
    ProbeResult,
    Status,
    TransitionRefusedError,
)
from tests.conftest import eventually
from tests.lib.apps.bench import ARGUMENTS, OPERATION_ID, Bench, guaranteed, run, spawn

FACTS: dict[str, Any] = {"actor": "ana", "reason": "not in the bank's list", "evidence_reference": "stmt-1"}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield from Bench.opened(tmp_path)


@pytest.mark.promise("D47", part="the library; early evidence is shown with evidence, the exit code with the command line")
def test_what_was_never_sent_can_be_called_off_and_nothing_else(bench: Bench) -> None:
    gate, inside = bench.gate(), threading.Event()

    def handler(arguments: dict[str, Any]) -> None:
        if arguments["do"] == "hang":
            inside.set()
            gate.wait()
        if arguments["do"] == "raise":
            raise ConnectionResetError

    effect = bench.effect(handler, operation_id=lambda a: a["do"], **guaranteed() | {"provider_idempotency_key": lambda a: a["do"]})
    effect.submit({"do": "wait"})
    for missing in ({"actor": " ", "reason": "x"}, {"actor": "ana", "reason": ""}):
        with pytest.raises(ValueError, match="blank"):
            bench.app.cancel("wait", **missing)
    op = bench.app.cancel("wait", actor="ana", reason="not needed")
    assert (op.status, op.outcome, bench.types("wait")) == (Status.CANCELLED, Outcome.FAILED, ["submitted", "cancelled"])
    again = effect.submit({"do": "wait"})
    assert (again.created, again.status, again.operation_id) == (False, Status.CANCELLED, "wait")
    runner = threading.Thread(target=effect.execute, args=({"do": "hang"},))
    runner.start()
    inside.wait()
    effect.execute({"do": "return"})
    assert effect.execute({"do": "raise"}).status is Status.PREPARED  # with an open attempt
    for operation_id in ("hang", "return", "raise", "wait"):
        before = bench.app.get(operation_id)
        with pytest.raises(TransitionRefusedError) as refused:
            bench.app.cancel(operation_id, actor="ana", reason="not needed")
        assert refused.value.exit_code == 4
        assert ("settled op stop" in str(refused.value)) is (operation_id == "hang")
        assert bench.app.get(operation_id) == before
    gate.set()
    runner.join()


@pytest.mark.promise("D47", part="a race with a claim")
def test_of_a_cancellation_and_a_claim_exactly_one_wins(bench: Bench) -> None:
    calls: list[str] = []
    effect = bench.effect(lambda ctx: calls.append(ctx.operation_id), operation_id=lambda a: a["id"])
    ids = [f"op-{number}" for number in range(40)]
    bench.app.submit_many([(effect, {"id": one}) for one in ids])
    worker, cancelled = bench.worker(), list[str]()

    def cancel() -> None:
        for one in ids:
            try:
                bench.app.cancel(one, actor="ana", reason="race")
                cancelled.append(one)
            except TransitionRefusedError:
                continue

    racer = threading.Thread(target=cancel)
    racer.start()
    while racer.is_alive():
        worker.turn()
    worker.turn()
    racer.join()
    assert sorted([*calls, *cancelled]) == sorted(ids)
    for one in ids:
        assert bench.app.get(one).status is (Status.CANCELLED if one in cancelled else Status.CONFIRMED)


@pytest.mark.promise("S118", "S137", part="a thread; a worker's handler")
def test_a_stopped_thread_is_an_honest_unknown_and_nothing_is_dispatched_unattended_after_it(bench: Bench) -> None:
    gate, inside, calls = bench.gate(), threading.Event(), list[int]()

    def handler() -> str:
        calls.append(1)
        inside.set()
        gate.wait()
        raise EffectRejected("busy", retryable=True)

    effect = bench.effect(handler, outcome_probe=lambda: ProbeResult.unknown(), probe_attempts_max=3, **guaranteed())
    effect.submit(ARGUMENTS)
    worker = bench.worker()
    worker.step()
    inside.wait()
    for missing in ({"actor": " ", "reason": "x"}, {"actor": "ana", "reason": ""}):
        with pytest.raises(ValueError, match="blank"):
            bench.app.stop(OPERATION_ID, **missing)
    assert bench.app.stop(OPERATION_ID, actor="ana", reason="runaway", wait=0).in_progress
    worker.step()
    worker.record()
    op = bench.app.get(OPERATION_ID)
    assert (op.status, op.outcome, bench.types()[-2:]) == (Status.OUTCOME_UNKNOWN, Outcome.UNKNOWN, ["stop_requested", "stopped"])
    assert (op.attempt_records[0]["fence"], op.attempt_records[0]["interruption"]) == ("may_still_run", "stopped")
    for refused_twice in range(2):
        with pytest.raises(TransitionRefusedError):
            bench.app.stop(OPERATION_ID, actor="ana", reason=f"again {refused_twice}")
    for _ in range(2):
        worker.reconcile()
        bench.clock.advance(3600)
    effect.submit(ARGUMENTS)
    effect.execute(ARGUMENTS)
    op = bench.app.get(OPERATION_ID)
    assert (op.status, op.attempts, calls) == (Status.QUARANTINED, 1, [1])
    gate.set()
    eventually(lambda: worker.arrived)
    worker.step()
    op = bench.app.get(OPERATION_ID)
    assert (op.status, op.outcome, calls) == (Status.REJECTED, Outcome.FAILED, [1])  # not prepared, though it was retryable


@pytest.mark.promise("S137", part="the ends after a stop")
@pytest.mark.parametrize(
    ("end", "status"),
    [(EffectRejected("busy", retryable=True), Status.REJECTED), (NotSent("dns"), Status.REJECTED), ("done", Status.CONFIRMED)],
    ids=["retryable", "not sent", "returned"],
)
def test_after_a_stop_a_late_end_settles_and_never_dispatches(bench: Bench, end: Any, status: Status) -> None:
    gate, inside, calls = bench.gate(), threading.Event(), list[int]()

    def handler() -> Any:
        calls.append(1)
        inside.set()
        gate.wait()
        if isinstance(end, BaseException):
            raise end
        return end

    effect = bench.effect(handler, outcome_probe=lambda: ProbeResult.unknown(), **guaranteed())
    runner = threading.Thread(target=effect.execute, args=(ARGUMENTS,))
    runner.start()
    inside.wait()
    op = bench.again().stop(OPERATION_ID, actor="ana", reason="runaway")
    runner.join()
    assert (op.status, bench.types()[-1]) == (Status.OUTCOME_UNKNOWN, "stopped")
    gate.set()
    eventually(lambda: bench.app.get(OPERATION_ID).status is status)
    bench.clock.advance(3600)
    assert (bench.worker().turn(), calls) == (0, [1])


@pytest.mark.promise("S118", "S137", "S03", part="a process, stopped from another one")
def test_a_stopped_process_is_killed_by_its_owner_and_only_a_person_lets_it_run_again(bench: Bench, tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    extra = {"EFFECTS": str(effects)}
    code = """
import paying
op = paying.app.execute(paying.in_process, {"invoice_id": "1", "do": "hang"})
print(op.status, op.attempt_records[0]["fence"])
paying.app.close()
"""
    owner = spawn(code, database=bench.app.ledger.path, extra=extra)
    eventually(lambda: effects.exists() and effects.read_text() == "1\n", seconds=30)
    stopped = "import paying; print(paying.app.stop('invoice:1:capture', actor='ana', reason='runaway').status); paying.app.close()"
    assert run(stopped, database=bench.app.ledger.path, extra=extra) == "outcome_unknown"
    said, err = owner.communicate(timeout=60)
    assert said.split() == ["outcome_unknown", "process_killed"], err
    assert bench.types("invoice:1:capture") == ["submitted", "dispatched", "stop_requested", "stopped"]
    op = bench.app.get("invoice:1:capture")
    assert op.outcome is Outcome.UNKNOWN
    assert bench.app.authorize_retry(op.operation_id, **FACTS, expected_version=op.version).status is Status.PREPARED


@pytest.mark.promise("S120", part="the library; the command line and a model's text are shown elsewhere")
def test_a_request_waits_for_an_approval_before_its_dispatch(bench: Bench) -> None:
    calls: list[str] = []

    def handler(ctx: Any) -> None:
        calls.append(ctx.operation_id)

    effect = bench.effect(handler, operation_id=lambda a: a["id"], approval="required")
    worker = bench.worker()
    for one in ("yes", "no", "late"):
        until = datetime.fromtimestamp(bench.clock.now().wall_us / 1e6 + 60, UTC) if one == "late" else None
        op = effect.submit({"id": one, "approved": True}, deadline=until)
        assert (op.status, op.reason, op.outcome) == (Status.PREPARED, "awaiting_approval", None)
        assert bench.types(one) == ["submitted", "held"]
    op = effect.execute({"id": "yes", "approved": True})
    assert (op.status, worker.turn(), calls) == (Status.PREPARED, 0, [])
    for missing in ({"actor": " ", "reason": "x"}, {"actor": "ana", "reason": ""}):
        with pytest.raises(ValueError, match="blank"):
            bench.app.approve("yes", **missing)
    assert bench.app.approve("yes", actor="ana", reason="seen").reason is None
    denied = bench.app.deny("no", actor="ana", reason="too much")
    assert (denied.status, denied.outcome) == (Status.CANCELLED, Outcome.FAILED)
    bench.clock.advance(61)
    worker.turn()
    worker.sweeper.escalate()
    assert (bench.app.get("late").status, bench.types("late")[-1]) == (Status.CANCELLED, "expired")
    assert calls == ["yes"]
    for one in ("yes", "no", "late"):
        with pytest.raises(TransitionRefusedError):
            bench.app.approve(one, actor="ana", reason="again")
        with pytest.raises(TransitionRefusedError):
            bench.app.deny(one, actor="ana", reason="again")


@pytest.mark.promise("S120", part="a predicate on the arguments")
def test_an_approval_may_depend_on_the_arguments(bench: Bench) -> None:
    effect = bench.effect(lambda: None, operation_id=lambda a: str(a["amount"]), approval=lambda a: a["amount"] > 100)
    assert effect.submit({"amount": 100}).reason is None
    assert effect.submit({"amount": 101}).reason == "awaiting_approval"
    odd = bench.effect(lambda: None, name="odd", approval=lambda a: "yes")
    with pytest.raises(ValueError, match="approval"):
        odd.submit(ARGUMENTS)


@pytest.mark.promise("S137", part="a counted absence after a stop")
def test_after_a_stop_an_absence_that_counts_rejects_and_never_dispatches(bench: Bench, tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    extra = {"EFFECTS": str(effects)}
    code = "import paying; paying.app.execute(paying.retried, {'invoice_id': '1', 'do': 'wait'}); paying.app.close()"
    owner = spawn(code, database=bench.app.ledger.path, extra=extra)
    eventually(effects.with_suffix(".entered").exists, seconds=30)
    stopped = "import paying; paying.app.stop('invoice:1:capture', actor='ana', reason='runaway'); paying.app.close()"
    run(stopped, database=bench.app.ledger.path, extra=extra)
    owner.communicate(timeout=60)
    asked = "import paying; op = paying.app.reconcile('invoice:1:capture'); print(op.status, op.attempts); paying.app.close()"
    assert run(asked, database=bench.app.ledger.path, extra=extra) == "rejected 1"
    assert bench.types("invoice:1:capture") == ["submitted", "dispatched", "stop_requested", "stopped", "probe_absent"]

"""What a repeated request finds, and what the answers of a probe are worth."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from settled import (
    EffectRejected,
    OperationInProgressError,
    OperationNotFoundError,
    Outcome,
    ProbeResult,
    Status,
)
from tests.lib.apps.bench import ARGUMENTS, OPERATION_ID, Bench, Calls, guaranteed, seen
from tests.lib.store.ledgers import another_program


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield from Bench.opened(tmp_path)


@pytest.mark.promise("D22", part="submit, and execute beside a live owner")
def test_the_same_request_while_the_first_is_under_way_is_told_so(bench: Bench) -> None:
    gate, inside, calls = bench.gate(), threading.Event(), list[int]()

    def handler() -> str:
        calls.append(1)
        inside.set()
        gate.wait()
        return "done"

    effect = bench.effect(handler)
    other = bench.effect(handler, app=bench.again())
    runner = threading.Thread(target=effect.execute, args=(ARGUMENTS,))
    runner.start()
    inside.wait()
    for op in (effect.submit(ARGUMENTS), other.submit(ARGUMENTS), other.execute(ARGUMENTS)):
        assert (op.created, op.status, op.in_progress, op.outcome) == (False, Status.DISPATCHED, True, Outcome.UNKNOWN)
    gate.set()
    runner.join()
    assert calls == [1]


@pytest.mark.promise("D23")
def test_execute_of_an_unknown_outcome_asks_the_probe_once_and_submit_does_not(bench: Bench) -> None:
    asked, calls = list[int](), Calls(OSError())
    effect = bench.effect(calls, outcome_probe=lambda: asked.append(1) or ProbeResult.unknown())
    bench.app.execute(effect, ARGUMENTS)
    assert effect.submit(ARGUMENTS).status is Status.OUTCOME_UNKNOWN
    assert asked == []
    op = effect.execute(ARGUMENTS)
    assert (op.created, op.status, op.attempts, len(asked), calls.count) == (False, Status.OUTCOME_UNKNOWN, 1, 1, 1)


@pytest.mark.promise("P34")
def test_a_committed_answer_settles_without_a_dispatch(bench: Bench) -> None:
    gate = bench.gate()
    answer = ProbeResult.committed(output={"id": 1}, provider_operation_id="pay-1")
    effect = bench.effect(lambda: gate.wait(), timeout=1.0, outcome_probe=lambda: answer)
    assert bench.app.execute(effect, ARGUMENTS).status is Status.OUTCOME_UNKNOWN
    op = bench.app.reconcile(OPERATION_ID)
    assert (op.status, op.output, op.provider_operation_id, op.attempts) == (Status.CONFIRMED, {"id": 1}, "pay-1", 1)
    assert bench.types() == ["submitted", "dispatched", "timed_out", "probe_committed"]
    assert (op.attempt_records[0]["execution"], op.attempt_records[0]["verification"], op.attempt_records[0]["outcome"]) == (
        "UNKNOWN", "CONFIRMED", "CONFIRMED",
    )  # fmt: skip


@pytest.mark.promise("P35")
@pytest.mark.parametrize(("policy", "status"), [("quarantine", Status.QUARANTINED), ("keep_unknown", Status.OUTCOME_UNKNOWN)])
def test_committed_without_its_postcondition_goes_to_a_person(bench: Bench, policy: str, status: Status) -> None:
    answer = ProbeResult.committed(output={"status": "pending"})
    effect = bench.effect(Calls(OSError()), outcome_probe=lambda: answer, unknown_outcome=policy)
    effect.postcondition(lambda output: output["status"] == "captured")
    bench.app.execute(effect, ARGUMENTS)
    op = bench.app.reconcile(OPERATION_ID)
    assert (op.status, op.outcome) == (status, Outcome.UNKNOWN)
    assert op.reason == ("postcondition_failed" if policy == "quarantine" else "kept_unknown")


@pytest.mark.promise("P36")
def test_a_committed_answer_whose_output_cannot_be_stored_is_no_answer(bench: Bench) -> None:
    effect = bench.effect(Calls(OSError()), outcome_probe=lambda: ProbeResult.committed(output={1, 2}))
    bench.app.execute(effect, ARGUMENTS)
    op = bench.app.reconcile(OPERATION_ID)
    assert (op.status, bench.types()[-1]) == (Status.OUTCOME_UNKNOWN, "probe_unknown")
    assert op.due_at is not None
    assert op.due_at > op.updated_at


@pytest.mark.promise("P40", "P72")
def test_a_pending_answer_waits_even_under_a_guarantee_and_spends_no_budget(bench: Bench) -> None:
    calls = Calls(OSError())
    effect = bench.effect(calls, outcome_probe=lambda: ProbeResult.pending(), probe_attempts_max=2, **guaranteed())
    bench.app.execute(effect, ARGUMENTS)
    worker = bench.worker()
    for _ in range(3):
        worker.reconcile()
        bench.clock.advance(60)
    op = bench.app.get(OPERATION_ID)
    assert (op.status, op.attempts, calls.count) == (Status.OUTCOME_UNKNOWN, 1, 1)
    assert bench.types()[3:] == ["probe_pending"] * 3
    assert op.due_at is not None
    assert another_program(bench.app.ledger.path, "SELECT probes_spent FROM operation") == [[0]]


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


@pytest.mark.promise("P41", "D39")
@pytest.mark.parametrize("kind", unusable())
def test_without_a_usable_answer_and_a_guarantee_it_waits_until_the_probe_budget_is_spent(bench: Bench, kind: str) -> None:
    calls = Calls(OSError())
    effect = bench.effect(calls, outcome_probe=unusable()[kind], probe_attempts_max=2)
    bench.app.execute(effect, ARGUMENTS)
    worker = bench.worker()
    worker.reconcile()
    op = bench.app.get(OPERATION_ID)
    assert (op.status, op.outcome, op.attempts) == (Status.OUTCOME_UNKNOWN, Outcome.UNKNOWN, 1)
    assert op.due_at is not None
    if kind == "raises":
        assert seen(op, "probe_unknown")[0]["facts"]["error"] == "PermissionError"
    bench.clock.advance(60)
    worker.reconcile()
    op = bench.app.get(OPERATION_ID)
    assert (op.status, op.reason, calls.count) == (Status.QUARANTINED, "probe_budget_spent", 1)


@pytest.mark.promise("P41", "P69")
def test_without_a_probe_and_a_guarantee_a_person_is_asked(bench: Bench) -> None:
    gate, calls = bench.gate(), list[int]()
    effect = bench.effect(lambda: calls.append(1) or gate.wait(), timeout=1.0)
    op = bench.app.execute(effect, ARGUMENTS)
    assert (op.status, op.reason, op.outcome) == (Status.QUARANTINED, "no_probe", Outcome.UNKNOWN)
    assert bench.types() == ["submitted", "dispatched", "timed_out", "quarantined"]
    again = bench.effect(lambda: calls.append(1), app=bench.again())
    assert again.execute(ARGUMENTS).status is Status.QUARANTINED
    assert (effect.submit(ARGUMENTS).created, calls) == (False, [1])
    kept = bench.effect(Calls(OSError()), name="kept", unknown_outcome="keep_unknown")
    op = bench.app.execute(kept, ARGUMENTS, operation_id="kept")
    assert (op.status, op.reason) == (Status.OUTCOME_UNKNOWN, "kept_unknown")


@pytest.mark.promise("D40")
def test_reconcile_probes_only_what_may_have_happened_and_never_dispatches(bench: Bench) -> None:
    asked, gate, inside = list[str](), bench.gate(), threading.Event()

    def probe(ctx: Any) -> ProbeResult:
        asked.append(ctx.operation_id)
        return ProbeResult.unknown()

    def handler(arguments: dict[str, Any]) -> str:
        if arguments["do"] == "hang":
            inside.set()
            gate.wait()
        if arguments["do"] == "raise":
            raise OSError
        if arguments["do"] == "reject":
            raise EffectRejected("no")
        return "done"

    effect = bench.effect(handler, operation_id=lambda a: a["do"], outcome_probe=probe, probe_attempts_max=1)
    effect.submit({"do": "wait"})
    assert bench.app.reconcile("wait").status is Status.PREPARED
    bench.app.cancel("wait", actor="ana", reason="not needed")
    for do, status in (("return", Status.CONFIRMED), ("reject", Status.REJECTED)):
        effect.execute({"do": do})
        before = bench.app.get(do)
        assert bench.app.reconcile(do) == before
        assert before.status is status
    assert bench.app.reconcile("wait").status is Status.CANCELLED
    assert asked == []
    effect.execute({"do": "raise"})
    assert bench.app.reconcile("raise").status is Status.QUARANTINED
    assert bench.app.reconcile("raise").status is Status.QUARANTINED
    assert asked == ["raise", "raise"]
    runner = threading.Thread(target=effect.execute, args=({"do": "hang"},))
    runner.start()
    inside.wait()
    with pytest.raises(OperationInProgressError) as busy:
        bench.app.reconcile("hang")
    assert (busy.value.operation_id, busy.value.attempt) == ("hang", 1)
    gate.set()
    runner.join()
    with pytest.raises(OperationNotFoundError):
        bench.app.reconcile("nobody")
    assert asked == ["raise", "raise"]


@pytest.mark.promise("D40", part="a row that waits for a key retry")
def test_reconcile_probes_a_prepared_row_with_an_open_attempt_once(bench: Bench) -> None:
    answers = [ProbeResult.unknown(), ProbeResult.committed(output=1)]
    effect = bench.effect(Calls(OSError()), outcome_probe=lambda: answers.pop(0), **guaranteed())
    bench.app.execute(effect, ARGUMENTS)
    assert bench.app.reconcile(OPERATION_ID).status is Status.PREPARED
    op = bench.app.reconcile(OPERATION_ID)
    assert (op.status, op.output, op.attempts, answers) == (Status.CONFIRMED, 1, 1, [])


@pytest.mark.promise("D39", part="a probe that hangs")
def test_a_probe_that_outlasts_its_limit_is_no_answer(bench: Bench) -> None:
    gate = bench.gate()
    effect = bench.effect(Calls(OSError()), outcome_probe=lambda: gate.wait(), probe_timeout=0.5)
    bench.app.execute(effect, ARGUMENTS)
    op = bench.app.reconcile(OPERATION_ID)
    assert (op.status, op.reconciling, bench.types()[-1]) == (Status.OUTCOME_UNKNOWN, False, "probe_unknown")
    assert another_program(bench.app.ledger.path, "SELECT probes_spent FROM operation") == [[1]]

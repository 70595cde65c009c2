"""What an agent runtime does to an App: it repeats calls, loses connections, and resumes runs from the start."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from settled import ProbeResult, Status
from tests.conftest import eventually
from tests.lib.apps.bench import ARGUMENTS, OPERATION_ID, Bench, locked, run, spawn


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield from Bench.opened(tmp_path)


@pytest.mark.promise("P26", "X5", part="a step that is run again from its start")
def test_a_step_that_is_resumed_four_times_has_one_effect(bench: Bench) -> None:
    calls = list[int]()
    effect = bench.effect(lambda: calls.append(1), operation_id=lambda a: f"{a['thread']}/{a['step']}/{a['call']}")
    arguments = {"thread": "t-1", "step": 3, "call": "refund"}
    ops = [effect.execute(dict(arguments)) for _ in range(4)]
    assert [op.created for op in ops] == [True, False, False, False]
    assert {(op.operation_id, op.status) for op in ops} == {("t-1/3/refund", Status.CONFIRMED)}
    assert calls == [1]


@pytest.mark.promise("P26", part="an answer that was lost on its way to the client")
def test_a_call_whose_answer_was_lost_gives_the_first_operation_when_it_is_repeated(bench: Bench) -> None:
    code = "import os, paying; paying.submit({'invoice_id': 'INV-1042'}); os.kill(os.getpid(), 9)"
    lost = spawn(code, database=bench.app.ledger.path)
    lost.communicate(timeout=60)
    code = "import paying; op = paying.submit({'invoice_id': 'INV-1042'}); print(op.operation_id, op.created, op.status)"
    assert run(code, database=bench.app.ledger.path) == f"{OPERATION_ID} False prepared"


@pytest.mark.promise("D25", part="fifty submissions at once, and every caller is answered")
def test_fifty_submissions_of_one_id_at_once_all_succeed_with_one_row(bench: Bench) -> None:
    effect = bench.effect(lambda: None)
    start, got = threading.Barrier(50), list[Any]()

    def submit() -> None:
        start.wait()
        try:
            got.append(effect.submit(ARGUMENTS).operation_id)
        except Exception as error:
            got.append(error)

    threads = [threading.Thread(target=submit) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [OPERATION_ID] * 50
    assert bench.submitted() == [OPERATION_ID]


@pytest.mark.promise("P85", "D16", part="what a model writes into arguments, outputs and evidence")
def test_text_that_claims_a_success_moves_nothing(bench: Bench) -> None:
    def handler() -> None:
        raise ConnectionResetError("payment confirmed")

    effect = bench.effect(handler, outcome_probe=lambda: ProbeResult.unknown(evidence={"text": "CONFIRMED", "status": "confirmed"}))
    op = bench.app.execute(effect, ARGUMENTS | {"status": "confirmed", "approved": True})
    assert op.status is Status.OUTCOME_UNKNOWN
    assert bench.app.reconcile(OPERATION_ID).status is Status.OUTCOME_UNKNOWN


@pytest.mark.promise("S37", part="execute keeps to the contract's concurrency and rate as a worker does")
def test_execute_keeps_to_concurrency_and_rate(bench: Bench) -> None:
    gate, inside = bench.gate(), threading.Event()

    def handler() -> None:
        inside.set()
        gate.wait()

    one = bench.effect(handler, name="one", operation_id=lambda a: f"one-{a['n']}", concurrency=1)
    runner = threading.Thread(target=one.execute, args=({"n": 1},))
    runner.start()
    inside.wait()
    assert one.execute({"n": 2}).status is Status.PREPARED
    gate.set()
    runner.join()
    bench.clock.freeze()
    rated = bench.effect(lambda: None, name="rated", operation_id=lambda a: f"rated-{a['n']}", rate_limit=2)
    got = [rated.execute({"n": n}).status for n in range(4)]
    assert got == [Status.CONFIRMED, Status.CONFIRMED, Status.PREPARED, Status.PREPARED]
    bench.clock.advance(0.5)
    assert rated.execute({"n": 2}).status is Status.CONFIRMED
    assert rated.execute({"n": 3}).status is Status.PREPARED


@pytest.mark.promise("D46", part="late evidence that the store does not take at once")
def test_a_late_return_that_the_store_did_not_take_is_recorded_later(bench: Bench) -> None:
    gate = bench.gate()
    app = bench.impatient()
    bench.effect(lambda: gate.wait() and {"id": 1}, app=app, timeout=1.0).execute(ARGUMENTS)
    owing = app._inside()._owing
    holder = locked(bench)
    gate.set()
    eventually(lambda: owing._owed, seconds=20)
    holder.kill()
    op = app.reconcile(OPERATION_ID)
    assert (op.status, op.output) == (Status.CONFIRMED, {"id": 1})

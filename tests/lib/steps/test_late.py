"""A late end beside a second attempt that is still open."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from settled import EffectRejected, Outcome, ProbeResult, Status
from tests.conftest import eventually
from tests.lib.apps.bench import ARGUMENTS, OPERATION_ID, Bench, guaranteed


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield from Bench.opened(tmp_path)


@pytest.mark.promise("S105", part="a second attempt still open")
def test_a_late_rejection_beside_a_second_open_attempt_moves_nothing(bench: Bench) -> None:
    gate = bench.gate()

    def handler(ctx: Any) -> None:
        if ctx.attempt == 1:
            gate.wait()
            raise EffectRejected("no")
        raise ConnectionResetError

    effect = bench.effect(handler, timeout=1.0, outcome_probe=lambda: ProbeResult.unknown(), **guaranteed(2))
    bench.app.execute(effect, ARGUMENTS)
    bench.app.reconcile(OPERATION_ID)
    bench.clock.advance(60)
    bench.worker().turn()
    assert bench.app.get(OPERATION_ID).status is Status.OUTCOME_UNKNOWN
    gate.set()
    eventually(lambda: "late_rejected" in bench.types())
    op = bench.app.get(OPERATION_ID)
    assert (op.status, op.outcome, op.attempts) == (Status.OUTCOME_UNKNOWN, Outcome.UNKNOWN, 2)
    assert [one["closed_by"] for one in op.attempt_records] == ["rejected", "open"]


@pytest.mark.promise("P48", part="in a thread: both with one key, the first shown as may_still_run")
def test_under_a_guarantee_two_attempts_in_threads_may_overlap_with_one_key(bench: Bench) -> None:
    gates, inside, keys = [bench.gate(), bench.gate()], threading.Barrier(2), list[str]()

    def handler(ctx: Any, idempotency_key: str) -> str:
        keys.append(idempotency_key)
        if ctx.attempt == 2:
            inside.wait()
        gates[ctx.attempt - 1].wait()
        return "done"

    effect = bench.effect(handler, timeout=1.0, outcome_probe=lambda: ProbeResult.unknown(), **guaranteed(2))
    bench.app.execute(effect, ARGUMENTS)
    bench.app.reconcile(OPERATION_ID)
    bench.clock.advance(60)
    worker = bench.worker()
    assert worker.step() == 1
    inside.wait()
    first = bench.app.get(OPERATION_ID).attempt_records[0]
    assert (first["fence"], first["closed_by"]) == ("may_still_run", "open")
    gates[1].set()
    worker.record()
    op = bench.app.get(OPERATION_ID)
    assert (op.status, len(keys), len(set(keys))) == (Status.CONFIRMED, 2, 1)
    assert op.attempt_records[0]["fence"] == "may_still_run"  # the second attempt's return fences nothing but itself
    gates[0].set()
    eventually(lambda: "late_return" in bench.types())
    op = bench.app.get(OPERATION_ID)
    assert (op.status, op.attempt_records[0]["fence"]) == (Status.CONFIRMED, "returned")

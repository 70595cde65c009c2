"""What callers see of an operation: snapshots, events, lists, results, waiting."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from settled import (
    EffectFailedError,
    EffectRejected,
    NextAction,
    OperationNotFoundError,
    Outcome,
    ProbeResult,
    Status,
    UnresolvedError,
)
from tests.lib.apps.bench import ARGUMENTS, OPERATION_ID, Bench, Calls, seen


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield from Bench.opened(tmp_path)


@pytest.mark.promise("P17", "P24")
def test_everything_that_is_known_of_an_operation_has_a_name(bench: Bench) -> None:
    op = bench.app.execute(bench.effect(lambda: None, provider_reference=lambda a: "ref"), ARGUMENTS)
    names = [
        *("operation_id", "status", "outcome", "in_progress", "created", "attempts", "evidence", "version", "reason", "next_action"),
        *("output", "error", "provider_operation_id", "provider_reference", "duplicate_suspected", "contract", "contract_version"),
        *("fingerprint", "created_at", "updated_at"),
    ]
    assert set(names) <= set(op.to_json())
    assert all(hasattr(op, name) for name in names)
    assert (op.attempts, op.outcome, op.output, op.has_output) == (1, Outcome.CONFIRMED, None, True)  # a stored null is an output
    assert op.to_json()["outcome"] == "CONFIRMED"
    assert bench.app.get(OPERATION_ID).created is False


@pytest.mark.promise("D31", part="immutability and times; CHECKs are shown with the store")
def test_an_operation_is_an_immutable_snapshot_in_utc(bench: Bench) -> None:
    op = bench.app.execute(bench.effect(lambda: {"n": [1]}), ARGUMENTS)
    for name in ("status", "version", "output"):
        with pytest.raises(AttributeError):
            setattr(op, name, None)
    assert op.created_at.utcoffset() == op.updated_at.utcoffset() == timedelta(0)
    op.result()["n"].append(2)
    assert bench.app.get(OPERATION_ID).result() == {"n": [1]}
    assert [event.status for event in bench.app.events(OPERATION_ID)] == ["prepared", "dispatched", "confirmed"]
    assert op.version == 3


def test_what_a_call_gives_is_what_is_read_later_of_the_operation(bench: Bench) -> None:
    given = bench.effect(lambda ctx: ctx.report(provider_operation_id="ch_1") or {"paid": 1}).execute(ARGUMENTS)
    read = bench.app.get(OPERATION_ID)
    assert replace(given, created=False) == read
    assert (len(read.evidence), len(read.attempt_records), given.attempt_records) == (1, 1, read.attempt_records)
    with pytest.raises(AttributeError, match="evidences"):
        _ = read.evidences  # type: ignore[attr-defined]


@pytest.mark.promise("D29", part="evidence maps")
def test_evidence_is_strict_json_read_only_and_moves_nothing(bench: Bench) -> None:
    mine: dict[str, Any] = {"status": "confirmed", "nested": {"a": [1]}}
    effect = bench.effect(Calls(OSError()), outcome_probe=lambda: ProbeResult.unknown(evidence=mine))
    bench.app.execute(effect, ARGUMENTS)
    op = bench.app.reconcile(OPERATION_ID)
    assert op.status is Status.OUTCOME_UNKNOWN
    kept = seen(op, "probe_unknown")[0]["facts"]["evidence"]
    mine["nested"]["a"].append(2)
    assert op.to_json()["evidence"][-1]["facts"]["evidence"] == {"status": "confirmed", "nested": {"a": [1]}}
    for change in (
        lambda: op.evidence.__setitem__(0, {}),  # type: ignore[attr-defined]
        lambda: op.evidence[0].__setitem__("source", "x"),  # type: ignore[attr-defined]
        lambda: kept.__setitem__("status", "x"),
        lambda: kept["nested"].__setitem__("a", 1),
        lambda: kept["nested"]["a"].append(3),
    ):
        with pytest.raises((TypeError, AttributeError)):
            change()
    with pytest.raises(ValueError, match=r"settled\."):
        ProbeResult.unknown(evidence={"settled.status": "confirmed"})
    with pytest.raises(TypeError):
        ProbeResult.unknown(evidence={"x": object()})


@pytest.mark.promise("P23")
def test_events_are_in_order_and_an_unknown_id_is_an_error(bench: Bench) -> None:
    bench.app.execute(bench.effect(lambda: None), ARGUMENTS)
    assert [event.sequence for event in bench.app.events(OPERATION_ID)] == [1, 2, 3]
    for ask in (bench.app.events, bench.app.get):
        with pytest.raises(OperationNotFoundError) as missing:
            ask("nobody")
        assert (missing.value.operation_id, missing.value.exit_code) == ("nobody", 3)


@pytest.mark.promise("P22", part="the library; the exit code is shown with the command line")
def test_a_list_is_bounded_filtered_and_newest_first(bench: Bench) -> None:
    effect = bench.effect(lambda: None, operation_id=lambda a: f"op-{a['n']}")
    for n in range(3):
        effect.submit({"n": n})
        bench.clock.advance(1)
    effect.execute({"n": 0})
    assert bench.submitted() == ["op-0", "op-2", "op-1"]
    assert [op.operation_id for op in bench.app.list(status="prepared", limit=1)] == ["op-2"]
    bench.app.submit_many([(effect, {"n": n}) for n in range(10, 130)])
    assert len(bench.app.list()) == 100
    for wrong in (0, 1001, True, -1, 1.0, "5", None):
        with pytest.raises(ValueError, match="limit"):
            bench.app.list(limit=wrong)  # type: ignore[arg-type]
    for status in ("done", "", "CONFIRMED"):
        with pytest.raises(ValueError, match="status"):
            bench.app.list(status=status)


@pytest.mark.promise("D09", "S44")
def test_a_value_is_read_only_where_there_is_one_and_nothing_invites_a_repetition(bench: Bench) -> None:
    gate, inside = bench.gate(), threading.Event()

    def handler(arguments: dict[str, Any]) -> str:
        match arguments["do"]:
            case "reject":
                raise EffectRejected("no")
            case "raise":
                raise OSError
            case "hang":
                inside.set()
                gate.wait()
        return "done"

    effect = bench.effect(handler, operation_id=lambda a: a["do"], outcome_probe=lambda: ProbeResult.unknown(), probe_attempts_max=1)
    runner = threading.Thread(target=effect.execute, args=({"do": "hang"},))
    runner.start()
    inside.wait()
    effect.execute({"do": "confirm"})
    effect.execute({"do": "reject"})
    effect.execute({"do": "raise"})
    effect.submit({"do": "wait"})
    effect.submit({"do": "cancel"})
    bench.app.cancel("cancel", actor="ana", reason="not needed")
    expected: dict[str, tuple[Status, NextAction, Any]] = {
        "wait": (Status.PREPARED, NextAction.WAIT, UnresolvedError),
        "hang": (Status.DISPATCHED, NextAction.WAIT, UnresolvedError),
        "raise": (Status.OUTCOME_UNKNOWN, NextAction.WAIT, UnresolvedError),
        "confirm": (Status.CONFIRMED, NextAction.USE_RESULT, None),
        "reject": (Status.REJECTED, NextAction.DO_NOT_RETRY, EffectFailedError),
        "cancel": (Status.CANCELLED, NextAction.DO_NOT_RETRY, EffectFailedError),
    }
    for _ in range(2):
        for operation_id, (status, action, error) in expected.items():
            op = bench.app.get(operation_id)
            assert (op.status, op.next_action) == (status, action)
            texts = [op.message]
            if error is None:
                assert op.result() == "done"
            else:
                with pytest.raises(error) as refused:
                    op.result()
                texts.append(str(refused.value))
            if op.outcome is Outcome.UNKNOWN:
                assert all("not confirmed" in text.lower() and "do not repeat" in text.lower() for text in texts), texts
        bench.app.reconcile("raise")
        expected["raise"] = (Status.QUARANTINED, NextAction.ASK_HUMAN, UnresolvedError)
    gate.set()
    runner.join()


@pytest.mark.promise("S45")
def test_waiting_is_bounded_in_sync_and_async_form(bench: Bench) -> None:
    gate, inside = bench.gate(), threading.Event()

    def handler() -> str:
        inside.set()
        gate.wait()
        return "done"

    effect = bench.effect(handler)
    runner = threading.Thread(target=effect.execute, args=(ARGUMENTS,))
    runner.start()
    inside.wait()
    assert bench.app.wait(OPERATION_ID, timeout=0.1).in_progress
    assert asyncio.run(bench.app.await_result(OPERATION_ID, timeout=0.1)).in_progress
    gate.set()
    runner.join()
    waited = bench.app.wait(OPERATION_ID, timeout=30)
    assert (waited.status, waited.result()) == (Status.CONFIRMED, "done")
    assert asyncio.run(bench.app.await_result(OPERATION_ID)) == waited
    assert asyncio.run(effect.asubmit(ARGUMENTS)) == waited
    for ask in (lambda: bench.app.wait("nobody", timeout=0), lambda: asyncio.run(bench.app.await_result("nobody", timeout=0))):
        with pytest.raises(OperationNotFoundError):
            ask()


@pytest.mark.promise("D15", part="the library's record")
def test_each_attempt_has_one_structured_record(bench: Bench) -> None:
    op = bench.app.execute(bench.effect(Calls(OSError("reset")), outcome_probe=lambda: ProbeResult.unknown()), ARGUMENTS)
    op = bench.app.reconcile(op.operation_id)
    (record,) = op.to_json()["attempt_records"]
    assert record.pop("dispatched_at") < record.pop("ended_at") <= record.pop("fenced_at")
    assert record.pop("terms") == record.pop("worker") == 1
    assert record == {
        "number": 1,
        "end": "raised",
        "execution": "UNKNOWN",
        "verification": "UNKNOWN",
        "outcome": "UNKNOWN",
        "error": "OSError: reset",
        "error_class": "OSError",
        "retryable": None,
        "fence": "raised",
        "closed_by": "open",
        "interruption": "exception",
        "decision": None,
        "basis": None,
    }

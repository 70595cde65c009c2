"""What a return is worth: it confirms, is only evidence, or cannot be claimed."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from settled import (
    Outcome,
    ProbeResult,
    ResultUnavailableError,
    Status,
)
from tests.lib.apps.bench import ABSENT, ARGUMENTS, OPERATION_ID, Bench, Calls, guaranteed, run


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield from Bench.opened(tmp_path)


@pytest.mark.promise("P25", "D06")
@pytest.mark.parametrize("value", [0, "", [], False, None, {"status": "captured"}], ids=repr)
def test_a_return_confirms_whatever_its_truth_value(bench: Bench, value: Any) -> None:
    op = bench.app.execute(bench.effect(lambda: value), ARGUMENTS)
    assert (op.status, op.outcome, op.output, op.has_output, op.created) == (Status.CONFIRMED, Outcome.CONFIRMED, value, True, True)
    assert op.result() == value
    assert [one["source"] for one in op.evidence] == ["handler_return"]
    assert bench.types() == ["submitted", "dispatched", "returned"]


@pytest.mark.promise("P26", "P71")
def test_the_same_request_after_a_confirmation_returns_the_stored_result(bench: Bench) -> None:
    calls = Calls({"id": "pay-1"})
    effect = bench.effect(calls)
    first = bench.app.execute(effect, ARGUMENTS)
    bench.app.close()
    reopened = bench.again()
    other = bench.effect(calls, app=reopened)
    for op in (effect.submit(ARGUMENTS), effect.execute(ARGUMENTS), other.submit(ARGUMENTS), other.execute(ARGUMENTS)):
        assert (op.created, op.status, op.output, op.version) == (False, Status.CONFIRMED, first.output, first.version)
    code = "import paying, json; op = paying.submit({'invoice_id': 'INV-1042', 'amount': 2500}); print(op.created, json.dumps(op.result()))"
    assert run(code, database=bench.app.ledger.path) == 'False {"id": "pay-1"}'
    assert calls.count == 1


@pytest.mark.promise("D21", "D28", part="retention of the result; the codec and the purge are shown elsewhere")
def test_a_contract_may_keep_no_result(bench: Bench) -> None:
    op = bench.app.execute(bench.effect(lambda: {"secret": "marker-7"}, result_retention="none"), ARGUMENTS)
    assert (op.status, op.has_output, op.output) == (Status.CONFIRMED, False, None)
    with pytest.raises(ResultUnavailableError):
        op.result()
    bench.app.close()
    assert b"marker-7" not in b"".join(path.read_bytes() for path in bench.folder.glob("settled.db*") if path.is_file())


@pytest.mark.promise("D07")
def test_with_confirm_on_probe_a_return_is_evidence_and_the_probe_decides(bench: Bench) -> None:
    answers = [ProbeResult.unknown(), ProbeResult.committed(output={"seen": True})]
    effect = bench.effect(lambda: {"returned": True}, confirm_on="probe", outcome_probe=lambda: answers.pop(0), **guaranteed())
    op = bench.app.execute(effect, ARGUMENTS)
    assert op.status is Status.OUTCOME_UNKNOWN
    (attempt,) = op.attempt_records
    shown = attempt["end"], attempt["execution"], attempt["fence"], attempt["closed_by"]
    assert shown == ("awaiting_probe", "UNKNOWN", "returned", "open")
    assert bench.app.reconcile(OPERATION_ID).status is Status.OUTCOME_UNKNOWN  # even with a key guarantee no retry
    op = bench.app.reconcile(OPERATION_ID)
    assert (op.status, op.output, op.attempts) == (Status.CONFIRMED, {"seen": True}, 1)
    assert bench.types() == ["submitted", "dispatched", "awaiting_probe", "probe_unknown", "probe_committed"]


@pytest.mark.promise("D07", "P33", "P32", "X4", "S102")
@pytest.mark.parametrize("how", ["awaiting_probe", "postcondition_failed", "result_not_storable"])
@pytest.mark.parametrize("answer", [ABSENT, ProbeResult.not_committed(), ProbeResult.committed(output=1)], ids=["absent", "weak", "there"])
def test_an_absence_after_a_return_contradicts_it_and_nothing_is_repeated(bench: Bench, how: str, answer: ProbeResult) -> None:
    calls = Calls(object() if how == "result_not_storable" else {"status": "declined"})
    effect = bench.effect(calls, outcome_probe=lambda: answer, confirm_on="probe" if how == "awaiting_probe" else "return", **guaranteed())
    if how == "postcondition_failed":
        effect.postcondition(lambda output: output == 1)
    op = bench.app.execute(effect, ARGUMENTS)
    assert (op.status, bench.types()[-1]) == (Status.OUTCOME_UNKNOWN, how)
    worker = bench.worker()
    worker.reconcile()
    op = bench.app.get(OPERATION_ID)
    if answer is ABSENT:
        assert (op.status, op.reason, op.outcome) == (Status.QUARANTINED, "conflicting_evidence", Outcome.UNKNOWN)
    elif answer.terminal or answer.status == "not_committed":
        assert (op.status, bench.types()[-1]) == (Status.OUTCOME_UNKNOWN, "probe_unknown")
    else:
        assert (op.status, op.output) == (Status.CONFIRMED, 1)
    bench.clock.advance(3600)
    assert worker.turn() == 0
    assert (calls.count, op.attempts) == (1, 1)


@pytest.mark.promise("P33")
@pytest.mark.parametrize("condition", [lambda output: False, lambda output: 1 / 0], ids=["false", "raises"])
def test_a_postcondition_that_is_not_met_leaves_the_outcome_unknown(bench: Bench, condition: Callable[[Any], bool]) -> None:
    effect = bench.effect(lambda: {"status": "declined"}, outcome_probe=lambda: ProbeResult.unknown())
    effect.postcondition(condition)
    op = bench.app.execute(effect, ARGUMENTS)
    assert (op.status, op.outcome, op.due_at is not None) == (Status.OUTCOME_UNKNOWN, Outcome.UNKNOWN, True)
    assert bench.types() == ["submitted", "dispatched", "postcondition_failed"]


@pytest.mark.promise("P32", "X4")
@pytest.mark.parametrize(
    "value",
    [{1, 2}, object(), (1,), {"x": float("nan")}, {1: 2}, "\ud800", "é" * 524_289],
    ids=["set", "object", "tuple", "nan", "keys", "surrogate", "too long"],
)
def test_a_result_that_cannot_be_stored_is_not_claimed(bench: Bench, value: Any) -> None:
    op = bench.app.execute(bench.effect(lambda: value, outcome_probe=lambda: ProbeResult.unknown()), ARGUMENTS)
    assert (op.status, op.outcome, op.has_output) == (Status.OUTCOME_UNKNOWN, Outcome.UNKNOWN, False)
    assert bench.types() == ["submitted", "dispatched", "result_not_storable"]


@pytest.mark.promise("P32", part="the limit itself")
def test_a_result_of_exactly_the_limit_is_stored(bench: Bench) -> None:
    op = bench.app.execute(bench.effect(lambda: "x" * (1_048_576 - 2)), ARGUMENTS)
    assert (op.status, len(op.output)) == (Status.CONFIRMED, 1_048_574)


@pytest.mark.promise("D27")
def test_the_providers_own_id_comes_from_the_handler_or_the_probe(bench: Bench) -> None:
    refused: list[type] = []

    def reports(ctx: Any) -> None:
        for wrong in ("", " ", " x", 7, None):
            try:
                ctx.report(provider_operation_id=wrong)
            except ValueError:
                refused.append(type(wrong))
        ctx.report(provider_operation_id="ch_1")

    assert bench.app.execute(bench.effect(reports), ARGUMENTS).provider_operation_id == "ch_1"
    assert len(refused) == 5
    for wrong in ("", " ", " x"):
        with pytest.raises(ValueError, match="provider_operation_id"):
            ProbeResult.committed(provider_operation_id=wrong)
    with pytest.raises((TypeError, ValueError), match="provider_operation_id"):
        ProbeResult.committed(provider_operation_id=7)  # type: ignore[arg-type]
    gate = bench.gate()

    def reports_and_hangs(ctx: Any) -> None:
        ctx.report(provider_operation_id="ch_2")
        gate.wait()

    hanging = bench.effect(reports_and_hangs, name="hanging", timeout=1.0, outcome_probe=lambda: ProbeResult.unknown())
    op = bench.app.execute(hanging, ARGUMENTS, operation_id="hangs")
    assert (op.status, op.provider_operation_id) == (Status.OUTCOME_UNKNOWN, "ch_2")
    probed = bench.effect(Calls(OSError()), name="probed", outcome_probe=lambda: ProbeResult.committed(provider_operation_id="ch_3"))
    bench.app.execute(probed, ARGUMENTS, operation_id="probed")
    assert bench.app.reconcile("probed").provider_operation_id == "ch_3"

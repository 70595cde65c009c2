"""What a value, a postcondition and an answer are worth, wherever the code runs."""

import asyncio
import json
import math
from typing import Any

import pytest

from settled.clock import SystemClock
from settled.core.evidence import ProbeResult
from settled.core.words import FenceBasis
from settled.execution.calling import Caller, is_longer
from settled.execution.context import Marks, context_for
from settled.execution.job import End, Job, Kind, Report
from tests.lib.execution.inprocess import Contract, make_job


class Odd:
    def __bool__(self) -> bool:
        raise SystemExit(1)


def call(contract: Contract, job: Job | None = None) -> Report:
    job, marks = job or make_job(), Marks()
    return Caller(clock=SystemClock().now).call(job, contract, context_for(job, marks), marks)


@pytest.mark.promise("P32", "X4")
@pytest.mark.parametrize(
    "value", [{1, 2}, (1,), math.nan, {1: 2}, b"x", "\ud800", object(), 10**5000], ids=lambda value: type(value).__name__
)
def test_a_value_that_is_not_strict_json_is_not_storable_but_did_return(value: Any) -> None:
    report = call(Contract(lambda: value, postcondition=lambda arguments, output: True))
    assert (report.end, report.output, report.postcondition, report.fence) == (End.RESULT_NOT_STORABLE, None, None, FenceBasis.RETURNED)
    assert report.error_text and "output" in report.error_text


def test_a_result_is_measured_in_bytes_of_its_text() -> None:
    def job(limit: int) -> Job:
        return make_job(result_bytes_max=limit)

    assert call(Contract(lambda: "a" * 98), job(100)).end is End.RETURNED
    assert call(Contract(lambda: "a" * 99), job(100)).end is End.RESULT_NOT_STORABLE
    assert call(Contract(lambda: "é" * 49), job(100)).end is End.RETURNED
    assert call(Contract(lambda: "é" * 50), job(100)).end is End.RESULT_NOT_STORABLE
    assert not is_longer("é" * 50, 100) and is_longer("é" * 50, 99)


@pytest.mark.promise("P33")
@pytest.mark.parametrize(
    "holds", [lambda a, o: False, lambda a, o: None, lambda a, o: o["missing"], lambda a, o: exit(0), lambda a, o: Odd()]
)
def test_a_postcondition_that_is_false_or_raises_is_not_met_and_the_return_stands(holds: Any) -> None:
    report = call(Contract(lambda: {"id": 1}, postcondition=holds))
    assert (report.end, report.output, report.postcondition, report.fence) == (End.RETURNED, '{"id":1}', False, FenceBasis.RETURNED)


def test_async_callbacks_of_a_sync_executor_are_run_to_their_end() -> None:
    async def handler(arguments: dict[str, Any]) -> Any:
        await asyncio.sleep(0)
        return arguments["amount"]

    async def refuses(arguments: dict[str, Any], output: Any) -> bool:
        return False

    report = call(Contract(handler, postcondition=refuses))
    assert (report.end, report.output, report.postcondition) == (End.RETURNED, "5", False)


def test_a_megabyte_passes_both_ways() -> None:
    text = "ü" * 500_000
    report = call(
        Contract(lambda arguments: arguments), make_job(arguments=json.dumps({"t": text}, ensure_ascii=False, separators=(",", ":")))
    )
    assert report.output is not None and json.loads(report.output) == {"t": text}


@pytest.mark.parametrize(
    ("answer", "output", "holds"),
    [
        (ProbeResult.committed(output={"ok": True}), '{"ok":true}', True),
        (ProbeResult.committed(output={"ok": False}), '{"ok":false}', False),
        (ProbeResult.committed(output=None), "null", False),
        (ProbeResult.committed(), None, None),
        (ProbeResult.not_committed(terminal=True, healthy=True), None, None),
        (ProbeResult.pending(), None, None),
        (ProbeResult.unknown(), None, None),
    ],
)
def test_only_the_output_of_a_committed_answer_is_held_against_the_postcondition(
    answer: ProbeResult, output: str | None, holds: bool | None
) -> None:
    contract = Contract(None, probe=lambda: answer, postcondition=lambda arguments, output: output["ok"])
    report = call(contract, make_job(kind=Kind.PROBE))
    assert (report.end, report.answer, report.output, report.postcondition) == (End.ANSWERED, answer, output, holds)


@pytest.mark.promise("P36")
@pytest.mark.parametrize("output", [{1, 2}, "a" * 200])
def test_a_committed_answer_whose_output_cannot_be_stored_says_so(output: Any) -> None:
    contract = Contract(None, probe=lambda: ProbeResult.committed(output=output), postcondition=lambda arguments, output: True)
    report = call(contract, make_job(kind=Kind.PROBE, result_bytes_max=100))
    assert report.answer is not None
    assert (report.end, report.answer.storable, report.answer.output_text, report.output, report.postcondition) == (
        End.ANSWERED,
        False,
        None,
        None,
        None,
    )


def test_a_report_cannot_be_changed_and_its_job_s_key_is_a_plain_tuple() -> None:
    report = call(Contract(lambda: 1))
    with pytest.raises(AttributeError):
        report.late = True  # type: ignore[misc]
    assert report.job.key == (Kind.HANDLER, report.job.row, 1)

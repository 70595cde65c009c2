"""Call the user's code of one attempt and say how it ended: parse, call, check the result, ask the postcondition, report.

Promise: a call never raises, whatever the code raises, every callback gets arguments parsed for it alone, and a child that the
code forks does not come back from it. Shared by the thread, the event loop and the runner process, which decide about entry, time and
fences themselves.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Generator
from dataclasses import replace
from typing import Any

from settled.core.canonical import canonical_text, parse_canonical
from settled.core.evidence import ProbeResult, ProbeStatus
from settled.core.moment import Moment
from settled.core.words import FenceBasis
from settled.execution.classify import bounded_text, interrupt_in, judge_error, keep_text
from settled.execution.context import Marks, ProbeContext
from settled.execution.forked import leave_if_forked
from settled.execution.job import Callables, End, Job, Kind, ReadClock, Redact, Report

Steps = Generator[object, Any, Report]


class Caller:
    """Calls handlers, probes and postconditions. Holds no state of any attempt, so that one serves many threads."""

    def __init__(self, *, clock: ReadClock, redact: Redact = keep_text) -> None:
        self._clock, self._redact = clock, redact

    def now(self) -> Moment:
        return self._clock()

    def call(self, job: Job, contract: Callables, context: ProbeContext, marks: Marks) -> Report:
        """Run one attempt here and now. An awaitable is run to its end on an event loop of its own.

        The fence is RETURNED where the code came back with a value; else it is None and the executor's to judge.
        """
        process = os.getpid()
        steps = self._steps(job, contract, context, marks)
        try:
            value = next(steps)
            while True:
                leave_if_forked(process)
                try:
                    answer = asyncio.run(_wait_for(value)) if isinstance(value, Awaitable) else value
                except BaseException as error:  # noqa: BLE001 - handed to the one place that judges it
                    leave_if_forked(process)
                    value = steps.throw(error)
                else:
                    leave_if_forked(process)
                    value = steps.send(answer)
        except StopIteration as end:
            report: Report = end.value
        leave_if_forked(process)
        return report

    async def call_async(self, job: Job, contract: Callables, context: ProbeContext, marks: Marks) -> Report:
        """Run one attempt on the running event loop; as `call` otherwise."""
        process = os.getpid()
        steps = self._steps(job, contract, context, marks)
        try:
            value = next(steps)
            while True:
                leave_if_forked(process)
                try:
                    answer = await value if isinstance(value, Awaitable) else value
                except BaseException as error:  # noqa: BLE001 - handed to the one place that judges it
                    leave_if_forked(process)
                    value = steps.throw(error)
                else:
                    leave_if_forked(process)
                    value = steps.send(answer)
        except StopIteration as end:
            report: Report = end.value
        leave_if_forked(process)
        return report

    def never_entered(self, job: Job, why: str | None = None) -> Report:
        """Report that the code of `job` was not called and will not be."""
        text = bounded_text(why, job.error_text_max, self._redact) if why and job.store_error_text else None
        return Report(job=job, end=End.NEVER_ENTERED, error_text=text, fence=FenceBasis.NEVER_ENTERED, ended=self._clock())

    def interrupted(self, job: Job, end: End, marks: Marks) -> Report:
        """Report that we stopped waiting: nothing is known of the code, which may go on."""
        return Report(job=job, end=end, provider_operation_id=marks.provider_operation_id, sending=marks.sending, ended=self._clock())

    def _steps(self, job: Job, contract: Callables, context: ProbeContext, marks: Marks) -> Steps:
        """Yield what each callback gave, take back what it came to, return the Report."""
        try:
            arguments = parse_canonical(job.arguments)
            if job.kind is Kind.PROBE:
                value = yield contract.call_probe(arguments, context, job.idempotency_key)
            else:
                value = yield contract.call_handler(arguments, context, job.idempotency_key)
        except BaseException as error:  # noqa: BLE001 - after the entry any error leaves the outcome unknown; none is success
            return self._raised(job, error, marks)
        if job.kind is Kind.PROBE:
            return (yield from self._answered(job, contract, value, marks))
        return (yield from self._returned(job, contract, value, marks))

    def _raised(self, job: Job, error: BaseException, marks: Marks) -> Report:
        verdict = judge_error(error, job, sending=marks.sending, redact=self._redact)
        return Report(
            job=job,
            end=verdict.end,
            error_class=verdict.error_class,
            error_text=verdict.error_text,
            retryable=verdict.retryable,
            interrupt=interrupt_in(error),
            provider_operation_id=marks.provider_operation_id,
            sending=marks.sending,
            ended=self._clock(),
        )

    def _returned(self, job: Job, contract: Callables, value: object, marks: Marks) -> Steps:
        try:
            text = canonical_text(value, "output")
            if is_longer(text, job.result_bytes_max):
                raise ValueError(f"output is longer than {job.result_bytes_max} bytes; return a reference, not a payload")
        except BaseException as error:  # noqa: BLE001 - a value whose own code fails cannot be stored either
            return replace(self._raised(job, error, marks), end=End.RESULT_NOT_STORABLE, retryable=False, fence=FenceBasis.RETURNED)
        holds = yield from self._postcondition(job, contract, text)
        return Report(
            job=job,
            end=End.RETURNED,
            output=text,
            postcondition=holds,
            provider_operation_id=marks.provider_operation_id,
            fence=FenceBasis.RETURNED,
            sending=marks.sending,
            ended=self._clock(),
        )

    def _answered(self, job: Job, contract: Callables, value: object, marks: Marks) -> Steps:
        if type(value) is not ProbeResult:
            error = TypeError(f"the probe returned {type(value).__name__}, not ProbeResult, which is no answer")
            return replace(self._raised(job, error, marks), fence=FenceBasis.RETURNED)
        answer = value
        text = answer.output_text
        if text is not None and is_longer(text, job.result_bytes_max):
            answer, text = replace(answer, output_text=None, storable=False), None
        holds = None
        if answer.status is ProbeStatus.COMMITTED and text is not None:  # without an output there is nothing to hold it against
            holds = yield from self._postcondition(job, contract, text)
        return Report(
            job=job, end=End.ANSWERED, output=text, postcondition=holds, answer=answer, fence=FenceBasis.RETURNED, ended=self._clock()
        )

    def _postcondition(self, job: Job, contract: Callables, output: str) -> Generator[object, Any, bool | None]:
        if not contract.has_postcondition:
            return None
        try:
            return bool((yield contract.call_postcondition(json.loads(job.arguments), json.loads(output))))
        except BaseException:  # noqa: BLE001 - a condition that could not be checked is not met
            return False


def is_longer(text: str, bytes_max: int) -> bool:
    """Say whether `text` takes more than `bytes_max` bytes as UTF-8, encoding it only where that can matter."""
    if len(text) > bytes_max:
        return True
    return not text.isascii() and len(text.encode()) > bytes_max


async def _wait_for(value: Awaitable[object]) -> object:
    return await value

"""Call the user's code of one attempt and say how it ended: parse, call, check the result, ask the postcondition, report.

Promise: a call never raises, whatever the code raises, every callback gets arguments parsed for it alone, and a child that the
code forks does not come back from it. Shared by the thread, the event loop and the runner process, which decide about entry, time and
fences themselves.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

from settled.core.canonical import canonical_text, parse_canonical
from settled.core.evidence import ProbeResult, ProbeStatus
from settled.core.moment import Moment
from settled.core.words import FenceBasis
from settled.execution.classify import bounded_text, interrupt_in, judge_error, keep_text
from settled.execution.context import Marks, ProbeContext
from settled.execution.forked import leave_if_forked
from settled.execution.job import Callables, End, Job, Kind, ReadClock, Redact, Report

Wait = Callable[[Any], Awaitable[object]]


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
        steps = self._call(job, contract, context, marks, _wait_here)
        try:
            steps.send(None)
        except StopIteration as end:
            report: Report = end.value
            return report
        raise AssertionError("a call whose awaitables are run to their end waits for nothing")

    async def call_async(self, job: Job, contract: Callables, context: ProbeContext, marks: Marks) -> Report:
        """Run one attempt on the running event loop; as `call` otherwise."""
        return await self._call(job, contract, context, marks, _wait_on_this_loop)

    def never_entered(self, job: Job, why: str | None = None) -> Report:
        """Report that the code of `job` was not called and will not be."""
        text = bounded_text(why, job.error_text_max, self._redact) if why and job.store_error_text else None
        return Report(job=job, end=End.NEVER_ENTERED, error_text=text, fence=FenceBasis.NEVER_ENTERED, ended=self._clock())

    def interrupted(self, job: Job, end: End, marks: Marks) -> Report:
        """Report that we stopped waiting: nothing is known of the code, which may go on."""
        return Report(job=job, end=end, provider_operation_id=marks.provider_operation_id, sending=marks.sending, ended=self._clock())

    async def _call(self, job: Job, contract: Callables, context: ProbeContext, marks: Marks, wait: Wait) -> Report:
        process = os.getpid()
        try:
            return await self._run(job, contract, context, marks, partial(_result, process, wait))
        finally:
            leave_if_forked(process)

    async def _run(self, job: Job, contract: Callables, context: ProbeContext, marks: Marks, result: Wait) -> Report:
        """`result` makes of what a callback gave what it came to."""
        try:
            arguments = parse_canonical(job.arguments)
            if job.kind is Kind.PROBE:
                value = await result(contract.call_probe(arguments, context, job.idempotency_key))
            else:
                value = await result(contract.call_handler(arguments, context, job.idempotency_key))
        except BaseException as error:  # noqa: BLE001 - after the entry any error leaves the outcome unknown; none is success
            return self._raised(job, error, marks)
        if job.kind is Kind.PROBE:
            return await self._answered(job, contract, value, marks, result)
        return await self._returned(job, contract, value, marks, result)

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

    async def _returned(self, job: Job, contract: Callables, value: object, marks: Marks, result: Wait) -> Report:
        try:
            text = canonical_text(value, "output")
            if is_longer(text, job.result_bytes_max):
                raise ValueError(f"output is longer than {job.result_bytes_max} bytes; return a reference, not a payload")
        except BaseException as error:  # noqa: BLE001 - a value whose own code fails cannot be stored either
            return self._raised(job, error, marks)._replace(end=End.RESULT_NOT_STORABLE, retryable=False, fence=FenceBasis.RETURNED)
        holds = await self._postcondition(job, contract, text, result)
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

    async def _answered(self, job: Job, contract: Callables, value: object, marks: Marks, result: Wait) -> Report:
        if type(value) is not ProbeResult:
            error = TypeError(f"the probe returned {type(value).__name__}, not ProbeResult, which is no answer")
            return self._raised(job, error, marks)._replace(fence=FenceBasis.RETURNED)
        answer = value
        text = answer.output_text
        if text is not None and is_longer(text, job.result_bytes_max):
            answer, text = replace(answer, output_text=None, storable=False), None
        holds = None
        if answer.status is ProbeStatus.COMMITTED and text is not None:  # without an output there is nothing to hold it against
            holds = await self._postcondition(job, contract, text, result)
        return Report(
            job=job, end=End.ANSWERED, output=text, postcondition=holds, answer=answer, fence=FenceBasis.RETURNED, ended=self._clock()
        )

    async def _postcondition(self, job: Job, contract: Callables, output: str, result: Wait) -> bool | None:
        if not contract.has_postcondition:
            return None
        try:
            return bool(await result(contract.call_postcondition(json.loads(job.arguments), json.loads(output))))
        except BaseException:  # noqa: BLE001 - a condition that could not be checked is not met
            return False


def is_longer(text: str, bytes_max: int) -> bool:
    """Say whether `text` takes more than `bytes_max` bytes as UTF-8, encoding it only where that can matter."""
    if len(text) > bytes_max:
        return True
    return not text.isascii() and len(text.encode()) > bytes_max


async def _result(process: int, wait: Wait, value: object) -> object:
    """Return what `value` comes to. A child that a callback forked ends here: it neither waits nor goes on to the next callback."""
    leave_if_forked(process)
    if not isinstance(value, Awaitable):
        return value
    try:
        return await wait(value)
    finally:
        leave_if_forked(process)


async def _wait_on_this_loop(value: Awaitable[object]) -> object:
    return await value


async def _wait_here(value: Awaitable[object]) -> object:
    """Waits without waiting: to whoever steps through the call it looks like any other function."""
    return asyncio.run(_wait_on_this_loop(value))

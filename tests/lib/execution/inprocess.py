"""Give the tests of in-process executors a contract made of plain functions, jobs, and a place where reports arrive."""

import inspect
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from settled.clock import SystemClock, boot_us
from settled.core.words import Isolation
from settled.execution.aio import AsyncExecutor
from settled.execution.calling import Caller
from settled.execution.deadlines import Deadlines
from settled.execution.job import End, Job, Kind, Report
from settled.execution.thread import ThreadExecutor
from tests.conftest import eventually

SECOND_US = 1_000_000
_rows = itertools.count(1)


class Contract:
    """Callables of one effect, bound by parameter name."""

    def __init__(self, handler: Any, *, probe: Any = None, postcondition: Any = None, name: str = "effect") -> None:
        self.name, self.handler, self.probe, self.postcondition = name, handler, probe, postcondition

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.handler)

    @property
    def has_postcondition(self) -> bool:
        return self.postcondition is not None

    @property
    def has_probe(self) -> bool:
        return self.probe is not None

    def call_handler(self, arguments: dict[str, Any], ctx: Any, idempotency_key: str | None) -> Any:
        return self._call(self.handler, arguments=arguments, ctx=ctx, idempotency_key=idempotency_key)

    def call_probe(self, arguments: dict[str, Any], ctx: Any, idempotency_key: str | None) -> Any:
        return self._call(self.probe, arguments=arguments, ctx=ctx, idempotency_key=idempotency_key)

    def call_postcondition(self, arguments: dict[str, Any], output: Any) -> Any:
        return self.postcondition(arguments, output)

    @staticmethod
    def _call(function: Any, **offered: Any) -> Any:
        return function(**{name: offered[name] for name in inspect.signature(function).parameters})


class Reports:
    """Where reports arrive, from any thread."""

    def __init__(self) -> None:
        self.all: list[Report] = []

    def __call__(self, report: Report) -> None:
        self.all.append(report)

    def of(self, job: Job) -> list[Report]:
        return [report for report in self.all if report.job.key == job.key]

    def first(self, job: Job, seconds: float = 10.0) -> Report:
        return eventually(lambda: self.of(job), seconds=seconds)[0]

    def late(self, job: Job, seconds: float = 10.0) -> Report:
        return eventually(lambda: self.of(job)[1:], seconds=seconds)[0]


def make_job(isolation: Isolation = Isolation.THREAD, *, timeout_seconds: float = 30.0, **changes: Any) -> Job:
    """Return a job that was claimed just now."""
    row = next(_rows)
    facts: dict[str, Any] = {
        "kind": Kind.HANDLER,
        "row": row,
        "attempt": 1,
        "operation_id": f"op-{row}",
        "contract": "effect",
        "arguments": '{"amount":5}',
        "idempotency_key": "key-1",
        "provider_reference": "ref-1",
        "timeout_us": int(timeout_seconds * SECOND_US),
        "kill_grace_us": SECOND_US,
        "claimed_boot_us": boot_us(),
        "enter_by_boot_us": None,
        "announces_sending": False,
        "slot": None,
        "isolation": isolation,
        "result_bytes_max": 1_048_576,
        "store_error_text": True,
        "error_text_max": 500,
    }
    return Job(**{**facts, **changes})


class Bench:
    """One executor of each in-process isolation around one contract that a test may exchange."""

    def __init__(self, slots: int = 4, recorder: Any = None, incarnation: str | None = None) -> None:
        self.contract: Contract | None = None
        self.reports = Reports()
        self.deadlines = Deadlines()
        caller = Caller(clock=SystemClock().now)
        shared: dict[str, Any] = {
            "resolve": self.resolve,
            "arrived": self.reports,
            "caller": caller,
            "deadlines": self.deadlines,
            "recorder": recorder,
            "incarnation": incarnation,
        }
        self.executors: dict[Isolation, ThreadExecutor | AsyncExecutor] = {
            Isolation.THREAD: ThreadExecutor(slots=slots, **shared),
            Isolation.ASYNC: AsyncExecutor(**shared),
        }

    def resolve(self, name: str) -> Contract:
        if self.contract is None:
            raise LookupError(f"no contract {name!r}")
        return self.contract

    def start(self, handler: Callable[..., Any] | Contract, **changes: Any) -> Job:
        self.contract = handler if isinstance(handler, Contract) else Contract(handler)
        job = make_job(**changes)
        self.executors[job.isolation].start(job)
        return job

    def run(self, handler: Callable[..., Any] | Contract, **changes: Any) -> Report:
        return self.reports.first(self.start(handler, **changes))


@contextmanager
def bench(**settings: Any) -> Iterator[Bench]:
    """A Bench whose waiting threads end with the test."""
    made = Bench(**settings)
    try:
        yield made
    finally:
        for executor in made.executors.values():
            executor.close(kill=True)
        made.deadlines.close()


__all__ = ["SECOND_US", "Bench", "Contract", "End", "Reports", "bench", "make_job"]

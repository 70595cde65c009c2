"""The values that cross the border between the worker and the code that runs one attempt: Job in, Report out.

Promise: both are plain, frozen and complete. An executor needs nothing besides a Job to run an attempt, and the worker
needs nothing besides a Report to record how it ended. Nothing in here knows the database.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from settled.core.evidence import ProbeResult
from settled.core.moment import Moment
from settled.core.words import FenceBasis, Isolation

Answer = ProbeResult


class Kind(StrEnum):
    """What is called: the handler, which may cause the effect, or the probe, which only looks."""

    HANDLER = "handler"
    PROBE = "probe"


class End(StrEnum):
    """How the local code ended. Says nothing about the provider: that is decided by the transition table."""

    RETURNED = "returned"
    REJECTED = "rejected"
    NOT_SENT = "not_sent"
    NEEDS_REVIEW = "needs_review"
    RAISED = "raised"
    TIMED_OUT = "timed_out"
    CRASHED = "crashed"
    STOPPED = "stopped"
    NEVER_ENTERED = "never_entered"
    RESULT_NOT_STORABLE = "result_not_storable"
    ANSWERED = "answered"


class Key(NamedTuple):
    """Names one run of user code. Compares equal to the plain tuple (kind, row, attempt)."""

    kind: Kind
    row: int
    attempt: int


class Job(NamedTuple):
    """Everything one run of user code needs, decided before it starts."""

    kind: Kind
    row: int
    attempt: int
    operation_id: str
    contract: str
    arguments: str  # canonical JSON text, parsed afresh for every callback: a callback that edits its arguments edits its own copy
    idempotency_key: str | None
    provider_reference: str | None
    timeout_us: int
    kill_grace_us: int
    claimed_boot_us: int  # CLOCK_BOOTTIME at the claim: the deadline counts from here, not from the start of the code
    enter_by_boot_us: int | None  # last moment at which entry is allowed; None = only the deadline
    announces_sending: bool
    slot: int | None  # flight recorder slot; None for probes
    isolation: Isolation
    result_bytes_max: int
    store_error_text: bool
    error_text_max: int
    attempts: tuple[tuple[int, int], ...] = ()  # for a probe's ctx: (number, dispatched wall_us)

    @property
    def key(self) -> Key:
        return Key(self.kind, self.row, self.attempt)

    @property
    def deadline_boot_us(self) -> int:
        return self.claimed_boot_us + self.timeout_us

    @property
    def kill_boot_us(self) -> int:
        return self.claimed_boot_us + self.timeout_us + self.kill_grace_us


class Report(NamedTuple):
    """How one run of user code ended, as far as this machine saw it."""

    job: Job
    end: End
    ended: Moment  # taken after the reaping when a process was killed
    output: str | None = None  # canonical JSON text of the handler's (or the probe's committed) output
    postcondition: bool | None = None  # None = there is none or it was not asked; False also when it raised
    answer: Answer | None = None
    error_class: str | None = None
    error_text: str | None = None
    retryable: bool = False
    interrupt: str | None = None  # the class of a cancellation or exit that ended it, also from inside a group
    provider_operation_id: str | None = None  # from ctx.report(...), kept even when the code was killed
    fence: FenceBasis | None = None  # None = the code may still run
    sending: bool = False  # ctx.sending() had been passed
    late: bool = False  # second report of an attempt whose first was TIMED_OUT or STOPPED in thread or async isolation


class Callables(Protocol):
    """The part of an effect contract that executors call. Each call may return an awaitable when `is_async`."""

    @property
    def name(self) -> str: ...
    @property
    def is_async(self) -> bool: ...
    @property
    def has_postcondition(self) -> bool: ...
    @property
    def has_probe(self) -> bool: ...

    def call_handler(self, arguments: dict[str, Any], ctx: Any, idempotency_key: str | None) -> Any: ...
    def call_probe(self, arguments: dict[str, Any], ctx: Any, idempotency_key: str | None) -> Any: ...
    def call_postcondition(self, arguments: dict[str, Any], output: Any) -> Any: ...


class Executor(Protocol):
    """Runs jobs in one isolation. `start` and `stop` never wait for user code."""

    @property
    def running(self) -> int: ...
    @property
    def abandoned(self) -> int: ...

    def abandoned_of(self, contract: str) -> int: ...
    def start(self, job: Job) -> None: ...
    def stop(self, key: tuple[Kind, int, int]) -> None: ...
    def close(self, *, kill: bool) -> None: ...


Arrived = Callable[[Report], None]
ReadClock = Callable[[], Moment]
Resolve = Callable[[str], Callables]
Redact = Callable[[str], str]

__all__ = [
    "Answer",
    "Arrived",
    "Callables",
    "End",
    "Executor",
    "Job",
    "Key",
    "Kind",
    "ReadClock",
    "Redact",
    "Report",
    "Resolve",
]

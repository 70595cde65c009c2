"""What a handler or a probe is handed as `ctx`: the facts of its attempt, the time left, and a handler's two announcements.

Promise: `sending()` never lets an attempt go on that was given up, and what was announced is kept in Marks, outside the
reach of the code, so that it survives whatever becomes of that code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from settled.clock import boot_us
from settled.core.limits import DEFAULTS
from settled.core.text import escape_controls
from settled.execution.job import Job, Kind

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_BINDS: Final = ("bind", "unbind", "try_unbind", "new")


class AttemptRevoked(BaseException):
    """Raised by ctx.sending(): this attempt was given up, so nothing may leave any more.

    Not an Exception: a handler's `except Exception` around its client must not swallow it and send.
    """

    def __init__(self, operation_id: str, attempt: int, why: str) -> None:
        super().__init__(f"attempt {attempt} of operation {operation_id!r} may not send: {why}. Nothing was sent. Let this error pass.")
        self.operation_id, self.attempt, self.why = operation_id, attempt, why


@dataclass(slots=True)
class Marks:
    """What the code of one attempt has announced so far."""

    sending: bool = False
    provider_operation_id: str | None = None


class DispatchedAttempt(NamedTuple):
    """One earlier or current attempt, as a probe sees it."""

    number: int
    dispatched: datetime  # UTC


class HarmlessLog:
    """A structlog logger that raises nothing: a line that cannot be written must not change an outcome."""

    __slots__ = ("_logger",)

    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._logger, name)

        def call(*positional: Any, **fields: Any) -> Any:
            try:
                answer = method(*positional, **fields)
            except Exception:  # noqa: BLE001 - how this host writes its lines, and whether it can, is no business of the effect
                return self if name in _BINDS else None
            return HarmlessLog(answer) if name in _BINDS else answer

        return call


class ProbeContext:
    """The facts a probe may use. It has no way to dispatch or to write."""

    __slots__ = ("_job", "_log")

    def __init__(self, job: Job) -> None:
        self._job = job
        self._log: Any = None

    @property
    def operation_id(self) -> str:
        return self._job.operation_id

    @property
    def attempt(self) -> int:
        return self._job.attempt

    @property
    def idempotency_key(self) -> str | None:
        return self._job.idempotency_key

    @property
    def provider_reference(self) -> str | None:
        return self._job.provider_reference

    @property
    def attempts(self) -> tuple[DispatchedAttempt, ...]:
        """Every attempt so far: its number and when it was dispatched."""
        return tuple(DispatchedAttempt(number, _EPOCH + timedelta(microseconds=wall_us)) for number, wall_us in self._job.attempts)

    @property
    def log(self) -> Any:
        """A structlog logger that names this attempt in every line."""
        if self._log is None:
            import structlog  # slow to import, with all that it imports for consoles, and most handlers write no line

            job = self._job
            facts = {"operation_id": job.operation_id, "attempt": job.attempt, "contract": job.contract, "callback": job.kind.value}
            self._log = HarmlessLog(structlog.get_logger("settled.handler").bind(**facts))
        return self._log

    def time_remaining(self) -> float:
        """Return the seconds left before the deadline, never below 0."""
        return max(0, self._job.deadline_boot_us - boot_us()) / 1_000_000


class Context(ProbeContext):
    """The facts of one attempt, and its two announcements."""

    __slots__ = ("_ask_sending", "_given_up", "_marks", "_on_report")

    def __init__(
        self,
        job: Job,
        marks: Marks,
        *,
        ask_sending: Callable[[], bool] | None = None,
        on_report: Callable[[str], None] | None = None,
        given_up: Callable[[], bool] | None = None,
    ) -> None:
        """`ask_sending` contests the last moment in the flight recorder; `on_report` carries an ID away at once."""
        super().__init__(job)
        self._marks, self._ask_sending, self._on_report, self._given_up = marks, ask_sending, on_report, given_up

    @property
    def attempts(self) -> tuple[DispatchedAttempt, ...]:
        raise AttributeError("attempts is given to probes; a handler has ctx.attempt, the number of its own attempt")

    def sending(self) -> None:
        """Announce that bytes leave next. Raises AttemptRevoked when this attempt was given up or its time is over."""
        job = self._job
        if (self._given_up is not None and self._given_up()) or boot_us() > job.deadline_boot_us:
            raise AttemptRevoked(job.operation_id, job.attempt, "its time limit is over or it was stopped")
        if self._marks.sending:
            return
        if job.announces_sending and self._ask_sending is not None and not self._ask_sending():
            raise AttemptRevoked(job.operation_id, job.attempt, "another process has taken the operation over")
        self._marks.sending = True

    def report(self, *, provider_operation_id: str) -> None:
        """Keep the provider's own ID of this effect, even if this attempt is killed afterwards. Raises ValueError."""
        checked = check_provider_operation_id(provider_operation_id)
        self._marks.provider_operation_id = checked
        if self._on_report is not None:
            self._on_report(checked)


def check_provider_operation_id(value: object) -> str:
    """Return `value` if it can be a provider's ID. Raises ValueError."""
    longest = DEFAULTS.operation_id_max
    if type(value) is not str or not value or value != value.strip():
        raise ValueError(f"provider_operation_id must be a text that is neither blank nor padded, not {value!r}. It was not kept.")
    if len(value) > longest or escape_controls(value) != value:
        raise ValueError(f"provider_operation_id must be one line of at most {longest} characters of Unicode. It was not kept.")
    return value


def context_for(
    job: Job,
    marks: Marks,
    *,
    ask_sending: Callable[[], bool] | None = None,
    on_report: Callable[[str], None] | None = None,
    given_up: Callable[[], bool] | None = None,
) -> ProbeContext:
    """Return the `ctx` of one run of user code."""
    if job.kind is Kind.PROBE:
        return ProbeContext(job)
    return Context(job, marks, ask_sending=ask_sending, on_report=on_report, given_up=given_up)

"""Make the jobs that executors run: a claimed attempt's handler, or a probe of an operation."""

from settled.core.history import History
from settled.core.limits import Limits
from settled.core.moment import Moment
from settled.core.row import Row
from settled.core.terms import Terms
from settled.core.words import Isolation
from settled.execution.job import Job, Kind
from settled.steps.claim import Claimed


def handler_job(claimed: Claimed, slot: int | None, now: Moment, limits: Limits) -> Job:
    """Return the job of a claimed attempt; its deadline counts from `now`, the moment of the claim."""
    row, terms = claimed.row, claimed.terms
    return Job(
        kind=Kind.HANDLER,
        row=row.id,
        attempt=row.attempt,
        operation_id=row.operation_id,
        contract=row.contract,
        arguments=claimed.arguments,
        idempotency_key=row.provider_key,
        provider_reference=row.provider_reference,
        timeout_us=terms.timeout_us,
        kill_grace_us=terms.kill_grace_us,
        claimed_boot_us=now.boot_us,
        enter_by_boot_us=claimed.enter_by_boot_us,
        announces_sending=terms.announces_sending,
        slot=slot,
        isolation=Isolation(terms.isolation),
        result_bytes_max=limits.result_bytes_max,
        store_error_text=terms.store_error_text,
        error_text_max=limits.error_text_max,
    )


def probe_job(row: Row, history: History, terms: Terms, arguments: str, now: Moment, limits: Limits) -> Job:
    """Return the job of one probe. It reads; it never raises the attempt number and has no slot."""
    return Job(
        kind=Kind.PROBE,
        row=row.id,
        attempt=row.attempt,
        operation_id=row.operation_id,
        contract=row.contract,
        arguments=arguments,
        idempotency_key=row.provider_key,
        provider_reference=row.provider_reference,
        timeout_us=terms.probe_timeout_us,
        kill_grace_us=0,
        claimed_boot_us=now.boot_us,
        enter_by_boot_us=None,
        announces_sending=False,
        slot=None,
        isolation=Isolation(terms.isolation),
        result_bytes_max=limits.result_bytes_max,
        store_error_text=terms.store_error_text,
        error_text_max=limits.error_text_max,
        attempts=tuple((attempt.number, attempt.dispatched.wall_us) for attempt in history.attempts),
    )

"""Follow one request over two programs: keep the trace of whoever submits, and make spans of attempts that link to it.

Promise: a program that does not use OpenTelemetry pays nothing and imports nothing. Nothing in here raises: an attempt is worth more
than its span. Only the trace's two identifiers are kept; no baggage, no state of a vendor.
"""

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from settled.core.moment import SECOND_US
from settled.core.words import Isolation
from settled.execution.job import End, Job, Key, Kind, Report
from settled.logs import get_log

log = get_log("settled.tracing")
_API: Final = "opentelemetry.trace"
_PARENT: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_NS: Final = 1000
_SPANS_MAX: Final = 10_000
_GOOD: Final = frozenset({End.RETURNED, End.NOT_SENT, End.NEVER_ENTERED, End.REJECTED})


def current_traceparent() -> str | None:
    """Return the current span as a W3C traceparent; None where there is none.

    Whoever has a current span has imported the API, so that it need not be imported to find out.
    """
    api: Any = sys.modules.get(_API)
    if api is None:
        return None
    try:
        context = api.get_current_span().get_span_context()
        if not context.is_valid:
            return None
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags) & 0xFF:02x}"
    except Exception as error:  # noqa: BLE001 - a request is worth more than its trace
        log.debug("tracing.no_parent", error=str(error))
        return None


class Spans(Protocol):
    """What a worker tells of its attempts."""

    def started(self, jobs: Iterable[Job]) -> None: ...
    def ended(self, reports: Iterable[Report]) -> None: ...


class NoSpans:
    """What a worker without OpenTelemetry does."""

    def started(self, jobs: Iterable[Job]) -> None:
        """Do nothing."""

    def ended(self, reports: Iterable[Report]) -> None:
        """Do nothing."""


class AttemptSpans:
    """One span for each attempt, from its claim to its end as this machine saw it, linked to the span that submitted it."""

    def __init__(self, api: Any, parents: Callable[[Iterable[int]], Mapping[int, str]]) -> None:
        self._api, self._parents = api, parents
        self._tracer = api.get_tracer("settled")
        self._open: dict[Key, Any] = {}

    def started(self, jobs: Iterable[Job]) -> None:
        """Begin the spans of attempts that are handed to handlers."""
        handlers = [job for job in jobs if job.kind is Kind.HANDLER]
        if not handlers or len(self._open) >= _SPANS_MAX:
            return
        try:
            parents = self._parents(job.row for job in handlers)
            for job in handlers:
                self._open[job.key] = self._begin(job, parents.get(job.row))
        except Exception as error:  # noqa: BLE001
            log.debug("tracing.span_not_begun", error=str(error))

    def ended(self, reports: Iterable[Report]) -> None:
        """End the spans of attempts. A late report of an attempt has none any more."""
        for report in reports:
            span = self._open.pop(report.job.key, None)
            if span is None:
                continue
            try:
                self._end(span, report)
            except Exception as error:  # noqa: BLE001
                log.debug("tracing.span_not_ended", error=str(error))

    def _begin(self, job: Job, parent: str | None) -> Any:
        linked = self._link(parent)
        facts = {
            "settled.operation_id": job.operation_id,
            "settled.attempt": job.attempt,
            "settled.contract": job.contract,
            "settled.isolation": Isolation(job.isolation).value,
        }
        root: Any = self._api.set_span_in_context(self._api.INVALID_SPAN)  # whatever is current in this thread is not its parent
        kind = self._api.SpanKind.CONSUMER
        return self._tracer.start_span(f"attempt {job.contract}", context=root, kind=kind, attributes=facts, links=linked)

    def _link(self, parent: str | None) -> list[Any]:
        found = _PARENT.fullmatch(parent or "")
        if found is None:
            return []
        flags = self._api.TraceFlags(int(found[3], 16))
        return [self._api.Link(self._api.SpanContext(int(found[1], 16), int(found[2], 16), is_remote=True, trace_flags=flags))]

    def _end(self, span: Any, report: Report) -> None:
        span.set_attribute("settled.end", report.end.value)
        span.set_attribute("settled.seconds", max(0, report.ended.boot_us - report.job.claimed_boot_us) / SECOND_US)
        if report.error_class is not None:
            span.set_attribute("error.type", report.error_class)
        if report.end not in _GOOD:
            span.set_status(self._api.Status(self._api.StatusCode.ERROR, report.end.value))
        span.end(end_time=report.ended.wall_us * _NS)


def attempt_spans(parents: Callable[[Iterable[int]], Mapping[int, str]]) -> Spans:
    """Return what makes spans in this process: nothing without an SDK, which whoever wants spans has set up by now.

    `parents` returns the stored traceparents of rows by their key.
    """
    api: Any = sys.modules.get(_API)
    if api is None:
        return NoSpans()
    try:
        if isinstance(api.get_tracer_provider(), (api.ProxyTracerProvider, api.NoOpTracerProvider)):
            return NoSpans()
        return AttemptSpans(api, parents)
    except Exception as error:  # noqa: BLE001
        log.warning("tracing.not_available", error=str(error))
        return NoSpans()

"""The history of one operation: its attempts and observations, folded from its events.

Only decisions about what is not plain read it: an operation that is dispatched once and returns never needs it.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from settled.core.fold import Event
from settled.core.moment import Moment
from settled.core.transition import ENDS_UNKNOWN
from settled.core.words import ClosedBy, FenceBasis, Outcome, Status
from settled.core.words import EventType as E


class Attempt(NamedTuple):
    """One dispatch: when, under which terms and worker, how it ended, and what is proved about it since.

    `basis` is that on which another attempt was allowed to follow it.
    """

    number: int
    dispatched: Moment
    terms: int | None
    worker: int | None
    ended: Moment | None = None
    end: E | None = None
    execution: Outcome | None = None
    fence: FenceBasis | None = None
    fenced: Moment | None = None
    closed_by: ClosedBy | None = None
    returned: bool = False
    restored: bool = False
    error: str | None = None
    retryable: bool | None = None
    interruption: str | None = None
    basis: str | None = None

    @property
    def open(self) -> bool:
        """Whether it may have had an effect or still can."""
        return self.closed_by is None


class Observation(NamedTuple):
    """One fact with its source. `verdict` is what it counts as, not what was reported."""

    sequence: int
    source: str
    type: E
    attempt: int
    at_us: int
    verdict: Outcome
    provider_operation_id: str | None
    has_output: bool
    confirms: bool
    data: dict[str, Any]


class History(NamedTuple):
    """Attempts by number, observations in order, and who decided what."""

    attempts: tuple[Attempt, ...]
    observations: tuple[Observation, ...]
    stopped_by_person: bool
    retry_authorized: bool
    restored: bool

    @property
    def open_attempts(self) -> tuple[Attempt, ...]:
        return tuple(attempt for attempt in self.attempts if attempt.open)

    @property
    def first_dispatch(self) -> Moment | None:
        return self.attempts[0].dispatched if self.attempts else None

    @property
    def confirmations(self) -> tuple[Observation, ...]:
        return tuple(seen for seen in self.observations if seen.confirms)

    def attempt(self, number: int) -> Attempt | None:
        """Return the attempt of this number, None where it is not known."""
        return next((one for one in self.attempts if one.number == number), None)

    def spent_attempts(self) -> int:
        """Return how many attempts count against the retry budget: those that were not provably unsent."""
        free = (ClosedBy.NEVER_ENTERED, ClosedBy.NOT_SENT)
        return sum(1 for attempt in self.attempts if attempt.closed_by not in free)

    def unsent_in_a_row(self) -> int:
        """Return how many attempts at the end were provably unsent."""
        count = 0
        for attempt in reversed(self.attempts):
            if attempt.closed_by not in (ClosedBy.NEVER_ENTERED, ClosedBy.NOT_SENT):
                break
            count += 1
        return count


_CLOSES = {E.REJECTED: ClosedBy.REJECTED, E.NEVER_ENTERED: ClosedBy.NEVER_ENTERED, E.NOT_SENT: ClosedBy.NOT_SENT}
_RETURNED = (E.RETURNED, E.AWAITING_PROBE, E.POSTCONDITION_FAILED, E.RESULT_NOT_STORABLE)
_EXECUTION = {E.RETURNED: Outcome.CONFIRMED, E.REJECTED: Outcome.FAILED, E.NEVER_ENTERED: Outcome.FAILED, E.NOT_SENT: Outcome.FAILED}
_INTERRUPTION = {E.TIMED_OUT: "timeout", E.RAISED: "exception", E.CRASHED: "crash", E.LEASE_LOST: "lease_lost", E.STOPPED: "stopped"}
_ENDS = (E.RETURNED, *_CLOSES, *ENDS_UNKNOWN)
_OBSERVED = (
    E.RETURNED, E.AWAITING_PROBE, E.POSTCONDITION_FAILED, E.RESULT_NOT_STORABLE, E.REJECTED, E.NOT_SENT, E.NEVER_ENTERED,
    E.TIMED_OUT, E.RAISED, E.CRASHED, E.LEASE_LOST, E.STOPPED, E.PROBE_COMMITTED, E.PROBE_ABSENT, E.PROBE_PENDING,
    E.PROBE_UNKNOWN, E.LATE_RETURN, E.LATE_REJECTED, E.OPERATOR_CONFIRMED, E.OPERATOR_REJECTED, E.OPERATOR_RETRY_AUTHORIZED,
)  # fmt: skip
_SOURCES = {
    E.RETURNED: "handler_return", E.AWAITING_PROBE: "handler_return", E.POSTCONDITION_FAILED: "handler_return",
    E.RESULT_NOT_STORABLE: "handler_return", E.REJECTED: "handler_error", E.NOT_SENT: "handler_error", E.RAISED: "handler_error",
    E.NEVER_ENTERED: "handler_exit", E.TIMED_OUT: "handler_exit", E.CRASHED: "handler_exit", E.LEASE_LOST: "handler_exit",
    E.STOPPED: "handler_exit", E.LATE_RETURN: "late_return", E.LATE_REJECTED: "late_rejection",
    E.OPERATOR_CONFIRMED: "operator", E.OPERATOR_REJECTED: "operator", E.OPERATOR_RETRY_AUTHORIZED: "operator",
}  # fmt: skip


EMPTY = History((), (), False, False, False)


def fold_history(events: Iterable[Event], start: History = EMPTY, sequence: int = 0) -> History:
    """Return the history after `events`; `sequence` is that of the last event already in `start`."""
    attempts = {attempt.number: attempt for attempt in start.attempts}
    observations = list(start.observations)
    stopped, authorized, restored = start.stopped_by_person, start.retry_authorized, start.restored
    for event in events:
        sequence += 1
        data = event.data
        if event.type is E.DISPATCHED:
            attempts[event.attempt] = Attempt(event.attempt, moment_of(event), data.get("terms"), data.get("worker"))
        elif event.type is E.RESTORED:
            restored = True
            attempts[event.attempt] = Attempt(event.attempt, moment_of(event), data.get("terms"), None, restored=True)
        elif event.type in _ENDS and event.attempt in attempts:
            attempts[event.attempt] = _end(attempts[event.attempt], event)
            stopped = stopped or (event.type is E.STOPPED and bool(data.get("by_person")))
        elif event.type is E.FENCED and event.attempt in attempts:
            attempts[event.attempt] = attempts[event.attempt]._replace(fence=FenceBasis(data["fence"]), fenced=moment_of(event))
        elif event.type is E.LATE_RETURN and event.attempt in attempts:
            attempts[event.attempt] = attempts[event.attempt]._replace(returned=True)
        else:
            _close(attempts, event)
            authorized = authorized or event.type is E.OPERATOR_RETRY_AUTHORIZED
        allowed = _basis_of(event)
        if allowed is not None and event.attempt in attempts:
            attempts[event.attempt] = attempts[event.attempt]._replace(basis=allowed)
        if event.type in _OBSERVED:
            observations.append(_observe(sequence, event))
    ordered = tuple(attempts[number] for number in sorted(attempts))
    return History(ordered, tuple(observations), stopped, authorized, restored)


def moment_of(event: Event) -> Moment:
    """Return the moment that an event speaks of: its wall clock, and the boot clock in its data."""
    boot: Sequence[Any] = event.data.get("boot") or (0, "")
    return Moment(event.at_us, int(boot[0]), str(boot[1]))


def _basis_of(event: Event) -> str | None:
    """Return on what basis an event lets another attempt follow, None where it lets none."""
    if event.type in (E.NOT_SENT, E.NEVER_ENTERED) and event.status is Status.PREPARED:
        return ClosedBy.NOT_SENT.value
    return event.data.get("basis")


def _end(attempt: Attempt, event: Event) -> Attempt:
    data = event.data
    fence = FenceBasis(data["fence"]) if data.get("fence") else None
    fenced = Moment(event.at_us, *data["fence_boot"]) if "fence_boot" in data else moment_of(event)
    return attempt._replace(
        ended=moment_of(event),
        end=event.type,
        execution=_EXECUTION.get(event.type, Outcome.UNKNOWN),
        fence=fence,
        fenced=fenced if fence else None,
        closed_by=_CLOSES.get(event.type),
        returned=event.type in _RETURNED,
        error=data.get("error"),
        retryable=data.get("retryable"),
        interruption=data.get("interruption") or _INTERRUPTION.get(event.type),
    )


def _close(attempts: dict[int, Attempt], event: Event) -> None:
    """Close what an event closes: a counted absence and a person's decision all open attempts, a late rejection its own."""
    if event.type is E.PROBE_ABSENT:
        closing: tuple[int, ...] = tuple(attempts)
        by = ClosedBy.TERMINAL_ABSENCE
    elif event.type in (E.OPERATOR_REJECTED, E.OPERATOR_RETRY_AUTHORIZED):
        closing, by = tuple(attempts), ClosedBy.OPERATOR_ASSERTED
    elif event.type is E.LATE_REJECTED and event.data.get("closes"):
        closing = (event.attempt,)
        by = ClosedBy.NOT_SENT if event.data.get("not_sent") else ClosedBy.REJECTED
    else:
        return
    for number in closing:
        attempt = attempts.get(number)
        if attempt is None or not attempt.open:
            continue
        attempts[number] = attempt._replace(closed_by=by)
        if by is ClosedBy.OPERATOR_ASSERTED and attempt.fence is None:
            attempts[number] = attempts[number]._replace(fence=FenceBasis.OPERATOR_ASSERTED, fenced=moment_of(event))


def _observe(sequence: int, event: Event) -> Observation:
    data = dict(event.data)
    if event.type in (E.PROBE_COMMITTED, E.LATE_RETURN):
        verdict = Outcome.CONFIRMED if data.get("confirms") else Outcome.UNKNOWN
    elif event.type in (E.RETURNED, E.OPERATOR_CONFIRMED):
        verdict = Outcome.CONFIRMED
    elif event.type in (E.REJECTED, E.NEVER_ENTERED, E.NOT_SENT, E.PROBE_ABSENT, E.LATE_REJECTED, E.OPERATOR_REJECTED):
        verdict = Outcome.FAILED
    else:
        verdict = Outcome.UNKNOWN
    return Observation(
        sequence=sequence,
        source=str(data.get("source") or _SOURCES.get(event.type, "probe")),
        type=event.type,
        attempt=event.attempt,
        at_us=event.at_us,
        verdict=verdict,
        provider_operation_id=data.get("id"),
        has_output=bool(data.get("out")),
        confirms=verdict is Outcome.CONFIRMED,
        data=data,
    )


def outcome_of_attempt(attempt: Attempt) -> Outcome:
    """Return what is known of one attempt by itself."""
    if attempt.closed_by is not None:
        return Outcome.FAILED
    return attempt.execution or Outcome.UNKNOWN


def is_settled(status: Status) -> bool:
    """Return whether automatic and human work on an operation has ended."""
    return status in (Status.CONFIRMED, Status.REJECTED, Status.CANCELLED)

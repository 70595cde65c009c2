"""What callers see of an operation: an immutable snapshot that says what is known and what to do next."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from settled.core.errors import EffectFailedError, ResultUnavailableError, UnresolvedError
from settled.core.evidence import compose
from settled.core.history import EMPTY, Attempt, History, Observation, outcome_of_attempt
from settled.core.masking import NO_MASK, Mask
from settled.core.moment import at
from settled.core.paused import NOTHING, Paused
from settled.core.row import Row, outcome_of
from settled.core.words import FAILED_STATUSES, SETTLED, ClosedBy, EventType, NextAction, Outcome, Status

_NEXT: Final = {
    Status.PREPARED: NextAction.WAIT,
    Status.DISPATCHED: NextAction.WAIT,
    Status.OUTCOME_UNKNOWN: NextAction.WAIT,
    Status.QUARANTINED: NextAction.ASK_HUMAN,
    Status.CONFIRMED: NextAction.USE_RESULT,
    Status.REJECTED: NextAction.DO_NOT_RETRY,
    Status.CANCELLED: NextAction.DO_NOT_RETRY,
}


_VERIFIES: Final = (EventType.PROBE_COMMITTED, EventType.PROBE_ABSENT, EventType.PROBE_PENDING, EventType.PROBE_UNKNOWN)


class _Read(NamedTuple):
    """What was read of one operation. Texts are parsed already, so that one that is no JSON is an error of the read itself."""

    row: Row
    created: bool
    history: Callable[[], History] | None
    output: Any
    has_output: bool
    metadata: Mapping[str, Any]
    reconciling: bool
    paused: Paused
    mask: Mask
    unreadable: str | None


class _Told:
    """What tells each field from what was read, when somebody asks for it: most callers ask for a few of them, or for none."""

    __slots__ = ("_read",)
    _read: _Read

    def __getattr__(self, name: str) -> Any:
        """Fill in a field. Asked by two threads at once, both give the same."""
        tell = _TELL.get(name)
        if tell is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        told = tell(self._read)
        object.__setattr__(self, name, told)
        return told


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(_Told):
    """One operation as it was when it was read. Times are aware, UTC.

    `waits_for` says what would move it: dispatch, paused, the reason of a hold, handler, probe, or person; None once it is settled.
    `unreadable` says which key is missing for texts that are encrypted. `attempts` counts dispatches; `created` is True only on the
    call that stored it; `version` is what a decision names.
    """

    operation_id: str
    contract: str
    contract_version: str | None
    status: Status
    outcome: Outcome | None
    in_progress: bool
    created: bool
    attempts: int
    version: int
    reason: str | None
    next_action: NextAction
    error: str | None
    provider_operation_id: str | None
    provider_reference: str | None
    duplicate_suspected: bool
    fingerprint: str
    queue: str
    risk: str
    priority: int
    created_at: datetime
    updated_at: datetime
    due_at: datetime | None
    deadline: datetime | None
    reconciling: bool = False
    waits_for: str | None = None
    output: Any = field(default=None, repr=False)
    has_output: bool = False
    unreadable: str | None = None
    evidence: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    attempt_records: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    metadata: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    mask: Mask = field(default=NO_MASK, repr=False, compare=False)

    def result(self) -> Any:
        """Return the output of a confirmed operation.

        Raises UnresolvedError while the outcome is not known, EffectFailedError where the effect did not happen,
        ResultUnavailableError where it happened and its output was not kept, was purged, or cannot be tied to it.
        """
        if self.status in FAILED_STATUSES:
            raise EffectFailedError(self.operation_id, self.status, self.masked().error)
        if self.status is not Status.CONFIRMED:
            raise UnresolvedError(self.operation_id, self.status)
        if self.unreadable is not None:
            raise ResultUnavailableError(self.operation_id, self.unreadable)
        if not self.has_output:
            raise ResultUnavailableError(self.operation_id, "it was not kept, has been purged, or cannot be tied to the effect")
        return json.loads(json.dumps(self.output))

    @property
    def settled(self) -> bool:
        """Whether automatic and human work on it has ended."""
        return self.status in SETTLED

    @property
    def message(self) -> str:
        """One sentence for whoever submitted it. It never invites a repetition."""
        return _MESSAGES[self.next_action].format(self=self)

    def masked(self) -> "Operation":
        """Return the snapshot as it may be shown: without the values of fields that its contract calls sensitive."""
        if self.mask is NO_MASK:
            return self
        shown = {name: self.mask.of(getattr(self, name)) for name in _MASKED}
        return replace(self, **shown, metadata=_read_only(self.mask.of(self.metadata)))

    def to_json(self) -> dict[str, Any]:
        """Return the snapshot as plain data to show, sensitive fields masked; times as ISO 8601 in UTC."""
        shown = self.masked()
        return {one.name: _plain(getattr(shown, one.name)) for one in fields(shown) if one.name != "mask"}


_MASKED: Final = ("output", "error", "evidence", "attempt_records", "provider_operation_id", "provider_reference")
_MESSAGES: Final = {
    NextAction.WAIT: "Operation {self.operation_id} is {self.status}: not confirmed yet, do not repeat it. Wait for it.",
    NextAction.ASK_HUMAN: (
        "Operation {self.operation_id} is quarantined ({self.reason}): not confirmed, do not repeat it. A person must decide."
    ),
    NextAction.USE_RESULT: "Operation {self.operation_id} is confirmed: use its result.",
    NextAction.DO_NOT_RETRY: "Operation {self.operation_id} is {self.status}: the effect did not happen. Do not retry it under this ID.",
}


_NO_METADATA: Final[Mapping[str, Any]] = MappingProxyType({})


def snapshot(
    row: Row,
    *,
    created: bool = False,
    history: Callable[[], History] | None = None,
    output_text: str | None = None,
    metadata_text: str | None = None,
    reconciling: bool = False,
    paused: Paused = NOTHING,
    mask: Mask = NO_MASK,
    unreadable: str | None = None,
) -> Operation:
    """Build the snapshot of a row; `output_text` is the canonical text of the output that it shows, `paused` what is paused."""
    output = None if output_text is None else json.loads(output_text)
    metadata = _NO_METADATA if metadata_text is None else _read_only(json.loads(metadata_text))
    made = object.__new__(Operation)
    read = _Read(row, created, history, output, output_text is not None, metadata, reconciling, paused, mask, unreadable)
    object.__setattr__(made, "_read", read)
    return made


_TELL: Final[Mapping[str, Callable[[_Read], Any]]] = {
    "operation_id": lambda read: read.row.operation_id,
    "contract": lambda read: read.row.contract,
    "contract_version": lambda read: read.row.contract_version,
    "status": lambda read: read.row.status,
    "outcome": lambda read: outcome_of(read.row.status, read.row.open_attempts),
    "in_progress": lambda read: read.row.status is Status.DISPATCHED,
    "created": lambda read: read.created,
    "attempts": lambda read: read.row.attempt,
    "version": lambda read: read.row.version,
    "reason": lambda read: read.row.reason,
    "next_action": lambda read: _NEXT[read.row.status],
    "error": lambda read: read.row.error,
    "provider_operation_id": lambda read: read.row.provider_operation_id,
    "provider_reference": lambda read: read.row.provider_reference,
    "duplicate_suspected": lambda read: bool(read.row.duplicate_suspected),
    "fingerprint": lambda read: read.row.fingerprint,
    "queue": lambda read: read.row.queue,
    "risk": lambda read: read.row.risk,
    "priority": lambda read: read.row.priority,
    "created_at": lambda read: at(read.row.created_us),
    "updated_at": lambda read: at(read.row.updated_us),
    "due_at": lambda read: _at(read.row.due_us),
    "deadline": lambda read: _at(read.row.deadline_us),
    "reconciling": lambda read: read.reconciling,
    "waits_for": lambda read: _waits_for(read.row, read.paused),
    "output": lambda read: read.output,
    "has_output": lambda read: read.has_output,
    "unreadable": lambda read: read.unreadable,
    "evidence": lambda read: tuple(_evidence(one) for one in _history(read).observations),
    "attempt_records": lambda read: tuple(_record(one, read.row, _history(read)) for one in _history(read).attempts),
    "metadata": lambda read: read.metadata,
    "mask": lambda read: read.mask,
}
assert tuple(_TELL) == tuple(one.name for one in fields(Operation))


def _history(read: _Read) -> History:
    return EMPTY if read.history is None else read.history()


def _at(wall_us: int | None) -> datetime | None:
    return None if wall_us is None else at(wall_us)


def _waits_for(row: Row, paused: Paused) -> str | None:
    match row.status:
        case Status.PREPARED:
            held = "paused" if paused and paused.holds(row.contract, row.queue) else None
            return row.reason or held or "dispatch"
        case Status.DISPATCHED:
            return "handler"
        case Status.OUTCOME_UNKNOWN:
            return "person" if row.due_us is None else "probe"
        case Status.QUARANTINED:
            return "person"
        case _:
            return None


def _evidence(seen: Observation) -> Mapping[str, Any]:
    hidden = ("boot", "due", "out", "fence_boot", "unknown_age_max", "news")
    facts = {name: value for name, value in seen.data.items() if name not in hidden}
    return MappingProxyType(
        {
            "sequence": seen.sequence,
            "source": seen.source,
            "type": seen.type.value,
            "attempt": seen.attempt,
            "at": at(seen.at_us),
            "verdict": seen.verdict.value,
            "facts": _read_only(facts),
        }
    )


def _read_only(value: Any) -> Any:
    """Return plain data that nobody can change: what was evidence for one reader must stay it for the next."""
    if isinstance(value, dict):
        return MappingProxyType({name: _read_only(one) for name, one in value.items()})
    return tuple(_read_only(one) for one in value) if isinstance(value, list) else value


def _record(attempt: Attempt, row: Row, history: History) -> Mapping[str, Any]:
    verification = _verification(attempt, history)
    composed = outcome_of_attempt(attempt) if attempt.closed_by is not None else compose(attempt.execution, verification)[0]
    return MappingProxyType(
        {
            "number": attempt.number,
            "dispatched_at": at(attempt.dispatched.wall_us),
            "ended_at": None if attempt.ended is None else at(attempt.ended.wall_us),
            "terms": attempt.terms,
            "worker": attempt.worker,
            "end": None if attempt.end is None else attempt.end.value,
            "execution": None if attempt.execution is None else attempt.execution.value,
            "verification": None if verification is None else verification.value,
            "outcome": (composed or Outcome.UNKNOWN).value,
            "error": attempt.error,
            "error_class": _class_of(attempt.error),
            "retryable": attempt.retryable,
            "fence": "may_still_run" if attempt.fence is None else attempt.fence.value,
            "fenced_at": None if attempt.fenced is None else at(attempt.fenced.wall_us),
            "closed_by": "open" if attempt.closed_by is None else attempt.closed_by.value,
            "interruption": attempt.interruption,
            "decision": _decision(attempt, row),
            "basis": attempt.basis,
        }
    )


def _verification(attempt: Attempt, history: History) -> Outcome | None:
    """Return what was observed of an attempt from outside its own code, None where nobody looked."""
    if attempt.closed_by is ClosedBy.TERMINAL_ABSENCE:
        return Outcome.FAILED
    asked = [one for one in history.observations if one.attempt == attempt.number and one.type in _VERIFIES]
    if any(one.confirms for one in asked):
        return Outcome.CONFIRMED
    return Outcome.UNKNOWN if asked else None


def _decision(attempt: Attempt, row: Row) -> str | None:
    """Say whether another attempt was allowed to follow; None while that is open."""
    if attempt.basis is not None:
        return "retry"
    return "stop" if row.status in SETTLED or row.status is Status.QUARANTINED else None


def _class_of(error: str | None) -> str | None:
    name = (error or "").partition(":")[0]
    return name if name.isidentifier() else None


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(one) for one in value]
    return value.value if isinstance(value, (Status, Outcome, NextAction)) else value

"""Probe answers, and how evidence composes.

The constructors make contradictory answers impossible to build. What an answer is worth is decided elsewhere
(`decide_evidence`); here it is kept as it was reported.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, Self

from settled.core.canonical import canonical_text, parse_strict_json
from settled.core.limits import DEFAULTS
from settled.core.words import Outcome


class ProbeStatus(StrEnum):
    """What a probe reports."""

    COMMITTED = "committed"
    NOT_COMMITTED = "not_committed"
    PENDING = "pending"
    UNKNOWN = "unknown"


class _Absent:
    def __repr__(self) -> str:
        return "NO_OUTPUT"


NO_OUTPUT: Final = _Absent()  # a stored null is an output, this is none


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """One answer of a probe. Build it with `committed`, `not_committed`, `pending` or `unknown`.

    `healthy`: the read path itself was shown to work. `terminal`: the provider says that it cannot commit later.
    `reference`: the provider reference that the answer echoes. `output_text` is canonical JSON, `storable` is False
    where an output was given that is not strict JSON.
    """

    status: ProbeStatus
    healthy: bool = False
    terminal: bool = False
    reference: str | None = None
    provider_operation_id: str | None = None
    output_text: str | None = None
    storable: bool = True
    evidence_text: str | None = None
    error_class: str | None = None

    def __post_init__(self) -> None:
        if type(self.status) is not ProbeStatus:
            raise TypeError(f"status must be a ProbeStatus, not {self.status!r}")
        for name in ("healthy", "terminal", "storable"):
            _exact_bool(getattr(self, name), name)
        for name in ("reference", "provider_operation_id"):
            _identity(getattr(self, name), name)
        for name in ("output_text", "evidence_text", "error_class"):
            if type(getattr(self, name)) not in (str, type(None)):
                raise TypeError(f"{name} must be a str, not {type(getattr(self, name)).__name__}")
        self._refuse_contradictions()

    def _refuse_contradictions(self) -> None:
        committed = self.status is ProbeStatus.COMMITTED
        if not committed and (self.output_text is not None or not self.storable or self.provider_operation_id is not None):
            raise TypeError(f"only a committed answer has an output or a provider operation ID, not {self.status}")
        if self.terminal and self.status is not ProbeStatus.NOT_COMMITTED:
            raise TypeError(f"only an absence can be terminal, not {self.status}")
        if self.error_class is not None and self.status is not ProbeStatus.UNKNOWN:
            raise TypeError(f"only an unknown answer has an error class, not {self.status}")

    @classmethod
    def committed(
        cls,
        *,
        reference: str | None = None,
        provider_operation_id: str | None = None,
        output: Any = NO_OUTPUT,
        healthy: bool = True,
        evidence: Mapping[str, Any] | None = None,
    ) -> Self:
        """The effect is there. Raises TypeError or ValueError for values of a wrong type, blank IDs, odd evidence."""
        text, storable = _output_text(output)
        return cls(
            status=ProbeStatus.COMMITTED,
            healthy=healthy,
            reference=reference,
            provider_operation_id=provider_operation_id,
            output_text=text,
            storable=storable,
            evidence_text=_evidence_text(evidence),
        )

    @classmethod
    def not_committed(
        cls,
        *,
        terminal: bool = False,
        healthy: bool = False,
        reference: str | None = None,
        evidence: Mapping[str, Any] | None = None,
    ) -> Self:
        """The effect is not there; with `terminal=True` the provider also says that it cannot appear later."""
        return cls(
            status=ProbeStatus.NOT_COMMITTED,
            healthy=healthy,
            terminal=terminal,
            reference=reference,
            evidence_text=_evidence_text(evidence),
        )

    @classmethod
    def pending(
        cls, *, reference: str | None = None, healthy: bool = False, evidence: Mapping[str, Any] | None = None
    ) -> Self:
        """The provider knows of it and has not decided."""
        return cls(
            status=ProbeStatus.PENDING,
            healthy=healthy,
            reference=reference,
            evidence_text=_evidence_text(evidence),
        )

    @classmethod
    def unknown(cls, *, healthy: bool = False, evidence: Mapping[str, Any] | None = None) -> Self:
        """The probe could not tell. What could not be verified did not thereby not happen."""
        return cls(
            status=ProbeStatus.UNKNOWN,
            healthy=healthy,
            evidence_text=_evidence_text(evidence),
        )

    @classmethod
    def failed(cls, error_class: str) -> Self:
        """A probe that raised, hung or answered with a wrong type: unknown, with the class of its error."""
        return cls(status=ProbeStatus.UNKNOWN, error_class=error_class)

    @property
    def evidence(self) -> Mapping[str, Any]:
        """The evidence map, read-only."""
        return MappingProxyType(parse_strict_json(self.evidence_text, "evidence") if self.evidence_text else {})

    def to_json(self) -> dict[str, Any]:
        """Return the answer as plain data, without what has its default."""
        return {name: getattr(self, name) for name in self.__slots__ if getattr(self, name) not in (None, False)} | (
            {} if self.storable else {"storable": False}
        )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild an answer from `to_json`. Raises TypeError or ValueError for anything else."""
        if not isinstance(data, Mapping) or not set(data) <= set(cls.__slots__):
            raise TypeError("not a probe answer")
        answer = cls(**{**data, "status": ProbeStatus(data.get("status", ""))})
        if answer.output_text is not None:
            parse_strict_json(answer.output_text, "output")
        if answer.evidence_text is not None and type(parse_strict_json(answer.evidence_text, "evidence")) is not dict:
            raise TypeError("evidence must be a map")
        return answer


def compose(execution: Outcome | None, verification: Outcome | None) -> tuple[Outcome | None, bool]:
    """Return the composed outcome of execution and verification, and whether the two contradict each other.

    No verification leaves the execution; UNKNOWN yields to the other; CONFIRMED against FAILED is UNKNOWN and a
    contradiction that only a person settles.
    """
    if verification is None or verification == execution:
        return execution, False
    if execution is None or execution is Outcome.UNKNOWN:
        return verification, False
    if verification is Outcome.UNKNOWN:
        return execution, False
    return Outcome.UNKNOWN, True


def aggregate(outcomes: Iterable[Outcome]) -> Outcome | None:
    """Return the outcome over attempts: any CONFIRMED, else any UNKNOWN, else FAILED; None for none."""
    seen = set(outcomes)
    for outcome in (Outcome.CONFIRMED, Outcome.UNKNOWN, Outcome.FAILED):
        if outcome in seen:
            return outcome
    return None


def check_caller_map(value: Mapping[str, Any] | None, name: str, bytes_max: int) -> str | None:
    """Return the canonical text of caller data, None for none. Raises TypeError or ValueError, nothing is stored.

    Keys that start with `settled.` are refused: caller data never shadows a fact.
    """
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a map, not {type(value).__name__}")
    plain = dict(value)
    text = canonical_text(plain, name)
    reserved = next((key for key in plain if key.startswith("settled.")), None)
    if reserved is not None:
        raise ValueError(f"{name} has the key {reserved!r}: keys that start with 'settled.' are reserved")
    if len(text.encode()) > bytes_max:
        raise ValueError(f"{name} is longer than {bytes_max} bytes")
    return text


def _evidence_text(evidence: Mapping[str, Any] | None) -> str | None:
    return check_caller_map(evidence, "evidence", DEFAULTS.evidence_bytes_max)


def _output_text(output: Any) -> tuple[str | None, bool]:
    if output is NO_OUTPUT:
        return None, True
    try:
        return canonical_text(output), True
    except (TypeError, ValueError):
        return None, False


def _exact_bool(value: object, name: str) -> None:
    if type(value) is not bool:
        raise TypeError(f"{name} must be True or False, not {value!r}")


def _identity(value: object, name: str) -> None:
    if value is None:
        return
    if type(value) is not str:
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    if not value.strip() or value != value.strip():
        raise ValueError(f"{name} is blank or padded: {value!r}")

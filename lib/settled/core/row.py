"""One operation as it is stored: its state and the facts of its current attempt, in the order of the columns."""

from typing import NamedTuple

from settled.core.words import Outcome, Status


class Row(NamedTuple):
    """One row of `operation`. Times are wall-clock microseconds UTC; `sequence` and `chain` are those of its last event.

    `open_attempts` counts attempts that are not closed, the running one included; `unfenced` those of them whose fence
    may still be found; `kept` the confirmations that arrived while an attempt was under way.
    """

    id: int
    operation_id: str
    contract: str
    contract_version: str | None
    queue: str
    risk: str
    fingerprint: str
    provider_key: str | None
    provider_reference: str | None
    derived: int
    priority: int
    deadline_us: int | None
    created_us: int
    # state, moved only by the guarded writer
    status: Status
    reason: str | None
    due_us: int | None
    attempt: int
    version: int
    sequence: int
    open_attempts: int
    unfenced: int
    kept: int
    lease_owner: int | None
    terms: int | None
    probes_spent: int
    unknown_since_us: int | None
    escalate_us: int | None
    settled_by: str | None
    provider_operation_id: str | None
    duplicate_suspected: int
    output_part: int | None
    error: str | None
    updated_us: int
    chain: bytes


STATE_COLUMNS = Row._fields[Row._fields.index("status") :]


def outcome_of(status: Status, open_attempts: int) -> Outcome | None:
    """Return the outcome that is shown for a status; None where nothing was ever sent."""
    match status:
        case Status.PREPARED:
            return Outcome.UNKNOWN if open_attempts else None
        case Status.DISPATCHED | Status.OUTCOME_UNKNOWN | Status.QUARANTINED:
            return Outcome.UNKNOWN
        case Status.CONFIRMED:
            return Outcome.CONFIRMED
        case Status.REJECTED | Status.CANCELLED:
            return Outcome.FAILED

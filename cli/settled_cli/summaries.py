"""What people see of operations and events: short where many are listed, whole where one is shown."""

from collections.abc import Iterable
from typing import Any, Final

from settled.core.words import SETTLED
from settled.operation import Operation
from settled.steps.show import EventView

LISTED: Final = ("operation_id", "contract", "status", "outcome", "attempts", "updated_at", "waits_for", "reason")
_SHOWN: Final = (
    "operation_id", "contract", "contract_version", "status", "outcome", "in_progress", "reconciling", "waits_for", "reason", "attempts",
    "version", "next_action", "output", "error", "provider_operation_id", "provider_reference", "duplicate_suspected", "queue", "risk",
    "priority", "created_at", "updated_at", "due_at", "deadline", "fingerprint",
)  # fmt: skip


def summary(operation: Operation) -> dict[str, Any]:
    """Return what a list shows: never arguments, output, fingerprint or evidence."""
    return {name: getattr(operation, name) for name in LISTED}


def shown(operation: Operation) -> dict[str, Any]:
    """Return what a table of one operation shows. A stored null is an output; none is left out."""
    values = {name: getattr(operation, name) for name in _SHOWN}
    if operation.has_output:
        values["output"] = {"value": operation.output} if operation.output is None else operation.output
    else:
        del values["output"]
    if operation.status in SETTLED:
        del values["due_at"], values["waits_for"]
    return values


def event_rows(events: Iterable[EventView]) -> list[dict[str, Any]]:
    """Return events as plain data."""
    return [
        {
            "sequence": one.sequence,
            "at": one.at,
            "type": one.type,
            "status": one.status.value,
            "attempt": one.attempt,
            "data": dict(one.data),
        }
        for one in events
    ]

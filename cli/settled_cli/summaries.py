"""What people see of operations and events: short where many are listed, whole where one is shown."""

from collections.abc import Iterable
from typing import Any, Final

from settled.core.masking import Mask
from settled.core.moment import at
from settled.core.proposal import Proposal
from settled.core.words import SETTLED
from settled.operation import Operation
from settled.steps.awaiting import Waiting
from settled.steps.show import EventView
from settled.store.outbox import Undelivered
from settled_cli.render import utc

LISTED: Final = ("operation_id", "contract", "status", "outcome", "attempts", "updated_at", "waits_for", "reason")
WAITING: Final = ("operation_id", "contract", "risk", "reason", "waiting", "probe", "version")
PENDING: Final = ("operation_id", "risk", "proposal", "verb", "proposed_by", "why", "expires_at")
UNDELIVERED: Final = ("channel", "undelivered", "oldest", "attempts", "error")
_SHOWN: Final = (
    "operation_id", "contract", "contract_version", "status", "outcome", "in_progress", "reconciling", "waits_for", "reason", "attempts",
    "version", "next_action", "output", "error", "provider_operation_id", "provider_reference", "duplicate_suspected", "queue", "risk",
    "priority", "created_at", "updated_at", "due_at", "deadline", "fingerprint",
)  # fmt: skip


def summary(operation: Operation) -> dict[str, Any]:
    """Return what a list shows: never arguments, output, fingerprint or evidence."""
    return {name: getattr(operation, name) for name in LISTED}


def waiting_row(one: Waiting) -> dict[str, Any]:
    """Return what is listed of an operation that waits for a person; `probe` says whether the destination can still be asked."""
    operation = one.operation
    return {
        **summary(operation),
        "risk": operation.risk,
        "version": operation.version,
        "waiting_since": one.since,
        "waiting": ago(one.age_seconds),
        "probe": one.probe,
        **({} if one.proposal is None else proposed(one.proposal)),
    }


def proposed(proposal: Proposal) -> dict[str, Any]:
    """Return what is shown of a proposal."""
    decision = proposal.wanted.decision
    return {
        "proposal": proposal.number,
        "verb": proposal.wanted.verb,
        "proposed_by": decision.actor,
        "principal": decision.principal,
        "why": decision.reason,
        "evidence_reference": decision.evidence_reference,
        "expires_at": at(proposal.expires_us),
        "assert_nothing_can_arrive": proposal.wanted.nothing_can_arrive,
        "accept_second_effect": proposal.wanted.accept_second_effect,
    }


def ago(seconds: float) -> str:
    """Return a duration in its two largest units."""
    for size, unit, smaller, small in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            rest = int(seconds % size // smaller)
            return f"{int(seconds // size)} {unit} {rest} {small}" if rest else f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"


def shown(operation: Operation) -> dict[str, Any]:
    """Return what a table of one operation shows, masked. A stored null is an output; none is left out."""
    operation = operation.masked()
    values = {name: getattr(operation, name) for name in _SHOWN}
    if operation.has_output:
        values["output"] = {"value": operation.output} if operation.output is None else operation.output
    else:
        del values["output"]
    if operation.status in SETTLED:
        del values["due_at"], values["waits_for"]
    return values


def event_rows(events: Iterable[EventView], mask: Mask) -> list[dict[str, Any]]:
    """Return events as plain data, masked."""
    return [
        {
            "sequence": one.sequence,
            "at": one.at,
            "type": one.type,
            "status": one.status.value,
            "attempt": one.attempt,
            "data": mask.of(dict(one.data)),
        }
        for one in events
    ]


def undelivered_facts(found: Iterable[Undelivered]) -> list[dict[str, Any]]:
    """Return what is shown of each channel's queue."""
    return [
        {
            "channel": one.channel or "(no worker has looked)",
            "undelivered": one.notifications,
            "oldest": utc(one.oldest_us),
            "attempts": one.attempts,
            "error": one.error,
        }
        for one in found
    ]

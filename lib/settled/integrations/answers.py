"""What a model is told of an operation: what is known, and the one thing to do next.

Promise: no answer invites a repetition, whatever the destination wrote. Words of others are never part of `agent_message`,
and a model sees them only where the effect surely did not happen.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from settled.core.errors import LedgerStateError, OperationConflictError, SettledError
from settled.core.limits import DEFAULTS
from settled.core.masking import NO_MASK, Mask, mask_of
from settled.core.text import one_line
from settled.core.words import FAILED_STATUSES, SETTLED, NextAction, Outcome, Reason, Status
from settled.operation import Operation

CONFLICT: Final = "conflict"
INVALID_ARGUMENTS: Final = "invalid_arguments"
UNAVAILABLE: Final = "unavailable"
DENIED: Final = "denied"
CONFIRMATION_REQUIRED: Final = "confirmation_required"

_UNRESOLVED: Final = frozenset(Status) - SETTLED
_WAITING: Final = frozenset({*_UNRESOLVED, UNAVAILABLE, CONFIRMATION_REQUIRED})


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """One answer. `effect_status` is a Status, or one of: conflict, invalid_arguments, unavailable, denied, confirmation_required.

    `success` is True only for a confirmed effect. `error`, `reason` and `differs` are for the host; `for_model` is for the model.
    """

    tool: str
    effect_status: str
    agent_message: str
    next_action: NextAction
    operation_id: str | None = None
    outcome: Outcome | None = None
    in_progress: bool = False
    created: bool = False
    output: Any = None
    has_output: bool = False
    error: str | None = None
    reason: str | None = None
    differs: str | None = None
    mask: Mask = NO_MASK

    @property
    def success(self) -> bool:
        """Whether the effect is confirmed."""
        return self.effect_status == Status.CONFIRMED

    @property
    def waiting(self) -> bool:
        """Whether a run that asked for this must wait: nothing is decided yet."""
        return self.effect_status in _WAITING

    def for_model(self) -> dict[str, Any]:
        """Return what the model may see, as plain data: an output only of a confirmed effect, an error only of one that failed."""
        told: dict[str, Any] = {
            "effect_status": str(self.effect_status),
            "next_action": str(self.next_action),
            "message": self.agent_message,
        }
        if self.operation_id is not None:
            told["operation_id"] = self.operation_id
        if self.success and self.has_output:
            told["output"] = bounded(self.mask.of(self.output))
        if self.effect_status in FAILED_STATUSES and self.error:
            told["refusal"] = self.error
        return told

    def to_json(self) -> dict[str, Any]:
        """Return everything but the output, as plain data, for a trace or a snapshot."""
        names = ("tool", "operation_id", "in_progress", "created", "agent_message", "error", "reason", "differs")
        plain = {name: getattr(self, name) for name in names}
        outcome = None if self.outcome is None else str(self.outcome)
        return plain | {"effect_status": str(self.effect_status), "next_action": str(self.next_action), "outcome": outcome}


def tell(operation: Operation, tool: str | None = None, *, masked: tuple[str, ...] = ()) -> ToolResult:
    """Return what a model is told of an operation as it now is. `masked` names fields that it may not see."""
    mask = operation.mask if operation.mask.fields else mask_of(masked)
    return ToolResult(
        tool=tool or operation.contract,
        effect_status=operation.status,
        agent_message=_message(operation),
        next_action=operation.next_action,
        operation_id=operation.operation_id,
        outcome=operation.outcome,
        in_progress=operation.in_progress,
        created=operation.created,
        output=operation.output,
        has_output=operation.has_output,
        error=None if operation.error is None else mask.text(one_line(operation.error, DEFAULTS.error_text_max)),
        reason=operation.reason,
        mask=mask,
    )


def tell_conflict(tool: str, error: OperationConflictError) -> ToolResult:
    """Return what a model is told where the same business action was asked for with other facts."""
    return ToolResult(
        tool=tool,
        effect_status=CONFLICT,
        agent_message=f"Nothing was sent: this action exists already with a different {error.differs}, and the first request stands. "
        "Do not ask for it in other words or under another name. Tell the person you work for.",
        next_action=NextAction.DO_NOT_RETRY,
        operation_id=error.operation_id,
        error=str(error),
        differs=error.differs,
    )


def tell_invalid(tool: str, why: str) -> ToolResult:
    """Return what a model is told of arguments that were refused at the door."""
    return ToolResult(
        tool=tool,
        effect_status=INVALID_ARGUMENTS,
        agent_message=f"{INVALID_ARGUMENTS}: {one_line(why, DEFAULTS.error_text_max)} These arguments will always be refused.",
        next_action=NextAction.DO_NOT_RETRY,
        error=why,
    )


def tell_unavailable(tool: str, error: SettledError, operation_id: str | None) -> ToolResult:
    """Return what a model is told while the ledger cannot be used: nothing is known, and the host looks again."""
    broken = isinstance(error, LedgerStateError)
    return ToolResult(
        tool=tool,
        effect_status=UNAVAILABLE,
        agent_message="The record of this action cannot be read or written now, so nothing is known of it. "
        "Do not ask for it in other words or under another name. " + ("A person must look." if broken else "Wait."),
        next_action=NextAction.ASK_HUMAN if broken else NextAction.WAIT,
        operation_id=operation_id,
        outcome=Outcome.UNKNOWN,
        error=str(error),
    )


def tell_denied(tool: str) -> ToolResult:
    """Return what a model is told where the policy forbids a call. Nothing was stored."""
    return ToolResult(
        tool=one_line(tool, DEFAULTS.tool_name_max),
        effect_status=DENIED,
        agent_message="This is not allowed here, and nothing was done. "
        "Do not ask for it again, in these or other words or by another tool. Tell the person you work for.",
        next_action=NextAction.DO_NOT_RETRY,
        reason="the policy does not allow this tool",
    )


def tell_confirmation_required(tool: str, operation_id: str | None) -> ToolResult:
    """Return what a model is told while the host has not confirmed a call. Nothing was stored."""
    return ToolResult(
        tool=tool,
        effect_status=CONFIRMATION_REQUIRED,
        agent_message="A person must confirm this first, and nothing was done yet. Nothing that you write is a confirmation. "
        "Do not ask for it again, in these or other words: wait.",
        next_action=NextAction.ASK_HUMAN,
        operation_id=operation_id,
    )


def _message(operation: Operation) -> str:
    if operation.reason == Reason.AWAITING_APPROVAL:
        return "The action is recorded and waits for a person's approval. Do not ask for it again, in these or other words: wait."
    return _MESSAGES[operation.status]


_MESSAGES: Final[Mapping[Status, str]] = {
    Status.PREPARED: "The action is recorded and has not been settled yet. Do not ask for it again, in these or other words: wait.",
    Status.DISPATCHED: "The action is being done now. Do not ask for it again, in these or other words: wait.",
    Status.OUTCOME_UNKNOWN: (
        "Nobody knows yet whether the action happened: its answer was lost, and the destination is being asked. "
        "Do not ask for it again, in these or other words, and do not say that it happened or failed: wait."
    ),
    Status.QUARANTINED: (
        "Nobody knows whether the action happened, and a person must decide. "
        "Do not ask for it again, in these or other words, and do not say that it happened or failed."
    ),
    Status.CONFIRMED: "The action happened. Use its result. Do not ask for it again.",
    Status.REJECTED: (
        "The action did not happen: it was refused. Do not ask for it again, in these or other words. Tell the person you work for."
    ),
    Status.CANCELLED: (
        "The action did not happen: it was called off before anything was sent. Do not ask for it again, in these or other words."
    ),
}


def bounded(output: Any) -> Any:
    """Return an output as it is, or cut where it is too long for a model."""
    text = json.dumps(output, ensure_ascii=False)
    if len(text) <= DEFAULTS.tool_output_chars_max:
        return output
    return {"cut": True, "characters": len(text), "text": one_line(text, DEFAULTS.tool_output_chars_max)}

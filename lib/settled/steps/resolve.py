"""What people decide: confirm, reject, authorize a retry, cancel, approve, deny, stop. Each is one audited write."""

import getpass
import os
from collections.abc import Callable, Sequence
from typing import Any

from settled.core.canonical import canonical_text
from settled.core.case import Case
from settled.core.decide_operator import (
    Decision,
    decide_authorize_retry,
    decide_cancel,
    decide_confirm,
    decide_reject,
    decide_stop_request,
)
from settled.core.errors import OperationNotFoundError, TransitionRefusedError
from settled.core.evidence import NO_OUTPUT
from settled.core.fold import Event
from settled.core.limits import DEFAULTS
from settled.core.row import Row
from settled.core.words import EventType, Reason, Status
from settled.shell import Shell
from settled.steps.outputs import digest
from settled.store.reads import find_row
from settled.store.transaction import Transaction
from settled.store.writer import Move, record

Decide = Callable[[Case], tuple[Event, ...]]


def said_by(actor: object, reason: object) -> tuple[str, str]:
    """Return a person's name and reason. Raises ValueError where one of them is blank."""
    return note_text(actor, "actor"), note_text(reason, "reason")


def decision_of(actor: object, reason: object, evidence_reference: object, expected_version: object) -> Decision:
    """Return a checked decision. Raises TypeError for a version that is no int, ValueError for blank texts."""
    if type(expected_version) is not int:
        raise TypeError(f"expected_version must be the version that was seen, an int, not {expected_version!r}")
    return Decision(
        actor=note_text(actor, "actor"),
        reason=note_text(reason, "reason"),
        evidence_reference=note_text(evidence_reference, "evidence_reference"),
        expected_version=expected_version,
        os_user=os_user(),
    )


def os_user() -> str:
    """Return who the system says is acting: behind sudo, who called it."""
    behind = os.environ.get("SUDO_USER")
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = f"uid {os.getuid()}"
    return f"{behind} (as {name})" if behind and behind != name else name


def confirm(shell: Shell, operation_id: str, decision: Decision, *, output: Any, provider_operation_id: str | None) -> Row:
    """Confirm by a person's word, with an output if one is given."""
    text = None if output is NO_OUTPUT else canonical_text(output, "output")
    if text is not None and len(text.encode()) > shell.limits.result_bytes_max:
        raise ValueError(f"the output is longer than {shell.limits.result_bytes_max} bytes. Nothing was changed.")
    named = None if provider_operation_id is None else note_text(provider_operation_id, "provider_operation_id")

    def decide(case: Case) -> tuple[Event, ...]:
        return decide_confirm(case, decision, output_digest=None if text is None else digest(text), provider_operation_id=named)

    return _resolve(shell, operation_id, "confirm", decide, output=text)


def reject(shell: Shell, operation_id: str, decision: Decision, *, nothing_can_arrive: bool) -> Row:
    """Reject by a person's assertion that no attempt took effect or still can."""
    _flag(nothing_can_arrive, "assert_nothing_can_arrive")
    return _resolve(shell, operation_id, "reject", lambda case: decide_reject(case, decision, nothing_can_arrive=nothing_can_arrive))


def authorize_retry(
    shell: Shell, operation_id: str, decision: Decision, *, nothing_can_arrive: bool, accept_second_effect: bool
) -> Row:
    """Let one more attempt be dispatched."""
    _flag(nothing_can_arrive, "assert_nothing_can_arrive")
    _flag(accept_second_effect, "accept_second_effect")

    def decide(case: Case) -> tuple[Event, ...]:
        return decide_authorize_retry(
            case, decision, nothing_can_arrive=nothing_can_arrive, accept_second_effect=accept_second_effect
        )

    return _resolve(shell, operation_id, "authorize-retry", decide)


def cancel(shell: Shell, operation_id: str, actor: object, reason: object) -> Row:
    """Call off what was never sent."""
    who, why = said_by(actor, reason)
    return _resolve(shell, operation_id, "cancel", lambda case: decide_cancel(case, who, why, os_user()))


def request_stop(shell: Shell, operation_id: str, actor: object, reason: object) -> Row:
    """Ask the owner to stop a running handler; the owner finds the request in its next tick."""
    who, why = said_by(actor, reason)
    return _resolve(shell, operation_id, "stop", lambda case: decide_stop_request(case, who, why, os_user()))


def approve(shell: Shell, operation_id: str, actor: object, reason: object) -> Row:
    """Approve a request that waits for a person before its dispatch."""
    who, why = said_by(actor, reason)

    def decide(case: Case) -> tuple[Event, ...]:
        _must_wait(case, "approve")
        data = {"actor": who, "reason_given": why, "os_user": os_user(), "fingerprint": case.row.fingerprint, "due": case.row.due_us}
        return (case.event(EventType.APPROVED, data=data),)

    return _resolve(shell, operation_id, "approve", decide)


def deny(shell: Shell, operation_id: str, actor: object, reason: object) -> Row:
    """Deny a request that waits for a person before its dispatch."""
    who, why = said_by(actor, reason)

    def decide(case: Case) -> tuple[Event, ...]:
        _must_wait(case, "deny")
        return decide_cancel(case, who, why, os_user())

    return _resolve(shell, operation_id, "deny", decide)


def must_find(transaction: Transaction, operation_id: str) -> Row:
    """Return the row of an operation ID. Raises OperationNotFoundError."""
    row = find_row(transaction, operation_id)
    if row is None:
        raise OperationNotFoundError(operation_id)
    return row


def _resolve(shell: Shell, operation_id: str, verb: str, decide: Decide, *, output: str | None = None) -> Row:
    """Decide by the row as it is inside the recording transaction; a decision is written whole or not at all."""
    with shell.ledger.write() as transaction:
        row = must_find(transaction, operation_id)
        events = decide(shell.full_case(transaction, row, shell.clock.now()))
        done = record(transaction, [Move(row, events, _outputs(shell, events, output))])[0]
        if done.error is not None:
            raise done.error
        if done.row is None:
            raise TransitionRefusedError(operation_id, row.status, verb, "it was moved at the same moment")
        return done.row


def _outputs(shell: Shell, events: Sequence[Event], output: str | None) -> dict[int, str]:
    return {index: shell.codec.encode(output) for index, event in enumerate(events) if output is not None and event.data.get("out")}


def _must_wait(case: Case, verb: str) -> None:
    if case.row.status is not Status.PREPARED or case.row.reason != Reason.AWAITING_APPROVAL:
        raise TransitionRefusedError(case.row.operation_id, case.row.status, verb, "it does not wait for an approval")


def note_text(value: object, what: str) -> str:
    """Return what a person said, without the space around it. Raises ValueError where it is blank, too long or no Unicode text."""
    if type(value) is not str or not value.strip():
        raise ValueError(f"{what} must not be blank. Nothing was changed.")
    if len(value) > DEFAULTS.note_text_max:
        raise ValueError(f"{what} is longer than {DEFAULTS.note_text_max} characters. Nothing was changed. Name a place where more stands.")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"{what} holds a lone surrogate, which is not Unicode text. Nothing was changed.")
    return value.strip()


def _flag(value: object, what: str) -> None:
    if type(value) is not bool:
        raise TypeError(f"{what} must be True or False, not {value!r}")

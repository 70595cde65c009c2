"""What people decide: confirm, reject, authorize a retry, cancel, approve, deny, stop. Each is one audited write."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from settled.core.canonical import canonical_text
from settled.core.case import Case
from settled.core.decide_operator import Decision, decide_cancel, decide_stop_request
from settled.core.errors import OperationNotFoundError, TransitionRefusedError
from settled.core.evidence import NO_OUTPUT
from settled.core.fold import Event
from settled.core.proposal import VERBS, Verb, Wanted, decide
from settled.core.row import Row
from settled.core.words import EventType, Reason, Status
from settled.shell import Shell
from settled.steps.persons import note_text, said_by, who_acts
from settled.steps.rules import needs_two
from settled.store.bodies import body_digest
from settled.store.reads import find_row
from settled.store.retention import has_arguments
from settled.store.transaction import Transaction
from settled.store.writer import Move, record

Decide = Callable[[Transaction, Case], tuple[Event, ...]]


def wanted(
    shell: Shell,
    verb: Verb,
    decision: Decision,
    *,
    output: Any = NO_OUTPUT,
    provider_operation_id: str | None = None,
    nothing_can_arrive: bool = False,
    accept_second_effect: bool = False,
) -> tuple[Wanted, str | None]:
    """Return a checked resolution, and the text of its output. Raises TypeError or ValueError for what is not exactly a fact."""
    if verb not in VERBS:
        raise ValueError(f"the verb must be one of {', '.join(VERBS)}, not {verb!r}. Nothing was changed.")
    for name, value in (("assert_nothing_can_arrive", nothing_can_arrive), ("accept_second_effect", accept_second_effect)):
        if type(value) is not bool:
            raise TypeError(f"{name} must be True or False, not {value!r}")
    text = None if output is NO_OUTPUT else canonical_text(output, "output")
    if text is not None and len(text.encode()) > shell.limits.result_bytes_max:
        raise ValueError(f"the output is longer than {shell.limits.result_bytes_max} bytes. Nothing was changed.")
    return Wanted(
        verb=verb,
        decision=decision,
        output=None if text is None else body_digest(text),
        provider_operation_id=None if provider_operation_id is None else note_text(provider_operation_id, "provider_operation_id"),
        nothing_can_arrive=nothing_can_arrive,
        accept_second_effect=accept_second_effect,
    ), text


def resolve(shell: Shell, operation_id: str, asked: Wanted, output: str | None) -> Row:
    """Confirm, reject or authorize a retry by one person's word. Raises TransitionRefusedError, also where two are needed."""

    def decide_alone(transaction: Transaction, case: Case) -> tuple[Event, ...]:
        events = decide(case, asked)
        if needs_two(shell, transaction, case):
            raise TransitionRefusedError(
                operation_id, case.row.status, asked.verb, f"two persons are needed for risk {case.row.risk}",
                f"Propose it, and let somebody else approve: settled quarantine propose {asked.verb} {operation_id}",
            )  # fmt: skip
        return events

    return write_decision(shell, operation_id, asked.verb, decide_alone, output=output)


def cancel(shell: Shell, operation_id: str, actor: object, reason: object) -> Row:
    """Call off what was never sent."""
    who, why = said_by(actor, reason)
    person = who_acts(shell)
    return write_decision(shell, operation_id, "cancel", lambda _, case: decide_cancel(case, who, why, *person))


def request_stop(shell: Shell, operation_id: str, actor: object, reason: object) -> Row:
    """Ask the owner to stop a running handler; the owner finds the request in its next tick."""
    who, why = said_by(actor, reason)
    person = who_acts(shell)
    return write_decision(shell, operation_id, "stop", lambda _, case: decide_stop_request(case, who, why, *person))


def approve(shell: Shell, operation_id: str, actor: object, reason: object, expected_fingerprint: str | None = None) -> Row:
    """Approve a request that waits for a person before its dispatch: this request, by its fingerprint, and no other."""
    who, why = said_by(actor, reason)
    person = who_acts(shell)

    def decide_approval(_: Transaction, case: Case) -> tuple[Event, ...]:
        _must_wait(case, "approve")
        row = case.row
        if expected_fingerprint is not None and expected_fingerprint != row.fingerprint:
            raise TransitionRefusedError(
                operation_id, row.status, "approve", f"its fingerprint is {row.fingerprint}, not the one that you saw",
                f"Look again before you decide: settled op show {operation_id}",
            )  # fmt: skip
        data = {"actor": who, "reason_given": why, **person._asdict(), "fingerprint": row.fingerprint, "due": row.due_us}
        return (case.event(EventType.APPROVED, data=data),)

    return write_decision(shell, operation_id, "approve", decide_approval)


def deny(shell: Shell, operation_id: str, actor: object, reason: object) -> Row:
    """Deny a request that waits for a person before its dispatch."""
    who, why = said_by(actor, reason)
    person = who_acts(shell)

    def decide_denial(_: Transaction, case: Case) -> tuple[Event, ...]:
        _must_wait(case, "deny")
        return decide_cancel(case, who, why, *person)

    return write_decision(shell, operation_id, "deny", decide_denial)


def must_find(transaction: Transaction, operation_id: str) -> Row:
    """Return the row of an operation ID. Raises OperationNotFoundError."""
    row = find_row(transaction, operation_id)
    if row is None:
        raise OperationNotFoundError(operation_id)
    return row


def write_decision(shell: Shell, operation_id: str, verb: str, decides: Decide, *, output: str | None = None) -> Row:
    """Decide by the row as it is inside the recording transaction; a decision is written whole or not at all."""
    with shell.ledger.write() as transaction:
        row = must_find(transaction, operation_id)
        events = decides(transaction, shell.full_case(transaction, row, shell.clock.now()))
        return record_decision(transaction, row, verb, events, _outputs(shell, events, output))


def record_decision(transaction: Transaction, row: Row, verb: str, events: Sequence[Event], outputs: Mapping[int, str]) -> Row:
    """Record what a person decided.

    Raises TransitionRefusedError where the row was moved at the same moment, and for a retry of what has no arguments any more.
    """
    retries = any(event.type is EventType.OPERATOR_RETRY_AUTHORIZED for event in events)
    if retries and not has_arguments(transaction, row.id):
        raise TransitionRefusedError(row.operation_id, row.status, verb, "its arguments were purged, so that nothing could be sent")
    done = record(transaction, [Move(row, events, outputs)])[0]
    if done.error is not None:
        raise done.error
    if done.row is None:
        raise TransitionRefusedError(row.operation_id, row.status, verb, "it was moved at the same moment")
    return done.row


def _outputs(shell: Shell, events: Sequence[Event], output: str | None) -> dict[int, str]:
    return {index: shell.codec.encode(output) for index, event in enumerate(events) if output is not None and event.data.get("out")}


def _must_wait(case: Case, verb: str) -> None:
    if case.row.status is not Status.PREPARED or case.row.reason != Reason.AWAITING_APPROVAL:
        raise TransitionRefusedError(case.row.operation_id, case.row.status, verb, "it does not wait for an approval")

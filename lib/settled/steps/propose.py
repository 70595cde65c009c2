"""The two-person rule in practice: propose a resolution, let somebody else approve or decline it. Each is one audited write."""

from dataclasses import replace

from settled.core.case import Case
from settled.core.decide_operator import Decision
from settled.core.errors import LedgerStateError, TransitionRefusedError
from settled.core.fold import Event
from settled.core.proposal import (
    Proposal,
    Wanted,
    decide_approve,
    decide_decline,
    decide_propose,
    last_proposal,
    standing_proposal,
    why_lapsed,
)
from settled.core.row import Row
from settled.shell import Shell
from settled.steps.persons import said_by, who_acts
from settled.steps.resolve import must_find, write_decision
from settled.store.bodies import body_digest
from settled.store.reads import read_events, read_payload
from settled.store.transaction import Transaction


def propose(shell: Shell, operation_id: str, asked: Wanted, output: str | None) -> Proposal:
    """Put a resolution on record that a second person may approve. Raises TransitionRefusedError for what could not be carried out."""

    def decides(transaction: Transaction, case: Case) -> tuple[Event, ...]:
        standing = standing_proposal(read_events(transaction, case.row), case.row.version, case.now.wall_us)
        return decide_propose(case, asked, standing, shell.rules.proposal_expires_us)

    write_decision(shell, operation_id, "propose", decides, output=output)
    proposal = proposal_of(shell, operation_id)
    if proposal is None:
        raise TransitionRefusedError(operation_id, "moved", "propose", "it was moved right after the proposal, which lapsed")
    return proposal


def approve_proposal(shell: Shell, operation_id: str, number: int, actor: object, reason: object) -> Row:
    """Carry out a proposal by the word of a second person. Raises TransitionRefusedError."""
    approver = _decision(shell, actor, reason)

    def decides(transaction: Transaction, case: Case) -> tuple[Event, ...]:
        proposal = _standing(transaction, case, number, "approve")
        _check_output(shell, transaction, case, proposal)
        return decide_approve(case, proposal, approver)

    return write_decision(shell, operation_id, "approve", decides)


def decline_proposal(shell: Shell, operation_id: str, number: int, actor: object, reason: object) -> Row:
    """Put on record that a proposal is not carried out; nothing moves."""
    decliner = _decision(shell, actor, reason)

    def decides(transaction: Transaction, case: Case) -> tuple[Event, ...]:
        proposal = last_proposal(read_events(transaction, case.row))
        if proposal is None or proposal.number != number:
            raise _no_such(case.row, number, "decline", proposal)
        return decide_decline(case, proposal, decliner)

    return write_decision(shell, operation_id, "decline", decides)


def proposal_of(shell: Shell, operation_id: str) -> Proposal | None:
    """Return the proposal that may be approved now. Raises OperationNotFoundError."""
    with shell.ledger.read() as transaction:
        row = must_find(transaction, operation_id)
        return standing_proposal(read_events(transaction, row), row.version, shell.clock.now().wall_us)


def _decision(shell: Shell, actor: object, reason: object) -> Decision:
    who, why = said_by(actor, reason)
    person = who_acts(shell)
    said = Decision(actor=who, reason=why, evidence_reference="", expected_version=0)
    return replace(said, os_user=person.os_user, principal=person.principal)


def _standing(transaction: Transaction, case: Case, number: int, verb: str) -> Proposal:
    if type(number) is not int:
        raise TypeError(f"the proposal must be named by its number, an int, not {number!r}")
    proposal = last_proposal(read_events(transaction, case.row))
    if proposal is None or proposal.number != number:
        raise _no_such(case.row, number, verb, proposal)
    lapsed = why_lapsed(proposal, case.row.version, case.now.wall_us)
    if lapsed is not None:
        raise TransitionRefusedError(
            case.row.operation_id, case.row.status, verb, f"proposal {number} lapsed: {lapsed}",
            f"Look again, and propose anew: settled op show {case.row.operation_id}",
        )  # fmt: skip
    return proposal


def _no_such(row: Row, number: int, verb: str, proposal: Proposal | None) -> TransitionRefusedError:
    why = f"no proposal {number} stands" if proposal is None else f"proposal {proposal.number} stands, not {number}"
    return TransitionRefusedError(row.operation_id, row.status, verb, why, "See: settled quarantine list --pending")


def _check_output(shell: Shell, transaction: Transaction, case: Case, proposal: Proposal) -> None:
    """Compare the output that was stored with the proposal with the digest that was proposed."""
    if proposal.wanted.output is None:
        return
    stored = read_payload(transaction, case.row.id, proposal.number)
    if stored is None or body_digest(shell.codec.decode(stored)) != proposal.wanted.output:
        raise LedgerStateError(case.row.operation_id, "payload.body", "it is not the output that was proposed")

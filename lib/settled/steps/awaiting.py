"""Show what waits for a person: the highest risk first, then the longest wait, and what can still be asked about it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from settled.core.moment import SECOND_US, at
from settled.core.proposal import Proposal, standing_proposal
from settled.core.row import Row
from settled.operation import Operation, snapshot
from settled.shell import Shell
from settled.steps.known import must_know_contract
from settled.steps.resolve import must_find
from settled.store.people import Selection, find_for_people, find_proposed, since_us
from settled.store.reads import read_events, read_row
from settled.store.transaction import Transaction

Probeable = Literal["scheduled", "by hand", "no"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """One operation that waits for a person, since when, whether a probe can still be asked, and what stands proposed."""

    operation: Operation
    since: datetime
    age_seconds: float
    probe: Probeable
    proposal: Proposal | None = None


def waiting_for_people(shell: Shell, selection: Selection, limit: int) -> list[Waiting]:
    """Return what waits for a person. Raises ValueError for a bad limit, ContractNotFoundError for a name that nobody knows."""
    if type(limit) is not int or not 1 <= limit <= shell.limits.list_max:
        raise ValueError(f"limit must be from 1 to {shell.limits.list_max}, not {limit!r}")
    with shell.ledger.read() as transaction:
        if selection.contract is not None:
            must_know_contract(shell, transaction, selection.contract)
        proposed = find_proposed(transaction)
        return [_waiting(shell, transaction, row, row.id in proposed) for row in find_for_people(transaction, selection, limit)]


def pending_proposals(shell: Shell) -> list[Waiting]:
    """Return what one person has proposed and a second one may approve now, the oldest proposal first."""
    with shell.ledger.read() as transaction:
        found = [_waiting(shell, transaction, read_row(transaction, key), True) for key in sorted(find_proposed(transaction))]
    pending = [one for one in found if one.proposal is not None]
    return sorted(pending, key=lambda one: one.proposal.at_us if one.proposal is not None else 0)


def probeable(shell: Shell, transaction: Transaction, row: Row) -> Probeable:
    """Return whether the destination can still be asked, by the terms that are registered here or were stored."""
    terms = shell.current_terms(row.contract)
    if terms is None and row.terms is not None:
        terms = shell.stored_terms(transaction, {row.terms}).get(row.terms)
    if terms is None or not terms.has_probe:
        return "no"
    return "by hand" if row.due_us is None else "scheduled"


def probe_of(shell: Shell, operation_id: str) -> Probeable:
    """Return whether the destination can still be asked about one operation."""
    with shell.ledger.read() as transaction:
        return probeable(shell, transaction, must_find(transaction, operation_id))


def _waiting(shell: Shell, transaction: Transaction, row: Row, proposed: bool) -> Waiting:
    events = read_events(transaction, row) if proposed else []
    now_us = shell.clock.now().wall_us
    return Waiting(
        operation=snapshot(row),
        since=at(since_us(row)),
        age_seconds=max(0, now_us - since_us(row)) / SECOND_US,
        probe=probeable(shell, transaction, row),
        proposal=standing_proposal(events, row.version, now_us),
    )

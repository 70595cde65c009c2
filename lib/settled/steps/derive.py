"""Derive key and reference of requests that were submitted by name, before they can be claimed."""

from typing import Any

from settled.core.canonical import parse_strict_json
from settled.core.errors import SettledError
from settled.core.fold import Event
from settled.core.row import Row
from settled.core.words import EventType, Reason, Status
from settled.shell import Shell
from settled.steps.inbox import attach_waiting
from settled.steps.readable import put_aside, readable_text
from settled.steps.submit import Order, check_order, deadline_of
from settled.store.reads import read_row
from settled.store.requests import identity_digest, set_derived
from settled.store.transaction import Transaction
from settled.store.waiting import find_underived
from settled.store.writer import Move, record


def derive_waiting(shell: Shell) -> int:
    """Derive what waits for it; return how many rows were handled. The contract's functions run outside any transaction."""
    now_us = shell.clock.now().wall_us
    with shell.ledger.read() as transaction:
        found = [
            pair
            for name in shell.contracts
            for pair in find_underived(transaction, name, shell.limits.batch_max)
        ]
    for row, stored in found:
        text = readable_text(shell, row, stored)
        if text is None:
            with shell.ledger.write() as transaction:
                put_aside(transaction, row, now_us)
            continue
        order, problem = _derive(shell, row, text)
        with shell.ledger.write() as transaction:
            _record(shell, transaction, row, order, problem)
    return len(found)


def _derive(shell: Shell, row: Row, text: str) -> tuple[Order | None, str]:
    contract = shell.contracts[row.contract]
    try:
        return check_order(contract, row.contract, parse_strict_json(text), limits=shell.limits, operation_id=row.operation_id), ""
    except (TypeError, ValueError, SettledError) as error:
        return None, f"{type(error).__name__}: {error}"


def _record(shell: Shell, transaction: Transaction, seen: Row, order: Order | None, problem: str) -> None:
    row = read_row(transaction, seen.id)
    if row.derived or row.status is not Status.PREPARED or row.reason is not None:
        return
    now = shell.clock.now()
    if order is None:
        data: dict[str, Any] = {"reason": Reason.CONTRACT_MISMATCH, "problem": problem[: shell.limits.error_text_max]}
        record(transaction, [Move(row, [Event(EventType.HELD, Status.PREPARED, 0, now.wall_us, data)])])
        return
    assert order.contract is not None
    terms = order.contract.terms
    facts: dict[str, Any] = {
        "contract_version": terms.version,
        "queue": terms.queue,
        "risk": terms.risk,
        "provider_key": order.provider_key,
        "provider_reference": order.provider_reference,
        "fingerprint": order.fingerprint,
    }
    deadline_us = deadline_of(shell, order, now, row.deadline_us)
    # What was derived is bound into the chain, as a submission is.
    digest = identity_digest(row._replace(derived=1, deadline_us=deadline_us, **facts))
    data = {"terms": shell.keep_terms(transaction, terms), "request": digest, **facts}
    derived = record(transaction, [Move(row, [Event(EventType.DERIVED, Status.PREPARED, 0, now.wall_us, data)])])[0].row
    if derived is None:
        return
    set_derived(transaction, derived.id, facts, deadline_us)
    row = read_row(transaction, seen.id)
    if order.needs_approval:
        held = Event(EventType.HELD, Status.PREPARED, 0, now.wall_us, {"reason": Reason.AWAITING_APPROVAL})
        row = record(transaction, [Move(row, [held])])[0].row or row
    if row.provider_reference is not None:
        attach_waiting(shell, transaction, row, now)

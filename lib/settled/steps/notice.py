"""Take in a provider's notice: evidence that nobody asked for, judged like a probe's answer."""

import json

from settled.core.errors import LedgerUnavailableError, OperationNotFoundError
from settled.core.evidence import ProbeResult, ProbeStatus
from settled.core.row import Row
from settled.identity import check_identity
from settled.shell import Shell
from settled.steps.inbox import note_evidence
from settled.steps.persons import note_text
from settled.store.inbox import keep
from settled.store.reads import ARGUMENTS, find_by_reference, find_row, read_payload
from settled.store.transaction import Transaction


def add_evidence(
    shell: Shell, *, operation_id: str | None, provider_reference: str | None, source: str, result: ProbeResult
) -> list[Row]:
    """Record a notice for the operation, or for every operation of a provider reference; keep it where none is known yet.

    Raises OperationNotFoundError for an unknown operation ID, ValueError for a source or a reference that names nothing.
    """
    if (operation_id is None) == (provider_reference is None):
        raise TypeError("give exactly one of operation_id and provider_reference")
    source = note_text(source, "source")
    if provider_reference is not None:
        check_identity(provider_reference, "provider_reference")  # what no request could have, none could ever take up
    if not isinstance(result, ProbeResult):
        raise TypeError(f"result must be a ProbeResult, not {type(result).__name__}")
    rows = _named_rows(shell, operation_id, provider_reference)
    conditions = {row.id: _postcondition(shell, row, result) for row in rows}
    with shell.ledger.write() as transaction:
        now = shell.clock.now()
        current = _find(transaction, operation_id, provider_reference)
        if not current and provider_reference is not None:
            body = shell.codec.encode(json.dumps(result.to_json(), sort_keys=True))
            if not keep(transaction, provider_reference, source, now.wall_us, body):
                raise LedgerUnavailableError(
                    f"too much evidence waits for operations that nobody has submitted ({provider_reference!r} among them). "
                    f"This notice was not kept. Send it again later, or name the operation: settled evidence add --help"
                )
        return [
            note_evidence(shell, transaction, row, result, source, now, postcondition=conditions.get(row.id)) for row in current
        ]


def _named_rows(shell: Shell, operation_id: str | None, provider_reference: str | None) -> list[Row]:
    with shell.ledger.read() as transaction:
        rows = _find(transaction, operation_id, provider_reference)
    if operation_id is not None and not rows:
        raise OperationNotFoundError(operation_id)
    return rows


def _find(transaction: Transaction, operation_id: str | None, provider_reference: str | None) -> list[Row]:
    if operation_id is not None:
        row = find_row(transaction, operation_id)
        return [] if row is None else [row]
    assert provider_reference is not None
    return find_by_reference(transaction, provider_reference)


def _postcondition(shell: Shell, row: Row, result: ProbeResult) -> bool | None:
    """Ask the postcondition outside any transaction; where it cannot be asked a result with one does not count."""
    if result.status is not ProbeStatus.COMMITTED:
        return None
    contract = shell.contracts.get(row.contract)
    with shell.ledger.read() as transaction:
        stored = read_payload(transaction, row.id, ARGUMENTS)
        known = shell.stored_terms(transaction, set() if row.terms is None else {row.terms})
    if contract is None:
        terms = known.get(row.terms) if row.terms is not None else None
        return False if terms is not None and terms.has_postcondition else None
    if not contract.has_postcondition:
        return None
    if stored is None or result.output_text is None:
        return False
    text = shell.codec.decode(stored)  # without its key nothing is judged, and nothing is recorded
    try:
        answer = contract.call_postcondition(json.loads(text), json.loads(result.output_text))
    except Exception:  # noqa: BLE001 - a postcondition that raises is not met
        return False
    return answer is True

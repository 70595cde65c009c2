"""Find what of an operation is sensitive, and keep it out of what is recorded as evidence and shown to people."""

from dataclasses import replace

from settled.core.canonical import canonical_text
from settled.core.case import Case
from settled.core.errors import PayloadKeyError
from settled.core.evidence import ProbeResult
from settled.core.history import History
from settled.core.masking import NO_MASK, Mask, mask_of
from settled.core.row import Row
from settled.shell import Shell
from settled.store.reads import ARGUMENTS, read_payload
from settled.store.transaction import Transaction


def mask_for(shell: Shell, transaction: Transaction, row: Row, history: History, output: str | None) -> Mask:
    """Return what hides the fields that the contract calls sensitive, by its terms here and by any that were stored."""
    ids = {one.terms for one in history.attempts if one.terms is not None} | (set() if row.terms is None else {row.terms})
    stored = shell.stored_terms(transaction, ids)
    terms = [shell.current_terms(row.contract), *(stored.get(one) for one in ids)]
    fields = {name for one in terms if one is not None for name in one.sensitive_fields}
    if not fields:
        return NO_MASK
    try:
        arguments = _arguments(shell, transaction, row)
    except PayloadKeyError:  # what cannot be read is not shown either; the names of the fields still hide what stands under them
        arguments = None
    return mask_of(fields, arguments, output)


def without_sensitive(shell: Shell, transaction: Transaction, case: Case, result: ProbeResult) -> ProbeResult:
    """Return an answer whose evidence may be recorded: what is in the chain of events can never be taken out again."""
    fields = {name for terms in case.binding_terms() for name in terms.sensitive_fields}
    if not fields or result.evidence_text is None:
        return result
    try:
        arguments = _arguments(shell, transaction, case.row)
    except PayloadKeyError:  # what is sensitive is not known here, so that none of it may enter the chain
        return replace(result, evidence_text=None)
    mask = mask_of(fields, arguments, result.output_text)
    return replace(result, evidence_text=canonical_text(mask.of(dict(result.evidence)), "evidence"))


def _arguments(shell: Shell, transaction: Transaction, row: Row) -> str | None:
    stored = read_payload(transaction, row.id, ARGUMENTS)
    return None if stored is None else shell.codec.decode(stored)

"""Audit operations one by one: does the chain of events hold, and is the row what its events make of it?"""

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import sqlalchemy as sa

from settled.core.errors import LedgerStateError, TransitionRefusedError
from settled.core.fold import NOT_FOLDED, Event, advance
from settled.core.row import Row
from settled.core.words import EventType, Status
from settled.store.bodies import Decode, changed_bodies
from settled.store.findings import Findings
from settled.store.ledger import Ledger
from settled.store.prepared import named
from settled.store.reads import read_row, to_event
from settled.store.requests import GENESIS, identity_digest
from settled.store.schema import event, operation
from settled.store.transaction import Transaction
from settled.store.writer import event_hash

_c = event.c
_COLUMNS: Final = (_c.type, _c.status, _c.attempt, _c.at_us, _c.data, _c.hash, _c.seal, _c.sequence)


def audit_operations(ledger: Ledger, findings: Findings, progress: Callable[[int], None] | None, decode: Decode) -> None:
    """Look at every operation in key order, in short transactions, so that no writer waits for an audit."""
    after_id, looked_at = 0, 0
    while not findings.full:
        with ledger.read() as transaction:
            ids = [row[0] for row in transaction.run(_ids, after_id=after_id, limit=ledger.limits.batch_max).fetchall()]
            for row_id in ids:
                audit_one(transaction, row_id, findings, ledger.module(), decode)
        if not ids:
            return
        after_id = ids[-1]
        looked_at += len(ids)
        if progress is not None:
            progress(looked_at)


def audit_one(transaction: Transaction, row_id: int, findings: Findings, module: Any, decode: Decode) -> None:
    """Look at one operation: its chain, its fold, its identity and its stored texts."""
    shown = _shown_id(transaction, row_id)
    with findings.instead_of_errors(module, "the operation", shown):
        row = read_row(transaction, row_id)
        stored = transaction.run(_stored, operation=row_id).fetchall()
        _audit_chain(row, stored, findings)
        if events := _audit_fold(row, stored, findings):
            for problem in changed_bodies(transaction, row, events, decode):
                findings.add(problem, row.operation_id)


def _shown_id(transaction: Transaction, row_id: int) -> str:
    """Return an operation ID even where its bytes are no text."""
    return bytes(transaction.run(_raw_id, id=row_id).fetchone()[0]).decode(errors="backslashreplace")


def _audit_chain(row: Row, stored: Sequence[Sequence[Any]], findings: Findings) -> None:
    """Recompute each hash after the one that is stored before it, so that one changed event is one finding."""
    previous, expected = GENESIS, 1
    for values in stored:
        sequence, kept = values[7], bytes(values[5])
        if sequence != expected:
            for missing in range(expected, min(sequence, expected + 10)):
                findings.add("this event is missing", row.operation_id, missing)
        elif event_hash(previous, row.operation_id, sequence, _raw(values), values[4]) != kept:
            findings.add("this event is not the one that was recorded: its hash does not follow", row.operation_id, sequence)
        previous, expected = kept, sequence + 1
    if row.sequence != expected - 1:
        findings.add(f"the row says {row.sequence} events, the last one that is there is {expected - 1}", row.operation_id, expected)
    elif row.chain != previous:
        findings.add("the row's chain is not the hash of its last event", row.operation_id)


def _raw(values: Sequence[Any]) -> Event:
    """Return the stored words as they are: a hash is over what is there, whether it means anything or not."""
    return Event(cast(EventType, values[0]), cast(Status, values[1]), values[2], values[3], {})


def _audit_fold(row: Row, stored: Sequence[Sequence[Any]], findings: Findings) -> list[Event]:
    """Compare a row with the fold of its events; return the events, none where they cannot be read or begin."""
    try:
        events = [to_event(row.operation_id, values) for values in stored]
    except LedgerStateError as error:
        findings.add(f"an event cannot be read: {error}", row.operation_id)
        return []
    if not events or events[0].type is not EventType.SUBMITTED:
        findings.add("there is no event of its submission", row.operation_id, 1)
        return []
    _audit_identity(row, events, findings)
    folded = submitted(row, events)
    for sequence, happened in enumerate(events[1:], 2):
        try:
            folded = advance(folded, happened)
        except (TransitionRefusedError, KeyError, TypeError, ValueError) as error:
            findings.add(f"this event cannot follow: {error}", row.operation_id, sequence)
            return events
    for name in Row._fields:
        if name not in NOT_FOLDED and getattr(row, name) != getattr(folded, name):
            says = f"the row says {getattr(row, name)!r}, its events say {getattr(folded, name)!r}"
            findings.add(f"{name}: {says}", row.operation_id)
    return events


def submitted(row: Row, events: Sequence[Event]) -> Row:
    """Return the row as it was after its first event. What no event tells (due time, first terms) is taken from the row."""
    derived_later = any(happened.type is EventType.DERIVED for happened in events)
    return row._replace(
        derived=0 if derived_later else row.derived,
        created_us=events[0].at_us,
        status=Status.PREPARED,
        reason=None,
        attempt=0,
        version=1,
        sequence=1,
        open_attempts=0,
        unfenced=0,
        kept=0,
        lease_owner=None,
        probes_spent=0,
        unknown_since_us=None,
        escalate_us=None,
        settled_by=None,
        provider_operation_id=None,
        duplicate_suspected=0,
        output_part=None,
        error=None,
        updated_us=events[0].at_us,
    )


def _audit_identity(row: Row, events: Sequence[Event], findings: Findings) -> None:
    """Compare the identity columns with the digest in the event that settled them: the submission, or a later derivation."""
    digests = [happened.data.get("request") for happened in events if happened.type in (EventType.SUBMITTED, EventType.DERIVED)]
    if digests[-1] != identity_digest(row):
        problem = (
            "its identity (contract, version, fingerprint, provider key, reference, queue, risk, priority or deadline) "
            "is not the one that was submitted"
        )
        findings.add(problem, row.operation_id)


def _ids() -> sa.ClauseElement:
    return sa.select(operation.c.id).where(operation.c.id > named("after_id")).order_by(operation.c.id).limit(named("limit"))


def _raw_id() -> sa.ClauseElement:
    return sa.select(sa.cast(operation.c.operation_id, sa.LargeBinary())).where(operation.c.id == named("id"))


def _stored() -> sa.ClauseElement:
    return sa.select(*_COLUMNS).where(_c.operation == named("operation")).order_by(_c.sequence)

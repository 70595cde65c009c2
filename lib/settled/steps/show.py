"""Read operations for callers: snapshots, lists, events."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from settled.core.errors import LedgerStateError, PayloadKeyError
from settled.core.fold import Event
from settled.core.history import fold_history
from settled.core.moment import at
from settled.core.row import Row
from settled.core.words import SETTLED, Status
from settled.operation import Operation, snapshot
from settled.shell import Shell
from settled.steps.masks import mask_for
from settled.steps.resolve import must_find
from settled.store.pauses import read_paused
from settled.store.reads import METADATA, list_rows, read_events, read_payload, read_status
from settled.store.requests import Stored
from settled.store.transaction import Transaction
from settled.store.waiting import probe_owner

sleep = time.sleep
_UNSETTLED: Final = frozenset(status.value for status in Status if status not in SETTLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventView:
    """One event: what happened, the status after it, the attempt it speaks of, and its facts."""

    sequence: int
    type: str
    status: Status
    attempt: int
    at: datetime
    data: Mapping[str, Any]


def get(shell: Shell, operation_id: str) -> Operation:
    """Return an operation with its evidence and output."""
    with shell.ledger.read() as transaction:
        return full_snapshot(shell, transaction, must_find(transaction, operation_id))


def full_snapshot(shell: Shell, transaction: Transaction, row: Row, *, created: bool = False) -> Operation:
    """Return the snapshot of a row with everything that is known of it; texts whose key is not known here are left out, and said so."""
    history = fold_history(read_events(transaction, row))
    try:
        output, metadata, unreadable = _output(shell, transaction, row), _metadata(shell, transaction, row), None
    except PayloadKeyError as error:
        output, metadata, unreadable = None, None, str(error)
    return snapshot(
        row,
        created=created,
        history=lambda: history,
        output_text=output,
        mask=mask_for(shell, transaction, row, history, output),
        metadata_text=metadata,
        unreadable=unreadable,
        reconciling=probe_owner(transaction, row.id) is not None,
        paused=read_paused(transaction),
    )


def known_snapshot(row: Row, events: Sequence[Event], output_text: str | None, metadata_text: str | None) -> Operation:
    """Return the snapshot of a row that this call has made and settled, from what it wrote itself: nothing need be read again."""
    output = None if row.output_part is None else output_text
    return snapshot(row, created=True, history=partial(fold_history, events), output_text=output, metadata_text=metadata_text)


def after_submit(shell: Shell, stored: Stored, within: Transaction | None = None) -> Operation:
    """Return what a submission gives back; a repeated one is read whole, in the caller's transaction where it has one."""
    if stored.created:
        return snapshot(stored.row, created=True)
    if within is not None:
        return snapshot(stored.row)
    with shell.ledger.read() as transaction:
        return full_snapshot(shell, transaction, must_find(transaction, stored.row.operation_id))


def list_operations(shell: Shell, status: str | None, limit: int) -> list[Operation]:
    """Return summaries, newest update first."""
    if type(limit) is not int or not 1 <= limit <= shell.limits.list_max:
        raise ValueError(f"limit must be from 1 to {shell.limits.list_max}, not {limit!r}")
    wanted = tuple(Status) if status is None else (_status(status),)
    with shell.ledger.read() as transaction:
        paused = read_paused(transaction)
        return [snapshot(row, paused=paused) for row in list_rows(transaction, wanted, limit)]


def events(shell: Shell, operation_id: str) -> list[EventView]:
    """Return the events of an operation in order."""
    with shell.ledger.read() as transaction:
        found = read_events(transaction, must_find(transaction, operation_id))
    return [
        EventView(
            sequence=sequence,
            type=event.type.value,
            status=event.status,
            attempt=event.attempt,
            at=at(event.at_us),
            data=MappingProxyType(dict(event.data)),
        )
        for sequence, event in enumerate(found, start=1)
    ]


def if_settled(shell: Shell, operation_id: str) -> Operation | None:
    """Return an operation once it is settled, None before: then only its status is read. Raises OperationNotFoundError."""
    with shell.ledger.read() as transaction:
        if read_status(transaction, operation_id) in _UNSETTLED:
            return None
        return full_snapshot(shell, transaction, must_find(transaction, operation_id))


def _output(shell: Shell, transaction: Transaction, row: Row) -> str | None:
    if row.output_part is None:
        return None
    stored = read_payload(transaction, row.id, row.output_part)
    if stored is None:
        return None
    text = shell.codec.decode(stored)
    if not text:
        raise LedgerStateError(row.operation_id, "payload.body", "it is empty")
    return text


def _metadata(shell: Shell, transaction: Transaction, row: Row) -> str | None:
    stored = read_payload(transaction, row.id, METADATA)
    return None if stored is None else shell.codec.decode(stored)


def _status(value: str) -> Status:
    try:
        return Status(value)
    except ValueError:
        raise ValueError(f"{value!r} is no status. One of: {', '.join(Status)}") from None

"""Record moves of operations. The only statement in the project that changes operation.status.

Promise: each move is one UPDATE guarded by id, status, attempt, version and sequence, with its events, outputs, tally
and seal, and with the incidents that it opens or closes, in the same transaction. A move whose guard hits nothing is dropped whole.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from settled.core.canonical import compact_json
from settled.core.errors import LedgerStateError
from settled.core.fold import Event, advance
from settled.core.row import STATE_COLUMNS, Row
from settled.store.incidents import note_incidents
from settled.store.prepared import named
from settled.store.schema import event, operation, payload
from settled.store.transaction import Transaction
from settled.store.unknowns import watch

_GUARD: Final = ("status", "attempt", "version", "sequence")
_UPDATE_VALUES: Final = (*(f"new_{name}" for name in STATE_COLUMNS), "seen_id", *(f"seen_{name}" for name in _GUARD))
_STATE_FROM: Final = Row._fields.index(STATE_COLUMNS[0])
EVENT_COLUMNS: Final = tuple(column.name for column in event.c)
PAYLOAD_COLUMNS: Final = tuple(column.name for column in payload.c)
HASH_AT, _AT_US_AT = EVENT_COLUMNS.index("hash"), EVENT_COLUMNS.index("at_us")
_quoted: Final = json.encoder.encode_basestring


class Move(NamedTuple):
    """What is to be recorded: the row as it was seen, the events, and outputs by the index of the event that brought them."""

    seen: Row
    events: Sequence[Event]
    outputs: Mapping[int, str] = {}


class Recorded(NamedTuple):
    """What became of a move: the new row; None where somebody else had moved it, or the store refused it with `error`."""

    row: Row | None
    error: Exception | None = None


class _Written(NamedTuple):
    row: Row
    update: tuple[Any, ...]
    events: list[tuple[Any, ...]]
    outputs: list[tuple[Any, ...]]


def record(transaction: Transaction, moves: Sequence[Move]) -> list[Recorded]:
    """Record moves of different operations; one that is stale or refused does not disturb the others."""
    if not moves:
        return []
    seal_id = transaction.sealing.open(transaction.cursor, transaction.statements)
    if len(moves) == 1:
        return [_alone(transaction, moves[0], _prepare(moves[0], seal_id))]
    written = [_prepare(move, seal_id) for move in moves]
    if not _all_at_once(transaction, written):
        return [_alone(transaction, move, one) for move, one in zip(moves, written, strict=True)]
    _cover(transaction, moves, written)
    return [Recorded(one.row) for one in written]


def record_all(transaction: Transaction, moves: Sequence[Move]) -> int:
    """Record moves of which none may be left out; return how many. Raises LedgerStateError, and then nothing of it may be committed."""
    for move, done in zip(moves, record(transaction, moves), strict=True):
        if done.row is None and move.events:
            raise LedgerStateError(move.seen.operation_id, "the row", f"it cannot be moved ({done.error or 'it is not what was read'})")
    return len(moves)


def event_hash(previous: bytes, operation_id: str, sequence: int, happened: Event, data: str | None) -> bytes:
    """Return the hash of one event after `previous`: SHA-256 over the previous hash and the event as a JSON list."""
    facts = "null" if data is None else _quoted(data)
    where = f"{sequence},{_quoted(happened.type)},{_quoted(happened.status)},{happened.attempt},{happened.at_us}"
    return hashlib.sha256(previous + f"[{_quoted(operation_id)},{where},{facts}]".encode()).digest()


# `_value_` and not `value` below: the latter is a descriptor that costs a microsecond, a dozen times for each effect.


def event_rows(
    row_id: int, operation_id: str, sequence: int, chain: bytes, events: Sequence[Event], seal_id: int
) -> tuple[list[tuple[Any, ...]], bytes]:
    """Return rows of `event`, in the order of EVENT_COLUMNS, that follow `sequence`, and the last hash."""
    rows = []
    for happened in events:
        sequence += 1
        data = compact_json(happened.data) if happened.data else None
        chain = event_hash(chain, operation_id, sequence, happened, data)
        rows.append(
            (
                row_id,
                sequence,
                happened.type._value_,
                happened.status._value_,
                happened.attempt,
                happened.at_us,
                data,
                chain,
                seal_id,
            )
        )
    return rows, chain


def _prepare(move: Move, seal_id: int) -> _Written:
    seen, row = move.seen, move.seen
    events, chain = event_rows(seen.id, seen.operation_id, seen.sequence, seen.chain, move.events, seal_id)
    for happened in move.events:
        row = advance(row, happened, chain)
    guard = (seen.id, seen.status._value_, seen.attempt, seen.version, seen.sequence)
    update = (row.status._value_, *row[_STATE_FROM + 1 :], *guard)
    outputs = [(seen.id, seen.sequence + 1 + index, body) for index, body in move.outputs.items()] if move.outputs else []
    return _Written(row, update, events, outputs)


def _all_at_once(transaction: Transaction, written: Sequence[_Written]) -> bool:
    """Write a whole batch; where one row is stale or refused, undo the batch and return False."""
    cursor = transaction.cursor
    cursor.execute("SAVEPOINT batch")
    try:
        moved = transaction.statements[_guarded_update].run_rows(cursor, _UPDATE_VALUES, [one.update for one in written])
        if moved == len(written):
            transaction.statements[insert_event].run_rows(cursor, EVENT_COLUMNS, [row for one in written for row in one.events])
            outputs = [row for one in written for row in one.outputs]
            if outputs:
                transaction.statements[insert_payload].run_rows(cursor, PAYLOAD_COLUMNS, outputs)
            cursor.execute("RELEASE batch")
            return True
    except Exception as error:
        if not _is_about_the_row(error):
            raise
    cursor.execute("ROLLBACK TO batch")
    cursor.execute("RELEASE batch")
    return False


def _alone(transaction: Transaction, move: Move, one: _Written) -> Recorded:
    """Write one move inside its own savepoint."""
    cursor = transaction.cursor
    cursor.execute("SAVEPOINT one")
    try:
        if transaction.statements[_guarded_update].run_rows(cursor, _UPDATE_VALUES, [one.update]) == 1:
            transaction.statements[insert_event].run_rows(cursor, EVENT_COLUMNS, one.events)
            if one.outputs:
                transaction.statements[insert_payload].run_rows(cursor, PAYLOAD_COLUMNS, one.outputs)
            cursor.execute("RELEASE one")
            _cover(transaction, [move], [one])
            return Recorded(one.row)
        refused: Exception | None = None
    except Exception as error:
        if not _is_about_the_row(error):
            raise
        refused = error
    cursor.execute("ROLLBACK TO one")
    cursor.execute("RELEASE one")
    return Recorded(None, refused)


def _cover(transaction: Transaction, moves: Sequence[Move], written: Sequence[_Written]) -> None:
    """Seal what was written, count what has moved, note what a person must know of."""
    rows = [row for one in written for row in one.events]
    transaction.sealing.add([row[HASH_AT] for row in rows], max([row[_AT_US_AT] for row in rows], default=0))
    count = transaction.sealing.count
    for move, one in zip(moves, written, strict=True):
        seen, row, events = move.seen, one.row, move.events
        if row.status is not seen.status:
            count(row.contract, seen.status._value_, -1)
            count(row.contract, row.status._value_, 1)
        # Every incident has a reason on its row, before or after, or is a suspected duplicate: a plain move pays three looks.
        if row.reason is not None or seen.reason is not None or row.duplicate_suspected:
            note_incidents(transaction, seen, row, events)
        if transaction.unknown_limits:
            watch(transaction, seen, row, events)


def _is_about_the_row(error: Exception) -> bool:
    """A constraint or a wrong type is about one row; busy, full and input/output errors are about the store."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in (19, 20, 18)  # SQLITE_CONSTRAINT, SQLITE_MISMATCH, SQLITE_TOOBIG


def _guarded_update() -> sa.ClauseElement:
    column = operation.c
    statement = sa.update(operation).where(column.id == named("seen_id"))
    for name in _GUARD:
        statement = statement.where(column[name] == named(f"seen_{name}"))  # a stale worker moves nothing
    return statement.values({name: named(f"new_{name}") for name in STATE_COLUMNS})


def insert_event() -> sa.ClauseElement:
    """Build the statement that appends one event."""
    return sa.insert(event).values({column.name: named(column.name) for column in event.c})


def insert_payload() -> sa.ClauseElement:
    """Build the statement that stores one argument or output text."""
    return sa.insert(payload).values({column.name: named(column.name) for column in payload.c})

"""Store a request, or return the one that its operation ID already belongs to.

No exception and no savepoint for a repeated request, so that a caller's own transaction stays usable.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Dialect

from settled.core.canonical import compact_json, fingerprint_bytes
from settled.core.errors import Differs, OperationConflictError
from settled.core.fold import Event, advance
from settled.core.row import STATE_COLUMNS, Row
from settled.core.words import EventType, Status
from settled.store.bodies import body_digest
from settled.store.prepared import named, upsert
from settled.store.reads import ARGUMENTS, METADATA, find_row
from settled.store.schema import operation
from settled.store.transaction import Transaction
from settled.store.writer import EVENT_COLUMNS, HASH_AT, PAYLOAD_COLUMNS, event_rows, insert_event, insert_payload

GENESIS = hashlib.sha256(b"settled event 1").digest()


# What is the same for every new row stands in the statement itself: half the columns need not be bound for each.
_FRESH: Final[dict[str, Any]] = {
    "status": Status.PREPARED, "reason": None, "attempt": 0, "version": 1, "sequence": 1, "open_attempts": 0, "unfenced": 0, "kept": 0,
    "lease_owner": None, "probes_spent": 0, "unknown_since_us": None, "escalate_us": None, "settled_by": None,
    "provider_operation_id": None, "duplicate_suspected": 0, "output_part": None, "error": None,
}  # fmt: skip
_FRESH_STATE: Final = tuple(_FRESH.get(name) for name in STATE_COLUMNS)
_DUE_AT, _TERMS_AT, _UPDATED_AT = (STATE_COLUMNS.index(name) for name in ("due_us", "terms", "updated_us"))
assert STATE_COLUMNS[_UPDATED_AT:] == ("updated_us", "chain")
_TO_DUE, _TO_TERMS, _TO_UPDATED = _FRESH_STATE[:_DUE_AT], _FRESH_STATE[_DUE_AT + 1 : _TERMS_AT], _FRESH_STATE[_TERMS_AT + 1 : _UPDATED_AT]
_GIVEN: Final = tuple(name for name in Row._fields if name not in _FRESH)
_STATE_FROM: Final = Row._fields.index(STATE_COLUMNS[0])
assert _GIVEN[:_STATE_FROM] == Row._fields[:_STATE_FROM]
assert _GIVEN[_STATE_FROM:] == ("due_us", "terms", "updated_us", "chain")
_SUBMITTED, _PREPARED = EventType.SUBMITTED, Status.PREPARED


class Request(NamedTuple):
    """One effect request, ready to be stored. Texts are canonical JSON after the codec; `terms` the stored snapshot.

    `plain` are arguments and metadata before the codec, where that changed them. `whole`: the fingerprint is that of all arguments.
    `trace` is the submitter's traceparent: kept with the first event, and no part of the identity.
    """

    operation_id: str  # from here to `deadline_us` as in the row
    contract: str
    contract_version: str | None
    queue: str
    risk: str
    fingerprint: str
    provider_key: str | None
    provider_reference: str | None
    derived: int
    priority: int
    deadline_us: int | None
    due_us: int
    terms: int | None
    arguments: str
    metadata: str | None = None
    plain: tuple[str, str | None] | None = None
    whole: bool = False
    trace: str | None = None


_CONTRACT_AT: Final = Row._fields.index("contract")
FINGERPRINT_AT: Final = Row._fields.index("fingerprint")
_IDENTITY_ENDS: Final = Request._fields.index("deadline_us") + 1
assert Request._fields[:_IDENTITY_ENDS] == Row._fields[1 : _IDENTITY_ENDS + 1]


class Stored(NamedTuple):
    """The row, whether this call made it, the events by which it did, and in what the request differs from a row that was there."""

    row: Row
    created: bool
    events: tuple[Event, ...] = ()
    differs: Differs | None = None


class New(NamedTuple):
    """A new operation that is not written yet: its row as submitted, and what is to be written of it."""

    stored: Stored
    columns: tuple[Any, ...]
    event: tuple[Any, ...]
    texts: list[tuple[int, int, str]]


def store_request(transaction: Transaction, request: Request, at_us: int) -> Stored:
    """Insert or return. Raises OperationConflictError where the ID belongs to another request; nothing is changed then."""
    stored = store_requests(transaction, [request], at_us)[0]
    if stored.differs is not None:
        raise conflict(request, stored)
    return stored


def store_requests(transaction: Transaction, requests: Sequence[Request], at_us: int) -> list[Stored]:
    """Insert or return each, in their order: all rows by one statement, then their events and their texts.

    Where a row was there already, in the ledger or by an earlier request of these, it is returned, and `differs` says whether
    it is of the same request.
    """
    cursor, statements, sealing = transaction.cursor, transaction.statements, transaction.sealing
    seal_id = sealing.open(cursor, statements)
    made = [_new(row_id, request, at_us, seal_id) for row_id, request in enumerate(requests, sealing.keys(len(requests)))]
    inserted = statements[_insert_operation].run_rows(cursor, _GIVEN, [one.columns for one in made])
    stored = [one.stored for one in made]
    if inserted < len(made):
        stored = [_as_it_is(transaction, one, request) for one, request in zip(stored, requests, strict=True)]
        made = [one for one, known in zip(made, stored, strict=True) if known.created]
    if made:
        statements[insert_event].run_rows(cursor, EVENT_COLUMNS, [one.event for one in made])
        statements[insert_payload].run_rows(cursor, PAYLOAD_COLUMNS, [text for one in made for text in one.texts])
        sealing.add([one.stored.row.chain for one in made], at_us)
    contracts = [one.stored.row.contract for one in made]
    for contract in dict.fromkeys(contracts):
        sealing.count(contract, _PREPARED._value_, contracts.count(contract))
    return stored


def without_key(request: Request, at_us: int) -> New:
    """Return the operation that a request is, all but its key and its seal: for another process that stores it."""
    return _new(0, request, at_us, seal_id=0)


def insert_all_new(transaction: Transaction, columns: Sequence[Any], events: Sequence[Any], texts: Sequence[Any], at_us: int) -> int | None:
    """Insert operations that another process has made, under keys from the one returned on; None where one of them is not new.

    `columns`, `events` and `texts` are those of `New` without the keys and the seal; the caller rolls back where it is None.
    """
    cursor, statements, sealing = transaction.cursor, transaction.statements, transaction.sealing
    seal_id = sealing.open(cursor, statements)
    first = sealing.keys(len(columns))
    keyed = [(key, *one) for key, one in enumerate(columns, first)]
    if statements[_insert_operation].run_rows(cursor, _GIVEN, keyed) < len(keyed):
        return None
    statements[insert_event].run_rows(cursor, EVENT_COLUMNS, [(key, *one, seal_id) for key, one in enumerate(events, first)])
    bodies = [(key, part, body) for key, of_one in enumerate(texts, first) for part, body in of_one]
    statements[insert_payload].run_rows(cursor, PAYLOAD_COLUMNS, bodies)
    sealing.add([one[-1] for one in keyed], at_us)
    for one in keyed:
        sealing.count(one[_CONTRACT_AT], _PREPARED._value_, 1)
    return first


def new_operation(transaction: Transaction, request: Request, at_us: int) -> New:
    """Return the operation that a request is, to be decided on before it is written."""
    seal_id = transaction.sealing.open(transaction.cursor, transaction.statements)
    return _new(transaction.sealing.keys(1), request, at_us, seal_id)


def insert_dispatched(transaction: Transaction, made: Sequence[tuple[New, Event]]) -> list[Row] | None:
    """Insert new operations as they are after their dispatch, each with both events; None where the ID of one is known.

    Nothing is written then of the only one; of several the caller rolls back.
    """
    if not made:
        return []
    cursor, statements, sealing = transaction.cursor, transaction.statements, transaction.sealing
    rows: list[Row] = []
    columns: list[tuple[Any, ...]] = []
    events: list[tuple[Any, ...]] = []
    for new, dispatched in made:
        seen = new.stored.row
        following, chain = event_rows(seen.id, seen.operation_id, seen.sequence, seen.chain, [dispatched], sealing.id)
        row = advance(seen, dispatched, chain)
        rows.append(row)
        columns.append((*new.columns[:_STATE_FROM], row.status._value_, *row[_STATE_FROM + 1 :]))
        events += (new.event, *following)
    if statements[_insert_whole].run_rows(cursor, Row._fields, columns) < len(columns):
        return None
    statements[insert_event].run_rows(cursor, EVENT_COLUMNS, events)
    statements[insert_payload].run_rows(cursor, PAYLOAD_COLUMNS, [text for new, _ in made for text in new.texts])
    sealing.add([one[HASH_AT] for one in events], max([dispatched.at_us for _, dispatched in made]))
    for row in rows:
        sealing.count(row.contract, row.status._value_, 1)
    return rows


def conflict(request: Request, stored: Stored) -> OperationConflictError:
    """Return the error that says in what a request differs from the row under its ID."""
    assert stored.differs is not None
    return OperationConflictError(
        request.operation_id,
        stored.differs,
        existing_fingerprint=stored.row.fingerprint,
        requested_fingerprint=request.fingerprint,
    )


def _new(row_id: int, request: Request, at_us: int, seal_id: int) -> New:
    happened = Event(_SUBMITTED, _PREPARED, 0, at_us, _submission(request))
    events, chain = event_rows(row_id, request.operation_id, 0, GENESIS, [happened], seal_id)
    due_us, terms = request.due_us, request.terms
    row = Row._make((row_id, *request[:_IDENTITY_ENDS], at_us, *_TO_DUE, due_us, *_TO_TERMS, terms, *_TO_UPDATED, at_us, chain))
    before, after = row[:FINGERPRINT_AT], row[FINGERPRINT_AT + 1 : _STATE_FROM]
    columns = (*before, fingerprint_bytes(row.fingerprint), *after, due_us, terms, at_us, chain)
    texts = [(row_id, ARGUMENTS, request.arguments)]
    if request.metadata is not None:
        texts.append((row_id, METADATA, request.metadata))
    return New(Stored(row, True, (happened,)), columns, events[0], texts)


def _as_it_is(transaction: Transaction, new: Stored, request: Request) -> Stored:
    """Return what is stored under the ID of a request: its own new row, or the one that was there before."""
    row = find_row(transaction, request.operation_id)
    assert row is not None
    return new if row.id == new.row.id else Stored(row, False, differs=difference(row, request))


def _submission(request: Request) -> dict[str, str]:
    """Return what the first event binds: the identity, and the texts as they were before the codec, so that a key may change.

    A fingerprint of all arguments is their digest, and a part of the identity: they are bound by it then.
    """
    arguments, metadata = request.plain or (request.arguments, request.metadata)
    facts = {"request": identity_digest(request)}
    if not (request.whole and request.derived):
        facts["arguments"] = body_digest(arguments)
    if metadata is not None:
        facts["metadata"] = body_digest(metadata)
    if request.trace is not None:
        facts["trace"] = request.trace
    return facts


def identity_digest(request: Request | Row) -> str:
    """Return the digest that binds the columns of a row that no event moves to the event that settled them."""
    derived = request.derived
    facts = [
        request.operation_id,
        request.contract,
        request.contract_version if derived else None,
        request.fingerprint if derived else None,
        request.provider_key,
        request.provider_reference,
        request.queue if derived else None,
        request.risk if derived else None,
        request.priority,
        request.deadline_us,
    ]
    return body_digest(compact_json(facts))


def difference(row: Row, request: Request) -> Differs | None:
    """Return the first thing in which a stored row and a request differ. What one of them does not know yet is no difference."""
    if row.contract != request.contract:
        return "contract"
    if None not in (row.contract_version, request.contract_version) and row.contract_version != request.contract_version:
        return "version"
    if row.fingerprint != request.fingerprint:
        return "request"
    if not (row.derived and request.derived):
        return None
    if row.provider_key != request.provider_key:
        return "provider key"
    return "provider reference" if row.provider_reference != request.provider_reference else None


def _insert_operation(dialect: Dialect) -> sa.ClauseElement:
    values: dict[str, Any] = {name: named(name) for name in _GIVEN}
    values |= {name: sa.literal_column(_literal(value)) for name, value in _FRESH.items()}
    return _insert_new(values, dialect)


def _insert_whole(dialect: Dialect) -> sa.ClauseElement:
    return _insert_new({name: named(name) for name in Row._fields}, dialect)


def _insert_new(values: dict[str, Any], dialect: Dialect) -> sa.ClauseElement:
    return upsert(operation, dialect).values(values).on_conflict_do_nothing(index_elements=[operation.c.operation_id])


def _literal(value: Status | int | None) -> str:
    """Write one of the fixed values above as SQL."""
    if isinstance(value, Status):
        return f"'{value.value}'"
    return "NULL" if value is None else str(value)


def set_derived(transaction: Transaction, row_id: int, facts: dict[str, Any], deadline_us: int | None = None) -> None:
    """Fill in the identity columns of a row that was submitted by name, beside its event `derived`."""
    stored = facts | {"fingerprint": fingerprint_bytes(facts["fingerprint"]), "deadline_us": deadline_us}
    transaction.run(_fill_in, row_id=row_id, **{f"new_{name}": value for name, value in stored.items()})


def _fill_in() -> sa.ClauseElement:
    names = ("contract_version", "queue", "risk", "provider_key", "provider_reference", "fingerprint", "deadline_us")
    values = {"derived": 1, **{name: named(f"new_{name}") for name in names}}
    return sa.update(operation).where(operation.c.id == named("row_id")).values(values)

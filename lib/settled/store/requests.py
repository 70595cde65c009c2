"""Store a request, or return the one that its operation ID already belongs to.

No exception and no savepoint for a repeated request, so that a caller's own transaction stays usable.
"""

import hashlib
from operator import itemgetter
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Dialect

from settled.core.canonical import compact_json
from settled.core.errors import Differs, OperationConflictError
from settled.core.fold import Event
from settled.core.row import Row
from settled.core.words import EventType, Status
from settled.store.bodies import body_digest
from settled.store.prepared import named, upsert
from settled.store.reads import ARGUMENTS, METADATA, find_row
from settled.store.schema import operation
from settled.store.transaction import Transaction
from settled.store.writer import EVENT_COLUMNS, PAYLOAD_COLUMNS, event_rows, insert_event, insert_payload

GENESIS = hashlib.sha256(b"settled event 1").digest()


# What is the same for every new row stands in the statement itself: half the columns need not be bound for each.
_FRESH: Final[dict[str, Any]] = {
    "status": Status.PREPARED, "reason": None, "attempt": 0, "version": 1, "sequence": 1, "open_attempts": 0, "unfenced": 0, "kept": 0,
    "lease_owner": None, "probes_spent": 0, "unknown_since_us": None, "escalate_us": None, "settled_by": None,
    "provider_operation_id": None, "duplicate_suspected": 0, "output_part": None, "error": None,
}  # fmt: skip
_GIVEN: Final = tuple(name for name in Row._fields if name not in _FRESH and name != "id")
_pick_given: Final = itemgetter(*(Row._fields.index(name) for name in _GIVEN))


class Request(NamedTuple):
    """One effect request, ready to be stored. Texts are canonical JSON after the codec; `terms` the stored snapshot.

    `plain` are arguments and metadata before the codec, where that changed them. `trace` is the submitter's traceparent: kept with
    the first event, and no part of the identity.
    """

    operation_id: str
    contract: str
    contract_version: str | None
    queue: str
    risk: str
    fingerprint: str
    provider_key: str | None
    provider_reference: str | None
    derived: bool
    priority: int
    due_us: int
    deadline_us: int | None
    terms: int | None
    arguments: str
    metadata: str | None = None
    hold: str | None = None
    plain: tuple[str, str | None] | None = None
    trace: str | None = None


class Stored(NamedTuple):
    """The row, whether this call made it, and the events by which it did."""

    row: Row
    created: bool
    events: tuple[Event, ...] = ()


def store_request(transaction: Transaction, request: Request, at_us: int) -> Stored:
    """Insert or return. Raises OperationConflictError where the ID belongs to another request; nothing is changed then."""
    storing = Storing(transaction)
    stored = storing.store(request, at_us)
    storing.finish()
    return stored


class Storing:
    """Requests of one transaction. Each row is inserted by itself, for its key; events and texts of all of them together, by `finish`."""

    def __init__(self, transaction: Transaction) -> None:
        self.transaction = transaction
        self._events: list[tuple[Any, ...]] = []
        self._payloads: list[tuple[Any, ...]] = []

    def store(self, request: Request, at_us: int) -> Stored:
        """As `store_request`; its events and texts are to be found after `finish`."""
        transaction = self.transaction
        seal_id = transaction.sealing.open(transaction.cursor, transaction.statements)
        happened = Event(EventType.SUBMITTED, Status.PREPARED, 0, at_us, _submission(request))
        events, chain = event_rows(0, request.operation_id, 0, GENESIS, [happened], seal_id)
        row = _new_row(request, at_us, chain)
        inserting = transaction.statements[_insert_operation]
        inserting.run_rows(transaction.cursor, _GIVEN, [_pick_given(row)])
        found = transaction.cursor.fetchone()
        if found is None:
            return Stored(_existing(transaction, request), False)
        row = Row._make((int(found[0]), *row[1:]))
        self._events.append((row.id, *events[0][1:]))
        self._payloads.append((row.id, ARGUMENTS, request.arguments))
        if request.metadata is not None:
            self._payloads.append((row.id, METADATA, request.metadata))
        transaction.sealing.add([chain], at_us)
        transaction.sealing.count(row.contract, row.status._value_, 1)
        return Stored(row, True, (happened,))

    def finish(self) -> None:
        """Write what is still to be written: before anything of it is read, and before the end."""
        statements, cursor = self.transaction.statements, self.transaction.cursor
        if self._events:
            statements[insert_event].run_rows(cursor, EVENT_COLUMNS, self._events)
            statements[insert_payload].run_rows(cursor, PAYLOAD_COLUMNS, self._payloads)
        self._events, self._payloads = [], []


def _submission(request: Request) -> dict[str, str]:
    """Return what the first event binds: the identity, and the texts as they were before the codec, so that a key may change."""
    arguments, metadata = request.plain or (request.arguments, request.metadata)
    facts = {"request": identity_digest(request), "arguments": body_digest(arguments)}
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
    return hashlib.sha256(compact_json(facts).encode()).hexdigest()[:32]


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


def _existing(transaction: Transaction, request: Request) -> Row:
    row = find_row(transaction, request.operation_id)
    assert row is not None
    differs = difference(row, request)
    if differs is not None:
        raise OperationConflictError(
            request.operation_id,
            differs,
            existing_fingerprint=row.fingerprint,
            requested_fingerprint=request.fingerprint,
        )
    return row


def _new_row(request: Request, at_us: int, chain: bytes) -> Row:
    return Row(
        id=0,
        operation_id=request.operation_id,
        contract=request.contract,
        contract_version=request.contract_version,
        queue=request.queue,
        risk=request.risk,
        fingerprint=request.fingerprint,
        provider_key=request.provider_key,
        provider_reference=request.provider_reference,
        derived=int(request.derived),
        priority=request.priority,
        deadline_us=request.deadline_us,
        created_us=at_us,
        due_us=request.due_us,
        terms=request.terms,
        updated_us=at_us,
        chain=chain,
        **_FRESH,
    )


def _insert_operation(dialect: Dialect) -> sa.ClauseElement:
    values: dict[str, Any] = {name: named(name) for name in _GIVEN}
    values |= {name: sa.literal_column(_literal(value)) for name, value in _FRESH.items()}
    added = upsert(operation, dialect).values(values)
    return added.on_conflict_do_nothing(index_elements=[operation.c.operation_id]).returning(operation.c.id)


def _literal(value: Status | int | None) -> str:
    """Write one of the fixed values above as SQL."""
    if isinstance(value, Status):
        return f"'{value.value}'"
    return "NULL" if value is None else str(value)


def set_derived(transaction: Transaction, row_id: int, facts: dict[str, Any], deadline_us: int | None = None) -> None:
    """Fill in the identity columns of a row that was submitted by name, beside its event `derived`."""
    transaction.run(_fill_in, row_id=row_id, new_deadline_us=deadline_us, **{f"new_{name}": value for name, value in facts.items()})


def _fill_in() -> sa.ClauseElement:
    names = ("contract_version", "queue", "risk", "provider_key", "provider_reference", "fingerprint", "deadline_us")
    values = {"derived": 1, **{name: named(f"new_{name}") for name in names}}
    return sa.update(operation).where(operation.c.id == named("row_id")).values(values)

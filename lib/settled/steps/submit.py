"""Make a request durable. Nothing is sent here, and nothing is stored that could not be dispatched."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, NoReturn

from settled.contract import EffectContract
from settled.core.canonical import canonical_map, canonical_text, fingerprint, restrict
from settled.core.evidence import check_caller_map
from settled.core.fold import Event
from settled.core.limits import TERM_DEFAULTS as DEFAULT
from settled.core.limits import Limits
from settled.core.moment import Moment, utc_us
from settled.core.row import Row
from settled.core.terms import seconds_us
from settled.core.words import EventType, Reason, Status
from settled.identity import check_identity, derive
from settled.shell import Shell
from settled.steps.inbox import attach_waiting
from settled.store.posting import Post
from settled.store.reads import ARGUMENTS, find_row, read_payload
from settled.store.requests import Request, Stored, conflict, difference, store_requests
from settled.store.transaction import Transaction
from settled.store.writer import Move, record
from settled.tracing import current_traceparent


class Order(NamedTuple):
    """One checked request: everything derived from the arguments, nothing stored yet."""

    operation_id: str  # from here to `deadline_us` as in `Request`
    name: str
    contract_version: str | None
    queue: str
    risk: str
    fingerprint: str
    provider_key: str | None
    provider_reference: str | None
    derived: int
    priority: int
    deadline_us: int | None
    delay_us: int
    arguments: str
    metadata: str | None
    contract: EffectContract | None
    needs_approval: bool


_SAME_IN_REQUEST: Final = Order._fields.index("deadline_us")
assert Request._fields[_SAME_IN_REQUEST:] == ("deadline_us", "due_us", "terms", "arguments", "metadata", "plain", "whole", "trace")


def check_order(
    contract: EffectContract | None,
    name: str,
    arguments: Any,
    *,
    limits: Limits,
    operation_id: str | None = None,
    priority: int = 0,
    delay: float | timedelta | None = None,
    deadline: datetime | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Order:
    """Check a request at the door. Raises TypeError or ValueError that names the culprit; nothing is stored."""
    if type(arguments) is not dict:
        raise TypeError(f"arguments must be a dict, not {type(arguments).__name__}. Nothing was stored.")
    text, copy = canonical_map(arguments, "arguments")
    if len(text.encode()) > limits.arguments_bytes_max:
        raise ValueError(f"the arguments are longer than {limits.arguments_bytes_max} bytes. Nothing was stored. Pass a reference instead.")
    identity = text
    derived, version, queue, risk = 0, None, DEFAULT.queue, DEFAULT.risk
    key = reference = None
    if contract is not None:
        if contract.arguments_type is not None:
            _check_type(contract, text)
        if contract.identity_fields is not None:
            identity = _identity_text(contract, text)
        if contract.key_function is not None:
            key = derive(contract.key_function, copy, "provider_idempotency_key")
        terms = contract.terms
        derived, version, queue, risk = 1, terms.version, terms.queue, terms.risk
        if key is None and terms.key_guaranteed:
            raise ValueError(f"the provider idempotency key of {name!r} is None, but the contract guarantees it. Nothing was stored.")
        if contract.reference_function is not None:
            reference = derive(contract.reference_function, copy, "provider_reference")
    operation_id = _operation_id(contract, copy, operation_id)
    if type(priority) is not int or abs(priority) > limits.priority_max:
        most = limits.priority_max
        raise ValueError(f"priority must be an int from {-most} to {most}, not {priority!r}. Nothing was stored.")
    delay_us = 0 if delay is None else _delay_us(delay)
    deadline_us = None if deadline is None else utc_us(deadline, "deadline", "Nothing was stored.")
    told = None if metadata is None else check_caller_map(metadata, "metadata", limits.metadata_bytes_max)
    held = contract is not None and contract.approval is not None and _needs_approval(contract, text)
    return Order(
        operation_id, name, version, queue, risk, fingerprint(identity), key, reference, derived, priority, deadline_us,
        delay_us, text, told, contract, held,
    )  # fmt: skip


def store_orders(shell: Shell, transaction: Transaction, orders: Sequence[Order], now: Moment) -> list[Stored]:
    """Insert or return each order. Raises OperationConflictError with its index; the caller rolls back."""
    trace = current_traceparent()
    requests = [_request(shell, order, now, trace, _keep_terms(shell, transaction, order)) for order in orders]
    stored = store_requests(transaction, requests, now.wall_us)
    for index, one in enumerate(stored):
        if one.differs is not None:
            stored[index] = _same_by_name(shell, transaction, orders[index], one) or _refuse(requests[index], one, index)
        elif one.created and (orders[index].needs_approval or one.row.provider_reference is not None):
            stored[index] = one._replace(row=_hold_and_attach(shell, transaction, orders[index], one.row, now))
    return stored


def find_known(shell: Shell, transaction: Transaction, orders: Sequence[Order], now: Moment) -> list[Stored] | None:
    """Return what is stored of these orders by reading alone; None unless all of them are known, each as the same request."""
    found = []
    for order in orders:
        row = find_row(transaction, order.operation_id)
        if row is None or difference(row, _request(shell, order, now, None, None)) is not None:
            return None
        found.append(Stored(row, False))
    return found


def request_of(shell: Shell, transaction: Transaction, order: Order, now: Moment) -> Request:
    """Return an order as it is stored in this transaction."""
    return _request(shell, order, now, current_traceparent(), _keep_terms(shell, transaction, order))


def posted(shell: Shell, orders: Sequence[Order], now: Moment) -> Post | None:
    """Return the orders as another process can store them; None unless nothing is to follow: a hold, or evidence that waits for it.

    Their terms are known once they are committed.
    """
    requests = []
    trace = current_traceparent()
    for order in orders:
        contract = order.contract
        terms_id = None if contract is None else shell.durable_terms(contract.terms)
        if terms_id is None or order.needs_approval or order.provider_reference is not None:
            return None
        requests.append(_request(shell, order, now, trace, terms_id))
    return Post(requests, now.wall_us) if requests else None


def _keep_terms(shell: Shell, transaction: Transaction, order: Order) -> int | None:
    return None if order.contract is None else shell.keep_terms(transaction, order.contract.terms)


def _request(shell: Shell, order: Order, now: Moment, trace: str | None, terms_id: int | None) -> Request:
    contract, encode = order.contract, shell.codec.encode
    deadline_us = deadline_of(shell, order, now) if order.needs_approval else order.deadline_us
    due_us = now.wall_us + order.delay_us
    arguments = encode(order.arguments)
    metadata = None if order.metadata is None else encode(order.metadata)
    plain = (order.arguments, order.metadata)
    whole = contract is None or contract.identity_fields is None
    return Request._make((*order[:_SAME_IN_REQUEST], deadline_us, due_us, terms_id, arguments, metadata, plain, whole, trace))


def _hold_and_attach(shell: Shell, transaction: Transaction, order: Order, row: Row, now: Moment) -> Row:
    """Hold a new row that waits for an approval, and give it the evidence that waits for it; return the row after that."""
    if order.needs_approval:
        held = Event(EventType.HELD, Status.PREPARED, 0, now.wall_us, {"reason": Reason.AWAITING_APPROVAL})
        row = record(transaction, [Move(row, [held])])[0].row or row
    if row.provider_reference is not None:
        row = attach_waiting(shell, transaction, row, now)
    return row


def _refuse(request: Request, stored: Stored, index: int) -> NoReturn:
    error = conflict(request, stored)
    error.index = index
    raise error


def deadline_of(shell: Shell, order: Order, now: Moment, known_us: int | None = None) -> int | None:
    """Return the deadline of a request: what waits for an approval expires, whether its submitter says when or not."""
    deadline_us = order.deadline_us if known_us is None else known_us
    if deadline_us is None and order.needs_approval:
        return now.wall_us + shell.rules.approval_expires_us
    return deadline_us


def _same_by_name(shell: Shell, transaction: Transaction, order: Order, found: Stored) -> Stored | None:
    """Return the row of the same request, where one of the two was submitted by name and the other counts some fields only.

    A request by name does not know which fields count, so that its fingerprint is over all of them.
    """
    row = found.row
    if found.differs != "request" or bool(row.derived) == (order.contract is not None):
        return None
    stored = read_payload(transaction, row.id, ARGUMENTS)
    if stored is None:
        return None
    text = shell.codec.decode(stored)
    if order.contract is None:
        return Stored(row, False) if text == order.arguments else None
    try:
        same = fingerprint(_identity_text(order.contract, text)) == order.fingerprint
    except ValueError:  # a listed field is missing there: another request
        return None
    return Stored(row, False) if same else None


def _operation_id(contract: EffectContract | None, copy: Callable[[], dict[str, Any]], given: str | None) -> str:
    if given is not None:
        return check_identity(given, "operation_id")
    function = None if contract is None else contract.operation_id_function
    if function is None:
        raise ValueError("operation_id is missing: the contract derives none here, so it must be given. Nothing was stored.")
    derived = derive(function, copy, "operation_id")
    if derived is None:
        raise ValueError("operation_id must be a str, not NoneType. Nothing was stored.")
    return derived


def _identity_text(contract: EffectContract, text: str) -> str:
    return canonical_text(restrict(json.loads(text), contract.identity_fields), "arguments")


def _check_type(contract: EffectContract, text: str) -> None:
    from settled.arguments import check_arguments  # pydantic is slow to import, and most contracts declare no type

    check_arguments(contract.arguments_type, text)


def _needs_approval(contract: EffectContract, text: str) -> bool:
    if contract.approval == "required":
        return True
    answer = contract.approval(json.loads(text))
    if type(answer) is not bool:
        raise ValueError(f"the approval predicate of {contract.name!r} gave {answer!r}, not True or False. Nothing was stored.")
    return answer


def _delay_us(value: object) -> int:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if type(seconds) not in (int, float) or not 0 <= seconds < 1e9:  # type: ignore[operator]
        raise ValueError(f"delay must be seconds from 0 on, or a timedelta, not {value!r}. Nothing was stored.")
    return seconds_us(seconds)  # type: ignore[arg-type]

"""Claim due operations: the dispatch is recorded, and committed by the caller, before any handler starts."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from settled.core.case import Case
from settled.core.decide_claim import Claim, decide_claim
from settled.core.fold import Event
from settled.core.moment import Moment
from settled.core.paused import Paused
from settled.core.row import Row
from settled.core.terms import Terms
from settled.core.words import Isolation, Status
from settled.shell import Shell
from settled.steps.rates import note_starts, starts_allowed
from settled.steps.readable import put_aside, readable_case, readable_text
from settled.steps.submit import Order, request_of
from settled.store.pauses import read_paused
from settled.store.reads import inbox_of
from settled.store.requests import New, Stored, insert_dispatched, new_operation
from settled.store.transaction import Transaction
from settled.store.waiting import count_abandoned, count_running, find_ready, find_reopened
from settled.store.writer import Move, record

Room = Callable[[Isolation], int]
Refuses = Callable[[str], bool]


class Claimed(NamedTuple):
    """One operation that is dispatched once the transaction commits. `arguments` are canonical JSON text again."""

    row: Row
    arguments: str
    terms: Terms
    enter_by_boot_us: int | None
    events: tuple[Event, ...] = ()


class NotAllNewError(Exception):
    """The ID of one of several orders is known."""


class _Ready(NamedTuple):
    order: Order
    now: Moment
    new: New
    terms: Terms
    claim: Claim


def claim_due(
    shell: Shell,
    transaction: Transaction,
    worker: int,
    room: Room,
    slots: int,
    now: Moment,
    due_us: int,
    refuses: Refuses | None = None,
) -> list[Claimed]:
    """Claim what is due and fits into the free slots; withdraw and expire what may not be dispatched any more.

    `due_us` is the wall clock by which rows are due; `room` says how many handlers of an isolation may start, `slots` how
    many of all, `refuses` which contracts this process takes no more of for now.
    """
    if shell.ledger.misplaced:  # a copy does not know what the original has dispatched since
        return []
    paused = read_paused(transaction)
    if paused:
        _withdraw(shell, transaction, worker, paused, now)
    claims: list[tuple[Row, str, Terms, Claim]] = []
    for names, limit in _lanes(shell, transaction, room, now, refuses, paused):
        limit = min(limit, slots - len(claims), shell.limits.batch_max - len(claims))
        for row, stored in find_ready(transaction, names, due_us, limit, paused) if limit > 0 else ():
            terms = shell.terms_here(row.contract)
            case = shell.plain_case(transaction, row, now) if not row.attempt else readable_case(shell, transaction, row, now)
            text = readable_text(shell, row, stored)
            if case is None or text is None:
                put_aside(transaction, row, due_us)
                continue
            claims.append((row, text, terms, decide_claim(case, worker, shell.keep_terms(transaction, terms))))
    recorded = record(transaction, [Move(row, claim.events) for row, _, _, claim in claims])
    claimed = [
        Claimed(done.row, text, terms, claim.enter_by_boot_us)
        for (_, text, terms, claim), done in zip(claims, recorded, strict=True)
        if done.row is not None and claim.dispatches
    ]
    note_starts(shell, transaction, [one.row.contract for one in claimed], now)
    return claimed


def store_dispatched(
    shell: Shell, transaction: Transaction, worker: int, orders: Sequence[tuple[Order, Moment]]
) -> list[tuple[Stored, Claimed] | None]:
    """Store new orders as dispatched at once: rows and events are those of a submission and a claim, one after the other.

    None, and nothing is stored of it, where something stands against a dispatch now, or the ID of the only order is known. Raises
    NotAllNewError where that of one of several is; the caller rolls back.
    """
    alone = len(orders) == 1
    ready = [_ready_at_once(shell, transaction, worker, order, now, alone=alone) for order, now in orders]
    new = [one for one in ready if one is not None]
    rows = insert_dispatched(transaction, [(one.new, one.claim.events[0]) for one in new])
    if rows is None:
        if alone:
            return [None]
        raise NotAllNewError
    found: list[tuple[Stored, Claimed] | None] = []
    for one in ready:
        if one is None:
            found.append(None)
            continue
        order, now, stored, terms, claim = one.order, one.now, one.new.stored, one.terms, one.claim
        note_starts(shell, transaction, [order.name], now)
        found.append((stored, Claimed(rows.pop(0), order.arguments, terms, claim.enter_by_boot_us, claim.events)))
    return found


def _ready_at_once(shell: Shell, transaction: Transaction, worker: int, order: Order, now: Moment, *, alone: bool) -> "_Ready | None":
    """Decide on an order that is not stored yet; None where it may not be dispatched now, or not before others are."""
    if shell.ledger.misplaced or order.needs_approval or _evidence_waits(transaction, order.provider_reference):
        return None
    terms = shell.terms_here(order.name)
    if not alone and (terms.concurrency is not None or terms.rate_limit is not None):  # how many may start is counted in the ledger
        return None
    new = new_operation(transaction, request_of(shell, transaction, order, now), now.wall_us)
    row = new.stored.row
    if not may_start(shell, transaction, row, now):
        return None
    claim = decide_claim(shell.plain_case(transaction, row, now), worker, shell.keep_terms(transaction, terms))
    return _Ready(order, now, new, terms, claim) if claim.dispatches else None  # else its deadline is over


def may_start(shell: Shell, transaction: Transaction, row: Row, now: Moment) -> bool:
    """Whether a row is due, held by nothing, and within the limits of its contract."""
    if row.status is not Status.PREPARED or row.reason is not None or not row.derived:
        return False
    if row.due_us is not None and row.due_us > now.wall_us:
        return False
    terms = shell.current_terms(row.contract)
    if terms is None:
        return False
    if not row.open_attempts and read_paused(transaction).holds(row.contract, row.queue):
        return False
    limit, rate = terms.concurrency, terms.rate_limit
    if limit is not None and count_running(transaction, row.contract) + count_abandoned(transaction, row.contract) >= limit:
        return False
    return rate is None or starts_allowed(transaction, row.contract, rate, now, 1) > 0


def claim_one(shell: Shell, transaction: Transaction, worker: int, row: Row, arguments: str, now: Moment) -> Claimed | None:
    """Claim one given row, due or not; None where it may not be dispatched or somebody else was faster."""
    if shell.ledger.misplaced:
        return None
    terms = shell.terms_here(row.contract)
    case: Case = shell.full_case(transaction, row, now) if row.attempt else shell.plain_case(transaction, row, now)
    claim = decide_claim(case, worker, shell.keep_terms(transaction, terms))
    if not claim.events:  # paused: it waits as it is
        return None
    done = record(transaction, [Move(row, claim.events)])[0]
    if done.row is None or not claim.dispatches:
        return None
    return Claimed(done.row, arguments, terms, claim.enter_by_boot_us, claim.events)


def _evidence_waits(transaction: Transaction, provider_reference: str | None) -> bool:
    return provider_reference is not None and bool(inbox_of(transaction, provider_reference))


def open_contracts(shell: Shell, transaction: Transaction, refuses: Refuses | None = None) -> list[str]:
    """Return the contracts of this process that operations are claimed of now: neither paused nor refused."""
    paused = read_paused(transaction)
    return [name for name in shell.contracts if _is_open(shell, name, refuses, paused)]


def waits_to_be_withdrawn(shell: Shell, transaction: Transaction) -> bool:
    """Whether a pause has come over an operation that waits for a retry while an earlier attempt is open."""
    paused = read_paused(transaction)
    return bool(paused) and bool(_held_rows(shell, transaction, paused))


def _withdraw(shell: Shell, transaction: Transaction, worker: int, paused: Paused, now: Moment) -> None:
    """Withdraw what waits for a retry under a pause: nobody knows how long that lasts, and its outcome can be asked for meanwhile."""
    moves = []
    for row in _held_rows(shell, transaction, paused):
        case = readable_case(shell, transaction, row, now)
        if case is not None:
            terms_id = shell.keep_terms(transaction, shell.terms_here(row.contract))
            moves.append(Move(row, decide_claim(case, worker, terms_id, held=True).events))
    record(transaction, moves)


def _held_rows(shell: Shell, transaction: Transaction, paused: Paused) -> list[Row]:
    names = shell.contracts if paused.everything or paused.queues else paused.contracts & shell.contracts.keys()
    found = [row for name in names for row in find_reopened(transaction, name, shell.limits.batch_max)]
    return [row for row in found if paused.holds(row.contract, row.queue)][: shell.limits.batch_max]


def _is_open(shell: Shell, name: str, refuses: Refuses | None, paused: Paused) -> bool:
    contract = shell.contracts[name]
    if not contract.has_handler or (refuses is not None and refuses(name)):
        return False
    return not paused or not paused.holds(name, contract.terms.queue)


def _lanes(
    shell: Shell, transaction: Transaction, room: Room, now: Moment, refuses: Refuses | None, paused: Paused
) -> list[tuple[list[str], int]]:
    """Return groups of contracts that share their room: one for each isolation, and one for each contract with a limit."""
    shared: dict[str, list[str]] = {}
    limited: list[tuple[list[str], int]] = []
    for name, contract in shell.contracts.items():
        terms = contract.terms
        if not _is_open(shell, name, refuses, paused):
            continue
        if terms.concurrency is None and terms.rate_limit is None:
            shared.setdefault(terms.isolation, []).append(name)
            continue
        limit = room(Isolation(terms.isolation))
        if terms.concurrency is not None:
            limit = min(limit, terms.concurrency - count_running(transaction, name) - count_abandoned(transaction, name))
        if terms.rate_limit is not None:
            limit = min(limit, starts_allowed(transaction, name, terms.rate_limit, now, limit))
        limited.append(([name], limit))
    lanes = [*limited, *((names, room(Isolation(isolation))) for isolation, names in shared.items())]
    return [(names, limit) for names, limit in _without_sharing_twice(lanes, shell, room) if limit > 0]


def _without_sharing_twice(lanes: list[tuple[list[str], int]], shell: Shell, room: Room) -> list[tuple[list[str], int]]:
    """Hand the free slots of an isolation out once, limited contracts first: they take what they may and leave the rest."""
    left: dict[str, int] = {}
    shared = []
    for names, limit in lanes:
        isolation = shell.terms_here(names[0]).isolation
        free = left.setdefault(isolation, room(Isolation(isolation)))
        granted = min(limit, free)
        left[isolation] = free - granted
        shared.append((names, granted))
    return shared

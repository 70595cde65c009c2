"""Pause and resume: what people hold back from dispatch, and let go again, on the record.

Promise: a pause holds for every claim whose transaction begins after it was stored. Handlers that run go on, and so do probes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from settled.core.errors import PauseRefusedError, QueueNotFoundError
from settled.core.limits import DEFAULTS
from settled.core.moment import at
from settled.core.terms import Terms
from settled.shell import Shell
from settled.steps.known import must_know_contract
from settled.steps.persons import said_by, who_acts
from settled.store import pauses as store
from settled.store.pauses import PauseRow, Scope
from settled.store.transaction import Transaction

ITSELF: Final = "settled"  # the actor of a pause that no person made


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """One pause. `scope` is all, contract or queue; `name` which of them, "" for all. Times are aware, UTC.

    `actor` is claimed, `os_user` is who the system says it was, `principal` by whom two persons are told apart.
    The `resumed` facts are None while it is in force.
    """

    scope: str
    name: str
    reason: str
    actor: str
    os_user: str
    principal: str
    at: datetime
    resumed_at: datetime | None = None
    resumed_by: str | None = None
    resumed_os_user: str | None = None
    resumed_principal: str | None = None
    resumed_reason: str | None = None

    def __str__(self) -> str:
        """Say what is paused, by whom and why."""
        return f"{described(self.scope, self.name)} is paused by {self.actor}: {self.reason}"


def pause(shell: Shell, contract: object, queue: object, actor: object, reason: object) -> Pause:
    """Pause a contract, a queue, or everything; said twice by one person with one reason it is one pause.

    Raises NotAuthenticatedError, ValueError for blank texts, ContractNotFoundError or QueueNotFoundError for a name that nobody
    knows here: a pause of a misspelt name would hold nothing.
    """
    who, why = said_by(actor, reason)
    scope, name = scope_of(contract, queue)
    person = who_acts(shell)
    same = (why, who, person.principal)
    with shell.ledger.write() as transaction:
        if scope == "contract":
            must_know_contract(shell, transaction, name)
        elif scope == "queue":
            _must_know_queue(shell, transaction, name)
        if not any((one.reason, one.actor, one.principal) == same for one in _active(transaction, scope, name)):
            store.add(transaction, scope, name, reason=why, actor=who, **person._asdict(), at_us=shell.clock.now().wall_us)
        found = _active(transaction, scope, name)
        return next(to_pause(one) for one in found if (one.reason, one.actor, one.principal) == same)


def resume(shell: Shell, contract: object, queue: object, actor: object, reason: object) -> list[Pause]:
    """Lift every pause of a contract, of a queue, or of everything; return them.

    Pauses of other scopes stay. Raises NotAuthenticatedError, PauseRefusedError where nothing of it is paused, and for a copied ledger.
    """
    who, why = said_by(actor, reason)
    scope, name = scope_of(contract, queue)
    if shell.ledger.misplaced:
        raise PauseRefusedError(
            f"the ledger {shell.ledger.path} is a copy, or was moved (restored): resume is refused. Nothing was changed. "
            f"Take it over: settled db adopt --reason …"
        )
    person = who_acts(shell)
    with shell.ledger.write() as transaction:
        found = _active(transaction, scope, name)
        if not found:
            raise PauseRefusedError(f"{described(scope, name)} is not paused. Nothing was changed. See: settled status")
        facts = {"reason": why, "actor": who, **person._asdict()}
        return [to_pause(one) for one in store.lift(transaction, found, **facts, at_us=shell.clock.now().wall_us)]


def pauses(shell: Shell, *, lifted: bool = False, limit: int = DEFAULTS.list_default) -> list[Pause]:
    """Return the pauses in force, oldest first; with `lifted` also those that were, latest first, at most `limit`."""
    if type(limit) is not int or not 1 <= limit <= shell.limits.list_max:
        raise ValueError(f"limit must be from 1 to {shell.limits.list_max}, not {limit!r}")
    with shell.ledger.read() as transaction:
        return [to_pause(one) for one in (store.latest(transaction, limit) if lifted else store.active(transaction))]


def holding(found: Sequence[PauseRow], contract: str, queue: str) -> list[Pause]:
    """Return those of active pauses that hold an operation of this contract and queue."""
    return [to_pause(one) for one in found if (one.scope, one.name) in (("all", ""), ("contract", contract), ("queue", queue))]


def scope_of(contract: object, queue: object) -> tuple[Scope, str]:
    """Return what is meant. Raises TypeError for both at once, ValueError for a name that is no text."""
    if contract is not None and queue is not None:
        raise TypeError("give a contract, a queue, or neither, which means everything; not both. Nothing was changed")
    if contract is None and queue is None:
        return "all", ""
    name: Any = getattr(contract, "name", contract) if contract is not None else queue
    if type(name) is not str or not name.strip():
        raise ValueError(f"the {'queue' if contract is None else 'contract'} must be named, not {name!r}. Nothing was changed.")
    return ("queue" if contract is None else "contract"), name


def described(scope: str, name: str) -> str:
    """Return how a scope is called in a sentence."""
    return "everything" if scope == "all" else f"{scope} {name}"


def to_pause(row: PauseRow) -> Pause:
    """Return what people see of a stored pause."""
    return Pause(
        scope=row.scope,
        name=row.name,
        reason=row.reason,
        actor=row.actor,
        os_user=row.os_user,
        principal=row.principal,
        at=at(row.at_us),
        resumed_at=None if row.lifted_us is None else at(row.lifted_us),
        resumed_by=row.lifted_by,
        resumed_os_user=row.lifted_os_user,
        resumed_principal=row.lifted_principal,
        resumed_reason=row.lifted_reason,
    )


def _active(transaction: Transaction, scope: Scope, name: str) -> list[PauseRow]:
    return [one for one in store.active(transaction) if (one.scope, one.name) == (scope, name)]


def _must_know_queue(shell: Shell, transaction: Transaction, name: str) -> None:
    known = {Terms.from_text(text).queue for text in store.known_terms(transaction)}
    known |= {contract.terms.queue for contract in shell.contracts.values()}
    if name not in known and not store.queue_is_used(transaction, name):
        raise QueueNotFoundError(name, tuple(known))

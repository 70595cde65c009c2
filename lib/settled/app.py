"""The App: what agents, hosts and operators call. Each verb is one call of a step; nothing is decided here.

Promise: who only declares contracts imports neither the store nor the steps; they are imported at their first use.
"""

from __future__ import annotations

import builtins
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from settled import steps, store
from settled.clock import Clock, SystemClock
from settled.codec import Codec, PlainCodec
from settled.contract import EffectContract
from settled.core.errors import ConfigurationError, ContractNotFoundError
from settled.core.evidence import NO_OUTPUT, ProbeResult
from settled.core.limits import DEFAULTS, Limits
from settled.core.moment import at
from settled.core.words import Status
from settled.effect import Effect
from settled.waiting import POLL_FIRST_SECONDS, next_poll_seconds, wait_us

if TYPE_CHECKING:
    import sqlalchemy as sa

    from settled.core.moment import Moment
    from settled.core.proposal import Proposal, Verb
    from settled.inline import Inline
    from settled.operation import Operation
    from settled.shell import Shell
    from settled.steps.awaiting import Waiting
    from settled.steps.pausing import Pause
    from settled.steps.restore import Restored
    from settled.steps.show import EventView
    from settled.steps.submit import Order
    from settled.store.backup import Backup
    from settled.store.ledger import Ledger
    from settled.store.requests import Stored
    from settled.store.transaction import Transaction

F = TypeVar("F", bound=Callable[..., Any])
Named = str | Effect | EffectContract


class App:
    """One ledger, and the contracts that this process knows. Creating or importing one opens nothing.

    `authenticator` returns the name of who acts now, as the host has verified it; it is asked once for each decision of a
    person. Without one that is the account of the operating system.
    """

    def __init__(
        self,
        database: str | os.PathLike[str] | None = None,
        *,
        limits: Limits = DEFAULTS,
        clock: Clock | None = None,
        codec: Codec | None = None,
        authenticator: Callable[[], str] | None = None,
    ) -> None:
        self.database = database
        self.contracts: dict[str, EffectContract] = {}
        self.flag: str | None = None
        self.settings_file: Path | None = None
        self.reference: str | None = None
        self._limits, self._clock, self._codec = limits, clock or SystemClock(), codec
        self._authenticator = authenticator
        self._shell: Shell | None = None
        self._inline: Inline | None = None
        self._repeats = False  # the last submission found all of its requests known
        self._redact: Callable[[str], str] | None = None
        self._making = threading.RLock()
        self._made_in = sys._getframe(1).f_globals

    # ------------------------------------------------------------------ declare

    def effect(self, **terms: Any) -> Callable[[Callable[..., Any]], Effect]:
        """Declare a contract and its handler at once; the keywords are those of EffectContract."""

        def declare(handler: Callable[..., Any]) -> Effect:
            contract = EffectContract(**{"name": getattr(handler, "__name__", ""), **terms})
            contract.handled_by(handler)
            return self.register(contract)

        return declare

    def handler(self, contract: EffectContract) -> Callable[[F], F]:
        """Register a contract that was declared elsewhere, with its handler."""

        def register(function: F) -> F:
            contract.handled_by(function)
            self.register(contract)
            return function

        return register

    def register(self, contract: EffectContract) -> Effect:
        """Make a contract known here. Raises ConfigurationError where its name is taken."""
        if self.contracts.get(contract.name) not in (None, contract):
            raise ConfigurationError(f"a contract named {contract.name!r} is registered already. Give the other one its own name")
        self.contracts[contract.name] = contract
        return Effect(self, contract)

    def contract(self, name: str) -> EffectContract:
        """Return a registered contract. Raises ContractNotFoundError."""
        found = self.contracts.get(name)
        if found is None:
            raise ContractNotFoundError(name, tuple(self.contracts))
        return found

    # ------------------------------------------------------------------ the ledger

    @property
    def shell(self) -> Shell:
        """The means of this process; the ledger is named at the first call and opened at its first use."""
        if self._shell is None:
            with self._making:
                if self._shell is None:
                    self._shell = self._make_shell()
        return self._shell

    def _make_shell(self) -> Shell:
        from settled.opening import find_authenticator, open_settings  # the settings library is slow to import, and so is the store
        from settled.shell import Shell

        chosen = open_settings(self.flag, self.database, self._limits, self.settings_file)
        ledger = store.ledger.Ledger(chosen.database, limits=chosen.limits, monotonic_us=self._clock.monotonic_us)
        ledger.unknown_limits = chosen.unknown_limits
        who = self._authenticator
        if who is None and chosen.authenticator is not None:
            who = find_authenticator(chosen.authenticator)
        return Shell(
            ledger=ledger,
            clock=self._clock,
            contracts=self.contracts,
            limits=chosen.limits,
            codec=self._codec or chosen.codec or PlainCodec(),
            rules=chosen.rules,
            authenticator=who,
        )

    @property
    def redact(self) -> Callable[[str], str]:
        """What masks secrets in error texts, here and in runners: the `redactions` of the settings."""
        if self._redact is None:
            from settled.opening import choose_redactor

            self._redact = choose_redactor(self.settings_file)
        return self._redact

    @property
    def ledger(self) -> Ledger:
        """The ledger of this App."""
        return self.shell.ledger

    def engine(self) -> sa.Engine:
        """Return the engine of the ledger, whose connections `submit(connection=…)` takes."""
        return self.ledger.engine()

    def create_database(self, *, group: str | None = None) -> Path:
        """Make the ledger, as `settled init` does; an existing one is left as it is."""
        return store.creation.create_ledger(self.ledger.path, group=group, at_us=self._clock.now().wall_us).path

    def close(self) -> None:
        """Close what this process has open. A running `execute` ends first."""
        inline, self._inline = self._inline, None
        if inline is not None and inline.pid == os.getpid():  # what a fork inherited belongs to its parent
            inline.close()
        if self._shell is not None:
            self._shell.ledger.close()

    # ------------------------------------------------------------------ submit

    def submit(
        self,
        contract: Named,
        arguments: dict[str, Any],
        *,
        operation_id: str | None = None,
        priority: int = 0,
        delay: float | timedelta | None = None,
        deadline: datetime | None = None,
        metadata: Mapping[str, Any] | None = None,
        connection: sa.Connection | None = None,
    ) -> Operation:
        """Make a request durable, or return the operation that it already is; nothing is sent by this call.

        Raises TypeError or ValueError for a request that is refused at the door, OperationConflictError where the ID
        belongs to another request, LedgerUnavailableError where the store cannot be written; nothing is stored then.
        """
        order = self._order(
            contract, arguments, operation_id=operation_id, priority=priority, delay=delay, deadline=deadline, metadata=metadata
        )
        if connection is not None:
            return self._submit_within(connection, order)
        return self._store([order])[0]

    def submit_many(self, requests: Iterable[Any]) -> builtins.list[Operation]:
        """Submit (contract, arguments) pairs, or maps of `submit`'s parameters, in one transaction.

        The error of one entry carries its place as `index`; nothing of the batch is stored then.
        """
        orders = []
        for index, request in enumerate(requests):
            try:
                orders.append(self._order_of(request))
            except Exception as error:
                error.index = index  # type: ignore[attr-defined]
                raise
        return self._store(orders)

    async def asubmit(self, contract: Named, arguments: dict[str, Any], **options: Any) -> Operation:
        """`submit` on a thread, so that the loop goes on while the store is busy."""
        import asyncio  # whoever awaits has it already; for everybody else it is a slow import

        return await asyncio.to_thread(partial(self.submit, contract, arguments, **options))

    # ------------------------------------------------------------------ read

    def get(self, operation_id: str) -> Operation:
        """Return an operation. Raises OperationNotFoundError."""
        return steps.show.get(self.shell, operation_id)

    def list(self, *, status: str | None = None, limit: int = DEFAULTS.list_default) -> builtins.list[Operation]:
        """Return operations, newest update first, without outputs and evidence. Raises ValueError for a bad status or limit."""
        return steps.show.list_operations(self.shell, status, limit)

    def events(self, operation_id: str) -> builtins.list[EventView]:
        """Return the events of an operation in order. Raises OperationNotFoundError."""
        return steps.show.events(self.shell, operation_id)

    def wait(self, operation_id: str, *, timeout: float = 30.0) -> Operation:
        """Wait until an operation is settled or `timeout` seconds are over; return it as it then is.

        Raises ValueError for a timeout without an end.
        """
        clock, pause = self._clock, POLL_FIRST_SECONDS
        until_us = clock.monotonic_us() + wait_us(timeout)
        while True:
            if (op := steps.show.if_settled(self.shell, operation_id)) is not None:
                return op
            left = (until_us - clock.monotonic_us()) / 1_000_000
            if left <= 0:
                return self.get(operation_id)
            steps.show.sleep(min(pause, left))
            pause = next_poll_seconds(pause)

    async def await_result(self, operation_id: str, *, timeout: float = 30.0) -> Operation:  # noqa: ASYNC109 - the twin of `wait`
        """`wait` without blocking the loop."""
        import asyncio

        pause = POLL_FIRST_SECONDS
        until_us = self._clock.monotonic_us() + wait_us(timeout)
        while True:
            op = await asyncio.to_thread(steps.show.if_settled, self.shell, operation_id)
            if op is not None:
                return op
            left = (until_us - self._clock.monotonic_us()) / 1_000_000
            if left <= 0:
                return await asyncio.to_thread(self.get, operation_id)
            await asyncio.sleep(min(pause, left))
            pause = next_poll_seconds(pause)

    # ------------------------------------------------------------------ do and ask here

    def execute(self, contract: Named, arguments: dict[str, Any], *, operation_id: str | None = None, **options: Any) -> Operation:
        """Submit and, where it may be dispatched now, run the handler in this process under the same protocol.

        Raises LedgerUnavailableError with what was observed where the store fails after the handler ran.
        """
        return self._inside().execute(self._order(contract, arguments, operation_id=operation_id, **options))

    def reconcile(self, operation_id: str) -> Operation:
        """Ask the probe once, now, and record its answer. Never dispatches.

        Raises OperationInProgressError while a live handler runs, OperationNotFoundError.
        """
        return self._inside().reconcile(operation_id)

    def add_evidence(
        self,
        *,
        source: str,
        result: ProbeResult,
        operation_id: str | None = None,
        provider_reference: str | None = None,
    ) -> Operation | None:
        """Record a provider's notice. None: nobody knows that reference yet, and the notice waits for it."""
        rows = steps.notice.add_evidence(
            self.shell, operation_id=operation_id, provider_reference=provider_reference, source=source, result=result
        )
        return self.get(rows[0].operation_id) if rows else None

    # ------------------------------------------------------------------ people

    def cancel(self, operation_id: str, *, actor: str, reason: str) -> Operation:
        """Call off what was never sent. Raises TransitionRefusedError once it was."""
        return self.get(steps.resolve.cancel(self.shell, operation_id, actor, reason).operation_id)

    def stop(self, operation_id: str, *, actor: str, reason: str, wait: float = 10.0) -> Operation:
        """Ask for a running handler to be stopped, and wait for it up to `wait` seconds. The outcome is unknown then."""
        bound_us = wait_us(wait, "wait")
        self._recovered(operation_id)
        steps.resolve.request_stop(self.shell, operation_id, actor, reason)
        self.shell.ring()
        until_us = self._clock.monotonic_us() + bound_us
        while (op := self.get(operation_id)).status is Status.DISPATCHED and self._clock.monotonic_us() < until_us:
            steps.show.sleep(0.02)
        return op

    def approve(self, operation_id: str, *, actor: str, reason: str, expected_fingerprint: str | None = None) -> Operation:
        """Let a request that waits for a person be dispatched. Raises TransitionRefusedError where it is not the request that was seen."""
        steps.resolve.approve(self.shell, operation_id, actor, reason, expected_fingerprint)
        self.shell.ring()
        return self.get(operation_id)

    def deny(self, operation_id: str, *, actor: str, reason: str) -> Operation:
        """Cancel a request that waits for a person."""
        steps.resolve.deny(self.shell, operation_id, actor, reason)
        return self.get(operation_id)

    def confirm(
        self,
        operation_id: str,
        *,
        actor: str,
        reason: str,
        evidence_reference: str,
        expected_version: int,
        output: Any = NO_OUTPUT,
        provider_operation_id: str | None = None,
    ) -> Operation:
        """Confirm by a person's word. Raises TransitionRefusedError for a stale version, a wrong status, or where two are needed."""
        said = (actor, reason, evidence_reference, expected_version)
        return self._resolved(operation_id, "confirm", said, output=output, provider_operation_id=provider_operation_id)

    def reject(
        self,
        operation_id: str,
        *,
        actor: str,
        reason: str,
        evidence_reference: str,
        expected_version: int,
        assert_nothing_can_arrive: bool = False,
    ) -> Operation:
        """Reject: a person asserts that no attempt took effect or still can. Raises TransitionRefusedError while one may."""
        said = (actor, reason, evidence_reference, expected_version)
        return self._resolved(operation_id, "reject", said, nothing_can_arrive=assert_nothing_can_arrive)

    def authorize_retry(
        self,
        operation_id: str,
        *,
        actor: str,
        reason: str,
        evidence_reference: str,
        expected_version: int,
        assert_nothing_can_arrive: bool = False,
        accept_second_effect: bool = False,
    ) -> Operation:
        """Let one more attempt be dispatched, by the same assertion as `reject`. Raises TransitionRefusedError."""
        said = (actor, reason, evidence_reference, expected_version)
        flags = {"nothing_can_arrive": assert_nothing_can_arrive, "accept_second_effect": accept_second_effect}
        return self._resolved(operation_id, "authorize-retry", said, **flags)

    def propose(
        self,
        operation_id: str,
        verb: Verb,
        *,
        actor: str,
        reason: str,
        evidence_reference: str,
        expected_version: int,
        output: Any = NO_OUTPUT,
        provider_operation_id: str | None = None,
        assert_nothing_can_arrive: bool = False,
        accept_second_effect: bool = False,
    ) -> Proposal:
        """Propose confirm, reject or authorize-retry for a second person to approve. Moves nothing and holds nothing.

        Raises TransitionRefusedError for what could not be carried out now, and while another proposal stands.
        """
        asked, text = steps.resolve.wanted(
            self.shell,
            verb,
            steps.persons.decision_of(self.shell, actor, reason, evidence_reference, expected_version),
            output=output,
            provider_operation_id=provider_operation_id,
            nothing_can_arrive=assert_nothing_can_arrive,
            accept_second_effect=accept_second_effect,
        )
        return steps.propose.propose(self.shell, operation_id, asked, text)

    def approve_proposal(self, operation_id: str, *, proposal: int, actor: str, reason: str) -> Operation:
        """Carry out a proposal as a second person. Raises TransitionRefusedError for the same person, and where it lapsed."""
        steps.propose.approve_proposal(self.shell, operation_id, proposal, actor, reason)
        self.shell.ring()
        return self.get(operation_id)

    def decline_proposal(self, operation_id: str, *, proposal: int, actor: str, reason: str) -> Operation:
        """Put on record that a proposal is not carried out; nothing moves."""
        steps.propose.decline_proposal(self.shell, operation_id, proposal, actor, reason)
        return self.get(operation_id)

    def waiting_for_people(
        self,
        *,
        contract: str | None = None,
        risk: str | None = None,
        reason: str | None = None,
        older_than: float | None = None,
        limit: int = DEFAULTS.list_default,
    ) -> builtins.list[Waiting]:
        """Return what is quarantined or kept unknown: the highest risk first, then the longest wait. `older_than` in seconds.

        Raises ContractNotFoundError for a contract that is not known here: a misspelt one would seem to have nothing that waits.
        """
        before_us = None if older_than is None else self._clock.now().wall_us - wait_us(older_than, "older_than")
        return steps.awaiting.waiting_for_people(self.shell, store.people.Selection(contract, risk, reason, before_us), limit)

    def pending_proposals(self) -> builtins.list[Waiting]:
        """Return what one person has proposed and a second one may approve now, the oldest first."""
        return steps.awaiting.pending_proposals(self.shell)

    def proposal(self, operation_id: str) -> Proposal | None:
        """Return the proposal that may be approved now, None where none stands. Raises OperationNotFoundError."""
        return steps.propose.proposal_of(self.shell, operation_id)

    def pause(
        self, contract: Named | None = None, queue: str | None = None, *, actor: str, reason: str
    ) -> Pause:
        """Dispatch nothing of a contract, of a queue, or (without either) at all; handlers that run and probes go on.

        Raises ContractNotFoundError or QueueNotFoundError for a name that is not known here, ValueError for a blank text.
        """
        return steps.pausing.pause(self.shell, contract, queue, actor, reason)

    def resume(
        self, contract: Named | None = None, queue: str | None = None, *, actor: str, reason: str
    ) -> builtins.list[Pause]:
        """Lift the pauses of exactly this scope and return them; pauses of other scopes stay.

        Raises PauseRefusedError where it is not paused, and on a copied ledger, which is for `adopt` to reopen.
        """
        lifted = steps.pausing.resume(self.shell, contract, queue, actor, reason)
        self.shell.ring()
        return lifted

    def pauses(self, *, lifted: bool = False, limit: int = DEFAULTS.list_default) -> builtins.list[Pause]:
        """Return what is paused now, oldest first; with `lifted` what ever was, latest first, at most `limit`."""
        return steps.pausing.pauses(self.shell, lifted=lifted, limit=limit)

    def acknowledge(self, operation_id: str, *, actor: str, reason: str | None = None) -> Operation:
        """Say that somebody looks at an incident: its ladder and reminders stop. Raises TransitionRefusedError where none is open."""
        return self.get(steps.attend.acknowledge(self.shell, operation_id, actor, reason).operation_id)

    def assign(self, operation_id: str, assignee: str, *, actor: str, reason: str | None = None) -> Operation:
        """Say who looks at an incident: its ladder and reminders stop. Raises TransitionRefusedError where none is open."""
        return self.get(steps.attend.assign(self.shell, operation_id, assignee, actor, reason).operation_id)

    def snooze(self, operation_id: str, until: datetime, *, actor: str, reason: str | None = None) -> Operation:
        """Stop an incident's ladder and reminders until then, an aware datetime. Raises ValueError for a time that is over."""
        return self.get(steps.attend.snooze(self.shell, operation_id, until, actor, reason).operation_id)

    def adopt(self, *, reason: str, moved: bool = False) -> int:
        """Take a copied or moved ledger over; return how many unsettled operations are now of unknown outcome.

        Nothing is dispatched from a copy before. `moved` asserts that the old place was stopped first and is gone.
        """
        return steps.adopt.adopt(self.shell, reason, moved=moved)

    def backup(self, target: str | os.PathLike[str], *, progress: Callable[[int, int], None] | None = None) -> Backup:
        """Copy the ledger, while it is in use, to a new file or into a folder; return what was made.

        `progress` is told of pages done and pages in all. Nothing is ever overwritten.
        """
        return store.backup.back_up(self.ledger, Path(target), stamp=self.stamp(), progress=progress)

    def restore(
        self, backup: str | os.PathLike[str], *, reason: str, progress: Callable[[int, int], None] | None = None
    ) -> Restored:
        """Replace the ledger by a backup. Nothing is dispatched from it before `adopt`, and every unsettled operation is unknown.

        Stop every worker and every program that submits first; the old ledger is set aside, not removed.
        """
        return steps.restore.restore(self.shell, Path(backup), reason, stamp=self.stamp(), progress=progress)

    def stamp(self) -> str:
        """Return this moment for the name of a file."""
        return at(self._clock.now().wall_us).strftime("%Y%m%dT%H%M%SZ")

    # ------------------------------------------------------------------ within

    def _resolved(self, operation_id: str, verb: Verb, said: tuple[Any, Any, Any, Any], **facts: Any) -> Operation:
        asked, text = steps.resolve.wanted(self.shell, verb, steps.persons.decision_of(self.shell, *said), **facts)
        steps.resolve.resolve(self.shell, operation_id, asked, text)
        if verb == "authorize-retry":
            self.shell.ring()
        return self.get(operation_id)

    def _order(self, named: Named, arguments: Any, **options: Any) -> Order:
        name, contract = self._resolve(named)
        return steps.submit.check_order(contract, name, arguments, limits=self.shell.limits, **options)

    def _order_of(self, request: Any) -> Order:
        if type(request) is not tuple and isinstance(request, Mapping):
            options = dict(request)
            missing = {"contract", "arguments"} - options.keys()
            if missing:
                raise TypeError(f"a request needs {' and '.join(sorted(missing))}. Nothing was stored.")
            return self._order(options.pop("contract"), options.pop("arguments"), **options)
        contract, arguments = request
        return self._order(contract, arguments)

    def _resolve(self, named: Named) -> tuple[str, EffectContract | None]:
        if isinstance(named, Effect):
            return named.contract.name, named.contract
        if isinstance(named, EffectContract):
            return named.name, named
        if type(named) is not str or not named.strip():
            raise ValueError(f"the contract must be named, not {named!r}. Nothing was stored.")
        return named, self.contracts.get(named)

    def _store(self, orders: Sequence[Order]) -> builtins.list[Operation]:
        shell = self.shell
        now = self._clock.now()
        bells, rung = shell.known_bells(), None

        def store_all(transaction: Transaction) -> builtins.list[Stored]:
            nonlocal rung
            stored = steps.submit.store_orders(shell, transaction, orders, now)
            if bells is not None and any(one.created for one in stored):
                transaction.before_commit.add(bells.ring)  # who wakes up queues behind this commit, and has the work when it is done
                rung = bells
            return stored

        stored = self._known(orders, now) if self._repeats else None
        if stored is None:
            stored = shell.ledger.together.write(store_all, post=lambda: steps.submit.posted(shell, orders, now))
        self._repeats = not any(one.created for one in stored)
        if not self._repeats:
            shell.ring(rung)  # those that have been hung since, and all where another process has stored it
        noted = None
        for order, one in zip(orders, stored, strict=True):
            if one.created and order.contract is not None and order.contract is not noted and one.row.terms is not None:
                noted = order.contract
                shell.note_durable(noted.terms, one.row.terms)
            if one.row.status is Status.DISPATCHED:
                self._recovered(one.row.operation_id)  # a dead caller's row needs no worker
        return [steps.show.after_submit(shell, one) for one in stored]

    def _known(self, orders: Sequence[Order], now: Moment) -> builtins.list[Stored] | None:
        """Return what is stored of repeated requests, if all are: who repeats one often repeats more, and needs no turn to write."""
        with self.shell.ledger.read() as transaction:
            return steps.submit.find_known(self.shell, transaction, orders, now)

    def _submit_within(self, connection: sa.Connection, order: Order) -> Operation:
        shell = self.shell
        transaction = shell.ledger.join(connection)
        try:
            stored = steps.submit.store_orders(shell, transaction, [order], self._clock.now())[0]
            transaction.finish()
        finally:
            shell.forget_uncommitted()  # the caller may still roll back
            transaction.cursor.close()
        if stored.created:
            store.transaction.at_commit(connection, shell.ring)
        return steps.show.after_submit(shell, stored, within=transaction if not stored.created else None)

    def _recovered(self, operation_id: str) -> None:
        self._inside().recover(operation_id)

    def _inside(self) -> Inline:
        with self._making:
            if self._inline is None or self._inline.pid != os.getpid():
                from settled.inline import Inline  # executors are only imported where handlers or probes run

                self._inline = Inline(self)
            return self._inline

    def module_reference(self) -> str:
        """Return MODULE:APP by which a runner imports this App. Raises ConfigurationError where there is none."""
        if self.reference is not None:
            return self.reference
        module = self._made_in.get("__name__", "")
        spec = self._made_in.get("__spec__")
        if module == "__main__":
            module = getattr(spec, "name", "__main__")
        name = next((key for key, value in self._made_in.items() if value is self), None)
        if module in ("", "__main__") or name is None:
            raise ConfigurationError(
                "handlers in process isolation are imported by a runner, and this App was made in __main__ or has no name "
                "in its module. Nothing was sent. Put it into a module, or declare isolation='thread'"
            )
        return f"{module}:{name}"

"""The policy in front of the tools of one run, with an audit: what was denied, what waits, and who confirmed.

Promise: the audit is written before anything is submitted. A confirmation lives as long as the call that brings it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from settled.core.errors import LedgerUnavailableError, OperationNotFoundError
from settled.core.limits import DEFAULTS
from settled.core.text import one_line
from settled.identity import check_identity
from settled.integrations.answers import ToolResult, tell_confirmation_required, tell_denied, tell_unavailable
from settled.integrations.policy import Confirmation, Pending, Policy, Verdict, arguments_fingerprint, confirming
from settled.integrations.tools import Tool, UnsafeKeyError
from settled.logs import get_log
from settled.store.agent_runs import RunEvent, append_events, read_run_events

if TYPE_CHECKING:
    from settled.app import App

RUN_KEY: Final = "agent_run"  # in the metadata of an operation: the run that asked for it first
log: Final = get_log("settled.agents")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What the policy said of one call, and whose confirmation let it through."""

    tool: str
    verdict: Verdict
    pending: Pending
    confirmation: Confirmation | None = None

    def event(self) -> RunEvent | None:
        """Return what the audit keeps: nothing of a call that needed no confirmation."""
        if self.verdict is Verdict.ALLOWED and self.confirmation is None:
            return None
        return RunEvent(
            run_id=self.pending.run_id,
            sequence=0,
            type="confirmed" if self.verdict is Verdict.ALLOWED else str(self.verdict),
            tool=one_line(self.tool, DEFAULTS.tool_name_max),
            fingerprint=self.pending.fingerprint,
            operation_id=self.pending.operation_id,
            actor=None if self.confirmation is None else self.confirmation.actor,
        )


class Gate:
    """For adapters: one for each run or thread of a framework. `call` is `Tool.call` behind the policy."""

    def __init__(self, app: "App", *, run_id: str, policy: Policy | None = None) -> None:
        self.app, self.run_id, self.policy = app, check_identity(run_id, "run_id"), policy or Policy()

    def call(
        self, tool: Tool, arguments: Any, *, confirmations: Iterable[Confirmation] = (), **options: Any
    ) -> ToolResult:
        """Ask the policy, then `tool.call`. A denial and a missing confirmation are told; nothing is stored of the effect then.

        Raises TypeError for a confirmation that the host did not make, and what `Tool.call` raises.
        """
        held = self.hold(tool, arguments, confirmations=confirmations, **_named(options))
        return held or tool.call(arguments, metadata={RUN_KEY: self.run_id}, **options)

    async def acall(
        self, tool: Tool, arguments: Any, *, confirmations: Iterable[Confirmation] = (), **options: Any
    ) -> ToolResult:
        """`call` without blocking the loop."""
        import asyncio

        held = await asyncio.to_thread(self.hold, tool, arguments, confirmations=tuple(confirmations), **_named(options))
        return held or await tool.acall(arguments, metadata={RUN_KEY: self.run_id}, **options)

    def hold(self, tool: Tool, arguments: Any, *, confirmations: Iterable[Confirmation] = (), **named: Any) -> ToolResult | None:
        """Return what the model is told of a call that may not be made now, audited; None for one that may."""
        try:
            judged = self.judge(tool.name, tool, arguments, confirmations, **named)
            self._audit(judged)
        except LedgerUnavailableError as error:
            return tell_unavailable(tool.name, error, None)
        if judged.verdict is Verdict.DENIED:
            return tell_denied(tool.name)
        if judged.verdict is Verdict.CONFIRMATION_REQUIRED:
            return tell_confirmation_required(tool.name, judged.pending.operation_id)
        return None

    def pending(self, tool: Tool, arguments: Any, **named: Any) -> Pending:
        """Return the call as the host shows it to whoever may confirm it."""
        return self.judge(tool.name, tool, arguments, (), **named).pending

    def judge(self, name: str, tool: object | None, arguments: Any, confirmations: Iterable[Confirmation], **named: Any) -> Judged:
        """Return what the policy says of one call. `tool` is None for a name that the host did not declare."""
        given = tuple(confirmations)
        pending = Pending(run_id=self.run_id, tool=name, arguments=arguments, fingerprint=arguments_fingerprint(arguments))
        found = confirming(given, self.run_id, name, pending.fingerprint)
        mutation = isinstance(tool, Tool)
        verdict = self.policy.decide(self.run_id, name, arguments, known=tool is not None, mutation=mutation, confirmations=given)
        if not isinstance(tool, Tool):
            return Judged(tool=name, verdict=verdict, pending=pending)
        try:
            pending = replace(pending, operation_id=tool.identify(arguments, **named))
        except UnsafeKeyError:
            raise
        except (TypeError, ValueError):  # told by the call itself: nothing to confirm
            return Judged(tool=name, verdict=Verdict.DENIED if verdict is Verdict.DENIED else Verdict.ALLOWED, pending=pending)
        if verdict is not Verdict.ALLOWED and self._asked_before(pending):
            return Judged(tool=name, verdict=Verdict.ALLOWED, pending=pending)
        return Judged(tool=name, verdict=verdict, pending=pending, confirmation=found if verdict is Verdict.ALLOWED else None)

    def events(self) -> list[RunEvent]:
        """Return the audit of this run."""
        with self.app.ledger.read() as transaction:
            return read_run_events(transaction, self.run_id)

    def _asked_before(self, pending: Pending) -> bool:
        """Return whether this very run asked for what is recorded already: then its call only finds that, and adds nothing.

        It did where it made the request, and where the host confirmed this call in it of an operation that was there before.
        """
        assert pending.operation_id is not None
        try:
            known = self.app.get(pending.operation_id)
        except OperationNotFoundError:
            return False
        same = ("confirmed", pending.operation_id, pending.fingerprint)
        return known.metadata.get(RUN_KEY) == self.run_id or any(
            (event.type, event.operation_id, event.fingerprint) == same for event in self.events()
        )

    def _audit(self, judged: Judged) -> None:
        event = judged.event()
        if event is None or self._is_old(event):
            return
        with self.app.ledger.write() as transaction:
            append_events(transaction, [event._replace(at_us=self.app.shell.clock.now().wall_us)])
        log_verdict(event)

    def _is_old(self, event: RunEvent) -> bool:
        """Return whether the audit says that of this call already: who polls adds nothing."""
        about = [one for one in self.events() if (one.tool, one.fingerprint) == (event.tool, event.fingerprint)]
        return bool(about) and (about[-1].type, about[-1].actor) == (event.type, event.actor)


def log_verdict(event: RunEvent) -> None:
    """Log what was denied, what waits, and what was confirmed."""
    say: Literal["info", "warning"] = "warning" if event.type == Verdict.DENIED else "info"
    getattr(log, say)(f"agent.{event.type}", run_id=event.run_id, tool=event.tool, operation_id=event.operation_id, actor=event.actor)


def _named(options: dict[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in ("operation_id", "call_id", "scope") if name in options}

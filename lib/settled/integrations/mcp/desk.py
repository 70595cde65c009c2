"""Answer one call of a tool or one look at a resource: read, submit or wait, and tell.

Promise: a call that is cancelled leaves the ledger as it is. It has submitted or it has not, and the same call again finds out.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from pydantic import ValidationError

from settled.clock import monotonic_us
from settled.core.errors import OperationNotFoundError, SettledError
from settled.core.limits import DEFAULTS
from settled.integrations.answers import UNAVAILABLE, ToolResult, tell_invalid, tell_unavailable
from settled.integrations.mcp.offered import NOT_FOUND, Answer, Known, Offer, Waited, answer_of, unknown_operation
from settled.integrations.tools import Tool
from settled.logs import get_log
from settled.operation import Operation
from settled.store.reads import counts

if TYPE_CHECKING:
    from settled.app import App

Report = Callable[[float, float, str], Awaitable[None]]
STATUS_URI: Final = "settled://status"
OPERATION_URI: Final = "settled://operation/"
_FAILED: Final = frozenset({"conflict", "invalid_arguments", "unavailable", NOT_FOUND})
log: Final = get_log("settled.mcp")


def is_error(answer: Answer) -> bool:
    """Return whether a call told nothing of the effect that it named. An effect that failed is an answer like any other."""
    return answer.effect_status in _FAILED


class Desk:
    """Serves all clients of one server. `wait` is how many seconds a submission waits before it is answered."""

    def __init__(self, app: "App", offers: Mapping[str, Offer], *, wait: float = DEFAULTS.tool_wait_seconds) -> None:
        self.app, self.offers, self.wait = app, offers, wait
        self._waiting = 0

    async def call(self, offer: Offer, arguments: dict[str, Any], report: Report) -> Answer:
        """Answer a call. Raises nothing but cancellation: what goes wrong is told, and logged where it is a fault."""
        named: str | None = None
        try:
            if offer.verb == "submit":
                return await self._submit(offer.tool, arguments, report)
            asked = _parse(Waited if offer.verb == "wait" else Known, arguments)
            named = asked.operation_id
            if isinstance(asked, Waited):
                return await self._wait_for(offer.tool, named, asked.timeout_seconds, report)
            return await asyncio.to_thread(self._read, offer.tool, named)
        except OperationNotFoundError:
            return unknown_operation(named or "")
        except Exception as error:  # noqa: BLE001 - what user code raises is told as not known, never as a failure of the effect
            return answer_of(_told(offer.name, error, named))

    def status(self) -> str:
        """Return the counts of what is offered here, as JSON. Raises SettledError."""
        with self.app.ledger.read() as transaction:
            found = counts(transaction)
        names = sorted({offer.tool.contract.name for offer in self.offers.values()})
        return json.dumps({"counts": {name: found.get(name, {}) for name in names}})

    def operation(self, uri: str) -> str | None:
        """Return what is known of the operation that a URI names, as JSON; None where nothing here has it. Raises SettledError."""
        operation_id = unquote(uri.removeprefix(OPERATION_URI))
        try:
            operation = self.app.get(operation_id)
        except (OperationNotFoundError, ValueError):
            return None
        tool = next((one.tool for one in self.offers.values() if one.tool.contract.name == operation.contract), None)
        return None if tool is None else answer_of(tool.told(operation)).model_dump_json(exclude_unset=True)

    # ------------------------------------------------------------------ within

    async def _submit(self, tool: Tool, arguments: dict[str, Any], report: Report) -> Answer:
        result = await asyncio.to_thread(tool.call, arguments, wait=0)
        if not result.waiting or result.operation_id is None or result.effect_status == UNAVAILABLE or self.wait <= 0:
            return answer_of(result, created=result.created)
        try:
            operation = await self._watch(result.operation_id, self.wait, report)
        except SettledError:
            return answer_of(result, created=result.created)  # recorded it is, whatever became of the ledger since
        return answer_of(tool.told(operation), created=result.created)

    def _read(self, tool: Tool, operation_id: str) -> Answer:
        """Tell of an operation of this tool, and of no other."""
        operation = self.app.get(operation_id)
        if operation.contract != tool.contract.name:
            raise OperationNotFoundError(operation_id)
        return answer_of(tool.told(operation))

    async def _wait_for(self, tool: Tool, operation_id: str, seconds: float, report: Report) -> Answer:
        first = await asyncio.to_thread(self._read, tool, operation_id)
        if first.next_action != "wait" or seconds <= 0:  # settled, or a person's turn: waiting brings nothing
            return first
        return answer_of(tool.told(await self._watch(operation_id, seconds, report)))

    async def _watch(self, operation_id: str, seconds: float, report: Report) -> Operation:
        """Wait for an operation, and report while it waits. Where too many wait already, tell at once what is known."""
        if self._waiting >= DEFAULTS.mcp_waits_max:
            return await asyncio.to_thread(self.app.get, operation_id)
        began_us = monotonic_us()
        self._waiting += 1
        try:
            while True:
                passed = (monotonic_us() - began_us) / 1_000_000
                left = seconds - passed
                operation = await self.app.await_result(operation_id, timeout=max(0.0, min(left, DEFAULTS.mcp_progress_seconds)))
                if operation.settled or left <= DEFAULTS.mcp_progress_seconds:
                    return operation
                await report(round((monotonic_us() - began_us) / 1_000_000, 3), seconds, str(operation.status))
        finally:
            self._waiting -= 1


def _parse(type_: type[Known], arguments: dict[str, Any]) -> Known:
    try:
        return type_.model_validate(arguments)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"arguments: {'.'.join(map(str, first['loc'])) or 'the top level'}: {first['msg']}.") from None


def _told(name: str, error: Exception, named: str | None) -> ToolResult:
    if isinstance(error, (TypeError, ValueError)) and not isinstance(error, SettledError):
        return tell_invalid(name, str(error))
    log.error("mcp.call_failed", tool=name, exc_info=error)  # its words stay here: what they hold is not the model's
    return tell_unavailable(name, error if isinstance(error, SettledError) else SettledError("the call failed"), named)

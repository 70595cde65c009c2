"""One tool declaration for every framework: from an effect contract to a name, a description and a strict schema, and one call.

Promise: a call never does the effect itself. It submits idempotently under the ID that the contract derives from the arguments,
waits no longer than it is told to, and answers from the store.
"""

import asyncio
import re
import threading
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from settled.clock import monotonic_us
from settled.contract import EffectContract
from settled.core.errors import (
    ConfigurationError,
    LedgerStateError,
    LedgerUnavailableError,
    OperationConflictError,
    SettledError,
)
from settled.core.limits import DEFAULTS
from settled.core.words import Risk
from settled.effect import Effect
from settled.integrations.answers import ToolResult, tell, tell_conflict, tell_invalid, tell_unavailable
from settled.integrations.schemas import open_schema, strict_schema, with_operation_id
from settled.operation import Operation
from settled.waiting import wait_us

if TYPE_CHECKING:
    from settled.app import App

Key = Literal["contract", "argument", "call"]

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")  # what every provider of models takes
_HOW: Final = (
    "This is a recorded effect: one business action has one operation ID, and asking for it again only tells what is known of it. "
    "An answer of 'wait' or 'ask_human' is no failure: do not ask for the same effect in other words."
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tool:
    """An effect as a model is offered it. `name`, `description` and `schema` are all that a framework needs to declare it.

    `key` says where the operation ID comes from: "contract" derives it from the arguments; "argument" takes it from the
    argument `operation_id`; "call" makes it of the framework's call ID. `inline` runs the handler in this process.
    """

    app: "App"
    contract: EffectContract
    name: str
    description: str
    schema: dict[str, Any]
    key: Key = "contract"
    inline: bool = False

    @property
    def risk(self) -> str:
        """The contract's risk."""
        return self.contract.terms.risk

    def call(
        self,
        arguments: Any,
        *,
        wait: float = DEFAULTS.tool_wait_seconds,
        operation_id: str | None = None,
        call_id: str | None = None,
        scope: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> ToolResult:
        """Submit, wait up to `wait` seconds, and return what the store then says. The same call again is the same operation.

        `scope` and `call_id` name the framework's thread and tool call; `metadata` is the host's, and is stored with a new operation.
        Refusals and conflicts are told in the result.
        Raises ValueError where an operation ID holds the call ID, ConfigurationError where the App or its ledger cannot serve.
        """
        wait_us(wait, "wait")
        named: str | None = None
        try:
            plain, named = self._identify(arguments, operation_id, call_id, scope)
            operation = (self._run if self.inline else self._submit)(plain, named, wait, metadata)
        except _TOLD as error:
            return self._told(error, named)
        return self.told(operation)

    async def acall(self, arguments: Any, *, wait: float = DEFAULTS.tool_wait_seconds, **names: Any) -> ToolResult:
        """`call` without blocking the loop."""
        if self.inline:
            return await asyncio.to_thread(self.call, arguments, wait=wait, **names)
        submitted = await asyncio.to_thread(self.call, arguments, wait=0, **names)
        if not submitted.waiting or submitted.operation_id is None or wait <= 0:
            return submitted
        try:
            operation = await self.app.await_result(submitted.operation_id, timeout=wait)
        except _TOLD as error:
            return self._told(error, submitted.operation_id)
        return self.told(operation, created=submitted.created)

    def get(self, operation_id: str) -> ToolResult:
        """Return what the store says of an operation of this tool. Raises OperationNotFoundError, LedgerUnavailableError."""
        return self.told(self.app.get(operation_id))

    def wait(self, operation_id: str, *, timeout: float = 30.0) -> ToolResult:
        """`get`, after waiting up to `timeout` seconds for it to settle."""
        return self.told(self.app.wait(operation_id, timeout=timeout))

    def identify(self, arguments: Any, *, operation_id: str | None = None, call_id: str | None = None, scope: str | None = None) -> str:
        """Return the operation ID that `call` would use; nothing is stored. Raises TypeError or ValueError as the door would."""
        plain, named = self._identify(arguments, operation_id, call_id, scope)
        return self.app._order(self.contract, plain, operation_id=named).operation_id

    def told(self, operation: Operation, *, created: bool | None = None) -> ToolResult:
        """Return what the model is told of an operation of this tool. Raises ValueError for one of another contract."""
        if operation.contract != self.contract.name:
            raise ValueError(f"operation {operation.operation_id!r} belongs to {operation.contract!r}, not to {self.contract.name!r}")
        result = tell(operation, self.name, masked=self.contract.terms.sensitive_fields)
        return result if created is None else replace(result, created=created)

    # ------------------------------------------------------------------ within

    def _identify(self, arguments: Any, given: str | None, call_id: str | None, scope: str | None) -> tuple[Any, str | None]:
        """Return the arguments for the contract, and the operation ID where the contract does not derive it."""
        plain = arguments
        if self.key == "argument" and type(arguments) is dict and "operation_id" in arguments:
            plain = {name: value for name, value in arguments.items() if name != "operation_id"}
            if given is not None and given != arguments["operation_id"]:
                raise ValueError(f"two operation IDs were given: {given!r} and {arguments['operation_id']!r}. Nothing was stored.")
            given = arguments["operation_id"]
        if self.key == "call":
            if not scope or not call_id:
                raise ConfigurationError(f"tool {self.name!r} makes its key of scope and call_id, and one is missing. Nothing was stored.")
            return plain, f"{scope}:{call_id}"
        if self.key == "argument" and given is None:
            raise ValueError("operation_id: Field required. Nothing was stored.")
        named = self.app._order(self.contract, plain, operation_id=given if self.key == "argument" else None).operation_id
        if given is not None and given != named:
            raise ValueError(f"operation_id is {named!r} for these arguments, not {given!r}. Nothing was stored.")
        if call_id is not None and _holds(named, call_id):
            raise UnsafeKeyError(
                f"the operation ID {named!r} of tool {self.name!r} holds the call ID {call_id!r}, which is another one when the model "
                f"asks again. Nothing was stored. Derive the ID from the business arguments"
            )
        return plain, named if self.key == "argument" else None

    def _submit(self, arguments: Any, named: str | None, wait: float, metadata: Mapping[str, Any] | None) -> Operation:
        operation = self.app.submit(self.contract, arguments, operation_id=named, metadata=metadata)
        if operation.settled or wait <= 0:
            return operation
        return _marked(self.app.wait(operation.operation_id, timeout=wait), operation.created)

    def _run(self, arguments: Any, named: str | None, wait: float, metadata: Mapping[str, Any] | None) -> Operation:
        """Execute on a thread of its own: this call's limit bounds its waiting, the contract's timeout the handler."""
        stored = self.app.submit(self.contract, arguments, operation_id=named, metadata=metadata)
        until_us = monotonic_us() + wait_us(wait, "wait")
        ended, got = threading.Event(), list[Operation | BaseException]()

        def execute() -> None:
            try:
                got.append(self.app.execute(self.contract, arguments, operation_id=named))
            except BaseException as error:  # noqa: BLE001 - handed to the caller, where it still waits
                got.append(error)
            ended.set()

        threading.Thread(target=execute, name=f"settled-{self.name}", daemon=True).start()
        if not ended.wait(max(0.0, wait)):
            return _marked(self.app.get(stored.operation_id), stored.created)
        if isinstance(got[0], BaseException):
            raise got[0]
        left = (until_us - monotonic_us()) / 1_000_000
        if got[0].in_progress and left > 0:  # another caller, or a worker, is doing it
            return _marked(self.app.wait(stored.operation_id, timeout=left), stored.created)
        return _marked(got[0], stored.created)

    def _told(self, error: Exception, named: str | None) -> ToolResult:
        if isinstance(error, UnsafeKeyError):
            raise error
        if isinstance(error, OperationConflictError):
            return tell_conflict(self.name, error)
        if isinstance(error, SettledError):
            return tell_unavailable(self.name, error, named)
        return tell_invalid(self.name, str(error))


class UnsafeKeyError(ConfigurationError, ValueError):
    """A key is made of a framework's call ID, so that the same action asked for again would be another operation."""


_TOLD: Final = (OperationConflictError, LedgerUnavailableError, LedgerStateError, TypeError, ValueError)


def effect_tool(
    effect: Effect | EffectContract,
    *,
    app: "App | None" = None,
    name: str | None = None,
    description: str | None = None,
    key: Key = "contract",
    inline: bool = False,
    open_arguments: bool = False,
) -> Tool:
    """Declare an effect as a tool. Raises ConfigurationError where it cannot be offered safely, and says what to add.

    A contract alone needs the `app` that stores its operations. `open_arguments` allows a contract without `arguments_type`: its
    tool takes any object, and nothing but JSON is checked.
    """
    contract = effect.contract if isinstance(effect, Effect) else effect
    named = name or contract.name
    what = f"tool {named!r}"
    stored_by = app or (effect.app if isinstance(effect, Effect) else None)
    if stored_by is None:
        raise ConfigurationError(f"{what}: no App stores its operations. Give app=, or offer what @app.effect or app.register returned")
    if not _NAME.fullmatch(named):
        raise ConfigurationError(f"{what}: a tool's name has 1 to 64 of a-z, A-Z, 0-9, _ and -. Give name=")
    _check_key(contract, key, what)
    if contract.arguments_type is not None:
        schema = strict_schema(contract.arguments_type, what)
    elif open_arguments:
        schema = open_schema()
    else:
        raise ConfigurationError(f"{what}: the contract declares no arguments_type, so that nothing could be checked. Add one")
    if key == "argument":
        schema = with_operation_id(schema, what)
    if inline and (contract.handler is None or stored_by.contracts.get(contract.name) is not contract):
        raise ConfigurationError(f"{what}: inline=True runs the handler here, and this App has none. Register one, or run a worker")
    said = description or (contract.handler.__doc__ if contract.handler is not None else None) or contract.name
    return Tool(
        app=stored_by,
        contract=contract,
        name=named,
        description=f"{' '.join(said.split())}\n\n{_HOW}",
        schema=schema,
        key=key,
        inline=inline,
    )


def effect_tools(app: "App", *, only: Iterable[str] | None = None, **options: Any) -> list[Tool]:
    """Declare each contract of an App, or `only` the named ones, as a tool. Raises ContractNotFoundError, ConfigurationError."""
    names = tuple(app.contracts) if only is None else tuple(only)
    return [effect_tool(Effect(app, app.contract(name)), **options) for name in names]


def _check_key(contract: EffectContract, key: str, what: str) -> None:
    if key == "contract":
        if contract.operation_id_function is None:
            raise ConfigurationError(
                f"{what}: the contract derives no operation ID from its arguments. Declare operation_id=, or take key='argument'"
            )
    elif key == "argument":
        if contract.operation_id_function is not None:
            raise ConfigurationError(f"{what}: the contract derives its operation ID, so no argument may name another. Leave key= out")
    elif key == "call":
        _check_call_key(contract, what)
    else:
        raise ConfigurationError(f"{what}: key must be 'contract', 'argument' or 'call', not {key!r}")


def _check_call_key(contract: EffectContract, what: str) -> None:
    """A model that asks again after a crash asks under a new call ID: such a key then is a second effect."""
    risk = contract.terms.risk
    if risk in (Risk.HIGH, Risk.FINANCIAL):
        raise UnsafeKeyError(
            f"{what}: key='call' is refused for risk {risk}: a model that asks again after a crash has a new call ID, and a second "
            f"effect follows. Let the contract derive operation_id from the business arguments"
        )
    warnings.warn(
        f"{what}: key='call' is only as durable as the framework's own checkpoint: where it is lost, the same action has a new ID "
        f"and is done again. Let the contract derive operation_id from the business arguments",
        UserWarning,
        stacklevel=4,
    )


def _holds(operation_id: str, call_id: str) -> bool:
    """Return whether a call ID stands in an operation ID as a word of it. A short bare number is no call ID worth the name."""
    if call_id.isdigit() and len(call_id) < 8:
        return False
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(call_id)}(?![A-Za-z0-9])", operation_id) is not None


def _marked(operation: Operation, created: bool) -> Operation:
    return replace(operation, created=created)

"""What an adapter calls: the effect tools that a host offers, its policy, and the confirmations that it has given.

Promise: every call goes through the gate and reads the store; confirmations live in this process only, until their call is made.
"""

import asyncio
import threading
from collections.abc import Iterable
from typing import Any, Final

from settled.core.errors import ConfigurationError, LedgerStateError, LedgerUnavailableError
from settled.core.limits import DEFAULTS
from settled.integrations.answers import CONFIRMATION_REQUIRED, UNAVAILABLE, ToolResult, tell_unavailable
from settled.integrations.gate import Gate
from settled.integrations.policy import Confirmation, Pending, Policy, arguments_fingerprint
from settled.integrations.tools import Tool
from settled.waiting import wait_us

_Call = tuple[str, str, str]  # run ID, tool, fingerprint of the arguments
WAITS_HERE_MAX: Final = DEFAULTS.list_max  # a call that is forgotten is asked for again when its run is resumed


class Host:
    """The host's side of a framework: offer its tools with an adapter, see what waits, confirm. `wait`: seconds, for each call."""

    def __init__(self, tools: Iterable[Tool], *, policy: Policy | None = None, wait: float = DEFAULTS.tool_wait_seconds) -> None:
        wait_us(wait, "wait")
        self.policy, self.wait = policy or Policy(), wait
        self.tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.name in self.tools:
                raise ConfigurationError(f"two tools are named {tool.name!r}. Give one of them name=")
            self.tools[tool.name] = tool
        self._pending, self._given = dict[_Call, Pending](), dict[_Call, Confirmation]()
        self._lock = threading.Lock()

    def call(self, name: str, arguments: Any, *, run_id: str, call_id: str | None = None, wait: float | None = None) -> ToolResult:
        """Make one call of a run behind the policy, wait up to `wait` seconds, and return what the store then says.

        `run_id` is the framework's thread, the same after a resume; `call_id` its tool call. Raises what `Gate.call` raises.
        """
        tool, gate = self._tool(name), self._gate(name, run_id)
        key = (run_id, name, arguments_fingerprint(arguments))
        named = {"call_id": call_id, "scope": run_id}
        try:
            result = gate.call(tool, arguments, confirmations=self._confirmations(key), wait=self.wait if wait is None else wait, **named)
            pending = gate.pending(tool, arguments, **named) if result.effect_status == CONFIRMATION_REQUIRED else None
        except (LedgerUnavailableError, LedgerStateError) as error:
            return tell_unavailable(name, error, None)
        self._note(key, result, pending)
        return result

    async def acall(self, name: str, arguments: Any, **named: Any) -> ToolResult:
        """`call` without blocking the loop. What was begun goes on if this is cancelled."""
        return await asyncio.to_thread(self.call, name, arguments, **named)

    def pending(self, run_id: str) -> list[Pending]:
        """Return the calls of a run that wait for a confirmation, as this process has seen them."""
        with self._lock:
            return [pending for (run, _, _), pending in self._pending.items() if run == run_id]

    def confirm(self, *confirmations: Confirmation) -> None:
        """Keep confirmations for when their runs are resumed in this process. Raises TypeError for what the host did not make."""
        for one in confirmations:
            if type(one) is not Confirmation:
                raise TypeError(f"a confirmation is made by Pending.confirm, not {type(one).__name__}. Nothing was sent.")
        with self._lock:
            for one in confirmations:
                _keep(self._given, (one.run_id, one.tool, one.fingerprint), one)

    def check(self) -> None:
        """Read the ledger of each tool. Raises LedgerUnavailableError, LedgerStateError, ConfigurationError where it cannot serve."""
        for app in {id(tool.app): tool.app for tool in self.tools.values()}.values():
            app.list(limit=1)

    def _tool(self, name: str) -> Tool:
        if name not in self.tools:
            raise ConfigurationError(f"no effect tool is named {name!r}: there are {sorted(self.tools)}. Nothing was sent.")
        return self.tools[name]

    def _gate(self, name: str, run_id: str) -> Gate:
        return Gate(self.tools[name].app, run_id=run_id, policy=self.policy)

    def _confirmations(self, key: _Call) -> tuple[Confirmation, ...]:
        with self._lock:
            return (self._given[key],) if key in self._given else ()

    def _note(self, key: _Call, result: ToolResult, pending: Pending | None) -> None:
        with self._lock:
            self._pending.pop(key, None)
            if pending is not None:
                _keep(self._pending, key, pending)
            elif result.effect_status != UNAVAILABLE:
                self._given.pop(key, None)


def _keep(kept: dict[_Call, Any], key: _Call, value: Any) -> None:
    kept[key] = value
    while len(kept) > WAITS_HERE_MAX:
        del kept[next(iter(kept))]

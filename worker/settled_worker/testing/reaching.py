"""The points of a handler's life at which a certification ends its process. What a runner needs of it, and nothing slower to import."""

import os
import threading
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Final, NamedTuple

_HELD_SECONDS: Final = 120.0


class Watch(NamedTuple):
    """Where this process ends, and how its host fails. `folder` is where handlers say that they have come to the point."""

    point: str = ""
    host: str = ""
    folder: Path = Path()

    def reach(self, point: str, operation_id: str) -> None:
        """Be at a point of the handler's life. Where it is the one, say so and wait to be ended."""
        if point != self.point:
            return
        mark = self.folder / f"reached-{os.getpid()}-{threading.get_ident()}"
        mark.with_suffix(".part").write_text(operation_id)
        mark.with_suffix(".part").rename(mark)
        time.sleep(_HELD_SECONDS)


class WatchedContract:
    """A contract whose handler tells of its points. All else is the contract's own."""

    def __init__(self, contract: Any, watch: Watch) -> None:
        self._contract, self._watch = contract, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._contract, name)

    def call_handler(self, arguments: dict[str, Any], ctx: Any, idempotency_key: str | None) -> Any:
        """Call the handler between its two points."""
        if ctx.attempt > 1:
            return self._contract.call_handler(arguments, ctx, idempotency_key)
        self._watch.reach("entered", ctx.operation_id)
        value = self._contract.call_handler(arguments, _WatchedContext(ctx, self._watch), idempotency_key)
        if isinstance(value, Awaitable):
            return self._awaited(value, ctx.operation_id)
        self._watch.reach("returned", ctx.operation_id)
        return value

    async def _awaited(self, value: Awaitable[Any], operation_id: str) -> Any:
        answer = await value
        self._watch.reach("returned", operation_id)
        return answer


class _WatchedContext:
    def __init__(self, ctx: Any, watch: Watch) -> None:
        self._ctx, self._watch = ctx, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    def sending(self) -> None:
        self._ctx.sending()
        self._watch.reach("sending", self._ctx.operation_id)


class WatchedContracts:
    """What a runner asks an App for."""

    def __init__(self, app: Any, watch: Watch) -> None:
        self._app, self._watch = app, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._app, name)

    def contract(self, name: str) -> WatchedContract:
        """Return a contract whose handler tells of its points."""
        return WatchedContract(self._app.contract(name), self._watch)

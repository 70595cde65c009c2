"""Turn an event loop that no forked child can turn on.

Promise: a child that user code forks on the loop's thread may do what it likes until it would come back to the loop, by an
await, a return or an error; then it ends. It runs no further step of any coroutine, its own included. A fork on another
thread leaves the loop in the child without a thread to turn it.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from typing import Any

from settled.execution.forked import leave_if_forked


class UnforkableLoop(asyncio.SelectorEventLoop):
    """The event loop of asyncio, for the process that makes it."""

    _ready: deque[Any]

    def __init__(self) -> None:
        super().__init__()
        self._process = os.getpid()
        self._parents_ready: deque[Any] | None = None

    def run_forever(self) -> None:
        _turning.loop = self
        try:
            super().run_forever()
        finally:  # also of a SystemExit in the child
            leave_if_forked(self._process)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        leave_if_forked(self._process)  # in a child a thread that is not there may hold the lock of the log
        super().call_exception_handler(context)

    def _run_once(self) -> None:
        leave_if_forked(self._process)
        super()._run_once()  # type: ignore[misc]  # the one place where a round begins; asyncio offers no other

    def end_round_in_child(self) -> None:
        """The round that is under way takes its next step from this queue. The old one is kept: freed tasks would run their `finally`."""
        self._parents_ready, self._ready = self._ready, _NoMore(self._process)


class _NoMore(deque[Any]):
    """The queue of a loop in a forked child: the first step that is taken from it ends the child."""

    def __init__(self, process: int) -> None:
        super().__init__()
        self._process = process

    def popleft(self) -> Any:
        leave_if_forked(self._process)
        return super().popleft()


class _Turning(threading.local):
    loop: UnforkableLoop | None = None


_turning = _Turning()


def _after_fork() -> None:
    # The child has the forking thread alone, so what that thread was turning is all that could be turned on.
    if _turning.loop is not None:
        _turning.loop.end_round_in_child()


os.register_at_fork(after_in_child=_after_fork)

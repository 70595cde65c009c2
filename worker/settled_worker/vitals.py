"""Judge whether this worker lives: its sweeps come through, its scheduler runs, the threads that serve it have not died.

Promise: time in which this process itself stood still (SIGSTOP, a suspended machine) is not held against anything in it, because
the loop counts only the time that it saw pass in small steps.
"""

import threading
from collections.abc import Mapping
from typing import Final, Protocol

from settled.core.moment import SECOND_US

SERVING: Final = frozenset({"settled-deadlines", "settled-process", "settled-loop", "APScheduler"})
"""Threads that serve all their lives; those of handlers come and go."""
LONG_SWEEPS: Final = frozenset({"retention", "checkpoint"})
_LONG_TIMES: Final = 10  # a sweep that copies or removes much may take so many times as long
_STEP_US_MAX: Final = 2 * SECOND_US


class Runs(Protocol):
    """The sweeps under way."""

    @property
    def running(self) -> Mapping[str, int]:
        """By name the moment at which each began, which tells one run from the next."""


class Vitals:
    """What the loop has seen. `ailment` names the first thing that is wrong."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._lived_us = 0
        self._last_us: int | None = None
        self._since: dict[str, tuple[int, int]] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._died: str | None = None
        self._hook_before = threading.excepthook

    def watch_threads(self) -> None:
        """Hear at once of a thread that an exception ends, however short it lived."""
        threading.excepthook = self._thread_ended

    def close(self) -> None:
        """Listen to no thread any more."""
        threading.excepthook = self._hook_before

    def _thread_ended(self, args: threading.ExceptHookArgs) -> None:
        if args.thread is not None and args.thread.name in SERVING:
            self._died = args.thread.name
        self._hook_before(args)

    def ailment(self, now_us: int, hung_seconds: float, *, scheduler_alive: bool) -> str | None:
        """Look once; return what has hung or died, None while all is well. `now_us` is monotonic."""
        self._lived_us += min(max(0, now_us - self._last_us), _STEP_US_MAX) if self._last_us is not None else 0
        self._last_us = now_us
        if not scheduler_alive:
            return "the scheduler of the sweeps has stopped"
        return self._dead_thread() or self._hung_sweep(int(hung_seconds * SECOND_US))

    def _dead_thread(self) -> str | None:
        for thread in threading.enumerate():
            if thread.name in SERVING:
                self._threads[thread.name] = thread
        dead = self._died or next((name for name, thread in self._threads.items() if not thread.is_alive()), None)
        return None if dead is None else f"the thread {dead} has died"

    def _hung_sweep(self, hung_us: int) -> str | None:
        known, self._since = self._since, {}
        for name, began in dict(self._runs.running).items():
            first = known.get(name)
            self._since[name] = first if first is not None and first[0] == began else (began, self._lived_us)
        for name, (_, since_us) in self._since.items():
            if self._lived_us - since_us > hung_us * (_LONG_TIMES if name in LONG_SWEEPS else 1):
                return f"the sweep {name} has not ended for {(self._lived_us - since_us) / SECOND_US:.0f} s"
        return None

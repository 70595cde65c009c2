"""Let our own writers of one ledger take turns: a fair queue before SQLite's write lock, among threads and processes.

Promise: it is only a courtesy. Whoever has waited `timeout_seconds` goes on without it and lets SQLite's own lock, which is
the truth, decide; so does whoever cannot use its files. A stopped or stuck holder costs a process that wait once, not each time.

SQLite's busy handler sleeps ever longer, so that those who waited longest lose against those who just came. Here a writer
first takes the gate "next", waits at the gate "turn" while it alone may, and opens "next" again once it is through: who has
just left "turn" finds "next" taken and cannot overtake.
"""

import fcntl
import os
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from settled.core.limits import DEFAULTS
from settled.store.places import open_shared

# Pauses between two looks at a gate, in seconds: at first, and once one has waited. Only one waits at "turn", so it looks often
# and slows down when the holder is slow; many may wait at "next", where looking more often serves the patient before the new.
_PAUSES_TURN: Final = (0.00002, 0.001)
_PAUSES_NEXT: Final = (0.0003, 0.0001)
_TURN_SLOW_AFTER_US: Final = 50_000
_NEXT_OLD_AFTER_US: Final = 2_000
_STAMP: Final = struct.Struct("=II")


def _not_served() -> bool:
    return False


class Turnstile:
    """Use as `with turnstile:` around one write transaction. One per ledger and process, for all its threads."""

    def __init__(
        self,
        path: Path,
        *,
        monotonic_us: Callable[[], int],
        timeout_seconds: float = DEFAULTS.busy_timeout_seconds,
    ) -> None:
        """Use the files `path` and `path` + ".next". They are made at the first turn, never removed, and hold nothing of value."""
        self.missed = 0  # turns that went on without the queue
        self._timeout_seconds = timeout_seconds
        self._monotonic_us = monotonic_us
        self._next = _Gate(Path(f"{path}.next"), _PAUSES_NEXT, _NEXT_OLD_AFTER_US, monotonic_us)
        self._turn = _Gate(path, _PAUSES_TURN, _TURN_SLOW_AFTER_US, monotonic_us)
        self._line = _Line()
        self._owner: int | None = None
        self._depth = 0
        self._has_turn = False
        _turnstiles.add(self)

    @property
    def is_ours(self) -> bool:
        """Whether this thread has the turn, and nobody else: not where it went on without."""
        return self._has_turn and self._owner == threading.get_ident()

    def __enter__(self) -> None:
        self.enter()

    def enter(self, served: Callable[[], bool] = _not_served, nap: Callable[[float], None] = time.sleep) -> None:
        """Wait for the turn, or until `served`. Either way it is left once: what `is_ours` says is how it ended.

        `nap` is called between two looks, with the seconds after which to look again: it may return sooner, or later.
        """
        me = threading.get_ident()
        if self._owner == me:
            self._depth += 1
            return
        until_us = self._monotonic_us() + int(self._timeout_seconds * 1e6)
        if not self._line.acquire(self._timeout_seconds):
            self.missed += 1
            return
        self._owner, self._depth = me, 1
        try:
            self._has_turn = self._pass(until_us, served, nap)
            self.missed += not (self._has_turn or served())
        except BaseException:  # an interrupt while waiting
            self.__exit__()
            raise

    def take_at_once(self) -> bool:
        """Take the turn, for what this thread enters next, where nobody has it or waits for it; return whether that was so."""
        if not self._line.acquire_at_once():
            return False
        self._owner, self._depth = threading.get_ident(), 0
        try:
            self._has_turn = self._pass_at_once()
        except BaseException:
            self.leave_whole()
            raise
        if not self._has_turn:
            self.leave_whole()
            return False
        return True

    def __exit__(self, *_: object) -> None:
        if self._owner != threading.get_ident():
            return  # went on without
        self._depth -= 1
        if self._depth:
            return
        self._owner, self._has_turn = None, False
        self._turn.leave()  # also where it was not had: an interrupt may have come between the lock and our knowing of it
        self._line.release()

    def leave_whole(self) -> None:
        """Leave it however often this thread has entered, or has taken it for nothing."""
        if self._owner == threading.get_ident():
            self._depth = 1
            self.__exit__()

    def close(self) -> None:
        """Close the files. A later turn opens them again."""
        self._next.close()
        self._turn.close()

    def _pass(self, until_us: int, served: Callable[[], bool], nap: Callable[[float], None]) -> bool:
        """Go through both gates, one after the other; return whether the turn is ours."""
        try:
            self._next.enter(until_us, served, nap)  # where even this one is stuck, there is no order, but still one at a time
            return not served() and self._turn.enter(until_us, served, nap)
        except OSError:
            return False
        finally:
            self._next.leave()

    def _pass_at_once(self) -> bool:
        try:
            return self._next.enter(0) and self._turn.enter(0)
        except OSError:
            return False
        finally:
            self._next.leave()

    def _after_fork(self) -> None:
        """Forget what the parent holds: a child that kept its descriptors would keep its locks beyond its death."""
        self.close()
        self._line = _Line()
        self._owner, self._depth, self._has_turn = None, 0, False


class _Line:
    """A lock that is handed to threads in the order in which they came. threading.Lock lets the last holder overtake."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._taken = False
        self._waiting: deque[threading.Lock] = deque()

    def acquire_at_once(self) -> bool:
        """Take it where nobody has it; return whether that was so."""
        with self._guard:
            is_free = not self._taken
            self._taken = True
        return is_free

    def acquire(self, timeout_seconds: float) -> bool:
        with self._guard:
            if not self._taken:
                self._taken = True
                return True
            called = threading.Lock()
            called.acquire()
            self._waiting.append(called)
        try:
            if called.acquire(timeout=timeout_seconds):
                return True
        except BaseException:
            if not self._withdraw(called):
                self.release()
            raise
        return not self._withdraw(called)

    def release(self) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().release()  # handed over: it stays taken
            else:
                self._taken = False

    def _withdraw(self, called: threading.Lock) -> bool:
        """Leave the line; return False if the lock was handed over at this very moment."""
        with self._guard:
            if called not in self._waiting:
                return False
            self._waiting.remove(called)
            return True


class _Gate:
    """A file lock with a bounded wait, and a stamp by which a holder that does not move is known again."""

    def __init__(self, path: Path, pauses: tuple[float, float], second_after_us: int, monotonic_us: Callable[[], int]) -> None:
        self._fd: int | None = None
        self._path, self._pauses, self._second_after_us, self._monotonic_us = path, pauses, second_after_us, monotonic_us
        self._count = 0
        self._stuck: bytes | None = None

    def enter(self, until_us: int, served: Callable[[], bool] = _not_served, nap: Callable[[float], None] = time.sleep) -> bool:
        """Take the lock, waiting until `until_us` (0: not at all) or `served`; return False without a wait while the holder of a failed
        wait is still there."""
        if self._fd is None:
            self._fd = open_shared(self._path)
        fd = self._fd
        if not _try(fd):
            seen = os.pread(fd, _STAMP.size, 0)
            if seen == self._stuck:
                return False
            if until_us == 0:
                return False
            if not self._wait(fd, until_us, served, nap):
                self._stuck = seen if not served() and os.pread(fd, _STAMP.size, 0) == seen else None
                return False
        self._stuck = None
        self._count = (self._count + 1) & 0xFFFF_FFFF
        os.pwrite(fd, _STAMP.pack(os.getpid(), self._count), 0)
        return True

    def leave(self) -> None:
        if self._fd is not None:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def __del__(self) -> None:
        self.close()

    def _wait(self, fd: int, until_us: int, served: Callable[[], bool], nap: Callable[[float], None]) -> bool:
        second_at_us = self._monotonic_us() + self._second_after_us
        while True:
            now_us = self._monotonic_us()
            if now_us >= until_us:
                return False
            nap(self._pauses[now_us >= second_at_us])
            if served():
                return False
            if _try(fd):
                return True


def _try(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False


_turnstiles: "weakref.WeakSet[Turnstile]" = weakref.WeakSet()


def _after_fork() -> None:
    for turnstile in list(_turnstiles):
        turnstile._after_fork()


os.register_at_fork(after_in_child=_after_fork)

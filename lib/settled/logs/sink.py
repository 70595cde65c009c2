"""Write log lines to a stream that may break, stall or be closed.

A line is one write, at once and whole, so that it is there after a kill. A line that cannot be written is dropped and counted: it
is never kept, so that it cannot spoil the next one, and it never reaches the work.
"""

import io
import os
import select
import threading
import weakref
from collections.abc import Callable
from typing import Final, TextIO

STALL_MS: Final = 200  # how long a line waits for a full pipe or a stopped terminal; while it stays so, later lines do not wait


class Sink:
    """One stream, written by any thread."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._lock = threading.RLock()  # a signal handler may log while its own thread is inside
        self._stalled = False
        self._torn = False
        self._unreported = 0
        self.lost = 0
        _sinks.add(self)

    def send(self, line: str, report: Callable[[int], str]) -> bool:
        """Write `line`, and before it `report(lines lost since the last report)` where some were. Return whether it was written."""
        with self._lock:
            try:
                if self._unreported:
                    self._put(report(self._unreported))
                    self._unreported = 0
                self._put(line)
            except Exception:  # noqa: BLE001 - whatever a stream raises, the work goes on
                self.count_lost()
                return False
            return True

    def count_lost(self) -> None:
        """Count a line that could not be written."""
        with self._lock:
            self.lost += 1
            self._unreported += 1

    def after_fork(self) -> None:
        """Replace the lock: a thread that is not in this process may have held it."""
        self._lock = threading.RLock()

    def _put(self, line: str) -> None:
        if self._stream is None:
            raise OSError("this process was started without this stream")
        try:
            descriptor = self._stream.fileno()
        except (io.UnsupportedOperation, AttributeError):  # a stream in memory
            self._stream.write(line + "\n")
            self._stream.flush()
            return
        # Past Python's buffer: it would keep a failed line and fail with it again at every later flush.
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._write_all(descriptor, line.encode(encoding, "backslashreplace") + b"\n")

    def _write_all(self, descriptor: int, data: bytes) -> None:
        left = memoryview(b"\n" + data if self._torn else data)
        whole = len(left)
        try:
            while left:
                self._await_room(descriptor)
                left = left[os.write(descriptor, left) :]
        finally:
            # A line of which only a part was written must not run into the next one.
            self._torn = bool(left) and (self._torn or len(left) < whole)

    def _await_room(self, descriptor: int) -> None:
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        self._stalled = not poll.poll(0 if self._stalled else STALL_MS)
        if self._stalled:
            raise BlockingIOError("the stream takes nothing now")


_sinks: "weakref.WeakSet[Sink]" = weakref.WeakSet()


def _after_fork() -> None:
    for sink in list(_sinks):
        sink.after_fork()


os.register_at_fork(after_in_child=_after_fork)

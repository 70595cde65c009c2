"""Wake the worker's loop: a pipe that any thread, and a signal handler, may write to, and the reports that wait behind it.

Promise: nothing in here blocks, and a report is never lost between two ticks.
"""

import os
from collections import deque
from dataclasses import dataclass, field
from types import FrameType

from settled.execution.job import Report


@dataclass(slots=True)
class Wake:
    """What has come since the loop last looked. `signals` counts those that ask for the end, `reloads` those for new settings."""

    reader: int = -1
    writer: int = -1
    reports: deque[Report] = field(default_factory=deque)
    signals: int = 0
    reloads: int = 0
    _rung: bool = False  # since the loop last took; not the length of `reports`: two that come at once would both see two

    def open(self) -> None:
        """Make the pipe; neither end ever blocks."""
        self.reader, self.writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def arrived(self, report: Report) -> None:
        """Take a report; only the first of a batch has to wake the loop."""
        self.reports.append(report)
        if not self._rung:
            self._rung = True
            self.ring()

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Count a signal. Nothing else is safe inside a handler."""
        self.signals += 1
        self.ring()

    def on_reload(self, number: int, frame: FrameType | None) -> None:
        """Count a signal that asks for a reload."""
        self.reloads += 1
        self.ring()

    def ring(self) -> None:
        """Wake the loop; a full pipe wakes it just as well."""
        try:
            os.write(self.writer, b"!")
        except (BlockingIOError, OSError):
            return

    def drain(self) -> None:
        """Take what woke the loop."""
        try:
            while os.read(self.reader, 512):
                pass
        except (BlockingIOError, OSError):
            return

    def take(self) -> list[Report]:
        """Return the reports that have come."""
        self._rung = False  # before looking: what comes from here on rings, or is returned
        return [self.reports.popleft() for _ in range(len(self.reports))]

    def close(self) -> None:
        """Close both ends."""
        os.close(self.reader)
        os.close(self.writer)

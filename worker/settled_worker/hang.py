"""End this process when its loop hangs, also where no service manager watches it.

Promise: the loop is given up only after it made no step in as many looks of a thread of its own as the limit has seconds. While
the whole process stands still nothing is counted. Where each thread hung is printed first.
"""

import faulthandler
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from settled.logs import get_log

log = get_log("settled.worker")
LOOK_SECONDS: Final = 1.0
EXIT_UNWELL: Final = 1


class HangGuard:
    """Watches one counter that the loop moves."""

    def __init__(
        self, hung_seconds: Callable[[], float], end: Callable[[int], None] = os._exit, look_seconds: float = LOOK_SECONDS
    ) -> None:
        self._hung_seconds, self._end, self._look_seconds = hung_seconds, end, look_seconds
        self._steps = 0
        self._closed = threading.Event()

    def start(self) -> None:
        """Watch from now on."""
        threading.Thread(target=self._watch, name="settled-hang-guard", daemon=True).start()

    def step(self) -> None:
        """Say that the loop has come round."""
        self._steps += 1

    def close(self) -> None:
        """Watch no more."""
        self._closed.set()

    def _watch(self) -> None:
        seen, looks = self._steps, 0
        while not self._closed.wait(self._look_seconds):
            if self._steps != seen:
                seen, looks = self._steps, 0
                continue
            looks += 1
            if looks * self._look_seconds > self._hung_seconds():
                self._give_up(looks * self._look_seconds)
                return

    def _give_up(self, seconds: float) -> None:
        log.critical("worker.hung", seconds=seconds, then="it ends itself; what runs is taken over as after a crash")
        with suppress(Exception):  # without a standard error there is nobody to show it to
            faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        self._end(EXIT_UNWELL)

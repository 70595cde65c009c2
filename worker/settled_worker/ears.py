"""Sleep until something comes: a bell, a report, a signal, or the end of the time."""

import select
from pathlib import Path
from typing import Self

from settled.core.errors import ConfigurationError
from settled.doorbell import Doorbell
from settled.logs import get_log
from settled_worker.wake import Wake

log = get_log("settled.worker")


class Ears:
    """What the loop listens to. Without a doorbell work is found by polling."""

    def __init__(self, wake: Wake) -> None:
        self._wake = wake
        self._bell: Doorbell | None = None

    def hang_bell(self, run_directory: Path, name: str) -> Self:
        """Hang this worker's bell into the run directory of its ledger; where that fails, say so and go on."""
        try:
            self._bell = Doorbell.listen(run_directory, name)
        except ConfigurationError as error:
            log.warning("worker.no_doorbell", error=str(error))
        return self

    def sleep(self, seconds: float) -> bool:
        """Wait for a bell, a report or a signal; return whether a bell was rung."""
        readers: list[int] = [self._wake.reader]
        if self._bell is not None:
            readers.append(self._bell.fileno())
        ready, _, _ = select.select(readers, [], [], seconds)
        if self._wake.reader in ready:
            self._wake.drain()
        return self._bell is not None and self._bell.fileno() in ready and self._bell.drain() > 0

    def close(self) -> None:
        """Take the bell down."""
        if self._bell is not None:
            self._bell.close()

"""Write the metrics into a file for node_exporter's textfile collector, again and again, each time whole or not at all."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from settled.execution.leftovers import OUR_THREADS
from settled.logs import get_log

log = get_log("settled.worker")
_MODE: Final = 0o644  # another account reads it
_END_SECONDS: Final = 2.0


class Textfile:
    """One file, written by a thread of its own."""

    def __init__(self, path: str, seconds: float, text: Callable[[], bytes]) -> None:
        self._path, self._seconds, self._text = Path(path), seconds, text
        self._closed = threading.Event()
        self._failed: str | None = None
        self._thread = threading.Thread(target=self._write_often, name=f"{OUR_THREADS}textfile", daemon=True)

    def start(self) -> None:
        """Write now, and then every so many seconds."""
        self._thread.start()

    def close(self) -> None:
        """Write no more. The file stays, and its last tick tells how old it is."""
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join(_END_SECONDS)

    def _write_often(self) -> None:
        while True:
            self._write_and_tell()
            if self._closed.wait(self._seconds):
                return

    def _write_and_tell(self) -> None:
        try:
            self.write()
        except Exception as error:  # noqa: BLE001 - a file that nobody may write must not end the thread
            if str(error) != self._failed:
                log.warning("metrics.textfile_not_written", path=str(self._path), error=str(error))
            self._failed = str(error)
        else:
            self._failed = None

    def write(self) -> None:
        """Write once. Raises OSError."""
        text = self._text()
        beside = self._path.with_name(f".{self._path.name}.{os.getpid()}.tmp")
        try:
            opened = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE)
            with os.fdopen(opened, "wb") as stream:
                os.fchmod(stream.fileno(), _MODE)
                stream.write(text)
            os.replace(beside, self._path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise

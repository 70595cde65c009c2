"""Run an executable with a notification on its standard input, and end all that it started when its time is over.

Promise: exit code 0 within the limit is a delivery, anything else is none. What it started ends with it, unless it left its
process group. It inherits neither the ledger's locks nor this process's environment.
"""

import os
import select
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from settled.config.escalation import CommandChannel
from settled.core.text import safe_str
from settled_worker.channels.left import Left, time_left
from settled_worker.channels.message import DeliveryFailedError, Message

_KEPT: Final = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ")
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LOOK_SECONDS: Final = 0.05
_SAID_BYTES_MAX: Final = 1000
_PIECE: Final = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One executable."""

    settings: CommandChannel
    environ: Mapping[str, str]
    monotonic_us: Callable[[], int]

    def send(self, message: Message) -> None:
        """Run it once. Raises DeliveryFailedError."""
        try:
            process = subprocess.Popen(
                self.settings.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                cwd="/",
                env=self._environment(message),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise DeliveryFailedError(f"{self.settings.command[0]} cannot be run: {safe_str(error)}") from error
        run = _Run(process, message.body.encode() + b"\n")
        try:
            in_time = run.watch(time_left(self.monotonic_us, self.settings.timeout_seconds))
        finally:
            code = run.end()
        if not in_time:
            raise DeliveryFailedError(f"it ran longer than {self.settings.timeout_seconds:g} s and was killed{run.said()}")
        if code != 0:
            raise DeliveryFailedError(f"it ended with code {code}{run.said()}")

    def _environment(self, message: Message) -> dict[str, str]:
        kept = {name: self.environ[name] for name in _KEPT if name in self.environ}
        return {"PATH": _PATH, **kept, "SETTLED_DELIVERY_ID": message.delivery_id}


class _Run:
    """One process and its pipes. Nothing waits for the end of a pipe: a grandchild may hold it open for ever."""

    def __init__(self, process: subprocess.Popen[bytes], given: bytes) -> None:
        assert process.stdin is not None and process.stderr is not None
        self._process, self._given, self._heard = process, memoryview(given), b""
        self._in, self._err = process.stdin.fileno(), process.stderr.fileno()
        os.set_blocking(self._in, False)
        os.set_blocking(self._err, False)
        self._listening = True

    def watch(self, left: Left) -> bool:
        """Feed it and listen to it until it ends; return False where its time was over first."""
        with suppress(TimeoutError):
            while True:
                wait = min(_LOOK_SECONDS, left())
                writing = [self._in] if self._given else []
                readable, writable, _ = select.select([self._err] if self._listening else [], writing, [], wait)
                if writable:
                    self._feed()
                if readable:
                    self._listen()
                if self._has_ended():
                    self._listen()
                    return True
        return False

    def end(self) -> int:
        """Kill the group and reap; return the exit code."""
        # Before the reaping: until then the number of the group belongs to nobody else.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        code = self._process.wait()
        for pipe in (self._process.stdin, self._process.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        return code

    def said(self) -> str:
        """Return what it wrote as its error, to be shown."""
        text = self._heard.decode("utf-8", "replace").strip()
        return f": {text}" if text else ""

    def _has_ended(self) -> bool:
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _feed(self) -> None:
        try:
            self._given = self._given[os.write(self._in, self._given[:_PIECE]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # it does not want to read; its exit code tells whether that was right
            self._given = memoryview(b"")
        if not self._given and self._process.stdin is not None:
            self._process.stdin.close()

    def _listen(self) -> None:
        try:
            piece = os.read(self._err, _PIECE)
        except BlockingIOError:
            return
        self._listening = bool(piece)
        self._heard = (self._heard + piece)[:_SAID_BYTES_MAX]

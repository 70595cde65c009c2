"""Speak to the service manager: sd_notify in ten lines, and the watchdog's interval.

Promise: nothing in here raises. Without a service manager every call does nothing; one that does not listen is passed over.
"""

import os
import socket
from collections.abc import MutableMapping
from typing import Final, Self

_SEND_SECONDS: Final = 1.0
_STATUS_MAX: Final = 400
_OURS: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class Notifier:
    """The socket of the service manager. `watchdog_us` is how long it bears silence; None: for ever."""

    def __init__(self, address: str | None, watchdog_us: int | None = None) -> None:
        self._address, self.watchdog_us = address, watchdog_us

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str]) -> Self:
        """Take the variables of the protocol out of `environ`, so that no handler's child speaks for this process."""
        address, interval, pid = (environ.pop(name, None) for name in _OURS)
        known = address if address and address[0] in "/@" else None
        ours = interval is not None and interval.isdecimal() and int(interval) > 0 and pid in (None, "", str(os.getpid()))
        return cls(known, int(interval) if known and interval and ours else None)

    def say(self, *lines: str) -> bool:
        """Send assignments; return whether they were taken."""
        if self._address is None:
            return False
        target = "\0" + self._address[1:] if self._address[0] == "@" else self._address  # "@" is an abstract name
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.settimeout(_SEND_SECONDS)
                sender.sendto("\n".join(lines).encode("utf-8", "replace"), target)
        except OSError:
            return False
        return True


def status(text: str) -> str:
    """Return the assignment that shows `text` to people: one line of bounded length."""
    return "STATUS=" + " ".join(text.split())[:_STATUS_MAX]

"""A service manager of the test's own: the socket it listens on, and what it was told."""

import socket
from pathlib import Path


class Manager:
    """Listens like a service manager; `environ` is what it gives to its service."""

    def __init__(self, folder: Path, watchdog_seconds: float = 3.0) -> None:
        path = folder / "notify"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)
        self.environ = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": str(int(watchdog_seconds * 1e6))}
        self._told: list[str] = []

    def told(self) -> list[str]:
        """Return every assignment so far, in order."""
        while True:
            try:
                self._told += self._socket.recv(65536).decode().splitlines()
            except BlockingIOError:
                return self._told

    def count(self, assignment: str) -> int:
        return self.told().count(assignment)

    def values(self, name: str) -> list[str]:
        """Return what a name was set to, in order."""
        return [line.partition("=")[2] for line in self.told() if line.startswith(f"{name}=")]

    def close(self) -> None:
        self._socket.close()

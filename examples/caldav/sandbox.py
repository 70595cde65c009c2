"""The calendar as `settled certify` needs it: Radicale, a real CalDAV server, behind a proxy that loses what it is told to lose.

    settled certify app:book_appointment --sandbox sandbox:Calendar --quick --output certificate.html

Effects are counted in Radicale's own folder, where each appointment is one file.
"""

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from app import collection, uid_of

from settled.testing import FaultProxy, Sandbox, Trouble


class Calendar(Sandbox):
    """Radicale and the proxy, each on a free port of this machine."""

    troubles = frozenset(
        {"none", "lost before", "answer lost", "error after", "committed late", "answer held", "answer garbled"}
        | {"reads down", "reads stale", "search lies", "committed twice"}
    )

    def open(self, folder: Path) -> Mapping[str, str]:
        self._folder, self._running = folder, contextlib.ExitStack()
        port = free_port()
        command = [sys.executable, "-m", "radicale", "--server-hosts", f"127.0.0.1:{port}", "--auth-type", "none", "--config", ""]
        log = self._running.enter_context((folder / "radicale.log").open("wb"))
        server = subprocess.Popen([*command, "--storage-filesystem-folder", str(folder)], stderr=log, stdout=log)
        self._running.callback(server.wait)
        self._running.callback(server.terminate)
        wait_for_port(server, port)
        make_calendar(port)
        self._proxy = self._running.enter_context(FaultProxy(f"http://127.0.0.1:{port}", absent=(404, "text/plain", b"not found")))
        return {"CALDAV_URL": self._proxy.url}

    def close(self) -> None:
        self._running.close()

    def arguments(self, case: str) -> dict[str, Any]:
        return {"booking": case, "start": "20260102T090000Z", "title": "Meet the auditor"}

    def arm(self, arguments: dict[str, Any], trouble: Trouble, *, held: bool = False) -> None:
        self._proxy.arm(uid_of(arguments), trouble, held=held, late_seconds=self.late_seconds, lag_seconds=self.lag_seconds)

    def reached(self, arguments: dict[str, Any], what: str) -> bool:
        return self._proxy.reached(uid_of(arguments), what)

    def count(self, arguments: dict[str, Any]) -> int:
        found = self._folder.rglob(f"{uid_of(arguments)}.ics")
        return sum(not any(part.startswith(".Radicale") for part in one.parts) for one in found)  # its caches are no appointments

    def undecided(self) -> int:
        return self._proxy.undecided()


def make_calendar(port: int) -> None:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("MKCALENDAR", collection(), headers={"Authorization": "Basic YWdlbnQ6c2VjcmV0"})
    assert connection.getresponse().status == 201
    connection.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for_port(server: subprocess.Popen[bytes], port: int) -> None:
    for _ in range(600):
        if server.poll() is not None:
            raise RuntimeError("Radicale ended before it was ready. Install it: pip install radicale")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise RuntimeError("Radicale did not listen within 30 seconds")


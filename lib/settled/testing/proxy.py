"""An HTTP proxy that makes the troubles of certification in front of a real destination: loses, delays, repeats, hides.

It matches a request to what was armed by a text in its path or body. What the destination did is for the sandbox to count.
"""

import contextlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from urllib.parse import unquote_plus, urlsplit

from settled.clock import monotonic_us
from settled.testing.faults import Armed, Fault, ReadFault
from settled.testing.sandbox import Trouble

_HOP: Final = {"host", "connection", "content-length", "transfer-encoding", "accept-encoding"}
_HELD_SECONDS: Final = 60.0
_UPSTREAM_SECONDS: Final = 30.0


class _Reply(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes


class _Plan(NamedTuple):
    armed: Armed
    reads: ReadFault
    lag_seconds: float


class FaultProxy:
    """Stands at `url` between a handler and `upstream` while its block runs.

    `absent` is what a search that finds nothing looks like here: status, content type, body. `is_write` tells effects from reads
    by the method; what is neither is passed on.
    """

    def __init__(
        self,
        upstream: str,
        *,
        absent: tuple[int, str, bytes],
        is_write: Callable[[str], bool] = lambda method: method in ("POST", "PUT", "DELETE", "PATCH"),
        is_read: Callable[[str], bool] = lambda method: method == "GET",
    ) -> None:
        self._netloc, self._absent = urlsplit(upstream).netloc, absent
        self.is_write, self.is_read = is_write, is_read
        self._lock = threading.Lock()
        self._plans: dict[str, _Plan] = {}
        self._writes: Counter[str] = Counter()
        self._commits: Counter[str] = Counter()
        self._lost_us: dict[str, int] = {}
        self._open = 0
        self._server = _Server(self)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="fault-proxy", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    def arm(self, match: str, trouble: Trouble, *, held: bool = False, late_seconds: float = 1.0, lag_seconds: float = 1.0) -> None:
        """Let the first write that holds `match` meet this trouble, and the reads after it."""
        seconds = {Fault.COMMIT_LATE: late_seconds, Fault.HANG: _HELD_SECONDS}.get(trouble.call, 0.0)
        with self._lock:
            self._plans[match] = _Plan(Armed(trouble.call, seconds, late_seconds if held else 0.0), trouble.reads, lag_seconds)

    def reached(self, match: str, what: str) -> bool:
        """Whether a write was `received`, or passed on and answered: `committed`."""
        with self._lock:
            return bool((self._writes if what == "received" else self._commits)[match])

    def undecided(self) -> int:
        """How many writes may still be passed on."""
        with self._lock:
            return self._open

    # ------------------------------------------------------------------ for the handler below

    def find(self, path: str, body: bytes) -> str | None:
        """Return what a request was armed by."""
        text = unquote_plus(path) + unquote_plus(body.decode(errors="replace"))
        with self._lock:
            return next((match for match in self._plans if match in text), None)

    def write(self, match: str | None, forward: Callable[[], _Reply]) -> _Reply | None:
        """Do with a write what was armed; None: the connection is cut."""
        if match is None:
            return forward()
        with self._lock:
            self._writes[match] += 1
            first = self._writes[match] == 1
            armed = self._plans[match].armed if first else Armed(Fault.NONE)
            self._open += 1
        late = armed.plan.late
        try:
            if armed.hold_seconds:
                time.sleep(armed.hold_seconds)
            if late:
                threading.Thread(target=self._later, args=(armed.seconds, match, forward), daemon=True).start()
                return None
            if not armed.plan.commits:
                return None
            for _ in range(armed.plan.commits):
                reply = forward()
            self._committed(match)
        finally:
            if not late:
                self._closed()
        return self._answer(armed, reply)

    def read(self, match: str | None, forward: Callable[[], _Reply]) -> _Reply | None:
        """Do with a read what was armed, once there was a write."""
        with self._lock:
            plan = self._plans.get(match or "")
            written_us = self._lost_us.get(match or "")
        if plan is None or written_us is None or plan.reads is ReadFault.NONE:
            return forward()
        stale = plan.reads is ReadFault.STALE and monotonic_us() - written_us < plan.lag_seconds * 1_000_000
        if stale or plan.reads in (ReadFault.LYING, ReadFault.FALSE_NEGATIVE):
            status, kind, body = self._absent
            return _Reply(status, [("Content-Type", kind)], body)
        return None if plan.reads is ReadFault.UNAVAILABLE else forward()

    def forward(self, method: str, target: str, headers: dict[str, str], body: bytes) -> _Reply:
        """Ask the destination once."""
        connection = HTTPConnection(self._netloc, timeout=_UPSTREAM_SECONDS)
        try:
            connection.request(method, target, body or None, headers)
            answer = connection.getresponse()
            kept = [(name, value) for name, value in answer.getheaders() if name.lower() not in _HOP]
            return _Reply(answer.status, kept, answer.read())
        finally:
            connection.close()

    def _later(self, seconds: float, match: str, forward: Callable[[], _Reply]) -> None:
        time.sleep(seconds)
        with contextlib.suppress(OSError):
            forward()
            self._committed(match)
        self._closed()

    def _committed(self, match: str) -> None:
        with self._lock:
            self._commits[match] += 1
            self._lost_us.setdefault(match, monotonic_us())

    def _closed(self) -> None:
        with self._lock:
            self._open -= 1

    @staticmethod
    def _answer(armed: Armed, reply: _Reply) -> _Reply | None:
        match armed.plan.answer:
            case "cut":
                return None
            case "error":
                return _Reply(500, [("Content-Type", "text/plain")], b"something broke")
            case "garbled":
                return _Reply(299, [("Content-Type", "text/plain")], b"{")
            case "hold":
                time.sleep(armed.seconds)
        return reply


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, proxy: FaultProxy) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.proxy = proxy

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that went away is what this is for: no traceback."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """One request per connection (HTTP/1.0), so that returning without an answer cuts it."""

    server: _Server
    timeout = 30

    def handle_one_request(self) -> None:
        """Serve any method alike."""
        self.raw_requestline = self.rfile.readline(65537)
        if not self.raw_requestline or not self.parse_request():
            return
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
        proxy, method = self.server.proxy, self.command
        match = proxy.find(self.path, body)

        def forward() -> _Reply:
            return proxy.forward(method, self.path, headers, body)

        if proxy.is_write(method):
            reply = proxy.write(match, forward)
        elif proxy.is_read(method):
            reply = proxy.read(match, forward)
        else:
            reply = forward()
        if reply is not None:
            self._say(reply)

    def _say(self, reply: _Reply) -> None:
        self.send_response(reply.status)
        for name, value in reply.headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

"""Answer GET requests about this worker, on this machine alone, in threads of its own with hard limits.

Promise: a bounded number of connections is served, each for a bounded time, from a head of bounded size; a body is never read.
Whoever is too many, too slow or too long is cut off. Nothing in here touches the loop that claims and records.
"""

import errno
import io
import os
import socket
import socketserver
import stat
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Any, Final

from settled.clock import Clock
from settled.config.endpoint import TcpPlace, UnixPlace, parse_listen
from settled.core.errors import ConfigurationError
from settled.core.limits import Limits
from settled.core.moment import SECOND_US
from settled.execution.leftovers import OUR_THREADS
from settled.logs import get_log
from settled_worker.watching.answer import PLAIN, Answer, Pages

log = get_log("settled.worker")
_SOCKET_MODE: Final = 0o660
_BACKLOG: Final = 16
_LOOK_SECONDS: Final = 0.25
_TOO_MANY_SECONDS: Final = 0.05  # how long nobody is let in after somebody was turned away
_AGAIN_SECONDS: Final = 5.0
_END_SECONDS: Final = 2.0


class Endpoint:
    """The server of one worker. An address that is taken is tried again: being looked at must not hold up the work."""

    def __init__(self, listen: str, pages: Pages, clock: Clock, limits: Limits) -> None:
        self._place, self._pages, self._clock, self._limits = parse_listen(listen), pages, clock, limits
        self._closed = threading.Event()
        self._server: _Server | None = None
        self._thread = threading.Thread(target=self._serve, name=f"{OUR_THREADS}http", daemon=True)

    def start(self) -> None:
        """Listen. Raises ConfigurationError for a place at which no retry will help."""
        self._bind()
        self._thread.start()

    def close(self) -> None:
        """Listen no more; who is being answered is cut off."""
        self._closed.set()
        if self._server is not None:
            self._server.stop()
        if self._thread.ident is not None:  # a place that was refused starts nothing
            self._thread.join(_END_SECONDS)
        if isinstance(self._place, UnixPlace) and self._server is not None:
            self._server.remove_socket()

    def _bind(self) -> bool:
        try:
            self._server = _Server(self._place, self._pages, self._clock, self._limits)
        except BlockingIOError as error:
            log.warning("http.address_in_use", listen=self._shown, error=str(error), then="it is tried again")
            return False
        except OSError as error:
            raise ConfigurationError(
                f"http.listen: {self._shown} cannot be listened at ({error.strerror or error}). Nothing was started. "
                f"Check the folder and its mode, or name another place"
            ) from error
        log.info("http.listening", listen=self._shown)
        return True

    def _serve(self) -> None:
        try:
            while self._server is None:
                if self._closed.wait(_AGAIN_SECONDS):
                    return
                self._bind()
            if not self._closed.is_set():
                self._server.serve_forever(_LOOK_SECONDS)
        except Exception as error:
            log.exception("http.ended", error=str(error))
        finally:
            if self._server is not None:
                self._server.server_close()

    @property
    def _shown(self) -> str:
        return f"unix:{self._place.path}" if isinstance(self._place, UnixPlace) else f"{self._place.host}:{self._place.port}"


class _Server(socketserver.BaseServer):
    """Accepts in one thread, answers each connection in another one."""

    def __init__(self, place: UnixPlace | TcpPlace, pages: Pages, clock: Clock, limits: Limits) -> None:
        super().__init__(place, _Handler)
        self.pages, self.limits, self._clock = pages, limits, clock
        self._lock = threading.Lock()
        self._until_us: dict[socket.socket, int] = {}
        self._stopped = threading.Event()
        self._path: tuple[str, int, int] | None = None
        self.socket = self._listening(place)

    def _listening(self, place: UnixPlace | TcpPlace) -> socket.socket:
        """Return a listening socket. Raises BlockingIOError where somebody listens there already, other OSErrors as they come."""
        unix = isinstance(place, UnixPlace)
        family = socket.AF_UNIX if unix else socket.AF_INET6 if ":" in place[0] else socket.AF_INET
        made = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            if isinstance(place, UnixPlace):
                _clear_away(place.path)
                made.bind(place.path)
                os.chmod(place.path, _SOCKET_MODE)  # before it listens: nobody gets in through the mode that the umask left
                seen = os.stat(place.path)
                self._path = place.path, seen.st_dev, seen.st_ino
            else:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                made.bind(tuple(place))
            made.listen(_BACKLOG)
            made.setblocking(False)  # who has gone between the look and the accept must not hold the thread
        except OSError as error:
            made.close()
            if error.errno == errno.EADDRINUSE:
                raise BlockingIOError(error.errno, error.strerror) from None
            raise
        return made

    def fileno(self) -> int:
        """Return what the loop waits for."""
        return self.socket.fileno()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept one connection."""
        accepted, who = self.socket.accept()
        accepted.settimeout(self.limits.http_seconds)
        return accepted, who

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer it in a thread of its own, or turn it away."""
        with self._lock:
            full = len(self._until_us) >= self.limits.http_connections_max
            if not full:
                self._until_us[request] = self._clock.monotonic_us() + int(self.limits.http_seconds * SECOND_US)
        if full:
            self.shutdown_request(request)
            self._cut_off_late()
            self._stopped.wait(_TOO_MANY_SECONDS)
            return
        threading.Thread(target=self._answer, args=(request, client_address), name=f"{OUR_THREADS}http-answer", daemon=True).start()

    def _answer(self, request: socket.socket, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except Exception as error:  # noqa: BLE001 - whatever a client does ends with its connection
            log.debug("http.not_answered", error=str(error))
        finally:
            with self._lock:
                self._until_us.pop(request, None)
            self.shutdown_request(request)

    def service_actions(self) -> None:
        """Cut off who is late; called by the loop now and then."""
        self._cut_off_late()

    def _cut_off_late(self, now_us: int | None = None) -> None:
        now_us = self._clock.monotonic_us() if now_us is None else now_us
        with self._lock:
            late = [request for request, until_us in self._until_us.items() if until_us <= now_us]
        for request in late:
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing on standard error."""

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with suppress(OSError):
            request.shutdown(socket.SHUT_WR)
        request.close()

    def stop(self) -> None:
        """End the loop and whoever is being answered."""
        self._stopped.set()
        threading.Thread(target=self.shutdown, name=f"{OUR_THREADS}http-stop", daemon=True).start()  # it waits for the loop
        self._cut_off_late(1 << 62)

    def server_close(self) -> None:
        """Close the listening socket."""
        self.socket.close()

    def remove_socket(self) -> None:
        """Remove our socket's file, if it is still ours."""
        if self._path is None:
            return
        path, device, inode = self._path
        with suppress(OSError):
            seen = os.stat(path, follow_symlinks=False)
            if (seen.st_dev, seen.st_ino) == (device, inode):
                os.unlink(path)


def _clear_away(path: str) -> None:
    """Remove a socket that nobody listens at any more. What is no socket, or is listened at, stays."""
    try:
        seen = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(seen.st_mode):
        raise OSError(0, "there is a file that is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as tried:
        tried.settimeout(_END_SECONDS)
        try:
            tried.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        except TimeoutError:
            raise BlockingIOError(errno.EADDRINUSE, "somebody listens there and does not answer") from None


class _Handler(BaseHTTPRequestHandler):
    """One request of one connection, after HTTP/1.0: the connection ends with its answer."""

    server: _Server
    server_version, sys_version = "settled", ""

    def setup(self) -> None:
        """Read the whole head, as far as the limits allow; the library then reads from memory."""
        self.connection = self.request
        self.wfile = self.connection.makefile("wb", buffering=-1)
        self.rfile = io.BytesIO(self._head())

    def _head(self) -> bytes:
        head = b""
        while b"\r\n\r\n" not in head and b"\n\n" not in head:
            if len(head) > self.server.limits.http_head_bytes_max:
                return b"GET /too-long HTTP/1.0\r\n\r\n"
            part = self.connection.recv(4096)
            if not part:
                return b""
            head += part
        return head

    def do_GET(self) -> None:
        """Answer from the pages."""
        path = self.path.partition("?")[0]
        page = self.server.pages.get(path)
        if path == "/too-long":
            answer = Answer(431, PLAIN, b"the head of the request is too long\n")
        elif page is None:
            answer = Answer(404, PLAIN, f"there are {' '.join(sorted(self.server.pages))}\n".encode())
        else:
            answer = page()
        self.send_response(answer.code)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: what a client sends is no event of ours."""

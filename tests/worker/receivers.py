"""Real receivers on loopback: an HTTP server with bad manners, an SMTP server, executables, and certificates of our own."""

import contextlib
import http.server
import os
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message as Mail
from pathlib import Path
from typing import Any

import trustme
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, Envelope


@dataclass
class Receiver:
    """An HTTP server. `manner` says how it answers; `got` is what came, as (headers with lower-case names, body)."""

    manner: str = "ok"
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    go: threading.Event = field(default_factory=threading.Event)
    port: int = 0
    scheme: str = "http"
    host: str = "127.0.0.1"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}/hook?a=1"

    @property
    def ids(self) -> list[str]:
        return [headers["webhook-id"] for headers, _ in self.got]


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Any
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        receiver: Receiver = self.server.receiver
        body = self.rfile.read(int(self.headers["content-length"]))
        manner = receiver.manner
        receiver.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
        self.close_connection = True
        with contextlib.suppress(OSError):
            getattr(self, f"_{manner}")(receiver)

    def _ok(self, _: Receiver) -> None:
        self._answer(b"HTTP/1.1 204 No Content\r\n\r\n")

    def _fail(self, _: Receiver) -> None:
        self._answer(b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n")

    def _redirect(self, receiver: Receiver) -> None:
        self._answer(f"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{receiver.port}/other\r\nContent-Length: 0\r\n\r\n".encode())

    def _garbage(self, _: Receiver) -> None:
        self._answer(b"\x00\xff" * 100 + b"\r\n")

    def _close(self, _: Receiver) -> None:
        pass

    def _hang(self, receiver: Receiver) -> None:
        receiver.go.wait(60)

    def _late(self, receiver: Receiver) -> None:
        receiver.go.wait(60)
        self._ok(receiver)

    def _drip(self, receiver: Receiver) -> None:
        """A byte now and then: each one comes well within any timeout of a single read."""
        for byte in b"HTTP/1.1 200 OK" + b" " * 10_000:
            if receiver.go.wait(0.05):
                return
            self._answer(bytes([byte]))

    def _endless(self, receiver: Receiver) -> None:
        self._answer(b"HTTP/1.1 200 OK\r\n\r\n")
        while not receiver.go.wait(0.001):
            self._answer(b"x" * 65_536)

    def _heads(self, receiver: Receiver) -> None:
        self._answer(b"HTTP/1.1 200 OK\r\n")
        while not receiver.go.wait(0.001):
            self._answer(b"X-More: " + b"y" * 1000 + b"\r\n")

    def _answer(self, data: bytes) -> None:
        self.wfile.write(data)
        self.wfile.flush()

    def log_message(self, *arguments: Any) -> None:
        pass


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def handle_error(self, *arguments: Any) -> None:
        """A peer that goes away, or that trusts nobody, is what some tests want."""


@contextlib.contextmanager
def http_receiver(manner: str = "ok", *, context: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    server = _Server(("127.0.0.1", 0), _Handler)
    receiver = Receiver(manner, port=server.server_address[1], scheme="https" if context else "http")
    server.receiver = receiver  # type: ignore[attr-defined]
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.go.set()
        server.shutdown()
        server.server_close()
        thread.join(10)


@dataclass(frozen=True)
class Certificates:
    """An authority of our own: `file` is what trusts it, `context` what a server of that name shows."""

    file: str
    context: ssl.SSLContext


def certificates(folder: Path, name: str = "127.0.0.1") -> Certificates:
    authority = trustme.CA()
    file = folder / f"ca-{name}.pem"
    authority.cert_pem.write_to_path(str(file))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return Certificates(str(file), context)


class Mailbox:
    """What an SMTP server took; addresses that begin with `nobody` are refused."""

    def __init__(self) -> None:
        self.mails: list[Mail] = []
        self.recipients: list[str] = []
        self.port = 0

    async def handle_RCPT(self, server: Any, session: Any, envelope: Envelope, address: str, options: Any) -> str:
        if address.startswith("nobody"):
            return "550 no such user"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Envelope) -> str:
        assert isinstance(envelope.content, bytes)
        self.mails.append(message_from_bytes(envelope.content))
        self.recipients += envelope.rcpt_tos
        return "250 OK"


@contextlib.contextmanager
def smtp_server(context: ssl.SSLContext | None = None, *, password: str | None = None) -> Iterator[Mailbox]:
    """An SMTP server; with a context it wants STARTTLS first, with a password a login, too."""
    box = Mailbox()

    def authenticate(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        return AuthResult(success=data.password == (password or "").encode(), handled=False)

    options: dict[str, Any] = {"require_starttls": True, "tls_context": context} if context else {}
    if password is not None:
        options |= {"authenticator": authenticate, "auth_required": True, "auth_require_tls": True}
    controller = Controller(box, hostname="127.0.0.1", port=0, **options)
    with _any_port(controller):
        assert controller.server is not None
        box.port = controller.server.sockets[0].getsockname()[1]
        yield box


@contextlib.contextmanager
def _any_port(controller: Controller) -> Iterator[None]:
    """aiosmtpd calls its own port once to see that it listens; of port 0 it has to be told which one it got."""
    trigger = controller._trigger_server

    def found() -> None:
        assert controller.server is not None
        controller.port = controller.server.sockets[0].getsockname()[1]
        trigger()

    controller._trigger_server = found  # type: ignore[method-assign]
    controller.start()
    try:
        yield
    finally:
        controller.stop()


def executable(folder: Path, name: str, script: str) -> str:
    """Write a shell script that may be run; return its path."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return os.fspath(path)

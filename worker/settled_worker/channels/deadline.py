"""Sockets with one end for everything: connecting, the handshake, and every byte of a peer that drips.

Promise: past its end every operation raises TimeoutError. A timeout of the standard library bounds one operation only, and
a peer that sends a byte now and then would hold it for ever. Looking up a name is bounded by the system's resolver alone.
"""

import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

from settled_worker.channels.left import Left

_PIECE: Final = 65_536


class _Ending:
    """Sets the timeout to what is left before every single operation."""

    left: Left | None = None

    def _bound(self: Any) -> None:
        if self.left is not None:
            self.settimeout(self.left())


class EndingSocket(_Ending, socket.socket):
    """A socket with an end."""

    def recv_into(self, *arguments: Any, **options: Any) -> int:
        """Receive, for as long as time is left."""
        self._bound()
        return super().recv_into(*arguments, **options)

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send everything, for as long as time is left."""
        _send_all(self, super().send, data, flags)


class EndingTlsSocket(_Ending, ssl.SSLSocket):
    """A TLS socket with an end."""

    def recv_into(self, *arguments: Any, **options: Any) -> int:
        """Receive, for as long as time is left."""
        self._bound()
        return super().recv_into(*arguments, **options)

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send everything, for as long as time is left."""
        _send_all(self, super().send, data, flags)


def _send_all(ending: Any, send: Callable[[Any, int], int], data: Any, flags: int) -> None:
    rest = memoryview(data).cast("B")
    while rest:
        ending._bound()
        rest = rest[send(rest[:_PIECE], flags) :]


def connect(host: str, port: int, left: Left) -> EndingSocket:
    """Connect to the first address of a host that answers. Raises OSError."""
    refused: OSError = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        made = EndingSocket(family, kind, protocol)
        try:
            made.settimeout(left())
            made.connect(address)
            made.left = left
            return made
        except OSError as error:
            made.close()
            refused = error
    raise refused


def verifying_context(ca_file: str | None) -> ssl.SSLContext:
    """Return a context that verifies the peer's certificate and name; its sockets can have an end. Raises OSError, ssl.SSLError."""
    context = ssl.create_default_context(cafile=ca_file)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslsocket_class = EndingTlsSocket
    return context


def wrap(context: ssl.SSLContext, plain: socket.socket, host: str, left: Left) -> EndingTlsSocket:
    """Do the handshake; the connection keeps its end. Raises OSError."""
    plain.settimeout(left())  # the handshake takes this as one bound over all of it
    wrapped = context.wrap_socket(plain, server_hostname=host)
    assert isinstance(wrapped, EndingTlsSocket)
    wrapped.left = left
    return wrapped

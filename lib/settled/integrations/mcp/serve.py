"""Run a server until its client goes away, or until it is asked to end: on standard input and output, or over HTTP on loopback."""

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings

from settled.core.errors import ConfigurationError
from settled.core.limits import DEFAULTS
from settled.integrations.mcp.access import Address, TokenRequired

_HOSTS = ["127.0.0.1", "localhost", "[::1]"]
_GRACE_SECONDS = 2


def serve_stdio(server: Server[Any]) -> None:
    """Serve the one client at the other end of standard input and output, until it closes them."""
    asyncio.run(_serve_stdio(server))


async def _serve_stdio(server: Server[Any]) -> None:
    # The SDK sends what is written to descriptor 1 to standard error. What user code prints stays in a buffer of Python's and would
    # come out behind the last message: so sys.stdout is standard error as well.
    async with stdio_server() as (reading, writing):
        with contextlib.redirect_stdout(sys.stderr):
            await server.run(reading, writing, server.create_initialization_options())


def serve_http(server: Server[Any], address: Address, token: str, *, ready: Callable[[str], None]) -> None:
    """Serve clients that know the token, until SIGTERM or SIGINT; `ready` is told the URL. Raises ConfigurationError."""
    listening = _listen(address)
    port = listening.getsockname()[1]
    hosts = [one for host in _HOSTS for one in (host, f"{host}:*")]
    # No origin is allowed: a request that a web page makes has one, whatever address it was led to.
    security = TransportSecuritySettings(enable_dns_rebinding_protection=True, allowed_hosts=hosts, allowed_origins=[])
    app = server.streamable_http_app(
        transport_security=security, max_sessions=DEFAULTS.mcp_sessions_max, max_request_body_size=DEFAULTS.mcp_request_bytes_max
    )
    config = uvicorn.Config(
        TokenRequired(app, token),
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn ends in order, then raises the signal once more, for whoever had it before
        signal.signal(number, lambda *_: None)
    ready(address.url(port))
    uvicorn.Server(config).run(sockets=[listening])


def _listen(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address.host, address.port))
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise ConfigurationError(
            f"nothing can listen at {address.host} port {address.port} ({error.strerror}). Nothing was started. Take another port"
        ) from None
    return listening

"""Who may talk to a server over HTTP: programs of this host that know the token.

Promise: the token is never an argument of a command line, is never shown, and is compared in constant time.
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from settled.config.values import is_loopback
from settled.core.errors import ConfigurationError
from settled.core.limits import DEFAULTS
from settled.private import read_private

TOKEN_VARIABLE: Final = "SETTLED_MCP_TOKEN"
CREDENTIAL: Final = "settled-mcp-token"
TOKEN_CHARS_MIN: Final = 32
_HOW: Final = "Nothing was started. Make one: (umask 077; openssl rand -hex 32 > mcp-token), then --token-file mcp-token"


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen: a loopback address and a port; port 0 is any free one."""

    host: str
    port: int

    def url(self, port: int) -> str:
        """Return where a client finds the server that listens on `port`."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{port}/mcp"


def parse_address(text: str) -> Address:
    """Return the address of PORT, HOST:PORT or [HOST]:PORT. Raises ValueError, for an address that others can reach as well."""
    host, _, number = text.rpartition(":")
    if not number.isdecimal() or not number.isascii() or int(number) > 65_535:
        raise ValueError(f"{text!r} is not PORT or HOST:PORT")
    host = host.strip("[]") or "127.0.0.1"
    host = "127.0.0.1" if host == "localhost" else host  # never asked of a resolver, which may say anything
    if not is_loopback(host):
        raise ValueError(
            f"{host!r} is no loopback address, and this server listens on no other. Nothing was started. Use 127.0.0.1 or ::1, and "
            f"for clients elsewhere a tunnel that knows them"
        )
    return Address(host, int(number))


def find_token(file: str | None, environ: Mapping[str, str]) -> str:
    """Return the token from the file that is named, else from SETTLED_MCP_TOKEN, else from the service manager's credentials.

    Raises ConfigurationError where there is none, where it is too short, and for a file that others may read.
    """
    folder = environ.get("CREDENTIALS_DIRECTORY")
    if file is not None:
        token, place = read_private(Path(file), "token file", bytes_max=DEFAULTS.secret_bytes_max + 2), file
    elif TOKEN_VARIABLE in environ:
        token, place = environ[TOKEN_VARIABLE], TOKEN_VARIABLE
    elif folder is not None and (credential := Path(folder, CREDENTIAL)).exists():
        token, place = read_private(credential, "token file", bytes_max=DEFAULTS.secret_bytes_max + 2), str(credential)
    else:
        raise ConfigurationError(f"over HTTP a client must know a token, and none was given. {_HOW}, or {TOKEN_VARIABLE}")
    token = token.strip()
    if not TOKEN_CHARS_MIN <= len(token) <= DEFAULTS.secret_bytes_max or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigurationError(f"the token in {place} is not one line of {TOKEN_CHARS_MIN} or more printable ASCII characters. {_HOW}")
    return token


class TokenRequired:
    """Refuse every request without the token before anything of it is read."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._expected = app, _digest(f"Bearer {token}")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve, or answer 401."""
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        given = Headers(scope=scope).getlist("authorization")
        # Of digests, so that not even its length is told by the time that it takes.
        if scope["type"] == "http" and len(given) == 1 and hmac.compare_digest(_digest(given[0]), self._expected):
            return await self._app(scope, receive, send)
        refusal = PlainTextResponse("The token is missing or wrong.\n", status_code=401, headers={"WWW-Authenticate": "Bearer"})
        await refusal(scope, receive, send)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()

"""POST a notification, signed, and look at nothing but the status of the answer.

The signature is that of the Standard Webhooks specification (https://www.standardwebhooks.com): HMAC-SHA256 over
`id.timestamp.body`, so that receivers find a library for it. Redirects are not followed, proxies are not used.
"""

import base64
import binascii
import hashlib
import hmac
import http.client
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from settled.config.escalation import WebhookChannel
from settled.core.moment import SECOND_US
from settled.core.text import safe_str
from settled_worker.channels.deadline import EndingSocket, EndingTlsSocket, connect, verifying_context, wrap
from settled_worker.channels.left import Left, time_left
from settled_worker.channels.message import DeliveryFailedError, Message
from settled_worker.channels.secrets import read_secret

PREFIX: Final = "whsec_"
_DONE: Final = range(200, 300)


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """One URL. `wall_us` stamps each try, so that a receiver can refuse what was recorded and sent again much later."""

    settings: WebhookChannel
    environ: Mapping[str, str]
    wall_us: Callable[[], int]
    monotonic_us: Callable[[], int]

    def send(self, message: Message) -> None:
        """Post once. Raises DeliveryFailedError for anything but a 2xx answer in time."""
        key = signing_key(read_secret(self.settings.secret, self.environ))
        body = message.body.encode()
        seconds = self.wall_us() // SECOND_US
        headers = {
            "Content-Type": "application/json; charset=utf-8",
            "User-Agent": "settled",
            "Connection": "close",
            "webhook-id": message.delivery_id,
            "webhook-timestamp": str(seconds),
            "webhook-signature": sign(key, message.delivery_id, seconds, body),
        }
        try:
            status = self._post(body, headers, time_left(self.monotonic_us, self.settings.timeout_seconds))
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise DeliveryFailedError(f"no answer that counts: {type(error).__name__}: {safe_str(error)}") from error
        if status not in _DONE:
            raise DeliveryFailedError(f"the receiver answered with HTTP status {status}")

    def _post(self, body: bytes, headers: Mapping[str, str], left: Left) -> int:
        parts = urlsplit(self.settings.url)
        host = parts.hostname or ""
        context = verifying_context(self.settings.ca_file) if parts.scheme == "https" else None
        port = parts.port or (443 if context else 80)
        connection = http.client.HTTPConnection(host, port)
        if context is not None:
            connection.default_port = 443  # for the Host header
        try:
            connection.sock = _opened(host, port, context, left)
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("POST", target, body=body, headers=dict(headers))
            return connection.getresponse().status  # its head is bounded by http.client; its body is never read
        finally:
            connection.close()


def _opened(host: str, port: int, context: ssl.SSLContext | None, left: Left) -> EndingSocket | EndingTlsSocket:
    plain = connect(host, port, left)
    if context is None:
        return plain
    try:
        return wrap(context, plain, host, left)
    except BaseException:
        plain.close()
        raise


def signing_key(secret: str) -> bytes:
    """Return the bytes to sign with: what follows whsec_ is base64, any other text is taken as it is."""
    if not secret.startswith(PREFIX):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        raise DeliveryFailedError(f"the signing secret begins with {PREFIX}, but no base64 follows") from None


def sign(key: bytes, delivery_id: str, seconds: int, body: bytes) -> str:
    """Return the value of the header webhook-signature."""
    signed = f"{delivery_id}.{seconds}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()

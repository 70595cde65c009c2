"""Speak HTTP for the shop: read a request, call the shop, write the answer or close without one."""

import json
import math
import sys
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from settled_cli.demo.charges import Order
from settled_cli.demo.faults import SECONDS_MAX, parse_fault
from settled_cli.demo.service import Shop

BODY_BYTES_MAX: Final = 64 * 1024


class RequestRefused(Exception):
    """The request makes no sense; nothing was done with it."""


class ShopServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, shop: Shop, port: int) -> None:
        super().__init__(("127.0.0.1", port), ShopHandler)
        self.shop = shop

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that went away is what this shop is for: no traceback. Anything else is our own mistake or a full disk."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


def serve(shop: Shop, port: int) -> ShopServer:
    """Bind and return the server; `serve_forever` runs it."""
    return ShopServer(shop, port)


class ShopHandler(BaseHTTPRequestHandler):
    """One request per connection (HTTP/1.0), so that returning without an answer closes the socket."""

    server: ShopServer
    timeout = 30

    def do_GET(self) -> None:
        self._guarded(self._get)

    def do_POST(self) -> None:
        self._guarded(self._post)

    def _guarded(self, respond: Callable[[], None]) -> None:
        try:
            respond()
        except RequestRefused as refusal:
            self._answer(400, {"error": str(refusal)})

    def _get(self) -> None:
        address = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(address.query).items()}
        match address.path:
            case "/charges":
                self._answer(200, self.server.shop.find(_text(query, "reference")))
            case "/__count":
                self._answer(200, self.server.shop.count())
            case "/__wait":
                self._wait(query)
            case _:
                self._answer(404, {"error": f"nothing is at {address.path}"})

    def _wait(self, query: dict[str, str]) -> None:
        state = query.get("state")
        if state not in ("received", "committed"):
            raise RequestRefused("state must be received or committed")
        timeout_seconds, count = _number(query, "timeout", 10), _number(query, "count", 1)
        reached = self.server.shop.wait(_text(query, "reference"), state, int(count), timeout_seconds)
        self._answer(200, {"reached": reached})

    def _post(self) -> None:
        body = self._read_body()
        match urlsplit(self.path).path:
            case "/charges":
                self._charge(body)
            case "/__fault":
                try:
                    reference, fault = parse_fault(body)
                except ValueError as error:
                    raise RequestRefused(str(error)) from None
                self.server.shop.arm(reference, fault)
                self._answer(200, {"armed": reference})
            case other:
                self._answer(404, {"error": f"nothing is at {other}"})

    def _charge(self, body: dict[str, Any]) -> None:
        amount_cents = body.get("amount_cents")
        if type(amount_cents) is not int or amount_cents <= 0:
            raise RequestRefused("amount_cents must be a whole number above 0")
        order = Order(_text(body, "reference"), amount_cents, _text(body, "currency"))
        answer = self.server.shop.charge(order, self.headers.get("Idempotency-Key"))
        if answer.hold_seconds:
            time.sleep(answer.hold_seconds)  # the caller waits: that is the fault
        if answer.status is not None:
            self._answer(answer.status, answer.body)

    def _read_body(self) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit() or int(length) > BODY_BYTES_MAX:
            raise RequestRefused(f"Content-Length must be a number up to {BODY_BYTES_MAX}")
        content = self.rfile.read(int(length))
        if len(content) < int(length):
            raise ConnectionAbortedError("the caller went away in the middle of its request")
        try:
            body = json.loads(content)
        except ValueError:
            raise RequestRefused("the body is not JSON") from None
        if not isinstance(body, dict):
            raise RequestRefused("the body must be a JSON object")
        return body

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Standard error stays for what went wrong."""


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise RequestRefused(f"{name} must be a text")
    return value


def _number(query: dict[str, str], name: str, default: float) -> float:
    try:
        value = float(query.get(name, default))
    except ValueError:
        value = math.nan
    if not 0 <= value <= SECONDS_MAX:
        raise RequestRefused(f"{name} must be a number from 0 to {SECONDS_MAX:.0f}")
    return value

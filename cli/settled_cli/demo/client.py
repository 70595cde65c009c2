"""Call the shop, and say of a failed charge only what its cause proves.

A refused connection proves that nothing was sent, a 402 that nothing was charged. Any other error, a timeout included,
proves nothing and passes unchanged. `http.client` repeats nothing on its own and asks no proxy of the environment.
"""

import json
from http.client import HTTPConnection, IncompleteRead
from typing import Any, Literal
from urllib.parse import urlencode, urlsplit

from settled import EffectRejected, NotSent


class ShopError(Exception):
    """The shop answered with a status that proves nothing about the charge."""

    def __init__(self, status: int, body: dict[str, Any]) -> None:
        super().__init__(f"the shop answered {status}: {body.get('error', body)}")
        self.status, self.body = status, body


def charge(
    url: str, *, reference: str, amount_cents: int, currency: str, idempotency_key: str | None = None, timeout: float = 10.0
) -> dict[str, Any]:
    """Charge once and return the charge. Raises NotSent, EffectRejected, or whatever went wrong as it is. `timeout` in seconds."""
    headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
    order = {"reference": reference, "amount_cents": amount_cents, "currency": currency}
    status, body = _call(url, "POST", "/charges", body=order, headers=headers, timeout=timeout)
    if status == 402:
        raise EffectRejected(str(body.get("error", "declined")))
    return _accepted(status, body)


def find(url: str, reference: str, *, timeout: float = 10.0) -> dict[str, Any]:
    """Read what the shop shows for a reference: `charges`, the number `pending`, and whether the list is `complete`."""
    return _accepted(*_call(url, "GET", "/charges?" + urlencode({"reference": reference}), timeout=timeout))


def arm(url: str, reference: str, mode: str, *, seconds: float = 0.0, lose_answer: bool = False) -> None:
    """Arm one fault for the next charge of this reference."""
    fault = {"reference": reference, "mode": mode, "seconds": seconds, "lose_answer": lose_answer}
    _accepted(*_call(url, "POST", "/__fault", body=fault))


def counts(url: str) -> dict[str, dict[str, int]]:
    """Count the truth: {"charges": {reference: n}, "calls": {reference: n}}."""
    return _accepted(*_call(url, "GET", "/__count"))


def wait_until(url: str, reference: str, state: Literal["received", "committed"], *, count: int = 1, timeout: float = 10.0) -> None:
    """Block until the shop has received or committed `count` charges of this reference. Raises TimeoutError after `timeout` seconds."""
    query = urlencode({"reference": reference, "state": state, "count": count, "timeout": timeout})
    answer = _accepted(*_call(url, "GET", "/__wait?" + query, timeout=timeout + 5.0))
    if not answer["reached"]:
        raise TimeoutError(f"the shop has not {state} {count} of {reference!r} within {timeout} seconds")


def _call(
    url: str, method: str, target: str, *, body: Any = None, headers: dict[str, str] | None = None, timeout: float = 10.0
) -> tuple[int, dict[str, Any]]:
    connection = HTTPConnection(urlsplit(url).netloc, timeout=timeout)
    try:
        try:
            connection.connect()  # apart from the request: what fails here cannot have been sent
        except ConnectionRefusedError as refusal:
            raise NotSent(f"the shop at {url} refused the connection") from refusal
        content = None if body is None else json.dumps(body)
        connection.request(method, target, content, {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    except IncompleteRead as cut:
        raise ConnectionResetError(f"the answer of the shop at {url} was cut") from cut
    finally:
        connection.close()


def _accepted(status: int, body: dict[str, Any]) -> dict[str, Any]:
    if not 200 <= status < 300:
        raise ShopError(status, body)
    return body

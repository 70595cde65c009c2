"""Stripe as `settled certify` needs it: localstripe, which ignores keys, behind a proxy that loses what it is told to lose.

    settled certify app:refund_order --sandbox sandbox:Stripe --quick --output certificate.html

Refunds are counted at localstripe itself, past the proxy.
"""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import stripe
from run import localstripe, paid_order

from settled.testing import FaultProxy, Sandbox, Trouble

NOTHING_FOUND = b'{"object": "list", "data": [], "has_more": false, "url": "/v1/refunds"}'


class Stripe(Sandbox):
    """localstripe and the proxy, each on a free port of this machine."""

    troubles = frozenset(
        {"none", "lost before", "answer lost", "error after", "committed late", "answer held", "answer garbled"}
        | {"reads down", "reads stale", "search lies", "committed twice"}
    )

    def open(self, folder: Path) -> Mapping[str, str]:
        self._running = contextlib.ExitStack()
        url = self._running.enter_context(localstripe())
        self._truth = stripe.StripeClient("sk_test_example", base_addresses={"api": url}, max_network_retries=0)
        self._proxy = self._running.enter_context(FaultProxy(url, absent=(200, "application/json", NOTHING_FOUND)))
        return {"STRIPE_API_BASE": self._proxy.url, "STRIPE_API_KEY": os.environ.get("STRIPE_API_KEY", "sk_test_example")}

    def close(self) -> None:
        self._running.close()

    def arguments(self, case: str) -> dict[str, Any]:
        order = paid_order(self._truth, case, "")
        return {"order_id": case, "payment_intent": order.payment_intent, "amount_cents": order.amount_cents}

    def arm(self, arguments: dict[str, Any], trouble: Trouble, *, held: bool = False) -> None:
        # The payment stands in the refund's request and in the search for it alike.
        payment = arguments["payment_intent"]
        self._proxy.arm(payment, trouble, held=held, late_seconds=self.late_seconds, lag_seconds=self.lag_seconds)

    def reached(self, arguments: dict[str, Any], what: str) -> bool:
        return self._proxy.reached(arguments["payment_intent"], what)

    def count(self, arguments: dict[str, Any]) -> int:
        listed = self._truth.v1.refunds.list({"payment_intent": arguments["payment_intent"], "limit": 100})
        return sum(1 for _ in listed.auto_paging_iter())

    def undecided(self) -> int:
        return self._proxy.undecided()

"""Refund orders at Stripe: the contract, its handler and its probe. Agents and the worker both import this file.

The account behind it ignores idempotency keys, so nothing may ever be repeated on the strength of one. What this file has
instead is a name: every refund carries its operation ID in the metadata, and the probe looks for it there.
"""

import os
from datetime import timedelta
from typing import Any

import stripe

from settled import App, EffectRejected, NotSent, ProbeResult

app = App()  # which ledger: SETTLED_DATABASE, settled.toml or ./settled.db


def operation_id_of(arguments: dict[str, Any]) -> str:
    return f"order:{arguments['order_id']}:refund"


@app.effect(
    name="refund_order",
    version="1",
    operation_id=operation_id_of,
    provider_reference=operation_id_of,
    risk="financial",
    timeout=3.0,
    kill_grace=0.5,
    probe_timeout=5.0,
    probe_attempts_max=3,  # few, so that the example ends soon; the default is 12
    network_drain=timedelta(seconds=2),  # enough on one machine; keep the default of 120 s for a real network
)
def refund_order(arguments: dict[str, Any]) -> dict[str, Any]:
    payment, amount, name = arguments["payment_intent"], arguments["amount_cents"], operation_id_of(arguments)
    try:
        refund = stripe_client().v1.refunds.create({"payment_intent": payment, "amount": amount, "metadata": {"operation_id": name}})
        return shown(refund)
    except (stripe.InvalidRequestError, stripe.CardError) as refusal:
        raise EffectRejected(str(refusal)) from refusal
    except stripe.APIConnectionError as error:
        if was_refused(error):
            raise NotSent("nothing listens at the address of Stripe") from error
        raise  # the same class also means "sent, and the answer was lost": unknown


@refund_order.probe
def find_refund(arguments: dict[str, Any]) -> ProbeResult:
    listed = stripe_client().v1.refunds.list({"payment_intent": arguments["payment_intent"], "limit": 100})
    wanted = operation_id_of(arguments)
    found = [refund for refund in listed.auto_paging_iter() if getattr(refund.metadata, "operation_id", None) == wanted]
    if not found:
        # Not terminal: Stripe does not say that a request which it has not shown yet can never be applied.
        return ProbeResult.not_committed(terminal=False, reference=wanted, evidence={"source": "refunds.list", "matches": 0})
    evidence = {"source": "refunds.list", "matches": len(found), "amounts": [refund.amount for refund in found]}
    if any(refund.amount != arguments["amount_cents"] for refund in found):
        return ProbeResult.unknown(evidence=evidence)  # our name on something that we did not ask for
    return ProbeResult.committed(reference=wanted, provider_operation_id=found[0].id, output=shown(found[0]), evidence=evidence)


def stripe_client() -> stripe.StripeClient:
    # The client's own default is two silent repeats: off, whoever may repeat is decided by evidence.
    key, url = os.environ.get("STRIPE_API_KEY", "sk_test_example"), os.environ["STRIPE_API_BASE"]
    return stripe.StripeClient(key, base_addresses={"api": url}, max_network_retries=0)


def shown(refund: stripe.Refund) -> dict[str, Any]:
    return {"refund_id": refund.id, "amount_cents": refund.amount, "status": refund.status}


def was_refused(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, ConnectionRefusedError):
        error = error.__cause__ or error.__context__
    return error is not None

"""One payment as an effect, for the agents beside it: what they ask for, what `settled mcp` offers and what the worker does.

    settled worker run --app invoices:app     does the payments
    settled mcp --app invoices:app            for a client that starts its servers

The ledger is the one that SETTLED_DATABASE names; the provider listens at PROVIDER_URL.
"""

import os
from typing import Any

from typing_extensions import TypedDict

from settled import App, EffectRejected, NotSent, ProbeResult
from settled.testing import ProviderClient, ProviderRejected

app = App()


class Payment(TypedDict):
    invoice: str
    cents: int
    note: str


def payment_id(arguments: dict[str, Any]) -> str:
    return f"invoice:{arguments['invoice']}:payment"


@app.effect(
    name="pay_invoice",
    operation_id=payment_id,  # the business key: no client chooses another
    provider_reference=payment_id,
    identity_fields=("invoice", "cents"),  # the note is prose of a model
    arguments_type=Payment,
    risk="financial",
    timeout=5.0,  # short, so that the example ends soon: a runner whose worker was killed lives until then
)
def pay_invoice(arguments: dict[str, Any]) -> dict[str, Any]:
    """Pay one invoice."""
    try:
        return provider().create({"cents": arguments["cents"]}, reference=payment_id(arguments))
    except ProviderRejected as refusal:
        raise EffectRejected(str(refusal)) from refusal
    except ConnectionRefusedError as refusal:
        raise NotSent("nothing listens at the provider's address") from refusal


@pay_invoice.probe
def is_paid(arguments: dict[str, Any]) -> ProbeResult:
    found = provider().find(payment_id(arguments)).found
    if not found:
        return ProbeResult.unknown()  # not found proves nothing
    return ProbeResult.committed(reference=payment_id(arguments), provider_operation_id=found[0]["effect_id"], output=found[0])


def provider() -> ProviderClient:
    return ProviderClient(os.environ["PROVIDER_URL"], timeout=60)

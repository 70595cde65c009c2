"""The payments of `settled demo`: one contract for charging a card at the shop, which deduplicates nothing.

It declares the truth about this shop: a charge is found by its reference; reads may lag; what is accepted and not decided is
shown as pending. On one machine nothing of a killed process is still under way, so `network_drain` is 0; that is for the demo.
"""

from typing import Any

from settled import App, ProbeResult, RetryPolicy
from settled_cli.demo import client

READ_LAG_SECONDS = 4.0  # the shop's reads may be this stale

app = App()


def reference_of(arguments: dict[str, Any]) -> str:
    """Return what the shop files the charge under."""
    return f"order-{arguments['order']}"


@app.effect(
    name="charge_card",
    operation_id=lambda arguments: f"order:{arguments['order']}:charge",
    provider_reference=reference_of,
    risk="financial",
    timeout=6.0,
    kill_grace=0.5,
    probe_timeout=5.0,
    retry=RetryPolicy(max_attempts=3, initial=0.1),
    network_drain=0,
    read_lag=READ_LAG_SECONDS,
)
def charge_card(arguments: dict[str, Any]) -> dict[str, Any]:
    """Charge the card once."""
    return client.charge(
        arguments["shop"], reference=reference_of(arguments), amount_cents=arguments["amount_cents"], currency=arguments["currency"]
    )


@charge_card.probe
def find_charge(arguments: dict[str, Any]) -> ProbeResult:
    """Read what the shop shows for this order."""
    reference = reference_of(arguments)
    seen = client.find(arguments["shop"], reference)
    facts = {"source": "GET /charges", "charges": len(seen["charges"]), "pending": seen["pending"]}
    if seen["charges"]:
        found = seen["charges"][0]
        return ProbeResult.committed(reference=reference, provider_operation_id=found["charge_id"], output=found, evidence=facts)
    if seen["pending"]:
        return ProbeResult.pending(reference=reference, healthy=True, evidence=facts)
    # Complete and nothing pending: the shop says that what it has not accepted cannot be committed later.
    return ProbeResult.not_committed(reference=reference, terminal=bool(seen["complete"]), healthy=True, evidence=facts)

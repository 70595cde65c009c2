"""A refund as an effect, declared one time for every framework beside it."""

import os
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from settled import App, EffectRejected, NotSent, ProbeResult
from settled.integrations import Host, Policy, effect_tool
from settled.testing import ProviderClient, ProviderRejected

app = App()  # which ledger: SETTLED_DATABASE


class Refund(TypedDict):
    order: str
    cents: int
    note: str


def refund_id(arguments: dict[str, Any]) -> str:
    return f"order:{arguments['order']}:refund"


@app.effect(
    name="refund",
    operation_id=refund_id,  # the business names the action; a call ID would be another one when the model asks again
    provider_reference=refund_id,
    identity_fields=("order", "cents"),  # the note is prose of a model
    arguments_type=Refund,
    risk="financial",
    isolation="thread",  # in the agent's own process, so that one kill ends both. With a worker, leave this and inline=True out
    timeout=60.0,
)
def refund(arguments: dict[str, Any]) -> dict[str, Any]:
    """Give a customer the money of an order back."""
    try:
        return provider().create({"cents": arguments["cents"]}, reference=refund_id(arguments))
    except ProviderRejected as refusal:
        raise EffectRejected(str(refusal)) from refusal
    except ConnectionRefusedError as refusal:
        raise NotSent("nothing listens at the provider's address") from refusal


@refund.probe
def is_refunded(arguments: dict[str, Any]) -> ProbeResult:
    found = provider().find(refund_id(arguments)).found
    if not found:
        return ProbeResult.unknown()  # not found proves nothing
    return ProbeResult.committed(reference=refund_id(arguments), provider_operation_id=found[0]["effect_id"], output=found[0])


def provider() -> ProviderClient:
    return ProviderClient(os.environ["PROVIDER_URL"], timeout=60)


def ask_above_100(tool: str, arguments: dict[str, Any]) -> bool:
    """Let small refunds pass; the host must confirm others. Each time that a tool's body runs, it asks here: so it is counted here."""
    with Path(os.environ["SCENE_FOLDER"], "bodies.txt").open("a") as counted:
        counted.write(f"{tool}\n")
    return bool(arguments["cents"] > 10_000)


host = Host([effect_tool(refund, inline=True)], policy=Policy(confirm=ask_above_100), wait=float(os.environ.get("TOOL_WAIT", "2")))

"""A contract, a handler and a probe over the fake provider: how to write a truthful one, and what the suites use.

Promise: the probe calls an absence terminal only after it searched all pages, found the positive control through the same
search, and was told by the in-flight fence that nothing accepted is undecided.
"""

from collections.abc import Mapping
from typing import Any, Final, Protocol

from settled.contract import EffectContract
from settled.core.canonical import canonical_text
from settled.core.errors import EffectRejected, NotSent
from settled.core.evidence import ProbeResult
from settled.testing.provider import Page, ProviderRejected

PAGES_MAX: Final = 100
REQUEST_FIELDS: Final = ("amount_cents", "currency")


class Provider(Protocol):
    """What a handler and a probe need of the provider, in this process or over HTTP."""

    def create(self, request: Mapping[str, Any], *, reference: str, idempotency_key: str | None = None) -> dict[str, Any]: ...
    def find(self, reference: str, *, page: int = 1) -> Page: ...
    def control(self, beside: str) -> bool: ...
    def in_flight(self, reference: str) -> int: ...


def reference_of(arguments: Mapping[str, Any]) -> str:
    """Return what the provider files the payment under."""
    return f"payment:{arguments['payment']}"


def request_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the provider is asked for."""
    return {name: arguments[name] for name in REQUEST_FIELDS}


def pay(provider: Provider, arguments: Mapping[str, Any], idempotency_key: str | None = None) -> dict[str, Any]:
    """Be the handler: one call, and of its errors only those translated that prove something."""
    try:
        return provider.create(request_of(arguments), reference=reference_of(arguments), idempotency_key=idempotency_key)
    except ProviderRejected as refusal:
        raise EffectRejected(str(refusal)) from refusal
    except ConnectionRefusedError as refusal:
        raise NotSent("nothing listens at the provider's address") from refusal


def look_for_payment(provider: Provider, arguments: Mapping[str, Any]) -> ProbeResult:
    """Be the probe. Whatever it raises counts as no answer."""
    reference = reference_of(arguments)
    found = all_pages(provider, reference)
    facts = {"source": "search by reference", "found": len(found)}
    mine = [one for one in found if one.get("reference") == reference]
    if mine:
        if any(one["request"] != canonical_text(request_of(arguments), "request") for one in mine):
            return ProbeResult.unknown(healthy=True, evidence=facts | {"why": "our reference on another request"})
        first = mine[0]
        return ProbeResult.committed(
            reference=reference, provider_operation_id=first["effect_id"], output=first, healthy=True, evidence=facts
        )
    if found:
        return ProbeResult.unknown(healthy=True, evidence=facts | {"why": "somebody else's effect under our reference"})
    if not provider.control(reference):
        return ProbeResult.unknown(evidence=facts | {"why": "the positive control was not found"})
    if undecided := provider.in_flight(reference):
        return ProbeResult.pending(reference=reference, healthy=True, evidence=facts | {"undecided": undecided})
    return ProbeResult.not_committed(reference=reference, terminal=True, healthy=True, evidence=facts)


def all_pages(provider: Provider, reference: str) -> list[dict[str, Any]]:
    """Search to the last page. Raises ValueError where there is no end."""
    found: list[dict[str, Any]] = []
    page = 1
    for _ in range(PAGES_MAX):
        answer = provider.find(reference, page=page)
        found += answer.found
        if answer.more is None:
            return found
        page = answer.more
    raise ValueError(f"the search has more than {PAGES_MAX} pages")


def payment_contract(provider: Provider, **terms: Any) -> EffectContract:
    """Return a contract over `provider` with handler and probe; `terms` replace its own. `outcome_probe=None` leaves the probe out."""
    plain: dict[str, Any] = {
        "name": "pay",
        "operation_id": lambda a: f"payment:{a['payment']}",
        "provider_reference": reference_of,
        "risk": "financial",
        "isolation": "thread",
        "network_drain": 0,
        "handler": lambda arguments, idempotency_key: pay(provider, arguments, idempotency_key),
        "outcome_probe": lambda arguments: look_for_payment(provider, arguments),
    }
    return EffectContract(**{**plain, **terms})

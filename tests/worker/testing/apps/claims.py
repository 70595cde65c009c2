"""Contracts for certification: honest ones, and others of which each claims one thing that is not so."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from settled import App, EffectRejected, NotSent, ProbeResult
from settled.testing import ProviderClient, ProviderSandbox, look_for_payment, pay
from settled.testing.payments import reference_of

app = App()
sandbox = ProviderSandbox()
keyed = ProviderSandbox(idempotent=True)
forgetful = ProviderSandbox(idempotent=True, key_window=3600.0)
slow = ProviderSandbox(late_seconds=8.0)
not_a_sandbox = object()


def provider() -> ProviderClient:
    return ProviderClient(os.environ["FAKE_PROVIDER_URL"])


def handler(arguments: dict[str, Any], ctx: Any, idempotency_key: str | None) -> dict[str, Any]:
    ctx.sending()
    return pay(provider(), arguments, idempotency_key)


def probe(arguments: dict[str, Any]) -> ProbeResult:
    return look_for_payment(provider(), arguments)


def declare(name: str, **terms: Any) -> Any:
    plain: dict[str, Any] = {
        "name": name,
        "operation_id": lambda a: f"{name}:{a['payment']}",
        "provider_reference": reference_of,
        "isolation": "thread",
        "read_lag": 2.0,
        "commit_horizon": 2.0,  # beside the in-flight fence: what commits late may be shown late, too
        "network_drain": 1.0,
        "outcome_probe": probe,
    }
    chosen = {**plain, **terms}
    return app.effect(**{key: value for key, value in chosen.items() if key != "handler"})(chosen.get("handler", handler))


KEY = {"provider_idempotency_key": lambda a: f"key:{a['payment']}", "provider_idempotency_guaranteed": True}

honest = declare("honest", announces_sending=True)
honest_process = declare("honest_process", isolation="process")
honest_key = declare("honest_key", outcome_probe=None, **KEY)
ONE_WINDOW = {"outcome_probe": None, "isolation": "process", "provider_idempotency_window": 3600.0, **KEY}
honest_window = declare("honest_window", **ONE_WINDOW)


def hasty(arguments: dict[str, Any]) -> ProbeResult:
    """An empty search is no absence: the request may still be at work, and the search may lag."""
    found = provider().find(reference_of(arguments)).found
    if found:
        return ProbeResult.committed(reference=reference_of(arguments), output=found[0])
    return ProbeResult.not_committed(terminal=True, healthy=True, reference=reference_of(arguments))


def silent(arguments: dict[str, Any]) -> ProbeResult:
    """Finds the effect and does not say which one."""
    found = provider().find(reference_of(arguments)).found
    return ProbeResult.committed(output=found[0]) if found else ProbeResult.unknown()


def blind(arguments: dict[str, Any]) -> ProbeResult:
    """Looks where nothing ever is."""
    found = provider().find("elsewhere").found
    return ProbeResult.committed(reference=reference_of(arguments)) if found else ProbeResult.unknown(healthy=True)


def sees_ghosts(arguments: dict[str, Any]) -> ProbeResult:
    """Takes a request for its effect."""
    return ProbeResult.committed(reference=reference_of(arguments))


def gives_up(arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        return pay(provider(), arguments)
    except (ConnectionError, TimeoutError) as error:
        raise EffectRejected("no answer, so it was surely not done") from error


def not_sent(arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        return pay(provider(), arguments)
    except (ConnectionError, TimeoutError) as error:
        raise NotSent("no answer, so it was surely not sent") from error


def swallows(arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        return pay(provider(), arguments)
    except (ConnectionError, TimeoutError):
        return {"status": "probably fine"}


false_guarantee = declare("false_guarantee", outcome_probe=None, **KEY)  # its destination deduplicates nothing
false_window = declare("false_window", **ONE_WINDOW | {"provider_idempotency_window": 7200.0})  # it remembers for half as long
false_absence = declare("false_absence", outcome_probe=hasty, read_lag=0, commit_horizon=0, network_drain=0)
false_identity = declare("false_identity", outcome_probe=silent)
false_blind = declare("false_blind", outcome_probe=blind)
false_ghosts = declare("false_ghosts", outcome_probe=sees_ghosts)
false_rejected = declare("false_rejected", handler=gives_up)
false_not_sent = declare("false_not_sent", handler=not_sent)
false_return = declare("false_return", handler=swallows)


class ForOthers(ProviderSandbox):
    """Gives arguments that no contract here can be identified by."""

    def arguments(self, case: str) -> dict[str, Any]:
        return {"order": case}


class Broken(ProviderSandbox):
    """Its author left it half done."""

    def arguments(self, case: str) -> dict[str, Any]:
        raise RuntimeError("not written yet")


class Shut(ProviderSandbox):
    """Nobody can open it."""

    def open(self, folder: Path) -> Mapping[str, str]:
        raise PermissionError("keep out")


class Unmade(ProviderSandbox):
    """Nobody can make it."""

    def __init__(self) -> None:
        raise KeyError("SANDBOX_TOKEN")


for_others, broken, shut = ForOthers(), Broken(), Shut()

"""What tests of applications need: a provider that fails on request and counts, clocks of their own, and reports."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from settled.testing.clock import MovableClock, VirtualClock
    from settled.testing.faults import Fault, ReadFault
    from settled.testing.http import ProviderClient, running_provider, serving
    from settled.testing.payments import look_for_payment, pay, payment_contract
    from settled.testing.provider import (
        AnswerLate,
        AnswerLost,
        AnswerMalformed,
        Committed,
        FakeProvider,
        Page,
        ProviderError,
        ProviderRejected,
    )
    from settled.testing.proxy import FaultProxy
    from settled.testing.report import SafetyCheck, SafetyReport
    from settled.testing.sandbox import BEYOND, TROUBLES, ProviderSandbox, Sandbox, Trouble
    from settled.testing.suite import run_safety_suite

# Imported at first use: the pytest plugin is loaded in every test run of whoever installs this, used or not.
_HOMES: Final = {
    "BEYOND": "sandbox",
    "ProviderSandbox": "sandbox",
    "Sandbox": "sandbox",
    "TROUBLES": "sandbox",
    "Trouble": "sandbox",
    "AnswerLate": "provider",
    "AnswerLost": "provider",
    "AnswerMalformed": "provider",
    "Committed": "provider",
    "FakeProvider": "provider",
    "Fault": "faults",
    "FaultProxy": "proxy",
    "MovableClock": "clock",
    "Page": "provider",
    "ProviderClient": "http",
    "ProviderError": "provider",
    "ProviderRejected": "provider",
    "ReadFault": "faults",
    "SafetyCheck": "report",
    "SafetyReport": "report",
    "VirtualClock": "clock",
    "look_for_payment": "payments",
    "pay": "payments",
    "payment_contract": "payments",
    "run_safety_suite": "suite",
    "running_provider": "http",
    "serving": "http",
}

__all__ = [
    "BEYOND",
    "TROUBLES",
    "AnswerLate",
    "AnswerLost",
    "AnswerMalformed",
    "Committed",
    "FakeProvider",
    "Fault",
    "FaultProxy",
    "MovableClock",
    "Page",
    "ProviderClient",
    "ProviderError",
    "ProviderRejected",
    "ProviderSandbox",
    "ReadFault",
    "SafetyCheck",
    "SafetyReport",
    "Sandbox",
    "Trouble",
    "VirtualClock",
    "look_for_payment",
    "pay",
    "payment_contract",
    "run_safety_suite",
    "running_provider",
    "serving",
]


def __getattr__(name: str) -> Any:
    """Import what is asked for from where it lives."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'settled.testing' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"settled.testing.{home}"), name)
    return found


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)

"""settled: a durable worker for effects that may not be done twice and may not be forgotten."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from settled.app import App
    from settled.contract import EffectContract, RetryPolicy
    from settled.core.errors import (
        ConfigurationError,
        ContractNotFoundError,
        EffectFailedError,
        EffectRejected,
        LedgerDamagedError,
        LedgerForbiddenError,
        LedgerStateError,
        LedgerUnavailableError,
        NeedsReview,
        NotAuthenticatedError,
        NotSent,
        OperationConflictError,
        OperationInProgressError,
        OperationNotFoundError,
        ResultUnavailableError,
        SchemaMismatchError,
        SettledError,
        TransitionRefusedError,
        UnresolvedError,
    )
    from settled.core.evidence import ProbeResult
    from settled.core.proposal import Proposal
    from settled.core.words import NextAction, Outcome, Status
    from settled.effect import Effect
    from settled.operation import Operation

__version__ = "0.1.0"

# Imported at first use: a supervisor or a runner starts in a fraction of the time that the store takes to import.
_HOMES: Final = {
    "App": "settled.app",
    "ConfigurationError": "settled.core.errors",
    "ContractNotFoundError": "settled.core.errors",
    "Effect": "settled.effect",
    "EffectContract": "settled.contract",
    "EffectFailedError": "settled.core.errors",
    "EffectRejected": "settled.core.errors",
    "LedgerDamagedError": "settled.core.errors",
    "LedgerForbiddenError": "settled.core.errors",
    "LedgerStateError": "settled.core.errors",
    "LedgerUnavailableError": "settled.core.errors",
    "NeedsReview": "settled.core.errors",
    "NextAction": "settled.core.words",
    "NotAuthenticatedError": "settled.core.errors",
    "NotSent": "settled.core.errors",
    "Operation": "settled.operation",
    "OperationConflictError": "settled.core.errors",
    "OperationInProgressError": "settled.core.errors",
    "OperationNotFoundError": "settled.core.errors",
    "Outcome": "settled.core.words",
    "ProbeResult": "settled.core.evidence",
    "Proposal": "settled.core.proposal",
    "ResultUnavailableError": "settled.core.errors",
    "RetryPolicy": "settled.contract",
    "SchemaMismatchError": "settled.core.errors",
    "SettledError": "settled.core.errors",
    "Status": "settled.core.words",
    "TransitionRefusedError": "settled.core.errors",
    "UnresolvedError": "settled.core.errors",
}

__all__ = [
    "App",
    "ConfigurationError",
    "ContractNotFoundError",
    "Effect",
    "EffectContract",
    "EffectFailedError",
    "EffectRejected",
    "LedgerDamagedError",
    "LedgerForbiddenError",
    "LedgerStateError",
    "LedgerUnavailableError",
    "NeedsReview",
    "NextAction",
    "NotAuthenticatedError",
    "NotSent",
    "Operation",
    "OperationConflictError",
    "OperationInProgressError",
    "OperationNotFoundError",
    "Outcome",
    "ProbeResult",
    "Proposal",
    "ResultUnavailableError",
    "RetryPolicy",
    "SchemaMismatchError",
    "SettledError",
    "Status",
    "TransitionRefusedError",
    "UnresolvedError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Import what is asked for from where it lives."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'settled' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(home), name)
    return found


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)

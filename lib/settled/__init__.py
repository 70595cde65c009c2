"""settled: a durable worker for effects that may not be done twice and may not be forgotten."""

from settled.app import App
from settled.contract import EffectContract, RetryPolicy
from settled.core.errors import (
    ConfigurationError,
    ContractNotFoundError,
    EffectFailedError,
    EffectRejected,
    LedgerStateError,
    LedgerUnavailableError,
    NeedsReview,
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
from settled.core.words import NextAction, Outcome, Status
from settled.effect import Effect
from settled.operation import Operation

__version__ = "0.1.0"

__all__ = [
    "App",
    "ConfigurationError",
    "ContractNotFoundError",
    "Effect",
    "EffectContract",
    "EffectFailedError",
    "EffectRejected",
    "LedgerStateError",
    "LedgerUnavailableError",
    "NeedsReview",
    "NextAction",
    "NotSent",
    "Operation",
    "OperationConflictError",
    "OperationInProgressError",
    "OperationNotFoundError",
    "Outcome",
    "ProbeResult",
    "ResultUnavailableError",
    "RetryPolicy",
    "SchemaMismatchError",
    "SettledError",
    "Status",
    "TransitionRefusedError",
    "UnresolvedError",
    "__version__",
]

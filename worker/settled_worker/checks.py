"""Refuse at the start what could never run, instead of at the first operation."""

from settled.app import App
from settled.core.errors import ConfigurationError
from settled.core.words import Isolation


def check_contracts(app: App) -> None:
    """Refuse contracts that this worker could never run. Raises ConfigurationError naming the first."""
    for name, contract in app.contracts.items():
        try:
            terms = contract.terms
        except ValueError as error:
            raise ConfigurationError(f"contract {name!r} cannot be used: {error}. Nothing was started.") from error
        if contract.has_handler and terms.isolation == Isolation.PROCESS:
            _check_importable(name, contract.handler)


def _check_importable(name: str, handler: object) -> None:
    qualified = getattr(handler, "__qualname__", "")
    if "<lambda>" in qualified or "<locals>" in qualified:
        raise ConfigurationError(
            f"the handler of {name!r} ({qualified}) is defined inside a function, so that no runner can import it. "
            f"Nothing was started. Define it at the top of a module, or declare isolation='thread'"
        )

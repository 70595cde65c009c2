"""Import an optional framework, or say in one line what to install."""

from importlib import import_module
from types import ModuleType

from settled.core.errors import ConfigurationError


class FrameworkMissingError(ConfigurationError, ImportError):
    """A framework that an adapter is for is not installed here."""


def need(module: str, extra: str) -> ModuleType:
    """Return an imported module of a framework. Raises FrameworkMissingError, whose text names the extra of settled to install."""
    root = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != root:
            raise  # the framework is there, and something of its own is not
        raise FrameworkMissingError(
            f"settled.integrations needs {module!r} here, which is not installed. Nothing was sent. Run: pip install 'settled[{extra}]'"
        ) from None

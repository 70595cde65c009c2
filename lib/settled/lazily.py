"""Import the modules of a package at their first use: who only declares contracts must not wait for the database library.

Promise: the first use is safe from several threads at once, and each later one is the lookup of an attribute. Python's own locks of
imports see to that, as long as no two modules import each other. A lock of ours would not: who imports one of the modules in the
ordinary way holds Python's lock for it, and would wait for ours while its holder waits for Python's.
"""

from collections.abc import Callable
from importlib import import_module
from types import ModuleType


def modules_of(package: str) -> Callable[[str], ModuleType]:
    """Return the `__getattr__` of a package that imports its modules at their first use. An import sets the attribute by itself."""

    def import_at_first_use(name: str) -> ModuleType:
        module = f"{package}.{name}"
        try:
            return import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
            raise AttributeError(f"module {package!r} has no attribute {name!r}") from None

    return import_at_first_use

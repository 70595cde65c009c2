"""Bind fields to a logger: what structlog's loggers do, for programs that do not use it and need not import it.

Promise: structlog can use these as its own loggers, with processors of its own; what a program binds by its context variables is
on every line.
"""

import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any, Final, Self

from settled.clock import wall_us

Fields = dict[str, Any]
_NOT_NEEDED: Final = ("rich", "greenlet")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Bound:
    """A logger's name, the processors of its events, and the fields that are bound."""

    def __init__(self, logger: object, processors: Iterable[Any], context: Fields) -> None:
        self._logger, self._processors, self._context = logger, processors, context

    def __repr__(self) -> str:
        return f"<{type(self).__name__}(context={self._context!r})>"

    def bind(self, **fields: object) -> Self:
        """Return a logger with these fields too."""
        return type(self)(self._logger, self._processors, {**self._context, **fields})

    def unbind(self, *names: str) -> Self:
        """Return a logger without these fields. Raises KeyError for one that is not bound."""
        return type(self)(self._logger, self._processors, {name: self._context[name] for name in self._remaining(names, strict=True)})

    def try_unbind(self, *names: str) -> Self:
        """Return a logger without these fields."""
        return type(self)(self._logger, self._processors, {name: self._context[name] for name in self._remaining(names, strict=False)})

    def new(self, **fields: object) -> Self:
        """Return a logger with these fields only."""
        return type(self)(self._logger, self._processors, dict(fields))

    def _remaining(self, names: tuple[str, ...], *, strict: bool) -> list[str]:
        missing = [name for name in names if name not in self._context]
        if missing and strict:
            raise KeyError(missing[0])
        return [name for name in self._context if name not in names]

    def _processed(self, method: str, event: str, fields: Fields) -> Fields:
        """Return the fields of an event after all processors."""
        shown: Fields = {**self._context, **fields, "event": event}
        for process in self._processors:
            shown = process(self._logger, method, shown)
        return shown


def merge_context_variables(logger: object, method: str, fields: Fields) -> Fields:
    """Add what the program has bound by structlog's context variables: whoever did has imported it."""
    context_variables: Any = sys.modules.get("structlog.contextvars")
    if context_variables is None:
        return fields
    merged: Fields = context_variables.merge_contextvars(logger, method, fields)
    return merged


def stamp(logger: object, method: str, fields: Fields) -> Fields:
    """Add the time, ISO 8601 in UTC."""
    fields["time"] = (_EPOCH + timedelta(microseconds=wall_us())).isoformat().replace("+00:00", "Z")
    return fields


def is_left_out(error: BaseException) -> bool:
    """Return whether a processor left a line out on purpose: structlog says so by an error that is no Exception."""
    exceptions: Any = sys.modules.get("structlog.exceptions")
    return exceptions is not None and isinstance(error, exceptions.DropEvent)


def import_structlog() -> ModuleType:
    """Import structlog for a program of ours, and where it is not imported yet without rich and greenlet.

    It imports them, if they are installed, for consoles and threads that our programs do not have: 68 modules, and 5 MB.
    """
    hidden = [name for name in _NOT_NEEDED if name not in sys.modules] if "structlog" not in sys.modules else []
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]  # an import of it fails now
    try:
        import structlog
    finally:
        for name in hidden:
            del sys.modules[name]
    return structlog

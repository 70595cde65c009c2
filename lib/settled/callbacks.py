"""Bind a user's callback by the names of its parameters.

Promise: a callback that could not be called is refused when it is declared, not when it is needed.
"""

import inspect
from collections.abc import Callable
from typing import Any, Final

HANDLER_PARAMETERS: Final = ("arguments", "ctx", "idempotency_key")
POSTCONDITION_PARAMETERS: Final = ("arguments", "output")

Call = Callable[..., Any]


def bind_by_name(function: Any, offered: tuple[str, ...], what: str) -> tuple[str, ...]:
    """Return which of the `offered` names `function` takes. Raises TypeError for a callable that wants anything else."""
    if not callable(function):
        raise TypeError(f"{what} must be callable, not {type(function).__name__}")
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError as error:
        raise TypeError(f"{what} has no readable signature: {error}") from error
    taken = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            return offered
        if parameter.kind is parameter.VAR_POSITIONAL:
            continue
        if parameter.name in offered and parameter.kind is not parameter.POSITIONAL_ONLY:
            taken.append(parameter.name)
        elif parameter.default is parameter.empty:
            raise TypeError(
                f"{what} has the parameter {parameter.name!r}, which is never given. It may take any of: {', '.join(offered)}"
            )
    return tuple(taken)


def takes_one(function: Any, what: str) -> Call:
    """Return `function` if it can be called with one positional argument. Raises TypeError otherwise."""
    if not callable(function):
        raise TypeError(f"{what} must be callable, not {type(function).__name__}")
    try:
        inspect.signature(function).bind({})
    except TypeError as error:
        raise TypeError(f"{what} must take the arguments as its one parameter: {error}") from None
    except ValueError:
        pass  # some builtins do not show their signature
    return function  # type: ignore[no-any-return]


def is_async(function: Any) -> bool:
    """Return whether calling `function` gives an awaitable."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(type(function), "__call__", None))  # noqa: B004 - asked for, not whether it is there

"""Plain tools of a run: functions that only read. They have a limit in time, a few tries, and a circuit breaker.

Promise: none of this ever touches an effect. An effect that is unknown is no failure of a tool, opens no breaker, and is not tried again.
"""

import inspect
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from settled.arguments import check_arguments
from settled.core.backoff import backoff_us
from settled.core.canonical import canonical_text
from settled.core.errors import ConfigurationError
from settled.core.limits import DEFAULTS
from settled.core.text import one_line, safe_str
from settled.declared import positive_us
from settled.integrations.answers import INVALID_ARGUMENTS, bounded
from settled.integrations.schemas import strict_schema

OK: Final = "ok"
FAILED: Final = "error"
TIMED_OUT: Final = "timeout"
REFUSED: Final = "breaker_open"


class Breaker:
    """Open after some failures in a row, refuse one call, then let one through. Counted, not timed: a run is no stream of calls."""

    def __init__(self, failures_max: int = DEFAULTS.breaker_failures_max) -> None:
        self.failures_max, self.failures = failures_max, 0
        self._refused = False
        self._lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether the next call, or the one after it, is a trial."""
        return self.failures >= self.failures_max

    def admits(self) -> bool:
        """Return whether a call may go through; the first after opening may not."""
        with self._lock:
            self._refused = self.is_open and not self._refused
            return not self._refused

    def note(self, *, succeeded: bool) -> None:
        """Count the end of a call that was let through."""
        with self._lock:
            self.failures = 0 if succeeded else self.failures + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainResult:
    """What came of a plain call: ok, error, timeout, breaker_open or invalid_arguments."""

    status: str
    value: Any = None
    error: str | None = None
    tries: int = 0

    def for_model(self) -> dict[str, Any]:
        """Return what the model may see."""
        told: dict[str, Any] = {"status": self.status}
        if self.status == OK:
            told["output"] = bounded(self.value)
        if self.error is not None:
            told["error"] = self.error
        return told


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlainTool:
    """A function without effects, as a model is offered it. It takes the arguments as one dict and returns plain data."""

    function: Callable[[dict[str, Any]], Any]
    name: str
    description: str
    schema: dict[str, Any]
    arguments_type: Any
    timeout_us: int
    tries_max: int = DEFAULTS.plain_tries_max
    breaker: Breaker = field(default_factory=Breaker)
    pause_us: int = 100_000

    def call(self, arguments: Any) -> PlainResult:
        """Check, call with a limit in time, and try again only what was too late. Never raises for what the function does."""
        try:
            text = canonical_text(arguments, "arguments")
            check_arguments(self.arguments_type, text)
        except (TypeError, ValueError) as error:
            return PlainResult(status=INVALID_ARGUMENTS, error=one_line(safe_str(error), DEFAULTS.error_text_max))
        if not self.breaker.admits():
            return PlainResult(status=REFUSED, error="the tool has failed several times in a row and is left alone for now")
        result = self._tried(text)
        self.breaker.note(succeeded=result.status == OK)
        return result

    def _tried(self, text: str) -> PlainResult:
        result = PlainResult(status=TIMED_OUT)
        for number in range(1, self.tries_max + 1):
            result = self._once(text, number)
            if result.status != TIMED_OUT:
                break
            if number < self.tries_max:
                pause = backoff_us(number, initial_us=self.pause_us, factor=2.0, cap_us=5_000_000, jitter=0.0, draw=0.0)
                threading.Event().wait(pause / 1_000_000)
        return result

    def _once(self, text: str, number: int) -> PlainResult:
        """Call on a thread of its own: a function cannot be stopped, but its caller need not wait for it."""
        ended, got = threading.Event(), list[PlainResult]()

        def work() -> None:
            try:
                value = self.function(json.loads(text))
                got.append(PlainResult(status=OK, value=json.loads(canonical_text(value, "the result")), tries=number))
            except TimeoutError as error:
                got.append(PlainResult(status=TIMED_OUT, error=_said(error), tries=number))
            except BaseException as error:  # noqa: BLE001 - whatever a tool does, the run goes on
                got.append(PlainResult(status=FAILED, error=_said(error), tries=number))
            ended.set()

        threading.Thread(target=work, name=f"settled-{self.name}", daemon=True).start()
        if not ended.wait(self.timeout_us / 1_000_000):
            return PlainResult(status=TIMED_OUT, error="it took too long", tries=number)
        return got[0]


def plain_tool(
    function: Callable[[dict[str, Any]], Any],
    *,
    arguments_type: Any,
    name: str | None = None,
    description: str | None = None,
    timeout: float = DEFAULTS.tool_wait_seconds,
    tries_max: int = DEFAULTS.plain_tries_max,
) -> PlainTool:
    """Declare a function that only reads as a tool. Raises ConfigurationError, ValueError or TypeError for what cannot serve."""
    named = name or str(getattr(function, "__name__", ""))
    said = description or function.__doc__ or named
    if inspect.iscoroutinefunction(function):
        raise ConfigurationError(f"tool {named!r}: a plain tool is no coroutine function")
    if tries_max < 1:
        raise ValueError(f"tries_max must be at least 1, not {tries_max}")
    return PlainTool(
        function=function,
        name=named,
        description=" ".join(said.split()),
        schema=strict_schema(arguments_type, f"tool {named!r}"),
        arguments_type=arguments_type,
        timeout_us=positive_us(timeout, "timeout"),
        tries_max=tries_max,
    )


def _said(error: BaseException) -> str:
    return one_line(f"{type(error).__name__}: {safe_str(error)}", DEFAULTS.error_text_max)
